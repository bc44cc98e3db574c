//! A job's phases, and how a change of phase shows in its status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::kinds::RayJobStatus;
use resources::times::whole;

use crate::action::EventNote;
use crate::ray::set_condition;

/// `status.jobDeploymentStatus`, in KubeRay's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RayJobPhase {
    New,
    /// The cluster is created or awaited.
    Initializing,
    /// The cluster is ready; the user is to submit the program.
    Waiting,
    Running,
    Complete,
    Failed,
    /// The cluster is being deleted, and the job will be suspended.
    Suspending,
    Suspended,
    /// The cluster of a failed attempt is being deleted, and another attempt follows.
    Retrying,
    ValidationFailed,
}

impl RayJobPhase {
    const NAMES: [(RayJobPhase, &'static str); 9] = [
        (RayJobPhase::Initializing, "Initializing"),
        (RayJobPhase::Waiting, "Waiting"),
        (RayJobPhase::Running, "Running"),
        (RayJobPhase::Complete, "Complete"),
        (RayJobPhase::Failed, "Failed"),
        (RayJobPhase::Suspending, "Suspending"),
        (RayJobPhase::Suspended, "Suspended"),
        (RayJobPhase::Retrying, "Retrying"),
        (RayJobPhase::ValidationFailed, "ValidationFailed"),
    ];

    /// The phase in a status.
    pub(crate) fn of(status: &RayJobStatus) -> RayJobPhase {
        let text = status.job_deployment_status.as_deref();
        let mut all = RayJobPhase::NAMES.iter();
        all.find(|(_, name)| Some(*name) == text)
            .map_or(RayJobPhase::New, |(phase, _)| *phase)
    }

    fn as_str(self) -> Option<&'static str> {
        let mut all = RayJobPhase::NAMES.iter();
        all.find(|(phase, _)| *phase == self).map(|(_, name)| *name)
    }

    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, RayJobPhase::Complete | RayJobPhase::Failed)
    }

    /// The condition that holds in the phase, with the event's reason at its begin.
    fn condition(self) -> Option<(&'static str, &'static str)> {
        match self {
            RayJobPhase::Running => Some(("Running", "RayJobRunning")),
            RayJobPhase::Complete => Some(("Succeeded", "RayJobSucceeded")),
            RayJobPhase::Failed | RayJobPhase::ValidationFailed => Some(("Failed", "RayJobFailed")),
            RayJobPhase::Suspended => Some(("Suspended", "RayJobSuspended")),
            _ => None,
        }
    }
}

/// Enters a phase: sets it, its condition and, at an end, the time. `message` says why, in one sentence.
pub(crate) fn enter(
    status: &mut RayJobStatus,
    phase: RayJobPhase,
    message: &str,
    now: Timestamp,
) -> Vec<EventNote> {
    let before = RayJobPhase::of(status);
    status.job_deployment_status = phase.as_str().map(str::to_owned);
    status.message = Some(message.to_owned()).filter(|text| !text.is_empty());
    if phase.is_terminal() && status.end_time.is_none() {
        status.end_time = Some(Time(whole(now)));
    }
    let held = phase.condition();
    let others: Vec<String> = status
        .conditions
        .iter()
        .filter(|known| known.status == "True" && held.is_none_or(|held| held.0 != known.type_))
        .map(|known| known.type_.clone())
        .collect();
    for type_ in others {
        let reason = format!("RayJobNot{type_}");
        set_condition(&mut status.conditions, &type_, false, &reason, "", now);
    }
    let Some((type_, reason)) = held else {
        return Vec::new();
    };
    let list = &mut status.conditions;
    // The condition that holds is the last.
    if let Some(at) = list.iter().position(|known| known.type_ == type_) {
        let known = list.remove(at);
        list.push(known);
    }
    set_condition(list, type_, true, reason, message, now);
    if before == phase {
        return Vec::new();
    }
    let note = match type_ {
        "Failed" => EventNote::warning(reason, message),
        _ => EventNote::normal(reason, message),
    };
    vec![note]
}
