//! Balanced placement: spreads a part of a gang evenly over sibling domains of the level it
//! prefers.
//!
//! Method: a greedy choice (largest domain first) gives the number of domains; among all sets of
//! that many domains the scheduler takes the one whose smallest share is as large as possible. This
//! module chooses only the domains and their shares. Inside a share, pods are placed as without
//! balance. If balance is impossible, the part is placed without it and no error is reported.
//!
//! Cost: domains times set size times pods, at most `STEPS_MAX`; beyond that the largest domains are
//! taken.
//!
//! Example: 12 pods, domains with room for 10, 4 and 3. The greedy choice is 10 + 2; balance needs
//! two domains and gives 8 + 4, because 4 is the largest possible smallest share.
//!
//! Tests: the unit tests below; `tests/topology.rs`; Kueue's cases in `tests/conformance/tas.rs`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::class::ClassIx;
use crate::fit::ClassView;
use crate::node::NodeIx;
use crate::state::Scheduler;
use crate::topology::{DomainIx, Level};

use super::branch::{Branch, MemberBatch};
use super::pick;
use super::run::PlacementRun;
use super::scope::PlacementScope;
use super::slices::{AssignedPods, Layers};
use super::spread::Item;

/// The most steps that the search for the tightest set of domains may take. Beyond it, the largest
/// domains are taken, and the last one as tight as possible.
const STEPS_MAX: u64 = 4_000_000;

/// The sibling domains among which a part is balanced.
pub(super) struct Balance {
    /// The smallest share of a domain, in slices.
    least: u64,
    /// The number of domains of the preferred level that the part uses.
    domains: usize,
    /// The siblings that are left: each domain, the places below it among which pods are balanced,
    /// and how many slices each of those places holds.
    siblings: Vec<(Item, Vec<(Item, u64)>)>,
}

/// One place chosen for a set, and the index of the link before it.
type ChoiceLink = (usize, Option<usize>);

impl Scheduler {
    /// Places a part's minimum in balance if its request prefers a level and asks for balance.
    /// Returns false, with nothing placed, if that is not possible.
    pub(super) fn place_balanced(
        &mut self,
        branch: &Branch,
        scope: PlacementScope,
        run: &mut PlacementRun,
    ) -> bool {
        let wish = &branch.wish;
        let (true, None, Some(level)) = (wish.balanced, wish.required, wish.preferred) else {
            return false;
        };
        let from = run.placed.len();
        let done = branch.on.is_empty()
            && if branch.children.is_empty() {
                self.balance_leaf(branch, scope, level, run)
            } else {
                self.balance_parts(branch, scope, level, run)
            };
        if !done {
            self.undo_placements(run, from);
            return false;
        }
        run.scopes.insert(branch.id, scope);
        for child in &branch.children {
            run.scopes.insert(child.id, scope);
        }
        true
    }

    fn balance_leaf(
        &mut self,
        branch: &Branch,
        scope: PlacementScope,
        level: Level,
        run: &mut PlacementRun,
    ) -> bool {
        let Some(batch) = only_batch(branch) else {
            return false;
        };
        self.refresh(batch.class);
        let count = batch.pods.len() as u64;
        let layers = &branch.wish.slices;
        let found = self.balances(batch.class, count, scope, level, layers);
        let Some(balance) = found.first() else {
            return false;
        };
        self.take_balanced(batch, balance, layers, run)
    }

