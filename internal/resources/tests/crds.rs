//! `api/crds/*.yaml` is what the types generate. `MUSTER_BLESS=1 cargo test -p resources --test crds` rewrites it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use resources::{crds, registry};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../api/crds")
}

#[test]
fn the_files_are_what_the_types_generate() {
    let bless = std::env::var_os("MUSTER_BLESS").is_some_and(|v| v == "1");
    let mut names = Vec::new();
    for crd in crds::all() {
        let name = format!("{}.yaml", crd.metadata.name.as_deref().unwrap());
        let head = "# Generated from internal/resources/src/kinds; do not edit. To renew: MUSTER_BLESS=1 cargo test -p resources --test crds\n";
        let value = serde_json::to_value(&crd).unwrap();
        let text = format!("{head}{}", serde_norway::to_string(&value).unwrap());
        let path = folder().join(&name);
        if bless {
            std::fs::create_dir_all(folder()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        // Compared by meaning, because the serialiser chooses the order of members.
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        let there: serde_json::Value = serde_norway::from_str(&there).unwrap_or_default();
        assert!(
            there == value,
            "{} is out of date: run MUSTER_BLESS=1 cargo test -p resources --test crds",
            path.display()
        );
        names.push(name);
    }
    let mut files: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    files.sort();
    assert_eq!(files, names, "a file without a type");
}

#[test]
fn every_kind_that_kubernetes_lacks_has_a_definition_under_the_same_names() {
    for kind in registry::all() {
        let built_in = kind.schema.starts_with("io.k8s.");
        assert_eq!(kind.is_custom(), !built_in, "{kind:?}");
        let Some(crd) = crds::of(kind) else {
            continue;
        };
        // The attributes of the Rust type, which the API's clients use, against the registration.
        let (names, version) = (&crd.spec.names, &crd.spec.versions[0]);
        assert_eq!(
            (
                crd.spec.group.as_str(),
                version.name.as_str(),
                names.kind.as_str(),
                names.plural.as_str(),
                crd.spec.scope == "Namespaced",
            ),
            (
                kind.group,
                kind.version,
                kind.kind,
                kind.plural,
                kind.namespaced
            )
        );
        let subresources = version.subresources.as_ref();
        assert_eq!(
            kind.status,
            subresources.is_some_and(|s| s.status.is_some()),
            "{kind:?}"
        );
        assert_eq!(
            kind.scale.is_some(),
            subresources.is_some_and(|s| s.scale.is_some()),
            "{kind:?}: a kind with /scale has /status, too"
        );
        let served: BTreeSet<&str> = registry::served()
            .filter(|other| other.is(kind))
            .map(|other| other.version)
            .collect();
        let defined = crd
            .spec
            .versions
            .iter()
            .map(|version| version.name.as_str());
        assert_eq!(defined.collect::<BTreeSet<_>>(), served, "{kind:?}");
    }
}

#[test]
fn every_kind_has_columns_whose_paths_are_fields_of_its_schema() {
    for kind in registry::all() {
        let names = kind.columns.iter().filter(|c| c.format == "name").count();
        assert_eq!(names, 1, "{kind:?}");
        let Some(crd) = crds::of(kind) else {
            continue;
        };
        for version in &crd.spec.versions {
            let columns = version.additional_printer_columns.as_deref();
            let columns = columns.unwrap_or_default();
            assert!(!columns.is_empty(), "{kind:?}");
            let schema = version
                .schema
                .as_ref()
                .and_then(|s| s.open_api_v3_schema.as_ref())
                .unwrap();
            let schema = serde_json::to_value(schema).unwrap();
            for column in columns {
                let path = &column.json_path;
                assert!(has(&schema, path), "{kind:?}: {path} is no field");
            }
        }
    }
}

/// True if the schema has a field at a JSON path; what stands in brackets selects an item of a list.
fn has(schema: &serde_json::Value, path: &str) -> bool {
    let mut now = schema;
    let mut rest = path;
    while let Some(after) = rest.strip_prefix('.') {
        let end = after.find(['.', '[']).unwrap_or(after.len());
        let (member, mut tail) = after.split_at(end);
        if member == "metadata" {
            return true;
        }
        if now.get("x-kubernetes-preserve-unknown-fields").is_some() {
            return true;
        }
        match now.get("properties").and_then(|all| all.get(member)) {
            Some(next) => now = next,
            None => return false,
        }
        if tail.starts_with('[') {
            match (now.get("items"), tail.find(']')) {
                (Some(items), Some(close)) => {
                    now = items;
                    tail = &tail[close + 1..];
                }
                _ => return false,
            }
        }
        rest = tail;
    }
    rest.is_empty()
}

#[test]
fn a_path_that_the_schema_lacks_is_found() {
    let schema = serde_json::json!({"properties": {
        "spec": {"properties": {"a": {"type": "string"}}},
        "status": {"properties": {"list": {"items": {"properties": {"type": {}, "word": {}}}}}},
    }});
    for (path, there) in [
        (".spec.a", true),
        (".spec.b", false),
        (".status.list[?(@.type==\"Ready\")].word", true),
        (".status.list[-1:].type", true),
        (".status.list[-1:].kind", false),
        (".spec.a[-1:].type", false),
        ("spec.a", false),
    ] {
        assert_eq!(has(&schema, path), there, "{path}");
    }
}

#[test]
fn schemas_name_a_type_for_every_field() {
    fn walk(schema: &serde_json::Value, path: &str) {
        for key in ["anyOf", "oneOf", "$ref", "definitions"] {
            assert!(
                schema.get(key).is_none(),
                "{path} has {key}, which no structural schema may"
            );
        }
        let open = schema.get("x-kubernetes-int-or-string").is_some()
            || schema.get("x-kubernetes-preserve-unknown-fields").is_some();
        assert!(open || schema.get("type").is_some(), "{path} has no type");
        for (name, inner) in schema
            .get("properties")
            .and_then(|p| p.as_object())
            .into_iter()
            .flatten()
        {
            walk(inner, &format!("{path}.{name}"));
        }
        for key in ["items", "additionalProperties"] {
            if let Some(inner) = schema.get(key).filter(|v| v.is_object()) {
                walk(inner, &format!("{path}.{key}"));
            }
        }
    }
    for crd in crds::all() {
        let schema = crd.spec.versions[0]
            .schema
            .as_ref()
            .and_then(|s| s.open_api_v3_schema.as_ref())
            .unwrap();
        walk(&serde_json::to_value(schema).unwrap(), &crd.spec.names.kind);
    }
}
