//! Life-cycle policies: what happened to a job's pods and tasks, and which action the job's author wants then.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use resources::go_duration;
use resources::kinds::LifecyclePolicy;

use super::members::{Member, Members};
use super::plan::{ParsedVolcanoJob, Task};
use crate::failure;
use crate::pod_facts::{self, PodPhase};

/// What is done to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyAction {
    Abort,
    RestartJob,
    RestartTask,
    RestartPod,
    Terminate,
    Complete,
    /// An action that changes nothing by itself.
    Nothing,
}

impl PolicyAction {
    fn of(text: &str) -> PolicyAction {
        match text {
            "AbortJob" => PolicyAction::Abort,
            "RestartJob" => PolicyAction::RestartJob,
            "RestartTask" | "RestartPartition" => PolicyAction::RestartTask,
            "RestartPod" => PolicyAction::RestartPod,
            "TerminateJob" => PolicyAction::Terminate,
            "CompleteJob" => PolicyAction::Complete,
            _ => PolicyAction::Nothing,
        }
    }
}

/// Something that happened.
struct Happening<'a> {
    event: &'static str,
    exit_code: Option<i32>,
    at: Timestamp,
    task: &'a str,
    pod: Option<&'a Pod>,
    /// In words, for the job's status.
    cause: String,
}

/// An action that is due.
pub(crate) struct Due<'a> {
    pub(crate) action: PolicyAction,
    /// The task of the pod that it is about.
    pub(crate) task: &'a str,
    /// The pod that it is about, if it is about one.
    pub(crate) pod: Option<&'a Pod>,
    /// Why, in words.
    pub(crate) cause: String,
}

/// The first action that is due, or when the next one will be.
pub(crate) enum Verdict<'a> {
    Due(Due<'a>),
    Later(Option<Timestamp>),
}

/// Judges what happened by the policies: a task's own come first, then the job's.
pub(crate) fn judge<'a>(
    plan: &'a ParsedVolcanoJob<'_>,
    members: &Members<'a>,
    now: Timestamp,
) -> Verdict<'a> {
    let of_job = plan.spec.policies.as_deref().unwrap_or_default();
    let mut later: Option<Timestamp> = None;
    for task in &plan.tasks {
        for happening in happenings(plan, task, members, now) {
            let policies = task.policies.iter().chain(of_job);
            let Some(policy) = policies.into_iter().find(|one| matches(one, &happening)) else {
                continue;
            };
            let action = PolicyAction::of(policy.action.as_deref().unwrap_or_default());
            if action == PolicyAction::Nothing {
                continue;
            }
            let wait = policy.timeout.as_deref().and_then(go_duration::parse);
            let due = happening.at.checked_add(wait.unwrap_or_default());
            let due = due.unwrap_or(Timestamp::MAX);
            if due > now {
                later = Some(later.map_or(due, |known| known.min(due)));
                continue;
            }
            return Verdict::Due(Due {
                action,
                task: happening.task,
                pod: happening.pod,
                cause: happening.cause,
            });
        }
    }
    Verdict::Later(later)
}

fn happenings<'a>(
    plan: &ParsedVolcanoJob<'_>,
    task: &'a Task<'_>,
    members: &Members<'a>,
    now: Timestamp,
) -> Vec<Happening<'a>> {
    let mut all = Vec::new();
    let mut add = |event, exit_code, at, pod, cause| {
        all.push(Happening {
            event,
            exit_code,
            at,
            task: task.name.as_str(),
            pod,
            cause,
        });
    };
    let (mut succeeded, mut restarts, mut last_end) = (0, 0_u32, None);
    for member in members.of_present(&task.name) {
        let Member { pod, .. } = member;
        let ended = pod_facts::finished_at(pod);
        let name = pod_facts::name(pod);
        restarts = restarts.saturating_add(pod_facts::restart_count(pod));
        match PodPhase::of(pod) {
            PodPhase::Failed if failure::is_of_platform(pod) => {
                let cause = Members::sentence(plan, task, member);
                add("PodEvicted", None, ended.unwrap_or(now), Some(*pod), cause);
            }
            PodPhase::Failed => {
                let cause = Members::sentence(plan, task, member);
                let code = pod_facts::failure_code(pod, "");
                add("PodFailed", code, ended.unwrap_or(now), Some(*pod), cause);
            }
            PodPhase::Succeeded => {
                succeeded += 1;
                last_end = last_end.max(ended);
            }
            PodPhase::Running => {
                let since = pod_facts::started_at(pod).unwrap_or(now);
                add(
                    "PodRunning",
                    None,
                    since,
                    Some(*pod),
                    format!("{name} runs"),
                );
            }
            PodPhase::Pending => {
                let since = pod.metadata.creation_timestamp.as_ref();
                let since = since.map_or(now, |time| time.0);
                let cause = format!("{name} has been pending since {since}");
                add("PodPending", None, since, Some(*pod), cause);
            }
        }
    }
    let name = &task.name;
    if restarts > 0 && restarts >= task.max_retry {
        let cause = format!("the containers of task {name} were restarted {restarts} times");
        add("TaskFailed", None, now, None, cause);
    }
    if task.replicas > 0 && succeeded >= task.replicas {
        let cause = format!("task {name} is complete");
        add("TaskCompleted", None, last_end.unwrap_or(now), None, cause);
    }
    all
}

/// Whether the policy is about this. `*` stands for what goes wrong: with Volcano it stands for completion as well,
/// which would restart what has succeeded.
fn matches(policy: &LifecyclePolicy, happening: &Happening<'_>) -> bool {
    if let Some(code) = policy.exit_code {
        return happening.exit_code == Some(code);
    }
    let events = policy.events.iter().flatten().chain(&policy.event);
    let mut events = events.map(String::as_str);
    let wrong = ["PodFailed", "PodEvicted", "TaskFailed"].contains(&happening.event);
    // A pod is always pending at first.
    let timed = policy.timeout.is_some();
    events.any(|event| match event {
        "*" => wrong,
        "PodPending" => timed && happening.event == event,
        _ => happening.event == event,
    })
}
