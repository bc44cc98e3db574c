//! Keeps gangs whose pods communicate over the network off nodes with failed RDMA. Decides which
//! classes are marked for it. Gangs of one pod, and pods without GPUs, are not affected.

use crate::class::ClassIx;
use crate::gang::GangKey;
use crate::pod::{Pod, PodKey};
use crate::resource::GPU;
use crate::state::Scheduler;

impl Scheduler {
    /// The class of a pod as a member of its gang, in place of the given one.
    pub(crate) fn class_spanning(&mut self, gang: &GangKey, ours: bool, class: ClassIx) -> ClassIx {
        if !ours || !self.spans(gang, class) {
            return class;
        }
        let own = self.classes.spanning(class, true);
        self.leave_class(class);
        own
    }

    /// Records that a node has failed RDMA. Until the first such node no class is marked, so
    /// healthy clusters pay nothing.
    pub(crate) fn fabric_failed(&mut self) {
        if self.fabrics_failed {
            return;
        }
        self.fabrics_failed = true;
        let members: Vec<PodKey> = self.pods.keys().cloned().collect();
        self.refresh_spanning(&members);
    }

    /// Recomputes the classes of a gang's members after its minimum changed.
    pub(crate) fn refresh_members_spanning(&mut self, gang: &GangKey) {
        if !self.fabrics_failed {
            return;
        }
        let members = self
            .gangs
            .get(gang)
            .map(|gang| gang.members.iter().cloned());
        let members: Vec<PodKey> = members.into_iter().flatten().collect();
        self.refresh_spanning(&members);
    }

    fn refresh_spanning(&mut self, members: &[PodKey]) {
        for key in members {
            let Some(pod) = self.pods.get(key).filter(|pod| pod.ours).cloned() else {
                continue;
            };
            let spans = self.spans(&pod.gang, pod.class);
            if spans == self.classes.get(pod.class).spans() {
                continue;
            }
            let class = self.classes.spanning(pod.class, spans);
            self.cluster_changed();
            self.replace_pod_joined(key, Pod { class, ..pod });
        }
    }

    fn spans(&self, gang: &GangKey, class: ClassIx) -> bool {
        let spec = self.gangs.get(gang).and_then(|gang| gang.spec.as_ref());
        self.fabrics_failed
            && spec.is_some_and(|spec| spec.min_member > 1)
            && self.classes.get(class).demand().get(GPU) > 0
    }
}
