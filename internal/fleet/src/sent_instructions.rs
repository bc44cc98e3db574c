//! The state that one session has sent to its agent, and the difference that is still to be sent.
//! Pure: it compares the node's pods with the earlier instructions and returns the next ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use resources::names::NODE_LOST;
use rpc::agent::v1::{HeldPod, Stop};

/// Grace for a pod whose object is already gone: its deletion was forced.
const GRACE_OF_THE_DELETED: u32 = 2;

/// Kubernetes' default for spec.terminationGracePeriodSeconds.
const DEFAULT_GRACE: i64 = 30;

/// An instruction for the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum Instruction {
    /// Run this pod.
    Assign(Arc<Pod>),
    /// Stop this pod.
    Stop(Stop),
    /// The pod is no longer among the node's pods. The session verifies that, then stops the pod.
    Vanished {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
}

#[derive(Debug, Clone, PartialEq, Default)]
struct SentInstruction {
    namespace: String,
    name: String,
    assigned: bool,
    /// The shortest grace that a Stop was sent with.
    stopping: Option<u32>,
    /// The agent reported that the pod ended on its own.
    finished: bool,
    /// The agent has removed the pod completely.
    gone: bool,
}

/// The instructions sent in one session.
#[derive(Debug, Default)]
pub struct SentInstructions {
    by_uid: BTreeMap<String, SentInstruction>,
}

impl SentInstructions {
    /// Starts from the pods that the agent reports. Pods that it should not have are stopped before
    /// any other instruction; pods that it should have are assigned again by [`SentInstructions::review`],
    /// which is harmless.
    pub fn open(held: &[HeldPod], pods: &[Arc<Pod>]) -> (SentInstructions, Vec<Stop>) {
        let mut instructions = SentInstructions::default();
        let mut stops = Vec::new();
        let assigned: BTreeMap<&str, &Arc<Pod>> = pods
            .iter()
            .filter_map(|pod| Some((pod.metadata.uid.as_deref()?, pod)))
            .collect();
        for held in held {
            let verdict = match assigned.get(held.uid.as_str()) {
                None => Some("the pod is no longer assigned to this node".to_owned()),
                Some(pod) if held.running => ended(pod).map(|reason| {
                    format!("the pod was declared ended while the node was away ({reason})")
                }),
                Some(_) => None,
            };
            let sent = instructions
                .by_uid
                .entry(held.uid.clone())
                .or_insert_with(|| SentInstruction {
                    namespace: held.namespace.clone(),
                    name: held.name.clone(),
                    finished: !held.running,
                    ..SentInstruction::default()
                });
            if let Some(reason) = verdict {
                sent.stopping = Some(GRACE_OF_THE_DELETED);
                stops.push(Stop {
                    namespace: held.namespace.clone(),
                    name: held.name.clone(),
                    uid: held.uid.clone(),
                    grace_seconds: GRACE_OF_THE_DELETED,
                    fence: true,
                    reason,
                });
            }
        }
        (instructions, stops)
    }

    /// Compares the pods now bound to the node with the instructions sent.
    pub fn review(&mut self, pods: &[Arc<Pod>]) -> Vec<Instruction> {
        let mut next = Vec::new();
        let mut present = BTreeSet::new();
        for pod in pods {
            let Some(uid) = pod.metadata.uid.as_deref() else {
                continue;
            };
            present.insert(uid);
            if let Some(instruction) = self.review_one(uid, pod) {
                next.push(instruction);
            }
        }
        for (uid, sent) in &self.by_uid {
            if !present.contains(uid.as_str()) && !sent.gone && sent.stopping.is_none() {
                next.push(Instruction::Vanished {
                    namespace: sent.namespace.clone(),
                    name: sent.name.clone(),
                    uid: uid.clone(),
                });
            }
        }
        // Entries of pods that the agent has removed and the node no longer has are dropped.
        self.by_uid
            .retain(|uid, sent| present.contains(uid.as_str()) || !sent.gone);
        next
    }

    /// The Stop for a vanished pod, after its absence was confirmed.
    pub fn confirm_vanished(&mut self, uid: &str) -> Option<Stop> {
        let sent = self.by_uid.get_mut(uid)?;
        sent.stopping = Some(GRACE_OF_THE_DELETED);
        Some(Stop {
            namespace: sent.namespace.clone(),
            name: sent.name.clone(),
            uid: uid.to_owned(),
            grace_seconds: GRACE_OF_THE_DELETED,
            fence: false,
            reason: "the pod was deleted".to_owned(),
        })
    }

