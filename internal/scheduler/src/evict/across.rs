//! Reclaim across queues, by shares: a gang takes back what its queue is entitled to from queues
//! that hold more than theirs. Its own queue must be within its share with it; the other one must
//! be above its own, or above what it deserves while the taker's stays within what it deserves,
//! where the two branches of the tree part. Only the latter takes from a queue of higher priority.
//! Whoever is furthest beyond its share loses first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::Refusal;
use super::bound::Reach;
use super::candidates::{Bite, Cursor, Limit};
use super::search::{Ask, Candidates, Found, Vain};
use crate::gang::GangKey;
use crate::plan::EvictionReason;
use crate::queue::rules::Reclaim;
use crate::queue::{QueueIx, Queues, Share};
use crate::resource::{Demand, Ix, PODS, Room};
use crate::state::Scheduler;

/// Which of the queues on a level loses first. Lesser goes first: the reverse of whose turn it is.
type Place = (i32, Reverse<bool>, Reverse<Share>, Reverse<usize>);

struct Lender {
    /// From the root down to it.
    path: Vec<QueueIx>,
    /// The first queues on the taker's and on this one's way that are not the same.
    left: QueueIx,
    right: QueueIx,
    /// What the taker's queue deserves may be a ground.
    deserved: bool,
    cursor: Cursor,
    /// Of priorities of gangs that got in by an eviction: what the queue's juniors to those hold who stay.
    juniors: BTreeMap<i32, Room>,
    bitten: bool,
    done: bool,
}

/// The queues that something may be taken back from.
pub(super) struct Lenders {
    demand: Demand,
    lenders: Vec<Lender>,
    places: BTreeMap<QueueIx, Place>,
    last: Option<usize>,
    now: Timestamp,
}

impl Lenders {
    pub(super) fn new(
        state: &Scheduler,
        own: QueueIx,
        ask: &Ask,
        priority: i32,
        now: Timestamp,
    ) -> Lenders {
        let mut all = Lenders {
            demand: ask.demand.clone(),
            lenders: Vec::new(),
            places: BTreeMap::new(),
            last: None,
            now,
        };
        let queues = &state.queues;
        let limit = match queues.rules(own).map(|rules| rules.preemption.reclaim) {
            Some(Reclaim::Any) => Limit::None,
            Some(Reclaim::LowerPriority) => Limit::Below(priority),
            Some(Reclaim::Never) | None => return all,
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
            all.lenders.push(Lender {
                path,
                left: fork.left,
                right: fork.right,
                deserved: true,
                cursor: Cursor::for_others(name, limit),
                juniors: BTreeMap::new(),
                bitten: false,
                done: false,
            });
        }
        all
    }

    /// Leaves what the taker's queue deserves as a ground only where it would hold no more with all that it
    /// holds now: for who goes with juniors of his own queue as well. Those come back to whatever is idle, and
    /// whoever lost his place by that takes it back from a queue that is beyond its share then, for ever.
    pub(super) fn before_juniors_go(&mut self, queues: &Queues) {
        for lender in &mut self.lenders {
            lender.deserved = queues.within_deserved(lender.left, &self.demand, 1);
        }
    }

    /// Beyond its share, a queue loses to its equals and betters; what others deserve, to all.
    fn eligible(&self, queues: &Queues, lender: &Lender) -> bool {
        self.eligible_but_for(queues, lender, &Room::default())
    }

    /// The same, if it did not hold so much of what it holds.
    fn eligible_but_for(&self, queues: &Queues, lender: &Lender, less: &Room) -> bool {
        let priority = |at: QueueIx| queues.rules(at).map_or(0, |rules| rules.priority);
        let outranked = priority(lender.left) < priority(lender.right);
        let at = lender.right;
        (!outranked && self.above(queues, at, less, Queues::allocatable))
            || (lender.deserved
                && queues.within_deserved(lender.left, &self.demand, 1)
                && self.above(queues, at, less, Queues::deserved))
    }

    /// Does a queue hold more than it is bound to, of anything that is asked for, without so much?
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

