//! The job's status: counts by replica type, times, and a condition and an event for each change of
//! phase.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::kinds::{JobConditionType, PyTorchJobStatus, ReplicaStatus};
use resources::times::whole;

use super::conditions;
use super::phase::PyTorchPhase;
use super::plan::{InvalidJob, ParsedPyTorchJob, ReplicaType};
use super::pods::role_labels;
use super::roster::Roster;
use crate::action::EventNote;
use crate::pod_facts::{self, PodPhase};
use crate::pod_room::HeldBack;

/// Counts the pods by replica type.
pub(crate) fn count(
    plan: &ParsedPyTorchJob<'_>,
    roster: &Roster<'_>,
) -> BTreeMap<String, ReplicaStatus> {
    let of_role = |role: ReplicaType| {
        let mut counts = ReplicaStatus {
            selector: Some(selector(plan.name(), role)),
            ..ReplicaStatus::default()
        };
        for pod in roster.of_role(role).filter_map(|slot| slot.pod) {
            match PodPhase::of(pod) {
                PodPhase::Running if !pod_facts::is_leaving(pod) => counts.active += 1,
                PodPhase::Succeeded => counts.succeeded += 1,
                PodPhase::Failed => counts.failed += 1,
                PodPhase::Running | PodPhase::Pending => {}
            }
        }
        counts
    };
    let replicas = plan.replicas.iter();
    replicas
        .map(|replicas| (replicas.role.key().to_owned(), of_role(replicas.role)))
        .collect()
}

/// The label selector of one replica type's pods, as text.
fn selector(job: &str, role: ReplicaType) -> String {
    let pairs: Vec<String> = role_labels(job, role)
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join(",")
}

/// Sets the active counts to zero, and adds them to the succeeded ones if the job succeeded.
pub(crate) fn settle(status: &mut PyTorchJobStatus, succeeded: bool) {
    for counts in status.replica_statuses.values_mut() {
        if succeeded {
            counts.succeeded += counts.active;
        }
        counts.active = 0;
    }
}

/// Records the first sight of a job.
pub(crate) fn created(
    plan: &ParsedPyTorchJob<'_>,
    status: &mut PyTorchJobStatus,
    now: Timestamp,
) -> Vec<EventNote> {
    if status
        .conditions
        .iter()
        .any(|known| known.type_ == JobConditionType::Created)
    {
        return Vec::new();
    }
    let message = format!("PyTorchJob {} is created.", plan.name());
    tell(status, JobConditionType::Created, "Created", message, now)
}

/// Says in the condition Created that the job's pods are not created, or that they are again.
pub(crate) fn hold_back(
    plan: &ParsedPyTorchJob<'_>,
    status: &mut PyTorchJobStatus,
    held: Option<&HeldBack>,
    now: Timestamp,
) -> Vec<EventNote> {
    let name = plan.name();
    let Some(held) = held else {
        let reason = format!("{}Created", super::KIND);
        let known = status.conditions.iter();
        let mut known = known.filter(|known| known.type_ == JobConditionType::Created);
        if known.any(|known| known.reason.as_deref() != Some(reason.as_str())) {
            let message = format!("PyTorchJob {name} is created.");
            let created = JobConditionType::Created;
            conditions::set(status, created, true, "Created", &message, whole(now));
        }
        return Vec::new();
    };
    let message = format!("PyTorchJob {name} waits: {}", held.message);
    let created = JobConditionType::Created;
    if !conditions::set(status, created, true, held.reason, &message, whole(now)) {
        return Vec::new();
    }
    vec![EventNote::warning(held.reason, message)]
}

/// Reports the change from one phase to the next.
pub(crate) fn moved(
    plan: &ParsedPyTorchJob<'_>,
    status: &mut PyTorchJobStatus,
    from: PyTorchPhase,
    to: PyTorchPhase,
    why: Option<String>,
    now: Timestamp,
) -> Vec<EventNote> {
    let now = whole(now);
    let name = plan.name();
    let mut events = Vec::new();
    if from == PyTorchPhase::Suspended && to != PyTorchPhase::Suspended {
        let message = format!("PyTorchJob {name} is resumed.");
        conditions::set(
            status,
            JobConditionType::Suspended,
            false,
            "Resumed",
            &message,
            now,
        );
        events.push(EventNote::normal("PyTorchJobResumed", message));
        status.start_time = Some(Time(now));
    }
    if to != PyTorchPhase::Suspended && status.start_time.is_none() {
        status.start_time = Some(Time(now));
    }
    let (type_, word, message) = match to {
        PyTorchPhase::Created => return events,
        PyTorchPhase::Running => (
            JobConditionType::Running,
            "Running",
            format!("PyTorchJob {name} is running."),
        ),
        PyTorchPhase::Restarting => (
            JobConditionType::Restarting,
            "Restarting",
            why.unwrap_or_else(|| format!("PyTorchJob {name} is restarting.")),
        ),
        PyTorchPhase::Suspended => (
            JobConditionType::Suspended,
            "Suspended",
            format!("PyTorchJob {name} is suspended."),
        ),
        PyTorchPhase::Succeeded => (
            JobConditionType::Succeeded,
            "Succeeded",
            format!("PyTorchJob {name} is successfully completed."),
        ),
        PyTorchPhase::Failed => (
            JobConditionType::Failed,
            "Failed",
            why.unwrap_or_else(|| format!("PyTorchJob {name} has failed.")),
        ),
    };
    if to == PyTorchPhase::Suspended && conditions::is_true(status, JobConditionType::Running) {
        conditions::set(
            status,
            JobConditionType::Running,
            false,
            word,
            &message,
            now,
        );
    }
    events.extend(tell(status, type_, word, message, now));
    if to.is_terminal() && status.completion_time.is_none() {
        status.completion_time = Some(Time(now));
    }
    events
}

/// The status of a job whose spec is refused.
pub(crate) fn refused(
    name: &str,
    mut status: PyTorchJobStatus,
    refusal: &InvalidJob,
    now: Timestamp,
) -> (PyTorchJobStatus, Vec<EventNote>) {
    let message = format!("PyTorchJob {name} cannot be run: {refusal}");
    let events = tell(
        &mut status,
        JobConditionType::Failed,
        "FailedValidation",
        message,
        now,
    );
    if status.completion_time.is_none() {
        status.completion_time = Some(Time(whole(now)));
    }
    (status, events)
}

fn tell(
    status: &mut PyTorchJobStatus,
    type_: JobConditionType,
    word: &str,
    message: String,
    now: Timestamp,
) -> Vec<EventNote> {
    if !conditions::set(status, type_, true, word, &message, whole(now)) {
        return Vec::new();
    }
    let reason = format!("{}{word}", super::KIND);
    let note = match type_ {
        JobConditionType::Failed | JobConditionType::Restarting => {
            EventNote::warning(reason, message)
        }
        _ => EventNote::normal(reason, message),
    };
    vec![note]
}
