//! Two nodes whose pods have addresses of their own.

use std::net::TcpListener;

use crate::{Agent, Network, Platform};

/// A server on a bridge, with further options, and two agents that give pods addresses.
#[track_caller]
pub fn two_nodes(options: &[&str]) -> (Network, Platform, Vec<Agent>) {
    let network = Network::new(2);
    let port = {
        let free = TcpListener::bind((network.host().as_str(), 0)).expect("a free port");
        free.local_addr().expect("a bound port").port()
    };
    let listen = format!("{}:{port}", network.host());
    let all = [&["--pod-cidr", "10.250.0.0/16"], options].concat();
    let platform = Platform::server_on(&listen, &all);
    let agents = network.nodes.iter().enumerate().map(|(i, node)| {
        let arguments = ["--node-address", &node.address, "--pod-network", "own"];
        platform.agent(&format!("node-{i}"), Some(node), &arguments)
    });
    let agents = agents.collect();
    platform.await_nodes(2);
    (network, platform, agents)
}
