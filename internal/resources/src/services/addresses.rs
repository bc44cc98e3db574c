//! The addresses and node ports of Services: which ones a Service gets, and why one that it asks for is refused, in
//! kube-apiserver's words.
//!
//! A Service keeps its address until it is deleted. The first address of the range is kept for the API, the tenth is
//! the cluster's DNS server, as kubeadm has it. Addresses are tried from a number drawn by the caller, so a freed one
//! is seldom given to the next Service (a client that still has it reaches no other Service). The lower sixteenth of
//! the range, at least 16 and at most 256 addresses, is given only when the rest is used, so that it stays free for
//! addresses that manifests name (KEP-3070).

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use serde_json::{Value, json};

use crate::field::{FieldError, FieldErrorKind, Path};
use crate::json;
use crate::pod_ranges::{Ipv4Range, RangeError};

/// The ports that Services may have at nodes' addresses, as kube-apiserver's default.
pub const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;
/// The range of Services' addresses that Kubernetes clusters usually have.
pub const USUAL_RANGE: &str = "10.96.0.0/16";
/// The prefixes that a range may have: from a million addresses to 14 usable ones.
const PREFIXES: RangeInclusive<u8> = 12..=28;
/// How far after the range's first address the DNS server's is.
const DNS: u32 = 10;

/// The range of all Services' addresses (`--service-cidr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRange(Ipv4Range);

impl ServiceRange {
    /// Reads the range.
    ///
    /// # Errors
    ///
    /// For a text that is no range, one with too few or too many addresses, and addresses with another meaning.
    pub fn parse(text: &str) -> Result<ServiceRange, ServiceRangeError> {
        let range: Ipv4Range = text.parse().map_err(ServiceRangeError::Range)?;
        if !PREFIXES.contains(&range.prefix()) {
            return Err(ServiceRangeError::Prefix);
        }
        if range.is_reserved() {
            return Err(ServiceRangeError::Range(RangeError::Reserved));
        }
        Ok(ServiceRange(range))
    }

    /// The range's addresses.
    #[must_use]
    pub fn range(self) -> Ipv4Range {
        self.0
    }

    /// The address of the cluster's DNS server, on every node that gives pods addresses.
    #[must_use]
    pub fn dns(self) -> Ipv4Addr {
        self.numbered(DNS)
    }

    fn numbered(self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.0.first()).saturating_add(number))
    }

    /// The number of the last address that a Service may have; the first is 1.
    fn last(self) -> u32 {
        u32::from(self.0.last()) - u32::from(self.0.first()) - 1
    }

    /// Whether an address is kept for something else than Services.
    fn is_kept(self, address: Ipv4Addr) -> bool {
        [1, DNS]
            .map(|number| self.numbered(number))
            .contains(&address)
    }

    /// A free address, starting at a number; the lower band last.
    fn free(self, taken: &Taken, from: u32) -> Option<Ipv4Addr> {
        let last = self.last();
        let band = ((last + 1) / 16).clamp(16, 256).min(last);
        let upper = last - band;
        let from_upper = (0..upper).map(|step| band + 1 + (from.wrapping_add(step)) % upper);
        let mut numbers = from_upper.chain(1..=band);
        let free = |number: &u32| {
            let address = self.numbered(*number);
            !self.is_kept(address) && !taken.addresses.contains(&address)
        };
        numbers.find(free).map(|number| self.numbered(number))
    }
}

impl std::fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for ServiceRange {
    type Err = ServiceRangeError;

    fn from_str(text: &str) -> Result<ServiceRange, ServiceRangeError> {
        ServiceRange::parse(text)
    }
}

/// Why a text is no range of Services' addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServiceRangeError {
    /// It is not a range of usable addresses.
    #[error("{0}")]
    Range(RangeError),
    /// The prefix gives too few or too many addresses.
    #[error("write a prefix from {} to {}, as {USUAL_RANGE}", PREFIXES.start(), PREFIXES.end())]
    Prefix,
    /// It has addresses of pods.
    #[error(
        "Services and pods need different addresses, and it overlaps --pod-cidr {0}; write another range"
    )]
    OfPods(Ipv4Range),
}

/// What other Services have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Their addresses.
    pub addresses: BTreeSet<Ipv4Addr>,
    /// Their node ports. A port is taken for all protocols: kube-apiserver allows one for each protocol only in one
    /// Service, which is checked there.
    pub node_ports: BTreeSet<u16>,
}

impl Taken {
    /// Adds what a Service has.
    pub fn add(&mut self, service: &Value) {
        self.addresses.extend(address_of(service));
        self.node_ports.extend(node_ports_of(service));
    }

    /// Whether a Service has something of another one.
    #[must_use]
    pub fn conflicts(&self, service: &Value) -> bool {
        address_of(service).is_some_and(|address| self.addresses.contains(&address))
            || node_ports_of(service).any(|port| self.node_ports.contains(&port))
    }
}

/// The address of a Service.
fn address_of(service: &Value) -> Option<Ipv4Addr> {
    json::text(service, &["spec", "clusterIP"]).parse().ok()
}

/// The node ports of a Service.
fn node_ports_of(service: &Value) -> impl Iterator<Item = u16> + '_ {
    let ports = json::items(service, &["spec", "ports"]).iter();
    ports.filter_map(|port| {
        let number = json::int(port, &["nodePort"])?;
        u16::try_from(number).ok().filter(|number| *number != 0)
    })
}

