//! What the agent asks of the cluster's API, and tells it: the node's pods; the inventory, and
//! what is wrong with it.

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams, PartialObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use resources::alerts::{self, Alert};
use resources::devices::MIG_SINGLE;
use resources::load::NodeLoad;
use resources::names::{ALERTS, LOAD};
use resources::node_event;
use resources::times::seconds;
use resources::trouble::{FABRIC, STRATEGY, SUSPICION, Trouble};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::TRY_EVERY;
use crate::health::Seen;
use crate::inventory::Machine;
use crate::metrics::Holder;
use crate::shares::Held;

/// Whose the node's labels are.
const FIELD_MANAGER: &str = "muster-agent";

/// The API, as one node's agent uses it.
#[derive(Clone)]
pub struct Cluster {
    client: kube::Client,
    node: String,
}

impl Cluster {
    /// For the node of this name.
    pub fn new(client: kube::Client, node: &str) -> Cluster {
        Cluster {
            client,
            node: node.to_string(),
        }
    }

    /// All pods that are bound to the node, as they are now.
    pub async fn pods(&self) -> Result<Vec<Pod>, kube::Error> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let here = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        Ok(pods.list(&here).await?.items)
    }

    /// Tells the node's labels and annotations as they are, and whenever it changes. What is heard so is named in
    /// the log while it can't be.
    pub(super) async fn follow_node(&self, what: &str, mut tell: impl FnMut(ObjectMeta)) {
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        let this = format!("metadata.name={}", self.node);
        let events = watcher::watcher(nodes, watcher::Config::default().fields(&this));
        let mut events = events.default_backoff().boxed();
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::InitApply(node) | watcher::Event::Apply(node))) => {
                    tell(node.metadata);
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => tracing::debug!(%error, "{what} can't be heard"),
            }
        }
    }

    /// The address that other nodes reach the node by, where its kubelet has said one.
    pub(super) async fn address(&self) -> Result<Option<String>, kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let status = nodes.get(&self.node).await?.status.unwrap_or_default();
        let mut all = status.addresses.unwrap_or_default().into_iter();
        let own = all.find(|address| address.type_ == "InternalIP");
        Ok(own.map(|address| address.address))
    }

    /// Writes one of the node's labels, or takes it away.
    pub(super) async fn label(&self, name: &str, value: Option<&str>) -> Result<(), kube::Error> {
        self.mark("labels", name, value).await
    }

    /// Writes one of the node's annotations, or takes it away.
    pub(super) async fn annotate(
        &self,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), kube::Error> {
        self.mark("annotations", name, value).await
    }

    async fn mark(&self, field: &str, name: &str, value: Option<&str>) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let note = json!({"metadata": {field: {name: value}}});
        let as_us = PatchParams::default();
        (nodes
            .patch_metadata(&self.node, &as_us, &Patch::Merge(&note))
            .await)
            .map(|_| ())
    }

    /// Asks for the eviction of the very pod of this uid, with a grace period in seconds where its own
    /// is too short. One that is gone, or replaced by another of its name, needs none.
    ///
    /// # Errors
    ///
    /// What the API says against it.
    pub(crate) async fn evict(
        &self,
        namespace: &str,
        pod: &str,
        uid: &str,
        grace: Option<i64>,
    ) -> Result<(), String> {
        let mut body = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": pod},
            "deleteOptions": {
                "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid},
            },
        });
        if let Some(grace) = grace {
            body["deleteOptions"]["gracePeriodSeconds"] = json!(grace);
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        // Not `Api::evict`, whose options' name is one that no API reads.
        let asked: kube::Result<Value> = pods
            .create_subresource("eviction", pod, &PostParams::default(), &body)
            .await;
        match asked {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(kube::Error::Api(status)) => Err(status.message),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Writes one of the node's conditions that are true where there is trouble.
    pub(super) async fn tell_trouble(
        &self,
        condition: &Trouble,
        trouble: &str,
        untroubled: Well,
    ) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let (status, reason, message) = condition.says(trouble);
        let troubled = !trouble.is_empty();
        let node = nodes.get(&self.node).await?;
        let all = node.status.and_then(|status| status.conditions);
        let before = (all.into_iter().flatten()).find(|it| it.type_ == condition.condition);
        let same = before.as_ref().filter(|before| before.status == status);
        // What an agent before this one said is not said again.
        let spared = untroubled == Well::Silent && !troubled && before.is_none();
        if spared || same.is_some_and(|same| same.message.as_deref() == Some(message)) {
            return Ok(());
        }
        if troubled {
            tracing::warn!(message, condition = condition.condition, "the node says");
        }
        let now = Timestamp::now();
        let since = same.and_then(|same| same.last_transition_time.as_ref());
        let since = since.map_or(now, |since| since.0);
        let note = json!({"status": {"conditions": [{
            "type": condition.condition, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": seconds(since),
        }]}});
        let as_us = PatchParams::default();
        (nodes
            .patch_status(&self.node, &as_us, &Patch::Strategic(&note))
            .await)?;
        // That nothing is wrong is news only where something was.
        if troubled || before.is_some() {
            self.tell_event(troubled, reason, message).await;
        }
        Ok(())
    }

    /// Says what changed as an event, too. One that can't be written is lost, as in Kubernetes.
    pub(super) async fn tell_event(&self, warning: bool, reason: &str, message: &str) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), node_event::NAMESPACE);
        let event = node_event::of(&self.node, warning, reason, message, Timestamp::now());
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            tracing::debug!(%error, node = self.node, "an event could not be written");
        }
    }

    /// Says something to look at of a container, as an event of its pod.
    pub(crate) async fn tell_of_pod(
        &self,
        about: &node_event::Container<'_>,
        reason: &str,
        message: &str,
    ) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), about.namespace);
        let now = Timestamp::now();
        let event = node_event::of_container(&self.node, about, reason, message, now);
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            tracing::debug!(%error, pod = about.pod, "an event could not be written");
        }
    }

    /// Evicts a container's pod for what it has of a GPU: that pod, and none that came after it.
    pub(crate) async fn evict_over_share(&self, held: &Held) {
        let Holder { namespace, pod, .. } = &held.holder;
        match self.evict(namespace, pod, &held.uid, None).await {
            Ok(()) => tracing::info!(namespace, pod, "evicted for more than its share of a GPU"),
            // It is tried again at the next look.
            Err(error) => {
                tracing::warn!(
                    error,
                    namespace,
                    pod,
                    "it could not be evicted for more than its share of a GPU"
                );
            }
        }
    }

    /// The alerts that the node says stand.
    pub(super) async fn alerts(&self) -> Result<Vec<Alert>, kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        Ok(alerts::of_node(&nodes.get(&self.node).await?))
    }

    /// Writes what the GPUs do, by this machine's clock, and which alerts stand.
    pub(super) async fn tell_vitals(&self, seen: &Seen) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let load = NodeLoad {
            at: Timestamp::now(),
            gpus: seen.loads.clone(),
        };
        let load = serde_json::to_string(&load).map_err(kube::Error::SerdeError)?;
        let stand = (!seen.alerts.is_empty()).then(|| serde_json::to_string(&seen.alerts));
        let stand = stand.transpose().map_err(kube::Error::SerdeError)?;
        let note = json!({"metadata": {"annotations": {LOAD: load, ALERTS: stand}}});
        let as_us = PatchParams::default();
        (nodes
            .patch_metadata(&self.node, &as_us, &Patch::Merge(&note))
            .await)
            .map(|_| ())
    }

    /// Writes the inventory, and the labels. Those are applied: one that was ours and isn't said
    /// any more goes, whichever agent wrote it, and nobody else's is touched.
    async fn tell(&self, machine: &Machine) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let mut machine = machine.clone();
        let labels = std::mem::take(&mut machine.inventory.labels);
        let note =
            json!({"metadata": {"annotations": {resources::names::INVENTORY: machine.json()}}});
        let as_us = PatchParams::default();
        (nodes
            .patch_metadata(&self.node, &as_us, &Patch::Merge(&note))
            .await)?;
        let note = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": self.node, "labels": labels}});
        // Labels that another discovery wrote before are taken over.
        let as_us = PatchParams::apply(FIELD_MANAGER).force();
        (nodes
            .patch_metadata(&self.node, &as_us, &Patch::Apply(&note))
            .await)
            .map(|_| ())
    }
}