    /// The agent reported a pod's phase.
    pub fn reported(&mut self, uid: &str, phase: &str) {
        if let Some(sent) = self.by_uid.get_mut(uid) {
            sent.finished = matches!(phase, "Succeeded" | "Failed");
        }
    }

    /// The agent has removed the pod completely.
    pub fn gone(&mut self, uid: &str) {
        if let Some(sent) = self.by_uid.get_mut(uid) {
            sent.gone = true;
        }
    }

    /// True if the agent was instructed to run this pod and may still have it.
    pub fn has(&self, uid: &str) -> bool {
        self.by_uid
            .get(uid)
            .is_some_and(|sent| sent.assigned && !sent.gone && sent.stopping.is_none())
    }

    fn review_one(&mut self, uid: &str, pod: &Arc<Pod>) -> Option<Instruction> {
        let sent = self
            .by_uid
            .entry(uid.to_owned())
            .or_insert_with(|| SentInstruction {
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                name: pod.metadata.name.clone().unwrap_or_default(),
                ..SentInstruction::default()
            });
        if sent.gone {
            return None;
        }
        let deleting = pod.metadata.deletion_timestamp.is_some();
        let wanted = if deleting {
            Some((grace_of(pod), "the pod is being deleted".to_owned()))
        } else {
            match ended(pod) {
                // The API shows the pod as ended although the agent may still run it.
                Some(reason) if sent.assigned && !sent.finished => Some((
                    GRACE_OF_THE_DELETED,
                    format!("the pod was declared ended ({reason})"),
                )),
                // Ended, with nothing to run: never assigned (again).
                Some(_) => return None,
                None => None,
            }
        };
        if let Some((grace_seconds, reason)) = wanted {
            if sent.stopping.is_some_and(|grace| grace <= grace_seconds) {
                return None;
            }
            sent.stopping = Some(grace_seconds);
            return Some(Instruction::Stop(Stop {
                namespace: sent.namespace.clone(),
                name: sent.name.clone(),
                uid: uid.to_owned(),
                grace_seconds,
                fence: !deleting,
                reason,
            }));
        }
        if sent.assigned || sent.stopping.is_some() {
            return None;
        }
        sent.assigned = true;
        Some(Instruction::Assign(pod.clone()))
    }
}

/// Why a pod counts as ended, if the API shows that.
fn ended(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let phase = status.phase.as_deref()?;
    matches!(phase, "Succeeded" | "Failed")
        .then(|| status.reason.clone().unwrap_or_else(|| phase.to_owned()))
}

/// True if the pod was declared lost together with its node.
pub fn is_lost(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .is_some_and(|status| status.reason.as_deref() == Some(NODE_LOST))
}

