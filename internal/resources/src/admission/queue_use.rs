//! Owns the rule for the use of queues: a Queue's `spec.namespaceSelector` selects the namespaces that may use it, and
//! a namespace may name the default queue of its work. Determines the queues that an object names; the API server reads
//! Queues and namespaces.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::{Map, Value};

use super::templates::templates;
use crate::json;
use crate::names::{DEFAULT_QUEUE, GROUP_NAME, QUEUE_NAME};
use crate::registry::Kind;
use crate::selector::LabelSelector;

/// An object names a queue that its namespace may not use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{field} {queue:?}: the queue takes no work from namespace {namespace:?}, whose labels do not match the queue's \
     spec.namespaceSelector; name another queue, or have an administrator label the namespace"
)]
pub struct NotAdmitted {
    /// The field that names it.
    pub field: String,
    /// The queue.
    pub queue: String,
    /// The namespace.
    pub namespace: String,
}

/// The field of a kind that names its queue, besides labels and annotations.
fn own_field(kind: &Kind) -> Option<&'static [&'static str]> {
    match (kind.group, kind.kind) {
        ("scheduling.volcano.sh", "PodGroup") | ("batch.volcano.sh", "Job") => {
            Some(&["spec", "queue"])
        }
        _ if kind.training().is_some() => Some(&["spec", "runPolicy", "schedulingPolicy", "queue"]),
        _ => None,
    }
}

/// True if labels and annotations of this kind name a queue. The scheduler reads only the spec of a PodGroup.
fn is_labelled(kind: &Kind) -> bool {
    matches!(
        (kind.group, kind.kind),
        ("", "Pod")
            | (
                "apps",
                "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet"
            )
            | ("batch", "Job" | "CronJob")
            | ("ray.io", "RayCluster" | "RayJob" | "RayService")
            | ("jobset.x-k8s.io", "JobSet")
            | ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
            | ("trainer.kubeflow.org", "TrainJob")
    ) || kind.training().is_some()
}

/// The queues that an object names, each with its field. Work that names no queue is counted for the queue `default`,
/// except members of a gang, which wait in the gang's queue.
pub fn queues_named(kind: &Kind, object: &Value) -> Vec<(String, String)> {
    if own_field(kind).is_none() && !is_labelled(kind) {
        return Vec::new();
    }
    let mut all = named_queues(kind, object);
    if all.is_empty() && !is_member(kind, object) {
        let field = own_field(kind).map_or_else(annotation_field, |path| path.join("."));
        all.push((field, DEFAULT_QUEUE.to_owned()));
    }
    all
}

fn annotation_field() -> String {
    format!("metadata.annotations[{QUEUE_NAME}]")
}

fn is_member(kind: &Kind, object: &Value) -> bool {
    (kind.group, kind.kind) == ("", "Pod")
        && !json::text(object, &["metadata", "annotations", GROUP_NAME]).is_empty()
}

/// The queues that are named; an empty name counts as `default`, as the controllers read it.
fn named_queues(kind: &Kind, object: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut add = |field: String, value: &Value| {
        if let Some(queue) = value.as_str() {
            let queue = if queue.is_empty() {
                DEFAULT_QUEUE
            } else {
                queue
            };
            all.push((field, queue.to_owned()));
        }
    };
    if let Some(path) = own_field(kind) {
        add(path.join("."), json::at(object, path));
    }
    let mut bearers = templates(kind, object);
    if is_labelled(kind) {
        bearers.push((String::new(), object));
    }
    for (path, bearer) in bearers {
        let dot = if path.is_empty() { "" } else { "." };
        for map in ["labels", "annotations"] {
            let value = json::at(bearer, &["metadata", map, QUEUE_NAME]);
            add(format!("{path}{dot}metadata.{map}[{QUEUE_NAME}]"), value);
        }
    }
    all
}

