//! The count of restarts and failures. It is stored in the job's annotation, so that it survives a
//! restart of the controller. Each failure is counted once, by the uid of its pod, and the counts
//! of deleted pods are kept.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use resources::kinds::RestartPolicy;
use resources::names;
use resources::training::ReplicaType;
use serde::{Deserialize, Serialize};

use super::plan::ParsedTrainingJob;
use super::roster::Roster;
use crate::failure;
use crate::pod_facts::{self, PodPhase};

/// The counts of one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReplicaUse {
    /// Restarts in place, of pods that are gone.
    #[serde(skip_serializing_if = "is_zero")]
    restarts: u32,
    /// Failed pods that are gone.
    #[serde(skip_serializing_if = "is_zero")]
    failures: u32,
    /// The present pod's uid, once it has a restart or failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pod_restarts: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pod_failed: bool,
    /// Those of the failures that do not count against the job.
    #[serde(skip_serializing_if = "is_zero")]
    excused: u32,
    /// The present pod's failure does not count: the platform ended it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pod_excused: bool,
    /// The last failure was caused by the loss of the pod's node.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lost: bool,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl ReplicaUse {
    /// The pod is gone: its counts are added to the replica's.
    fn fold(&mut self) {
        self.restarts = self.restarts.saturating_add(self.pod_restarts);
        self.failures = self.failures.saturating_add(u32::from(self.pod_failed));
        self.excused = self.excused.saturating_add(u32::from(self.pod_excused));
        self.pod = None;
        self.pod_restarts = 0;
        self.pod_failed = false;
        self.pod_excused = false;
    }

    /// The failures that count against the job's limit.
    fn charged(&self) -> u32 {
        let all = self.failures.saturating_add(u32::from(self.pod_failed));
        let excused = self.excused.saturating_add(u32::from(self.pod_excused));
        all.saturating_sub(excused)
    }

    fn observe(&mut self, pod: &Pod) {
        let uid = pod_facts::uid(pod);
        if self.pod.as_deref().is_some_and(|known| known != uid) {
            self.fold();
        }
        let restarts = pod_facts::restart_count(pod).max(self.pod_restarts);
        // A pod with a deletion request fails because of it; that does not count against the job.
        let failed = self.pod_failed
            || (PodPhase::of(pod) == PodPhase::Failed && !pod_facts::is_leaving(pod));
        if failed && !self.pod_failed {
            self.lost = pod_facts::is_lost(pod);
            self.pod_excused = failure::is_of_platform(pod);
        }
        if restarts > 0 || failed {
            self.pod = Some(uid.to_owned());
            self.pod_restarts = restarts;
            self.pod_failed = failed;
        }
    }
}

/// The job's counts, by replica type and index.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct ReplicaLedger(BTreeMap<String, BTreeMap<u32, ReplicaUse>>);

/// The counts that the backoff limit applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Containers restarted in place.
    pub(crate) restarts: u32,
    /// Pods that failed.
    pub(crate) failures: u32,
}

impl ReplicaLedger {
    /// Reads the job's annotation; an unreadable one counts as absent.
    pub(crate) fn read(plan: &ParsedTrainingJob<'_>) -> ReplicaLedger {
        let annotations = plan.meta.annotations.as_ref();
        let text = annotations.and_then(|annotations| annotations.get(names::RESTARTS));
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    /// Adds the new restarts and failures of the observed pods.
    pub(crate) fn observe(&mut self, roster: &Roster<'_>) {
        for slot in &roster.slots {
            let Some(pod) = slot.pod else {
                if let Some(used) = self.get_mut(slot.role, slot.index) {
                    used.fold();
                }
                continue;
            };
            let noteworthy = pod_facts::restart_count(pod) > 0
                || (PodPhase::of(pod) == PodPhase::Failed && !pod_facts::is_leaving(pod));
            if let Some(used) = self.get_mut(slot.role, slot.index) {
                used.observe(pod);
            } else if noteworthy {
                let role = self.0.entry(slot.role.lower().to_owned()).or_default();
                role.entry(slot.index).or_default().observe(pod);
            }
        }
    }

    /// The annotation's text.
    pub(crate) fn write(&self) -> String {
        serde_json::to_string(self).expect("maps with number keys and plain counts serialize")
    }

    /// The total of the replicas whose policy allows restarts.
    pub(crate) fn spent(&self, plan: &ParsedTrainingJob<'_>) -> Spent {
        let mut spent = Spent::default();
        for replicas in &plan.replicas {
            if replicas.restart == RestartPolicy::Never {
                continue;
            }
            for used in self
                .0
                .get(replicas.role.lower())
                .into_iter()
                .flat_map(BTreeMap::values)
            {
                spent.restarts = spent
                    .restarts
                    .saturating_add(used.restarts)
                    .saturating_add(used.pod_restarts);
                spent.failures = spent.failures.saturating_add(used.charged());
            }
        }
        spent
    }

    /// How many of this replica's pods have failed, the present one included.
    pub(crate) fn failures_of(&self, role: ReplicaType, index: u32) -> u32 {
        let used = self.0.get(role.lower()).and_then(|role| role.get(&index));
        used.map_or(0, |used| {
            used.failures.saturating_add(u32::from(used.pod_failed))
        })
    }

    /// How often a program of this replica failed, in place or with its pod.
    pub(crate) fn attempts_of(&self, role: ReplicaType, index: u32) -> u32 {
        let used = self.0.get(role.lower()).and_then(|role| role.get(&index));
        used.map_or(0, |used| {
            let restarts = used.restarts.saturating_add(used.pod_restarts);
            restarts.saturating_add(used.charged())
        })
    }

    /// Whether the replica's last failed pod was lost with its node.
    pub(crate) fn lost(&self, role: ReplicaType, index: u32) -> bool {
        let used = self.0.get(role.lower()).and_then(|role| role.get(&index));
        used.is_some_and(|used| used.lost)
    }

    fn get_mut(&mut self, role: ReplicaType, index: u32) -> Option<&mut ReplicaUse> {
        self.0.get_mut(role.lower())?.get_mut(&index)
    }
}

impl Spent {
    /// Whether the job exceeds its limit: by as many restarts in place as the limit (any, if it is
    /// zero), or by one failure more than may be retried.
    pub(crate) fn exceeds(self, limit: u32) -> bool {
        self.restarts >= limit.max(1) || self.restarts.saturating_add(self.failures) > limit
    }
}
