//! Tokens of service accounts: issued, bound, refused.

use std::sync::atomic::{AtomicI64, Ordering};

use apiserver::ApiConfig;
use axum::body::Body;
use axum::http::Request;
use jiff::Timestamp;
use resources::access::UserRole;
use serde_json::{Value, json};
use store::Options;

use crate::harness::{Api, PODS, pod, request, user};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const TOKEN: &str = "/api/v1/namespaces/default/serviceaccounts/builder/token";
const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

fn post(path: &str, body: &Value) -> Request<Body> {
    request("POST", path, "application/json", body.to_string())
}

async fn account(api: &Api) {
    let object =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "builder"}});
    api.post(ACCOUNTS, &object).await.is(201);
}

async fn issued(api: &Api, spec: Value) -> String {
    let answer = api.post(TOKEN, &json!({"spec": spec})).await.is(201);
    answer["status"]["token"].as_str().unwrap().to_owned()
}

async fn accepted(api: &Api, token: &str) -> bool {
    let answer = api.send_with_token(token, post(WHOAMI, &json!({}))).await;
    match answer.status.as_u16() {
        201 => true,
        401 => false,
        other => panic!("{other}: {}", answer.text),
    }
}

#[tokio::test]
async fn a_service_account_has_its_own_rights_by_its_token() {
    let api = Api::new();
    account(&api).await;
    let token = issued(&api, json!({})).await;
    let who = api
        .send_with_token(&token, post(WHOAMI, &json!({})))
        .await
        .is(201);
    let info = &who["status"]["userInfo"];
    assert_eq!(info["username"], "system:serviceaccount:default:builder");
    assert_eq!(
        info["groups"],
        json!([
            "system:serviceaccounts",
            "system:serviceaccounts:default",
            "system:authenticated"
        ])
    );
    let pods = || request("GET", PODS, "", Body::empty());
    api.send_with_token(&token, pods())
        .await
        .refused(403, "Forbidden");
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "builder"},
        "roleRef": {"kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "builder"}],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    api.post(bindings, &binding).await.is(201);
    api.send_with_token(&token, pods()).await.is(200);
}

#[tokio::test]
async fn a_token_requires_the_right_to_create_it() {
    let api = Api::new();
    account(&api).await;
    let body = json!({"spec": {}});
    let member = user("ann", UserRole::Member, None);
    api.send_as(member, post(TOKEN, &body))
        .await
        .refused(403, "Forbidden");
    let lead = user("lea", UserRole::Lead, Some(&["default"]));
    let answer = api.send_as(lead, post(TOKEN, &body)).await.is(201);
    assert_eq!(answer["kind"], "TokenRequest");
    assert_eq!(answer["spec"]["expirationSeconds"], 3600);
    api.post(&format!("{ACCOUNTS}/none/token"), &body)
        .await
        .refused(404, "NotFound");
    let dry = api
        .post(&format!("{TOKEN}?dryRun=All"), &body)
        .await
        .is(201);
    assert_eq!(dry["status"]["token"], "");
}

#[tokio::test]
async fn what_a_token_is_bound_to_ends_it() {
    let api = Api::new();
    account(&api).await;
    let mut worker = pod("worker");
    worker["spec"]["serviceAccountName"] = "builder".into();
    api.post(PODS, &worker).await.is(201);
    api.post(PODS, &pod("other")).await.is(201);
    let to = |kind: &str, name: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}});
    let plain = issued(&api, json!({})).await;
    let bound = issued(&api, to("Pod", "worker")).await;
    assert!(accepted(&api, &plain).await && accepted(&api, &bound).await);

    let refuse = async |spec: Value| {
        api.post(TOKEN, &json!({"spec": spec}))
            .await
            .status
            .as_u16()
    };
    assert_eq!(refuse(to("Pod", "other")).await, 400);
    assert_eq!(refuse(to("Pod", "none")).await, 404);
    assert_eq!(refuse(to("Node", "n1")).await, 422);
    let mut stale = to("Pod", "worker");
    stale["boundObjectRef"]["uid"] = "another".into();
    assert_eq!(refuse(stale).await, 409);

    api.delete(&format!("{PODS}/worker"), None).await.is(200);
    assert!(!accepted(&api, &bound).await);
    // A new pod of the same name is a different pod.
    api.post(PODS, &worker).await.is(201);
    assert!(!accepted(&api, &bound).await);
    assert!(accepted(&api, &plain).await);
    api.delete(&format!("{ACCOUNTS}/builder"), None)
        .await
        .is(200);
    assert!(!accepted(&api, &plain).await);
    account(&api).await;
    assert!(!accepted(&api, &plain).await);
}

