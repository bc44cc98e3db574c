//! Compares the desired replicas with the existing pods: the pod of each replica, vacant replicas,
//! and surplus pods.

use k8s_openapi::api::core::v1::Pod;
use resources::kinds::RestartPolicy;
use resources::training::{ReplicaType, TrainingKind};

use super::plan::{ParsedTrainingJob, Replicas};
use crate::failure;
use crate::ownership::controlled_by;
use crate::pod_facts::{self, PodPhase};

/// One desired replica and its pod.
pub(crate) struct Slot<'a> {
    pub(crate) role: ReplicaType,
    pub(crate) index: u32,
    pub(crate) pod: Option<&'a Pod>,
}

/// The state of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaState {
    /// No pod.
    Vacant,
    /// Its pod is terminating.
    Leaving,
    /// Its pod waits or starts.
    Waiting,
    Running,
    Succeeded,
    /// Its pod failed in a way for which the policy creates a new pod.
    FailedRetryable,
    /// Its pod failed in a way for which the policy fails the job.
    FailedForGood,
}

/// All desired replicas with their pods, and the job's surplus pods.
pub(crate) struct Roster<'a> {
    /// By rank.
    pub(crate) slots: Vec<Slot<'a>>,
    /// Pods beyond the desired replicas, the highest index first.
    pub(crate) surplus: Vec<&'a Pod>,
}

impl<'a> Roster<'a> {
    pub(crate) fn of(plan: &ParsedTrainingJob<'_>, pods: &[&'a Pod]) -> Roster<'a> {
        let mut members: Vec<(ReplicaType, u32, &'a Pod)> = pods
            .iter()
            .copied()
            .filter(|pod| controlled_by(&pod.metadata, plan.meta))
            .filter_map(|pod| {
                let (role, index) = replica_of(plan.kind, plan.name(), pod_facts::name(pod))?;
                Some((role, index, pod))
            })
            .collect();
        members.sort_by_key(|(role, index, _)| (*role, *index));
        let mut slots = Vec::new();
        for replicas in &plan.replicas {
            let first = members.partition_point(|(role, _, _)| *role < replicas.role);
            for index in 0..replicas.count {
                let found = members[first..]
                    .binary_search_by_key(&(replicas.role, index), |(role, index, _)| {
                        (*role, *index)
                    });
                slots.push(Slot {
                    role: replicas.role,
                    index,
                    pod: found.ok().map(|at| members[first + at].2),
                });
            }
        }
        let wanted = |role: ReplicaType, index: u32| {
            plan.replicas_of(role)
                .is_some_and(|replicas| index < replicas.count)
        };
        let surplus = members
            .iter()
            .rev()
            .filter(|(role, index, _)| !wanted(*role, *index))
            .map(|(_, _, pod)| *pod)
            .collect();
        Roster { slots, surplus }
    }

    /// Every pod of the job.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &'a Pod> {
        self.slots
            .iter()
            .filter_map(|slot| slot.pod)
            .chain(self.surplus.iter().copied())
    }

    pub(crate) fn of_role(&self, role: ReplicaType) -> impl Iterator<Item = &Slot<'a>> {
        self.slots.iter().filter(move |slot| slot.role == role)
    }
}

impl Slot<'_> {
    /// What has become of the slot's pod.
    pub(crate) fn state(&self, replicas: &Replicas<'_>) -> ReplicaState {
        let Some(pod) = self.pod else {
            return ReplicaState::Vacant;
        };
        match PodPhase::of(pod) {
            // A success counts even if the pod is being deleted.
            PodPhase::Succeeded => ReplicaState::Succeeded,
            _ if pod_facts::is_leaving(pod) => ReplicaState::Leaving,
            PodPhase::Pending => ReplicaState::Waiting,
            PodPhase::Running => ReplicaState::Running,
            PodPhase::Failed if for_good(pod, replicas) => ReplicaState::FailedForGood,
            PodPhase::Failed => ReplicaState::FailedRetryable,
        }
    }
}

/// Whether the restart policy makes a failed pod's failure permanent. Codes from 128 on mean
/// signals, and like a missing code they are attributed to the platform; 1 to 127 are the program's
/// own.
fn for_good(pod: &Pod, replicas: &Replicas<'_>) -> bool {
    // What the platform ended says nothing about the program: it is replaced under every policy.
    if failure::is_of_platform(pod) {
        return false;
    }
    match replicas.restart {
        RestartPolicy::Never => true,
        RestartPolicy::Always | RestartPolicy::OnFailure => false,
        RestartPolicy::ExitCode => {
            let code = pod_facts::failure_code(pod, replicas.main_container_name());
            code.is_some_and(|code| (1..128).contains(&code))
        }
    }
}

/// The replica whose pod has this name.
fn replica_of(kind: &TrainingKind, job: &str, pod: &str) -> Option<(ReplicaType, u32)> {
    let mut roles = kind.roles.iter().copied();
    roles.find_map(|role| Some((role, role.index_in(job, pod)?)))
}
