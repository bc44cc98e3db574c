//! Converts OpenAPI 3 to Swagger 2.0 with the differences of kube-apiserver's published documents.
//! It must not choose definitions.

use serde_json::{Map, Value};

/// The version 2 form of a definition's version 3 text.
pub(crate) fn definition(schema: &str) -> Value {
    let mut value: Value = serde_json::from_str(schema).unwrap_or_default();
    convert(&mut value);
    value
}

/// The keywords that version 2 lacks.
const UNKNOWN_TO_V2: [&str; 6] = ["anyOf", "oneOf", "allOf", "not", "nullable", "default"];

fn convert(schema: &mut Value) {
    let Value::Object(map) = schema else {
        return;
    };
    let truth = |map: &Map<String, Value>, key: &str| map.get(key) == Some(&Value::Bool(true));
    // A reference with siblings is wrapped in allOf in version 3.
    let wrapped = map
        .get("allOf")
        .and_then(|all| all.get(0))
        .and_then(|only| only.get("$ref"))
        .cloned();
    if let Some(reference) = wrapped {
        map.insert("$ref".to_owned(), reference);
    }
    if let Some(Value::String(reference)) = map.get_mut("$ref") {
        *reference = reference.replace("#/components/schemas/", "#/definitions/");
    }
    // Version 2 has no type for values of two types; text comes closest, because they are written
    // as text.
    if map.contains_key("oneOf") && !map.contains_key("type") && !map.contains_key("properties") {
        map.insert("type".to_owned(), Value::from("string"));
    }
    // Clients that validate by version 2 would refuse valid values: null, either type, any key.
    if truth(map, "nullable")
        || truth(map, "x-kubernetes-int-or-string")
        || truth(map, "x-kubernetes-preserve-unknown-fields")
    {
        for key in [
            "type",
            "items",
            "properties",
            "additionalProperties",
            "format",
            "required",
        ] {
            map.remove(key);
        }
    }
    for key in UNKNOWN_TO_V2 {
        map.remove(key);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = map.get_mut(key) {
            convert(child);
        }
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(convert);
    }
}
