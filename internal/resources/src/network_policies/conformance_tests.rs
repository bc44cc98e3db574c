//! The conformance cases of sig-network (`test/e2e/network/netpol/network_policy.go`), as tables: three namespaces x, y
//! and z with three pods a, b and c each, which listen on the ports 80 and 81 of TCP, UDP and SCTP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};

use super::super::{Element, NodeView, Peers, Policy, PolicyPod, PolicyState, TrafficRule};
use crate::services::Protocol;

pub(super) type Key = (String, String);

pub(super) fn key(text: &str) -> Key {
    let (namespace, name) = text.split_once('/').unwrap();
    (namespace.to_owned(), name.to_owned())
}

fn matches(rule: &TrafficRule, view: &NodeView, peer: Ipv4Addr, to: Element) -> bool {
    let members = |id: &u64| view.groups.get(id).unwrap();
    let of_port = to.port.unwrap();
    let port = rule.ports.is_empty()
        || rule.ports.iter().any(|range| {
            range.protocol == of_port.0 && (range.first..=range.last).contains(&of_port.1)
        });
    let peers = match &rule.peers {
        Peers::Any => true,
        Peers::Group(id) => members(id).contains(&Element {
            address: peer,
            port: None,
        }),
        Peers::Endpoints(id) => members(id).contains(&to),
        Peers::Block(block) => {
            block.range.contains(peer) && !block.except.iter().any(|one| one.contains(peer))
        }
    };
    port && peers
}

/// Whether the rules of nodes let a connection from an address to an address and port pass; the pods of these addresses
/// have them.
pub(super) fn passes(
    state: &mut PolicyState,
    pods: &BTreeMap<Ipv4Addr, (String, String)>,
    from: Ipv4Addr,
    to: Element,
) -> bool {
    if from == to.address {
        return true;
    }
    let mut allowed = |own: Ipv4Addr, peer: Ipv4Addr, egress: bool| {
        let Some((node, uid)) = pods.get(&own) else {
            return true;
        };
        let view = state.view(node);
        let rules = view.pods.get(uid).unwrap();
        let lists = if egress {
            &rules.egress
        } else {
            &rules.ingress
        };
        let Some(lists) = lists else { return true };
        let mut rules = lists
            .iter()
            .flat_map(|id| &view.lists.get(id).unwrap().rules);
        rules.any(|rule| matches(rule, &view, peer, to))
    };
    allowed(from, to.address, true) && allowed(to.address, from, false)
}

/// The model of the conformance cases.
struct World {
    state: PolicyState,
    labels: BTreeMap<Key, Value>,
}

const NAMES: [&str; 9] = [
    "x/a", "x/b", "x/c", "y/a", "y/b", "y/c", "z/a", "z/b", "z/c",
];

/// The address of a pod: 10.244.N.M, N for the namespace and M for the name.
fn address(name: &str) -> Ipv4Addr {
    let [of_namespace, of_name] = [name.as_bytes()[0] - b'x', name.as_bytes()[2] - b'a'];
    Ipv4Addr::new(10, 244, of_namespace + 1, of_name + 2)
}

impl World {
    fn new() -> World {
        let mut world = World {
            state: PolicyState::default(),
            labels: BTreeMap::new(),
        };
        for namespace in ["x", "y", "z", "kube-system"] {
            world.namespace(namespace, json!({"ns": namespace}));
        }
        for name in NAMES {
            world.pod(name, json!({"pod": &name[2..]}));
        }
        world.state.set_dns(Some(Ipv4Addr::new(10, 96, 0, 10)));
        world
    }

    fn namespace(&mut self, name: &str, labels: Value) {
        let mut labels: BTreeMap<String, String> = serde_json::from_value(labels).unwrap();
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
        self.state.put_namespace(name, labels);
    }

