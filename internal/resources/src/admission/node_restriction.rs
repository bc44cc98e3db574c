//! Owns what a node may write in the objects that it may write, as Kubernetes' NodeRestriction admission defines it: no
//! Node but its own, no label that controls placement, no taint, no lease of another node, no label of a pod.
//! `node_access` decides which requests get here.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::json;
use crate::names;
use crate::registry::Kind;

/// Kubernetes' own labels that a node may set on its Node.
const NODES_OWN_LABELS: [&str; 13] = [
    "kubernetes.io/hostname",
    "kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.kubernetes.io/zone",
    "failure-domain.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
];
/// The domains in which a node may set any label.
const NODES_OWN_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// The domains whose other labels a node may not set. `node-restriction.kubernetes.io` lies in the first one.
const RESERVED_DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];
/// Muster's annotations on a Node that the agent may not write: the scheduler's MIG configuration, the server's session
/// count, and the server's RDMA question.
const NOT_THE_NODES: [&str; 3] = [names::MIG_CHOICE, names::SESSION, names::RDMA_ASK];

/// True if an agent may not set this label on its Node, because placement depends on it.
pub fn is_reserved_node_label(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |all: &[&str]| {
        all.iter().any(|one| {
            domain
                .strip_suffix(*one)
                .is_some_and(|before| before.is_empty() || before.ends_with('.'))
        })
    };
    within(&RESERVED_DOMAINS) && !within(&NODES_OWN_DOMAINS) && !NODES_OWN_LABELS.contains(&key)
}

/// Why the node may not write this; `None` if it may. `old` is the object before the write.
pub fn node_restriction(
    node: &str,
    kind: &Kind,
    new: &Value,
    old: Option<&Value>,
) -> Option<String> {
    match (kind.group, kind.kind) {
        ("", "Node") => own_node(node, new, old),
        ("coordination.k8s.io", "Lease") => other_name(node, "lease", new),
        ("", "Pod") => {
            let labels = &["metadata", "labels"];
            let old = old?;
            (!json::same(json::at(new, labels), json::at(old, labels))).then(|| {
                format!("metadata.labels: node {node:?} may not change a pod's labels through its status")
            })
        }
        _ => None,
    }
}

fn other_name(node: &str, what: &str, object: &Value) -> Option<String> {
    let name = json::text(object, &["metadata", "name"]);
    (name != node).then(|| {
        format!("metadata.name {name:?}: node {node:?} may write its own {what} only, {node:?}")
    })
}

fn own_node(node: &str, new: &Value, old: Option<&Value>) -> Option<String> {
    if let Some(why) = other_name(node, "Node", new) {
        return Some(why);
    }
    let reserved = |key: &str| is_reserved_node_label(key);
    if let Some(key) = changed(new, old, &["metadata", "labels"], reserved) {
        return Some(format!(
            "metadata.labels[{key}]: node {node:?} may not set or change it, because the scheduler places pods by it; \
             have an administrator run: kubectl label node {node} {key}=VALUE"
        ));
    }
    let others = |key: &str| NOT_THE_NODES.contains(&key);
    if let Some(key) = changed(new, old, &["metadata", "annotations"], others) {
        return Some(format!(
            "metadata.annotations[{key}]: only the server sets it; node {node:?} must leave it as it is"
        ));
    }
    // A new Node may have taints: they keep pods off, as when a kubelet registers with taints.
    let old = old?;
    let fields: [&[&str]; 3] = [
        &["spec", "taints"],
        &["spec", "unschedulable"],
        &["metadata", "ownerReferences"],
    ];
    let field = fields
        .into_iter()
        .find(|path| !json::same(json::at(new, path), json::at(old, path)))?;
    Some(format!(
        "{}: node {node:?} may not change it on its own Node; have an administrator do so",
        field.join(".")
    ))
}

