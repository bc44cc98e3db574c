//! Owns the loop over nodes: listens to their leases, declares silent ones and their
//! pods lost, and takes that back when a node is heard of again. What counts as silent
//! is decided in [`silence`](super::silence). Ready is the agent's own to set again.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::FutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, ObjectReference, Taint};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use resources::names::{NODE_LEASES, NODE_LOST};
use serde_json::json;
use tokio::time::Instant;

use super::access::{answered, together, unless_gone};
use super::lost::{self, BoundPod, PodPart};
use super::mirror::{self, Key, Mirror, uid_of};
use super::silence::{self, Verdict};
use super::stopped;
use crate::Context;
use crate::notes::{Kind as NoteKind, Notes};

/// How often nodes are judged, as a part of the grace period, and its bounds.
const LOOKS_PER_GRACE: u32 = 10;
const LOOK_SOONEST: Duration = Duration::from_millis(100);
const LOOK_LATEST: Duration = Duration::from_secs(1);

/// What matters of a node.
struct Member {
    uid: String,
    resource_version: String,
    conditions: Vec<NodeCondition>,
    taints: Vec<Taint>,
}

impl Member {
    fn of(node: Node) -> Member {
        Member {
            uid: uid_of(&node),
            resource_version: node.metadata.resource_version.unwrap_or_default(),
            conditions: node.status.and_then(|s| s.conditions).unwrap_or_default(),
            taints: node.spec.and_then(|s| s.taints).unwrap_or_default(),
        }
    }

    fn reference(&self, name: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(name.to_owned()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

/// When a node was last heard of.
struct Heard {
    renewed: Option<Timestamp>,
    at: Instant,
    /// Whether that was a sign of life, not just the first look at it.
    alive: bool,
}

struct Watcher {
    client: Client,
    notes: Notes,
    grace: Duration,
    nodes: Mirror<Member>,
    pods: Mirror<BoundPod>,
    heard: BTreeMap<String, Heard>,
}

pub(crate) async fn run(mut ctx: Context) {
    let mut nodes = mirror::watch(
        Api::<Node>::all(ctx.client.clone()),
        watcher::Config::default(),
    );
    let mut leases = mirror::watch(
        Api::<Lease>::namespaced(ctx.client.clone(), NODE_LEASES),
        watcher::Config::default(),
    );
    let mut pods = mirror::watch(
        Api::<PodPart>::all(ctx.client.clone()),
        watcher::Config::default().fields("spec.nodeName!="),
    );
    let mut state = Watcher {
        client: ctx.client.clone(),
        notes: Notes::new(ctx.client.clone(), "node-controller"),
        grace: ctx.config.node_grace,
        nodes: Mirror::new(),
        pods: Mirror::new(),
        heard: BTreeMap::new(),
    };
    let every = (ctx.config.node_grace / LOOKS_PER_GRACE).clamp(LOOK_SOONEST, LOOK_LATEST);
    let mut look = tokio::time::interval(every);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            // What was heard counts before it is judged who was silent.
            biased;
            () = stopped(&mut ctx.stop) => return,
            Some(event) = leases.next() => state.take_lease(event),
            Some(event) = nodes.next() => state.take_node(event),
            Some(event) = pods.next() => { state.pods.take(event, BoundPod::of); }
            _ = look.tick() => state.look().await,
        }
    }
}

impl Watcher {
    fn take_node(&mut self, event: watcher::Event<Node>) {
        for change in self.nodes.take(event, Member::of) {
            let name = change.key.1.clone();
            if self.nodes.get(&change.key).is_none() {
                self.heard.remove(&name);
            } else {
                self.heard.entry(name).or_insert_with(|| Heard {
                    renewed: None,
                    at: Instant::now(),
                    alive: false,
                });
            }
        }
    }

    fn take_lease(&mut self, event: watcher::Event<Lease>) {
        let leases = match event {
            watcher::Event::Apply(lease) | watcher::Event::InitApply(lease) => lease,
            _ => return,
        };
        let name = leases.metadata.name.clone().unwrap_or_default();
        self.hear(&name, renew_time(&leases));
    }

    /// A lease says that a node was alive; the same time twice says nothing.
    fn hear(&mut self, name: &str, renewed: Option<Timestamp>) {
        let now = Instant::now();
        match self.heard.get_mut(name) {
            Some(heard) if heard.renewed == renewed => {}
            Some(heard) => {
                // The first look at a lease does not tell when it was renewed.
                heard.alive = heard.renewed.is_some() || heard.alive;
                heard.renewed = renewed;
                heard.at = now;
            }
            None => {
                let first = Heard {
                    renewed,
                    at: now,
                    alive: false,
                };
                self.heard.insert(name.to_owned(), first);
            }
        }
    }