/// The grace of a pod that is being deleted, in seconds.
fn grace_of(pod: &Pod) -> u32 {
    let seconds = pod
        .metadata
        .deletion_grace_period_seconds
        .or_else(|| pod.spec.as_ref()?.termination_grace_period_seconds)
        .unwrap_or(DEFAULT_GRACE);
    u32::try_from(seconds.max(0)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(uid: &str, status: Value, deleting: Option<i64>) -> Arc<Pod> {
        let mut value = json!({
            "metadata": {"namespace": "ns", "name": uid, "uid": uid},
            "spec": {"nodeName": "n", "containers": []},
            "status": status,
        });
        if let Some(grace) = deleting {
            value["metadata"]["deletionTimestamp"] = json!("2025-01-01T00:00:00Z");
            value["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        }
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn held(uid: &str, running: bool) -> HeldPod {
        HeldPod {
            namespace: "ns".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            running,
        }
    }

    fn running(uid: &str) -> Arc<Pod> {
        pod(uid, json!({"phase": "Running"}), None)
    }

    fn stop_of(instruction: &Instruction) -> &Stop {
        match instruction {
            Instruction::Stop(stop) => stop,
            other => panic!("{other:?} is not a Stop"),
        }
    }

    #[test]
    fn a_pod_is_assigned_once() {
        let (mut instructions, stops) = SentInstructions::open(&[], &[]);
        assert!(stops.is_empty());
        let pods = [running("a")];
        assert_eq!(
            instructions.review(&pods),
            [Instruction::Assign(pods[0].clone())]
        );
        assert_eq!(instructions.review(&pods), []);
        assert!(instructions.has("a"));
    }

    #[test]
    fn what_a_returning_node_should_not_run_is_fenced_before_all_else() {
        let lost = pod(
            "lost",
            json!({"phase": "Failed", "reason": "NodeLost"}),
            None,
        );
        let kept = running("kept");
        let pods = [lost, kept.clone()];
        let all_held = [
            held("lost", true),
            held("kept", true),
            held("foreign", true),
        ];
        let (mut instructions, stops) = SentInstructions::open(&all_held, &pods);
        let fenced: Vec<_> = stops.iter().map(|s| (s.uid.as_str(), s.fence)).collect();
        assert_eq!(fenced, [("lost", true), ("foreign", true)]);
        assert!(stops[0].reason.contains("NodeLost"));
        assert_eq!(instructions.review(&pods), [Instruction::Assign(kept)]);
    }

    #[test]
    fn a_pod_that_ended_while_away_by_itself_is_left_to_be_reported() {
        let pods = [running("a")];
        let (mut instructions, stops) = SentInstructions::open(&[held("a", false)], &pods);
        assert!(stops.is_empty());
        assert_eq!(instructions.review(&pods).len(), 1);
        instructions.reported("a", "Succeeded");
        let ended = [pod("a", json!({"phase": "Succeeded"}), None)];
        assert_eq!(instructions.review(&ended), []);
    }

    #[test]
    fn a_pod_declared_ended_by_another_component_is_stopped() {
        let (mut instructions, _) = SentInstructions::open(&[], &[]);
        instructions.review(&[running("a")]);
        instructions.reported("a", "Running");
        let next = instructions.review(&[pod("a", json!({"phase": "Failed"}), None)]);
        assert_eq!(stop_of(&next[0]).uid, "a");
        assert!(!instructions.has("a"));
    }

    #[test]
    fn an_ended_pod_that_this_session_never_ran_is_never_assigned() {
        let (mut instructions, _) = SentInstructions::open(&[], &[]);
        let pods = [pod("a", json!({"phase": "Failed"}), None)];
        assert_eq!(instructions.review(&pods), []);
    }

    #[test]
    fn a_stop_is_sent_with_its_grace_and_again_only_when_shorter() {
        let (mut instructions, _) = SentInstructions::open(&[], &[]);
        instructions.review(&[running("a")]);
        let deleting = |grace| [pod("a", json!({"phase": "Running"}), Some(grace))];
        let next = instructions.review(&deleting(30));
        assert_eq!(stop_of(&next[0]).grace_seconds, 30);
        assert_eq!(instructions.review(&deleting(30)), []);
        assert_eq!(
            stop_of(&instructions.review(&deleting(0))[0]).grace_seconds,
            0
        );
        instructions.gone("a");
        assert_eq!(instructions.review(&deleting(0)), []);
    }

    #[test]
    fn a_pod_deleted_before_the_agent_knew_it_is_stopped_and_not_started() {
        let (mut instructions, _) = SentInstructions::open(&[], &[]);
        let next = instructions.review(&[pod("a", json!({}), Some(30))]);
        assert_eq!(stop_of(&next[0]).uid, "a");
        assert_eq!(next.len(), 1);
    }

    #[test]
    fn a_pod_whose_object_went_is_stopped_once_that_is_confirmed() {
        let (mut instructions, _) = SentInstructions::open(&[], &[]);
        instructions.review(&[running("a")]);
        let next = instructions.review(&[]);
        assert!(matches!(&next[0], Instruction::Vanished { uid, .. } if uid == "a"));
        assert_eq!(instructions.confirm_vanished("a").unwrap().uid, "a");
        assert_eq!(instructions.review(&[]), []);
        instructions.gone("a");
        instructions.review(&[]);
        assert!(instructions.by_uid.is_empty());
    }

    #[test]
    fn a_pod_of_the_same_name_with_another_uid_is_another_pod() {
        let (mut instructions, _) = SentInstructions::open(&[], &[]);
        instructions.review(&[running("old")]);
        let next = instructions.review(&[running("new")]);
        assert!(
            matches!(&next[0], Instruction::Assign(pod) if pod.metadata.uid.as_deref() == Some("new"))
        );
        assert!(matches!(&next[1], Instruction::Vanished { uid, .. } if uid == "old"));
    }
}
