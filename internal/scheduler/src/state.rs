//! The scheduler's state and the small steps that keep it consistent: node changes and class views.
//! Objects are read in `apply`, queues and positions are kept in `queue_assignment`, decisions are made in
//! `plan`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use crate::class::{ClassIx, Classes};
use crate::config::{Config, PlacementStrategy};
use crate::devices::DeviceRequest;
use crate::dirty_set::DirtySet;
use crate::evict::{Budgets, QueueVictims, VictimSearchKey};
use crate::expected_pods::ExpectedPods;
use crate::filter::neighbours::Neighbours;
use crate::filter::volumes::Volumes;
use crate::fit::ClassView;
use crate::gang::{Gang, GangKey};
use crate::health::ReportedLoad;
use crate::incremental::SettledState;
use crate::listed_devices::ListedDeviceHolders;
use crate::name_table::NameTable;
use crate::node::{Node, NodeAttributes, NodeIx};
use crate::phase::LastConditions;
use crate::pod::{Pod, PodKey};
use crate::queue::Queues;
use crate::queue_access::NamespaceLabels;
use crate::repartition;
use crate::report_cache::ReportCache;
use crate::resource::{GPU, Ix, ResourceNames, ResourceSet, Room};
use crate::score;
use crate::share::{GpuOrder, Take};
use crate::spec_cache::SpecCache;
use crate::timeline::Timeline;
use crate::topology::DomainTree;

/// The number of class views kept between plans in a cluster of `VIEWED_NODES` nodes; more in a
/// smaller cluster. A view costs about a hundred bytes a node.
const VIEWS_MAX: usize = 256;
const VIEWED_NODES: usize = 10_000;

/// A priority class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Priority {
    pub(crate) value: i32,
    /// `preemptionPolicy: Never`: pods of this class wait and cause no evictions.
    pub(crate) waits: bool,
    pub(crate) default: bool,
}

