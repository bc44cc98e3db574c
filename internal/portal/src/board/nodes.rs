//! Nodes and their devices as the pages show them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use resources::alerts::{self, Alert};
use resources::amounts::Amounts;
use resources::devices::NodeInventory;
use resources::load::{GpuLoad, NodeLoad};
use resources::names;
use serde::Serialize;

use super::other_devices::VendorDeviceRow;
use super::picture::Picture;
use super::pods::PodRow;
use super::{Board, Tone};

const GIB: f64 = (1u64 << 30) as f64;

/// The annotation with the reason for a node's cordon, and the user who cordoned it.
pub const CORDON_REASON: &str = "muster.io/cordon-reason";

/// The text for a pod that the reader may not read.
const UNNAMED: &str = "another namespace's pod";

/// The pod that has each device, by node, as namespace/name.
type DevicePods = BTreeMap<String, BTreeMap<String, String>>;

/// One GPU of a node.
#[derive(Clone, Debug, Serialize)]
pub struct GpuSquare {
    /// Its index on the node.
    pub index: u32,
    /// Its model.
    pub model: String,
    /// Its memory.
    pub memory_mib: u64,
    /// True if the GPU is healthy and can be allocated.
    pub healthy: bool,
    /// The pod that has the GPU, as namespace/name, or a placeholder for one that the reader may
    /// not read.
    pub holder: String,
    /// Its last reported activity, as text; empty if none was reported.
    pub load: String,
    /// Its utilisation in fifths, from 0 to 4; none if it was not reported.
    pub level: Option<u8>,
    /// True if no pod can get it now because its node is away.
    pub away: bool,
}

impl GpuSquare {
    /// The CSS class.
    pub fn class(&self) -> &'static str {
        match (self.healthy, self.holder.is_empty()) {
            _ if self.away => "away",
            (false, _) => "bad",
            (true, false) => "busy",
            (true, true) => "free",
        }
    }

    /// The state as text, for tooltips and for readers that do not see colours.
    pub fn message(&self) -> String {
        let state = match (self.healthy, self.holder.as_str()) {
            _ if self.away => "its node is away".to_string(),
            (false, _) => "unhealthy".to_string(),
            (true, "") => "free".to_string(),
            (true, holder) => format!("used by {holder}"),
        };
        format!(
            "GPU {} {} {} GiB: {state}",
            self.index,
            self.model,
            self.memory_mib / 1024
        )
    }
}

/// One node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeCard {
    /// Its name.
    pub name: String,
    /// Ready, NotReady or Unknown, with the reasons that exclude workloads.
    pub status: String,
    /// The display category.
    pub tone: Tone,
    /// Its address.
    pub address: String,
    /// Its kernel and operating system.
    pub system: String,
    /// Its container runtime.
    pub runtimes: String,
    /// The number of its pods.
    pub pods: i64,
    /// Requested CPUs.
    pub cpu_used: f64,
    /// Allocatable CPUs.
    pub cpu_room: f64,
    /// Requested memory in GiB.
    pub memory_used: f64,
    /// Allocatable memory in GiB.
    pub memory_room: f64,
    /// Its GPUs.
    pub gpus: Vec<GpuSquare>,
    /// Its devices of other vendors.
    pub others: Vec<VendorDeviceRow>,
    /// The source of the list of GPUs.
    pub source: String,
    /// When its GPUs' activity was last reported; empty if never.
    pub load_seen: String,
    /// The reason for its cordon, and the user who cordoned it; empty if it takes work, or no reason was given.
    pub cordoned_for: String,
    /// True if it was taken out of use.
    pub cordoned: bool,
    /// A problem that does not stop the node; empty if none is known.
    pub suspect: String,
    /// The active alerts of its GPUs.
    pub alerts: Vec<ActiveAlert>,
}

/// An active alert.
#[derive(Clone, Debug, Serialize)]
pub struct ActiveAlert {
    /// The alert's name.
    pub alert: &'static str,
    /// `warning`, or `info` if the workload rather than the machine may need attention.
    pub severity: &'static str,
    /// The GPU's index.
    pub gpu: u32,
    /// Its id.
    pub id: String,
    /// When it began.
    pub since: String,
    /// The description.
    pub message: String,
    /// True if its agent still reports it; unknown for a silent node.
    pub known: bool,
}

impl ActiveAlert {
    /// The alerts of a node.
    fn of(node: &Node) -> Vec<ActiveAlert> {
        let known = ready(node) == Some("True");
        let all = alerts::of_node(node);
        all.iter()
            .map(|alert| ActiveAlert::one(alert, known))
            .collect()
    }

