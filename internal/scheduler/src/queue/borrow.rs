//! Quota, borrowing and lending: how much of its deserved amount a queue has left, how much it
//! borrows, and what could be lent to it.
//!
//! Terms as in Kueue: a queue's deserved amount is its nominal quota; an inner queue is a cohort,
//! whose deserved amount covers its own gangs and all its members.
//!
//! Example: a queue that deserves 4 GPUs and holds 6 borrows 2; a sibling that deserves 8 and lends
//! at most 5 keeps 3 reserved even while idle.
//!
//! Tests: `queue/tests.rs`; Kueue's cases in `tests/conformance/preemption.rs`.

use crate::queue::rules::{QueueRules, WEIGHT_UNIT};
use crate::queue::share::{QueueShare, ratio};
use crate::queue::{QueueIx, Queues, ROOT};
use crate::resource::{Demand, Ix};

impl Queues {
    /// What the queue takes from its parent: what it and all queues below it hold, and what is
    /// reserved below it and not lent.
    pub(crate) fn held(&self, queue: QueueIx, ix: Ix) -> i64 {
        self.held_with(queue, ix, queue, 0)
    }

    /// Like `held`, with `more` charged to the queue or one below it. An amount that fills a
    /// reservation takes nothing more from the queues above.
    pub(crate) fn held_with(&self, queue: QueueIx, ix: Ix, payer: QueueIx, more: i64) -> i64 {
        let mut at = payer;
        let mut filled = 0;
        while at != queue && at != ROOT {
            let node = &self.table[at];
            let reserved = node.rules.as_ref().map_or(0, |rules| rules.reserved(ix));
            let unmet = reserved - node.sum.allocated.get(ix) - more;
            let kept = unmet.max(node.kept_below.get(ix) + filled).max(0);
            filled = kept - node.kept.get(ix);
            at = node.parent;
        }
        let node = &self.table[queue];
        node.sum.allocated.get(ix) + node.kept_below.get(ix) + more + filled
    }

    /// How much of the queue's deserved amount is left for the payer in or below it; negative if
    /// the queue borrows.
    pub(crate) fn quota_left(&self, queue: QueueIx, ix: Ix, payer: QueueIx, more: i64) -> i64 {
        self.deserved(queue, ix)
            .saturating_sub(self.held_with(queue, ix, payer, more))
    }

    /// The most that the queue could ever hold: its own reservation and all that its parent can
    /// lend, up to its ceiling.
    pub(crate) fn potential(&self, queue: QueueIx, ix: Ix) -> i64 {
        let ceiling = self.rules(queue).and_then(|rules| rules.ceiling(ix));
        let all = if queue == ROOT {
            self.pool.get(ix)
        } else {
            let lent = self.lendable(self.table[queue].parent, ix);
            lent.saturating_add(self.reserve(queue, ix))
        };
        all.min(ceiling.unwrap_or(i64::MAX))
    }

    /// What can be lent among the children of a queue: all it could hold except what they never
    /// lend.
    pub(crate) fn lendable(&self, queue: QueueIx, ix: Ix) -> i64 {
        let children = self.table[queue].children.iter();
        let never: i64 = children
            .map(|child| self.reserve(*child, ix))
            .fold(0, i64::saturating_add);
        self.potential(queue, ix).saturating_sub(never)
    }

    /// What a queue never lends: its own reservation, or the sum of those below it if that is more.
    fn reserve(&self, queue: QueueIx, ix: Ix) -> i64 {
        let own = self.rules(queue).map_or(0, |rules| rules.reserved(ix));
        let children = self.table[queue].children.iter();
        let below = children.map(|child| self.reserve(*child, ix));
        own.max(below.fold(0, i64::saturating_add))
    }

    /// Fair sharing's weighted share: over all resources, the largest ratio of what the queue
    /// borrows to what can be lent at its level, divided by its weight. Zero for the root and for a
    /// queue that does not borrow; infinite for a queue of weight 0 that borrows.
    pub(crate) fn borrowed_share(&self, queue: QueueIx) -> QueueShare {
        self.borrowed_share_with(queue, queue, &Demand::default())
    }

    /// Like `borrowed_share`, with a demand more charged to the queue or one below it.
    pub(crate) fn borrowed_share_with(
        &self,
        queue: QueueIx,
        payer: QueueIx,
        more: &Demand,
    ) -> QueueShare {
        if queue == ROOT {
            return QueueShare::NONE;
        }
        let node = &self.table[queue];
        let asked = more.0.iter().map(|(ix, _)| usize::from(*ix) + 1).max();
        let resources = node.sum.allocated.len().max(asked.unwrap_or(0));
        let mut most = 0;
        for ix in (0..resources).map(|ix| ix as Ix) {
            if !self.counts(ix) {
                continue;
            }
            let borrowed = -self.quota_left(queue, ix, payer, more.get(ix));
            let lendable = self.lendable(node.parent, ix);
            if borrowed > 0 && lendable > 0 {
                most = most.max(ratio(borrowed, lendable));
            }
        }
        match self.rules(queue).map_or(0, QueueRules::share_weight) {
            _ if most == 0 => QueueShare::NONE,
            ..=0 => QueueShare::INFINITE,
            weight => QueueShare(most * i128::from(WEIGHT_UNIT) / i128::from(weight)),
        }
    }
}
