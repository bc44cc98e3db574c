//! Owns POST to a collection, and the creation that a server-side apply or a controller's first
//! write results in.

use axum::body::Body;
use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::Value;
use std::sync::Arc;
use store::{CommitError, Entry, Purpose, TransactionView};

use crate::aggregation;
use crate::audit::Created;
use crate::bootstrap;
use crate::call::Call;
use crate::object::{self, Encoded};
use crate::prepare::{self, Tracking};
use crate::quota::{self, UsageChange};
use crate::refusal::RewriteRefusal;
use crate::respond::{self, WriteResult};
use crate::rewrite::unavailable;
use crate::status::Failure;
use crate::{admission, bounded, decode, namespace_room, request, services};

/// How many generated names are tried, and how often a creation is retried after a new quota made
/// it stale.
const MAX_ATTEMPTS: usize = 8;

/// The component that stores users, sessions and tokens.
const IDENTITY: &str = "system:muster:identity";
/// The maximum size of a session's or token's Secret that is accepted on a full disk, in bytes.
const MAX_CREDENTIAL: usize = 8192;

pub(crate) async fn create(call: &Call, body: Body) -> Result<Response<Body>, Failure> {
    let format = request::object_format(&call.headers)?;
    let bytes = request::read(body).await?;
    let decoded = decode::object(&bytes, format)?;
    let (written, name) =
        new_object(call, decoded.value, &decoded.duplicates, Tracking::Update).await?;
    let mut response = respond::written(call, written)?;
    response.extensions_mut().insert(Created(name));
    Ok(response)
}

/// Creates the given object, which has only been decoded. Returns its name, which may be generated.
pub(crate) async fn new_object(
    call: &Call,
    sent: Value,
    duplicates: &[String],
    tracking: Tracking,
) -> Result<(WriteResult, String), Failure> {
    let generates = call.name.is_none() && object::name(&sent).is_empty();
    // Defaults depend on the name, so that another name requires another object.
    let again = generates.then(|| sent.clone());
    let (mut object, mut warnings) = prepare::creation(call, sent, duplicates, tracking)?;
    for _ in 0..MAX_ATTEMPTS {
        let bytes = match insert(call, &object).await {
            Ok(bytes) | Err(RewriteRefusal::DryRun(bytes)) => bytes,
            Err(RewriteRefusal::Stale) => continue,
            Err(RewriteRefusal::Failure(failure)) if failure.reason() == "AlreadyExists" => {
                let Some(sent) = &again else {
                    return Err(failure);
                };
                (object, warnings) = prepare::creation(call, sent.clone(), duplicates, tracking)?;
                continue;
            }
            Err(RewriteRefusal::Failure(failure)) => return Err(failure),
        };
        let written = WriteResult {
            code: StatusCode::CREATED,
            bytes,
            warnings,
        };
        return Ok((written, object::name(&object).to_owned()));
    }
    let name = object::name(&object);
    Err(Failure::internal(format_args!(
        "{name:?} was not created in {MAX_ATTEMPTS} attempts, because quotas changed, or generated names or Services' \
         addresses were taken each time; try again"
    )))
}

/// True if an object lets a user sign in: the Secrets of sessions and tokens. Small ones are
/// accepted on a full disk too, because an administrator has to sign in to free space.
fn enables_sign_in(call: &Call, size: usize) -> bool {
    call.kind.kind == "Secret" && call.caller.user == IDENTITY && size <= MAX_CREDENTIAL
}

async fn insert(call: &Call, object: &Value) -> Result<Bytes, RewriteRefusal> {
    let kind = call.kind;
    let name = object::name(object).to_string();
    let key = kind.key(call.namespace.as_deref(), &name);
    let store = &call.server.0.store;
    let mut with_address = None;
    if services::concerns(kind, object, None) {
        let mut object = object.clone();
        services::complete(call, &mut object, None)?;
        with_address = Some(object);
    }
    let object = with_address.as_ref().unwrap_or(object);
    let claim = services::claim(kind, object, None);
    let encoded = Encoded::new(kind, object);
    bounded::stored_bytes(encoded.bytes.size())?;
    namespace_room::require(call, object, 0, encoded.bytes.size())?;
    let namespace = call.namespace.clone();
    let quota = quota::concerns(store, kind, namespace.as_deref())
        .then(|| UsageChange::created(kind, object));
    let own_books = quota::is_quota(kind).then(|| object.clone());
    let companions = bootstrap::companions(&call.server, kind, &name);
    let dry_run = call.dry_run;
    let purpose = if enables_sign_in(call, encoded.bytes.size()) {
        Purpose::MakeRoom
    } else {
        Purpose::Ordinary
    };
    let creation = move |view: &mut TransactionView<'_>| -> Result<Arc<Entry>, RewriteRefusal> {
        if let Some(namespace) = &namespace {
            admission::namespace_takes(|key| view.get(key), kind, &name, namespace)?;
        }
        if view.get(&key).is_some() {
            return Err(Failure::already_exists(kind, &name).into());
        }
        services::settle(view, kind, claim.as_ref())?;
        quota::settle(view, kind, namespace.as_deref(), &name, quota)?;
        let encoded = match own_books {
            Some(object) => quota::measured(view, object)?,
            None => encoded,
        };
        if dry_run {
            return Err(RewriteRefusal::DryRun(encoded.bytes.with("")));
        }
        // The object is written last: its revision is that of the whole write.
        for (key, companion) in companions {
            if view.get(&key).is_none() {
                companion.put(view, key);
            }
        }
        let entry = encoded.put(view, key);
        aggregation::settle(view, kind);
        Ok(view.get(&entry.key).unwrap_or(entry))
    };
    match store.commit_for(purpose, creation).await {
        Ok(entry) => Ok(entry.value.clone()),
        Err(CommitError::Refused(refusal)) => Err(refusal),
        Err(CommitError::Unavailable(error)) => Err(unavailable(&error).into()),
    }
}
