//! Quota, borrowing and lending: how much of what it deserves a queue has left, how much it takes
//! from others beyond that, and what could be lent to it. In Kueue's words, where what a queue
//! deserves is its nominal quota, and a cohort is an inner queue that deserves what its members
//! and itself do together.

use crate::queue::rules::{Rules, WEIGHT_UNIT};
use crate::queue::share::{Share, ratio};
use crate::queue::{QueueIx, Queues, ROOT};
use crate::resource::{Demand, Ix};

impl Queues {
    /// What the queue takes out of its parent's hands: what it and all below it hold, and what is
    /// kept below it unused because it is not lent.
    pub(crate) fn held(&self, queue: QueueIx, ix: Ix) -> i64 {
        self.held_with(queue, ix, queue, 0)
    }

    /// The same with something more on the account of a queue below it (or its own). What fills a
    /// reserve that was kept anyway takes nothing more from anybody above.
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

    /// How much more of what the queue deserves is left, for use by the payer in or below it;
    /// negative where the queue borrows.
    pub(crate) fn quota_left(&self, queue: QueueIx, ix: Ix, payer: QueueIx, more: i64) -> i64 {
        self.deserved(queue, ix)
            .saturating_sub(self.held_with(queue, ix, payer, more))
    }

    /// The most the queue could ever hold: its own reserve and all that its parent can lend it,
    /// within its ceiling.
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

    /// What can be lent among the queues right below one: all it could hold but what those never
    /// lend.
    pub(crate) fn lendable(&self, queue: QueueIx, ix: Ix) -> i64 {
        let children = self.table[queue].children.iter();
        let never: i64 = children
            .map(|child| self.reserve(*child, ix))
            .fold(0, i64::saturating_add);
        self.potential(queue, ix).saturating_sub(never)
    }

    /// What a queue never lends: its own reserve, or those below it together where that is more.
    fn reserve(&self, queue: QueueIx, ix: Ix) -> i64 {
        let own = self.rules(queue).map_or(0, |rules| rules.reserved(ix));
        let children = self.table[queue].children.iter();
        let below = children.map(|child| self.reserve(*child, ix));
        own.max(below.fold(0, i64::saturating_add))
    }

    /// Fair sharing's measure: the largest part of what could be lent beside the queue that it
    /// borrows, over its weight. Nothing for a queue within what it deserves and for the root;
    /// infinite for one of weight 0 that borrows.
    pub(crate) fn borrowed_share(&self, queue: QueueIx) -> Share {
        self.borrowed_share_with(queue, queue, &Demand::default())
    }

    /// The same with a demand more on the account of a queue below it (or its own).
    pub(crate) fn borrowed_share_with(
        &self,
        queue: QueueIx,
        payer: QueueIx,
        more: &Demand,
    ) -> Share {
        if queue == ROOT {
            return Share::NONE;
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
        match self.rules(queue).map_or(0, Rules::share_weight) {
            _ if most == 0 => Share::NONE,
            ..=0 => Share::INFINITE,
            weight => Share(most * i128::from(WEIGHT_UNIT) / i128::from(weight)),
        }
    }
}
