//! The NetworkPolicies as nodes see them, kept for each change of a policy, a namespace's labels or a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::ObjectMeta;
use resources::network_policies::{NodeView, Policy, PolicyPod, PolicyState, Shortfall};

use super::{Index, IndexKey, Touched, key_of, newer, without};

/// The policies, and what follows from them.
#[derive(Default)]
pub(super) struct NodePolicies {
    state: PolicyState,
    /// Of each policy its uid and the version that the state has.
    versions: BTreeMap<IndexKey, (String, String)>,
    namespaces: BTreeMap<IndexKey, ()>,
    /// The pods that run in their node's network without asking for it.
    sharing: BTreeSet<IndexKey>,
    /// Counts the changes that a report on policies may show.
    changes: u64,
}

fn version_of(meta: &ObjectMeta) -> (String, String) {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    (text(&meta.uid), text(&meta.resource_version))
}

impl Index {
    /// Sets the address of the cluster's DNS server, which policies may name as a peer.
    pub fn set_dns(&mut self, address: Option<Ipv4Addr>) {
        self.node_policies.state.set_dns(address);
    }

    /// Stores a policy.
    pub fn put_policy(&mut self, policy: NetworkPolicy) -> Touched {
        let key = key_of(&policy.metadata);
        let all = &mut self.node_policies;
        all.changes += 1;
        all.versions
            .insert(key.clone(), version_of(&policy.metadata));
        let nodes = match Policy::of(&policy) {
            Some(policy) => all.state.put_policy(policy),
            None => {
                tracing::error!(
                    namespace = key.0,
                    policy = key.1,
                    "a NetworkPolicy cannot be read and counts for nothing"
                );
                all.state.remove_policy(&key)
            }
        };
        Touched { nodes }
    }

    /// Removes a policy.
    pub fn remove_policy(&mut self, key: &IndexKey) -> Touched {
        let all = &mut self.node_policies;
        all.changes += 1;
        all.versions.remove(key);
        Touched {
            nodes: all.state.remove_policy(key),
        }
    }

    /// After a new list: removes every policy that is not in it.
    pub fn retain_policies(&mut self, seen: &BTreeSet<IndexKey>) -> Touched {
        let mut touched = Touched::default();
        for key in without(&self.node_policies.versions, seen) {
            touched.nodes.extend(self.remove_policy(&key).nodes);
        }
        touched
    }

    /// Whether this version of a policy, or a later one, counts already.
    pub fn knows_policy(&self, meta: &ObjectMeta) -> bool {
        let known = self.node_policies.versions.get(&key_of(meta));
        let (uid, version) = version_of(meta);
        known.is_some_and(|(known_uid, known)| {
            *known_uid == uid && !newer(Some(&version), Some(known))
        })
    }

    /// Stores a namespace's labels.
    pub fn put_namespace(&mut self, namespace: &Namespace) -> Touched {
        let key = key_of(&namespace.metadata);
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        let all = &mut self.node_policies;
        let nodes = all.state.put_namespace(&key.1, labels);
        all.namespaces.insert(key, ());
        Touched { nodes }
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, key: &IndexKey) -> Touched {
        let all = &mut self.node_policies;
        all.namespaces.remove(key);
        Touched {
            nodes: all.state.remove_namespace(&key.1),
        }
    }

    /// After a new list: removes every namespace that is not in it.
    pub fn retain_namespaces(&mut self, seen: &BTreeSet<IndexKey>) -> Touched {
        let mut touched = Touched::default();
        for key in without(&self.node_policies.namespaces, seen) {
            touched.nodes.extend(self.remove_namespace(&key).nodes);
        }
        touched
    }

    /// Takes in what policies need to know of a pod.
    pub(super) fn see_pod(&mut self, key: &IndexKey, pod: Option<&Pod>) -> Touched {
        let all = &mut self.node_policies;
        let pod = pod.map(PolicyPod::of);
        let shares = pod.as_ref().is_some_and(|pod| pod.shares_network);
        let shared = match shares {
            true => !all.sharing.insert(key.clone()),
            false => all.sharing.remove(key),
        };
        let nodes = match pod {
            Some(pod) => all.state.put_pod(key, pod),
            None => all.state.remove_pod(key),
        };
        if (shares != shared || !nodes.is_empty()) && !all.versions.is_empty() {
            all.changes += 1;
        }
        Touched { nodes }
    }

    /// What a node needs to know of policies.
    pub fn policies_of_node(&mut self, node: &str) -> NodeView {
        self.node_policies.state.view(node)
    }

    /// Changes whenever [`Index::policy_shortfalls`] may.
    pub fn policy_changes(&self) -> u64 {
        self.node_policies.changes
    }

    /// The policies that are not enforced as they are written, with their uids.
    pub fn policy_shortfalls(&self) -> Vec<(Shortfall, String)> {
        let all = &self.node_policies;
        let shortfalls = all.state.shortfalls().into_iter();
        let with_uid = shortfalls.filter_map(|shortfall| {
            let (uid, _) = all.versions.get(&shortfall.policy)?.clone();
            Some((shortfall, uid))
        });
        with_uid.collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, labels: Value) -> Pod {
        let pod = json!({"metadata": {"namespace": "team", "name": name, "uid": name, "labels": labels},
            "spec": {"nodeName": "n1", "containers": []}, "status": {"podIP": "10.244.0.2", "hostIP": "192.0.2.1"}});
        serde_json::from_value(pod).unwrap()
    }

    fn policy(version: u64) -> NetworkPolicy {
        let policy = json!({"metadata": {"namespace": "team", "name": "p", "uid": "u", "resourceVersion": version.to_string()},
            "spec": {"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]}]}});
        serde_json::from_value(policy).unwrap()
    }

    #[test]
    fn policies_reach_the_nodes_of_their_pods() {
        let key = ("team".to_owned(), "p".to_owned());
        let mut index = Index::default();
        index.put_pod(pod("a", json!({})));
        let open = |index: &mut Index| index.policies_of_node("n1").pods["a"].ingress.is_none();
        let members = |index: &mut Index| {
            let view = index.policies_of_node("n1");
            view.groups.values().map(|group| group.len()).sum::<usize>()
        };
        assert!(open(&mut index) && !index.knows_policy(&policy(7).metadata));
        let touched = index.put_policy(policy(7));
        assert_eq!(touched.nodes, BTreeSet::from(["n1".to_owned()]));
        assert!(!open(&mut index));
        let known = [6, 7, 8].map(|version| index.knows_policy(&policy(version).metadata));
        assert_eq!(known, [true, true, false]);
        // The namespace gets the label, then is gone from a new list.
        let space = json!({"metadata": {"name": "team", "labels": {"a": "b"}}});
        let space: Namespace = serde_json::from_value(space).unwrap();
        assert_eq!(members(&mut index), 0);
        assert_eq!(index.put_namespace(&space).nodes.len(), 1);
        assert_eq!(members(&mut index), 1);
        index.retain_namespaces(&BTreeSet::new());
        assert_eq!(members(&mut index), 0);
        index.retain_policies(&BTreeSet::from([key]));
        assert!(!open(&mut index));
        let changes = index.policy_changes();
        assert_eq!(index.retain_policies(&BTreeSet::new()).nodes.len(), 1);
        assert!(open(&mut index) && index.policy_changes() > changes);
        index.remove_pod(&("team".to_owned(), "a".to_owned()), None);
        assert!(index.policies_of_node("n1").pods.is_empty());
    }
}
