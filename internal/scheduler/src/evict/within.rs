//! Preemption inside one queue: from gangs of lower priority, or, where the queue says so, of the
//! same priority and younger.

use jiff::Timestamp;

use super::Refusal;
use super::candidates::{Bite, Cursor};
use super::search::{Ask, Candidates, Found};
use crate::gang::GangKey;
use crate::state::Scheduler;

/// One queue's gangs that come after the one that wants room.
struct Juniors {
    cursor: Cursor,
    now: Timestamp,
}

impl Candidates for Juniors {
    fn next(&mut self, state: &mut Scheduler) -> Option<Bite> {
        self.cursor.next(state, self.now)
    }

    fn holds(&self, _: &mut Scheduler) -> bool {
        true
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
        let Some(gang) = self.gangs.get(key) else {
            return Err(Refusal::at_once("it is gone"));
        };
        let priority = self.priority_of(gang);
        let queue = gang.queue.clone();
        let mut end = self.victim_key(key, gang);
        end.to_first_of(priority);
        let mut juniors = Juniors {
            cursor: Cursor::new(&queue, Some(end)),
            now,
        };
        let some = self
            .victims
            .get(&queue)
            .and_then(|gangs| gangs.first())
            .is_some_and(|first| first.priority < priority);
        if !some {
            return Err(Refusal::at_once(format!(
                "nothing in queue {queue} has a lower priority than {priority} and may be evicted"
            )));
        }
        match self.search(key, ask, &mut juniors, now) {
            Some(found) => Ok(found),
            None => Err(self.no_use(
                juniors.cursor.spared_until,
                now,
                &format!("evicting all of lower priority in queue {queue} would not make room"),
            )),
        }
    }

    /// A search that came to nothing; looked at again when somebody's minimum runtime is over.
    pub(super) fn no_use(
        &mut self,
        spared_until: Option<Timestamp>,
        now: Timestamp,
        why: &str,
    ) -> Refusal {
        let mut why = why.to_owned();
        if let Some(then) = spared_until.filter(|then| *then > now) {
            self.wake = Some(self.wake.map_or(then, |wake| wake.min(then)));
            self.version += 1;
            why.push_str(&format!(", before the minimum runtime of others is over at {then}"));
        }
        Refusal {
            why,
            searched: true,
        }
    }
}
