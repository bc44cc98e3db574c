//! The fleet's watches: one for each kind, whatever the number of sessions. They only feed the
//! index.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Client;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use serde::de::DeserializeOwned;
use supervisor::{LoopEnd, SetAside, contained, keep_running};
use tokio::task::AbortHandle;

use crate::admissions::{self, Admissions};
use crate::index::{Index, IndexKey, ListKind, Touched, key_of};
use crate::live_index::LiveIndex;
use crate::open_sessions::OpenSessions;
use crate::panics;
use crate::peer_check::is_valid;

/// How the index applies the events of one kind.
struct EventHandler<K> {
    name: &'static str,
    listed: ListKind,
    put: fn(&mut Index, K) -> Touched,
    remove: fn(&mut Index, &IndexKey, &K) -> Touched,
    retain: fn(&mut Index, &BTreeSet<IndexKey>) -> Touched,
}

impl<K> Clone for EventHandler<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for EventHandler<K> {}

/// Starts the watches that feed an index. They hold it weakly, and end with it.
pub fn spawn(client: &Client, index: &Arc<LiveIndex>) -> Vec<AbortHandle> {
    let pods = EventHandler::<Pod> {
        name: "the fleet's watch of pods",
        listed: ListKind::Pods,
        put: Index::put_pod,
        remove: |index, key, pod| index.remove_pod(key, pod.metadata.uid.as_deref()),
        retain: Index::retain_pods,
    };
    let services = EventHandler::<Service> {
        name: "the fleet's watch of services",
        listed: ListKind::Services,
        put: Index::put_service,
        remove: |index, key, _| index.remove_service(key),
        retain: Index::retain_services,
    };
    let nodes = EventHandler::<Node> {
        name: "the fleet's watch of nodes",
        listed: ListKind::Nodes,
        put: |index, node| index.put_node(&node),
        remove: |index, key, _| index.remove_node(&key.1),
        // The address of a deleted node is harmless.
        retain: |_, _| Touched::default(),
    };
    let slices = EventHandler::<EndpointSlice> {
        name: "the fleet's watch of endpoint slices",
        listed: ListKind::Slices,
        put: Index::put_slice,
        remove: |index, key, _| index.remove_slice(key),
        retain: Index::retain_slices,
    };
    let policies = EventHandler::<NetworkPolicy> {
        name: "the fleet's watch of NetworkPolicies",
        listed: ListKind::Policies,
        put: Index::put_policy,
        remove: |index, key, _| index.remove_policy(key),
        retain: Index::retain_policies,
    };
    let namespaces = EventHandler::<Namespace> {
        name: "the fleet's watch of namespaces",
        listed: ListKind::Namespaces,
        put: |index, namespace| index.put_namespace(&namespace),
        remove: |index, key, _| index.remove_namespace(key),
        retain: Index::retain_namespaces,
    };
    let any = watcher::Config::default();
    // Sessions do not need pods without a node.
    let bound = any.clone().fields("spec.nodeName!=");
    vec![
        kept(client, index, bound, pods),
        kept(client, index, any.clone(), services),
        kept(client, index, any.clone(), nodes),
        kept(client, index, any.clone(), slices),
        kept(client, index, any.clone(), policies),
        kept(client, index, any, namespaces),
    ]
}

/// Starts a watch that is started again when it ends or panics.
fn kept<K>(
    client: &Client,
    index: &Arc<LiveIndex>,
    selection: watcher::Config,
    handler: EventHandler<K>,
) -> AbortHandle
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (client, weak) = (client.clone(), Arc::downgrade(index));
    let start = move || follow(client.clone(), weak.clone(), selection.clone(), handler);
    tokio::spawn(keep_running(handler.name, start)).abort_handle()
}

/// Keeps the nodes' admissions current, and ends the sessions of nodes whose certificate was
/// revoked.
pub fn spawn_admissions(
    admissions: &Arc<Admissions>,
    sessions: &Arc<OpenSessions>,
) -> [AbortHandle; 2] {
    let (weak_admissions, changes) = (Arc::downgrade(admissions), admissions.changes());
    let followed = weak_admissions.clone();
    let following = keep_running("the fleet's watch of admissions", move || {
        admissions::follow(followed.clone())
    });
    let weak_sessions = Arc::downgrade(sessions);
    let ending = keep_running("the end of revoked sessions", move || {
        let (admissions, sessions) = (weak_admissions.clone(), weak_sessions.clone());
        let mut changes = changes.clone();
        async move {
            while changes.changed().await.is_ok() {
                let (Some(admissions), Some(sessions)) = (admissions.upgrade(), sessions.upgrade())
                else {
                    return LoopEnd::Finished;
                };
                end_revoked(&admissions, &sessions);
            }
            LoopEnd::Finished
        }
    });
    [
        tokio::spawn(following).abort_handle(),
        tokio::spawn(ending).abort_handle(),
    ]
}

