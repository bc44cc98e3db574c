//! Cases of ReplicaSets: which pods are created and deleted, and what the status says.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{SLOW_START, WAITING_MAX};
use super::*;
use crate::ownership::controlled_by;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn set(replicas: i64, more: Value) -> ReplicaSet {
    let mut set = json!({
        "metadata": {"name": "web", "namespace": "team", "uid": "set", "generation": 3,
            "annotations": {"muster.io/user": "ann"}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": []}}},
    });
    for (key, value) in more.as_object().unwrap() {
        set["spec"][key] = value.clone();
    }
    serde_json::from_value(set).unwrap()
}

/// Carries out actions, with pods that the test moves on.
#[derive(Default)]
struct World {
    pods: BTreeMap<String, Pod>,
    uids: u32,
    /// How many pods the nodes hold, if it is known.
    nodes: Option<u64>,
}

impl World {
    fn ask(&self, set: &ReplicaSet, now: Timestamp) -> ReconcileOutcome<ReplicaSetStatus> {
        let pods: Vec<&Pod> = self.pods.values().collect();
        reconcile(
            &ObservedReplicaSet {
                set,
                pods: &pods,
                room: PodRoom {
                    nodes: self.nodes,
                    quota: None,
                },
            },
            now,
        )
    }

    fn step(&mut self, set: &ReplicaSet, now: Timestamp) -> ReconcileOutcome<ReplicaSetStatus> {
        let outcome = self.ask(set, now);
        for action in outcome.actions.clone() {
            match action {
                Action::CreatePod(mut pod) => {
                    self.uids += 1;
                    pod.metadata.uid = Some(self.uids.to_string());
                    pod.metadata.creation_timestamp = Some(Time(now));
                    let name = pod.metadata.name.clone().unwrap();
                    assert!(
                        self.pods.insert(name.clone(), *pod).is_none(),
                        "{name} twice"
                    );
                }
                Action::DeletePod { name, .. } => {
                    self.pods.remove(&name).expect("it exists");
                }
                Action::Change { name, patch, .. } | Action::Adopt { name, patch, .. } => {
                    let owners = patch["metadata"]["ownerReferences"].clone();
                    let pod = self.pods.get_mut(&name).unwrap();
                    pod.metadata.owner_references = serde_json::from_value(owners).unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
        outcome
    }

    fn settle(&mut self, set: &ReplicaSet, now: Timestamp) -> ReplicaSetStatus {
        for _ in 0..50 {
            let outcome = self.step(set, now);
            if outcome.actions.is_empty() {
                return outcome.status;
            }
        }
        panic!("it does not settle");
    }

    fn ready(&mut self, name: &str, since: Timestamp) {
        let status = json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": Time(since)}]});
        let pod = self.pods.get_mut(name).unwrap();
        pod.status = Some(serde_json::from_value(status).unwrap());
        pod.spec.as_mut().unwrap().node_name = Some("n".to_owned());
    }

    fn names(&self) -> Vec<String> {
        self.pods.keys().cloned().collect()
    }
}

#[test]
fn pods_come_and_go_with_the_number_and_run_for_the_sets_user() {
    let mut world = World::default();
    let status = world.settle(&set(3, json!({})), at(0));
    assert_eq!((status.replicas, status.observed_generation), (3, Some(3)));
    assert_eq!(status.fully_labeled_replicas, Some(3));
    let pod = world.pods.values().next().unwrap();
    let annotations = pod.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["muster.io/user"], "ann");
    assert!(controlled_by(&pod.metadata, &set(0, json!({})).metadata));
    let names = world.names();
    world.ready(&names[1], at(1));
    let status = world.settle(&set(1, json!({})), at(2));
    assert_eq!(world.names(), [names[1].clone()], "the ready pod stays");
    assert_eq!(status.ready_replicas, Some(1));
    assert_eq!(world.settle(&set(0, json!({})), at(3)).replicas, 0);
}

#[test]
fn a_number_beyond_all_machines_creates_only_the_pods_that_may_wait() {
    let mut world = World::default();
    let set = set(i64::from(i32::MAX), json!({}));
    let first = world.step(&set, at(0));
    assert_eq!(first.actions.len(), SLOW_START);
    world.settle(&set, at(0));
    assert_eq!(world.pods.len(), WAITING_MAX);
    // Fewer wait where the nodes hold fewer.
    let mut world = World {
        nodes: Some(300),
        ..World::default()
    };
    world.settle(&set, at(0));
    assert_eq!(world.pods.len(), 300);
}

#[test]
fn ended_and_terminating_pods_are_replaced_under_other_names() {
    let mut world = World::default();
    world.settle(&set(2, json!({})), at(0));
    let names = world.names();
    let failed = serde_json::from_value(json!({"phase": "Failed"})).unwrap();
    world.pods.get_mut(&names[0]).unwrap().status = Some(failed);
    world
        .pods
        .get_mut(&names[1])
        .unwrap()
        .metadata
        .deletion_timestamp = Some(Time(at(1)));
    let status = world.settle(&set(2, json!({})), at(2));
    assert_eq!(world.pods.len(), 4);
    assert_eq!((status.replicas, status.terminating_replicas), (2, Some(1)));
}

#[test]
fn a_pod_is_available_after_it_was_ready_long_enough() {
    let mut world = World::default();
    let set = set(1, json!({"minReadySeconds": 10}));
    world.settle(&set, at(0));
    let name = world.names()[0].clone();
    world.ready(&name, at(5));
    let outcome = world.ask(&set, at(6));
    assert_eq!(outcome.status.ready_replicas, Some(1));
    assert_eq!(outcome.status.available_replicas, None);
    assert_eq!(outcome.requeue_at, Some(at(15)));
    let outcome = world.ask(&set, at(15));
    assert_eq!(outcome.status.available_replicas, Some(1));
    assert_eq!(outcome.requeue_at, None);
}

#[test]
fn a_pod_that_no_longer_matches_is_released_and_replaced_and_a_matching_orphan_is_adopted() {
    let mut world = World::default();
    let set = set(1, json!({}));
    world.settle(&set, at(0));
    let name = world.names()[0].clone();
    let label = |world: &mut World, app: &str| {
        let labels = BTreeMap::from([("app".to_owned(), app.to_owned())]);
        world.pods.get_mut(&name).unwrap().metadata.labels = Some(labels);
    };
    label(&mut world, "apart");
    world.settle(&set, at(1));
    assert_eq!(world.pods.len(), 2, "under another name");
    assert!(!controlled_by(&world.pods[&name].metadata, &set.metadata));
    label(&mut world, "web");
    world.step(&set, at(2));
    assert!(controlled_by(&world.pods[&name].metadata, &set.metadata));
    assert_eq!(
        world.pods.len(),
        2,
        "nothing is deleted before the pod is the set's own"
    );
    world.settle(&set, at(3));
    assert_eq!(world.pods.len(), 1);
}

#[test]
fn the_deletion_cost_orders_equal_pods() {
    let mut world = World::default();
    world.settle(&set(3, json!({})), at(0));
    let names = world.names();
    for (name, cost) in names.iter().zip(["5", "-1", "3"]) {
        let annotations = world
            .pods
            .get_mut(name)
            .unwrap()
            .metadata
            .annotations
            .as_mut();
        annotations
            .unwrap()
            .insert(DELETION_COST.to_owned(), cost.to_owned());
    }
    world.settle(&set(1, json!({})), at(1));
    assert_eq!(world.names(), [names[0].clone()]);
}

#[test]
fn a_set_that_is_deleted_creates_nothing_and_a_failure_ends_with_the_last_pod() {
    let mut world = World::default();
    let mut leaving = set(2, json!({}));
    leaving.metadata.deletion_timestamp = Some(Time(at(0)));
    assert_eq!(world.step(&leaving, at(1)).actions, []);
    let mut failing = set(1, json!({}));
    let status =
        json!({"replicas": 0, "conditions": [{"type": REPLICA_FAILURE, "status": "True"}]});
    failing.status = Some(serde_json::from_value(status).unwrap());
    assert!(world.ask(&failing, at(1)).status.conditions.is_some());
    assert_eq!(world.settle(&failing, at(1)).conditions, None);
}

proptest! {
    /// A pass that has seen only some of the pods that an earlier one created asks for the same pods again, not for
    /// others.
    #[test]
    fn a_partial_view_leads_to_no_further_pods(count in 1_i64..15, seen in any::<u16>()) {
        let mut world = World::default();
        let set = set(count, json!({}));
        world.step(&set, at(0));
        let all = world.names();
        let mut part = World::default();
        for (i, (name, pod)) in world.pods.iter().enumerate() {
            if seen >> i & 1 == 1 {
                part.pods.insert(name.clone(), pod.clone());
            }
        }
        part.settle(&set, at(0));
        prop_assert_eq!(part.names(), all);
    }
}
