//! The scheduler's state and the small steps that keep it consistent: touching nodes, keeping
//! gangs in line, keeping class views fresh. Reading objects is `apply`'s, deciding is `plan`'s.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as k8s;
use resources::names::DEFAULT_QUEUE;

use crate::class::{ClassIx, Classes};
use crate::devices::Ask;
use crate::evict::{Budgets, Likeness, Tidying, Victims};
use crate::expect::Expected;
use crate::filter::neighbours::Neighbours;
use crate::filter::volumes::Volumes;
use crate::fit::View;
use crate::gang::{Gang, GangKey};
use crate::health::Load;
use crate::line::{LineKey, Standing};
use crate::newcomers::Rest;
use crate::node::{Node, NodeIx, Offer};
use crate::noted::Noted;
use crate::phase::LastConditions;
use crate::pod::{Pod, PodKey};
use crate::queue::{Decay, Payer, Policy, Queues};
use crate::resource::{GPU, Ix, Names, Room, Set};
use crate::said::Said;
use crate::share::{GpuOrder, Take};
use crate::slices::Held;
use crate::table::Table;
use crate::terms::Terms;
use crate::timeline::Timeline;
use crate::topology::Tree;

/// How many classes' views are kept between plans, in a cluster of `VIEWED_NODES`; more where there
/// are fewer nodes. One costs about a hundred bytes a node.
const VIEWS_MAX: usize = 256;
const VIEWED_NODES: usize = 10_000;

/// What the scheduler is told once.
#[derive(Clone, Debug)]
pub struct Config {
    /// The `schedulerName` values it answers to. Other pods are accounted, never placed.
    pub scheduler_names: Vec<String>,
    /// What plans may do.
    pub actions: Actions,
    /// How long a gang may run with fewer members than it needs before it is evicted whole.
    pub stale_after: SignedDuration,
    /// May preemption and reclaim break a PodDisruptionBudget where nothing else makes room? Moves
    /// never do.
    pub break_budgets: bool,
    /// Which GPU a pod gets that shares one.
    pub gpus: GpuOrder,
    /// How much defragmentation may move, and for how much.
    pub tidying: Tidying,
    /// How queues' past use counts in their entitlements; none: it does not.
    pub usage: Option<Decay>,
    /// Node labels that name network domains, widest first. Single hosts are the narrowest level,
    /// listed (as `kubernetes.io/hostname`) or not.
    pub topology: Vec<String>,
    /// Which nodes are taken first.
    pub placement: Strategy,
    /// How long a gang waits for room before room is reserved for it, where its queue does not say
    /// (`muster.io/reserve-after`); six times as long while of most that run it is neither said nor
    /// learnt how long they do.
    pub reserve_after: SignedDuration,
    /// Which of several gangs room is reserved for.
    pub lead: Lead,
    /// Whether evictions must save more waiting than they lose work, where both are known.
    pub weigh_losses: bool,
    /// How old what is known of a node's load may be; after that it is not known.
    pub load_age: SignedDuration,
    /// Such pods are to come, so many of each, as far as placement is concerned; their names and
    /// times do not matter. None: they are expected to be like the pods there are.
    pub expected: Vec<(k8s::Pod, u64)>,
}

/// What plans may do. Actions come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actions {
    /// Place gangs in free room.
    pub allocate: bool,
    /// Move pods so that a gang fits, where each of them has another place.
    pub consolidate: bool,
    /// Take back from other queues what they hold beyond their share.
    pub reclaim: bool,
    /// Take from gangs of lower priority in the same queue.
    pub preempt: bool,
    /// Start gangs out of order where nobody before them starts later for it.
    pub backfill: bool,
    /// Move work that allows it so that nodes become whole.
    pub defragment: bool,
}

impl Actions {
    /// Plans may do nothing.
    pub(crate) const NONE: Actions = Actions {
        allocate: false,
        consolidate: false,
        reclaim: false,
        preempt: false,
        backfill: false,
        defragment: false,
    };
}

impl Default for Actions {
    fn default() -> Actions {
        Actions {
            allocate: true,
            consolidate: false,
            reclaim: true,
            preempt: true,
            backfill: true,
            defragment: false,
        }
    }
}

