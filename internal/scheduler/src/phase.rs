//! A PodGroup's phase and conditions, with Volcano's meaning: Pending (not admitted), Inqueue
//! (admitted, waiting), Running (its minimum is placed), Unknown (some members hold capacity, the
//! others cannot be placed), Completed. A status is emitted only when it changed.

use std::sync::Arc;

use resources::kinds::{PodGroupPhase, PodGroupStatus};
use resources::report::WaitReason;

use crate::gang::{Gang, GangKey};
use crate::plan::{GroupCondition, GroupRef, GroupUpdate};
use crate::state::Scheduler;

/// The condition of a gang that was placed.
const SCHEDULED: &str = "Scheduled";
/// The condition of a gang that ran and lost members without an eviction. It holds until the gang
/// has its minimum again, and orders the gang before new work of its priority.
const INTERRUPTED: &str = "Interrupted";
/// The condition of the gang that capacity is reserved for. After a restart the scheduler reads it,
/// so that the same gang keeps the reservation.
const FIRST_IN_LINE: &str = "FirstInLine";
/// The condition of a gang that could not be placed.
const UNSCHEDULABLE: &str = "Unschedulable";

/// A PodGroup's status as last emitted or read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EmittedStatus {
    phase: PodGroupPhase,
    /// Shared by consecutive gangs with equal conditions.
    conditions: Arc<Vec<GroupCondition>>,
    running: usize,
    succeeded: usize,
    failed: usize,
}

/// The conditions read last.
pub(crate) type LastConditions = Arc<Vec<GroupCondition>>;

impl EmittedStatus {
    pub(crate) fn read(status: &PodGroupStatus, last: &mut LastConditions) -> EmittedStatus {
        let count = |n: i32| usize::try_from(n).unwrap_or(0);
        let conditions = status.conditions.iter().map(|condition| GroupCondition {
            kind: condition.type_.clone(),
            status: condition.status == "True",
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        });
        let conditions: Vec<GroupCondition> = conditions.collect();
        if **last != conditions {
            *last = Arc::new(conditions);
        }
        EmittedStatus {
            phase: status.phase.unwrap_or_default(),
            conditions: last.clone(),
            running: count(status.running),
            succeeded: count(status.succeeded),
            failed: count(status.failed),
        }
    }

    pub(crate) fn phase(&self) -> PodGroupPhase {
        self.phase
    }

    fn put(&mut self, kind: &str, status: bool, reason: &str, message: String) {
        let new = GroupCondition {
            kind: kind.into(),
            status,
            reason: reason.into(),
            message,
        };
        let at = self.conditions.iter().position(|old| old.kind == kind);
        match at {
            Some(at) if self.conditions[at] == new => {}
            Some(at) => Arc::make_mut(&mut self.conditions)[at] = new,
            None => Arc::make_mut(&mut self.conditions).push(new),
        }
    }

    /// True if the gang is marked as interrupted.
    pub(crate) fn interrupted(&self) -> bool {
        self.has(INTERRUPTED, true)
    }

    /// True if the gang is marked as the one that capacity is reserved for.
    pub(crate) fn led(&self) -> bool {
        self.has(FIRST_IN_LINE, true)
    }

    fn has(&self, kind: &str, status: bool) -> bool {
        self.conditions
            .iter()
            .any(|c| c.kind == kind && c.status == status)
    }
}

/// A gang's phase.
pub(crate) fn phase(key: &GangKey, gang: &Gang) -> PodGroupPhase {
    let total = &gang.total;
    if gang.completed(key) {
        return PodGroupPhase::Completed;
    }
    if total.there() > 0 && gang.whole_there(key) {
        return PodGroupPhase::Running;
    }
    if total.occupying() > 0 {
        return PodGroupPhase::Unknown;
    }
    if gang.admitted {
        PodGroupPhase::Inqueue
    } else {
        PodGroupPhase::Pending
    }
}

