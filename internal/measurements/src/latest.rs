//! What nodes and pods used at their last measurement, for the questions that want no history: `metrics.k8s.io`, which
//! `kubectl top` and autoscalers read. Bounded by what nodes may say: each message replaces the node's earlier one.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// How long a measurement is the latest one: a node that is silent for longer has none.
const FRESH: SignedDuration = SignedDuration::from_secs(60);

/// What a node, or a container, used. What was not measured is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// CPU time per second, in thousandths of a core.
    pub cpu_millicores: Option<u64>,
    /// Memory, in bytes.
    pub memory_bytes: Option<u64>,
    /// GPUs by their resource, in thousandths of a GPU: the sum of the utilisation of those that the pod holds alone.
    pub gpus: BTreeMap<String, u64>,
}

/// What the containers of a pod used, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsed {
    /// The pod's uid.
    pub uid: String,
    /// Its running containers.
    pub containers: BTreeMap<String, Used>,
}

/// A pod by namespace and name.
pub type PodName = (String, String);

#[derive(Clone, Debug)]
struct NodeMessage {
    at: Timestamp,
    used: Used,
    pods: BTreeMap<PodName, PodUsed>,
}

/// The latest measurements of all nodes.
#[derive(Clone, Debug, Default)]
pub struct LatestUsage {
    nodes: BTreeMap<String, NodeMessage>,
    /// The node of each pod that was measured.
    places: BTreeMap<PodName, String>,
}

impl LatestUsage {
    /// Takes in what a node measured, in place of what it measured before.
    pub fn observe(
        &mut self,
        node: &str,
        at: Timestamp,
        used: Used,
        pods: BTreeMap<PodName, PodUsed>,
    ) {
        self.remove(node);
        for pod in pods.keys() {
            self.places.insert(pod.clone(), node.to_owned());
        }
        let message = NodeMessage { at, used, pods };
        self.nodes.insert(node.to_owned(), message);
    }

    /// Forgets the nodes that have been silent for too long.
    pub fn forget(&mut self, now: Timestamp) {
        let silent = self
            .nodes
            .iter()
            .filter(|(_, last)| !is_fresh(last.at, now));
        let silent: Vec<String> = silent.map(|(node, _)| node.clone()).collect();
        for node in silent {
            self.remove(&node);
        }
    }

    /// What a node used, and when that was measured.
    pub fn node(&self, node: &str, now: Timestamp) -> Option<(Timestamp, &Used)> {
        let last = self.nodes.get(node).filter(|last| is_fresh(last.at, now))?;
        Some((last.at, &last.used))
    }

    /// What a pod used, and when that was measured.
    pub fn pod(&self, pod: &PodName, now: Timestamp) -> Option<(Timestamp, &PodUsed)> {
        let node = self.places.get(pod)?;
        let last = self.nodes.get(node).filter(|last| is_fresh(last.at, now))?;
        Some((last.at, last.pods.get(pod)?))
    }

    fn remove(&mut self, node: &str) {
        let Some(before) = self.nodes.remove(node) else {
            return;
        };
        for pod in before.pods.keys() {
            // A pod of the same name may have come to another node meanwhile.
            if self.places.get(pod).is_some_and(|place| place == node) {
                self.places.remove(pod);
            }
        }
    }
}

fn is_fresh(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at) < FRESH
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn name(pod: &str) -> PodName {
        ("team".to_owned(), pod.to_owned())
    }

    fn pods(names: &[&str], uid: &str) -> BTreeMap<PodName, PodUsed> {
        let used = PodUsed {
            uid: uid.to_owned(),
            ..PodUsed::default()
        };
        names.iter().map(|pod| (name(pod), used.clone())).collect()
    }

    #[test]
    fn a_message_replaces_the_nodes_earlier_one_and_ends_with_its_time() {
        let mut latest = LatestUsage::default();
        let used = |cpu| Used {
            cpu_millicores: Some(cpu),
            ..Used::default()
        };
        latest.observe("n1", at(0), used(1), pods(&["a", "b"], "1"));
        latest.observe("n1", at(15), used(2), pods(&["b"], "1"));
        assert_eq!(latest.node("n1", at(16)), Some((at(15), &used(2))));
        assert_eq!(latest.pod(&name("a"), at(16)), None);
        assert!(latest.pod(&name("b"), at(74)).is_some());
        assert_eq!(latest.pod(&name("b"), at(75)), None);
        assert_eq!(latest.node("n1", at(75)), None);
        latest.forget(at(75));
        assert!(latest.nodes.is_empty() && latest.places.is_empty());
    }

    #[test]
    fn a_pod_that_came_to_another_node_stays_when_the_first_node_forgets_it() {
        let mut latest = LatestUsage::default();
        latest.observe("n1", at(0), Used::default(), pods(&["a"], "old"));
        latest.observe("n2", at(5), Used::default(), pods(&["a"], "new"));
        latest.observe("n1", at(10), Used::default(), pods(&[], ""));
        let (when, found) = latest.pod(&name("a"), at(11)).unwrap();
        assert_eq!((when, found.uid.as_str()), (at(5), "new"));
    }
}
