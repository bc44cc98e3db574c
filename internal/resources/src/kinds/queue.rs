//! Queue, `scheduling.volcano.sh/v1beta1`.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schemas;

type ResourceList = BTreeMap<String, Quantity>;

/// What a queue may use and how it shares.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "scheduling.volcano.sh",
    version = "v1beta1",
    kind = "Queue",
    plural = "queues",
    status = "QueueStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A queue that gangs wait in: a share of the cluster, and its bounds."
)]
#[serde(rename_all = "camelCase")]
pub struct QueueSpec {
    /// The queue's share beside its siblings; 1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// The most it may ever use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::resource_list")]
    pub capability: Option<ResourceList>,
    /// May others' work in it be taken back? True unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaimable: Option<bool>,
    /// What is kept for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<Guarantee>,
    /// What is kept for it, as some manifests write it; read where `guarantee` says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::resource_list")]
    pub guaranteed: Option<ResourceList>,
    /// What it should get when the cluster is contended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::resource_list")]
    pub deserved: Option<ResourceList>,
    /// The queue it is part of; `root` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Its place beside its siblings: higher goes first, and is reclaimed from last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// A free word about the queue.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Which node groups it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<QueueAffinity>,
    /// Clusters its jobs may be sent to. Kept for its users; has no effect here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extend_clusters: Option<Vec<QueueCluster>>,
    /// How jobs leave it: `fifo` or `traverse`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dequeue_strategy: Option<String>,
    /// Which namespaces may use it, by their labels; every namespace unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::label_selector")]
    pub namespace_selector: Option<LabelSelector>,
}

impl QueueSpec {
    /// The guaranteed resources of the queue, from either field.
    pub fn guaranteed_resources(&self) -> Option<&ResourceList> {
        self.guarantee
            .as_ref()
            .and_then(|g| g.resource.as_ref())
            .or(self.guaranteed.as_ref())
    }
}

/// What is kept for a queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Guarantee {
    /// The resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::resource_list")]
    pub resource: Option<ResourceList>,
}

/// Which node groups a queue runs on, and which it keeps off.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueAffinity {
    /// Groups it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_group_affinity: Option<QueueAffinityGroups>,
    /// Groups it keeps off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_group_anti_affinity: Option<QueueAffinityGroups>,
}

/// Node groups that must or should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueAffinityGroups {
    /// They must.
    #[serde(
        default,
        rename = "requiredDuringSchedulingIgnoredDuringExecution",
        skip_serializing_if = "Option::is_none"
    )]
    pub required: Option<Vec<String>>,
    /// They should.
    #[serde(
        default,
        rename = "preferredDuringSchedulingIgnoredDuringExecution",
        skip_serializing_if = "Option::is_none"
    )]
    pub preferred: Option<Vec<String>>,
}

/// A cluster that a queue's jobs may be sent to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueCluster {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// What it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::resource_list")]
    pub capacity: Option<ResourceList>,
}

/// How a queue is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueueStatus {
    /// Does it take work?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<QueueState>,
    /// Gangs in phase Unknown.
    #[serde(default)]
    pub unknown: i32,
    /// Gangs in phase Pending.
    #[serde(default)]
    pub pending: i32,
    /// Gangs in phase Running.
    #[serde(default)]
    pub running: i32,
    /// Gangs in phase Inqueue.
    #[serde(default)]
    pub inqueue: i32,
    /// Gangs in phase Completed.
    #[serde(default)]
    pub completed: i32,
    /// What its gangs hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::resource_list")]
    pub allocated: Option<ResourceList>,
    /// What it is entitled to now, given what all queues ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::resource_list")]
    pub entitled: Option<ResourceList>,
    /// Its share: the largest part of the cluster that it holds of any resource, from `0.000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// What is reserved for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
}

/// Whether a queue takes work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum QueueState {
    /// It does.
    #[default]
    Open,
    /// It does not, and is empty.
    Closed,
    /// It does not, and still has work.
    Closing,
    /// It cannot be told.
    Unknown,
}

/// What is reserved for a queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// On which nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<String>>,
    /// How much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::resource_list")]
    pub resource: Option<ResourceList>,
}
