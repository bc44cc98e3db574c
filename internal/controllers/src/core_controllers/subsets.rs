//! The decision which addresses a Service has: its Endpoints and EndpointSlices from the Service
//! and its pods. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, ObjectReference, Pod, Service,
    ServicePort,
};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointPort as SlicePort, EndpointSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::mirror::{text, uid_of};

/// The most endpoints in a slice that the API accepts.
const SLICE_MAX: usize = 1000;
/// The label that names the Service of a slice.
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label that names the controller of a slice.
pub(super) const SLICE_KEEPER: &str = "endpointslice.kubernetes.io/managed-by";
pub(super) const SLICE_KEEPER_NAME: &str = "endpointslice-controller.k8s.io";
/// The label that names the controller of an Endpoints object.
pub(super) const ENDPOINTS_KEEPER: &str = "endpoints.kubernetes.io/managed-by";
pub(super) const ENDPOINTS_KEEPER_NAME: &str = "endpoint-controller";
const HEADLESS: &str = "service.kubernetes.io/headless";

/// The fields of a pod that its Services need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    namespace: String,
    name: String,
    uid: String,
    pub(super) labels: BTreeMap<String, String>,
    ip: Option<IpAddr>,
    node: Option<String>,
    hostname: Option<String>,
    subdomain: Option<String>,
    ready: bool,
    terminating: bool,
    finished: bool,
    /// Port numbers by name and protocol.
    ports: BTreeMap<(String, String), i32>,
}

impl Backend {
    pub(super) fn of(pod: Pod) -> Backend {
        let uid = uid_of(&pod);
        let spec = pod.spec.unwrap_or_default();
        let status = pod.status.unwrap_or_default();
        let mut ports = BTreeMap::new();
        for port in spec
            .containers
            .into_iter()
            .flat_map(|c| c.ports.unwrap_or_default())
        {
            if let Some(name) = port.name {
                let protocol = port.protocol.unwrap_or_else(|| "TCP".to_owned());
                ports.entry((name, protocol)).or_insert(port.container_port);
            }
        }
        let conditions = status.conditions.unwrap_or_default();
        Backend {
            namespace: pod.metadata.namespace.unwrap_or_default(),
            name: pod.metadata.name.unwrap_or_default(),
            uid,
            labels: pod.metadata.labels.unwrap_or_default(),
            ip: status.pod_ip.and_then(|ip| ip.parse().ok()),
            node: spec.node_name,
            hostname: spec.hostname,
            subdomain: spec.subdomain,
            ready: conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True"),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            finished: matches!(text(status.phase.as_ref()), "Succeeded" | "Failed"),
            ports,
        }
    }

    fn reference(&self) -> ObjectReference {
        ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }

    /// The pod's host name within the Service.
    fn hostname_in(&self, service: &str) -> Option<String> {
        let within = self.subdomain.as_deref() == Some(service);
        self.hostname
            .clone()
            .filter(|name| within && !name.is_empty())
    }
}

/// A Service's port as resolved for a pod. Ordered, so that pods with the same ports are grouped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ResolvedPort {
    name: Option<String>,
    port: i32,
    protocol: String,
    app_protocol: Option<String>,
}

/// The Service's selector, if its addresses come from pods.
pub(super) fn selects(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service.spec.as_ref()?;
    let selector = spec.selector.as_ref()?;
    let by_name = spec.type_.as_deref() == Some("ExternalName");
    (!selector.is_empty() && !by_name).then_some(selector)
}

/// Whether labels satisfy a selector.
pub(super) fn matches(
    selector: &BTreeMap<String, String>,
    labels: &BTreeMap<String, String>,
) -> bool {
    let mut wanted = selector.iter();
    wanted.all(|(name, value)| labels.get(name) == Some(value))
}

fn target_port(port: &ServicePort, backend: &Backend) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            backend.ports.get(&(name.clone(), protocol)).copied()
        }
    }
}

/// The Service's ports as resolved for a pod; ports that the pod lacks are left out.
fn ports_of(service: &Service, backend: &Backend) -> Vec<ResolvedPort> {
    let spec = service.spec.as_ref();
    let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or(&[]);
    let ports = ports.iter().filter_map(|port| {
        Some(ResolvedPort {
            name: port.name.clone(),
            port: target_port(port, backend)?,
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
            app_protocol: port.app_protocol.clone(),
        })
    });
    ports.collect()
}

fn has_ports(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.ports.as_ref())
        .is_some_and(|ports| !ports.is_empty())
}

fn is_headless(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    text(spec.and_then(|spec| spec.cluster_ip.as_ref())) == "None"
}

fn publishes_all(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.publish_not_ready_addresses) == Some(true)
}