    /// May the queue lose this gang? One that got in by an eviction itself is not lost for what juniors hold who
    /// stay: they borrow whatever is idle, and it would take back the place that it is entitled to, for ever.
    fn may_lose(&self, state: &Scheduler, lender: &Lender, gang: &GangKey) -> bool {
        let priority = state.won_at(gang);
        let juniors = priority.and_then(|priority| lender.juniors.get(&priority));
        juniors.is_none_or(|juniors| self.eligible_but_for(&state.queues, lender, juniors))
    }

    /// Is it eligible, or could it be once others are gone? Shares do not change by evictions, and
    /// nobody holds more after them.
    fn may_ever(&self, queues: &Queues, lender: &Lender) -> bool {
        let mut asked = self.demand.0.iter().filter(|(ix, _)| queues.counts(*ix));
        self.eligible(queues, lender)
            || (lender.deserved
                && asked.all(|(ix, amount)| *amount <= queues.deserved(lender.left, *ix))
                && self.above(queues, lender.right, &Room::default(), Queues::deserved))
    }

    fn goes_before(&self, a: &Lender, b: &Lender) -> bool {
        let apart = a.path.iter().zip(&b.path).find(|(a, b)| a != b);
        match apart {
            Some((a, b)) => self.places.get(a) < self.places.get(b),
            None => a.path.len() < b.path.len(),
        }
    }

    /// The lender to take from next.
    fn first(&self, queues: &Queues) -> Option<usize> {
        let mut best: Option<usize> = None;
        for (at, lender) in self.lenders.iter().enumerate() {
            if lender.done {
                continue;
            }
            let better = best.is_none_or(|best| self.goes_before(lender, &self.lenders[best]));
            if better && self.eligible(queues, lender) {
                best = Some(at);
            }
        }
        best
    }

    pub(super) fn spared_until(&self) -> Option<Timestamp> {
        let all = self.lenders.iter();
        all.filter_map(|lender| lender.cursor.spared_until).min()
    }

    pub(super) fn any(&self, queues: &Queues) -> bool {
        self.first(queues).is_some()
    }
}

/// Would this one queue be within its share with the demand?
fn within(queues: &Queues, at: QueueIx, demand: &Demand) -> bool {
    let mut asked = demand.0.iter().filter(|(ix, _)| *ix != PODS);
    asked.all(|(ix, amount)| {
        queues.allocated(at, *ix).saturating_add(*amount) <= queues.allocatable(at, *ix)
    })
}

fn place(queues: &Queues, at: QueueIx) -> Place {
    (
        queues.rules(at).map_or(0, |rules| rules.priority),
        Reverse(queues.above_share(at).is_some()),
        Reverse(queues.dominant_share(at)),
        Reverse(queues.rank(at)),
    )
}

impl Candidates for Lenders {
    fn next(&mut self, state: &mut Scheduler) -> Option<Bite> {
        let queues = &state.queues;
        if let Some(last) = self.last.take() {
            for at in &self.lenders[last].path {
                self.places.insert(*at, place(queues, *at));
            }
        }
        loop {
            let at = self.first(&state.queues)?;
            let lender = &mut self.lenders[at];
            match lender.cursor.next(state, self.now) {
                Some(mut bite) => {
                    if let Some(priority) = state.won_at(&bite.gang) {
                        // Whoever of them goes has gone.
                        let held = || state.held_below(lender.cursor.queue(), priority);
                        lender.juniors.entry(priority).or_insert_with(held);
                        if !self.may_lose(state, &self.lenders[at], &bite.gang) {
                            continue;
                        }
                    }
                    let lender = &mut self.lenders[at];
                    bite.why = EvictionReason::Reclaimed;
                    lender.bitten = true;
                    self.last = Some(at);
                    return Some(bite);
                }
                None => lender.done = true,
            }
        }
    }

    fn reach(&self, state: &Scheduler) -> Option<Reach> {
        let lenders = self.lenders.iter();
        let lenders = lenders.filter(|lender| self.may_ever(&state.queues, lender));
        let gangs = lenders.flat_map(|lender| lender.cursor.gangs(state));
        Some(Reach {
            gangs: gangs.cloned().collect(),
            own: false,
        })
    }

