//! The engine's state of one gang: its objects, the stage of each member, the progress of its work.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use resources::amounts::{CPU, MEMORY, pod_requests};
use resources::devices::ChosenDevices;
use resources::kinds::PodGroup;
use resources::names::{
    GPU_COUNT, GPU_FRACTION, GPU_MEMORY, KAI_GPU_COUNT, KAI_GPU_FRACTION, KAI_GPU_MEMORY,
    NVIDIA_GPU, NVIDIA_GPU_MEMORY, TASK_SPEC,
};

use crate::scenario::Seconds;
use crate::shape::GPU_PRODUCT;

/// A gang's index in the engine's table.
pub(crate) type GangIx = usize;
/// A node's index in the engine's table.
pub(crate) type NodeIndex = usize;

/// A pod's requests, in the few dimensions that accounts and reference schedulers use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodRequests {
    pub(crate) cpu_milli: i64,
    pub(crate) memory_mib: i64,
    /// Requested GPUs, as whole devices.
    pub(crate) gpus: i64,
    /// Requested GPUs, in thousandths.
    pub(crate) gpu_milli: i64,
    /// GPU models that it accepts; any if empty.
    pub(crate) models: Vec<String>,
}

impl PodRequests {
    /// `gpu_memory` is the memory of one of the cluster's GPUs, in MiB, if known.
    pub(crate) fn of(pod: &Pod, gpu_memory: Option<i64>) -> PodRequests {
        let Some(spec) = &pod.spec else {
            return PodRequests::default();
        };
        let requests = pod_requests(spec);
        let annotations = pod.metadata.annotations.as_ref();
        let number = |names: [&str; 2]| {
            let texts = names.into_iter().filter_map(|name| annotations?.get(name));
            texts.filter_map(|text| text.parse::<f64>().ok()).next()
        };
        let memory = number([GPU_MEMORY, KAI_GPU_MEMORY]);
        let of_memory = || {
            let each = gpu_memory.filter(|each| *each > 0)? as f64;
            Some((memory? / each).min(1.0))
        };
        let part = number([GPU_FRACTION, KAI_GPU_FRACTION]).or_else(of_memory);
        let part = part.filter(|part| (0.0..=1.0).contains(part));
        let gpus = requests.get(NVIDIA_GPU);
        let (gpus, gpu_milli) = match part {
            Some(part) => {
                let count = number([GPU_COUNT, KAI_GPU_COUNT]).unwrap_or(1.0);
                let gpus = gpus.max(count as i64).max(1);
                (gpus, (part * 1000.0).round() as i64 * gpus)
            }
            None if memory.is_some() => (gpus.max(1), gpus.max(1) * 1000),
            None => (gpus, gpus * 1000),
        };
        PodRequests {
            cpu_milli: requests.get(CPU),
            memory_mib: requests.get(MEMORY) >> 20,
            gpus,
            gpu_milli,
            models: models(spec),
        }
    }
}

/// The GPU models that a pod's selector or required affinity names.
fn models(spec: &k8s_openapi::api::core::v1::PodSpec) -> Vec<String> {
    if let Some(model) = spec
        .node_selector
        .as_ref()
        .and_then(|map| map.get(GPU_PRODUCT))
    {
        return vec![model.clone()];
    }
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|node| {
            node.required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    required
        .into_iter()
        .flat_map(|selector| &selector.node_selector_terms)
        .flat_map(|term| term.match_expressions.iter().flatten())
        .filter(|expression| expression.key == GPU_PRODUCT && expression.operator == "In")
        .flat_map(|expression| expression.values.iter().flatten().cloned())
        .collect()
}

/// A node's capacity, in the same dimensions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Host {
    pub(crate) name: Arc<str>,
    pub(crate) cpu_milli: i64,
    pub(crate) memory_mib: i64,
    pub(crate) gpus: i64,
    pub(crate) model: String,
    /// Device ids, if known.
    pub(crate) devices: Vec<String>,
    /// The memory of each of its GPUs, in MiB, if known.
    pub(crate) gpu_memory: Option<i64>,
    /// Whether the node accepts pods.
    pub(crate) open: bool,
}

impl Host {
    /// A node that pods name but the input does not describe: its pods stay, and no others are
    /// placed there.
    pub(crate) fn unknown(name: &str) -> Host {
        Host {
            name: Arc::from(name),
            ..Host::default()
        }
    }

