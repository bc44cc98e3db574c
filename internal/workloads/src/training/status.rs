//! The job's status: counts by replica type, times, and a condition and an event for each change of
//! phase.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::kinds::{JobConditionType, ReplicaStatus, TrainingJobStatus};
use resources::times::whole;
use resources::training::ReplicaType;

use super::conditions;
use super::phase::TrainingPhase;
use super::plan::{InvalidJob, ParsedTrainingJob};
use super::pods::role_labels;
use super::roster::Roster;
use crate::action::EventNote;
use crate::pod_facts::{self, PodPhase};
use crate::pod_room::HeldBack;

/// Counts the pods by replica type.
pub(crate) fn count(
    plan: &ParsedTrainingJob<'_>,
    roster: &Roster<'_>,
) -> BTreeMap<String, ReplicaStatus> {
    let of_role = |role: ReplicaType| {
        let mut counts = ReplicaStatus {
            selector: Some(selector(plan, role)),
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
fn selector(plan: &ParsedTrainingJob<'_>, role: ReplicaType) -> String {
    let pairs: Vec<String> = role_labels(plan.kind, plan.name(), role)
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join(",")
}

/// Sets the active counts to zero, and adds them to the succeeded ones if the job succeeded.
pub(crate) fn settle(status: &mut TrainingJobStatus, succeeded: bool) {
    for counts in status.replica_statuses.values_mut() {
        if succeeded {
            counts.succeeded += counts.active;
        }
        counts.active = 0;
    }
}

/// Records the first sight of a job.
pub(crate) fn created(
    plan: &ParsedTrainingJob<'_>,
    status: &mut TrainingJobStatus,
    now: Timestamp,
) -> Vec<EventNote> {
    if status
        .conditions
        .iter()
        .any(|known| known.type_ == JobConditionType::Created)
    {
        return Vec::new();
    }
    let kind = plan.kind.kind;
    let message = format!("{kind} {} is created.", plan.name());
    set_with_event(
        kind,
        status,
        JobConditionType::Created,
        "Created",
        message,
        now,
    )
}

/// Says in the condition Created that the job's pods are not created, or that they are again.
pub(crate) fn hold_back(
    plan: &ParsedTrainingJob<'_>,
    status: &mut TrainingJobStatus,
    held: Option<&HeldBack>,
    now: Timestamp,
) -> Vec<EventNote> {
    let (kind, name) = (plan.kind.kind, plan.name());
    let Some(held) = held else {
        let reason = format!("{kind}Created");
        let known = status.conditions.iter();
        let mut known = known.filter(|known| known.type_ == JobConditionType::Created);
        if known.any(|known| known.reason.as_deref() != Some(reason.as_str())) {
            let message = format!("{kind} {name} is created.");
            let created = JobConditionType::Created;
            conditions::set(kind, status, created, true, "Created", &message, whole(now));
        }
        return Vec::new();
    };
    let message = format!("{kind} {name} waits: {}", held.message);
    let created = JobConditionType::Created;
    if !conditions::set(
        kind,
        status,
        created,
        true,
        held.reason,
        &message,
        whole(now),
    ) {
        return Vec::new();
    }
    vec![EventNote::warning(held.reason, message)]
}

/// Reports the change from one phase to the next.
pub(crate) fn moved(
    plan: &ParsedTrainingJob<'_>,
    status: &mut TrainingJobStatus,
    from: TrainingPhase,
    to: TrainingPhase,
    why: Option<String>,
    now: Timestamp,
) -> Vec<EventNote> {
    let now = whole(now);
    let kind = plan.kind.kind;
    let name = plan.name();
    let mut events = Vec::new();
    if from == TrainingPhase::Suspended && to != TrainingPhase::Suspended {
        let message = format!("{kind} {name} is resumed.");
        conditions::set(
            kind,
            status,
            JobConditionType::Suspended,
            false,
            "Resumed",
            &message,
            now,
        );
        events.push(EventNote::normal(format!("{kind}Resumed"), message));
        status.start_time = Some(Time(now));
    }
    if to != TrainingPhase::Suspended && status.start_time.is_none() {
        status.start_time = Some(Time(now));
    }
    let goes_on = to == TrainingPhase::Restarting && from == to && why.is_none();
    let (type_, word, message) = match to {
        TrainingPhase::Created => return events,
        // What was said of the restart still holds.
        TrainingPhase::Restarting if goes_on => return events,
        TrainingPhase::Running => (
            JobConditionType::Running,
            "Running",
            format!("{kind} {name} is running."),
        ),
        TrainingPhase::Restarting => (
            JobConditionType::Restarting,
            "Restarting",
            why.unwrap_or_else(|| format!("{kind} {name} is restarting.")),
        ),
        TrainingPhase::Suspended => (
            JobConditionType::Suspended,
            "Suspended",
            format!("{kind} {name} is suspended."),
        ),
        TrainingPhase::Succeeded => (
            JobConditionType::Succeeded,
            "Succeeded",
            format!("{kind} {name} is successfully completed."),
        ),
        TrainingPhase::Failed => (
            JobConditionType::Failed,
            "Failed",
            why.unwrap_or_else(|| format!("{kind} {name} has failed.")),
        ),
    };
    if to == TrainingPhase::Suspended && conditions::is_true(status, JobConditionType::Running) {
        conditions::set(
            kind,
            status,
            JobConditionType::Running,
            false,
            word,
            &message,
            now,
        );
    }
    events.extend(set_with_event(kind, status, type_, word, message, now));
    if to.is_terminal() && status.completion_time.is_none() {
        status.completion_time = Some(Time(now));
    }
    events
}

/// The status of a job whose spec is refused.
pub(crate) fn refused(
    kind: &str,
    name: &str,
    mut status: TrainingJobStatus,
    refusal: &InvalidJob,
    now: Timestamp,
) -> (TrainingJobStatus, Vec<EventNote>) {
    let message = format!("{kind} {name} cannot be run: {refusal}");
    let events = set_with_event(
        kind,
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

fn set_with_event(
    kind: &str,
    status: &mut TrainingJobStatus,
    type_: JobConditionType,
    word: &str,
    message: String,
    now: Timestamp,
) -> Vec<EventNote> {
    if !conditions::set(kind, status, type_, true, word, &message, whole(now)) {
        return Vec::new();
    }
    let reason = format!("{kind}{word}");
    let note = match type_ {
        JobConditionType::Failed | JobConditionType::Restarting => {
            EventNote::warning(reason, message)
        }
        _ => EventNote::normal(reason, message),
    };
    vec![note]
}