/// Ends the sessions whose certificate was revoked.
fn end_revoked(admissions: &Admissions, sessions: &OpenSessions) {
    for session in sessions.all().values() {
        if is_valid(admissions, &session.peer, Timestamp::now()) {
            continue;
        }
        tracing::info!(
            node = session.node,
            "the node's certificate is no longer valid"
        );
        session.end();
    }
}

async fn follow<K>(
    client: Client,
    index: Weak<LiveIndex>,
    selection: watcher::Config,
    handler: EventHandler<K>,
) -> LoopEnd
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    // The watcher lists again after errors, with exponential backoff.
    let api = Api::<K>::all(client.clone());
    let mut events = std::pin::pin!(watcher(api, selection).default_backoff());
    let mut listed = BTreeSet::new();
    let mut aside = SetAside::default();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            (_, object) = aside.due() => Some(Ok(watcher::Event::Apply(object))),
        };
        let Some(event) = event else {
            return LoopEnd::Unexpected;
        };
        let Some(index) = index.upgrade() else {
            return LoopEnd::Finished;
        };
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                listed.insert(key_of(object.meta()));
                put(&client, &index, &handler, &mut aside, object).await;
            }
            Ok(watcher::Event::InitDone) => {
                let listed = std::mem::take(&mut listed);
                index.change(|index| {
                    index.set_synced(handler.listed);
                    (handler.retain)(index, &listed)
                });
            }
            Ok(watcher::Event::Apply(object)) => {
                put(&client, &index, &handler, &mut aside, object).await;
            }
            Ok(watcher::Event::Delete(object)) => {
                let key = key_of(object.meta());
                aside.remove(&key);
                let removed =
                    async { index.change(|index| (handler.remove)(index, &key, &object)) };
                if let Err(panic) = contained(removed).await {
                    panics::report(&client, &object, handler.name, panic.message()).await;
                }
            }
            Err(error) => {
                tracing::warn!(kind = ?handler.listed, %error, "the watch of nodes and pods failed; the server opens it again");
            }
        }
    }
}

/// Feeds the index with an object. One over which the index panics is reported and set aside.
async fn put<K>(
    client: &Client,
    index: &LiveIndex,
    handler: &EventHandler<K>,
    aside: &mut SetAside<IndexKey, K>,
    object: K,
) where
    K: kube::Resource<DynamicType = ()> + Clone,
{
    let key = key_of(object.meta());
    let applied = async { index.change(|index| (handler.put)(index, object.clone())) };
    match contained(applied).await {
        Ok(()) => aside.remove(&key),
        Err(panic) => {
            panics::report(client, &object, handler.name, panic.message()).await;
            aside.put(key, object);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pod(name: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("team".to_owned());
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.uid = Some(name.to_owned());
        pod.spec = Some(k8s_openapi::api::core::v1::PodSpec {
            node_name: Some("n1".to_owned()),
            ..Default::default()
        });
        pod
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_panics_is_set_aside_and_the_others_are_fed() {
        let (client, events) = crate::testing::client();
        let index = LiveIndex::new(Arc::default());
        fn wild(index: &mut Index, pod: Pod) -> Touched {
            assert!(
                pod.metadata.name.as_deref() != Some("bad"),
                "over {:?}",
                pod.metadata.name
            );
            index.put_pod(pod)
        }
        let handler = EventHandler::<Pod> {
            name: "test",
            listed: ListKind::Pods,
            put: wild,
            remove: |index, key, pod| index.remove_pod(key, pod.metadata.uid.as_deref()),
            retain: Index::retain_pods,
        };
        let mut aside = SetAside::default();
        for name in ["a", "bad", "c"] {
            put(&client, &index, &handler, &mut aside, pod(name)).await;
        }
        assert_eq!(index.lock().pods_of_node("n1").len(), 2);
        let written = events.lock().join("\n");
        assert!(written.contains("ReconcilePanicked"), "{written}");
        assert!(
            written.contains("\"name\":\"bad\"") && !written.contains("\"name\":\"a\""),
            "{written}"
        );
        // Tried again, and handled once it can be.
        let (key, object) = tokio::time::timeout(Duration::from_secs(2), aside.due())
            .await
            .unwrap();
        assert_eq!(key.1, "bad");
        let handler = EventHandler {
            put: Index::put_pod,
            ..handler
        };
        put(&client, &index, &handler, &mut aside, object).await;
        assert_eq!(index.lock().pods_of_node("n1").len(), 3);
        let none = tokio::time::timeout(Duration::from_secs(600), aside.due()).await;
        assert!(none.is_err());
    }
}
