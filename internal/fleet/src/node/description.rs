//! What an agent's Hello says about its node, and the labels that follow from it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use resources::admission::is_reserved_node_label;
use resources::devices::{NodeInventory, inventory};
use resources::names::{POD_NETWORK, POD_NETWORK_OWN};
use rpc::agent::v1::Hello;
use serde_json::{Value, json};

/// The GPU's product on a node with one kind of GPU, under the label of NVIDIA's feature discovery.
const GPU_PRODUCT_LABEL: &str = "nvidia.com/gpu.product";

/// The node's data in an agent's Hello, validated.
#[derive(Clone, Debug)]
pub struct NodeDescription {
    /// The node's name.
    pub name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) addresses: Vec<Value>,
    pub(super) info: Value,
    pub(super) max_pods: u32,
    /// Whether its pods have networks of their own.
    pub own_pod_network: bool,
    /// Whether its agent leads Services' addresses to pods, and answers these pods' questions for names.
    pub cluster_services: bool,
    /// Whether its agent enforces NetworkPolicies for such pods.
    pub network_policies: bool,
    /// What pods may not use: thousandths of a CPU, and bytes of memory.
    pub(super) reserved: (u64, u64),
}

impl NodeDescription {
    /// Validates a Hello.
    pub fn of(hello: &Hello, inventory: &NodeInventory) -> Self {
        let name = hello.node_name.clone();
        let architecture = match hello.architecture.as_str() {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let mut labels: BTreeMap<String, String> = hello
            .labels
            .iter()
            .filter(|(key, _)| {
                let reserved = is_reserved_node_label(key);
                if reserved {
                    tracing::warn!(
                        node = name,
                        label = key,
                        "an agent may not set this label, because the scheduler places pods by it; the server leaves \
                         it out; set it with `kubectl label node`"
                    );
                }
                !reserved
            })
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        labels.insert("kubernetes.io/hostname".to_owned(), name.clone());
        let network = if hello.own_pod_network {
            POD_NETWORK_OWN
        } else {
            "host"
        };
        labels.insert(POD_NETWORK.to_owned(), network.to_owned());
        labels.insert("kubernetes.io/os".to_owned(), "linux".to_owned());
        labels.insert("kubernetes.io/arch".to_owned(), architecture.to_owned());
        let addresses = hello
            .addresses
            .iter()
            .map(|address| json!({"type": address.kind, "address": address.address}))
            .collect();
        let info = json!({
            "machineID": hello.machine_id,
            "systemUUID": hello.machine_id,
            "bootID": hello.boot_id,
            "kernelVersion": inventory.kernel,
            "osImage": inventory.os,
            "containerRuntimeVersion": hello.container_runtime,
            "kubeletVersion": hello.agent_version,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": architecture,
        });
        NodeDescription {
            name,
            labels,
            addresses,
            info,
            max_pods: hello.max_pods,
            own_pod_network: hello.own_pod_network,
            cluster_services: hello.own_pod_network && hello.cluster_services,
            network_policies: hello.own_pod_network && hello.network_policies,
            reserved: (hello.reserved_millicpus, hello.reserved_memory_bytes),
        }
    }
}

/// The product of all GPUs, if it is the same, as a valid label value.
fn product(inventory: &NodeInventory) -> Option<String> {
    let first = &inventory.gpus.first()?.model;
    if first.is_empty() || inventory.gpus.iter().any(|gpu| gpu.model != *first) {
        return None;
    }
    let value: String = first
        .chars()
        .map(|c| match c {
            c if c.is_ascii_alphanumeric() || "-_.".contains(c) => c,
            _ => '-',
        })
        .take(63)
        .collect();
    Some(
        value
            .trim_matches(|c: char| !c.is_ascii_alphanumeric())
            .to_owned(),
    )
}

/// The node's labels: those found on its GPUs, overridden by those that the administrator
/// configured. A label that was found earlier and no longer is is null, so that a merge removes it.
pub(super) fn labels(
    description: &NodeDescription,
    found: &NodeInventory,
    before: Option<&Node>,
) -> Value {
    let mut all: BTreeMap<String, Value> = BTreeMap::new();
    let earlier = before.and_then(|node| inventory(node.metadata.annotations.as_ref()));
    let earlier = earlier.unwrap_or_default().labels.into_keys();
    let earlier = earlier.filter(|label| !is_reserved_node_label(label));
    all.extend(earlier.map(|label| (label, Value::Null)));
    all.extend(product(found).map(|product| (GPU_PRODUCT_LABEL.to_owned(), json!(product))));
    let found = (found.labels.iter()).filter(|(label, _)| !is_reserved_node_label(label));
    let now = found.chain(&description.labels);
    all.extend(now.map(|(label, value)| (label.clone(), json!(value))));
    json!(all)
}

pub(super) fn inventory_json(inventory: &NodeInventory) -> String {
    serde_json::to_string(inventory).expect("an inventory is plain data and always JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::amounts::{capacity, withdrawn};
    use crate::node::testing::{inventories, inventory};
    use resources::names::INVENTORY;

    proptest::proptest! {
        #[test]
        fn no_inventory_that_can_be_read_panics(
            document in crate::documents::changed(inventories()),
            architecture in "[a-z0-9_]{0,10}",
            max_pods in proptest::prelude::any::<u32>(),
        ) {
            let Ok(found) = serde_json::from_value::<NodeInventory>(document) else {
                return Ok(());
            };
            let hello = Hello { node_name: "n".to_owned(), architecture, max_pods, ..Hello::default() };
            let description = NodeDescription::of(&hello, &found);
            let _ = (capacity(&found, max_pods), labels(&description, &found, None));
            let _ = (withdrawn(None, &found), inventory_json(&found));
        }
    }

    #[test]
    fn a_product_becomes_a_label_only_when_all_gpus_are_it() {
        let mut inventory = inventory();
        assert_eq!(product(&inventory).unwrap(), "NVIDIA-A100-SXM4-80GB");
        inventory.gpus[1].model = "other".to_owned();
        assert_eq!(product(&inventory), None);
    }

    #[test]
    fn labels_that_were_found_go_when_they_are_not_found_any_more_and_given_ones_win() {
        let said = |found: &[(&str, &str)]| NodeInventory {
            labels: (found.iter())
                .map(|(label, value)| ((*label).to_owned(), (*value).to_owned()))
                .collect(),
            ..NodeInventory::default()
        };
        let hello = Hello {
            node_name: "n".to_owned(),
            labels: [("nvidia.com/gpu.family".to_owned(), "mine".to_owned())].into(),
            ..Hello::default()
        };
        let before = said(&[
            ("nvidia.com/gpu.count", "8"),
            ("nvidia.com/mig-1g.10gb.count", "2"),
        ]);
        let now = said(&[
            ("nvidia.com/gpu.count", "7"),
            ("nvidia.com/gpu.family", "hopper"),
        ]);
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n",
            "annotations": {INVENTORY: inventory_json(&before)}}}))
        .unwrap();
        let description = NodeDescription::of(&hello, &now);
        let labels = labels(&description, &now, Some(&node));
        assert_eq!(labels["nvidia.com/gpu.count"], "7");
        assert_eq!(labels["nvidia.com/gpu.family"], "mine");
        assert_eq!(labels["kubernetes.io/hostname"], "n");
        let gone = labels.get("nvidia.com/mig-1g.10gb.count");
        assert_eq!(gone, Some(&Value::Null));
    }

    #[test]
    fn labels_that_work_is_placed_by_are_not_the_agents_to_set_or_to_take_off() {
        let guarded = "node-restriction.kubernetes.io/team";
        let found = NodeInventory {
            labels: [(guarded.to_owned(), "mine".to_owned())].into(),
            ..NodeInventory::default()
        };
        let hello = Hello {
            node_name: "n".to_owned(),
            labels: [
                (guarded.to_owned(), "mine".to_owned()),
                ("topology.kubernetes.io/zone".to_owned(), "z".to_owned()),
            ]
            .into(),
            ..Hello::default()
        };
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n",
            "annotations": {INVENTORY: inventory_json(&found)}}}))
        .unwrap();
        for inventory in [&found, &NodeInventory::default()] {
            let description = NodeDescription::of(&hello, inventory);
            let labels = labels(&description, inventory, Some(&node));
            assert_eq!(labels.get(guarded), None);
            assert_eq!(labels["topology.kubernetes.io/zone"], "z");
        }
    }
}
