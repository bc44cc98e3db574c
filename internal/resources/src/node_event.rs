//! Events about nodes, as the agent beside a kubelet and the embedded engine's server write them.
//! Pure; `kubectl describe node` finds them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde_json::json;

use crate::times::seconds;

/// The namespace of events about what has none.
pub const NAMESPACE: &str = "default";
/// The longest message, in bytes: what kube-apiserver accepts in an event.
const MESSAGE_MAX: usize = 1024;

/// An event about a node: something to look at, or the ordinary way of things.
#[must_use]
pub fn of(node: &str, warning: bool, reason: &str, message: &str, now: Timestamp) -> Event {
    // Unique without randomness: no two events of a node are told in the same nanosecond.
    let suffix = format!("{:x}", now.as_nanosecond());
    let now = seconds(now);
    let mut end = message.len().min(MESSAGE_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    serde_json::from_value(json!({
        "metadata": {"namespace": NAMESPACE, "name": format!("{node}.{suffix}")},
        // What looks for a node's events asks for its name as the uid, as kubelets write it.
        "involvedObject": {"kind": "Node", "apiVersion": "v1", "name": node, "uid": node},
        "type": if warning { "Warning" } else { "Normal" },
        "reason": reason,
        "message": &message[..end],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": "muster-agent", "host": node},
        "reportingComponent": "muster-agent",
        "reportingInstance": node,
    }))
    .expect("an event made of strings has an event's shape")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_the_node_and_is_short_enough() {
        let at = Timestamp::from_nanosecond(1_500_000_000).unwrap();
        let event = of("n1", true, "AgentSuspects", &"ä".repeat(600), at);
        assert_eq!(event.metadata.name.as_deref(), Some("n1.59682f00"));
        assert_eq!(event.involved_object.uid.as_deref(), Some("n1"));
        assert_eq!(event.message.unwrap().len(), 1024);
        assert_eq!(event.first_timestamp.unwrap().0.as_second(), 1);
    }
}
