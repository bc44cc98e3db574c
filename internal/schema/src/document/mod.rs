//! The published OpenAPI documents, built on request from the embedded text and the custom
//! definitions: they do not stay in memory. Version 3 is written one definition at a time straight
//! from the text. It must not cache (the server does, as bytes) or know HTTP.

mod definitions;
mod paths;
mod swagger;

pub use paths::ANSWERED_WITH_OBJECT;
use serde_json::{Value, json};

use crate::gnostic;
use crate::load::{FNV_START, fnv};
use crate::shape::Schemas;

/// A served kind, as the documents list it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindRoute {
    /// Empty for the core group.
    pub group: String,
    /// E.g. `v1`.
    pub version: String,
    /// E.g. `Pod`.
    pub kind: String,
    /// The resource's name in paths, e.g. `pods`.
    pub plural: String,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// The definition's name, e.g. `io.k8s.api.core.v1.Pod`.
    pub definition: String,
    /// True if it accepts strategic merge patches; kubectl sends them to kinds that publish this.
    pub strategic: bool,
    /// E.g. `status`, `scale`, `binding`, `eviction`, `log`.
    pub subresources: Vec<String>,
}

impl KindRoute {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    pub(crate) fn root(&self) -> String {
        root(&self.group, &self.version)
    }

    pub(crate) fn gvk(&self) -> Value {
        json!({"group": self.group, "kind": self.kind, "version": self.version})
    }
}

fn root(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("/api/{version}")
    } else {
        format!("/apis/{group}/{version}")
    }
}

const TITLE: &str = "Muster";

impl Schemas {
    /// `/openapi/v3`: the list of documents, with a hash of each, so that clients can cache them.
    pub fn openapi_v3_index(&self, kinds: &[KindRoute]) -> Value {
        let mut paths = serde_json::Map::new();
        for kind in kinds {
            let root = kind.root();
            let key = root.trim_start_matches('/').to_owned();
            if !paths.contains_key(&key) {
                let hash = self.openapi_v3_hash(&kind.group, &kind.version, kinds);
                let url = format!("/openapi/v3{root}?hash={hash}");
                paths.insert(key, json!({ "serverRelativeURL": url }));
            }
        }
        json!({ "paths": paths })
    }

    /// The hash of one version 3 document: it changes with the definitions or the kinds of the
    /// group. Upper-case hexadecimal, as kube-apiserver writes it.
    pub fn openapi_v3_hash(&self, group: &str, version: &str, kinds: &[KindRoute]) -> String {
        let mut state = fnv(FNV_START, &self.digest.to_be_bytes());
        for kind in kinds
            .iter()
            .filter(|kind| kind.group == group && kind.version == version)
        {
            state = fnv(state, format!("{kind:?}").as_bytes());
        }
        let second = fnv(state, b"again");
        format!("{state:016X}{second:016X}")
    }

    /// One group-version's document as JSON text: those `kinds` that are of this group and version,
    /// their paths, and every definition that they refer to.
    pub fn openapi_v3_json(&self, group: &str, version: &str, kinds: &[KindRoute]) -> Vec<u8> {
        let kinds: Vec<&KindRoute> = kinds
            .iter()
            .filter(|kind| kind.group == group && kind.version == version)
            .collect();
        let mut text = String::with_capacity(512 * 1024);
        text.push_str("{\"components\":{\"schemas\":{");
        let mut first = true;
        self.each_definition(&kinds, |name, schema| {
            if !std::mem::take(&mut first) {
                text.push(',');
            }
            text.push('"');
            text.push_str(name);
            text.push_str("\":");
            text.push_str(schema);
        });
        text.push_str("},\"securitySchemes\":");
        text.push_str(
            &json!({"BearerToken": {
                "description": "Bearer Token authentication",
                "in": "header", "name": "authorization", "type": "apiKey",
            }})
            .to_string(),
        );
        text.push_str("},\"info\":");
        text.push_str(&json!({"title": TITLE, "version": "unversioned"}).to_string());
        text.push_str(",\"openapi\":\"3.0.0\",\"paths\":");
        text.push_str(&paths::v3(&kinds).to_string());
        text.push('}');
        text.into_bytes()
    }

    /// `/openapi/v2` as JSON text.
    pub fn openapi_v2_json(&self, kinds: &[KindRoute]) -> Vec<u8> {
        let all: Vec<&KindRoute> = kinds.iter().collect();
        let mut text = String::with_capacity(1024 * 1024);
        text.push_str("{\"definitions\":{");
        let mut first = true;
        self.each_definition(&all, |name, schema| {
            if !std::mem::take(&mut first) {
                text.push(',');
            }
            text.push('"');
            text.push_str(name);
            text.push_str("\":");
            text.push_str(&swagger::definition(schema).to_string());
        });
        text.push_str("},\"info\":");
        text.push_str(&json!({"title": TITLE, "version": "unversioned"}).to_string());
        text.push_str(",\"paths\":");
        text.push_str(&paths::v2(&all).to_string());
        text.push_str(",\"security\":[{\"BearerToken\":[]}],\"securityDefinitions\":");
        text.push_str(
            &json!({"BearerToken": {
                "description": "Bearer Token authentication",
                "in": "header", "name": "authorization", "type": "apiKey",
            }})
            .to_string(),
        );
        text.push_str(",\"swagger\":\"2.0\"}");
        text.into_bytes()
    }

    /// `/openapi/v2` as `application/com.github.proto-openapi.spec.v2@v1.0+protobuf`, the only
    /// form that client-go reads.
    pub fn openapi_v2_protobuf(&self, kinds: &[KindRoute]) -> Vec<u8> {
        let all: Vec<&KindRoute> = kinds.iter().collect();
        let mut document = gnostic::GnosticDocument::new(TITLE, "unversioned");
        self.each_definition(&all, |name, schema| {
            document.definition(name, &swagger::definition(schema));
        });
        document.finish(&paths::v2(&all))
    }
}

#[cfg(test)]
mod tests;
