//! Chooses the nodes for a number of pods of one class within a scope: as few and as close in the
//! network as possible. Only chooses; takes no capacity.
//!
//! Method: nodes that have members of the gang first, then the narrowest domain that holds all
//! pods, then level by level the fewest domains (`pick::fewest`), down to nodes.
//!
//! Cost: the domains opened at each level, and the nodes of the chosen ones.
//!
//! Example: 12 pods, two racks with room for 8 and 6 below one leaf with room for 14: the leaf is
//! chosen, then 8 and 4.
//!
//! Tests: `tests/topology.rs`, `tests/topology_properties.rs`.

use std::collections::BTreeSet;

use crate::class::ClassIx;
use crate::config::PlacementStrategy;
use crate::fit::ClassView;
use crate::node::NodeIx;
use crate::score::NodeRank;
use crate::state::Scheduler;
use crate::topology::DomainIx;

use super::branch::Branch;
use super::pick::{self, Weighed};
use super::run::PlacementRun;
use super::scope::PlacementScope;

/// A node, or a domain that is not opened yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Node(NodeIx),
    Domain(DomainIx),
}

/// Breaks ties: a node's key, then the position in tree order.
type Tie = (Option<NodeRank>, u32);

impl Scheduler {
    /// The nodes for `count` pods, with the number for each. Reduces the count to what slices
    /// allow. The class's view must be fresh, and the scope must have room for the pods.
    pub(super) fn picks(
        &self,
        class: ClassIx,
        count: &mut usize,
        more: usize,
        scope: PlacementScope,
        branch: &Branch,
        run: &PlacementRun,
    ) -> Vec<(NodeIx, u64)> {
        let Some(view) = self.views.get(&class) else {
            *count = 0;
            return Vec::new();
        };
        if *count == 0 {
            return Vec::new();
        }
        let n = *count as u64;
        if !branch.wish.slices.is_empty() {
            let (placed, mut picks) = self.sliced(class, n, scope, branch, run);
            *count = usize::try_from(placed).unwrap_or(0);
            self.in_order(&mut picks);
            return picks;
        }
        let wished = n + more as u64;
        let picks = match scope {
            PlacementScope::Host(at) => Some(vec![(at, n)]),
            _ if self.config.placement == PlacementStrategy::Spread => {
                self.one_by_one(view, n, scope)
            }
            _ if branch.wish.unconstrained => self.smallest_first(view, n, scope),
            _ => self.close(view, wished, scope, branch, run).or_else(|| {
                if more > 0 {
                    self.close(view, n, scope, branch, run)
                } else {
                    None
                }
            }),
        };
        let Some(mut picks) = picks else {
            *count = 0;
            return Vec::new();
        };
        self.in_order(&mut picks);
        // More was sought than is placed now: the rest is placed later.
        let mut left = n;
        for (_, here) in &mut picks {
            *here = left.min(*here);
            left -= *here;
        }
        picks.retain(|(_, here)| *here > 0);
        picks
    }

    /// Sorts in tree order, so that pods of neighbouring rank are neighbours in the network.
    pub(super) fn in_order(&self, picks: &mut [(NodeIx, u64)]) {
        if picks.len() > 1 {
            picks.sort_by_key(|(at, _)| (self.topology.along(*at), self.nodes[*at].rank));
        }
    }

