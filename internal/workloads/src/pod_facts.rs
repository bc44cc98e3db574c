//! Reads a pod's status: its phase, its end, its restarts.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use resources::names;

/// The maximum length of a node's message within a job's message, in characters.
const STORY_MESSAGE_MAX: usize = 300;

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

/// Whether the pod's node evicted it.
pub(crate) fn is_evicted(pod: &Pod) -> bool {
    PodPhase::of(pod) == PodPhase::Failed && reason(pod) == Some(names::EVICTED)
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
fn failed_end<'p>(pod: &'p Pod, main: &str) -> Option<&'p ContainerStateTerminated> {
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

/// A message as a part of a sentence: one line of bounded length, without the full stop at its end.
fn clause(message: &str) -> String {
    let line = message.trim().lines().next().unwrap_or_default();
    let short: String = line.chars().take(STORY_MESSAGE_MAX).collect();
    short.trim_end_matches([' ', '.']).to_owned()
}

/// The pod's failure as a message.
pub(crate) fn failure_story(pod: &Pod, main: &str) -> String {
    let name = name(pod);
    let reason = reason(pod);
    let Some(end) = failed_end(pod, main) else {
        let message = pod.status.as_ref().and_then(|s| s.message.as_deref());
        let message = clause(message.unwrap_or_default());
        return match reason {
            Some(reason) if message.is_empty() => format!("{name} failed: {reason}"),
            Some(reason) => format!("{name} failed: {reason}: {message}"),
            None => format!("{name} failed"),
        };
    };
    let of_end = end.reason.as_deref().unwrap_or_default();
    let message = clause(end.message.as_deref().unwrap_or_default());
    if of_end == "StartError" && !message.is_empty() {
        // The exit code of a container that did not start stands for no program's end.
        return format!("{name} did not start: {message}");
    }
    let code = end.exit_code;
    let story = match reason.or(Some(of_end).filter(|known| !["", "Error"].contains(known))) {
        Some(reason) => format!("{name} exited with code {code} ({reason})"),
        None => format!("{name} exited with code {code}"),
    };
    match last_line(end.message.as_deref().unwrap_or_default()) {
        Some(line) => format!("{story}: {line}"),
        None => story,
    }
}

/// The last line of a termination message, of bounded length: the error itself in a Python traceback, which begins with
/// the calls that led to it.
fn last_line(message: &str) -> Option<String> {
    let line = message
        .lines()
        .map(str::trim)
        .rfind(|line| !line.is_empty())?;
    Some(line.chars().take(STORY_MESSAGE_MAX).collect())
}

/// The failure of the pod of a gang that failed first, as a message: the others often fail because of it. Of pods that
/// ended in the same second, one that its program ended (codes 1 to 127) comes before one that a signal ended. Without
/// a failed pod it is the latest failure.
pub(crate) fn first_failure_story<'p>(
    pods: impl Iterator<Item = &'p Pod> + Clone,
    main: &str,
) -> Option<String> {
    let failed = |pod: &&Pod| !is_leaving(pod) && PodPhase::of(pod) == PodPhase::Failed;
    let own_code = |pod: &Pod| failure_code(pod, main).is_some_and(|code| code < 128);
    let first = pods
        .clone()
        .filter(failed)
        .min_by_key(|pod| (finished_at(pod), !own_code(pod)));
    match first {
        Some(pod) => Some(failure_story(pod, main)),
        None => last_failure_story(pods, main),
    }
}

