//! A lower bound on what evictions cost, before a search begins: whether all candidates together
//! would make enough room, and what the cheapest conceivable victims lose.
//!
//! Method: counters only. Running members are taken off their nodes in the order of what each of
//! their GPUs (or cores) loses, in fractions if necessary. Such a relaxed choice never loses more
//! than a search that makes the same room, so a search is skipped if the bound already exceeds what
//! the preemptor saves. No victim is taken here.
//!
//! Cost: one pass over the candidates' members and the nodes. It is spent only where the cost of
//! evictions is weighed, because that is where most searches fail.
//!
//! Example: on one node pieces of 3, 2 and 4 GPUs lose 1, 10 and 100 for each GPU. With 1 GPU
//! unused, a first member of 4 GPUs costs 3, and a second one 2 * 10 + 2 * 100 = 220
//! (`each_further_member_costs_what_the_cheapest_victims_lose`).
//!
//! Test: `a_search_fails_wherever_the_bound_says_so` compares the bound with the search
//! on random clusters.

use std::cmp::Ordering;

use jiff::Timestamp;

use super::search::{Candidates, MinimumDemand, NoVictims};
use crate::class::ClassIx;
use crate::gang::GangKey;
use crate::node::NodeIx;
use crate::resource::Ix;
use crate::state::Scheduler;

/// The gangs that could be evicted, in part or whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct EvictableGangs {
    pub(super) gangs: Vec<GangKey>,
    /// Whether some of them are of the preemptor's own queue.
    pub(super) own: bool,
}

/// What members of one gang hold on a node: the amount that would be free without them, which is
/// more than zero, and what they would lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldAmount {
    amount: i64,
    lost: i128,
}

impl HeldAmount {
    /// Compares by price: the lesser loses less for the same amount.
    fn by_price(&self, other: &HeldAmount) -> Ordering {
        let (own, its) = (i128::from(self.amount), i128::from(other.amount));
        (self.lost * its).cmp(&(other.lost * own))
    }
}

/// All pieces, each with the index of the next one on its node.
struct HeldAmounts {
    /// The index of each node's first piece; beyond the list where there is none.
    first: Vec<usize>,
    list: Vec<(HeldAmount, usize)>,
}

impl HeldAmounts {
    fn on(&self, node: NodeIx) -> impl Iterator<Item = HeldAmount> {
        let mut at = self.first.get(node).copied().unwrap_or(usize::MAX);
        std::iter::from_fn(move || {
            let (piece, next) = self.list.get(at)?;
            at = *next;
            Some(*piece)
        })
    }
}

/// The share of the loss that `parts` of `all` have. Nothing is negative.
fn part_of(lost: i128, parts: i64, all: i64) -> i128 {
    // Large numbers are rare, and 128-bit division is slow.
    let small = i64::try_from(lost).ok();
    match small.and_then(|lost| lost.checked_mul(parts)) {
        Some(product) => i128::from(product / all),
        None => lost * i128::from(parts) / i128::from(all),
    }
}

impl Scheduler {
    /// Why a search among these candidates would fail, where counters show that. Looks at
    /// everything that the candidates hold, so it is used only where the cost of evictions is
    /// weighed: most of those searches fail, and other searches soon find victims or fail.
    pub(super) fn hopeless_by_bound(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        candidates: &dyn Candidates,
        now: Timestamp,
    ) -> Option<NoVictims> {
        let wait = ask.wait?;
        let reach = candidates.reach(self)?;
        let (class, members) = self.main_part(ask)?;
        self.refresh(class);
        let weight = self.weight(key)?;
        let ix = weight.main;
        let each = self.classes.get(class).demand().get(ix);
        if each <= 0 {
            return None;
        }
        let needed = each.saturating_mul(i64::try_from(members).unwrap_or(i64::MAX));
        let price = |ran| weight.price(ran, wait);
        let pieces = self.pieces(&reach.gangs, ix, needed, price, now)?;
        match self.least_lost(class, each, members, ix, &pieces) {
            None => Some(NoVictims::NoRoom),
            Some(lost) => {
                let most = weight.saved(wait, reach.own);
                (lost > most).then_some(NoVictims::NotWorth)
            }
        }
    }

