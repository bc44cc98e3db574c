//! Policies, namespaces and pods as far as policies need them, and what follows for each pod; kept for each change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::groups::{Groups, Key, of_namespace};
use super::lists::Lists;
use super::{ELEMENTS_MAX, NodeView, POLICIES_MAX, PodRules, Policy, PolicyPod};

/// The namespace and label of the cluster's DNS server, as most clusters and manifests have them.
const DNS_NAMESPACE: &str = "kube-system";
const DNS_LABEL: (&str, &str) = ("k8s-app", "kube-dns");
/// The DNS server's key among pods: no pod has a name with a slash.
const DNS_NAME: &str = "dns/";

type Labels = BTreeMap<String, String>;
/// The nodes for which something changed.
type Nodes = BTreeSet<String>;

/// The state of all policies.
#[derive(Debug, Default)]
pub struct PolicyState {
    namespaces: BTreeMap<String, Labels>,
    pods: BTreeMap<Key, PolicyPod>,
    by_node: BTreeMap<String, BTreeSet<Key>>,
    /// The policies, each with the number of its version.
    policies: BTreeMap<Key, (u64, Arc<Policy>)>,
    versions: u64,
    lists: Lists,
    groups: Groups,
    rules: BTreeMap<Key, Arc<PodRules>>,
}

/// A policy that does not count as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// The policy.
    pub policy: (String, String),
    /// What does not count, and what to do.
    pub message: String,
}

impl PolicyState {
    /// Takes in a policy. Returns the nodes for which that changes something.
    pub fn put_policy(&mut self, policy: Policy) -> Nodes {
        let key = (policy.namespace.clone(), policy.name.clone());
        let old = self.policies.get(&key).map(|(_, old)| old.clone());
        if old.as_deref() == Some(&policy) {
            return Nodes::new();
        }
        self.versions += 1;
        let new = Arc::new(policy);
        let entry = (self.versions, new.clone());
        self.policies.insert(key.clone(), entry);
        self.refresh_namespace(&key.0, old.as_deref(), Some(&new))
    }

    /// Removes a policy. Returns the nodes for which that changes something.
    pub fn remove_policy(&mut self, key: &Key) -> Nodes {
        match self.policies.remove(key) {
            Some((_, old)) => self.refresh_namespace(&key.0, Some(&old), None),
            None => Nodes::new(),
        }
    }

    /// The names of all policies.
    pub fn policies(&self) -> impl Iterator<Item = &Key> {
        self.policies.keys()
    }

    /// Takes in a namespace's labels. Returns the nodes for which that changes something.
    pub fn put_namespace(&mut self, name: &str, labels: Labels) -> Nodes {
        let old = self.namespaces.insert(name.to_owned(), labels);
        let new = self.namespaces.get(name);
        if old.as_ref() == new {
            return Nodes::new();
        }
        let groups = &mut self.groups;
        let lists = groups.namespace_changed(name, old.as_ref(), new, &self.pods);
        self.lists.nodes(&lists)
    }

    /// Removes a namespace. Returns the nodes for which that changes something.
    pub fn remove_namespace(&mut self, name: &str) -> Nodes {
        let old = self.namespaces.remove(name);
        let groups = &mut self.groups;
        let lists = groups.namespace_changed(name, old.as_ref(), None, &self.pods);
        self.lists.nodes(&lists)
    }

