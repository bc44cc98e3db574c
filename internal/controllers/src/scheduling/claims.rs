//! Gangs that are placed and wait for their volumes. Their claims are prepared first: a free volume
//! is reserved for its claim, and a claim gets the node for which its volume is to be provisioned.
//! No member is bound before all claims of the gang's members are bound, as kube-scheduler does it
//! for a single pod. If a volume is not bound in time, the placement of the whole gang is given up.
//! `scheduler` decides which volume belongs to which claim, and whether a claim is bound.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use scheduler::{Bind, Event, GroupRef, GroupUpdate, Scheduler, VolumesReady};
use tokio::time::Instant;

use super::volume_binder::{VolumeWrite, VolumeWriteOutcome};

/// How many claims and volumes may be written concurrently.
pub(super) const IN_FLIGHT: usize = 32;
/// How long a gang's claims may take to be bound (kube-scheduler's `bindTimeoutSeconds`).
pub(super) const BIND_TIMEOUT: Duration = Duration::from_secs(600);
/// How many claims a message names.
const NAMED_MAX: usize = 4;

/// A binding, and whether the pod gets an event of its own for it.
type Binding = (Bind, bool);
/// Gangs that wait for claims, with the names of the claims.
pub(super) type Needy = BTreeMap<GroupRef, BTreeSet<String>>;

/// One gang whose claims are being bound.
struct ClaimingGang {
    binds: Vec<Binding>,
    /// The PodGroup status to write once the gang is bound.
    update: Option<GroupUpdate>,
    until: Instant,
    refused: Option<String>,
}

/// The outcome for a gang.
pub(super) struct Settled {
    pub(super) group: GroupRef,
    /// Its bindings, and whether each pod gets an event of its own.
    pub(super) binds: Vec<(Bind, bool)>,
    pub(super) update: Option<GroupUpdate>,
    /// Why its volumes are not available; none if all are bound.
    pub(super) refused: Option<String>,
}

/// All gangs whose claims are being bound.
#[derive(Default)]
pub(super) struct ClaimBindings {
    gangs: BTreeMap<GroupRef, ClaimingGang>,
    writes: VecDeque<VolumeWrite>,
    /// An event arrived that may have settled a gang.
    changed: bool,
}

impl ClaimBindings {
    /// Takes from a plan's bindings those of gangs that need volumes first. Returns the other
    /// bindings, and the claims that each waiting gang needs.
    pub(super) fn take(&mut self, binds: Vec<Binding>, now: Instant) -> (Vec<Binding>, Needy) {
        let mut needy = Needy::new();
        for (bind, _) in &binds {
            if !bind.volumes.is_empty() {
                let claims = needy.entry(bind.group.clone()).or_default();
                claims.extend(bind.volumes.iter().map(|step| step.claim.clone()));
            }
        }
        if needy.is_empty() && self.gangs.is_empty() {
            return (binds, needy);
        }
        let waits = |bind: &Bind| needy.contains_key(&bind.group) || self.holds(&bind.group);
        let (waiting, ready): (Vec<_>, Vec<_>) =
            binds.into_iter().partition(|(bind, _)| waits(bind));
        for (bind, notifies) in waiting {
            for step in &bind.volumes {
                self.writes.push_back(VolumeWrite {
                    group: bind.group.clone(),
                    claim: step.claim.clone(),
                    uid: step.uid.clone(),
                    from: step.from.clone(),
                    node: bind.node.clone(),
                });
            }
            let gang = self.gangs.entry(bind.group.clone());
            let gang = gang.or_insert_with(|| ClaimingGang {
                binds: Vec::new(),
                update: None,
                until: now + BIND_TIMEOUT,
                refused: None,
            });
            gang.until = now + BIND_TIMEOUT;
            gang.binds.push((bind, notifies));
        }
        self.changed = true;
        (ready, needy)
    }

    /// Whether the bindings of such a gang are held back.
    pub(super) fn holds(&self, group: &GroupRef) -> bool {
        self.gangs.contains_key(group)
    }

    /// Holds a PodGroup's status until its members are bound; returns the status to write now.
    pub(super) fn keep(&mut self, update: GroupUpdate) -> Option<GroupUpdate> {
        match self.gangs.get_mut(&update.group) {
            Some(gang) if update.running == 0 => {
                gang.update = Some(update);
                None
            }
            _ => Some(update),
        }
    }

    /// The next claim or volume to write, of a gang that was not refused since.
    pub(super) fn next_write(&mut self) -> Option<VolumeWrite> {
        loop {
            let write = self.writes.pop_front()?;
            let gang = self.gangs.get(&write.group);
            if gang.is_some_and(|gang| gang.refused.is_none()) {
                return Some(write);
            }
        }
    }

