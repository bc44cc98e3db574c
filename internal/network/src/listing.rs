//! What `ip -json` lists of the machine's devices and routes. Pure.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use resources::pod_ranges::Ipv4Range;
use serde::Deserialize;

use crate::commands::{ALIAS_PREFIX, is_device};

/// Largest packet where the machine has no device that tells.
const USUAL_MTU: u32 = 1500;
/// The least that IPv4's hosts must take.
const LEAST_MTU: u32 = 576;

/// A device of the machine.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Link {
    #[serde(default)]
    pub ifname: String,
    #[serde(default)]
    mtu: u32,
    #[serde(default)]
    ifalias: String,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    addr_info: Vec<LinkAddress>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct LinkAddress {
    #[serde(default)]
    local: String,
    #[serde(default)]
    label: String,
}

/// A route of the machine.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Route {
    #[serde(default)]
    dst: String,
    #[serde(default)]
    gateway: String,
    #[serde(default)]
    dev: String,
}

impl Link {
    /// The pod that the agent made it for, if it is such a device.
    pub fn pod(&self) -> Option<&str> {
        self.ifalias
            .strip_prefix(ALIAS_PREFIX)
            .filter(|_| is_device(&self.ifname))
    }

    /// Whether it is another device with an address of the range.
    pub fn has_address_of(&self, range: Ipv4Range) -> bool {
        let addresses = self
            .addr_info
            .iter()
            .filter_map(|info| info.local.parse().ok());
        !is_device(&self.ifname) && addresses.into_iter().any(|address| range.contains(address))
    }

    /// Whether it has an address of the range without a label.
    pub fn has_other_address_of(&self, range: Ipv4Range, label: &str) -> bool {
        let mut others = self.addr_info.iter().filter(|info| info.label != label);
        others.any(|info| info.local.parse().is_ok_and(|local| range.contains(local)))
    }

    /// Its addresses with a label.
    pub fn labelled<'a>(&'a self, label: &'a str) -> impl Iterator<Item = &'a str> {
        let with_label = self
            .addr_info
            .iter()
            .filter(move |info| info.label == label);
        with_label.map(|info| info.local.as_str())
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|one| one == flag)
    }
}

/// The largest packet of pods, in bytes: that of the device of the machine's default route, else the smallest of its
/// devices.
pub(crate) fn mtu(links: &[Link], default_routes: &[Route]) -> u32 {
    let of = |name: &str| {
        links
            .iter()
            .find(|link| link.ifname == name)
            .map(|link| link.mtu)
    };
    let by_route = default_routes
        .iter()
        .filter_map(|route| of(&route.dev))
        .min();
    let outward =
        |link: &&Link| link.has("UP") && !link.has("LOOPBACK") && !is_device(&link.ifname);
    let smallest = || links.iter().filter(outward).map(|link| link.mtu).min();
    by_route
        .or_else(smallest)
        .unwrap_or(USUAL_MTU)
        .max(LEAST_MTU)
}

/// The routes to other nodes' pods: range and the node's address.
pub(crate) fn peers(routes: &[Route]) -> BTreeMap<Ipv4Range, Ipv4Addr> {
    let peer = |route: &Route| {
        // Without a prefix: one address, which is no node's range.
        let range = route.dst.parse().ok()?;
        Some((range, route.gateway.parse().ok()?))
    };
    routes.iter().filter_map(peer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn links() -> Vec<Link> {
        serde_json::from_value(json!([
            {"ifname": "lo", "mtu": 65536, "flags": ["LOOPBACK", "UP"], "addr_info": [{"local": "127.0.0.1"}]},
            {"ifname": "eth0", "mtu": 1400, "flags": ["BROADCAST", "UP"], "addr_info": [{"local": "192.0.2.1"}]},
            {"ifname": "ib0", "mtu": 4096, "flags": ["BROADCAST", "UP"]},
            {"ifname": "mp0af40302", "mtu": 900, "flags": ["UP"], "ifalias": "muster:u-1",
                "addr_info": [{"local": "10.244.3.1"}]},
            {"ifname": "mp0af40303", "mtu": 900, "ifalias": "somebody's"},
            {"ifname": "dummy0", "mtu": 1500, "flags": [], "ifalias": "muster:u-2"},
            {},
        ]))
        .unwrap()
    }

    #[test]
    fn packets_are_as_large_as_on_the_way_out() {
        let routes = |dev: &str| -> Vec<Route> {
            serde_json::from_value(
                json!([{"dst": "default", "gateway": "192.0.2.254", "dev": dev}]),
            )
            .unwrap()
        };
        assert_eq!(mtu(&links(), &routes("ib0")), 4096);
        assert_eq!(mtu(&links(), &routes("gone")), 1400);
        assert_eq!(mtu(&links(), &[]), 1400);
        assert_eq!(mtu(&[], &[]), 1500);
    }

    #[test]
    fn only_the_agents_own_devices_are_pods() {
        let pods: Vec<String> = links()
            .iter()
            .filter_map(Link::pod)
            .map(str::to_owned)
            .collect();
        assert_eq!(pods, ["u-1"]);
    }

    #[test]
    fn an_address_of_the_pods_range_on_another_device_is_found() {
        let range = |text: &str| text.parse().unwrap();
        let found = |text| {
            links()
                .iter()
                .filter(|link| link.has_address_of(range(text)))
                .count()
        };
        assert_eq!(found("192.0.2.0/24"), 1);
        // The pods' own devices have it.
        assert_eq!(found("10.244.0.0/16"), 0);
    }

    #[test]
    fn routes_to_nodes_are_read_and_those_to_pods_left_out() {
        let routes: Vec<Route> = serde_json::from_value(json!([
            {"dst": "10.244.1.0/24", "gateway": "192.0.2.2", "dev": "eth0"},
            {"dst": "10.244.3.2", "dev": "mp0af40302", "prefsrc": "10.244.3.1"},
        ]))
        .unwrap();
        let found = peers(&routes);
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[&"10.244.1.0/24".parse().unwrap()],
            Ipv4Addr::new(192, 0, 2, 2)
        );
    }
}
