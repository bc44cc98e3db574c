//! The runtimes that TrainJobs run in, of each namespace and of all.

use std::collections::{BTreeMap, BTreeSet};

use kube::Resource;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use resources::kinds::{ClusterTrainingRuntime, TrainingRuntime, TrainingRuntimeSpec};

use super::ObjectKey;

/// One kind's runtimes, as last seen.
#[derive(Default)]
struct Runtimes {
    now: BTreeMap<ObjectKey, TrainingRuntimeSpec>,
    /// During a listing, those that it has shown so far.
    listing: BTreeSet<ObjectKey>,
    complete: bool,
}

impl Runtimes {
    /// Applies one event. Returns whether a runtime changed. One that cannot be read counts as absent.
    fn take<K: Resource>(
        &mut self,
        event: Event<DeserializeGuard<K>>,
        spec: impl Fn(K) -> TrainingRuntimeSpec,
    ) -> bool
    where
        DeserializeGuard<K>: Resource,
    {
        let key = |object: &DeserializeGuard<K>| -> ObjectKey {
            let meta = object.meta();
            (
                meta.namespace.clone().unwrap_or_default(),
                meta.name.clone().unwrap_or_default(),
            )
        };
        match event {
            Event::Init => {
                self.listing.clear();
                false
            }
            Event::InitDone => {
                self.complete = true;
                let listed = std::mem::take(&mut self.listing);
                let before = self.now.len();
                self.now.retain(|key, _| listed.contains(key));
                self.now.len() < before
            }
            Event::Delete(object) => self.now.remove(&key(&object)).is_some(),
            Event::InitApply(object) => {
                let key = key(&object);
                self.listing.insert(key.clone());
                self.put(key, object, spec)
            }
            Event::Apply(object) => {
                let key = key(&object);
                self.put(key, object, spec)
            }
        }
    }

    fn put<K>(
        &mut self,
        key: ObjectKey,
        object: DeserializeGuard<K>,
        spec: impl Fn(K) -> TrainingRuntimeSpec,
    ) -> bool {
        match object.0 {
            Ok(object) => {
                let spec = spec(object);
                let before = self.now.insert(key, spec.clone());
                before.as_ref() != Some(&spec)
            }
            Err(error) => {
                let (namespace, name) = &key;
                tracing::warn!(%error, namespace, name, "a training runtime cannot be read; the controller treats it as absent");
                self.now.remove(&key).is_some()
            }
        }
    }
}

/// All runtimes.
#[derive(Default)]
pub(crate) struct RuntimeCache {
    of_namespaces: Runtimes,
    of_cluster: Runtimes,
}

impl RuntimeCache {
    /// Whether all were listed once.
    pub(crate) fn is_complete(&self) -> bool {
        self.of_namespaces.complete && self.of_cluster.complete
    }

    /// Applies one event of TrainingRuntimes.
    pub(crate) fn take(&mut self, event: Event<DeserializeGuard<TrainingRuntime>>) -> bool {
        self.of_namespaces.take(event, |runtime| runtime.spec)
    }

    /// Applies one event of ClusterTrainingRuntimes.
    pub(crate) fn take_of_cluster(
        &mut self,
        event: Event<DeserializeGuard<ClusterTrainingRuntime>>,
    ) -> bool {
        self.of_cluster.take(event, |runtime| runtime.spec.into())
    }

    /// The runtime of this name of a namespace.
    pub(crate) fn of_namespace(&self, namespace: &str, name: &str) -> Option<&TrainingRuntimeSpec> {
        let key = (namespace.to_owned(), name.to_owned());
        self.of_namespaces.now.get(&key)
    }

    /// The runtime of this name for all namespaces.
    pub(crate) fn of_cluster(&self, name: &str) -> Option<&TrainingRuntimeSpec> {
        self.of_cluster.now.get(&(String::new(), name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn runtime(namespace: &str, name: &str, nodes: Value) -> DeserializeGuard<TrainingRuntime> {
        serde_json::from_value(json!({"metadata": {"namespace": namespace, "name": name},
            "spec": {"mlPolicy": {"numNodes": nodes}, "template": {"spec": {}}}}))
        .unwrap()
    }

    #[test]
    fn runtimes_are_found_by_name_and_a_change_is_told() {
        let mut cache = RuntimeCache::default();
        assert!(!cache.take(Event::Init));
        assert!(cache.take(Event::InitApply(runtime("team", "r", json!(1)))));
        assert!(!cache.is_complete());
        assert!(!cache.take(Event::InitDone));
        assert!(!cache.take(Event::Apply(runtime("team", "r", json!(1)))));
        assert!(cache.take(Event::Apply(runtime("team", "r", json!(2)))));
        assert!(cache.of_namespace("team", "r").is_some());
        assert!(cache.of_namespace("other", "r").is_none());
        assert!(cache.of_cluster("r").is_none());
        assert!(cache.take(Event::Apply(runtime("team", "r", json!("two")))));
        assert!(cache.of_namespace("team", "r").is_none());
        assert!(!cache.take_of_cluster(Event::InitDone));
        assert!(cache.is_complete());
    }
}