    /// A write has ended.
    pub(super) fn written(&mut self, written: VolumeWriteOutcome) {
        let Some(gang) = self.gangs.get_mut(&written.group) else {
            return;
        };
        self.changed = true;
        match written.result {
            Ok(version) => {
                let steps = gang
                    .binds
                    .iter_mut()
                    .flat_map(|(bind, _)| &mut bind.volumes);
                for step in steps.filter(|step| step.claim == written.claim) {
                    step.written = Some(version);
                }
            }
            Err(why) => {
                gang.refused.get_or_insert_with(|| why.to_string());
            }
        }
    }

    /// Handles an event of a claim, a volume, a node, or a pod that waits for them.
    pub(super) fn note_event(&mut self, event: &Event) {
        if self.gangs.is_empty() {
            return;
        }
        match event {
            Event::ClaimChanged(_)
            | Event::ClaimGone(..)
            | Event::VolumeChanged(_)
            | Event::VolumeGone(_)
            | Event::NodeGone(_) => self.changed = true,
            Event::PodGone(namespace, name) => self.pod_gone(namespace, name),
            Event::PodChanged(pod) if pod.metadata.deletion_timestamp.is_some() => {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                self.pod_gone(namespace, pod.metadata.name.as_deref().unwrap_or_default());
            }
            _ => {}
        }
    }

    fn pod_gone(&mut self, namespace: &str, name: &str) {
        for gang in self.gangs.values_mut() {
            let mut pods = gang.binds.iter().map(|(bind, _)| &bind.pod);
            if pods.any(|pod| pod.namespace == namespace && pod.name == name) {
                let why = format!("its member {name} no longer exists");
                gang.refused.get_or_insert(why);
                self.changed = true;
            }
        }
    }

    /// When the next gang's wait times out.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.gangs.values().map(|gang| gang.until).min()
    }

    /// Whether gangs must be examined now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.changed || self.next_due().is_some_and(|due| due <= now)
    }

    /// Removes and returns the gangs whose volumes are all bound or will not be.
    pub(super) fn settle(&mut self, scheduler: &Scheduler, now: Instant) -> Vec<Settled> {
        self.changed = false;
        let mut settled = Vec::new();
        let groups: Vec<GroupRef> = self.gangs.keys().cloned().collect();
        for group in groups {
            let Some(gang) = self.gangs.get_mut(&group) else {
                continue;
            };
            let ready = match gang.refused.take() {
                Some(why) => VolumesReady::No(why),
                None => look(gang, scheduler, now),
            };
            let refused = match ready {
                VolumesReady::NotYet => continue,
                VolumesReady::Yes => None,
                VolumesReady::No(why) => Some(why),
            };
            if let Some(ClaimingGang { binds, update, .. }) = self.gangs.remove(&group) {
                settled.push(Settled {
                    group,
                    binds,
                    update,
                    refused,
                });
            }
        }
        settled
    }
}

/// The state of a gang's claims.
fn look(gang: &ClaimingGang, scheduler: &Scheduler, now: Instant) -> VolumesReady {
    let mut unbound: BTreeSet<&str> = BTreeSet::new();
    for (bind, _) in &gang.binds {
        match scheduler.volumes_ready(&bind.pod, &bind.node, &bind.volumes) {
            VolumesReady::Yes => {}
            VolumesReady::NotYet => {
                unbound.extend(bind.volumes.iter().map(|step| step.claim.as_str()));
                if bind.volumes.is_empty() {
                    unbound.insert(&bind.pod.name);
                }
            }
            no @ VolumesReady::No(_) => return no,
        }
    }
    if unbound.is_empty() {
        return VolumesReady::Yes;
    }
    if gang.until > now {
        return VolumesReady::NotYet;
    }
    let all: Vec<&str> = unbound.into_iter().collect();
    VolumesReady::No(format!(
        "PersistentVolumeClaims were not bound within {} s: {}",
        BIND_TIMEOUT.as_secs(),
        names(&all)
    ))
}

/// A list of names for a message, shortened.
pub(super) fn names(all: &[&str]) -> String {
    let mut words = all[..all.len().min(NAMED_MAX)].join(", ");
    if all.len() > NAMED_MAX {
        words.push_str(&format!(" and {} more", all.len() - NAMED_MAX));
    }
    words
}

#[cfg(test)]
mod tests {
    use scheduler::{ClaimStep, Config, PodRef, VolumeSource};
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;
    use crate::scheduling::volume_binder::{NotWritten, VolumeWriteError};

