//! The names below `cluster.local`, and the reverse names of Services' addresses. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use resources::pod_ranges::Ipv4Range;
use resources::services::{CLUSTER_DOMAIN, ClusterService, Endpoint, EndpointGroup};

/// The domain of reverse names.
const REVERSE: &str = ".in-addr.arpa";

/// Which records a question asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// Addresses.
    A,
    /// Ports with the names of their servers.
    Srv,
    /// The name of an address.
    Ptr,
    /// Any other kind, of which the cluster has none.
    Other,
}

/// The data of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// An address.
    A(Ipv4Addr),
    /// A port and the name of its server.
    Srv {
        /// The port.
        port: u16,
        /// The name.
        target: String,
    },
    /// The name of an address.
    Ptr(String),
}

/// What the cluster knows of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// It is no name of the cluster.
    Elsewhere,
    /// There is no such name.
    Absent,
    /// It has these records of the kind; it may have none.
    Records(Vec<Record>),
    /// It stands for another name.
    Alias(String),
}

/// The names of a cluster.
#[derive(Debug)]
pub struct Zone {
    services: BTreeMap<(String, String), Arc<ClusterService>>,
    namespaces: BTreeSet<String>,
    reverse: BTreeMap<Ipv4Addr, String>,
    range: Ipv4Range,
}

impl Zone {
    /// The names of these Services, by namespace and name, whose addresses are in a range.
    #[must_use]
    pub fn new(
        range: Ipv4Range,
        services: BTreeMap<(String, String), Arc<ClusterService>>,
    ) -> Zone {
        let mut reverse = BTreeMap::new();
        for service in services.values() {
            if let Some(address) = service.address {
                reverse.insert(address, domain(service));
            } else {
                let all = service.groups.iter().flat_map(|group| &group.endpoints);
                for endpoint in all.filter(|one| one.ready && one.hostname.is_some()) {
                    let name = format!("{}.{}", label(endpoint), domain(service));
                    reverse.entry(endpoint.address).or_insert(name);
                }
            }
        }
        Zone {
            namespaces: services.keys().map(|key| key.0.clone()).collect(),
            services,
            reverse,
            range,
        }
    }

    /// What is known of a name in lower case, without the last dot.
    pub(crate) fn lookup(&self, name: &str, kind: RecordKind) -> Lookup {
        if let Some(reversed) = name.strip_suffix(REVERSE) {
            return self.name_of(reversed, kind);
        }
        if !is_of_cluster(name) {
            return Lookup::Elsewhere;
        }
        let inner = name.strip_suffix(CLUSTER_DOMAIN).unwrap_or_default();
        let inner = inner.trim_end_matches('.');
        if inner.is_empty() {
            return Lookup::Records(Vec::new());
        }
        let labels: Vec<&str> = inner.rsplit('.').collect();
        match labels.as_slice() {
            ["svc"] => Lookup::Records(Vec::new()),
            ["svc", namespace] if self.namespaces.contains(*namespace) => {
                Lookup::Records(Vec::new())
            }
            ["svc", namespace, service, inner @ ..] if inner.len() <= 2 => {
                let key = ((*namespace).to_owned(), (*service).to_owned());
                match self.services.get(&key) {
                    Some(service) => of_service(service, inner, kind),
                    None => Lookup::Absent,
                }
            }
            _ => Lookup::Absent,
        }
    }

    fn name_of(&self, reversed: &str, kind: RecordKind) -> Lookup {
        let numbers: Vec<&str> = reversed.split('.').rev().collect();
        let address = numbers.join(".").parse::<Ipv4Addr>();
        let Some(address) = address.ok().filter(|_| numbers.len() == 4) else {
            return Lookup::Elsewhere;
        };
        match self.reverse.get(&address) {
            Some(name) if kind == RecordKind::Ptr => {
                Lookup::Records(vec![Record::Ptr(name.clone())])
            }
            Some(_) => Lookup::Records(Vec::new()),
            None if self.range.contains(address) => Lookup::Absent,
            None => Lookup::Elsewhere,
        }
    }
}

/// Whether a name is the cluster's to answer.
pub(crate) fn is_of_cluster(name: &str) -> bool {
    name.strip_suffix(CLUSTER_DOMAIN)
        .is_some_and(|inner| inner.is_empty() || inner.ends_with('.'))
}

