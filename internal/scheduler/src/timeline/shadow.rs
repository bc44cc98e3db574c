//! The shadow of the head: from when on there is room for it, as the latest ends of running gangs
//! give room back, and how much more room than it needs there is then.
//!
//! Method: room is counted in members of the head's own class, for each node. The ends are played
//! through in order until the nodes, or the nodes of one topology domain or one node, hold enough
//! members. Cost: the nodes, and the members that end before the shadow time.
//!
//! Example: the head needs two members of 4 GPUs. Nodes `n1` and `n2` of 4 GPUs are full until
//! 10:00 and 11:00: the shadow time is 11:00. If the head must be on nodes of one rack, only ends
//! in that rack count for it.
//!
//! Tests: `tests/timeline.rs` by table, `tests/timeline_properties.rs` by property.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::class::{Class, ClassIx};
use crate::fit::headroom;
use crate::gang::{Gang, GangKey};
use crate::node::NodeIx;
use crate::place::Placement;
use crate::resource::{GPU, GPU_UNIT, Room};
use crate::state::Scheduler;
use crate::topology::{DomainIx, Level};

use super::{RunningGang, Timeline};

/// What the head requests, as far as its shadow depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeadDemand {
    /// The class of most of its request.
    pub(super) class: ClassIx,
    /// How many members of the class must start together.
    pub(super) need: u64,
    /// The topology level of which one domain must hold them.
    pub(super) level: Option<Level>,
}

/// Which ends of the running gangs count, and at which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// Expected ends.
    Likely,
    /// Expected ends that are declared or learnt.
    Known,
    /// Latest ends.
    Latest,
}

/// Where the head will be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadScope {
    All,
    Domain(DomainIx),
    Host(NodeIx),
}

/// From when on there is room for a gang, and how much.
#[derive(Clone, Debug)]
pub(super) struct Shadow {
    /// When, in seconds.
    pub(super) at: i64,
    pub(super) ask: HeadDemand,
    scope: HeadScope,
    /// How many members each node holds at that time.
    holds: Vec<u32>,
    /// How many members the nodes in scope hold together.
    total: u64,
    /// What the gangs that end by then give back, by node.
    given: BTreeMap<NodeIx, Room>,
    /// The number of the last change of the cluster that it takes into account.
    pub(super) clock: u64,
}

impl Shadow {
    /// How many of the head's members each node holds at that time.
    pub(super) fn each(&self) -> impl Iterator<Item = (NodeIx, u32)> + '_ {
        self.holds.iter().copied().enumerate()
    }
}

/// The growing room for members, in all and by domain.
struct GrowthSums {
    level: Option<Level>,
    host: Level,
    all: u64,
    domains: Vec<u64>,
}

impl Timeline {
    /// The runs in the order of their ends.
    pub(super) fn in_order(&self, ends: Ends) -> impl Iterator<Item = (i64, &RunningGang)> {
        self.named(ends).map(|(end, _, run)| (end, run))
    }

    /// As `in_order`, with the gangs' keys.
    fn named(&self, ends: Ends) -> impl Iterator<Item = (i64, &GangKey, &RunningGang)> {
        let all = match ends {
            Ends::Likely | Ends::Known => &self.ends,
            Ends::Latest => &self.latest_ends,
        };
        let all = all.iter().map(|((end, key), run)| (*end, key, &**run));
        all.filter(move |(.., run)| ends != Ends::Known || run.known)
    }
}

/// Subtracts so many thousandths of GPUs from what is given back.
pub(super) fn take_from(room: &mut Room, gpus: Option<i64>) {
    if let Some(gpus) = gpus.filter(|gpus| *gpus > 0) {
        room.set(GPU, room.get(GPU) - gpus);
    }
}

impl Scheduler {
    /// What a gang that lacks room requests. Exact where its members are of one class.
    pub(super) fn ask_of(&self, key: &GangKey, gang: &Gang) -> Option<HeadDemand> {
        let lacking = gang.minimum(key).saturating_sub(gang.total.have());
        let mut counts: BTreeMap<ClassIx, usize> = BTreeMap::new();
        for class in gang.blocked_answer.as_ref()?.classes() {
            counts.insert(*class, 0);
        }
        if counts.len() > 1 {
            for (_, pod) in &gang.pending {
                if let Some(pod) = self.pods.get(pod) {
                    *counts.entry(pod.class).or_default() += 1;
                }
            }
        } else if let Some(count) = counts.values_mut().next() {
            *count = gang.total.pending;
        }
        let heaviest = counts.into_iter().max_by_key(|(class, count)| {
            let demand = self.classes.get(*class).demand();
            let times = |amount: i64| amount.saturating_mul(*count as i64);
            let all: Vec<(u8, i64)> = demand.0.iter().map(|(ix, n)| (*ix, times(*n))).collect();
            (times(demand.get(GPU)), all)
        });
        let (class, count) = heaviest?;
        let shape = gang.spec.as_ref().map(|spec| &spec.shape);
        let level = shape
            .and_then(|shape| shape.request.resolve(&self.topology).ok())
            .and_then(|wish| wish.required);
        Some(HeadDemand {
            class,
            need: lacking.min(count).max(1) as u64,
            level,
        })
    }

