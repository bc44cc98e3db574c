//! Filters: which nodes a class of pods may use, regardless of free capacity. Follows
//! kube-scheduler's filter plugins and uses its messages. Adds the kinds of pods that a node can
//! run. Capacity is checked elsewhere.

mod affinity;
pub(crate) mod neighbours;
mod taints;
pub(crate) mod volumes;

use k8s_openapi::api::core::v1 as k8s;
use resources::report::NO_PROCESSES;

use crate::class::{Class, RuntimeNeed};
use crate::node::{Node, NodeAttributes};

pub(crate) use affinity::preference;
pub(crate) use taints::avoided;

const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";

/// Why a node is infeasible for a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InfeasibleReason {
    Unschedulable,
    NotReady,
    NoImages,
    NoProcesses,
    Affinity,
    Taint,
    Spare,
    Fabric,
    Repartition,
    OneAtMost,
    GpuModel,
    GpuMemory,
    GpuCompute,
    GpuDriver,
    VolumeUnbound,
    ClaimUnusable,
    VolumeElsewhere,
    VolumeZone,
    NoVolume,
    DeviceClaims,
}

impl InfeasibleReason {
    pub(crate) const ALL: [InfeasibleReason; 20] = [
        InfeasibleReason::Unschedulable,
        InfeasibleReason::NotReady,
        InfeasibleReason::NoImages,
        InfeasibleReason::NoProcesses,
        InfeasibleReason::Affinity,
        InfeasibleReason::Taint,
        InfeasibleReason::Spare,
        InfeasibleReason::Fabric,
        InfeasibleReason::Repartition,
        InfeasibleReason::OneAtMost,
        InfeasibleReason::GpuModel,
        InfeasibleReason::GpuMemory,
        InfeasibleReason::GpuCompute,
        InfeasibleReason::GpuDriver,
        InfeasibleReason::VolumeUnbound,
        InfeasibleReason::ClaimUnusable,
        InfeasibleReason::VolumeElsewhere,
        InfeasibleReason::VolumeZone,
        InfeasibleReason::NoVolume,
        InfeasibleReason::DeviceClaims,
    ];

