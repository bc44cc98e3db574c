//! Why a pod failed: the class of its failure and the evidence for it, read from its status, and the first failure of a
//! job. The only place that decides a class; every kind of job, on either engine, uses it. The words of the sentence
//! are those of `resources::failure`.
//!
//! Method: what ended the pod from outside comes first (a lost node, an eviction), then why a container did not start,
//! then how its program ended, and last what its log says (the termination message holds the log's end where its
//! policy is `FallbackToLogsOnError`, which job controllers set). Example: exit code 1 with a traceback in the message
//! is `python-error`; exit code 137 with the reason OOMKilled is `out-of-memory`.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, Pod, PodCondition, PodSpec};
use resources::failure::{FailureClass, FailureRecord, LogEvidence, of_log};
use resources::hang::HangRecord;
use resources::names;

use crate::pod_facts::{self, PodPhase};

/// The longest text that a pod's status adds to the evidence, in characters.
const STATUS_TEXT_MAX: usize = 300;
/// Later failures of pods that existed when the first one failed belong to the same incident for this long.
pub(crate) const INCIDENT: SignedDuration = SignedDuration::from_secs(60);
/// The code of a program that a signal ended is this and the signal's number.
pub(crate) const SIGNAL_BASE: i32 = 128;
/// The signals that end programs, by number. Source: signal(7), x86 and ARM.
const SIGNALS: [(i32, &str); 12] = [
    (1, "SIGHUP"),
    (2, "SIGINT"),
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (9, "SIGKILL"),
    (11, "SIGSEGV"),
    (13, "SIGPIPE"),
    (14, "SIGALRM"),
    (15, "SIGTERM"),
];
/// Why a container waits, if its image is the reason.
const IMAGE_REASONS: [&str; 5] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
];
/// Why a container waits, if a volume, a Secret or a ConfigMap is the reason.
const VOLUME_REASONS: [&str; 2] = ["CreateContainerConfigError", "FailedMount"];
/// The reasons of the scheduler's evictions that give a pod's place to other work.
const PREEMPTIONS: [&str; 4] = [
    "Preempted",
    "Reclaimed",
    "ReclaimedWhileBorrowing",
    "FairShare",
];
/// The scheduler's reason for a pod whose GPU failed.
const FAILED_DEVICE: &str = "FailedDevice";

/// How a pod failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Story {
    pub(crate) class: FailureClass,
    /// The predicate of a sentence about the pod: `exited with code 1`.
    pub(crate) what: String,
    pub(crate) evidence: String,
    pub(crate) exit_code: Option<i32>,
    /// The program cannot be loaded.
    pub(crate) unloadable: bool,
}

impl Story {
    fn new(class: FailureClass, what: impl Into<String>, evidence: &str) -> Story {
        Story {
            class,
            what: what.into(),
            evidence: pod_facts::clause(evidence, STATUS_TEXT_MAX),
            ..Story::default()
        }
    }

    /// The story as a part of a sentence, after the pod's name.
    pub(crate) fn predicate(&self) -> String {
        match self.evidence.as_str() {
            "" => self.what.clone(),
            evidence => format!("{}: {evidence}", self.what),
        }
    }
}

/// The pod's failure as a message.
pub(crate) fn failure_story(pod: &Pod, main: &str) -> String {
    format!("{} {}", pod_facts::name(pod), story(pod, main).predicate())
}

/// A pod of a job with what the job knows about it.
#[derive(Clone, Copy)]
pub(crate) struct Member<'p> {
    pub(crate) pod: &'p Pod,
    pub(crate) rank: Option<u32>,
    /// The container whose end explains the pod's.
    pub(crate) main: &'p str,
    /// How often a program of this rank failed.
    pub(crate) attempts: u32,
    /// The attempt of the gang that the pod is part of; 0 is the first.
    pub(crate) attempt: u32,
    /// The job's hang, of the running pod that stands for it, if something follows a hang.
    pub(crate) hang: Option<&'p HangRecord>,
}

