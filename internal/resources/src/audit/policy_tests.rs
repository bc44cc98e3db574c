//! Tests of the audit policy: matching of rules, and errors of invalid policies.

use serde_json::json;

use super::*;

fn policy(rules: Value) -> AuditPolicy {
    AuditPolicy::read(&json!({"apiVersion": API_VERSION, "kind": "Policy", "rules": rules}))
        .unwrap()
}

fn on_pods<'a>(verb: &'a str, groups: &'a [String]) -> AuditedRequest<'a> {
    AuditedRequest {
        user: "ada",
        groups,
        verb,
        resource: Some(("", "pods")),
        namespace: Some("team-a"),
        name: Some("p"),
        path: "/api/v1/namespaces/team-a/pods/p",
        ..AuditedRequest::default()
    }
}

#[test]
fn the_first_rule_that_matches_decides_and_none_means_not_recorded() {
    let staff = vec!["staff".to_owned()];
    let policy = policy(json!([
        {"level": "None", "users": ["bob"]},
        {"level": "RequestResponse", "userGroups": ["staff"], "verbs": ["create"]},
        {"level": "Request", "resources": [{"group": "", "resources": ["pods/log", "secrets"]}]},
        {"level": "Metadata", "resources": [{"group": "", "resources": ["pods"], "resourceNames": ["p"]}],
            "namespaces": ["team-a"]},
        {"level": "None", "nonResourceURLs": ["/healthz*"]},
        {"level": "Metadata", "nonResourceURLs": ["/ui/sign-in"]},
    ]));
    assert_eq!(
        policy.level(&on_pods("create", &staff)),
        AuditLevel::RequestResponse
    );
    assert_eq!(
        policy.level(&on_pods("delete", &staff)),
        AuditLevel::Metadata
    );
    let by_bob = AuditedRequest {
        user: "bob",
        ..on_pods("create", &staff)
    };
    assert_eq!(policy.level(&by_bob), AuditLevel::None);
    let log = AuditedRequest {
        subresource: Some("log"),
        ..on_pods("get", &[])
    };
    assert_eq!(policy.level(&log), AuditLevel::Request);
    let elsewhere = AuditedRequest {
        namespace: Some("team-b"),
        ..on_pods("delete", &[])
    };
    assert_eq!(policy.level(&elsewhere), AuditLevel::None);
    let another = AuditedRequest {
        name: Some("q"),
        ..on_pods("delete", &[])
    };
    assert_eq!(policy.level(&another), AuditLevel::None);
    let path = |path| AuditedRequest {
        verb: "post",
        path,
        ..AuditedRequest::default()
    };
    assert_eq!(policy.level(&path("/ui/sign-in")), AuditLevel::Metadata);
    assert_eq!(policy.level(&path("/healthz/x")), AuditLevel::None);
    assert_eq!(policy.level(&path("/ui/other")), AuditLevel::None);
}

#[test]
fn a_rule_for_resources_matches_no_path_and_a_rule_for_paths_no_resource() {
    let resources = policy(json!([{"level": "Metadata", "resources": [{"group": ""}]}]));
    assert_eq!(resources.level(&on_pods("get", &[])), AuditLevel::Metadata);
    assert_eq!(
        resources.level(&AuditedRequest {
            path: "/x",
            ..AuditedRequest::default()
        }),
        AuditLevel::None
    );
    let paths = policy(json!([{"level": "Metadata", "nonResourceURLs": ["*"]}]));
    assert_eq!(paths.level(&on_pods("get", &[])), AuditLevel::None);
    assert_eq!(
        paths.level(&AuditedRequest {
            path: "/x",
            ..AuditedRequest::default()
        }),
        AuditLevel::Metadata
    );
}

#[test]
fn stages_that_are_left_out_are_not_recorded() {
    let document = json!({"apiVersion": API_VERSION, "kind": "Policy",
        "omitStages": ["RequestReceived"], "rules": [
            {"level": "Metadata", "verbs": ["get"], "omitStages": ["ResponseComplete"]},
            {"level": "Metadata"}]});
    let policy = AuditPolicy::read(&document).unwrap();
    assert_eq!(policy.level(&on_pods("get", &[])), AuditLevel::None);
    assert_eq!(policy.level(&on_pods("create", &[])), AuditLevel::Metadata);
}

#[test]
fn the_built_in_policy_records_changes_and_neither_reads_nor_routine_writes() {
    let policy = AuditPolicy::built_in();
    let own = vec!["system:muster".to_owned()];
    for verb in ["create", "update", "patch", "delete", "deletecollection"] {
        assert_eq!(
            policy.level(&on_pods(verb, &[])),
            AuditLevel::Metadata,
            "{verb}"
        );
        assert_eq!(
            policy.level(&on_pods(verb, &own)),
            AuditLevel::Metadata,
            "{verb}"
        );
    }
    for verb in ["get", "list", "watch"] {
        assert_eq!(
            policy.level(&on_pods(verb, &[])),
            AuditLevel::None,
            "{verb}"
        );
    }
    let status = |groups| AuditedRequest {
        subresource: Some("status"),
        ..on_pods("patch", groups)
    };
    assert_eq!(policy.level(&status(&own)), AuditLevel::None);
    assert_eq!(policy.level(&status(&[])), AuditLevel::Metadata);
    let sign_in = AuditedRequest {
        verb: "post",
        path: "/ui/sign-in",
        ..AuditedRequest::default()
    };
    assert_eq!(policy.level(&sign_in), AuditLevel::Metadata);
    let question = AuditedRequest {
        resource: Some(("authorization.k8s.io", "selfsubjectaccessreviews")),
        ..on_pods("create", &[])
    };
    assert_eq!(policy.level(&question), AuditLevel::None);
}

#[test]
fn what_is_wrong_is_named_with_field_value_and_valid_form() {
    let read = |rules: Value| {
        let document = json!({"apiVersion": API_VERSION, "kind": "Policy", "rules": rules});
        AuditPolicy::read(&document).unwrap_err().to_string()
    };
    let cases = [
        (json!([]), "rules: Required value"),
        (json!([{"users": ["a"]}]), "rules[0].level: Required value"),
        (
            json!([{"level": "Meta"}]),
            r#"rules[0].level: Unsupported value: "Meta": supported values: "None""#,
        ),
        (
            json!([{"level": "None"}, {"level": "None", "user": []}]),
            "rules[1]: unknown field `user`",
        ),
        (
            json!([{"level": "None", "namespaces": ["a"], "nonResourceURLs": ["/x"]}]),
            "rules[0].nonResourceURLs: Invalid value: a rule is either",
        ),
        (
            json!([{"level": "None", "nonResourceURLs": ["/x*y"]}]),
            r#"rules[0].nonResourceURLs[0]: Invalid value: "/x*y""#,
        ),
        (
            json!([{"level": "None", "omitStages": ["Done"]}]),
            r#"rules[0].omitStages: Unsupported value: "Done""#,
        ),
    ];
    for (rules, said) in cases {
        let why = read(rules);
        assert!(why.starts_with(said), "{why}");
    }
    let other = AuditPolicy::read(&json!({"apiVersion": "v1", "kind": "Policy"})).unwrap_err();
    assert!(
        other
            .to_string()
            .starts_with(r#"apiVersion: Unsupported value: "v1""#),
        "{other}"
    );
}
