//! Where the case's pods stand after a plan.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::array;
use crate::cluster::{Cluster, Scene, Stand, names};
use crate::engine::{Decisions, Placed};

/// Where a pod stands, in the cases' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Status {
    Running,
    Nominated,
    Releasing,
    Pending,
}

/// What became of the case's pods.
pub(super) struct Seen {
    pub(super) pods: BTreeMap<String, (Status, Option<Placed>)>,
}

impl Seen {
    pub(super) fn of(scene: &Scene, cluster: &Cluster, decisions: &Decisions) -> Seen {
        let nominated = names(&decisions.nominated);
        let moved: BTreeSet<&String> = decisions
            .evictions
            .iter()
            .filter(|evicted| evicted.why == "Consolidated")
            .map(|evicted| &evicted.pod)
            .collect();
        let held = |name: &String| {
            let mut held = decisions.nominated.iter();
            held.find(|placed| placed.pod == *name).cloned()
        };
        let pods = cluster.members.iter().map(|(name, member)| {
            let status = match &member.stand {
                Stand::Running(placed) => (Status::Running, Some(placed.clone())),
                _ if nominated.contains(name) => (Status::Nominated, held(name)),
                Stand::Leaving(_) if moved.contains(name) => (Status::Nominated, None),
                Stand::Leaving(_) => (Status::Releasing, None),
                Stand::Pending => (Status::Pending, None),
            };
            (name.clone(), status)
        });
        debug_assert_eq!(scene.members.len(), cluster.members.len());
        Seen {
            pods: pods.collect(),
        }
    }

    pub(super) fn of_workload(&self, workload: &Value) -> Vec<(&str, Status, Option<&Placed>)> {
        let pods = array(&workload["pods"]).filter_map(|pod| {
            let (name, (status, placed)) = self.pods.get_key_value(pod["name"].as_str()?)?;
            Some((name.as_str(), *status, placed.as_ref()))
        });
        pods.collect()
    }
}
