//! The Services as nodes see them, kept for each change of a Service or one of its EndpointSlices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use resources::services::{ClusterService, SERVICES_MAX};

use super::{Index, IndexKey, Touched, key_of, without};

/// The label that names a slice's Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The EndpointSlices, and the Services with them.
#[derive(Default)]
pub(super) struct NodeServices {
    slices: BTreeMap<IndexKey, Arc<EndpointSlice>>,
    /// The names of a Service's slices.
    of_service: BTreeMap<IndexKey, BTreeSet<String>>,
    seen: BTreeMap<IndexKey, Arc<ClusterService>>,
}

/// The Service that a slice is of.
fn service_of(slice: &EndpointSlice) -> Option<IndexKey> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some((slice.metadata.namespace.clone()?, name.clone()))
}

impl Index {
    /// Stores an EndpointSlice.
    pub fn put_slice(&mut self, slice: EndpointSlice) -> Touched {
        let key = key_of(&slice.metadata);
        let mut touched = self.unlink_slice(&key, service_of(&slice).as_ref());
        let service = service_of(&slice);
        self.node_services
            .slices
            .insert(key.clone(), Arc::new(slice));
        if let Some(service) = service {
            let names = self.node_services.of_service.entry(service.clone());
            names.or_default().insert(key.1);
            touched.nodes.extend(self.see_service(&service).nodes);
        }
        touched
    }

    /// Removes an EndpointSlice.
    pub fn remove_slice(&mut self, key: &IndexKey) -> Touched {
        let touched = self.unlink_slice(key, None);
        self.node_services.slices.remove(key);
        touched
    }

    /// After a new list: removes every EndpointSlice that is not in it.
    pub fn retain_slices(&mut self, seen: &BTreeSet<IndexKey>) -> Touched {
        let mut touched = Touched::default();
        for key in without(&self.node_services.slices, seen) {
            touched.nodes.extend(self.remove_slice(&key).nodes);
        }
        touched
    }

    /// Takes a slice from its Service, unless that is `kept`.
    fn unlink_slice(&mut self, key: &IndexKey, kept: Option<&IndexKey>) -> Touched {
        let old = self.node_services.slices.get(key);
        let Some(service) = old.and_then(|slice| service_of(slice)) else {
            return Touched::default();
        };
        if kept == Some(&service) {
            return Touched::default();
        }
        if let Some(names) = self.node_services.of_service.get_mut(&service) {
            names.remove(&key.1);
            if names.is_empty() {
                self.node_services.of_service.remove(&service);
            }
        }
        self.see_service(&service)
    }

    /// Works out a Service as nodes see it; touches the nodes that give pods addresses if that changed.
    pub(super) fn see_service(&mut self, key: &IndexKey) -> Touched {
        let all = &self.node_services;
        let names = all.of_service.get(key).into_iter().flatten();
        let slices = names.filter_map(|name| all.slices.get(&(key.0.clone(), name.clone())));
        let service = self.services.get(key);
        let now = service.and_then(|one| ClusterService::of(one, slices.map(Arc::as_ref)));
        let mut touched = Touched::default();
        if all.seen.get(key).map(Arc::as_ref) == now.as_ref() {
            return touched;
        }
        match now {
            Some(now) => drop(self.node_services.seen.insert(key.clone(), Arc::new(now))),
            None => drop(self.node_services.seen.remove(key)),
        }
        touched.nodes.extend(self.ranges.keys().cloned());
        touched
    }

    /// The Services that the server sends to nodes, at most [`SERVICES_MAX`].
    pub fn cluster_services(&self) -> BTreeMap<IndexKey, Arc<ClusterService>> {
        let all = self.node_services.seen.iter().take(SERVICES_MAX);
        all.map(|(key, service)| (key.clone(), service.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, Service};
    use serde_json::json;

    use super::*;

    fn service(name: &str) -> Service {
        let spec = json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}]});
        let object = json!({"metadata": {"namespace": "team", "name": name}, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    fn slice(name: &str, service: &str, addresses: &[&str]) -> EndpointSlice {
        let endpoints = addresses
            .iter()
            .map(|address| json!({"addresses": [address]}));
        serde_json::from_value(json!({
            "metadata": {"namespace": "team", "name": name, "labels": {SERVICE_NAME: service}},
            "addressType": "IPv4", "ports": [{"name": "", "port": 8080}],
            "endpoints": endpoints.collect::<Vec<_>>(),
        }))
        .unwrap()
    }

    #[test]
    fn a_change_of_a_service_or_its_slices_touches_the_nodes_that_give_addresses() {
        let mut index = Index::default();
        let node = json!({"metadata": {"name": "n1"}, "spec": {"podCIDR": "10.244.0.0/24"}});
        index.put_node(&serde_json::from_value::<Node>(node).unwrap());
        let key = |name: &str| ("team".to_owned(), name.to_owned());
        let endpoints = |index: &Index, name: &str| {
            let services = index.cluster_services();
            let groups = services.get(&key(name)).map(|one| one.groups.clone());
            groups
                .unwrap_or_default()
                .iter()
                .map(|group| group.endpoints.len())
                .sum::<usize>()
        };
        let touches = |touched: Touched| touched.nodes.len();
        // A slice may be seen before its Service.
        assert_eq!(
            touches(index.put_slice(slice("web-1", "web", &["10.244.0.2"]))),
            0
        );
        assert_eq!(touches(index.put_service(service("web"))), 1);
        assert_eq!(endpoints(&index, "web"), 1);
        assert_eq!(touches(index.put_service(service("web"))), 0);
        let two = slice("web-2", "web", &["10.244.0.3", "10.244.0.4"]);
        assert_eq!(touches(index.put_slice(two.clone())), 1);
        assert_eq!(touches(index.put_slice(two)), 0);
        assert_eq!(endpoints(&index, "web"), 3);
        // A slice moves to another Service.
        index.put_service(service("other"));
        index.put_slice(slice("web-1", "other", &["10.244.0.2"]));
        assert_eq!(
            (endpoints(&index, "web"), endpoints(&index, "other")),
            (2, 1)
        );
        index.retain_slices(&BTreeSet::new());
        assert_eq!(
            (endpoints(&index, "web"), endpoints(&index, "other")),
            (0, 0)
        );
        assert_eq!(touches(index.remove_service(&key("web"))), 1);
        assert_eq!(index.cluster_services().len(), 1);
        assert!(index.node_services.slices.is_empty() && index.node_services.of_service.is_empty());
    }
}
