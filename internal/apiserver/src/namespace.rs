//! Owns the special rules of namespaces: the finalizers in their spec, which their controller
//! removes after all content is gone, and the namespaces that cannot be deleted.

use axum::body::Body;
use http::Response;
use resources::names;
use resources::registry::Kind;
use serde_json::Value;

use crate::call::Call;
use crate::core_kinds::is_namespace;
use crate::object;
use crate::rewrite::{RewriteDecision, rewrite};
use crate::status::Failure;
use crate::{decode, fields, request, respond};

/// `PUT /finalize`: replaces `spec.finalizers`; after the last one is removed, the namespace is
/// deleted.
pub(crate) async fn finalize(call: &Call, body: Body) -> Result<Response<Body>, Failure> {
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

/// True if finalizers in the spec hold a namespace.
pub(crate) fn holds(kind: &Kind, object: &Value) -> bool {
    is_namespace(kind)
        && object["spec"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty())
}

/// Sets the phase of a namespace that is being deleted.
pub(crate) fn mark(kind: &Kind, object: &mut Value) {
    if is_namespace(kind) {
        object::member_mut(object, "status").insert("phase".into(), "Terminating".into());
    }
}

/// Refuses to delete the namespaces that every server has.
pub(crate) fn may_be_deleted(kind: &Kind, name: &str) -> Result<(), Failure> {
    if is_namespace(kind) && names::FIRST_NAMESPACES.contains(&name) {
        return Err(Failure::forbidden(
            kind,
            name,
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}
