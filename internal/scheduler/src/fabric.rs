//! Gangs whose work goes over the network between their pods, and nodes whose RDMA fails: the former
//! keep off the latter. Owns which pods are told apart for it. A gang of one, and pods without GPUs,
//! lose nothing there.

use crate::class::ClassIx;
use crate::gang::GangKey;
use crate::pod::{Pod, PodKey};
use crate::resource::GPU;
use crate::state::Scheduler;

impl Scheduler {
    /// The class of a pod as a member of its gang, which takes the place of the one given.
    pub(crate) fn spanned(&mut self, gang: &GangKey, ours: bool, class: ClassIx) -> ClassIx {
        if !ours || !self.spans(gang, class) {
            return class;
        }
        let own = self.classes.spanning(class, true);
        self.leave_class(class);
        own
    }

    /// Notes that there is a node whose RDMA fails. Until the first of them nobody is told apart: as
    /// long as all networks are well, that costs nothing.
    pub(crate) fn fabric_failed(&mut self) {
        if self.fabrics_failed {
            return;
        }
        self.fabrics_failed = true;
        let members: Vec<PodKey> = self.pods.keys().cloned().collect();
        self.span_anew(&members);
    }

    /// Finds the classes of a gang's members again after it asked for more or fewer.
    pub(crate) fn span_members_anew(&mut self, gang: &GangKey) {
        if !self.fabrics_failed {
            return;
        }
        let members = self
            .gangs
            .get(gang)
            .map(|gang| gang.members.iter().cloned());
        let members: Vec<PodKey> = members.into_iter().flatten().collect();
        self.span_anew(&members);
    }

    fn span_anew(&mut self, members: &[PodKey]) {
        for key in members {
            let Some(pod) = self.pods.get(key).filter(|pod| pod.ours).cloned() else {
                continue;
            };
            let spans = self.spans(&pod.gang, pod.class);
            if spans == self.classes.get(pod.class).spans() {
                continue;
            }
            let class = self.classes.spanning(pod.class, spans);
            self.world_changed();
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
