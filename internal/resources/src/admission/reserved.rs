//! Owns the list of reserved fields: fields that decide where a pod runs, on which devices and as which Unix account,
//! or that Muster's components use for their own records. Determines which reserved fields a write sets and which
//! callers may set them; the API server checks whether the caller is one of these.
//!
//! Example: a member creates a pod with `muster.io/devices`. The agent would hand that pod the devices named, so the
//! write is refused; the scheduler's Binding, whose caller is the system, sets it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::templates::templates;
use crate::json;
use crate::names;
use crate::registry::Kind;

/// The number of characters of a value that an error repeats.
const SHOWN_CHARS: usize = 64;

/// The callers that may write a reserved field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AllowedWriter {
    /// Only Muster's components.
    System,
    /// Components and callers that may `create pods/binding`, because binding a pod chooses its node.
    Binder,
    /// Components, the node itself, and callers that may `update nodes/status`, because that status reports what a node
    /// has.
    NodeStatus,
    /// Components and callers that may `impersonate` every user: such a caller may act as any account in any case.
    Administrator,
}

/// A write sets a reserved field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {value:?}: {}", advice(.holder))]
pub struct ReservedFieldViolation {
    /// The field.
    pub field: String,
    /// Its new value; truncated if it is long.
    pub value: String,
    /// The callers that may write it.
    pub holder: AllowedWriter,
}

fn advice(holder: &AllowedWriter) -> &'static str {
    match holder {
        AllowedWriter::System => "only Muster's own parts set it; leave it out",
        AllowedWriter::Binder => {
            "only callers that may create pods/binding choose a pod's node; leave it out, and constrain the pod with \
             spec.nodeSelector or spec.affinity.nodeAffinity"
        }
        AllowedWriter::NodeStatus => {
            "only the node's agent and callers that may update nodes/status set a node's status; leave it out"
        }
        AllowedWriter::Administrator => {
            "only callers that may impersonate every user choose the Unix account of a namespace's pods; leave it \
             out, or have an administrator set it"
        }
    }
}

/// A reserved key of `metadata.annotations` or `metadata.labels`.
struct ReservedKeyRule {
    map: &'static str,
    key: &'static str,
    holder: AllowedWriter,
}

const fn annotation(key: &'static str, holder: AllowedWriter) -> ReservedKeyRule {
    ReservedKeyRule {
        map: "annotations",
        key,
        holder,
    }
}

/// Facts about a pod that the agents and the scheduler rely on.
const OF_PODS: &[ReservedKeyRule] = &[
    annotation(names::DEVICES, AllowedWriter::System),
    annotation(names::CHECKPOINT_BY, AllowedWriter::System),
    ReservedKeyRule {
        map: "labels",
        key: names::REPLACES_LOST,
        holder: AllowedWriter::System,
    },
];
/// Records of the training jobs' controllers on their jobs.
const OF_TRAINING_JOBS: &[ReservedKeyRule] = &[
    annotation(names::RESTARTS, AllowedWriter::System),
    annotation(names::RENDEZVOUS_PORT, AllowedWriter::System),
    annotation(names::FAILURE, AllowedWriter::System),
    annotation(names::RECOVERY, AllowedWriter::System),
];
/// Records of the controller of Volcano's Jobs on its jobs.
const OF_VOLCANO_JOBS: &[ReservedKeyRule] = &[
    annotation(names::RESTARTS, AllowedWriter::System),
    annotation(names::RENDEZVOUS_PORT, AllowedWriter::System),
    annotation(names::FAILURE, AllowedWriter::System),
];
/// The records of the RayCluster controller on its clusters.
const OF_RAY_CLUSTERS: &[ReservedKeyRule] = &[
    annotation(names::RENDEZVOUS_PORT, AllowedWriter::System),
    annotation(names::RAY_REPLICAS, AllowedWriter::System),
];
/// The record of the JobSet controller on its JobSets.
const OF_JOB_SETS: &[ReservedKeyRule] = &[annotation(names::FAILURE, AllowedWriter::System)];
/// Records of the TrainJob controller on its jobs.
const OF_TRAIN_JOBS: &[ReservedKeyRule] = &[
    annotation(names::RENDEZVOUS_PORT, AllowedWriter::System),
    annotation(names::FAILURE, AllowedWriter::System),
];
/// Records of the Job controller on its jobs.
const OF_JOBS: &[ReservedKeyRule] = &[
    annotation(names::ATTEMPTS, AllowedWriter::System),
    annotation(names::FAILURE, AllowedWriter::System),
];
/// Facts about a node that the scheduler relies on.
const OF_NODES: &[ReservedKeyRule] = &[
    annotation(names::INVENTORY, AllowedWriter::NodeStatus),
    annotation(names::LOAD, AllowedWriter::NodeStatus),
    annotation(names::ALERTS, AllowedWriter::NodeStatus),
    annotation(names::SESSION, AllowedWriter::NodeStatus),
    annotation(names::MIG_CHOICE, AllowedWriter::NodeStatus),
    annotation(names::MIG_CONFIGURATIONS, AllowedWriter::NodeStatus),
    annotation(names::RDMA_ASK, AllowedWriter::NodeStatus),
    annotation(names::RDMA_ANSWER, AllowedWriter::NodeStatus),
];

