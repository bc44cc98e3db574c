//! The part of the cluster's state that sessions need: pods by node and by namespace, services, and
//! the nodes' addresses. One watch of each kind updates it; the index itself reads nothing.

mod policies;
mod services;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use resources::pod_ranges::Ipv4Range;
use resources::services::addresses::ServiceRange;
use rpc::agent::v1::{PodNetwork, PodRoute};

use crate::pod_fields::{HostsPod, node_of};
use policies::NodePolicies;
use services::NodeServices;

/// A namespaced name.
pub type IndexKey = (String, String);

/// The state of the cluster that sessions need.
#[derive(Default)]
pub struct Index {
    pods: BTreeMap<IndexKey, Arc<Pod>>,
    by_node: BTreeMap<String, BTreeSet<IndexKey>>,
    services: BTreeMap<IndexKey, Arc<Service>>,
    node_services: NodeServices,
    node_policies: NodePolicies,
    addresses: BTreeMap<String, String>,
    /// The ranges of the nodes whose pods have addresses of their own.
    ranges: BTreeMap<String, Ipv4Range>,
    /// Counts the changes in a namespace that hosts files may show.
    names_version: BTreeMap<String, u64>,
    /// True for each kind after its first list.
    synced: [bool; 6],
}

/// The kind of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// The pods.
    Pods,
    /// The services.
    Services,
    /// The nodes.
    Nodes,
    /// The EndpointSlices.
    Slices,
    /// The NetworkPolicies.
    Policies,
    /// The namespaces.
    Namespaces,
}

/// The sessions that should check their pods again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Nodes with a pod that was added, changed or removed.
    pub nodes: BTreeSet<String>,
}

impl Touched {
    fn add(&mut self, node: Option<&str>) {
        if let Some(node) = node {
            self.nodes.insert(node.to_owned());
        }
    }
}

impl Index {
    /// True after every list has been read once: an object that is absent here does not exist.
    pub fn is_synced(&self) -> bool {
        self.synced.iter().all(|synced| *synced)
    }

    /// Records that a list has been read completely.
    pub fn set_synced(&mut self, listed: ListKind) {
        self.synced[listed as usize] = true;
    }

    /// Stores a pod, unless the known version is newer.
    pub fn put_pod(&mut self, pod: Pod) -> Touched {
        let mut touched = Touched::default();
        let key = key_of(&pod.metadata);
        let old = self.pods.get(&key).cloned();
        if let Some(old) = &old
            && newer(
                old.metadata.resource_version.as_deref(),
                pod.metadata.resource_version.as_deref(),
            )
        {
            return touched;
        }
        let old_node = old.as_deref().and_then(node_of);
        let new_node = node_of(&pod);
        touched.add(old_node);
        touched.add(new_node);
        if old_node != new_node {
            if let Some(node) = old_node {
                self.unlink(node, &key);
            }
            if let Some(node) = new_node {
                self.by_node
                    .entry(node.to_owned())
                    .or_default()
                    .insert(key.clone());
            }
        }
        // A hosts file names bound pods only.
        let named = old_node.is_some() || new_node.is_some();
        if named && old.as_deref().map(HostsPod::of) != Some(HostsPod::of(&pod)) {
            self.touch_namespace(&key.0, &mut touched);
        }
        touched.nodes.extend(self.see_pod(&key, Some(&pod)).nodes);
        self.pods.insert(key, Arc::new(pod));
        touched
    }

    /// Removes a pod, if it still has this uid.
    pub fn remove_pod(&mut self, key: &IndexKey, uid: Option<&str>) -> Touched {
        let mut touched = Touched::default();
        let Some(pod) = self.pods.get(key).cloned() else {
            return touched;
        };
        if uid.is_some() && pod.metadata.uid.as_deref() != uid {
            return touched;
        }
        self.pods.remove(key);
        touched.nodes.extend(self.see_pod(key, None).nodes);
        if let Some(node) = node_of(&pod) {
            self.unlink(node, key);
            touched.add(Some(node));
            self.touch_namespace(&key.0, &mut touched);
        }
        touched
    }

    /// After a new list: removes every pod that is not in it.
    pub fn retain_pods(&mut self, seen: &BTreeSet<IndexKey>) -> Touched {
        let mut touched = Touched::default();
        for key in without(&self.pods, seen) {
            touched.nodes.extend(self.remove_pod(&key, None).nodes);
        }
        touched
    }

