//! Any sequence of changes leads to what a fresh start has, and to what a direct evaluation of the objects allows; what
//! exceeds a bound is not allowed and named.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{
    Element, POLICIES_MAX, Peers, Policy, PolicyPod, PolicyState, RULE_ITEMS_MAX, SELECTORS_MAX,
};
use super::conformance_tests::{Key, key, passes};
use crate::services::Protocol;

const NODES: [&str; 2] = ["node-0", "node-1"];

/// A change of the cluster.
#[derive(Clone, Debug)]
enum Change {
    Namespace(u8, Option<u8>),
    /// Namespace, number, then labels, node and whether the address is known.
    Pod(u8, u8, Option<(u8, u8, bool)>),
    Policy(u8, u8, Option<Value>),
}

/// What the changes lead to, as users see it.
#[derive(Clone, Debug, Default)]
struct Cluster {
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    pods: BTreeMap<Key, (Value, Ipv4Addr, String)>,
    policies: BTreeMap<Key, Value>,
}

fn labels(number: u8) -> Value {
    json!({"a": (number & 1).to_string(), "b": (number >> 1 & 1).to_string()})
}

fn pod_object(key: &Key, number: u8, of: (u8, u8, bool)) -> (Value, Ipv4Addr, String) {
    let address = Ipv4Addr::new(10, 244, key.0.as_bytes()[1], number + 2);
    let node = NODES[usize::from(of.1 % 2)].to_owned();
    let status = match of.2 {
        true => json!({"podIP": address.to_string(), "hostIP": "192.0.2.1"}),
        false => json!({}),
    };
    let ports = json!([{"name": "web", "containerPort": 80 + u16::from(number)}]);
    let pod = json!({
        "metadata": {"namespace": key.0, "name": key.1, "uid": format!("{}/{}", key.0, key.1), "labels": labels(of.0)},
        "spec": {"nodeName": node, "containers": [{"name": "c", "ports": ports}]}, "status": status,
    });
    (pod, address, node)
}

fn policy_pod(pod: &Value) -> PolicyPod {
    PolicyPod::of(&serde_json::from_value::<Pod>(pod.clone()).unwrap())
}

fn policy_of(key: &Key, spec: &Value) -> Policy {
    let object = json!({"metadata": {"namespace": key.0, "name": key.1}, "spec": spec});
    Policy::of(&serde_json::from_value::<NetworkPolicy>(object).unwrap()).unwrap()
}

impl Cluster {
    /// Returns the nodes that the state names as changed.
    fn apply(&mut self, change: &Change, state: &mut PolicyState) -> BTreeSet<String> {
        match change {
            Change::Namespace(number, of) => {
                let name = format!("n{number}");
                let Some(of) = of else {
                    self.namespaces.remove(&name);
                    return state.remove_namespace(&name);
                };
                let labels: BTreeMap<String, String> = serde_json::from_value(labels(*of)).unwrap();
                self.namespaces.insert(name.clone(), labels.clone());
                state.put_namespace(&name, labels)
            }
            Change::Pod(namespace, number, of) => {
                let key = (format!("n{namespace}"), format!("p{number}"));
                let Some(of) = of else {
                    self.pods.remove(&key);
                    return state.remove_pod(&key);
                };
                let pod = pod_object(&key, *number, *of);
                let touched = state.put_pod(&key, policy_pod(&pod.0));
                self.pods.insert(key, pod);
                touched
            }
            Change::Policy(namespace, number, of) => {
                let key = (format!("n{namespace}"), format!("r{number}"));
                let Some(spec) = of else {
                    self.policies.remove(&key);
                    return state.remove_policy(&key);
                };
                self.policies.insert(key.clone(), spec.clone());
                state.put_policy(policy_of(&key, spec))
            }
        }
    }

    fn fresh(&self) -> PolicyState {
        let mut state = PolicyState::default();
        for (key, spec) in &self.policies {
            state.put_policy(policy_of(key, spec));
        }
        for (key, pod) in &self.pods {
            state.put_pod(key, policy_pod(&pod.0));
        }
        for (name, labels) in &self.namespaces {
            state.put_namespace(name, labels.clone());
        }
        state
    }

    fn labels_match(selector: &Value, labels: &Value) -> bool {
        let pairs = selector["matchLabels"].as_object();
        pairs.is_none_or(|pairs| pairs.iter().all(|(key, value)| labels[key] == *value))
    }

    fn peer_matches(&self, peer: &Value, namespace: &str, side: &Key) -> bool {
        let pod = &self.pods[side].0;
        if pod["status"]["podIP"].is_null() {
            return false;
        }
        let spaces = match peer["namespaceSelector"].is_null() {
            true => side.0 == namespace,
            false => self.namespaces.get(&side.0).is_some_and(|labels| {
                Self::labels_match(&peer["namespaceSelector"], &json!(labels))
            }),
        };
        spaces && Self::labels_match(&peer["podSelector"], &pod["metadata"]["labels"])
    }

