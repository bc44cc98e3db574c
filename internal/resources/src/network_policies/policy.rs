//! A NetworkPolicy as it was written, read once and cut to the bounds.

use std::collections::BTreeSet;

use k8s_openapi::api::networking::v1 as api;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::groups::{GroupSelector, Namespaces};
use super::policy_pod::{NamedPort, PolicyPod};
use super::{Cidr, IpBlock, PortRange, RULE_ITEMS_MAX, SELECTORS_MAX};
use crate::selector::LabelSelector;
use crate::services::Protocol;

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    selector: LabelSelector,
    ingress: Option<Direction>,
    egress: Option<Direction>,
}

/// The rules of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Direction {
    rules: Vec<PolicyRule>,
    /// Peers and ports that a bound left out.
    left_out: usize,
}

/// Peers, all of which may use the ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PolicyRule {
    pub peers: Vec<PolicyPeer>,
    pub ports: PolicyPorts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PolicyPeer {
    Any,
    Pods(GroupSelector),
    Block(IpBlock),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PolicyPorts {
    All,
    Some {
        numbers: Vec<PortRange>,
        names: BTreeSet<(Protocol, String)>,
    },
}

impl Policy {
    /// Reads a policy; `None` if it lacks a name or its selector is malformed, which the API refuses.
    #[must_use]
    pub fn of(policy: &api::NetworkPolicy) -> Option<Policy> {
        let spec = policy.spec.clone().unwrap_or_default();
        let (namespace, name) = (
            policy.metadata.namespace.clone()?,
            policy.metadata.name.clone()?,
        );
        let selector = spec.pod_selector.unwrap_or_default();
        let types = spec.policy_types.unwrap_or_default();
        let has = |name: &str| types.iter().any(|one| one == name);
        let egress_rules = spec.egress.unwrap_or_default();
        let (ingress, egress) = match types.is_empty() {
            true => (true, !egress_rules.is_empty()),
            false => (has("Ingress"), has("Egress")),
        };
        let from = spec.ingress.unwrap_or_default().into_iter();
        let from = from.map(|rule| (rule.from.unwrap_or_default(), rule.ports));
        let to = egress_rules.into_iter();
        let to = to.map(|rule| (rule.to.unwrap_or_default(), rule.ports));
        Some(Policy {
            selector: LabelSelector::from_k8s(&selector).ok()?,
            ingress: ingress.then(|| Direction::of(&namespace, from)),
            egress: egress.then(|| Direction::of(&namespace, to)),
            namespace,
            name,
        })
    }

    /// Whether it selects a pod of its namespace.
    pub(super) fn selects(&self, pod: &PolicyPod) -> bool {
        pod.selectable && self.selector.matches(&pod.labels)
    }

    /// The rules of a direction; `None` if the policy says nothing about it.
    pub(super) fn rules(&self, ingress: bool) -> Option<&[PolicyRule]> {
        let direction = if ingress { &self.ingress } else { &self.egress };
        Some(&direction.as_ref()?.rules)
    }

    /// The named ports of a pod that its ingress rules name; the meaning of these rules depends on them.
    pub(super) fn named_ports(&self, pod: &PolicyPod) -> Vec<NamedPort> {
        let rules = self.rules(true).unwrap_or_default().iter();
        let names: BTreeSet<&(Protocol, String)> = rules
            .filter_map(|rule| match &rule.ports {
                PolicyPorts::Some { names, .. } => Some(names),
                PolicyPorts::All => None,
            })
            .flatten()
            .collect();
        let numbers = names.into_iter().flat_map(|(protocol, name)| {
            let numbers = pod.numbers(*protocol, name);
            numbers.map(|number| (*protocol, name.clone(), number))
        });
        numbers.collect()
    }

    /// What a bound left out of it, in a sentence; `None` if it counts whole.
    #[must_use]
    pub fn left_out(&self) -> Option<String> {
        let of = |direction: &Option<Direction>| direction.as_ref().map_or(0, |one| one.left_out);
        let (ingress, egress) = (of(&self.ingress), of(&self.egress));
        (ingress + egress > 0).then(|| {
            format!(
                "{ingress} peers of its ingress rules and {egress} of its egress rules are not allowed: a policy has at \
                 most {RULE_ITEMS_MAX} peers, ports and exceptions, and {SELECTORS_MAX} different selectors of peers, in \
                 each direction; write several policies"
            )
        })
    }
}

impl Direction {
    fn of(
        namespace: &str,
        rules: impl Iterator<
            Item = (
                Vec<api::NetworkPolicyPeer>,
                Option<Vec<api::NetworkPolicyPort>>,
            ),
        >,
    ) -> Direction {
        let mut direction = Direction::default();
        let (mut items, mut selectors) = (0, BTreeSet::new());
        for (peers, ports) in rules {
            let ports = PolicyPorts::of(ports.unwrap_or_default());
            let mut rule = PolicyRule {
                peers: Vec::new(),
                ports,
            };
            let any = peers.is_empty();
            let peers = peers.iter().filter_map(|peer| peer_of(namespace, peer));
            for peer in peers.chain(any.then_some(PolicyPeer::Any)) {
                let cost = 1 + rule.ports.count() + peer.exceptions();
                let fits = match &peer {
                    PolicyPeer::Pods(group) if !selectors.contains(group) => {
                        selectors.len() < SELECTORS_MAX
                    }
                    _ => true,
                };
                if !fits || items + cost > RULE_ITEMS_MAX {
                    direction.left_out += 1;
                    continue;
                }
                items += cost;
                if let PolicyPeer::Pods(group) = &peer {
                    selectors.insert(group.clone());
                }
                rule.peers.push(peer);
            }
            direction.rules.push(rule);
        }
        direction
    }
}

impl PolicyPeer {
    fn exceptions(&self) -> usize {
        match self {
            PolicyPeer::Block(block) => block.except.len(),
            PolicyPeer::Any | PolicyPeer::Pods(_) => 0,
        }
    }
}

impl PolicyPorts {
    /// No ports are all ports; ports that are written and malformed, which the API refuses, are none.
    fn of(ports: Vec<api::NetworkPolicyPort>) -> PolicyPorts {
        if ports.is_empty() {
            return PolicyPorts::All;
        }
        let (mut numbers, mut names) = (Vec::new(), BTreeSet::new());
        for port in ports {
            let Some(protocol) = Protocol::of(port.protocol.as_deref()) else {
                continue;
            };
            match port.port {
                None => numbers.push(PortRange::all(protocol)),
                Some(IntOrString::String(name)) => drop(names.insert((protocol, name))),
                Some(IntOrString::Int(first)) => {
                    let last = port.end_port.unwrap_or(first);
                    let range = u16::try_from(first).ok().zip(u16::try_from(last).ok());
                    if let Some((first, last)) = range.filter(|(first, last)| first <= last) {
                        numbers.push(PortRange {
                            protocol,
                            first,
                            last,
                        });
                    }
                }
            }
        }
        PolicyPorts::Some {
            numbers: PortRange::joined(numbers),
            names,
        }
    }

    fn count(&self) -> usize {
        match self {
            PolicyPorts::All => 0,
            PolicyPorts::Some { numbers, names } => numbers.len() + names.len(),
        }
    }
}

/// `None` for a range of IPv6, of which no pod has addresses, and for a malformed peer.
fn peer_of(namespace: &str, peer: &api::NetworkPolicyPeer) -> Option<PolicyPeer> {
    if let Some(block) = &peer.ip_block {
        let range = Cidr::parse(&block.cidr)?.ipv4()?;
        let except = block.except.iter().flatten();
        // An exception that cannot be read excludes everything.
        let except: Option<Vec<_>> = except
            .map(|text| Cidr::parse(text).and_then(Cidr::ipv4))
            .collect();
        let mut except = except?;
        // A part of another one says nothing.
        except.sort_unstable();
        let mut kept: Vec<crate::pod_ranges::Ipv4Range> = Vec::new();
        for one in except {
            if kept.last().is_none_or(|last| !last.overlaps(one)) {
                kept.push(one);
            }
        }
        return Some(PolicyPeer::Block(IpBlock {
            range,
            except: kept,
        }));
    }
    let read = |selector: &meta::LabelSelector| LabelSelector::from_k8s(selector).ok();
    let namespaces = match &peer.namespace_selector {
        Some(selector) => Namespaces::Matching(read(selector)?),
        None => {
            peer.pod_selector.as_ref()?;
            Namespaces::One(namespace.to_owned())
        }
    };
    let pods = match &peer.pod_selector {
        Some(selector) => read(selector)?,
        None => LabelSelector::everything(),
    };
    Some(PolicyPeer::Pods(GroupSelector { namespaces, pods }))
}
