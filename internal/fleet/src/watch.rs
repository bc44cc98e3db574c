//! The fleet's watches: one for each kind, whatever the number of sessions. They only feed the
//! index.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use serde::de::DeserializeOwned;
use supervisor::{LoopEnd, SetAside, contained, keep_running};
use tokio::task::AbortHandle;

use crate::Fleet;
use crate::admissions;
use crate::index::{Index, IndexKey, ListKind, Touched, key_of};
use crate::panics;

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

/// Starts the watches. They hold the fleet weakly, and end with it.
pub fn spawn(fleet: &Arc<Fleet>) -> Vec<AbortHandle> {
    let client = fleet.client.clone();
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
        kept(fleet, Api::all(client.clone()), bound, pods),
        kept(fleet, Api::all(client.clone()), any.clone(), services),
        kept(fleet, Api::all(client.clone()), any.clone(), nodes),
        kept(fleet, Api::all(client.clone()), any.clone(), slices),
        kept(fleet, Api::all(client.clone()), any.clone(), policies),
        kept(fleet, Api::all(client), any, namespaces),
    ]
}

/// Starts a watch that is started again when it ends or panics.
fn kept<K>(
    fleet: &Arc<Fleet>,
    api: Api<K>,
    chosen: watcher::Config,
    feed: EventHandler<K>,
) -> AbortHandle
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let weak = Arc::downgrade(fleet);
    let start = move || follow(weak.clone(), api.clone(), chosen.clone(), feed);
    tokio::spawn(keep_running(feed.name, start)).abort_handle()
}

/// Keeps the nodes' admissions current, and ends the sessions of nodes whose certificate was
/// revoked.
pub fn spawn_admissions(fleet: &Arc<Fleet>) -> [AbortHandle; 2] {
    let admissions = Arc::downgrade(&fleet.admissions);
    let following = keep_running("the fleet's watch of admissions", move || {
        admissions::follow(admissions.clone())
    });
    let (weak, changes) = (Arc::downgrade(fleet), fleet.admissions.changes());
    let ending = keep_running("the end of revoked sessions", move || {
        let (weak, mut changes) = (weak.clone(), changes.clone());
        async move {
            while changes.changed().await.is_ok() {
                let Some(fleet) = weak.upgrade() else {
                    return LoopEnd::Finished;
                };
                fleet.end_revoked();
            }
            LoopEnd::Finished
        }
    });
    [
        tokio::spawn(following).abort_handle(),
        tokio::spawn(ending).abort_handle(),
    ]
}

async fn follow<K>(
    fleet: Weak<Fleet>,
    api: Api<K>,
    chosen: watcher::Config,
    feed: EventHandler<K>,
) -> LoopEnd
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    // The watcher lists again after errors, with exponential backoff.
    let mut events = std::pin::pin!(watcher(api, chosen).default_backoff());
    let mut seen = BTreeSet::new();
    let mut aside = SetAside::default();
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            (_, object) = aside.due() => Some(Ok(watcher::Event::Apply(object))),
        };
        let Some(event) = event else {
            return LoopEnd::Unexpected;
        };
        let Some(fleet) = fleet.upgrade() else {
            return LoopEnd::Finished;
        };
        match event {
            Ok(watcher::Event::Init) => seen.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                seen.insert(key_of(object.meta()));
                put(&fleet, &feed, &mut aside, object).await;
            }
            Ok(watcher::Event::InitDone) => {
                let seen = std::mem::take(&mut seen);
                fleet.change(|index| {
                    index.set_synced(feed.listed);
                    (feed.retain)(index, &seen)
                });
            }
            Ok(watcher::Event::Apply(object)) => put(&fleet, &feed, &mut aside, object).await,
            Ok(watcher::Event::Delete(object)) => {
                let key = key_of(object.meta());
                aside.remove(&key);
                let removed = async { fleet.change(|index| (feed.remove)(index, &key, &object)) };
                if let Err(panic) = contained(removed).await {
                    panics::report(&fleet.client, &object, feed.name, panic.message()).await;
                }
            }
            Err(error) => {
                tracing::warn!(kind = ?feed.listed, %error, "the watch of nodes and pods failed; the server opens it again");
            }
        }
    }
}

/// Feeds the index with an object. One over which the index panics is reported and set aside.
async fn put<K>(fleet: &Fleet, feed: &EventHandler<K>, aside: &mut SetAside<IndexKey, K>, object: K)
where
    K: kube::Resource<DynamicType = ()> + Clone,
{
    let key = key_of(object.meta());
    let fed = contained(async { fleet.change(|index| (feed.put)(index, object.clone())) }).await;
    match fed {
        Ok(()) => aside.remove(&key),
        Err(panic) => {
            panics::report(&fleet.client, &object, feed.name, panic.message()).await;
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
        let (fleet, events) = crate::testing::fleet();
        fn wild(index: &mut Index, pod: Pod) -> Touched {
            assert!(
                pod.metadata.name.as_deref() != Some("bad"),
                "over {:?}",
                pod.metadata.name
            );
            index.put_pod(pod)
        }
        let feed = EventHandler::<Pod> {
            name: "test",
            listed: ListKind::Pods,
            put: wild,
            remove: |index, key, pod| index.remove_pod(key, pod.metadata.uid.as_deref()),
            retain: Index::retain_pods,
        };
        let mut aside = SetAside::default();
        for name in ["a", "bad", "c"] {
            put(&fleet, &feed, &mut aside, pod(name)).await;
        }
        assert_eq!(fleet.index.lock().pods_of_node("n1").len(), 2);
        let told = events.lock().join("\n");
        assert!(told.contains("ReconcilePanicked"), "{told}");
        assert!(
            told.contains("\"name\":\"bad\"") && !told.contains("\"name\":\"a\""),
            "{told}"
        );
        // Tried again, and handled once it can be.
        let (key, object) = tokio::time::timeout(Duration::from_secs(2), aside.due())
            .await
            .unwrap();
        assert_eq!(key.1, "bad");
        let feed = EventHandler {
            put: Index::put_pod,
            ..feed
        };
        put(&fleet, &feed, &mut aside, object).await;
        assert_eq!(fleet.index.lock().pods_of_node("n1").len(), 3);
        let none = tokio::time::timeout(Duration::from_secs(600), aside.due()).await;
        assert!(none.is_err());
    }
}
