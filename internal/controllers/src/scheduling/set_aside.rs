//! The objects that the scheduler's loop leaves out for a while because it panicked over them.
//! Pure: the caller passes the time.
//!
//! After a panic the scheduler's state may be changed in part, so the loop discards it and starts
//! from a list. That alone would panic again. A panic while a change is applied is attributed to
//! the change's object. A panic while a plan is made names no object. It is attributed to the gangs
//! with waiting pods that changed since the last successful plan. If there are several, each half
//! is retried in a turn of its own, so that of 1,000 gangs the guilty one is isolated after ten
//! panics. Once isolated, its wait doubles after each panic.
//!
//! Limits. A plan that panics over a node, a queue, or a running pod is attributed to waiting
//! gangs, which then wait without cause; running pods are never left out. If two gangs panic only
//! in combination, both are left out. A restart of the server forgets the suspects.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::names::GROUP_NAME;
use scheduler::{Event, GroupRef};
use tokio::time::Instant;

/// How long a suspect is left out first; doubles with each panic in a row.
const FIRST: Duration = Duration::from_secs(2);
/// The longest time that a suspect is left out.
const LONGEST: Duration = Duration::from_secs(600);
/// How many gangs are remembered as parts of successful plans.
const CLEARED_MAX: usize = 1_000_000;

/// An object: its plural, namespace and name.
type SetAsideObject = (&'static str, String, String);

/// The unit that is left out as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SetAsideUnit {
    /// A gang: its PodGroup, and its unbound pods.
    Gang(GroupRef),
    /// One object.
    Object(SetAsideObject),
}

/// The state of one suspect.
#[derive(Default)]
struct Aside {
    failures: u32,
    /// Until when it is left out; none while it is retried.
    until: Option<Instant>,
    /// Suspects left out together are retried together, and no others with them.
    batch: u64,
    /// The last withheld change of each object.
    events: BTreeMap<SetAsideObject, Event>,
}

/// The objects left out, and the suspects for the next panic.
#[derive(Default)]
pub(super) struct SetAside {
    aside: BTreeMap<SetAsideUnit, Aside>,
    /// Gangs with waiting pods that changed since the last successful plan.
    since: BTreeSet<GroupRef>,
    /// The hashes of gangs that were part of a successful plan and have not changed since.
    cleared: HashSet<u64>,
    hasher: RandomState,
    /// The loop has begun and made no plan yet: its changes are the list.
    listing: bool,
    /// The number of the last batch.
    batches: u64,
    /// A batch is being retried, and no plan was made with it yet.
    trying: bool,
}

impl SetAside {
    /// The loop restarts and receives everything again.
    pub(super) fn begin(&mut self) {
        self.listing = true;
        self.trying = false;
        self.since.clear();
        for aside in self.aside.values_mut() {
            aside.events.clear();
        }
    }

    /// Returns a change to apply, or withholds it if its object is left out.
    pub(super) fn admit(&mut self, event: Event) -> Option<Event> {
        let (object, gone) = object_of(&event);
        // A withheld change is out of date then, also if this change is let through. A pod that was
        // bound meanwhile no longer waits, and its older state would allocate its devices a second
        // time.
        for aside in self.aside.values_mut() {
            aside.events.remove(&object);
        }
        if gone {
            self.forget(object);
            return Some(event);
        }
        let gang = gang_of(&event);
        let subjects = [
            Some(SetAsideUnit::Object(object.clone())),
            gang.clone().map(SetAsideUnit::Gang),
        ];
        for subject in subjects.iter().flatten() {
            if let Some(aside) = self.aside.get_mut(subject)
                && aside.until.is_some()
            {
                aside.events.insert(object, event);
                return None;
            }
        }
        if let Some(gang) = gang {
            let hash = hash_of(&self.hasher, &gang);
            if !self.listing {
                self.cleared.remove(&hash);
            }
            if !self.cleared.contains(&hash) {
                self.since.insert(gang);
            }
        }
        Some(event)
    }

    /// An object is gone: a later one of the same name is another object. A gang of several pods
    /// keeps what is known of its other pods.
    fn forget(&mut self, object: SetAsideObject) {
        if let ("pods", namespace, name) = &object {
            self.aside.remove(&SetAsideUnit::Gang(GroupRef {
                namespace: namespace.clone(),
                name: name.clone(),
                lone: true,
            }));
        }
        self.aside.remove(&SetAsideUnit::Object(object));
    }

