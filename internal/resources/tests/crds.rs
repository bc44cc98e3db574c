//! `api/crds/*.yaml` is what the types generate. `MUSTER_BLESS=1 cargo test -p resources --test crds` rewrites it.

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
fn every_custom_kind_is_registered_under_the_same_names() {
    for crd in crds::all() {
        let version = &crd.spec.versions[0];
        let kind = registry::find(&crd.spec.group, &version.name, &crd.spec.names.plural)
            .expect("registered");
        assert_eq!(kind.kind, crd.spec.names.kind);
        assert_eq!(kind.singular, crd.spec.names.singular.as_deref().unwrap());
        assert_eq!(
            kind.list_kind,
            crd.spec
                .names
                .list_kind
                .clone()
                .unwrap_or_else(|| format!("{}List", kind.kind))
        );
        assert_eq!(kind.namespaced, crd.spec.scope == "Namespaced");
        let short: Vec<&str> = crd
            .spec
            .names
            .short_names
            .iter()
            .flatten()
            .map(String::as_str)
            .collect();
        assert_eq!(kind.short_names, short);
        let scale = version.subresources.as_ref().and_then(|s| s.scale.as_ref());
        assert_eq!(
            kind.scale.map(|s| s.spec_replicas),
            scale.map(|s| s.spec_replicas_path.as_str())
        );
        assert_eq!(
            kind.status,
            version
                .subresources
                .as_ref()
                .is_some_and(|s| s.status.is_some())
        );
        assert!(!kind.strategic);
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