    /// Balances several parts together if one of them has most of the pods. The other parts' pods
    /// go to the nodes with the most room for the main part's class.
    fn balance_parts(
        &mut self,
        branch: &Branch,
        scope: PlacementScope,
        level: Level,
        run: &mut PlacementRun,
    ) -> bool {
        let plain = |child: &Branch| {
            let wish = &child.wish;
            child.must && child.on.is_empty() && wish.required.or(wish.preferred).is_none()
        };
        if !branch.own.is_empty() || !branch.children.iter().all(plain) {
            return false;
        }
        let batches: Option<Vec<(&Branch, &MemberBatch)>> = branch
            .children
            .iter()
            .map(|child| Some((child, only_batch(child)?)))
            .collect();
        let largest = |batches: &Vec<(&Branch, &MemberBatch)>| {
            let counts = batches.iter().enumerate();
            counts
                .max_by_key(|(at, (_, batch))| (batch.pods.len(), Reverse(*at)))
                .map(|(at, _)| at)
        };
        let Some(mut batches) = batches else {
            return false;
        };
        let Some(at) = largest(&batches) else {
            return false;
        };
        let (child, main) = batches.remove(at);
        let (count, layers) = (main.pods.len() as u64, &child.wish.slices);
        self.refresh(main.class);
        let found = self.balances(main.class, count, scope, level, layers);
        let Some(balance) = found.first() else {
            return false;
        };
        let inside = self.nodes_of(balance);
        let mut last = inside.first().copied();
        let inter_pod = |batch: &MemberBatch| {
            let first = batch.pods.first();
            first.is_some_and(|pod| self.has_inter_pod_rules(batch.class, pod))
        };
        if batches.iter().any(|(_, batch)| inter_pod(batch)) {
            return false;
        }
        for (_, batch) in batches {
            for pod in &batch.pods {
                self.refresh(batch.class);
                self.refresh(main.class);
                let Some(at) = self.roomiest(&inside, batch.class, main.class) else {
                    return false;
                };
                let demand = self.classes.get(batch.class).demand().clone();
                if self.allowance(run, &demand).0 == 0 {
                    return false;
                }
                self.take_room(batch.class, std::slice::from_ref(pod), &[(at, 1)], run);
                last = Some(at);
            }
        }
        self.refresh(main.class);
        let found = self.balances(main.class, count, scope, level, layers);
        let same = |balance: &&Balance| last.is_some_and(|at| self.nodes_of(balance).contains(&at));
        let Some(balance) = found.iter().find(same) else {
            return false;
        };
        self.take_balanced(main, balance, layers, run)
    }

    fn take_balanced(
        &mut self,
        batch: &MemberBatch,
        balance: &Balance,
        layers: &Layers,
        run: &mut PlacementRun,
    ) -> bool {
        let inter_pod = batch
            .pods
            .first()
            .is_some_and(|pod| self.has_inter_pod_rules(batch.class, pod));
        let demand = self.classes.get(batch.class).demand().clone();
        if inter_pod || self.allowance(run, &demand).0 < batch.pods.len() {
            return false;
        }
        let count = batch.pods.len() as u64;
        let Some(mut picks) = self.balanced(batch.class, count, balance, layers) else {
            return false;
        };
        self.in_order(&mut picks);
        self.take_room(batch.class, &batch.pods, &picks, run);
        true
    }

    /// Of the nodes that hold a pod of class `holds`, the one that holds the most pods of class
    /// `most`.
    fn roomiest(&self, nodes: &[NodeIx], holds: ClassIx, most: ClassIx) -> Option<NodeIx> {
        let (holds, most) = (self.views.get(&holds)?, self.views.get(&most)?);
        let open = nodes.iter().copied().filter(|at| holds.holds(*at) > 0);
        open.min_by_key(|at| (Reverse(most.holds(*at)), self.topology.along(*at)))
    }

    /// Every node of the remaining siblings.
    fn nodes_of(&self, balance: &Balance) -> Vec<NodeIx> {
        let mut nodes = Vec::new();
        for (item, _) in balance.siblings.iter().flat_map(|(_, below)| below) {
            match item {
                Item::Node(at) => nodes.push(*at),
                Item::Domain(at) => self.topology.all_nodes(*at, &mut nodes),
            }
        }
        nodes
    }

    /// Groups of siblings at a level within which `pods` pods can be balanced, the best group
    /// first.
    pub(super) fn balances(
        &self,
        class: ClassIx,
        pods: u64,
        scope: PlacementScope,
        level: Level,
        layers: &Layers,
    ) -> Vec<Balance> {
        let Some(view) = self.views.get(&class) else {
            return Vec::new();
        };
        let (deep, size) = self.outer_layer(layers);
        if pods == 0 || !pods.is_multiple_of(size) {
            return Vec::new();
        }
        let mut groups: BTreeMap<Option<DomainIx>, Vec<Item>> = BTreeMap::new();
        for place in self.at_level(scope, level) {
            let (item, parent) = match place {
                PlacementScope::Domain(at) => (Item::Domain(at), self.topology.domain(at).parent),
                PlacementScope::Host(at) => (Item::Node(at), self.topology.narrowest_domain(at)),
                PlacementScope::All => continue,
            };
            groups.entry(parent).or_default().push(item);
        }
        let taken = AssignedPods::new();
        let slices = |item: Item| self.whole(view, item, layers, &taken) / size;
        let mut found: Vec<(u32, Balance)> = Vec::new();
        for group in groups.into_values() {
            let siblings = group.into_iter().map(|item| {
                let below = match item {
                    Item::Domain(_) if level < deep => self.open(std::iter::once(item)),
                    _ => vec![item],
                };
                let rooms = below.into_iter().map(|item| (item, slices(item)));
                (item, rooms.collect())
            });
            let siblings: Vec<(Item, Vec<(Item, u64)>)> = siblings.collect();
            let order = siblings.first().map_or(0, |(item, _)| self.place_of(*item));
            if let Some(balance) = balance(siblings, pods / size) {
                found.push((order, balance));
            }
        }
        found.sort_by_key(|(order, b)| (Reverse(b.least), b.domains, *order));
        found.into_iter().map(|(_, balance)| balance).collect()
    }

