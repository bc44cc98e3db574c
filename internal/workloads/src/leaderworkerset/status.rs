//! A LeaderWorkerSet's status: its groups counted, and its conditions with upstream's reasons and messages.

use jiff::Timestamp;
use resources::kinds::LeaderWorkerSetStatus;
use resources::leader_worker_set::{NAME, WORKER_INDEX};

use super::groups::{Group, Groups};
use super::plan::ParsedSet;
use crate::action::{EventNote, ReconcileOutcome};
use crate::ray::set_condition;

const AVAILABLE: (&str, &str, &str) = ("Available", "AllGroupsReady", "All replicas are ready");
const PROGRESSING: (&str, &str, &str) = (
    "Progressing",
    "GroupsProgressing",
    "Replicas are progressing",
);
const UPDATING: (&str, &str, &str) = (
    "UpdateInProgress",
    "GroupsUpdating",
    "Rolling Upgrade is in progress",
);

/// Writes the counts and the conditions.
pub(crate) fn write(
    set: &ParsedSet<'_>,
    groups: &Groups<'_>,
    current: &str,
    outcome: &mut ReconcileOutcome<LeaderWorkerSetStatus>,
    now: Timestamp,
) {
    let count = |takes: &dyn Fn(&Group<'_>) -> bool| {
        let found = groups.all().filter(|group| takes(group)).count();
        u32::try_from(found).unwrap_or(u32::MAX)
    };
    let number = |count: u32| i32::try_from(count).unwrap_or(i32::MAX);
    let some = |count: u32| (count > 0).then(|| number(count));
    let ready = count(&|group| group.is_ready());
    let status = &mut outcome.status;
    status.observed_generation = set.meta.generation;
    status.replicas = some(count(&|group| group.pod(0).is_some()));
    status.ready_replicas = some(ready);
    status.updated_replicas = some(count(&|group| group.has(current)));
    status.hpa_pod_selector = Some(format!("{NAME}={},{WORKER_INDEX}=0", set.name));

    let below = |group: &Group<'_>| group.index < set.replicas;
    let moving = |group: &Group<'_>| below(group) && group.index >= set.partition;
    let present = count(&|group| moving(group));
    let updated = count(&|group| moving(group) && group.has(current));
    let done = count(&|group| moving(group) && group.has(current) && group.is_ready());
    let serving = count(&|group| below(group) && group.is_ready());
    let updating = updated < present;
    let available = !updating && serving == set.replicas && done == present;
    let before = outcome.status.conditions.clone();
    for ((type_, reason, message), holds) in [
        (AVAILABLE, available),
        (PROGRESSING, !available),
        (UPDATING, updating),
    ] {
        let known = before.iter().any(|one| one.type_ == type_);
        if holds || known {
            let list = &mut outcome.status.conditions;
            let changed = set_condition(list, type_, holds, reason, message, now);
            if changed && holds {
                let note = format!(
                    "{message}, with {ready} groups ready of total {} groups",
                    set.replicas
                );
                outcome.events.push(EventNote::normal(reason, note));
            }
        }
    }
}
