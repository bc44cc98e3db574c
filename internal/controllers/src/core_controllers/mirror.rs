//! The in-memory copy of a kind that a loop works from: the fields that the loop needs of each
//! object, kept up to date by a watch, with the changes reported. Decides nothing.
//!
//! Differs from `jobs::mirror`, which keeps whole objects: this copy replaces its few fields at the
//! end of a listing, so that a loop never acts on a half-listed state. kube's reflector would keep
//! whole objects, and reports no state from before a change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

pub(super) use crate::key::{ObjectKey, key_of};

/// How events name an object of a mirror; `uid` if it is known.
pub(super) fn reference(
    api_version: &str,
    kind: &str,
    key: &ObjectKey,
    uid: Option<String>,
) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(key.0.clone()),
        name: Some(key.1.clone()),
        uid,
        ..ObjectReference::default()
    }
}

/// Watches a kind for ever; errors are logged and retried with backoff.
pub(super) fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
) -> BoxStream<'static, watcher::Event<K>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watcher(api, config)
        .backoff(crate::retry::Waits::default())
        .filter_map(|event| async move {
            event
                .inspect_err(|error| tracing::warn!(%error, "a watch was interrupted; the server opens it again"))
                .ok()
        })
        .boxed()
}

/// The retained fields of each object of a kind.
pub(super) struct FieldMirror<T> {
    objects: BTreeMap<ObjectKey, T>,
    incoming: BTreeMap<ObjectKey, T>,
    synced: bool,
}

/// An object that changed, with its retained fields from before. The current ones are in the
/// mirror.
pub(super) struct MirrorChange<T> {
    pub(super) key: ObjectKey,
    pub(super) before: Option<T>,
}

impl<T> FieldMirror<T> {
    pub(super) fn new() -> FieldMirror<T> {
        FieldMirror {
            objects: BTreeMap::new(),
            incoming: BTreeMap::new(),
            synced: false,
        }
    }

    /// Whether all objects were listed once.
    pub(super) fn synced(&self) -> bool {
        self.synced
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&T> {
        self.objects.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &T)> {
        self.objects.iter()
    }

    /// The objects of one namespace.
    pub(super) fn in_namespace<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a T)> {
        self.objects
            .range((namespace.to_owned(), String::new())..)
            .take_while(move |((of, _), _)| of == namespace)
    }

    /// Applies an event and returns the changes; `keep` extracts the retained fields of an object.
    pub(super) fn take<K: Resource>(
        &mut self,
        event: watcher::Event<K>,
        keep: impl Fn(K) -> T,
    ) -> Vec<MirrorChange<T>> {
        match event {
            watcher::Event::Init => {
                self.incoming.clear();
                Vec::new()
            }
            watcher::Event::InitApply(object) => {
                self.incoming.insert(key_of(&object), keep(object));
                Vec::new()
            }
            watcher::Event::InitDone => {
                self.synced = true;
                let mut old =
                    std::mem::replace(&mut self.objects, std::mem::take(&mut self.incoming));
                let keys: BTreeSet<ObjectKey> =
                    old.keys().chain(self.objects.keys()).cloned().collect();
                keys.into_iter()
                    .map(|key| MirrorChange {
                        before: old.remove(&key),
                        key,
                    })
                    .collect()
            }
            watcher::Event::Apply(object) => {
                let key = key_of(&object);
                let before = self.objects.insert(key.clone(), keep(object));
                vec![MirrorChange { key, before }]
            }
            watcher::Event::Delete(object) => {
                let key = key_of(&object);
                let before = self.objects.remove(&key);
                vec![MirrorChange { key, before }]
            }
        }
    }
}

/// The text of an optional field.
pub(super) fn text(field: Option<&String>) -> &str {
    field.map_or("", String::as_str)
}

/// The uid of an object; empty where the API gave none.
pub(super) fn uid_of<K: Resource>(object: &K) -> String {
    object.uid().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::watcher::Event;

    use super::*;

    fn object(namespace: &str, name: &str, version: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.namespace = Some(namespace.to_owned());
        object.metadata.name = Some(name.to_owned());
        object.metadata.resource_version = Some(version.to_owned());
        object
    }

    fn version(object: ConfigMap) -> String {
        object.metadata.resource_version.unwrap()
    }

    fn key(namespace: &str, name: &str) -> ObjectKey {
        (namespace.to_owned(), name.to_owned())
    }

    #[test]
    fn a_relist_reports_objects_that_vanished_in_between() {
        let mut mirror = FieldMirror::new();
        for event in [
            Event::Init,
            Event::InitApply(object("a", "x", "1")),
            Event::InitApply(object("a", "y", "2")),
        ] {
            assert!(mirror.take(event, version).is_empty());
            assert!(!mirror.synced());
        }
        assert_eq!(mirror.take(Event::InitDone, version).len(), 2);
        assert!(mirror.synced());
        mirror.take(Event::Init, version);
        // Known objects stay known while a new list comes in.
        assert_eq!(mirror.get(&key("a", "x")).unwrap(), "1");
        mirror.take(Event::InitApply(object("a", "y", "5")), version);
        let changes = mirror.take(Event::InitDone, version);
        let shown: Vec<_> = changes
            .iter()
            .map(|c| (c.key.1.as_str(), c.before.as_deref()))
            .collect();
        assert_eq!(shown, [("x", Some("1")), ("y", Some("2"))]);
        assert!(mirror.get(&key("a", "x")).is_none());
        assert_eq!(mirror.get(&key("a", "y")).unwrap(), "5");
    }

    #[test]
    fn a_namespace_has_only_its_own_objects() {
        let mut mirror = FieldMirror::new();
        for (namespace, name) in [("a", "x"), ("ab", "y"), ("b", "z"), ("a", "y")] {
            mirror.take(Event::Apply(object(namespace, name, "1")), version);
        }
        let names: Vec<_> = mirror.in_namespace("a").map(|(k, _)| &*k.1).collect();
        assert_eq!(names, ["x", "y"]);
        mirror.take(Event::Delete(object("a", "x", "2")), version);
        assert_eq!(mirror.in_namespace("a").count(), 1);
    }
}