/// How long a gang below its minimum is left running unless configured otherwise.
const STALE_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// Which of several gangs that wait for room it is reserved for, among those of the highest
/// priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lead {
    /// The one whose queue holds the smallest part of its share.
    Share,
    /// The one that has waited longest.
    Age,
    /// The one that has waited longest for most: small gangs find room by themselves.
    Size,
    /// The one that has waited longest in relation to the square of how long it is expected to run:
    /// of those that came together the shortest, and the longest once it has waited for longer than
    /// all that are shorter. Frees most waiting soonest (`make bench-frontier`).
    #[default]
    Response,
}

/// How long a gang waits for room before room is reserved for it, unless configured otherwise.
const RESERVE_AFTER: SignedDuration = SignedDuration::from_hours(4);
/// How long a node's load is gone by unless configured otherwise: eight times the usual scrape.
const LOAD_AGE: SignedDuration = SignedDuration::from_secs(120);

/// Which nodes are taken first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// As few nodes as can be, the fullest first, so that whole nodes stay free.
    Pack,
    /// The emptiest node for each pod.
    Spread,
    /// The node that leaves most to the pods to come, where one suffices and several would do; and
    /// of its GPUs, for a pod that shares one, the one that does. Otherwise, and while nothing is
    /// known of the pods to come, the same as `Pack`.
    #[default]
    Fragmentation,
}

/// The levels that are read unless others are given, widest first.
const LEVELS: [&str; 5] = [
    "topology.kubernetes.io/zone",
    "muster.io/spine",
    "muster.io/leaf",
    "muster.io/rack",
    "muster.io/nvlink-domain",
];

impl Default for Config {
    fn default() -> Config {
        let names = ["muster", "default-scheduler", "volcano", ""];
        Config {
            scheduler_names: names.map(str::to_owned).to_vec(),
            actions: Actions::default(),
            stale_after: STALE_AFTER,
            break_budgets: false,
            tidying: Tidying::default(),
            gpus: GpuOrder::default(),
            usage: None,
            topology: LEVELS.map(str::to_owned).to_vec(),
            placement: Strategy::default(),
            reserve_after: RESERVE_AFTER,
            lead: Lead::default(),
            weigh_losses: true,
            load_age: LOAD_AGE,
            expected: Vec::new(),
        }
    }
}

/// A priority class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Priority {
    pub(crate) value: i32,
    /// `preemptionPolicy: Never`: who has it waits rather than evict others.
    pub(crate) waits: bool,
    pub(crate) default: bool,
}

