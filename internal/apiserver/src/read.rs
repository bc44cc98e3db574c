//! Owns GET of one object.

use axum::body::Body;
use http::Response;

use crate::call::Call;
use crate::respond;
use crate::status::Failure;

pub(crate) fn get(call: &Call) -> Result<Response<Body>, Failure> {
    let entry = call.server.0.store.get(&call.key());
    let entry = entry.ok_or_else(|| Failure::not_found(call.kind, call.object_name()))?;
    respond::one(call, entry.value.clone())
}