/// The first of the given map keys that was set, changed or removed.
fn changed(
    new: &Value,
    old: Option<&Value>,
    map: &[&str],
    meant: impl Fn(&str) -> bool,
) -> Option<String> {
    let now = json::texts(new, map);
    let before = old.map(|old| json::texts(old, map)).unwrap_or_default();
    let keys: BTreeSet<&String> = now.keys().chain(before.keys()).collect();
    keys.into_iter()
        .find(|key| meant(key) && now.get(*key) != before.get(*key))
        .cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;

    #[test]
    fn labels_of_kubernetes_that_work_is_placed_by_are_reserved() {
        for key in [
            "node-restriction.kubernetes.io/team",
            "node-role.kubernetes.io/control-plane",
            "topology.kubernetes.io/rack",
            "kubernetes.io/anything",
            "a.k8s.io/b",
        ] {
            assert!(is_reserved_node_label(key), "{key}");
        }
        for key in [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
            "feature.node.kubernetes.io/cpu",
            "node.kubernetes.io/instance-type",
            "nvidia.com/gpu.product",
            "muster.io/runtime.process",
            "notkubernetes.io/a",
            "plain",
        ] {
            assert!(!is_reserved_node_label(key), "{key}");
        }
    }

    #[test]
    fn a_node_writes_its_own_objects_and_in_them_what_is_its_own() {
        let node = |labels: Value, notes: Value, spec: Value| json!({"metadata": {"name": "n1", "labels": labels, "annotations": notes}, "spec": spec});
        let plain = node(json!({}), json!({}), json!({}));
        let team = json!({"node-restriction.kubernetes.io/team": "a"});
        let guarded = node(team.clone(), json!({}), json!({}));
        let tainted = node(
            json!({}),
            json!({}),
            json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}),
        );
        let other = json!({"metadata": {"name": "n2"}});
        let nodes = ("", "v1", "Node");
        let leases = ("coordination.k8s.io", "v1", "Lease");
        let pods = ("", "v1", "Pod");
        let labelled = json!({"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"}});
        let bare = json!({"metadata": {}, "status": {"phase": "Pending"}});
        let table = [
            (nodes, &plain, None, None),
            (nodes, &other, None, Some("metadata.name")),
            (
                nodes,
                &guarded,
                None,
                Some("metadata.labels[node-restriction"),
            ),
            (nodes, &guarded, Some(&guarded), None),
            (
                nodes,
                &plain,
                Some(&guarded),
                Some("metadata.labels[node-restriction"),
            ),
            (nodes, &tainted, None, None),
            (nodes, &tainted, Some(&plain), Some("spec.taints")),
            (nodes, &plain, Some(&tainted), Some("spec.taints")),
            (leases, &plain, None, None),
            (leases, &other, None, Some("metadata.name")),
            (pods, &labelled, Some(&bare), Some("metadata.labels")),
            (pods, &labelled, Some(&labelled), None),
        ];
        for ((group, version, name), new, old, want) in table {
            let kind = registry::by_kind(group, version, name).unwrap();
            let why = node_restriction("n1", kind, new, old);
            match want {
                None => assert_eq!(why, None, "{new} {old:?}"),
                Some(start) => {
                    assert!(
                        why.clone().unwrap_or_default().starts_with(start),
                        "{why:?} {new}"
                    );
                }
            }
        }
        for key in NOT_THE_NODES {
            let kind = registry::by_kind("", "v1", "Node").unwrap();
            let noted = node(json!({}), json!({key: "x"}), json!({}));
            assert!(
                node_restriction("n1", kind, &noted, Some(&plain)).is_some(),
                "{key}"
            );
        }
        let cordoned = node(json!({}), json!({}), json!({"unschedulable": true}));
        let kind = registry::by_kind("", "v1", "Node").unwrap();
        let why = node_restriction("n1", kind, &plain, Some(&cordoned)).unwrap();
        assert!(why.starts_with("spec.unschedulable"), "{why}");
    }
}
