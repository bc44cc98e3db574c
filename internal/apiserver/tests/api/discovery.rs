//! What the server says of itself.

use resources::access::Role;
use serde_json::json;

use crate::harness::{Api, admin, request};

const AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

#[tokio::test]
async fn every_registered_kind_is_discovered_in_both_forms() {
    let api = Api::new();
    let core = api.get_as("/api", AGGREGATED).await;
    assert_eq!(
        core.headers["content-type"],
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    );
    let groups = api.get_as("/apis", AGGREGATED).await.is(200);
    let both: Vec<_> = core.is(200)["items"]
        .as_array()
        .unwrap()
        .iter()
        .chain(groups["items"].as_array().unwrap())
        .cloned()
        .collect();
    for kind in resources::registry::all() {
        let group = both
            .iter()
            .find(|item| item["metadata"]["name"].as_str().unwrap_or_default() == kind.group)
            .unwrap();
        let version = group["versions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["version"] == kind.version)
            .unwrap();
        let found = version["resources"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["resource"] == kind.plural)
            .unwrap();
        assert_eq!(found["responseKind"]["kind"], kind.kind);

        let root = if kind.group.is_empty() {
            "/api/v1".to_string()
        } else {
            format!("/apis/{}", kind.api_version())
        };
        let list = api.get(&root).await.is(200);
        assert!(
            list["resources"]
                .as_array()
                .unwrap()
                .iter()
                .any(|one| one["name"] == kind.plural),
            "{}",
            kind.plural
        );
    }
    assert_eq!(api.get("/api").await.is(200)["versions"], json!(["v1"]));
    let groups = api.get("/apis").await.is(200);
    assert!(
        groups["groups"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["name"] == "kubeflow.org")
    );
    assert_eq!(
        api.get("/apis/batch").await.is(200)["preferredVersion"]["groupVersion"],
        "batch/v1"
    );
}

#[tokio::test]
async fn the_version_and_health_are_open_to_all_and_the_rest_is_not() {
    let api = Api::new();
    let version = api
        .send_unknown(request("GET", "/version", "", ""))
        .await
        .is(200);
    assert_eq!(
        (&version["major"], &version["minor"]),
        (&json!("1"), &json!("34"))
    );
    assert_eq!(
        api.send_unknown(request("GET", "/readyz", "", ""))
            .await
            .text,
        "ok"
    );
    api.send_unknown(request("GET", "/apis", "", ""))
        .await
        .refused(401, "Unauthorized");
    api.send_unknown(request("GET", "/openapi/v2", "", ""))
        .await
        .refused(401, "Unauthorized");
}

#[tokio::test]
async fn openapi_documents_exist_for_every_group_and_are_kept_by_their_hash() {
    let api = Api::new();
    let index = api.get("/openapi/v3").await.is(200);
    for (name, entry) in index["paths"].as_object().unwrap() {
        let url = entry["serverRelativeURL"].as_str().unwrap();
        let answer = api.get(url).await;
        assert!(
            answer.headers["cache-control"]
                .to_str()
                .unwrap()
                .contains("immutable"),
            "{name}"
        );
        assert!(
            answer.is(200)["components"]["schemas"].is_object(),
            "{name}"
        );
    }
    let old = api.get("/openapi/v3/api/v1?hash=0").await;
    assert_eq!(old.status.as_u16(), 301);
    assert!(
        api.get("/openapi/v2").await.is(200)["definitions"]["io.k8s.api.core.v1.Pod"].is_object()
    );
}

#[tokio::test]
async fn callers_can_ask_who_they_are_and_what_they_may_do() {
    let api = Api::new();
    let mut member = admin();
    member.user = "eve".into();
    member.role = Role::Viewer;
    let ask = |verb: &str| {
        let review = json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "spec": {"resourceAttributes": {"verb": verb, "resource": "pods", "namespace": "default"}}});
        request(
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "application/json",
            review.to_string(),
        )
    };
    assert_eq!(
        api.send_as(member.clone(), ask("list")).await.is(201)["status"]["allowed"],
        true
    );
    assert_eq!(
        api.send_as(member.clone(), ask("create")).await.is(201)["status"]["allowed"],
        false
    );
    let who = request(
        "POST",
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        "application/json",
        "{}",
    );
    assert_eq!(
        api.send_as(member.clone(), who).await.is(201)["status"]["userInfo"]["username"],
        "eve"
    );
    let rules = json!({"spec": {"namespace": "default"}}).to_string();
    let list = request(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        "application/json",
        rules,
    );
    let rules = api.send_as(member, list).await.is(201);
    let rule = rules["status"]["resourceRules"]
        .as_array()
        .unwrap()
        .iter()
        .find(|rule| rule["resources"][0] == "pods");
    assert_eq!(rule.unwrap()["verbs"], json!(["get", "list", "watch"]));
}
