//! Owns the authorisation of nodes: an index by node, fed by the store's own watch, finds the pods
//! bound to a node, and only these pods are read for their references. The rules are in
//! `resources::admission::need`.
//!
//! The index is built at the first check that needs it and updated at each later one. An update
//! costs the changes of pods since the previous check, or a list of all pods if the store's history
//! no longer contains the changes. The index has one key for each bound pod. Test:
//! `tests/api/nodes.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt;
use parking_lot::Mutex;
use resources::access::RequestAttributes;
use resources::admission::{AccessCondition, ReferencedObject, need, references};
use serde_json::Value;
use store::{EntryMeta, Event, EventKind, Store, Watch};

use crate::core_kinds::kind_of;

/// The rights of nodes, with the index that they need.
#[derive(Default)]
pub(crate) struct NodeAuthorizer(Mutex<Option<PodsByNode>>);

/// The keys of the bound pods, by node.
struct PodsByNode {
    changes: Watch,
    keys: BTreeMap<String, BTreeSet<Arc<str>>>,
}

/// The node that an entry's pod is bound to; empty if it is unbound.
fn node_of(meta: &EntryMeta) -> &str {
    meta.fields.get("spec.nodeName").map_or("", String::as_str)
}

impl NodeAuthorizer {
    /// True if the node may do this. `selector` is the request's field selector, empty if it has none.
    pub(crate) fn permits(
        &self,
        store: &Store,
        node: &str,
        wanted: &RequestAttributes<'_>,
        selector: &str,
    ) -> bool {
        match need(node, wanted, selector) {
            AccessCondition::Nothing => true,
            AccessCondition::Never => false,
            AccessCondition::Bound { namespace, pod } => {
                let key = kind_of("", "Pod").key(Some(namespace), pod);
                let entry = store.get(&key);
                entry.is_some_and(|entry| node_of(&entry.meta) == node)
            }
            AccessCondition::Referred { namespace, to } => self.refers(store, node, namespace, &to),
        }
    }

    /// True if an unfinished pod in the namespace that is bound to the node refers to the object.
    fn refers(&self, store: &Store, node: &str, namespace: &str, to: &ReferencedObject) -> bool {
        let prefix = kind_of("", "Pod").prefix(Some(namespace));
        let keys = self.of(store, node, &prefix);
        keys.iter().any(|key| {
            let Some(entry) = store.get(key) else {
                return false;
            };
            if node_of(&entry.meta) != node {
                return false;
            }
            let Ok(pod) = serde_json::from_slice::<Value>(&entry.value) else {
                return false;
            };
            let ended = matches!(
                pod["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed")
            );
            !ended && references(&pod).contains(to)
        })
    }

    /// The keys of the node's pods with the prefix. None if the store cannot be watched any more.
    fn of(&self, store: &Store, node: &str, prefix: &str) -> Vec<Arc<str>> {
        let mut kept = self.0.lock();
        let current = kept.as_mut().is_some_and(PodsByNode::catch_up);
        if !current {
            *kept = PodsByNode::read(store);
        }
        let keys = kept.as_ref().and_then(|index| index.keys.get(node));
        keys.into_iter()
            .flatten()
            .filter(|key| key.starts_with(prefix))
            .cloned()
            .collect()
    }
}

impl PodsByNode {
    fn read(store: &Store) -> Option<Self> {
        let prefix = kind_of("", "Pod").prefix(None);
        // Starts the watch first: a change in between is in the list and reported again, without
        // effect.
        let changes = match store.watch(&prefix, None) {
            Ok(changes) => changes,
            Err(error) => {
                tracing::warn!(%error, "the node authorizer cannot watch the pods; it refuses the nodes' requests that depend on them");
                return None;
            }
        };
        let mut index = PodsByNode {
            changes,
            keys: BTreeMap::new(),
        };
        for entry in store.list(&prefix, None, usize::MAX).entries {
            index.put(node_of(&entry.meta), &entry.key);
        }
        index.catch_up().then_some(index)
    }

    /// Applies the changes since the last call; false if changes were missed.
    fn catch_up(&mut self) -> bool {
        loop {
            match self.changes.next_batch().now_or_never() {
                None => return true,
                Some(Some(Ok(events))) => events.iter().for_each(|event| self.take(event)),
                Some(Some(Err(_)) | None) => return false,
            }
        }
    }

    fn take(&mut self, event: &Event) {
        let before = event.previous.as_ref().map_or("", |meta| node_of(meta));
        let now = match event.kind {
            EventKind::Deleted => "",
            EventKind::Added | EventKind::Modified => node_of(&event.entry.meta),
        };
        if before != now {
            self.remove(before, &event.entry.key);
        }
        self.put(now, &event.entry.key);
    }

    fn put(&mut self, node: &str, key: &Arc<str>) {
        if node.is_empty() {
            return;
        }
        match self.keys.get_mut(node) {
            Some(keys) => {
                keys.insert(key.clone());
            }
            None => {
                let keys = BTreeSet::from([key.clone()]);
                self.keys.insert(node.to_owned(), keys);
            }
        }
    }

    fn remove(&mut self, node: &str, key: &Arc<str>) {
        if let Some(keys) = self.keys.get_mut(node) {
            keys.remove(key);
            if keys.is_empty() {
                self.keys.remove(node);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use store::Options;

    use super::*;

    async fn write(store: &Store, name: &str, node: Option<&str>) {
        let key = kind_of("", "Pod").key(Some("ns"), name);
        let node = node.map(str::to_owned);
        let written = store.commit(move |view| {
            match node {
                Some(node) => {
                    let meta = EntryMeta {
                        fields: BTreeMap::from([("spec.nodeName".to_owned(), node)]),
                        ..EntryMeta::default()
                    };
                    view.put(key, meta, |_| "{}".into());
                }
                None => {
                    view.delete(&key, |_, _| "{}".into());
                }
            }
            Ok::<(), std::convert::Infallible>(())
        });
        written.await.unwrap();
    }

    #[tokio::test]
    async fn the_index_follows_every_change_and_is_read_anew_where_changes_were_missed() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            history: 4,
            ..Options::default()
        };
        let store = Store::open(dir.path(), options).unwrap();
        let memory = NodeAuthorizer::default();
        let pods = |node: &str| -> Vec<String> {
            let keys = memory.of(&store, node, "/core/pods/ns/").into_iter();
            keys.map(|key| key.rsplit('/').next().unwrap_or_default().to_owned())
                .collect()
        };
        write(&store, "a", Some("n1")).await;
        write(&store, "b", Some("")).await;
        assert_eq!(pods("n1"), ["a"]);
        write(&store, "b", Some("n1")).await;
        assert_eq!(pods("n1"), ["a", "b"]);
        assert_eq!(pods(""), [""; 0]);
        write(&store, "a", None).await;
        write(&store, "a", Some("n2")).await;
        assert_eq!(
            (pods("n1"), pods("n2")),
            (vec!["b".into()], vec!["a".into()])
        );
        // More changes than the history contains.
        for _ in 0..6 {
            write(&store, "b", None).await;
            write(&store, "b", Some("n3")).await;
        }
        assert_eq!((pods("n1").len(), pods("n3")), (0, vec!["b".into()]));
        assert_eq!(memory.of(&store, "n3", "/core/pods/other/").len(), 0);
    }
}