impl Scheduler {
    /// A PodGroup's new status, if it changed. `report` is the reason why the gang waits, as
    /// verdict and sentence.
    pub(crate) fn status_update(
        &mut self,
        key: &GangKey,
        report: Option<(WaitReason, &str)>,
    ) -> Option<GroupUpdate> {
        let gang = self.gangs.get(key)?;
        let uid = gang.spec.as_ref()?.uid.clone();
        let phase = phase(key, gang);
        let mut now = gang.shown.clone().unwrap_or_default();
        let interrupted = self.interrupted(key, gang);
        now.phase = phase;
        now.running = gang.total.running;
        now.succeeded = gang.total.succeeded;
        now.failed = gang.total.failed;
        if phase == PodGroupPhase::Running {
            if now.interrupted() {
                now.put(INTERRUPTED, false, "GangPlaced", String::new());
            }
        } else if interrupted && !now.interrupted() {
            let (left, minimum) = (gang.total.there(), gang.minimum(key));
            now.put(
                INTERRUPTED,
                true,
                "MembersLost",
                format!(
                    "{left} of the {minimum} required members remain; the gang is ordered before new \
                     work of its priority"
                ),
            );
        }
        let leads = self.timeline.is_head(key);
        if leads && !now.led() {
            now.put(
                FIRST_IN_LINE,
                true,
                "RoomReserved",
                "capacity is reserved for this gang, and no other gang may delay its start"
                    .to_owned(),
            );
        } else if now.led() && !leads {
            let reason = match phase {
                PodGroupPhase::Running | PodGroupPhase::Completed => "GangPlaced",
                _ => "ReservedForAnother",
            };
            now.put(FIRST_IN_LINE, false, reason, String::new());
        }
        match report {
            _ if phase == PodGroupPhase::Running => {
                let members = gang.total.there();
                now.put(
                    SCHEDULED,
                    true,
                    "GangPlaced",
                    format!("the gang has its minimum: {members} members have a node"),
                );
                if now.has(UNSCHEDULABLE, true) {
                    now.put(UNSCHEDULABLE, false, "GangPlaced", String::new());
                }
            }
            Some((verdict, sentence)) => {
                now.put(UNSCHEDULABLE, true, verdict.reason(), sentence.to_owned());
                if now.has(SCHEDULED, true) {
                    now.put(SCHEDULED, false, verdict.reason(), String::new());
                }
            }
            None => {}
        }
        if gang.shown.as_ref() == Some(&now) {
            return None;
        }
        let update = GroupUpdate {
            group: GroupRef::of(key),
            uid,
            phase,
            conditions: now.conditions.to_vec(),
            running: now.running,
            succeeded: now.succeeded,
            failed: now.failed,
        };
        if let Some(gang) = self.gangs.get_mut(key) {
            gang.shown = Some(now);
        }
        Some(update)
    }

    /// True if the gang ran, lost members without an eviction, and waits for their replacements.
    pub(crate) fn interrupted(&self, key: &GangKey, gang: &Gang) -> bool {
        let Some(shown) = &gang.shown else {
            return false;
        };
        if shown.phase != PodGroupPhase::Running && !shown.interrupted() {
            return false;
        }
        match phase(key, gang) {
            PodGroupPhase::Running | PodGroupPhase::Completed => false,
            _ => shown.interrupted() || !self.is_evicted(gang),
        }
    }

    /// True if a plan evicted some member that is still terminating.
    fn is_evicted(&self, gang: &Gang) -> bool {
        let mut members = gang.members.iter().filter_map(|pod| self.pods.get(pod));
        members.any(|pod| pod.evicting.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::{GangSpec, StageCounts};
    use crate::resource::Demand;

    fn gang(min: usize, total: StageCounts, admitted: bool) -> Gang {
        let spec = GangSpec {
            uid: String::new(),
            min_member: min,
            min_task_member: Default::default(),
            min_resources: Demand::default(),
            queue: "default".into(),
            priority_class: None,
            created: None,
            terms: Default::default(),
            shape: crate::topology::GangShape::default(),
        };
        Gang {
            spec: Some(spec),
            total,
            admitted,
            ..Gang::default()
        }
    }

    #[test]
    fn a_gang_goes_through_the_phases_that_its_members_say() {
        let key = GangKey::group("ns".into(), "g");
        let counts = |pending, bound, running, succeeded, failed| StageCounts {
            pending,
            bound,
            running,
            succeeded,
            failed,
            ..StageCounts::default()
        };
        let table = [
            (counts(0, 0, 0, 0, 0), false, PodGroupPhase::Pending),
            (counts(3, 0, 0, 0, 0), true, PodGroupPhase::Inqueue),
            (counts(0, 3, 0, 0, 0), true, PodGroupPhase::Running),
            (counts(0, 0, 2, 1, 0), true, PodGroupPhase::Running),
            (counts(1, 0, 2, 0, 0), true, PodGroupPhase::Unknown),
            (counts(0, 0, 0, 3, 0), true, PodGroupPhase::Completed),
            (counts(0, 0, 0, 2, 1), true, PodGroupPhase::Completed),
            (counts(0, 0, 0, 0, 1), true, PodGroupPhase::Inqueue),
        ];
        for (total, admitted, want) in table {
            assert_eq!(phase(&key, &gang(3, total, admitted)), want, "{total:?}");
        }
    }
}