    /// The reason in kube-scheduler's words, if it has such a reason.
    pub(crate) fn message(self) -> &'static str {
        match self {
            InfeasibleReason::Unschedulable => "node(s) were unschedulable",
            InfeasibleReason::NotReady => "node(s) were not ready",
            InfeasibleReason::NoImages => "node(s) had no runtime for container images",
            InfeasibleReason::NoProcesses => NO_PROCESSES,
            InfeasibleReason::Affinity => "node(s) didn't match Pod's node affinity/selector",
            InfeasibleReason::Taint => "node(s) had untolerated taint(s)",
            InfeasibleReason::Spare => "node(s) were kept as spares for interrupted gangs",
            InfeasibleReason::Fabric => "node(s) had failed RDMA, which the gang's pods need",
            InfeasibleReason::Repartition => "node(s) were repartitioning their GPUs (MIG)",
            InfeasibleReason::OneAtMost => "node(s) give a container only one of their shared GPUs",
            InfeasibleReason::GpuModel => "node(s) had no GPU of the model asked for",
            InfeasibleReason::GpuMemory => "node(s) had no GPU with the memory asked for",
            InfeasibleReason::GpuCompute => {
                "node(s) had no GPU of the compute capability asked for"
            }
            InfeasibleReason::GpuDriver => "node(s) had no GPU driver as new as asked for",
            InfeasibleReason::VolumeUnbound => "pod has unbound immediate PersistentVolumeClaims",
            InfeasibleReason::ClaimUnusable => "pod has PersistentVolumeClaims that cannot be used",
            InfeasibleReason::VolumeElsewhere => "node(s) had volume node affinity conflict",
            InfeasibleReason::VolumeZone => "node(s) had no available volume zone",
            InfeasibleReason::NoVolume => NO_VOLUME,
            InfeasibleReason::DeviceClaims => {
                "pod has resourceClaims, which only kube-scheduler allocates"
            }
        }
    }

    /// The reason for one node, in a few words after its name.
    pub(crate) fn of_one(self) -> &'static str {
        match self {
            InfeasibleReason::Unschedulable => "cordoned",
            InfeasibleReason::NotReady => "not ready",
            InfeasibleReason::NoImages => "no container runtime",
            InfeasibleReason::NoProcesses => "no pods without an image",
            InfeasibleReason::Affinity => "not selected",
            InfeasibleReason::Taint => "tainted",
            InfeasibleReason::Spare => "a spare",
            InfeasibleReason::Fabric => "its RDMA failed",
            InfeasibleReason::Repartition => "GPUs being repartitioned",
            InfeasibleReason::OneAtMost => "one shared GPU per container",
            InfeasibleReason::GpuModel => "another GPU",
            InfeasibleReason::GpuMemory => "too little GPU memory",
            InfeasibleReason::GpuCompute => "an older GPU",
            InfeasibleReason::GpuDriver => "an older GPU driver",
            InfeasibleReason::VolumeUnbound => "a claim unbound",
            InfeasibleReason::ClaimUnusable => "a claim not usable",
            InfeasibleReason::VolumeElsewhere => "its volume elsewhere",
            InfeasibleReason::VolumeZone => "its volume in another zone",
            InfeasibleReason::NoVolume => "no volume for it",
            InfeasibleReason::DeviceClaims => "no claims allocated",
        }
    }

    /// What a user could change about it.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            InfeasibleReason::Unschedulable => "uncordon a node",
            InfeasibleReason::NotReady => "a node becoming ready",
            InfeasibleReason::NoImages => {
                "a node with a container runtime, or one that may run images' commands on the host"
            }
            InfeasibleReason::NoProcesses => {
                "a node that runs processes (a node that cannot has the cause in its condition muster.io/suspect), or an \
                 image in the pod"
            }
            InfeasibleReason::Affinity => {
                "a node with the labels that the pod's selector or affinity asks for"
            }
            InfeasibleReason::Taint => "a toleration for the nodes' taints",
            InfeasibleReason::Spare => "a spare node that loses its label muster.io/spare",
            InfeasibleReason::Fabric => {
                "a node with working RDMA; see the node's condition muster.io/fabric-failed, and run muster doctor on \
                 the node"
            }
            InfeasibleReason::Repartition => {
                "the end of the repartitioning; see the node's label nvidia.com/mig.config.state and the node's events"
            }
            InfeasibleReason::OneAtMost => {
                "a node with enough GPUs that are not shared (through MPS, or in turns with \
                 failRequestsGreaterThanOne), or one GPU for each container"
            }
            InfeasibleReason::GpuModel => "a node with GPUs of the model asked for",
            InfeasibleReason::GpuMemory => "a node whose GPUs have the memory asked for",
            InfeasibleReason::GpuCompute => "a node with GPUs of the compute capability asked for",
            InfeasibleReason::GpuDriver => "a node with a GPU driver as new as asked for",
            InfeasibleReason::VolumeUnbound => "the pod's claims bound to volumes",
            InfeasibleReason::ClaimUnusable => "the pod's claims, present and not being deleted",
            InfeasibleReason::VolumeZone => "a node in the zones of its claims' volumes",
            InfeasibleReason::VolumeElsewhere => {
                "a node that can reach the volumes of the pod's claims"
            }
            InfeasibleReason::NoVolume => {
                "a node on which the claim's StorageClass provisions volumes, or a free volume on a node with room"
            }
            InfeasibleReason::DeviceClaims => {
                "kube-scheduler for the pod (schedulerName: default-scheduler), or GPUs by number (nvidia.com/gpu) in place of its resourceClaims"
            }
        }
    }
}

/// True if the class tolerates the node's taints.
pub(crate) fn tolerated(class: &Class, offer: &NodeAttributes) -> bool {
    !taints::untolerated(&class.tolerations, &offer.taints)
}

/// The first filter that rejects the node; `None` if only capacity can.
pub(crate) fn refusal(
    class: &Class,
    node: &Node,
    offer: &NodeAttributes,
) -> Option<InfeasibleReason> {
    if class.claims() {
        return Some(InfeasibleReason::DeviceClaims);
    }
    if offer.unschedulable && !taints::tolerates_unschedulable(&class.tolerations) {
        return Some(InfeasibleReason::Unschedulable);
    }
    if !offer.ready {
        return Some(InfeasibleReason::NotReady);
    }
    match class.need() {
        RuntimeNeed::Image if !offer.runtimes.images => return Some(InfeasibleReason::NoImages),
        RuntimeNeed::Process if !offer.runtimes.process => {
            return Some(InfeasibleReason::NoProcesses);
        }
        RuntimeNeed::Image | RuntimeNeed::Process => {}
    }
    if !selected(class, node, offer) {
        return Some(InfeasibleReason::Affinity);
    }
    if taints::untolerated(&class.tolerations, &offer.taints) {
        return Some(InfeasibleReason::Taint);
    }
    if offer.health.spare && !class.replaces() {
        return Some(InfeasibleReason::Spare);
    }
    if offer.health.fabric_failed && class.spans() {
        return Some(InfeasibleReason::Fabric);
    }
    if offer.is_repartitioning() && class.wants_devices() {
        return Some(InfeasibleReason::Repartition);
    }
    if class.several() & offer.one_at_most != 0 {
        return Some(InfeasibleReason::OneAtMost);
    }
    if class.kind().is_some_and(|kind| kind != offer.models) {
        return Some(InfeasibleReason::GpuModel);
    }
    let gpus = class.gpus().refusal(&offer.kind, offer.gpu_memory);
    gpus.or_else(|| class.reach()?.refusal(node, offer))
}

