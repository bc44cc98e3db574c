//! Which nodes a DaemonSet's pod is for: those that its node selector and required node affinity match and whose taints
//! it tolerates. Resources do not count: the scheduler sees to them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec,
    Taint, Toleration,
};
use resources::node_match::{NAME_FIELD, term_matches, tolerates};

/// The taints that these pods tolerate: they serve the node, also while it has a problem.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
const NETWORK_UNAVAILABLE: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// What a DaemonSet's controller reads of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
}

/// Whether a pod should start on a node, and whether one that is there may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fit {
    pub(super) starts: bool,
    pub(super) stays: bool,
}

/// Adds the tolerations of every DaemonSet's pods.
pub(super) fn tolerate(spec: &mut PodSpec) {
    let network = (spec.host_network == Some(true)).then_some(NETWORK_UNAVAILABLE);
    let tolerations = spec.tolerations.get_or_insert_default();
    for (key, effect) in TOLERATED.into_iter().chain(network) {
        let toleration = Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        };
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
}

/// Binds a pod to a node by its required node affinity, so that the scheduler places it there.
pub(super) fn require_node(spec: &mut PodSpec, node: &str) {
    let term = NodeSelectorTerm {
        match_fields: Some(vec![NodeSelectorRequirement {
            key: NAME_FIELD.to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        }]),
        ..NodeSelectorTerm::default()
    };
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![term],
    });
}

/// The node that [`require_node`] named.
pub(super) fn required_node(spec: &PodSpec) -> Option<&str> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let fields = required
        .node_selector_terms
        .first()?
        .match_fields
        .as_ref()?;
    let field = fields.iter().find(|field| field.key == NAME_FIELD)?;
    field.values.as_ref()?.first().map(String::as_str)
}

/// Judges a node; the spec has its tolerations already.
pub(super) fn fit(spec: &PodSpec, name: &str, node: &NodeFacts) -> Fit {
    let selector = spec.node_selector.iter().flatten();
    let mut selector = selector.map(|(key, value)| node.labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref();
    let required = affinity
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|all| {
            all.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    let wanted = spec.node_name.as_deref().unwrap_or_default();
    let matches = selector.all(|fits| fits)
        && required.is_none_or(|required| {
            let terms = required.node_selector_terms.iter();
            let label = |key: &str| node.labels.get(key).map(String::as_str);
            terms
                .into_iter()
                .any(|term| term_matches(term, name, label))
        })
        && (wanted.is_empty() || wanted == name);
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    let tolerates = |taint: &&Taint| tolerations.iter().any(|one| tolerates(one, taint));
    let repelled = |effects: &[&str]| {
        let taints = node.taints.iter();
        let mut taints = taints.filter(|taint| effects.contains(&taint.effect.as_str()));
        taints.any(|taint| !tolerates(&taint))
    };
    Fit {
        starts: matches && !repelled(&["NoSchedule", "NoExecute"]),
        stays: matches && !repelled(&["NoExecute"]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(labels: Value, taints: Value) -> NodeFacts {
        NodeFacts {
            labels: serde_json::from_value(labels).unwrap(),
            taints: serde_json::from_value(taints).unwrap(),
        }
    }

    #[test]
    fn a_node_is_chosen_by_labels_name_and_taints() {
        let terms = |terms: Value| {
            json!({"affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
        };
        let one = |key: &str, operator: &str, values: Value| {
            terms(
                json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]),
            )
        };
        let fields = |values: Value| {
            terms(
                json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": values}]}]),
            )
        };
        let taint = |effect: &str| json!([{"key": "k", "value": "v", "effect": effect}]);
        let tolerations = |one: Value| json!({"tolerations": [one]});
        let none = json!([]);
        let table = [
            (json!({}), none.clone(), (true, true)),
            (
                json!({"nodeSelector": {"a": "1"}}),
                none.clone(),
                (true, true),
            ),
            (
                json!({"nodeSelector": {"a": "2"}}),
                none.clone(),
                (false, false),
            ),
            (
                one("a", "In", json!(["1", "3"])),
                none.clone(),
                (true, true),
            ),
            (
                one("a", "NotIn", json!(["1"])),
                none.clone(),
                (false, false),
            ),
            (
                one("b", "DoesNotExist", none.clone()),
                none.clone(),
                (true, true),
            ),
            (one("a", "Gt", json!(["0"])), none.clone(), (true, true)),
            (one("a", "Lt", json!(["1"])), none.clone(), (false, false)),
            (terms(json!([{}])), none.clone(), (false, false)),
            (fields(json!(["n"])), none.clone(), (true, true)),
            (fields(json!(["m"])), none.clone(), (false, false)),
            (json!({}), taint("NoSchedule"), (false, true)),
            (json!({}), taint("NoExecute"), (false, false)),
            (json!({}), taint("PreferNoSchedule"), (true, true)),
            (
                tolerations(json!({"operator": "Exists"})),
                taint("NoExecute"),
                (true, true),
            ),
            (
                tolerations(json!({"key": "k", "value": "v"})),
                taint("NoExecute"),
                (true, true),
            ),
            (
                tolerations(json!({"key": "k", "value": "w"})),
                taint("NoSchedule"),
                (false, true),
            ),
        ];
        for (spec, taints, want) in table {
            let mut whole = spec.clone();
            whole["containers"] = json!([]);
            let typed: PodSpec = serde_json::from_value(whole).unwrap();
            let node = node(json!({"a": "1"}), taints.clone());
            let found = fit(&typed, "n", &node);
            assert_eq!((found.starts, found.stays), want, "{spec} {taints}");
        }
    }

    #[test]
    fn these_pods_tolerate_a_cordoned_node_and_name_theirs() {
        let mut spec = PodSpec::default();
        tolerate(&mut spec);
        tolerate(&mut spec);
        assert_eq!(spec.tolerations.as_ref().unwrap().len(), TOLERATED.len());
        let taints = json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]);
        assert!(fit(&spec, "n", &node(json!({}), taints)).starts);
        require_node(&mut spec, "n");
        assert_eq!(required_node(&spec), Some("n"));
        assert!(fit(&spec, "n", &NodeFacts::default()).starts);
        assert!(!fit(&spec, "m", &NodeFacts::default()).starts);
    }
}
