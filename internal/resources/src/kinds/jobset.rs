//! JobSet, `jobset.x-k8s.io/v1alpha2`: Jobs of several templates that run, fail and restart together.

use k8s_openapi::api::batch::v1::JobTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::schemas;

/// What a JobSet should be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "jobset.x-k8s.io",
    version = "v1alpha2",
    kind = "JobSet",
    plural = "jobsets",
    namespaced,
    status = "JobSetStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Jobs of several templates that run, fail and restart together."
)]
#[serde(rename_all = "camelCase")]
pub struct JobSetSpec {
    /// Its jobs, each a number of Jobs of one template.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicated_jobs: Vec<ReplicatedJob>,
    /// How its pods find each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<JobSetNetwork>,
    /// When it has succeeded; once all Jobs are complete unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_policy: Option<JobSetSuccessPolicy>,
    /// What follows the failure of a Job; without it the JobSet fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<JobSetFailurePolicy>,
    /// The order in which its jobs start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_policy: Option<JobSetStartupPolicy>,
    /// Whether its Jobs are suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// The pod whose address all Jobs and pods have in a label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<JobSetCoordinator>,
    /// The controller that runs it; `jobset.sigs.k8s.io/jobset-controller` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// Seconds after which a finished JobSet is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// Claims that the controller would make; refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub volume_claim_policies: Option<Vec<Value>>,
}

/// A number of Jobs of one template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedJob {
    /// Its name, a part of its Jobs' names.
    pub name: String,
    /// The group that it belongs to; `default` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_name: Option<String>,
    /// The Job to create for each replica: a JobTemplateSpec, checked by the rules of Jobs.
    #[schemars(schema_with = "schemas::any_object")]
    pub template: JobTemplateSpec,
    /// How many Jobs; 1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// An earlier job that must have come so far before the Jobs of this one are created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<ReplicatedJobDependency>>,
}

/// A job that another one waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedJobDependency {
    /// Its name.
    pub name: String,
    /// `Ready` or `Complete`.
    pub status: String,
}

/// How the pods of a JobSet find each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobSetNetwork {
    /// Whether pods have names: `<jobset>-<job>-<job index>-<pod index>.<subdomain>`. True unless given.
    #[serde(
        default,
        rename = "enableDNSHostnames",
        skip_serializing_if = "Option::is_none"
    )]
    pub enable_dns_hostnames: Option<bool>,
    /// The subdomain, which is also the name of the headless Service; the JobSet's name unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subdomain: Option<String>,
    /// Whether pods have their names before they are ready. True unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish_not_ready_addresses: Option<bool>,
}

/// When a JobSet has succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobSetSuccessPolicy {
    /// `All` of the Jobs, or `Any` one of them.
    pub operator: String,
    /// The jobs that count; all of them unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_replicated_jobs: Option<Vec<String>>,
}

/// What follows the failure of a Job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobSetFailurePolicy {
    /// The restarts after which the JobSet fails; 0 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<i32>,
    /// `Recreate` or `BlockingRecreate`. Muster creates no Job before all pods of the run before are gone with either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_strategy: Option<String>,
    /// The first rule that matches decides; without one the JobSet is restarted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<JobSetFailureRule>>,
}

/// What follows some failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobSetFailureRule {
    /// Its name; `failurePolicyRule` and its number unless given.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `FailJobSet`, `RestartJobSet`, `RestartJobSetAndIgnoreMaxRestarts`, `RestartJob` or
    /// `RestartJobAndIgnoreMaxRestarts`.
    pub action: String,
    /// The reasons of a Job's condition `Failed` that match; all unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_job_failure_reasons: Option<Vec<String>>,
    /// Regular expressions of which one matches the condition's message; all messages match unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_job_failure_message_patterns: Option<Vec<String>>,
    /// The jobs that it is about; all of them unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_replicated_jobs: Option<Vec<String>>,
}

/// The order in which the jobs of a JobSet start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobSetStartupPolicy {
    /// `AnyOrder`, or `InOrder`: each job once the one before it is ready.
    pub startup_policy_order: String,
}

/// The pod that the others find by a label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobSetCoordinator {
    /// The name of its job.
    pub replicated_job: String,
    /// The index of its Job.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub job_index: i32,
    /// Its index in the Job.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub pod_index: i32,
}

/// How a JobSet is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct JobSetStatus {
    /// Completed, Failed, Suspended, RestartingJobSet, StartupPolicyInProgress and StartupPolicyCompleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub conditions: Vec<Condition>,
    /// How often all Jobs were recreated.
    #[serde(default)]
    pub restarts: i32,
    /// Those of them that count towards `maxRestarts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts_count_towards_max: Option<i32>,
    /// `Completed` or `Failed`, once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal_state: Option<String>,
    /// The Jobs of each job, counted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicated_jobs_status: Vec<ReplicatedJobStatus>,
    /// When a Job of it was first ready since its start or last suspension; Muster's own field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub start_time: Option<Time>,
    /// What it waits for, in one sentence; Muster's own field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The Jobs of one job, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedJobStatus {
    /// The job's name.
    pub name: String,
    /// Jobs whose pods are all ready or have succeeded.
    #[serde(default)]
    pub ready: i32,
    /// Jobs that are complete.
    #[serde(default)]
    pub succeeded: i32,
    /// Jobs that failed.
    #[serde(default)]
    pub failed: i32,
    /// Jobs with a pod that waits or runs.
    #[serde(default)]
    pub active: i32,
    /// Jobs that are suspended.
    #[serde(default)]
    pub suspended: i32,
    /// How often each Job alone was recreated, by its index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_restarts: Option<Vec<i32>>,
    /// Those of them that count towards `maxRestarts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_restarts_count_towards_max: Option<Vec<i32>>,
}
