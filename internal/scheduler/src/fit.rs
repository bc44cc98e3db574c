//! For one class: how many of its pods each node holds, which node to take next, and how many
//! nodes are out for which reason. Kept across plans and brought up to date from the nodes that
//! changed, so asking costs what changed since it was last asked.

use std::collections::BTreeSet;

use crate::class::{Class, Need};
use crate::filter::{self, Refusal};
use crate::node::{Node, NodeIx, Offer};
use crate::resource::{GPU, Ix, NAMES_MAX, Set};
use crate::score::{self, Key};
use crate::share::FreeGpus;

/// What one node is to the class.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Standing {
    /// No such node.
    Absent,
    Refused(Refusal),
    /// Holds `key.count` pods; the resources that allow no more.
    Holds {
        key: Key,
        limits: Set,
    },
    /// Holds none for want of these.
    Short(Set),
}

/// What holds while the node's offer stands still.
#[derive(Clone, Copy, Debug)]
struct Fixed {
    offered: u64,
    refusal: Option<Refusal>,
    tier: i64,
    /// How many pods of the class the node holds when empty.
    empty: u32,
}

/// How many nodes are out, by reason; nodes with room count under what would run out first.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    refused: [usize; Refusal::ALL.len()],
    short: Vec<usize>,
    pub(crate) nodes: usize,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            refused: [0; Refusal::ALL.len()],
            short: vec![0; NAMES_MAX],
            nodes: 0,
        }
    }
}

impl Tally {
    fn count(&mut self, standing: Standing, up: bool) {
        let change = |n: &mut usize| if up { *n += 1 } else { *n -= 1 };
        match standing {
            Standing::Absent => return,
            Standing::Refused(refusal) => change(&mut self.refused[refusal as usize]),
            Standing::Holds { limits: set, .. } | Standing::Short(set) => {
                let mut rest = set;
                while rest != 0 {
                    change(&mut self.short[rest.trailing_zeros() as usize]);
                    rest &= rest - 1;
                }
            }
        }
        change(&mut self.nodes);
    }

    pub(crate) fn refused(&self) -> impl Iterator<Item = (Refusal, usize)> + '_ {
        let all = Refusal::ALL
            .into_iter()
            .map(|refusal| (refusal, self.refused[refusal as usize]));
        all.filter(|(_, nodes)| *nodes > 0)
    }

    pub(crate) fn short(&self) -> impl Iterator<Item = (Ix, usize)> + '_ {
        let all = self
            .short
            .iter()
            .enumerate()
            .map(|(ix, nodes)| (ix as Ix, *nodes));
        all.filter(|(_, nodes)| *nodes > 0)
    }
}

/// One class's view of all nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    /// The last change taken in.
    pub(crate) seen: u64,
    /// The plan that last asked.
    pub(crate) asked: u64,
    standings: Vec<Standing>,
    fixed: Vec<Option<Fixed>>,
    holds: BTreeSet<(Key, NodeIx)>,
    /// For pods with images: the nodes that can run images at all.
    runners: BTreeSet<NodeIx>,
    /// How many pods of the class all nodes together hold now.
    pub(crate) room: u64,
    /// How many they would hold if they were empty.
    pub(crate) empty: u64,
    pub(crate) tally: Tally,
}

impl View {
    /// Takes in one node as it is.
    pub(crate) fn refresh(&mut self, class: &Class, at: NodeIx, node: &Node) {
        if self.standings.len() <= at {
            self.standings.resize(at + 1, Standing::Absent);
            self.fixed.resize(at + 1, None);
        }
        let old_empty = self.fixed[at].map_or(0, |fixed| fixed.empty);
        let fixed = node.offer.as_ref().map(|offer| match self.fixed[at] {
            Some(fixed) if fixed.offered == node.offered => fixed,
            _ => judge(class, node, offer),
        });
        self.empty =
            self.empty - u64::from(old_empty) + fixed.map_or(0, |fixed| u64::from(fixed.empty));
        self.fixed[at] = fixed;
        let runs = |offer: &Offer| class.need() == Need::Image && offer.runtimes.images;
        if node.offer.as_ref().is_some_and(runs) {
            self.runners.insert(at);
        } else {
            self.runners.remove(&at);
        }

        let standing = match (&node.offer, fixed) {
            (Some(offer), Some(fixed)) => stand(class, node, offer, fixed),
            _ => Standing::Absent,
        };
        let old = std::mem::replace(&mut self.standings[at], standing);
        if old == standing {
            return;
        }
        self.tally.count(old, false);
        self.tally.count(standing, true);
        if let Standing::Holds { key, .. } = old {
            self.holds.remove(&(key, at));
            self.room -= u64::from(key.count);
        }
        if let Standing::Holds { key, .. } = standing {
            self.holds.insert((key, at));
            self.room += u64::from(key.count);
        }
    }

