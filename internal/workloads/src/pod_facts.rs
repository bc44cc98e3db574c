//! Reads a pod's status: its phase, its end, its restarts.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use resources::names;

/// A pod's phase, as far as workloads distinguish phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodPhase {
    /// Not started, or in an unknown phase.
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl PodPhase {
    pub(crate) fn of(pod: &Pod) -> PodPhase {
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        match phase {
            Some("Running") => PodPhase::Running,
            Some("Succeeded") => PodPhase::Succeeded,
            Some("Failed") => PodPhase::Failed,
            _ => PodPhase::Pending,
        }
    }

    pub(crate) fn is_finished(self) -> bool {
        matches!(self, PodPhase::Succeeded | PodPhase::Failed)
    }
}

pub(crate) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// Whether the pod has a deletion request; it may still be terminating.
pub(crate) fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod was declared failed because its node was lost.
pub(crate) fn is_lost(pod: &Pod) -> bool {
    reason(pod) == Some(names::NODE_LOST)
}

/// Whether the pod's node could not start it because of a fault of the node: that says nothing
/// about the program.
pub(crate) fn is_unfit(pod: &Pod) -> bool {
    PodPhase::of(pod) == PodPhase::Failed && reason(pod) == Some(names::NODE_UNFIT)
}

fn reason(pod: &Pod) -> Option<&str> {
    pod.status.as_ref().and_then(|s| s.reason.as_deref())
}

/// Whether the pod has a node.
pub(crate) fn is_bound(pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.is_some_and(|node| !node.is_empty())
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
}

fn init_containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status
        .iter()
        .flat_map(|status| status.init_container_statuses.iter().flatten())
}

/// Exit codes of terminated containers, by container.
pub(crate) fn exit_codes(pod: &Pod) -> impl Iterator<Item = (&str, i32)> {
    init_containers(pod)
        .chain(containers(pod))
        .filter_map(|container| {
            let terminated = container.state.as_ref()?.terminated.as_ref()?;
            Some((container.name.as_str(), terminated.exit_code))
        })
}

/// The exit code that explains the pod's failure: the main container's, else the first other
/// container's that is not zero. `None` if no container reported an end, for example when the node
/// was lost.
pub(crate) fn failure_code(pod: &Pod, main: &str) -> Option<i32> {
    let failed: Vec<(&str, i32)> = exit_codes(pod).filter(|(_, code)| *code != 0).collect();
    let of_main = failed.iter().find(|(name, _)| *name == main);
    of_main.or_else(|| failed.first()).map(|(_, code)| *code)
}

/// How many times the pod's containers were restarted in place.
pub(crate) fn restart_count(pod: &Pod) -> u32 {
    init_containers(pod)
        .chain(containers(pod))
        .map(|container| u32::try_from(container.restart_count).unwrap_or_default())
        .fold(0, u32::saturating_add)
}

/// When the pod ended, as far as its status shows it.
pub(crate) fn finished_at(pod: &Pod) -> Option<Timestamp> {
    let ends = containers(pod)
        .chain(init_containers(pod))
        .filter_map(|container| {
            let terminated = container.state.as_ref()?.terminated.as_ref()?;
            terminated.finished_at.as_ref().map(|time| time.0)
        });
    let changed = || {
        let conditions = pod
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        conditions
            .filter_map(|condition| condition.last_transition_time.as_ref())
            .map(|time| time.0)
            .max()
    };
    let created = || pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    ends.max().or_else(changed).or_else(created)
}

/// When the pod's node accepted it.
pub(crate) fn started_at(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    status.start_time.as_ref().map(|time| time.0)
}

/// The pod's failure as a message.
pub(crate) fn failure_story(pod: &Pod, main: &str) -> String {
    let reason = pod
        .status
        .as_ref()
        .and_then(|status| status.reason.as_deref());
    match (reason, failure_code(pod, main)) {
        (Some(reason), None) => format!("{} failed: {reason}", name(pod)),
        (Some(reason), Some(code)) => {
            format!("{} exited with code {code} ({reason})", name(pod))
        }
        (None, Some(code)) => format!("{} exited with code {code}", name(pod)),
        (None, None) => format!("{} failed", name(pod)),
    }
}