    fn read<T: DeserializeOwned>(value: serde_json::Value) -> Box<T> {
        Box::new(serde_json::from_value(value).unwrap())
    }

    fn bind(group: &str, name: &str, claim: Option<&str>) -> (Bind, bool) {
        let step = |claim: &str| ClaimStep {
            claim: claim.to_owned(),
            uid: claim.to_owned(),
            from: VolumeSource::Made,
            written: None,
        };
        let bind = Bind {
            pod: PodRef {
                namespace: "ns".to_owned(),
                name: name.to_owned(),
                uid: name.to_owned(),
            },
            group: GroupRef {
                namespace: "ns".to_owned(),
                name: group.to_owned(),
                lone: group == name,
            },
            node: "n1".to_owned(),
            devices: Default::default(),
            volumes: claim.map(step).into_iter().collect(),
        };
        (bind, true)
    }

    /// A node, and a pod of a gang whose claim waits for its first consumer.
    fn waiting() -> Scheduler {
        let mut scheduler = Scheduler::new(Config {
            volumes_told: true,
            ..Config::default()
        });
        scheduler.apply(Event::NodeChanged(read(json!({
            "metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8", "pods": "110"}},
        }))));
        scheduler.apply(Event::StorageClassChanged(read(json!({
            "metadata": {"name": "made"}, "provisioner": "example.com/disk",
            "volumeBindingMode": "WaitForFirstConsumer",
        }))));
        scheduler.apply(Event::ClaimChanged(read(json!({
            "metadata": {"name": "data", "namespace": "ns", "uid": "data"},
            "spec": {"storageClassName": "made"},
        }))));
        scheduler.apply(Event::PodChanged(read(json!({
            "metadata": {"name": "g-0", "namespace": "ns", "uid": "g-0"},
            "spec": {"schedulerName": "muster", "containers": [],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        }))));
        scheduler
    }

    fn gang(now: Instant) -> (ClaimBindings, Vec<(Bind, bool)>) {
        let mut claims = ClaimBindings::default();
        let all = vec![
            bind("g", "g-0", Some("data")),
            bind("alone", "alone", None),
            bind("g", "g-1", None),
        ];
        let (ready, _) = claims.take(all, now);
        (claims, ready)
    }

    #[test]
    fn a_gang_is_held_back_whole_for_one_members_claim_and_others_go_on() {
        let (mut claims, ready) = gang(Instant::now());
        let names: Vec<&str> = ready.iter().map(|(b, _)| b.pod.name.as_str()).collect();
        assert_eq!(names, ["alone"]);
        assert!(claims.holds(&bind("g", "g-0", None).0.group));
        assert_eq!(claims.next_write().unwrap().claim, "data");
        assert!(claims.next_write().is_none());
        // A member that is placed later waits for the gang's earlier members.
        let (ready, _) = claims.take(vec![bind("g", "g-2", None)], Instant::now());
        assert!(ready.is_empty());
    }

    #[test]
    fn a_gang_whose_claims_are_not_bound_in_time_is_given_up_whole() {
        let now = Instant::now();
        let (mut claims, _) = gang(now);
        let scheduler = waiting();
        assert!(claims.settle(&scheduler, now).is_empty());
        let late = claims.next_due().unwrap();
        assert!(claims.is_due(late));
        let settled = claims.settle(&scheduler, late);
        assert_eq!(settled[0].binds.len(), 2);
        assert_eq!(
            settled[0].refused.as_deref(),
            Some("PersistentVolumeClaims were not bound within 600 s: data")
        );
        assert_eq!(claims.next_due(), None);
    }

    #[test]
    fn a_deleted_member_or_a_refused_write_ends_the_wait_of_the_whole_gang() {
        let now = Instant::now();
        let (mut claims, _) = gang(now);
        claims.note_event(&Event::PodGone("ns".to_owned(), "g-1".to_owned()));
        let settled = claims.settle(&waiting(), now);
        assert_eq!(
            settled[0].refused.as_deref(),
            Some("its member g-1 no longer exists")
        );
        let (mut claims, _) = gang(now);
        claims.written(VolumeWriteOutcome {
            group: bind("g", "g-0", None).0.group,
            claim: "data".to_owned(),
            result: Err(NotWritten {
                claim: "data".to_owned(),
                reason: VolumeWriteError::ClaimGone,
            }),
        });
        let settled = claims.settle(&waiting(), now);
        assert_eq!(
            settled[0].refused.as_deref(),
            Some("PersistentVolumeClaim data: it no longer exists")
        );
        assert!(
            claims.next_write().is_none(),
            "nothing more is written for it"
        );
    }
}
