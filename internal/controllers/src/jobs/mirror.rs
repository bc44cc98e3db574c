//! The cache of one watch: the objects of one kind, as last seen.
//!
//! Differs from `core_controllers::mirror`, which keeps a few fields of each object: a job's controller needs
//! whole objects, so a new listing is applied object by object and is never held in memory twice,
//! and an object that can't be read counts as absent. kube's reflector has neither the state from
//! before a change nor a filter by owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;

use super::{ObjectKey, RunnerObject, key_of};

/// The objects of one kind, by namespace and name.
pub(crate) struct KindMirror<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    /// During a listing, the objects that it has shown so far.
    listing: Option<BTreeSet<ObjectKey>>,
    complete: bool,
}

/// One object before and after an event.
pub(crate) struct ObjectEvent<K> {
    pub(crate) key: ObjectKey,
    pub(crate) before: Option<Arc<K>>,
    pub(crate) after: Option<Arc<K>>,
}

impl<K: RunnerObject> KindMirror<K> {
    pub(crate) fn new() -> KindMirror<K> {
        KindMirror {
            objects: BTreeMap::new(),
            listing: None,
            complete: false,
        }
    }

    /// Whether a complete listing was received.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        self.objects.get(key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.objects.keys()
    }

    /// The objects of one namespace.
    pub(crate) fn in_namespace<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<K>)> {
        self.objects
            .range((namespace.to_owned(), String::new())..)
            .take_while(move |((of, _), _)| of == namespace)
    }

    /// Applies one event; objects that `keep` rejects count as absent.
    pub(crate) fn take(
        &mut self,
        event: Event<K>,
        keep: impl Fn(&K) -> bool,
    ) -> Vec<ObjectEvent<K>> {
        match event {
            Event::Init => {
                self.listing = Some(BTreeSet::new());
                Vec::new()
            }
            Event::InitApply(object) => {
                if keep(&object)
                    && let Some(listing) = &mut self.listing
                {
                    listing.insert(key_of(&object));
                }
                self.put(object, keep)
            }
            Event::InitDone => {
                self.complete = true;
                let listed = self.listing.take().unwrap_or_default();
                let gone: Vec<ObjectKey> = self
                    .objects
                    .keys()
                    .filter(|key| !listed.contains(*key))
                    .cloned()
                    .collect();
                gone.into_iter().map(|key| self.remove(key)).collect()
            }
            Event::Apply(object) => self.put(object, keep),
            Event::Delete(object) => self.leave(key_of(&object)),
        }
    }

    /// Applies one event of a watch whose objects may be unreadable, because another operator
    /// installed the kind. An unreadable object counts as absent and is left alone.
    pub(crate) fn take_readable(
        &mut self,
        event: Event<DeserializeGuard<K>>,
    ) -> Vec<ObjectEvent<K>> {
        let event = match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(DeserializeGuard(Ok(object))) => Event::InitApply(object),
            Event::Apply(DeserializeGuard(Ok(object))) => Event::Apply(object),
            Event::InitApply(object) | Event::Apply(object) => {
                let (namespace, name) = key_of(&object);
                if let DeserializeGuard(Err(error)) = &object {
                    let kind = K::kind(&());
                    tracing::warn!(%kind, namespace, name, %error, "an object cannot be read; the controller treats it as absent");
                }
                return self.leave((namespace, name));
            }
            Event::Delete(object) => return self.leave(key_of(&object)),
        };
        self.take(event, |_| true)
    }

    fn put(&mut self, mut object: K, keep: impl Fn(&K) -> bool) -> Vec<ObjectEvent<K>> {
        let key = key_of(&object);
        if !keep(&object) {
            return self.leave(key);
        }
        // No code here reads managed fields, and they are half the size of many objects.
        object.meta_mut().managed_fields = None;
        let after = Arc::new(object);
        let before = self.objects.insert(key.clone(), after.clone());
        vec![ObjectEvent {
            key,
            before,
            after: Some(after),
        }]
    }

    fn leave(&mut self, key: ObjectKey) -> Vec<ObjectEvent<K>> {
        if self.objects.contains_key(&key) {
            vec![self.remove(key)]
        } else {
            Vec::new()
        }
    }

    fn remove(&mut self, key: ObjectKey) -> ObjectEvent<K> {
        let before = self.objects.remove(&key);
        ObjectEvent {
            key,
            before,
            after: None,
        }
    }
}

