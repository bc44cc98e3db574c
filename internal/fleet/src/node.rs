//! The Node object of a connected agent, and its lease. Writes what the agent reports; another
//! component uses the lease to decide whether a silent node is lost.

mod pod_range;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use resources::admission::is_reserved_node_label;
use resources::devices::{NodeInventory, inventory};
use resources::names::{EPHEMERAL_STORAGE, INVENTORY, NODE_LEASES, NVIDIA_GPU};
use resources::node_conditions::{DEVICES, STRATEGY, VERSION};
use resources::times::seconds;
use rpc::agent::v1::Hello;
use serde_json::{Value, json};

use crate::error::{FleetError, api, status_code};
use crate::pod_ranges::PodRanges;

/// How often a conflicting write of a node's status is retried.
const TRIES_MAX: u32 = 10;

/// How long a lease is valid without being renewed, in seconds; Kubernetes' own value.
pub const LEASE_SECONDS: i32 = 40;

/// Counts a node's sessions, so that two of them can be ordered.
pub const SESSION_ANNOTATION: &str = resources::names::SESSION;

/// The GPU's product on a node with one kind of GPU, under the label of NVIDIA's feature discovery.
const GPU_PRODUCT_LABEL: &str = "nvidia.com/gpu.product";

/// The node's data in an agent's Hello, validated.
#[derive(Clone, Debug)]
pub struct NodeDescription {
    /// The node's name.
    pub name: String,
    labels: BTreeMap<String, String>,
    addresses: Vec<Value>,
    info: Value,
    max_pods: u32,
    /// Whether its pods have networks of their own.
    pub own_pod_network: bool,
    /// Whether its agent leads Services' addresses to pods, and answers these pods' questions for names.
    pub cluster_services: bool,
    /// What pods may not use: thousandths of a CPU, and bytes of memory.
    reserved: (u64, u64),
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

/// The node's capacity and its allocatable part.
fn capacity(inventory: &NodeInventory, max_pods: u32) -> (Value, Value) {
    let offered = inventory.offered();
    let amounts = |healthy: bool| {
        let counts = |fit: bool| fit || !healthy;
        // First, so that no other resource overwrites the following ones.
        let mut all = json!({});
        for (resource, shares) in &inventory.shared {
            let count = if counts(shares.healthy) {
                shares.count
            } else {
                0
            };
            all[resource] = json!(count.to_string());
        }
        for (resource, devices) in &inventory.described {
            let devices = devices.iter().filter(|device| counts(device.healthy));
            all[resource] = json!(devices.count().to_string());
        }
        all["cpu"] = json!(inventory.cpus.to_string());
        all["memory"] = json!(inventory.memory_bytes.to_string());
        all["pods"] = json!(max_pods.to_string());
        if let Some(bytes) = inventory.disk_bytes {
            all[EPHEMERAL_STORAGE] = json!(bytes.to_string());
        }
        if !inventory.gpus.is_empty() {
            let gpus = offered.gpus.iter().filter(|gpu| counts(gpu.healthy));
            all[NVIDIA_GPU] = json!(gpus.count().to_string());
        }
        for (resource, slices) in &offered.slices {
            let slices = slices.iter().filter(|(_, slice)| counts(slice.healthy));
            all[resource] = json!(slices.count().to_string());
        }
        all
    };
    (amounts(false), amounts(true))
}

/// Takes what pods may not use off the node's allocatable part.
fn reserve(allocatable: &mut Value, inventory: &NodeInventory, reserved: (u64, u64)) {
    let (millicpus, memory_bytes) = reserved;
    if millicpus > 0 {
        let cpus = u64::from(inventory.cpus).saturating_mul(1000);
        allocatable["cpu"] = json!(format!("{}m", cpus.saturating_sub(millicpus)));
    }
    if memory_bytes > 0 {
        let memory = inventory.memory_bytes.saturating_sub(memory_bytes);
        allocatable["memory"] = json!(memory.to_string());
    }
}

/// The patch that removes resources from a node's status that it no longer offers; nothing if there
/// are none.
fn withdrawn(before: Option<&Node>, now: &NodeInventory) -> Option<Value> {
    let before = inventory(before?.metadata.annotations.as_ref())?;
    let gone: BTreeMap<String, Value> = (before.resources().into_iter())
        .filter(|resource| !now.resources().contains(resource))
        .map(|resource| (resource, Value::Null))
        .collect();
    (!gone.is_empty()).then(|| json!({"status": {"capacity": gone, "allocatable": gone}}))
}

/// Nodes and their leases, as written by the fleet.
#[derive(Clone)]
pub struct NodeObjects {
    pub(crate) nodes: Api<Node>,
    leases: Api<Lease>,
    pub(crate) events: Api<Event>,
    pub(crate) ranges: Arc<PodRanges>,
}

impl NodeObjects {
    /// Uses the fleet's client.
    pub fn new(client: &Client, ranges: PodRanges) -> Self {
        NodeObjects {
            ranges: Arc::new(ranges),
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client.clone(), NODE_LEASES),
            events: Api::namespaced(client.clone(), resources::node_event::NAMESPACE),
        }
    }

