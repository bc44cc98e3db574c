//! Discovery: versions, groups, resources, health.

use resources::access::UserRole;
use serde_json::json;

use crate::harness::{Api, request, user};

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
async fn callers_can_review_their_identity_and_rights() {
    let api = Api::new();
    let member = user("eve", UserRole::Viewer, None);
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
        .find(|rule| {
            let resources = rule["resources"].as_array().unwrap();
            resources.contains(&json!("pods"))
        });
    assert_eq!(rule.unwrap()["verbs"], json!(["get", "list", "watch"]));
}

#[tokio::test]
async fn a_review_is_answered_with_its_kind_and_is_refused_with_fields_of_other_types() {
    let api = Api::new();
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = api.post(path, &json!({"spec": {}})).await.is(201);
    assert_eq!(answer["kind"], "SelfSubjectAccessReview");
    assert_eq!(answer["apiVersion"], "authorization.k8s.io/v1");
    for spec in [json!("x"), json!({"resourceAttributes": {"verb": 1}})] {
        let refused = api.post(path, &json!({ "spec": spec })).await;
        refused.refused(400, "BadRequest");
    }
}

#[tokio::test]
async fn what_a_definition_requires_of_a_status_is_in_the_answer_whether_it_was_sent_or_not() {
    let api = Api::new();
    let sent = json!({
        "metadata": {"name": "n"},
        "status": {"conditions": [{"type": "Ready"}], "addresses": [{}]},
    });
    let status = api.post("/api/v1/nodes", &sent).await.is(201)["status"].clone();
    assert_eq!(status["conditions"][0]["status"], "");
    assert_eq!(status["addresses"][0], json!({"type": "", "address": ""}));
}

#[tokio::test]
async fn what_a_definition_requires_is_in_the_answer_where_it_may_be_left_out() {
    let api = Api::new();
    let default = "/api/v1/namespaces/default";
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let made = async |path: &str, mut object: serde_json::Value| {
        object["metadata"] = json!({"name": "a"});
        api.post(path, &object).await.is(201)
    };
    let event = made(&format!("{default}/events"), json!({})).await;
    assert_eq!(event["involvedObject"], json!({}));
    let range = made(&format!("{default}/limitranges"), json!({"spec": {}})).await;
    assert_eq!(range["spec"]["limits"], json!([]));
    let slice = made(slices, json!({"addressType": "IPv4"})).await;
    assert_eq!(slice["endpoints"], json!([]));
    assert_eq!(made(classes, json!({})).await["value"], 0);
}

#[tokio::test]
async fn the_document_lists_what_creations_bindings_and_deletions_are_answered_with() {
    let api = Api::new();
    let document = api.get("/openapi/v3/api/v1").await.is(200);
    let pods = "/api/v1/namespaces/{namespace}/pods";
    let schema = |path: String, method: &str, code: &str| {
        let answers = &document["paths"][path.as_str()][method]["responses"][code];
        answers["content"]["application/json"]["schema"].clone()
    };
    let named = |name: &str| json!({"$ref": format!("#/components/schemas/io.k8s.{name}")});
    let (pod, status) = (
        named("api.core.v1.Pod"),
        named("apimachinery.pkg.apis.meta.v1.Status"),
    );
    assert_eq!(schema(pods.to_owned(), "post", "201"), pod);
    assert_eq!(
        schema(format!("{pods}/{{name}}/binding"), "post", "201"),
        status
    );
    assert_eq!(schema(format!("{pods}/{{name}}"), "delete", "200"), pod);
    let config_map = named("api.core.v1.ConfigMap");
    assert_eq!(
        schema(
            "/api/v1/namespaces/{namespace}/configmaps/{name}".into(),
            "delete",
            "200"
        ),
        json!({"anyOf": [status, config_map]})
    );
}
