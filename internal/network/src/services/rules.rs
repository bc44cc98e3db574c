//! The chains, sets and elements of Services. Pure.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use resources::pod_ranges::Ipv4Range;
use resources::services::{ClusterService, ServicePort};

use super::TABLE;
use crate::commands::comment;

/// The bit of a packet's mark that asks for the node's address as its source.
const MASQUERADE: &str = "0x00800000";
/// The most clients of a Service with session affinity that a node remembers for each endpoint.
const SESSIONS_MAX: u32 = 65_536;

/// A map or set with one element for each port of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Table {
    /// From a Service's address, protocol and port to its chain.
    Addresses,
    /// From a protocol and node port to the chain.
    NodePorts,
    /// Addresses, protocols and ports without an endpoint.
    RefusedAddresses,
    /// Protocols and node ports without an endpoint.
    RefusedNodePorts,
}

impl Table {
    pub fn name(self) -> &'static str {
        match self {
            Table::Addresses => "service-ips",
            Table::NodePorts => "service-nodeports",
            Table::RefusedAddresses => "no-endpoint-services",
            Table::RefusedNodePorts => "no-endpoint-nodeports",
        }
    }
}

/// An element of a map or set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Element {
    /// Which Service and port it is for.
    pub comment: String,
    /// The chain that it leads to; none in a set.
    pub chain: Option<String>,
}

/// What some Services have in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// The rules of chains.
    pub chains: BTreeMap<String, Vec<String>>,
    /// The clients of endpoints, with how long they stay, in seconds.
    pub sessions: BTreeMap<String, u32>,
    /// The elements of maps and sets, by their keys.
    pub elements: BTreeMap<(Table, String), Element>,
}

/// The table without Services: replaces what is there in one step.
pub(super) fn empty_table(services: Ipv4Range) -> String {
    format!(
        "add table ip {TABLE}\n\
         delete table ip {TABLE}\n\
         table ip {TABLE} {{\n\
         \tmap service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}\n\
         \tmap service-nodeports {{ type inet_proto . inet_service : verdict; }}\n\
         \tset no-endpoint-services {{ type ipv4_addr . inet_proto . inet_service; }}\n\
         \tset no-endpoint-nodeports {{ type inet_proto . inet_service; }}\n\
         \tchain refuse {{\n\
         \t\tmeta l4proto tcp reject with tcp reset\n\
         \t\treject\n\
         \t}}\n\
         \tchain refusals {{\n\
         \t\tct state new ip daddr . meta l4proto . th dport @no-endpoint-services goto refuse\n\
         \t\tct state new fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport @no-endpoint-nodeports goto refuse\n\
         \t}}\n\
         \tchain prerouting-refusals {{\n\
         \t\ttype filter hook prerouting priority -110; policy accept;\n\
         \t\tjump refusals\n\
         \t}}\n\
         \tchain output-refusals {{\n\
         \t\ttype filter hook output priority -110; policy accept;\n\
         \t\tjump refusals\n\
         \t}}\n\
         \tchain forward {{\n\
         \t\ttype filter hook forward priority 0; policy accept;\n\
         \t\tip daddr {services} goto refuse\n\
         \t}}\n\
         \tchain services {{\n\
         \t\tip daddr . meta l4proto . th dport vmap @service-ips\n\
         \t\tfib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @service-nodeports\n\
         \t}}\n\
         \tchain prerouting {{\n\
         \t\ttype nat hook prerouting priority -100; policy accept;\n\
         \t\tjump services\n\
         \t}}\n\
         \tchain output {{\n\
         \t\ttype nat hook output priority -100; policy accept;\n\
         \t\tjump services\n\
         \t}}\n\
         \tchain postrouting {{\n\
         \t\ttype nat hook postrouting priority 90; policy accept;\n\
         \t\tmeta mark & {MASQUERADE} == 0 return\n\
         \t\tmeta mark set meta mark ^ {MASQUERADE}\n\
         \t\tmasquerade\n\
         \t}}\n\
         \tchain mark-for-masquerade {{\n\
         \t\tmeta mark set meta mark | {MASQUERADE}\n\
         \t}}\n\
         }}\n"
    )
}

