//! What draining a node does to each of its pods. Pure: the caller reads pods, budgets and owners.
//!
//! A pod is evicted unless it has ended, is a DaemonSet's (its controller would start it again there) or belongs to the
//! node itself (a static pod). A pod without a controller cannot be moved: nothing creates it again. Of the pods that a
//! PodDisruptionBudget selects, as many as it allows now go at once; the others wait until it allows more.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use resources::budget::is_about;
use resources::names::{CHECKPOINT, CHECKPOINT_GRACE};
use resources::span::{human_duration, seconds};

/// The annotation of a pod that the node itself runs.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The longest checkpoint grace that counts, in seconds; the scheduler's bound is the same.
const CHECKPOINT_GRACE_MAX: i64 = 3600;
/// The grace period of a pod that sets none, in seconds.
const GRACE: i64 = 30;

/// The namespace, kind and name of a pod's controller.
pub type OwnerKey = (String, String, String);

/// What happens to a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodFate {
    /// It is evicted.
    Evicted,
    /// It is evicted once this budget allows it.
    Waits(String),
    /// It stays, and that is no obstacle.
    Skipped(&'static str),
    /// It cannot be moved.
    Unmovable,
}

/// One pod of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPod {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's UID.
    pub uid: String,
    /// The controller, as `Job/train`.
    pub owner: String,
    /// What happens to the pod.
    pub fate: PodFate,
    /// The time that it gets to end, in seconds.
    pub grace: i64,
    /// Whether that is for a checkpoint.
    pub checkpoints: bool,
    /// How much of its work is lost, in seconds; unknown if it has not started.
    pub lost: Option<i64>,
}

/// Settings of a drain.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrainRules {
    /// Pods without a controller are evicted, too.
    pub force: bool,
    /// The grace period of all pods instead of their own, in seconds.
    pub grace: Option<i64>,
}

/// The pod's controller.
pub fn controller(pod: &Pod) -> Option<&OwnerReference> {
    let owners = pod.metadata.owner_references.as_deref()?;
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// The key under which the metadata of the pod's controller is looked up.
pub fn owner_key(pod: &Pod) -> Option<OwnerKey> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    controller(pod).map(|owner| (namespace, owner.kind.clone(), owner.name.clone()))
}

