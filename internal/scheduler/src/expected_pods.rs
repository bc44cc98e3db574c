//! Feeds the fragmentation estimate (`fragment`) from the state: which pods are expected, and which
//! node leaves the most capacity usable by them. The expected pods come from the configuration, or
//! else from the pods known so far (`Window`). `place` uses the answers.
//!
//! Example: with 4-GPU pods expected, a 2-GPU pod goes to a node with 2 free GPUs instead of one
//! with 4.
//!
//! Tests: `tests/fragmentation.rs`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as k8s;
use resources::amounts::pod_requests;

use crate::class::{ClassIx, Classes};
use crate::config::PlacementStrategy as Placing;
use crate::devices;
use crate::filter;
use crate::fragment::{
    ANY_MODEL, ChooserNode, MAX_GPUS, Mix, NodeChooser, NodeRoom, NodeShape, PodDemand, Tuning,
    WHOLE, Window,
};
use crate::node::{NodeAttributes, NodeIx};
use crate::pod::{Pod, PodKey};
use crate::resource::{CPU, GPU, GPU_UNIT, MEMORY, ResourceNames};
use crate::share::{GpuAnnotations, Take};
use crate::state::Scheduler;
use crate::topology::DomainTree;

/// Node label: the GPU model, as written by NVIDIA's GPU feature discovery.
const MODEL: &str = "nvidia.com/gpu.product";
/// The most GPU models that are distinguished. Further ones share the last number.
const MODELS_MAX: usize = 64;
/// The weight of one known pod in the mix.
const PER_POD: u64 = 1000;
/// For each `PER_POD` known pods, this many pods that take a large node whole are expected, even if
/// none was seen: such nodes are bought for them, and without this weight they find no free node
/// when they arrive. Tuned on openb pod lists other than those that it is measured by.
const WHOLE_NODES: u64 = 5;
/// The weight of such pods from the start, in thousandths; it matters less as more pods are known.
const WHOLE_NODES_FIRST: u64 = 1500;
/// The number of GPUs from which a node counts as large.
const LARGE: u8 = 8;
/// One MiB.
const MIB: i64 = 1 << 20;

/// The cached state of the estimate. All of it is derived from the scheduler's state.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedPods {
    /// Known pods to place, the oldest first.
    known: Window<(Timestamp, PodKey)>,
    /// Expected pods of the configuration, with their number.
    declared: BTreeMap<ClassIx, u64>,
    chooser: NodeChooser,
    /// GPU models of nodes; a model's number is its index.
    models: Vec<String>,
    /// The last node change that was applied.
    seen: u64,
    /// True if some node's offer changed since.
    offers: bool,
}

impl ExpectedPods {
    /// Knows only the configured pods.
    pub(crate) fn new(
        pods: &[(k8s::Pod, u64)],
        classes: &mut Classes,
        names: &mut ResourceNames,
    ) -> ExpectedPods {
        let mut declared = BTreeMap::new();
        for (pod, count) in pods {
            let Some(spec) = &pod.spec else { continue };
            let requests = pod_requests(spec);
            let wish = GpuAnnotations::read(&pod.metadata, spec, &requests);
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
            let labels = pod.metadata.labels.as_ref();
            let asks = devices::wished(
                spec,
                &wish,
                &devices::asks(spec),
                &devices::listed_asks(spec),
            );
            let class = classes.join(spec, (requests, &asks), &wish, namespace, labels, names);
            *declared.entry(class).or_insert(0) += count;
        }
        ExpectedPods {
            known: Window::default(),
            declared,
            chooser: NodeChooser::new(Tuning::default()),
            models: Vec::new(),
            seen: 0,
            offers: true,
        }
    }

    /// Adds or removes a pod.
    pub(crate) fn see(&mut self, key: &PodKey, pod: &Pod, up: bool) {
        // Of other schedulers' pods, only those whose devices were chosen here count.
        if !pod.ours && pod.devices.is_empty() || !self.declared.is_empty() {
            return;
        }
        // Pods without a creation time count as the newest: they change nothing for a while.
        let key = (pod.created.unwrap_or(Timestamp::MAX), key.clone());
        if up {
            self.known.add(key, pod.class);
        } else {
            self.known.remove(&key);
        }
    }

    /// True if no expected pods are known.
    fn is_blind(&self) -> bool {
        self.declared.is_empty() && self.known.counts().is_empty()
    }

    /// Some node's offer changed.
    pub(crate) fn offers_changed(&mut self) {
        self.offers = true;
    }
}

