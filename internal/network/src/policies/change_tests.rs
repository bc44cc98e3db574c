//! Golden texts of policies' rules, and a model of the kernel that checks the order of every change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::prelude::*;
use resources::network_policies::{
    IpBlock, NodeView, Peers, PodRules, PortRange, RuleList, TrafficRule,
};
use resources::services::Protocol;

use super::super::rules::{self, Rules};
use super::*;

fn members(numbers: &[u8], port: Option<u16>) -> Arc<BTreeSet<Element>> {
    let element = |number: &u8| Element {
        address: Ipv4Addr::new(10, 244, 1, *number),
        port: port.map(|port| (Protocol::Tcp, port)),
    };
    Arc::new(numbers.iter().map(element).collect())
}

fn pod(number: u8, ingress: Option<Vec<u64>>, egress: Option<Vec<u64>>) -> Arc<PodRules> {
    Arc::new(PodRules {
        namespace: "team".to_owned(),
        name: format!("p{number}"),
        uid: format!("u{number}"),
        ingress,
        egress,
    })
}

fn rule(peers: Peers, ports: &[(Protocol, u16, u16)]) -> TrafficRule {
    let ports = ports.iter().map(|(protocol, first, last)| PortRange {
        protocol: *protocol,
        first: *first,
        last: *last,
    });
    TrafficRule {
        peers,
        ports: ports.collect(),
    }
}

fn list(rules: Vec<TrafficRule>) -> Arc<RuleList> {
    let policy = "team/p".to_owned();
    Arc::new(RuleList { policy, rules })
}

fn local(numbers: &[u8]) -> BTreeMap<String, Ipv4Addr> {
    let one = |number: &u8| (format!("u{number}"), Ipv4Addr::new(10, 244, 1, *number));
    numbers.iter().map(one).collect()
}

fn all_kinds() -> NodeView {
    let block = IpBlock {
        range: "10.0.0.0/8".parse().unwrap(),
        except: ["10.1.0.0/16", "10.3.0.0/16"]
            .map(|text| text.parse().unwrap())
            .into(),
    };
    let whole = IpBlock {
        range: "0.0.0.0/0".parse().unwrap(),
        except: Vec::new(),
    };
    let (tcp, udp) = (Protocol::Tcp, Protocol::Udp);
    NodeView {
        pods: BTreeMap::from([
            ("u2".to_owned(), pod(2, Some(vec![1]), Some(vec![2]))),
            ("u3".to_owned(), pod(3, Some(vec![1]), None)),
            ("u4".to_owned(), pod(4, None, None)),
        ]),
        lists: BTreeMap::from([
            (
                1,
                list(vec![
                    rule(
                        Peers::Group(7),
                        &[(tcp, 80, 80), (tcp, 8000, 8100), (udp, 0, 65_535)],
                    ),
                    rule(Peers::Block(block), &[]),
                ]),
            ),
            (
                2,
                list(vec![
                    rule(Peers::Endpoints(8), &[]),
                    rule(Peers::Any, &[(udp, 53, 53)]),
                    rule(Peers::Block(whole), &[]),
                ]),
            ),
        ]),
        groups: BTreeMap::from([(7, members(&[2, 3], None)), (8, members(&[9], Some(443)))]),
    }
}