    fn one(alert: &Alert, known: bool) -> ActiveAlert {
        ActiveAlert {
            alert: alert.alert.name(),
            severity: if alert.alert.warns() {
                "warning"
            } else {
                "info"
            },
            gpu: alert.gpu,
            id: alert.id.clone(),
            since: alert.since.to_string(),
            message: alert.message(),
            known,
        }
    }
}

impl NodeCard {
    /// The requested share of the CPUs, in percent.
    pub fn cpu_percent(&self) -> u32 {
        percent(self.cpu_used, self.cpu_room)
    }

    /// The requested share of the memory, in percent.
    pub fn memory_percent(&self) -> u32 {
        percent(self.memory_used, self.memory_room)
    }

    /// CPUs, as `1.5 of 8`.
    pub fn cpu_words(&self) -> String {
        format!("{:.1} of {:.0}", self.cpu_used, self.cpu_room)
    }

    /// Memory, as `1.5 of 8 GiB`.
    pub fn memory_words(&self) -> String {
        format!("{:.1} of {:.1} GiB", self.memory_used, self.memory_room)
    }
}

fn percent(part: f64, whole: f64) -> u32 {
    if whole <= 0.0 {
        return 0;
    }
    (part / whole * 100.0).round().clamp(0.0, 100.0) as u32
}

/// Sums over all nodes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClusterTotals {
    /// The number of ready nodes.
    pub nodes_ready: usize,
    /// The number of nodes.
    pub nodes: usize,
    /// Allocated GPUs.
    pub gpus_used: usize,
    /// Healthy GPUs of nodes that are there.
    pub gpus: usize,
    /// Those of them that a pod could get: free, on nodes that take new work.
    pub gpus_free: usize,
    /// Requested CPUs.
    pub cpu_used: f64,
    /// Allocatable CPUs.
    pub cpu_room: f64,
}

impl ClusterTotals {
    /// The sums.
    pub fn of(cards: &[NodeCard]) -> ClusterTotals {
        let gpus = || {
            cards
                .iter()
                .flat_map(|card| &card.gpus)
                .filter(|gpu| gpu.healthy && !gpu.away)
        };
        let open = cards.iter().filter(|card| card.tone == Tone::Good);
        let free = open
            .flat_map(|card| &card.gpus)
            .filter(|gpu| gpu.class() == "free");
        ClusterTotals {
            nodes_ready: cards.iter().filter(|card| card.tone == Tone::Good).count(),
            nodes: cards.len(),
            gpus_used: gpus().filter(|gpu| !gpu.holder.is_empty()).count(),
            gpus: gpus().count(),
            gpus_free: free.count(),
            cpu_used: cards.iter().map(|card| card.cpu_used).sum(),
            cpu_room: cards.iter().map(|card| card.cpu_room).sum(),
        }
    }

    /// CPUs, as `1.5 of 8`.
    pub fn cpu_words(&self) -> String {
        format!("{:.1} of {:.0}", self.cpu_used, self.cpu_room)
    }
}

/// The node's Ready condition; none if it has not been reported.
fn ready(node: &Node) -> Option<&str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready")?;
    Some(&ready.status)
}

/// A utilisation in percent, in fifths.
fn level(percent: f64) -> u8 {
    (percent / 20.0).floor().clamp(0.0, 4.0) as u8
}

/// True if the node takes no new work.
fn cordoned(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.unschedulable).unwrap_or(false)
}

fn status_of(node: &Node) -> (String, Tone) {
    let (word, tone) = match ready(node) {
        Some("True") => ("Ready", Tone::Good),
        Some("False") => ("NotReady", Tone::Bad),
        _ => ("Unknown", Tone::Bad),
    };
    if cordoned(node) && tone == Tone::Good {
        return (format!("{word}, takes no new work"), Tone::Idle);
    }
    (word.to_string(), tone)
}

fn suspicion(node: &Node) -> String {
    let status = node.status.iter();
    let conditions = status.flat_map(|status| status.conditions.iter().flatten());
    // Reasons that exclude gangs come first.
    let warnings = [names::FABRIC_FAILED, names::SUSPECT].map(|name| {
        let mut all = conditions.clone();
        let found = all.find(|c| c.type_ == name && c.status == "True")?;
        let words = found.message.clone().or(found.reason.clone());
        Some(words.unwrap_or_else(|| "without a reason".to_string()))
    });
    let warnings: Vec<String> = warnings.into_iter().flatten().collect();
    warnings.join("; ")
}

