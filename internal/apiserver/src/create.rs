//! Owns POST to a collection, and the creation that a server-side apply or a controller's first write comes to.

use axum::body::Body;
use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::Value;
use std::sync::Arc;
use store::{CommitError, Entry};

use crate::admission;
use crate::call::Call;
use crate::decode;
use crate::object::{self, Encoded};
use crate::prepare::{self, Tracking};
use crate::quota::{self, Change};
use crate::request;
use crate::respond::{self, Written};
use crate::rewrite::{Refusal, unavailable};
use crate::status::Failure;

/// How many generated names are tried, and how often a creation that ran into a new quota is tried again.
const MAX_ATTEMPTS: usize = 8;

pub(crate) async fn create(call: &Call, body: Body) -> Result<Response<Body>, Failure> {
    let format = request::object_format(&call.headers)?;
    let bytes = request::read(body).await?;
    let decoded = decode::object(&bytes, format)?;
    let written = new_object(call, decoded.value, &decoded.duplicates, Tracking::Update).await?;
    respond::written(call, written)
}

/// Creates the object given, which has been decoded and nothing else.
pub(crate) async fn new_object(
    call: &Call,
    sent: Value,
    duplicates: &[String],
    tracking: Tracking,
) -> Result<Written, Failure> {
    let generates = call.name.is_none() && object::name(&sent).is_empty();
    // Defaults follow from the name, so that another name is another object.
    let again = generates.then(|| sent.clone());
    let (mut object, mut warnings) = prepare::creation(call, sent, duplicates, tracking)?;
    for _ in 0..MAX_ATTEMPTS {
        let bytes = match insert(call, &object).await {
            Ok(bytes) | Err(Refusal::DryRun(bytes)) => bytes,
            Err(Refusal::Stale) => continue,
            Err(Refusal::Failure(failure)) if failure.reason() == "AlreadyExists" => {
                let Some(sent) = &again else {
                    return Err(failure);
                };
                (object, warnings) = prepare::creation(call, sent.clone(), duplicates, tracking)?;
                continue;
            }
            Err(Refusal::Failure(failure)) => return Err(failure),
        };
        return Ok(Written {
            code: StatusCode::CREATED,
            bytes,
            warnings,
        });
    }
    let name = object::name(&object);
    Err(Failure::internal(format_args!(
        "{name:?} was not created in {MAX_ATTEMPTS} attempts, because quotas changed or generated names were taken \
         each time; try again"
    )))
}

async fn insert(call: &Call, object: &Value) -> Result<Bytes, Refusal> {
    let kind = call.kind;
    let name = object::name(object).to_string();
    let key = kind.key(call.namespace.as_deref(), &name);
    let store = &call.server.0.store;
    let encoded = Encoded::new(kind, object);
    let namespace = call.namespace.clone();
    let quota =
        quota::concerns(store, kind, namespace.as_deref()).then(|| Change::created(kind, object));
    let own_books = quota::is_quota(kind).then(|| object.clone());
    let dry_run = call.dry_run;
    let committed = store.commit(move |view| -> Result<Arc<Entry>, Refusal> {
        if let Some(namespace) = &namespace {
            admission::namespace_takes(|key| view.get(key), kind, &name, namespace)?;
        }
        if view.get(&key).is_some() {
            return Err(Failure::already_exists(kind, &name).into());
        }
        quota::settle(view, kind, namespace.as_deref(), &name, quota)?;
        let encoded = match own_books {
            Some(object) => quota::measured(view, object)?,
            None => encoded,
        };
        if dry_run {
            return Err(Refusal::DryRun(encoded.bytes.with("")));
        }
        Ok(encoded.put(view, key))
    });
    match committed.await {
        Ok(entry) => Ok(entry.value.clone()),
        Err(CommitError::Refused(refusal)) => Err(refusal),
        Err(CommitError::Unavailable(error)) => Err(unavailable(&error).into()),
    }
}
