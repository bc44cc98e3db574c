//! Schemas of fields that validation checks elsewhere or that are too large to repeat in a CRD.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A pod template: any object in the schema; the Pod's own rules check it.
pub(super) fn pod_template(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "description": "The pod to create for each replica: a full PodTemplateSpec, checked by the rules of pods."
    })
}

/// Any object, unchecked.
pub(super) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of any objects, unchecked.
pub(super) fn any_objects(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } })
}

/// A resource list: names to quantities, written as numbers or strings.
pub(super) fn resource_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": { "x-kubernetes-int-or-string": true } })
}

/// An integer or a string.
pub(super) fn int_or_string(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true })
}

/// Names to texts, which users may also write as numbers.
pub(super) fn texts_or_numbers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": { "x-kubernetes-int-or-string": true } })
}

/// A label selector: labels that must be there, and expressions that must hold.
pub(super) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "matchLabels": { "type": "object", "additionalProperties": { "type": "string" } },
            "matchExpressions": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "key": { "type": "string" },
                        "operator": { "type": "string" },
                        "values": { "type": "array", "items": { "type": "string" } }
                    },
                    "required": ["key", "operator"]
                }
            }
        }
    })
}