    /// The class that most of the request is certain to be of, and its number of members.
    fn main_part(&self, ask: &MinimumDemand) -> Option<(ClassIx, usize)> {
        let class = self.largest(ask)?;
        let members = ask.certain().get(&class).copied()?;
        Some((class, members))
    }

    /// What each gang's members hold by node, and what they lose by how long they have run.
    /// `needed` is the amount that the preemptor needs in all. None where a gang's run time is not
    /// known.
    fn pieces(
        &self,
        gangs: &[GangKey],
        ix: Ix,
        needed: i64,
        price: impl Fn(i64) -> i128,
        now: Timestamp,
    ) -> Option<HeldAmounts> {
        let mut pieces = HeldAmounts {
            first: vec![usize::MAX; self.nodes.len()],
            list: Vec::with_capacity(self.nodes.len()),
        };
        let mut own: Vec<(NodeIx, HeldAmount)> = Vec::new();
        for gang in gangs {
            let (ran, held) = self.held_since(gang, now)?;
            let known = self.gangs.get(gang)?;
            for (node, class, count) in held.iter().copied() {
                let demand = self.classes.get(class).demand().get(ix);
                // A pod that shares GPUs may take another part on this node than its class counts.
                let amount = match self.classes.get(class).share() {
                    Some(_) => self.take_on(class, node).demand.get(ix).max(demand),
                    None => demand,
                };
                if amount > 0 {
                    let count = i64::from(count);
                    let piece = HeldAmount {
                        amount: amount.saturating_mul(count),
                        lost: price(ran) * i128::from(demand) * i128::from(count),
                    };
                    own.push((node, piece));
                }
            }
            let all: i64 = own.iter().map(|(_, piece)| piece.amount).sum();
            // A gang that cannot shrink is evicted whole, for no more of it than is needed.
            let whole = known.total.have() <= known.minimum(gang);
            for (node, mut piece) in own.drain(..) {
                if whole && all > needed {
                    piece.lost = part_of(piece.lost, all, needed);
                }
                let next = std::mem::replace(&mut pieces.first[node], pieces.list.len());
                pieces.list.push((piece, next));
            }
        }
        Some(pieces)
    }

    /// The least loss that makes room for `members` members of a class, each of which requests
    /// `each`. None if there is too little room even without all pieces.
    fn least_lost(
        &self,
        class: ClassIx,
        each: i64,
        members: usize,
        ix: Ix,
        pieces: &HeldAmounts,
    ) -> Option<i128> {
        let view = self.views.get(&class)?;
        let mut left = members as u64;
        // The cost of each further member, node by node: on one node, the next member never costs
        // less.
        let mut costs: Vec<i128> = Vec::new();
        let mut own: Vec<HeldAmount> = Vec::new();
        for at in 0..self.nodes.len() {
            let most = view.empty_at(at);
            if most == 0 {
                continue;
            }
            let unused = self.nodes[at].unused(ix).max(0);
            let holds = (unused / each).max(i64::from(view.holds(at)));
            let free = most.min(u64::try_from(holds).unwrap_or(0));
            left = left.saturating_sub(free);
            if free < most {
                own.clear();
                own.extend(pieces.on(at));
                own.sort_unstable_by(HeldAmount::by_price);
                let unused = unused.max(holds.saturating_mul(each));
                steps(&own, unused, each, (most, free), &mut costs);
            }
        }
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        if left == 0 {
            return Some(0);
        }
        if costs.len() < left {
            return None;
        }
        costs.select_nth_unstable(left - 1);
        Some(costs[..left].iter().sum())
    }
}