impl Member<'_> {
    /// Whether the pod shows a failure, or stands for a hang.
    pub(crate) fn shows_failure(&self) -> bool {
        self.hang.is_some() || shows_failure(self.pod, self.main)
    }

    /// The hang, unless the pod shows a failure of its own.
    fn only_hang(&self) -> Option<&HangRecord> {
        self.hang.filter(|_| !shows_failure(self.pod, self.main))
    }

    /// How the pod failed, or the job hangs.
    pub(crate) fn story(&self) -> Story {
        match self.only_hang() {
            Some(hang) => Story {
                class: FailureClass::Hang,
                what: hang.observed(),
                ..Story::default()
            },
            None => story(self.pod, self.main),
        }
    }

    /// When that was.
    pub(crate) fn failed_at(&self) -> Option<Timestamp> {
        match self.only_hang() {
            Some(hang) => Some(hang.at),
            None => failed_at(self.pod, self.main),
        }
    }
}

/// The condition by which the platform says that it ends a pod.
pub(crate) fn disruption(pod: &Pod) -> Option<&PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let mut all = conditions.iter();
    all.find(|one| one.type_ == names::DISRUPTION_TARGET && one.status == "True")
}

/// Whether the platform, and not the pod's program, ended the pod or ends it: its node was lost or could not start it,
/// or it was evicted. A pod that its node evicted because the pod exceeded its own limit has no such condition.
pub(crate) fn is_of_platform(pod: &Pod) -> bool {
    if pod_facts::is_leaving(pod) {
        return disruption(pod).is_some();
    }
    if PodPhase::of(pod) != PodPhase::Failed {
        return false;
    }
    let reason = pod_facts::reason(pod);
    disruption(pod).is_some()
        || matches!(
            reason,
            Some(names::NODE_LOST | names::NODE_UNFIT | "Preempted" | "Preempting")
        )
}

/// Whether the pod shows a failure: it failed by itself or by the platform, is being evicted, was restarted in place,
/// or waits for an image or a volume.
pub(crate) fn shows_failure(pod: &Pod, main: &str) -> bool {
    if pod_facts::is_leaving(pod) {
        return disruption(pod).is_some();
    }
    match PodPhase::of(pod) {
        PodPhase::Failed => true,
        PodPhase::Succeeded => false,
        PodPhase::Pending | PodPhase::Running => {
            pod_facts::failed_end(pod, main).is_some() || waiting(pod).is_some()
        }
    }
}

/// How the pod failed. `main` names the container that explains the pod.
pub(crate) fn story(pod: &Pod, main: &str) -> Story {
    if is_of_platform(pod) || pod_facts::is_evicted(pod) {
        return by_platform(pod);
    }
    if let Some(end) = pod_facts::failed_end(pod, main) {
        return by_program(pod, main, end);
    }
    if let Some(story) = waiting(pod) {
        return story;
    }
    let what = match pod_facts::reason(pod) {
        Some(reason) => format!("failed: {reason}"),
        None => "failed".to_owned(),
    };
    Story::new(FailureClass::ExitCode, what, pod_facts::message(pod))
}

fn by_platform(pod: &Pod) -> Story {
    let node = match pod_facts::node(pod) {
        "" => "its node".to_owned(),
        node => format!("node {node}"),
    };
    let message = pod_facts::message(pod);
    match pod_facts::reason(pod) {
        Some(names::NODE_LOST) => {
            return Story::new(
                FailureClass::NodeLost,
                format!("was lost with {node}"),
                message,
            );
        }
        Some(names::NODE_UNFIT) => {
            let what = format!("could not be started by {node}");
            return Story::new(FailureClass::NodeUnfit, what, message);
        }
        Some(names::EVICTED) => {
            return Story::new(
                FailureClass::Evicted,
                format!("was evicted by {node}"),
                message,
            );
        }
        _ => {}
    }
    let Some(disruption) = disruption(pod) else {
        return Story::new(FailureClass::Preempted, "was preempted", message);
    };
    let cause = disruption.message.as_deref().unwrap_or_default();
    if disruption.reason.as_deref() != Some(names::PREEMPTION_BY_SCHEDULER) {
        return Story::new(FailureClass::Evicted, "was evicted", cause);
    }
    let (why, rest) = cause.split_once(": ").unwrap_or((cause, ""));
    let rest = pod_facts::clause(rest, STATUS_TEXT_MAX);
    let class = if PREEMPTIONS.contains(&why) {
        FailureClass::Preempted
    } else if why == FAILED_DEVICE {
        return Story::new(FailureClass::GpuError, rest, "");
    } else {
        FailureClass::Evicted
    };
    // The scheduler words most of its reasons as what was done.
    let done = ["preempted ", "reclaimed ", "moved ", "evicted "];
    if done.iter().any(|word| rest.starts_with(word)) {
        return Story::new(class, format!("was {rest}"), "");
    }
    Story::new(class, "was evicted", &rest)
}

