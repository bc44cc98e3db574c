//! LimitRanges: defaults into containers, then bounds, in Kubernetes' words.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use serde_json::{Value, json};

use crate::json;
use crate::quantity::Quantity;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Fills in the defaults of every range, then returns every bound that the pod breaks (empty if it breaks none). Runs
/// after the pod's defaulting and before its validation.
pub fn limit_ranges(pod: &mut Value, ranges: &[LimitRange]) -> Vec<String> {
    if ranges.is_empty() {
        return Vec::new();
    }
    let mut notes = Vec::new();
    for range in ranges {
        for (list, word) in [
            ("containers", "container"),
            ("initContainers", "init container"),
        ] {
            if let Some(spec) = json::child(pod, "spec") {
                for container in json::list(spec, list) {
                    merge_defaults(container, range, word, &mut notes);
                }
            }
        }
    }
    if !notes.is_empty()
        && let Some(annotations) =
            json::object(pod, "metadata").and_then(|meta| json::object(meta, "annotations"))
        && let Some(map) = annotations.as_object_mut()
    {
        let text = format!("LimitRanger plugin set: {}", notes.join("; "));
        map.insert(ANNOTATION.to_owned(), Value::String(text));
    }
    let mut broken = Vec::new();
    for item in ranges
        .iter()
        .filter_map(|range| range.spec.as_ref())
        .flat_map(|spec| &spec.limits)
    {
        match item.type_.as_str() {
            "Container" => {
                for list in ["containers", "initContainers"] {
                    for container in json::items(pod, &["spec", list]) {
                        let resources = json::at(container, &["resources"]);
                        let (requests, limits) =
                            (read(resources, "requests"), read(resources, "limits"));
                        check(item, &requests, &limits, &mut broken);
                    }
                }
            }
            "Pod" => check(
                item,
                &pod_total(pod, "requests"),
                &pod_total(pod, "limits"),
                &mut broken,
            ),
            _ => {}
        }
    }
    broken
}

fn items(range: &LimitRange) -> impl Iterator<Item = &LimitRangeItem> {
    range
        .spec
        .iter()
        .flat_map(|spec| &spec.limits)
        .filter(|item| item.type_ == "Container")
}

fn merge_defaults(container: &mut Value, range: &LimitRange, word: &str, notes: &mut Vec<String>) {
    let name = json::text(container, &["name"]).to_owned();
    let Some(resources) = json::object(container, "resources") else {
        return;
    };
    type Pick = fn(&LimitRangeItem) -> Option<&BTreeMap<String, K8sQuantity>>;
    let lists: [(&str, &str, Pick); 2] = [
        ("requests", "request", |item| item.default_request.as_ref()),
        ("limits", "limit", |item| item.default.as_ref()),
    ];
    for (list, singular, pick) in lists {
        let mut set = Vec::new();
        for (resource, quantity) in items(range).filter_map(pick).flatten() {
            if json::has(resources, &[list, resource]) {
                continue;
            }
            if let Some(target) = json::object(resources, list) {
                target[resource.as_str()] = json!(quantity.0);
                set.push(resource.as_str());
            }
        }
        if !set.is_empty() {
            set.sort_unstable();
            notes.push(format!("{} {singular} for {word} {name}", set.join(", ")));
        }
    }
}

pub(super) type LimitList = BTreeMap<String, Quantity>;

fn read(resources: &Value, list: &str) -> LimitList {
    json::members(resources, &[list])
        .filter_map(|(k, v)| Some((k.clone(), json::quantity_of(v)?)))
        .collect()
}

/// The total that a pod's containers request: the larger of all containers with the sidecars, and each init container
/// with the sidecars before it.
pub(super) fn pod_total(pod: &Value, list: &str) -> LimitList {
    let mut total = LimitList::new();
    for container in json::items(pod, &["spec", "containers"]) {
        for (name, quantity) in read(json::at(container, &["resources"]), list) {
            let sum = total.get(&name).copied().unwrap_or_default() + quantity;
            total.insert(name, sum);
        }
    }
    let mut sidecars = LimitList::new();
    for container in json::items(pod, &["spec", "initContainers"]) {
        let restartable = json::text(container, &["restartPolicy"]) == "Always";
        for (name, quantity) in read(json::at(container, &["resources"]), list) {
            let with_sidecars = sidecars.get(&name).copied().unwrap_or_default() + quantity;
            if restartable {
                let sum = total.get(&name).copied().unwrap_or_default() + quantity;
                total.insert(name.clone(), sum);
                sidecars.insert(name.clone(), with_sidecars);
            }
            let most = total
                .get(&name)
                .copied()
                .unwrap_or_default()
                .max(with_sidecars);
            total.insert(name, most);
        }
    }
    total
}

fn check(
    item: &LimitRangeItem,
    requests: &LimitList,
    limits: &LimitList,
    broken: &mut Vec<String>,
) {
    let kind = &item.type_;
    let each = |list: &Option<BTreeMap<String, K8sQuantity>>| -> LimitList {
        list.iter()
            .flatten()
            .filter_map(|(name, q)| Some((name.clone(), Quantity::parse_k8s(q).ok()?)))
            .collect()
    };
    for (name, least) in each(&item.min) {
        let words = format!("minimum {name} usage per {kind} is {least}");
        match (requests.get(&name), limits.get(&name)) {
            (None, _) => broken.push(format!("{words}.  No request is specified")),
            (Some(request), _) if *request < least => {
                broken.push(format!("{words}, but request is {request}"))
            }
            (_, Some(limit)) if *limit < least => {
                broken.push(format!("{words}, but limit is {limit}"))
            }
            _ => {}
        }
    }
    for (name, most) in each(&item.max) {
        let words = format!("maximum {name} usage per {kind} is {most}");
        match (requests.get(&name), limits.get(&name)) {
            (_, None) => broken.push(format!("{words}.  No limit is specified")),
            (_, Some(limit)) if *limit > most => {
                broken.push(format!("{words}, but limit is {limit}"))
            }
            (Some(request), _) if *request > most => {
                broken.push(format!("{words}, but request is {request}"))
            }
            _ => {}
        }
    }
    for (name, ratio) in each(&item.max_limit_request_ratio) {
        let words = format!("{name} max limit to request ratio per {kind} is {ratio}");
        let (request, limit) = (requests.get(&name), limits.get(&name));
        match (
            request.filter(|q| !q.is_zero()),
            limit.filter(|q| !q.is_zero()),
        ) {
            (None, _) => broken.push(format!(
                "{words}, but no request is specified or request is 0"
            )),
            (_, None) => broken.push(format!("{words}, but no limit is specified or limit is 0")),
            (Some(request), Some(limit)) => {
                let observed = limit.as_f64() / request.as_f64();
                if observed > ratio.as_f64() {
                    broken.push(format!("{words}, but provided ratio is {observed:.6}"));
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
