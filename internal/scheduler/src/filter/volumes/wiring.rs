//! Volumes within the scheduler's state: events in, and the classes of the pods that they matter to.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Reach;
use crate::class::ClassIx;
use crate::event::Event;
use crate::filter::Snub;
use crate::node::NodeIx;
use crate::plan::{ClaimStep, PodRef, VolumesReady};
use crate::pod::{Pod, PodKey, Told};
use crate::state::Scheduler;

impl Scheduler {
    /// Takes in what is told of claims, volumes and their classes.
    pub(crate) fn storage_changed(&mut self, event: Event) {
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
            // Whoever waits for a volume may be helped, whatever became of the class.
            self.eased += 1;
            self.changed = true;
        }
        self.reach_anew(pods);
    }

    /// The class that its volumes make of a pod's. Where others' pods go, others say.
    pub(crate) fn volumed(&mut self, told: &Told<'_>, class: ClassIx) -> ClassIx {
        let reach = self.volumes.named(&told.key, &told.uid, told.spec);
        let Some(reach) = reach.filter(|_| told.ours) else {
            return class;
        };
        let own = self.classes.reaching(class, Some(reach));
        self.leave_class(class);
        own
    }

    /// Finds the classes of pods again whose volumes may let them run elsewhere now.
    fn reach_anew(&mut self, pods: Vec<PodKey>) {
        for key in pods {
            let Some(pod) = self.pods.get(&key).filter(|pod| pod.ours).cloned() else {
                continue;
            };
            let class = self.classes.reaching(pod.class, self.volumes.reach(&key));
            if class == pod.class {
                self.leave_class(class);
                continue;
            }
            self.world_changed();
            self.replace_pod_joined(&key, Pod { class, ..pod });
        }
    }

    /// Notes what the claims of a pod get on a node, or that it is on none.
    pub(crate) fn decide_volumes(&mut self, key: &PodKey, class: ClassIx, at: Option<NodeIx>) {
        if !self.classes.get(class).reach().is_some_and(Reach::takes) {
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

    /// Must nodes be looked at for each pod of the class, for its volumes' sake?
    pub(crate) fn is_picky(&self, class: ClassIx) -> bool {
        self.classes.get(class).reach().is_some_and(Reach::is_picky)
    }

    /// Does another pod hold a claim that only one may use?
    pub(crate) fn claim_in_use(&self, key: &PodKey) -> bool {
        let there = |user: &PodKey| self.pods.get(user).is_some_and(|pod| pod.stage.on_node());
        self.volumes.rivals(key).any(there)
    }

    /// Why the volumes of a pod keep it off a node.
    pub(crate) fn volume_snub(&self, key: &PodKey, at: NodeIx) -> Option<Snub> {
        let node = self.nodes.get(at)?;
        let offer = node.offer.as_ref()?;
        if self.volumes.disk_in_use(key, at) {
            return Some(Snub::Disk);
        }
        if self.volumes.beyond_limit(key, at, &node.name) {
            return Some(Snub::VolumeLimit);
        }
        if self.volumes.seat(key, node, offer).is_some() {
            return None;
        }
        match self.volumes.lacks_space(key, offer) {
            true => Some(Snub::StorageSpace),
            false => Some(Snub::Volumes),
        }
    }

    /// Whether all claims of a pod that a plan bound are bound, to volumes that can be reached from
    /// that node. `steps` are the ones that came with the binding, with what was written so far.
    #[must_use]
    pub fn volumes_ready(&self, pod: &PodRef, node: &str, steps: &[ClaimStep]) -> VolumesReady {
        let key = PodKey::new(Arc::<str>::from(&*pod.namespace), &pod.name);
        let at = self.node_index.get(node).map(|at| &self.nodes[*at]);
        let offered = at.and_then(|node| Some((node, node.offer.as_ref()?)));
        match offered {
            Some((node, offer)) => self.volumes.ready(&key, node, offer, steps),
            None => VolumesReady::No(format!("node {node} is gone")),
        }
    }
}
