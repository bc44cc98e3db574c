//! Pods on GPUs that failed: what runs there can't go on, and holds what nobody can use. They are
//! evicted, each alone: what becomes of its gang is its job's policy, and where members stay lacking,
//! `stale`'s.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::candidates::Bite;
use crate::node::NodeIx;
use crate::plan::{EvictionReason, Plan};
use crate::pod::{Pod, PodKey, Stage};
use crate::state::Scheduler;

impl Scheduler {
    /// A node's devices whose work can't go on.
    pub(crate) fn failed_devices(&self, at: NodeIx) -> Option<&BTreeSet<Arc<str>>> {
        self.nodes[at].offer.as_ref().map(|offer| &offer.failed)
    }

    /// A node's offer is new: notes who holds what has failed since.
    pub(crate) fn note_failures(&mut self, at: NodeIx, before: BTreeSet<Arc<str>>) {
        let now = self.failed_devices(at).filter(|failed| !failed.is_empty());
        let Some(now) = now else {
            self.failing.remove(&at);
            return;
        };
        let more = !now.is_subset(&before);
        self.failing.insert(at);
        if more {
            let pods = self.pods.iter().filter(|(_, pod)| self.is_stranded(pod));
            let pods: Vec<PodKey> = pods.map(|(key, _)| key.clone()).collect();
            self.stranded.extend(pods);
        }
    }

    /// A pod is new, or stands anew: notes whether it holds what has failed.
    pub(crate) fn note_stranded(&mut self, key: &PodKey) {
        if !self.failing.is_empty() && self.pods.get(key).is_some_and(|pod| self.is_stranded(pod)) {
            self.stranded.insert(key.clone());
        }
    }

    /// Does it hold a device that has failed? One whose binding no event has confirmed yet will be
    /// asked about again.
    fn is_stranded(&self, pod: &Pod) -> bool {
        let stays = matches!(pod.stage, Stage::Bound | Stage::Running) && !pod.assumed;
        let failed = pod
            .node
            .filter(|at| pod.ours && stays && self.failing.contains(at))
            .and_then(|at| self.failed_devices(at));
        failed.is_some_and(|failed| pod.devices.iter().any(|device| failed.contains(device)))
    }

    /// Evicts pods whose GPUs failed.
    pub(crate) fn evict_stranded(&mut self, plan: &mut Plan) {
        for key in std::mem::take(&mut self.stranded) {
            let Some(pod) = self.pods.get(&key).filter(|pod| self.is_stranded(pod)) else {
                continue;
            };
            let gang = pod.gang.clone();
            let bite = Bite {
                gang: gang.clone(),
                pods: vec![key.clone()],
                shrinks: false,
                before: Vec::new(),
                why: EvictionReason::FailedDevice,
            };
            if self.broken_budget(&bite).is_some() {
                self.stranded.insert(key);
                continue;
            }
            let mut txn = self.begin();
            txn.evict(self, &key);
            self.keep(txn);
            (plan.evictions).extend(self.eviction(&key, EvictionReason::FailedDevice, None));
            self.settle(&gang);
            self.version += 1;
        }
    }
}
