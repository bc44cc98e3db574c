//! Tests of the published documents: the parts that kubectl and other clients read.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::*;
use crate::Schemas;

impl Schemas {
    fn openapi_v3(&self, group: &str, version: &str, kinds: &[KindRoute]) -> Value {
        serde_json::from_slice(&self.openapi_v3_json(group, version, kinds)).unwrap()
    }

    fn openapi_v2(&self, kinds: &[KindRoute]) -> Value {
        serde_json::from_slice(&self.openapi_v2_json(kinds)).unwrap()
    }
}

static SCHEMAS: LazyLock<Schemas> = LazyLock::new(|| {
    Schemas::load(&[json!({
        "metadata": {"name": "widgets.example.dev"},
        "spec": {
            "group": "example.dev",
            "names": {"kind": "Widget", "listKind": "WidgetList", "plural": "widgets"},
            "versions": [{
                "name": "v1", "served": true,
                "schema": {"openAPIV3Schema": {"type": "object", "description": "A widget.", "properties": {
                    "spec": {"type": "object", "description": "What it should be.", "properties": {
                        "port": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                        "mode": {"type": "string", "enum": ["a", "b"], "nullable": true},
                        "size": {"type": "integer", "minimum": 1.0, "default": 1}
                    }}
                }}}
            }]
        }
    })])
    .unwrap()
});

fn route(group: &str, version: &str, kind: &str, plural: &str, definition: &str) -> KindRoute {
    KindRoute {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        namespaced: true,
        strategic: definition.starts_with("io.k8s."),
        definition: definition.to_owned(),
        subresources: vec!["status".to_owned()],
    }
}

fn routes() -> Vec<KindRoute> {
    let mut pod = route("", "v1", "Pod", "pods", "io.k8s.api.core.v1.Pod");
    pod.subresources
        .extend(["binding", "eviction", "exec", "log", "portforward", "proxy"].map(str::to_owned));
    let mut job = route("batch", "v1", "Job", "jobs", "io.k8s.api.batch.v1.Job");
    job.subresources.push("scale".to_owned());
    let mut node = route("", "v1", "Node", "nodes", "io.k8s.api.core.v1.Node");
    node.namespaced = false;
    let widget = route(
        "example.dev",
        "v1",
        "Widget",
        "widgets",
        "dev.example.v1.Widget",
    );
    vec![pod, node, job, widget]
}

/// Every `$ref` in a document leads somewhere.
fn dangling(document: &Value, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get("$ref") {
                let pointer = reference.trim_start_matches('#');
                if document.pointer(pointer).is_none() {
                    found.push(reference.clone());
                }
            }
            map.values().for_each(|v| dangling(document, v, found));
        }
        Value::Array(items) => items.iter().for_each(|v| dangling(document, v, found)),
        _ => {}
    }
}

#[test]
fn the_index_names_every_group_version_with_a_hash_that_changes_with_its_kinds() {
    let index = SCHEMAS.openapi_v3_index(&routes());
    let paths = index["paths"].as_object().unwrap();
    assert_eq!(
        paths.keys().collect::<Vec<_>>(),
        ["api/v1", "apis/batch/v1", "apis/example.dev/v1"]
    );
    let url = paths["apis/batch/v1"]["serverRelativeURL"]
        .as_str()
        .unwrap();
    let hash = SCHEMAS.openapi_v3_hash("batch", "v1", &routes());
    assert_eq!(url, format!("/openapi/v3/apis/batch/v1?hash={hash}"));
    assert_eq!(hash, SCHEMAS.openapi_v3_hash("batch", "v1", &routes()[2..]));
    assert_ne!(hash, SCHEMAS.openapi_v3_hash("batch", "v1", &[]));
}

