//! Several nodes on one machine: network namespaces connected by a bridge.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::run;

/// Numbers the networks of one process.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A bridge on this host with attached namespaces; removed when dropped.
pub struct Network {
    bridge: String,
    prefix: String,
    subnet: String,
    /// The namespaces, one for each node.
    pub nodes: Vec<NodeNamespace>,
}

/// One node's network.
#[derive(Clone, Debug)]
pub struct NodeNamespace {
    /// The namespace's name.
    pub name: String,
    /// The node's address.
    pub address: String,
}

#[track_caller]
fn ip(arguments: &[&str]) {
    let ran = run(Command::new("ip").args(arguments));
    assert_eq!(ran.code, Some(0), "ip {}: {}", arguments.join(" "), ran.err);
}

impl Network {
    /// A bridge and this many namespaces.
    pub fn new(count: u32) -> Network {
        crate::require_root();
        // Names hold at most 15 characters, so that the process id and a counter are combined.
        let number = std::process::id().wrapping_mul(31) + NEXT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("m{:05}", number % 100_000);
        // One /24 of the upper part of 10.64.0.0/10 for each network.
        let subnet = format!("10.{}.{}", 96 + (number / 256) % 32, number % 256);
        let mut network = Network {
            bridge: format!("{prefix}br"),
            prefix,
            subnet,
            nodes: Vec::new(),
        };
        let bridge = network.bridge.clone();
        ip(&["link", "add", &bridge, "type", "bridge"]);
        ip(&[
            "addr",
            "add",
            &format!("{}.1/24", network.subnet),
            "dev",
            &bridge,
        ]);
        ip(&["link", "set", &bridge, "up"]);
        for i in 0..count {
            let node = network.add(i);
            network.nodes.push(node);
        }
        network
    }

    fn add(&self, i: u32) -> NodeNamespace {
        let name = format!("{}n{i}", self.prefix);
        let (outer, inner) = (format!("{name}o"), format!("{name}i"));
        let address = format!("{}.{}", self.subnet, 10 + i);
        ip(&["netns", "add", &name]);
        ip(&[
            "link", "add", &outer, "type", "veth", "peer", "name", &inner,
        ]);
        ip(&["link", "set", &outer, "master", &self.bridge, "up"]);
        ip(&["link", "set", &inner, "netns", &name]);
        let inside = |arguments: &[&str]| ip(&[&["-n", name.as_str()], arguments].concat());
        inside(&["addr", "add", &format!("{address}/24"), "dev", &inner]);
        inside(&["link", "set", &inner, "up"]);
        inside(&["link", "set", "lo", "up"]);
        NodeNamespace { name, address }
    }

    /// This host's address on the bridge.
    pub fn host(&self) -> String {
        format!("{}.1", self.subnet)
    }

    /// Takes a node's link down or up, as a pulled cable would.
    pub fn link(&self, node: usize, up: bool) {
        let outer = format!("{}o", self.nodes[node].name);
        ip(&["link", "set", &outer, if up { "up" } else { "down" }]);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for node in &self.nodes {
            run(Command::new("ip").args(["netns", "del", &node.name]));
        }
        run(Command::new("ip").args(["link", "del", &self.bridge]));
    }
}