/// The cluster as told by events, and what was decided and is not confirmed yet.
#[derive(Clone, Debug)]
pub struct Scheduler {
    pub(crate) config: Config,
    pub(crate) names: Names,
    pub(crate) nodes: Vec<Node>,
    pub(crate) node_index: BTreeMap<Arc<str>, NodeIx>,
    pub(crate) free_nodes: Vec<NodeIx>,
    /// Nodes by their last change: what a class view has not seen is a range of this.
    pub(crate) touched: BTreeMap<u64, NodeIx>,
    /// The number of the last change.
    pub(crate) clock: u64,
    pub(crate) ranks_stale: bool,
    pub(crate) classes: Classes,
    pub(crate) views: BTreeMap<ClassIx, View>,
    pub(crate) pods: Table<PodKey, Pod>,
    pub(crate) gangs: Table<GangKey, Gang>,
    pub(crate) queues: Queues,
    pub(crate) priorities: BTreeMap<String, Priority>,
    /// Pods that ask for a GPU's memory, and how many nodes have how much of it.
    pub(crate) by_memory: BTreeSet<PodKey>,
    pub(crate) memories: BTreeMap<i64, usize>,
    /// Pods with GPUs by node, and how many nodes with GPUs count under which names of models;
    /// only while there are such names.
    pub(crate) on_gpus: BTreeSet<(NodeIx, PodKey)>,
    pub(crate) kinds: BTreeMap<Set, usize>,
    /// What the nodes that take pods have, and what is used of it.
    pub(crate) total: Room,
    pub(crate) used: Room,
    /// Something was told since the last plan.
    pub(crate) changed: bool,
    /// Gangs that something happened to since the last plan.
    pub(crate) stirred: Noted<GangKey>,
    /// Others that have no answer that would stand.
    pub(crate) awake: BTreeSet<GangKey>,
    /// What the last plan left, if everybody had an answer in it.
    pub(crate) rest: Option<Rest>,
    /// What was said last of those who wait.
    pub(crate) said: Said,
    /// Gangs whose reports say something of the time to come that is out of date.
    pub(crate) outdated: BTreeSet<GangKey>,
    /// When a held gang may be tried again.
    pub(crate) wake: Option<Timestamp>,
    pub(crate) plans: u64,
    /// Gangs for which places are held.
    pub(crate) nominated: BTreeSet<GangKey>,
    /// By queue: gangs on nodes, in the order in which they would be evicted.
    pub(crate) victims: BTreeMap<String, Victims>,
    /// How often the world changed by itself, not by a plan: see `evict`.
    pub(crate) age: u64,
    /// What the containers of the pod told of last ask for.
    pub(crate) last_asks: Arc<[Ask]>,
    /// The namespace of the pod or gang told of last.
    pub(crate) last_namespace: Arc<str>,
    /// The conditions of the gang told of last.
    pub(crate) last_conditions: LastConditions,
    /// The age in which somebody last got in by an eviction.
    pub(crate) won: Option<u64>,
    /// How often anything changed that a search for evictions could see.
    pub(crate) version: u64,
    /// Gangs for whose moved members places are kept.
    pub(crate) keeping: BTreeSet<GangKey>,
    /// PodDisruptionBudgets.
    pub(crate) budgets: Budgets,
    /// When members were moved for defragmentation's sake, within the last hour.
    pub(crate) moved: VecDeque<Timestamp>,
    /// Those that the present search came up against.
    pub(crate) budgets_in_the_way: BTreeSet<String>,
    /// Gangs that run with fewer members than they need.
    pub(crate) broken: BTreeSet<GangKey>,
    /// Searches for evictions that came to nothing, at which version, and why.
    pub(crate) refused: BTreeMap<Likeness, (u64, String)>,
    /// Nodes whose load is known, by when that is too old.
    pub(crate) loads: BTreeSet<(Timestamp, NodeIx)>,
    pub(crate) topology: Tree,
    /// Expected ends, who is first in line, and from when on it has room.
    pub(crate) timeline: Timeline,
    pub(crate) neighbours: Neighbours,
    /// Who holds which slices of GPUs.
    pub(crate) slices: Held,
    /// Claims, volumes, and who names them.
    pub(crate) volumes: Volumes,
    pub(crate) expected: Expected,
    /// How often something was given back or allowed: what may help whoever waits for no room.
    pub(crate) eased: u64,
    /// Answers given anew in this plan for their wording's sake.
    pub(crate) reworded: usize,
}

impl Scheduler {
    /// A scheduler that knows of nothing yet.
    #[must_use]
    pub fn new(config: Config) -> Scheduler {
        let packs = config.gpus == GpuOrder::Pack && config.placement != Strategy::Spread;
        let mut names = Names::new();
        let mut classes = Classes::new(packs);
        Scheduler {
            expected: Expected::new(&config.expected, &mut classes, &mut names),
            classes,
            by_memory: BTreeSet::new(),
            memories: BTreeMap::new(),
            on_gpus: BTreeSet::new(),
            kinds: BTreeMap::new(),
            topology: Tree::new(&config.topology),
            timeline: Timeline::default(),
            neighbours: Neighbours::default(),
            volumes: Volumes::default(),
            slices: Held::default(),
            loads: BTreeSet::new(),
            eased: 0,
            reworded: 0,
            config,
            names,
            nodes: Vec::new(),
            node_index: BTreeMap::new(),
            free_nodes: Vec::new(),
            touched: BTreeMap::new(),
            clock: 0,
            ranks_stale: false,
            views: BTreeMap::new(),
            pods: Table::default(),
            gangs: Table::default(),
            queues: Queues::default(),
            priorities: BTreeMap::new(),
            total: Room::default(),
            used: Room::default(),
            changed: true,
            stirred: Noted::default(),
            awake: BTreeSet::new(),
            rest: None,
            said: Said::default(),
            outdated: BTreeSet::new(),
            wake: None,
            plans: 0,
            nominated: BTreeSet::new(),
            victims: BTreeMap::new(),
            age: 0,
            last_asks: Arc::from([]),
            last_namespace: Arc::from(""),
            last_conditions: Arc::default(),
            won: None,
            version: 0,
            keeping: BTreeSet::new(),
            budgets: Budgets::new(),
            moved: VecDeque::new(),
            budgets_in_the_way: BTreeSet::new(),
            broken: BTreeSet::new(),
            refused: BTreeMap::new(),
        }
    }

