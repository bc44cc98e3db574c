//! RayService, `ray.io/v1`, as in KubeRay 1.7: a Ray cluster and the Ray Serve applications that it runs.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::raycluster::{RayClusterSpec, RayClusterStatus};
use super::schemas;

/// Which applications a Ray service runs, and on which cluster.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "ray.io",
    version = "v1",
    kind = "RayService",
    plural = "rayservices",
    namespaced,
    status = "RayServiceStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Ray Serve applications on a Ray cluster, and the Service through which they are reached."
)]
#[serde(rename_all = "camelCase")]
pub struct RayServiceSpec {
    /// The applications and deployments: the YAML of Ray Serve's configuration file.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "serveConfigV2"
    )]
    pub serve_config_v2: Option<String>,
    /// The cluster that runs the applications.
    pub ray_cluster_config: RayClusterSpec,
    /// The Service through which the applications are reached; its selector is the controller's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub serve_service: Option<Service>,
    /// What happens when `rayClusterConfig` changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade_strategy: Option<RayServiceUpgradeStrategy>,
    /// Seconds after which a cluster that no longer serves is deleted; 60 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ray_cluster_deletion_delay_seconds: Option<i32>,
    /// The head gets no requests of the serve Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude_head_pod_from_serve_svc: Option<bool>,
    /// Holds the service: its clusters and Services are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// The controller of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
    /// Without effect, as in KubeRay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_unhealthy_second_threshold: Option<i32>,
    /// Without effect, as in KubeRay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_unhealthy_second_threshold: Option<i32>,
}

/// What happens when `rayClusterConfig` changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RayServiceUpgradeStrategy {
    /// NewCluster (the default): another cluster is created and takes over. None: the change has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "type")]
    pub type_: Option<String>,
    /// Of the type NewClusterWithIncrementalUpgrade, which is refused; kept as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub cluster_upgrade_options: Option<Value>,
}

/// The state of a Ray service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct RayServiceStatus {
    /// `Running` if the applications are reached, else absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_status: Option<String>,
    /// The cluster that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_service_status: Option<RayServiceClusterStatus>,
    /// The cluster that will serve once its applications run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_service_status: Option<RayServiceClusterStatus>,
    /// Clusters that no longer serve, with the time at which each is deleted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(with = "BTreeMap<String, String>")]
    pub retired_clusters: BTreeMap<String, Time>,
    /// The pods that get requests of the serve Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_serve_endpoints: Option<i32>,
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the status changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last_update_time: Option<Time>,
    /// Ready, UpgradeInProgress, Suspending and Suspended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub conditions: Vec<Condition>,
}

/// The state of a Ray service on one of its clusters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct RayServiceClusterStatus {
    /// The applications by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub application_statuses: BTreeMap<String, ServeApplicationStatus>,
    /// The cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray_cluster_name: Option<String>,
    /// The cluster's own status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub ray_cluster_status: Option<RayClusterStatus>,
    /// The configuration that Ray has accepted last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_config: Option<SubmittedConfig>,
}

/// A configuration that Ray has accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubmittedConfig {
    /// The configuration's hash.
    pub hash: String,
    /// The run of the cluster's head (`status.head.run`) that accepted it: the configuration is lost with that run.
    pub head_run: String,
}

/// The state of an application of Ray Serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServeApplicationStatus {
    /// Its deployments by their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub serve_deployment_statuses: BTreeMap<String, ServeDeploymentStatus>,
    /// NOT_STARTED, DEPLOYING, RUNNING, DEPLOY_FAILED, DELETING or UNHEALTHY.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Ray's explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The state of a deployment of Ray Serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServeDeploymentStatus {
    /// UPDATING, UPSCALING, DOWNSCALING, HEALTHY or UNHEALTHY.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Ray's explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