/// Removes the table.
pub(crate) fn no_table() -> String {
    format!("add table ip {TABLE}\ndelete table ip {TABLE}\n")
}

/// What a Service needs. Chains are named by the Service's address, protocol and port, which no other Service has.
pub(super) fn of(service: &ClusterService) -> Rules {
    let mut rules = Rules::default();
    let Some(address) = service.address else {
        return rules;
    };
    for port in &service.ports {
        let targets = service.targets(port);
        let one = PortRules {
            service,
            port,
            address,
        };
        if targets.is_empty() {
            one.refuse(&mut rules);
        } else {
            one.lead(&targets, &mut rules);
        }
    }
    rules
}

struct PortRules<'a> {
    service: &'a ClusterService,
    port: &'a ServicePort,
    address: Ipv4Addr,
}

impl PortRules<'_> {
    /// The address, protocol and port in a chain's name.
    fn name(&self) -> String {
        let ServicePort { protocol, port, .. } = self.port;
        format!("{}/{protocol}/{port}", self.address)
    }

    fn address_key(&self) -> String {
        let ServicePort { protocol, port, .. } = self.port;
        format!("{} . {protocol} . {port}", self.address)
    }

    fn node_port_key(&self) -> Option<String> {
        let number = self.port.node_port?;
        Some(format!("{} . {number}", self.port.protocol))
    }

    fn element(&self, chain: Option<String>) -> Element {
        let ClusterService {
            namespace, name, ..
        } = self.service;
        let comment = comment(&format!("{namespace}/{name}:{}", self.port.name));
        Element { comment, chain }
    }

    fn refuse(&self, rules: &mut Rules) {
        let key = (Table::RefusedAddresses, self.address_key());
        rules.elements.insert(key, self.element(None));
        if let Some(key) = self.node_port_key() {
            let key = (Table::RefusedNodePorts, key);
            rules.elements.insert(key, self.element(None));
        }
    }

    fn lead(&self, targets: &[(Ipv4Addr, u16)], rules: &mut Rules) {
        let name = self.name();
        let (service, protocol) = (format!("service-{name}"), self.port.protocol);
        let sessions = self.service.affinity_seconds;
        let (mut by_session, mut verdicts) = (Vec::new(), Vec::new());
        for (number, (address, port)) in targets.iter().enumerate() {
            let endpoint = format!("{name}/{address}/{port}");
            let chain = format!("endpoint-{endpoint}");
            // A pod that is its own endpoint would see a packet from itself.
            let mut lines = vec![format!("ip saddr {address} jump mark-for-masquerade")];
            if let Some(seconds) = sessions {
                let set = format!("affinity-{endpoint}");
                by_session.push(format!("ip saddr @{set} goto {chain}"));
                lines.push(format!("update @{set} {{ ip saddr }}"));
                rules.sessions.insert(set, seconds);
            }
            lines.push(format!("meta l4proto {protocol} dnat to {address}:{port}"));
            verdicts.push(format!("{number} : goto {chain}"));
            rules.chains.insert(chain, lines);
        }
        let mut lines = by_session;
        lines.push(format!(
            "numgen random mod {} vmap {{ {} }}",
            targets.len(),
            verdicts.join(", ")
        ));
        rules.chains.insert(service.clone(), lines);
        let key = (Table::Addresses, self.address_key());
        rules
            .elements
            .insert(key, self.element(Some(service.clone())));
        if let Some(key) = self.node_port_key() {
            // The endpoint may be on another node, and has to answer by this one.
            let external = format!("external-{name}");
            let lines = vec![
                "jump mark-for-masquerade".to_owned(),
                format!("goto {service}"),
            ];
            rules.chains.insert(external.clone(), lines);
            let key = (Table::NodePorts, key);
            rules.elements.insert(key, self.element(Some(external)));
        }
    }
}

/// The line that makes an endpoint's set of clients.
pub(super) fn session_set(name: &str, seconds: u32) -> String {
    format!(
        "add set ip {TABLE} {name} {{ type ipv4_addr; size {SESSIONS_MAX}; flags dynamic,timeout; timeout {seconds}s; }}\n"
    )
}