/// The labels that determine the Unix account of a namespace's pods.
const OF_NAMESPACES: &[ReservedKeyRule] = &[ReservedKeyRule {
    map: "labels",
    key: names::UNIX_ACCOUNT,
    holder: AllowedWriter::Administrator,
}];

fn rules(kind: &Kind) -> &'static [ReservedKeyRule] {
    match (kind.group, kind.kind) {
        ("", "Pod") => OF_PODS,
        ("", "Node") => OF_NODES,
        ("", "Namespace") => OF_NAMESPACES,
        ("batch", "Job") => OF_JOBS,
        ("ray.io", "RayCluster") => OF_RAY_CLUSTERS,
        ("jobset.x-k8s.io", "JobSet") => OF_JOB_SETS,
        ("trainer.kubeflow.org", "TrainJob") => OF_TRAIN_JOBS,
        _ if kind.is_volcano_job() => OF_VOLCANO_JOBS,
        _ if kind.training().is_some() => OF_TRAINING_JOBS,
        _ => &[],
    }
}

/// The reserved fields that a new object sets or that an update changes. Unchanged fields are permitted.
pub fn reserved(kind: &Kind, new: &Value, old: Option<&Value>) -> Vec<ReservedFieldViolation> {
    let before: BTreeSet<ReservedValue> = old
        .map(|old| found(kind, old))
        .unwrap_or_default()
        .into_iter()
        .map(|one| one.mark)
        .collect();
    let mut all = found(kind, new);
    all.retain(|one| !before.contains(&one.mark));
    all.into_iter()
        .map(|one| ReservedFieldViolation {
            value: one.mark.value.chars().take(SHOWN_CHARS).collect(),
            field: one.field,
            holder: one.holder,
        })
        .collect()
}

/// Restores the reserved labels and annotations that an update omits: applying a manifest again does not remove them.
/// `holds` returns whether the caller may write a holder's fields.
pub fn keep_reserved(
    kind: &Kind,
    new: &mut Value,
    old: &Value,
    holds: impl Fn(AllowedWriter) -> bool,
) {
    for rule in rules(kind) {
        let Some(had) = json::at(old, &["metadata", rule.map]).get(rule.key) else {
            continue;
        };
        if holds(rule.holder) || json::has(new, &["metadata", rule.map, rule.key]) {
            continue;
        }
        let Some(metadata) = json::object(new, "metadata") else {
            continue;
        };
        match &mut metadata[rule.map] {
            Value::Object(all) => {
                all.insert(rule.key.to_owned(), had.clone());
            }
            empty => *empty = Map::from_iter([(rule.key.to_owned(), had.clone())]).into(),
        }
    }
}

/// The value of a reserved field without its position in the object: templates may be reordered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ReservedValue {
    in_template: bool,
    key: &'static str,
    value: String,
}

struct ReservedFieldUse {
    field: String,
    holder: AllowedWriter,
    mark: ReservedValue,
}

fn found(kind: &Kind, object: &Value) -> Vec<ReservedFieldUse> {
    let mut all = Vec::new();
    keys(rules(kind), object, "", false, &mut all);
    if (kind.group, kind.kind) == ("", "Pod") {
        node(object, "", false, &mut all);
    }
    for (path, template) in templates(kind, object) {
        let prefix = format!("{path}.");
        keys(OF_PODS, template, &prefix, true, &mut all);
        node(template, &prefix, true, &mut all);
    }
    all
}

fn keys(
    rules: &'static [ReservedKeyRule],
    object: &Value,
    prefix: &str,
    in_template: bool,
    all: &mut Vec<ReservedFieldUse>,
) {
    for rule in rules {
        let value = json::at(object, &["metadata", rule.map, rule.key]);
        if value.is_null() {
            continue;
        }
        all.push(ReservedFieldUse {
            field: format!("{prefix}metadata.{}[{}]", rule.map, rule.key),
            holder: rule.holder,
            mark: ReservedValue {
                in_template,
                key: rule.key,
                value: value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned),
            },
        });
    }
}

