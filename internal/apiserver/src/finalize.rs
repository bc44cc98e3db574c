//! Owns `namespaces/NAME/finalize`: the finalizers in a namespace's spec, which their controller removes after all
//! content is gone.

use axum::body::Body;
use http::Response;

use crate::call::Call;
use crate::object;
use crate::rewrite::{RewriteDecision, rewrite};
use crate::status::Failure;
use crate::{decode, fields, request, respond};

/// `PUT /finalize`: replaces `spec.finalizers`; after the last one is removed, the namespace is
/// deleted.
pub(crate) async fn put(call: &Call, body: Body) -> Result<Response<Body>, Failure> {
    let format = request::object_format(&call.headers)?;
    let sent = decode::object(&request::read(body).await?, format)?.value;
    fields::typed(&call.server, call.kind.schema, call.kind.kind, &sent)?;
    let rewritten = rewrite(call, |live| {
        let version = object::meta_text(&sent, "resourceVersion");
        if !version.is_empty() && version != object::meta_text(live, "resourceVersion") {
            return Err(Failure::modified(call.kind, call.object_name()));
        }
        let mut next = live.clone();
        let spec = object::member_mut(&mut next, "spec");
        object::carry(&sent["spec"], spec, "finalizers");
        Ok(if next == *live {
            RewriteDecision::Keep
        } else {
            RewriteDecision::Put(Box::new(next))
        })
    })
    .await?;
    respond::written(call, rewritten.with(Vec::new()))
}
