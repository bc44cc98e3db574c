//! The chart's ClusterRoles for users equal the defaults. `MUSTER_BLESS=1 cargo test -p resources` rewrites the
//! template.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::defaults::kubernetes_cluster_roles;

const BEGIN: &str = "{{- if .Values.server.enabled }}\n";
const END: &str = "{{- end }}\n";
const HEAD: &str = "\
# What users of Muster's kinds may do. Kubernetes' admin, edit and view include muster-lead, muster-member and
# muster-viewer; muster-admin is to be bound by itself. Not written by hand: MUSTER_BLESS=1 cargo test -p resources
";

fn template() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/kubernetes/chart/templates/user-roles.yaml"
    ))
}

/// The template's text with these roles.
fn text(roles: &[Value]) -> String {
    let documents: Vec<String> = roles
        .iter()
        .map(|role| serde_norway::to_string(role).unwrap())
        .collect();
    format!("{BEGIN}{HEAD}{}{END}", documents.join("---\n"))
}

#[test]
fn the_chart_has_the_roles_of_users_as_the_defaults_have_them() {
    let wanted = kubernetes_cluster_roles();
    if std::env::var_os("MUSTER_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(template(), text(&wanted)).unwrap();
    }
    let there = std::fs::read_to_string(template()).unwrap();
    let body = there
        .strip_prefix(BEGIN)
        .and_then(|rest| rest.strip_suffix(END))
        .expect("only a server is installed with roles for its users");
    let found: Vec<Value> = serde_norway::Deserializer::from_str(body)
        .map(|document| Value::deserialize(document).unwrap())
        .collect();
    assert_eq!(
        found, wanted,
        "run MUSTER_BLESS=1 cargo test -p resources, then -p e2e --test packaging"
    );
}

#[test]
fn roles_for_a_cluster_speak_of_musters_kinds_alone_and_only_an_administrator_has_every_verb() {
    for role in kubernetes_cluster_roles() {
        let name = role["metadata"]["name"].as_str().unwrap();
        let rules = role["rules"].as_array().unwrap();
        assert!(!rules.is_empty(), "{name}");
        for rule in rules {
            let group = rule["apiGroups"][0].as_str().unwrap();
            assert!(
                group.contains('.') && !group.ends_with(".k8s.io"),
                "{name}: {rule}"
            );
            let every = rule["verbs"].as_array().unwrap().contains(&"*".into());
            assert_eq!(every, name == "muster-admin", "{name}: {rule}");
        }
        let aggregated = role["metadata"].get("labels").is_some();
        assert_eq!(aggregated, name != "muster-admin", "{name}");
    }
}
