//! Owns the change of an object that exists: read, compute outside the store's thread, commit only if nobody
//! was faster, else again. Does not know what the change is.

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::Value;
use store::{CommitError, Entry, StoreError};

use crate::call::Call;
use crate::namespace;
use crate::object::{self, Encoded};
use crate::quota::{self, Change};
use crate::respond::Written;
use crate::status::Failure;

/// How often a change is computed anew because another one came first.
const MAX_ATTEMPTS: usize = 16;

/// Why a transaction wrote nothing.
pub(crate) enum Refusal {
    /// The client is told.
    Failure(Failure),
    /// What the change was computed from is no longer so.
    Stale,
    /// Everything would have passed, and this would have been written.
    DryRun(Bytes),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Refusal::Failure(failure)
    }
}

/// What is to become of an object.
pub(crate) enum Next {
    /// Nothing: it already is what was wanted.
    Keep,
    /// It is replaced.
    Put(Box<Value>),
    /// It is gone, and this is its last state.
    Remove(Box<Value>),
}

/// What became of it.
pub(crate) struct Rewritten {
    /// The object's bytes after the change.
    pub(crate) bytes: Bytes,
    /// Whether it is gone.
    pub(crate) removed: bool,
}

impl Rewritten {
    /// The answer to an update or a patch.
    pub(crate) fn with(self, warnings: Vec<String>) -> Written {
        Written {
            code: StatusCode::OK,
            bytes: self.bytes,
            warnings,
        }
    }
}

/// Changes the object that the call names, as `decide` says from its current state. `decide` may run several
/// times; a client that pinned a resourceVersion is refused by `decide` itself on the second run.
pub(crate) async fn rewrite(
    call: &Call,
    decide: impl FnMut(&Value) -> Result<Next, Failure> + Send,
) -> Result<Rewritten, Failure> {
    rewrite_key(call, call.object_name(), call.key(), decide).await
}

/// The same for an object of the call's kind that the path does not name.
pub(crate) async fn rewrite_key(
    call: &Call,
    name: &str,
    key: String,
    mut decide: impl FnMut(&Value) -> Result<Next, Failure> + Send,
) -> Result<Rewritten, Failure> {
    for _ in 0..MAX_ATTEMPTS {
        let entry = call
            .server
            .0
            .store
            .get(&key)
            .ok_or_else(|| Failure::not_found(call.kind, name))?;
        let live = object::parse(&entry)?;
        let (next, removed) = match decide(&live)? {
            Next::Keep => {
                return Ok(Rewritten {
                    bytes: entry.value.clone(),
                    removed: false,
                });
            }
            Next::Put(next) => {
                let released = is_released(call, &next);
                (next, released)
            }
            Next::Remove(last) => (last, true),
        };
        match commit(call, name, &key, &entry, &live, &next, removed).await {
            Ok(bytes) | Err(Refusal::DryRun(bytes)) => return Ok(Rewritten { bytes, removed }),
            Err(Refusal::Stale) => {}
            Err(Refusal::Failure(failure)) => return Err(failure),
        }
    }
    Err(Failure::modified(call.kind, name))
}

/// Whether an object being deleted has nothing left that holds it, so that this write is its last.
fn is_released(call: &Call, next: &Value) -> bool {
    let waits_for_agent =
        call.kind.graceful && next["metadata"]["deletionGracePeriodSeconds"].as_i64() != Some(0);
    let held = !object::finalizers(next).is_empty() || namespace::holds(call.kind, next);
    object::deleting(next) && !held && !waits_for_agent
}

async fn commit(
    call: &Call,
    name: &str,
    key: &str,
    entry: &Entry,
    live: &Value,
    next: &Value,
    removed: bool,
) -> Result<Bytes, Refusal> {
    let kind = call.kind;
    let store = &call.server.0.store;
    let expected = entry.revision;
    let encoded = Encoded::new(kind, next);
    let namespace = next["metadata"]["namespace"].as_str().map(str::to_owned);
    let quota = quota::concerns(store, kind, namespace.as_deref()).then(|| {
        if removed {
            Change::removed(kind, live)
        } else {
            Change::updated(kind, live, next)
        }
    });
    let dry_run = call.dry_run;
    let own_books = quota::is_quota(kind).then(|| next.clone());
    let (key, name) = (key.to_string(), name.to_string());
    let committed = store.commit(move |view| -> Result<Bytes, Refusal> {
        let current = view
            .get(&key)
            .ok_or_else(|| Failure::not_found(kind, &name))?;
        if current.revision != expected {
            return Err(Refusal::Stale);
        }
        quota::settle(view, kind, namespace.as_deref(), &name, quota)?;
        let encoded = match own_books {
            Some(object) if !removed => quota::measured(view, object)?,
            _ => encoded,
        };
        if dry_run {
            return Err(Refusal::DryRun(encoded.bytes.with(&expected.to_string())));
        }
        if removed {
            let gone = view.delete(&key, |revision, _| encoded.bytes.at(revision));
            return Ok(gone.map(|entry| entry.value.clone()).unwrap_or_default());
        }
        Ok(encoded.put(view, key).value.clone())
    });
    match committed.await {
        Ok(bytes) => Ok(bytes),
        Err(CommitError::Refused(refusal)) => Err(refusal),
        Err(CommitError::Unavailable(error)) => Err(unavailable(&error).into()),
    }
}

/// 503 with what the store says to do about it.
pub(crate) fn unavailable(error: &StoreError) -> Failure {
    Failure::unavailable(error.to_string())
}