/// Adds the cost of each further member on one node, of which `unused` is unused.
fn steps(
    pieces: &[HeldAmount],
    unused: i64,
    each: i64,
    (most, free): (u64, u64),
    into: &mut Vec<i128>,
) {
    let mut rest = pieces.iter().copied();
    let mut have = unused - (free as i64).saturating_mul(each);
    let mut piece: Option<HeldAmount> = None;
    for _ in free..most {
        let mut cost = 0_i128;
        while have < each {
            let Some(next) = piece.take().or_else(|| rest.next()) else {
                return;
            };
            let lacks = each - have;
            if next.amount <= lacks {
                have += next.amount;
                cost += next.lost;
                continue;
            }
            let part = part_of(next.lost, lacks, next.amount);
            have += lacks;
            cost += part;
            piece = Some(HeldAmount {
                amount: next.amount - lacks,
                lost: next.lost - part,
            });
        }
        have -= each;
        into.push(cost);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::reclaim::VictimQueues;
    use super::super::search::VictimSet;
    use super::*;
    use crate::config::Config;
    use crate::event::Event;
    use crate::resource::GPU;

    const NOW: i64 = 10_000;

    fn piece(ran: i64, amount: i64) -> HeldAmount {
        HeldAmount {
            amount,
            lost: i128::from(ran) * i128::from(amount),
        }
    }

    fn costs(pieces: &[HeldAmount], unused: i64, each: i64, most: u64) -> Vec<i128> {
        let mut costs = Vec::new();
        let free = u64::try_from(unused / each).unwrap_or(0);
        steps(pieces, unused, each, (most, free), &mut costs);
        costs
    }

    #[test]
    fn each_further_member_costs_what_the_cheapest_victims_lose() {
        let pieces = [piece(1, 3), piece(10, 2), piece(100, 4)];
        assert_eq!(
            costs(&pieces, 0, 1, 9),
            [1, 1, 1, 10, 10, 100, 100, 100, 100]
        );
        assert_eq!(costs(&pieces, 1, 4, 9), [3, 10 + 10 + 200]);
    }

    #[test]
    fn a_node_holds_no_more_than_when_it_is_empty() {
        assert_eq!(costs(&[piece(1, 8)], 2, 2, 3), [2, 2]);
    }

    #[test]
    fn free_resources_cost_nothing_and_are_not_counted_twice() {
        assert_eq!(costs(&[piece(5, 1)], 3, 2, 4), [5]);
        assert_eq!(costs(&[], 3, 2, 4), []);
    }

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> Box<T> {
        Box::new(serde_json::from_value(value).unwrap())
    }

    /// One running gang: its members, GPUs for each, minimum, the node of its first member, and how
    /// long it has run.
    type Running = (usize, i64, usize, usize, i64);

    fn tell(s: &mut Scheduler, name: &str, queue: &str, least: usize, pods: Vec<Value>) {
        s.apply(Event::PodGroupChanged(read(json!({
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "ns", "uid": name},
            "spec": {"minMember": least, "queue": queue},
        }))));
        for pod in pods {
            s.apply(Event::PodChanged(read(pod)));
        }
    }

    fn member(group: &str, at: usize, gpus: i64) -> Value {
        let name = format!("{group}-{at}");
        json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name,
                "annotations": {"scheduling.k8s.io/group-name": group}},
            "spec": {"schedulerName": "muster", "containers": [{"name": "main", "resources":
                {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]},
        })
    }

    /// Three nodes of four GPUs. Gangs of queue `greedy` run, and a gang of queue `entitled`, which
    /// has a higher priority, waits. The first `own` running gangs are of its queue.
    fn world(running: &[Running], own: usize, members: usize, gpus: i64) -> Scheduler {
        let mut s = Scheduler::new(Config::default());
        for i in 0..3 {
            s.apply(Event::NodeChanged(read(json!({
                "metadata": {"name": format!("n{i}")},
                "status": {"allocatable": {"cpu": "64", "pods": "110", "nvidia.com/gpu": "4"}},
            }))));
        }
        for name in ["greedy", "entitled"] {
            s.apply(Event::QueueChanged(read(json!({
                "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
                "metadata": {"name": name, "uid": name}, "spec": {"weight": 1},
            }))));
        }
        let mut free = [4; 3];
        for (nth, (count, gpus, least, first, ran)) in running.iter().enumerate() {
            let name = format!("old{nth}");
            let mut pods = Vec::new();
            for at in 0..*count {
                let Some(node) = (0..3)
                    .map(|i| (first + at + i) % 3)
                    .find(|n| free[*n] >= *gpus)
                else {
                    continue;
                };
                free[node] -= gpus;
                let start = Timestamp::from_second(NOW - ran).unwrap().to_string();
                let mut pod = member(&name, at, *gpus);
                pod["spec"]["nodeName"] = json!(format!("n{node}"));
                pod["status"] = json!({"phase": "Running", "startTime": start});
                pods.push(pod);
            }
            let queue = if nth < own { "entitled" } else { "greedy" };
            tell(&mut s, &name, queue, *least, pods);
        }
        let mut pods: Vec<Value> = (0..members).map(|at| member("new", at, gpus)).collect();
        for pod in &mut pods {
            pod["spec"]["priority"] = json!(10);
        }
        tell(&mut s, "new", "entitled", members, pods);
        s
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_search_fails_wherever_the_bound_says_so(
            running in proptest::collection::vec((1..4usize, 1..5i64, 1..4usize, 0..3usize, 0..1000i64), 1..8),
            members in 1..4usize,
            gpus in 1..5i64,
            wait in 1..3000i64,
        ) {
            let mut s = world(&running, 0, members, gpus);
            let now = Timestamp::from_second(NOW).unwrap();
            s.rank_nodes();
            s.update_queues();
            s.update_timeline(now);
            let key = GangKey::group("ns".into(), "new");
            let mut ask = s.ask(&key);
            ask.wait = Some(wait);
            let own = ask.payer.unwrap().queue;
            let weight = s.weight(&key).unwrap();
            let most = weight.saved(wait, false);
            let mut victim_queues = VictimQueues::new(&s, own, &ask, 0, now);
            let vain = s.hopeless_by_bound(&key, &ask, &victim_queues, now);
            let found = s.search_without_bound(&key, &ask, &mut victim_queues, now);
            match (vain, found) {
                (Some(NoVictims::NoRoom), found) => prop_assert!(found.is_err()),
                (Some(NoVictims::NotWorth), Ok(found)) => {
                    let lost = found.units.iter().flat_map(|unit| {
                        let ran = s.held_since(&unit.gang, now).unwrap().0;
                        let gpus = |pod| s.classes.get(s.pods.get(pod).unwrap().class).demand().get(GPU);
                        unit.pods.iter().map(move |pod| weight.price(ran, wait) * i128::from(gpus(pod)))
                    });
                    prop_assert!(lost.sum::<i128>() > most);
                }
                _ => {}
            }
        }

        #[test]
        fn reclaim_with_preemption_begins_with_the_victims_of_reclaim(
            running in proptest::collection::vec((1..3usize, 1..5i64, 1..3usize, 0..3usize, 0..1000i64), 2..8),
            own in 1..3usize,
            members in 1..3usize,
            gpus in 1..5i64,
        ) {
            let mut s = world(&running, own, members, gpus);
            let now = Timestamp::from_second(NOW).unwrap();
            s.rank_nodes();
            s.update_queues();
            s.update_timeline(now);
            let key = GangKey::group("ns".into(), "new");
            let ask = s.ask(&key);
            let told = |found: &VictimSet| {
                let gone = found.units.iter().map(|unit| (unit.why, unit.pods.clone()));
                let nodes = found.placed.iter().map(|placement| placement.node);
                (gone.collect::<Vec<_>>(), nodes.collect::<Vec<_>>())
            };
            if let Ok(found) = s.reclaim(&key, &ask, now) {
                let (first, reclaimed) = (found.first, told(&found));
                s.undo(found.transaction);
                if first && s.begins_as_reclaim(&key, &ask, now) {
                    let both = s.reclaim_and_preempt(&key, &ask, now).unwrap();
                    prop_assert_eq!(told(&both), reclaimed);
                }
            }
        }
    }
}
