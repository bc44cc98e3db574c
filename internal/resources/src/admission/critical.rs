//! Owns the rule for the classes `system-node-critical` and `system-cluster-critical`, whose pods may preempt every
//! other pod: only pods in the system's namespaces, and in namespaces that an administrator labels, may use them.
//! Kubernetes states the same rule as a ResourceQuota's scope.

use std::collections::BTreeMap;

use serde_json::Value;

use super::templates::templates;
use super::{HIGHEST_USER_PRIORITY, SYSTEM_CLASSES};
use crate::json;
use crate::names;
use crate::registry::Kind;

/// The namespaces whose pods may use the system's classes without a label.
const NAMESPACES: [&str; 2] = [names::SYSTEM_NAMESPACE, "kube-system"];

/// An object requests a priority that is reserved for system pods.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{field}: {value:?} is not usable in this namespace; name another PriorityClass, or have an administrator label \
     the namespace {}=true",
    names::CRITICAL_PODS
)]
pub struct Critical {
    /// The field with the request.
    pub field: String,
    /// The field's value.
    pub value: String,
}

/// True if pods of this namespace may use the system's classes.
pub fn takes_critical_pods(namespace: &str, labels: &BTreeMap<String, String>) -> bool {
    NAMESPACES.contains(&namespace)
        || labels.get(names::CRITICAL_PODS).map(String::as_str) == Some("true")
}

/// Finds a system class or priority that an object requests and did not request before.
pub fn critical(kind: &Kind, new: &Value, old: Option<&Value>) -> Option<Critical> {
    let before: Vec<Critical> = old.map(|old| requested(kind, old)).unwrap_or_default();
    let mut now = requested(kind, new).into_iter();
    now.find(|one| !before.iter().any(|had| had.value == one.value))
}

/// Every field that requests a class or priority of the system.
fn requested(kind: &Kind, object: &Value) -> Vec<Critical> {
    let mut found = Vec::new();
    let mut class = |field: String, value: &str| {
        if SYSTEM_CLASSES.iter().any(|(name, _)| *name == value) {
            let value = value.to_owned();
            found.push(Critical { field, value });
        }
    };
    let gang = &["spec", "runPolicy", "schedulingPolicy", "priorityClass"];
    match (kind.group, kind.kind) {
        ("", "Pod") | ("scheduling.volcano.sh", "PodGroup") | ("batch.volcano.sh", "Job") => class(
            "spec.priorityClassName".to_owned(),
            json::text(object, &["spec", "priorityClassName"]),
        ),
        _ if kind.training().is_some() => class(gang.join("."), json::text(object, gang)),
        _ => {}
    }
    let mut pods = templates(kind, object);
    for (path, template) in &pods {
        class(
            format!("{path}.spec.priorityClassName"),
            json::text(template, &["spec", "priorityClassName"]),
        );
    }
    if (kind.group, kind.kind) == ("", "Pod") {
        pods.push((String::new(), object));
    }
    for (path, pod) in pods {
        let priority = json::int(pod, &["spec", "priority"]);
        if let Some(priority) = priority.filter(|value| *value > HIGHEST_USER_PRIORITY) {
            let dot = if path.is_empty() { "" } else { "." };
            found.push(Critical {
                field: format!("{path}{dot}spec.priority"),
                value: priority.to_string(),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;

    const POD: (&str, &str, &str) = ("", "v1", "Pod");

    #[test]
    fn a_system_class_is_found_wherever_an_object_may_name_one() {
        let class = json!("system-node-critical");
        let table = [
            (
                POD,
                json!({"spec": {"priorityClassName": class}}),
                "spec.priorityClassName",
            ),
            (
                POD,
                json!({"spec": {"priority": HIGHEST_USER_PRIORITY + 1}}),
                "spec.priority",
            ),
            (
                ("scheduling.volcano.sh", "v1beta1", "PodGroup"),
                json!({"spec": {"priorityClassName": "system-cluster-critical"}}),
                "spec.priorityClassName",
            ),
            (
                ("kubeflow.org", "v1", "PyTorchJob"),
                json!({"spec": {"runPolicy": {"schedulingPolicy": {"priorityClass": class}}}}),
                "spec.runPolicy.schedulingPolicy.priorityClass",
            ),
            (
                ("kubeflow.org", "v1", "PyTorchJob"),
                json!({"spec": {"pytorchReplicaSpecs": {"Worker":
                    {"template": {"spec": {"priorityClassName": class}}}}}}),
                "spec.pytorchReplicaSpecs[Worker].template.spec.priorityClassName",
            ),
            (
                ("batch", "v1", "Job"),
                json!({"spec": {"template": {"spec": {"priority": 2_000_000_000}}}}),
                "spec.template.spec.priority",
            ),
            (
                ("batch.volcano.sh", "v1alpha1", "Job"),
                json!({"spec": {"priorityClassName": class}}),
                "spec.priorityClassName",
            ),
        ];
        for ((group, version, name), object, want) in table {
            let kind = registry::by_kind(group, version, name).unwrap();
            let found = critical(kind, &object, None);
            assert_eq!(
                found.map(|one| one.field).as_deref(),
                Some(want),
                "{object}"
            );
            assert_eq!(critical(kind, &object, Some(&object)), None, "{object}");
        }
    }

    #[test]
    fn users_classes_up_to_the_bound_are_left_alone() {
        let kind = registry::by_kind("", "v1", "Pod").unwrap();
        for spec in [
            json!({"priorityClassName": "high", "priority": HIGHEST_USER_PRIORITY}),
            json!({"priorityClassName": 7}),
            json!({}),
        ] {
            assert_eq!(critical(kind, &json!({"spec": spec}), None), None, "{spec}");
        }
    }

    #[test]
    fn the_systems_namespaces_have_them_and_those_with_the_label() {
        let labels =
            |value: &str| BTreeMap::from([(names::CRITICAL_PODS.to_owned(), value.into())]);
        let none = BTreeMap::new();
        let table = [
            ("muster-system", &none, true),
            ("kube-system", &none, true),
            ("kube-public", &none, false),
            ("team", &none, false),
            ("team", &labels("true"), true),
            ("team", &labels("false"), false),
        ];
        for (namespace, labels, want) in table {
            assert_eq!(takes_critical_pods(namespace, labels), want, "{namespace}");
        }
    }
}
