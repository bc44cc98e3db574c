//! What of the entitlements anybody could feel. A queue that is entitled to all that it asks for
//! is in the same place however much that is: nobody in it lacks anything by right, and it holds
//! nothing beyond. So one that asks for a little more, and is entitled to it, changes nothing for
//! those who were refused before.

use crate::queue::Queues;
use crate::resource::Ix;

/// Stands for any entitlement to all that is asked for.
const ALL: i64 = i64::MAX;

impl Queues {
    /// Did the entitlements change in a way that could matter since this was last asked?
    pub(crate) fn shifted(&mut self) -> bool {
        let mut felt = Vec::with_capacity(self.felt.len());
        for at in &self.order {
            let queue = &self.table[*at];
            for ix in 0..self.pool.len() as Ix {
                let pairs = [
                    (queue.entitled.get(ix), queue.sum.requested.get(ix)),
                    (queue.own_entitled.get(ix), queue.own.requested.get(ix)),
                ];
                felt.extend(pairs.map(|(has, asks)| if has >= asks { ALL } else { has }));
            }
        }
        felt.extend(self.pool.iter().map(|(_, amount)| amount));
        let shifted = felt != self.felt;
        self.felt = felt;
        shifted
    }
}