    async fn look(&mut self) {
        if !self.nodes.synced() || !self.pods.synced() {
            return;
        }
        let names: Vec<Key> = self.nodes.iter().map(|(key, _)| key.clone()).collect();
        for key in names {
            if let Err(error) = self.look_at(&key).await
                && !answered(&error, 409)
            {
                tracing::warn!(node = key.1, %error, "a node is looked at again");
            }
        }
    }

    async fn look_at(&mut self, key: &Key) -> kube::Result<()> {
        let (Some(node), Some(heard)) = (self.nodes.get(key), self.heard.get(&key.1)) else {
            return Ok(());
        };
        match silence::judge(heard.at.elapsed(), heard.alive, self.grace, &node.taints) {
            Verdict::Fine => Ok(()),
            Verdict::Returned => self.take_back(key, node).await,
            Verdict::Lost => {
                let known = silence::lost_taints(&node.taints, Timestamp::now()).is_none();
                if !known && self.was_heard_after_all(key).await? {
                    return Ok(());
                }
                self.declare_lost(key).await
            }
        }
    }

    /// Asks the API before a node is declared lost: a watch may be behind.
    async fn was_heard_after_all(&mut self, key: &Key) -> kube::Result<bool> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), NODE_LEASES);
        let Some(lease) = api.get_opt(&key.1).await? else {
            return Ok(false);
        };
        let renewed = renew_time(&lease);
        let known = self.heard.get(&key.1).and_then(|heard| heard.renewed);
        self.hear(&key.1, renewed);
        Ok(known != renewed)
    }

    async fn take_back(&self, key: &Key, node: &Member) -> kube::Result<()> {
        let taints = silence::returned_taints(&node.taints);
        self.set_taints(key, node, &taints).await?;
        let message = format!("Node {} is heard of again", key.1);
        self.note(key, node, NoteKind::Normal, "NodeReachable", &message);
        Ok(())
    }

    async fn declare_lost(&self, key: &Key) -> kube::Result<()> {
        let now = Timestamp::now();
        let Some(node) = self.nodes.get(key) else {
            return Ok(());
        };
        if let Some(taints) = silence::lost_taints(&node.taints, now) {
            self.set_taints(key, node, &taints).await?;
        }
        if let Some(conditions) = silence::lost_conditions(&node.conditions, now) {
            let patch = Patch::Merge(json!({
                "metadata": { "uid": node.uid },
                "status": { "conditions": conditions },
            }));
            let api: Api<Node> = Api::all(self.client.clone());
            let params = PatchParams::default();
            unless_gone(api.patch_status(&key.1, &params, &patch).await)?;
            let message = format!("Node {} status is now: NodeNotReady", key.1);
            self.note(key, node, NoteKind::Warning, "NodeNotReady", &message);
        }
        self.declare_pods_lost(key, now).await
    }

    async fn declare_pods_lost(&self, key: &Key, now: Timestamp) -> kube::Result<()> {
        let message = format!(
            "Node {} stopped answering for more than {} s; the pod is given up",
            key.1,
            self.grace.as_secs()
        );
        let mut writes = Vec::new();
        for (pod_key, pod) in self.pods.iter() {
            if pod.node == key.1 && !pod.finished {
                writes.push(self.declare_pod_lost(pod_key, pod, &message, now).boxed());
            }
        }
        together(writes).await
    }

    async fn declare_pod_lost(
        &self,
        key: &Key,
        pod: &BoundPod,
        message: &str,
        now: Timestamp,
    ) -> kube::Result<()> {
        lost::declare(&self.client, key, pod, message, now).await?;
        let about = pod.reference(key);
        self.notes
            .note(&about, NoteKind::Warning, NODE_LOST, message);
        Ok(())
    }

    async fn set_taints(&self, key: &Key, node: &Member, taints: &[Taint]) -> kube::Result<()> {
        let patch = Patch::Merge(json!({
            "metadata": { "uid": node.uid, "resourceVersion": node.resource_version },
            "spec": { "taints": taints },
        }));
        let api: Api<Node> = Api::all(self.client.clone());
        let params = PatchParams::default();
        unless_gone(api.patch(&key.1, &params, &patch).await)?;
        Ok(())
    }

    fn note(&self, key: &Key, node: &Member, kind: NoteKind, reason: &str, message: &str) {
        self.notes
            .note(&node.reference(&key.1), kind, reason, message);
    }
}

fn renew_time(lease: &Lease) -> Option<Timestamp> {
    let spec = lease.spec.as_ref()?;
    spec.renew_time.as_ref().map(|time| time.0)
}
