//! Slices: pods placed in multiples of a size that must not straddle a domain, in one or more
//! layers (Kueue's podset slices).
//!
//! Method: slices that running members left incomplete are completed in place; the other pods are
//! placed in whole slices, outermost layer first, in as few domains as possible.
//!
//! Example: slices of 4 at rack level and a rack with room for 10: it holds 8 pods.
//!
//! Tests: `tests/slices.rs`, `tests/topology.rs`, `tests/conformance/tas.rs`.

use std::collections::BTreeMap;

use crate::class::ClassIx;
use crate::fit::ClassView;
use crate::node::NodeIx;
use crate::state::Scheduler;
use crate::topology::Level;

use super::branch::Branch;
use super::pick::{self, Weighed};
use super::run::PlacementRun;
use super::scope::PlacementScope;
use super::spread::Item;

/// Layers of slices (level, size), outermost first.
pub(super) type Layers = [(Level, u32)];
/// Pods assigned to nodes so far that the view does not count yet.
pub(super) type AssignedPods = BTreeMap<NodeIx, u64>;

impl Scheduler {
    /// How many pods of a class a place holds in whole slices.
    pub(super) fn sliced_room(
        &self,
        class: ClassIx,
        place: PlacementScope,
        layers: &Layers,
        on: &BTreeMap<NodeIx, usize>,
    ) -> u64 {
        let Some(view) = self.views.get(&class) else {
            return 0;
        };
        let taken = AssignedPods::new();
        let broken: u64 = self
            .broken(layers, on)
            .into_iter()
            .map(|(_, missing)| missing)
            .sum();
        let room = match place {
            PlacementScope::All => self
                .tops()
                .into_iter()
                .map(|item| self.whole(view, item, layers, &taken))
                .sum(),
            PlacementScope::Domain(at) => self.whole(view, Item::Domain(at), layers, &taken),
            PlacementScope::Host(at) => self.whole(view, Item::Node(at), layers, &taken),
        };
        // Room that completes broken slices is not part of a whole slice.
        room + broken
    }

    fn tops(&self) -> Vec<Item> {
        let roots = self.topology.roots().map(Item::Domain);
        roots.chain(self.topology.loose().map(Item::Node)).collect()
    }

    /// How many pods an item holds in whole slices.
    pub(super) fn whole(
        &self,
        view: &ClassView,
        item: Item,
        layers: &Layers,
        taken: &AssignedPods,
    ) -> u64 {
        let level = match item {
            Item::Node(_) => self.topology.host(),
            Item::Domain(at) => self.topology.domain(at).level,
        };
        let inner = layers.iter().any(|(at, _)| *at > level);
        let raw = match item {
            Item::Node(at) => {
                // A node outside a layer's domains is in no slice.
                u64::from(view.holds(at)).saturating_sub(taken.get(&at).copied().unwrap_or(0))
            }
            Item::Domain(at) if !inner && taken.is_empty() => view.sum(at),
            Item::Domain(_) => self
                .open(std::iter::once(item))
                .into_iter()
                .filter(|below| self.covered(*below, level, layers))
                .map(|below| self.whole(view, below, layers, taken))
                .sum(),
        };
        match layers.iter().rev().find(|(at, _)| *at == level) {
            Some((_, size)) => raw - raw % u64::from(*size),
            None => raw,
        }
    }

    /// True if the item lies in a domain of every layer between it and the level above.
    fn covered(&self, item: Item, above: Level, layers: &Layers) -> bool {
        let level = match item {
            Item::Node(_) => self.topology.host(),
            Item::Domain(at) => self.topology.domain(at).level,
        };
        !layers.iter().any(|(at, _)| *at > above && *at < level)
    }

    /// Domains whose running members make up an incomplete slice, innermost layers first, with the
    /// number of pods that each lacks.
    fn broken(&self, layers: &Layers, on: &BTreeMap<NodeIx, usize>) -> Vec<(PlacementScope, u64)> {
        let mut counts: BTreeMap<NodeIx, u64> = on.iter().map(|(at, n)| (*at, *n as u64)).collect();
        let mut found = Vec::new();
        for (level, size) in layers.iter().rev() {
            let mut domains: BTreeMap<PlacementScope, (u64, NodeIx)> = BTreeMap::new();
            for (at, n) in &counts {
                let place = if *level == self.topology.host() {
                    Some(PlacementScope::Host(*at))
                } else {
                    self.topology
                        .domain_of(*at, *level)
                        .map(PlacementScope::Domain)
                };
                if let Some(place) = place {
                    domains.entry(place).or_insert((0, *at)).0 += n;
                }
            }
            for (place, (n, at)) in domains {
                let over = n % u64::from(*size);
                if over > 0 {
                    let missing = u64::from(*size) - over;
                    found.push((place, missing));
                    *counts.entry(at).or_default() += missing;
                }
            }
        }
        found
    }