    fn everybody(&mut self, state: &mut Scheduler) -> Vec<Bite> {
        let mut txn = state.begin();
        let mut bites = Vec::new();
        let queues = &state.queues;
        let each = self.lenders.iter();
        let may: Vec<bool> = each.map(|lender| self.may_ever(queues, lender)).collect();
        for (lender, may) in self.lenders.iter_mut().zip(may) {
            lender.bitten = true;
            if !may {
                continue;
            }
            lender.cursor.rewind();
            // Who goes is not known yet: all that juniors hold is theirs.
            let won = lender
                .cursor
                .gangs(state)
                .filter_map(|gang| state.won_at(gang));
            let held = |priority| (priority, state.held_below(lender.cursor.queue(), priority));
            lender.juniors = won
                .collect::<BTreeSet<i32>>()
                .into_iter()
                .map(held)
                .collect();
            // Whoever is not needed is out of the way when his gang's turn comes; nobody else's
            // going makes a difference to who comes next.
            while let Some(mut bite) = lender.cursor.next(state, self.now) {
                bite.why = EvictionReason::Reclaimed;
                if bite.shrinks {
                    state.take(&mut txn, &mut bite);
                }
                bites.push(bite);
            }
        }
        state.undo(txn);
        bites
    }

    fn may_take(&self, state: &Scheduler, bite: &Bite) -> bool {
        let queue = state.gangs.get(&bite.gang).and_then(|gang| gang.payer);
        let lender = queue.and_then(|payer| {
            let mut lenders = self.lenders.iter();
            lenders.find(|lender| lender.path.last() == Some(&payer.queue))
        });
        lender.is_some_and(|lender| {
            self.eligible(&state.queues, lender) && self.may_lose(state, lender, &bite.gang)
        })
    }

    /// Where branches part above the taker's queue, its branch is within its share, or nearer to it
    /// than those that lose.
    fn admits(&self, state: &Scheduler) -> bool {
        let queues = &state.queues;
        let mut more = Room::default();
        more.add(&self.demand, 1);
        let bitten = self.lenders.iter().filter(|lender| lender.bitten);
        bitten.into_iter().all(|lender| {
            let nearer = || {
                let taker = queues.dominant_share_with(lender.left, &more);
                taker <= queues.dominant_share(lender.right)
            };
            within(queues, lender.left, &self.demand) || nearer()
        })
    }
}

impl Scheduler {
    /// The priority of a gang that got in by an eviction, or was moved.
    fn won_at(&self, gang: &GangKey) -> Option<i32> {
        let gang = self.gangs.get(gang).filter(|gang| gang.won.is_some())?;
        Some(self.priority_of(gang))
    }

    /// What a queue's gangs of lower priorities hold that could be evicted.
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

    /// Seeks room for a gang in queues that hold more than their share.
    pub(super) fn reclaim(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        now: Timestamp,
    ) -> Result<Found, Refusal> {
        let Some((gang, payer)) = self.gangs.get(key).zip(ask.payer) else {
            return Err(Refusal::at_once("it is gone"));
        };
        let (own, priority) = (payer.queue, self.priority_of(gang));
        let name = self.queues.name(own).to_owned();
        let rules = self.queues.rules(own);
        if rules.is_some_and(|rules| rules.preemption.reclaim == Reclaim::Never) {
            return Err(Refusal::at_once(format!("queue {name} reclaims nothing")));
        }
        if let Some(ix) = self.beyond_share(own, &ask.demand) {
            return Err(Refusal::at_once(format!(
                "with it queue {name} would hold more {} than its share",
                self.names.name(ix)
            )));
        }
        let mut lenders = Lenders::new(self, own, ask, priority, now);
        if !lenders.any(&self.queues) {
            return Err(Refusal::at_once(
                "no other queue holds more than its share of what it needs, and may lose it",
            ));
        }
        match self.search(key, ask, &mut lenders, now) {
            Ok(found) => Ok(found),
            Err(Vain::NotWorth) => Err(Refusal::not_worth()),
            Err(Vain::NoRoom) => Err(self.no_use(
                lenders.spared_until(),
                now,
                "evicting all that other queues hold beyond their share would not make room",
            )),
        }
    }

    /// A resource of which the queue by itself would hold more than its share.
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