/// The latest failure among these pods as a message: of a pod that failed, else of one whose
/// container was restarted. `None` if no pod shows one, for example because it was deleted.
pub(crate) fn last_failure_story<'p>(
    pods: impl Iterator<Item = &'p Pod>,
    main: &str,
) -> Option<String> {
    fn failed(pod: &Pod) -> bool {
        PodPhase::of(pod) == PodPhase::Failed
    }
    let shown = pods.filter(|pod| !is_leaving(pod) && (failed(pod) || restart_count(pod) > 0));
    let last = shown.max_by_key(|pod| (failed(pod), finished_at(pod), restart_count(pod)))?;
    (failed(last) || failed_end(last, main).is_some()).then(|| failure_story(last, main))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, status: Value) -> Pod {
        let pod = json!({"metadata": {"name": name}, "status": status});
        serde_json::from_value(pod).unwrap()
    }

    fn container(state: &str, terminated: Value, restarts: u32) -> Value {
        json!({"name": "main", "image": "", "imageID": "", "ready": false,
            "restartCount": restarts, state: {"terminated": terminated}})
    }

    #[test]
    fn a_failure_is_told_by_its_cause() {
        let table = [
            (
                json!({"exitCode": 3, "reason": "Error"}),
                "p exited with code 3",
            ),
            (
                json!({"exitCode": 137, "reason": "OOMKilled"}),
                "p exited with code 137 (OOMKilled)",
            ),
            (
                json!({"exitCode": 128, "reason": "StartError",
                    "message": "exec: \"pyhton3\": not found on this node.\nmore"}),
                "p did not start: exec: \"pyhton3\": not found on this node",
            ),
            (
                json!({"exitCode": 1, "reason": "Error",
                    "message": "Traceback (most recent call last):\n  File \"t.py\", line 1\nValueError: no data\n\n"}),
                "p exited with code 1: ValueError: no data",
            ),
            (
                json!({"exitCode": 128, "reason": "StartError"}),
                "p exited with code 128 (StartError)",
            ),
        ];
        for (terminated, story) in table {
            let status = json!({"phase": "Failed",
                "containerStatuses": [container("state", terminated, 0)]});
            assert_eq!(failure_story(&pod("p", status), ""), story);
        }
        let evicted =
            json!({"phase": "Failed", "reason": "Evicted", "message": "The disk is full. "});
        assert_eq!(
            failure_story(&pod("p", evicted), ""),
            "p failed: Evicted: The disk is full"
        );
        let message = json!({"exitCode": 1, "message": "x".repeat(5000)});
        let long =
            json!({"phase": "Failed", "containerStatuses": [container("state", message, 0)]});
        assert!(failure_story(&pod("p", long), "").len() < 2 * STORY_MESSAGE_MAX);
        let long = json!({"phase": "Failed", "reason": "Evicted", "message": "x".repeat(5000)});
        assert!(failure_story(&pod("p", long), "").len() < 2 * STORY_MESSAGE_MAX);
    }

    #[test]
    fn the_last_failure_is_that_of_a_failed_pod_or_of_a_restarted_container() {
        let failed = |name: &str, finished: &str| {
            let end = json!({"exitCode": 1, "finishedAt": finished});
            let containers = json!([container("state", end, 0)]);
            pod(
                name,
                json!({"phase": "Failed", "containerStatuses": containers}),
            )
        };
        let end = json!({"exitCode": 7, "finishedAt": "2026-01-01T00:00:09Z"});
        let containers = json!([container("lastState", end, 2)]);
        let restarted = pod(
            "restarted",
            json!({"phase": "Running", "containerStatuses": containers}),
        );
        let runs = pod("runs", json!({"phase": "Running"}));
        let pods = [
            failed("first", "2026-01-01T00:00:01Z"),
            failed("second", "2026-01-01T00:00:02Z"),
            restarted,
            runs,
        ];
        let story = |pods: &[Pod]| last_failure_story(pods.iter(), "");
        assert_eq!(story(&pods).unwrap(), "second exited with code 1");
        assert_eq!(story(&pods[2..]).unwrap(), "restarted exited with code 7");
        assert_eq!(story(&pods[3..]), None);
    }

    #[test]
    fn the_first_failure_of_a_gang_is_the_earliest_and_of_a_second_the_programs_own() {
        let failed = |name: &str, code: i32, finished: &str| {
            let end = json!({"exitCode": code, "finishedAt": finished});
            let containers = json!([container("state", end, 0)]);
            pod(
                name,
                json!({"phase": "Failed", "containerStatuses": containers}),
            )
        };
        let (early, late) = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z");
        let story = |pods: &[Pod]| first_failure_story(pods.iter(), "");
        let gang = [
            failed("late", 1, late),
            failed("killed", 137, early),
            failed("cause", 3, early),
        ];
        assert_eq!(story(&gang).unwrap(), "cause exited with code 3");
        assert_eq!(story(&gang[..2]).unwrap(), "killed exited with code 137");
        assert_eq!(story(&[pod("runs", json!({"phase": "Running"}))]), None);
    }
}
