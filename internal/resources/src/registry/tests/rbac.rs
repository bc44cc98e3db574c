//! The rules of roles and bindings, and how bindings are listed.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{change, create, kind, object};
use crate::registry::Kind;

const RBAC: &str = "rbac.authorization.k8s.io";

#[test]
fn rules_need_verbs_and_are_about_resources_or_paths() {
    let (roles, cluster_roles) = (kind(RBAC, "v1", "roles"), kind(RBAC, "v1", "clusterroles"));
    let errors = |kind: &Kind, rule: Value| create(kind, object("r", json!({"rules": [rule]}))).1;
    let table = [
        (
            json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}),
            vec![],
        ),
        (
            json!({}),
            vec![
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[0].resources: Required value: resource rules must supply at least one resource",
            ],
        ),
        (
            json!({"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["pods"]}),
            vec![
                "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: rules cannot apply to both regular resources and non-resource URLs",
            ],
        ),
    ];
    for (rule, expected) in table {
        assert_eq!(errors(cluster_roles, rule.clone()), expected, "{rule}");
    }
    assert_eq!(
        errors(roles, json!({"verbs": ["get"], "nonResourceURLs": ["/x"]})),
        [
            "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs"
        ]
    );
    let (_, errors) = create(cluster_roles, object("r", json!({"aggregationRule": {}})));
    assert_eq!(
        errors,
        [
            "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil"
        ]
    );
    let (_, errors) = create(cluster_roles, object("system:a%b", json!({})));
    assert_eq!(
        errors,
        ["metadata.name: Invalid value: \"system:a%b\": may not contain '%'"]
    );
    // A longer name would exceed the line of the request that deletes it.
    let (_, errors) = create(cluster_roles, object(&"r".repeat(1024), json!({})));
    assert_eq!(errors, [""; 0]);
    let (_, errors) = create(cluster_roles, object(&"r".repeat(1025), json!({})));
    assert!(
        errors[0].ends_with("must be no more than 1024 bytes"),
        "{errors:?}"
    );
}

#[test]
fn a_binding_keeps_its_role_and_its_subjects_are_known() {
    let bindings = kind(RBAC, "v1", "rolebindings");
    let role = json!({"kind": "ClusterRole", "name": "view"});
    let user = json!({"kind": "User", "name": "ann"});
    let (made, errors) = create(
        bindings,
        object("b", json!({"roleRef": role, "subjects": [user]})),
    );
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(made["roleRef"]["apiGroup"], RBAC);
    assert_eq!(made["subjects"][0]["apiGroup"], RBAC);
    let errors = change(bindings, &made, |b| b["roleRef"]["name"] = json!("edit"));
    assert!(
        errors[0].starts_with("roleRef: Invalid value: {")
            && errors[0].ends_with(": cannot change roleRef"),
        "{errors:?}"
    );
    assert!(change(bindings, &made, |b| b["subjects"] = json!([])).is_empty());
    let cluster = kind(RBAC, "v1", "clusterrolebindings");
    let table = [
        (
            json!({"roleRef": {"kind": "Role", "name": "r"}}),
            "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
        ),
        (
            json!({"roleRef": {"kind": "ClusterRole"}}),
            "roleRef.name: Required value",
        ),
        (
            json!({"roleRef": {"kind": "ClusterRole", "name": "r", "apiGroup": "x"}}),
            "roleRef.apiGroup: Unsupported value: \"x\": supported values: \"rbac.authorization.k8s.io\"",
        ),
        (
            json!({"roleRef": role, "subjects": [{"kind": "ServiceAccount", "name": "s"}]}),
            "subjects[0].namespace: Required value",
        ),
        (
            json!({"roleRef": role, "subjects": [{"kind": "Robot", "name": "s"}]}),
            "subjects[0].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
        ),
        (
            json!({"roleRef": role, "subjects": [{"kind": "User", "name": ""}]}),
            "subjects[0].name: Required value",
        ),
    ];
    for (value, expected) in table {
        let (_, errors) = create(cluster, object("b", value.clone()));
        assert_eq!(errors, [expected], "{value}");
    }
}

#[test]
fn bindings_list_their_subjects() {
    let bindings = kind(RBAC, "v1", "rolebindings");
    let binding = json!({
        "metadata": {"name": "b", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [
            {"kind": "User", "name": "ann"}, {"kind": "User", "name": "bob"}, {"kind": "Group", "name": "team"},
            {"kind": "ServiceAccount", "name": "s", "namespace": "a"},
        ],
    });
    let now: Timestamp = "2026-01-01T00:01:30Z".parse().unwrap();
    let cells: Vec<Value> = bindings
        .columns
        .iter()
        .map(|column| column.cell(&binding, now))
        .collect();
    assert_eq!(cells, ["b", "Role/r", "90s", "ann, bob", "team", "a/s"]);
}