    /// Chooses nodes as close together as possible.
    fn close(
        &self,
        view: &ClassView,
        n: u64,
        scope: PlacementScope,
        branch: &Branch,
        run: &PlacementRun,
    ) -> Option<Vec<(NodeIx, u64)>> {
        let inside = |at: &NodeIx| match scope {
            PlacementScope::All => true,
            PlacementScope::Domain(outer) => self.topology.holds(outer, *at),
            PlacementScope::Host(host) => *at == host,
        };
        let own: Vec<NodeIx> = run
            .own
            .iter()
            .copied()
            .filter(|at| view.holds(*at) > 0 && inside(at))
            .collect();
        let want = u32::try_from(n).unwrap_or(u32::MAX);
        // One of the gang's own nodes, if it holds all.
        if let Some(at) = view.choose_among(&own, want)
            && u64::from(view.holds(at)) >= n
        {
            return Some(vec![(at, n)]);
        }
        let free = branch.wish.is_free();
        if scope == PlacementScope::All && free {
            if self.topology.is_flat() || run.lone || view.is_mixed() {
                return self.anywhere(view, n, &own);
            }
            // One node of the best tier.
            let at = view.choose(want)?;
            if own.is_empty() && u64::from(view.holds(at)) >= n {
                return Some(vec![(at, n)]);
            }
        }
        // The narrowest domain around the gang's own nodes that holds the rest.
        if let Some(around) = self.around(view, &run.own, n, scope) {
            return self.descend(view, vec![Item::Domain(around)], n);
        }
        match scope {
            PlacementScope::All => {
                if free && let Some(narrow) = self.narrowest(view, n) {
                    return self.descend(view, vec![Item::Domain(narrow)], n);
                }
                let roots = self.topology.roots().map(Item::Domain);
                let loose = self.topology.loose().map(Item::Node);
                self.descend(view, roots.chain(loose).collect(), n)
            }
            PlacementScope::Domain(at) => self.descend(view, vec![Item::Domain(at)], n),
            PlacementScope::Host(at) => Some(vec![(at, n)]),
        }
    }

    /// The narrowest domain that contains some of the gang's nodes and holds `n` more pods.
    fn around(
        &self,
        view: &ClassView,
        own: &BTreeSet<NodeIx>,
        n: u64,
        scope: PlacementScope,
    ) -> Option<DomainIx> {
        if own.is_empty() {
            return None;
        }
        let mut seen: BTreeSet<DomainIx> = BTreeSet::new();
        let mut best: Option<(std::cmp::Reverse<u8>, u64, u32, DomainIx)> = None;
        for own_domain in own
            .iter()
            .filter_map(|at| self.topology.narrowest_domain(*at))
        {
            for at in self.topology.above(own_domain) {
                if !seen.insert(at) {
                    break;
                }
                let domain = self.topology.domain(at);
                let inside = match scope {
                    PlacementScope::Domain(outer) => self.topology.within(at, outer),
                    _ => true,
                };
                if inside && view.sum(at) >= n {
                    let key = (
                        std::cmp::Reverse(domain.level),
                        view.sum(at),
                        domain.order,
                        at,
                    );
                    if best.is_none_or(|best| key < best) {
                        best = Some(key);
                    }
                }
            }
        }
        best.map(|(.., at)| at)
    }

    /// The narrowest domain in the cluster that holds `n` pods; of one level, the tightest.
    fn narrowest(&self, view: &ClassView, n: u64) -> Option<DomainIx> {
        (0..self.topology.host()).rev().find_map(|level| {
            let domains = self.topology.at_level(level).iter().copied();
            domains
                .filter(|at| view.sum(*at) >= n)
                .min_by_key(|at| (view.sum(*at), self.topology.domain(*at).order))
        })
    }

    /// Opens domains level by level and keeps at each level the fewest that hold all pods.
    pub(super) fn descend(
        &self,
        view: &ClassView,
        start: Vec<Item>,
        n: u64,
    ) -> Option<Vec<(NodeIx, u64)>> {
        let mut items = start;
        loop {
            let places = items.into_iter().map(|item| self.weighed(view, item));
            let chosen = pick::fewest(places.filter(|place| place.room > 0).collect(), n)?;
            if chosen.iter().all(|(item, _)| matches!(item, Item::Node(_))) {
                let nodes = chosen.into_iter().filter_map(|(item, n)| match item {
                    Item::Node(at) => Some((at, n)),
                    Item::Domain(_) => None,
                });
                return Some(nodes.collect());
            }
            items = self.open(chosen.into_iter().map(|(item, _)| item));
        }
    }

    /// The children of each place.
    pub(super) fn open(&self, items: impl Iterator<Item = Item>) -> Vec<Item> {
        let mut below = Vec::new();
        for item in items {
            match item {
                Item::Node(_) => below.push(item),
                Item::Domain(at) => {
                    below.extend(self.topology.children(at).map(Item::Domain));
                    below.extend(self.topology.nodes(at).map(Item::Node));
                }
            }
        }
        below
    }

