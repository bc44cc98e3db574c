//! Cases of DaemonSets: which nodes get a pod, rollouts with and without a surge, and history.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::action::Dependent;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// Carries out a set's actions on a few nodes.
struct World {
    set: DaemonSet,
    nodes: BTreeMap<String, NodeFacts>,
    pods: BTreeMap<String, Pod>,
    revisions: BTreeMap<String, ControllerRevision>,
    now: i64,
    uids: u32,
}

impl World {
    fn new(nodes: usize, spec: Value) -> World {
        let mut set = json!({
            "metadata": {"name": "agent", "namespace": "team", "uid": "set", "generation": 1,
                "annotations": {"muster.io/user": "ann"}},
            "spec": {"selector": {"matchLabels": {"app": "agent"}},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
                "template": {"metadata": {"labels": {"app": "agent"}},
                    "spec": {"containers": [{"name": "c", "image": "one"}]}}},
        });
        for (key, value) in spec.as_object().unwrap() {
            set["spec"][key] = value.clone();
        }
        let nodes = (0..nodes).map(|node| (format!("n{node}"), NodeFacts::default()));
        World {
            set: serde_json::from_value(set).unwrap(),
            nodes: nodes.collect(),
            pods: BTreeMap::new(),
            revisions: BTreeMap::new(),
            now: 0,
            uids: 0,
        }
    }

    fn image(&mut self, image: &str) {
        let spec = self.set.spec.as_mut().unwrap();
        let pod = spec.template.spec.as_mut().unwrap();
        pod.containers[0].image = Some(image.to_owned());
    }