#[tokio::test]
async fn a_token_that_was_changed_is_none() {
    let api = Api::new();
    account(&api).await;
    let token = issued(&api, json!({})).await;
    let parts: Vec<&str> = token.split('.').collect();
    let none = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0";
    let forged = [
        format!("{}.{}.", parts[0], parts[1]),
        format!("{none}.{}.", parts[1]),
        format!("{none}.{}.{}", parts[1], parts[2]),
        format!("{}.{}A.{}", parts[0], parts[1], parts[2]),
        "a.b.c".to_owned(),
        "..".to_owned(),
    ];
    for token in forged {
        assert!(!accepted(&api, &token).await, "{token}");
    }
    // A signature with another server's key is invalid here.
    let other = Api::new();
    account(&other).await;
    assert!(!accepted(&other, &token).await);
    assert!(accepted(&api, &token).await);
}

static NOW: AtomicI64 = AtomicI64::new(1_900_000_000);

fn now() -> Timestamp {
    Timestamp::from_second(NOW.load(Ordering::Relaxed)).unwrap()
}

#[tokio::test]
async fn a_token_ends_with_its_time_whose_bounds_are_kubernetes_own() {
    let config = ApiConfig {
        now,
        ..ApiConfig::default()
    };
    let api = Api::with(Options::default(), config);
    account(&api).await;
    for (seconds, code) in [
        (599, 422),
        (600, 201),
        (1i64 << 32, 201),
        ((1i64 << 32) + 1, 422),
        (-1, 422),
        (i64::MAX, 422),
    ] {
        let body = json!({"spec": {"expirationSeconds": seconds}});
        let answer = api.post(TOKEN, &body).await;
        assert_eq!(answer.status.as_u16(), code, "{seconds} {}", answer.text);
    }
    let token = issued(&api, json!({"expirationSeconds": 600})).await;
    NOW.fetch_add(599, Ordering::Relaxed);
    assert!(accepted(&api, &token).await);
    NOW.fetch_add(1, Ordering::Relaxed);
    assert!(!accepted(&api, &token).await);
}

#[tokio::test]
async fn a_token_for_others_is_not_taken_here_and_reviewed_for_them() {
    let api = Api::new();
    account(&api).await;
    let token = issued(&api, json!({"audiences": ["vault"]})).await;
    assert!(!accepted(&api, &token).await);
    let review = async |audiences: Value| {
        let body = json!({"spec": {"token": token, "audiences": audiences}});
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        api.post(path, &body).await.is(201)["status"].clone()
    };
    let known = review(json!(["vault", "other"])).await;
    assert_eq!(known["authenticated"], true);
    assert_eq!(known["audiences"], json!(["vault"]));
    assert_eq!(
        known["user"]["username"],
        "system:serviceaccount:default:builder"
    );
    assert_eq!(review(json!(["other"])).await["authenticated"], false);
    assert_eq!(review(json!([])).await["authenticated"], false);
    let many: Vec<String> = (0..33).map(|i| i.to_string()).collect();
    api.post(TOKEN, &json!({"spec": {"audiences": many}}))
        .await
        .refused(422, "Invalid");
}

#[tokio::test]
async fn without_the_key_no_token_is_taken_or_issued() {
    let api = Api::new();
    account(&api).await;
    let token = issued(&api, json!({})).await;
    let key = "/api/v1/namespaces/muster-system/secrets/service-account-key";
    api.delete(key, None).await.is(200);
    assert!(!accepted(&api, &token).await);
    api.post(TOKEN, &json!({"spec": {}}))
        .await
        .refused(503, "ServiceUnavailable");
}
