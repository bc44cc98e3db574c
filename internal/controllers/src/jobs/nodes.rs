//! The nodes' labels and taints, which decide where a DaemonSet's pods belong.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use kube::runtime::watcher::Event;
use workloads::apps::daemonset::NodeFacts;

/// The nodes by name, as last seen.
pub(crate) struct NodeCache {
    nodes: BTreeMap<String, NodeFacts>,
    /// During a listing, what it has shown so far.
    listing: BTreeMap<String, NodeFacts>,
    complete: bool,
}

fn facts(node: Node) -> (String, NodeFacts) {
    let facts = NodeFacts {
        labels: node.metadata.labels.unwrap_or_default(),
        taints: node.spec.and_then(|spec| spec.taints).unwrap_or_default(),
    };
    (node.metadata.name.unwrap_or_default(), facts)
}

impl NodeCache {
    pub(crate) fn new() -> NodeCache {
        NodeCache {
            nodes: BTreeMap::new(),
            listing: BTreeMap::new(),
            complete: false,
        }
    }

    /// Whether all nodes were listed once.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(crate) fn all(&self) -> &BTreeMap<String, NodeFacts> {
        &self.nodes
    }

    /// Applies one event. Returns whether labels or taints changed; a heartbeat changes neither.
    pub(crate) fn take(&mut self, event: Event<Node>) -> bool {
        match event {
            Event::Init => {
                self.listing.clear();
                false
            }
            Event::InitApply(node) => {
                let (name, facts) = facts(node);
                self.listing.insert(name, facts);
                false
            }
            Event::InitDone => {
                self.complete = true;
                let listed = std::mem::take(&mut self.listing);
                let changed = listed != self.nodes;
                self.nodes = listed;
                changed
            }
            Event::Apply(node) => {
                let (name, facts) = facts(node);
                let before = self.nodes.insert(name.clone(), facts);
                before.as_ref() != self.nodes.get(&name)
            }
            Event::Delete(node) => {
                let (name, _) = facts(node);
                self.nodes.remove(&name).is_some()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, labels: Value, heartbeat: &str) -> Node {
        let conditions =
            json!([{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]);
        let node = json!({"metadata": {"name": name, "labels": labels}, "status": {"conditions": conditions}});
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn a_heartbeat_is_no_change_and_a_label_is() {
        let mut cache = NodeCache::new();
        let first = "2026-01-01T00:00:00Z";
        cache.take(Event::Init);
        assert!(!cache.take(Event::InitApply(node("a", json!({}), first))));
        assert!(!cache.is_complete() && cache.all().is_empty());
        assert!(cache.take(Event::InitDone) && cache.is_complete());
        assert!(!cache.take(Event::Apply(node("a", json!({}), "2026-01-01T00:00:09Z"))));
        assert!(cache.take(Event::Apply(node("a", json!({"k": "v"}), first))));
        assert!(cache.take(Event::Delete(node("a", json!({}), first))));
        assert!(!cache.take(Event::Delete(node("a", json!({}), first))));
    }
}