/// Plans the drain of the node that has these pods.
pub fn plan(
    pods: &[Pod],
    budgets: &[PodDisruptionBudget],
    owners: &BTreeMap<OwnerKey, ObjectMeta>,
    rules: DrainRules,
    now: Timestamp,
) -> Vec<PlannedPod> {
    let allowed = |budget: &PodDisruptionBudget| {
        let status = budget.status.as_ref();
        i64::from(status.map_or(0, |status| status.disruptions_allowed))
    };
    let mut left: Vec<i64> = budgets.iter().map(allowed).collect();
    let live = pods.iter().filter(|pod| !has_ended(pod));
    live.map(|pod| {
        let owner = owner_key(pod).and_then(|key| owners.get(&key));
        let span = |name: &str| {
            [Some(&pod.metadata), owner]
                .into_iter()
                .flatten()
                .find_map(|meta| span_of(meta, name))
        };
        let spec = pod.spec.as_ref();
        let own = spec.and_then(|spec| spec.termination_grace_period_seconds);
        let own = rules.grace.or(own).unwrap_or(GRACE).max(0);
        let checkpoint = span(CHECKPOINT_GRACE).map(|grace| grace.min(CHECKPOINT_GRACE_MAX));
        let started = pod
            .status
            .as_ref()
            .and_then(|status| status.start_time.as_ref());
        let ran = started.map(|time| now.duration_since(time.0).as_secs().max(0));
        let lost = match (checkpoint, span(CHECKPOINT)) {
            (Some(_), _) => Some(0),
            (None, Some(every)) => ran.map(|ran| ran.min(every)),
            (None, None) => ran,
        };
        PlannedPod {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            owner: controller(pod).map_or("-".to_owned(), |owner| {
                format!("{}/{}", owner.kind, owner.name)
            }),
            fate: fate(pod, budgets, &mut left, rules),
            grace: checkpoint.map_or(own, |grace| grace.max(own)),
            checkpoints: checkpoint.is_some(),
            lost,
        }
    })
    .collect()
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// A span of an annotation or label.
fn span_of(meta: &ObjectMeta, name: &str) -> Option<i64> {
    let maps = [meta.annotations.as_ref(), meta.labels.as_ref()];
    let mut values = maps.into_iter().flatten().filter_map(|map| map.get(name));
    seconds(values.next()?.trim())
}

fn fate(
    pod: &Pod,
    budgets: &[PodDisruptionBudget],
    left: &mut [i64],
    rules: DrainRules,
) -> PodFate {
    let annotations = pod.metadata.annotations.as_ref();
    if annotations.is_some_and(|map| map.contains_key(MIRROR)) {
        return PodFate::Skipped("the node itself runs it");
    }
    match controller(pod) {
        Some(owner) if owner.kind == "DaemonSet" => {
            return PodFate::Skipped("its DaemonSet keeps it on the node");
        }
        None if !rules.force => return PodFate::Unmovable,
        _ => {}
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return PodFate::Evicted;
    }
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let about: Vec<usize> = (0..budgets.len())
        .filter(|at| budgets[*at].metadata.namespace == pod.metadata.namespace)
        .filter(|at| is_about(&budgets[*at], &labels))
        .collect();
    if let Some(at) = about.iter().find(|at| left[**at] <= 0) {
        return PodFate::Waits(budgets[*at].metadata.name.clone().unwrap_or_default());
    }
    for at in about {
        left[at] -= 1;
    }
    PodFate::Evicted
}

impl PlannedPod {
    /// What happens, as a cell of the preview.
    pub fn action(&self) -> &'static str {
        match self.fate {
            PodFate::Evicted => "evict",
            PodFate::Waits(_) => "evict later",
            PodFate::Skipped(_) => "skip",
            PodFate::Unmovable => "cannot move",
        }
    }

    /// Why, and what it costs.
    pub fn detail(&self) -> String {
        let cost = || {
            let lost = match self.lost {
                None => "has not started".to_owned(),
                Some(0) if self.checkpoints => "saves a checkpoint first".to_owned(),
                Some(lost) => format!("loses {} of work", human_duration(lost)),
            };
            format!("{lost}; {} s to end", self.grace)
        };
        match &self.fate {
            PodFate::Evicted => cost(),
            PodFate::Waits(budget) => {
                format!(
                    "PodDisruptionBudget {budget} allows no eviction now; {}",
                    cost()
                )
            }
            PodFate::Skipped(why) => (*why).to_owned(),
            PodFate::Unmovable => {
                "no controller creates it again: delete it, or drain with --force".to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn pod(name: &str, owner: Option<&str>, more: Value) -> Pod {
        let owners = owner.map(|kind| {
            json!([{"apiVersion": "v1", "kind": kind, "name": "own", "uid": "u", "controller": true}])
        });
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "labels": {"app": "web"},
                "ownerReferences": owners.unwrap_or(json!([]))},
            "spec": {"containers": []},
            "status": {"phase": "Running", "startTime": at(0)},
        });
        for (key, value) in more.as_object().unwrap() {
            for (inner, value) in value.as_object().unwrap() {
                pod[key][inner] = value.clone();
            }
        }
        serde_json::from_value(pod).unwrap()
    }

    fn budget(allowed: i32) -> PodDisruptionBudget {
        serde_json::from_value(json!({
            "metadata": {"name": "keep", "namespace": "team"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"currentHealthy": 2, "desiredHealthy": 1, "disruptionsAllowed": allowed, "expectedPods": 2},
        }))
        .unwrap()
    }

    fn fates(pods: &[Pod], budgets: &[PodDisruptionBudget], force: bool) -> Vec<(String, String)> {
        let rules = DrainRules { force, grace: None };
        let planned = plan(pods, budgets, &BTreeMap::new(), rules, at(60));
        let cells = planned
            .iter()
            .map(|pod| (pod.name.clone(), pod.action().to_owned()));
        cells.collect()
    }

    #[test]
    fn each_pod_is_evicted_kept_or_named_as_an_obstacle() {
        let pods = [
            pod("web", Some("ReplicaSet"), json!({})),
            pod("watch", Some("DaemonSet"), json!({})),
            pod("alone", None, json!({})),
            pod(
                "static",
                None,
                json!({"metadata": {"annotations": {MIRROR: "x"}}}),
            ),
            pod(
                "ended",
                Some("Job"),
                json!({"status": {"phase": "Succeeded"}}),
            ),
        ];
        let of = |force| {
            fates(&pods, &[], force)
                .into_iter()
                .map(|(_, fate)| fate)
                .collect::<Vec<_>>()
        };
        assert_eq!(of(false), ["evict", "skip", "cannot move", "skip"]);
        assert_eq!(of(true), ["evict", "skip", "evict", "skip"]);
    }

    #[test]
    fn a_budget_lets_go_as_many_as_it_allows_and_the_others_wait() {
        let pods = ["a", "b"].map(|name| pod(name, Some("ReplicaSet"), json!({})));
        for (allowed, want) in [
            (0, ["evict later", "evict later"]),
            (1, ["evict", "evict later"]),
            (2, ["evict", "evict"]),
        ] {
            let fates = fates(&pods, &[budget(allowed)], false);
            let fates: Vec<&str> = fates.iter().map(|(_, fate)| fate.as_str()).collect();
            assert_eq!(fates, want, "{allowed}");
        }
        let mut elsewhere = budget(0);
        elsewhere.metadata.namespace = Some("other".to_owned());
        assert_eq!(fates(&pods, &[elsewhere], false)[0].1, "evict");
    }

    #[test]
    fn the_cost_is_the_work_since_the_last_checkpoint_and_the_grace_waits_for_one() {
        let annotated = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
        let table = [
            (json!({}), Some(60), 30),
            (annotated(CHECKPOINT, "20s"), Some(20), 30),
            (annotated(CHECKPOINT, "10m"), Some(60), 30),
            (annotated(CHECKPOINT_GRACE, "2m"), Some(0), 120),
            (
                annotated(CHECKPOINT_GRACE, "2h"),
                Some(0),
                CHECKPOINT_GRACE_MAX,
            ),
            (
                json!({"spec": {"terminationGracePeriodSeconds": 5}}),
                Some(60),
                5,
            ),
            (json!({"status": {"startTime": null}}), None, 30),
        ];
        for (more, lost, grace) in table {
            let pods = [pod("train", Some("Job"), more.clone())];
            let planned = plan(&pods, &[], &BTreeMap::new(), DrainRules::default(), at(60));
            assert_eq!((planned[0].lost, planned[0].grace), (lost, grace), "{more}");
        }
        // The job's annotation counts for its pods, and the command's grace for all but checkpoints.
        let pods = [pod("train", Some("Job"), json!({}))];
        let key = owner_key(&pods[0]).unwrap();
        let meta = |value: &str| ObjectMeta {
            annotations: Some(BTreeMap::from([(
                CHECKPOINT_GRACE.to_owned(),
                value.to_owned(),
            )])),
            ..ObjectMeta::default()
        };
        let owners = BTreeMap::from([(key, meta("90s"))]);
        let rules = DrainRules {
            force: false,
            grace: Some(1),
        };
        assert_eq!(plan(&pods, &[], &owners, rules, at(60))[0].grace, 90);
        assert_eq!(
            plan(&pods, &[], &BTreeMap::new(), rules, at(60))[0].grace,
            1
        );
    }
}