/// The default queue in a namespace's label, or else in its annotation.
pub fn default_queue(namespace: &Value) -> Option<&str> {
    ["labels", "annotations"]
        .into_iter()
        .map(|map| json::text(namespace, &["metadata", map, QUEUE_NAME]))
        .find(|queue| !queue.is_empty())
}

/// Sets the queue of an object that is work and names none, before other defaults are filled in.
pub fn name_queue(kind: &Kind, object: &mut Value, queue: &str) {
    let own = own_field(kind);
    let Some(path) = own.or_else(|| is_labelled(kind).then_some(&[] as &[&str])) else {
        return;
    };
    let given = named_queues(kind, object);
    let empty = own.is_some_and(|path| json::at(object, path).as_str() == Some(""));
    if given.len() > usize::from(empty) || is_member(kind, object) {
        return;
    }
    match path.split_last() {
        Some((last, way)) => {
            let mut at = object;
            for step in way {
                match json::object(at, step) {
                    Some(next) => at = next,
                    None => return,
                }
            }
            at[*last] = queue.into();
        }
        None => {
            let Some(metadata) = json::object(object, "metadata") else {
                return;
            };
            match &mut metadata["annotations"] {
                Value::Object(all) => {
                    all.insert(QUEUE_NAME.to_owned(), queue.into());
                }
                none => *none = Map::from_iter([(QUEUE_NAME.to_owned(), queue.into())]).into(),
            }
        }
    }
}