    fn step(&mut self) -> bool {
        self.now += 1;
        let pods: Vec<&Pod> = self.pods.values().collect();
        let revisions: Vec<&ControllerRevision> = self.revisions.values().collect();
        let observed = ObservedDaemonSet {
            set: &self.set,
            pods: &pods,
            revisions: &revisions,
            nodes: &self.nodes,
        };
        let outcome = reconcile(&observed, at(self.now));
        let changed =
            !outcome.actions.is_empty() || self.set.status.as_ref() != Some(&outcome.status);
        self.set.status = Some(outcome.status);
        for action in outcome.actions {
            self.uids += 1;
            let uid = Some(self.uids.to_string());
            match action {
                Action::CreatePod(mut pod) => {
                    pod.metadata.uid = uid;
                    pod.metadata.creation_timestamp = Some(Time(at(self.now)));
                    let name = pod.metadata.name.clone().unwrap();
                    // As the API does, a second pod of the name is refused; the next pass takes another name.
                    self.pods.entry(name).or_insert(*pod);
                }
                Action::DeletePod { name, .. } => {
                    self.pods.remove(&name).unwrap();
                }
                Action::Create(Dependent::Revision(mut revision)) => {
                    revision.metadata.uid = uid;
                    let name = revision.metadata.name.clone().unwrap();
                    assert!(self.revisions.insert(name, *revision).is_none());
                }
                Action::Change { name, patch, .. } => {
                    let number = patch["revision"].as_i64().unwrap();
                    self.revisions.get_mut(&name).unwrap().revision = number;
                }
                Action::Delete { name, .. } => {
                    self.revisions.remove(&name).unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
        changed
    }

    /// Starts one pod on the node that it requires.
    fn start_one(&mut self) -> bool {
        let waits = |pod: &&mut Pod| !pod_facts::is_ready(pod);
        let Some(pod) = self.pods.values_mut().find(waits) else {
            return false;
        };
        let spec = pod.spec.as_mut().unwrap();
        spec.node_name = fit::required_node(spec).map(str::to_owned);
        let status = json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": Time(at(self.now))}]});
        pod.status = Some(serde_json::from_value(status).unwrap());
        true
    }

    /// Runs until nothing changes; returns the fewest nodes with a ready pod, and the most pods, on the way.
    fn settle(&mut self) -> (usize, usize) {
        let (mut least, mut most) = (usize::MAX, 0);
        for _ in 0..300 {
            let changed = self.step();
            let ready = self.pods.values().filter(|pod| pod_facts::is_ready(pod));
            let nodes: BTreeSet<&str> = ready.map(node_of).collect();
            least = least.min(nodes.len());
            most = most.max(self.pods.len());
            if !self.start_one() && !changed {
                return (least, most);
            }
        }
        panic!("it does not settle: {:?}", self.set.status);
    }

    fn images(&self) -> Vec<String> {
        let image = |pod: &Pod| {
            let image = pod.spec.as_ref().unwrap().containers[0].image.clone();
            format!("{} {}", node_of(pod), image.unwrap())
        };
        let mut images: Vec<String> = self.pods.values().map(image).collect();
        images.sort();
        images
    }
}

#[test]
fn each_node_gets_one_pod_and_loses_it_when_it_no_longer_fits() {
    let mut world = World::new(3, json!({}));
    world.settle();
    assert_eq!(world.images(), ["n0 one", "n1 one", "n2 one"]);
    let pod = world.pods.values().next().unwrap();
    assert_eq!(
        pod.metadata.annotations.as_ref().unwrap()["muster.io/user"],
        "ann"
    );
    let status = world.set.status.clone().unwrap();
    assert_eq!(
        (status.desired_number_scheduled, status.number_ready),
        (3, 3)
    );
    assert_eq!(
        (status.number_available, status.updated_number_scheduled),
        (Some(3), Some(3))
    );
    assert_eq!(status.number_unavailable, None);
    let taint = json!([{"key": "k", "effect": "NoExecute"}]);
    world.nodes.get_mut("n1").unwrap().taints = serde_json::from_value(taint).unwrap();
    world.nodes.insert("n3".to_owned(), NodeFacts::default());
    world.settle();
    assert_eq!(world.images(), ["n0 one", "n2 one", "n3 one"]);
    world.nodes.remove("n3");
    world.settle();
    assert_eq!(
        world.set.status.as_ref().unwrap().desired_number_scheduled,
        2
    );
}

#[test]
fn a_rollout_takes_one_node_after_another_and_a_surge_loses_none() {
    let mut world = World::new(4, json!({}));
    world.settle();
    world.image("two");
    let (least, most) = world.settle();
    assert_eq!(world.images(), ["n0 two", "n1 two", "n2 two", "n3 two"]);
    assert!(least >= 3 && most <= 4, "{least} {most}");
    let surge =
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
    let mut world = World::new(4, json!({"updateStrategy": surge}));
    world.settle();
    world.image("two");
    let (least, most) = world.settle();
    assert_eq!(world.images(), ["n0 two", "n1 two", "n2 two", "n3 two"]);
    assert!(least >= 4 && most <= 5, "{least} {most}");
}

#[test]
fn under_on_delete_only_deleted_pods_change_and_history_is_bounded() {
    let mut world = World::new(
        2,
        json!({"updateStrategy": {"type": "OnDelete"}, "revisionHistoryLimit": 1}),
    );
    world.settle();
    world.image("two");
    world.settle();
    assert_eq!(world.images(), ["n0 one", "n1 one"]);
    let first = world
        .pods
        .values()
        .find(|pod| node_of(pod) == "n0")
        .unwrap();
    let name = pod_facts::name(first).to_owned();
    world.pods.remove(&name);
    world.settle();
    assert_eq!(world.images(), ["n0 two", "n1 one"]);
    world.pods.clear();
    for image in ["three", "four", "five"] {
        world.image(image);
        world.settle();
        world.pods.clear();
    }
    world.settle();
    assert_eq!(world.revisions.len(), 2);
}

#[test]
fn a_failed_pod_is_tried_again_after_a_while() {
    let mut world = World::new(1, json!({}));
    world.settle();
    let failed = json!({"phase": "Failed", "conditions": [
        {"type": "Ready", "status": "False", "lastTransitionTime": Time(at(world.now))}]});
    for pod in world.pods.values_mut() {
        pod.status = Some(serde_json::from_value(failed.clone()).unwrap());
    }
    let before: Vec<String> = world.pods.keys().cloned().collect();
    world.step();
    assert_eq!(world.pods.keys().cloned().collect::<Vec<_>>(), before);
    world.now += RETRY_SECONDS;
    world.step();
    world.step();
    assert_eq!(world.pods.len(), 1);
    assert!(
        world
            .pods
            .values()
            .all(|pod| PodPhase::of(pod) == PodPhase::Pending)
    );
}

proptest! {
    /// However nodes and the template change, the set ends with one pod of the last template on each node.
    #[test]
    fn every_change_settles(changes in proptest::collection::vec((0_u8..3, 0_usize..6, 0_u8..4), 1..8)) {
        let mut world = World::new(3, json!({}));
        let mut image = "one".to_owned();
        for (what, number, steps) in changes {
            let node = format!("n{number}");
            match what {
                0 => {
                    world.nodes.insert(node, NodeFacts::default());
                }
                1 => {
                    // Garbage collection deletes the pods of a node that is gone.
                    world.pods.retain(|_, pod| node_of(pod) != node);
                    world.nodes.remove(&node);
                }
                _ => {
                    image = format!("image-{number}");
                    world.image(&image.clone());
                }
            }
            for _ in 0..steps {
                world.step();
                world.start_one();
            }
        }
        world.settle();
        let want: Vec<String> = world.nodes.keys().map(|node| format!("{node} {image}")).collect();
        prop_assert_eq!(world.images(), want);
    }
}
