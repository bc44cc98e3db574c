//! Kubeconfigs before and after signing in and out.

use super::*;

fn login<'a>(name: &'a str, token: &'a str) -> LoginEntry<'a> {
    LoginEntry {
        name,
        server: "https://gpu:8443",
        authority: Some("PEM"),
        token,
        namespace: Some("team-a"),
    }
}

/// A kubeconfig of another cluster, with fields that this client does not know.
fn other() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {"colors": true}, "current-context": "prod",
        "clusters": [{"name": "prod", "cluster": {"server": "https://prod", "tls-server-name": "x"}}],
        "users": [{"name": "me", "user": {"exec": {"command": "aws"}}}],
        "contexts": [{"name": "prod", "context": {"cluster": "prod", "user": "me"}}],
        "extensions": [{"name": "e", "extension": 1}],
    })
}

#[test]
fn signing_in_and_out_leaves_all_other_entries() {
    let mut document = other();
    put(&mut document, &login("muster-gpu:8443", "one")).unwrap();
    assert_eq!(document["current-context"], "muster-gpu:8443");
    assert_eq!(document["preferences"], other()["preferences"]);
    assert_eq!(document["clusters"][0], other()["clusters"][0]);
    let context =
        json!({"cluster": "muster-gpu:8443", "user": "muster-gpu:8443", "namespace": "team-a"});
    assert_eq!(document["contexts"][1]["context"], context);
    let expected = CurrentLogin {
        user: "muster-gpu:8443".to_owned(),
        token: "one".to_owned(),
        server: "https://gpu:8443".to_owned(),
    };
    assert_eq!(current_login(&document), Some(expected));

    // Again: the entries are replaced.
    put(&mut document, &login("muster-gpu:8443", "two")).unwrap();
    assert_eq!(document["users"].as_array().unwrap().len(), 2);
    assert_eq!(token_of_user(&document, "muster-gpu:8443").unwrap(), "two");

    remove(&mut document, "muster-gpu:8443").unwrap();
    let mut left = other();
    left["current-context"] = json!("");
    assert_eq!(document, left);
}

#[test]
fn a_missing_or_empty_kubeconfig_is_made() {
    for mut document in [
        Value::Null,
        json!({}),
        json!({"users": null, "clusters": [], "contexts": null}),
    ] {
        put(&mut document, &login("m", "t")).unwrap();
        assert_eq!(current_server(&document).unwrap(), "https://gpu:8443");
        let kubeconfig: kube::config::Kubeconfig = serde_json::from_value(document).unwrap();
        assert_eq!(kubeconfig.current_context.as_deref(), Some("m"));
    }
    for mut document in [json!([]), json!("text"), json!({"users": "text"})] {
        assert!(put(&mut document, &login("m", "t")).is_err());
    }
}

#[test]
fn a_cluster_with_another_context_stays_when_its_user_signs_out() {
    let mut document = other();
    put(&mut document, &login("m", "t")).unwrap();
    let second = json!({"name": "second", "context": {"cluster": "m", "user": "me"}});
    document["contexts"].as_array_mut().unwrap().push(second);
    document["current-context"] = json!("prod");
    remove(&mut document, "m").unwrap();
    assert_eq!(document["clusters"].as_array().unwrap().len(), 2);
    assert_eq!(document["current-context"], "prod");
}

#[test]
fn a_context_without_a_token_or_over_plain_http_is_no_login() {
    assert_eq!(current_login(&other()), None);
    assert_eq!(current_login(&Value::Null), None);
    let mut document = Value::Null;
    put(&mut document, &login("m", "t")).unwrap();
    document["clusters"][0]["cluster"]["server"] = json!("http://gpu:8080");
    assert_eq!(current_login(&document), None);
}

#[test]
fn the_authority_of_a_server_is_found_as_data_or_in_a_file() {
    let mut document = other();
    put(&mut document, &login("m", "t")).unwrap();
    let here = tempfile::tempdir().unwrap();
    let of = |document: &Value, server: &str| authority(document, server, here.path());
    assert_eq!(
        of(&document, "https://gpu:8443").unwrap().as_deref(),
        Some("PEM")
    );
    assert_eq!(of(&document, "https://prod").unwrap(), None);
    assert_eq!(of(&document, "https://unknown").unwrap(), None);
    std::fs::write(here.path().join("ca.pem"), "FILE").unwrap();
    document["clusters"][0]["cluster"]["certificate-authority"] = json!("ca.pem");
    assert_eq!(
        of(&document, "https://prod").unwrap().as_deref(),
        Some("FILE")
    );
    document["clusters"][1]["cluster"]["certificate-authority-data"] = json!("%");
    assert!(of(&document, "https://gpu:8443").is_err());
}
