//! Which members would have to leave which nodes so that more of a class fit there: for each node
//! the fewest, step by step, and over all nodes, or those of one domain, the cheapest steps
//! together. Works on numbers alone; what really fits is tried by `moves`.

use std::collections::{BTreeMap, BTreeSet};

use super::search::Ask;
use crate::class::ClassIx;
use crate::gang::GangKey;
use crate::node::NodeIx;
use crate::pod::PodKey;
use crate::state::Scheduler;
use crate::topology::DomainIx;

/// How many members of a class one node is cleared for, one after the other.
const STEPS_MAX: usize = 16;
/// How many nodes that would be first are left out, one more each time.
const SKIPS_MAX: usize = 6;
/// How many domains are looked at, those with the most room first.
const DOMAINS_MAX: usize = 16;

/// A member that may be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mover {
    pub(super) pod: PodKey,
    pub(super) gang: GangKey,
    /// Its place in the order in which members would be evicted.
    pub(super) turn: usize,
    /// What it holds, and its gang.
    pub(super) gpus: i64,
    pub(super) gang_gpus: i64,
    /// How many members its gang could do without.
    pub(super) spare: usize,
}

/// What it costs that some are moved: how many they are, the GPUs of the work that is interrupted,
/// and who they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    pods: usize,
    gpus: i64,
    turns: Vec<usize>,
}

impl Cost {
    fn of<'a>(movers: impl Iterator<Item = &'a Mover>) -> Cost {
        let mut cost = Cost::default();
        let movers: Vec<&Mover> = movers.collect();
        cost.pods = movers.len();
        cost.turns = movers.iter().map(|mover| mover.turn).collect();
        cost.turns.sort_unstable();
        cost.gpus = standing_still(movers.into_iter());
        cost
    }
}

/// What the work holds that stands still while these move: a gang that needs them all does so
/// until they are back.
pub(super) fn standing_still<'a>(movers: impl Iterator<Item = &'a Mover>) -> i64 {
    let mut gangs: BTreeMap<&GangKey, (usize, i64, &Mover)> = BTreeMap::new();
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

/// So many members more fit on a node, once these have left it too.
#[derive(Clone, Debug)]
struct Step {
    node: NodeIx,
    movers: Vec<Mover>,
    gains: usize,
    cost: Cost,
}

impl Step {
    /// What each member that then fits costs, in thousandths.
    fn price(&self) -> (usize, i64, &[usize]) {
        let gains = self.gains.max(1);
        (
            self.cost.pods * 1000 / gains,
            self.cost.gpus.saturating_mul(1000) / gains as i64,
            &self.cost.turns,
        )
    }
}

/// Who leaves first, and who after them if that does not do.
pub(super) struct Clearing {
    pub(super) first: Vec<Mover>,
    pub(super) more: Vec<Vec<Mover>>,
}

impl Scheduler {
    /// Sets of members after whose leaving the gang may fit, the cheapest first.
    pub(super) fn clearings(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        movers: &BTreeMap<NodeIx, Vec<Mover>>,
    ) -> Vec<Clearing> {
        let Some(class) = self.largest(ask) else {
            return Vec::new();
        };
        self.refresh(class);
        let need = ask.certain().get(&class).copied().unwrap_or(1).max(1);
        let steps: Vec<Vec<Step>> = movers
            .iter()
            .flat_map(|(at, movers)| self.steps(*at, movers, class, need))
            .collect();
        let mut found: Vec<(Cost, Clearing)> = Vec::new();
        for scope in self.scopes(key, class, need) {
            let room = self.views.get(&class).map_or(0, |view| match scope {
                Some(domain) => view.sum(domain),
                None => view.room,
            });
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let inside: Vec<&Vec<Step>> = steps
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

    /// All members that may leave the nodes where that makes the most room for the fewest.
    pub(super) fn whole_nodes(
        &mut self,
        ask: &Ask,
        movers: &BTreeMap<NodeIx, Vec<Mover>>,
        nodes: usize,
    ) -> Vec<Mover> {
        let Some(class) = self.largest(ask) else {
            return Vec::new();
        };
        let mut order: Vec<(usize, u32, &Vec<Mover>)> = movers
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

    /// The domains of which the gang must be in one; none means anywhere.
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

    /// What could be done on one node, as lists of steps that each go on from the one before: with
    /// the fewest leaving, and for one member with the smallest leaving.
    fn steps(&self, at: NodeIx, movers: &[Mover], class: ClassIx, want: usize) -> Vec<Vec<Step>> {
        let view = self.views.get(&class);
        if view.is_none_or(|view| view.empty_at(at) == 0) {
            return Vec::new();
        }
        let holds = |set: &[usize]| {
            let pods = set.iter().map(|at| &movers[*at].pod);
            self.holds_without(at, pods, class)
        };
        let everybody: Vec<usize> = (0..movers.len()).collect();
        let (now, most) = (holds(&[]), holds(&everybody));
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
            let added: Vec<Mover> = added.map(|at| movers[*at].clone()).collect();
            if held <= reached || added.is_empty() {
                break;
            }
            list.push(Step {
                node: at,
                cost: Cost::of(added.iter()),
                movers: added,
                gains: held - reached,
            });
            reached = held;
        }
        let first = list.first().map(|step: &Step| step.movers.len());
        if first == Some(1) && want == 1 && most > now {
            let small = smallest(movers, now + 1, &holds);
            let small: Vec<Mover> = small.into_iter().map(|at| movers[at].clone()).collect();
            if small.len() > 1 {
                lists.push(vec![Step {
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

/// Adds as few as can be to a set until a node holds so many.
fn fewest(
    movers: &[Mover],
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

/// The smallest whose leaving lets a node hold so many.
fn smallest(movers: &[Mover], target: usize, holds: &impl Fn(&[usize]) -> usize) -> Vec<usize> {
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

/// The cheapest steps after which there is room for so many, without the nodes that would come
/// first; and those that would come next.
fn pick(steps: &[&Vec<Step>], room: usize, need: usize, skip: usize) -> Option<(Cost, Clearing)> {
    let heads = steps.iter().enumerate();
    let mut next: BTreeSet<_> = heads
        .filter_map(|(list, steps)| Some((steps.first()?.price(), list, 0)))
        .collect();
    for _ in 0..skip {
        next.pop_first();
    }
    let mut first: Vec<Mover> = Vec::new();
    let mut more = Vec::new();
    let mut have = room;
    let mut any = false;
    while more.len() < super::moves::MORE_MAX {
        let Some((_, list, step)) = next.pop_first() else {
            break;
        };
        let after = steps[list].get(step + 1).map(Step::price);
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
    Some((Cost::of(first.iter()), Clearing { first, more }))
}