/// The cluster as reported by events, with the decisions that no event has confirmed yet.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(crate) config: Config,
    pub(crate) names: ResourceNames,
    pub(crate) nodes: Vec<Node>,
    pub(crate) node_index: BTreeMap<Arc<str>, NodeIx>,
    pub(crate) free_nodes: Vec<NodeIx>,
    /// Nodes by their last change: the nodes that a view must update are a range of this.
    pub(crate) touched: BTreeMap<u64, NodeIx>,
    /// The number of the last change.
    pub(crate) clock: u64,
    pub(crate) ranks_stale: bool,
    pub(crate) classes: Classes,
    /// True once a node with failed RDMA was reported: see `fabric`.
    pub(crate) fabrics_failed: bool,
    pub(crate) views: BTreeMap<ClassIx, ClassView>,
    pub(crate) pods: NameTable<PodKey, Pod>,
    pub(crate) gangs: NameTable<GangKey, Gang>,
    pub(crate) queues: Queues,
    pub(crate) namespaces: NamespaceLabels,
    pub(crate) priorities: BTreeMap<String, Priority>,
    /// Pods that request GPU memory, and the number of nodes by memory of a GPU.
    pub(crate) by_memory: BTreeSet<PodKey>,
    pub(crate) memories: BTreeMap<i64, usize>,
    /// Pods with GPUs by node, and the number of nodes by the set of model resources that their
    /// GPUs count under; kept only while such resources exist.
    pub(crate) on_gpus: BTreeSet<(NodeIx, PodKey)>,
    pub(crate) kinds: BTreeMap<ResourceSet, usize>,
    /// The capacity of usable nodes, and what pods use of it.
    pub(crate) total: Room,
    pub(crate) used: Room,
    /// True if an event arrived since the last plan.
    pub(crate) changed: bool,
    /// Gangs that changed since the last plan.
    pub(crate) changed_gangs: DirtySet<GangKey>,
    /// Other gangs without a valid answer.
    pub(crate) unanswered: BTreeSet<GangKey>,
    /// The state after the last plan, if every waiting gang had an answer.
    pub(crate) rest: Option<SettledState>,
    /// The cached reports.
    pub(crate) report_cache: ReportCache,
    /// Gangs whose reports have a stale start estimate.
    pub(crate) outdated: BTreeSet<GangKey>,
    /// When a gang that is held back may be tried again.
    pub(crate) requeue_at: Option<Timestamp>,
    pub(crate) plans: u64,
    /// Gangs with nominated nodes.
    pub(crate) nominated: BTreeSet<GangKey>,
    /// By queue: gangs on nodes, in eviction order.
    pub(crate) victims: BTreeMap<String, QueueVictims>,
    /// How often the cluster changed other than by a plan: see `evict`.
    pub(crate) age: u64,
    /// The cache of recent pod specs.
    pub(crate) spec_cache: SpecCache,
    /// What the containers of the last pod request.
    pub(crate) last_asks: Arc<[DeviceRequest]>,
    /// The namespace of the last pod or gang.
    pub(crate) last_namespace: Arc<str>,
    /// The conditions of the last gang.
    pub(crate) last_conditions: LastConditions,
    /// The age at which a gang was last placed by evictions.
    pub(crate) last_eviction_age: Option<u64>,
    /// The number of changes that a search for evictions could see.
    pub(crate) version: u64,
    /// Gangs with reservations for moved members.
    pub(crate) gangs_with_reserved_places: BTreeSet<GangKey>,
    /// PodDisruptionBudgets.
    pub(crate) budgets: Budgets,
    /// When members were moved for defragmentation, within the last hour.
    pub(crate) moved: VecDeque<Timestamp>,
    /// The budgets that the current search was stopped by.
    pub(crate) budgets_in_the_way: BTreeSet<String>,
    /// Gangs that run below their minimum.
    pub(crate) incomplete_gangs: BTreeSet<GangKey>,
    /// Nodes with failed GPUs.
    pub(crate) failing: BTreeSet<NodeIx>,
    /// Pods that may hold a failed GPU.
    pub(crate) pods_on_failed_devices: BTreeSet<PodKey>,
    /// Fruitless searches for evictions: the version at which they ran, and the reason.
    pub(crate) refused: BTreeMap<VictimSearchKey, (u64, String)>,
    /// The last class used for another scheduler's request: held, so that its view is kept.
    pub(crate) extender_class: Option<ClassIx>,
    /// Nodes with a known load, by the time when it becomes too old.
    pub(crate) loads: BTreeSet<(Timestamp, NodeIx)>,
    pub(crate) topology: DomainTree,
    /// Expected ends, the gang that capacity is reserved for, and when it can start.
    pub(crate) timeline: Timeline,
    pub(crate) neighbours: Neighbours,
    /// Which pods hold which slices and other vendors' devices.
    pub(crate) listed: ListedDeviceHolders,
    /// Which GPUs can be repartitioned, and the decisions about them.
    pub(crate) repartition: repartition::RepartitionState,
    /// Claims and volumes, and the pods that name them.
    pub(crate) volumes: Volumes,
    pub(crate) expected: ExpectedPods,
    /// The number of releases and relaxations: what may help gangs that do not wait for room.
    pub(crate) releases: u64,
    /// Answers renewed in this plan only for their wording.
    pub(crate) renewed: usize,
}

impl Scheduler {
    /// A scheduler without any objects.
    #[must_use]
    pub fn new(config: Config) -> Scheduler {
        let packs = config.gpus == GpuOrder::Pack && config.placement != PlacementStrategy::Spread;
        let mut names = ResourceNames::new();
        let mut classes = Classes::new(packs);
        Scheduler {
            expected: ExpectedPods::new(&config.expected, &mut classes, &mut names),
            classes,
            fabrics_failed: false,
            by_memory: BTreeSet::new(),
            memories: BTreeMap::new(),
            on_gpus: BTreeSet::new(),
            kinds: BTreeMap::new(),
            topology: DomainTree::new(&config.topology),
            timeline: Timeline::default(),
            neighbours: Neighbours::default(),
            volumes: Volumes::new(config.volumes_told),
            listed: ListedDeviceHolders::default(),
            repartition: repartition::RepartitionState::default(),
            loads: BTreeSet::new(),
            releases: 0,
            renewed: 0,
            config,
            names,
            nodes: Vec::new(),
            node_index: BTreeMap::new(),
            free_nodes: Vec::new(),
            touched: BTreeMap::new(),
            clock: 0,
            ranks_stale: false,
            views: BTreeMap::new(),
            pods: NameTable::default(),
            gangs: NameTable::default(),
            queues: Queues::default(),
            namespaces: NamespaceLabels::default(),
            priorities: BTreeMap::new(),
            total: Room::default(),
            used: Room::default(),
            changed: true,
            changed_gangs: DirtySet::default(),
            unanswered: BTreeSet::new(),
            rest: None,
            report_cache: ReportCache::default(),
            outdated: BTreeSet::new(),
            requeue_at: None,
            plans: 0,
            nominated: BTreeSet::new(),
            victims: BTreeMap::new(),
            age: 0,
            spec_cache: SpecCache::default(),
            last_asks: Arc::from([]),
            last_namespace: Arc::from(""),
            last_conditions: Arc::default(),
            last_eviction_age: None,
            version: 0,
            gangs_with_reserved_places: BTreeSet::new(),
            budgets: Budgets::new(),
            moved: VecDeque::new(),
            budgets_in_the_way: BTreeSet::new(),
            incomplete_gangs: BTreeSet::new(),
            failing: BTreeSet::new(),
            pods_on_failed_devices: BTreeSet::new(),
            refused: BTreeMap::new(),
            extender_class: None,
        }
    }