    /// What the API's documentation says of a connection between two pods.
    fn allows(&self, from: &Key, to: &Key, port: u16) -> bool {
        let side = |own: &Key, other: &Key, type_: &str, rules: &str, peers: &str| {
            let mut selected = false;
            for (key, spec) in self.policies.iter().filter(|(key, _)| key.0 == own.0) {
                let types = spec["policyTypes"].as_array().unwrap();
                let pod = &self.pods[own].0;
                if !types.contains(&json!(type_))
                    || !Self::labels_match(&spec["podSelector"], &pod["metadata"]["labels"])
                {
                    continue;
                }
                selected = true;
                for rule in spec[rules].as_array().into_iter().flatten() {
                    let all = rule[peers].as_array().filter(|all| !all.is_empty());
                    let peer = all.is_none_or(|all| {
                        all.iter()
                            .any(|peer| self.peer_matches(peer, &key.0, other))
                    });
                    // All pods are those of namespaces that exist.
                    let among_all = all.is_some() || self.namespaces.contains_key(&to.0);
                    let known = among_all && !self.pods[to].0["status"]["podIP"].is_null();
                    let of_port = |one: &Value| match one["port"].as_str() {
                        None => one["port"] == port,
                        // The receiving side's own ports count for ingress also before its address is known.
                        Some(_) => {
                            (known || type_ == "Ingress")
                                && self.pods[to].0["spec"]["containers"][0]["ports"][0]["containerPort"]
                                    == port
                        }
                    };
                    let ports = rule["ports"].as_array().filter(|all| !all.is_empty());
                    if peer && ports.is_none_or(|all| all.iter().any(of_port)) {
                        return true;
                    }
                }
            }
            !selected
        };
        from == to
            || (side(from, to, "Egress", "egress", "to")
                && side(to, from, "Ingress", "ingress", "from"))
    }
}

fn selector() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        Just(json!({"matchLabels": {"a": "1"}})),
        Just(json!({"matchLabels": {"b": "0"}})),
        Just(json!({"matchLabels": {"a": "0", "b": "1"}})),
    ]
}

fn peer() -> impl Strategy<Value = Value> {
    prop_oneof![
        selector().prop_map(|one| json!({"podSelector": one})),
        selector().prop_map(|one| json!({"namespaceSelector": one})),
        (selector(), selector())
            .prop_map(|(one, two)| json!({"namespaceSelector": one, "podSelector": two})),
    ]
}

fn rules(peers: &'static str) -> impl Strategy<Value = Value> {
    let port = prop_oneof![Just(json!({"port": 80})), Just(json!({"port": "web"}))];
    let rule = (
        proptest::collection::vec(peer(), 0..3),
        proptest::collection::vec(port, 0..2),
    );
    let rule = rule.prop_map(move |(sides, ports)| json!({peers: sides, "ports": ports}));
    proptest::collection::vec(rule, 0..3).prop_map(Value::from)
}

fn policy() -> impl Strategy<Value = Value> {
    let types = prop_oneof![
        Just(json!(["Ingress"])),
        Just(json!(["Egress"])),
        Just(json!(["Ingress", "Egress"])),
    ];
    (selector(), types, rules("from"), rules("to")).prop_map(|(pods, types, ingress, egress)| {
        json!({"podSelector": pods, "policyTypes": types, "ingress": ingress, "egress": egress})
    })
}

fn change() -> impl Strategy<Value = Change> {
    let pod = proptest::option::weighted(0.8, (0_u8..4, 0_u8..2, prop::bool::weighted(0.8)));
    prop_oneof![
        1 => (0_u8..3, proptest::option::weighted(0.8, 0_u8..4))
            .prop_map(|(number, of)| Change::Namespace(number, of)),
        3 => (0_u8..3, 0_u8..3, pod).prop_map(|(space, number, of)| Change::Pod(space, number, of)),
        2 => (0_u8..3, 0_u8..3, proptest::option::weighted(0.8, policy()))
            .prop_map(|(space, number, of)| Change::Policy(space, number, of)),
    ]
}