    /// Stores a service.
    pub fn put_service(&mut self, service: Service) -> Touched {
        let mut touched = Touched::default();
        let key = key_of(&service.metadata);
        let selector = |service: &Service| {
            let spec = service.spec.as_ref()?;
            Some((spec.selector.clone(), spec.cluster_ip.clone()))
        };
        let old = self.services.insert(key.clone(), Arc::new(service.clone()));
        if old.as_deref().map(selector) != Some(selector(&service)) {
            self.touch_namespace(&key.0, &mut touched);
        }
        touched.nodes.extend(self.see_service(&key).nodes);
        touched
    }

    /// Removes a service.
    pub fn remove_service(&mut self, key: &IndexKey) -> Touched {
        let mut touched = Touched::default();
        if self.services.remove(key).is_some() {
            self.touch_namespace(&key.0, &mut touched);
        }
        touched.nodes.extend(self.see_service(key).nodes);
        touched
    }

    /// After a new list: removes every service that is not in it.
    pub fn retain_services(&mut self, seen: &BTreeSet<IndexKey>) -> Touched {
        let mut touched = Touched::default();
        for key in without(&self.services, seen) {
            touched.nodes.extend(self.remove_service(&key).nodes);
        }
        touched
    }

    /// Stores a node's address: hosts files use it for pods that have not reported an address yet.
    pub fn put_node(&mut self, node: &Node) -> Touched {
        let mut touched = Touched::default();
        let Some(name) = node.metadata.name.as_deref() else {
            return touched;
        };
        let range = crate::pod_ranges::range_of(node);
        let moved = self.ranges.get(name) != range.as_ref();
        if let Some(range) = range.filter(|_| moved) {
            self.ranges.insert(name.to_owned(), range);
        } else if moved {
            self.ranges.remove(name);
        }
        let address = node
            .status
            .as_ref()
            .and_then(|status| status.addresses.as_ref())
            .into_iter()
            .flatten()
            .find(|address| address.type_ == "InternalIP")
            .map(|address| address.address.clone());
        let same = self.addresses.get(name) == address.as_ref();
        if moved || (!same && range.is_some()) {
            // Every such node has a route to every other one.
            touched.nodes.extend(self.ranges.keys().cloned());
            touched.add(Some(name));
        }
        if same {
            return touched;
        }
        match address {
            Some(address) => self.addresses.insert(name.to_owned(), address),
            None => self.addresses.remove(name),
        };
        let namespaces: BTreeSet<String> = self
            .by_node
            .get(name)
            .into_iter()
            .flatten()
            .map(|key| key.0.clone())
            .collect();
        for namespace in namespaces {
            self.touch_namespace(&namespace, &mut touched);
        }
        touched
    }

    /// Removes a node's address and range.
    pub fn remove_node(&mut self, name: &str) -> Touched {
        self.addresses.remove(name);
        let mut touched = Touched::default();
        if self.ranges.remove(name).is_some() {
            touched.nodes.extend(self.ranges.keys().cloned());
        }
        touched
    }

    /// What a node's agent needs to give its pods addresses; none while the node has no range.
    pub fn pod_network(
        &self,
        node: &str,
        cluster: Ipv4Range,
        services: Option<ServiceRange>,
    ) -> Option<PodNetwork> {
        let range = self.ranges.get(node)?;
        let others = self.ranges.iter().filter(|(name, _)| *name != node);
        let routes = others.filter_map(|(name, range)| {
            Some(PodRoute {
                range: range.to_string(),
                address: self.addresses.get(name)?.clone(),
            })
        });
        Some(PodNetwork {
            node_range: range.to_string(),
            cluster_range: cluster.to_string(),
            routes: routes.collect(),
            service_range: services.map(|range| range.to_string()).unwrap_or_default(),
            network_policies: false,
        })
    }

