//! What a node needs to know of a Service: its address, its ports, and its endpoints. Made from the Service and its
//! EndpointSlices; sent to agents as JSON.

use std::fmt;
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::{Deserialize, Serialize};

use super::ENDPOINTS_MAX;

/// Kubernetes' default of `sessionAffinityConfig.clientIP.timeoutSeconds`: 3 hours.
const AFFINITY_SECONDS: i32 = 10_800;

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    pub(crate) fn of(text: Option<&str>) -> Option<Protocol> {
        match text {
            None | Some("" | "TCP") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(_) => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        })
    }
}

/// A Service as nodes see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterService {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its cluster IP; none of a headless Service and of one with an external name.
    pub address: Option<Ipv4Addr>,
    /// The name that it stands for (type ExternalName).
    pub external_name: Option<String>,
    /// How long a client stays with an endpoint, in seconds; none without session affinity.
    pub affinity_seconds: Option<u32>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// Its endpoints; those of a group listen on the same ports.
    pub groups: Vec<EndpointGroup>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Its name; empty without one.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port at the Service's address.
    pub port: u16,
    /// The port at every node's address (type NodePort).
    pub node_port: Option<u16>,
}

/// Endpoints with the same ports: one EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointGroup {
    /// The ports, by the names of the Service's ports.
    pub ports: Vec<EndpointPort>,
    /// The endpoints, in the order of their addresses.
    pub endpoints: Vec<Endpoint>,
}

/// A port of endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointPort {
    /// The name of the Service's port; empty without one.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port at the endpoint's address.
    pub port: u16,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its host name within the Service's domain.
    pub hostname: Option<String>,
    /// Whether it takes connections: it is ready, or the Service publishes those that aren't.
    pub ready: bool,
    /// Whether it answers although it is to end: it gets connections only if no endpoint is ready (KEP-1669).
    pub draining: bool,
}

impl ClusterService {
    /// A Service with its EndpointSlices; `None` if it lacks a name. Slices of other address types than IPv4 are left
    /// out, as are endpoints beyond [`ENDPOINTS_MAX`].
    #[must_use]
    pub fn of<'a>(
        service: &Service,
        slices: impl IntoIterator<Item = &'a EndpointSlice>,
    ) -> Option<ClusterService> {
        let spec = service.spec.as_ref()?;
        let named = spec.type_.as_deref() == Some("ExternalName");
        let affinity = spec.session_affinity.as_deref() == Some("ClientIP");
        let timeout = spec.session_affinity_config.as_ref();
        let timeout = timeout.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
        let timeout = u32::try_from(timeout.unwrap_or(AFFINITY_SECONDS)).ok();
        let mut left = ENDPOINTS_MAX;
        let groups = slices
            .into_iter()
            .filter(|slice| slice.address_type == "IPv4" && !named);
        let groups = groups.filter_map(|slice| group(slice, &mut left));
        Some(ClusterService {
            namespace: service.metadata.namespace.clone()?,
            name: service.metadata.name.clone()?,
            address: spec
                .cluster_ip
                .as_deref()
                .filter(|_| !named)
                .and_then(|text| text.parse().ok()),
            external_name: spec.external_name.clone().filter(|_| named),
            affinity_seconds: timeout.filter(|_| affinity),
            ports: spec.ports.iter().flatten().filter_map(port).collect(),
            groups: groups.collect(),
        })
    }

    /// The endpoints that get connections to a port, with the port there: those that are ready; if none is, those that
    /// are draining.
    #[must_use]
    pub fn targets(&self, port: &ServicePort) -> Vec<(Ipv4Addr, u16)> {
        let all = |chosen: fn(&Endpoint) -> bool| -> Vec<(Ipv4Addr, u16)> {
            let of_group = |group: &EndpointGroup| {
                let mut ports = group.ports.iter();
                let found =
                    ports.find(|one| one.name == port.name && one.protocol == port.protocol)?;
                let to = found.port;
                let endpoints = group.endpoints.iter().filter(|one| chosen(one));
                Some(
                    endpoints
                        .map(move |one| (one.address, to))
                        .collect::<Vec<_>>(),
                )
            };
            let mut all: Vec<_> = self.groups.iter().filter_map(of_group).flatten().collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        let ready = all(|one| one.ready);
        if ready.is_empty() {
            return all(|one| one.draining);
        }
        ready
    }
}

fn port(port: &k8s_openapi::api::core::v1::ServicePort) -> Option<ServicePort> {
    Some(ServicePort {
        name: port.name.clone().unwrap_or_default(),
        protocol: Protocol::of(port.protocol.as_deref())?,
        port: u16::try_from(port.port).ok()?,
        node_port: port
            .node_port
            .and_then(|number| u16::try_from(number).ok())
            .filter(|number| *number != 0),
    })
}

