//! Updates what pods count as when nodes come, go or change. A pod that requests GPU memory counts
//! as a part of its node's GPUs or, without a node, as the largest part that it would be on any
//! node. Where queues have quotas by model, a pod with GPUs also counts as GPUs of its node's
//! model.

use crate::node::NodeAttributes;
use crate::node::NodeIx;
use crate::pod::{Pod, PodKey};
use crate::resource::GPU;
use crate::state::Scheduler;

impl Scheduler {
    /// Takes the pods off all accounts that count differently once a node's offer changes.
    /// `restore_counts` puts them back.
    pub(crate) fn remove_counts(
        &mut self,
        at: NodeIx,
        offer: Option<&NodeAttributes>,
    ) -> Vec<PodKey> {
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
                self.recount_pod(key, false);
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
            self.recount_pod(key, false);
        }
        self.classes.set_least_memory(now);
        keys
    }

    /// Puts pods back on all accounts.
    pub(crate) fn restore_counts(&mut self, keys: Vec<PodKey>) {
        for key in &keys {
            self.recount_pod(key, true);
        }
        for key in keys {
            if let Some(gang) = self.pods.get(&key).map(|pod| pod.gang.clone()) {
                self.settle(&gang);
            }
        }
    }

    fn recount_pod(&mut self, key: &PodKey, up: bool) {
        if let Some(pod) = self.pods.get(key).cloned() {
            self.account(key, &pod, up);
        }
    }

    /// Handles new resource names for GPU models. Rare: every pod with GPUs may count differently
    /// now.
    pub(crate) fn apply_new_models(&mut self) {
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
            self.recount_pod(key, false);
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
        self.restore_counts(keys);
    }

    /// Records which pods with GPUs are on which node, for when a node's model changes.
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
