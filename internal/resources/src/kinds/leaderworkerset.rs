//! LeaderWorkerSet, `leaderworkerset.x-k8s.io/v1`: groups of a leader and its workers, for models that need several nodes.

use k8s_openapi::api::apps::v1::StatefulSetPersistentVolumeClaimRetentionPolicy;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schemas;

/// What a LeaderWorkerSet should be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "leaderworkerset.x-k8s.io",
    version = "v1",
    kind = "LeaderWorkerSet",
    plural = "leaderworkersets",
    namespaced,
    status = "LeaderWorkerSetStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Groups of a leader and its workers, which start, fail and are replaced together."
)]
#[serde(rename_all = "camelCase")]
pub struct LeaderWorkerSetSpec {
    /// The number of groups; 1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub replicas: Option<i32>,
    /// The pods of a group.
    pub leader_worker_template: LeaderWorkerTemplate,
    /// How groups get a new template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout_strategy: Option<LeaderWorkerRollout>,
    /// `LeaderCreated`, or `LeaderReady`: workers are created once their leader is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_policy: Option<String>,
    /// How the pods of a group find each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_config: Option<LeaderWorkerNetwork>,
}

/// The pods of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaderWorkerTemplate {
    /// The leader, checked by the rules of pods; the worker's template unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub leader_template: Option<PodTemplateSpec>,
    /// The workers, checked by the rules of pods.
    #[schemars(schema_with = "schemas::any_object")]
    pub worker_template: PodTemplateSpec,
    /// The pods of a group, the leader among them; 1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub size: Option<i32>,
    /// What follows the end of a pod: `RecreateGroupOnPodRestart` unless given, `RecreateGroupAfterStart` or `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    /// Parts of a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_group_policy: Option<SubGroupPolicy>,
    /// The claims of each pod, with the names of the template and of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub volume_claim_templates: Option<Vec<PersistentVolumeClaim>>,
    /// Whether claims are deleted with the set, and with pods that are not wanted any more; neither unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub persistent_volume_claim_retention_policy:
        Option<StatefulSetPersistentVolumeClaimRetentionPolicy>,
}

/// Parts of a group, which pods have in their labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubGroupPolicy {
    /// `LeaderWorker` unless given, or `LeaderExcluded`.
    #[serde(
        default,
        rename = "subGroupPolicyType",
        skip_serializing_if = "Option::is_none"
    )]
    pub type_: Option<String>,
    /// The pods of a subgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_group_size: Option<i32>,
}

/// How groups get a new template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaderWorkerRollout {
    /// `RollingUpdate`.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// How many groups at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update_configuration: Option<LeaderWorkerRollingUpdate>,
}

/// How many groups get a new template at a time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaderWorkerRollingUpdate {
    /// Groups below this number keep their template; 0 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub partition: Option<i32>,
    /// The groups, or percentage of them, that may be missing meanwhile; 1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::int_or_string")]
    pub max_unavailable: Option<IntOrString>,
    /// The groups, or percentage of them, that may be there in addition; 0 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::int_or_string")]
    pub max_surge: Option<IntOrString>,
}

/// How the pods of a group find each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaderWorkerNetwork {
    /// `Shared` unless given, or `UniquePerReplica`: a subdomain for each group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subdomain_policy: Option<String>,
}

/// How a LeaderWorkerSet is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct LeaderWorkerSetStatus {
    /// Available, Progressing and UpdateInProgress.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub conditions: Vec<Condition>,
    /// Groups whose pods are all ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Groups that have the current templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Groups that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Selects the leaders, for autoscalers.
    #[serde(
        default,
        rename = "hpaPodSelector",
        skip_serializing_if = "Option::is_none"
    )]
    pub hpa_pod_selector: Option<String>,
    /// The generation of the spec that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What kept the controller from its work, in one sentence; Muster's own field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