    /// Whether the cluster could hold the request if it were empty.
    pub(super) fn could_ever_hold(&self, ask: &HeadDemand) -> bool {
        self.views
            .get(&ask.class)
            .is_some_and(|view| view.empty >= ask.need)
    }

    /// Computes the earliest time at which a request fits. None if no ends give it room.
    pub(super) fn compute_shadow(
        &mut self,
        ask: &HeadDemand,
        now: Timestamp,
        ends: Ends,
    ) -> Option<Shadow> {
        self.update_timeline(now);
        if ends == Ends::Known && self.timeline.known == 0 {
            return None;
        }
        self.refresh(ask.class);
        let now = now.as_second();
        let view = self.views.get(&ask.class)?;
        let class = self.classes.get(ask.class);
        let mut holds: Vec<u32> = (0..self.nodes.len()).map(|at| view.holds(at)).collect();
        let tree = &self.topology;
        let mut sums = GrowthSums {
            level: ask.level,
            host: tree.host(),
            all: view.room,
            domains: match ask.level {
                Some(level) if level < tree.host() => {
                    (0..tree.len()).map(|at| view.sum(at as DomainIx)).collect()
                }
                _ => Vec::new(),
            },
        };
        let mut given: BTreeMap<NodeIx, Room> = BTreeMap::new();
        let mut scope = self.scope_now(ask, &sums, &holds);
        let mut at = now;
        if scope.is_none() {
            for (end, key, run) in self.timeline.named(ends) {
                if scope.is_some() && end > at {
                    break;
                }
                let mut withheld = self.withheld(key, run, class);
                for (node, held, count) in run.held.iter() {
                    let room = given.entry(*node).or_default();
                    room.add(self.classes.get(*held).demand(), i64::from(*count));
                    take_from(room, withheld.remove(node));
                    if view.empty_at(*node) == 0 {
                        continue;
                    }
                    let then = self.holds_then(*node, class, room);
                    let more = then.saturating_sub(holds[*node]);
                    if more == 0 {
                        continue;
                    }
                    holds[*node] = then;
                    let found = self.grow(&mut sums, *node, more, then, ask.need);
                    if scope.is_none() && found.is_some() {
                        scope = found;
                        at = end;
                    }
                }
            }
        }
        let scope = scope?;
        let total = match scope {
            HeadScope::All => sums.all,
            HeadScope::Domain(domain) => sums.domains.get(domain as usize).copied().unwrap_or(0),
            HeadScope::Host(node) => u64::from(holds[node]),
        };
        Some(Shadow {
            at: at.max(now),
            ask: ask.clone(),
            scope,
            holds,
            total,
            given,
            clock: self.clock,
        })
    }

    /// What a run holds, by node, of GPUs that the class may not use: its end gives none of that to
    /// the class.
    pub(super) fn withheld(
        &self,
        key: &GangKey,
        run: &RunningGang,
        class: &Class,
    ) -> BTreeMap<NodeIx, i64> {
        let mut all = BTreeMap::new();
        let of = |at: NodeIx| self.nodes[at].offer.as_ref();
        let withholds = |at| of(at).is_some_and(|offer| offer.withholds_from(class));
        let gang = self.gangs.get(key).filter(|_| class.has_several_gpus());
        let Some(gang) = gang.filter(|_| run.held.iter().any(|(at, ..)| withholds(*at))) else {
            return all;
        };
        for pod in gang.members.iter().filter_map(|pod| self.pods.get(pod)) {
            if let Some(at) = pod.node.filter(|_| pod.stage.occupies()) {
                let amount = self.withheld_of(at, class, pod.class, &pod.devices);
                *all.entry(at).or_default() += amount;
            }
        }
        all
    }

    /// As `withheld`, for one pod of a class with these GPUs.
    fn withheld_of(&self, at: NodeIx, from: &Class, of: ClassIx, ids: &[Arc<str>]) -> i64 {
        let offer = self.nodes[at].offer.as_ref();
        let offer = offer.filter(|offer| offer.withholds_from(from));
        let Some(devices) = offer.and_then(|offer| offer.devices.as_ref()) else {
            return 0;
        };
        let alone = ids.iter().filter(|id| devices.is_alone(id)).count() as i64;
        let each = self.classes.get(of).demand().get(GPU) / ids.len().max(1) as i64;
        alone * each
    }

