//! May this pod be on this node? Kubernetes' rules for selectors, affinity, taints, read afresh.

use k8s_openapi::api::core::v1 as k8s;
use resources::names;

use crate::cluster::NodeFacts;

/// The first rule that says no, in words.
pub(crate) fn forbidden(spec: &k8s::PodSpec, name: &str, node: &NodeFacts) -> Option<String> {
    let none = Vec::new();
    let tolerations = spec.tolerations.as_ref().unwrap_or(&none);
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
    for (key, value) in spec.node_selector.iter().flatten() {
        if node.labels.get(key) != Some(value) {
            return Some(format!("the node lacks label {key}={value}"));
        }
    }
    let affinity = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref());
    let required = affinity.and_then(|a| {
        a.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    if let Some(required) = required
        && !required
            .node_selector_terms
            .iter()
            .any(|term| matches(term, name, node))
    {
        return Some("no term of the required node affinity matches".to_owned());
    }
    wrong_runtime(spec, node)
}

fn wrong_runtime(spec: &k8s::PodSpec, node: &NodeFacts) -> Option<String> {
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
    let inits = spec.init_containers.iter().flatten();
    let images = spec
        .containers
        .iter()
        .chain(inits)
        .filter_map(|c| c.image.as_deref());
    if images.into_iter().any(|image| !image.is_empty()) {
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