/// True if a namespace with these labels may use the queue. A queue without a selector admits every namespace; a queue
/// with an unreadable selector admits none.
pub fn admits_namespace(queue: &Value, labels: &BTreeMap<String, String>) -> bool {
    let selector = json::at(queue, &["spec", "namespaceSelector"]);
    if selector.is_null() {
        return true;
    }
    serde_json::from_value::<meta::LabelSelector>(selector.clone())
        .ok()
        .and_then(|selector| LabelSelector::from_k8s(&selector).ok())
        .is_some_and(|selector| selector.matches(labels))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;

    fn kind(group: &str, version: &str, name: &str) -> &'static Kind {
        registry::by_kind(group, version, name).unwrap()
    }

    fn named(kind: &Kind, object: &Value) -> Vec<String> {
        let all = queues_named(kind, object).into_iter();
        all.map(|(field, queue)| format!("{field}={queue}"))
            .collect()
    }

    #[test]
    fn every_way_to_name_a_queue_is_found() {
        let (label, note) = (
            "metadata.labels[scheduling.volcano.sh/queue-name]",
            "metadata.annotations[scheduling.volcano.sh/queue-name]",
        );
        let pod = kind("", "v1", "Pod");
        let job = kind("batch", "v1", "Job");
        let pytorch = kind("kubeflow.org", "v1", "PyTorchJob");
        let group = kind("scheduling.volcano.sh", "v1beta1", "PodGroup");
        let policy = "spec.runPolicy.schedulingPolicy.queue";
        let at = |map: &str, queue: &str| json!({"metadata": {map: {QUEUE_NAME: queue}}});
        let table = [
            (pod, at("labels", "q"), vec![format!("{label}=q")]),
            (pod, at("annotations", "q"), vec![format!("{note}=q")]),
            (pod, json!({}), vec![format!("{note}=default")]),
            (pod, at("labels", ""), vec![format!("{label}=default")]),
            (
                pod,
                json!({"metadata": {"annotations": {GROUP_NAME: "g"}}}),
                vec![],
            ),
            (job, at("annotations", "q"), vec![format!("{note}=q")]),
            (
                job,
                json!({"spec": {"template": at("labels", "q")}}),
                vec![format!("spec.template.{label}=q")],
            ),
            (
                pytorch,
                json!({"spec": {"runPolicy": {"schedulingPolicy": {"queue": "q"}}}}),
                vec![format!("{policy}=q")],
            ),
            (pytorch, json!({}), vec![format!("{policy}=default")]),
            (
                group,
                json!({"spec": {"queue": "q"}}),
                vec!["spec.queue=q".to_owned()],
            ),
            (
                kind("batch.volcano.sh", "v1alpha1", "Job"),
                json!({"spec": {"queue": "q"}}),
                vec!["spec.queue=q".to_owned()],
            ),
            (kind("", "v1", "ConfigMap"), at("labels", "q"), vec![]),
        ];
        for (kind, object, want) in table {
            assert_eq!(named(kind, &object), want, "{} {object}", kind.kind);
        }
    }

    #[test]
    fn what_names_no_queue_gets_its_namespaces() {
        let pod = kind("", "v1", "Pod");
        let group = kind("scheduling.volcano.sh", "v1beta1", "PodGroup");
        let pytorch = kind("kubeflow.org", "v1", "PyTorchJob");
        let note = json!({"metadata": {"annotations": {QUEUE_NAME: "q"}}});
        let policy = json!({"spec": {"runPolicy": {"schedulingPolicy": {"queue": "q"}}}});
        let member = json!({"metadata": {"annotations": {GROUP_NAME: "g"}}});
        let other = json!({"metadata": {"labels": {QUEUE_NAME: "other"}}});
        let table = [
            (pod, json!({}), note.clone()),
            (pod, member.clone(), member),
            (pod, other.clone(), other.clone()),
            (kind("batch", "v1", "Job"), json!({}), note),
            (pytorch, json!({}), policy.clone()),
            (
                pytorch,
                json!({"spec": {"runPolicy": {"schedulingPolicy": {"queue": ""}}}}),
                policy,
            ),
            (pytorch, other.clone(), other),
            (group, json!({"spec": {}}), json!({"spec": {"queue": "q"}})),
            (
                group,
                json!({"spec": {"queue": ""}}),
                json!({"spec": {"queue": "q"}}),
            ),
            (
                group,
                json!({"spec": {"queue": "other"}}),
                json!({"spec": {"queue": "other"}}),
            ),
            (kind("", "v1", "ConfigMap"), json!({}), json!({})),
        ];
        for (kind, mut object, want) in table {
            let before = object.to_string();
            name_queue(kind, &mut object, "q");
            assert_eq!(object, want, "{} {before}", kind.kind);
            name_queue(kind, &mut object, "again");
            assert_eq!(object, want, "{} {before}", kind.kind);
        }
    }

    #[test]
    fn a_namespaces_label_takes_precedence_over_its_annotation() {
        let of = |labels: Value, notes: Value| {
            let namespace = json!({"metadata": {"labels": labels, "annotations": notes}});
            default_queue(&namespace).map(str::to_owned)
        };
        let (a, b) = (json!({QUEUE_NAME: "a"}), json!({QUEUE_NAME: "b"}));
        assert_eq!(of(a.clone(), b.clone()).as_deref(), Some("a"));
        assert_eq!(of(Value::Null, b).as_deref(), Some("b"));
        assert_eq!(of(json!({QUEUE_NAME: ""}), Value::Null), None);
    }

    #[test]
    fn a_queue_takes_the_namespaces_that_its_selector_matches() {
        let labels = BTreeMap::from([("team".to_owned(), "a".to_owned())]);
        let table = [
            (json!({"spec": {}}), true),
            (json!({"spec": {"namespaceSelector": {}}}), true),
            (
                json!({"spec": {"namespaceSelector": {"matchLabels": {"team": "a"}}}}),
                true,
            ),
            (
                json!({"spec": {"namespaceSelector": {"matchLabels": {"team": "b"}}}}),
                false,
            ),
            (
                json!({"spec": {"namespaceSelector": {"matchExpressions":
                    [{"key": "team", "operator": "NotIn", "values": ["b"]}]}}}),
                true,
            ),
            (
                json!({"spec": {"namespaceSelector": {"matchExpressions":
                    [{"key": "team", "operator": "Near"}]}}}),
                false,
            ),
            (json!({"spec": {"namespaceSelector": "all"}}), false),
        ];
        for (queue, want) in table {
            assert_eq!(admits_namespace(&queue, &labels), want, "{queue}");
        }
    }
}