    /// Creates or updates the Node of a new session; returns the session's epoch.
    pub async fn register(
        &self,
        description: &NodeDescription,
        inventory: &NodeInventory,
    ) -> Result<u64, FleetError> {
        let name = &description.name;
        let found = self
            .nodes
            .get_opt(name)
            .await
            .map_err(api(format!("reading node {name:?}")))?;
        let epoch = found.as_ref().map_or(0, epoch_of).saturating_add(1);
        let metadata = json!({
            "name": name,
            "labels": labels(description, inventory, found.as_ref()),
            "annotations": {
                INVENTORY: inventory_json(inventory),
                SESSION_ANNOTATION: epoch.to_string(),
            },
        });
        if found.is_none() {
            let node: Node = serde_json::from_value(json!({"metadata": metadata, "spec": {}}))
                .map_err(|error| FleetError::Malformed {
                    what: format!(
                        "the server cannot create node {name:?} from the agent's report: {error}"
                    ),
                })?;
            match self.nodes.create(&PostParams::default(), &node).await {
                Ok(_) => {}
                // Another writer created it first; the patch below does the rest.
                Err(error) if status_code(&error) == Some(409) => {}
                Err(error) => return Err(api(format!("creating node {name:?}"))(error)),
            }
        }
        self.withdraw(name, found.as_ref(), inventory).await?;
        let patch = json!({"metadata": metadata});
        self.nodes
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map_err(api(format!("updating node {name:?}")))?;
        // Writes the lease first: a node that is ready without one would look lost.
        self.renew_lease(name).await?;
        self.write_status(description, inventory).await?;
        self.allot_range(description).await?;
        Ok(epoch)
    }

    /// Corrects the Node if it is missing or not Ready; the session is alive.
    pub async fn keep_ready(
        &self,
        description: &NodeDescription,
        inventory: &NodeInventory,
    ) -> Result<(), FleetError> {
        let name = &description.name;
        let found = self
            .nodes
            .get_opt(name)
            .await
            .map_err(api(format!("reading node {name:?}")))?;
        match found {
            None => self.register(description, inventory).await.map(|_| ()),
            Some(node) if !is_ready(&node) => self.write_status(description, inventory).await,
            Some(_) => Ok(()),
        }
    }

