//! A Job's status: the counts, the times, and the conditions and events of each phase change as
//! Kubernetes 1.34 writes them.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{JobCondition, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use resources::times::whole;

use super::phase::{JobEnd, JobPhase};
use super::plan::ParsedJob;
use super::tally::AttemptTally;
use crate::action::EventNote;
use crate::pod_facts::{self, PodPhase};
use crate::pod_room::HeldBack;

/// Whether a pod waits or runs, without a deletion request.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !PodPhase::of(pod).is_finished() && !pod_facts::is_leaving(pod)
}

/// Whether a pod has a deletion request and has not ended.
pub(crate) fn is_terminating(pod: &Pod) -> bool {
    !PodPhase::of(pod).is_finished() && pod_facts::is_leaving(pod)
}

/// Writes the counts.
pub(crate) fn count(
    plan: &ParsedJob<'_>,
    tally: &AttemptTally,
    pods: &[&Pod],
    status: &mut JobStatus,
) {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let positive = |count: u32| (count > 0).then(|| i32::try_from(count).unwrap_or(i32::MAX));
    let active = pods.iter().filter(|pod| is_active(pod));
    let ready = active
        .clone()
        .filter(|pod| pod_facts::is_ready(pod))
        .count();
    status.active = Some(number(active.count())).filter(|count| *count > 0);
    status.ready = Some(number(ready));
    status.terminating = Some(number(
        pods.iter().filter(|pod| is_terminating(pod)).count(),
    ));
    status.succeeded = positive(tally.successes(plan));
    status.failed = positive(tally.failures());
    if plan.indexed {
        let done = tally.completed_indexes.to_string();
        status.completed_indexes = Some(done).filter(|text| !text.is_empty());
        if plan.backoff_limit_per_index.is_some() {
            status.failed_indexes = Some(tally.failed_indexes.to_string());
        }
    }
    status
        .uncounted_terminated_pods
        .get_or_insert_with(UncountedTerminatedPods::default);
}

/// Reports the change from one phase to the next.
pub(crate) fn moved(
    status: &mut JobStatus,
    from: &JobPhase,
    to: &JobPhase,
    now: Timestamp,
) -> Vec<EventNote> {
    let now = whole(now);
    let mut events = Vec::new();
    if *from == JobPhase::Suspended && *to != JobPhase::Suspended {
        set(
            status,
            "Suspended",
            false,
            &JobEnd::new("JobResumed", "Job resumed"),
            now,
        );
        events.push(EventNote::normal("Resumed", "Job resumed"));
        status.start_time = Some(Time(now));
    }
    if *to != JobPhase::Suspended && status.start_time.is_none() {
        status.start_time = Some(Time(now));
    }
    if from == to {
        return events;
    }
    match to {
        JobPhase::Active => {}
        JobPhase::Suspended => {
            set(
                status,
                "Suspended",
                true,
                &JobEnd::new("JobSuspended", "Job suspended"),
                now,
            );
            events.push(EventNote::normal("Suspended", "Job suspended"));
        }
        JobPhase::Succeeding(verdict) => set(status, "SuccessCriteriaMet", true, verdict, now),
        JobPhase::Failing(verdict) => set(status, "FailureTarget", true, verdict, now),
        JobPhase::Complete(verdict) => {
            set(status, "SuccessCriteriaMet", true, verdict, now);
            set(status, "Complete", true, verdict, now);
            status.completion_time = Some(Time(now));
            events.push(EventNote::normal("Completed", "Job completed"));
        }
        JobPhase::Failed(verdict) => {
            set(status, "FailureTarget", true, verdict, now);
            set(status, "Failed", true, verdict, now);
            events.push(EventNote::warning(
                verdict.reason.clone(),
                verdict.message.clone(),
            ));
        }
    }
    events
}

/// When the job ended.
pub(crate) fn ended_at(status: &JobStatus) -> Option<Timestamp> {
    let conditions = status.conditions.iter().flatten();
    let mut ends = conditions.filter(|known| matches!(known.type_.as_str(), "Complete" | "Failed"));
    ends.find_map(|known| known.last_transition_time.as_ref())
        .map(|time| time.0)
}

/// Says in a condition that the job's pods are not created, or that they are again.
pub(crate) fn hold_back(status: &mut JobStatus, held: Option<&HeldBack>, now: Timestamp) {
    const TYPE: &str = "PodsHeldBack";
    match held {
        Some(held) => {
            let why = JobEnd::new(held.reason, held.message.clone());
            set(status, TYPE, true, &why, whole(now));
        }
        None => {
            let known = status.conditions.iter().flatten();
            if known.into_iter().any(|known| known.type_ == TYPE) {
                let why = JobEnd::new("PodsCreated", "The job's pods can be created.");
                set(status, TYPE, false, &why, whole(now));
            }
        }
    }
}

fn set(status: &mut JobStatus, type_: &str, holds: bool, why: &JobEnd, now: Timestamp) {
    let truth = if holds { "True" } else { "False" };
    let conditions = status.conditions.get_or_insert_default();
    let condition = JobCondition {
        type_: type_.to_owned(),
        status: truth.to_owned(),
        reason: Some(why.reason.clone()),
        message: Some(why.message.clone()),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    };
    match conditions.iter_mut().find(|known| known.type_ == type_) {
        Some(known) if known.status == truth => {}
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}
