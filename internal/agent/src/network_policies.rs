//! The NetworkPolicies' rules for this node's pods, where the agent gives pods addresses: takes what the server sends, and
//! has the kernel follow it. A pod without rules from the server does not start.
//!
//! The kernel keeps the rules while the agent is down. Of an agent that starts again, the kernel's rules stay as they are
//! until the server has sent everything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use network::{NetworkError, NodePolicies};
use parking_lot::Mutex;
use resources::network_policies::{GroupChange, NodeView, PodRules, RuleList};
use rpc::agent::v1::NetworkPolicyChanges;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::error::AgentError;
use crate::pod_network::NodePodNetworks;
use crate::reprogram;

/// The rules for this node's pods.
#[derive(Clone)]
pub struct NodeNetworkPolicies {
    /// None where the agent gives pods no addresses.
    node: Option<Arc<NodePolicies>>,
    networks: NodePodNetworks,
    known: Arc<Mutex<Known>>,
    /// Held while the kernel takes a state: an earlier one must not follow a later one.
    work: Arc<Mutex<()>>,
    changes: watch::Sender<()>,
}

/// What the server sent.
#[derive(Debug, Default)]
struct Known {
    /// Whether the server sends rules, once it has said it.
    sends: Option<bool>,
    /// A series of changes that has not ended.
    arriving: Option<NodeView>,
    /// All rules, once all have arrived.
    view: Option<NodeView>,
    /// Pods that the server does not name any more; their rules stay while something of them runs.
    gone: BTreeSet<String>,
}

/// Why a pod does not start yet.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// The server has not sent its rules.
    #[error(
        "the server has not sent yet which NetworkPolicies count for this pod; it starts once the agent has a session"
    )]
    NotSent,
    /// The kernel refused.
    #[error("the rules of NetworkPolicies are not in place: {0}")]
    Kernel(#[from] NetworkError),
}

impl NodeNetworkPolicies {
    /// Nothing is known yet.
    ///
    /// # Errors
    ///
    /// When the agent gives pods addresses, and `ip` or `nft` is missing.
    pub fn open(networks: &NodePodNetworks) -> Result<NodeNetworkPolicies, AgentError> {
        let node = networks.gives().then(NodePolicies::open).transpose();
        Ok(NodeNetworkPolicies {
            node: node.map_err(AgentError::PodNetwork)?.map(Arc::new),
            networks: networks.clone(),
            known: Arc::default(),
            work: Arc::default(),
            changes: watch::Sender::default(),
        })
    }

    /// Takes whether the server sends rules at all: one of an earlier version does not.
    pub fn set_sent(&self, sends: bool) {
        self.known.lock().sends = Some(sends);
        self.changed();
    }

    /// Takes changes; acts when the last one of a series has come.
    pub fn take(&self, changes: NetworkPolicyChanges) {
        if self.known.lock().take(changes) {
            self.changed();
        }
    }

    /// Programs what changed soon: a pod has left.
    pub fn changed(&self) {
        self.changes.send_replace(());
    }

    /// Whether a pod may get a network: the server has sent what counts for it, or that it sends nothing.
    pub fn has_rules_of(&self, uid: &str) -> bool {
        self.node.is_none() || self.known.lock().has_rules_of(uid)
    }

    /// Puts the rules of a pod in place, which has its network and has not started. Blocks.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn put_in_place(&self) -> Result<(), NotReady> {
        match &self.node {
            Some(node) => Ok(self.program(node)?),
            None => Ok(()),
        }
    }

    /// Programs what changed, for good.
    pub async fn keep(self) {
        let Some(node) = self.node.clone() else {
            return std::future::pending().await;
        };
        let changes = self.changes.subscribe();
        let work_for = move |()| {
            let (this, node) = (self.clone(), node.clone());
            move || this.program(&node)
        };
        let failure = "NetworkPolicies are not up to date on this node; the agent tries again, and starts no pod before";
        reprogram::after_each_change(changes, failure, work_for).await;
    }

    fn program(&self, node: &NodePolicies) -> Result<(), NetworkError> {
        let _work = self.work.lock();
        let local = self.networks.addresses();
        let (sends, view) = {
            let mut known = self.known.lock();
            known.forget(|uid| local.contains_key(uid));
            (known.sends, known.view.clone())
        };
        match (sends, view) {
            (Some(false), _) => node.set(&NodeView::default(), &BTreeMap::new()),
            (Some(true), Some(view)) => node.set(&view, &local),
            _ => Ok(()),
        }
    }
}

impl Known {
    fn has_rules_of(&self, uid: &str) -> bool {
        match self.sends {
            None => false,
            Some(false) => true,
            Some(true) => {
                let view = self.view.as_ref();
                view.is_some_and(|view| view.pods.contains_key(uid))
            }
        }
    }

