//! Owns the binding of a pod to a node: once, with the devices selected for it. The scheduler
//! selects them.

use axum::body::Body;
use http::{Response, StatusCode};
use resources::field::Path;
use resources::registry::meta;
use resources::{syntax, times};
use serde_json::{Value, json};

use crate::call::Call;
use crate::limits::quoted;
use crate::object::{self, meta_mut, meta_text};
use crate::rewrite::{RewriteDecision, rewrite};
use crate::status::{Cause, Failure};
use crate::{admission, decode, fields, pod_security, request, reserved, respond};

/// `POST pods/NAME/binding`.
pub(crate) async fn create(call: &Call, body: Body) -> Result<Response<Body>, Failure> {
    let format = request::object_format(&call.headers)?;
    let sent = decode::object(&request::read(body).await?, format)?.value;
    bind(call, &sent).await
}

/// Applies a Binding to the pod in the call's path.
pub(crate) async fn bind(call: &Call, binding: &Value) -> Result<Response<Body>, Failure> {
    fields::typed(
        &call.server,
        "io.k8s.api.core.v1.Binding",
        "Binding",
        binding,
    )?;
    let node = binding["target"]["name"].as_str().unwrap_or_default();
    let kind = binding["target"]["kind"].as_str().unwrap_or_default();
    if node.is_empty() {
        return Err(invalid(
            call,
            "target.name",
            "FieldValueRequired",
            "Required value",
        ));
    }
    if !matches!(kind, "" | "Node") {
        let message =
            format!("Unsupported value: \"{kind}\": supported values: \"Node\", \"<empty>\"");
        return Err(invalid(
            call,
            "target.kind",
            "FieldValueNotSupported",
            &message,
        ));
    }
    let faults = syntax::dns1123_subdomain(node);
    if !faults.is_empty() {
        let message = format!("Invalid value: \"{}\": {}", quoted(node), faults.join("; "));
        return Err(invalid(call, "target.name", "FieldValueInvalid", &message));
    }
    let name = object::name(binding);
    if !name.is_empty() && name != call.object_name() {
        return Err(Failure::bad_request(
            "name in URL does not match name in Binding object",
        ));
    }
    rewrite(call, |live| assign(call, live, binding, node)).await?;
    let mut response = respond::json(&json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
    }));
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

fn invalid(call: &Call, field: &str, reason: &str, message: &str) -> Failure {
    let cause = Cause {
        reason: reason.into(),
        message: message.into(),
        field: field.into(),
    };
    Failure::invalid(call.kind, call.object_name(), vec![cause])
}

fn assign(
    call: &Call,
    live: &Value,
    binding: &Value,
    node: &str,
) -> Result<RewriteDecision, Failure> {
    let name = call.object_name();
    let refuse = |why: String| Err(Failure::conflict_on(call.kind, "binding", name, &why));
    for (field, word) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (wanted, has) = (meta_text(binding, field), meta_text(live, field));
        if !wanted.is_empty() && wanted != has {
            return refuse(format!(
                "Precondition failed: {word} in precondition: {wanted}, {word} in object meta: {has}"
            ));
        }
    }
    if object::deleting(live) {
        return refuse(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        ));
    }
    let assigned = live["spec"]["nodeName"].as_str().unwrap_or_default();
    if !assigned.is_empty() {
        return refuse(format!(
            "pod {name} is already assigned to node \"{assigned}\""
        ));
    }
    if live["spec"]["schedulingGates"]
        .as_array()
        .is_some_and(|gates| !gates.is_empty())
    {
        return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    let mut next = live.clone();
    object::member_mut(&mut next, "spec").insert("nodeName".into(), node.into());
    if let Some(given) = binding["metadata"]["annotations"]
        .as_object()
        .filter(|given| !given.is_empty())
    {
        let mut annotations = live["metadata"]["annotations"]
            .as_object()
            .cloned()
            .unwrap_or_default();
        annotations.extend(
            given
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
        let mut errors = Vec::new();
        let annotations = Value::Object(annotations);
        let metadata = Path::new("metadata");
        meta::annotations(&annotations, &metadata.child("annotations"), &mut errors);
        if !errors.is_empty() {
            let causes = errors.iter().map(Cause::from).collect();
            return Err(Failure::invalid(call.kind, name, causes));
        }
        meta_mut(&mut next).insert("annotations".into(), annotations);
        admission::own(call, &mut next, Some(live))?;
        pod_security::keep_level(call.kind, live, &mut next);
    }
    reserved::refuse_reserved(call, &next, Some(live))?;
    let now = times::seconds(call.server.now());
    object::set_condition(&mut next, "PodScheduled", json!({"status": "True"}), &now);
    Ok(RewriteDecision::Put(Box::new(next)))
}
