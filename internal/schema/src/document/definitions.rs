//! The definitions of a document, as version 3 JSON text. It must not parse the built-in ones: it copies their embedded
//! text.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::KindRoute;
use crate::load::{BUILTIN, OBJECT_META};
use crate::shape::{Custom, Schemas};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
const REFERENCE: &str = "\"$ref\":\"#/components/schemas/";

/// The definitions that the paths of every kind refer to.
const SHARED: [&str; 5] = ["DeleteOptions", "ListMeta", "Patch", "Status", "WatchEvent"];

/// The definition that a subresource's paths refer to.
pub(crate) fn subresource_definition(subresource: &str) -> Option<&'static str> {
    match subresource {
        "scale" => Some("io.k8s.api.autoscaling.v1.Scale"),
        "binding" => Some("io.k8s.api.core.v1.Binding"),
        "eviction" => Some("io.k8s.api.policy.v1.Eviction"),
        "token" => Some("io.k8s.api.authentication.v1.TokenRequest"),
        _ => None,
    }
}

pub(crate) fn reference(definition: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{definition}") })
}

/// The list kind's definition: `PodList` beside `Pod`.
pub(crate) fn list_definition(definition: &str) -> String {
    format!("{definition}List")
}

impl Schemas {
    /// Calls `each` with the name and text of every definition that the kinds refer to, in name order.
    pub(super) fn each_definition(&self, kinds: &[&KindRoute], mut each: impl FnMut(&str, &str)) {
        // `load` has parsed the same text, so it parses.
        let builtin: BTreeMap<&str, &RawValue> = serde_json::from_str(BUILTIN).unwrap_or_default();
        let mut texts: BTreeMap<String, Cow<'_, str>> = BTreeMap::new();
        let mut waiting: BTreeSet<String> =
            SHARED.iter().map(|name| format!("{META}{name}")).collect();
        for kind in kinds {
            waiting.insert(kind.definition.clone());
            waiting.insert(list_definition(&kind.definition));
            waiting.extend(
                kind.subresources
                    .iter()
                    .filter_map(|s| subresource_definition(s))
                    .map(str::to_owned),
            );
        }
        while let Some(name) = waiting.pop_first() {
            if texts.contains_key(&name) {
                continue;
            }
            let text = match builtin.get(name.as_str()) {
                Some(raw) => Cow::Borrowed(raw.get()),
                None => match self.custom_text(&name) {
                    Some(text) => Cow::Owned(text),
                    None => continue,
                },
            };
            for mention in text.split(REFERENCE).skip(1) {
                if let Some((mentioned, _)) = mention.split_once('"')
                    && !texts.contains_key(mentioned)
                {
                    waiting.insert(mentioned.to_owned());
                }
            }
            texts.insert(name, text);
        }
        for (name, text) in &texts {
            each(name, text);
        }
    }

    fn custom_text(&self, name: &str) -> Option<String> {
        let find = |wanted: &dyn Fn(&Custom) -> bool| self.customs.iter().find(|c| wanted(c));
        if let Some(custom) = find(&|c| *c.definition == *name) {
            return Some(custom_definition(custom).to_string());
        }
        find(&|c| list_definition(&c.definition) == name).map(|c| custom_list(c).to_string())
    }
}

fn type_meta(properties: &mut Map<String, Value>) {
    properties.insert(
        "apiVersion".to_owned(),
        json!({
            "description": "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources",
            "type": "string",
        }),
    );
    properties.insert(
        "kind".to_owned(),
        json!({
            "description": "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds",
            "type": "string",
        }),
    );
}

fn custom_definition(custom: &Custom) -> Value {
    let mut schema: Value = serde_json::from_str(&custom.schema).unwrap_or_default();
    let Some(root) = schema.as_object_mut() else {
        return schema;
    };
    let properties = root
        .entry("properties")
        .or_insert_with(|| Value::Object(Map::new()));
    if let Some(properties) = properties.as_object_mut() {
        type_meta(properties);
        properties.insert(
            "metadata".to_owned(),
            json!({
                "description": "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
                "allOf": [reference(OBJECT_META)],
            }),
        );
    }
    root.insert(
        "x-kubernetes-group-version-kind".to_owned(),
        json!([{"group": custom.group, "kind": custom.kind, "version": custom.version}]),
    );
    schema
}

fn custom_list(custom: &Custom) -> Value {
    let mut properties = Map::new();
    type_meta(&mut properties);
    properties.insert(
        "items".to_owned(),
        json!({
            "description": format!("List of {}.", custom.kind),
            "type": "array",
            "items": {"allOf": [reference(&custom.definition)]},
        }),
    );
    properties.insert(
        "metadata".to_owned(),
        json!({
            "description": "Standard list metadata.",
            "allOf": [reference(&format!("{META}ListMeta"))],
        }),
    );
    json!({
        "description": format!("{} is a list of {}", custom.list_kind, custom.kind),
        "type": "object",
        "required": ["items"],
        "properties": properties,
        "x-kubernetes-group-version-kind":
            [{"group": custom.group, "kind": custom.list_kind, "version": custom.version}],
    })
}
