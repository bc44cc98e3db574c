//! Creates objects from numbers: nodes from a catalogue of machines, pods and PodGroups from a
//! trace's figures.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::devices::{GpuDevice, NodeInventory};
use resources::names::{
    GPU_FRACTION, GROUP_NAME, INVENTORY, NVIDIA_GPU, QUEUE_NAME, USER, WALLTIME,
};

use crate::error::SimulatorError;
use crate::scenario::{Job, PodShape};

/// Node label: the GPU's model, as NVIDIA's feature discovery writes it.
pub const GPU_PRODUCT: &str = "nvidia.com/gpu.product";
/// Node label: one GPU's memory in MiB, as NVIDIA's feature discovery writes it.
const GPU_MEMORY: &str = "nvidia.com/gpu.memory";
/// The most nodes that one option may request.
const NODES_MAX: usize = 200_000;
/// The pod limit of a node.
const PODS: i64 = 110;

/// A machine that can be bought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineType {
    /// Its name in options.
    pub name: &'static str,
    /// GPUs.
    pub gpus: i64,
    /// Their model.
    pub model: &'static str,
    /// Memory of one, MiB.
    pub gpu_memory_mib: u64,
    /// Cores.
    pub cpus: i64,
    /// Memory, GiB.
    pub memory_gib: i64,
}

/// The machines known by name.
pub const MACHINES: [MachineType; 13] = [
    machine("hgx-b300", 8, "NVIDIA-B300", 294_912, 224, 4096),
    machine("hgx-b200", 8, "NVIDIA-B200", 184_320, 224, 4096),
    machine("hgx-h200", 8, "NVIDIA-H200", 144_384, 192, 2048),
    machine("hgx-h100", 8, "NVIDIA-H100-80GB-HBM3", 81_559, 192, 2048),
    machine("hgx-a100", 8, "NVIDIA-A100-SXM4-80GB", 81_920, 128, 2048),
    machine("gb200-nvl4", 4, "NVIDIA-GB200", 189_440, 144, 960),
    machine("l40s-8", 8, "NVIDIA-L40S", 46_068, 128, 1024),
    machine("a10-4", 4, "NVIDIA-A10", 23_028, 64, 512),
    machine("l4-8", 8, "NVIDIA-L4", 23_034, 96, 768),
    machine("v100-8", 8, "Tesla-V100-SXM2-32GB", 32_768, 96, 768),
    machine("t4-4", 4, "Tesla-T4", 15_360, 48, 384),
    machine("cpu-96", 0, "", 0, 96, 384),
    machine("cpu-192", 0, "", 0, 192, 768),
];

const fn machine(
    name: &'static str,
    gpus: i64,
    model: &'static str,
    gpu_memory_mib: u64,
    cpus: i64,
    memory_gib: i64,
) -> MachineType {
    MachineType {
        name,
        gpus,
        model,
        gpu_memory_mib,
        cpus,
        memory_gib,
    }
}

/// The machine of this name.
#[must_use]
pub fn machine_named(name: &str) -> Option<MachineType> {
    MACHINES.into_iter().find(|machine| machine.name == name)
}

/// Reads `4xhgx-h100`: a count and a name.
pub fn counted<'a>(option: &str, text: &'a str) -> Result<(usize, &'a str), SimulatorError> {
    let refuse = || {
        let valid = "a number, x, and a machine or node, as in 4xhgx-h100";
        SimulatorError::option(option, text, valid)
    };
    let (count, what) = text.split_once('x').ok_or_else(refuse)?;
    let count: usize = count.parse().map_err(|_| refuse())?;
    if count == 0 || count > NODES_MAX || what.is_empty() {
        let valid = format!("a number of nodes from 1 to {NODES_MAX}, x, and their name");
        return Err(SimulatorError::option(option, text, valid));
    }
    Ok((count, what))
}

/// Reads a whole cluster: `1250xhgx-h100,20xcpu-96`.
pub fn cluster(option: &str, text: &str) -> Result<Vec<Node>, SimulatorError> {
    let mut nodes = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (count, name) = counted(option, part)?;
        let machine = machine_named(name).ok_or_else(|| unknown_machine(option, part))?;
        let from = nodes.len();
        nodes.extend(
            (0..count).map(|i| machine_node(&machine, &format!("{name}-{i:05}"), from + i)),
        );
    }
    Ok(nodes)
}

