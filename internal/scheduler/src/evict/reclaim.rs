//! Reclaim across queues by shares: a gang takes back what its queue is entitled to from queues
//! that hold more than their share.
//!
//! Method: the two queues are compared where their branches of the queue tree part. With the gang,
//! the preemptor's branch must stay within its share. The other branch must hold more than its
//! share, or more than its deserved amount while the preemptor's branch stays within its own
//! deserved amount; only the latter may take from a queue of higher priority. The queue that is
//! furthest above its share loses first, and the order is worked out again after each victim. The
//! cost is one comparison of the queues with candidates for each victim.
//!
//! Example: two queues deserve 4 of 8 GPUs each; one runs 8 one-GPU gangs. A gang of 4 GPUs in
//! the other queue reclaims 4 of them. Another gang is refused, because with it its queue
//! would hold more than its share.
//!
//! Tests: `tests/evictions.rs`, and `tests/evictions_oracle.rs` against every set of victims.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::NoEvictions;
use super::candidates::{CandidateScope, Cursor, EvictionUnit};
use super::loss_bound::EvictableGangs;
use super::search::{Candidates, MinimumDemand, NoVictims, VictimSet};
use crate::gang::GangKey;
use crate::plan::EvictionReason;
use crate::queue::rules::ReclaimWithinCohort;
use crate::queue::{QueueIx, QueueShare, Queues};
use crate::resource::{Demand, Ix, PODS, Room};
use crate::state::Scheduler;

/// The order in which the queues on one level lose. The lesser loses first: the reverse of the
/// order of their turns.
type ReclaimRank = (i32, Reverse<bool>, Reverse<QueueShare>, Reverse<usize>);

struct VictimQueue {
    /// The queues from the root down to the victims' queue.
    path: Vec<QueueIx>,
    /// The topmost queues of the preemptor's path and of this path that differ.
    left: QueueIx,
    right: QueueIx,
    /// Whether the preemptor may take because its queue is within its deserved amount.
    deserved: bool,
    cursor: Cursor,
    /// For each priority of a gang that was placed by evictions: what gangs of lower priority in
    /// this queue hold and keep.
    lower_ranked: BTreeMap<i32, Room>,
    bitten: bool,
    done: bool,
}

/// The queues that the preemptor may reclaim from.
pub(super) struct VictimQueues {
    demand: Demand,
    victim_queues: Vec<VictimQueue>,
    places: BTreeMap<QueueIx, ReclaimRank>,
    last: Option<usize>,
    now: Timestamp,
}

impl VictimQueues {
    pub(super) fn new(
        state: &Scheduler,
        own: QueueIx,
        ask: &MinimumDemand,
        priority: i32,
        now: Timestamp,
    ) -> VictimQueues {
        let mut all = VictimQueues {
            demand: ask.demand.clone(),
            victim_queues: Vec::new(),
            places: BTreeMap::new(),
            last: None,
            now,
        };
        let queues = &state.queues;
        let limit = match queues.rules(own).map(|rules| rules.preemption.reclaim) {
            Some(ReclaimWithinCohort::Any) => CandidateScope::None,
            Some(ReclaimWithinCohort::LowerPriority) => CandidateScope::Below(priority),
            Some(ReclaimWithinCohort::Never) | None => return all,
        };
        for name in state.victims.keys() {
            let Some(queue) = queues.find(name).filter(|queue| *queue != own) else {
                continue;
            };
            let fork = queues.lowest_common_level(own, queue);
            if fork.left == fork.above || fork.right == fork.above {
                continue;
            }
            let mut path: Vec<QueueIx> = queues.path(queue).collect();
            path.reverse();
            let below = path.iter().skip_while(|at| **at != fork.right);
            let kept = |at: &QueueIx| queues.rules(*at).is_some_and(|rules| !rules.reclaimable);
            if below.into_iter().any(kept) {
                continue;
            }
            for at in &path {
                all.places.insert(*at, place(queues, *at));
            }
            all.victim_queues.push(VictimQueue {
                path,
                left: fork.left,
                right: fork.right,
                deserved: true,
                cursor: Cursor::for_others(name, limit),
                lower_ranked: BTreeMap::new(),
                bitten: false,
                done: false,
            });
        }
        all
    }