/// Whether a Service may have ports at nodes' addresses.
fn has_node_ports(service: &Value) -> bool {
    let kind = json::text(service, &["spec", "type"]);
    let declined =
        json::at(service, &["spec", "allocateLoadBalancerNodePorts"]) == &Value::Bool(false);
    kind == "NodePort" || (kind == "LoadBalancer" && !declined)
}

/// Gives a Service the address and node ports that it lacks, and checks those that it names. `old` is the Service
/// before the change, whose address and ports it may keep; `from` chooses where the search for free ones begins. Without
/// a range Services have no addresses: they are headless.
///
/// # Errors
///
/// What is refused, in kube-apiserver's words.
pub fn allocate(
    service: &mut Value,
    old: Option<&Value>,
    range: Option<ServiceRange>,
    taken: &Taken,
    from: u32,
) -> Result<(), Vec<FieldError>> {
    let by_name = json::text(service, &["spec", "type"]) == "ExternalName";
    let Some(spec) = service
        .get("spec")
        .filter(|spec| spec.is_object() && !by_name)
    else {
        return Ok(());
    };
    let asked = json::text(spec, &["clusterIP"]).to_owned();
    let had = old.and_then(address_of);
    let mut errors = Vec::new();
    match (asked.as_str(), range) {
        ("", None) => set_address(service, "None"),
        ("", Some(range)) => match range.free(taken, from) {
            Some(address) => set_address(service, &address.to_string()),
            None => errors.push(full(
                "spec.clusterIPs",
                format!(
                    "failed to allocate a serviceIP: range is full; delete Services, or give the server a larger \
                     --service-cidr than {range}"
                ),
            )),
        },
        (text, Some(range)) if had.map(|address| address.to_string()).as_deref() != Some(text) => {
            if let Ok(address) = text.parse::<Ipv4Addr>() {
                errors.extend(refusal(address, range, taken));
            }
        }
        _ => {}
    }
    if range.is_some() && has_node_ports(service) {
        give_node_ports(service, old, taken, from, &mut errors);
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

fn full(path: impl Into<String>, detail: String) -> FieldError {
    FieldError {
        path: path.into(),
        kind: FieldErrorKind::Internal,
        value: Value::Null,
        detail,
    }
}

fn set_address(service: &mut Value, address: &str) {
    if let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("clusterIP".to_owned(), address.into());
        spec.insert("clusterIPs".to_owned(), json!([address]));
    }
}

/// Why a Service can't have an address that it names.
fn refusal(address: Ipv4Addr, range: ServiceRange, taken: &Taken) -> Option<FieldError> {
    let refused = |why: String| {
        let detail = format!("failed to allocate IP {address}: {why}");
        FieldError::invalid("spec.clusterIPs", json!([address.to_string()]), detail)
    };
    let number = u32::from(address).wrapping_sub(u32::from(range.0.first()));
    if !(1..=range.last()).contains(&number) {
        return Some(refused(format!(
            "the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}"
        )));
    }
    let is_taken = range.is_kept(address) || taken.addresses.contains(&address);
    is_taken.then(|| refused("provided IP is already allocated".to_owned()))
}

fn give_node_ports(
    service: &mut Value,
    old: Option<&Value>,
    taken: &Taken,
    from: u32,
    errors: &mut Vec<FieldError>,
) {
    let had: BTreeSet<u16> = old
        .map(|old| node_ports_of(old).collect())
        .unwrap_or_default();
    let mut used: BTreeSet<u16> = taken.node_ports.clone();
    used.extend(node_ports_of(service));
    let path = Path::new("spec");
    let path = path.child("ports");
    let count = u32::from(NODE_PORTS.end() - NODE_PORTS.start()) + 1;
    let Some(spec) = service.get_mut("spec") else {
        return;
    };
    for (index, port) in json::list(spec, "ports").enumerate() {
        let path = path.index(index);
        let path = path.child("nodePort");
        let number = json::int(port, &["nodePort"]).unwrap_or(0);
        if number == 0 {
            let offsets = (0..count).map(|step| from.wrapping_add(step) % count);
            let mut ports = offsets.filter_map(|offset| {
                let offset = u16::try_from(offset).ok()?;
                NODE_PORTS.start().checked_add(offset)
            });
            let Some(free) = ports.find(|port| !used.contains(port)) else {
                let detail = "failed to allocate a nodePort: range is full; delete Services of type NodePort";
                errors.push(full(&path, detail.to_owned()));
                continue;
            };
            used.insert(free);
            if let Some(map) = port.as_object_mut() {
                map.insert("nodePort".to_owned(), free.into());
            }
            continue;
        }
        let valid = u16::try_from(number)
            .ok()
            .filter(|port| NODE_PORTS.contains(port));
        let why = match valid {
            None => format!(
                "provided port is not in the valid range. The range of valid ports is {}-{}",
                NODE_PORTS.start(),
                NODE_PORTS.end()
            ),
            Some(port) if taken.node_ports.contains(&port) && !had.contains(&port) => {
                "provided port is already allocated".to_owned()
            }
            Some(_) => continue,
        };
        errors.push(FieldError::invalid(&path, number, why));
    }
}

#[cfg(test)]
#[path = "addresses_tests.rs"]
mod tests;