    /// The node to take for `want` pods: of the best tier, the one that just holds them all, else
    /// the one that holds the most.
    pub(crate) fn choose(&self, want: u32) -> Option<NodeIx> {
        let tier = self.holds.first()?.0.tier;
        let at_least = |count| self.holds.range((Key::least(tier, count), 0)..).next();
        if let Some((key, at)) = at_least(want)
            && key.tier == tier
        {
            return Some(*at);
        }
        let (most, _) = self
            .holds
            .range(..(Key::least(tier + 1, 0), 0))
            .next_back()?;
        at_least(most.count).map(|(_, at)| *at)
    }

    /// Among given nodes the one for `want` pods, by the same rule.
    pub(crate) fn choose_among(&self, nodes: &[NodeIx], want: u32) -> Option<NodeIx> {
        let held = nodes.iter().filter_map(|at| match self.standings.get(*at) {
            Some(Standing::Holds { key, .. }) => Some((*key, *at)),
            _ => None,
        });
        // Those that hold all come before those that do not; of the rest the largest comes first.
        held.min_by_key(|(key, at)| {
            let shy = want.saturating_sub(key.count);
            (shy, *key, *at)
        })
        .map(|(_, at)| at)
    }

    /// For pods with images: how many nodes can run images at all.
    pub(crate) fn runners(&self) -> usize {
        self.runners.len()
    }

    /// The first of those nodes, each with why it takes no pod, in a word or two.
    pub(crate) fn first_runners(
        &self,
        count: usize,
    ) -> impl Iterator<Item = (NodeIx, &'static str)> + '_ {
        self.runners.iter().take(count).map(|at| {
            let why = match self.standings.get(*at) {
                Some(Standing::Refused(refusal)) => refusal.of_one(),
                Some(Standing::Holds { .. }) => "room for some",
                Some(Standing::Short(_)) => "full",
                Some(Standing::Absent) | None => "gone",
            };
            (*at, why)
        })
    }

    /// How many pods of the class the node holds now.
    pub(crate) fn holds(&self, at: NodeIx) -> u32 {
        match self.standings.get(at) {
            Some(Standing::Holds { key, .. }) => key.count,
            _ => 0,
        }
    }
}

fn judge(class: &Class, node: &Node, offer: &Offer) -> Fixed {
    let refusal = filter::refusal(class, node, offer);
    let (tier, empty) = if refusal.is_some() {
        (0, 0)
    } else {
        let gpus = FreeGpus::of(offer, &Default::default());
        let (count, _) = headroom(class, node, &gpus, |ix| offer.capacity(ix));
        (score::tier(class, node, offer), count)
    };
    Fixed {
        offered: node.offered,
        refusal,
        tier,
        empty,
    }
}

fn stand(class: &Class, node: &Node, offer: &Offer, fixed: Fixed) -> Standing {
    if let Some(refusal) = fixed.refusal {
        return Standing::Refused(refusal);
    }
    let (count, limits) = headroom(class, node, &node.gpus, |ix| node.free(ix));
    if count == 0 {
        return Standing::Short(limits);
    }
    Standing::Holds {
        key: score::key(class, node, offer, fixed.tier, count),
        limits,
    }
}

/// How many pods of a class fit, and the resources that allow no more. Parts of GPUs must be had
/// GPU by GPU.
pub(crate) fn headroom(
    class: &Class,
    node: &Node,
    gpus: &FreeGpus,
    free: impl Fn(Ix) -> i64,
) -> (u32, Set) {
    let shared = |ix: Ix| class.share().filter(|_| ix == GPU);
    let times = |ix: Ix, amount: i64| match shared(ix) {
        Some(share) => share
            .on(node)
            .map_or(0, |each| gpus.slots(each, share.gpus)),
        None => free(ix).max(0) / amount,
    };
    least(class.demand().0.iter().map(|(ix, n)| (*ix, times(*ix, *n))))
}

fn least(times: impl Iterator<Item = (Ix, i64)>) -> (u32, Set) {
    let (mut least, mut limits) = (i64::from(u32::MAX), 0);
    for (ix, times) in times {
        if times < least {
            (least, limits) = (times, 0);
        }
        if times == least {
            limits |= 1 << ix;
        }
    }
    (least as u32, limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_is_named_that_allows_no_more() {
        assert_eq!(least([(0, 2), (1, 2), (3, 7)].into_iter()), (2, 0b11));
        assert_eq!(least([(0, 5), (3, 0)].into_iter()), (0, 0b1000));
    }
}
