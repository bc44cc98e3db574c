//! Entitlements (fair shares): total capacity, divided level by level and resource by resource
//! among the queues that request it.
//!
//! Method: requests and reservations are summed from the leaves up; then capacity is divided from
//! the root down, at each level by `portion`. Recomputed only if requests, capacity or the tree
//! changed.
//!
//! Cost: queues times requested resources.
//!
//! Example: 8 GPUs and queues of weight 1 and 3 that request 8 each: entitlements 2 and 6.
//!
//! Tests: `queue/tests.rs`, `tests/queues_properties.rs`.

use crate::queue::portion::{ShareClaim, share_out};
use crate::queue::rules::WEIGHT_UNIT;
use crate::queue::share::{QueueShare, ratio};
use crate::queue::{Admission, QueueIx, Queues, ROOT};
use crate::resource::{Ix, PODS, Room, unit};

impl Queues {
    /// Updates the tree, and the entitlements if something changed. The capacity to share is the
    /// total minus what pods of other schedulers use.
    pub(crate) fn update_entitlements(&mut self, total: &Room, used: &Room) {
        self.relink();
        let pool = self.to_share(total, used);
        if pool == self.pool && !self.requests_changed {
            return;
        }
        self.requests_changed = false;
        self.pool = pool;
        for queue in &mut self.table {
            queue.entitled = Room::default();
            queue.own_entitled = Room::default();
            queue.promised = Room::default();
        }
        let asked = self.table[ROOT].sum.requested.iter();
        let resources: Vec<Ix> = asked
            .filter(|(_, amount)| *amount > 0)
            .map(|(ix, _)| ix)
            .collect();
        for ix in resources {
            self.divide(ix);
        }
        for at in 0..self.table.len() {
            self.table[at].size = self.size(at);
        }
    }

    /// True if `update_entitlements` would change nothing.
    pub(super) fn settled(&self, total: &Room, used: &Room) -> bool {
        !self.stale && !self.requests_changed && self.pool == self.to_share(total, used)
    }

    fn to_share(&self, total: &Room, used: &Room) -> Room {
        let mut pool = Room::default();
        for (ix, all) in total.iter() {
            let foreign = used.get(ix) - self.allocated(ROOT, ix);
            pool.set(ix, (all - foreign.max(0)).max(0));
        }
        pool
    }

    fn divide(&mut self, ix: Ix) {
        let mut wants = vec![0; self.table.len()];
        let mut reserved = vec![0; self.table.len()];
        for at in self.order.iter().rev().copied() {
            let queue = &self.table[at];
            let below = |list: &[i64]| -> i64 {
                let children = queue.children.iter().map(|child| list[*child]);
                children.fold(0, i64::saturating_add)
            };
            let ceiling = self.rules(at).and_then(|rules| rules.ceiling(ix));
            let all = below(&wants).saturating_add(self.own_request(at, ix));
            wants[at] = all.min(ceiling.unwrap_or(i64::MAX));
            let own = queue.rules.as_ref().map_or(0, |rules| rules.reserved(ix));
            reserved[at] = own.max(below(&reserved));
        }
        let memory = self.memory(ix);
        let ceiling = self.rules(ROOT).and_then(|rules| rules.ceiling(ix));
        let pool = self.pool.get(ix).min(ceiling.unwrap_or(i64::MAX));
        self.table[ROOT].entitled.set(ix, pool);
        for step in 0..self.order.len() {
            let at = self.order[step];
            let pool = self.table[at].entitled.get(ix);
            let own = self.own_claim(at, ix);
            if self.table[at].children.is_empty() {
                // A queue without children gets what it requests, up to the pool.
                self.table[at]
                    .own_entitled
                    .set(ix, own.wants.min(pool).max(0));
                continue;
            }
            let promised = self.promise(at, ix, wants[at]);
            let mut claims: Vec<ShareClaim> = self.table[at]
                .children
                .iter()
                .map(|child| self.claim(*child, ix, wants[*child], reserved[*child]))
                .collect();
            claims.push(own);
            let quotas = promised > pool && !self.table[at].children.is_empty();
            let asked = if quotas { claims.clone() } else { Vec::new() };
            share_out(pool, unit(self.gpus, ix), &mut claims, memory);
            let own = claims.pop().map_or(0, |claim| claim.got);
            self.table[at].own_entitled.set(ix, own);
            let children = self.table[at].children.clone();
            for (child, claim) in children.iter().zip(&claims) {
                self.table[*child].entitled.set(ix, claim.got);
            }
            if quotas {
                let mut claims = asked;
                share_out(promised, unit(self.gpus, ix), &mut claims, memory);
                for (child, claim) in children.into_iter().zip(claims) {
                    self.table[child].promised.set(ix, claim.got);
                }
            }
        }
    }

