//! One pod as the scheduler sees it: its class, its gang, its stage, and what it holds.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as k8s;
use resources::devices::{ChosenDevices, chosen};
use resources::names::{GROUP_NAME, QUEUE_NAME, TASK_SPEC};

use crate::class::ClassIx;
use crate::devices::{self, DeviceRequest};
use crate::gang::GangKey;
use crate::job_annotations::JobAnnotations;
use crate::labels::Labels;
use crate::listed_devices;
use crate::namespaced_name::NamespacedName;
use crate::node::NodeIx;
use crate::topology::Hints;

/// A pod's name within the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PodKey(pub(crate) Arc<NamespacedName>);

impl Deref for PodKey {
    type Target = NamespacedName;

    fn deref(&self) -> &NamespacedName {
        &self.0
    }
}

impl PodKey {
    pub(crate) fn new(namespace: impl Into<Arc<str>>, name: &str) -> PodKey {
        PodKey(NamespacedName::new(namespace.into(), name))
    }

    /// Orders `worker-2` before `worker-10`: rank order, if names end in numbers.
    pub(crate) fn ranked(&self) -> (usize, PodKey) {
        (self.name.len(), self.clone())
    }
}

/// A pod's stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PodStage {
    /// Not to be placed: of another scheduler, gated, or being deleted.
    Apart,
    /// Waits for a node.
    Pending,
    /// It has a nominated node, and waits until terminating pods release its place.
    Pipelined,
    /// It has a node; its capacity is taken until the pod is gone or has ended.
    Bound,
    /// Bound and running.
    Running,
    /// Evicted or deleted and still terminating: what it holds is neither free nor its own for
    /// long.
    Leaving,
    /// Succeeded.
    Succeeded,
    /// Failed.
    Failed,
}

impl PodStage {
    /// True if it takes capacity that other pods cannot have.
    pub(crate) fn occupies(self) -> bool {
        matches!(
            self,
            PodStage::Pipelined | PodStage::Bound | PodStage::Running
        )
    }

    /// True if it is on a node or nominated to one.
    pub(crate) fn on_node(self) -> bool {
        self.occupies() || self == PodStage::Leaving
    }
}

/// One pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pod {
    pub(crate) uid: String,
    pub(crate) class: ClassIx,
    pub(crate) gang: GangKey,
    pub(crate) task: Arc<str>,
    pub(crate) stage: PodStage,
    /// The node whose room it takes.
    pub(crate) node: Option<NodeIx>,
    pub(crate) devices: Vec<Arc<str>>,
    /// True if a plan bound it and no event has confirmed that.
    pub(crate) assumed: bool,
    /// Its stage before a plan evicted it, while no event has confirmed that.
    pub(crate) evicting: Option<PodStage>,
    /// True if this scheduler places it; only then it is charged to its queue.
    pub(crate) ours: bool,
    pub(crate) priority: Option<i32>,
    pub(crate) created: Option<Timestamp>,
    /// The queue that its own metadata names.
    pub(crate) queue: Option<String>,
    pub(crate) terms: JobAnnotations,
    pub(crate) asks: Arc<[DeviceRequest]>,
    /// The time since which it runs, from its status.
    pub(crate) started: Option<Timestamp>,
    /// `preemptionPolicy: Never`: it waits and causes no evictions.
    pub(crate) never_preempts: bool,
    /// Its topology hints.
    pub(crate) hints: Option<Box<Hints>>,
    pub(crate) labels: Labels,
    /// Its sub-group in the gang.
    pub(crate) part: Option<Arc<str>>,
}

impl Pod {
    /// Its rank, if it states one.
    pub(crate) fn rank(&self) -> Option<u64> {
        self.hints.as_deref().and_then(|hints| hints.rank)
    }
}

/// What a Pod object states, before its class and node are looked up.
pub(crate) struct PodInfo<'a> {
    pub(crate) key: PodKey,
    pub(crate) spec: &'a k8s::PodSpec,
    pub(crate) uid: String,
    pub(crate) gang: GangKey,
    pub(crate) task: Arc<str>,
    pub(crate) stage: PodStage,
    pub(crate) node: Option<&'a str>,
    pub(crate) devices: Vec<Arc<str>>,
    /// The listed devices (slices, other vendors') that it holds.
    pub(crate) listed: Vec<Arc<str>>,
    pub(crate) ours: bool,
    pub(crate) created: Option<Timestamp>,
    pub(crate) queue: Option<String>,
    pub(crate) started: Option<Timestamp>,
    pub(crate) never_preempts: bool,
    pub(crate) terms: JobAnnotations,
    pub(crate) hints: Option<Box<Hints>>,
}

impl<'a> PodInfo<'a> {
    /// Reads a pod of a namespace; `None` for one without a name or spec, which no API serves.
    pub(crate) fn read(
        pod: &'a k8s::Pod,
        namespace: Arc<str>,
        scheduler_names: &[String],
    ) -> Option<PodInfo<'a>> {
        let meta = &pod.metadata;
        let spec = pod.spec.as_ref()?;
        let key = PodKey::new(namespace, meta.name.as_deref()?);
        let annotation = |name: &str| word(meta.annotations.as_ref(), name);
        let group = annotation(GROUP_NAME);
        let scheduler = spec.scheduler_name.as_deref().unwrap_or_default();
        let ours = scheduler_names.iter().any(|name| name == scheduler);
        let node = spec.node_name.as_deref().filter(|name| !name.is_empty());
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let gated = spec
            .scheduling_gates
            .as_ref()
            .is_some_and(|gates| !gates.is_empty());
        let stage = match (phase, node) {
            (Some("Succeeded"), _) => PodStage::Succeeded,
            (Some("Failed"), _) => PodStage::Failed,
            (_, Some(_)) if meta.deletion_timestamp.is_some() => PodStage::Leaving,
            (Some("Running"), Some(_)) => PodStage::Running,
            (_, Some(_)) => PodStage::Bound,
            (_, None) if !ours || gated || meta.deletion_timestamp.is_some() => PodStage::Apart,
            (_, None) => PodStage::Pending,
        };
        let chosen = if stage.on_node() {
            chosen(meta.annotations.as_ref())
        } else {
            ChosenDevices::new()
        };
        Some(PodInfo {
            gang: match group {
                Some(group) => GangKey::group(key.namespace.clone(), group),
                None => GangKey::lone(&key),
            },
            key,
            spec,
            uid: meta.uid.clone().unwrap_or_default(),
            task: Arc::from(annotation(TASK_SPEC).unwrap_or_default()),
            stage,
            node: node.filter(|_| stage.on_node()),
            devices: devices::ids(&chosen),
            listed: listed_devices::annotated_ids(&chosen),
            ours,
            hints: Hints::read(meta),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            started: pod
                .status
                .as_ref()
                .and_then(|status| status.start_time.as_ref())
                .map(|time| time.0),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            queue: annotation(QUEUE_NAME)
                .or_else(|| word(meta.labels.as_ref(), QUEUE_NAME))
                .map(str::to_owned),
            terms: JobAnnotations::read(meta).within(spec.active_deadline_seconds),
        })
    }
}

fn word<'a>(map: Option<&'a BTreeMap<String, String>>, name: &str) -> Option<&'a str> {
    map.and_then(|map| map.get(name))
        .map(String::as_str)
        .filter(|value| !value.is_empty())
}