fn group(slice: &EndpointSlice, left: &mut usize) -> Option<EndpointGroup> {
    let ports = slice.ports.iter().flatten().filter_map(|port| {
        Some(EndpointPort {
            name: port.name.clone().unwrap_or_default(),
            protocol: Protocol::of(port.protocol.as_deref())?,
            port: u16::try_from(port.port?).ok()?,
        })
    });
    let mut endpoints: Vec<Endpoint> = slice
        .endpoints
        .iter()
        .filter_map(|one| {
            let conditions = one.conditions.clone().unwrap_or_default();
            // Without a condition the API's rule is: ready, and not terminating.
            let ready = conditions.ready.unwrap_or(true);
            Some(Endpoint {
                address: one.addresses.first()?.parse().ok()?,
                hostname: one.hostname.clone().filter(|name| !name.is_empty()),
                ready,
                draining: conditions.serving.unwrap_or(ready)
                    && conditions.terminating.unwrap_or(false),
            })
        })
        .collect();
    endpoints.sort_by_key(|one| one.address);
    endpoints.truncate(*left);
    *left -= endpoints.len();
    let ports = ports.collect();
    (!endpoints.is_empty()).then_some(EndpointGroup { ports, endpoints })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(spec: serde_json::Value) -> Service {
        let object = json!({"metadata": {"namespace": "team", "name": "web"}, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    fn slice(kind: &str, endpoints: serde_json::Value) -> EndpointSlice {
        let object = json!({
            "metadata": {"name": "web-1"}, "addressType": kind, "endpoints": endpoints,
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn draining_endpoints_get_connections_only_if_none_is_ready() {
        let spec = json!({"clusterIP": "10.96.0.7", "ports": [{"name": "http", "port": 80}]});
        let draining = json!({"addresses": ["10.244.0.3"],
            "conditions": {"ready": false, "serving": true, "terminating": true}});
        let ready = json!({"addresses": ["10.244.0.9"], "conditions": {"ready": true}});
        let absent = json!({"addresses": ["10.244.0.4"], "conditions": {"ready": false}});
        let of = |endpoints: serde_json::Value| {
            let one = ClusterService::of(&service(spec.clone()), [&slice("IPv4", endpoints)]);
            let one = one.unwrap();
            let targets = one.targets(&one.ports[0]).into_iter();
            targets
                .map(|(to, port)| format!("{to}:{port}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(json!([draining, ready, absent])), ["10.244.0.9:8080"]);
        assert_eq!(of(json!([draining, absent])), ["10.244.0.3:8080"]);
        assert!(of(json!([absent])).is_empty());
    }

    #[test]
    fn kinds_of_services_are_told_apart() {
        let v6 = slice("IPv6", json!([{"addresses": ["fd00::1"]}]));
        let headless = ClusterService::of(&service(json!({"clusterIP": "None"})), [&v6]).unwrap();
        assert_eq!((headless.address, headless.groups.len()), (None, 0));
        let named = json!({"type": "ExternalName", "externalName": "example.org"});
        let named = ClusterService::of(&service(named), []).unwrap();
        assert_eq!(named.external_name.as_deref(), Some("example.org"));
        let sticky = json!({"clusterIP": "10.96.0.7", "sessionAffinity": "ClientIP",
            "ports": [{"port": 80, "nodePort": 30080, "protocol": "UDP"}]});
        let sticky = ClusterService::of(&service(sticky), []).unwrap();
        assert_eq!(sticky.affinity_seconds, Some(10_800));
        assert_eq!(sticky.ports[0].node_port, Some(30_080));
        assert_eq!(sticky.ports[0].protocol, Protocol::Udp);
        let text = serde_json::to_string(&sticky).unwrap();
        assert_eq!(
            serde_json::from_str::<ClusterService>(&text).unwrap(),
            sticky
        );
    }

    #[test]
    fn the_number_of_endpoints_is_bounded() {
        let many: Vec<_> = (0..700_u32)
            .map(|number| json!({"addresses": [Ipv4Addr::from(0x0af4_0000 + number).to_string()]}))
            .collect();
        let one = slice("IPv4", json!(many));
        let spec = json!({"clusterIP": "10.96.0.7", "ports": [{"name": "http", "port": 80}]});
        let service = ClusterService::of(&service(spec), [&one, &one]).unwrap();
        let count: usize = service.groups.iter().map(|one| one.endpoints.len()).sum();
        assert_eq!(count, ENDPOINTS_MAX);
    }
}