pub(crate) fn unknown_machine(option: &str, value: &str) -> SimulatorError {
    let names: Vec<&str> = MACHINES.iter().map(|machine| machine.name).collect();
    let valid = format!("the name of a machine: {}", names.join(", "));
    SimulatorError::option(option, value, valid)
}

/// One node of a machine; `place` is its position: 4 nodes a rack, 8 racks a leaf, 8 leaves a
/// spine.
#[must_use]
pub fn machine_node(machine: &MachineType, name: &str, place: usize) -> Node {
    let figures = NodeFigures {
        cpu_milli: machine.cpus * 1000,
        memory_mib: machine.memory_gib * 1024,
        gpus: machine.gpus,
        model: machine.model.to_owned(),
        gpu_memory_mib: machine.gpu_memory_mib,
    };
    let mut node = node(name, &figures);
    let labels = node.metadata.labels.get_or_insert_default();
    labels.insert(
        "node.kubernetes.io/instance-type".to_owned(),
        machine.name.to_owned(),
    );
    for (key, word, size) in [
        ("muster.io/rack", "rack", 4),
        ("muster.io/leaf", "leaf", 32),
        ("muster.io/spine", "spine", 256),
    ] {
        labels.insert(key.to_owned(), format!("{word}-{}", place / size));
    }
    node
}

/// A node's capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFigures {
    /// Thousandths of a core.
    pub cpu_milli: i64,
    /// MiB.
    pub memory_mib: i64,
    /// GPUs.
    pub gpus: i64,
    /// Their model; may be empty.
    pub model: String,
    /// One GPU's memory; 0 where unknown.
    pub gpu_memory_mib: u64,
}

/// A ready node with this capacity.
#[must_use]
pub fn node(name: &str, figures: &NodeFigures) -> Node {
    let mut labels = BTreeMap::from([("kubernetes.io/hostname".to_owned(), name.to_owned())]);
    let mut annotations = BTreeMap::new();
    let mut amounts = BTreeMap::from([
        (
            "cpu".to_owned(),
            Quantity(format!("{}m", figures.cpu_milli)),
        ),
        (
            "memory".to_owned(),
            Quantity(format!("{}Mi", figures.memory_mib)),
        ),
        ("pods".to_owned(), Quantity(PODS.to_string())),
    ]);
    if figures.gpus > 0 {
        amounts.insert(NVIDIA_GPU.to_owned(), Quantity(figures.gpus.to_string()));
        if !figures.model.is_empty() {
            labels.insert(GPU_PRODUCT.to_owned(), figures.model.clone());
        }
        if figures.gpu_memory_mib > 0 {
            labels.insert(GPU_MEMORY.to_owned(), figures.gpu_memory_mib.to_string());
        }
        let gpus = (0..figures.gpus).map(|i| GpuDevice {
            id: format!("GPU-{name}-{i}"),
            index: u32::try_from(i).unwrap_or_default(),
            model: figures.model.clone(),
            memory_mib: figures.gpu_memory_mib,
            numa: Some(u32::from(i * 2 >= figures.gpus)),
            healthy: true,
            ..GpuDevice::default()
        });
        let inventory = NodeInventory {
            gpus: gpus.collect(),
            cpus: u32::try_from(figures.cpu_milli / 1000).unwrap_or_default(),
            source: "described".to_owned(),
            ..NodeInventory::default()
        };
        if let Ok(text) = serde_json::to_string(&inventory) {
            annotations.insert(INVENTORY.to_owned(), text);
        }
    }
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec::default()),
        status: Some(NodeStatus {
            allocatable: Some(amounts.clone()),
            capacity: Some(amounts),
            conditions: Some(vec![NodeCondition {
                type_: "Ready".to_owned(),
                status: "True".to_owned(),
                ..NodeCondition::default()
            }]),
            ..NodeStatus::default()
        }),
    }
}