fn runtimes(node: &Node) -> String {
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let known = [
        ("muster.io/runtime.process", "processes"),
        ("muster.io/runtime.cri", "containers"),
        (
            "muster.io/runtime.host-images",
            "images' commands on the host",
        ),
    ];
    let on = |name: &str| labels.get(name).is_some_and(|value| value == "true");
    let words: Vec<&str> = known
        .iter()
        .filter(|(name, _)| on(name))
        .map(|(_, word)| *word)
        .collect();
    words.join(", ")
}

impl Board {
    /// All nodes, by name. `sees` selects the namespaces whose pods may be named.
    pub fn nodes(&self, sees: impl Fn(&str) -> bool) -> Vec<NodeCard> {
        let (used, holders) = held(&self.pods.state(), sees);
        let mut cards: Vec<NodeCard> = self
            .nodes
            .state()
            .iter()
            .map(|node| card(node, &used, &holders))
            .collect();
        cards.sort_by(|a, b| a.name.cmp(&b.name));
        cards
    }

    /// The names of all nodes with their states, by name.
    pub fn node_states(&self) -> Vec<(String, String)> {
        let nodes = self.nodes.state();
        let named = nodes.iter().map(|node| {
            let name = node.metadata.name.clone().unwrap_or_default();
            (name, status_of(node).0)
        });
        let mut named: Vec<(String, String)> = named.collect();
        named.sort();
        named
    }

    /// One node, with the picture of its devices if it has any; none if the node does not exist.
    pub fn node(
        &self,
        name: &str,
        sees: impl Fn(&str) -> bool,
    ) -> Option<(NodeCard, Option<Picture>)> {
        let nodes = self.nodes.state();
        let named = |node: &&Arc<Node>| node.metadata.name.as_deref() == Some(name);
        let node = nodes.iter().find(named)?;
        let (used, holders) = held(&self.pods.state(), sees);
        let none = BTreeMap::new();
        let here = holders.get(name).unwrap_or(&none);
        let picture = Picture::of(&inventory(node), here);
        Some((card(node, &used, &holders), picture))
    }
}

/// The resources that pods hold on each node, and the pod of each device. `sees` selects the
/// namespaces whose pods may be named.
fn held(
    pods: &[Arc<PodRow>],
    sees: impl Fn(&str) -> bool,
) -> (BTreeMap<String, Amounts>, DevicePods) {
    let mut used: BTreeMap<String, Amounts> = BTreeMap::new();
    let mut holders = DevicePods::new();
    // `sees` is called once for each namespace: there may be thousands of pods.
    let mut seen: BTreeMap<&str, bool> = BTreeMap::new();
    for pod in pods {
        let Some(node) = &pod.node else {
            continue;
        };
        if matches!(pod.phase(), "Succeeded" | "Failed") {
            continue;
        }
        used.entry(node.clone()).or_default().add(&pod.requests);
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let named = *seen.entry(namespace).or_insert_with(|| sees(namespace));
        let holder = match named {
            true => format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or("")),
            false => UNNAMED.to_owned(),
        };
        let here = holders.entry(node.clone()).or_default();
        for id in pod.devices() {
            here.insert(id, holder.clone());
        }
    }
    (used, holders)
}