impl Scheduler {
    /// The node that leaves the most capacity usable by expected pods once `pods` pods of a class
    /// are on it, among nodes that hold them, have a tier at most `rank_without_sharing_cost`, and are `open`. `None`
    /// if no pods are expected or those nodes have no GPUs.
    pub(crate) fn best_node_by_fragmentation(
        &mut self,
        class: ClassIx,
        pods: u64,
        rank_without_sharing_cost: i64,
        open: impl Fn(&DomainTree, NodeIx) -> bool,
    ) -> Option<NodeIx> {
        let count = u32::try_from(pods).ok()?;
        if pods > MAX_GPUS as u64 || !self.refresh_expected() {
            return None;
        }
        let demand = together(self.demand_of(class)?, count)?;
        let (view, tree) = (self.views.get(&class)?, &self.topology);
        self.expected.chooser.choose(&demand, |at| {
            view.key(at).is_some_and(|key| {
                key.count >= count && key.rank_without_sharing_cost() <= rank_without_sharing_cost
            }) && open(tree, at)
        })
    }

    /// For each node, what it leaves usable by expected pods after taking one pod of a class: more
    /// is better. `None` if no pods are expected or the node has no GPUs.
    pub(crate) fn fragmentation_scores(
        &mut self,
        class: ClassIx,
        nodes: &[Option<NodeIx>],
    ) -> Vec<Option<i32>> {
        let demand = self
            .refresh_expected()
            .then(|| self.demand_of(class))
            .flatten();
        let chooser = &mut self.expected.chooser;
        let worth = |at: &Option<NodeIx>| chooser.worth((*at)?, demand.as_ref()?);
        nodes.iter().map(worth).collect()
    }

    /// The free amount of the GPU that a pod with a part of one GPU should get.
    pub(crate) fn best_gpu_amount(
        &mut self,
        class: ClassIx,
        at: NodeIx,
        take: &Take,
    ) -> Option<i64> {
        if take.gpus != 1 || self.classes.get(class).share().is_none() {
            return None;
        }
        if !self.refresh_expected() {
            return None;
        }
        let mut demand = self.demand_of(class)?;
        demand.milli = u16::try_from(take.each).ok()?;
        // Other members of the gang may have been placed since the node was last updated.
        let site = self.site(at);
        self.expected.chooser.set(at, site);
        self.expected.chooser.piece(at, &demand).map(i64::from)
    }

    /// Updates the expected pods and the nodes' free capacity. Returns false if no pods are
    /// expected.
    fn refresh_expected(&mut self) -> bool {
        if self.config.placement != Placing::Fragmentation {
            return false;
        }
        let offers = std::mem::take(&mut self.expected.offers);
        if offers {
            self.list_models();
        }
        let news = self.expected.known.news() || offers;
        if self.expected.is_blind() {
            return false;
        }
        let from = self.expected.seen + 1;
        if from <= self.clock {
            let changed: Vec<NodeIx> = self.touched.range(from..).map(|(_, at)| *at).collect();
            for at in changed {
                let site = self.site(at);
                self.expected.chooser.set(at, site);
            }
            self.expected.seen = self.clock;
        }
        if news {
            let mix = self.mix();
            self.expected.chooser.expect(mix);
        }
        self.expected.chooser.settle();
        true
    }

    /// Numbers the GPU models. If the numbers change, all nodes are read again.
    fn list_models(&mut self) {
        let offers = self.nodes.iter().filter_map(|node| node.offer.as_ref());
        let models: BTreeSet<&str> = offers.map(model).collect();
        if !models
            .iter()
            .copied()
            .eq(self.expected.models.iter().map(String::as_str))
        {
            self.expected.models = models.into_iter().map(str::to_owned).collect();
            self.expected.seen = 0;
        }
    }

    /// The expected mix: the configured pods, or else pods like the known ones and a few that take
    /// a large node whole.
    fn mix(&self) -> Mix {
        let declared = !self.expected.declared.is_empty();
        let counts = if declared {
            &self.expected.declared
        } else {
            self.expected.known.counts()
        };
        let mut demands = BTreeMap::new();
        for (class, count) in counts {
            if let Some(demand) = self.demand_of(*class) {
                *demands.entry(demand).or_insert(0) += count * PER_POD;
            }
        }
        if !declared {
            let known: u64 = demands.values().sum();
            let shapes = self.expected.chooser.shapes().iter();
            let large: Vec<_> = shapes.filter(|(shape, _)| shape.gpus >= LARGE).collect();
            let nodes: u64 = large.iter().map(|(_, nodes)| u64::from(**nodes)).sum();
            let whole = known * WHOLE_NODES / PER_POD + WHOLE_NODES_FIRST;
            for (shape, count) in large {
                let part = whole * u64::from(*count) / nodes;
                let [most, all] = whole_of(shape);
                *demands.entry(most).or_insert(0) += part / 2;
                *demands.entry(all).or_insert(0) += part - part / 2;
            }
        }
        Mix::from_counts(&demands)
    }