/// How the program ended, or why it did not start.
fn by_program(pod: &Pod, main: &str, end: &ContainerStateTerminated) -> Story {
    let reason = end.reason.as_deref().unwrap_or_default();
    let message = end.message.as_deref().unwrap_or_default();
    let code = end.exit_code;
    if reason == "StartError" || reason == "ContainerCannotRun" {
        if !message.trim().is_empty() {
            // The exit code of a container that did not start stands for no program's end.
            return Story::new(FailureClass::StartError, "did not start", message);
        }
        let what = format!("exited with code {code} ({reason})");
        return Story::new(FailureClass::StartError, what, "");
    }
    let evidence = of_log(message);
    if reason == "OOMKilled" {
        return Story {
            class: FailureClass::OutOfMemory,
            what: format!("ran out of memory (exit code {code}, OOMKilled)"),
            evidence: memory_limit(pod, main),
            exit_code: Some(code),
            unloadable: false,
        };
    }
    let (class, what) = ended(code, reason);
    let LogEvidence {
        class: of_log,
        text,
        unloadable,
    } = evidence.unwrap_or_default();
    Story {
        class: of_log.unwrap_or(class),
        what,
        evidence: text,
        exit_code: Some(code),
        unloadable,
    }
}

fn ended(code: i32, reason: &str) -> (FailureClass, String) {
    let signal = SIGNALS
        .iter()
        .find(|(number, _)| SIGNAL_BASE + number == code);
    if let Some((_, name)) = signal {
        let what = format!("was killed by {name} (exit code {code})");
        return (FailureClass::Signal, what);
    }
    let what = match reason {
        "" | "Error" => format!("exited with code {code}"),
        reason => format!("exited with code {code} ({reason})"),
    };
    (FailureClass::ExitCode, what)
}

/// The limit that the container exceeded, if it has one.
fn memory_limit(pod: &Pod, main: &str) -> String {
    let containers = pod
        .spec
        .as_ref()
        .map_or(&[][..], |spec: &PodSpec| &spec.containers);
    let limit = |container: &Container| {
        let limits = container.resources.as_ref()?.limits.as_ref()?;
        limits.get("memory").map(|limit| limit.0.clone())
    };
    let named = containers.iter().find(|container| container.name == main);
    let container = named.or_else(|| containers.first());
    container
        .and_then(limit)
        .map(|limit| format!("its memory limit is {limit}"))
        .unwrap_or_default()
}

/// Why a container that has a node waits, if it is an image or a volume.
fn waiting(pod: &Pod) -> Option<Story> {
    let mut states = pod_facts::waiting_containers(pod);
    states.find_map(|(reason, message)| {
        let (class, what) = if IMAGE_REASONS.contains(&reason) {
            (FailureClass::ImageError, format!("has no image ({reason})"))
        } else if VOLUME_REASONS.contains(&reason) {
            (
                FailureClass::VolumeError,
                format!("cannot be started ({reason})"),
            )
        } else {
            return None;
        };
        Some(Story::new(class, what, message))
    })
}

/// Lets the status of a container that fails show the end of its log, unless the user chose otherwise: the class of the
/// failure is read from it.
pub(crate) fn report_log_end(containers: &mut [Container]) {
    for container in containers {
        container
            .termination_message_policy
            .get_or_insert_with(|| "FallbackToLogsOnError".to_owned());
    }
}