    /// The loop panicked while it applied this change. A pod with a node takes that node out too:
    /// without the pod, the node's free resources are unknown.
    pub(super) fn blame(&mut self, subjects: Vec<SetAsideUnit>, now: Instant) {
        self.batches += 1;
        self.trying = false;
        for subject in subjects {
            self.put(subject, FIRST, now);
        }
    }

    /// The loop panicked while it made a plan. Returns the suspects that are left out for it, if
    /// any.
    pub(super) fn blame_plan(&mut self, now: Instant) -> Vec<SetAsideUnit> {
        self.trying = false;
        let since = std::mem::take(&mut self.since);
        let mut suspects: BTreeSet<SetAsideUnit> =
            since.into_iter().map(SetAsideUnit::Gang).collect();
        let tried = self.aside.iter().filter(|(_, aside)| aside.until.is_none());
        suspects.extend(tried.map(|(subject, _)| subject.clone()));
        if suspects.is_empty() {
            // No changed gang is the cause, so next time any gang may be.
            self.cleared.clear();
            return Vec::new();
        }
        let suspects: Vec<SetAsideUnit> = suspects.into_iter().collect();
        self.batches += 1;
        if let [one] = suspects.as_slice() {
            self.put(one.clone(), FIRST, now);
            return suspects;
        }
        let half = suspects.len().div_ceil(2);
        for (at, subject) in suspects.iter().enumerate() {
            let second = at >= half;
            let turn = if second { FIRST * 2 } else { FIRST };
            let aside = self.aside.entry(subject.clone()).or_default();
            aside.until = Some(now + turn.max(wait_after(aside.failures)));
            aside.batch = self.batches + u64::from(second);
        }
        self.batches += 1;
        suspects
    }

    fn put(&mut self, subject: SetAsideUnit, least: Duration, now: Instant) {
        let aside = self.aside.entry(subject).or_default();
        aside.failures = aside.failures.saturating_add(1);
        aside.until = Some(now + wait_after(aside.failures).max(least));
        aside.batch = self.batches;
    }

    /// A plan with every change that was not withheld succeeded.
    pub(super) fn record_success(&mut self) {
        self.listing = false;
        self.trying = false;
        self.aside.retain(|_, aside| aside.until.is_some());
        if self.cleared.len() + self.since.len() > CLEARED_MAX {
            self.cleared.clear();
        }
        for gang in std::mem::take(&mut self.since) {
            let hash = hash_of(&self.hasher, &gang);
            self.cleared.insert(hash);
        }
    }

    /// When the next retry is due; none while a batch is retried and no plan was made with it.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = self.aside.values().filter_map(|aside| aside.until);
        due.min().filter(|_| !self.trying)
    }

    /// The withheld changes of the batch that became due first: it is retried. Two batches are
    /// never retried together, because then neither half of a suspect set would be cleared.
    pub(super) fn release(&mut self, now: Instant) -> Vec<Event> {
        let mut events = Vec::new();
        if self.trying {
            return events;
        }
        let due = |aside: &Aside| aside.until.filter(|until| *until <= now);
        let first = self
            .aside
            .values()
            .filter_map(|aside| Some((due(aside)?, aside.batch)));
        let Some((_, batch)) = first.min() else {
            return events;
        };
        for aside in self.aside.values_mut() {
            if aside.batch == batch && due(aside).is_some() {
                aside.until = None;
                events.extend(std::mem::take(&mut aside.events).into_values());
            }
        }
        // Without changes no plan follows that could clear the batch: the next batch may come.
        self.trying = !events.is_empty();
        events
    }
}

fn hash_of(hasher: &RandomState, gang: &GroupRef) -> u64 {
    hasher.hash_one((&gang.namespace, &gang.name, gang.lone))
}

fn wait_after(failures: u32) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    FIRST.saturating_mul(1 << doublings).min(LONGEST)
}

/// The subjects to leave out if applying this change panicked.
pub(super) fn subjects_of(event: &Event) -> Vec<SetAsideUnit> {
    let (object, _) = object_of(event);
    match (gang_of(event), event) {
        (Some(gang), _) => vec![SetAsideUnit::Gang(gang)],
        (None, Event::PodChanged(pod)) => {
            let node = SetAsideUnit::Object(("nodes", String::new(), node_of(pod).to_owned()));
            vec![SetAsideUnit::Object(object), node]
        }
        (None, _) => vec![SetAsideUnit::Object(object)],
    }
}