/// What a node does that never had such trouble.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Well {
    /// It says that it has none.
    Said,
    /// It says nothing.
    Silent,
}

/// Keeps the node's annotation, labels and conditions at what the machine has.
pub async fn publish(cluster: Cluster, mut machine: watch::Receiver<Machine>) {
    let mut said: Option<Option<String>> = None;
    let mut suspected: Option<String> = None;
    let mut failed: Option<String> = None;
    loop {
        let now = machine.borrow_and_update().clone();
        let trouble = now.inventory.not_uniform();
        // Where nobody asked for `single`, only a condition written before is taken back.
        let of_concern = said.is_some() || now.inventory.mig_strategy == MIG_SINGLE;
        let tell = async {
            cluster.tell(&now).await?;
            if of_concern && said.as_ref() != Some(&trouble) {
                let wrong = trouble.as_deref().unwrap_or_default();
                (cluster.tell_trouble(&STRATEGY, wrong, Well::Said)).await?;
                said = Some(trouble);
            }
            if suspected.as_deref() != Some(now.suspect.as_str()) {
                (cluster.tell_trouble(&SUSPICION, &now.suspect, Well::Said)).await?;
                suspected = Some(now.suspect.clone());
            }
            if failed.as_deref() != Some(now.fabric.as_str()) {
                (cluster.tell_trouble(&FABRIC, &now.fabric, Well::Silent)).await?;
                failed = Some(now.fabric.clone());
            }
            Ok::<_, kube::Error>(())
        };
        if let Err(error) = tell.await {
            // The kubelet may not have made the node yet.
            tracing::debug!(%error, node = cluster.node, "the inventory can't be told yet");
            tokio::time::sleep(TRY_EVERY).await;
            continue;
        }
        if machine.changed().await.is_err() {
            return;
        }
    }
}
