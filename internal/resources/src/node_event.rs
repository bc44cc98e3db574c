//! Events about nodes, which the agent beside a kubelet and the embedded engine's server write, and about containers,
//! which that agent writes. Pure; `kubectl describe` shows them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use serde_json::json;

use crate::times::seconds;

/// The namespace of events about cluster-scoped objects.
pub const NAMESPACE: &str = "default";
/// The longest message, in bytes: what kube-apiserver accepts in an event.
const MESSAGE_MAX: usize = 1024;

/// A container that an event is about.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    /// Its pod's namespace.
    pub namespace: &'a str,
    /// Its pod.
    pub pod: &'a str,
    /// Its pod's uid.
    pub uid: &'a str,
    /// Its name; empty for an event about the whole pod.
    pub container: &'a str,
}

/// An event about a node: a warning or a normal event.
#[must_use]
pub fn of(node: &str, warning: bool, reason: &str, message: &str, now: Timestamp) -> Event {
    // Clients that look for a node's events use its name as the uid, as kubelets do.
    let about = json!({"kind": "Node", "apiVersion": "v1", "name": node, "uid": node});
    let kind = if warning { "Warning" } else { "Normal" };
    written(node, NAMESPACE, node, &about, kind, (reason, message), now)
}

/// A warning about a container of a node's pod.
#[must_use]
pub fn of_container(
    node: &str,
    about: &Container<'_>,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Event {
    let Container {
        namespace,
        pod,
        uid,
        container,
    } = about;
    let mut about =
        json!({"kind": "Pod", "apiVersion": "v1", "namespace": namespace, "name": pod, "uid": uid});
    if !container.is_empty() {
        about["fieldPath"] = json!(format!("spec.containers{{{container}}}"));
    }
    written(
        node,
        namespace,
        pod,
        &about,
        "Warning",
        (reason, message),
        now,
    )
}

fn written(
    node: &str,
    namespace: &str,
    name: &str,
    about: &serde_json::Value,
    kind: &str,
    (reason, message): (&str, &str),
    now: Timestamp,
) -> Event {
    // Unique without randomness: no object has two events in the same nanosecond.
    let suffix = format!("{:x}", now.as_nanosecond());
    let now = seconds(now);
    let mut end = message.len().min(MESSAGE_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    serde_json::from_value(json!({
        "metadata": {"namespace": namespace, "name": format!("{name}.{suffix}")},
        "involvedObject": about,
        "type": kind,
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

    #[test]
    fn an_event_about_a_container_is_its_pods() {
        let about = Container {
            namespace: "team",
            pod: "p",
            uid: "u",
            container: "main",
        };
        let at = Timestamp::from_nanosecond(1_500_000_000).unwrap();
        let event = of_container("n1", &about, "OverGpuShare", "too much", at);
        assert_eq!(event.metadata.namespace.as_deref(), Some("team"));
        let object = event.involved_object;
        assert_eq!(object.uid.as_deref(), Some("u"));
        assert_eq!(object.field_path.as_deref(), Some("spec.containers{main}"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));

        let whole = Container {
            container: "",
            ..about
        };
        let event = of_container("n1", &whole, "FailedDevice", "lost", at);
        assert_eq!(event.involved_object.name.as_deref(), Some("p"));
        assert_eq!(event.involved_object.field_path, None);
    }
}