    /// A class's request, as far as the estimate weighs it; `None` for a class that takes parts of
    /// several GPUs.
    fn demand_of(&self, class: ClassIx) -> Option<PodDemand> {
        let facts = self.classes.get(class);
        let asked = facts.demand();
        let (gpus, milli) = match facts.share() {
            Some(share) if share.gpus == 1 => (1, asked.get(GPU)),
            Some(_) => return None,
            None => (asked.get(GPU) / GPU_UNIT, GPU_UNIT),
        };
        let admitted = |at: usize| {
            let model = self.expected.models.get(at)?;
            let label = Some(model.as_str()).filter(|model| !model.is_empty());
            Some(filter::may_be_on(facts, MODEL, label))
        };
        let number = |at: usize| at.min(MODELS_MAX - 1);
        let all = 0..self.expected.models.len();
        let out = all
            .clone()
            .filter(|at| admitted(*at) == Some(false))
            .count();
        let models = if gpus == 0 || out == 0 {
            ANY_MODEL
        } else {
            let inside = all.filter(|at| admitted(*at) == Some(true));
            inside.fold(0, |bits, at| bits | 1 << number(at))
        };
        Some(PodDemand {
            cpu: capped(asked.get(CPU)),
            mem: capped((asked.get(MEMORY) + MIB - 1) / MIB),
            gpus: u8::try_from(gpus).unwrap_or(u8::MAX),
            milli: if gpus == 0 {
                0
            } else {
                u16::try_from(milli).ok().filter(|milli| *milli <= WHOLE)?
            },
            models,
        })
    }

    /// A node as the estimate sees it; `None` for one that takes no pods, has no GPUs, or has too
    /// many.
    fn site(&self, at: NodeIx) -> Option<ChooserNode> {
        let node = self.nodes.get(at).filter(|node| node.usable())?;
        let offer = node.offer.as_ref()?;
        let gpus = usize::try_from(offer.capacity(GPU) / GPU_UNIT).ok()?;
        if gpus == 0 || gpus > MAX_GPUS {
            return None;
        }
        let models = &self.expected.models;
        let model = match models.len() {
            0 | 1 => Ok(0),
            _ => models.binary_search_by(|m| m.as_str().cmp(model(offer))),
        };
        let shape = NodeShape {
            cpu: capped(offer.allocatable.get(CPU)),
            mem: capped(offer.allocatable.get(MEMORY) / MIB),
            gpus: gpus as u8,
            model: model.unwrap_or_default().min(MODELS_MAX - 1) as u8,
        };
        let mut free = [0; MAX_GPUS];
        let whole = usize::try_from(node.gpus.whole).unwrap_or(0);
        let begun = node.gpus.begun.iter().map(|milli| capped(*milli) as u16);
        let all = std::iter::repeat_n(WHOLE, whole).chain(begun);
        for (place, milli) in free.iter_mut().take(gpus).zip(all) {
            *place = milli;
        }
        let room = NodeRoom {
            cpu: capped(node.free(CPU)),
            mem: capped(node.free(MEMORY) / MIB),
            gpus: shape.gpus,
            model: shape.model,
            free,
        };
        Some(ChooserNode {
            shape,
            room: room.canonical(),
            rank: node.rank,
        })
    }
}

/// The sum of several pods' requests on one node; `None` if they request parts of GPUs.
fn together(demand: PodDemand, pods: u32) -> Option<PodDemand> {
    if pods == 1 {
        return Some(demand);
    }
    let gpus = u32::from(demand.gpus).checked_mul(pods)?;
    if demand.is_share() || gpus > MAX_GPUS as u32 {
        return None;
    }
    Some(PodDemand {
        cpu: demand.cpu.checked_mul(pods)?,
        mem: demand.mem.checked_mul(pods)?,
        gpus: gpus as u8,
        ..demand
    })
}

/// Two pods that each take all GPUs of a node: one with three quarters of the rest, the other with
/// nearly all of it. The first fits wherever no GPU is taken, also next to a node's daemons; the
/// second stops fitting once a pod without GPUs is there, which could have gone to a node with used
/// GPUs.
fn whole_of(shape: &NodeShape) -> [PodDemand; 2] {
    let taking = |all: fn(u32) -> u32| PodDemand {
        cpu: all(shape.cpu),
        mem: all(shape.mem),
        gpus: shape.gpus,
        milli: WHOLE,
        models: 1 << shape.model,
    };
    [taking(|have| have / 4 * 3), taking(|have| have / 32 * 31)]
}

fn model(offer: &NodeAttributes) -> &str {
    offer.labels.get(MODEL).map_or("", String::as_str)
}

fn capped(amount: i64) -> u32 {
    u32::try_from(amount.max(0)).unwrap_or(u32::MAX)
}
