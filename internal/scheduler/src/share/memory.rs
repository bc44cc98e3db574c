//! What pods that ask for a GPU's memory count as when nodes come, go or change: a part of their
//! node's GPUs, or, while they have no node, the largest part that it would be on any.

use crate::node::NodeIx;
use crate::node::Offer;
use crate::pod::PodKey;
use crate::state::Scheduler;

impl Scheduler {
    /// Takes pods off all accounts that count as something else once a node's offer is another.
    /// They come back with `recount`.
    pub(crate) fn uncount(&mut self, at: NodeIx, offer: Option<&Offer>) -> Vec<PodKey> {
        let old = self.nodes[at].gpu_memory();
        let new = offer.and_then(|offer| offer.gpu_memory);
        if old == new {
            return Vec::new();
        }
        let least = self.classes.least_memory();
        if let Some(old) = old
            && let Some(nodes) = self.memories.get_mut(&old)
        {
            *nodes -= 1;
            if *nodes == 0 {
                self.memories.remove(&old);
            }
        }
        if let Some(new) = new {
            *self.memories.entry(new).or_insert(0) += 1;
        }
        let now = self.memories.keys().next().copied();
        let changed = |key: &&PodKey| {
            self.pods.get(*key).is_some_and(|pod| match pod.node {
                Some(on) => on == at,
                None => least != now,
            })
        };
        let keys: Vec<PodKey> = self.by_memory.iter().filter(changed).cloned().collect();
        for key in &keys {
            self.count_again(key, false);
        }
        self.classes.set_least_memory(now);
        keys
    }

    /// Puts them back on all accounts.
    pub(crate) fn recount(&mut self, keys: Vec<PodKey>) {
        for key in &keys {
            self.count_again(key, true);
        }
        for key in keys {
            if let Some(gang) = self.pods.get(&key).map(|pod| pod.gang.clone()) {
                self.settle(&gang);
            }
        }
    }

    fn count_again(&mut self, key: &PodKey, up: bool) {
        if let Some(pod) = self.pods.get(key).cloned() {
            self.account(key, &pod, up);
        }
    }
}
