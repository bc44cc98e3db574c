//! NetworkPolicies' rules in a real kernel. Each test is a process of its own with a network of its own, so it needs root.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use network::{NodePolicies, NodeServices, PodNetwork, PodNetworks};
use nix::sched::{CloneFlags, setns, unshare};
use resources::network_policies::{
    Element, IpBlock, NodeView, Peers, PodRules, PortRange, RuleList, TrafficRule,
};
use resources::services::{
    ClusterService, Endpoint, EndpointGroup, EndpointPort, Protocol, ServicePort,
};

/// How long a connection may take; one that is refused says so at once.
const CONNECT: Duration = Duration::from_secs(5);
/// The node's address to the outside.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

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

/// Answers each connection with the bytes that it sends, one at a time.
fn echo(listener: TcpListener) {
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
}

fn listen(space: &Path, port: u16) {
    let bound = move || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
    echo(inside(space, bound).join().unwrap());
}

fn spoken(stream: &mut TcpStream) -> bool {
    let mut byte = [7];
    stream.write_all(&byte).is_ok() && stream.read_exact(&mut byte).is_ok()
}

fn opened(to: Ipv4Addr, port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((to, port)), CONNECT).ok()?;
    stream.set_read_timeout(Some(CONNECT)).unwrap();
    Some(stream)
}

fn reaches(from: &Path, to: Ipv4Addr, port: u16) -> bool {
    let work = move || opened(to, port).is_some_and(|mut stream| spoken(&mut stream));
    inside(from, work).join().unwrap()
}

struct Pods {
    networks: PodNetworks,
    pods: BTreeMap<String, PodNetwork>,
    policies: NodePolicies,
    view: NodeView,
    _data: tempfile::TempDir,
}

impl Pods {
    /// A node with pods that listen on the ports 80 and 81, and listens itself.
    fn new(names: &[&str]) -> Pods {
        assert!(nix::unistd::geteuid().is_root(), "run this test as root");
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        run("ip", "link set lo up");
        run("ip", "link add out0 type veth peer name out1");
        run("ip", "address add 192.0.2.1/24 dev out0");
        run("ip", "link set out1 up");
        run("ip", "link set out0 up");
        run("ip", "route add default via 192.0.2.9");
        let data = tempfile::tempdir().unwrap();
        let networks = PodNetworks::open(data.path()).unwrap();
        let (range, cluster) = ("10.244.3.0/24", "10.244.0.0/16");
        let (range, cluster) = (range.parse().unwrap(), cluster.parse().unwrap());
        networks.set(range, cluster, &BTreeMap::new()).unwrap();
        let mut pods = BTreeMap::new();
        for name in names {
            let network = networks.attach(name, None).unwrap();
            for port in [80, 81] {
                listen(&network.namespace, port);
            }
            pods.insert((*name).to_owned(), network);
        }
        echo(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80)).unwrap());
        let view = NodeView {
            pods: names.iter().map(|name| pod(name, None, None)).collect(),
            ..NodeView::default()
        };
        Pods {
            networks,
            pods,
            policies: NodePolicies::open().unwrap(),
            view,
            _data: data,
        }
    }

    fn space(&self, name: &str) -> PathBuf {
        self.pods[name].namespace.clone()
    }

    fn address(&self, name: &str) -> Ipv4Addr {
        self.pods[name].address
    }

    fn select(&mut self, name: &str, ingress: Option<Vec<u64>>, egress: Option<Vec<u64>>) {
        self.view.pods.extend([pod(name, ingress, egress)]);
    }

    fn list(&mut self, id: u64, peers: Peers, ports: &[(Protocol, u16)]) {
        let ports = ports.iter().map(|(protocol, port)| PortRange {
            protocol: *protocol,
            first: *port,
            last: *port,
        });
        let rule = TrafficRule {
            peers,
            ports: ports.collect(),
        };
        let list = RuleList {
            policy: "team/p".to_owned(),
            rules: vec![rule],
        };
        self.view.lists.insert(id, Arc::new(list));
    }

    fn group(&mut self, id: u64, names: &[&str], port: Option<u16>) {
        let element = |name: &&str| Element {
            address: self.address(name),
            port: port.map(|port| (Protocol::Tcp, port)),
        };
        let members = names.iter().map(element).collect();
        self.view.groups.insert(id, Arc::new(members));
    }

    fn program(&self) {
        let local = self.networks.addresses();
        self.policies.set(&self.view, &local).unwrap();
    }

    fn pass(&self, from: &str, to: &str, port: u16) -> bool {
        reaches(&self.space(from), self.address(to), port)
    }
}

