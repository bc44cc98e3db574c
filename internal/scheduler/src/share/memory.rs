//! What pods count as when nodes come, go or change. Those that ask for a GPU's memory: a part of
//! their node's GPUs, or, while they have no node, the largest part that it would be on any. All
//! that have GPUs: also GPUs of their node's model, where queues have amounts of it.

use crate::node::NodeIx;
use crate::node::Offer;
use crate::pod::{Pod, PodKey};
use crate::resource::GPU;
use crate::state::Scheduler;

impl Scheduler {
    /// Takes pods off all accounts that count as something else once a node's offer is another.
    /// They come back with `recount`.
    pub(crate) fn uncount(&mut self, at: NodeIx, offer: Option<&Offer>) -> Vec<PodKey> {
        let old = self.nodes[at].gpu_memory();
        let new = offer.and_then(|offer| offer.gpu_memory);
        let models = (
            self.nodes[at].models(),
            offer.map_or(0, |offer| offer.models),
        );
        let mut keys = Vec::new();
        if models.0 != models.1 {
            let first = (at, PodKey::new("", ""));
            let here = self.on_gpus.range(first..);
            let here = here.take_while(|(on, _)| *on == at);
            keys.extend(here.map(|(_, key)| key.clone()));
        }
        if old == new {
            for key in &keys {
                self.count_again(key, false);
            }
            return keys;
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
        keys.extend(self.by_memory.iter().filter(changed).cloned());
        keys.sort_unstable();
        keys.dedup();
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

    /// Takes in that names for the GPUs of a model have come up. Rare: what any pod with GPUs
    /// counts as may be another now.
    pub(crate) fn meet_models(&mut self) {
        if self.names.models().len() == self.classes.models_known() {
            return;
        }
        let all = self.pods.iter();
        let has = |pod: &Pod| self.classes.get(pod.class).demand().get(GPU) > 0;
        let keys: Vec<PodKey> = all
            .filter(|(_, pod)| has(pod))
            .map(|(key, _)| key.clone())
            .collect();
        for key in &keys {
            self.count_again(key, false);
        }
        self.classes.set_models(self.names.models());
        self.queues.count_in_thousandths(self.names.gpus());
        for at in 0..self.nodes.len() {
            let Some(mut offer) = self.nodes[at].offer.clone() else {
                continue;
            };
            if offer.count_models(&self.names) {
                self.put_offer(at, Some(offer));
            }
        }
        self.recount(keys);
    }

    /// Knows which pods with GPUs are on which node: asked when a node's model changes.
    pub(crate) fn note_gpus(&mut self, key: &PodKey, pod: &Pod, up: bool) {
        if self.names.models().is_empty() {
            return;
        }
        let Some(at) = pod.node else { return };
        if self.classes.get(pod.class).demand().get(GPU) == 0 {
            return;
        }
        if up {
            self.on_gpus.insert((at, key.clone()));
        } else {
            self.on_gpus.remove(&(at, key.clone()));
        }
    }
}
