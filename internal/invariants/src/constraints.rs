//! Whether a pod may run on a node: Kubernetes' rules for selectors, affinity and taints,
//! implemented separately from the scheduler.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as k8s;
use resources::names;

use crate::node_facts::NodeFacts;

/// A pod's node constraints, extracted from its spec: a whole spec for each pod would be most of
/// the account's size.
pub(crate) struct Demands {
    tolerations: Vec<k8s::Toleration>,
    selector: BTreeMap<String, String>,
    affinity: Option<k8s::NodeSelector>,
    names_image: bool,
}

impl Demands {
    pub(crate) fn of(spec: &k8s::PodSpec) -> Demands {
        let affinity = spec
            .affinity
            .as_ref()
            .and_then(|a| a.node_affinity.as_ref());
        let inits = spec.init_containers.iter().flatten();
        let mut images = spec
            .containers
            .iter()
            .chain(inits)
            .filter_map(|c| c.image.as_deref());
        Demands {
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            selector: spec.node_selector.clone().unwrap_or_default(),
            affinity: affinity.and_then(|a| {
                a.required_during_scheduling_ignored_during_execution
                    .clone()
            }),
            names_image: images.any(|image| !image.is_empty()),
        }
    }
}

/// The first rule that forbids the node, as a message.
pub(crate) fn forbidden(demands: &Demands, name: &str, node: &NodeFacts) -> Option<String> {
    let tolerations = &demands.tolerations;
    let cordon = k8s::Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..k8s::Taint::default()
    };
    if node.not_ready {
        return Some("the node is not ready".to_owned());
    }
    if node.cordoned && !tolerations.iter().any(|t| accepts(t, &cordon)) {
        return Some("the node is cordoned".to_owned());
    }
    for taint in node
        .taints
        .iter()
        .filter(|taint| taint.effect != "PreferNoSchedule")
    {
        if !tolerations.iter().any(|t| accepts(t, taint)) {
            return Some(format!(
                "taint {}:{} is not tolerated",
                taint.key, taint.effect
            ));
        }
    }
    for (key, value) in &demands.selector {
        if node.labels.get(key) != Some(value) {
            return Some(format!("the node lacks label {key}={value}"));
        }
    }
    if let Some(required) = &demands.affinity
        && !required
            .node_selector_terms
            .iter()
            .any(|term| matches(term, name, node))
    {
        return Some("no term of the required node affinity matches".to_owned());
    }
    wrong_runtime(demands, node)
}

fn wrong_runtime(demands: &Demands, node: &NodeFacts) -> Option<String> {
    let label = |name: &str| node.labels.get(name).map(String::as_str);
    let [process, cri, host] = [
        names::RUNTIME_PROCESS,
        names::RUNTIME_CRI,
        names::RUNTIME_HOST_IMAGES,
    ]
    .map(label);
    if process.is_none() && cri.is_none() && host.is_none() {
        return None;
    }
    if demands.names_image {
        let runs = cri == Some("true") || host == Some("true");
        return (!runs).then(|| "the node runs no images".to_owned());
    }
    (process != Some("true")).then(|| "the node runs no processes".to_owned())
}

fn accepts(toleration: &k8s::Toleration, taint: &k8s::Taint) -> bool {
    let same = |asked: &Option<String>, has: &str| {
        asked
            .as_deref()
            .is_none_or(|asked| asked.is_empty() || asked == has)
    };
    if !same(&toleration.effect, &taint.effect) || !same(&toleration.key, &taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => {
            toleration.value.clone().unwrap_or_default() == taint.value.clone().unwrap_or_default()
        }
        Some(_) => false,
    }
}

fn matches(term: &k8s::NodeSelectorTerm, name: &str, node: &NodeFacts) -> bool {
    let labels = term.match_expressions.iter().flatten();
    let fields = term.match_fields.iter().flatten();
    let mut asked = 0;
    for requirement in labels {
        asked += 1;
        if !holds(
            requirement,
            node.labels.get(&requirement.key).map(String::as_str),
        ) {
            return false;
        }
    }
    for requirement in fields {
        asked += 1;
        if requirement.key != "metadata.name" || !holds(requirement, Some(name)) {
            return false;
        }
    }
    asked > 0
}

fn holds(requirement: &k8s::NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.clone().unwrap_or_default();
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let sides = (number(value), number(values.first().map(String::as_str)));
    match (requirement.operator.as_str(), value) {
        ("In", Some(value)) => values.iter().any(|v| v == value),
        ("NotIn", Some(value)) => values.iter().all(|v| v != value),
        ("NotIn" | "DoesNotExist", None) | ("Exists", Some(_)) => true,
        ("Gt", _) => matches!(sides, (Some(has), Some(bound)) if has > bound && values.len() == 1),
        ("Lt", _) => matches!(sides, (Some(has), Some(bound)) if has < bound && values.len() == 1),
        _ => false,
    }
}