    /// The index of a node, added if new: pods may name a node before it is reported.
    pub(crate) fn node_at(&mut self, name: &str) -> NodeIx {
        if let Some(at) = self.node_index.get(name) {
            return *at;
        }
        let name: Arc<str> = Arc::from(name);
        let mut node = Node::new(name.clone());
        let at = match self.free_nodes.pop() {
            Some(at) => {
                // The change number stays, so that `touched` has no stale entry for the index.
                node.touched = self.nodes[at].touched;
                self.nodes[at] = node;
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.node_index.insert(name, at);
        self.ranks_stale = true;
        at
    }

    /// Frees a node's index once neither the node nor a pod on it is known.
    pub(crate) fn free_node_index(&mut self, at: NodeIx) {
        let node = &self.nodes[at];
        if node.offer.is_some()
            || node.pods + node.terminating_pods > 0
            || self.node_index.get(&node.name) != Some(&at)
        {
            return;
        }
        self.node_index.remove(&node.name);
        self.free_nodes.push(at);
    }

    /// Records that a node changed.
    pub(crate) fn touch(&mut self, at: NodeIx) {
        self.clock += 1;
        let node = &mut self.nodes[at];
        self.touched.remove(&node.touched);
        node.touched = self.clock;
        node.idle = score::idle(node);
        self.touched.insert(self.clock, at);
        self.changed = true;
    }

    /// Updates a node's load. Causes no plan by itself; the next plan uses it.
    pub(crate) fn load_changed(&mut self, at: NodeIx, load: Option<ReportedLoad>) {
        let age = self.config.load_age;
        let node = &mut self.nodes[at];
        let Some(offer) = &mut node.offer else { return };
        if offer.health.load == load {
            return;
        }
        if let Some(old) = offer.health.stale_at(age) {
            self.loads.remove(&(old, at));
        }
        offer.health.load = load;
        if let Some(new) = offer.health.stale_at(age) {
            self.loads.insert((new, at));
        }
        let changed = self.changed;
        self.touch(at);
        self.changed = changed;
    }

    /// Drops loads that are too old.
    pub(crate) fn forget_loads(&mut self, now: Timestamp) {
        while let Some((until, at)) = self
            .loads
            .first()
            .copied()
            .filter(|(until, _)| *until <= now)
        {
            self.loads.remove(&(until, at));
            self.load_changed(at, None);
        }
    }

    pub(crate) fn set_offer(&mut self, at: NodeIx, offer: Option<NodeAttributes>) {
        let age = self.config.load_age;
        let stale_at = |offer: &NodeAttributes| offer.health.stale_at(age);
        if let Some(old) = self.nodes[at].offer.as_ref().and_then(stale_at) {
            self.loads.remove(&(old, at));
        }
        if let Some(new) = offer.as_ref().and_then(stale_at) {
            self.loads.insert((new, at));
        }
        let recounted = self.remove_counts(at, offer.as_ref());
        self.put_offer(at, offer);
        self.restore_counts(recounted);
    }

    /// Like `set_offer`, for an offer that changes no pod's account.
    pub(crate) fn put_offer(&mut self, at: NodeIx, offer: Option<NodeAttributes>) {
        let kind =
            |offer: &NodeAttributes| (offer.allocatable.get(GPU) > 0).then_some(offer.models);
        if let Some(old) = self.nodes[at].offer.as_ref().and_then(kind)
            && let Some(nodes) = self.kinds.get_mut(&old)
        {
            *nodes -= 1;
            if *nodes == 0 {
                self.kinds.remove(&old);
            }
        }
        if let Some(new) = offer.as_ref().and_then(kind) {
            *self.kinds.entry(new).or_insert(0) += 1;
        }
        self.weigh(at, -1);
        self.releases += 1;
        self.topology
            .put(at, offer.as_ref().map(|offer| &offer.labels));
        let failed = self.failed_devices(at).cloned();
        self.nodes[at].set_offer(offer);
        self.note_failures(at, failed.unwrap_or_default());
        self.touch(at);
        self.nodes[at].offered = self.clock;
        self.expected.offers_changed();
        self.cluster_changed();
        self.weigh(at, 1);
    }

    /// Asks for another plan at `time` at the latest.
    pub(crate) fn requeue_by(&mut self, time: Timestamp) {
        self.requeue_at = Some(self.requeue_at.map_or(time, |at| at.min(time)));
    }

    /// Records a new waiting gang. It can change other gangs' answers only if a gang was protected
    /// from eviction because it had just been placed by one.
    pub(crate) fn gang_arrived(&mut self) {
        let fresh = self.last_eviction_age == Some(self.age);
        self.age += 1;
        self.version += u64::from(fresh);
    }

    /// Records a change that no plan caused.
    pub(crate) fn cluster_changed(&mut self) {
        self.age += 1;
        self.version += 1;
    }

    /// Adds a node's capacity and use to the cluster's total, or removes it.
    fn weigh(&mut self, at: NodeIx, times: i64) {
        let node = &self.nodes[at];
        if !node.usable() {
            return;
        }
        if let Some(offer) = &node.offer {
            self.total.add_room(&offer.allocatable, times);
            self.used.add_room(&node.used, times);
        }
    }

    /// Takes capacity on a node. The caller calls `touch` afterwards.
    pub(crate) fn occupy(&mut self, at: NodeIx, take: &Take, devices: &[Arc<str>]) {
        self.nodes[at].occupy(take, devices);
        if self.nodes[at].usable() {
            self.used.add(&take.demand, 1);
        }
    }

    /// Releases capacity on a node. The caller calls `touch` afterwards.
    pub(crate) fn vacate(&mut self, at: NodeIx, take: &Take, devices: &[Arc<str>]) {
        self.releases += 1;
        self.nodes[at].vacate(take, devices);
        if self.nodes[at].usable() {
            self.used.add(&take.demand, -1);
        }
    }

    /// The cluster's free amount of a resource.
    pub(crate) fn idle(&self, ix: Ix) -> i64 {
        self.total.get(ix) - self.used.get(ix)
    }

    /// Updates a class's view.
    pub(crate) fn refresh(&mut self, class: ClassIx) {
        let view = self.views.entry(class).or_default();
        if view.epoch != self.topology.epoch() {
            *view = ClassView::default();
            view.epoch = self.topology.epoch();
        }
        view.asked = self.plans;
        if view.seen == self.clock {
            return;
        }
        view.widen(self.nodes.len());
        let facts = self.classes.get(class);
        for at in self.touched.range(view.seen + 1..).map(|(_, at)| *at) {
            view.refresh(facts, at, &self.nodes[at], &self.topology);
        }
        view.seen = self.clock;
    }

    /// Ranks the nodes by name after some came or went.
    pub(crate) fn rank_nodes(&mut self) {
        let nodes = &self.nodes;
        self.topology.settle(|at| nodes[at].name.clone());
        if !std::mem::take(&mut self.ranks_stale) {
            return;
        }
        let places: Vec<NodeIx> = self.node_index.values().copied().collect();
        for (rank, at) in places.into_iter().enumerate() {
            let rank = rank as u32;
            if self.nodes[at].rank != rank {
                self.nodes[at].rank = rank;
                self.touch(at);
            }
        }
    }

    /// Drops the least recently used views.
    pub(crate) fn trim_views(&mut self) {
        let most = VIEWS_MAX * VIEWED_NODES / self.nodes.len().clamp(1, VIEWED_NODES);
        if self.views.len() <= most {
            return;
        }
        let mut by_age: Vec<(u64, ClassIx)> = self
            .views
            .iter()
            .map(|(class, view)| (view.asked, *class))
            .collect();
        by_age.sort_unstable();
        let surplus = self.views.len() - most;
        for (_, class) in by_age.into_iter().take(surplus) {
            self.views.remove(&class);
        }
    }
}
