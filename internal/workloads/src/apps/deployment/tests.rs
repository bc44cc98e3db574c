//! Cases of Deployments: rollouts step by step, their bounds, history and conditions.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::action::{Action, Dependent};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// Carries out a Deployment's actions, and plays the ReplicaSet controller with pods that get available one by one.
struct World {
    deployment: Deployment,
    sets: BTreeMap<String, ReplicaSet>,
    now: i64,
    events: Vec<String>,
    most: i64,
    least: i64,
}

impl World {
    fn new(spec: Value) -> World {
        let mut deployment = json!({
            "metadata": {"name": "web", "namespace": "team", "uid": "d", "generation": 1,
                "annotations": {"muster.io/user": "ann", "note": "x"}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": {
                "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "one"}]}},
                "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10},
        });
        for (key, value) in spec.as_object().unwrap() {
            deployment["spec"][key] = value.clone();
        }
        World {
            deployment: serde_json::from_value(deployment).unwrap(),
            sets: BTreeMap::new(),
            now: 0,
            events: Vec::new(),
            most: 0,
            least: i64::MAX,
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut DeploymentSpec)) {
        change(self.deployment.spec.as_mut().unwrap());
        *self.deployment.metadata.generation.as_mut().unwrap() += 1;
    }

    fn image(&mut self, image: &str) {
        let image = image.to_owned();
        self.change(|spec| {
            spec.template.spec.as_mut().unwrap().containers[0].image = Some(image);
        });
    }

    fn step(&mut self) -> bool {
        self.now += 1;
        let sets: Vec<&ReplicaSet> = self.sets.values().collect();
        let observed = ObservedDeployment {
            deployment: &self.deployment,
            sets: &sets,
        };
        let outcome = reconcile(&observed, at(self.now));
        let mut changed = !outcome.actions.is_empty();
        let annotations = self.deployment.metadata.annotations.get_or_insert_default();
        for (key, value) in outcome.annotations {
            annotations.insert(key, value.unwrap());
        }
        for action in outcome.actions {
            match action {
                Action::Create(Dependent::ReplicaSet(mut set)) => {
                    let name = set.metadata.name.clone().unwrap();
                    set.metadata.uid = Some(name.clone());
                    set.metadata.generation = Some(1);
                    set.metadata.creation_timestamp = Some(Time(at(self.now)));
                    assert!(self.sets.insert(name, *set).is_none());
                }
                Action::Change { name, patch, .. } => {
                    let set = self.sets.get_mut(&name).unwrap();
                    let mut value = serde_json::to_value(&*set).unwrap();
                    merge(&mut value, &patch);
                    *set = serde_json::from_value(value).unwrap();
                    *set.metadata.generation.as_mut().unwrap() += 1;
                }
                Action::Delete { name, .. } => {
                    self.sets.remove(&name).unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
        let told = outcome.events.into_iter().map(|event| event.message);
        self.events.extend(told);
        changed |= self.deployment.status.as_ref() != Some(&outcome.status);
        self.deployment.status = Some(outcome.status);
        changed
    }

    /// Lets each set create or delete all its pods, and makes up to `more` of them available.
    fn run_sets(&mut self, more: i32) -> bool {
        let mut left = more;
        let mut changed = false;
        for set in self.sets.values_mut() {
            let wanted = set.spec.as_ref().unwrap().replicas.unwrap_or(0);
            let mut status = set.status.clone().unwrap_or_default();
            let ready = status.available_replicas.unwrap_or(0).min(wanted);
            let grown = (wanted - ready).min(left).max(0);
            left -= grown;
            status.replicas = wanted;
            status.ready_replicas = Some(ready + grown);
            status.available_replicas = Some(ready + grown);
            status.observed_generation = set.metadata.generation;
            changed |= set.status.as_ref() != Some(&status);
            set.status = Some(status);
        }
        let available: i32 = self.sets.values().map(available).sum();
        let all: i32 = self.sets.values().map(size).sum();
        self.most = self.most.max(i64::from(all));
        self.least = self.least.min(i64::from(available));
        changed
    }

    fn settle(&mut self) {
        (self.most, self.least) = (0, i64::MAX);
        for _ in 0..500 {
            let changed = self.step();
            if !self.run_sets(1) && !changed {
                return;
            }
        }
        panic!("it does not settle: {:?}", self.deployment.status);
    }

    fn condition(&self, type_: &str) -> String {
        let conditions = self.deployment.status.as_ref().unwrap().conditions.iter();
        let found = conditions.flatten().find(|known| known.type_ == type_);
        found.map_or("none".to_owned(), |known| {
            format!("{} {}", known.status, known.reason.clone().unwrap())
        })
    }

    fn revision(&self) -> &str {
        &self.deployment.metadata.annotations.as_ref().unwrap()[REVISION]
    }

    /// The sizes of the sets by image.
    fn sizes(&self) -> BTreeMap<String, i32> {
        let image = |set: &ReplicaSet| {
            let template = set.spec.as_ref().unwrap().template.as_ref().unwrap();
            template.spec.as_ref().unwrap().containers[0]
                .image
                .clone()
                .unwrap()
        };
        let sets = self.sets.values();
        sets.map(|set| (image(set), size(set))).collect()
    }
}

fn size(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().unwrap().replicas.unwrap_or(0)
}

fn available(set: &ReplicaSet) -> i32 {
    set.status
        .as_ref()
        .and_then(|s| s.available_replicas)
        .unwrap_or(0)
}

fn merge(to: &mut Value, patch: &Value) {
    match patch {
        Value::Object(fields) => {
            for (key, value) in fields {
                merge(&mut to[key], value);
            }
        }
        other => *to = other.clone(),
    }
}

fn of(pairs: &[(&str, i32)]) -> BTreeMap<String, i32> {
    pairs
        .iter()
        .map(|(image, size)| ((*image).to_owned(), *size))
        .collect()
}

#[test]
fn a_rollout_stays_within_surge_and_availability_and_can_be_undone() {
    let rolling =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}});
    let mut world = World::new(json!({"replicas": 10, "strategy": rolling}));
    world.settle();
    assert_eq!(world.sizes(), of(&[("one", 10)]));
    assert_eq!(
        world.condition("Progressing"),
        "True NewReplicaSetAvailable"
    );
    assert_eq!(
        world.condition("Available"),
        "True MinimumReplicasAvailable"
    );
    let set = world.sets.values().next().unwrap();
    let name = set.metadata.name.as_deref().unwrap();
    let hash = name.strip_prefix("web-").unwrap();
    let labels = set.metadata.labels.as_ref().unwrap();
    assert_eq!(labels["pod-template-hash"], hash);
    let annotations = set.metadata.annotations.as_ref().unwrap();
    assert_eq!(
        (
            annotations["note"].as_str(),
            annotations["muster.io/user"].as_str()
        ),
        ("x", "ann")
    );
    assert_eq!(
        world.events,
        [format!("Scaled up replica set {name} from 0 to 10")]
    );

    world.image("two");
    world.settle();
    assert_eq!(world.sizes(), of(&[("one", 0), ("two", 10)]));
    assert!(
        world.most <= 13 && world.least >= 8,
        "{} {}",
        world.most,
        world.least
    );
    assert_eq!(world.revision(), "2");

    world.image("one");
    world.settle();
    assert_eq!(world.sizes(), of(&[("one", 10), ("two", 0)]));
    assert_eq!(world.revision(), "3");
    let one = world.sets.values().find(|set| size(set) == 10).unwrap();
    let annotations = one.metadata.annotations.as_ref().unwrap();
    assert_eq!(
        annotations["deployment.kubernetes.io/revision-history"],
        "1"
    );
}

#[test]
fn recreate_waits_for_the_last_old_pod() {
    let mut world = World::new(json!({"strategy": {"type": "Recreate"}}));
    world.settle();
    world.image("two");
    world.step();
    assert_eq!(world.sizes(), of(&[("one", 0)]));
    for set in world.sets.values_mut() {
        let status = set.status.as_mut().unwrap();
        (status.replicas, status.terminating_replicas) = (0, Some(1));
        status.observed_generation = set.metadata.generation;
    }
    world.step();
    assert_eq!(world.sizes(), of(&[("one", 0)]), "a pod still ends");
    for set in world.sets.values_mut() {
        set.status.as_mut().unwrap().terminating_replicas = Some(0);
    }
    world.settle();
    assert_eq!(world.sizes(), of(&[("one", 0), ("two", 3)]));
}

#[test]
fn a_paused_deployment_scales_and_does_not_roll_out() {
    let mut world = World::new(json!({}));
    world.settle();
    world.change(|spec| spec.paused = Some(true));
    world.image("two");
    world.change(|spec| spec.replicas = Some(5));
    world.settle();
    assert_eq!(world.sizes(), of(&[("one", 5)]));
    assert_eq!(world.condition("Progressing"), "Unknown DeploymentPaused");
    world.change(|spec| spec.paused = None);
    world.settle();
    assert_eq!(world.sizes(), of(&[("one", 0), ("two", 5)]));
    assert_eq!(
        world.condition("Progressing"),
        "True NewReplicaSetAvailable"
    );
}

#[test]
fn a_rollout_without_progress_times_out_and_goes_on_when_it_can() {
    let mut world = World::new(json!({"progressDeadlineSeconds": 60}));
    world.step();
    world.run_sets(0);
    world.step();
    world.now += 30;
    world.step();
    assert!(world.condition("Progressing").starts_with("True"));
    world.now += 60;
    world.step();
    assert_eq!(
        world.condition("Progressing"),
        "False ProgressDeadlineExceeded"
    );
    assert_eq!(
        world.condition("Available"),
        "False MinimumReplicasUnavailable"
    );
    world.settle();
    assert_eq!(
        world.condition("Progressing"),
        "True NewReplicaSetAvailable"
    );
}

#[test]
fn old_sets_go_beyond_the_limit_and_failures_are_shown() {
    let mut world = World::new(json!({"revisionHistoryLimit": 1}));
    for image in ["one", "two", "three", "four"] {
        world.image(image);
        world.settle();
    }
    assert_eq!(world.sizes(), of(&[("three", 0), ("four", 3)]));
    let failure = json!([{"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "quota"}]);
    let set = world.sets.values_mut().find(|set| size(set) == 3).unwrap();
    let conditions = serde_json::from_value(failure).unwrap();
    set.status.as_mut().unwrap().conditions = conditions;
    world.step();
    assert_eq!(world.condition("ReplicaFailure"), "True FailedCreate");
}

#[test]
fn the_largest_number_of_replicas_overflows_nothing() {
    let mut world = World::new(json!({"replicas": i32::MAX}));
    world.step();
    world.image("two");
    for _ in 0..5 {
        world.step();
    }
    assert!(world.sizes().values().all(|size| *size >= 0));
}

proptest! {
    /// From any sizes and any change, the rollout ends with all pods of the last template, within its bounds.
    #[test]
    fn rollouts_end_within_their_bounds(
        replicas in 1_i32..12,
        surge in 0_i32..4,
        unavailable in 0_i32..4,
        changes in proptest::collection::vec((0_u8..3, 0_i32..12, 0_u8..6), 1..5),
    ) {
        prop_assume!(surge + unavailable > 0);
        let rolling = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}});
        let mut world = World::new(json!({"replicas": replicas, "strategy": rolling}));
        world.settle();
        let (mut last, mut image) = (replicas, "one".to_owned());
        for (what, number, steps) in changes {
            if what == 0 {
                last = number;
                world.change(|spec| spec.replicas = Some(number));
            } else {
                image = format!("{what}-{number}");
                world.image(&image.clone());
            }
            for _ in 0..steps {
                world.step();
                world.run_sets(1);
            }
        }
        world.settle();
        let sizes = world.sizes();
        prop_assert_eq!(sizes.values().sum::<i32>(), last);
        prop_assert_eq!(sizes.get(&image).copied(), Some(last));
        // A further rollout alone stays within its bounds.
        world.image("end");
        world.settle();
        let (last, most) = (i64::from(last), world.most);
        prop_assert!(most <= last + i64::from(surge), "{} of {}", most, last);
        prop_assert!(world.least >= last - i64::from(unavailable).min(last), "{}", world.least);
        prop_assert_eq!(world.sizes()["end"], i32::try_from(last).unwrap());
    }
}
