//! Owns GET of one object.

use axum::body::Body;
use http::Response;

use crate::call::Call;
use crate::respond;
use crate::rewrite::absent;
use crate::status::Failure;

pub(crate) fn get(call: &Call) -> Result<Response<Body>, Failure> {
    let key = call.key();
    let entry = call.server.0.store.get(&key);
    let entry = entry.ok_or_else(|| absent(call, &key, call.object_name()))?;
    respond::one(call, entry.value.clone())
}