/// The names of a Service; `inner`: the labels before its own, from the right.
fn of_service(service: &ClusterService, inner: &[&str], kind: RecordKind) -> Lookup {
    match inner {
        [] => {
            if let Some(name) = &service.external_name {
                return Lookup::Alias(name.trim_end_matches('.').to_ascii_lowercase());
            }
            let addresses = match (kind, service.address) {
                (RecordKind::A, Some(address)) => vec![address],
                (RecordKind::A, None) => ready(service).map(|(_, one)| one.address).collect(),
                _ => Vec::new(),
            };
            Lookup::Records(unique(addresses.into_iter().map(Record::A)))
        }
        [protocol] if protocol.starts_with('_') => {
            let mut ports = service.ports.iter();
            match ports.any(|port| format!("_{}", port.protocol) == *protocol) {
                true => Lookup::Records(Vec::new()),
                false => Lookup::Absent,
            }
        }
        [host] => {
            // Endpoints have names of their own only where the Service has no address.
            let of_host = |(_, one): &(&EndpointGroup, &Endpoint)| {
                service.address.is_none() && (label(one) == *host || dashed(one.address) == *host)
            };
            let mut found = ready(service).filter(of_host).peekable();
            if found.peek().is_none() {
                return Lookup::Absent;
            }
            let addresses = found.map(|(_, one)| Record::A(one.address));
            Lookup::Records(match kind {
                RecordKind::A => unique(addresses),
                _ => Vec::new(),
            })
        }
        [protocol, port] => ports(service, protocol, port, kind),
        _ => Lookup::Absent,
    }
}

/// `_PORT._PROTOCOL`: the Service's named ports.
fn ports(service: &ClusterService, protocol: &str, port: &str, kind: RecordKind) -> Lookup {
    let (Some(protocol), Some(name)) = (protocol.strip_prefix('_'), port.strip_prefix('_')) else {
        return Lookup::Absent;
    };
    let is_it = |one: &str, of: String| !one.is_empty() && one == name && of == protocol;
    let mut all = service.ports.iter();
    let Some(port) = all.find(|port| is_it(&port.name, port.protocol.to_string())) else {
        return Lookup::Absent;
    };
    let domain = domain(service);
    if kind != RecordKind::Srv || service.external_name.is_some() {
        return Lookup::Records(Vec::new());
    }
    if service.address.is_some() {
        return Lookup::Records(vec![Record::Srv {
            port: port.port,
            target: domain,
        }]);
    }
    let of_endpoints = ready(service).filter_map(|(group, endpoint)| {
        let mut ports = group.ports.iter();
        let of_name = ports.find(|one| is_it(&one.name, one.protocol.to_string()))?;
        Some(Record::Srv {
            port: of_name.port,
            target: format!("{}.{domain}", label(endpoint)),
        })
    });
    Lookup::Records(unique(of_endpoints))
}

fn ready(service: &ClusterService) -> impl Iterator<Item = (&EndpointGroup, &Endpoint)> {
    let all = service.groups.iter();
    let all = all.flat_map(|group| group.endpoints.iter().map(move |one| (group, one)));
    all.filter(|(_, one)| one.ready)
}

/// Records in their order, each once: an endpoint is in several groups if a Service's ports differ.
fn unique(records: impl Iterator<Item = Record>) -> Vec<Record> {
    let mut all = Vec::new();
    for record in records {
        if !all.contains(&record) {
            all.push(record);
        }
    }
    all
}

/// The name of a Service.
fn domain(service: &ClusterService) -> String {
    let ClusterService {
        namespace, name, ..
    } = service;
    format!("{name}.{namespace}.svc.{CLUSTER_DOMAIN}")
}

/// The first label of an endpoint's name.
fn label(endpoint: &Endpoint) -> String {
    match &endpoint.hostname {
        Some(name) => name.to_ascii_lowercase(),
        None => dashed(endpoint.address),
    }
}

/// An address as a label, as CoreDNS names endpoints without a host name.
fn dashed(address: Ipv4Addr) -> String {
    address.to_string().replace('.', "-")
}

#[cfg(test)]
#[path = "zone_tests.rs"]
mod tests;
