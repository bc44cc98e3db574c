//! Owns the stored roles and bindings, parsed and indexed. Follows the store so that a request sees
//! every role and binding whose write was acknowledged before it. `resources::rbac` interprets the
//! rules; `authorization` asks for them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::Stream;
use parking_lot::{Mutex, RwLock};
use resources::rbac::{PolicyObjects, RbacPolicy};
use store::{Event, EventKind, Store, Watch};

/// The store's prefixes of roles and bindings.
const PREFIX: &str = "/rbac.authorization.k8s.io/";

/// Counts the store's notifications about changes of roles and bindings.
#[derive(Default)]
struct RoleChanges(AtomicU64);

impl Wake for RoleChanges {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// The cached roles and bindings, and the watch that reports changes.
struct PolicySource {
    objects: PolicyObjects,
    watch: Watch,
}

/// The policy, and the notification count that it includes.
struct CachedPolicy {
    changes: u64,
    policy: Arc<RbacPolicy>,
}

/// The roles and bindings of a server.
pub(crate) struct Authority {
    changes: Arc<RoleChanges>,
    source: Mutex<PolicySource>,
    known: RwLock<CachedPolicy>,
}

impl Authority {
    /// Reads the roles and bindings of a store, and follows later changes.
    pub(crate) fn open(store: &Store) -> Authority {
        let authority = Authority {
            changes: Arc::default(),
            source: Mutex::new(PolicySource::read(store)),
            known: RwLock::new(CachedPolicy {
                changes: 0,
                policy: Arc::default(),
            }),
        };
        // The first poll reads the store's events and registers the waker with the watch.
        authority.changes.0.fetch_add(1, Ordering::Release);
        authority
    }

    /// The current policy of roles and bindings.
    pub(crate) fn policy(&self, store: &Store) -> Arc<RbacPolicy> {
        let now = self.changes.0.load(Ordering::Acquire);
        {
            let known = self.known.read();
            if known.changes == now {
                return known.policy.clone();
            }
        }
        let mut source = self.source.lock();
        let changes = self.changes.0.load(Ordering::Acquire);
        if self.known.read().changes != changes {
            let waker = Waker::from(self.changes.clone());
            source.follow(store, &mut Context::from_waker(&waker));
            let policy = Arc::new(RbacPolicy::new(&source.objects));
            *self.known.write() = CachedPolicy { changes, policy };
        }
        self.known.read().policy.clone()
    }
}

impl PolicySource {
    fn read(store: &Store) -> PolicySource {
        // Starts the watch first: a change between the two appears in both.
        let watch = store
            .watch(PREFIX, None)
            .expect("a watch that begins now is within the history");
        let mut objects = PolicyObjects::default();
        for entry in store.list(PREFIX, None, usize::MAX).entries {
            take(&mut objects, &entry.key, &entry.value);
        }
        PolicySource { objects, watch }
    }

    /// Applies changes; the waker is called at the next change after that.
    fn follow(&mut self, store: &Store, context: &mut Context<'_>) {
        loop {
            match Pin::new(&mut self.watch).poll_next(context) {
                Poll::Ready(Some(Ok(event))) => self.apply(&event),
                // The cache was not read for so long that the history has dropped changes.
                Poll::Ready(Some(Err(_))) => *self = PolicySource::read(store),
                // None: the store is closed, and no more changes follow.
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
    }

    fn apply(&mut self, event: &Event) {
        let entry = &event.entry;
        match event.kind {
            EventKind::Deleted => self.objects.remove(&entry.key),
            EventKind::Added | EventKind::Modified => {
                take(&mut self.objects, &entry.key, &entry.value);
            }
        }
    }
}

fn take(objects: &mut PolicyObjects, key: &str, json: &[u8]) {
    if let Err(error) = objects.put(key, json) {
        tracing::error!(key, %error, "the server cannot read this role or binding, which grants nothing; write it again");
    }
}

#[cfg(test)]
mod tests {
    use resources::access::{Caller, RequestAttributes};
    use serde_json::json;
    use store::{EntryMeta, Options};

    use super::*;

    async fn put(store: &Store, key: &'static str, object: serde_json::Value) {
        let written = store.commit(move |view| {
            let bytes = bytes::Bytes::from(object.to_string());
            view.put(key.to_owned(), EntryMeta::default(), |_| bytes);
            Ok::<(), std::convert::Infallible>(())
        });
        written.await.unwrap();
    }

    const ROLE: &str = "/rbac.authorization.k8s.io/clusterroles/-/r";
    const BINDING: &str = "/rbac.authorization.k8s.io/clusterrolebindings/-/b";

    fn role(verb: &str) -> serde_json::Value {
        json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": [verb]}]})
    }

    fn binding() -> serde_json::Value {
        json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "ann"}],
        })
    }

    #[tokio::test]
    async fn the_next_request_sees_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), Options::default()).unwrap();
        put(&store, ROLE, role("get")).await;
        let authority = Authority::open(&store);
        let ann = Caller::user("ann", []);
        let may = |verb: &str| {
            let request = RequestAttributes {
                verb,
                resource: "pods",
                namespace: Some("a"),
                ..RequestAttributes::default()
            };
            authority.policy(&store).permits(&ann, &request)
        };
        assert!(!may("get"));
        put(&store, BINDING, binding()).await;
        assert!(may("get") && !may("list"));
        // Unchanged objects are not read again.
        let before = authority.policy(&store);
        put(&store, "/core/configmaps/a/x", json!({})).await;
        assert!(Arc::ptr_eq(&before, &authority.policy(&store)));
        put(&store, ROLE, role("list")).await;
        assert!(may("list") && !may("get"));
        // An unreadable role grants nothing.
        put(&store, ROLE, json!({"rules": 1})).await;
        assert!(!may("list"));
        put(&store, ROLE, role("get")).await;
        assert!(may("get"));
        let gone = store.commit(|view| {
            view.delete(BINDING, |_, entry| entry.value.clone());
            Ok::<(), std::convert::Infallible>(())
        });
        gone.await.unwrap();
        assert!(!may("get"));
    }

    #[tokio::test]
    async fn changes_that_the_history_forgot_are_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            history: 4,
            ..Options::default()
        };
        let store = Store::open(dir.path(), options).unwrap();
        let authority = Authority::open(&store);
        authority.policy(&store);
        put(&store, ROLE, role("get")).await;
        put(&store, BINDING, binding()).await;
        for _ in 0..20 {
            put(&store, "/core/configmaps/a/x", json!({})).await;
        }
        let request = RequestAttributes {
            verb: "get",
            resource: "pods",
            ..RequestAttributes::default()
        };
        let ann = Caller::user("ann", []);
        assert!(authority.policy(&store).permits(&ann, &request));
    }
}
