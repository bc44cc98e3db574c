//! Preemption inside one queue: from gangs of lower priority, or, where the queue says so, of the
//! same priority and younger.

use jiff::Timestamp;

use super::Refusal;
use super::across::Lenders;
use super::bound::Reach;
use super::candidates::{Bite, Cursor, Limit};
use super::search::{Ask, Candidates, Found, Vain};
use crate::gang::GangKey;
use crate::queue::{QueueIx, ROOT};
use crate::resource::{Demand, Ix, PODS};
use crate::state::Scheduler;

/// One queue's gangs that come after the one that wants room.
struct Juniors {
    cursor: Cursor,
    now: Timestamp,
    demand: Demand,
    /// The queues on the way to the root, and what each held of what is asked for.
    held: Vec<(QueueIx, Vec<(Ix, i64)>)>,
}

impl Candidates for Juniors {
    fn next(&mut self, state: &mut Scheduler) -> Option<Bite> {
        self.cursor.next(state, self.now)
    }

    /// A queue beyond its share must not grow by evictions: what it borrows it has from what is
    /// idle, and others would take it back.
    fn reach(&self, state: &Scheduler) -> Option<Reach> {
        Some(Reach {
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

/// First what other queues owe, then the own queue's juniors.
struct Both {
    lenders: Lenders,
    juniors: Juniors,
}

impl Candidates for Both {
    fn next(&mut self, state: &mut Scheduler) -> Option<Bite> {
        let bite = self.lenders.next(state);
        bite.or_else(|| self.juniors.next(state))
    }

    fn reach(&self, state: &Scheduler) -> Option<Reach> {
        let (mut all, juniors) = (self.lenders.reach(state)?, self.juniors.reach(state)?);
        all.gangs.extend(juniors.gangs);
        all.own = true;
        Some(all)
    }

    fn admits(&self, state: &Scheduler) -> bool {
        self.lenders.admits(state) && self.juniors.admits(state)
    }
}

impl Scheduler {
    /// Seeks room for a gang among its own queue's juniors.
    pub(super) fn preempt(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        now: Timestamp,
    ) -> Result<Found, Refusal> {
        let (mut juniors, queue) = self.own_juniors(key, ask, now)?;
        match self.search(key, ask, &mut juniors, now) {
            Ok(found) => Ok(found),
            Err(Vain::NotWorth) => Err(Refusal::not_worth()),
            Err(Vain::NoRoom) => Err(self.no_use(
                juniors.cursor.spared_until,
                now,
                &format!("evicting all that it goes before in queue {queue} would not make room"),
            )),
        }
    }

    /// Seeks room in other queues and its own together.
    pub(super) fn reclaim_and_preempt(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        now: Timestamp,
    ) -> Result<Found, Refusal> {
        let none = || Refusal::at_once("");
        let Ok((juniors, _)) = self.own_juniors(key, ask, now) else {
            return Err(none());
        };
        let Some((gang, payer)) = self.gangs.get(key).zip(ask.payer) else {
            return Err(none());
        };
        let mut lenders = Lenders::new(self, payer.queue, ask, self.priority_of(gang), now);
        lenders.before_juniors_go(&self.queues);
        self.search(key, ask, &mut Both { lenders, juniors }, now)
            .map_err(|vain| match vain {
                Vain::NotWorth => Refusal::not_worth(),
                Vain::NoRoom => none(),
            })
    }

    /// Is whoever reclaim takes also who goes first where juniors would go after them, and does that
    /// suffice? It does while the own queue's bounds hold without any of the juniors.
    pub(super) fn begins_as_reclaim(&self, key: &GangKey, ask: &Ask, now: Timestamp) -> bool {
        let juniors = self.own_juniors(key, ask, now);
        juniors.is_ok_and(|(juniors, _)| juniors.admits(self))
    }

    fn own_juniors(
        &self,
        key: &GangKey,
        ask: &Ask,
        now: Timestamp,
    ) -> Result<(Juniors, String), Refusal> {
        let Some(gang) = self.gangs.get(key) else {
            return Err(Refusal::at_once("it is gone"));
        };
        let queue = gang.queue.clone();
        let limit = self.juniors(key, gang);
        let mut juniors = Juniors {
            cursor: Cursor::new(&queue, limit),
            now,
            demand: ask.demand.clone(),
            held: self.held_on_the_way(ask),
        };
        if limit == Limit::Nobody {
            return Err(Refusal::at_once(format!(
                "gangs of queue {queue} do not evict each other"
            )));
        }
        if juniors.cursor.next(self, now).is_none() {
            let until = juniors.cursor.spared_until;
            let why = format!("it goes before nobody in queue {queue} who may be evicted");
            return Err(match until {
                Some(then) => Refusal {
                    why: format!("{why} before {then}"),
                    searched: true,
                    again: until,
                    not_worth: false,
                },
                None => Refusal::at_once(why),
            });
        }
        juniors.cursor.rewind();
        Ok((juniors, queue))
    }

    fn held_on_the_way(&self, ask: &Ask) -> Vec<(QueueIx, Vec<(Ix, i64)>)> {
        let own = ask.payer.map_or(ROOT, |payer| payer.queue);
        let way = self.queues.path(own).filter(|at| *at != ROOT);
        way.map(|at| {
            let asked = ask.demand.0.iter().filter(|(ix, _)| *ix != PODS);
            let held = asked.map(|(ix, _)| (*ix, self.queues.allocated(at, *ix)));
            (at, held.collect())
        })
        .collect()
    }

    /// A search that came to nothing; looked at again when somebody may be evicted who is spared now.
    pub(super) fn no_use(
        &mut self,
        spared_until: Option<Timestamp>,
        now: Timestamp,
        why: &str,
    ) -> Refusal {
        let mut why = why.to_owned();
        let again = spared_until.filter(|then| *then > now);
        if let Some(then) = again {
            why.push_str(&format!(" before {then}, until when others are spared"));
        }
        Refusal {
            why,
            searched: true,
            again,
            not_worth: false,
        }
    }
}
