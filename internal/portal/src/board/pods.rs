//! The part of a pod that the board stores. Pods are by far the most frequent objects there, so
//! only displayed fields are parsed and stored. Independent of the display.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerStatus, Pod, PodSpec, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use resources::amounts::{Amounts, pod_requests};
use resources::devices::{self, ChosenDevices, is_network_card};
use resources::leader_worker_set as sets;
use resources::names;
use serde::Deserialize;

use super::web_ports::{self, WebPort};

/// A pod for the pages.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Wire")]
pub struct PodRow {
    /// Without owners and finalizers, and of the annotations only the allocated devices.
    pub(super) metadata: ObjectMeta,
    pub(super) node: Option<String>,
    /// Its requests; counted only for pods that have a node.
    pub(super) requests: Amounts,
    pub(super) phase: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) containers: Vec<ContainerStatus>,
    /// The user that created it; empty if it is not recorded.
    pub(super) user: String,
    /// The GPUs that it requests.
    pub(super) gpus: i64,
    /// When its node accepted it.
    pub(super) started: Option<Time>,
    /// Its ports with web pages.
    pub(super) web: Vec<WebPort>,
    /// The kind of its controller, if it has one.
    pub(super) controller: Option<String>,
    /// The limit that it sets for itself while its GPUs do nothing.
    pub(super) idle_limit: Option<String>,
}

impl PodRow {
    /// Its phase, or a more specific reason.
    pub(super) fn state(&self) -> String {
        if self.metadata.deletion_timestamp.is_some() {
            return "Terminating".to_owned();
        }
        let phase = self.phase();
        let states = self.containers.iter().filter_map(|c| c.state.as_ref());
        let mut waiting = states.filter_map(|state| state.waiting.as_ref()?.reason.clone());
        let waiting = waiting.next();
        // A container that is restarted again and again belongs to a running pod.
        let loops = waiting.clone().filter(|reason| reason.ends_with("BackOff"));
        loops
            .or_else(|| {
                waiting
                    .or_else(|| self.reason.clone())
                    .filter(|_| phase != "Running")
            })
            .unwrap_or_else(|| phase.to_owned())
    }

    /// The queue in which it waits without a gang.
    pub(super) fn queue(&self) -> String {
        match self.label(names::QUEUE_NAME) {
            "" => names::DEFAULT_QUEUE.to_owned(),
            queue => queue.to_owned(),
        }
    }

    /// Its role in a training job or a group of a LeaderWorkerSet, its group in a RayCluster or its task in a Volcano Job.
    pub(super) fn role(&self) -> &str {
        match self.place_in_set() {
            Some((_, 0)) => return sets::LEADER,
            Some(_) => return sets::WORKER,
            None => {}
        }
        let labels = [names::REPLICA_TYPE, names::RAY_GROUP, names::TASK_SPEC];
        let mut known = labels.iter().map(|label| self.label(label));
        known.find(|role| !role.is_empty()).unwrap_or_default()
    }

    /// Its group in a LeaderWorkerSet; else its role.
    pub(super) fn group(&self) -> &str {
        match self.place_in_set() {
            Some(_) => self.label(sets::GROUP_INDEX),
            None => self.role(),
        }
    }

    /// Its group in a LeaderWorkerSet, and its number in the group.
    pub(super) fn place_in_set(&self) -> Option<(u32, u32)> {
        sets::place(self.metadata.labels.as_ref())
    }

    /// The gang of its group in a LeaderWorkerSet; empty for a pod of another kind.
    pub(super) fn gang(&self) -> String {
        sets::gang_of(self.metadata.labels.as_ref()).unwrap_or_default()
    }

    pub(super) fn phase(&self) -> &str {
        self.phase.as_deref().unwrap_or("Pending")
    }

    pub(super) fn label(&self, name: &str) -> &str {
        let labels = self.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(name))
            .map_or("", String::as_str)
    }

    /// The devices in its annotation.
    pub(super) fn devices(&self) -> Vec<String> {
        let chosen = self.chosen().into_values();
        chosen.flat_map(|by| by.into_values().flatten()).collect()
    }

    /// The number of its devices that are no network cards.
    pub(super) fn accelerators(&self) -> usize {
        let chosen = self.chosen().into_values().flatten();
        let counted = chosen.filter(|(resource, _)| !is_network_card(resource));
        counted.map(|(_, ids)| ids.len()).sum()
    }

    fn chosen(&self) -> ChosenDevices {
        devices::chosen(self.metadata.annotations.as_ref())
    }
}

impl Resource for PodRow {
    const API_VERSION: &'static str = Pod::API_VERSION;
    const GROUP: &'static str = Pod::GROUP;
    const KIND: &'static str = Pod::KIND;
    const VERSION: &'static str = Pod::VERSION;
    const URL_PATH_SEGMENT: &'static str = Pod::URL_PATH_SEGMENT;
    type Scope = NamespaceResourceScope;
}

