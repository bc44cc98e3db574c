//! Golden texts of Services' rules, and a model of the kernel that checks the order of every change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use proptest::prelude::*;
use resources::services::{
    ClusterService, Endpoint, EndpointGroup, EndpointPort, Protocol, ServicePort,
};

use super::super::node::difference;
use super::super::rules;

type Services = BTreeMap<(String, String), Arc<ClusterService>>;

fn service(name: &str, number: u8, endpoints: &[u8], sticky: Option<u32>, open: bool) -> Services {
    let endpoints = endpoints.iter().map(|number| Endpoint {
        address: Ipv4Addr::new(10, 244, 1, *number),
        hostname: None,
        ready: true,
        draining: false,
    });
    let service = ClusterService {
        namespace: "team".to_owned(),
        name: name.to_owned(),
        address: Some(Ipv4Addr::new(10, 96, 0, number)),
        external_name: None,
        affinity_seconds: sticky,
        ports: vec![ServicePort {
            name: "http".to_owned(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: open.then_some(30_080 + u16::from(number)),
        }],
        groups: vec![EndpointGroup {
            ports: vec![EndpointPort {
                name: "http".to_owned(),
                protocol: Protocol::Tcp,
                port: 8080,
            }],
            endpoints: endpoints.collect(),
        }],
    };
    BTreeMap::from([(("team".to_owned(), name.to_owned()), Arc::new(service))])
}

#[test]
fn a_service_with_a_node_port_and_sessions() {
    let one = service("web", 7, &[2, 3], Some(60), true);
    let expected = "\
add chain ip muster_services endpoint-10.96.0.7/tcp/80/10.244.1.2/8080
add chain ip muster_services endpoint-10.96.0.7/tcp/80/10.244.1.3/8080
add chain ip muster_services external-10.96.0.7/tcp/80
add chain ip muster_services service-10.96.0.7/tcp/80
add set ip muster_services affinity-10.96.0.7/tcp/80/10.244.1.2/8080 { type ipv4_addr; size 65536; flags dynamic,timeout; timeout 60s; }
add set ip muster_services affinity-10.96.0.7/tcp/80/10.244.1.3/8080 { type ipv4_addr; size 65536; flags dynamic,timeout; timeout 60s; }
add rule ip muster_services endpoint-10.96.0.7/tcp/80/10.244.1.2/8080 ip saddr 10.244.1.2 jump mark-for-masquerade
add rule ip muster_services endpoint-10.96.0.7/tcp/80/10.244.1.2/8080 update @affinity-10.96.0.7/tcp/80/10.244.1.2/8080 { ip saddr }
add rule ip muster_services endpoint-10.96.0.7/tcp/80/10.244.1.2/8080 meta l4proto tcp dnat to 10.244.1.2:8080
add rule ip muster_services endpoint-10.96.0.7/tcp/80/10.244.1.3/8080 ip saddr 10.244.1.3 jump mark-for-masquerade
add rule ip muster_services endpoint-10.96.0.7/tcp/80/10.244.1.3/8080 update @affinity-10.96.0.7/tcp/80/10.244.1.3/8080 { ip saddr }
add rule ip muster_services endpoint-10.96.0.7/tcp/80/10.244.1.3/8080 meta l4proto tcp dnat to 10.244.1.3:8080
add rule ip muster_services external-10.96.0.7/tcp/80 jump mark-for-masquerade
add rule ip muster_services external-10.96.0.7/tcp/80 goto service-10.96.0.7/tcp/80
add rule ip muster_services service-10.96.0.7/tcp/80 ip saddr @affinity-10.96.0.7/tcp/80/10.244.1.2/8080 goto endpoint-10.96.0.7/tcp/80/10.244.1.2/8080
add rule ip muster_services service-10.96.0.7/tcp/80 ip saddr @affinity-10.96.0.7/tcp/80/10.244.1.3/8080 goto endpoint-10.96.0.7/tcp/80/10.244.1.3/8080
add rule ip muster_services service-10.96.0.7/tcp/80 numgen random mod 2 vmap { 0 : goto endpoint-10.96.0.7/tcp/80/10.244.1.2/8080, 1 : goto endpoint-10.96.0.7/tcp/80/10.244.1.3/8080 }
add element ip muster_services service-ips { 10.96.0.7 . tcp . 80 comment \"team/web:http\" : goto service-10.96.0.7/tcp/80 }
add element ip muster_services service-nodeports { tcp . 30087 comment \"team/web:http\" : goto external-10.96.0.7/tcp/80 }
";
    assert_eq!(difference(&Services::new(), &one), expected);
    assert_eq!(difference(&one, &one), "");
}

#[test]
fn an_endpoint_that_goes_takes_only_its_own_sessions_along() {
    let (two, one) = (
        service("web", 7, &[2, 3], Some(60), false),
        service("web", 7, &[3], Some(60), false),
    );
    let expected = "\
add chain ip muster_services service-10.96.0.7/tcp/80
flush chain ip muster_services service-10.96.0.7/tcp/80
flush chain ip muster_services endpoint-10.96.0.7/tcp/80/10.244.1.2/8080
delete chain ip muster_services endpoint-10.96.0.7/tcp/80/10.244.1.2/8080
delete set ip muster_services affinity-10.96.0.7/tcp/80/10.244.1.2/8080
add rule ip muster_services service-10.96.0.7/tcp/80 ip saddr @affinity-10.96.0.7/tcp/80/10.244.1.3/8080 goto endpoint-10.96.0.7/tcp/80/10.244.1.3/8080
add rule ip muster_services service-10.96.0.7/tcp/80 numgen random mod 1 vmap { 0 : goto endpoint-10.96.0.7/tcp/80/10.244.1.3/8080 }
";
    assert_eq!(difference(&two, &one), expected);
}

#[test]
fn a_service_without_endpoints_refuses() {
    let (some, none) = (
        service("web", 7, &[2], None, true),
        service("web", 7, &[], None, true),
    );
    let expected = "\
delete element ip muster_services service-ips { 10.96.0.7 . tcp . 80 }
delete element ip muster_services service-nodeports { tcp . 30087 }
flush chain ip muster_services endpoint-10.96.0.7/tcp/80/10.244.1.2/8080
flush chain ip muster_services external-10.96.0.7/tcp/80
flush chain ip muster_services service-10.96.0.7/tcp/80
delete chain ip muster_services endpoint-10.96.0.7/tcp/80/10.244.1.2/8080
delete chain ip muster_services external-10.96.0.7/tcp/80
delete chain ip muster_services service-10.96.0.7/tcp/80
add element ip muster_services no-endpoint-services { 10.96.0.7 . tcp . 80 comment \"team/web:http\" }
add element ip muster_services no-endpoint-nodeports { tcp . 30087 comment \"team/web:http\" }
";
    assert_eq!(difference(&some, &none), expected);
}

#[test]
fn the_table_refuses_what_is_left_of_the_range() {
    let text = rules::empty_table("10.96.0.0/16".parse().unwrap());
    assert!(text.starts_with("add table ip muster_services\ndelete table ip muster_services\n"));
    assert!(text.contains("ip daddr 10.96.0.0/16 goto refuse"));
}

/// The kernel's tables, as far as the changes concern them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Kernel {
    chains: BTreeMap<String, Vec<String>>,
    sets: BTreeMap<String, String>,
    elements: BTreeMap<String, String>,
}

impl Kernel {
    /// The chains and sets that rules and elements name.
    fn named(&self) -> BTreeSet<String> {
        let rules = self.chains.values().flatten().chain(self.elements.values());
        let mut named = BTreeSet::new();
        for rule in rules {
            let words: Vec<&str> = rule.split([' ', ',']).collect();
            for pair in words
                .windows(2)
                .filter(|pair| matches!(pair[0], "goto" | "jump"))
            {
                named.insert(pair[1].to_owned());
            }
            let sets = words.iter().filter_map(|word| word.strip_prefix('@'));
            named.extend(sets.map(str::to_owned));
        }
        named.remove("mark-for-masquerade");
        named
    }

    fn apply(&mut self, text: &str) {
        for line in text.lines() {
            let mut words = line.splitn(6, ' ');
            let mut next = || words.next().unwrap_or_default().to_owned();
            let (verb, what, _, _, name, rest) = (next(), next(), next(), next(), next(), next());
            let key = |rest: &str| {
                let inner = rest.trim_start_matches("{ ").trim_end_matches(" }");
                format!("{name} {}", inner.split(" comment").next().unwrap())
            };
            match (verb.as_str(), what.as_str()) {
                ("add", "chain") => drop(self.chains.entry(name).or_default()),
                ("flush", "chain") => self.chains.get_mut(&name).unwrap().clear(),
                ("delete", "chain") => {
                    assert!(self.chains.remove(&name).unwrap().is_empty(), "{line}");
                    assert!(!self.named().contains(&name), "{line}");
                }
                ("add", "set") => assert!(self.sets.insert(name, rest).is_none(), "{line}"),
                ("delete", "set") => {
                    assert!(self.sets.remove(&name).is_some(), "{line}");
                    assert!(!self.named().contains(&name), "{line}");
                }
                ("add", "rule") => self.chains.get_mut(&name).unwrap().push(rest),
                ("delete", "element") => assert!(self.elements.remove(&key(&rest)).is_some()),
                ("add", "element") => {
                    assert!(self.elements.insert(key(&rest), rest).is_none(), "{line}");
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

fn some() -> impl Strategy<Value = Services> {
    let one = (
        proptest::collection::btree_set(1_u8..6, 0..4),
        proptest::option::of(prop_oneof![Just(60_u32), Just(90)]),
        any::<bool>(),
    );
    proptest::collection::btree_map(1_u8..5, one, 0..5).prop_map(|all| {
        let mut services = Services::new();
        for (number, (endpoints, sticky, open)) in all {
            let endpoints: Vec<u8> = endpoints.into_iter().collect();
            services.extend(service(
                &format!("s{number}"),
                number,
                &endpoints,
                sticky,
                open,
            ));
        }
        services
    })
}

proptest! {
    #[test]
    fn every_change_leads_to_what_a_fresh_start_has(states in proptest::collection::vec(some(), 1..6)) {
        let (mut kernel, mut before) = (Kernel::default(), Services::new());
        for state in states {
            kernel.apply(&difference(&before, &state));
            let mut fresh = Kernel::default();
            fresh.apply(&difference(&Services::new(), &state));
            prop_assert_eq!(&kernel, &fresh);
            before = state;
        }
        kernel.apply(&difference(&before, &Services::new()));
        prop_assert_eq!(kernel, Kernel::default());
    }
}
