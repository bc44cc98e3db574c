//! Knative's Service, `serving.knative.dev/v1`.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::schemas;

/// What a Knative Service should be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "serving.knative.dev",
    version = "v1",
    kind = "Service",
    root = "KnativeService",
    plural = "services",
    namespaced,
    status = "KnativeServiceStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A server that is reached by a URL and has as many replicas as are asked for."
)]
#[serde(rename_all = "camelCase")]
pub struct KnativeServiceSpec {
    /// The revision to make. Its pod is kept as written: a container needs no name there.
    #[serde(default)]
    #[schemars(schema_with = "schemas::pod_template")]
    pub template: Value,
    /// Which revisions get which part of the requests; kept as given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub traffic: Option<Vec<Value>>,
}

/// How a Knative Service is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct KnativeServiceStatus {
    /// Where it is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// What has become of it: `Ready` and what that is made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schemas::any_objects")]
    pub conditions: Vec<Value>,
}
