//! The decisions about silent nodes: when a node counts as lost or returned, and its status and
//! taints then. Pure.
//!
//! Silence is the time that this server was awake and has received no renewal
//! ([`server_clock`](super::server_clock)). Neither the time in the lease counts, which is the node's clock, nor
//! the time that this server was down or stopped, when it could receive none.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The taint of a silent node.
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const EFFECTS: [&str; 2] = ["NoSchedule", "NoExecute"];

/// The verdict on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeVerdict {
    /// Nothing to do.
    Fine,
    /// The node was silent for too long.
    Lost,
    /// The node gave a sign of life after it was lost.
    Returned,
}

/// Judges a node by how long it was silent, and whether it gave any sign of life since this server
/// started watching.
pub(super) fn judge(
    silent: Duration,
    alive: bool,
    grace: Duration,
    taints: &[Taint],
) -> NodeVerdict {
    let marked = taints.iter().any(|taint| taint.key == UNREACHABLE);
    if silent >= grace {
        NodeVerdict::Lost
    } else if marked && alive {
        NodeVerdict::Returned
    } else {
        NodeVerdict::Fine
    }
}

/// A lost node's conditions; none if they are set already.
pub(super) fn lost_conditions(
    conditions: &[NodeCondition],
    now: Timestamp,
) -> Option<Vec<NodeCondition>> {
    let mut conditions = conditions.to_vec();
    let (reason, message) = match conditions.iter().position(|c| c.type_ == "Ready") {
        Some(at) if conditions[at].status == "Unknown" => return None,
        Some(at) => {
            conditions.remove(at);
            ("NodeStatusUnknown", "Agent stopped posting node status.")
        }
        None => ("NodeStatusNeverUpdated", "Agent never posted node status."),
    };
    conditions.push(NodeCondition {
        type_: "Ready".to_owned(),
        status: "Unknown".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    });
    Some(conditions)
}

/// A lost node's taints; none if they are set already.
pub(super) fn lost_taints(taints: &[Taint], now: Timestamp) -> Option<Vec<Taint>> {
    let has = |effect: &str| {
        taints
            .iter()
            .any(|t| t.key == UNREACHABLE && t.effect == effect)
    };
    let missing: Vec<&str> = EFFECTS.into_iter().filter(|effect| !has(effect)).collect();
    if missing.is_empty() {
        return None;
    }
    let new = missing.into_iter().map(|effect| Taint {
        key: UNREACHABLE.to_owned(),
        effect: effect.to_owned(),
        value: None,
        time_added: Some(Time(now)),
    });
    Some(taints.iter().cloned().chain(new).collect())
}

/// A returned node's taints.
pub(super) fn returned_taints(taints: &[Taint]) -> Vec<Taint> {
    let kept = taints.iter().filter(|taint| taint.key != UNREACHABLE);
    kept.cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_700_000_000).unwrap()
    }

    fn ready(status: &str) -> NodeCondition {
        NodeCondition {
            type_: "Ready".to_owned(),
            status: status.to_owned(),
            ..NodeCondition::default()
        }
    }

    #[test]
    fn a_node_is_judged_by_its_silence() {
        let marked = lost_taints(&[], now()).unwrap();
        let cases = [
            // silent, heard, marked, verdict
            (0, true, false, NodeVerdict::Fine),
            (39, true, false, NodeVerdict::Fine),
            (40, true, false, NodeVerdict::Lost),
            (400, false, false, NodeVerdict::Lost),
            (400, false, true, NodeVerdict::Lost),
            (1, true, true, NodeVerdict::Returned),
            // The server just started, and the node was lost before: no sign of life yet.
            (1, false, true, NodeVerdict::Fine),
        ];
        for (silent, alive, is_marked, expected) in cases {
            let taints: &[Taint] = if is_marked { &marked } else { &[] };
            let silent = Duration::from_secs(silent);
            let verdict = judge(silent, alive, Duration::from_secs(40), taints);
            assert_eq!(verdict, expected, "{silent:?} {alive} {is_marked}");
        }
    }

    #[test]
    fn a_lost_node_is_unknown_once() {
        let lost = lost_conditions(&[ready("True")], now()).unwrap();
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].status, "Unknown");
        assert_eq!(lost[0].reason.as_deref(), Some("NodeStatusUnknown"));
        assert_eq!(lost_conditions(&lost, now()), None);
        let never = lost_conditions(&[], now()).unwrap();
        assert_eq!(never[0].reason.as_deref(), Some("NodeStatusNeverUpdated"));
    }

    #[test]
    fn a_nodes_own_taints_outlast_its_loss() {
        let own = Taint {
            key: "team".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        let lost = lost_taints(std::slice::from_ref(&own), now()).unwrap();
        assert_eq!(lost.len(), 3);
        assert_eq!(lost_taints(&lost, now()), None);
        // A taint that another client removed is added again.
        assert_eq!(lost_taints(&lost[..2], now()).map(|t| t.len()), Some(3));
        assert_eq!(returned_taints(&lost), [own]);
    }
}
