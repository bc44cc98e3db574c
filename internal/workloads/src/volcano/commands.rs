//! Commands to a Volcano Job: each is carried out once and deleted.
//!
//! Method: the oldest command is compared with the job's phase. If the phase has to change, it changes, and the command
//! stays; the next look finds the phase that the command asks for, and deletes it. So a crash between any two writes
//! repeats a step that changes nothing, and loses none. Of several commands, one is answered at a time. Source:
//! Volcano's `pkg/controllers/job`, with these differences: a resumed job spends no retry; RestartTask, whose command
//! names no task, starts the tasks again that have a failed pod.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use resources::kinds::{VolcanoCommand, VolcanoJobStatus};

use super::members::Members;
use super::plan::ParsedVolcanoJob;
use super::status::{VolcanoPhase, enter};
use crate::action::{Action, DependentKind, EventNote, ReconcileOutcome, delete_pod};
use crate::pod_facts::{self, PodPhase};

/// What a look at a command does.
enum Step<'a> {
    /// The job enters a phase, with this reason.
    Enter(VolcanoPhase, &'static str),
    /// The job begins anew: its pods are created again.
    Begin,
    /// These pods are created again.
    Replace(Vec<&'a Pod>),
    /// It has been carried out.
    Done,
    /// It does not apply to the job's phase.
    Void,
    /// It waits for the job's phase.
    Wait,
}

/// Carries out the oldest command. Returns true if the decision about the job's pods waits for the next look.
pub(crate) fn obey(
    plan: &ParsedVolcanoJob<'_>,
    members: &Members<'_>,
    commands: &[&VolcanoCommand],
    outcome: &mut ReconcileOutcome<VolcanoJobStatus>,
    now: Timestamp,
) -> bool {
    let key = |command: &&&VolcanoCommand| {
        let metadata = &command.metadata;
        (metadata.creation_timestamp.clone(), metadata.name.clone())
    };
    let open = commands
        .iter()
        .filter(|command| command.metadata.deletion_timestamp.is_none());
    let Some(command) = open.min_by_key(key) else {
        return false;
    };
    let action = command.action.as_deref().unwrap_or_default();
    let suffix = match command.message.as_deref() {
        None | Some("") => String::new(),
        Some(message) => format!(": {message}"),
    };
    let name = command.metadata.name.as_deref().unwrap_or_default();
    let message = format!("Command {name} asks for {action}{suffix}.");
    match step(plan, members, command, VolcanoPhase::of(&outcome.status)) {
        Step::Enter(phase, reason) => {
            let event = enter(&mut outcome.status, phase, reason, &message, now);
            outcome.events.push(event);
            true
        }
        Step::Begin => {
            let version = outcome.status.version.unwrap_or_default();
            outcome.status.version = Some(version.saturating_add(1));
            let event = enter(
                &mut outcome.status,
                VolcanoPhase::Pending,
                "JobResumed",
                &message,
                now,
            );
            outcome.events.push(event);
            true
        }
        Step::Replace(pods) => {
            outcome
                .events
                .push(EventNote::normal("PodsRestarted", message));
            outcome.actions.extend(pods.into_iter().map(delete_pod));
            true
        }
        Step::Wait => false,
        Step::Done => {
            outcome.actions.push(delete(command));
            false
        }
        Step::Void => {
            let phase = VolcanoPhase::of(&outcome.status).name();
            let message = format!(
                "Command {name} is dropped: {action} does not apply to a job that is {phase}."
            );
            outcome
                .events
                .push(EventNote::warning("CommandDropped", message));
            outcome.actions.push(delete(command));
            false
        }
    }
}

fn delete(command: &VolcanoCommand) -> Action {
    Action::Delete {
        kind: DependentKind::Command,
        name: command.metadata.name.clone().unwrap_or_default(),
        uid: command.metadata.uid.clone().unwrap_or_default(),
    }
}

fn step<'a>(
    plan: &ParsedVolcanoJob<'_>,
    members: &Members<'a>,
    command: &VolcanoCommand,
    phase: VolcanoPhase,
) -> Step<'a> {
    use VolcanoPhase::{
        Aborted, Aborting, Completed, Completing, Failed, Pending, Restarting, Running, Terminated,
        Terminating,
    };
    let action = command.action.as_deref().unwrap_or_default();
    // A job of the same name may have been created since.
    let created = plan.meta.creation_timestamp.as_ref();
    if command.metadata.creation_timestamp.as_ref() < created {
        return Step::Void;
    }
    match (action, phase) {
        (_, Completed | Failed | Terminated) => match (action, phase) {
            ("TerminateJob", Terminated) | ("CompleteJob", Completed) => Step::Done,
            _ => Step::Void,
        },
        ("AbortJob", Aborting | Aborted) => Step::Done,
        ("AbortJob", Pending | Running | Restarting) => Step::Enter(Aborting, "JobAborting"),
        ("ResumeJob", Aborted) => Step::Begin,
        ("ResumeJob", Aborting) => Step::Wait,
        ("ResumeJob", Pending | Running | Restarting) => Step::Done,
        ("RestartJob", Restarting) => Step::Done,
        ("RestartJob", Pending | Running) => Step::Enter(Restarting, "JobRestarting"),
        ("TerminateJob", Terminating) => Step::Done,
        ("TerminateJob", Pending | Running | Restarting | Aborted) => {
            Step::Enter(Terminating, "JobTerminating")
        }
        ("TerminateJob", Aborting) => Step::Wait,
        ("CompleteJob", Completing) => Step::Done,
        ("CompleteJob", Pending | Running) => Step::Enter(Completing, "JobCompleting"),
        ("RestartTask", Pending | Running) => {
            let failed = |task: &&str| {
                let mut pods = members.of_present(task);
                pods.any(|member| PodPhase::of(member.pod) == PodPhase::Failed)
            };
            let tasks = plan
                .tasks
                .iter()
                .map(|task| task.name.as_str())
                .filter(failed);
            let pods: Vec<&'a Pod> = tasks
                .flat_map(|task| members.of_present(task).map(|member| member.pod))
                .filter(|pod| !pod_facts::is_leaving(pod))
                .collect();
            match pods.is_empty() {
                true => Step::Done,
                false => Step::Replace(pods),
            }
        }
        _ => Step::Void,
    }
}