    /// The level and size of the outermost slices; the host level and size 1 if the request has no
    /// slices.
    fn outer_layer(&self, layers: &Layers) -> (Level, u64) {
        layers
            .first()
            .map_or((self.topology.host(), 1), |(level, size)| {
                (*level, u64::from(*size))
            })
    }

    fn place_of(&self, item: Item) -> u32 {
        match item {
            Item::Domain(at) => self.topology.domain(at).order,
            Item::Node(at) => self.topology.along(at),
        }
    }

    /// The nodes for `pods` pods within a group of siblings, with the number of pods for each.
    /// `None` if the balance cannot be kept.
    pub(super) fn balanced(
        &self,
        class: ClassIx,
        pods: u64,
        balance: &Balance,
        layers: &Layers,
    ) -> Option<Vec<(NodeIx, u64)>> {
        let view = self.views.get(&class)?;
        let (deep, size) = self.outer_layer(layers);
        let count = pods / size;
        let mut siblings: Vec<_> = balance.siblings.iter().collect();
        // Of equally large siblings, the one with the most similar places comes first.
        siblings.sort_by_key(|(item, below)| {
            let squares: u128 = below.iter().map(|(_, n)| u128::from(*n).pow(2)).sum();
            (Reverse(sum(below)), squares, self.place_of(*item))
        });
        let rooms: Vec<u64> = siblings.iter().map(|(_, below)| sum(below)).collect();
        let chosen = tightest_set(&rooms, count)?;
        let mut places: Vec<(Item, u64)> = Vec::new();
        for at in chosen {
            places.extend(siblings[at].1.iter().copied());
        }
        places.sort_by_key(|(item, _)| self.place_of(*item));
        let rooms: Vec<u64> = places.iter().map(|(_, room)| *room).collect();
        let chosen = tightest_set(&rooms, count)?;
        let mut places: Vec<(Item, u64)> = chosen.into_iter().map(|at| places[at]).collect();
        let mut extra = count.checked_sub(balance.least * places.len() as u64)?;
        places.sort_by_key(|(item, room)| (Reverse(*room), self.place_of(*item)));
        let mut taken = AssignedPods::new();
        for (item, room) in places {
            let more = room.checked_sub(balance.least)?.min(extra);
            extra -= more;
            let here = (balance.least + more) * size;
            let inside = if self.level_of(item) < deep {
                self.flatten(view, vec![item], here, layers, &mut taken)
            } else {
                let inner = layers.get(1..).unwrap_or_default();
                self.fill_small(view, item, here, inner, &mut taken)
            };
            if !inside {
                return None;
            }
        }
        (extra == 0).then(|| taken.into_iter().collect())
    }

    /// Below a slice the smallest places are filled first, so that the larger ones stay free.
    fn fill_small(
        &self,
        view: &ClassView,
        item: Item,
        n: u64,
        layers: &Layers,
        taken: &mut AssignedPods,
    ) -> bool {
        if !layers.is_empty() || matches!(item, Item::Node(_)) {
            return self.split(view, item, n, layers, taken);
        }
        let places = self.open(std::iter::once(item)).into_iter();
        let places = places.map(|below| {
            let mut weighed = self.weighed(view, below);
            weighed.room = self.whole(view, below, layers, taken);
            weighed
        });
        let chosen = pick::smallest(places.filter(|place| place.room > 0).collect(), n);
        chosen.is_some_and(|chosen| {
            let mut each = chosen.into_iter();
            each.all(|(item, here)| self.fill_small(view, item, here, layers, taken))
        })
    }
}

/// The batch of required pods, if the part has exactly one and needs nothing else.
fn only_batch(branch: &Branch) -> Option<&MemberBatch> {
    match branch.own.required.as_slice() {
        [batch] if branch.own.needed == 0 && branch.children.is_empty() => Some(batch),
        _ => None,
    }
}

fn sum(rooms: &[(Item, u64)]) -> u64 {
    rooms.iter().map(|(_, room)| room).sum()
}