    /// Lets the preemptor take on the ground of its deserved amount only where its queue stays
    /// within it with all that it holds now. This applies where gangs of the preemptor's own queue
    /// are evicted as well: they come back on idle resources, and a gang that loses its place by
    /// that would reclaim it from a queue above its share, in an endless cycle.
    pub(super) fn limit_deserved_ground(&mut self, queues: &Queues) {
        for victim_queue in &mut self.victim_queues {
            victim_queue.deserved = queues.within_deserved(victim_queue.left, &self.demand, 1);
        }
    }

    /// Whether the queue may lose now. Above its share it loses to queues of the same or a higher
    /// priority; above its deserved amount it loses to every queue that is within its own.
    fn eligible(&self, queues: &Queues, victim_queue: &VictimQueue) -> bool {
        self.eligible_but_for(queues, victim_queue, &Room::default())
    }

    /// As `eligible`, with `less` subtracted from what the queue holds.
    fn eligible_but_for(&self, queues: &Queues, victim_queue: &VictimQueue, less: &Room) -> bool {
        let priority = |at: QueueIx| queues.rules(at).map_or(0, |rules| rules.priority);
        let outranked = priority(victim_queue.left) < priority(victim_queue.right);
        let at = victim_queue.right;
        (!outranked && self.above(queues, at, less, Queues::allocatable))
            || (victim_queue.deserved
                && queues.within_deserved(victim_queue.left, &self.demand, 1)
                && self.above(queues, at, less, Queues::deserved))
    }

    /// Whether the queue, without `less`, holds more than the bound of any requested resource.
    fn above(
        &self,
        queues: &Queues,
        at: QueueIx,
        less: &Room,
        bound: fn(&Queues, QueueIx, Ix) -> i64,
    ) -> bool {
        let asked = self.demand.0.iter().map(|(ix, _)| *ix);
        let mut counted = asked.filter(|ix| queues.counts(*ix));
        counted.any(|ix| {
            let held = queues.allocated(at, ix).saturating_sub(less.get(ix));
            held > bound(queues, at, ix)
        })
    }

    /// Whether the queue may lose this gang. A gang that was placed by evictions is not evicted for
    /// resources that lower-ranked gangs of its queue hold and keep: these borrow what is idle, and
    /// the gang would reclaim the place that it is entitled to, in an endless cycle.
    fn may_lose(&self, state: &Scheduler, victim_queue: &VictimQueue, gang: &GangKey) -> bool {
        let priority = state.priority_if_graced(gang);
        let lower_ranked = priority.and_then(|priority| victim_queue.lower_ranked.get(&priority));
        lower_ranked.is_none_or(|lower_ranked| {
            self.eligible_but_for(&state.queues, victim_queue, lower_ranked)
        })
    }

    /// Whether the queue is eligible now or could become so after other evictions. Evictions do not
    /// change shares, and no queue holds more after them.
    fn may_ever(&self, queues: &Queues, victim_queue: &VictimQueue) -> bool {
        let mut asked = self.demand.0.iter().filter(|(ix, _)| queues.counts(*ix));
        self.eligible(queues, victim_queue)
            || (victim_queue.deserved
                && asked.all(|(ix, amount)| *amount <= queues.deserved(victim_queue.left, *ix))
                && self.above(
                    queues,
                    victim_queue.right,
                    &Room::default(),
                    Queues::deserved,
                ))
    }

    fn goes_before(&self, a: &VictimQueue, b: &VictimQueue) -> bool {
        let apart = a.path.iter().zip(&b.path).find(|(a, b)| a != b);
        match apart {
            Some((a, b)) => self.places.get(a) < self.places.get(b),
            None => a.path.len() < b.path.len(),
        }
    }

    /// The queue to take from next.
    fn first(&self, queues: &Queues) -> Option<usize> {
        let mut best: Option<usize> = None;
        for (at, victim_queue) in self.victim_queues.iter().enumerate() {
            if victim_queue.done {
                continue;
            }
            let better =
                best.is_none_or(|best| self.goes_before(victim_queue, &self.victim_queues[best]));
            if better && self.eligible(queues, victim_queue) {
                best = Some(at);
            }
        }
        best
    }

