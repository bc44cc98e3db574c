//! Volcano's Command, `bus.volcano.sh/v1alpha1`: an order to a Volcano Job, carried out once and then deleted. It has no
//! `spec`: its fields are the object's own, so its definition is put together here.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// An order to a Volcano Job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolcanoCommand {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// What is done: `AbortJob`, `ResumeJob`, `RestartJob`, `TerminateJob`, `CompleteJob` or `RestartTask`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The object that it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<OwnerReference>,
    /// Why, in a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl kube::Resource for VolcanoCommand {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Command".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "bus.volcano.sh".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1alpha1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "commands".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl VolcanoCommand {
    /// The definition of the kind.
    #[must_use]
    pub fn crd() -> CustomResourceDefinition {
        let text = |description: &str| json!({"type": "string", "nullable": true, "description": description});
        let target = json!({
            "type": "object", "nullable": true, "description": "The object that it is for.",
            "required": ["apiVersion", "kind", "name", "uid"],
            "properties": {
                "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "name": {"type": "string"},
                "uid": {"type": "string"}, "controller": {"type": "boolean", "nullable": true},
                "blockOwnerDeletion": {"type": "boolean", "nullable": true},
            },
        });
        let schema = json!({
            "title": "Command", "type": "object",
            "description": "An order to a Volcano Job, carried out once and then deleted.",
            "properties": {
                "action": text("What is done: `AbortJob`, `ResumeJob`, `RestartJob`, `TerminateJob`, `CompleteJob` or `RestartTask`."),
                "target": target,
                "reason": text("Why, in a word."),
                "message": text("Why, in a sentence."),
            },
        });
        let definition = json!({
            "metadata": {"name": "commands.bus.volcano.sh"},
            "spec": {
                "group": "bus.volcano.sh", "scope": "Namespaced",
                "names": {"kind": "Command", "plural": "commands", "singular": "command"},
                "versions": [{"name": "v1alpha1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": schema}}],
            },
        });
        serde_json::from_value(definition).unwrap_or_default()
    }
}