    /// The place of a node, made if it is new: pods may name a node before it is told of.
    pub(crate) fn node_at(&mut self, name: &str) -> NodeIx {
        if let Some(at) = self.node_index.get(name) {
            return *at;
        }
        let name: Arc<str> = Arc::from(name);
        let mut node = Node::new(name.clone());
        let at = match self.free_nodes.pop() {
            Some(at) => {
                // The change number stays, so that `touched` has no stale entry for the place.
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

    /// Gives a node's place back once nobody knows of the node.
    pub(crate) fn tidy_node(&mut self, at: NodeIx) {
        let node = &self.nodes[at];
        if node.offer.is_some()
            || node.pods + node.leavers > 0
            || self.node_index.get(&node.name) != Some(&at)
        {
            return;
        }
        self.node_index.remove(&node.name);
        self.free_nodes.push(at);
    }

    /// Notes that a node changed.
    pub(crate) fn touch(&mut self, at: NodeIx) {
        self.clock += 1;
        let node = &mut self.nodes[at];
        self.touched.remove(&node.touched);
        node.touched = self.clock;
        self.touched.insert(self.clock, at);
        self.changed = true;
    }

    /// Takes in what a node's GPUs are doing. Nothing is planned for its sake: the next plan goes
    /// by it.
    pub(crate) fn load_changed(&mut self, at: NodeIx, load: Option<Load>) {
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

    /// Forgets loads that are too old to go by.
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

    pub(crate) fn set_offer(&mut self, at: NodeIx, offer: Option<Offer>) {
        let age = self.config.load_age;
        let stale_at = |offer: &Offer| offer.health.stale_at(age);
        if let Some(old) = self.nodes[at].offer.as_ref().and_then(stale_at) {
            self.loads.remove(&(old, at));
        }
        if let Some(new) = offer.as_ref().and_then(stale_at) {
            self.loads.insert((new, at));
        }
        let recounted = self.uncount(at, offer.as_ref());
        self.put_offer(at, offer);
        self.recount(recounted);
    }

    /// The same where nobody counts as something else for it.
    pub(crate) fn put_offer(&mut self, at: NodeIx, offer: Option<Offer>) {
        let kind = |offer: &Offer| (offer.allocatable.get(GPU) > 0).then_some(offer.models);
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
        self.eased += 1;
        self.topology
            .put(at, offer.as_ref().map(|offer| &offer.labels));
        self.nodes[at].set_offer(offer);
        self.touch(at);
        self.nodes[at].offered = self.clock;
        self.expected.offers_changed();
        self.world_changed();
        self.weigh(at, 1);
    }

    /// Notes that somebody came who waits. To those who wait already it makes a difference only if
    /// somebody could not be evicted before because he had just got in by an eviction himself.
    pub(crate) fn somebody_came(&mut self) {
        let fresh = self.won == Some(self.age);
        self.age += 1;
        self.version += u64::from(fresh);
    }

    /// Notes that something happened that no plan brought about.
    pub(crate) fn world_changed(&mut self) {
        self.age += 1;
        self.version += 1;
    }

    /// Counts a node's room among the cluster's, or takes it out.
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

    /// Takes room on a node. The caller touches it afterwards.
    pub(crate) fn occupy(&mut self, at: NodeIx, take: &Take, devices: &[Arc<str>]) {
        self.nodes[at].occupy(take, devices);
        if self.nodes[at].usable() {
            self.used.add(&take.demand, 1);
        }
    }

    /// Gives room on a node back. The caller touches it afterwards.
    pub(crate) fn vacate(&mut self, at: NodeIx, take: &Take, devices: &[Arc<str>]) {
        self.eased += 1;
        self.nodes[at].vacate(take, devices);
        if self.nodes[at].usable() {
            self.used.add(&take.demand, -1);
        }
    }

    /// What the cluster has free.
    pub(crate) fn idle(&self, ix: Ix) -> i64 {
        self.total.get(ix) - self.used.get(ix)
    }

    /// Brings a class's view up to date.
    pub(crate) fn refresh(&mut self, class: ClassIx) {
        let view = self.views.entry(class).or_default();
        if view.epoch != self.topology.epoch() {
            *view = View::default();
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

    /// Numbers the nodes by name again after some came or went.
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

    /// Drops the views that were asked longest ago.
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

    /// The gang's entry, made if it is new.
    pub(crate) fn gang_mut(&mut self, key: &GangKey) -> &mut Gang {
        self.gangs.or_default(key)
    }

    /// The queue a gang belongs in, by what is known of it.
    fn queue_of(&self, key: &GangKey, gang: &Gang) -> String {
        if let Some(spec) = &gang.spec {
            return spec.queue.clone();
        }
        let own = gang
            .members
            .first()
            .filter(|_| key.lone)
            .and_then(|pod| self.pods.get(pod));
        let named = own.and_then(|pod| pod.queue.clone());
        named.unwrap_or_else(|| DEFAULT_QUEUE.to_owned())
    }

    pub(crate) fn priority_of(&self, gang: &Gang) -> i32 {
        let class = gang
            .spec
            .as_ref()
            .and_then(|spec| spec.priority_class.as_ref());
        if let Some(priority) = class.and_then(|name| self.priorities.get(name)) {
            return priority.value;
        }
        gang.priorities
            .keys()
            .next_back()
            .copied()
            .unwrap_or_else(|| self.default_priority())
    }

    /// The value of the global default class.
    pub(crate) fn default_priority(&self) -> i32 {
        let defaults = self.priorities.values().filter(|priority| priority.default);
        defaults.map(|priority| priority.value).min().unwrap_or(0)
    }

    /// Since when the gang waits.
    pub(crate) fn since(&self, gang: &Gang) -> Option<Timestamp> {
        if let Some(spec) = &gang.spec {
            return spec.created;
        }
        gang.members
            .iter()
            .filter_map(|pod| self.pods.get(pod)?.created)
            .min()
    }

    /// After a gang changed: puts it where it belongs, or forgets it.
    pub(crate) fn settle(&mut self, key: &GangKey) {
        self.changed = true;
        let Some(gang) = self.gangs.get(key) else {
            return;
        };
        let forgotten = gang.forgotten();
        let ended = gang.total.succeeded > 0 && gang.completed(key);
        self.timeline.note(key, ended);
        if gang.moved || gang.payer.is_none() {
            self.rehome(key, forgotten);
        }
        self.note_victim(key);
        self.note_broken(key);
        if forgotten {
            self.nominated.remove(key);
            self.broken.remove(key);
            self.gangs.remove(key);
            self.stirred.remove(key);
            return;
        }
        self.stirred.insert(key);
        if let Some(gang) = self.gangs.get_mut(key) {
            gang.parked = None;
        }
        let Some(gang) = self.gangs.get(key) else {
            return;
        };
        let Some(payer) = gang.payer else { return };
        let place = gang
            .waits(key)
            .then(|| self.place_in_line(key, gang, payer));
        let expects = gang.admitted && !gang.completed(key) && !gang.whole(key);
        if gang.line != place {
            if gang.report.is_some() {
                self.said.outdated.insert(payer.queue);
            }
            let line = &mut self.queues.at_mut(payer.queue).line;
            if let Some(old) = &gang.line {
                line.remove(old);
            }
            line.extend(place.clone());
        }
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        if place.is_none() {
            gang.overtaken = 0;
            gang.report = None;
            gang.held_until = None;
            gang.told.clear();
        }
        gang.line = place;
        if gang.expected != expects {
            gang.expected = expects;
            let times = if expects { 1 } else { -1 };
            self.eased += u64::from(!expects);
            if let Some(spec) = &gang.spec {
                self.queues.expect(payer.queue, &spec.min_resources, times);
            }
        }
    }

    fn place_in_line(&self, key: &GangKey, gang: &Gang, payer: Payer) -> LineKey {
        let rules = self.queues.rules(payer.queue);
        let policy = rules.map_or(Policy::Priority, |rules| rules.policy);
        let standing = Standing {
            priority: self.priority_of(gang),
            interrupted: self.interrupted(key, gang),
            whole: gang.whole(key),
            seconds: match policy {
                Policy::Sjf => self.expected_length(gang),
                _ => None,
            },
            created: self.since(gang),
        };
        LineKey::new(policy, standing, key.clone())
    }

    /// What the gang says: its PodGroup, or else its first member.
    pub(crate) fn terms_of(&self, gang: &Gang) -> Terms {
        let first = gang.members.first().and_then(|pod| self.pods.get(pod));
        let member = first.map(|pod| pod.terms.clone()).unwrap_or_default();
        match &gang.spec {
            Some(spec) => spec.terms.or(&member),
            None => member,
        }
    }

    /// On whose account the gang goes. Its namespace stands for a user that nobody named.
    fn payer_of(&mut self, key: &GangKey, queue: &str) -> Payer {
        let terms = match self.gangs.get(key) {
            Some(gang) => self.terms_of(gang),
            None => Terms::default(),
        };
        let user = match &terms.user {
            Some(user) => self.queues.user(user),
            None => self.queues.user(&format!("namespace/{}", key.namespace)),
        };
        let team = terms.team.as_ref().map(|team| self.queues.team(team));
        Payer {
            queue: self.queues.place(queue),
            user,
            team,
            fixed: terms.preemptible == Some(false),
        }
    }

    /// Brings the queues' tree and entitlements up to date: before anything is decided by them.
    pub(crate) fn reckon_queues(&mut self) {
        self.queues.reckon(&self.total, &self.used);
    }

    /// Sees that a gang is on the account where it belongs; one that is forgotten is on none.
    fn rehome(&mut self, key: &GangKey, forgotten: bool) {
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        gang.moved = false;
        let Some(gang) = self.gangs.get(key) else {
            return;
        };
        let old = gang.payer;
        let queue = if forgotten {
            String::new()
        } else {
            self.queue_of(key, gang)
        };
        let payer = (!forgotten).then(|| self.payer_of(key, &queue));
        if old != payer {
            self.move_gang(key, queue, payer);
        }
    }

    /// Moves a gang and what it holds and asks for from one account to another.
    fn move_gang(&mut self, key: &GangKey, queue: String, to: Option<Payer>) {
        self.unexpect(key);
        let places = self.let_go(key);
        self.forget_places(places);
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        gang.queue = queue;
        let from = std::mem::replace(&mut gang.payer, to);
        let (held, requested) = (gang.allocated.clone(), gang.requested.clone());
        let place = gang.line.take();
        if let Some(from) = from.filter(|_| gang.report.take().is_some()) {
            self.said.outdated.insert(from.queue);
        }
        // First the new one: it may be the same queue, which must not be forgotten meanwhile.
        if let Some(to) = to {
            self.queues.join(to.queue);
            self.queues.charge_room(to, &held, 1);
            self.queues.request_room(to.queue, &requested, 1);
        }
        if let Some(from) = from {
            self.queues.charge_room(from, &held, -1);
            self.queues.request_room(from.queue, &requested, -1);
            if let Some(place) = place {
                self.queues.at_mut(from.queue).line.remove(&place);
            }
            self.queues.leave(from.queue);
        }
    }

    /// Takes what a gang said it needs off its queue's expectations: before its spec changes.
    pub(crate) fn unexpect(&mut self, key: &GangKey) {
        let Some(gang) = self.gangs.get_mut(key) else {
            return;
        };
        if std::mem::take(&mut gang.expected)
            && let Some(spec) = &gang.spec
            && let Some(payer) = gang.payer
        {
            self.queues.expect(payer.queue, &spec.min_resources, -1);
            self.eased += 1;
        }
    }
}