    pub(super) fn weighed(&self, view: &ClassView, item: Item) -> Weighed<Item, Tie> {
        match item {
            Item::Node(at) => {
                let key = view.key(at);
                Weighed {
                    item,
                    tier: key.map_or(0, |key| key.tier),
                    room: u64::from(view.holds(at)),
                    tie: (key, self.topology.along(at)),
                }
            }
            Item::Domain(at) => Weighed {
                item,
                tier: if view.is_mixed() {
                    self.best_tier(view, PlacementScope::Domain(at))
                } else {
                    view.first_tier()
                },
                room: view.sum(at),
                tie: (None, self.topology.domain(at).order),
            },
        }
    }

    /// The best tier of any node with room in a place.
    pub(super) fn best_tier(&self, view: &ClassView, place: PlacementScope) -> i64 {
        let tier = |at: NodeIx| view.key(at).map(|key| key.tier);
        match place {
            PlacementScope::All => view.first_tier(),
            PlacementScope::Host(at) => tier(at).unwrap_or(i64::MAX),
            PlacementScope::Domain(at) => {
                let mut nodes = Vec::new();
                self.topology.all_nodes(at, &mut nodes);
                let tiers = nodes.into_iter().filter_map(tier);
                tiers.min().unwrap_or(i64::MAX)
            }
        }
    }

    /// Chooses without regard to the network: the gang's own nodes first, then as few nodes as
    /// possible.
    fn anywhere(&self, view: &ClassView, n: u64, own: &[NodeIx]) -> Option<Vec<(NodeIx, u64)>> {
        let mut picks = Vec::new();
        let mut used: BTreeSet<NodeIx> = BTreeSet::new();
        let mut own = own.to_vec();
        let mut left = n;
        while left > 0 && !own.is_empty() {
            let want = u32::try_from(left).unwrap_or(u32::MAX);
            let Some(at) = view.choose_among(&own, want) else {
                break;
            };
            own.retain(|mine| *mine != at);
            let here = u64::from(view.holds(at)).min(left);
            used.insert(at);
            picks.push((at, here));
            left -= here;
        }
        if left > 0 {
            view.best_nodes(left, &used, &mut picks)?;
        }
        Some(picks)
    }

    /// Chooses the smallest nodes first.
    fn smallest_first(
        &self,
        view: &ClassView,
        n: u64,
        scope: PlacementScope,
    ) -> Option<Vec<(NodeIx, u64)>> {
        let places = self.nodes_in(scope).into_iter().map(|at| {
            let weighed = self.weighed(view, Item::Node(at));
            Weighed {
                item: at,
                tier: weighed.tier,
                room: weighed.room,
                tie: weighed.tie,
            }
        });
        pick::smallest(places.filter(|place| place.room > 0).collect(), n)
    }

    /// Puts each pod on the node with the most room left (placement `spread`).
    fn one_by_one(
        &self,
        view: &ClassView,
        n: u64,
        scope: PlacementScope,
    ) -> Option<Vec<(NodeIx, u64)>> {
        let mut heap: std::collections::BinaryHeap<_> = self
            .nodes_in(scope)
            .into_iter()
            .filter_map(|at| {
                let key = view.key(at)?;
                let order = (self.topology.along(at), self.nodes[at].rank);
                let (tier, order) = (std::cmp::Reverse(key.tier), std::cmp::Reverse(order));
                Some((tier, key.count, key.emptiness(), order, 0_u64, at))
            })
            .collect();
        let mut picks = Vec::new();
        for _ in 0..n {
            let (tier, room, idle, order, taken, at) = heap.pop()?;
            if room > 1 {
                heap.push((tier, room - 1, idle, order, taken + 1, at));
            } else {
                picks.push((at, taken + 1));
            }
        }
        let begun = heap.into_iter().filter(|(.., taken, _)| *taken > 0);
        picks.extend(begun.map(|(.., taken, at)| (at, taken)));
        Some(picks)
    }

    fn nodes_in(&self, scope: PlacementScope) -> Vec<NodeIx> {
        match scope {
            PlacementScope::All => self.node_index.values().copied().collect(),
            PlacementScope::Host(at) => vec![at],
            PlacementScope::Domain(at) => {
                let mut nodes = Vec::new();
                self.topology.all_nodes(at, &mut nodes);
                nodes
            }
        }
    }
}
