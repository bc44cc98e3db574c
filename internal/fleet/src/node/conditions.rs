//! The Ready condition of a node whose agent is connected.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use resources::times::seconds;
use serde_json::{Value, json};

pub(super) fn is_ready(node: &Node) -> bool {
    node.status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The node's conditions with Ready=True; the others are unchanged.
pub(super) fn conditions(node: &Node, now: Timestamp) -> Vec<Value> {
    let current = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    let since = current
        .iter()
        .find(|condition| condition.type_ == "Ready" && condition.status == "True")
        .and_then(|condition| condition.last_transition_time.as_ref())
        .map_or(now, |time| time.0);
    let mut all: Vec<Value> = current
        .iter()
        .filter(|condition| condition.type_ != "Ready")
        .filter_map(|condition| serde_json::to_value(condition).ok())
        .collect();
    all.push(json!({
        "type": "Ready",
        "status": "True",
        "reason": "AgentReady",
        "message": "the node's agent is connected and reports ready",
        "lastHeartbeatTime": seconds(now),
        "lastTransitionTime": seconds(since),
    }));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_conditions_stay_and_ready_keeps_its_time() {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},
            {"type": "DiskPressure", "status": "False"},
        ]}}))
        .unwrap();
        let all = conditions(&node, Timestamp::from_second(2_000_000_000).unwrap());
        assert_eq!(all.len(), 2);
        assert_eq!(all[0]["type"], "DiskPressure");
        assert_eq!(all[1]["lastTransitionTime"], "2020-01-01T00:00:00Z");
        assert!(is_ready(&node));
    }
}
