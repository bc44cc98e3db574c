//! The chains, sets and elements of pods that policies select. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use resources::network_policies::{
    Element, IpBlock, NodeView, Peers, PodRules, PortRange, RuleList, TrafficRule,
};

use super::TABLE;
use crate::commands::{comment, device};

/// A direction of traffic, from the pod's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    pub const ALL: [Direction; 2] = [Direction::Ingress, Direction::Egress];

    fn word(self) -> &'static str {
        match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        }
    }

    /// The map from a pod's device to its chain.
    pub fn map(self) -> String {
        format!("{}-pods", self.word())
    }

    /// How a rule names the address of the other side.
    fn peer(self) -> &'static str {
        match self {
            Direction::Ingress => "ip saddr",
            Direction::Egress => "ip daddr",
        }
    }

    /// How a rule names the device of the other side.
    fn peer_device(self) -> &'static str {
        match self {
            Direction::Ingress => "iifname",
            Direction::Egress => "oifname",
        }
    }
}

/// A set of addresses, or of addresses with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SetKind {
    Addresses,
    Endpoints,
}

/// A set's kind and its group's number.
pub(super) type SetName = (SetKind, u64);

pub(super) fn set_name((kind, id): SetName) -> String {
    match kind {
        SetKind::Addresses => format!("addresses-{id}"),
        SetKind::Endpoints => format!("endpoints-{id}"),
    }
}

pub(super) fn set_type(kind: SetKind) -> &'static str {
    match kind {
        SetKind::Addresses => "ipv4_addr",
        SetKind::Endpoints => "ipv4_addr . inet_proto . inet_service",
    }
}

/// What some pods have in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// The rules of chains.
    pub chains: BTreeMap<String, Vec<String>>,
    /// The members of sets.
    pub sets: BTreeMap<SetName, Arc<BTreeSet<Element>>>,
    /// The elements of the maps, by direction and device: the chain, and which pod it is for.
    pub pods: BTreeMap<(Direction, String), (String, String)>,
}

/// The table without pods: replaces what is there in one step.
pub(super) fn empty_table() -> String {
    let answers = "ct state related accept\n\t\tct state established ct direction reply accept";
    format!(
        "add table inet {TABLE}\n\
         delete table inet {TABLE}\n\
         table inet {TABLE} {{\n\
         \tmap egress-pods {{ type ifname : verdict; }}\n\
         \tmap ingress-pods {{ type ifname : verdict; }}\n\
         \tchain refuse {{\n\
         \t\tmeta nfproto ipv6 drop\n\
         \t\tct state established meta l4proto tcp reject with tcp reset\n\
         \t\treject with icmpx admin-prohibited\n\
         \t}}\n\
         \tchain sent {{\n\
         \t\ttype filter hook forward priority 10; policy accept;\n\
         \t\t{answers}\n\
         \t\tiifname vmap @egress-pods\n\
         \t}}\n\
         \tchain sent-to-node {{\n\
         \t\ttype filter hook input priority 10; policy accept;\n\
         \t\t{answers}\n\
         \t\tiifname vmap @egress-pods\n\
         \t}}\n\
         \tchain received {{\n\
         \t\ttype filter hook forward priority 11; policy accept;\n\
         \t\t{answers}\n\
         \t\toifname vmap @ingress-pods\n\
         \t}}\n\
         }}\n"
    )
}

/// Removes the table.
pub(super) fn no_table() -> String {
    format!("add table inet {TABLE}\ndelete table inet {TABLE}\n")
}

/// What the pods with these addresses, by uid, need. A pod of which the view has nothing is cut off: the server has not
/// said what counts for it.
pub(super) fn of(view: &NodeView, local: &BTreeMap<String, Ipv4Addr>) -> Rules {
    let mut rules = Rules::default();
    for (uid, address) in local {
        let device = device(*address);
        let pod = view.pods.get(uid).map(Arc::as_ref);
        for direction in Direction::ALL {
            let Some(lists) = lists(pod, direction) else {
                continue;
            };
            let name = format!("{}-{device}", direction.word());
            let mut lines = vec![format!("{} \"{device}\" accept", direction.peer_device())];
            for list in lists {
                // A list that is missing allows nothing.
                if let Some(found) = view.lists.get(list) {
                    lines.push(format!(
                        "jump {}",
                        rules.list(*list, found, direction, view)
                    ));
                }
            }
            lines.push("goto refuse".to_owned());
            rules.chains.insert(name.clone(), lines);
            let of_pod = match pod {
                Some(pod) => comment(&format!("{}/{}", pod.namespace, pod.name)),
                None => comment(&format!("uid {uid}")),
            };
            let key = (direction, device.clone());
            rules.pods.insert(key, (name, of_pod));
        }
    }
    rules
}

/// The lists that count for a pod in a direction; none if it is open.
fn lists(pod: Option<&PodRules>, direction: Direction) -> Option<&[u64]> {
    let Some(pod) = pod else { return Some(&[]) };
    let lists = match direction {
        Direction::Ingress => &pod.ingress,
        Direction::Egress => &pod.egress,
    };
    lists.as_deref()
}

impl Rules {
    /// The chain of a list; written if no pod before had it.
    fn list(&mut self, id: u64, list: &RuleList, direction: Direction, view: &NodeView) -> String {
        let name = format!("list-{id}");
        if !self.chains.contains_key(&name) {
            let rules = list.rules.iter();
            let lines = rules.flat_map(|rule| self.lines(rule, direction, view));
            let lines: Vec<String> = lines.collect();
            self.chains.insert(name.clone(), lines);
        }
        name
    }

    fn lines(&mut self, rule: &TrafficRule, direction: Direction, view: &NodeView) -> Vec<String> {
        let mut set = |kind: SetKind, id: u64| {
            let members = view.groups.get(&id).cloned().unwrap_or_default();
            self.sets.insert((kind, id), members);
            set_name((kind, id))
        };
        let peer = direction.peer();
        let peers = match &rule.peers {
            Peers::Any => String::new(),
            Peers::Group(id) => format!("{peer} @{} ", set(SetKind::Addresses, *id)),
            Peers::Endpoints(id) => {
                let set = set(SetKind::Endpoints, *id);
                return vec![format!("{peer} . meta l4proto . th dport @{set} accept")];
            }
            Peers::Block(block) => block_of(peer, block),
        };
        if rule.ports.is_empty() {
            return vec![format!("{peers}accept")];
        }
        let mut lines = Vec::new();
        for ports in rule.ports.chunk_by(|one, two| one.protocol == two.protocol) {
            let Some(first) = ports.first() else { continue };
            let protocol = first.protocol;
            lines.push(match first.is_all() {
                true => format!("{peers}meta l4proto {protocol} accept"),
                false => {
                    let all: Vec<String> = ports.iter().map(port).collect();
                    let all = all.join(", ");
                    format!("{peers}meta l4proto {protocol} th dport {{ {all} }} accept")
                }
            });
        }
        lines
    }
}

fn port(range: &PortRange) -> String {
    match range.first == range.last {
        true => range.first.to_string(),
        false => format!("{}-{}", range.first, range.last),
    }
}

fn block_of(peer: &str, block: &IpBlock) -> String {
    let range = block.range;
    if block.except.is_empty() {
        return format!("{peer} {range} ");
    }
    let except: Vec<String> = block.except.iter().map(ToString::to_string).collect();
    let except = except.join(", ");
    format!("{peer} {range} {peer} != {{ {except} }} ")
}
