//! A Volcano Job's status: its phase with the reason, and the counts of its pods.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::kinds::{VolcanoJobCondition, VolcanoJobStatus};

use super::members::Members;
use super::plan::ParsedVolcanoJob;
use crate::action::EventNote;

/// The phases in `status.conditions`; the oldest of more are dropped.
const CONDITIONS_MAX: usize = 20;

/// Where a job stands. Source: Volcano's `pkg/controllers/job/state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolcanoPhase {
    /// Fewer pods than the minimum have started.
    Pending,
    /// The minimum has started.
    Running,
    /// All pods are being deleted; then the job starts again.
    Restarting,
    /// Its pods are being stopped by a policy.
    Aborting,
    Aborted,
    /// Enough pods have succeeded; the others are being stopped.
    Completing,
    Completed,
    /// Its pods are being stopped by a policy, for good.
    Terminating,
    Terminated,
    Failed,
}

const PHASES: [(VolcanoPhase, &str); 10] = [
    (VolcanoPhase::Pending, "Pending"),
    (VolcanoPhase::Running, "Running"),
    (VolcanoPhase::Restarting, "Restarting"),
    (VolcanoPhase::Aborting, "Aborting"),
    (VolcanoPhase::Aborted, "Aborted"),
    (VolcanoPhase::Completing, "Completing"),
    (VolcanoPhase::Completed, "Completed"),
    (VolcanoPhase::Terminating, "Terminating"),
    (VolcanoPhase::Terminated, "Terminated"),
    (VolcanoPhase::Failed, "Failed"),
];

impl VolcanoPhase {
    /// The phase in a status; a new job's is Pending.
    pub(crate) fn of(status: &VolcanoJobStatus) -> VolcanoPhase {
        let stored = status.state.phase.as_deref().unwrap_or_default();
        let found = PHASES.iter().find(|(_, name)| *name == stored);
        found.map_or(VolcanoPhase::Pending, |(phase, _)| *phase)
    }

    pub(crate) fn name(self) -> &'static str {
        let found = PHASES.iter().find(|(phase, _)| *phase == self);
        found.map_or("Pending", |(_, name)| name)
    }

    pub(crate) fn is_final(self) -> bool {
        matches!(
            self,
            VolcanoPhase::Aborted
                | VolcanoPhase::Completed
                | VolcanoPhase::Terminated
                | VolcanoPhase::Failed
        )
    }
}

/// Enters a phase. The event is a warning if the job failed or starts again.
pub(crate) fn enter(
    status: &mut VolcanoJobStatus,
    phase: VolcanoPhase,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> EventNote {
    let name = phase.name();
    status.state.phase = Some(name.to_owned());
    status.state.reason = Some(reason.to_owned());
    status.state.message = Some(message.to_owned());
    status.state.last_transition_time = Some(Time(now));
    let conditions = status.conditions.get_or_insert_default();
    conditions.push(VolcanoJobCondition {
        status: name.to_owned(),
        last_transition_time: Some(Time(now)),
    });
    let surplus = conditions.len().saturating_sub(CONDITIONS_MAX);
    conditions.drain(..surplus);
    let warns = matches!(
        phase,
        VolcanoPhase::Failed | VolcanoPhase::Restarting | VolcanoPhase::Aborting
    );
    if warns {
        EventNote::warning(reason, message)
    } else {
        EventNote::normal(reason, message)
    }
}

/// Explains a phase that goes on; returns whether that is new.
pub(crate) fn explain(status: &mut VolcanoJobStatus, reason: &str, message: &str) -> bool {
    let same = status.state.message.as_deref() == Some(message);
    status.state.reason = Some(reason.to_owned());
    status.state.message = Some(message.to_owned());
    !same
}

/// Sets the counts.
pub(crate) fn count(
    plan: &ParsedVolcanoJob<'_>,
    members: &Members<'_>,
    status: &mut VolcanoJobStatus,
) {
    let counts = members.counts();
    let number = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    // Absent and zero mean the same, and Volcano leaves zeros out.
    let some = |count: u32| (count > 0).then(|| number(count));
    status.min_available = Some(number(plan.min_available()));
    status.pending = some(counts.pending);
    status.running = some(counts.running);
    status.succeeded = some(counts.succeeded);
    status.failed = some(counts.failed);
    status.terminating = some(counts.terminating);
    let by_phase = members.by_phase();
    status.task_status_count = (!by_phase.is_empty()).then_some(by_phase);
}
