//! The statuses and conditions of PodGroups and pods, and the objects of their events. Turns the
//! scheduler's updates into patches and writes them when the loop asks.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use resources::kinds::{PodGroup, PodGroupStatus};
use resources::times::seconds;
use scheduler::{GroupCondition, GroupRef, GroupUpdate, PodRef};
use serde_json::{Value, json};

use crate::event_recorder::EventType;

/// Since when each condition of each PodGroup holds.
#[derive(Default)]
pub(super) struct Transitions(BTreeMap<GroupRef, BTreeMap<String, (bool, Timestamp)>>);

impl Transitions {
    /// Records the conditions in the API.
    pub(super) fn see(&mut self, group: &PodGroup) {
        let Some(PodGroupStatus { conditions, .. }) = &group.status else {
            return;
        };
        let known = self.0.entry(group_ref(group)).or_default();
        for condition in conditions {
            if let Some(time) = &condition.last_transition_time {
                let fresh = (condition.status == "True", time.0);
                known.entry(condition.type_.clone()).or_insert(fresh);
            }
        }
    }

    pub(super) fn forget(&mut self, group: &GroupRef) {
        self.0.remove(group);
    }

    /// Since when the condition has had its current state.
    fn since(&mut self, group: &GroupRef, condition: &GroupCondition, now: Timestamp) -> Timestamp {
        let known = self.0.entry(group.clone()).or_default();
        let entry = known
            .entry(condition.kind.clone())
            .or_insert((condition.status, now));
        if entry.0 != condition.status {
            *entry = (condition.status, now);
        }
        entry.1
    }

    /// The status patch for an update.
    pub(super) fn patch(&mut self, update: &GroupUpdate, now: Timestamp) -> Value {
        let conditions: Vec<Value> = update
            .conditions
            .iter()
            .map(|condition| {
                json!({
                    "type": condition.kind,
                    "status": if condition.status { "True" } else { "False" },
                    "reason": condition.reason,
                    "message": condition.message,
                    "lastTransitionTime": seconds(self.since(&update.group, condition, now)),
                })
            })
            .collect();
        json!({
            // The uid excludes another PodGroup of the same name.
            "metadata": {"uid": update.uid},
            "status": {
                "phase": update.phase,
                "conditions": conditions,
                "running": update.running,
                "succeeded": update.succeeded,
                "failed": update.failed,
            },
        })
    }
}

/// The scheduler's name for a PodGroup.
pub(super) fn group_ref(group: &PodGroup) -> GroupRef {
    let meta = &group.metadata;
    GroupRef {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        lone: false,
    }
}

/// Whether a new status must go out at once: if anything but a message's wording changed.
pub(super) fn is_news(old: &GroupUpdate, new: &GroupUpdate) -> bool {
    let facts = |update: &GroupUpdate| -> Vec<(String, bool, String)> {
        let all = update.conditions.iter();
        all.map(|c| (c.kind.clone(), c.status, c.reason.clone()))
            .collect()
    };
    old.uid != new.uid
        || old.phase != new.phase
        || (old.succeeded, old.failed) != (new.succeeded, new.failed)
        || facts(old) != facts(new)
}

/// The message of the group's condition, if that says that the group cannot be placed.
pub(super) fn complaint(update: &GroupUpdate) -> Option<&str> {
    let unschedulable = |c: &&GroupCondition| c.kind == "Unschedulable" && c.status;
    update
        .conditions
        .iter()
        .find(unschedulable)
        .map(|c| c.message.as_str())
}

/// The event about the PodGroup: its kind, reason and message.
pub(super) fn words(update: &GroupUpdate) -> (EventType, &'static str, String) {
    if let Some(complaint) = complaint(update) {
        return (EventType::Warning, "Unschedulable", complaint.to_owned());
    }
    let whole = |c: &GroupCondition| c.kind == "Scheduled" && c.status;
    match update.conditions.iter().any(whole) {
        true => (
            EventType::Normal,
            "Scheduled",
            "the gang has its minimum of members".to_owned(),
        ),
        false => (EventType::Normal, "", String::new()),
    }
}

/// Writes a PodGroup's status. A PodGroup that is gone needs none.
pub(super) async fn write_group(
    client: Client,
    group: GroupRef,
    patch: Value,
) -> Result<(), kube::Error> {
    let api: Api<PodGroup> = Api::namespaced(client, &group.namespace);
    let params = PatchParams::default();
    ignore_gone(
        api.patch_status(&group.name, &params, &Patch::Merge(patch))
            .await,
    )
}

/// Writes on a pod why it waits. A pod that is gone needs no condition.
pub(super) async fn write_pod(
    client: Client,
    pod: PodRef,
    message: String,
) -> Result<(), kube::Error> {
    let patch = json!({
        "metadata": {"uid": pod.uid},
        "status": {"conditions": [{
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": seconds(Timestamp::now()),
        }]},
    });
    let api: Api<Pod> = Api::namespaced(client, &pod.namespace);
    let params = PatchParams::default();
    ignore_gone(
        api.patch_status(&pod.name, &params, &Patch::Strategic(patch))
            .await,
    )
}

/// An object that is gone, or replaced by another of the same name, is no failure of the write.
fn ignore_gone<T>(answer: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match answer {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(()),
        answer => answer.map(|_| ()),
    }
}

/// The reference to a pod for events.
pub(super) fn about_pod(pod: &PodRef) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

/// The reference to a PodGroup for events.
pub(super) fn about_group(group: &GroupRef, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("scheduling.volcano.sh/v1beta1".to_owned()),
        kind: Some("PodGroup".to_owned()),
        namespace: Some(group.namespace.clone()),
        name: Some(group.name.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use resources::kinds::PodGroupPhase;

    use super::*;

    fn update(status: bool, message: &str) -> GroupUpdate {
        GroupUpdate {
            group: GroupRef {
                namespace: "ns".into(),
                name: "g".into(),
                lone: false,
            },
            uid: "u".into(),
            phase: PodGroupPhase::Inqueue,
            conditions: vec![GroupCondition {
                kind: "Unschedulable".into(),
                status,
                reason: "NotEnoughResources".into(),
                message: message.into(),
            }],
            running: 0,
            succeeded: 0,
            failed: 0,
        }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let mut transitions = Transitions::default();
        let time = |patch: &Value| patch["status"]["conditions"][0]["lastTransitionTime"].clone();
        let first = transitions.patch(&update(true, "a"), at("2026-01-01T00:00:00.5Z"));
        assert_eq!(time(&first), "2026-01-01T00:00:00Z");
        let second = transitions.patch(&update(true, "b"), at("2026-01-01T00:01:00Z"));
        assert_eq!(time(&second), "2026-01-01T00:00:00Z");
        let third = transitions.patch(&update(false, "b"), at("2026-01-01T00:02:00Z"));
        assert_eq!(time(&third), "2026-01-01T00:02:00Z");
        assert_eq!(third["metadata"]["uid"], "u");
        assert_eq!(third["status"]["phase"], "Inqueue");
    }

    #[test]
    fn another_wording_alone_is_no_news() {
        assert!(!is_news(&update(true, "a"), &update(true, "b")));
        assert!(is_news(&update(true, "a"), &update(false, "a")));
        assert_eq!(complaint(&update(true, "a")), Some("a"));
        assert_eq!(complaint(&update(false, "a")), None);
    }
}