    pub(super) fn spared_until(&self) -> Option<Timestamp> {
        let all = self.victim_queues.iter();
        all.filter_map(|victim_queue| victim_queue.cursor.spared_until)
            .min()
    }

    pub(super) fn any(&self, queues: &Queues) -> bool {
        self.first(queues).is_some()
    }
}

/// Whether the queue, with the demand, would be within its share.
fn within(queues: &Queues, at: QueueIx, demand: &Demand) -> bool {
    let mut asked = demand.0.iter().filter(|(ix, _)| *ix != PODS);
    asked.all(|(ix, amount)| {
        queues.allocated(at, *ix).saturating_add(*amount) <= queues.allocatable(at, *ix)
    })
}

fn place(queues: &Queues, at: QueueIx) -> ReclaimRank {
    (
        queues.rules(at).map_or(0, |rules| rules.priority),
        Reverse(queues.above_share(at).is_some()),
        Reverse(queues.dominant_share(at)),
        Reverse(queues.rank(at)),
    )
}

impl Candidates for VictimQueues {
    fn next(&mut self, state: &mut Scheduler) -> Option<EvictionUnit> {
        let queues = &state.queues;
        if let Some(last) = self.last.take() {
            for at in &self.victim_queues[last].path {
                self.places.insert(*at, place(queues, *at));
            }
        }
        loop {
            let at = self.first(&state.queues)?;
            let victim_queue = &mut self.victim_queues[at];
            match victim_queue.cursor.next(state, self.now) {
                Some(mut unit) => {
                    if let Some(priority) = state.priority_if_graced(&unit.gang) {
                        // The lower-ranked gangs that are evicted are gone by now.
                        let held = || state.held_below(victim_queue.cursor.queue(), priority);
                        victim_queue
                            .lower_ranked
                            .entry(priority)
                            .or_insert_with(held);
                        if !self.may_lose(state, &self.victim_queues[at], &unit.gang) {
                            continue;
                        }
                    }
                    let victim_queue = &mut self.victim_queues[at];
                    unit.why = EvictionReason::Reclaimed;
                    victim_queue.bitten = true;
                    self.last = Some(at);
                    return Some(unit);
                }
                None => victim_queue.done = true,
            }
        }
    }

    fn reach(&self, state: &Scheduler) -> Option<EvictableGangs> {
        let victim_queues = self.victim_queues.iter();
        let victim_queues =
            victim_queues.filter(|victim_queue| self.may_ever(&state.queues, victim_queue));
        let gangs = victim_queues.flat_map(|victim_queue| victim_queue.cursor.gangs(state));
        Some(EvictableGangs {
            gangs: gangs.cloned().collect(),
            own: false,
        })
    }

    fn all_candidates(&mut self, state: &mut Scheduler) -> Vec<EvictionUnit> {
        let mut transaction = state.begin();
        let mut units = Vec::new();
        let queues = &state.queues;
        let each = self.victim_queues.iter();
        let may: Vec<bool> = each
            .map(|victim_queue| self.may_ever(queues, victim_queue))
            .collect();
        for (victim_queue, may) in self.victim_queues.iter_mut().zip(may) {
            victim_queue.bitten = true;
            if !may {
                continue;
            }
            victim_queue.cursor.rewind();
            // The victims are not known yet: all that lower-ranked gangs hold counts as kept.
            let grace = victim_queue
                .cursor
                .gangs(state)
                .filter_map(|gang| state.priority_if_graced(gang));
            let held = |priority| {
                (
                    priority,
                    state.held_below(victim_queue.cursor.queue(), priority),
                )
            };
            victim_queue.lower_ranked = grace
                .collect::<BTreeSet<i32>>()
                .into_iter()
                .map(held)
                .collect();
            // Surplus members are taken before their gang's turn comes; other evictions do not
            // change the cursor's order.
            while let Some(mut unit) = victim_queue.cursor.next(state, self.now) {
                unit.why = EvictionReason::Reclaimed;
                if unit.shrinks {
                    state.take(&mut transaction, &mut unit);
                }
                units.push(unit);
            }
        }
        state.undo(transaction);
        units
    }