    /// How many members of a class a node holds once `given` is given back. Of partial GPUs, only
    /// those free now count.
    pub(super) fn holds_then(&self, at: NodeIx, class: &Class, given: &Room) -> u32 {
        let node = &self.nodes[at];
        let more = |ix| match ix {
            // Parts of GPUs that are given back may belong to several GPUs.
            GPU => given.get(ix) / GPU_UNIT * GPU_UNIT,
            _ => given.get(ix),
        };
        let free = |ix| node.free_for(class, ix) + more(ix);
        headroom(class, node, node.gpus_for(class), free).0
    }

    /// Where the request fits before any gang ends.
    fn scope_now(&self, ask: &HeadDemand, sums: &GrowthSums, holds: &[u32]) -> Option<HeadScope> {
        match ask.level {
            None => (sums.all >= ask.need).then_some(HeadScope::All),
            Some(level) if level >= sums.host => {
                let fits = |at: &NodeIx| u64::from(holds[*at]) >= ask.need;
                let mut nodes = self.node_index.values().copied();
                nodes.find(fits).map(HeadScope::Host)
            }
            Some(level) => {
                let all = self.topology.at_level(level).iter().copied();
                let fits = all.filter(|at| sums.domains[*at as usize] >= ask.need);
                fits.min_by_key(|at| self.topology.domain(*at).order)
                    .map(HeadScope::Domain)
            }
        }
    }

    /// Counts more room on a node. Returns where the request fits now, if the node made the
    /// difference.
    fn grow(
        &self,
        sums: &mut GrowthSums,
        at: NodeIx,
        more: u32,
        then: u32,
        need: u64,
    ) -> Option<HeadScope> {
        sums.all += u64::from(more);
        match sums.level {
            None => (sums.all >= need).then_some(HeadScope::All),
            Some(level) if level >= sums.host => {
                (u64::from(then) >= need).then_some(HeadScope::Host(at))
            }
            Some(level) => {
                let domain = self.topology.domain_of(at, level)?;
                let sum = sums.domains.get_mut(domain as usize)?;
                *sum += u64::from(more);
                (*sum >= need).then_some(HeadScope::Domain(domain))
            }
        }
    }

    fn is_in_scope(&self, at: NodeIx, scope: HeadScope) -> bool {
        match scope {
            HeadScope::All => true,
            HeadScope::Domain(domain) => self.topology.holds(domain, at),
            HeadScope::Host(node) => node == at,
        }
    }

    /// Records placements that will have ended when the head starts.
    pub(super) fn note_ended_before(&self, shadow: &mut Shadow, placed: &[Placement]) {
        let head = self.classes.get(shadow.ask.class);
        for placement in placed {
            let Placement {
                node,
                class,
                devices,
                ..
            } = placement;
            let demand = self.classes.get(*class).demand();
            let room = shadow.given.entry(*node).or_default();
            room.add(demand, 1);
            take_from(room, Some(self.withheld_of(*node, head, *class, devices)));
        }
    }

    /// Subtracts from the shadow what placements take that will not have ended. Returns false, and
    /// changes nothing, if too little would be left for the head.
    pub(super) fn subtract_from_shadow(&self, shadow: &mut Shadow, placed: &[Placement]) -> bool {
        let class = self.classes.get(shadow.ask.class);
        let nodes: BTreeSet<NodeIx> = placed.iter().map(|placement| placement.node).collect();
        let none = Room::default();
        let mut fewer = 0;
        let mut changes = Vec::new();
        for at in nodes {
            let held = shadow.holds.get(at).copied().unwrap_or(0);
            if held == 0 {
                continue;
            }
            let given = shadow.given.get(&at).unwrap_or(&none);
            let then = self.holds_then(at, class, given).min(held);
            changes.push((at, then));
            if self.is_in_scope(at, shadow.scope) {
                fewer += u64::from(held - then);
            }
        }
        let Some(left) = shadow.total.checked_sub(fewer) else {
            return false;
        };
        if left < shadow.ask.need {
            return false;
        }
        shadow.total = left;
        for (at, then) in changes {
            shadow.holds[at] = then;
        }
        true
    }

    /// The head's nodes at that time, with the number of members on each: the nodes that hold the
    /// most.
    pub(super) fn nodes_then(&self, shadow: &Shadow) -> Vec<(NodeIx, u32)> {
        let mut nodes: Vec<(std::cmp::Reverse<u32>, u32, NodeIx)> = shadow
            .holds
            .iter()
            .enumerate()
            .filter(|(at, held)| **held > 0 && self.is_in_scope(*at, shadow.scope))
            .map(|(at, held)| (std::cmp::Reverse(*held), self.nodes[at].rank, at))
            .collect();
        let most = usize::try_from(shadow.ask.need).unwrap_or(usize::MAX);
        if nodes.len() > most {
            nodes.select_nth_unstable(most - 1);
            nodes.truncate(most);
        }
        nodes.sort_unstable();
        nodes
            .into_iter()
            .map(|(held, _, at)| (at, held.0))
            .collect()
    }
}
