//! The effects of the manifests on an engine, as lines that are equal for equal effects: without times, ids,
//! generated names and the numbers of otherwise equal replicas.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::Seed;
use crate::ground::Ground;

/// The kinds that are read in every namespace.
const NAMESPACED: &str = "pods,services,configmaps,resourcequotas,limitranges,\
    podgroups.scheduling.volcano.sh,pytorchjobs.kubeflow.org,jobs.batch,cronjobs,\
    horizontalpodautoscalers,jobs.batch.volcano.sh,rayclusters.ray.io,scaledobjects.keda.sh,\
    services.serving.knative.dev,events";
/// The kinds without a namespace that are read.
const CLUSTER: &str = "queues.scheduling.volcano.sh,priorityclasses";

/// The reasons for waiting.
const WAITING: [&str; 2] = ["Unschedulable", "FailedScheduling"];

/// Kind, namespace and name.
type Named<'a> = (&'a str, &'a str, &'a str);

/// The answer of `kubectl apply`.
pub(crate) struct Applied {
    pub(crate) taken: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The objects of an engine.
pub(crate) type Objects = Vec<Value>;

/// The current objects of both engines.
pub(crate) fn look(grounds: &[Ground; 2]) -> [Objects; 2] {
    let all = |ground: &Ground| {
        let mut all = ground.items(&[NAMESPACED, "-A"]);
        all.extend(ground.items(&[CLUSTER]));
        all
    };
    std::thread::scope(|scope| {
        let looks = grounds
            .each_ref()
            .map(|ground| scope.spawn(move || all(ground)));
        looks.map(|look| look.join().unwrap())
    })
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or("")
}

/// The effects of a manifest.
pub(crate) fn lines(seed: &Seed, applied: &Applied, objects: &Objects) -> Vec<String> {
    let mut lines = Vec::new();
    for line in applied.out.lines() {
        lines.push(format!("apply: {line}"));
    }
    let word = if applied.taken { "told" } else { "refused" };
    for line in applied.err.lines().filter(|line| !line.is_empty()) {
        lines.push(format!("{word}: {line}"));
    }
    let placed: BTreeSet<Named<'_>> = (objects.iter().filter(|object| is_placed(object)))
        .map(|object| {
            let meta = &object["metadata"];
            (
                text(object, "/kind"),
                text(meta, "/namespace"),
                text(meta, "/name"),
            )
        })
        .collect();
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for object in objects {
        let line = match text(object, "/kind") {
            "Event" => event(seed, object, &placed),
            _ => standing(seed, object),
        };
        if let Some(line) = line {
            *found.entry(line).or_default() += 1;
        }
    }
    lines.extend(found.into_iter().map(|(line, count)| match count {
        1 => line,
        _ if line.starts_with("event ") => line,
        count => format!("{count} x {line}"),
    }));
    lines
}

/// Whether an object belongs to this manifest: if several manifests share a namespace, only objects that it names.
fn belongs(seed: &Seed, kind: &str, namespace: &str, name: &str) -> bool {
    let named = seed
        .documents
        .iter()
        .any(|one| one.0 == kind && one.1 == name);
    let shared = namespace.is_empty() || namespace == "volcano-system";
    named && (namespace.is_empty() || namespace == seed.namespace)
        || !shared && namespace == seed.namespace
}

/// A name without its generated part and without the number of a replica.
fn told(name: &str, generated: Option<&str>) -> String {
    if let Some(prefix) = generated {
        return format!("{prefix}*");
    }
    match name.rsplit_once('-') {
        Some((stem, number))
            if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            format!("{stem}-N")
        }
        _ => name.to_owned(),
    }
}

/// An event's text; none if it says that a placed object had to wait before, or that a gang's wait is over: whether
/// it had to wait depends on timing.
fn event(seed: &Seed, event: &Value, placed: &BTreeSet<Named<'_>>) -> Option<String> {
    let about = &event["involvedObject"];
    let (kind, name) = (text(about, "/kind"), text(about, "/name"));
    let namespace = text(about, "/namespace");
    let (type_, reason) = (text(event, "/type"), text(event, "/reason"));
    let of_waiting = WAITING.contains(&reason) || (kind, reason) == ("PodGroup", "Scheduled");
    let passed = of_waiting && placed.contains(&(kind, namespace, name));
    let furniture = kind == "PersistentVolumeClaim";
    if passed || furniture || !belongs(seed, kind, namespace, name) {
        return None;
    }
    let line = format!("event {kind} {}: {type_} {reason}", told(name, None));
    Some(match type_ {
        // The reason for a pod's wait counts machines: other waiting pods change the text.
        "Warning" if !WAITING.contains(&reason) => format!("{line}: {}", text(event, "/message")),
        _ => line,
    })
}

/// Whether a pod or a gang is placed.
fn is_placed(object: &Value) -> bool {
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let scheduled = |one: &Value| {
        ["PodScheduled", "Scheduled"].contains(&text(one, "/type"))
            && text(one, "/status") == "True"
    };
    conditions.into_iter().flatten().any(scheduled)
}

/// An object and its state.
fn standing(seed: &Seed, object: &Value) -> Option<String> {
    let (kind, name) = (text(object, "/kind"), text(object, "/metadata/name"));
    let every_namespace_has_it = kind == "ConfigMap" && name == "kube-root-ca.crt";
    if every_namespace_has_it || !belongs(seed, kind, text(object, "/metadata/namespace"), name) {
        return None;
    }
    let generated = object
        .pointer("/metadata/generateName")
        .and_then(Value::as_str);
    let mut parts = Vec::new();
    if kind == "Pod" {
        parts.push(placed(object));
    }
    for path in ["/status/phase", "/status/state", "/status/state/phase"] {
        let word = text(object, path);
        // The nodes have no kubelets: no pod gets further than its node.
        if !word.is_empty() && kind != "Pod" {
            parts.push(word.to_owned());
        }
    }
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    // Nor is it listed that a placed gang had to wait before.
    let had_to_wait = |one: &Value| text(one, "/type") == "Unschedulable" && is_placed(object);
    let conditions = (conditions.into_iter().flatten()).filter(|one| !had_to_wait(one));
    let mut told_of: Vec<String> = conditions.map(condition).collect();
    told_of.sort();
    parts.extend(told_of);
    let line = format!("{kind} {}", told(name, generated));
    Some(match parts.is_empty() {
        true => line,
        false => format!("{line}: {}", parts.join(", ")),
    })
}

fn condition(condition: &Value) -> String {
    let (type_, status, reason) = (
        text(condition, "/type"),
        text(condition, "/status"),
        text(condition, "/reason"),
    );
    match reason {
        "" => format!("{type_}={status}"),
        reason => format!("{type_}={status} ({reason})"),
    }
}

/// Whether a pod has a node, and its number of chosen devices.
fn placed(pod: &Value) -> String {
    if text(pod, "/spec/nodeName").is_empty() {
        return "not bound".to_owned();
    }
    let chosen = text(pod, "/metadata/annotations/muster.io~1devices");
    let chosen: Value = serde_json::from_str(chosen).unwrap_or_default();
    let containers = chosen.as_object().into_iter().flatten();
    let lists = containers.flat_map(|(_, kinds)| kinds.as_object().into_iter().flatten());
    let count: usize = lists
        .map(|(_, ids)| ids.as_array().map_or(0, Vec::len))
        .sum();
    match count {
        0 => "bound".to_owned(),
        1 => "bound with 1 device".to_owned(),
        count => format!("bound with {count} devices"),
    }
}