    fn may_take(&self, state: &Scheduler, unit: &EvictionUnit) -> bool {
        let queue = state.gangs.get(&unit.gang).and_then(|gang| gang.payer);
        let victim_queue = queue.and_then(|payer| {
            let mut victim_queues = self.victim_queues.iter();
            victim_queues.find(|victim_queue| victim_queue.path.last() == Some(&payer.queue))
        });
        victim_queue.is_some_and(|victim_queue| {
            self.eligible(&state.queues, victim_queue)
                && self.may_lose(state, victim_queue, &unit.gang)
        })
    }

    /// Where the branches part above the preemptor's queue, its branch must be within its share, or
    /// no further above it than the branch that loses.
    fn admits(&self, state: &Scheduler) -> bool {
        let queues = &state.queues;
        let mut more = Room::default();
        more.add(&self.demand, 1);
        let bitten = self
            .victim_queues
            .iter()
            .filter(|victim_queue| victim_queue.bitten);
        bitten.into_iter().all(|victim_queue| {
            let nearer = || {
                let taker = queues.dominant_share_with(victim_queue.left, &more);
                taker <= queues.dominant_share(victim_queue.right)
            };
            within(queues, victim_queue.left, &self.demand) || nearer()
        })
    }
}

impl Scheduler {
    /// The priority of a gang that was placed by evictions, or was moved; none for other gangs.
    fn priority_if_graced(&self, gang: &GangKey) -> Option<i32> {
        let gang = self
            .gangs
            .get(gang)
            .filter(|gang| gang.eviction_grace.is_some())?;
        Some(self.priority_of(gang))
    }

    /// What the evictable gangs of lower priority in a queue hold.
    fn held_below(&self, queue: &str, priority: i32) -> Room {
        let mut held = Room::default();
        let all = self
            .victims
            .get(queue)
            .into_iter()
            .flat_map(|gangs| &gangs.all);
        for next in all.take_while(|next| next.priority < priority) {
            if let Some(gang) = self.gangs.get(&next.gang.0) {
                held.add_room(&gang.allocated, 1);
            }
        }
        held
    }

    /// Searches victims for a gang in queues that hold more than their share.
    pub(super) fn reclaim(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        now: Timestamp,
    ) -> Result<VictimSet, NoEvictions> {
        let Some((gang, payer)) = self.gangs.get(key).zip(ask.payer) else {
            return Err(NoEvictions::at_once("the gang no longer exists"));
        };
        let (own, priority) = (payer.queue, self.priority_of(gang));
        let name = self.queues.name(own).to_owned();
        let rules = self.queues.rules(own);
        if rules.is_some_and(|rules| rules.preemption.reclaim == ReclaimWithinCohort::Never) {
            return Err(NoEvictions::at_once(format!(
                "queue {name} must not reclaim"
            )));
        }
        if let Some(ix) = self.beyond_share(own, &ask.demand) {
            return Err(NoEvictions::at_once(format!(
                "with the gang, queue {name} would hold more {} than its share",
                self.names.name(ix)
            )));
        }
        let mut victim_queues = VictimQueues::new(self, own, ask, priority, now);
        if !victim_queues.any(&self.queues) {
            return Err(NoEvictions::at_once(
                "no reclaimable queue holds more than its share of what the gang needs",
            ));
        }
        match self.search(key, ask, &mut victim_queues, now) {
            Ok(found) => Ok(found),
            Err(NoVictims::NotWorth) => Err(NoEvictions::not_worth()),
            Err(NoVictims::NoRoom) => Err(self.no_use(
                victim_queues.spared_until(),
                now,
                "reclaiming all that other queues hold above their share would not make room",
            )),
        }
    }

    /// A resource of which the queue, with the demand, would hold more than its share, without
    /// regard to the queues above it.
    pub(super) fn beyond_share(&self, queue: QueueIx, demand: &Demand) -> Option<u8> {
        let mut asked = demand.0.iter().filter(|(ix, _)| *ix != PODS);
        asked
            .find(|(ix, amount)| {
                let with = self.queues.allocated(queue, *ix).saturating_add(*amount);
                with > self.queues.allocatable(queue, *ix)
            })
            .map(|(ix, _)| *ix)
    }
}
