//! The groups of a LeaderWorkerSet as their pods show them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use resources::leader_worker_set::REVISION;

use super::plan::{ParsedSet, RestartPolicy, size_of};
use super::revisions::Revisions;
use crate::ownership::controlled_by;
use crate::pod_facts::{self, PodPhase};

/// The pods of one group that exist, by their number.
pub(crate) struct Group<'a> {
    pub(crate) index: u32,
    /// The revision of its templates, as its first pod has it.
    pub(crate) revision: Option<String>,
    /// The pods that it should have by that revision.
    pub(crate) size: u32,
    pods: BTreeMap<u32, &'a Pod>,
}

/// All groups, by their number.
pub(crate) struct Groups<'a> {
    all: BTreeMap<u32, Group<'a>>,
    /// Pods that no group has room for.
    strays: Vec<&'a Pod>,
}

fn revision_of(pod: &Pod) -> Option<&String> {
    pod.metadata.labels.as_ref()?.get(REVISION)
}

impl<'a> Groups<'a> {
    pub(crate) fn of(
        set: &ParsedSet<'_>,
        pods: &[&'a Pod],
        revisions: &Revisions<'_>,
    ) -> Groups<'a> {
        let mut all: BTreeMap<u32, Group<'a>> = BTreeMap::new();
        let own = pods
            .iter()
            .copied()
            .filter(|pod| controlled_by(&pod.metadata, set.meta));
        let mut strays = Vec::new();
        for pod in own {
            let Some((index, worker)) = set.numbers(pod_facts::name(pod)) else {
                strays.push(pod);
                continue;
            };
            let group = all.entry(index).or_insert_with(|| Group {
                index,
                revision: None,
                size: 1,
                pods: BTreeMap::new(),
            });
            group.pods.insert(worker, pod);
        }
        for group in all.values_mut() {
            group.revision = group
                .pods
                .values()
                .find_map(|pod| revision_of(pod))
                .cloned();
            let revision = group.revision.as_deref();
            let template = revision.and_then(|revision| revisions.template(revision));
            let template = template.unwrap_or(&set.spec.leader_worker_template);
            group.size = size_of(template);
            let surplus = group.pods.split_off(&group.size);
            strays.extend(surplus.into_values());
        }
        all.retain(|_, group| !group.pods.is_empty());
        Groups { all, strays }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Group<'a>> {
        self.all.values()
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Group<'a>> {
        self.all.get(&index)
    }

    /// Pods that should not be there: of no group, or beyond its size.
    pub(crate) fn strays(&self) -> &[&'a Pod] {
        &self.strays
    }

    /// The pods that wait for a node.
    pub(crate) fn waiting(&self) -> u32 {
        let pods = self.all.values().flat_map(Group::pods);
        let waiting = pods.filter(|pod| !pod_facts::is_bound(pod)).count();
        u32::try_from(waiting).unwrap_or(u32::MAX)
    }
}

impl<'a> Group<'a> {
    pub(crate) fn pods(&self) -> impl Iterator<Item = &'a Pod> + '_ {
        self.pods.values().copied()
    }

    pub(crate) fn pod(&self, worker: u32) -> Option<&'a Pod> {
        self.pods.get(&worker).copied()
    }

    /// The number of a pod in the group.
    pub(crate) fn rank_of(&self, pod: &Pod) -> Option<u32> {
        let mut all = self.pods.iter();
        let found = all.find(|(_, one)| pod_facts::uid(one) == pod_facts::uid(pod));
        found.map(|(worker, _)| *worker)
    }

    fn is_whole(&self) -> bool {
        u32::try_from(self.pods.len()).unwrap_or(u32::MAX) == self.size
    }

    /// True if all its pods are there and ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_whole()
            && self
                .pods()
                .all(|pod| pod_facts::is_ready(pod) && !pod_facts::is_leaving(pod))
    }

    /// True if the group has these templates.
    pub(crate) fn has(&self, revision: &str) -> bool {
        self.revision.as_deref() == Some(revision)
    }

    /// True if pods of it are on their way out: nothing is created meanwhile.
    pub(crate) fn is_ending(&self) -> bool {
        self.pods()
            .any(|pod| pod_facts::is_leaving(pod) || pod_facts::is_over(pod))
    }

    /// When its youngest pod was created.
    pub(crate) fn created(&self) -> Option<Timestamp> {
        let times = self.pods().filter_map(|pod| {
            let time = pod.metadata.creation_timestamp.as_ref()?;
            Some(time.0)
        });
        times.max()
    }

    /// The pod for which the whole group is created again.
    pub(crate) fn broken(&self, set: &ParsedSet<'_>) -> Option<&'a Pod> {
        let policy = set.restart_policy();
        if policy == RestartPolicy::Pod {
            return None;
        }
        let started = || {
            self.is_whole()
                && self
                    .pods()
                    .all(|pod| PodPhase::of(pod) != PodPhase::Pending || pod_facts::is_leaving(pod))
        };
        let ended = |pod: &&Pod| pod_facts::is_leaving(pod) || pod_facts::is_over(pod);
        let restarted = |pod: &&Pod| pod_facts::restart_count(pod) > 0;
        let broken = self
            .pods()
            .find(|pod| pod_facts::is_over(pod) || restarted(pod))
            .or_else(|| self.pods().find(ended))?;
        (policy == RestartPolicy::Group || started()).then_some(broken)
    }
}