    /// The names of all namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = &String> {
        self.namespaces.keys()
    }

    /// Takes in a pod. Returns the nodes for which that changes something.
    pub fn put_pod(&mut self, key: &Key, pod: PolicyPod) -> Nodes {
        if self.pods.get(key) == Some(&pod) {
            return Nodes::new();
        }
        let old = self.pods.insert(key.clone(), pod.clone());
        if let Some(node) = &pod.node {
            let of_node = self.by_node.entry(node.clone()).or_default();
            of_node.insert(key.clone());
        }
        let old_node = old.as_ref().and_then(|old| old.node.clone());
        let mut nodes = self.members_changed(key, old.as_ref(), Some(&pod));
        // What it had on another node is released there.
        if old_node != pod.node {
            nodes.extend(self.forget(key, old_node.as_deref()));
        }
        nodes.extend(self.refresh_pod(key));
        nodes
    }

    /// Removes a pod. Returns the nodes for which that changes something.
    pub fn remove_pod(&mut self, key: &Key) -> Nodes {
        let Some(old) = self.pods.remove(key) else {
            return Nodes::new();
        };
        let mut nodes = self.members_changed(key, Some(&old), None);
        nodes.extend(self.forget(key, old.node.as_deref()));
        nodes
    }

    /// Sets the address of the cluster's DNS server. Returns the nodes for which that changes something.
    pub fn set_dns(&mut self, address: Option<Ipv4Addr>) -> Nodes {
        let key = (DNS_NAMESPACE.to_owned(), DNS_NAME.to_owned());
        let Some(address) = address else {
            return self.remove_pod(&key);
        };
        let (label, value) = DNS_LABEL;
        let port = |protocol, name: &str| (protocol, name.to_owned(), 53);
        let server = PolicyPod {
            labels: BTreeMap::from([(label.to_owned(), value.to_owned())]),
            address: Some(address),
            ports: BTreeSet::from([
                port(crate::services::Protocol::Udp, "dns"),
                port(crate::services::Protocol::Tcp, "dns-tcp"),
            ]),
            ..PolicyPod::default()
        };
        self.put_pod(&key, server)
    }

    /// What a node needs to know. Costs what the node's pods have.
    pub fn view(&mut self, node: &str) -> NodeView {
        let mut view = NodeView::default();
        for key in self.by_node.get(node).into_iter().flatten() {
            if let Some(rules) = self.rules.get(key) {
                view.pods.insert(rules.uid.clone(), rules.clone());
            }
        }
        let pods = view.pods.values();
        let named = pods.flat_map(|rules| rules.ingress.iter().chain(&rules.egress).flatten());
        let named: BTreeSet<u64> = named.copied().collect();
        for id in named {
            let Some((rules, groups)) = self.lists.get(id) else {
                continue;
            };
            view.lists.insert(id, rules.clone());
            for group in groups {
                if !view.groups.contains_key(group)
                    && let Some(members) = self.groups.members(*group)
                {
                    view.groups.insert(*group, members);
                }
            }
        }
        view
    }

    /// The policies that do not count as they are written, because of a bound.
    #[must_use]
    pub fn shortfalls(&self) -> Vec<Shortfall> {
        let mut all = Vec::new();
        let mut rank = (None, 0);
        for (key, (_, policy)) in &self.policies {
            rank = match rank.0 == Some(&key.0) {
                true => (rank.0, rank.1 + 1),
                false => (Some(&key.0), 0),
            };
            let message = match rank.1 < POLICIES_MAX {
                true => policy.left_out(),
                false => Some(format!(
                    "it allows nothing: of the policies of a namespace the first {POLICIES_MAX}, by name, count; put \
                     rules of several policies into one"
                )),
            };
            all.extend(message.map(|message| Shortfall {
                policy: key.clone(),
                message,
            }));
        }
        let shared = self.pods.values().any(|pod| pod.shares_network);
        for key in self.policies.keys().filter(|_| shared) {
            let selected = self.selected(key).into_iter();
            let open: Vec<_> = selected.filter(|(_, pod)| pod.shares_network).collect();
            let Some((first, pod)) = open.first() else {
                continue;
            };
            all.push(Shortfall {
                policy: key.clone(),
                message: format!(
                    "nothing enforces it for {} of the pods that it selects, which share their node's network (the first is {} \
                     on node {}); agents with --pod-network own give pods without images networks of their own",
                    open.len(),
                    first.1,
                    pod.node.as_deref().unwrap_or_default()
                ),
            });
        }
        let over_full = self.lists.policies(&self.groups.over_full());
        all.extend(over_full.into_iter().map(|policy| Shortfall {
            policy,
            message: format!(
                "one of its selectors of peers stands for more than {ELEMENTS_MAX} addresses; the rest is not allowed"
            ),
        }));
        all
    }

    /// The pods that a policy selects.
    #[must_use]
    pub fn selected(&self, key: &Key) -> Vec<(&Key, &PolicyPod)> {
        let Some((_, policy)) = self.policies.get(key) else {
            return Vec::new();
        };
        of_namespace(&self.pods, &key.0)
            .filter(|(_, pod)| policy.selects(pod))
            .collect()
    }

    fn members_changed(
        &mut self,
        key: &Key,
        old: Option<&PolicyPod>,
        new: Option<&PolicyPod>,
    ) -> Nodes {
        let labels = self.namespaces.get(&key.0);
        let lists = self.groups.pod_changed(&key.0, labels, old, new);
        self.lists.nodes(&lists)
    }

    /// Refreshes the pods for which a policy of their namespace counted or counts.
    fn refresh_namespace(
        &mut self,
        namespace: &str,
        old: Option<&Policy>,
        new: Option<&Policy>,
    ) -> Nodes {
        let count = of_namespace(&self.policies, namespace).count();
        // Another policy may count now, or count no more.
        let all = count >= POLICIES_MAX;
        let chosen = |pod: &PolicyPod| {
            all || [old, new]
                .into_iter()
                .flatten()
                .any(|policy| policy.selects(pod))
        };
        let pods = of_namespace(&self.pods, namespace);
        let keys: Vec<Key> = pods
            .filter(|(_, pod)| chosen(pod))
            .map(|(key, _)| key.clone())
            .collect();
        keys.iter().flat_map(|key| self.refresh_pod(key)).collect()
    }

    /// Works out which lists a pod has; its node if that changed.
    fn refresh_pod(&mut self, key: &Key) -> Option<String> {
        let pod = self.pods.get(key)?;
        let node = pod.node.clone()?;
        if !pod.selectable {
            // It ended, or it is on the node's network: what it had is released.
            let rules = self.rules.remove(key)?;
            self.release(&rules, &node);
            return Some(node);
        }
        let (mut ingress, mut egress) = (None, None);
        let policies = of_namespace(&self.policies, &key.0).enumerate();
        for (rank, (_, (version, policy))) in policies {
            if !policy.selects(pod) {
                continue;
            }
            for (of_ingress, lists) in [(true, &mut ingress), (false, &mut egress)] {
                if policy.rules(of_ingress).is_none() {
                    continue;
                }
                let lists = lists.get_or_insert_with(Vec::new);
                if rank >= POLICIES_MAX {
                    continue;
                }
                let named = match of_ingress {
                    true => policy.named_ports(pod),
                    false => Vec::new(),
                };
                let world = (&self.pods, &self.namespaces);
                let list = (*version, of_ingress, named);
                let groups = &mut self.groups;
                lists.push(self.lists.acquire(list, policy, &node, groups, world));
            }
        }
        let now = PodRules {
            namespace: key.0.clone(),
            name: key.1.clone(),
            uid: pod.uid.clone(),
            ingress,
            egress,
        };
        let old = self.rules.get(key).cloned();
        if let Some(old) = &old {
            self.release(old, &node);
        }
        if old.as_deref() == Some(&now) {
            return None;
        }
        self.rules.insert(key.clone(), Arc::new(now));
        Some(node)
    }

    /// A pod has left a node.
    fn forget(&mut self, key: &Key, node: Option<&str>) -> Option<String> {
        let node = node?;
        if let Some(keys) = self.by_node.get_mut(node) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_node.remove(node);
            }
        }
        let rules = self.rules.remove(key)?;
        self.release(&rules, node);
        Some(node.to_owned())
    }

    fn release(&mut self, rules: &PodRules, node: &str) {
        for list in rules.ingress.iter().chain(&rules.egress).flatten() {
            self.lists.release(*list, node, &mut self.groups);
        }
    }

    #[cfg(test)]
    pub(super) fn keeps_nothing(&self) -> bool {
        self.lists.is_empty()
            && self.groups.is_empty()
            && self.rules.is_empty()
            && self.by_node.is_empty()
    }
}

#[cfg(test)]
#[path = "conformance_tests.rs"]
mod conformance_tests;
#[cfg(test)]
#[path = "state_tests.rs"]
mod state_tests;
