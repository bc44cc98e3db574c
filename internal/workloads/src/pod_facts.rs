//! Reads a pod's status: its phase, its end, its restarts.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
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

/// Whether the pod has succeeded or failed.
pub(crate) fn is_over(pod: &Pod) -> bool {
    PodPhase::of(pod).is_finished()
}

/// Whether the pod has a deletion request; it may still be terminating.
pub(crate) fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether the pod was declared failed because its node was lost.
pub(crate) fn is_lost(pod: &Pod) -> bool {
    reason(pod) == Some(names::NODE_LOST)
}

/// Whether the pod's node evicted it.
pub(crate) fn is_evicted(pod: &Pod) -> bool {
    PodPhase::of(pod) == PodPhase::Failed && reason(pod) == Some(names::EVICTED)
}

/// Whether the pod's node could not start it because of a fault of the node: that says nothing
/// about the program.
pub(crate) fn is_unfit(pod: &Pod) -> bool {
    PodPhase::of(pod) == PodPhase::Failed && reason(pod) == Some(names::NODE_UNFIT)
}

/// The pod's own reason, as its node or the platform wrote it.
pub(crate) fn reason(pod: &Pod) -> Option<&str> {
    pod.status.as_ref().and_then(|s| s.reason.as_deref())
}

/// The pod's own message beside its reason; empty if it has none.
pub(crate) fn message(pod: &Pod) -> &str {
    let message = pod.status.as_ref().and_then(|s| s.message.as_deref());
    message.unwrap_or_default()
}

/// The pod's node; empty if it has none.
pub(crate) fn node(pod: &Pod) -> &str {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.unwrap_or_default()
}

/// Whether the pod has a node.
pub(crate) fn is_bound(pod: &Pod) -> bool {
    !node(pod).is_empty()
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

/// Since when the pod has been ready; `None` if it is not ready.
pub(crate) fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    let mut ready = conditions
        .iter()
        .filter(|known| known.type_ == "Ready" && known.status == "True");
    let time = ready.next()?.last_transition_time.as_ref();
    Some(time.map_or(Timestamp::MIN, |time| time.0))
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

/// How the container ended that explains the pod's failure, by the rule of [`failure_code`]. For a
/// pod that has not finished, the end before the last restart counts.
pub(crate) fn failed_end<'p>(pod: &'p Pod, main: &str) -> Option<&'p ContainerStateTerminated> {
    let finished = PodPhase::of(pod).is_finished();
    let ends = init_containers(pod)
        .chain(containers(pod))
        .filter_map(|container| {
            let now = container.state.as_ref();
            let before = container.last_state.as_ref().filter(|_| !finished);
            let ended = now.and_then(|state| state.terminated.as_ref());
            let end = ended.or_else(|| before?.terminated.as_ref())?;
            (end.exit_code != 0).then_some((container.name.as_str(), end))
        });
    let failed: Vec<(&str, &ContainerStateTerminated)> = ends.collect();
    let of_main = failed.iter().find(|(name, _)| *name == main);
    of_main.or_else(|| failed.first()).map(|(_, end)| *end)
}

/// A message as a part of a sentence: its first line, of at most `most` characters, without the full stop at its end.
pub(crate) fn clause(message: &str, most: usize) -> String {
    let line = message.trim().lines().next().unwrap_or_default();
    let short: String = line.chars().take(most).collect();
    short.trim_end_matches([' ', '.']).to_owned()
}

/// The reasons and messages of the pod's containers that wait.
pub(crate) fn waiting_containers(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    init_containers(pod)
        .chain(containers(pod))
        .filter_map(|container| {
            let waiting = container.state.as_ref()?.waiting.as_ref()?;
            let message = waiting.message.as_deref().unwrap_or_default();
            Some((waiting.reason.as_deref()?, message))
        })
}
