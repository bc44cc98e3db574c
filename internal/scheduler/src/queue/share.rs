//! Shares: a queue's allocation compared with its entitlement and its deserved amount, at any
//! level, as it is or with a demand added. Reclaim and preemption are decided by these.
//!
//! All functions read the accounts as they are. To try an eviction, the caller charges the victims
//! with a negative number, asks, and charges them back.
//!
//! | rule | function |
//! |---|---|
//! | first level where two branches differ | [`Queues::lowest_common_level`] |
//! | victim's branch above its allocatable share | [`Queues::above_share`] of [`Fork::right`] |
//! | the reclaimer's branch stays within quota | [`Queues::within_deserved`] of [`Fork::left`] |
//! | does a request fit in the quota of a subtree | [`Queues::quota_left`] along [`Queues::path`] |
//! | fair sharing: weighted share of what is borrowed, with or without the incoming gang | [`Queues::borrowed_share`], [`Queues::borrowed_share_with`] |
//! | queue order: dominant share of the entitlement | [`Queues::dominant_share`], [`Queues::dominant_share_with`] |

use crate::queue::{QueueIx, Queues, ROOT};
use crate::resource::{Demand, Ix, Room};

/// Shares are counted in these parts, so that comparisons are exact.
pub(crate) const PARTS: i128 = 1_000_000_000_000;
/// A resource that the queue has no share in counts as this many shares of the whole.
const WITHOUT_SHARE: i128 = 1000;

/// A share, in [`PARTS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueShare(pub(crate) i128);

impl QueueShare {
    /// Nothing.
    pub(crate) const NONE: QueueShare = QueueShare(0);
    /// More than any other: the share of a queue of weight 0 that borrows.
    pub(crate) const INFINITE: QueueShare = QueueShare(i128::MAX);

    /// As a floating-point number, for display.
    pub(crate) fn as_f64(self) -> f64 {
        self.0 as f64 / PARTS as f64
    }
}

/// The point where two queues' paths to the root meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fork {
    /// The lowest queue that is an ancestor of both, or is one of them.
    pub(crate) above: QueueIx,
    /// The child of `above` on the first queue's path; `above` itself if that is where the first
    /// queue's gangs are.
    pub(crate) left: QueueIx,
    /// The same on the second queue's path.
    pub(crate) right: QueueIx,
}

impl Queues {
    /// A resource of which the queue holds more than its share; `None` if it is within its share.
    pub(crate) fn above_share(&self, queue: QueueIx) -> Option<Ix> {
        self.above(queue, |ix| self.allocatable(queue, ix))
    }

    fn above(&self, queue: QueueIx, bound: impl Fn(Ix) -> i64) -> Option<Ix> {
        let held = self.table[queue].sum.allocated.iter();
        let mut held = held.filter(|(ix, _)| self.counts(*ix));
        held.find(|(ix, amount)| *amount > bound(*ix))
            .map(|(ix, _)| ix)
    }

    /// True if this one queue (not its ancestors) would hold at most its deserved amount with
    /// `times` demands added.
    pub(crate) fn within_deserved(&self, queue: QueueIx, demand: &Demand, times: i64) -> bool {
        let mut resources = demand.0.iter().filter(|(ix, _)| self.counts(*ix));
        resources.all(|(ix, each)| {
            let with = self
                .allocated(queue, *ix)
                .saturating_add(each.saturating_mul(times));
            with <= self.deserved(queue, *ix)
        })
    }

    /// The queue's `deserved` amount, or its guarantee if that is more. The root deserves all
    /// capacity.
    pub(crate) fn deserved(&self, queue: QueueIx, ix: Ix) -> i64 {
        if queue == ROOT {
            return self.pool.get(ix);
        }
        self.rules(queue)
            .map_or(0, |rules| rules.entitled_first(ix))
    }

    /// The point where two queues' paths part. KAI and Kueue compare the two children of the lowest
    /// common ancestor.
    pub(crate) fn lowest_common_level(&self, a: QueueIx, b: QueueIx) -> Fork {
        let down = |from: QueueIx| {
            let mut path: Vec<QueueIx> = self.path(from).collect();
            path.reverse();
            path
        };
        let (left, right) = (down(a), down(b));
        let common = left.iter().zip(&right).take_while(|(a, b)| a == b).count();
        let above = left[common - 1];
        let below = |path: &[QueueIx]| path.get(common).copied().unwrap_or(above);
        Fork {
            above,
            left: below(&left),
            right: below(&right),
        }
    }

    /// True if `inner` is the queue itself or below it.
    pub(crate) fn holds(&self, queue: QueueIx, inner: QueueIx) -> bool {
        self.path(inner).any(|at| at == queue)
    }

    /// The dominant share: over all resources, the largest ratio of what the queue holds to its
    /// allocatable share.
    pub(crate) fn dominant_share(&self, queue: QueueIx) -> QueueShare {
        self.dominant_share_with(queue, &Room::default())
    }

    /// Like `dominant_share`, with `more` added to the queue's account.
    pub(crate) fn dominant_share_with(&self, queue: QueueIx, more: &Room) -> QueueShare {
        let held = &self.table[queue].sum.allocated;
        self.dominant(held, more, |ix| self.allocatable(queue, ix))
            .0
    }

    /// The largest ratio of held plus added amounts to the share, and whether some amount is of a
    /// resource that the queue has no share in.
    pub(super) fn dominant(
        &self,
        held: &Room,
        more: &Room,
        share: impl Fn(Ix) -> i64,
    ) -> (QueueShare, bool) {
        let (mut most, mut beyond) = (0, false);
        let resources = held.len().max(more.len());
        for ix in (0..resources).map(|ix| ix as Ix) {
            let all = self.pool.get(ix);
            let with = held.get(ix).saturating_add(more.get(ix));
            if with <= 0 || !self.counts(ix) {
                continue;
            }
            let own = share(ix).min(all);
            let part = if own > 0 {
                ratio(with, own)
            } else {
                beyond = true;
                ratio(with, all).saturating_mul(WITHOUT_SHARE)
            };
            most = most.max(part);
        }
        (QueueShare(most), beyond)
    }

    /// The largest part of the total capacity that the queue holds, and of which resource.
    pub(crate) fn cluster_share(&self, queue: QueueIx) -> (QueueShare, Option<Ix>) {
        let held = self.table[queue].sum.allocated.iter();
        let parts = held
            .filter(|(ix, amount)| self.counts(*ix) && *amount > 0)
            .map(|(ix, amount)| (QueueShare(ratio(amount, self.pool.get(ix))), Some(ix)));
        parts
            .max_by_key(|(share, _)| *share)
            .unwrap_or((QueueShare::NONE, None))
    }
}

pub(super) fn ratio(part: i64, whole: i64) -> i128 {
    i128::from(part) * PARTS / i128::from(whole)
}