    /// Nodes for as many of `n` pods as can be placed in whole slices, and that number.
    pub(super) fn sliced(
        &self,
        class: ClassIx,
        n: u64,
        scope: PlacementScope,
        branch: &Branch,
        run: &PlacementRun,
    ) -> (u64, Vec<(NodeIx, u64)>) {
        let layers = &branch.wish.slices;
        let Some(view) = self.views.get(&class) else {
            return (0, Vec::new());
        };
        // Running members, and those that this attempt placed before.
        let mut on = branch.on.clone();
        for placement in run.placed.iter().filter(|p| p.class == class) {
            *on.entry(placement.node).or_default() += 1;
        }
        let mut taken = AssignedPods::new();
        let mut placed = 0;
        for (place, missing) in self.broken(layers, &on) {
            let missing = missing.min(n - placed);
            let item = match place {
                PlacementScope::Host(at) => Item::Node(at),
                PlacementScope::Domain(at) => Item::Domain(at),
                PlacementScope::All => continue,
            };
            let inner: Vec<(Level, u32)> = layers
                .iter()
                .copied()
                .filter(|(level, size)| *level > self.level_of(item) && u64::from(*size) <= missing)
                .collect();
            if !self.split(view, item, missing, &inner, &mut taken) {
                return (0, Vec::new());
            }
            placed += missing;
        }
        let outer = layers.first().map_or(1, |(_, size)| u64::from(*size));
        let items = match scope {
            PlacementScope::All => self.tops(),
            PlacementScope::Domain(at) => vec![Item::Domain(at)],
            PlacementScope::Host(at) => vec![Item::Node(at)],
        };
        let room: u64 = items
            .iter()
            .map(|item| self.whole(view, *item, layers, &taken))
            .sum();
        let rest = (n - placed).min(room);
        let rest = rest - rest % outer;
        if rest > 0 && self.flatten(view, items, rest, layers, &mut taken) {
            placed += rest;
        }
        (placed, taken.into_iter().collect())
    }

    pub(super) fn level_of(&self, item: Item) -> Level {
        match item {
            Item::Node(_) => self.topology.host(),
            Item::Domain(at) => self.topology.domain(at).level,
        }
    }

    /// Above the outermost layer: as few domains as possible at each level, as without slices.
    pub(super) fn flatten(
        &self,
        view: &ClassView,
        mut items: Vec<Item>,
        n: u64,
        layers: &Layers,
        taken: &mut AssignedPods,
    ) -> bool {
        let Some((outer, _)) = layers.first() else {
            return false;
        };
        loop {
            let Some(chosen) = self.fewest_whole(view, &items, n, layers, taken) else {
                return false;
            };
            if chosen
                .iter()
                .all(|(item, _)| self.level_of(*item) >= *outer)
            {
                return chosen.into_iter().all(|(item, here)| {
                    let inner: Vec<(Level, u32)> = layers[1..].to_vec();
                    self.split(view, item, here, &inner, taken)
                });
            }
            items = self
                .open(chosen.into_iter().map(|(item, _)| item))
                .into_iter()
                .filter(|below| self.level_of(*below) <= *outer)
                .collect();
        }
    }

    fn fewest_whole(
        &self,
        view: &ClassView,
        items: &[Item],
        n: u64,
        layers: &Layers,
        taken: &AssignedPods,
    ) -> Option<Vec<(Item, u64)>> {
        let places = items.iter().map(|item| {
            let weighed = self.weighed(view, *item);
            Weighed {
                item: weighed.item,
                tier: weighed.tier,
                room: self.whole(view, *item, layers, taken),
                tie: (weighed.room, weighed.tie),
            }
        });
        pick::fewest(places.filter(|place| place.room > 0).collect(), n)
    }

    /// Within one slice's domain: distributes its pods among the items below, in slices of the next
    /// layer.
    pub(super) fn split(
        &self,
        view: &ClassView,
        item: Item,
        n: u64,
        layers: &Layers,
        taken: &mut AssignedPods,
    ) -> bool {
        match item {
            Item::Node(at) => {
                let used = taken.entry(at).or_default();
                *used += n;
                u64::from(view.holds(at)) >= *used
            }
            Item::Domain(_) => {
                let level = self.level_of(item);
                let below: Vec<Item> = self
                    .open(std::iter::once(item))
                    .into_iter()
                    .filter(|below| self.covered(*below, level, layers))
                    .collect();
                let Some(chosen) = self.fewest_whole(view, &below, n, layers, taken) else {
                    return false;
                };
                chosen.into_iter().all(|(item, here)| {
                    let level = self.level_of(item);
                    let inner: Vec<(Level, u32)> = layers
                        .iter()
                        .copied()
                        .filter(|(at, _)| *at > level)
                        .collect();
                    self.split(view, item, here, &inner, taken)
                })
            }
        }
    }
}