    /// What a queue's children divide if quotas exceed capacity: the part of its deserved amount
    /// that is requested, or what it was promised itself.
    fn promise(&self, at: QueueIx, ix: Ix, wants: i64) -> i64 {
        let queue = &self.table[at];
        let entitled = queue.entitled.get(ix);
        let Some(rules) = self.rules(at).filter(|_| at != ROOT) else {
            return entitled;
        };
        let deserved = rules.entitled_first(ix).min(wants).min(self.pool.get(ix));
        deserved.max(queue.promised.get(ix)).max(entitled)
    }

    /// What the gangs in the queue itself request. A closed queue requests only what it holds; a
    /// queue without a Queue object requests nothing.
    fn own_request(&self, at: QueueIx, ix: Ix) -> i64 {
        let own = &self.table[at].own;
        match self.rules(at) {
            Some(rules) if rules.admission == Admission::Open => own.requested.get(ix),
            Some(_) => own.allocated.get(ix),
            None if at == ROOT => own.allocated.get(ix),
            None => 0,
        }
    }

    fn own_claim(&self, at: QueueIx, ix: Ix) -> ShareClaim {
        ShareClaim {
            wants: self.own_request(at, ix),
            weight: WEIGHT_UNIT,
            rank: usize::MAX,
            ..ShareClaim::default()
        }
    }

    fn claim(&self, at: QueueIx, ix: Ix, wants: i64, reserved: i64) -> ShareClaim {
        let queue = &self.table[at];
        let Some(rules) = self.rules(at) else {
            return ShareClaim::default();
        };
        ShareClaim {
            wants,
            reserved,
            deserved: rules.entitled_first(ix).max(reserved),
            weight: rules.surplus_weight(ix),
            priority: rules.priority,
            usage: queue.usage.get(ix),
            rank: queue.rank,
            got: 0,
        }
    }

    /// The queue's entitlement. The entitlements of one level never add up to more than the
    /// capacity.
    pub(crate) fn entitled(&self, at: QueueIx, ix: Ix) -> i64 {
        self.table[at].entitled.get(ix)
    }

    /// What a queue may hold without exceeding its share: its entitlement, or its deserved amount,
    /// or its part of its parent's deserved amount, whichever is more (quotas may add up to more
    /// than the capacity), up to its ceiling.
    pub(crate) fn allocatable(&self, at: QueueIx, ix: Ix) -> i64 {
        let Some(rules) = self.rules(at) else {
            return 0;
        };
        let promised = self.table[at].promised.get(ix);
        let share = self
            .entitled(at, ix)
            .max(promised)
            .max(rules.entitled_first(ix));
        share.min(rules.ceiling(ix).unwrap_or(i64::MAX))
    }

    fn size(&self, at: QueueIx) -> QueueShare {
        let resources = (0..self.pool.len()).map(|ix| ix as Ix);
        let parts = resources.filter(|ix| self.counts(*ix)).map(|ix| {
            let all = self.pool.get(ix);
            ratio(self.allocatable(at, ix).min(all), all)
        });
        QueueShare(parts.sum())
    }

    /// True if the resource counts in shares. The number of pods does not.
    pub(crate) fn counts(&self, ix: Ix) -> bool {
        ix != PODS && self.pool.get(ix) > 0
    }
}
