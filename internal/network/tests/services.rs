//! Services' rules in a real kernel. Each test is a process of its own with a network of its own, so it needs root.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;

use network::NodeServices;
use nix::sched::{CloneFlags, unshare};
use resources::services::{
    ClusterService, Endpoint, EndpointGroup, EndpointPort, Protocol, ServicePort,
};

fn run(program: &str, words: &str) -> String {
    let out = Command::new(program)
        .args(words.split(' '))
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{program} {words}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

fn service(
    endpoints: &[Ipv4Addr],
    sticky: bool,
) -> BTreeMap<(String, String), Arc<ClusterService>> {
    let endpoints = endpoints.iter().map(|address| Endpoint {
        address: *address,
        hostname: None,
        ready: true,
        draining: false,
    });
    let service = ClusterService {
        namespace: "team".to_owned(),
        name: "web".to_owned(),
        address: Some(Ipv4Addr::new(10, 96, 0, 7)),
        external_name: None,
        affinity_seconds: sticky.then_some(60),
        ports: vec![ServicePort {
            name: String::new(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: Some(30_080),
        }],
        groups: vec![EndpointGroup {
            ports: vec![EndpointPort {
                name: String::new(),
                protocol: Protocol::Tcp,
                port: 8080,
            }],
            endpoints: endpoints.collect(),
        }],
    };
    BTreeMap::from([(("team".to_owned(), "web".to_owned()), Arc::new(service))])
}

/// Which endpoints answered.
fn asked(address: Ipv4Addr, port: u16, times: usize) -> BTreeMap<String, usize> {
    let mut answers = BTreeMap::new();
    for _ in 0..times {
        let mut text = String::new();
        TcpStream::connect((address, port))
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        *answers.entry(text).or_default() += 1;
    }
    answers
}

#[test]
fn connections_reach_endpoints_by_address_and_node_port_and_are_refused_without_any() {
    assert!(nix::unistd::geteuid().is_root(), "run this test as root");
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    run("ip", "link set lo up");
    run("ip", "link add out0 type veth peer name out1");
    run("ip", "address add 192.0.2.1/24 dev out0");
    run("ip", "address add 192.0.2.2/24 dev out0");
    run("ip", "link set out1 up");
    run("ip", "link set out0 up");
    run("ip", "route add default via 192.0.2.9");
    let both = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    for address in both {
        let listener = TcpListener::bind((address, 8080)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                stream
                    .unwrap()
                    .write_all(address.to_string().as_bytes())
                    .unwrap();
            }
        });
    }
    let range = "10.96.0.0/16".parse().unwrap();
    let services = NodeServices::open().unwrap();
    services.take_dns_address(range).unwrap();
    services.take_dns_address(range).unwrap();
    assert!(run("ip", "address show dev lo").contains("10.96.0.10/32"));

    let address = Ipv4Addr::new(10, 96, 0, 7);
    services.set(range, service(&both, false)).unwrap();
    let answers = asked(address, 80, 60);
    assert!(
        answers.len() == 2 && answers.values().all(|count| *count > 5),
        "{answers:?}"
    );
    assert_eq!(asked(both[0], 30_080, 40).len(), 2);
    services.set(range, service(&both, true)).unwrap();
    assert_eq!(asked(address, 80, 20).len(), 1);
    // The session ends with its endpoint only.
    services.set(range, service(&both[1..], true)).unwrap();
    assert_eq!(
        asked(address, 80, 3),
        BTreeMap::from([("192.0.2.2".to_owned(), 3)])
    );

    services.set(range, service(&[], true)).unwrap();
    for (address, port) in [(address, 80), (both[0], 30_080)] {
        let refused = TcpStream::connect((address, port)).unwrap_err();
        assert_eq!(
            refused.kind(),
            ErrorKind::ConnectionRefused,
            "{address}:{port}"
        );
    }
    services.set(range, BTreeMap::new()).unwrap();
    let rules = run("nft", "list table ip muster_services");
    assert!(!rules.contains("10.96.0.7"), "{rules}");

    // Another program removed the table: the agent writes it again.
    run("nft", "delete table ip muster_services");
    services.set(range, service(&both, false)).unwrap();
    assert_eq!(asked(address, 80, 40).len(), 2);
    let taken = services.take_dns_address("192.0.2.0/24".parse().unwrap());
    let taken = taken.unwrap_err().to_string();
    assert!(
        taken.contains("device out0") && taken.contains("--service-cidr"),
        "{taken}"
    );
    services.clear().unwrap();
    assert!(!run("nft", "list tables").contains("muster_services"));
    assert!(!run("ip", "address show dev lo").contains("10.96.0.10"));
}
