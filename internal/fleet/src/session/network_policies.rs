//! Tells a node's agent what changed of the NetworkPolicies' rules for its pods since the last message of its session.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, ListParams};
use resources::network_policies::{Element, GroupChange, NodeView};
use rpc::agent::v1::{NetworkPolicyChanges, RuleList};
use serde::Serialize;

use super::{Session, SessionServer};

/// The size from which nothing is added to a message, in bytes; one addition has at most about 400 KiB.
const MESSAGE_BYTES: usize = 1 << 20;
/// How often the server asks whether its watch has the policies that were written before a pod, and the pause between.
const CATCH_UP_TRIES: u32 = 100;
const CATCH_UP_PAUSE: Duration = Duration::from_millis(50);

/// Sends a session what changed; false if the session has ended.
pub(super) async fn send(
    server: &SessionServer,
    session: &Arc<Session>,
    sent: &mut Option<NodeView>,
) -> bool {
    if !session.description.network_policies {
        return true;
    }
    let now = server.index.lock().policies_of_node(&session.node);
    let messages = messages(sent.as_ref(), &now);
    *sent = Some(now);
    for message in messages {
        if !session.send(message).await {
            return false;
        }
    }
    true
}

/// Waits until the server's watch has all policies of a namespace that exist now, so that a pod which is assigned after
/// it never starts without a policy that is older than the pod. Gives up after a few seconds: a policy over which the
/// watch fails would keep pods from starting for good.
pub(super) async fn catch_up(server: &SessionServer, session: &Session, namespace: &str) {
    if !session.description.network_policies {
        return;
    }
    let api: Api<NetworkPolicy> = Api::namespaced(server.client.clone(), namespace);
    for _ in 0..CATCH_UP_TRIES {
        match api.list_metadata(&ListParams::default()).await {
            Ok(list) => {
                let index = server.index.lock();
                if list.iter().all(|one| index.knows_policy(&one.metadata)) {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(namespace, %error, "the server could not list NetworkPolicies; it asks again");
            }
        }
        tokio::time::sleep(CATCH_UP_PAUSE).await;
    }
    tracing::error!(
        node = session.node,
        namespace,
        "the server's watch of NetworkPolicies is behind; pods of the namespace start without the latest ones"
    );
}

/// Collects additions into messages of bounded size.
#[derive(Default)]
struct Messages {
    done: Vec<NetworkPolicyChanges>,
    open: NetworkPolicyChanges,
    bytes: usize,
}

impl Messages {
    fn json<T: Serialize>(&mut self, what: &str, of: &T) -> Option<String> {
        let json = serde_json::to_string(of);
        let json = json.inspect_err(|error| {
            tracing::error!(%error, "the server cannot encode {what} of NetworkPolicies as JSON");
        });
        let json = json.ok()?;
        if self.bytes >= MESSAGE_BYTES {
            self.done.push(std::mem::take(&mut self.open));
            self.bytes = 0;
        }
        self.bytes += json.len();
        Some(json)
    }

    fn finish(mut self) -> Vec<NetworkPolicyChanges> {
        if self.open != NetworkPolicyChanges::default() {
            self.done.push(self.open);
        }
        if let Some(last) = self.done.last_mut() {
            last.complete = true;
        }
        self.done
    }
}

/// The keys of `old` that `new` lacks.
fn gone<K: Ord + Clone, V>(old: Option<&BTreeMap<K, V>>, new: &BTreeMap<K, V>) -> Vec<K> {
    let keys = old.into_iter().flat_map(BTreeMap::keys);
    keys.filter(|key| !new.contains_key(*key))
        .cloned()
        .collect()
}

/// The messages that lead from what was sent to what is now; none if nothing changed.
fn messages(sent: Option<&NodeView>, now: &NodeView) -> Vec<NetworkPolicyChanges> {
    let open = NetworkPolicyChanges {
        begins: sent.is_none(),
        removed_pods: gone(sent.map(|sent| &sent.pods), &now.pods),
        removed_lists: gone(sent.map(|sent| &sent.lists), &now.lists),
        removed_groups: gone(sent.map(|sent| &sent.groups), &now.groups),
        ..NetworkPolicyChanges::default()
    };
    let mut messages = Messages {
        open,
        ..Messages::default()
    };
    for (id, members) in &now.groups {
        let before = sent.and_then(|sent| sent.groups.get(id));
        if before.is_some_and(|before| Arc::ptr_eq(before, members)) {
            continue;
        }
        let change = group_change(*id, before.map(Arc::as_ref), members);
        if let Some(json) = messages.json("a group", &change) {
            messages.open.groups_json.push(json);
        }
    }
    for (id, list) in &now.lists {
        if sent.is_some_and(|sent| sent.lists.contains_key(id)) {
            continue;
        }
        if let Some(json) = messages.json("a list", list.as_ref()) {
            messages.open.lists.push(RuleList { id: *id, json });
        }
    }
    for (uid, rules) in &now.pods {
        let before = sent.and_then(|sent| sent.pods.get(uid));
        if before.is_some_and(|before| Arc::ptr_eq(before, rules)) {
            continue;
        }
        if let Some(json) = messages.json("a pod", rules.as_ref()) {
            messages.open.pods_json.push(json);
        }
    }
    messages.finish()
}

fn group_change(id: u64, old: Option<&BTreeSet<Element>>, new: &BTreeSet<Element>) -> GroupChange {
    let none = BTreeSet::new();
    let before = old.unwrap_or(&none);
    GroupChange {
        id,
        new: old.is_none(),
        added: new.difference(before).copied().collect(),
        removed: before.difference(new).copied().collect(),
    }
}

#[cfg(test)]
mod tests {
    use resources::network_policies::{PodRules, RuleList as Rules};

    use super::*;

    fn members(numbers: std::ops::Range<u32>) -> Arc<BTreeSet<Element>> {
        let element = |number: u32| Element {
            address: std::net::Ipv4Addr::from(0x0af4_0000 + number),
            port: None,
        };
        Arc::new(numbers.map(element).collect())
    }

    fn view(pods: std::ops::Range<u64>, group: std::ops::Range<u32>) -> NodeView {
        let pod = |number: u64| {
            let rules = PodRules {
                namespace: "team".to_owned(),
                name: format!("p{number}"),
                uid: format!("u{number}"),
                ingress: Some(vec![1]),
                egress: None,
            };
            (rules.uid.clone(), Arc::new(rules))
        };
        let list = Rules {
            policy: "team/p".to_owned(),
            rules: Vec::new(),
        };
        NodeView {
            pods: pods.map(pod).collect(),
            lists: BTreeMap::from([(1, Arc::new(list))]),
            groups: BTreeMap::from([(7, members(group))]),
        }
    }

    #[test]
    fn only_what_changed_is_sent_in_messages_of_bounded_size() {
        let shown = |messages: Vec<NetworkPolicyChanges>| {
            let one = |message: &NetworkPolicyChanges| {
                format!(
                    "{} {} pods {} -{} lists {} groups {}",
                    message.begins,
                    message.complete,
                    message.pods_json.len(),
                    message.removed_pods.join(" "),
                    message.lists.len(),
                    message.groups_json.join(" "),
                )
            };
            messages.iter().map(one).collect::<Vec<_>>()
        };
        let none = NodeView::default();
        assert_eq!(
            shown(messages(None, &none)),
            ["true true pods 0 - lists 0 groups "]
        );
        let first = view(0..2, 1..3);
        let group = r#"{"id":7,"new":true,"added":["10.244.0.1","10.244.0.2"]}"#;
        let expected = format!("true true pods 2 - lists 1 groups {group}");
        assert_eq!(shown(messages(None, &first)), [expected]);
        assert!(messages(Some(&first), &first).is_empty());
        let mut next = view(1..3, 2..4);
        next.pods.insert("u1".to_owned(), first.pods["u1"].clone());
        let group = r#"{"id":7,"new":false,"added":["10.244.0.3"],"removed":["10.244.0.1"]}"#;
        let expected = format!("false true pods 1 -u0 lists 0 groups {group}");
        assert_eq!(shown(messages(Some(&first), &next)), [expected]);
        let many = messages(None, &view(0..30_000, 0..16_384));
        let ends: Vec<_> = many.iter().map(|one| (one.begins, one.complete)).collect();
        assert_eq!(ends, [(true, false), (false, false), (false, true)]);
        let sent: usize = many.iter().map(|one| one.pods_json.len()).sum();
        assert_eq!(sent, 30_000);
    }
}
