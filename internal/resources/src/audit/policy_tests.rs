//! Tests of the audit policy: matching of rules, and errors of invalid policies.

use serde_json::json;

use super::*;

fn policy(rules: Value) -> Policy {
    Policy::read(&json!({"apiVersion": API_VERSION, "kind": "Policy", "rules": rules})).unwrap()
}

fn on_pods<'a>(verb: &'a str, groups: &'a [String]) -> Request<'a> {
    Request {
        user: "ada",
        groups,
        verb,
        resource: Some(("", "pods")),
        namespace: Some("team-a"),
        name: Some("p"),
        path: "/api/v1/namespaces/team-a/pods/p",
        ..Request::default()
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
        Level::RequestResponse
    );
    assert_eq!(policy.level(&on_pods("delete", &staff)), Level::Metadata);
    let by_bob = Request {
        user: "bob",
        ..on_pods("create", &staff)
    };
    assert_eq!(policy.level(&by_bob), Level::None);
    let log = Request {
        subresource: Some("log"),
        ..on_pods("get", &[])
    };
    assert_eq!(policy.level(&log), Level::Request);
    let elsewhere = Request {
        namespace: Some("team-b"),
        ..on_pods("delete", &[])
    };
    assert_eq!(policy.level(&elsewhere), Level::None);
    let another = Request {
        name: Some("q"),
        ..on_pods("delete", &[])
    };
    assert_eq!(policy.level(&another), Level::None);
    let path = |path| Request {
        verb: "post",
        path,
        ..Request::default()
    };
    assert_eq!(policy.level(&path("/ui/sign-in")), Level::Metadata);
    assert_eq!(policy.level(&path("/healthz/x")), Level::None);
    assert_eq!(policy.level(&path("/ui/other")), Level::None);
}

#[test]
fn a_rule_for_resources_matches_no_path_and_a_rule_for_paths_no_resource() {
    let resources = policy(json!([{"level": "Metadata", "resources": [{"group": ""}]}]));
    assert_eq!(resources.level(&on_pods("get", &[])), Level::Metadata);
    assert_eq!(
        resources.level(&Request {
            path: "/x",
            ..Request::default()
        }),
        Level::None
    );
    let paths = policy(json!([{"level": "Metadata", "nonResourceURLs": ["*"]}]));
    assert_eq!(paths.level(&on_pods("get", &[])), Level::None);
    assert_eq!(
        paths.level(&Request {
            path: "/x",
            ..Request::default()
        }),
        Level::Metadata
    );
}

#[test]
fn stages_that_are_left_out_are_not_recorded() {
    let document = json!({"apiVersion": API_VERSION, "kind": "Policy",
        "omitStages": ["RequestReceived"], "rules": [
            {"level": "Metadata", "verbs": ["get"], "omitStages": ["ResponseComplete"]},
            {"level": "Metadata"}]});
    let policy = Policy::read(&document).unwrap();
    assert_eq!(policy.level(&on_pods("get", &[])), Level::None);
    assert_eq!(policy.level(&on_pods("create", &[])), Level::Metadata);
}

#[test]
fn the_built_in_policy_records_changes_and_neither_reads_nor_routine_writes() {
    let policy = Policy::built_in();
    let own = vec!["system:muster".to_owned()];
    for verb in ["create", "update", "patch", "delete", "deletecollection"] {
        assert_eq!(policy.level(&on_pods(verb, &[])), Level::Metadata, "{verb}");
        assert_eq!(
            policy.level(&on_pods(verb, &own)),
            Level::Metadata,
            "{verb}"
        );
    }
    for verb in ["get", "list", "watch"] {
        assert_eq!(policy.level(&on_pods(verb, &[])), Level::None, "{verb}");
    }
    let status = |groups| Request {
        subresource: Some("status"),
        ..on_pods("patch", groups)
    };
    assert_eq!(policy.level(&status(&own)), Level::None);
    assert_eq!(policy.level(&status(&[])), Level::Metadata);
    let sign_in = Request {
        verb: "post",
        path: "/ui/sign-in",
        ..Request::default()
    };
    assert_eq!(policy.level(&sign_in), Level::Metadata);
    let question = Request {
        resource: Some(("authorization.k8s.io", "selfsubjectaccessreviews")),
        ..on_pods("create", &[])
    };
    assert_eq!(policy.level(&question), Level::None);
}

#[test]
fn what_is_wrong_is_named_with_field_value_and_valid_form() {
    let read = |rules: Value| {
        let document = json!({"apiVersion": API_VERSION, "kind": "Policy", "rules": rules});
        Policy::read(&document).unwrap_err().to_string()
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
    let other = Policy::read(&json!({"apiVersion": "v1", "kind": "Policy"})).unwrap_err();
    assert!(
        other
            .to_string()
            .starts_with(r#"apiVersion: Unsupported value: "v1""#),
        "{other}"
    );
}
