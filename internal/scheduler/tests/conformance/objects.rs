//! Manifests as a user would write them: the vocabulary that cases are turned into.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::cluster::made;

/// The namespace of everything that has one.
pub const NAMESPACE: &str = "cases";

pub fn node(name: &str, labels: &BTreeMap<String, String>, allocatable: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {}},
        "spec": {},
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

pub fn queue(name: &str, parent: Option<&str>, oldest_first: usize) -> Value {
    let mut queue = json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
        "metadata": {
            "name": name, "creationTimestamp": made(oldest_first as i64), "annotations": {},
        },
        "spec": {"weight": 1},
        "status": {"state": "Open"},
    });
    if let Some(parent) = parent {
        queue["spec"]["parent"] = json!(parent);
    }
    queue
}

/// A PodGroup in a queue, whose members must start together.
pub fn group(name: &str, queue: &str, min: u64, made_at: i64) -> Value {
    json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": format!("group-{name}"),
            "creationTimestamp": made(made_at), "annotations": {},
        },
        "spec": {"minMember": min, "queue": queue},
        "status": {"phase": "Inqueue"},
    })
}

/// A priority class named for its value.
pub fn priority_class(value: i64) -> Value {
    json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": class_name(value)}, "value": value,
    })
}

pub fn class_name(value: i64) -> String {
    format!("priority{value}")
}

/// A pod of a group (or of nobody), as created.
pub fn pod(name: &str, group: Option<&str>, requests: &Value) -> Value {
    let mut extended = Map::new();
    for (resource, amount) in requests.as_object().into_iter().flatten() {
        if resource != "cpu" && resource != "memory" {
            extended.insert(resource.clone(), amount.clone());
        }
    }
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "creationTimestamp": made(1800),
            "annotations": {}, "labels": {},
        },
        "spec": {
            "schedulerName": "muster",
            "containers": [{
                "name": "main",
                "resources": {"requests": requests, "limits": extended},
            }],
        },
    });
    if let Some(group) = group {
        pod["metadata"]["annotations"][resources::names::GROUP_NAME] = json!(group);
    }
    pod
}

/// Sets an annotation: JSON values are written out.
pub fn annotate(object: &mut Value, name: &str, value: &Value) {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    object["metadata"]["annotations"][name] = json!(text);
}

/// An object's string keys and values.
pub fn strings(object: &Value) -> BTreeMap<String, String> {
    let entries = object.as_object().into_iter().flatten();
    entries
        .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect()
}
