//! Tests of the registrations and their tables, and of the rules of each kind except Pod, whose tests are in its
//! directory.

mod jobs;
mod network_policies;
mod rbac;
mod small_kinds;

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::json;

use super::*;

fn kind(group: &str, version: &str, plural: &str) -> &'static Kind {
    find(group, version, plural).unwrap_or_else(|| panic!("{group}/{version} {plural}"))
}

fn object(name: &str, rest: Value) -> Value {
    let mut object = rest;
    object["metadata"] = json!({"name": name, "namespace": "team", "uid": "u-1"});
    object
}

/// Defaults, prepares and checks a new object.
fn create(kind: &Kind, mut object: Value) -> (Value, Vec<String>) {
    if !kind.namespaced
        && let Some(meta) = object["metadata"].as_object_mut()
    {
        meta.remove("namespace");
    }
    (kind.default)(&mut object);
    (kind.prepare)(&mut object, None);
    let errors = (kind.validate)(&object, None)
        .iter()
        .map(ToString::to_string)
        .collect();
    (object, errors)
}

fn change(kind: &Kind, old: &Value, edit: impl Fn(&mut Value)) -> Vec<String> {
    let mut new = old.clone();
    edit(&mut new);
    (kind.default)(&mut new);
    (kind.validate)(&new, Some(old))
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn every_registration_is_whole_and_its_names_are_its_own() {
    let mut seen = BTreeSet::new();
    for kind in all() {
        for text in [
            kind.version,
            kind.kind,
            kind.plural,
            kind.singular,
            kind.schema,
        ] {
            assert!(!text.is_empty(), "{kind:?}");
        }
        assert_eq!(kind.list_kind, format!("{}List", kind.kind));
        assert!(kind.columns.iter().any(|c| c.format == "name"), "{kind:?}");
        for name in kind.short_names.iter().chain([&kind.plural]) {
            assert!(seen.insert((kind.group, *name)), "{kind:?} {name}");
        }
        assert!(std::ptr::eq(
            by_kind(kind.group, kind.version, kind.kind).unwrap(),
            kind
        ));
        assert!(
            kind.schema
                .ends_with(&format!("{}.{}", kind.version, kind.kind))
        );
    }
}

#[test]
fn keys_sort_by_namespace_then_name() {
    let pods = kind("", "v1", "pods");
    assert_eq!(pods.key(Some("a"), "p"), "/core/pods/a/p");
    assert_eq!(pods.prefix(Some("a")), "/core/pods/a/");
    assert_eq!(pods.prefix(None), "/core/pods/");
    let queues = kind("scheduling.volcano.sh", "v1beta1", "queues");
    assert_eq!(queues.key(None, "q"), "/scheduling.volcano.sh/queues/-/q");
    assert_eq!(
        (pods.api_version(), queues.api_version()),
        ("v1".into(), "scheduling.volcano.sh/v1beta1".into())
    );
    assert_eq!(queues.qualified(), "queues.scheduling.volcano.sh");
}

#[test]
fn objects_find_their_kind() {
    assert_eq!(
        of(&json!({"apiVersion": "batch/v1", "kind": "Job"}))
            .unwrap()
            .plural,
        "jobs"
    );
    assert_eq!(
        of(&json!({"apiVersion": "v1", "kind": "Pod"}))
            .unwrap()
            .plural,
        "pods"
    );
    assert!(of(&json!({"kind": "Pod"})).is_none());
}

#[test]
fn an_object_names_a_bounded_number_of_owners() {
    let maps = kind("", "v1", "configmaps");
    let owned = |count: usize| {
        let owner = |n: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": format!("u-{n}")});
        let owners: Vec<Value> = (0..count).map(owner).collect();
        let mut map = object("c", json!({}));
        map["metadata"]["ownerReferences"] = json!(owners);
        map
    };
    assert!(create(maps, owned(1_000)).1.is_empty());
    assert_eq!(
        create(maps, owned(1_001)).1,
        ["metadata.ownerReferences: Too many: 1001: must have at most 1000 items"]
    );
    // An object that was stored before the bound may remove owners but not add any.
    let old = owned(15_000);
    let with = |count: usize| {
        let new = owned(count);
        change(maps, &old, |map| *map = new.clone())
    };
    assert!(with(15_000).is_empty() && with(14_999).is_empty() && with(0).is_empty());
    assert_eq!(with(15_001).len(), 1);
}

#[test]
fn tables_read_as_kubectl_prints_them() {
    let now: Timestamp = "2026-01-01T00:01:30Z".parse().unwrap();
    let row = |kind: &Kind, object: &Value| -> Vec<String> {
        kind.columns
            .iter()
            .map(|c| match c.cell(object, now) {
                Value::String(text) => text,
                other => other.to_string(),
            })
            .collect()
    };
    let at = "2026-01-01T00:00:00Z";
    let node = json!({
        "metadata": {"name": "n1", "creationTimestamp": at, "labels": {"node-role.kubernetes.io/gpu": ""}},
        "spec": {"unschedulable": true},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "muster-0.1.0", "kernelVersion": "6.1"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        },
    });
    assert_eq!(
        row(kind("", "v1", "nodes"), &node),
        [
            "n1",
            "Ready,SchedulingDisabled",
            "gpu",
            "90s",
            "muster-0.1.0",
            "10.0.0.1",
            "<none>",
            "<unknown>",
            "6.1",
            "<unknown>"
        ]
    );
    let job = json!({
        "metadata": {"name": "j", "creationTimestamp": at},
        "spec": {"completions": 2, "template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}, "selector": {"matchLabels": {"a": "b"}}},
        "status": {"succeeded": 2, "startTime": at, "completionTime": "2026-01-01T00:00:20Z", "conditions": [{"type": "Complete", "status": "True"}]},
    });
    assert_eq!(
        row(kind("batch", "v1", "jobs"), &job),
        ["j", "Complete", "2/2", "20s", "90s", "c", "x", "a=b"]
    );
    let event = json!({
        "metadata": {"name": "e"}, "type": "Normal", "reason": "Scheduled", "message": " placed ", "lastTimestamp": at,
        "involvedObject": {"kind": "Pod", "name": "p"}, "reportingComponent": "muster", "reportingInstance": "s",
    });
    assert_eq!(
        row(kind("", "v1", "events"), &event),
        [
            "90s",
            "Normal",
            "Scheduled",
            "pod/p",
            "",
            "muster, s",
            "placed",
            "<unknown>",
            "1",
            "e"
        ]
    );
    let quota = json!({
        "metadata": {"name": "q", "creationTimestamp": at},
        "status": {"hard": {"pods": "2", "limits.cpu": "4"}, "used": {"pods": "1"}},
    });
    assert_eq!(
        row(kind("", "v1", "resourcequotas"), &quota),
        ["q", "pods: 1/2", "limits.cpu: 0/4", "90s"]
    );
    let training = json!({
        "metadata": {"name": "t", "creationTimestamp": at},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 2}}},
        "status": {
            "conditions": [{"type": "Created", "status": "True"}, {"type": "Running", "status": "True"}, {"type": "Suspended", "status": "False"}],
            "replicaStatuses": {"Master": {"active": 1}, "Worker": {"active": 1}},
        },
    });
    assert_eq!(
        row(kind("kubeflow.org", "v1", "pytorchjobs"), &training),
        ["t", "Running", "90s", "2/3", "default"]
    );
    let service = json!({"metadata": {"name": "s", "creationTimestamp": at}, "spec": {"type": "ClusterIP", "clusterIP": "None", "ports": [{"port": 80, "protocol": "TCP"}]}});
    assert_eq!(
        row(kind("", "v1", "services"), &service),
        [
            "s",
            "ClusterIP",
            "None",
            "<none>",
            "80/TCP",
            "90s",
            "<none>"
        ]
    );
}
