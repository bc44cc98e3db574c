//! Preemption within one queue: a gang evicts gangs of lower priority, or, where the queue's rules
//! say so, also younger gangs of the same priority. Candidates come in the order of module
//! `candidates`. Where reclaim alone does not make room, `reclaim_and_preempt` takes from other
//! queues first and then from the own queue.
//!
//! Tests: `tests/evictions.rs` by table, `tests/evictions_properties.rs` by property.

use jiff::Timestamp;

use super::NoEvictions;
use super::candidates::{CandidateScope, Cursor, EvictionUnit};
use super::loss_bound::EvictableGangs;
use super::reclaim::VictimQueues;
use super::search::{Candidates, MinimumDemand, NoVictims, VictimSet};
use crate::gang::GangKey;
use crate::queue::{QueueIx, ROOT};
use crate::resource::{Demand, Ix, PODS};
use crate::state::Scheduler;

/// The gangs of the preemptor's queue that rank below it.
struct LowerRanked {
    cursor: Cursor,
    now: Timestamp,
    demand: Demand,
    /// The queues from the preemptor's queue up to the root, and what each held of the requested
    /// resources before the search.
    held: Vec<(QueueIx, Vec<(Ix, i64)>)>,
}

impl Candidates for LowerRanked {
    fn next(&mut self, state: &mut Scheduler) -> Option<EvictionUnit> {
        self.cursor.next(state, self.now)
    }

    /// A queue above its share must not grow by evictions: it borrows from idle resources, and
    /// other queues would reclaim the growth.
    fn reach(&self, state: &Scheduler) -> Option<EvictableGangs> {
        Some(EvictableGangs {
            gangs: self.cursor.gangs(state).cloned().collect(),
            own: true,
        })
    }

    fn admits(&self, state: &Scheduler) -> bool {
        let queues = &state.queues;
        self.held.iter().all(|(at, held)| {
            held.iter().all(|(ix, before)| {
                let with = queues
                    .allocated(*at, *ix)
                    .saturating_add(self.demand.get(*ix));
                with <= *before || with <= queues.allocatable(*at, *ix)
            })
        })
    }
}

/// First the victims of other queues, then the lower-ranked gangs of the own queue.
struct Both {
    victim_queues: VictimQueues,
    lower_ranked: LowerRanked,
}

impl Candidates for Both {
    fn next(&mut self, state: &mut Scheduler) -> Option<EvictionUnit> {
        let unit = self.victim_queues.next(state);
        unit.or_else(|| self.lower_ranked.next(state))
    }

    fn reach(&self, state: &Scheduler) -> Option<EvictableGangs> {
        let (mut all, lower_ranked) = (
            self.victim_queues.reach(state)?,
            self.lower_ranked.reach(state)?,
        );
        all.gangs.extend(lower_ranked.gangs);
        all.own = true;
        Some(all)
    }

    fn admits(&self, state: &Scheduler) -> bool {
        self.victim_queues.admits(state) && self.lower_ranked.admits(state)
    }
}

impl Scheduler {
    /// Searches victims for a gang among the lower-ranked gangs of its own queue.
    pub(super) fn preempt(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        now: Timestamp,
    ) -> Result<VictimSet, NoEvictions> {
        let (mut lower_ranked, queue) = self.own_lower_ranked(key, ask, now)?;
        match self.search(key, ask, &mut lower_ranked, now) {
            Ok(found) => Ok(found),
            Err(NoVictims::NotWorth) => Err(NoEvictions::not_worth()),
            Err(NoVictims::NoRoom) => Err(self.no_use(
                lower_ranked.cursor.spared_until,
                now,
                &format!(
                    "evicting every gang that it may preempt in queue {queue} would not make room"
                ),
            )),
        }
    }

    /// Searches victims in other queues and in the own queue together.
    pub(super) fn reclaim_and_preempt(
        &mut self,
        key: &GangKey,
        ask: &MinimumDemand,
        now: Timestamp,
    ) -> Result<VictimSet, NoEvictions> {
        let none = || NoEvictions::at_once("");
        let Ok((lower_ranked, _)) = self.own_lower_ranked(key, ask, now) else {
            return Err(none());
        };
        let Some((gang, payer)) = self.gangs.get(key).zip(ask.payer) else {
            return Err(none());
        };
        let mut victim_queues =
            VictimQueues::new(self, payer.queue, ask, self.priority_of(gang), now);
        victim_queues.limit_deserved_ground(&self.queues);
        self.search(
            key,
            ask,
            &mut Both {
                victim_queues,
                lower_ranked,
            },
            now,
        )
        .map_err(|vain| match vain {
            NoVictims::NotWorth => NoEvictions::not_worth(),
            NoVictims::NoRoom => none(),
        })
    }

    /// Whether a search in other queues and the own queue begins with the victims that reclaim
    /// found, and needs no more. That is so while the own queue's bounds hold without evicting any
    /// of its own gangs.
    pub(super) fn begins_as_reclaim(
        &self,
        key: &GangKey,
        ask: &MinimumDemand,
        now: Timestamp,
    ) -> bool {
        let lower_ranked = self.own_lower_ranked(key, ask, now);
        lower_ranked.is_ok_and(|(lower_ranked, _)| lower_ranked.admits(self))
    }

    fn own_lower_ranked(
        &self,
        key: &GangKey,
        ask: &MinimumDemand,
        now: Timestamp,
    ) -> Result<(LowerRanked, String), NoEvictions> {
        let Some(gang) = self.gangs.get(key) else {
            return Err(NoEvictions::at_once("the gang no longer exists"));
        };
        let queue = gang.queue.clone();
        let limit = self.preemption_limit(key, gang);
        let mut lower_ranked = LowerRanked {
            cursor: Cursor::new(&queue, limit),
            now,
            demand: ask.demand.clone(),
            held: self.held_on_the_way(ask),
        };
        if limit == CandidateScope::NoGang {
            return Err(NoEvictions::at_once(format!(
                "queue {queue} forbids preemption between its gangs"
            )));
        }
        if lower_ranked.cursor.next(self, now).is_none() {
            let until = lower_ranked.cursor.spared_until;
            let why = format!("queue {queue} has no running gang that it may preempt");
            return Err(match until {
                Some(then) => NoEvictions {
                    why: format!("{why} before {then}"),
                    searched: true,
                    again: until,
                    not_worth: false,
                },
                None => NoEvictions::at_once(why),
            });
        }
        lower_ranked.cursor.rewind();
        Ok((lower_ranked, queue))
    }

    fn held_on_the_way(&self, ask: &MinimumDemand) -> Vec<(QueueIx, Vec<(Ix, i64)>)> {
        let own = ask.payer.map_or(ROOT, |payer| payer.queue);
        let way = self.queues.path(own).filter(|at| *at != ROOT);
        way.map(|at| {
            let asked = ask.demand.0.iter().filter(|(ix, _)| *ix != PODS);
            let held = asked.map(|(ix, _)| (*ix, self.queues.allocated(at, *ix)));
            (at, held.collect())
        })
        .collect()
    }

    /// A search that found no victims; it is repeated once the first protected gang may be evicted.
    pub(super) fn no_use(
        &mut self,
        spared_until: Option<Timestamp>,
        now: Timestamp,
        why: &str,
    ) -> NoEvictions {
        let mut why = why.to_owned();
        let again = spared_until.filter(|then| *then > now);
        if let Some(then) = again {
            why.push_str(&format!(
                " before {then}, when the protection of further gangs ends"
            ));
        }
        NoEvictions {
            why,
            searched: true,
            again,
            not_worth: false,
        }
    }
}