    pub(crate) fn of(node: &Node) -> Host {
        let status = node.status.as_ref();
        let amounts = status
            .and_then(|s| s.allocatable.as_ref().or(s.capacity.as_ref()))
            .map(resources::amounts::Amounts::from_k8s)
            .unwrap_or_default();
        let inventory = resources::devices::inventory(node.metadata.annotations.as_ref());
        let described = inventory
            .as_ref()
            .and_then(|inventory| inventory.gpus.first());
        let described = described.and_then(|gpu| i64::try_from(gpu.memory_mib).ok());
        let healthy = inventory.into_iter().flat_map(|inventory| inventory.gpus);
        let devices: Vec<String> = healthy
            .filter(|gpu| gpu.healthy)
            .map(|gpu| gpu.id)
            .collect();
        let ready = status
            .and_then(|s| s.conditions.as_ref())
            .and_then(|all| all.iter().find(|condition| condition.type_ == "Ready"))
            .is_none_or(|condition| condition.status == "True");
        let cordoned = node
            .spec
            .as_ref()
            .and_then(|spec| spec.unschedulable)
            .unwrap_or(false);
        let labels = node.metadata.labels.as_ref();
        let counted = amounts.get(NVIDIA_GPU);
        Host {
            name: Arc::from(node.metadata.name.as_deref().unwrap_or_default()),
            cpu_milli: amounts.get(CPU),
            memory_mib: amounts.get(MEMORY) >> 20,
            gpus: if devices.is_empty() {
                counted
            } else {
                counted.min(i64::try_from(devices.len()).unwrap_or(i64::MAX))
            },
            model: labels
                .and_then(|map| map.get(GPU_PRODUCT))
                .cloned()
                .unwrap_or_default(),
            devices,
            gpu_memory: described.filter(|mib| *mib > 0).or_else(|| {
                let labels = labels?;
                labels.get(NVIDIA_GPU_MEMORY)?.parse().ok()
            }),
            open: ready && !cordoned,
        }
    }
}

/// The stage of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemberStage {
    Waiting,
    Placed {
        node: NodeIndex,
    },
    /// Evicted, and still running until its grace period ends.
    Leaving {
        node: NodeIndex,
    },
}

/// One pod of a gang.
#[derive(Clone, Debug)]
pub(crate) struct GangPod {
    /// The pod as the API would show it while it waits.
    pub(crate) pod: Pod,
    pub(crate) ask: PodRequests,
    pub(crate) stage: MemberStage,
    pub(crate) devices: ChosenDevices,
    /// How many times the pod was recreated.
    pub(crate) generation: u32,
    /// The start of its current stage.
    pub(crate) since: Option<Timestamp>,
    /// The pod has a finalizer, so it is not removed after its eviction.
    pub(crate) stays: bool,
    /// The pod was terminating from the start, and no controller recreates it.
    pub(crate) last: bool,
}

impl GangPod {
    pub(crate) fn new(pod: Pod, gpu_memory: Option<i64>) -> GangPod {
        let finalizers = pod.metadata.finalizers.as_ref();
        let stays = finalizers.is_some_and(|all| !all.is_empty());
        GangPod {
            ask: PodRequests::of(&pod, gpu_memory),
            pod,
            stage: MemberStage::Waiting,
            devices: ChosenDevices::new(),
            generation: 0,
            since: None,
            stays,
            last: false,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    fn task(&self) -> &str {
        let annotations = self.pod.metadata.annotations.as_ref();
        annotations
            .and_then(|map| map.get(TASK_SPEC))
            .map_or("", String::as_str)
    }
}

/// One gang: the unit that waits, starts and ends together.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedGang {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// A pod without a PodGroup.
    pub(crate) lone: bool,
    pub(crate) group: Option<Box<PodGroup>>,
    pub(crate) queue: usize,
    pub(crate) priority: i32,
    pub(crate) members: Vec<GangPod>,
    pub(crate) arrived: Seconds,
    pub(crate) duration: Option<Seconds>,
    /// The duration that schedulers with reservations may expect.
    pub(crate) estimate: Option<Seconds>,
    /// Work done that survives an interruption.
    pub(crate) kept: Seconds,
    pub(crate) whole_since: Option<Seconds>,
    /// The number of its current run, to detect the stale end of an interrupted one.
    pub(crate) run: u32,
    pub(crate) ended: bool,
    /// The controller that created it, if any.
    pub(crate) owner: Option<usize>,
    /// The last reported reason for waiting.
    pub(crate) last_reason: Option<resources::report::WaitReason>,
    /// Its index in the results.
    pub(crate) result: usize,
}

impl SimulatedGang {
    /// Whether enough members are placed for the gang to run.
    pub(crate) fn whole(&self) -> bool {
        let placed = || {
            self.members
                .iter()
                .filter(|member| matches!(member.stage, MemberStage::Placed { .. }))
        };
        let Some(group) = &self.group else {
            return placed().next().is_some();
        };
        let least = |n: i32| usize::try_from(n).unwrap_or(0);
        let tasks: BTreeMap<&str, usize> = group
            .spec
            .min_task_member
            .iter()
            .flatten()
            .map(|(task, n)| (task.as_str(), least(*n)))
            .collect();
        let minimum = least(group.spec.min_member.unwrap_or(1))
            .max(tasks.values().sum())
            .max(1);
        placed().count() >= minimum
            && tasks
                .into_iter()
                .all(|(task, n)| placed().filter(|member| member.task() == task).count() >= n)
    }

    /// GPUs of all members, in thousandths.
    pub(crate) fn gpu_milli(&self) -> i64 {
        self.members.iter().map(|member| member.ask.gpu_milli).sum()
    }

    /// GPUs of the placed members, in thousandths.
    pub(crate) fn placed_milli(&self) -> i64 {
        let placed = self
            .members
            .iter()
            .filter(|member| matches!(member.stage, MemberStage::Placed { .. }));
        placed.map(|member| member.ask.gpu_milli).sum()
    }
}
