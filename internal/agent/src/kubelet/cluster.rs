//! The agent's requests to the cluster's API: reads the node's pods; writes the inventory and the
//! node's conditions.

use devices::holders::DeviceHolder;
use devices::inventory::NodeHardware;
use devices::over_share::GpuShare;
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
use resources::node_conditions::{FABRIC, NodeCondition, STRATEGY, SUSPICION};
use resources::node_event;
use resources::times::seconds;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::TRY_EVERY;
use crate::health::HealthObservation;

/// The field manager of the node's labels.
const FIELD_MANAGER: &str = "muster-agent";

/// Why the API did not grant an eviction.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodEvictionError {
    /// The API refused it, for instance because of a disruption budget.
    #[error("{0}")]
    Refused(String),
    /// The request failed.
    #[error("{0}")]
    Request(Box<kube::Error>),
}

/// The API client of one node's agent.
#[derive(Clone)]
pub struct NodeClient {
    client: kube::Client,
    node: String,
}

impl NodeClient {
    /// A client for the node of this name.
    pub fn new(client: kube::Client, node: &str) -> NodeClient {
        NodeClient {
            client,
            node: node.to_string(),
        }
    }

    /// All pods that are bound to the node now.
    pub async fn pods(&self) -> Result<Vec<Pod>, kube::Error> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let here = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        Ok(pods.list(&here).await?.items)
    }

    /// Passes the node's metadata to `on_change`, now and after each change. While the watch fails, the
    /// log says that `what` can't be received.
    pub(super) async fn follow_node(&self, what: &str, mut on_change: impl FnMut(ObjectMeta)) {
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        let this = format!("metadata.name={}", self.node);
        let events = watcher::watcher(nodes, watcher::Config::default().fields(&this));
        let mut events = events.default_backoff().boxed();
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::InitApply(node) | watcher::Event::Apply(node))) => {
                    on_change(node.metadata);
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(%error, "{what}: the watch failed and is opened again")
                }
            }
        }
    }

    /// The node's address as seen by other nodes, if its kubelet has published one.
    pub(super) async fn address(&self) -> Result<Option<String>, kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let status = nodes.get(&self.node).await?.status.unwrap_or_default();
        let mut all = status.addresses.unwrap_or_default().into_iter();
        let own = all.find(|address| address.type_ == "InternalIP");
        Ok(own.map(|address| address.address))
    }

    /// Writes one of the node's labels, or removes it.
    pub(super) async fn label(&self, name: &str, value: Option<&str>) -> Result<(), kube::Error> {
        self.mark("labels", name, value).await
    }

    /// Writes one of the node's annotations, or removes it.
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

    /// Requests the eviction of the pod with this uid, with a grace period in seconds if its own is
    /// too short. A pod that is gone, or was replaced by another of its name, needs none.
    ///
    /// # Errors
    ///
    /// The API's error.
    pub(crate) async fn evict(
        &self,
        namespace: &str,
        pod: &str,
        uid: &str,
        grace: Option<i64>,
    ) -> Result<(), PodEvictionError> {
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
        // Not `Api::evict`: the API ignores the name under which it sends its options.
        let asked: kube::Result<Value> = pods
            .create_subresource("eviction", pod, &PostParams::default(), &body)
            .await;
        match asked {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(kube::Error::Api(status)) => Err(PodEvictionError::Refused(status.message)),
            Err(error) => Err(PodEvictionError::Request(Box::new(error))),
        }
    }

    /// Writes one of the node's conditions that are true while there is a problem.
    pub(super) async fn report_condition(
        &self,
        condition: &NodeCondition,
        trouble: &str,
        untroubled: HealthyCondition,
    ) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let (status, reason, message) = condition.says(trouble);
        let troubled = !trouble.is_empty();
        let node = nodes.get(&self.node).await?;
        let all = node.status.and_then(|status| status.conditions);
        let before = (all.into_iter().flatten()).find(|it| it.type_ == condition.condition);
        let same = before.as_ref().filter(|before| before.status == status);
        // The message of an earlier agent is not repeated.
        let spared = untroubled == HealthyCondition::Absent && !troubled && before.is_none();
        if spared || same.is_some_and(|same| same.message.as_deref() == Some(message)) {
            return Ok(());
        }
        if troubled {
            tracing::warn!(
                message,
                condition = condition.condition,
                "a condition of the Node became true"
            );
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
        // The absence of a problem is an event only after a problem.
        if troubled || before.is_some() {
            self.report_event(troubled, reason, message).await;
        }
        Ok(())
    }

    /// Records a change as an event too. An event that can't be written is dropped, as in
    /// Kubernetes.
    pub(super) async fn report_event(&self, warning: bool, reason: &str, message: &str) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), node_event::NAMESPACE);
        let event = node_event::of(&self.node, warning, reason, message, Timestamp::now());
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            tracing::debug!(%error, node = self.node, "an event could not be written");
        }
    }

    /// Records an event of a container's pod.
    pub(crate) async fn report_pod(
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

    /// Evicts the pod of a container over its GPU share; a later pod of the same name stays.
    pub(crate) async fn evict_over_share(&self, held: &GpuShare) {
        let DeviceHolder { namespace, pod, .. } = &held.holder;
        match self.evict(namespace, pod, &held.uid, None).await {
            Ok(()) => tracing::info!(
                namespace,
                pod,
                "the pod was evicted for using more than its share of a GPU"
            ),
            // The next look tries again.
            Err(error) => {
                tracing::warn!(
                    %error,
                    namespace,
                    pod,
                    "the pod could not be evicted for using more than its share of a GPU; the next check tries again"
                );
            }
        }
    }

    /// The alerts that the node's annotation lists.
    pub(super) async fn alerts(&self) -> Result<Vec<Alert>, kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        Ok(alerts::of_node(&nodes.get(&self.node).await?))
    }

    /// Writes the GPUs' state, by this machine's clock, and the active alerts.
    pub(super) async fn report_gpu_state(
        &self,
        observation: &HealthObservation,
    ) -> Result<(), kube::Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let load = NodeLoad {
            at: Timestamp::now(),
            gpus: observation.loads.clone(),
        };
        let load = serde_json::to_string(&load).map_err(kube::Error::SerdeError)?;
        let alerts_json =
            (!observation.alerts.is_empty()).then(|| serde_json::to_string(&observation.alerts));
        let alerts_json = alerts_json.transpose().map_err(kube::Error::SerdeError)?;
        let note = json!({"metadata": {"annotations": {LOAD: load, ALERTS: alerts_json}}});
        let as_us = PatchParams::default();
        (nodes
            .patch_metadata(&self.node, &as_us, &Patch::Merge(&note))
            .await)
            .map(|_| ())
    }

    /// Writes the inventory and the labels. Labels use server-side apply: a label of ours that is
    /// no longer set is removed, whichever agent wrote it, and labels of other managers are not
    /// changed.
    async fn notify(&self, machine: &NodeHardware) -> Result<(), kube::Error> {
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
        // Takes over labels that another discovery tool wrote before.
        let as_us = PatchParams::apply(FIELD_MANAGER).force();
        (nodes
            .patch_metadata(&self.node, &as_us, &Patch::Apply(&note))
            .await)
            .map(|_| ())
    }
}

