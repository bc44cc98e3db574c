//! Sorts the cluster's pods: the head, and each group's replicas by their number. Says which replicas are missing and
//! which pods must go.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use resources::numbers::later;

use super::names;
use super::plan::{ParsedRayCluster, WorkerGroup};
use crate::ownership::controlled_by;
use crate::pod_facts::{self, PodPhase};

/// Seconds for which an ended pod stays before another takes its place, so that a program that ends at once does not
/// keep the cluster busy. A pod that its node lost or evicted is replaced at once.
const REPLACE_AFTER: i64 = 10;

/// The pods of one group, by replica.
#[derive(Default)]
pub(crate) struct GroupRoster<'a> {
    pub(crate) replicas: BTreeMap<u32, Vec<&'a Pod>>,
}

/// The pods of a cluster.
pub(crate) struct Roster<'a> {
    pub(crate) head: Option<&'a Pod>,
    pub(crate) groups: Vec<GroupRoster<'a>>,
    /// Pods of groups that the spec has no longer.
    pub(crate) surplus: Vec<&'a Pod>,
}

/// What is to be done with the pods of one group.
#[derive(Default)]
pub(crate) struct GroupChange<'a> {
    pub(crate) delete: Vec<&'a Pod>,
    /// The pods to create: replica and host.
    pub(crate) create: Vec<(u32, u32)>,
    /// When to look again.
    pub(crate) again: Option<Timestamp>,
    /// The lowest number that no replica of an autoscaled cluster has had, as far as is known.
    pub(crate) unused: u32,
}

impl<'a> Roster<'a> {
    pub(crate) fn of(cluster: &ParsedRayCluster<'_>, pods: &[&'a Pod]) -> Roster<'a> {
        let mut roster = Roster {
            head: None,
            groups: cluster
                .workers
                .iter()
                .map(|_| GroupRoster::default())
                .collect(),
            surplus: Vec::new(),
        };
        for &pod in pods
            .iter()
            .filter(|pod| controlled_by(&pod.metadata, cluster.meta))
        {
            if pod_facts::name(pod) == names::head_pod(cluster.name()) {
                roster.head = Some(pod);
                continue;
            }
            let group = label(pod, names::GROUP);
            let mut groups = cluster.workers.iter().zip(&mut roster.groups);
            let found = groups.find(|(known, _)| Some(known.group.name.as_str()) == group);
            let number = label(pod, names::REPLICA_INDEX).and_then(|text| text.parse().ok());
            match (found, number) {
                (Some((_, found)), Some(number)) => {
                    found.replicas.entry(number).or_default().push(pod);
                }
                _ => roster.surplus.push(pod),
            }
        }
        roster
    }

    /// All pods of the cluster.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &'a Pod> + '_ {
        let workers = self.groups.iter().flat_map(GroupRoster::pods);
        self.head
            .into_iter()
            .chain(workers)
            .chain(self.surplus.iter().copied())
    }
}