/// The record of one member's failure.
pub(crate) fn record(member: &Member<'_>) -> FailureRecord {
    let pod = member.pod;
    let story = member.story();
    let is_one = story.class == FailureClass::Hang || story.class.is_retried_by_node();
    FailureRecord {
        class: story.class,
        pod: pod_facts::name(pod).to_owned(),
        uid: pod_facts::uid(pod).to_owned(),
        rank: member.rank,
        node: pod_facts::node(pod).to_owned(),
        exit_code: story.exit_code,
        what: story.what,
        evidence: story.evidence,
        attempts: match is_of_platform(pod) || is_one {
            true => 1,
            false => member.attempts,
        },
        charged: !is_of_platform(pod),
        attempt: member.attempt,
        action: None,
        at: member.failed_at(),
    }
}

/// When the pod failed, or began to be evicted.
pub(crate) fn failed_at(pod: &Pod, main: &str) -> Option<Timestamp> {
    if pod_facts::is_leaving(pod) {
        let since = disruption(pod).and_then(|one| one.last_transition_time.as_ref());
        return since.map(|time| time.0);
    }
    if PodPhase::of(pod).is_finished() {
        return pod_facts::finished_at(pod);
    }
    let end = pod_facts::failed_end(pod, main);
    end.and_then(|end| end.finished_at.as_ref())
        .map(|time| time.0)
}

/// The order of causes: pods that failed or are evicted before ones that were restarted in place or wait; then by
/// time. Of pods that ended in the same second, one that its program ended (codes below 128) comes before one that a
/// signal ended, and both come before one that only lost its connection: it often ends because of another.
pub(crate) fn order(member: &Member<'_>) -> (bool, Option<Timestamp>, u8) {
    let pod = member.pod;
    let over = PodPhase::of(pod) == PodPhase::Failed || pod_facts::is_leaving(pod);
    let story = member.story();
    let consequence = match story.class {
        FailureClass::NetworkError => 2,
        _ if story.exit_code.is_some_and(|code| code >= SIGNAL_BASE) => 1,
        _ => 0,
    };
    (!over, member.failed_at(), consequence)
}

/// The member that failed first: the others often fail because of it.
pub(crate) fn first<'p>(members: impl Iterator<Item = Member<'p>>) -> Option<Member<'p>> {
    let failed = members.filter(Member::shows_failure);
    failed.min_by_key(order)
}

/// The job's record after a look at its pods: that of the first failure, kept for the later failures of the same
/// incident and after its pod is gone.
pub(crate) fn observe<'p>(
    known: Option<FailureRecord>,
    members: impl Iterator<Item = Member<'p>>,
) -> Option<FailureRecord> {
    let Some(first) = first(members) else {
        return known;
    };
    let mut found = record(&first);
    let Some(known) = known else {
        return Some(found);
    };
    if known.uid == found.uid {
        // The same end is told again, perhaps in other words; what followed stays. Times have whole seconds: a restart
        // in place may fail in the second of the failure before it.
        let again = known.at == found.at && known.attempts >= found.attempts;
        if again && known.class == found.class {
            return Some(known);
        }
        found.action = known.action;
        return Some(found);
    }
    let created = first.pod.metadata.creation_timestamp.as_ref();
    // Times have whole seconds: a pod that replaced the failed one may have been created in the second of its end.
    let beside = known.pod != found.pod && known.attempt == found.attempt;
    let same_incident = match (known.at, found.at, created) {
        (Some(known), Some(found), Some(created)) if beside => {
            created.0 <= known && found >= known && found.duration_since(known) <= INCIDENT
        }
        _ => false,
    };
    Some(if same_incident { known } else { found })
}

/// The record of the member that failed last, for jobs whose pods are independent of each other.
pub(crate) fn observe_last<'p>(
    known: Option<FailureRecord>,
    members: impl Iterator<Item = Member<'p>>,
) -> Option<FailureRecord> {
    let failed = members.filter(Member::shows_failure);
    let key = |member: &Member<'_>| {
        let over = PodPhase::of(member.pod) == PodPhase::Failed;
        (over, member.failed_at())
    };
    let Some(found) = failed.max_by_key(key).map(|last| record(&last)) else {
        return known;
    };
    match known {
        Some(known)
            if known.uid == found.uid
                && known.at == found.at
                && known.attempts >= found.attempts =>
        {
            Some(known)
        }
        Some(known) if known.at > found.at => Some(known),
        _ => Some(found),
    }
}

#[cfg(test)]
mod tests;