/// How a node without a problem so far shows that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HealthyCondition {
    /// It writes the condition with status false.
    False,
    /// It writes no condition.
    Absent,
}

/// Keeps the node's annotation, labels and conditions equal to the machine's state.
pub async fn publish(cluster: NodeClient, mut machine: watch::Receiver<NodeHardware>) {
    let mut reported: Option<Option<String>> = None;
    let mut suspected: Option<String> = None;
    let mut failed: Option<String> = None;
    loop {
        let now = machine.borrow_and_update().clone();
        let trouble = now.inventory.not_uniform();
        // Unless `single` was requested, only a condition written before is cleared.
        let of_concern = reported.is_some() || now.inventory.mig_strategy == MIG_SINGLE;
        let written = async {
            cluster.notify(&now).await?;
            if of_concern && reported.as_ref() != Some(&trouble) {
                let wrong = trouble.as_deref().unwrap_or_default();
                (cluster.report_condition(&STRATEGY, wrong, HealthyCondition::False)).await?;
                reported = Some(trouble);
            }
            if suspected.as_deref() != Some(now.suspect.as_str()) {
                (cluster.report_condition(&SUSPICION, &now.suspect, HealthyCondition::False))
                    .await?;
                suspected = Some(now.suspect.clone());
            }
            if failed.as_deref() != Some(now.fabric.as_str()) {
                (cluster.report_condition(&FABRIC, &now.fabric, HealthyCondition::Absent)).await?;
                failed = Some(now.fabric.clone());
            }
            Ok::<_, kube::Error>(())
        };
        if let Err(error) = written.await {
            // The kubelet may not have created the Node yet.
            tracing::debug!(%error, node = cluster.node, "the inventory cannot be written to the Node yet; trying again");
            tokio::time::sleep(TRY_EVERY).await;
            continue;
        }
        if machine.changed().await.is_err() {
            return;
        }
    }
}