/// True if the class's own selector and affinity allow the node.
pub(crate) fn selected(class: &Class, node: &Node, offer: &NodeAttributes) -> bool {
    let mut labels = class.selector().iter();
    labels.all(|(key, value)| offer.labels.get(key) == Some(value)) && required(class, node, offer)
}

/// Why a node with room is infeasible for one pod because of other pods or volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exclusion {
    Affinity,
    AntiAffinity,
    ExistingAntiAffinity,
    Spread,
    Ports,
    Volumes,
    /// The storage has no room for its new volumes.
    StorageSpace,
    /// The node's limit of attached volumes is reached.
    VolumeLimit,
    /// Another pod on the node uses its disk.
    Disk,
    OnePod,
}

impl Exclusion {
    /// The reason in kube-scheduler's words.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Exclusion::Affinity => "node(s) didn't match pod affinity rules",
            Exclusion::AntiAffinity => "node(s) didn't match pod anti-affinity rules",
            Exclusion::ExistingAntiAffinity => {
                "node(s) didn't satisfy existing pods anti-affinity rules"
            }
            Exclusion::Spread => "node(s) didn't match pod topology spread constraints",
            Exclusion::Ports => "node(s) didn't have free ports for the requested pod ports",
            Exclusion::Volumes => NO_VOLUME,
            Exclusion::StorageSpace => "node(s) did not have enough free storage",
            Exclusion::VolumeLimit => "node(s) exceed max volume count",
            Exclusion::Disk => "node(s) had no available disk",
            Exclusion::OnePod => {
                "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
            }
        }
    }

    /// What a user could change about it.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Exclusion::Affinity => "room on nodes with the pods that its affinity requires",
            Exclusion::AntiAffinity => "nodes without the pods that its anti-affinity excludes",
            Exclusion::ExistingAntiAffinity => "nodes without pods whose anti-affinity excludes it",
            Exclusion::Spread => "room in domains with fewer matching pods, or a larger maxSkew",
            Exclusion::Ports => "nodes on which the pod's host ports are free",
            Exclusion::Volumes => {
                "free volumes that fit the pod's claims on nodes with room, or a StorageClass that provisions them"
            }
            Exclusion::StorageSpace => {
                "more free storage of the claim's StorageClass on nodes with room, or smaller claims"
            }
            Exclusion::VolumeLimit => {
                "fewer attached volumes on nodes with room (each node's CSINode has its limit), or more nodes"
            }
            Exclusion::Disk => {
                "nodes on which no other pod uses the disk, or a read-only disk in all pods"
            }
            Exclusion::OnePod => {
                "the end of the pod that uses the claim (ReadWriteOncePod), or a claim for this pod alone"
            }
        }
    }

    /// True if the reason is the pod's volumes.
    pub(crate) fn of_volumes(self) -> bool {
        use Exclusion::{Disk, OnePod, StorageSpace, VolumeLimit, Volumes};
        matches!(self, Volumes | StorageSpace | VolumeLimit | Disk | OnePod)
    }
}

/// True if the class may be on a node with this value of the label, as far as that label is
/// concerned.
pub(crate) fn may_be_on(class: &Class, key: &str, value: Option<&str>) -> bool {
    let selected = class.selector().get(key);
    let required = class.affinity.as_ref().and_then(|affinity| {
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    selected.is_none_or(|wanted| value == Some(wanted.as_str()))
        && required.is_none_or(|selector| affinity::may_select(selector, key, value))
}

fn required(class: &Class, node: &Node, offer: &NodeAttributes) -> bool {
    let Some(affinity) = &class.affinity else {
        return true;
    };
    affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()
        .is_none_or(|selector: &k8s::NodeSelector| affinity::selects(selector, node, offer))
}
