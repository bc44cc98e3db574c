//! The audit log of a running server: sign-ins, joins and tokens, and what a policy file in Kubernetes' format records.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::{Platform, eventually, muster, run};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(30);

/// Waits for an event about a path with this code.
fn recorded(platform: &Platform, path: &str, code: u64) -> Value {
    eventually(&format!("{path} with {code} is in the log"), SOON, || {
        let all = platform.audited(path).into_iter();
        let mut about = all.filter(|event| {
            let uri = event["requestURI"].as_str().unwrap_or_default();
            uri.contains(path) && event["responseStatus"]["code"] == code
        });
        about.next()
    })
}

/// Signs in on the page, and returns the status.
fn sign_in(platform: &Platform, password: &str) -> String {
    let origin = format!("http://{}", platform.listen);
    let mut curl = Command::new("curl");
    curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}"])
        .args(["-H", &format!("Origin: {origin}")])
        .args(["--data-urlencode", "user=admin"])
        .args(["--data-urlencode", &format!("password={password}")])
        .arg(format!("{origin}/ui/sign-in"));
    run(&mut curl).ok()
}

#[test]
fn sign_ins_joins_and_tokens_are_recorded_without_their_secrets() {
    let platform = Platform::server(&[]);
    let file = platform.data.join("server/first-password");
    let password = std::fs::read_to_string(file).unwrap().trim().to_owned();
    assert_eq!(sign_in(&platform, "not-the-password"), "401");
    assert_eq!(sign_in(&platform, &password), "303");
    for code in [401, 303] {
        let event = recorded(&platform, "/ui/sign-in", code);
        assert_eq!(event["user"]["username"], "admin", "{event}");
        assert_eq!(event["sourceIPs"], json!(["127.0.0.1"]), "{event}");
    }

    let token = platform.cli(&["token", "join"]).ok();
    let token = token.trim();
    let event = recorded(&platform, "/api/v1/join-tokens", 201);
    assert_eq!(event["user"]["username"], "admin", "{event}");
    let (_, pin) = token.split_once('@').unwrap();
    let forged = format!("abcdef.{}@{pin}", "a".repeat(32));
    let directory = tempfile::tempdir().unwrap();
    let joins = Command::new(muster())
        .args(["agent", "--metrics", "off", "--node-name", "stranger"])
        .args(["--server", &format!("https://{}", platform.listen)])
        .args(["--token", &forged, "--data"])
        .arg(directory.path())
        .output()
        .unwrap();
    assert!(!joins.status.success());
    let event = recorded(&platform, "/muster.agent.v1.Enrollment/Join", 401);
    assert_eq!(event["responseStatus"]["status"], "Failure", "{event}");

    let access = platform
        .cli(&["token", "create", "--label", "program"])
        .ok();
    let access = access.trim();
    recorded(&platform, "/api/v1/tokens", 201);
    let secret = |of: &str| {
        let middle = of.split('@').next().unwrap();
        middle.rsplit('.').next().unwrap().to_owned()
    };
    let text = platform.audit_log();
    for secret in [
        password,
        "not-the-password".to_owned(),
        secret(token),
        secret(access),
    ] {
        assert!(secret.len() > 8 && !text.contains(&secret), "{secret}");
    }
}

const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: None
  resources: [{group: '', resources: [configmaps]}]
- level: Request
  verbs: [create]
  resources: [{group: '', resources: [namespaces]}]
- level: Metadata
  verbs: [create]
";

fn with_policy(directory: &Path, text: &str) -> String {
    let file = directory.join("policy.yaml");
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

#[test]
fn a_policy_file_says_what_is_recorded_and_a_malformed_one_is_refused_with_its_field() {
    let directory = tempfile::tempdir().unwrap();
    let file = with_policy(directory.path(), POLICY);
    let platform = Platform::server(&["--audit-policy-file", &file]);
    let kubectl = |words: &[&str]| platform.kubectl(words).ok();
    kubectl(&["create", "configmap", "quiet", "--from-literal=a=b"]);
    // kubectl sends these by protobuf.
    kubectl(&["create", "namespace", "loud"]);
    kubectl(&[
        "create",
        "secret",
        "generic",
        "word",
        "--from-literal=word=sesame",
    ]);
    let event = recorded(&platform, "/namespaces/default/secrets", 201);
    assert_eq!(event["level"], "Metadata", "{event}");
    let event = recorded(&platform, "/api/v1/namespaces?", 201);
    assert_eq!(event["level"], "Request", "{event}");
    assert_eq!(
        event["requestObject"]["metadata"]["name"], "loud",
        "{event}"
    );
    assert!(event.get("responseObject").is_none(), "{event}");
    let all = platform.audit_log();
    assert!(!all.contains("quiet") && !all.contains("c2VzYW1l") && !all.contains("sesame"));

    for (text, reason) in [
        (
            POLICY.replace("Metadata", "Verbose"),
            "rules[2].level: Unsupported value: \"Verbose\": supported values: \"None\", \"Metadata\", \"Request\", \"RequestResponse\"",
        ),
        (
            POLICY.replace("kind: Policy", "kind: Police"),
            "kind: Unsupported value: \"Police\"",
        ),
        (
            POLICY.replace("verbs", "werbs"),
            "rules[1]: unknown field `werbs`",
        ),
    ] {
        let file = with_policy(directory.path(), &text);
        let ran = Command::new(muster())
            .args([
                "server",
                "--listen",
                "127.0.0.1:0",
                "--audit-policy-file",
                &file,
                "--data",
            ])
            .arg(directory.path().join("data"))
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success() && error.contains(reason), "{error}");
        assert!(error.contains("--audit-policy-file"), "{error}");
    }
}
