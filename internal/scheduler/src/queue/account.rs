//! The queues' accounts: what gangs hold (allocated), request and expect. Each change is added
//! along the path to the root.

use crate::queue::{GangSums, Payer, QueueIx, Queues, ROOT};
use crate::resource::{Demand, Room};

impl Queues {
    /// Charges `times` demands to the payer's queue and to all queues above it; a negative number
    /// releases them. Costs the depth of the tree.
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

    /// Updates what a queue keeps reserved after its allocation changed, and the sum in its parent.
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

    /// Charges, or releases, all that a gang holds: used when the gang moves to another account.
    pub(crate) fn charge_room(&mut self, payer: Payer, room: &Room, times: i64) {
        let held = room.iter().filter(|(_, amount)| *amount != 0);
        self.charge(payer, &Demand(held.collect()), times);
    }

    /// Adds (or removes) what members request that wait or hold capacity.
    pub(crate) fn request(&mut self, at: QueueIx, demand: &Demand, times: i64) {
        self.requests_changed = true;
        self.along(at, |sums| sums.requested.add(demand, times));
    }

    pub(crate) fn request_room(&mut self, at: QueueIx, room: &Room, times: i64) {
        self.requests_changed = true;
        self.along(at, |sums| sums.requested.add_room(room, times));
    }

    /// Adds (or removes) the `minResources` of a gang that is admitted and has not started.
    pub(crate) fn expect(&mut self, at: QueueIx, demand: &Demand, times: i64) {
        self.along(at, |sums| sums.expected.add(demand, times));
    }

    fn along(&mut self, from: QueueIx, mut change: impl FnMut(&mut GangSums)) {
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
