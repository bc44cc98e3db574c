//! The lists of rules that pods have: one for each policy, direction and meaning of the named ports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::groups::{GroupKey, GroupSelector, Groups, Key, Namespaces};
use super::policy::{PolicyPeer, PolicyPorts, PolicyRule};
use super::policy_pod::{NamedPort, PolicyPod};
use super::{Peers, Policy, PortRange, RuleList, TrafficRule};
use crate::selector::LabelSelector;
use crate::services::Protocol;

type Labels = BTreeMap<String, String>;

/// What a list is made from: the number of the policy's version, whether it is for ingress, and what the named ports of
/// ingress rules mean for the pod.
pub(super) type ListKey = (u64, bool, Vec<NamedPort>);

/// The lists that pods have.
#[derive(Debug, Default)]
pub(super) struct Lists {
    ids: BTreeMap<ListKey, u64>,
    all: BTreeMap<u64, List>,
    next: u64,
}

#[derive(Debug)]
struct List {
    key: ListKey,
    policy: Key,
    rules: Arc<RuleList>,
    groups: BTreeSet<u64>,
    /// How many pods of each node have it.
    nodes: BTreeMap<String, usize>,
}

impl Lists {
    /// The number of a list that one more pod of a node has; made if it does not exist.
    pub fn acquire(
        &mut self,
        key: ListKey,
        policy: &Policy,
        node: &str,
        groups: &mut Groups,
        (pods, namespaces): (&BTreeMap<Key, PolicyPod>, &BTreeMap<String, Labels>),
    ) -> u64 {
        let id = *self.ids.entry(key.clone()).or_insert_with(|| {
            self.next += 1;
            self.next
        });
        let list = self.all.entry(id).or_insert_with(|| {
            let mut named = BTreeSet::new();
            let mut group = |key: GroupKey| {
                let group = groups.acquire(&key, id, pods, namespaces);
                named.insert(group);
                group
            };
            let rules = policy.rules(key.1).unwrap_or_default().iter();
            let rules = rules.flat_map(|rule| match key.1 {
                true => ingress(rule, &key.2, &mut group),
                false => egress(rule, &mut group),
            });
            let rules = RuleList {
                policy: format!("{}/{}", policy.namespace, policy.name),
                rules: rules.collect(),
            };
            List {
                policy: (policy.namespace.clone(), policy.name.clone()),
                key,
                rules: Arc::new(rules),
                groups: named,
                nodes: BTreeMap::new(),
            }
        });
        *list.nodes.entry(node.to_owned()).or_default() += 1;
        id
    }

    /// One pod of a node less has a list, which is removed with the last one.
    pub fn release(&mut self, id: u64, node: &str, groups: &mut Groups) {
        let Some(list) = self.all.get_mut(&id) else {
            return;
        };
        if let Some(count) = list.nodes.get_mut(node) {
            *count -= 1;
            if *count == 0 {
                list.nodes.remove(node);
            }
        }
        if list.nodes.is_empty()
            && let Some(list) = self.all.remove(&id)
        {
            self.ids.remove(&list.key);
            for group in list.groups {
                groups.release(group, id);
            }
        }
    }

    /// The nodes with a pod that has one of these lists.
    pub fn nodes(&self, lists: &BTreeSet<u64>) -> BTreeSet<String> {
        let lists = lists.iter().filter_map(|id| self.all.get(id));
        lists.flat_map(|list| list.nodes.keys().cloned()).collect()
    }

    /// A list with the groups that it names.
    pub fn get(&self, id: u64) -> Option<(&Arc<RuleList>, &BTreeSet<u64>)> {
        let list = self.all.get(&id)?;
        Some((&list.rules, &list.groups))
    }

    /// The policies of lists.
    pub fn policies(&self, lists: &BTreeSet<u64>) -> BTreeSet<Key> {
        let lists = lists.iter().filter_map(|id| self.all.get(id));
        lists.map(|list| list.policy.clone()).collect()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.ids.is_empty()
    }
}

/// A rule about what may reach a pod whose named ports are known: the ports are the pod's own.
fn ingress(
    rule: &PolicyRule,
    known: &[NamedPort],
    group: &mut impl FnMut(GroupKey) -> u64,
) -> Vec<TrafficRule> {
    let ports = match &rule.ports {
        PolicyPorts::All => Vec::new(),
        PolicyPorts::Some { numbers, names } => {
            let meant = known.iter().filter(|(protocol, name, _)| {
                names
                    .iter()
                    .any(|(of, named)| of == protocol && named == name)
            });
            let meant = meant.map(|(protocol, _, number)| PortRange {
                protocol: *protocol,
                first: *number,
                last: *number,
            });
            let ports = PortRange::joined(numbers.iter().copied().chain(meant).collect());
            if ports.is_empty() {
                // The rule has ports, and the pod none of them.
                return Vec::new();
            }
            ports
        }
    };
    let peers = rule.peers.iter().map(|peer| TrafficRule {
        peers: addresses(peer, group),
        ports: ports.clone(),
    });
    peers.collect()
}

/// A rule about what a pod may send: a named port is that of the receiving pod.
fn egress(rule: &PolicyRule, group: &mut impl FnMut(GroupKey) -> u64) -> Vec<TrafficRule> {
    let mut rules = Vec::new();
    for peer in &rule.peers {
        let (ports, names) = match &rule.ports {
            PolicyPorts::All => {
                let peers = addresses(peer, group);
                rules.push(TrafficRule {
                    peers,
                    ports: Vec::new(),
                });
                continue;
            }
            PolicyPorts::Some { numbers, names } => (numbers, names),
        };
        if !ports.is_empty() {
            let peers = addresses(peer, group);
            let ports = ports.clone();
            rules.push(TrafficRule { peers, ports });
        }
        for port in names {
            let peers = endpoints(peer, port, group);
            rules.extend(peers.map(|peers| TrafficRule {
                peers,
                ports: Vec::new(),
            }));
        }
    }
    rules
}

fn addresses(peer: &PolicyPeer, group: &mut impl FnMut(GroupKey) -> u64) -> Peers {
    match peer {
        PolicyPeer::Any => Peers::Any,
        PolicyPeer::Pods(selector) => Peers::Group(group((selector.clone(), None))),
        PolicyPeer::Block(block) => Peers::Block(block.clone()),
    }
}

/// A port's name means something only for pods: for any peer it stands for all pods that have it, for a range for
/// nothing.
fn endpoints(
    peer: &PolicyPeer,
    port: &(Protocol, String),
    group: &mut impl FnMut(GroupKey) -> u64,
) -> Option<Peers> {
    let selector = match peer {
        PolicyPeer::Any => GroupSelector {
            namespaces: Namespaces::Matching(LabelSelector::everything()),
            pods: LabelSelector::everything(),
        },
        PolicyPeer::Pods(selector) => selector.clone(),
        PolicyPeer::Block(_) => return None,
    };
    Some(Peers::Endpoints(group((selector, Some(port.clone())))))
}
