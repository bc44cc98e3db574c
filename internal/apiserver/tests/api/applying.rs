//! Server-side apply.

use serde_json::{Value, json};

use crate::harness::{Api, CONFIG_MAPS, config_map};

fn with(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

fn path(manager: &str) -> String {
    format!("{CONFIG_MAPS}/a?fieldManager={manager}")
}

#[tokio::test]
async fn an_apply_creates_what_is_not_there() {
    let api = Api::new();
    let made = api
        .apply(&path("one"), &with(json!({"a": "1"})))
        .await
        .is(201);
    assert_eq!(made["data"]["a"], "1");
    let managers = made["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(
        (managers.len(), &managers[0]["operation"]),
        (1, &json!("Apply"))
    );
    let again = api
        .apply(&path("one"), &with(json!({"a": "1"})))
        .await
        .is(200);
    assert_eq!(
        again["metadata"]["resourceVersion"],
        made["metadata"]["resourceVersion"]
    );
}

#[tokio::test]
async fn another_managers_field_is_a_conflict_until_it_is_forced() {
    let api = Api::new();
    api.apply(&path("one"), &with(json!({"a": "1"})))
        .await
        .is(201);
    let status = api
        .apply(&path("two"), &with(json!({"a": "2"})))
        .await
        .is(409);
    assert_eq!(status["reason"], "Conflict");
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "FieldManagerConflict"
    );
    assert_eq!(status["details"]["causes"][0]["field"], ".data.a");
    let message = status["message"].as_str().unwrap();
    assert_eq!(
        message,
        "Apply failed with 1 conflict: conflict with \"one\": .data.a"
    );
    let forced = api
        .apply(
            &format!("{}&force=true", path("two")),
            &with(json!({"a": "2"})),
        )
        .await
        .is(200);
    assert_eq!(forced["data"]["a"], "2");
}

#[tokio::test]
async fn what_a_manager_no_longer_applies_goes() {
    let api = Api::new();
    api.apply(&path("one"), &with(json!({"a": "1", "b": "2"})))
        .await
        .is(201);
    let less = api
        .apply(&path("one"), &with(json!({"b": "2"})))
        .await
        .is(200);
    assert_eq!(less["data"], json!({"b": "2"}));
}

#[tokio::test]
async fn an_apply_needs_a_manager_and_its_version_to_be_current() {
    let api = Api::new();
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let nameless = format!("{CONFIG_MAPS}/a");
    let message = api
        .apply(&nameless, &with(json!({})))
        .await
        .refused(400, "BadRequest");
    assert!(
        message.contains("fieldManager: Required value: is required for apply patch"),
        "{message}"
    );
    let mut pinned = with(json!({"b": "2"}));
    pinned["metadata"]["resourceVersion"] = "1".into();
    api.apply(&path("one"), &pinned)
        .await
        .refused(409, "Conflict");
}

#[tokio::test]
async fn an_update_takes_ownership_that_an_apply_then_meets() {
    let api = Api::new();
    api.apply(&path("one"), &with(json!({"a": "1"})))
        .await
        .is(201);
    api.merge(&path("editor"), &json!({"data": {"a": "9"}}))
        .await
        .is(200);
    let message = api
        .apply(&path("one"), &with(json!({"a": "1"})))
        .await
        .refused(409, "Conflict");
    assert!(message.contains("\"editor\""), "{message}");
}

#[tokio::test]
async fn yaml_is_applied_too() {
    let api = Api::new();
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: v\n";
    let answer = api
        .call("PATCH", &path("one"), "application/apply-patch+yaml", yaml)
        .await;
    assert_eq!(answer.is(201)["data"]["k"], "v");
}

#[tokio::test]
async fn the_creator_of_a_pod_does_not_own_what_admission_adds() {
    let api = Api::new();
    let sent = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    let pods = "/api/v1/namespaces/default/pods";
    let made = api
        .post(&format!("{pods}?fieldManager=client"), &sent)
        .await
        .is(201);
    assert_eq!(made["spec"]["priority"], 0);
    let owned = &made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert!(owned["f:restartPolicy"].is_object(), "{owned}");
    for added in ["f:priority", "f:preemptionPolicy"] {
        assert!(owned[added].is_null(), "{added}: {owned}");
    }
}
