//! Which members would have to leave which nodes so that more members of a class fit there.
//!
//! Method: for each node the fewest members, step by step, one further member of the class for each
//! step; over all nodes, or the nodes of one topology domain, the cheapest steps together. A step's
//! price is the number of moving members, then the GPUs of the interrupted work, for each member
//! that then fits. Only counters are used; module `consolidation` tries what really fits.
//!
//! Cost: for each node at most `STEPS_MAX` steps, each of which counts the members that fit without
//! one or a few of the node's pods; `SKIPS_MAX` sets for each of at most `DOMAINS_MAX` domains.
//!
//! Example: a member needs 4 GPUs. Node `n1` of 4 GPUs runs a movable pod of 3 GPUs, node `n2` of 4
//! GPUs two movable pods of 1 and 2 GPUs. `n1` is tried first, because one moving member is cheaper
//! than two.
//!
//! Test: `tests/evictions_moves.rs`.

use std::collections::{BTreeMap, BTreeSet};

use super::search::MinimumDemand;
use crate::class::ClassIx;
use crate::gang::GangKey;
use crate::node::NodeIx;
use crate::pod::PodKey;
use crate::state::Scheduler;
use crate::topology::DomainIx;

/// The most members of a class that one node is cleared for, one after the other.
const STEPS_MAX: usize = 16;
/// The most first nodes that are skipped, one more for each set.
const SKIPS_MAX: usize = 6;
/// The most domains that are considered, those with the most room first.
const DOMAINS_MAX: usize = 16;

/// A member that may move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MovablePod {
    pub(super) pod: PodKey,
    pub(super) gang: GangKey,
    /// Its position in the order of eviction.
    pub(super) turn: usize,
    /// The GPUs that the member holds, and that its gang holds.
    pub(super) gpus: i64,
    pub(super) gang_gpus: i64,
    /// How many members the gang has beyond its minimum.
    pub(super) spare: usize,
}

/// The cost of moving members: their number, the GPUs of the interrupted work, and the members'
/// positions.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    pods: usize,
    gpus: i64,
    turns: Vec<usize>,
}

impl Cost {
    fn of<'a>(movers: impl Iterator<Item = &'a MovablePod>) -> Cost {
        let mut cost = Cost::default();
        let movers: Vec<&MovablePod> = movers.collect();
        cost.pods = movers.len();
        cost.turns = movers.iter().map(|mover| mover.turn).collect();
        cost.turns.sort_unstable();
        cost.gpus = standing_still(movers.into_iter());
        cost
    }
}

/// The GPUs of the work that is interrupted while these members move: a gang that needs all its
/// members is interrupted as a whole until they are back.
pub(super) fn standing_still<'a>(movers: impl Iterator<Item = &'a MovablePod>) -> i64 {
    let mut gangs: BTreeMap<&GangKey, (usize, i64, &MovablePod)> = BTreeMap::new();
    for mover in movers {
        let gang = gangs.entry(&mover.gang).or_insert((0, 0, mover));
        gang.0 += 1;
        gang.1 += mover.gpus;
    }
    let each = gangs.into_values().map(|(pods, gpus, mover)| {
        if pods <= mover.spare {
            gpus
        } else {
            mover.gang_gpus
        }
    });
    each.sum()
}

/// A step: `gains` further members fit on the node once these members have left it too.
#[derive(Clone, Debug)]
struct MoveStep {
    node: NodeIx,
    movers: Vec<MovablePod>,
    gains: usize,
    cost: Cost,
}

impl MoveStep {
    /// The cost for each member that then fits, in thousandths.
    fn price(&self) -> (usize, i64, &[usize]) {
        let gains = self.gains.max(1);
        (
            self.cost.pods * 1000 / gains,
            self.cost.gpus.saturating_mul(1000) / gains as i64,
            &self.cost.turns,
        )
    }
}

/// The members that leave first, and the members that leave next if that does not suffice.
pub(super) struct MoveSet {
    pub(super) first: Vec<MovablePod>,
    pub(super) more: Vec<Vec<MovablePod>>,
}