    fn pod(&mut self, name: &str, labels: Value) {
        let ports = [80, 81].into_iter().flat_map(|number| {
            ["TCP", "UDP", "SCTP"].map(|protocol| {
                let name = format!("serve-{number}-{}", protocol.to_lowercase());
                json!({"name": name, "containerPort": number, "protocol": protocol})
            })
        });
        let (namespace, own) = name.split_once('/').unwrap();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": own, "uid": name, "labels": labels},
            "spec": {"nodeName": format!("node-{own}"), "containers": [
                {"name": "main", "ports": ports.collect::<Vec<_>>()},
            ]},
            "status": {"podIP": address(name).to_string(), "hostIP": "192.0.2.1", "phase": "Running"},
        }))
        .unwrap();
        self.labels.insert(key(name), labels);
        self.state.put_pod(&key(name), PolicyPod::of(&pod));
    }

    fn policy(&mut self, name: &str, spec: Value) {
        let (namespace, own) = name.split_once('/').unwrap();
        let object = json!({"metadata": {"namespace": namespace, "name": own}, "spec": spec});
        let policy: NetworkPolicy = serde_json::from_value(object).unwrap();
        self.state.put_policy(Policy::of(&policy).unwrap());
    }

    fn passes(&mut self, from: Ipv4Addr, to: Ipv4Addr, protocol: Protocol, port: u16) -> bool {
        let pods = NAMES.map(|name| (address(name), (format!("node-{}", &name[2..]), name.into())));
        let to = Element {
            address: to,
            port: Some((protocol, port)),
        };
        passes(&mut self.state, &pods.into(), from, to)
    }

    /// The pods that reach a pod, or that it reaches, on a port of TCP; without itself.
    fn reach(&mut self, to: &str, port: u16) -> String {
        let from = NAMES.into_iter().filter(|from| *from != to);
        let from = from.filter(|from| self.passes(address(from), address(to), Protocol::Tcp, port));
        from.collect::<Vec<_>>().join(" ")
    }

    fn reached(&mut self, from: &str, port: u16) -> String {
        let to = NAMES.into_iter().filter(|to| *to != from);
        let to = to.filter(|to| self.passes(address(from), address(to), Protocol::Tcp, port));
        to.collect::<Vec<_>>().join(" ")
    }
}

const ALL_BUT_XA: &str = "x/b x/c y/a y/b y/c z/a z/b z/c";

fn selecting(labels: Value, more: Value) -> Value {
    let mut spec = json!({"podSelector": {"matchLabels": labels}});
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    spec
}

fn pods(labels: Value) -> Value {
    json!({"podSelector": {"matchLabels": labels}})
}

fn spaces(labels: Value) -> Value {
    json!({"namespaceSelector": {"matchLabels": labels}})
}

/// Policies of x that select its pod a for ingress, and which pods reach it on port 80 then.
#[test]
fn ingress_rules_allow_by_pod_by_namespace_by_both_and_by_address() {
    let either = json!([pods(json!({"pod": "b"})), spaces(json!({"ns": "y"}))]);
    let both = json!([{
        "podSelector": {"matchLabels": {"pod": "b"}},
        "namespaceSelector": {"matchLabels": {"ns": "y"}},
    }]);
    let expressions = json!([{
        "podSelector": {"matchExpressions": [{"key": "pod", "operator": "In", "values": ["b", "c"]}]},
        "namespaceSelector": {"matchExpressions": [{"key": "ns", "operator": "NotIn", "values": ["x"]}]},
    }]);
    let any_namespace =
        json!([{"namespaceSelector": {}, "podSelector": {"matchLabels": {"pod": "b"}}}]);
    let block = json!([{"ipBlock": {"cidr": "10.244.2.0/24", "except": ["10.244.2.3/32"]}}]);
    let overlapping = json!([
        {"ipBlock": {"cidr": "10.244.2.0/24", "except": ["10.244.2.3/32"]}},
        {"ipBlock": {"cidr": "10.244.2.3/32"}},
    ]);
    for (rules, expected) in [
        (json!([]), ""),
        (json!([{}]), ALL_BUT_XA),
        (json!([{"from": []}]), ALL_BUT_XA),
        (json!([{"from": [pods(json!({"pod": "b"}))]}]), "x/b"),
        (json!([{"from": [{"podSelector": {}}]}]), "x/b x/c"),
        (json!([{"from": [{"namespaceSelector": {}}]}]), ALL_BUT_XA),
        (
            json!([{"from": [spaces(json!({"ns": "y"}))]}]),
            "y/a y/b y/c",
        ),
        (
            json!([{"from": [spaces(json!({"kubernetes.io/metadata.name": "z"}))]}]),
            "z/a z/b z/c",
        ),
        (json!([{"from": either}]), "x/b y/a y/b y/c"),
        (json!([{"from": both}]), "y/b"),
        (json!([{"from": expressions}]), "y/b y/c z/b z/c"),
        (json!([{"from": any_namespace}]), "x/b y/b z/b"),
        (json!([{"from": block}]), "y/a y/c"),
        (json!([{"from": overlapping}]), "y/a y/b y/c"),
        (
            json!([{"from": [{"ipBlock": {"cidr": "2001:db8::/64"}}]}]),
            "",
        ),
        (json!([{"from": [pods(json!({"pod": "none"}))]}]), ""),
        // Several rules are a union, and each rule's ports count for its own peers.
        (
            json!([
                {"from": [pods(json!({"pod": "b"}))], "ports": [{"port": 80}]},
                {"from": [spaces(json!({"ns": "y"}))], "ports": [{"port": 81}]},
            ]),
            "x/b",
        ),
    ] {
        let mut world = World::new();
        world.policy(
            "x/p",
            selecting(json!({"pod": "a"}), json!({"ingress": rules})),
        );
        assert_eq!(world.reach("x/a", 80), expected, "{rules}");
        // Others, and what it sends, are open.
        assert_eq!(world.reach("y/a", 80).split(' ').count(), 8);
        assert_eq!(world.reached("x/a", 80), ALL_BUT_XA);
    }
}