    /// True if a series of changes has ended.
    fn take(&mut self, changes: NetworkPolicyChanges) -> bool {
        let mut view = match changes.begins {
            true => {
                self.gone.clear();
                NodeView::default()
            }
            false => {
                let arriving = self.arriving.take();
                arriving.or_else(|| self.view.clone()).unwrap_or_default()
            }
        };
        for id in &changes.removed_lists {
            view.lists.remove(id);
        }
        for id in &changes.removed_groups {
            view.groups.remove(id);
        }
        for json in &changes.groups_json {
            if let Some(change) = read::<GroupChange>(json) {
                let members = view.groups.entry(change.id).or_default();
                let members = Arc::make_mut(members);
                if change.new {
                    members.clear();
                }
                for member in &change.removed {
                    members.remove(member);
                }
                members.extend(change.added);
            }
        }
        for list in &changes.lists {
            if let Some(rules) = read::<RuleList>(&list.json) {
                view.lists.insert(list.id, Arc::new(rules));
            }
        }
        for json in &changes.pods_json {
            if let Some(rules) = read::<PodRules>(json) {
                self.gone.remove(&rules.uid);
                view.pods.insert(rules.uid.clone(), Arc::new(rules));
            }
        }
        self.gone.extend(changes.removed_pods);
        if !changes.complete {
            self.arriving = Some(view);
            return false;
        }
        self.view = Some(view);
        true
    }

    /// Forgets pods that the server does not name any more and of which nothing runs.
    fn forget(&mut self, runs: impl Fn(&str) -> bool) {
        let Some(view) = &mut self.view else { return };
        self.gone.retain(|uid| {
            let kept = runs(uid);
            if !kept {
                view.pods.remove(uid);
            }
            kept
        });
    }
}

/// What cannot be read allows nothing: a pod without rules is cut off, and so is a list or group that is missing.
fn read<T: DeserializeOwned>(json: &str) -> Option<T> {
    let read = serde_json::from_str(json);
    let read = read.inspect_err(|error| {
        tracing::error!(%error, "the server sent rules of NetworkPolicies that cannot be read; they allow nothing");
    });
    read.ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, ingress: Option<Vec<u64>>) -> String {
        json!({"namespace": "team", "name": uid, "uid": uid, "ingress": ingress, "egress": null})
            .to_string()
    }

    fn shown(known: &Known) -> String {
        let Some(view) = &known.view else {
            return "nothing".to_owned();
        };
        let pods: Vec<_> = view.pods.keys().map(String::as_str).collect();
        let groups = view.groups.iter();
        let groups: Vec<_> = groups
            .map(|(id, members)| {
                let members: Vec<_> = members.iter().map(ToString::to_string).collect();
                format!("{id}={}", members.join(","))
            })
            .collect();
        let lists: Vec<_> = view.lists.keys().map(u64::to_string).collect();
        format!(
            "{} | {} | {}",
            pods.join(" "),
            lists.join(" "),
            groups.join(" ")
        )
    }

    #[test]
    fn rules_count_once_all_of_a_series_have_come() {
        let mut known = Known {
            sends: Some(true),
            ..Known::default()
        };
        let group = |text: &str| vec![text.to_owned()];
        let list = |id: u64| rpc::agent::v1::RuleList {
            id,
            json: json!({"policy": "team/p", "rules": []}).to_string(),
        };
        assert!(!known.take(NetworkPolicyChanges {
            begins: true,
            pods_json: vec![pod("a", Some(vec![1]))],
            groups_json: group(r#"{"id":7,"new":true,"added":["10.244.0.2","10.244.0.3"]}"#),
            ..NetworkPolicyChanges::default()
        }));
        assert!(!known.has_rules_of("a"));
        assert!(known.take(NetworkPolicyChanges {
            complete: true,
            pods_json: vec![pod("b", None)],
            lists: vec![list(1)],
            ..NetworkPolicyChanges::default()
        }));
        assert_eq!(shown(&known), "a b | 1 | 7=10.244.0.2,10.244.0.3");
        assert!(known.has_rules_of("a") && !known.has_rules_of("c"));
        // A pod that the server does not name any more keeps its rules while it runs.
        assert!(known.take(NetworkPolicyChanges {
            complete: true,
            removed_pods: vec!["a".to_owned(), "b".to_owned()],
            groups_json: group(r#"{"id":7,"added":["10.244.0.4"],"removed":["10.244.0.2"]}"#),
            lists: vec![list(2)],
            removed_lists: vec![1],
            ..NetworkPolicyChanges::default()
        }));
        known.forget(|uid| uid == "a");
        assert_eq!(shown(&known), "a | 2 | 7=10.244.0.3,10.244.0.4");
        known.forget(|_| false);
        assert_eq!(shown(&known), " | 2 | 7=10.244.0.3,10.244.0.4");
        // Another session: what it does not name is gone, but only when it has named everything.
        known.take(NetworkPolicyChanges {
            begins: true,
            pods_json: vec![pod("c", None), "no rules".to_owned()],
            ..NetworkPolicyChanges::default()
        });
        assert_eq!(shown(&known), " | 2 | 7=10.244.0.3,10.244.0.4");
        known.take(NetworkPolicyChanges {
            complete: true,
            removed_groups: vec![7],
            ..NetworkPolicyChanges::default()
        });
        assert_eq!(shown(&known), "c |  | ");
    }

    #[test]
    fn a_server_that_sends_no_rules_keeps_no_pod_waiting() {
        let mut known = Known::default();
        assert!(!known.has_rules_of("a"));
        known.sends = Some(false);
        assert!(known.has_rules_of("a"));
    }
}