/// The jobs that an event concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Concerned {
    /// The owners of what changed.
    pub(crate) jobs: Vec<ObjectKey>,
    /// The namespace and labels of changed objects without a controller.
    pub(crate) orphans: Vec<(String, BTreeMap<String, String>)>,
}

/// The objects of one kind that jobs own, found by their owner's uid, and those that jobs may adopt.
pub(crate) struct Owned<K> {
    mirror: KindMirror<K>,
    /// Which objects without a controller are kept; none if absent.
    adoptable: Option<fn(&K) -> bool>,
    /// Those, by name.
    orphans: BTreeMap<ObjectKey, Arc<K>>,
    by_owner: BTreeMap<String, BTreeMap<ObjectKey, Arc<K>>>,
}

impl<K: RunnerObject> Owned<K> {
    pub(crate) fn new(adoptable: Option<fn(&K) -> bool>) -> Owned<K> {
        Owned {
            mirror: KindMirror::new(),
            adoptable,
            orphans: BTreeMap::new(),
            by_owner: BTreeMap::new(),
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.mirror.is_complete()
    }

    pub(crate) fn of(&self, owner: &str) -> Vec<&K> {
        self.by_owner
            .get(owner)
            .into_iter()
            .flat_map(BTreeMap::values)
            .map(Arc::as_ref)
            .collect()
    }

    /// The objects of a namespace without a controller.
    pub(crate) fn orphans<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a K> {
        self.orphans
            .range((namespace.to_owned(), String::new())..)
            .take_while(move |((of, _), _)| of == namespace)
            .map(|(_, object)| object.as_ref())
    }

    /// Applies one event and returns the jobs of this kind that it concerns.
    pub(crate) fn take(&mut self, event: Event<K>, owner_kind: &str) -> Concerned {
        let mut concerned = Vec::new();
        let mut orphans = Vec::new();
        let adoptable = self.adoptable;
        let free = |object: &K| adoptable.is_some_and(|may| is_orphan(object) && may(object));
        let keep = |object: &K| owner(object, owner_kind).is_some() || free(object);
        for change in self.mirror.take(event, keep) {
            self.orphans.remove(&change.key);
            if let Some(after) = change.after.as_ref().filter(|after| is_orphan::<K>(after)) {
                let labels = after.meta().labels.clone().unwrap_or_default();
                orphans.push((change.key.0.clone(), labels));
                self.orphans.insert(change.key.clone(), after.clone());
            }
            if let Some(before) = &change.before
                && let Some((uid, job)) = owner(before.as_ref(), owner_kind)
            {
                if let Some(objects) = self.by_owner.get_mut(&uid) {
                    objects.remove(&change.key);
                    if objects.is_empty() {
                        self.by_owner.remove(&uid);
                    }
                }
                concerned.push((change.key.0.clone(), job));
            }
            if let Some(after) = change.after
                && let Some((uid, job)) = owner(after.as_ref(), owner_kind)
            {
                concerned.push((change.key.0.clone(), job));
                self.by_owner
                    .entry(uid)
                    .or_default()
                    .insert(change.key, after);
            }
        }
        concerned.dedup();
        Concerned {
            jobs: concerned,
            orphans,
        }
    }
}

/// The objects of one kind whose label names a job, which need not own them.
pub(crate) struct Labelled<K> {
    mirror: KindMirror<K>,
    by_job: BTreeMap<ObjectKey, BTreeMap<ObjectKey, Arc<K>>>,
}

impl<K: RunnerObject> Labelled<K> {
    pub(crate) fn new() -> Labelled<K> {
        Labelled {
            mirror: KindMirror::new(),
            by_job: BTreeMap::new(),
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.mirror.is_complete()
    }

    /// The objects whose label names the job.
    pub(crate) fn of(&self, job: &ObjectKey) -> Vec<&K> {
        let objects = self.by_job.get(job).into_iter();
        objects
            .flat_map(BTreeMap::values)
            .map(Arc::as_ref)
            .collect()
    }

    /// Applies one event and returns the jobs that it concerns; the label's value is the job's name.
    pub(crate) fn take(&mut self, event: Event<K>, label: &str) -> Vec<ObjectKey> {
        let job = |object: &K| -> Option<ObjectKey> {
            let name = object.meta().labels.as_ref()?.get(label)?.clone();
            Some((key_of(object).0, name))
        };
        let mut concerned = Vec::new();
        for change in self.mirror.take(event, |object| job(object).is_some()) {
            if let Some(job) = change
                .before
                .as_ref()
                .and_then(|before| job(before.as_ref()))
            {
                if let Some(objects) = self.by_job.get_mut(&job) {
                    objects.remove(&change.key);
                    if objects.is_empty() {
                        self.by_job.remove(&job);
                    }
                }
                concerned.push(job);
            }
            if let Some(after) = change.after
                && let Some(job) = job(after.as_ref())
            {
                let objects = self.by_job.entry(job.clone()).or_default();
                objects.insert(change.key, after);
                concerned.push(job);
            }
        }
        concerned.dedup();
        concerned
    }
}

/// Whether the object has labels that a selector can match, no controller and no deletion request.
fn is_orphan<K: RunnerObject>(object: &K) -> bool {
    let meta = object.meta();
    let references = meta.owner_references.as_deref().unwrap_or_default();
    meta.deletion_timestamp.is_none()
        && meta
            .labels
            .as_ref()
            .is_some_and(|labels| !labels.is_empty())
        && !references
            .iter()
            .any(|reference| reference.controller == Some(true))
}

/// The uid and name of the object's controller, if it is of this kind.
fn owner<K: RunnerObject>(object: &K, kind: &str) -> Option<(String, String)> {
    let references = object.meta().owner_references.as_deref()?;
    let controller = references
        .iter()
        .find(|reference| reference.controller == Some(true))?;
    (controller.kind == kind).then(|| (controller.uid.clone(), controller.name.clone()))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, owner: Option<&str>) -> Pod {
        let owners = owner.map(|uid| {
            json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid, "controller": true}])
        });
        serde_json::from_value(json!({"metadata": {
            "name": name, "namespace": "team", "ownerReferences": owners.unwrap_or(json!([])),
        }}))
        .unwrap()
    }

    fn names(owned: &Owned<Pod>, owner: &str) -> Vec<String> {
        owned
            .of(owner)
            .iter()
            .map(|pod| pod.metadata.name.clone().unwrap())
            .collect()
    }

    #[test]
    fn a_new_listing_drops_objects_that_it_does_not_show() {
        let mut owned = Owned::new(None);
        owned.take(Event::Init, "Job");
        owned.take(Event::InitApply(pod("a", Some("u1"))), "Job");
        owned.take(Event::InitApply(pod("b", Some("u1"))), "Job");
        assert!(!owned.is_complete());
        owned.take(Event::InitDone, "Job");
        assert!(owned.is_complete());
        owned.take(Event::Init, "Job");
        owned.take(Event::InitApply(pod("b", Some("u1"))), "Job");
        assert_eq!(
            names(&owned, "u1"),
            ["a", "b"],
            "until the listing is whole, nothing is forgotten"
        );
        let concerned = owned.take(Event::InitDone, "Job").jobs;
        assert_eq!(concerned, [("team".to_owned(), "j".to_owned())]);
        assert_eq!(names(&owned, "u1"), ["b"]);
    }

    #[test]
    fn pods_of_other_owners_are_not_kept() {
        let mut owned = Owned::new(None);
        let nothing = Concerned::default();
        let orphan = owned.take(Event::Apply(pod("a", None)), "Job");
        assert_eq!(orphan, nothing);
        let foreign = owned.take(Event::Apply(pod("b", Some("u1"))), "PyTorchJob");
        assert_eq!(foreign, nothing);
        assert!(owned.by_owner.is_empty());
    }

    #[test]
    fn orphans_are_kept_for_kinds_that_adopt_while_they_have_no_controller() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let labelled = |name: &str, owner: Option<&str>| {
            let mut pod = pod(name, owner);
            pod.metadata.labels = Some(labels.clone());
            pod
        };
        let mut owned = Owned::new(Some(|pod: &Pod| pod.metadata.name.as_deref() != Some("no")));
        let concerned = owned.take(Event::Apply(labelled("a", None)), "Job");
        assert_eq!(concerned.orphans, [("team".to_owned(), labels.clone())]);
        owned.take(Event::Apply(labelled("no", None)), "Job");
        owned.take(Event::Apply(pod("unlabelled", None)), "Job");
        assert_eq!(owned.orphans("team").count(), 1);
        assert_eq!(owned.orphans("tea").count(), 0);
        owned.take(Event::Apply(labelled("a", Some("u1"))), "Job");
        assert_eq!(owned.orphans("team").count(), 0);
        assert_eq!(names(&owned, "u1"), ["a"]);
        owned.take(Event::Apply(labelled("b", None)), "Job");
        owned.take(Event::Delete(labelled("b", None)), "Job");
        assert_eq!(owned.orphans("team").count(), 0);
    }

    #[test]
    fn pods_are_found_by_the_job_that_their_label_names() {
        let labelled = |name: &str, job: &str| {
            let mut pod = pod(name, None);
            let labels = BTreeMap::from([("of".to_owned(), job.to_owned())]);
            pod.metadata.labels = Some(labels);
            pod
        };
        let key = |job: &str| ("team".to_owned(), job.to_owned());
        let mut pods: Labelled<Pod> = Labelled::new();
        assert_eq!(
            pods.take(Event::Apply(labelled("a", "one")), "of"),
            [key("one")]
        );
        assert_eq!(
            pods.take(Event::Apply(labelled("a", "two")), "of"),
            [key("one"), key("two")]
        );
        assert!(pods.take(Event::Apply(pod("b", None)), "of").is_empty());
        assert!(pods.of(&key("one")).is_empty());
        assert_eq!(pods.of(&key("two")).len(), 1);
        assert_eq!(
            pods.take(Event::Delete(labelled("a", "two")), "of"),
            [key("two")]
        );
        assert!(pods.of(&key("two")).is_empty());
    }

    #[test]
    fn a_pod_that_changes_hands_concerns_both_jobs() {
        let mut owned = Owned::new(None);
        owned.take(Event::Apply(pod("a", Some("u1"))), "Job");
        owned.take(Event::Apply(pod("a", Some("u2"))), "Job");
        assert!(names(&owned, "u1").is_empty());
        assert_eq!(names(&owned, "u2"), ["a"]);
        owned.take(Event::Apply(pod("a", None)), "Job");
        assert!(names(&owned, "u2").is_empty());
    }

    #[test]
    fn a_job_that_cannot_be_read_is_left_alone_until_it_can_be_again() {
        use resources::kinds::PyTorchJob;
        let job = |policy: &str| -> DeserializeGuard<PyTorchJob> {
            serde_json::from_value(json!({
                "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
                "metadata": {"namespace": "team", "name": "j"},
                "spec": {"pytorchReplicaSpecs": {"Master": {
                    "restartPolicy": policy, "template": {"spec": {"containers": []}},
                }}},
            }))
            .unwrap()
        };
        let key = ("team".to_owned(), "j".to_owned());
        let mut jobs: KindMirror<PyTorchJob> = KindMirror::new();
        jobs.take_readable(Event::Init);
        assert!(
            jobs.take_readable(Event::InitApply(job("Sometimes")))
                .is_empty()
        );
        jobs.take_readable(Event::InitDone);
        assert!(jobs.is_complete());
        jobs.take_readable(Event::Apply(job("Never")));
        assert!(jobs.get(&key).is_some());
        let changes = jobs.take_readable(Event::Apply(job("Sometimes")));
        assert!(changes.len() == 1 && changes[0].after.is_none());
        assert!(jobs.get(&key).is_none());
    }
}
