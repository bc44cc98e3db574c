//! The queues' accounts: what is held, asked for and expected, added up along the path to the
//! root as it changes.

use crate::queue::{Payer, QueueIx, Queues, ROOT, Sums};
use crate::resource::{Demand, Room};

impl Queues {
    /// Puts so many demands on the payer's account, and on those of the queues above; a negative
    /// number takes them off. Costs the depth of the tree.
    pub(crate) fn charge(&mut self, payer: Payer, demand: &Demand, times: i64) {
        let own = &mut self.table[payer.queue];
        own.own.allocated.add(demand, times);
        if payer.fixed {
            own.own.fixed.add(demand, times);
        }
        let held = own.users.entry(payer.user).or_default();
        held.add(demand, times);
        if times < 0 && held.is_zero() {
            own.users.remove(&payer.user);
        }
        if let Some(team) = payer.team {
            let held = own.teams.entry(team).or_default();
            held.add(demand, times);
            if times < 0 && held.is_zero() {
                own.teams.remove(&team);
            }
        }
        if self.stale {
            return;
        }
        let mut at = payer.queue;
        loop {
            let queue = &mut self.table[at];
            queue.sum.allocated.add(demand, times);
            if payer.fixed {
                queue.sum.fixed.add(demand, times);
            }
            let rules = queue.rules.as_ref();
            if rules.is_some_and(|rules| !rules.user_limit.is_empty()) {
                let held = queue.limited.entry(payer.user).or_default();
                held.add(demand, times);
            }
            let rules = queue.rules.as_ref();
            if let Some(team) = payer.team
                && rules.is_some_and(|rules| !rules.team_limit.is_empty())
            {
                let held = queue.limited_teams.entry(team).or_default();
                held.add(demand, times);
            }
            self.keep(at, demand);
            if at == ROOT {
                return;
            }
            at = self.table[at].parent;
        }
    }

    /// Brings what a queue keeps up to date after what it holds changed, and tells its parent.
    fn keep(&mut self, at: QueueIx, demand: &Demand) {
        for (ix, _) in &demand.0 {
            let queue = &self.table[at];
            let reserved = queue.rules.as_ref().map_or(0, |rules| rules.reserved(*ix));
            let below = queue.kept_below.get(*ix);
            if reserved == 0 && below == 0 && queue.kept.get(*ix) == 0 {
                continue;
            }
            let kept = (reserved - queue.sum.allocated.get(*ix)).max(below).max(0);
            let change = kept - queue.kept.get(*ix);
            if change == 0 {
                continue;
            }
            let parent = queue.parent;
            self.table[at].kept.set(*ix, kept);
            if at != ROOT {
                let below = self.table[parent].kept_below.get(*ix);
                self.table[parent].kept_below.set(*ix, below + change);
            }
        }
    }

    /// Puts all that a gang holds on the payer's account, or takes it off: when the gang moves.
    pub(crate) fn charge_room(&mut self, payer: Payer, room: &Room, times: i64) {
        let held = room.iter().filter(|(_, amount)| *amount != 0);
        self.charge(payer, &Demand(held.collect()), times);
    }

    /// Counts what members ask for that wait or hold room, or takes it out.
    pub(crate) fn request(&mut self, at: QueueIx, demand: &Demand, times: i64) {
        self.restless = true;
        self.along(at, |sums| sums.requested.add(demand, times));
    }

    pub(crate) fn request_room(&mut self, at: QueueIx, room: &Room, times: i64) {
        self.restless = true;
        self.along(at, |sums| sums.requested.add_room(room, times));
    }

    /// Counts what a gang said it needs that was let in and has not started, or takes it out.
    pub(crate) fn expect(&mut self, at: QueueIx, demand: &Demand, times: i64) {
        self.along(at, |sums| sums.expected.add(demand, times));
    }

    fn along(&mut self, from: QueueIx, mut change: impl FnMut(&mut Sums)) {
        change(&mut self.table[from].own);
        if self.stale {
            return;
        }
        let mut at = from;
        loop {
            change(&mut self.table[at].sum);
            if at == ROOT {
                return;
            }
            at = self.table[at].parent;
        }
    }
}
