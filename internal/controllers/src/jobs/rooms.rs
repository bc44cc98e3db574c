//! What bounds the pods of jobs: how many pods the nodes hold, and the namespaces' quotas. One loop
//! follows both, for all job controllers.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use parking_lot::RwLock;
use resources::quantity::Quantity;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use workloads::{PodQuota, PodRoom};

use crate::key::{ObjectKey, key_of};
use crate::part::part_of;
use crate::retry::Waits;

/// The names of the quota for pods.
const POD_RESOURCES: [&str; 2] = ["pods", "count/pods"];

/// The part of a node that is needed: a node's whole object is large and changes often.
#[derive(Clone, Debug, Default, Deserialize)]
struct NodePart {
    metadata: ObjectMeta,
    #[serde(default)]
    status: NodeStatusPart,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeStatusPart {
    #[serde(default)]
    capacity: BTreeMap<String, K8sQuantity>,
    #[serde(default)]
    allocatable: BTreeMap<String, K8sQuantity>,
}

part_of!(Node, NodePart);

/// One value of each object of a kind; `None` until all objects were listed once.
struct Values<T> {
    now: Option<BTreeMap<ObjectKey, T>>,
    listed: BTreeMap<ObjectKey, T>,
}

impl<T> Default for Values<T> {
    fn default() -> Self {
        Values {
            now: None,
            listed: BTreeMap::new(),
        }
    }
}

impl<T> Values<T> {
    /// Applies an event; `of` takes the value of an object that has one.
    fn take<K: Resource>(&mut self, event: watcher::Event<K>, of: impl Fn(&K) -> Option<T>) {
        match event {
            watcher::Event::Init => self.listed.clear(),
            watcher::Event::InitApply(object) => {
                let value = of(&object).map(|value| (key_of(&object), value));
                self.listed.extend(value);
            }
            watcher::Event::InitDone => self.now = Some(std::mem::take(&mut self.listed)),
            watcher::Event::Apply(object) => {
                let now = self.now.get_or_insert_default();
                match of(&object) {
                    Some(value) => drop(now.insert(key_of(&object), value)),
                    None => drop(now.remove(&key_of(&object))),
                }
            }
            watcher::Event::Delete(object) => {
                if let Some(now) = &mut self.now {
                    now.remove(&key_of(&object));
                }
            }
        }
    }
}

#[derive(Default)]
struct Known {
    nodes: Values<u64>,
    quotas: Values<PodQuota>,
}

/// What is known; clones share it.
#[derive(Clone, Default)]
pub(crate) struct PodRooms(Arc<RwLock<Known>>);

impl PodRooms {
    /// What bounds the pods of a namespace's jobs.
    pub(crate) fn of(&self, namespace: &str) -> PodRoom {
        let known = self.0.read();
        let nodes = known.nodes.now.as_ref();
        let quotas = known.quotas.now.iter().flatten();
        let here = quotas.filter(|((of, _), _)| of == namespace);
        PodRoom {
            nodes: nodes.map(|nodes| {
                nodes
                    .values()
                    .fold(0_u64, |sum, pods| sum.saturating_add(*pods))
            }),
            quota: here.map(|(_, quota)| *quota).min_by_key(PodQuota::left),
        }
    }
}

/// Follows nodes and, if `quotas`, ResourceQuotas, until dropped.
pub(crate) async fn run(client: Client, rooms: PodRooms, quotas: bool) {
    let mut nodes = watch::<NodePart>(&client);
    let mut all = watch::<ResourceQuota>(&client);
    loop {
        tokio::select! {
            Some(event) = nodes.next() => rooms.0.write().nodes.take(event, pods_of),
            Some(event) = all.next(), if quotas => rooms.0.write().quotas.take(event, quota_of),
            else => return,
        }
    }
}

fn watch<K>(client: &Client) -> futures::stream::BoxStream<'static, watcher::Event<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    watcher(Api::<K>::all(client.clone()), watcher::Config::default())
        .backoff(Waits::default())
        .filter_map(|event| async move {
            event
                .inspect_err(|error| tracing::warn!(%error, "a watch was interrupted; the server opens it again"))
                .ok()
        })
        .boxed()
}

fn whole(quantity: &K8sQuantity) -> Option<u64> {
    let value = Quantity::parse_k8s(quantity).ok()?.value();
    u64::try_from(value).ok()
}

fn pods_of(node: &NodePart) -> Option<u64> {
    let NodeStatusPart {
        capacity,
        allocatable,
    } = &node.status;
    let pods = capacity.get("pods").or_else(|| allocatable.get("pods"));
    pods.and_then(whole)
}

/// The quota for all pods of a namespace; a quota for some of them, by scopes, does not count.
fn quota_of(quota: &ResourceQuota) -> Option<PodQuota> {
    let spec = quota.spec.as_ref()?;
    let scoped = spec
        .scopes
        .as_ref()
        .is_some_and(|scopes| !scopes.is_empty());
    if scoped || spec.scope_selector.is_some() {
        return None;
    }
    let used = quota
        .status
        .as_ref()
        .and_then(|status| status.used.as_ref());
    let of = |name: &str| {
        let hard = spec.hard.as_ref()?.get(name).and_then(whole)?;
        let used = used.and_then(|used| used.get(name)).and_then(whole);
        let used = used.unwrap_or_default();
        Some(PodQuota { hard, used })
    };
    POD_RESOURCES
        .into_iter()
        .filter_map(of)
        .min_by_key(PodQuota::left)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read<K: DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_nodes_capacity_is_added_up_and_the_tightest_quota_of_a_namespace_counts() {
        let rooms = PodRooms::default();
        assert_eq!(rooms.of("team"), PodRoom::default());
        let node = |name: &str, pods: &str| -> NodePart {
            read(json!({"metadata": {"name": name}, "status": {"capacity": {"pods": pods}}}))
        };
        let quota = |name: &str, spec: Value, used: Value| -> ResourceQuota {
            read(json!({
                "metadata": {"name": name, "namespace": "team"},
                "spec": spec, "status": {"used": used},
            }))
        };
        {
            let mut known = rooms.0.write();
            known.nodes.take(watcher::Event::<NodePart>::Init, pods_of);
            known
                .nodes
                .take(watcher::Event::InitApply(node("a", "110")), pods_of);
            // Not before all nodes are known.
            assert!(known.nodes.now.is_none());
            known
                .nodes
                .take(watcher::Event::<NodePart>::InitDone, pods_of);
            known
                .nodes
                .take(watcher::Event::Apply(node("b", "250")), pods_of);
            for (name, spec, used) in [
                (
                    "wide",
                    json!({"hard": {"pods": "50"}}),
                    json!({"pods": "1"}),
                ),
                (
                    "tight",
                    json!({"hard": {"count/pods": "10"}}),
                    json!({"count/pods": "4"}),
                ),
                (
                    "some",
                    json!({"hard": {"pods": "1"}, "scopes": ["BestEffort"]}),
                    json!({}),
                ),
                ("other", json!({"hard": {"cpu": "1"}}), json!({"cpu": "1"})),
            ] {
                let event = watcher::Event::Apply(quota(name, spec, used));
                known.quotas.take(event, quota_of);
            }
        }
        let room = rooms.of("team");
        assert_eq!(room.nodes, Some(360));
        assert_eq!(room.quota, Some(PodQuota { hard: 10, used: 4 }));
        assert_eq!(rooms.of("elsewhere").quota, None);
        let mut known = rooms.0.write();
        known
            .nodes
            .take(watcher::Event::Delete(node("b", "250")), pods_of);
        drop(known);
        assert_eq!(rooms.of("team").nodes, Some(110));
    }
}