/// The reference to a subject for events; none for kinds without events, which only the log names.
pub(super) fn reference(subject: &SetAsideUnit) -> Option<ObjectReference> {
    let (version, kind, namespace, name) = match subject {
        SetAsideUnit::Gang(gang) if gang.lone => ("v1", "Pod", &gang.namespace, &gang.name),
        SetAsideUnit::Gang(gang) => (
            "scheduling.volcano.sh/v1beta1",
            "PodGroup",
            &gang.namespace,
            &gang.name,
        ),
        SetAsideUnit::Object(("nodes", namespace, name)) => ("v1", "Node", namespace, name),
        SetAsideUnit::Object(("pods", namespace, name)) => ("v1", "Pod", namespace, name),
        SetAsideUnit::Object(("queues", namespace, name)) => {
            ("scheduling.volcano.sh/v1beta1", "Queue", namespace, name)
        }
        SetAsideUnit::Object(_) => return None,
    };
    Some(ObjectReference {
        api_version: Some(version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(namespace.clone()).filter(|namespace| !namespace.is_empty()),
        name: Some(name.clone()),
        ..ObjectReference::default()
    })
}

fn node_of(pod: &Pod) -> &str {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.unwrap_or_default()
}

/// The gang whose waiting part a change concerns.
fn gang_of(event: &Event) -> Option<GroupRef> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    match event {
        Event::PodChanged(pod) if node_of(pod).is_empty() => {
            let meta = &pod.metadata;
            let group = meta
                .annotations
                .as_ref()
                .and_then(|notes| notes.get(GROUP_NAME));
            let group = group.filter(|group| !group.is_empty());
            Some(GroupRef {
                namespace: text(&meta.namespace),
                lone: group.is_none(),
                name: group.cloned().unwrap_or_else(|| text(&meta.name)),
            })
        }
        Event::PodGroupChanged(group) => Some(GroupRef {
            namespace: text(&group.metadata.namespace),
            name: text(&group.metadata.name),
            lone: false,
        }),
        _ => None,
    }
}

/// The object that a change concerns, and whether it is gone.
fn object_of(event: &Event) -> (SetAsideObject, bool) {
    let there = |plural: &'static str, meta: &ObjectMeta| {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        ((plural, text(&meta.namespace), text(&meta.name)), false)
    };
    let gone = |plural: &'static str, namespace: &str, name: &str| {
        ((plural, namespace.to_owned(), name.to_owned()), true)
    };
    match event {
        Event::NodeChanged(object) => there("nodes", &object.metadata),
        Event::NodeGone(name) => gone("nodes", "", name),
        Event::PodChanged(object) => there("pods", &object.metadata),
        Event::PodGone(namespace, name) => gone("pods", namespace, name),
        Event::PodGroupChanged(object) => there("podgroups", &object.metadata),
        Event::PodGroupGone(namespace, name) => gone("podgroups", namespace, name),
        Event::QueueChanged(object) => there("queues", &object.metadata),
        Event::QueueGone(name) => gone("queues", "", name),
        Event::NamespaceChanged(object) => there("namespaces", &object.metadata),
        Event::NamespaceGone(name) => gone("namespaces", "", name),
        Event::BudgetChanged(object) => there("poddisruptionbudgets", &object.metadata),
        Event::BudgetGone(namespace, name) => gone("poddisruptionbudgets", namespace, name),
        Event::PriorityClassChanged(object) => there("priorityclasses", &object.metadata),
        Event::PriorityClassGone(name) => gone("priorityclasses", "", name),
        Event::ClaimChanged(object) => there("persistentvolumeclaims", &object.metadata),
        Event::ClaimGone(namespace, name) => gone("persistentvolumeclaims", namespace, name),
        Event::VolumeChanged(object) => there("persistentvolumes", &object.metadata),
        Event::VolumeGone(name) => gone("persistentvolumes", "", name),
        Event::StorageClassChanged(object) => there("storageclasses", &object.metadata),
        Event::StorageClassGone(name) => gone("storageclasses", "", name),
        Event::CsiNodeChanged(object) => there("csinodes", &object.metadata),
        Event::CsiNodeGone(name) => gone("csinodes", "", name),
        Event::CsiDriverChanged(object) => there("csidrivers", &object.metadata),
        Event::CsiDriverGone(name) => gone("csidrivers", "", name),
        Event::StorageCapacityChanged(object) => there("csistoragecapacities", &object.metadata),
        Event::StorageCapacityGone(namespace, name) => {
            gone("csistoragecapacities", namespace, name)
        }
        Event::AttachmentChanged(object) => there("volumeattachments", &object.metadata),
        Event::AttachmentGone(name) => gone("volumeattachments", "", name),
    }
}

#[cfg(test)]
#[path = "set_aside_tests.rs"]
mod tests;