fn inventory(node: &Node) -> NodeInventory {
    let notes = node.metadata.annotations.as_ref();
    let text = notes.and_then(|notes| notes.get(names::INVENTORY));
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

fn card(node: &Node, used: &BTreeMap<String, Amounts>, holders: &DevicePods) -> NodeCard {
    let name = node.metadata.name.clone().unwrap_or_default();
    let annotations = node.metadata.annotations.clone().unwrap_or_default();
    let inventory = inventory(node);
    let load: Option<NodeLoad> = annotations
        .get(names::LOAD)
        .and_then(|text| serde_json::from_str(text).ok());
    let doing = |id: &str| load.as_ref().and_then(|load| load.gpus.get(id));
    let nothing = Amounts::default();
    let used = used.get(&name).unwrap_or(&nothing);
    let none = BTreeMap::new();
    let holders = holders.get(&name).unwrap_or(&none);
    let status = node.status.clone().unwrap_or_default();
    let room = status
        .allocatable
        .as_ref()
        .map(Amounts::from_k8s)
        .unwrap_or_default();
    let (word, tone) = status_of(node);
    let gpus = inventory.gpus.iter().map(|gpu| GpuSquare {
        index: gpu.index,
        model: gpu.model.clone(),
        memory_mib: gpu.memory_mib,
        healthy: gpu.healthy,
        holder: holders.get(&gpu.id).cloned().unwrap_or_default(),
        load: doing(&gpu.id).map(GpuLoad::message).unwrap_or_default(),
        level: doing(&gpu.id).and_then(|load| load.utilisation).map(level),
        away: tone == Tone::Bad,
    });
    NodeCard {
        status: word,
        tone,
        address: status
            .addresses
            .into_iter()
            .flatten()
            .find(|address| address.type_ == "InternalIP")
            .map(|address| address.address)
            .unwrap_or_default(),
        system: format!("{} {}", inventory.os, inventory.kernel)
            .trim()
            .to_string(),
        runtimes: runtimes(node),
        pods: used.get("pods"),
        cpu_used: used.get("cpu") as f64 / 1000.0,
        cpu_room: room.get("cpu") as f64 / 1000.0,
        memory_used: used.get("memory") as f64 / GIB,
        memory_room: room.get("memory") as f64 / GIB,
        gpus: gpus.collect(),
        others: VendorDeviceRow::of(&inventory, holders),
        source: inventory.source.clone(),
        load_seen: load
            .as_ref()
            .map_or_else(String::new, |load| load.at.to_string()),
        cordoned_for: match cordoned(node) {
            true => annotations.get(CORDON_REASON).cloned().unwrap_or_default(),
            false => String::new(),
        },
        cordoned: cordoned(node),
        suspect: suspicion(node),
        alerts: ActiveAlert::of(node),
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_stay_between_0_and_100() {
        assert_eq!(percent(1.0, 0.0), 0);
        assert_eq!(percent(1.0, 3.0), 33);
        assert_eq!(percent(5.0, 4.0), 100);
    }

    #[test]
    fn an_alert_of_a_node_that_is_silent_is_not_known_to_stand() {
        let alert = r#"[{"alert":"GpuHot","id":"GPU-0","gpu":3,"since":"2026-01-02T03:04:05Z","value":91.0}]"#;
        for (status, known) in [("True", true), ("Unknown", false), ("False", false)] {
            let node: Node = serde_json::from_value(serde_json::json!({
                "metadata": {"name": "n", "annotations": {names::ALERTS: alert}},
                "status": {"conditions": [{"type": "Ready", "status": status}]},
            }))
            .unwrap();
            let standing = ActiveAlert::of(&node);
            assert_eq!((standing.len(), standing[0].known), (1, known), "{status}");
            assert_eq!((standing[0].alert, standing[0].gpu), ("GpuHot", 3));
            assert!(standing[0].message.contains("GPU 3 is over 85"));
        }
        assert!(ActiveAlert::of(&Node::default()).is_empty());
    }

    #[test]
    fn a_device_names_its_pod_only_to_permitted_readers() {
        let pod = |namespace: &str, device: &str| -> Arc<PodRow> {
            let devices = serde_json::json!({"main": {names::NVIDIA_GPU: [device]}});
            let pod = serde_json::json!({
                "metadata": {
                    "name": "p", "namespace": namespace,
                    "annotations": {names::DEVICES: devices.to_string()},
                },
                "spec": {"nodeName": "n1"}, "status": {"phase": "Running"},
            });
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let pods = [pod("a", "g0"), pod("b", "g1")];
        let (_, holders) = held(&pods, |namespace| namespace == "a");
        assert_eq!(holders["n1"]["g0"], "a/p");
        assert_eq!(holders["n1"]["g1"], UNNAMED);
        let (_, holders) = held(&pods, |_| true);
        assert_eq!(holders["n1"]["g1"], "b/p");
    }

    #[test]
    fn a_dead_node_stays_dead_when_it_is_cordoned() {
        for (ready, tone) in [
            ("True", Tone::Idle),
            ("Unknown", Tone::Bad),
            ("False", Tone::Bad),
        ] {
            let node: Node = serde_json::from_value(serde_json::json!({
                "spec": {"unschedulable": true},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap();
            assert_eq!(status_of(&node).1, tone, "{ready}");
        }
        assert_eq!(
            [-1.0, 0.0, 19.9, 20.0, 99.0, 100.0].map(level),
            [0, 0, 0, 1, 4, 4]
        );
    }

    #[test]
    fn a_gpu_has_a_text_for_its_colour() {
        let mut gpu = GpuSquare {
            index: 1,
            model: "H100".into(),
            memory_mib: 81_920,
            healthy: true,
            holder: String::new(),
            load: String::new(),
            level: None,
            away: false,
        };
        assert_eq!(
            (gpu.class(), gpu.message().as_str()),
            ("free", "GPU 1 H100 80 GiB: free")
        );
        gpu.holder = "a/b".into();
        assert_eq!(gpu.class(), "busy");
        gpu.healthy = false;
        assert!(gpu.message().ends_with("unhealthy"));
        gpu.away = true;
        assert_eq!(gpu.class(), "away");
        assert!(gpu.message().ends_with("its node is away"));
    }
}