/// A pod of this shape; the caller sets its name and times.
#[must_use]
pub fn pod(shape: &PodShape, job: &Job, group: Option<&str>) -> Pod {
    use k8s_openapi::api::core::v1 as k8s;
    let mut requests = BTreeMap::new();
    if shape.cpu_milli > 0 {
        requests.insert("cpu".to_owned(), Quantity(format!("{}m", shape.cpu_milli)));
    }
    if shape.memory_mib > 0 {
        requests.insert(
            "memory".to_owned(),
            Quantity(format!("{}Mi", shape.memory_mib)),
        );
    }
    let mut annotations = BTreeMap::new();
    if shape.gpu_milli > 0 {
        annotations.insert(GPU_FRACTION.to_owned(), fraction(shape.gpu_milli));
        requests.insert(NVIDIA_GPU.to_owned(), Quantity("1".to_owned()));
    } else if shape.gpus > 0 {
        requests.insert(NVIDIA_GPU.to_owned(), Quantity(shape.gpus.to_string()));
    }
    match group {
        Some(group) => {
            annotations.insert(GROUP_NAME.to_owned(), group.to_owned());
        }
        None => {
            annotations.insert(QUEUE_NAME.to_owned(), job.queue.clone());
        }
    }
    if let Some(walltime) = job.walltime {
        annotations.insert(WALLTIME.to_owned(), walltime.to_string());
    }
    if let Some(user) = &job.user {
        annotations.insert(USER.to_owned(), user.clone());
    }
    let affinity = (!shape.models.is_empty()).then(|| k8s::Affinity {
        node_affinity: Some(k8s::NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(k8s::NodeSelector {
                node_selector_terms: vec![k8s::NodeSelectorTerm {
                    match_expressions: Some(vec![k8s::NodeSelectorRequirement {
                        key: GPU_PRODUCT.to_owned(),
                        operator: "In".to_owned(),
                        values: Some(shape.models.clone()),
                    }]),
                    match_fields: None,
                }],
            }),
            ..k8s::NodeAffinity::default()
        }),
        ..k8s::Affinity::default()
    });
    Pod {
        metadata: ObjectMeta {
            namespace: Some(job.namespace.clone()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(k8s::PodSpec {
            scheduler_name: Some("muster".to_owned()),
            priority: Some(job.priority),
            affinity,
            containers: vec![k8s::Container {
                name: "main".to_owned(),
                resources: Some(k8s::ResourceRequirements {
                    // Kubernetes wants limits for extended resources, equal to the requests.
                    limits: requests
                        .get(NVIDIA_GPU)
                        .map(|gpus| BTreeMap::from([(NVIDIA_GPU.to_owned(), gpus.clone())])),
                    requests: Some(requests),
                    ..k8s::ResourceRequirements::default()
                }),
                ..k8s::Container::default()
            }],
            ..k8s::PodSpec::default()
        }),
        status: None,
    }
}

fn fraction(milli: i64) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_read_from_counts_and_machines() {
        let nodes = cluster("--cluster", "2xhgx-h100,1xcpu-96").unwrap();
        let names: Vec<&str> = nodes
            .iter()
            .filter_map(|node| node.metadata.name.as_deref())
            .collect();
        assert_eq!(names, ["hgx-h100-00000", "hgx-h100-00001", "cpu-96-00000"]);
        assert_eq!(
            nodes[0].metadata.labels.as_ref().unwrap()["muster.io/rack"],
            "rack-0"
        );
    }

    #[test]
    fn text_that_is_no_cluster_is_refused_with_the_accepted_form() {
        for (text, word) in [
            ("hgx-h100", "a number"),
            ("0xhgx-h100", "from 1 to"),
            ("2xabacus", "hgx-h200"),
        ] {
            let error = cluster("--cluster", text).unwrap_err().to_string();
            assert!(
                error.contains(word) && error.contains("--cluster"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_fraction_is_written_without_zeros_behind_it() {
        assert_eq!(
            [fraction(500), fraction(50), fraction(1000)],
            ["0.5", "0.05", "1"]
        );
    }
}