impl Scheduler {
    /// Sets of members without which the gang may fit, the cheapest first.
    pub(super) fn move_sets(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        movers: &BTreeMap<NodeIx, Vec<MovablePod>>,
    ) -> Vec<MoveSet> {
        let Some(class) = self.largest(ask) else {
            return Vec::new();
        };
        self.refresh(class);
        let need = ask.certain().get(&class).copied().unwrap_or(1).max(1);
        let steps: Vec<Vec<MoveStep>> = movers
            .iter()
            .flat_map(|(at, movers)| self.steps(*at, movers, class, need))
            .collect();
        let mut found: Vec<(Cost, MoveSet)> = Vec::new();
        for scope in self.scopes(key, class, need) {
            let room = self.views.get(&class).map_or(0, |view| match scope {
                Some(domain) => view.sum(domain),
                None => view.room,
            });
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let inside: Vec<&Vec<MoveStep>> = steps
                .iter()
                .filter(|steps| {
                    let node = steps.first().map(|step| step.node);
                    scope.is_none_or(|scope| node.is_some_and(|at| self.topology.holds(scope, at)))
                })
                .collect();
            for skip in 0..SKIPS_MAX.min(inside.len().max(1)) {
                let Some((cost, clearing)) = pick(&inside, room, need, skip) else {
                    break;
                };
                found.push((cost, clearing));
            }
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found.dedup_by(|(a, _), (b, _)| a == b);
        found.into_iter().map(|(_, clearing)| clearing).collect()
    }

    /// All movable members of the nodes where moving the fewest makes the most room.
    pub(super) fn whole_nodes(
        &mut self,
        ask: &MinimumDemand,
        movers: &BTreeMap<NodeIx, Vec<MovablePod>>,
        nodes: usize,
    ) -> Vec<MovablePod> {
        let Some(class) = self.largest(ask) else {
            return Vec::new();
        };
        let mut order: Vec<(usize, u32, &Vec<MovablePod>)> = movers
            .iter()
            .filter_map(|(at, movers)| {
                let pods = movers.iter().map(|mover| &mover.pod);
                let fits = self.holds_without(*at, pods, class);
                let price = (movers.len() * 1000).checked_div(fits)?;
                Some((price, self.nodes[*at].rank, movers))
            })
            .collect();
        order.sort_unstable_by_key(|(price, rank, _)| (*price, *rank));
        let chosen = order.into_iter().take(nodes);
        chosen.flat_map(|(.., movers)| movers.clone()).collect()
    }

    /// The topology domains of which one must hold the gang; none means anywhere.
    fn scopes(&self, key: &GangKey, class: ClassIx, need: usize) -> Vec<Option<DomainIx>> {
        let spec = self.gangs.get(key).and_then(|gang| gang.spec.as_ref());
        let wish = spec.and_then(|spec| spec.shape.request.resolve(&self.topology).ok());
        let level = wish.and_then(|wish| wish.required);
        let Some((level, view)) = level
            .filter(|level| *level != self.topology.host())
            .zip(self.views.get(&class))
        else {
            return vec![None];
        };
        let domains = self.topology.at_level(level).iter().copied();
        let mut domains: Vec<DomainIx> = domains
            .filter(|at| view.sum_empty(*at) >= need as u64)
            .collect();
        domains.sort_by_key(|at| (u64::MAX - view.sum(*at), self.topology.domain(*at).order));
        domains.truncate(DOMAINS_MAX);
        domains.into_iter().map(Some).collect()
    }

    /// The possible steps on one node, as lists in which each step builds on the one before: with
    /// the fewest members leaving, and for one member with the smallest leaving.
    fn steps(
        &self,
        at: NodeIx,
        movers: &[MovablePod],
        class: ClassIx,
        want: usize,
    ) -> Vec<Vec<MoveStep>> {
        let view = self.views.get(&class);
        if view.is_none_or(|view| view.empty_at(at) == 0) {
            return Vec::new();
        }
        let holds = |set: &[usize]| {
            let pods = set.iter().map(|at| &movers[*at].pod);
            self.holds_without(at, pods, class)
        };
        let all_candidates: Vec<usize> = (0..movers.len()).collect();
        let (now, most) = (holds(&[]), holds(&all_candidates));
        let most = most.min(now + want.min(STEPS_MAX));
        let mut lists = Vec::new();
        let mut list = Vec::new();
        let mut set: Vec<usize> = Vec::new();
        let mut reached = now;
        while reached < most {
            let before = set.clone();
            set = fewest(movers, before.clone(), reached + 1, &holds);
            let held = holds(&set).min(now + want);
            let added = set.iter().filter(|at| !before.contains(at));
            let added: Vec<MovablePod> = added.map(|at| movers[*at].clone()).collect();
            if held <= reached || added.is_empty() {
                break;
            }
            list.push(MoveStep {
                node: at,
                cost: Cost::of(added.iter()),
                movers: added,
                gains: held - reached,
            });
            reached = held;
        }
        let first = list.first().map(|step: &MoveStep| step.movers.len());
        if first == Some(1) && want == 1 && most > now {
            let small = smallest(movers, now + 1, &holds);
            let small: Vec<MovablePod> = small.into_iter().map(|at| movers[at].clone()).collect();
            if small.len() > 1 {
                lists.push(vec![MoveStep {
                    node: at,
                    cost: Cost::of(small.iter()),
                    movers: small,
                    gains: 1,
                }]);
            }
        }
        if !list.is_empty() {
            lists.insert(0, list);
        }
        lists
    }
}

/// Adds as few members as possible to a set until the node holds `target` members.
fn fewest(
    movers: &[MovablePod],
    mut set: Vec<usize>,
    target: usize,
    holds: &impl Fn(&[usize]) -> usize,
) -> Vec<usize> {
    let rest: Vec<usize> = (0..movers.len()).filter(|at| !set.contains(at)).collect();
    let single = rest.iter().filter_map(|at| {
        let mut with = set.clone();
        with.push(*at);
        (holds(&with) >= target).then(|| (Cost::of(with.iter().map(|at| &movers[*at])), *at))
    });
    if let Some((_, at)) = single.min() {
        set.push(at);
        return set;
    }
    let mut by_size = rest;
    by_size.sort_by_key(|at| (-movers[*at].gpus, movers[*at].turn));
    let from = set.len();
    for at in by_size {
        set.push(at);
        if holds(&set) >= target {
            break;
        }
    }
    drop_unneeded(&mut set, from, target, holds);
    set
}

/// The smallest members without which the node holds `target` members.
fn smallest(
    movers: &[MovablePod],
    target: usize,
    holds: &impl Fn(&[usize]) -> usize,
) -> Vec<usize> {
    let mut by_size: Vec<usize> = (0..movers.len()).collect();
    by_size.sort_by_key(|at| (movers[*at].gpus, movers[*at].turn));
    let mut set = Vec::new();
    for at in by_size {
        set.push(at);
        if holds(&set) >= target {
            break;
        }
    }
    drop_unneeded(&mut set, 0, target, holds);
    set
}

fn drop_unneeded(
    set: &mut Vec<usize>,
    from: usize,
    target: usize,
    holds: &impl Fn(&[usize]) -> usize,
) {
    let mut at = from;
    while at < set.len() {
        let mut without = set.clone();
        without.remove(at);
        if holds(&without) >= target {
            *set = without;
        } else {
            at += 1;
        }
    }
}

/// The cheapest steps that make room for `need` members, without the first `skip` nodes; and the
/// steps that would come next.
fn pick(
    steps: &[&Vec<MoveStep>],
    room: usize,
    need: usize,
    skip: usize,
) -> Option<(Cost, MoveSet)> {
    let heads = steps.iter().enumerate();
    let mut next: BTreeSet<_> = heads
        .filter_map(|(list, steps)| Some((steps.first()?.price(), list, 0)))
        .collect();
    for _ in 0..skip {
        next.pop_first();
    }
    let mut first: Vec<MovablePod> = Vec::new();
    let mut more = Vec::new();
    let mut have = room;
    let mut any = false;
    while more.len() < super::consolidation::MORE_MAX {
        let Some((_, list, step)) = next.pop_first() else {
            break;
        };
        let after = steps[list].get(step + 1).map(MoveStep::price);
        next.extend(after.map(|price| (price, list, step + 1)));
        let taken = &steps[list][step];
        if have < need || !any {
            first.extend(taken.movers.iter().cloned());
            have += taken.gains;
            any = true;
        } else {
            more.push(taken.movers.clone());
        }
    }
    if !any || have < need {
        return None;
    }
    let mut seen = BTreeSet::new();
    first.retain(|mover| seen.insert(mover.turn));
    Some((Cost::of(first.iter()), MoveSet { first, more }))
}
