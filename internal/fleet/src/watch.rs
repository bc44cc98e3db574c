//! The fleet's watches: one for each kind, whatever the number of sessions. They only feed the
//! index.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use serde::de::DeserializeOwned;
use tokio::task::AbortHandle;

use crate::Fleet;
use crate::admissions;
use crate::index::{Index, IndexKey, ListKind, Touched, key_of};

/// How the index applies the events of one kind.
struct EventHandler<K> {
    listed: ListKind,
    put: fn(&mut Index, K) -> Touched,
    remove: fn(&mut Index, &IndexKey, &K) -> Touched,
    retain: fn(&mut Index, &BTreeSet<IndexKey>) -> Touched,
}

/// Starts the watches. They hold the fleet weakly, and end with it.
pub fn spawn(fleet: &Arc<Fleet>) -> Vec<AbortHandle> {
    let client = fleet.client.clone();
    let pods = EventHandler::<Pod> {
        listed: ListKind::Pods,
        put: Index::put_pod,
        remove: |index, key, pod| index.remove_pod(key, pod.metadata.uid.as_deref()),
        retain: Index::retain_pods,
    };
    let services = EventHandler::<Service> {
        listed: ListKind::Services,
        put: Index::put_service,
        remove: |index, key, _| index.remove_service(key),
        retain: Index::retain_services,
    };
    let nodes = EventHandler::<Node> {
        listed: ListKind::Nodes,
        put: |index, node| index.put_node(&node),
        remove: |index, key, _| {
            index.remove_node(&key.1);
            Touched::default()
        },
        // The address of a deleted node is harmless.
        retain: |_, _| Touched::default(),
    };
    let weak = Arc::downgrade(fleet);
    let any = watcher::Config::default();
    // Sessions do not need pods without a node.
    let bound = any.clone().fields("spec.nodeName!=");
    vec![
        tokio::spawn(follow(weak.clone(), Api::all(client.clone()), bound, pods)).abort_handle(),
        tokio::spawn(follow(
            weak.clone(),
            Api::all(client.clone()),
            any.clone(),
            services,
        ))
        .abort_handle(),
        tokio::spawn(follow(weak, Api::all(client), any, nodes)).abort_handle(),
    ]
}

/// Keeps the nodes' admissions current, and ends the sessions of nodes whose certificate was
/// revoked.
pub fn spawn_admissions(fleet: &Arc<Fleet>) -> [AbortHandle; 2] {
    let (weak, mut changes) = (Arc::downgrade(fleet), fleet.admissions.changes());
    let following = tokio::spawn(admissions::follow(Arc::downgrade(&fleet.admissions)));
    let ending = tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            let Some(fleet) = weak.upgrade() else { return };
            fleet.end_revoked();
        }
    });
    [following.abort_handle(), ending.abort_handle()]
}

async fn follow<K>(fleet: Weak<Fleet>, api: Api<K>, chosen: watcher::Config, feed: EventHandler<K>)
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    // The watcher lists again after errors, with exponential backoff.
    let mut events = std::pin::pin!(watcher(api, chosen).default_backoff());
    let mut seen = BTreeSet::new();
    while let Some(event) = events.next().await {
        let Some(fleet) = fleet.upgrade() else { return };
        match event {
            Ok(watcher::Event::Init) => seen.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                seen.insert(key_of(object.meta()));
                fleet.change(|index| (feed.put)(index, object));
            }
            Ok(watcher::Event::InitDone) => {
                let seen = std::mem::take(&mut seen);
                fleet.change(|index| {
                    index.set_synced(feed.listed);
                    (feed.retain)(index, &seen)
                });
            }
            Ok(watcher::Event::Apply(object)) => {
                fleet.change(|index| (feed.put)(index, object));
            }
            Ok(watcher::Event::Delete(object)) => {
                let key = key_of(object.meta());
                fleet.change(|index| (feed.remove)(index, &key, &object));
            }
            Err(error) => {
                tracing::warn!(kind = ?feed.listed, %error, "the watch of nodes and pods failed; the server opens it again");
            }
        }
    }
}