    /// Returns the pod with a name.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.pods
            .get(&(namespace.to_owned(), name.to_owned()))
            .cloned()
    }

    /// The pods bound to a node.
    pub fn pods_of_node(&self, node: &str) -> Vec<Arc<Pod>> {
        self.by_node
            .get(node)
            .into_iter()
            .flatten()
            .filter_map(|key| self.pods.get(key).cloned())
            .collect()
    }

    /// The pods of a namespace that have a node.
    pub fn bound_pods(&self, namespace: &str) -> impl Iterator<Item = &Arc<Pod>> {
        let from = (namespace.to_owned(), String::new());
        self.pods
            .range(from..)
            .take_while(move |(key, _)| key.0 == namespace)
            .map(|(_, pod)| pod)
            .filter(|pod| node_of(pod).is_some())
    }

    /// The services of a namespace.
    pub fn services(&self, namespace: &str) -> impl Iterator<Item = &Arc<Service>> {
        let from = (namespace.to_owned(), String::new());
        self.services
            .range(from..)
            .take_while(move |(key, _)| key.0 == namespace)
            .map(|(_, service)| service)
    }

    /// The address of a pod: the one it reported; until then its node's address, unless the node gives pods addresses
    /// of their own.
    pub fn address_of(&self, pod: &Pod) -> Option<String> {
        pod.status
            .as_ref()
            .and_then(|status| status.pod_ip.clone())
            .filter(|ip| !ip.is_empty())
            .or_else(|| {
                let node = node_of(pod)?;
                let on_host = pod.spec.as_ref()?.host_network == Some(true);
                let shared = on_host || !self.ranges.contains_key(node);
                self.addresses.get(node).filter(|_| shared).cloned()
            })
    }

    /// Changes whenever a hosts file of the namespace may have to change.
    pub fn names_version(&self, namespace: &str) -> u64 {
        self.names_version.get(namespace).copied().unwrap_or(0)
    }

    fn unlink(&mut self, node: &str, key: &IndexKey) {
        if let Some(keys) = self.by_node.get_mut(node) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_node.remove(node);
            }
        }
    }

    fn touch_namespace(&mut self, namespace: &str, touched: &mut Touched) {
        *self.names_version.entry(namespace.to_owned()).or_default() += 1;
        let from = (namespace.to_owned(), String::new());
        let has_one = |keys: &BTreeSet<IndexKey>| {
            let first = keys.range(from.clone()..).next();
            first.is_some_and(|key| key.0 == namespace)
        };
        let nodes = self.by_node.iter().filter(|(_, keys)| has_one(keys));
        touched.nodes.extend(nodes.map(|(node, _)| node.clone()));
    }
}

/// Namespace and name of an object.
pub fn key_of(metadata: &kube::api::ObjectMeta) -> IndexKey {
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

/// The keys of objects that a new list does not contain.
fn without<V>(known: &BTreeMap<IndexKey, V>, seen: &BTreeSet<IndexKey>) -> Vec<IndexKey> {
    let gone = known.keys().filter(|key| !seen.contains(*key));
    gone.cloned().collect()
}

/// True if resource version `a` is later than `b`. Both engines use numbers; if a version is not a
/// number, the last one received wins.
fn newer(a: Option<&str>, b: Option<&str>) -> bool {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    match (number(a), number(b)) {
        (Some(a), Some(b)) => a > b,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: &str, version: u64, uid: &str) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "ns", "name": name, "uid": uid,
                "resourceVersion": version.to_string()},
            "spec": {"nodeName": node, "containers": []},
        }))
        .unwrap()
    }

    fn key(name: &str) -> IndexKey {
        ("ns".to_owned(), name.to_owned())
    }

    #[test]
    fn an_older_view_of_a_pod_does_not_replace_a_newer_one() {
        let mut index = Index::default();
        index.put_pod(pod("a", "n1", 7, "u"));
        let touched = index.put_pod(pod("a", "", 6, "u"));
        assert_eq!(touched, Touched::default());
        assert_eq!(index.pods_of_node("n1").len(), 1);
    }

    #[test]
    fn a_deletion_that_is_late_leaves_the_pod_of_the_same_name_alone() {
        let mut index = Index::default();
        index.put_pod(pod("a", "n1", 9, "new"));
        index.remove_pod(&key("a"), Some("old"));
        assert_eq!(index.pods_of_node("n1").len(), 1);
        index.remove_pod(&key("a"), Some("new"));
        assert!(index.pods_of_node("n1").is_empty());
    }

    #[test]
    fn a_pod_that_is_bound_touches_every_node_that_may_name_it() {
        let mut index = Index::default();
        index.put_pod(pod("a", "n1", 1, "a"));
        let touched = index.put_pod(pod("b", "n2", 2, "b"));
        assert_eq!(
            touched.nodes,
            BTreeSet::from(["n1".to_owned(), "n2".to_owned()])
        );
    }

    #[test]
    fn a_list_read_anew_drops_what_it_lacks() {
        let mut index = Index::default();
        index.put_pod(pod("a", "n1", 1, "a"));
        index.put_pod(pod("b", "n1", 2, "b"));
        index.retain_pods(&BTreeSet::from([key("b")]));
        assert!(index.pod("ns", "a").is_none());
        assert!(index.pod("ns", "b").is_some());
    }
}
