//! Which queues' entitlements changed by enough to alter an ordering decision.
//!
//! A queue that is entitled to all it requests is in the same position whatever that amount is: it
//! lacks nothing and holds nothing beyond its share. So if such a queue requests a little more and
//! is entitled to it, no earlier refusal of another queue can change, and searches for evictions
//! need not be repeated. Costs queues times resources.

use crate::queue::Queues;
use crate::resource::Ix;

/// Stands for an entitlement to everything that is requested.
const ALL: i64 = i64::MAX;

impl Queues {
    /// True if the entitlements changed, since the last call, in a way that can alter a decision.
    pub(crate) fn shifted(&mut self) -> bool {
        let mut last_entitlements = Vec::with_capacity(self.last_entitlements.len());
        for at in &self.order {
            let queue = &self.table[*at];
            for ix in 0..self.pool.len() as Ix {
                let pairs = [
                    (queue.entitled.get(ix), queue.sum.requested.get(ix)),
                    (queue.own_entitled.get(ix), queue.own.requested.get(ix)),
                ];
                last_entitlements
                    .extend(pairs.map(|(has, asks)| if has >= asks { ALL } else { has }));
            }
        }
        last_entitlements.extend(self.pool.iter().map(|(_, amount)| amount));
        let shifted = last_entitlements != self.last_entitlements;
        self.last_entitlements = last_entitlements;
        shifted
    }
}