/// What a node's rules mean, without the numbers that depend on the order of changes.
fn meaning(state: &mut PolicyState, node: &str) -> BTreeMap<String, String> {
    let view = state.view(node);
    let list = |id: &u64| {
        let list = &view.lists[id];
        let rules = list.rules.iter().map(|rule| {
            let peers = match &rule.peers {
                Peers::Group(id) => format!("group {:?}", view.groups[id]),
                Peers::Endpoints(id) => format!("endpoints {:?}", view.groups[id]),
                other => format!("{other:?}"),
            };
            format!("{peers} {:?}", rule.ports)
        });
        format!("{} {:?}", list.policy, rules.collect::<Vec<_>>())
    };
    let lists = |ids: &Option<Vec<u64>>| {
        let ids = ids.as_ref();
        format!(
            "{:?}",
            ids.map(|ids| ids.iter().map(list).collect::<Vec<_>>())
        )
    };
    let pods = view.pods.iter();
    let pods = pods.map(|(uid, rules)| {
        let text = format!("{} {}", lists(&rules.ingress), lists(&rules.egress));
        (uid.clone(), text)
    });
    pods.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn every_sequence_of_changes_means_what_the_objects_say(
        changes in proptest::collection::vec(change(), 1..40),
    ) {
        let (mut cluster, mut state) = (Cluster::default(), PolicyState::default());
        for change in &changes {
            cluster.apply(change, &mut state);
        }
        let mut fresh = cluster.fresh();
        for node in NODES {
            prop_assert_eq!(meaning(&mut state, node), meaning(&mut fresh, node));
        }
        let uid = |key: &Key| format!("{}/{}", key.0, key.1);
        let by_address: BTreeMap<Ipv4Addr, (String, String)> = cluster.pods.iter()
            .map(|(key, (_, address, node))| (*address, (node.clone(), uid(key))))
            .collect();
        for (from, (_, source, _)) in &cluster.pods {
            for (to, (_, address, _)) in &cluster.pods {
                for port in [80, 81] {
                    let element = Element { address: *address, port: Some((Protocol::Tcp, port)) };
                    let passed = passes(&mut state, &by_address, *source, element);
                    prop_assert_eq!(passed, cluster.allows(from, to, port), "{:?} {:?} {}", from, to, port);
                }
            }
        }
        for key in cluster.policies.keys() {
            state.remove_policy(key);
        }
        for key in cluster.pods.keys() {
            state.remove_pod(key);
        }
        prop_assert!(state.keeps_nothing());
    }

    #[test]
    fn a_change_names_every_node_that_sees_it(
        changes in proptest::collection::vec(change(), 1..40),
    ) {
        let (mut cluster, mut state) = (Cluster::default(), PolicyState::default());
        for change in &changes {
            let before = NODES.map(|node| state.view(node));
            let touched = cluster.apply(change, &mut state);
            for (node, before) in NODES.iter().zip(before) {
                if state.view(node) != before {
                    prop_assert!(touched.contains(*node), "{} after {:?}", node, change);
                }
            }
        }
    }
}

#[test]
fn what_exceeds_a_bound_is_not_allowed_and_is_named() {
    let mut state = PolicyState::default();
    let said = |state: &PolicyState| {
        let all = state.shortfalls().into_iter();
        let all = all.map(|one| {
            (
                one.policy.1,
                one.message.split(':').next().unwrap().to_owned(),
            )
        });
        all.collect::<Vec<_>>()
    };
    let own = key("n0/p0");
    let pod = pod_object(&own, 0, (0, 0, true));
    state.put_pod(&own, policy_pod(&pod.0));
    let isolated = |state: &mut PolicyState| {
        let view = state.view("node-0");
        let rules = view.pods.values().next().unwrap().clone();
        (rules.ingress.clone().map(|lists| lists.len()), view)
    };
    // Policies of a namespace: the last isolates, and allows nothing.
    for number in 0..=POLICIES_MAX {
        let name = (own.0.clone(), format!("r{number:03}"));
        let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]});
        state.put_policy(policy_of(&name, &spec));
    }
    assert_eq!(isolated(&mut state).0, Some(POLICIES_MAX));
    assert_eq!(
        said(&state),
        [("r128".to_owned(), "it allows nothing".to_owned())]
    );
    state.remove_policy(&(own.0.clone(), "r000".to_owned()));
    assert_eq!(isolated(&mut state).0, Some(POLICIES_MAX));
    assert_eq!(said(&state), []);
    for number in 0..=POLICIES_MAX {
        state.remove_policy(&(own.0.clone(), format!("r{number:03}")));
    }
    assert_eq!(isolated(&mut state).0, None);

    // Selectors, and peers with their ports.
    let selectors =
        (0..=SELECTORS_MAX).map(|n| json!({"podSelector": {"matchLabels": {"n": n.to_string()}}}));
    let selectors = json!([{"from": selectors.collect::<Vec<_>>()}]);
    let blocks = (0..RULE_ITEMS_MAX)
        .map(|n| json!({"ipBlock": {"cidr": format!("10.0.{}.{}/32", n / 256, n % 256)}}));
    let blocks = json!([{"from": blocks.collect::<Vec<_>>(), "ports": [{"port": 80}]}]);
    for (rules, left, kept) in [
        (
            selectors,
            "1 peers of its ingress rules and 0 of its egress rules are not allowed",
            SELECTORS_MAX,
        ),
        (
            blocks,
            "512 peers of its ingress rules and 0 of its egress rules are not allowed",
            RULE_ITEMS_MAX / 2,
        ),
    ] {
        let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": rules});
        state.put_policy(policy_of(&key("n0/wide"), &spec));
        assert_eq!(said(&state), [("wide".to_owned(), left.to_owned())]);
        let (lists, view) = isolated(&mut state);
        assert_eq!(lists, Some(1));
        assert_eq!(view.lists.values().next().unwrap().rules.len(), kept);
    }
    assert_eq!(state.selected(&key("n0/wide")).len(), 1);
    let names: BTreeSet<&Key> = state.policies().collect();
    assert_eq!(names.len(), 1);
}