#[test]
fn ports_are_numbers_ranges_or_names_of_the_pod_in_a_protocol() {
    let (tcp, udp, sctp) = (Protocol::Tcp, Protocol::Udp, Protocol::Sctp);
    let both = |protocol| vec![(protocol, 80), (protocol, 81)];
    for (ports, expected) in [
        (json!([{"port": 80}]), vec![(tcp, 80)]),
        (json!([{"protocol": "UDP", "port": 80}]), vec![(udp, 80)]),
        (json!([{"protocol": "SCTP", "port": 81}]), vec![(sctp, 81)]),
        (json!([{"port": 80, "endPort": 81}]), both(tcp)),
        (json!([{"port": 60, "endPort": 80}]), vec![(tcp, 80)]),
        (json!([{"port": 82, "endPort": 90}]), vec![]),
        (json!([{"port": "serve-81-tcp"}]), vec![(tcp, 81)]),
        (
            json!([{"protocol": "UDP", "port": "serve-81-udp"}]),
            vec![(udp, 81)],
        ),
        // The name is of a port of another protocol, and of none.
        (json!([{"port": "serve-81-udp"}]), vec![]),
        (json!([{"port": "none"}]), vec![]),
        (json!([{"protocol": "TCP"}]), both(tcp)),
        (json!([{}]), both(tcp)),
        (
            json!([{"port": 80}, {"port": "serve-81-tcp"}, {"protocol": "SCTP"}]),
            [both(tcp), both(sctp)].concat(),
        ),
        (json!([]), [both(tcp), both(udp), both(sctp)].concat()),
    ] {
        // To a selected pod, and from one.
        for (rules, (from, to)) in [
            (json!({"ingress": [{"ports": ports}]}), ("y/b", "x/a")),
            (
                json!({"egress": [{"ports": ports}], "policyTypes": ["Egress"]}),
                ("x/a", "y/b"),
            ),
        ] {
            let mut world = World::new();
            world.policy("x/p", selecting(json!({"pod": "a"}), rules.clone()));
            let mut open = Vec::new();
            for protocol in [tcp, udp, sctp] {
                for port in [80, 81] {
                    if world.passes(address(from), address(to), protocol, port) {
                        open.push((protocol, port));
                    }
                }
            }
            assert_eq!(open, expected, "{rules}");
        }
    }
}