#[test]
fn a_version_3_document_is_closed_and_holds_only_what_its_kinds_reach() {
    let document = SCHEMAS.openapi_v3("", "v1", &routes());
    let mut found = Vec::new();
    dangling(&document, &document, &mut found);
    assert_eq!(found, Vec::<String>::new());
    let schemas = document["components"]["schemas"].as_object().unwrap();
    assert!(schemas.contains_key("io.k8s.api.core.v1.PodSpec"));
    assert!(schemas.contains_key("io.k8s.api.policy.v1.Eviction"));
    assert!(!schemas.contains_key("io.k8s.api.batch.v1.JobSpec"));
    assert!(!schemas.contains_key("dev.example.v1.Widget"));
    assert!(
        schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]["description"]
            .as_str()
            .unwrap()
            .starts_with("List of containers belonging to the pod")
    );
}

#[test]
fn patch_operations_carry_what_kubectl_looks_for() {
    for (group, kind, path) in [
        ("", "Pod", "/api/v1/namespaces/{namespace}/pods/{name}"),
        ("", "Node", "/api/v1/nodes/{name}"),
        (
            "batch",
            "Job",
            "/apis/batch/v1/namespaces/{namespace}/jobs/{name}",
        ),
        (
            "example.dev",
            "Widget",
            "/apis/example.dev/v1/namespaces/{namespace}/widgets/{name}",
        ),
    ] {
        let v3 = SCHEMAS.openapi_v3(group, "v1", &routes());
        let v2 = SCHEMAS.openapi_v2(&routes());
        for document in [v3, v2] {
            let patch = &document["paths"][path]["patch"];
            assert_eq!(patch["x-kubernetes-action"], "patch", "{path}");
            assert_eq!(
                patch["x-kubernetes-group-version-kind"],
                json!({"group": group, "kind": kind, "version": "v1"})
            );
            let parameters: Vec<&str> = patch["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|p| p["in"] == "query")
                .map(|p| p["name"].as_str().unwrap())
                .collect();
            assert_eq!(
                parameters,
                ["dryRun", "fieldManager", "fieldValidation", "force"]
            );
        }
    }
}

#[test]
fn subresources_are_listed_with_their_own_kinds() {
    let core = SCHEMAS.openapi_v3("", "v1", &routes());
    let item = "/api/v1/namespaces/{namespace}/pods/{name}";
    let kind = |path: String, method: &str| {
        core["paths"][path.as_str()][method]["x-kubernetes-group-version-kind"]["kind"].clone()
    };
    assert_eq!(kind(format!("{item}/binding"), "post"), "Binding");
    assert_eq!(kind(format!("{item}/eviction"), "post"), "Eviction");
    assert_eq!(kind(format!("{item}/status"), "patch"), "Pod");
    assert_eq!(kind(format!("{item}/log"), "get"), "Pod");
    assert_eq!(kind(format!("{item}/exec"), "post"), "PodExecOptions");
    assert_eq!(
        kind(format!("{item}/portforward"), "post"),
        "PodPortForwardOptions"
    );
    assert_eq!(kind(format!("{item}/proxy"), "patch"), "PodProxyOptions");
    let batch = SCHEMAS.openapi_v3("batch", "v1", &routes());
    assert_eq!(
        batch["paths"]["/apis/batch/v1/namespaces/{namespace}/jobs/{name}/scale"]["put"]["x-kubernetes-group-version-kind"],
        json!({"group": "autoscaling", "kind": "Scale", "version": "v1"})
    );
}

#[test]
fn custom_kinds_are_published_with_metadata_and_a_list() {
    let document = SCHEMAS.openapi_v3("example.dev", "v1", &routes());
    let schemas = &document["components"]["schemas"];
    let widget = &schemas["dev.example.v1.Widget"];
    assert_eq!(widget["description"], "A widget.");
    assert_eq!(
        widget["x-kubernetes-group-version-kind"],
        json!([{"group": "example.dev", "kind": "Widget", "version": "v1"}])
    );
    assert_eq!(
        widget["properties"]["metadata"]["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    assert_eq!(
        schemas["dev.example.v1.WidgetList"]["x-kubernetes-group-version-kind"][0]["kind"],
        "WidgetList"
    );
    // kubectl sends strategic merge patches to kinds that publish them; custom kinds don't accept them.
    let path = "/apis/example.dev/v1/namespaces/{namespace}/widgets/{name}";
    let takes = &document["paths"][path]["patch"]["requestBody"]["content"];
    let takes: Vec<&String> = takes.as_object().unwrap().keys().collect();
    assert_eq!(
        takes,
        [
            "application/apply-patch+yaml",
            "application/json-patch+json",
            "application/merge-patch+json"
        ]
    );
    let mut found = Vec::new();
    dangling(&document, &document, &mut found);
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn version_2_holds_all_kinds_in_its_own_dialect() {
    let document = SCHEMAS.openapi_v2(&routes());
    assert_eq!(document["swagger"], "2.0");
    let mut found = Vec::new();
    dangling(&document, &document, &mut found);
    assert_eq!(found, Vec::<String>::new());
    let definitions = &document["definitions"];
    assert_eq!(
        definitions["io.k8s.api.core.v1.Pod"]["properties"]["spec"]["$ref"],
        "#/definitions/io.k8s.api.core.v1.PodSpec"
    );
    assert_eq!(
        definitions["io.k8s.apimachinery.pkg.api.resource.Quantity"]["type"],
        "string"
    );
    assert_eq!(
        definitions["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]["x-kubernetes-patch-merge-key"],
        "name"
    );
    let spec = &definitions["dev.example.v1.Widget"]["properties"]["spec"]["properties"];
    assert_eq!(spec["port"], json!({"x-kubernetes-int-or-string": true}));
    assert_eq!(spec["size"], json!({"type": "integer", "minimum": 1.0}));
    let text = document.to_string();
    for unknown in ["\"allOf\"", "\"oneOf\":[", "\"nullable\"", "#/components/"] {
        assert!(!text.contains(unknown), "{unknown}");
    }
}

/// The length-delimited fields of a protobuf message.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for at in 0.. {
            let byte = bytes[at];
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                *bytes = &bytes[at + 1..];
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        match key & 7 {
            0 => {
                varint(&mut bytes);
            }
            1 => bytes = &bytes[8..],
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                found.push((key >> 3, &bytes[..length]));
                bytes = &bytes[length..];
            }
            wire => panic!("wire type {wire}"),
        }
    }
    found
}

#[test]
fn the_protobuf_form_says_the_same_as_the_json_form() {
    let json = SCHEMAS.openapi_v2(&routes());
    let bytes = SCHEMAS.openapi_v2_protobuf(&routes());
    let document = fields(&bytes);
    let find = |field| document.iter().find(|(f, _)| *f == field).unwrap().1;
    assert_eq!(find(1), b"2.0");
    let names = |message, field| -> Vec<String> {
        fields(message)
            .into_iter()
            .filter(|(f, _)| *f == field)
            .map(|(_, entry)| String::from_utf8(fields(entry)[0].1.to_vec()).unwrap())
            .collect()
    };
    let keys =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    assert_eq!(names(find(8), 2), keys(&json["paths"]));
    assert_eq!(names(find(9), 1), keys(&json["definitions"]));
    let container = fields(find(9))
        .into_iter()
        .map(|(_, entry)| fields(entry))
        .find(|entry| entry[0].1 == b"io.k8s.api.core.v1.Container")
        .unwrap()[1]
        .1;
    let properties = fields(container)
        .into_iter()
        .find(|(f, _)| *f == 25)
        .unwrap()
        .1;
    assert_eq!(
        names(properties, 1),
        keys(&json["definitions"]["io.k8s.api.core.v1.Container"]["properties"])
    );
}

#[test]
fn documents_stay_within_their_sizes() {
    // The embedded text and the lean form are resident in an idle server.
    assert!(
        crate::load::BUILTIN.len() < 600 * 1024,
        "{}",
        crate::load::BUILTIN.len()
    );
    assert!(SCHEMAS.footprint() < 576 * 1024, "{}", SCHEMAS.footprint());
}
