//! KEDA's ScaledObject, `keda.sh/v1alpha1`.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::schemas;

/// What is scaled, and by what.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "keda.sh",
    version = "v1alpha1",
    kind = "ScaledObject",
    plural = "scaledobjects",
    namespaced,
    status = "ScaledObjectStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A workload whose replicas follow what its triggers measure."
)]
#[serde(rename_all = "camelCase")]
pub struct ScaledObjectSpec {
    /// What is scaled.
    pub scale_target_ref: ScaleTargetRef,
    /// Seconds between two looks at the triggers; 30 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub polling_interval: Option<i32>,
    /// Seconds after its creation in which it is not scaled down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub initial_cooldown_period: Option<i32>,
    /// Seconds after the last trigger in which it is not scaled to nothing; 300 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub cooldown_period: Option<i32>,
    /// Replicas while no trigger is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub idle_replica_count: Option<i32>,
    /// The fewest replicas; 0 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub min_replica_count: Option<i32>,
    /// The most; 100 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_replica_count: Option<i32>,
    /// The HorizontalPodAutoscaler that is made of it; kept as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub advanced: Option<Value>,
    /// What is measured.
    #[schemars(length(min = 1))]
    pub triggers: Vec<ScaleTrigger>,
    /// Replicas while a trigger can't be measured; kept as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub fallback: Option<Value>,
}

/// What is scaled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScaleTargetRef {
    /// Its API version; `apps/v1` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Its kind; Deployment unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its name.
    #[schemars(length(min = 1))]
    pub name: String,
    /// The container whose environment triggers read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_source_container_name: Option<String>,
}

/// Something that is measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScaleTrigger {
    /// With what: `prometheus`, `cron`, ...
    #[serde(rename = "type")]
    #[schemars(length(min = 1))]
    pub type_: String,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Are values kept between two looks?
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_cached_metrics: Option<bool>,
    /// What it is told.
    pub metadata: BTreeMap<String, String>,
    /// How it signs in; kept as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_object")]
    pub authentication_ref: Option<Value>,
    /// `AverageValue`, `Value` or `Utilization`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric_type: Option<String>,
}

/// How a ScaledObject is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct ScaledObjectStatus {
    /// What has become of it: `Ready`, `Active`, `Fallback`, `Paused`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub conditions: Vec<Value>,
}
