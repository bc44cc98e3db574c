//! The list of conditions: one per type, the newest last, with the kind's rules for which types
//! exclude each other. A Failed condition is never removed.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::kinds::{JobCondition, JobConditionType, TrainingJobStatus};

pub(crate) fn is_true(status: &TrainingJobStatus, type_: JobConditionType) -> bool {
    status
        .conditions
        .iter()
        .any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// Sets one condition; its reason is the kind's name and `word`. Returns whether anything changed.
pub(crate) fn set(
    kind: &str,
    status: &mut TrainingJobStatus,
    type_: JobConditionType,
    holds: bool,
    word: &str,
    message: &str,
    now: Timestamp,
) -> bool {
    if is_true(status, JobConditionType::Failed) {
        return false;
    }
    let truth = if holds { "True" } else { "False" };
    let reason = format!("{}{word}", kind);
    let known = status
        .conditions
        .iter()
        .find(|condition| condition.type_ == type_);
    let same_truth = known.filter(|known| known.status == truth);
    // A restart that follows another one before the job ran is told, too.
    let is_same = |known: &JobCondition| {
        known.reason.as_deref() == Some(reason.as_str())
            && (type_ != JobConditionType::Restarting || known.message.as_deref() == Some(message))
    };
    if same_truth.is_some_and(is_same) {
        return false;
    }
    let changed_at = same_truth.and_then(|known| known.last_transition_time.clone());
    let condition = JobCondition {
        type_,
        status: truth.to_owned(),
        reason: Some(reason),
        message: Some(message.to_owned()),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(changed_at.unwrap_or(Time(now))),
    };
    make_room(status, type_, holds, now);
    status.conditions.push(condition);
    true
}

/// Removes the conditions that the new one replaces or excludes.
fn make_room(status: &mut TrainingJobStatus, type_: JobConditionType, holds: bool, now: Timestamp) {
    use JobConditionType::{Failed, Restarting, Running, Succeeded, Suspended};
    status.conditions.retain(|known| known.type_ != type_);
    if !holds {
        return;
    }
    match type_ {
        Running => status.conditions.retain(|known| known.type_ != Restarting),
        Restarting => status.conditions.retain(|known| known.type_ != Running),
        Failed | Succeeded | Suspended => {
            status.conditions.retain(|known| known.type_ != Restarting);
            for known in &mut status.conditions {
                if known.type_ == Running && known.status != "False" {
                    known.status = "False".to_owned();
                    known.last_update_time = Some(Time(now));
                    known.last_transition_time = Some(Time(now));
                }
            }
        }
        JobConditionType::Created => {}
    }
}
