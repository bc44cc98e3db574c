//! Owns the pod security checks of requests: for created or changed pods, for objects with pod
//! templates, and for namespaces whose labels become stricter. Also the annotation with the level
//! that a pod was admitted at. `resources::admission::pod_security` defines the violations.

use resources::admission::pod_security::{
    MAX_PODS, NamespaceRequest, PodSecurity, SecurityVerdict,
};
use resources::names::{POD_NETWORK, POD_NETWORK_OWN, POD_SECURITY_LEVEL};
use resources::registry::Kind;
use serde_json::{Map, Value};

use crate::call::Call;
use crate::core_kinds::{is_namespace, kind_of};
use crate::object::{self, meta_mut};
use crate::status::Failure;

/// Checks a new object, and records on a pod the level that it was admitted at. Returns the
/// warnings.
pub(crate) fn created(call: &Call, object: &mut Value) -> Result<Vec<String>, Failure> {
    if is_pod(call.kind) {
        let verdict = judged(call, object, |security, request| {
            security.pod(request, object)
        })?;
        note(call, &verdict);
        refuse(call, object, &verdict)?;
        let level = Value::from(verdict.level.as_str());
        set_level(object, Some(level));
        return Ok(verdict.warnings);
    }
    of_templates(call, object)
}

/// Checks a change of an object. Returns the warnings.
pub(crate) fn changed(call: &Call, live: &Value, next: &Value) -> Result<Vec<String>, Failure> {
    if is_namespace(call.kind) {
        return of_namespace(call, live, next);
    }
    if !is_pod(call.kind) {
        return of_templates(call, next);
    }
    if !PodSecurity::matters(live, next) {
        return Ok(Vec::new());
    }
    let verdict = judged(call, next, |security, request| security.pod(request, next))?;
    note(call, &verdict);
    refuse(call, next, &verdict)?;
    Ok(verdict.warnings)
}

/// Keeps a pod's recorded level, whatever a change contains: the agent trusts it.
pub(crate) fn keep_level(kind: &Kind, live: &Value, next: &mut Value) {
    if is_pod(kind) {
        let kept = live["metadata"]["annotations"].get(POD_SECURITY_LEVEL);
        set_level(next, kept.cloned());
    }
}

fn is_pod(kind: &Kind) -> bool {
    kind.is(kind_of("", "Pod"))
}

fn set_level(pod: &mut Value, level: Option<Value>) {
    let meta = meta_mut(pod);
    let Some(level) = level else {
        if let Some(Value::Object(annotations)) = meta.get_mut("annotations")
            && annotations.remove(POD_SECURITY_LEVEL).is_some()
            && annotations.is_empty()
        {
            meta.remove("annotations");
        }
        return;
    };
    let annotations = meta.entry("annotations").or_insert(Value::Null);
    if !annotations.is_object() {
        *annotations = Value::Object(Map::new());
    }
    annotations[POD_SECURITY_LEVEL] = level;
}

fn of_templates(call: &Call, object: &Value) -> Result<Vec<String>, Failure> {
    if !PodSecurity::has_templates(call.kind) {
        return Ok(Vec::new());
    }
    let verdict = judged(call, object, |security, request| {
        security.templates(request, call.kind, object)
    })?;
    note(call, &verdict);
    Ok(verdict.warnings)
}

/// Warns about the namespace's existing pods that violate the newly enforced level.
fn of_namespace(call: &Call, live: &Value, next: &Value) -> Result<Vec<String>, Failure> {
    let security = &call.server.0.config.pod_security;
    let name = object::name(next);
    let labels = object::labels(next);
    let Some(enforce) = security.tightened(name, &object::labels(live), &labels) else {
        return Ok(Vec::new());
    };
    let prefix = kind_of("", "Pod").prefix(Some(name));
    let page = call.server.0.store.list(&prefix, None, MAX_PODS);
    let total = page.entries.len() + page.remaining;
    let pods: Vec<Value> = page
        .entries
        .iter()
        .map(|entry| object::parse(entry))
        .collect::<Result<_, _>>()?;
    let request = NamespaceRequest {
        namespace: name,
        labels: &labels,
        user: &call.caller.user,
        own_pod_networks: own_pod_networks(call),
    };
    Ok(security.of_existing(&request, enforce, &pods, total))
}

fn judged(
    call: &Call,
    object: &Value,
    judge: impl FnOnce(&PodSecurity, &NamespaceRequest<'_>) -> SecurityVerdict,
) -> Result<SecurityVerdict, Failure> {
    let server = &call.server.0;
    let name = call.namespace.as_deref().unwrap_or_default();
    let kind = kind_of("", "Namespace");
    let entry = server
        .store
        .get(&kind.key(None, name))
        .ok_or_else(|| Failure::not_found(kind, name))?;
    let request = NamespaceRequest {
        namespace: name,
        labels: &entry.meta.labels,
        user: &call.caller.user,
        // The nodes matter to pods in their node's network only.
        own_pod_networks: (!is_pod(call.kind) || object["spec"]["hostNetwork"] == true)
            && own_pod_networks(call),
    };
    Ok(judge(&server.config.pod_security, &request))
}

/// Whether pods of a node have networks of their own. Reads a label of each Node from the store's index, without parsing
/// the objects.
fn own_pod_networks(call: &Call) -> bool {
    let nodes = (call.server.0.store).list(&kind_of("", "Node").prefix(None), None, usize::MAX);
    let networks = (nodes.entries.iter()).filter_map(|entry| entry.meta.labels.get(POD_NETWORK));
    networks
        .into_iter()
        .any(|network| network == POD_NETWORK_OWN)
}

fn refuse(call: &Call, pod: &Value, verdict: &SecurityVerdict) -> Result<(), Failure> {
    match &verdict.refused {
        Some(why) => Err(Failure::forbidden(call.kind, object::name(pod), why)),
        None => Ok(()),
    }
}

fn note(call: &Call, verdict: &SecurityVerdict) {
    call.audit.add(&verdict.audit);
}
