//! Pods on failed GPUs: such a pod cannot continue, and it holds resources that no other pod can
//! use. The scheduler evicts each of these pods alone. The policy of the pod's job decides what
//! becomes of its gang, and module `incomplete_gangs` evicts the gang if members stay missing
//! (`tests/failed_gpus.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::candidates::EvictionUnit;
use crate::node::NodeIx;
use crate::plan::{EvictionReason, Plan};
use crate::pod::{Pod, PodKey, PodStage};
use crate::state::Scheduler;

impl Scheduler {
    /// The failed devices of a node.
    pub(crate) fn failed_devices(&self, at: NodeIx) -> Option<&BTreeSet<Arc<str>>> {
        self.nodes[at].offer.as_ref().map(|offer| &offer.failed)
    }

    /// Called when a node's offer changed: records the pods that hold devices that failed since.
    pub(crate) fn note_failures(&mut self, at: NodeIx, before: BTreeSet<Arc<str>>) {
        let now = self.failed_devices(at).filter(|failed| !failed.is_empty());
        let Some(now) = now else {
            self.failing.remove(&at);
            return;
        };
        let more = !now.is_subset(&before);
        self.failing.insert(at);
        if more {
            let pods = self
                .pods
                .iter()
                .filter(|(_, pod)| self.is_on_failed_device(pod));
            let pods: Vec<PodKey> = pods.map(|(key, _)| key.clone()).collect();
            self.pods_on_failed_devices.extend(pods);
        }
    }

    /// Called when a pod arrived or changed its placement: records whether it holds a failed
    /// device.
    pub(crate) fn note_on_failed_device(&mut self, key: &PodKey) {
        if !self.failing.is_empty()
            && self
                .pods
                .get(key)
                .is_some_and(|pod| self.is_on_failed_device(pod))
        {
            self.pods_on_failed_devices.insert(key.clone());
        }
    }

    /// Whether the pod holds a failed device. A pod whose binding no event has confirmed yet is
    /// checked again later.
    fn is_on_failed_device(&self, pod: &Pod) -> bool {
        let stays = matches!(pod.stage, PodStage::Bound | PodStage::Running) && !pod.assumed;
        let failed = pod
            .node
            .filter(|at| pod.ours && stays && self.failing.contains(at))
            .and_then(|at| self.failed_devices(at));
        failed.is_some_and(|failed| pod.devices.iter().any(|device| failed.contains(device)))
    }

    /// Evicts pods whose GPUs failed.
    pub(crate) fn evict_from_failed_devices(&mut self, plan: &mut Plan) {
        for key in std::mem::take(&mut self.pods_on_failed_devices) {
            let Some(pod) = self
                .pods
                .get(&key)
                .filter(|pod| self.is_on_failed_device(pod))
            else {
                continue;
            };
            let gang = pod.gang.clone();
            let unit = EvictionUnit {
                gang: gang.clone(),
                pods: vec![key.clone()],
                shrinks: false,
                before: Vec::new(),
                why: EvictionReason::FailedDevice,
            };
            if self.broken_budget(&unit).is_some() {
                self.pods_on_failed_devices.insert(key);
                continue;
            }
            let mut transaction = self.begin();
            transaction.evict(self, &key);
            self.keep(transaction);
            (plan.evictions).extend(self.eviction(&key, EvictionReason::FailedDevice, None));
            self.settle(&gang);
            self.version += 1;
        }
    }
}
