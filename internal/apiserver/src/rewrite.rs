//! Owns the change of an existing object: read it, compute the change outside the store's thread,
//! commit only if the object is unchanged, otherwise retry. Does not know the change.

use axum::http::StatusCode;
use bytes::Bytes;
use serde_json::Value;
use store::{CommitError, Entry, Purpose, StoreError, TransactionView};

use crate::aggregation;
use crate::bounded;
use crate::call::Call;
use crate::namespace;
use crate::namespace_room;
use crate::node_restriction;
use crate::object::{self, Encoded};
use crate::quota::{self, UsageChange};
use crate::refusal::RewriteRefusal;
use crate::respond::WriteResult;
use crate::services;
use crate::status::Failure;

/// How often a change is recomputed after a concurrent write.
const MAX_ATTEMPTS: usize = 16;

/// How much an object that is being deleted may grow by one write on a nearly full disk, in bytes:
/// enough for the texts of a pod's termination.
const GROWTH_WHILE_DELETED: usize = 4096;

/// The decision about an object.
pub(crate) enum RewriteDecision {
    /// No change: the object already is in the wanted state.
    Keep,
    /// The object is replaced.
    Put(Box<Value>),
    /// The object is deleted; this is its last state.
    Remove(Box<Value>),
}

/// The result of a change.
pub(crate) struct Rewritten {
    /// The object's bytes after the change.
    pub(crate) bytes: Bytes,
    /// True if the object was deleted.
    pub(crate) removed: bool,
}

impl Rewritten {
    /// The response to an update or a patch.
    pub(crate) fn with(self, warnings: Vec<String>) -> WriteResult {
        WriteResult {
            code: StatusCode::OK,
            bytes: self.bytes,
            warnings,
        }
    }
}

/// Changes the object in the call's path as `decide` returns for its current state. `decide` may
/// run several times; if the client set a resourceVersion, `decide` refuses on the second run.
pub(crate) async fn rewrite(
    call: &Call,
    decide: impl FnMut(&Value) -> Result<RewriteDecision, Failure> + Send,
) -> Result<Rewritten, Failure> {
    rewrite_key(call, call.object_name(), call.key(), decide).await
}

/// The same for an object of the call's kind that is not in the path.
pub(crate) async fn rewrite_key(
    call: &Call,
    name: &str,
    key: String,
    mut decide: impl FnMut(&Value) -> Result<RewriteDecision, Failure> + Send,
) -> Result<Rewritten, Failure> {
    for _ in 0..MAX_ATTEMPTS {
        let entry = call
            .server
            .0
            .store
            .get(&key)
            .ok_or_else(|| absent(call, &key, name))?;
        let live = object::parse(&entry)?;
        node_restriction::existing(call, &live)?;
        let (next, removed) = match decide(&live)? {
            RewriteDecision::Keep => {
                return Ok(Rewritten {
                    bytes: entry.value.clone(),
                    removed: false,
                });
            }
            RewriteDecision::Put(mut next) => {
                services::complete(call, &mut next, Some(&live))?;
                let released = is_released(call, &next);
                (next, released)
            }
            RewriteDecision::Remove(last) => (last, true),
        };
        match commit(call, name, &key, &entry, &live, &next, removed).await {
            Ok(bytes) | Err(RewriteRefusal::DryRun(bytes)) => {
                return Ok(Rewritten { bytes, removed });
            }
            Err(RewriteRefusal::Stale) => {}
            Err(RewriteRefusal::Failure(failure)) => return Err(failure),
        }
    }
    Err(Failure::modified(call.kind, name))
}

/// True if an object is being deleted and neither a finalizer nor an agent holds it any more, so
/// that this write is its last.
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
) -> Result<Bytes, RewriteRefusal> {
    let kind = call.kind;
    let store = &call.server.0.store;
    let expected = entry.revision;
    let encoded = Encoded::new(kind, next);
    // An object from before the bound may shrink to it in several steps, and can always be deleted.
    let begins_to_go = object::deleting(next) && !object::deleting(live);
    if !removed && !begins_to_go && encoded.bytes.size() > entry.value.len() {
        bounded::stored_bytes(encoded.bytes.size())?;
        namespace_room::require(call, next, entry.value.len(), encoded.bytes.size())?;
    }
    let namespace = next["metadata"]["namespace"].as_str().map(str::to_owned);
    let quota = quota::concerns(store, kind, namespace.as_deref()).then(|| {
        if removed {
            UsageChange::removed(kind, live)
        } else {
            UsageChange::updated(kind, live, next)
        }
    });
    let dry_run = call.dry_run;
    let own_books = quota::is_quota(kind).then(|| next.clone());
    let claim = services::claim(kind, next, Some(live)).filter(|_| !removed);
    let (key, name) = (key.to_string(), name.to_string());
    // On a full disk an object's termination continues: its deletion, its finalizers, a pod's last
    // status.
    let ends = object::deleting(next)
        && encoded.bytes.size() <= entry.value.len().saturating_add(GROWTH_WHILE_DELETED);
    let purpose = if removed || ends {
        Purpose::MakeRoom
    } else {
        Purpose::Ordinary
    };
    let change = move |view: &mut TransactionView<'_>| -> Result<Bytes, RewriteRefusal> {
        let current = view
            .get(&key)
            .ok_or_else(|| Failure::not_found(kind, &name))?;
        if current.revision != expected {
            return Err(RewriteRefusal::Stale);
        }
        services::settle(view, kind, claim.as_ref())?;
        quota::settle(view, kind, namespace.as_deref(), &name, quota)?;
        let encoded = match own_books {
            Some(object) if !removed => quota::measured(view, object)?,
            _ => encoded,
        };
        if dry_run {
            return Err(RewriteRefusal::DryRun(
                encoded.bytes.with(&expected.to_string()),
            ));
        }
        if removed {
            let gone = view.delete(&key, |revision, _| encoded.bytes.at(revision));
            aggregation::settle(view, kind);
            return Ok(gone.map(|entry| entry.value.clone()).unwrap_or_default());
        }
        let entry = encoded.put(view, key);
        aggregation::settle(view, kind);
        let entry = view.get(&entry.key).unwrap_or(entry);
        Ok(entry.value.clone())
    };
    match store.commit_for(purpose, change).await {
        Ok(bytes) => Ok(bytes),
        Err(CommitError::Refused(refusal)) => Err(refusal),
        Err(CommitError::Unavailable(error)) => Err(unavailable(&error).into()),
    }
}

/// The error for a missing object: 404, or 500 if its record is damaged. A client concludes from
/// 404 that the object is gone, and may delete its dependents.
pub(crate) fn absent(call: &Call, key: &str, name: &str) -> Failure {
    match call.server.0.store.damaged(key) {
        None => Failure::not_found(call.kind, name),
        Some(damaged) => Failure::internal(format_args!(
            "the record of {} {name:?} is damaged ({}) and in quarantine at {}; create the object again, or restore a \
             backup",
            call.kind.qualified(),
            damaged.reason,
            damaged.file.display()
        )),
    }
}

/// 503 with the store's remedy.
pub(crate) fn unavailable(error: &StoreError) -> Failure {
    Failure::unavailable(error.to_string())
}