#[test]
fn pods_share_the_chains_of_lists_and_the_sets_of_groups() {
    let rules = rules::of(&all_kinds(), &local(&[2, 3, 4]));
    let expected = "\
add chain inet muster_policies egress-mp0af40102
add chain inet muster_policies ingress-mp0af40102
add chain inet muster_policies ingress-mp0af40103
add chain inet muster_policies list-1
add chain inet muster_policies list-2
add set inet muster_policies addresses-7 { type ipv4_addr; }
add element inet muster_policies addresses-7 { 10.244.1.2, 10.244.1.3 }
add set inet muster_policies endpoints-8 { type ipv4_addr . inet_proto . inet_service; }
add element inet muster_policies endpoints-8 { 10.244.1.9 . tcp . 443 }
add rule inet muster_policies egress-mp0af40102 oifname \"mp0af40102\" accept
add rule inet muster_policies egress-mp0af40102 jump list-2
add rule inet muster_policies egress-mp0af40102 goto refuse
add rule inet muster_policies ingress-mp0af40102 iifname \"mp0af40102\" accept
add rule inet muster_policies ingress-mp0af40102 jump list-1
add rule inet muster_policies ingress-mp0af40102 goto refuse
add rule inet muster_policies ingress-mp0af40103 iifname \"mp0af40103\" accept
add rule inet muster_policies ingress-mp0af40103 jump list-1
add rule inet muster_policies ingress-mp0af40103 goto refuse
add rule inet muster_policies list-1 ip saddr @addresses-7 meta l4proto tcp th dport { 80, 8000-8100 } accept
add rule inet muster_policies list-1 ip saddr @addresses-7 meta l4proto udp accept
add rule inet muster_policies list-1 ip saddr 10.0.0.0/8 ip saddr != { 10.1.0.0/16, 10.3.0.0/16 } accept
add rule inet muster_policies list-2 ip daddr . meta l4proto . th dport @endpoints-8 accept
add rule inet muster_policies list-2 meta l4proto udp th dport { 53 } accept
add rule inet muster_policies list-2 ip daddr 0.0.0.0/0 accept
add element inet muster_policies ingress-pods { \"mp0af40102\" comment \"team/p2\" : goto ingress-mp0af40102 }
add element inet muster_policies ingress-pods { \"mp0af40103\" comment \"team/p3\" : goto ingress-mp0af40103 }
add element inet muster_policies egress-pods { \"mp0af40102\" comment \"team/p2\" : goto egress-mp0af40102 }
";
    assert_eq!(script(&Rules::default(), &rules), expected);
    assert_eq!(script(&rules, &rules), "");
}

#[test]
fn an_address_that_comes_is_one_element_and_a_pod_that_goes_takes_its_chains_along() {
    let view = all_kinds();
    let before = rules::of(&view, &local(&[2, 3]));
    let mut next = view.clone();
    next.groups.insert(7, members(&[3, 5], None));
    let expected = "\
delete element inet muster_policies addresses-7 { 10.244.1.2 }
add element inet muster_policies addresses-7 { 10.244.1.5 }
";
    let after = rules::of(&next, &local(&[2, 3]));
    assert_eq!(script(&before, &after), expected);
    let expected = "\
delete element inet muster_policies ingress-pods { \"mp0af40102\" }
delete element inet muster_policies egress-pods { \"mp0af40102\" }
flush chain inet muster_policies egress-mp0af40102
flush chain inet muster_policies ingress-mp0af40102
flush chain inet muster_policies list-2
delete chain inet muster_policies egress-mp0af40102
delete chain inet muster_policies ingress-mp0af40102
delete chain inet muster_policies list-2
delete set inet muster_policies endpoints-8
";
    assert_eq!(script(&before, &rules::of(&view, &local(&[3]))), expected);
}

#[test]
fn a_pod_of_which_the_server_said_nothing_is_cut_off() {
    let rules = rules::of(&NodeView::default(), &local(&[2]));
    let text = script(&Rules::default(), &rules);
    for direction in ["ingress", "egress"] {
        let chain = format!("{direction}-mp0af40102");
        assert!(text.contains(&format!(
            "{direction}-pods {{ \"mp0af40102\" comment \"uid u2\" : goto {chain} }}"
        )));
        assert!(
            text.contains(&format!(
                "add rule inet muster_policies {chain} goto refuse"
            )),
            "{text}"
        );
    }
    assert!(!text.contains("list-"), "{text}");
}

#[test]
fn the_table_is_replaced_in_one_step() {
    let text = rules::empty_table();
    assert!(
        text.starts_with("add table inet muster_policies\ndelete table inet muster_policies\n")
    );
    assert!(!rules::no_table().contains("chain"));
}

/// The kernel's table, as far as the changes concern it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Kernel {
    chains: BTreeMap<String, Vec<String>>,
    sets: BTreeMap<String, BTreeSet<String>>,
    pods: BTreeMap<(String, String), String>,
}

impl Kernel {
    /// The chains and sets that rules and elements name.
    fn named(&self) -> BTreeSet<String> {
        let rules = self.chains.values().flatten().chain(self.pods.values());
        let mut named = BTreeSet::new();
        for rule in rules {
            let words: Vec<&str> = rule.split(' ').collect();
            let pairs = words.windows(2);
            let pairs = pairs.filter(|pair| matches!(pair[0], "goto" | "jump"));
            named.extend(pairs.map(|pair| pair[1].to_owned()));
            let sets = words.iter().filter_map(|word| word.strip_prefix('@'));
            named.extend(sets.map(str::to_owned));
        }
        named.remove("refuse");
        named
    }

    fn apply(&mut self, text: &str) {
        for line in text.lines() {
            let mut words = line.splitn(6, ' ');
            let mut next = || words.next().unwrap_or_default().to_owned();
            let (verb, what, _, _, name, rest) = (next(), next(), next(), next(), next(), next());
            let inner = rest.trim_start_matches("{ ").trim_end_matches(" }");
            match (verb.as_str(), what.as_str()) {
                ("add", "chain") => drop(self.chains.entry(name).or_default()),
                ("flush", "chain") => self.chains.get_mut(&name).unwrap().clear(),
                ("delete", "chain") => {
                    assert!(self.chains.remove(&name).unwrap().is_empty(), "{line}");
                    assert!(!self.named().contains(&name), "{line}");
                }
                ("add", "set") => {
                    assert!(self.sets.insert(name, BTreeSet::new()).is_none(), "{line}");
                }
                ("delete", "set") => {
                    assert!(self.sets.remove(&name).is_some(), "{line}");
                    assert!(!self.named().contains(&name), "{line}");
                }
                ("add", "rule") => self.chains.get_mut(&name).unwrap().push(rest),
                (verb, "element") if name.ends_with("-pods") => {
                    let device = inner.split('"').nth(1).unwrap().to_owned();
                    let old = self.pods.remove(&(name.clone(), device.clone()));
                    assert_eq!(old.is_some(), verb == "delete", "{line}");
                    if verb == "add" {
                        self.pods.insert((name, device), inner.to_owned());
                    }
                }
                (verb, "element") => {
                    let set = self.sets.get_mut(&name).unwrap();
                    for element in inner.split(", ") {
                        let done = match verb {
                            "add" => set.insert(element.to_owned()),
                            _ => set.remove(element),
                        };
                        assert!(done, "{line}");
                    }
                }
                _ => panic!("{line}"),
            }
            let known =
                |name: &String| self.chains.contains_key(name) || self.sets.contains_key(name);
            assert!(
                self.named().iter().all(known),
                "{line} names what does not exist"
            );
        }
    }
}

fn some_rules() -> impl Strategy<Value = Rules> {
    let group = proptest::collection::btree_set(1_u8..6, 0..4);
    let groups = proptest::collection::vec(group, 4);
    let kind = prop_oneof![
        (0_u64..4).prop_map(Peers::Group),
        (0_u64..4).prop_map(Peers::Endpoints),
        Just(Peers::Any),
    ];
    let lists = proptest::collection::vec(proptest::collection::vec(kind, 0..3), 4);
    let chosen = || proptest::option::of(proptest::collection::btree_set(0_u64..2, 0..3));
    let pods = proptest::collection::btree_map(2_u8..6, (chosen(), chosen()), 0..4);
    (groups, lists, pods).prop_map(|(groups, lists, pods)| {
        // A list is for one direction: even numbers for ingress.
        let numbers = |of: Option<BTreeSet<u64>>, add: u64| {
            of.map(|all| all.into_iter().map(|id| id * 2 + add).collect())
        };
        let mut view = NodeView::default();
        for (id, group) in (0..).zip(groups) {
            let group: Vec<u8> = group.into_iter().collect();
            view.groups
                .insert(id, members(&group, Some(80).filter(|_| id >= 2)));
        }
        for (id, peers) in (0..).zip(lists) {
            let usable = peers.into_iter().filter(|peers| match peers {
                Peers::Group(id) => *id < 2,
                Peers::Endpoints(id) => *id >= 2,
                _ => true,
            });
            let rules = usable.map(|peers| rule(peers, &[])).collect();
            view.lists.insert(id, list(rules));
        }
        let addresses: Vec<u8> = pods.keys().copied().collect();
        for (number, (ingress, egress)) in pods {
            let pod = pod(number, numbers(ingress, 0), numbers(egress, 1));
            view.pods.insert(format!("u{number}"), pod);
        }
        rules::of(&view, &local(&addresses))
    })
}

proptest! {
    #[test]
    fn every_change_leads_to_what_a_fresh_start_has(states in proptest::collection::vec(some_rules(), 1..6)) {
        let (mut kernel, mut before) = (Kernel::default(), Rules::default());
        for state in states {
            kernel.apply(&script(&before, &state));
            let mut fresh = Kernel::default();
            fresh.apply(&script(&Rules::default(), &state));
            prop_assert_eq!(&kernel, &fresh);
            before = state;
        }
        kernel.apply(&script(&before, &Rules::default()));
        prop_assert_eq!(kernel, Kernel::default());
    }
}