#[test]
fn egress_rules_name_pods_ranges_and_the_dns_server() {
    let dns = Ipv4Addr::new(10, 96, 0, 10);
    let upstream = json!({
        "to": [{
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }],
        "ports": [{"protocol": "UDP", "port": 53}],
    });
    for (rules, reached, asks) in [
        (json!([]), "", false),
        (json!([{}]), ALL_BUT_XA, true),
        (
            json!([{"ports": [{"protocol": "UDP", "port": 53}]}]),
            "",
            true,
        ),
        (json!([upstream]), "", true),
        (
            json!([{"to": [{"ipBlock": {"cidr": "10.96.0.0/16"}}]}]),
            "",
            true,
        ),
        (
            json!([{"to": [{"namespaceSelector": {}}]}]),
            ALL_BUT_XA,
            true,
        ),
        (json!([{"to": [pods(json!({"pod": "b"}))]}]), "x/b", false),
        (
            json!([{"to": [spaces(json!({"ns": "y"}))], "ports": [{"port": "serve-80-tcp"}]}]),
            "y/a y/b y/c",
            false,
        ),
        // An address range has no pods, so no port of it has that name.
        (
            json!([{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": "serve-80-tcp"}]}]),
            "",
            false,
        ),
        (
            json!([{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.244.0.0/16"]}}]}]),
            "",
            true,
        ),
    ] {
        let mut world = World::new();
        let rules = json!({"egress": rules, "policyTypes": ["Egress"]});
        world.policy("x/p", selecting(json!({"pod": "a"}), rules.clone()));
        assert_eq!(world.reached("x/a", 80), reached, "{rules}");
        assert_eq!(
            world.passes(address("x/a"), dns, Protocol::Udp, 53),
            asks,
            "{rules}"
        );
        // What reaches it is open, and it reaches itself.
        assert_eq!(world.reach("x/a", 80), ALL_BUT_XA);
        assert!(world.passes(address("x/a"), address("x/a"), Protocol::Tcp, 80));
    }
}

#[test]
fn policies_are_a_union_and_the_types_say_what_they_are_for() {
    let mut world = World::new();
    // The defaults: no types and no egress rules are for ingress only.
    world.policy("x/deny", json!({}));
    assert_eq!(world.reach("x/a", 80), "");
    assert_eq!(world.reached("x/a", 80), "y/a y/b y/c z/a z/b z/c");
    world.policy(
        "x/b",
        selecting(
            json!({"pod": "a"}),
            json!({"ingress": [{"from": [pods(json!({"pod": "b"}))]}]}),
        ),
    );
    world.policy(
        "x/y81",
        json!({"ingress": [{"from": [spaces(json!({"ns": "y"}))], "ports": [{"port": 81}]}]}),
    );
    assert_eq!(
        (world.reach("x/a", 80), world.reach("x/a", 81)),
        ("x/b".to_owned(), "x/b y/a y/b y/c".to_owned())
    );
    assert_eq!(world.reach("x/b", 81), "y/a y/b y/c");
    world.policy("x/all", json!({"ingress": [{}]}));
    assert_eq!(world.reach("x/a", 80), ALL_BUT_XA);
    for policy in ["x/all", "x/y81", "x/b"] {
        world.state.remove_policy(&key(policy));
    }
    assert_eq!(world.reach("x/a", 80), "");
    world.state.remove_policy(&key("x/deny"));
    assert_eq!(world.reach("x/a", 80), ALL_BUT_XA);
    // Egress rules without types are for both directions; both sides must allow.
    world.policy(
        "x/both",
        selecting(json!({"pod": "a"}), json!({"egress": [{}]})),
    );
    assert_eq!(
        (world.reach("x/a", 80), world.reached("x/a", 80)),
        (String::new(), ALL_BUT_XA.to_owned())
    );
    world.policy("y/deny", json!({"podSelector": {}}));
    assert_eq!(world.reached("x/a", 80), "x/b x/c z/a z/b z/c");
}

#[test]
fn labels_of_pods_and_namespaces_count_as_they_are_now() {
    let mut world = World::new();
    world.policy(
        "x/p",
        selecting(
            json!({"pod": "a"}),
            json!({"ingress": [{"from": [{
                "namespaceSelector": {"matchLabels": {"team": "one"}},
                "podSelector": {"matchLabels": {"role": "client"}},
            }]}]}),
        ),
    );
    assert_eq!(world.reach("x/a", 80), "");
    world.pod("y/b", json!({"role": "client"}));
    assert_eq!(world.reach("x/a", 80), "");
    world.namespace("y", json!({"team": "one"}));
    assert_eq!(world.reach("x/a", 80), "y/b");
    world.pod("y/c", json!({"role": "client"}));
    assert_eq!(world.reach("x/a", 80), "y/b y/c");
    world.pod("y/b", json!({}));
    assert_eq!(world.reach("x/a", 80), "y/c");
    world.namespace("y", json!({}));
    assert_eq!(world.reach("x/a", 80), "");
    // The pod's own labels change: the policy selects it no more.
    world.pod("x/a", json!({"pod": "other"}));
    assert_eq!(world.reach("x/a", 80), ALL_BUT_XA);
}

#[test]
fn pods_of_the_nodes_network_and_pods_that_ended_are_no_peers() {
    let mut world = World::new();
    world.policy("x/p", json!({"ingress": [{"from": [{"podSelector": {}}]}]}));
    let pod = |spec: Value, status: Value| -> PolicyPod {
        let pod = json!({"metadata": {"namespace": "x", "name": "b", "uid": "x/b"}, "spec": spec, "status": status});
        PolicyPod::of(&serde_json::from_value::<Pod>(pod).unwrap())
    };
    let on_host = json!({"nodeName": "node-b", "hostNetwork": true, "containers": []});
    let own = json!({"nodeName": "node-b", "containers": []});
    let status = |address: &str, phase: &str| json!({"podIP": address, "hostIP": "192.0.2.1", "phase": phase});
    for (spec, status) in [
        (&on_host, status("192.0.2.1", "Running")),
        (&own, status("192.0.2.1", "Running")),
        (&own, status("10.244.1.3", "Succeeded")),
        (&own, status("10.244.1.3", "Failed")),
        (&own, json!({})),
    ] {
        world.state.put_pod(&key("x/b"), pod(spec.clone(), status));
        let view = world.state.view("node-a");
        let members: BTreeSet<String> = view
            .groups
            .values()
            .flat_map(|group| group.iter().map(ToString::to_string))
            .collect();
        assert_eq!(
            members.into_iter().collect::<Vec<_>>(),
            ["10.244.1.2", "10.244.1.4"]
        );
    }
    world.state.put_pod(&key("x/b"), pod(on_host, json!({})));
    assert!(!world.state.view("node-b").pods.contains_key("x/b"));
    // One whose network is not known yet has its rules before it starts.
    world.state.put_pod(&key("x/b"), pod(own, json!({})));
    let view = world.state.view("node-b");
    assert!(view.pods.get("x/b").unwrap().ingress.is_some());
}