fn pod(name: &str, ingress: Option<Vec<u64>>, egress: Option<Vec<u64>>) -> (String, Arc<PodRules>) {
    let rules = PodRules {
        namespace: "team".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        ingress,
        egress,
    };
    (name.to_owned(), Arc::new(rules))
}

#[test]
fn a_pod_receives_what_its_rules_allow_and_answers() {
    let mut pods = Pods::new(&["a", "b", "c"]);
    pods.program();
    assert!(!run("nft", "list tables").contains("muster_policies"));
    assert!(pods.pass("b", "a", 80));

    // Nothing is allowed: the node still reaches the pod, and the pod itself and others.
    pods.select("a", Some(Vec::new()), None);
    pods.program();
    assert!(!pods.pass("b", "a", 80) && !pods.pass("c", "a", 81));
    assert!(opened(pods.address("a"), 80).is_some_and(|mut stream| spoken(&mut stream)));
    assert!(pods.pass("a", "a", 80) && pods.pass("a", "b", 80));
    assert!(reaches(&pods.space("a"), OUTSIDE, 80));

    // One peer, one port; a change of the group is a change of who passes.
    pods.list(1, Peers::Group(7), &[(Protocol::Tcp, 80)]);
    pods.group(7, &["b"], None);
    pods.select("a", Some(vec![1]), None);
    pods.program();
    assert!(pods.pass("b", "a", 80) && !pods.pass("b", "a", 81) && !pods.pass("c", "a", 80));
    pods.group(7, &["c"], None);
    pods.program();
    assert!(!pods.pass("b", "a", 80) && pods.pass("c", "a", 80));

    // A range with an exception.
    let block = IpBlock {
        range: "10.244.3.0/24".parse().unwrap(),
        except: vec![format!("{}/32", pods.address("b")).parse().unwrap()],
    };
    pods.list(2, Peers::Block(block), &[]);
    pods.select("a", Some(vec![2]), None);
    pods.program();
    assert!(!pods.pass("b", "a", 80) && pods.pass("c", "a", 81));

    // A policy that goes opens the pod again; the last one takes the table along.
    pods.select("a", None, None);
    pods.program();
    assert!(pods.pass("b", "a", 80));
    pods.select("c", Some(Vec::new()), None);
    pods.program();
    run("nft", "list table inet muster_policies");
    // Another agent, which knows nothing of the table, leaves no pod open that is closed.
    pods.policies = NodePolicies::open().unwrap();
    assert!(!pods.pass("b", "c", 80));
    pods.program();
    assert!(!pods.pass("b", "c", 80) && pods.pass("b", "a", 80));
    // Another program removed the table: the next change writes it again.
    run("nft", "delete table inet muster_policies");
    assert!(pods.pass("b", "c", 80));
    pods.select("b", Some(Vec::new()), None);
    pods.program();
    assert!(!pods.pass("b", "c", 80) && !pods.pass("a", "b", 80));
}