impl<'a> GroupRoster<'a> {
    /// The pods of the group.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &'a Pod> + '_ {
        self.replicas.values().flatten().copied()
    }

    /// Compares the replicas with the group's spec. A replica is whole or goes: if one of its pods has ended, its
    /// others follow.
    ///
    /// In an autoscaled cluster new replicas get numbers from `from` on, which grows: no number is used twice. It grows
    /// only when no replica is missing or one goes, so that a decision that is repeated before the new pods are seen
    /// creates the same ones. Example: `from` 0, replicas 0 to 2 exist and `from` becomes 3; 1 goes, and the next is 3.
    pub(crate) fn change(
        &self,
        cluster: &ParsedRayCluster<'_>,
        group: &WorkerGroup<'_>,
        from: u32,
        now: Timestamp,
    ) -> GroupChange<'a> {
        let mut change = GroupChange::default();
        let mut staying: Vec<(u32, &Vec<&'a Pod>)> = Vec::new();
        for (number, pods) in &self.replicas {
            let unwanted = |pod: &&Pod| group.to_delete.contains(pod_facts::name(pod));
            if pods.iter().any(unwanted) {
                change.delete.extend(pods);
                continue;
            }
            match fate(pods, now) {
                Fate::Stays => staying.push((*number, pods)),
                Fate::Goes => change.delete.extend(pods),
                Fate::GoesAt(at) => {
                    change.again = Some(change.again.map_or(at, |known| known.min(at)));
                    // Its place is taken until then.
                    staying.push((*number, pods));
                }
                Fate::Leaves => {}
            }
        }
        let wanted = usize::try_from(group.replicas).unwrap_or(usize::MAX);
        let mut surplus = staying.len().saturating_sub(wanted);
        // Only Ray knows which of the workers that run is idle; it names that one.
        if cluster.autoscaling && !group.suspended {
            let bound = |pods: &[&Pod]| pods.iter().any(|pod| pod_facts::is_bound(pod));
            let waiting = staying.iter().filter(|(_, pods)| !bound(pods)).count();
            surplus = surplus.min(waiting);
        }
        if surplus > 0 {
            // Those without a node go first, then those with the highest numbers.
            staying.sort_by_key(|(number, pods)| {
                (!pods.iter().all(|pod| pod_facts::is_bound(pod)), *number)
            });
            for (_, pods) in staying.split_off(staying.len() - surplus) {
                change.delete.extend(pods);
            }
        }
        for (number, pods) in &staying {
            if pods.iter().any(|pod| pod_facts::is_leaving(pod)) {
                continue;
            }
            change.create.extend(absent(cluster, group, *number, pods));
        }
        let first = if cluster.autoscaling { from } else { 0 };
        let free = (first..u32::MAX).filter(|number| {
            let to_delete = |host| {
                group
                    .to_delete
                    .contains(names::worker_pod(cluster, group, *number, host).as_str())
            };
            !self.replicas.contains_key(number) && !(0..group.hosts).any(to_delete)
        });
        for number in free.take(wanted.saturating_sub(staying.len())) {
            change
                .create
                .extend((0..group.hosts).map(|host| (number, host)));
        }
        let goes = !change.delete.is_empty() || self.pods().any(pod_facts::is_leaving);
        let highest = self.replicas.keys().next_back();
        let next = highest.map_or(0, |number| number.saturating_add(1));
        change.unused = match goes || change.create.is_empty() {
            true => from.max(next),
            false => from,
        };
        change.delete.retain(|pod| !pod_facts::is_leaving(pod));
        change
    }
}

/// The hosts of a replica that have no pod.
fn absent(
    cluster: &ParsedRayCluster<'_>,
    group: &WorkerGroup<'_>,
    replica: u32,
    pods: &[&Pod],
) -> Vec<(u32, u32)> {
    let missing = (0..group.hosts).filter(|host| {
        let name = names::worker_pod(cluster, group, replica, *host);
        pods.iter().all(|pod| pod_facts::name(pod) != name)
    });
    missing.map(|host| (replica, host)).collect()
}

/// What becomes of a replica, or of the head.
pub(crate) enum Fate {
    Stays,
    /// All of its pods are being deleted; others take its place once they are gone.
    Leaves,
    Goes,
    GoesAt(Timestamp),
}

/// Judges pods that run together.
pub(crate) fn fate(pods: &[&Pod], now: Timestamp) -> Fate {
    if pods.iter().all(|pod| pod_facts::is_leaving(pod)) {
        return Fate::Leaves;
    }
    if pods.iter().any(|pod| pod_facts::is_leaving(pod)) {
        return Fate::Goes;
    }
    let ended = pods.iter().filter(|pod| PodPhase::of(pod).is_finished());
    let due = ended.map(|pod| {
        let at_once =
            pod_facts::is_lost(pod) || pod_facts::is_unfit(pod) || pod_facts::is_evicted(pod);
        match pod_facts::finished_at(pod) {
            Some(at) if !at_once => later(at, REPLACE_AFTER),
            _ => now,
        }
    });
    match due.min() {
        None => Fate::Stays,
        Some(at) if at <= now => Fate::Goes,
        Some(at) => Fate::GoesAt(at),
    }
}

fn label<'p>(pod: &'p Pod, key: &str) -> Option<&'p str> {
    pod.metadata.labels.as_ref()?.get(key).map(String::as_str)
}
