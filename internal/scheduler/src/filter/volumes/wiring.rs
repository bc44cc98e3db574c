//! Connects volumes to the scheduler's state: events, and the classes of the pods that they
//! concern.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::NodeRequirements;
use crate::class::ClassIx;
use crate::event::Event;
use crate::filter::Exclusion;
use crate::node::NodeIx;
use crate::plan::{ClaimStep, PodRef, VolumesReady};
use crate::pod::{Pod, PodInfo, PodKey};
use crate::state::Scheduler;

impl Scheduler {
    /// Applies an event about claims, volumes or their classes.
    pub(crate) fn apply_storage_event(&mut self, event: Event) {
        let name_of = |meta: &ObjectMeta| meta.name.clone().unwrap_or_default();
        let volumes = &mut self.volumes;
        let (pods, stirs) = match event {
            Event::ClaimChanged(claim) => {
                let namespace = claim.metadata.namespace.as_deref().unwrap_or("default");
                let name = name_of(&claim.metadata);
                (volumes.set_claim(namespace, &name, Some(&claim)), false)
            }
            Event::ClaimGone(namespace, name) => {
                (volumes.set_claim(&namespace, &name, None), false)
            }
            Event::VolumeChanged(volume) => {
                volumes.set_volume(&name_of(&volume.metadata), Some(&volume))
            }
            Event::VolumeGone(name) => volumes.set_volume(&name, None),
            Event::StorageClassChanged(class) => {
                let name = name_of(&class.metadata);
                (volumes.set_class(&name, Some(&class)), false)
            }
            Event::StorageClassGone(name) => (volumes.set_class(&name, None), false),
            Event::CsiNodeChanged(node) => {
                volumes.set_csi_node(&name_of(&node.metadata), Some(&node))
            }
            Event::CsiNodeGone(name) => volumes.set_csi_node(&name, None),
            Event::AttachmentChanged(one) => {
                let name = name_of(&one.metadata);
                (Vec::new(), volumes.set_attachment(&name, Some(&one)))
            }
            Event::AttachmentGone(name) => (Vec::new(), volumes.set_attachment(&name, None)),
            Event::CsiDriverChanged(driver) => {
                let name = name_of(&driver.metadata);
                (volumes.set_csi_driver(&name, Some(&driver)), false)
            }
            Event::CsiDriverGone(name) => (volumes.set_csi_driver(&name, None), false),
            Event::StorageCapacityChanged(space) => {
                let namespace = space.metadata.namespace.as_deref().unwrap_or("default");
                let name = name_of(&space.metadata);
                (
                    Vec::new(),
                    volumes.set_space(namespace, &name, Some(&space)),
                )
            }
            Event::StorageCapacityGone(namespace, name) => {
                (Vec::new(), volumes.set_space(&namespace, &name, None))
            }
            _ => return,
        };
        if stirs || !pods.is_empty() {
            // A pod that waits for a volume may be helped, whether or not its class changes.
            self.releases += 1;
            self.changed = true;
        }
        self.refresh_reach(pods);
    }

    /// The class of a pod with its volumes' requirements. Pods of other schedulers have none.
    pub(crate) fn class_with_volumes(&mut self, info: &PodInfo<'_>, class: ClassIx) -> ClassIx {
        let reach = self.volumes.named(&info.key, &info.uid, info.spec);
        let Some(reach) = reach.filter(|_| info.ours) else {
            return class;
        };
        let own = self.classes.reaching(class, Some(reach));
        self.leave_class(class);
        own
    }

    /// Recomputes the classes of pods whose volumes may allow other nodes now.
    fn refresh_reach(&mut self, pods: Vec<PodKey>) {
        for key in pods {
            let Some(pod) = self.pods.get(&key).filter(|pod| pod.ours).cloned() else {
                continue;
            };
            let class = self.classes.reaching(pod.class, self.volumes.reach(&key));
            if class == pod.class {
                self.leave_class(class);
                continue;
            }
            self.cluster_changed();
            self.replace_pod_joined(&key, Pod { class, ..pod });
        }
    }

    /// Records what a pod's claims get on a node, or releases it.
    pub(crate) fn decide_volumes(&mut self, key: &PodKey, class: ClassIx, at: Option<NodeIx>) {
        if !self
            .classes
            .get(class)
            .reach()
            .is_some_and(NodeRequirements::takes)
        {
            return;
        }
        match at.map(|at| &self.nodes[at]) {
            Some(node) => {
                if let Some(offer) = &node.offer {
                    self.volumes.decide(key, node, offer);
                }
            }
            None => self.volumes.release(key),
        }
    }

    /// True if nodes must be checked for each pod of the class because of its volumes.
    pub(crate) fn is_per_pod(&self, class: ClassIx) -> bool {
        self.classes
            .get(class)
            .reach()
            .is_some_and(NodeRequirements::is_per_pod)
    }

    /// True if another pod uses a ReadWriteOncePod claim of the pod.
    pub(crate) fn claim_in_use(&self, key: &PodKey) -> bool {
        let there = |user: &PodKey| self.pods.get(user).is_some_and(|pod| pod.stage.on_node());
        self.volumes.rivals(key).any(there)
    }

    /// Why a pod's volumes exclude a node.
    pub(crate) fn volume_exclusion(&self, key: &PodKey, at: NodeIx) -> Option<Exclusion> {
        let node = self.nodes.get(at)?;
        let offer = node.offer.as_ref()?;
        if self.volumes.disk_in_use(key, at) {
            return Some(Exclusion::Disk);
        }
        if self.volumes.beyond_limit(key, at, &node.name) {
            return Some(Exclusion::VolumeLimit);
        }
        if self.volumes.seat(key, node, offer).is_some() {
            return None;
        }
        match self.volumes.lacks_space(key, offer) {
            true => Some(Exclusion::StorageSpace),
            false => Some(Exclusion::Volumes),
        }
    }

    /// Whether all claims of a pod that a plan bound are bound, to volumes that the node reaches.
    /// `steps` are those returned with the binding, with the versions written so far.
    #[must_use]
    pub fn volumes_ready(&self, pod: &PodRef, node: &str, steps: &[ClaimStep]) -> VolumesReady {
        let key = PodKey::new(Arc::<str>::from(&*pod.namespace), &pod.name);
        let at = self.node_index.get(node).map(|at| &self.nodes[*at]);
        let offered = at.and_then(|node| Some((node, node.offer.as_ref()?)));
        match offered {
            Some((node, offer)) => self.volumes.ready(&key, node, offer, steps),
            None => VolumesReady::No(format!("node {node} no longer exists")),
        }
    }
}