impl Metadata for PodRow {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The fields of a pod that are parsed.
#[derive(Deserialize)]
struct Wire {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WireSpec,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    node_name: Option<String>,
    #[serde(default)]
    containers: Vec<WireContainer>,
    init_containers: Option<Vec<WireContainer>>,
    resources: Option<ResourceRequirements>,
    overhead: Option<BTreeMap<String, Quantity>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireContainer {
    #[serde(default)]
    ports: Vec<ContainerPort>,
    resources: Option<ResourceRequirements>,
    restart_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus {
    phase: Option<String>,
    reason: Option<String>,
    start_time: Option<Time>,
    #[serde(default)]
    container_statuses: Vec<ContainerStatus>,
}

impl WireSpec {
    /// The GPUs in its containers' limits.
    fn gpus(&self) -> i64 {
        let of = |container: &WireContainer| -> Option<i64> {
            let limits = container.resources.as_ref()?.limits.as_ref()?;
            limits.get(names::NVIDIA_GPU)?.0.parse().ok()
        };
        let all = self.containers.iter().filter_map(of);
        all.fold(0, i64::saturating_add)
    }

    fn requests(self) -> Amounts {
        let container = |one: WireContainer| Container {
            resources: one.resources,
            restart_policy: one.restart_policy,
            ..Container::default()
        };
        let inits = self.init_containers;
        pod_requests(&PodSpec {
            containers: self.containers.into_iter().map(container).collect(),
            init_containers: inits.map(|inits| inits.into_iter().map(container).collect()),
            resources: self.resources,
            overhead: self.overhead,
            ..PodSpec::default()
        })
    }
}

impl From<Wire> for PodRow {
    fn from(mut wire: Wire) -> PodRow {
        let meta = wire.metadata;
        let mut annotations = meta.annotations.unwrap_or_default();
        let user = annotations.remove(names::USER).unwrap_or_default();
        let idle_limit = annotations.remove(names::IDLE_GPU_LIMIT);
        let mut owners = meta.owner_references.into_iter().flatten();
        let controller = owners.find(|one| one.controller == Some(true));
        let controller = controller.map(|one| one.kind);
        let devices = annotations
            .remove_entry(names::DEVICES)
            .map(|(name, chosen)| BTreeMap::from([(name, chosen)]));
        let gpus = wire.spec.gpus();
        let containers = wire.spec.containers.iter();
        let web = containers
            .flat_map(|one| web_ports::of(&one.ports))
            .collect();
        let node = wire.spec.node_name.take().filter(|node| !node.is_empty());
        PodRow {
            requests: match &node {
                Some(_) => wire.spec.requests(),
                None => Amounts::default(),
            },
            metadata: ObjectMeta {
                name: meta.name,
                namespace: meta.namespace,
                uid: meta.uid,
                resource_version: meta.resource_version,
                labels: meta.labels,
                creation_timestamp: meta.creation_timestamp,
                deletion_timestamp: meta.deletion_timestamp,
                annotations: devices,
                ..ObjectMeta::default()
            },
            node,
            phase: wire.status.phase,
            reason: wire.status.reason,
            containers: wire.status.container_statuses,
            user,
            gpus,
            started: wire.status.start_time,
            web,
            controller,
            idle_limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_read_for_what_pages_show_of_it() {
        let sight: PodRow = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "p", "namespace": "ns", "resourceVersion": "7", "labels": {"a": "b"},
                "annotations": {"muster.io/devices": r#"{"main":{"nvidia.com/gpu":["g1"],"rdma/nic":["mlx5_0"]}}"#,
                    "muster.io/idle-gpu-limit": "1h", "other": "x"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "1"},
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "2", "controller": true},
                ],
            },
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "main", "resources": {"requests": {"cpu": "500m"}}}],
                "initContainers": [{"name": "init", "resources": {"requests": {"cpu": "2"}}}],
            },
            "status": {"phase": "Running"},
        }))
        .unwrap();
        assert_eq!(sight.node.as_deref(), Some("n1"));
        assert_eq!(sight.requests.get("cpu"), 2000);
        assert_eq!(sight.devices(), ["g1", "mlx5_0"]);
        assert_eq!(sight.accelerators(), 1);
        assert_eq!(sight.controller.as_deref(), Some("ReplicaSet"));
        assert_eq!(sight.idle_limit.as_deref(), Some("1h"));
        assert_eq!(
            (sight.phase(), sight.label("a"), sight.label("c")),
            ("Running", "b", "")
        );
        assert_eq!(sight.metadata.annotations.unwrap().len(), 1);
    }

    #[test]
    fn a_pod_without_a_node_or_a_status_asks_for_nothing_yet() {
        let sight: PodRow = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]},
        }))
        .unwrap();
        assert_eq!(sight.node, None);
        assert_eq!(sight.requests, Amounts::default());
        assert_eq!(sight.phase(), "Pending");
    }
}
