//! Volcano's Job, `batch.volcano.sh/v1alpha1`. Users also write `v1beta1` for the same kind.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::schemas;

/// What a Volcano Job should be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "batch.volcano.sh",
    version = "v1alpha1",
    kind = "Job",
    root = "VolcanoJob",
    plural = "jobs",
    namespaced,
    status = "VolcanoJobStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A Volcano Job: tasks of pods that start together."
)]
#[serde(rename_all = "camelCase")]
pub struct VolcanoJobSpec {
    /// Who places its pods; `volcano` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Pods that must start together; all of them unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_available: Option<i32>,
    /// Volumes that every task mounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<JobVolume>>,
    /// Its tasks.
    #[schemars(length(min = 1))]
    pub tasks: Vec<TaskSpec>,
    /// What happens when something happens to any task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<Vec<LifecyclePolicy>>,
    /// Plugins and their arguments: `svc`, `env`, `ssh`, `pytorch`, `tensorflow`, `mpi`, `ray`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugins: Option<BTreeMap<String, Vec<String>>>,
    /// How long it may run, as Volcano takes it; kept as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_estimate: Option<String>,
    /// The queue it waits in; `default` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Restarts after which it fails; 3 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_retry: Option<i32>,
    /// Seconds after which a finished job is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// Its priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Pods that must succeed for the job to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_success: Option<i32>,
    /// How close its pods must be on the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_topology: Option<super::NetworkTopologySpec>,
}

/// A volume that every task mounts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobVolume {
    /// Where it is mounted.
    pub mount_path: String,
    /// The claim to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_name: Option<String>,
    /// The claim to make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub volume_claim: Option<PersistentVolumeClaimSpec>,
}

/// One task: pods made from one template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskSpec {
    /// Its name; `default` and its number unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How many pods; 1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Pods of it that must start together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_available: Option<i32>,
    /// The pod to create for each. Kept as written: users write `command` as one string, too.
    #[serde(default)]
    #[schemars(schema_with = "schemas::pod_template")]
    pub template: Value,
    /// What happens when something happens to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<Vec<LifecyclePolicy>>,
    /// How its pods are placed on NUMA nodes; kept as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_policy: Option<String>,
    /// Restarts of it after which the job fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_retry: Option<i32>,
    /// Tasks that must have come so far before it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<DependsOn>,
    /// Parts of the task that are placed apart; kept as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub partition_policy: Option<Value>,
}

/// Tasks that a task waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DependsOn {
    /// Their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub name: Vec<String>,
    /// `any` of them or `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iteration: Option<String>,
}

/// What happens when something happens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LifecyclePolicy {
    /// What is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// When: any of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<String>>,
    /// When a container ends with this code, which is not 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// How long after it: `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// How a Volcano Job is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct VolcanoJobStatus {
    /// Where it stands.
    #[serde(default)]
    pub state: VolcanoJobState,
    /// Pods that must start together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<i32>,
    /// By task, the number of its pods in each phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_status_count: Option<BTreeMap<String, VolcanoTaskStatus>>,
    /// Pods that have not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<i32>,
    /// Pods that run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<i32>,
    /// Pods that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<i32>,
    /// Pods that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<i32>,
    /// Pods that are being deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminating: Option<i32>,
    /// Counts the restarts of the whole job; pods of an earlier version are left out of account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i32>,
    /// How often the whole job was started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<i32>,
    /// What was created beside its pods, by the plugin that needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controlled_resources: Option<BTreeMap<String, String>>,
    /// The phases that it was in, each with its beginning; the last ones of many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<VolcanoJobCondition>>,
}

/// The number of a task's pods in each phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolcanoTaskStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`, and their counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<BTreeMap<String, i32>>,
}

/// A phase of a Volcano Job with its beginning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolcanoJobCondition {
    /// The phase.
    pub status: String,
    /// Its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// Where a Volcano Job stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolcanoJobState {
    /// `Pending`, `Running`, `Restarting`, `Aborting`, `Aborted`, `Completing`, `Completed`, `Terminating`,
    /// `Terminated`, `Failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Why, in a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}