/// The pods with an address, grouped by their resolved ports.
fn grouped<'a>(
    service: &Service,
    backends: &[&'a Backend],
) -> BTreeMap<Vec<ResolvedPort>, Vec<(&'a Backend, IpAddr)>> {
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for backend in backends {
        let Some(ip) = backend.ip.filter(|_| !backend.finished) else {
            continue;
        };
        let ports = ports_of(service, backend);
        groups.entry(ports).or_default().push((*backend, ip));
    }
    for group in groups.values_mut() {
        group.sort_by(|(a, a_ip), (b, b_ip)| (a_ip, &a.name).cmp(&(b_ip, &b.name)));
    }
    groups
}

fn labels(service: &Service, more: &[(&str, &str)]) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    for (name, value) in more {
        labels.insert((*name).to_owned(), (*value).to_owned());
    }
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels
}

/// The Endpoints that a Service should have.
pub(super) fn endpoints(service: &Service, backends: &[&Backend]) -> Endpoints {
    let name = text(service.metadata.name.as_ref());
    let all = publishes_all(service);
    let mut subsets = Vec::new();
    for (ports, group) in grouped(service, backends) {
        // Pods that have none of the Service's ports do not serve it.
        if ports.is_empty() && has_ports(service) {
            continue;
        }
        let (mut ready, mut not_ready) = (Vec::new(), Vec::new());
        for (backend, ip) in group {
            let address = EndpointAddress {
                ip: ip.to_string(),
                hostname: backend.hostname_in(name),
                node_name: backend.node.clone(),
                target_ref: Some(backend.reference()),
            };
            if all || (backend.ready && !backend.terminating) {
                ready.push(address);
            } else if !backend.terminating {
                not_ready.push(address);
            }
        }
        if ready.is_empty() && not_ready.is_empty() {
            continue;
        }
        let ports = ports.into_iter().map(|port| EndpointPort {
            name: port.name,
            port: port.port,
            protocol: Some(port.protocol),
            app_protocol: port.app_protocol,
        });
        subsets.push(EndpointSubset {
            addresses: Some(ready).filter(|list| !list.is_empty()),
            not_ready_addresses: Some(not_ready).filter(|list| !list.is_empty()),
            ports: Some(ports.collect::<Vec<_>>()).filter(|list| !list.is_empty()),
        });
    }
    Endpoints {
        metadata: ObjectMeta {
            namespace: service.metadata.namespace.clone(),
            name: service.metadata.name.clone(),
            labels: Some(labels(
                service,
                &[(ENDPOINTS_KEEPER, ENDPOINTS_KEEPER_NAME)],
            )),
            ..ObjectMeta::default()
        },
        subsets: Some(subsets).filter(|list| !list.is_empty()),
    }
}

/// The EndpointSlices that a Service should have. A Service without pods gets one empty slice, so
/// that its state is visible.
pub(super) fn slices(service: &Service, backends: &[&Backend]) -> Vec<EndpointSlice> {
    let mut slices = Vec::new();
    for (ports, group) in grouped(service, backends) {
        for v6 in [false, true] {
            let group: Vec<_> = group.iter().filter(|(_, ip)| ip.is_ipv6() == v6).collect();
            for chunk in group.chunks(SLICE_MAX) {
                let endpoints = chunk.iter().map(|(b, ip)| endpoint(service, b, *ip));
                slices.push(slice(
                    service,
                    slices.len(),
                    v6,
                    &ports,
                    endpoints.collect(),
                ));
            }
        }
    }
    if slices.is_empty() {
        slices.push(slice(service, 0, false, &[], Vec::new()));
    }
    slices
}

fn endpoint(service: &Service, backend: &Backend, ip: IpAddr) -> Endpoint {
    let all = publishes_all(service);
    Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(all || (backend.ready && !backend.terminating)),
            serving: Some(backend.ready),
            terminating: Some(backend.terminating),
        }),
        hostname: backend.hostname_in(text(service.metadata.name.as_ref())),
        node_name: backend.node.clone(),
        target_ref: Some(backend.reference()),
        ..Endpoint::default()
    }
}

fn slice(
    service: &Service,
    number: usize,
    v6: bool,
    ports: &[ResolvedPort],
    endpoints: Vec<Endpoint>,
) -> EndpointSlice {
    let name = text(service.metadata.name.as_ref());
    let ports = ports.iter().map(|port| SlicePort {
        // Slices spell an unnamed port as an empty name.
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone()),
        app_protocol: port.app_protocol.clone(),
    });
    let keeper = [(SERVICE_NAME, name), (SLICE_KEEPER, SLICE_KEEPER_NAME)];
    EndpointSlice {
        metadata: ObjectMeta {
            namespace: service.metadata.namespace.clone(),
            name: Some(format!("{name}-muster-{number}")),
            labels: Some(labels(service, &keeper)),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Service".to_owned(),
                name: name.to_owned(),
                uid: uid_of(service),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        address_type: if v6 { "IPv6" } else { "IPv4" }.to_owned(),
        endpoints,
        ports: Some(ports.collect()),
    }
}

#[cfg(test)]
#[path = "subsets_tests.rs"]
mod tests;
