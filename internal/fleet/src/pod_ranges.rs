//! Which node has which part of the range of all pods (`--pod-cidr`), and what a node's condition says about it. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use resources::pod_ranges::Ipv4Range;
use resources::services::addresses::ServiceRange;
use serde_json::{Value, json};

/// Kubernetes' condition of a node whose pods get no network.
const CONDITION: &str = "NetworkUnavailable";

/// The ranges of nodes.
pub struct PodRanges {
    /// The range of all pods.
    pub cluster: Ipv4Range,
    /// The range of Services' addresses; none if Services have none.
    pub services: Option<ServiceRange>,
    /// One node gets a range at a time.
    pub allotting: tokio::sync::Mutex<()>,
}

impl PodRanges {
    /// Gives nodes parts of `cluster`.
    pub fn new(cluster: Ipv4Range, services: Option<ServiceRange>) -> PodRanges {
        PodRanges {
            cluster,
            services,
            allotting: tokio::sync::Mutex::new(()),
        }
    }
}

/// The range of a node, if it has one.
pub fn range_of(node: &Node) -> Option<Ipv4Range> {
    node.spec.as_ref()?.pod_cidr.as_deref()?.parse().ok()
}

/// The range that node `name` gets: the one that it has, if it may keep it, else a free one; `None` if there is none.
pub fn choose(cluster: Ipv4Range, name: &str, nodes: &[Node]) -> Option<Ipv4Range> {
    let is_it = |node: &&Node| node.metadata.name.as_deref() == Some(name);
    let others = nodes.iter().filter(|node| !is_it(node));
    let taken: BTreeSet<Ipv4Range> = others.filter_map(range_of).collect();
    let had = nodes.iter().find(is_it).and_then(range_of);
    cluster.allot(&taken, had)
}

/// What the condition is to say: whether the network is missing, the reason and the message.
pub type NetworkState = (bool, &'static str, String);

/// The node's conditions with the one about its pods' networks; `None` if nothing changes.
pub fn conditions(node: &Node, wanted: Option<NetworkState>, now: Timestamp) -> Option<Vec<Value>> {
    let all = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.clone());
    let all = all.unwrap_or_default();
    let before = all.iter().find(|condition| condition.type_ == CONDITION);
    let same = match (&wanted, before) {
        (None, None) => true,
        (Some((missing, _, message)), Some(before)) => {
            before.message.as_deref() == Some(message.as_str())
                && (before.status == "True") == *missing
        }
        _ => false,
    };
    if same {
        return None;
    }
    let others = all.iter().filter(|condition| condition.type_ != CONDITION);
    let others = others.filter_map(|one| serde_json::to_value(one).ok());
    let mut next: Vec<Value> = others.collect();
    next.extend(wanted.map(|(missing, reason, message)| {
        json!({
            "type": CONDITION,
            "status": if missing { "True" } else { "False" },
            "reason": reason,
            "message": message,
            "lastTransitionTime": resources::times::seconds(now),
        })
    }));
    Some(next)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;
    use crate::index::{Index, Touched};

    fn node(name: &str, range: Option<&str>) -> Node {
        let node = json!({"metadata": {"name": name}, "spec": {"podCIDR": range}});
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn a_node_keeps_its_range_and_a_new_one_gets_the_first_free() {
        let nodes = [
            node("a", Some("10.244.1.0/24")),
            node("b", Some("10.244.0.0/24")),
            node("c", None),
        ];
        let of = |cluster: &str, name: &str, nodes: &[Node]| {
            let range = choose(cluster.parse().unwrap(), name, nodes);
            range.map(|range| range.to_string())
        };
        let expected = [("a", "10.244.1.0/24"), ("c", "10.244.2.0/24")];
        for (name, range) in expected {
            assert_eq!(of("10.244.0.0/22", name, &nodes).as_deref(), Some(range));
        }
        // Its range is of an earlier --pod-cidr.
        let moved = of("10.9.0.0/24", "a", &nodes);
        assert_eq!(moved.as_deref(), Some("10.9.0.0/24"));
        let full = [node("a", Some("10.9.0.0/24"))];
        assert_eq!(of("10.9.0.0/24", "b", &full), None);
    }

    #[test]
    fn the_condition_is_written_on_a_change_and_removed_when_pods_share_the_nodes_network() {
        let now = Timestamp::UNIX_EPOCH;
        let mut node = node("a", None);
        assert_eq!(conditions(&node, None, now), None);
        let state = || Some((false, "PodNetwork", "in 10.244.0.0/24".to_owned()));
        let written = conditions(&node, state(), now).unwrap();
        assert_eq!(written[0]["status"], "False");
        node.status = serde_json::from_value(json!({"conditions": written})).unwrap();
        assert_eq!(conditions(&node, state(), now), None);
        let missing = Some((true, "NoPodRange", "none".to_owned()));
        let missing = conditions(&node, missing, now).unwrap();
        assert_eq!((missing.len(), &missing[0]["status"]), (1, &json!("True")));
        assert_eq!(conditions(&node, None, now), Some(Vec::new()));
    }

    #[test]
    fn every_node_with_a_range_gets_the_ways_to_the_others() {
        let mut index = Index::default();
        let at = |name: &str, range: Option<&str>, address: &str| {
            let mut node = node(name, range);
            let addresses = json!({"addresses": [{"type": "InternalIP", "address": address}]});
            node.status = serde_json::from_value(addresses).unwrap();
            node
        };
        let names = |touched: Touched| touched.nodes.into_iter().collect::<Vec<_>>().join(" ");
        let cluster = "10.244.0.0/16".parse().unwrap();
        index.put_node(&at("a", Some("10.244.0.0/24"), "192.0.2.1"));
        assert_eq!(names(index.put_node(&at("c", None, "192.0.2.3"))), "");
        let b = at("b", Some("10.244.1.0/24"), "192.0.2.2");
        assert_eq!(names(index.put_node(&b)), "a b");
        assert_eq!(names(index.put_node(&b)), "");
        let network = index.pod_network("a", cluster, None).unwrap();
        assert_eq!(network.node_range, "10.244.0.0/24");
        let routes = network
            .routes
            .iter()
            .map(|route| format!("{} {}", route.range, route.address));
        assert_eq!(routes.collect::<Vec<_>>(), ["10.244.1.0/24 192.0.2.2"]);
        assert_eq!(index.pod_network("c", cluster, None), None);

        // A pod's name stands for the node's address only where the pod has none of its own.
        let pod = |node: &str, on_host: bool| -> Pod {
            let spec = json!({"nodeName": node, "hostNetwork": on_host, "containers": []});
            serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
        };
        assert_eq!(index.address_of(&pod("a", false)), None);
        assert_eq!(
            index.address_of(&pod("a", true)).as_deref(),
            Some("192.0.2.1")
        );
        assert_eq!(
            index.address_of(&pod("c", false)).as_deref(),
            Some("192.0.2.3")
        );
        assert_eq!(names(index.remove_node("b")), "a");
        assert!(
            index
                .pod_network("a", cluster, None)
                .unwrap()
                .routes
                .is_empty()
        );
    }
}