    /// Writes a changed inventory.
    pub async fn write_inventory(
        &self,
        description: &NodeDescription,
        inventory: &NodeInventory,
    ) -> Result<(), FleetError> {
        let name = &description.name;
        let found = self.nodes.get_opt(name).await;
        let found = found.map_err(api(format!("reading node {name:?}")))?;
        self.withdraw(name, found.as_ref(), inventory).await?;
        let labels = labels(description, inventory, found.as_ref());
        let patch = json!({"metadata": {"labels": labels,
            "annotations": {INVENTORY: inventory_json(inventory)}}});
        self.nodes
            .patch(
                &description.name,
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .await
            .map_err(api(format!("updating node {:?}", description.name)))?;
        self.write_status(description, inventory).await
    }

    /// Removes resources that the node no longer offers from its status. Called before its
    /// inventory is written, because the last written version names them.
    async fn withdraw(
        &self,
        name: &str,
        before: Option<&Node>,
        now: &NodeInventory,
    ) -> Result<(), FleetError> {
        let Some(patch) = withdrawn(before, now) else {
            return Ok(());
        };
        self.nodes
            .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map(|_| ())
            .map_err(api(format!("updating the status of node {name:?}")))
    }

    async fn write_status(
        &self,
        description: &NodeDescription,
        inventory: &NodeInventory,
    ) -> Result<(), FleetError> {
        let name = &description.name;
        let (capacity, mut allocatable) = capacity(inventory, description.max_pods);
        reserve(&mut allocatable, inventory, description.reserved);
        let status = json!({
            "capacity": capacity,
            "allocatable": allocatable,
            "addresses": description.addresses,
            "nodeInfo": description.info,
        });
        let ready = |node: &Node| Some(conditions(node, Timestamp::now()));
        self.write_conditions(name, status, ready).await?;
        for (subject, trouble) in [
            (&STRATEGY, inventory.not_uniform()),
            (&DEVICES, inventory.unhealthy_devices()),
            (&VERSION, None),
        ] {
            let trouble = trouble.unwrap_or_default();
            self.write_trouble(name, subject, &trouble, Timestamp::now())
                .await?;
        }
        Ok(())
    }

    /// Writes a node's status with conditions computed from its present ones. Other components
    /// write conditions too, so the write requires the version that was read. Writes nothing if
    /// there are no changes; returns true if it wrote.
    pub(crate) async fn write_conditions(
        &self,
        name: &str,
        status: Value,
        conditions: impl Fn(&Node) -> Option<Vec<Value>>,
    ) -> Result<bool, FleetError> {
        let mut tries = 0;
        loop {
            let current = self.nodes.get(name).await;
            let current = current.map_err(api(format!("reading node {name:?}")))?;
            let Some(conditions) = conditions(&current) else {
                return Ok(false);
            };
            let mut status = status.clone();
            status["conditions"] = Value::Array(conditions);
            let seen = current.metadata.resource_version;
            let patch = json!({"metadata": {"resourceVersion": seen}, "status": status});
            let written = self
                .nodes
                .patch_status(name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            tries += 1;
            match written {
                Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES_MAX => {}
                other => {
                    return other
                        .map(|_| true)
                        .map_err(api(format!("updating the status of node {name:?}")));
                }
            }
        }
    }

    /// Renews the node's lease, or creates it.
    pub async fn renew_lease(&self, name: &str) -> Result<(), FleetError> {
        let spec = json!({
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": micros(Timestamp::now()),
        });
        let patch = json!({"spec": spec});
        let renewed = self
            .leases
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        let failed = match renewed {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        // The API answers 500 for a damaged lease record: a new one replaces it.
        if !matches!(status_code(&failed), Some(404 | 500)) {
            return Err(api(format!("renewing the lease of node {name:?}"))(failed));
        }
        let lease: Lease = serde_json::from_value(
            json!({"metadata": {"name": name}, "spec": spec}),
        )
        .map_err(|error| FleetError::Malformed {
            what: format!("the server cannot create the lease of node {name:?}: {error}"),
        })?;
        match self.leases.create(&PostParams::default(), &lease).await {
            Ok(_) => Ok(()),
            Err(error) if status_code(&error) == Some(409) => match status_code(&failed) {
                Some(404) => Ok(()),
                _ => Err(api(format!("renewing the lease of node {name:?}"))(failed)),
            },
            Err(error) => Err(api(format!("making the lease of node {name:?}"))(error)),
        }
    }
}

/// The node's labels: those found on its GPUs, overridden by those that the administrator
/// configured. A label that was found earlier and no longer is is null, so that a merge removes it.
fn labels(description: &NodeDescription, found: &NodeInventory, before: Option<&Node>) -> Value {
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

fn inventory_json(inventory: &NodeInventory) -> String {
    serde_json::to_string(inventory).expect("an inventory is plain data and always JSON")
}

fn epoch_of(node: &Node) -> u64 {
    node.metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(SESSION_ANNOTATION))
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

fn is_ready(node: &Node) -> bool {
    node.status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The node's conditions with Ready=True; the others are unchanged.
fn conditions(node: &Node, now: Timestamp) -> Vec<Value> {
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

/// A time as Kubernetes writes a MicroTime.
pub fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// True if a name is valid for a node: a DNS subdomain.
pub fn valid_name(name: &str) -> bool {
    let label = |label: &str| {
        let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = label.as_bytes();
        match (bytes.first(), bytes.last()) {
            (Some(first), Some(last)) => {
                alphanumeric(*first)
                    && alphanumeric(*last)
                    && bytes
                        .iter()
                        .all(|byte| alphanumeric(*byte) || *byte == b'-')
            }
            _ => false,
        }
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use resources::devices::GpuDevice;

    fn inventory() -> NodeInventory {
        let gpu = |healthy| GpuDevice {
            id: "GPU-1".to_owned(),
            model: "NVIDIA A100-SXM4-80GB".to_owned(),
            healthy,
            ..GpuDevice::default()
        };
        NodeInventory {
            gpus: vec![gpu(true), gpu(false)],
            cpus: 8,
            memory_bytes: 1024,
            ..NodeInventory::default()
        }
    }

    fn inventories() -> Vec<Value> {
        let mut cut = inventory();
        cut.gpus[0].slices = Some(vec![resources::devices::MigSlice::default()]);
        let all = [inventory(), cut].map(|one| serde_json::to_value(one).unwrap());
        all.to_vec()
    }

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
    fn an_unhealthy_gpu_is_had_but_not_given_out() {
        let (has, gives) = capacity(&inventory(), 100);
        assert_eq!(has[NVIDIA_GPU], "2");
        assert_eq!(gives[NVIDIA_GPU], "1");
        assert_eq!(gives["cpu"], "8");
        let mut cut = inventory();
        let slice = |healthy| resources::devices::MigSlice {
            profile: "1g.10gb".into(),
            healthy,
            ..resources::devices::MigSlice::default()
        };
        cut.gpus[0].slices = Some(vec![slice(true), slice(false)]);
        let (has, gives) = capacity(&cut, 100);
        assert_eq!([&has[NVIDIA_GPU], &gives[NVIDIA_GPU]], ["1", "0"]);
        let small = "nvidia.com/mig-1g.10gb";
        assert_eq!([&has[small], &gives[small]], ["2", "1"]);
        let (none, _) = capacity(&NodeInventory::default(), 100);
        assert!(none.get(NVIDIA_GPU).is_none() && none.get(EPHEMERAL_STORAGE).is_none());
        cut.disk_bytes = Some(7);
        assert_eq!(capacity(&cut, 100).1[EPHEMERAL_STORAGE], "7");
    }

    #[test]
    fn what_is_reserved_is_not_given_out() {
        let node = NodeInventory {
            cpus: 8,
            memory_bytes: 1 << 30,
            ..NodeInventory::default()
        };
        let given = |reserved| {
            let (has, mut gives) = capacity(&node, 100);
            reserve(&mut gives, &node, reserved);
            assert_eq!(has["cpu"], "8");
            [gives["cpu"].clone(), gives["memory"].clone()]
        };
        assert_eq!(given((0, 0)), ["8", "1073741824"]);
        assert_eq!(given((1500, 1 << 29)), ["6500m", "536870912"]);
        assert_eq!(given((u64::MAX, u64::MAX)), ["0m", "0"]);
    }

    #[test]
    fn shares_are_counted_while_their_devices_are_well_and_take_no_other_resources_place() {
        let shares = |count, healthy| resources::devices::Shares { count, healthy };
        let mut node = inventory();
        let named = |name: &str, shares| (name.to_owned(), shares);
        node.shared = [
            named("rdma/a", shares(20, true)),
            named("rdma/b", shares(10, false)),
            named("cpu", shares(1000, true)),
        ]
        .into();
        let described = |healthy| resources::devices::DescribedDevice {
            healthy,
            ..Default::default()
        };
        let three = [false, true, true].map(described).to_vec();
        node.described = [("a.com/x".to_owned(), three)].into();
        let (has, gives) = capacity(&node, 100);
        let seen =
            |all: &Value| ["rdma/a", "rdma/b", "a.com/x", "cpu"].map(|name| all[name].clone());
        assert_eq!(seen(&has), ["20", "10", "3", "8"]);
        assert_eq!(seen(&gives), ["20", "0", "2", "8"]);
    }

    #[test]
    fn a_resource_that_is_offered_no_more_leaves_the_status_and_no_other_does() {
        let small = |profile: &str| resources::devices::MigSlice {
            profile: profile.into(),
            ..resources::devices::MigSlice::default()
        };
        let mut before = inventory();
        before.gpus[0].slices = Some(vec![small("1g.10gb"), small("3g.40gb")]);
        before.shared = [("rdma/a".to_owned(), resources::devices::Shares::default())].into();
        before.described = [("a.com/x".to_owned(), Vec::new())].into();
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n",
            "annotations": {INVENTORY: inventory_json(&before)}}}))
        .unwrap();
        let mut now = before.clone();
        assert_eq!(withdrawn(Some(&node), &now), None);
        assert_eq!(withdrawn(None, &now), None);
        now.gpus[0].slices = Some(vec![small("3g.40gb")]);
        now.shared.clear();
        now.described.clear();
        let gone = json!({"rdma/a": null, "a.com/x": null, "nvidia.com/mig-1g.10gb": null});
        let patch = json!({"status": {"capacity": gone, "allocatable": gone}});
        assert_eq!(withdrawn(Some(&node), &now), Some(patch));
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

    #[test]
    fn node_names_are_dns_subdomains() {
        for good in ["a", "gpu-01.rack2", "10.0.0.1"] {
            assert!(valid_name(good), "{good}");
        }
        for bad in ["", "A", "-a", "a-", "a..b", "a_b", "a/b", &"a".repeat(254)] {
            assert!(!valid_name(bad), "{bad}");
        }
    }

    /// The result of renewing a lease if the API answers with these codes.
    async fn renewed(patched: u16, created: u16) -> bool {
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let code = match *request.method() {
                http::Method::POST => created,
                _ => patched,
            };
            let body = if code < 300 {
                json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "n1"}})
            } else {
                json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "reason": "Unknown", "message": "no", "code": code,
                })
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body);
            async move { Ok::<_, std::io::Error>(answer.unwrap()) }
        });
        let nodes = NodeObjects::new(
            &Client::new(service, "default"),
            PodRanges::new(resources::pod_ranges::DEFAULT_CLUSTER_RANGE, None),
        );
        nodes.renew_lease("n1").await.is_ok()
    }

    #[tokio::test]
    async fn a_lease_that_is_missing_or_damaged_is_made_anew() {
        for (patched, created, well) in [
            (200, 500, true),
            (404, 201, true),
            // Another writer created it meanwhile.
            (404, 409, true),
            // The record is damaged.
            (500, 201, true),
            // It exists, and cannot be renewed for another reason.
            (500, 409, false),
            (503, 201, false),
        ] {
            assert_eq!(renewed(patched, created).await, well, "{patched} {created}");
        }
    }

    #[test]
    fn a_lease_is_renewed_in_microseconds() {
        let time: Timestamp = "2025-03-04T05:06:07.123456789Z".parse().unwrap();
        assert_eq!(micros(time), "2025-03-04T05:06:07.123456Z");
    }
}