fn node(pod: &Value, prefix: &str, in_template: bool, all: &mut Vec<ReservedFieldUse>) {
    let name = json::text(pod, &["spec", "nodeName"]);
    if !name.is_empty() {
        all.push(ReservedFieldUse {
            field: format!("{prefix}spec.nodeName"),
            holder: AllowedWriter::Binder,
            mark: ReservedValue {
                in_template,
                key: "nodeName",
                value: name.to_owned(),
            },
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;

    fn kind(group: &str, name: &str) -> &'static Kind {
        let mut all = registry::all().iter();
        all.find(|kind| (kind.group, kind.kind) == (group, name))
            .unwrap()
    }

    /// Group, kind, an object with one reserved field, the field's path and its holder.
    fn table() -> Vec<(&'static str, &'static str, Value, String, AllowedWriter)> {
        let mut all = Vec::new();
        let noted = |map: &str, key: &str| json!({"metadata": {map: {key: "x"}}});
        for (group, name, rules) in [
            ("", "Pod", OF_PODS),
            ("", "Node", OF_NODES),
            ("", "Namespace", OF_NAMESPACES),
            ("batch", "Job", OF_JOBS),
            ("kubeflow.org", "PyTorchJob", OF_TRAINING_JOBS),
        ] {
            for rule in rules {
                let path = format!("metadata.{}[{}]", rule.map, rule.key);
                all.push((group, name, noted(rule.map, rule.key), path, rule.holder));
            }
        }
        let node = json!({"spec": {"nodeName": "n1"}});
        let path = "spec.nodeName".to_owned();
        all.push(("", "Pod", node.clone(), path, AllowedWriter::Binder));
        for rule in OF_PODS {
            let template = noted(rule.map, rule.key);
            let path = format!("spec.template.metadata.{}[{}]", rule.map, rule.key);
            let job = json!({"spec": {"template": template}});
            all.push(("batch", "Job", job, path, rule.holder));
        }
        let job = json!({"spec": {"pytorchReplicaSpecs": {"Worker": {"template": node}}}});
        let path = "spec.pytorchReplicaSpecs[Worker].template.spec.nodeName".to_owned();
        all.push((
            "kubeflow.org",
            "PyTorchJob",
            job,
            path,
            AllowedWriter::Binder,
        ));
        all
    }

    #[test]
    fn each_reserved_field_is_found_where_it_is_new_and_may_stay_where_it_was() {
        for (group, name, object, path, holder) in table() {
            let kind = kind(group, name);
            let found = reserved(kind, &object, None);
            let paths: Vec<(&str, AllowedWriter)> =
                (found.iter().map(|one| (one.field.as_str(), one.holder))).collect();
            assert_eq!(paths, [(path.as_str(), holder)], "{object}");
            assert_eq!(reserved(kind, &object, Some(&object)), [], "{object}");
            let text = object.to_string().replace("\"x\"", "\"y\"");
            let changed: Value = serde_json::from_str(&text.replace("\"n1\"", "\"n2\"")).unwrap();
            assert_eq!(reserved(kind, &changed, Some(&object)).len(), 1, "{object}");
        }
    }

    #[test]
    fn what_is_not_reserved_is_left_alone() {
        let pod = json!({"metadata": {"annotations": {"a": "b", names::GPU_FRACTION: "0.5"},
            "labels": {names::RANK: "1"}}, "spec": {"nodeName": ""}});
        assert_eq!(reserved(kind("", "Pod"), &pod, None), []);
        let odd = json!({"metadata": [1], "spec": "x"});
        assert_eq!(reserved(kind("", "Pod"), &odd, None), []);
        let map = json!({"metadata": {"annotations": {names::DEVICES: "x"}}});
        assert_eq!(reserved(kind("", "ConfigMap"), &map, None), []);
    }

    #[test]
    fn a_manifest_sent_anew_keeps_what_is_the_systems() {
        let pod = kind("", "Pod");
        let old = json!({"metadata": {"annotations": {names::DEVICES: "d", "a": "b"},
            "labels": {names::REPLACES_LOST: "true"}}});
        let mut new = json!({"metadata": {"annotations": {"a": "c"}}});
        keep_reserved(pod, &mut new, &old, |_| false);
        assert_eq!(
            new,
            json!({"metadata": {"annotations": {names::DEVICES: "d", "a": "c"},
                "labels": {names::REPLACES_LOST: "true"}}})
        );
        assert_eq!(reserved(pod, &new, Some(&old)), []);
        let mut taken = json!({"metadata": {}});
        keep_reserved(pod, &mut taken, &old, |_| true);
        assert_eq!(taken, json!({"metadata": {}}));
        let mut other = json!({"metadata": {"annotations": {names::DEVICES: "e"}}});
        keep_reserved(pod, &mut other, &old, |_| false);
        assert_eq!(other["metadata"]["annotations"][names::DEVICES], "e");
    }

    #[test]
    fn an_error_names_the_field_the_value_cut_short_and_what_to_do() {
        let long = "n".repeat(SHOWN_CHARS + 1);
        let pod = json!({"spec": {"nodeName": long}});
        let found = reserved(kind("", "Pod"), &pod, None);
        assert_eq!(found[0].value.chars().count(), SHOWN_CHARS);
        let pod = json!({"spec": {"nodeName": "n1"}});
        assert_eq!(
            reserved(kind("", "Pod"), &pod, None)[0].to_string(),
            "spec.nodeName \"n1\": only callers that may create pods/binding choose a pod's node; leave it out, and \
             constrain the pod with spec.nodeSelector or spec.affinity.nodeAffinity"
        );
    }
}
