//! Pods' networks in a real kernel. Each test is a process of its own with a network of its own, so it needs root.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use network::{NetworkError, PodNetworks};
use nix::sched::{CloneFlags, setns, unshare};

/// Gives this thread and the ones that it starts an empty network with one outward device.
fn own_network() {
    assert!(nix::unistd::geteuid().is_root(), "run this test as root");
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    ip("link set lo up");
    ip("link add out0 mtu 1400 type veth peer name out1");
    ip("address add 192.0.2.1/24 dev out0");
    ip("link set out1 up");
    ip("link set out0 up");
}

fn ip(words: &str) -> String {
    let out = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(
        out.status.success(),
        "ip {words}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

fn inside<T: Send + 'static>(
    space: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    let space = File::open(space).unwrap();
    std::thread::spawn(move || {
        setns(&space, CloneFlags::CLONE_NEWNET).unwrap();
        work()
    })
}

/// A server at port 80 of this network; what its client's address was.
fn serve(listener: TcpListener) -> String {
    let (mut stream, from) = listener.accept().unwrap();
    stream.write_all(b"hello").unwrap();
    from.ip().to_string()
}

fn read_from(address: Ipv4Addr) -> String {
    let mut text = String::new();
    TcpStream::connect((address, 80))
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    text
}

#[test]
fn pods_reach_each_other_and_the_node_at_the_same_port() {
    own_network();
    let data = tempfile::tempdir().unwrap();
    let networks = PodNetworks::open(data.path()).unwrap();
    assert!(matches!(
        networks.attach("a", None),
        Err(NetworkError::NoRange)
    ));
    let (range, cluster) = (
        "10.244.3.0/24".parse().unwrap(),
        "10.244.0.0/16".parse().unwrap(),
    );
    let peer = BTreeMap::from([
        (
            "10.244.1.0/24".parse().unwrap(),
            Ipv4Addr::new(192, 0, 2, 9),
        ),
        (
            "10.244.2.0/24".parse().unwrap(),
            Ipv4Addr::new(203, 0, 113, 9),
        ),
    ]);
    // The second node is in no common segment.
    let refused = networks.set(range, cluster, &peer).unwrap();
    assert_eq!(refused.len(), 1);
    assert!(ip("route show proto 117").contains("10.244.1.0/24 via 192.0.2.9"));

    let (a, b) = (
        networks.attach("a", None).unwrap(),
        networks.attach("b", None).unwrap(),
    );
    assert_eq!(networks.attach("a", None).unwrap(), a);
    assert_eq!(a.address.to_string(), "10.244.3.2");
    let bind = || TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)).unwrap();
    let listeners = (
        inside(&a.namespace, bind).join().unwrap(),
        inside(&b.namespace, bind).join().unwrap(),
    );
    let node = bind();
    let (of_a, of_b) = (a.address, b.address);
    let served = std::thread::spawn(move || serve(listeners.1));
    assert_eq!(
        inside(&a.namespace, move || read_from(of_b))
            .join()
            .unwrap(),
        "hello"
    );
    assert_eq!(served.join().unwrap(), of_a.to_string());
    let served = std::thread::spawn(move || serve(node));
    let to_node = || read_from(Ipv4Addr::new(192, 0, 2, 1));
    assert_eq!(inside(&b.namespace, to_node).join().unwrap(), "hello");
    assert_eq!(served.join().unwrap(), of_b.to_string());
    let served = std::thread::spawn(move || serve(listeners.0));
    assert_eq!(read_from(of_a), "hello");
    served.join().unwrap();

    networks.detach("a").unwrap();
    networks.detach("b").unwrap();
    assert!(!ip("link show").contains("mp0af4"));
    networks.retain(&BTreeSet::new(), false).unwrap();
}

#[test]
fn the_next_agent_keeps_living_pods_and_removes_only_what_is_its_own() {
    own_network();
    let data = tempfile::tempdir().unwrap();
    let (range, cluster) = (
        "10.244.3.0/24".parse().unwrap(),
        "10.244.0.0/16".parse().unwrap(),
    );
    let first = PodNetworks::open(data.path()).unwrap();
    let other = PodNetworks::open(tempfile::tempdir().unwrap().path());
    assert!(matches!(other, Err(NetworkError::OtherAgent)));
    first.set(range, cluster, &BTreeMap::new()).unwrap();
    let kept = first.attach("kept", None).unwrap();
    first.attach("gone", None).unwrap();
    ip("link add mp0000000a type veth peer name other0");
    drop(first);

    let next = PodNetworks::open(data.path()).unwrap();
    assert!(PodNetworks::left_in(data.path()));
    let live = BTreeSet::from(["kept".to_owned()]);
    next.retain(&live, true).unwrap();
    assert_eq!(next.of("kept"), Some(kept.clone()));
    assert_eq!(next.of("gone"), None);
    assert_eq!(next.attach("kept", None).unwrap(), kept);
    let devices = ip("link show");
    assert!(
        devices.contains("mp0af40302") && !devices.contains("mp0af40303"),
        "{devices}"
    );
    assert!(devices.contains("mp0000000a"), "{devices}");

    // A node that gives no addresses any more keeps its rules until the last pod has gone.
    next.retain(&live, false).unwrap();
    assert!(PodNetworks::left_in(data.path()));
    next.retain(&BTreeSet::new(), false).unwrap();
    assert!(!PodNetworks::left_in(data.path()));
    let rules = Command::new("nft")
        .args(["list", "tables"])
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&rules.stdout).contains("muster_pods"));
    assert_eq!(
        std::fs::read_dir(data.path().join("pods")).unwrap().count(),
        0
    );
}

#[test]
fn a_range_of_which_the_machine_has_an_address_is_refused() {
    own_network();
    let data = tempfile::tempdir().unwrap();
    let networks = PodNetworks::open(data.path()).unwrap();
    let (range, cluster) = (
        "192.0.2.0/24".parse().unwrap(),
        "192.0.0.0/16".parse().unwrap(),
    );
    let error = networks
        .set(range, cluster, &BTreeMap::new())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("device out0") && error.contains("--pod-cidr"),
        "{error}"
    );
}