#[test]
fn a_pod_sends_what_its_rules_allow_to_pods_services_and_its_node() {
    let mut pods = Pods::new(&["a", "b", "c"]);
    pods.select("a", None, Some(Vec::new()));
    pods.program();
    assert!(!pods.pass("a", "b", 80) && !reaches(&pods.space("a"), OUTSIDE, 80));
    // What reaches it gets answers, from pods and from the node.
    assert!(pods.pass("b", "a", 80) && pods.pass("a", "a", 80));
    assert!(opened(pods.address("a"), 80).is_some_and(|mut stream| spoken(&mut stream)));

    // A Service's address is judged by the pod behind it.
    let services = NodeServices::open().unwrap();
    let service = |name: &str, number: u8, endpoint: Ipv4Addr| {
        let service = ClusterService {
            namespace: "team".to_owned(),
            name: name.to_owned(),
            address: Some(Ipv4Addr::new(10, 96, 0, number)),
            external_name: None,
            affinity_seconds: None,
            ports: vec![ServicePort {
                name: String::new(),
                protocol: Protocol::Tcp,
                port: 8080,
                node_port: None,
            }],
            groups: vec![EndpointGroup {
                ports: vec![EndpointPort {
                    name: String::new(),
                    protocol: Protocol::Tcp,
                    port: 80,
                }],
                endpoints: vec![Endpoint {
                    address: endpoint,
                    hostname: None,
                    ready: true,
                    draining: false,
                }],
            }],
        };
        (("team".to_owned(), name.to_owned()), Arc::new(service))
    };
    let all = ["a", "b", "c"].into_iter().zip(7..);
    let all = all.map(|(name, number)| service(name, number, pods.address(name)));
    services
        .set("10.96.0.0/16".parse().unwrap(), all.collect())
        .unwrap();
    let by_service =
        |pods: &Pods, number: u8| reaches(&pods.space("a"), Ipv4Addr::new(10, 96, 0, number), 8080);
    pods.list(1, Peers::Group(7), &[(Protocol::Tcp, 80)]);
    pods.group(7, &["b"], None);
    pods.select("a", None, Some(vec![1]));
    pods.program();
    assert!(by_service(&pods, 8) && !by_service(&pods, 9));
    // Its own Service leads back to it, whatever the rules.
    assert!(by_service(&pods, 7));
    assert!(pods.pass("a", "b", 80) && !pods.pass("a", "b", 81));

    // A named port: the numbers of the receiving pods.
    pods.list(2, Peers::Endpoints(8), &[]);
    pods.group(8, &["c"], Some(81));
    pods.select("a", None, Some(vec![2]));
    pods.program();
    assert!(pods.pass("a", "c", 81) && !pods.pass("a", "c", 80) && !pods.pass("a", "b", 81));

    // An open connection ends with the rule that allowed it; the answers of another do not.
    let mut out = {
        let to = pods.address("c");
        let connect = move || opened(to, 81).unwrap();
        inside(&pods.space("a"), connect).join().unwrap()
    };
    let mut back = {
        let to = pods.address("a");
        let connect = move || opened(to, 80).unwrap();
        inside(&pods.space("b"), connect).join().unwrap()
    };
    assert!(spoken(&mut out) && spoken(&mut back));
    pods.select("a", None, Some(Vec::new()));
    pods.program();
    assert!(!spoken(&mut out) && spoken(&mut back));

    // UDP to the node, as a question for a name.
    let node = UdpSocket::bind((OUTSIDE, 53)).unwrap();
    node.set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let space = pods.space("a");
    let ask = move || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let _ = socket.send_to(b"?", (OUTSIDE, 53));
    };
    let mut byte = [0];
    inside(&space, ask).join().unwrap();
    assert!(node.recv(&mut byte).is_err());
    pods.list(3, Peers::Any, &[(Protocol::Udp, 53)]);
    pods.select("a", None, Some(vec![3]));
    pods.program();
    inside(&space, ask).join().unwrap();
    assert!(node.recv(&mut byte).is_ok());

    // A pod that the server did not name is cut off in both directions.
    pods.view.pods.remove("b");
    pods.program();
    assert!(!pods.pass("b", "c", 80) && !pods.pass("c", "b", 80));
    pods.networks.detach("a").unwrap();
    pods.networks.detach("b").unwrap();
    pods.program();
    assert!(!run("nft", "list tables").contains("muster_policies"));
}