/// How many places hold `count` if the largest are taken first, and the room of the last one taken.
/// `None` if all places together hold less than `count`.
fn greedy(rooms: impl Iterator<Item = u64>, count: u64) -> Option<(usize, u64)> {
    let mut rooms: Vec<u64> = rooms.collect();
    rooms.sort_unstable_by_key(|room| Reverse(*room));
    let mut held = 0;
    for (at, room) in rooms.iter().enumerate() {
        held += room;
        if held >= count {
            return Some((at + 1, *room));
        }
    }
    None
}

/// The balance with the largest smallest share that the greedy number of places allows. Places with
/// less room than that share are dropped.
fn balance(mut siblings: Vec<(Item, Vec<(Item, u64)>)>, count: u64) -> Option<Balance> {
    let all = siblings.iter().flat_map(|(_, below)| below);
    let (places, last) = greedy(all.map(|(_, room)| *room), count)?;
    let least = last.min(count / places as u64);
    if least == 0 {
        return None;
    }
    for (_, below) in &mut siblings {
        below.retain(|(_, room)| *room >= least);
    }
    siblings.retain(|(_, below)| !below.is_empty());
    let (domains, _) = greedy(siblings.iter().map(|(_, below)| sum(below)), count)?;
    Some(Balance {
        least,
        domains,
        siblings,
    })
}

/// The indices of the places that hold `count`: as few places as possible, and among sets of that
/// size the one with the least room left over.
fn tightest_set(rooms: &[u64], count: u64) -> Option<Vec<usize>> {
    let (few, _) = greedy(rooms.iter().copied(), count)?;
    let widest = rooms.iter().copied().max().unwrap_or(0);
    let steps = (rooms.len() as u64)
        .saturating_mul(few as u64)
        .saturating_mul(count.saturating_add(widest));
    if steps > STEPS_MAX {
        let places = rooms.iter().enumerate().map(|(at, room)| pick::Weighed {
            item: at,
            tier: 0,
            room: *room,
            tie: at,
        });
        let chosen = pick::fewest(places.collect(), count)?;
        return Some(chosen.into_iter().map(|(at, _)| at).collect());
    }
    // For each set size: the sums that sets of that size hold, with the last link of one such set.
    let mut links: Vec<ChoiceLink> = Vec::new();
    let mut sets: Vec<BTreeMap<u64, Option<usize>>> = vec![BTreeMap::new(); few + 1];
    sets[0].insert(0, None);
    for (at, room) in rooms.iter().enumerate().filter(|(_, room)| **room > 0) {
        for size in (1..=few).rev() {
            let open: Vec<(u64, Option<usize>)> = sets[size - 1]
                .range(..count)
                .map(|(held, link)| (*held, *link))
                .collect();
            for (held, before) in open {
                sets[size].entry(held + room).or_insert_with(|| {
                    links.push((at, before));
                    Some(links.len() - 1)
                });
            }
        }
    }
    let (_, last) = sets[few].range(count..).next()?;
    let mut chosen = Vec::new();
    let mut next = *last;
    while let Some((at, before)) = next.and_then(|link| links.get(link)) {
        chosen.push(*at);
        next = *before;
    }
    chosen.reverse();
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn siblings(rooms: &[&[u64]]) -> Vec<(Item, Vec<(Item, u64)>)> {
        let domains = rooms.iter().enumerate();
        domains
            .map(|(at, rooms)| {
                let nodes = rooms.iter().enumerate();
                let nodes = nodes.map(|(i, room)| (Item::Node(at * 100 + i), *room));
                (Item::Domain(at as DomainIx), nodes.collect())
            })
            .collect()
    }

    #[test]
    fn the_least_share_is_as_large_as_the_number_of_places_allows() {
        let found = balance(siblings(&[&[15, 13, 10]]), 23).unwrap();
        assert_eq!((found.least, found.domains), (11, 1));
        assert_eq!(found.siblings[0].1.len(), 2);
        assert!(balance(siblings(&[&[3, 3]]), 7).is_none());
    }

    #[test]
    fn places_too_small_for_the_least_share_are_left_out() {
        // Ten and three of four would do, but one of five, five and five is more even.
        let found = balance(siblings(&[&[10, 4, 4, 4], &[5], &[5]]), 20).unwrap();
        assert_eq!(found.least, 5);
        assert_eq!(found.domains, 3);
    }

    #[test]
    fn of_the_smallest_sets_the_one_that_leaves_least_over_is_taken() {
        assert_eq!(tightest_set(&[4, 3, 2], 5), Some(vec![1, 2]));
        assert_eq!(tightest_set(&[4, 3, 2], 7), Some(vec![0, 1]));
        assert_eq!(tightest_set(&[4, 3, 2], 10), None);
    }
}
