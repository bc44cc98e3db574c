//! PATCH: JSON patch, merge patch, strategic merge patch.

use serde_json::json;

use crate::harness::{Api, CONFIG_MAPS, JOBS, PODS, config_map, pod, pytorch_job};

const JSON: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

#[tokio::test]
async fn a_json_patch_is_carried_out_step_by_step() {
    let api = Api::new();
    let path = format!("{CONFIG_MAPS}/a");
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let patch = json!([
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "add", "path": "/data/b", "value": "2"},
        {"op": "remove", "path": "/data/a"},
    ]);
    let patched = api
        .call("PATCH", &path, JSON, patch.to_string())
        .await
        .is(200);
    assert_eq!(patched["data"], json!({"b": "2"}));
    api.call("PATCH", &path, JSON, patch.to_string())
        .await
        .refused(422, "Invalid");
    api.call("PATCH", &path, JSON, "{}")
        .await
        .refused(400, "BadRequest");
}

#[tokio::test]
async fn a_merge_patch_sets_and_removes() {
    let api = Api::new();
    let path = format!("{CONFIG_MAPS}/a");
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let patched = api
        .merge(&path, &json!({"data": {"a": null, "b": "2"}}))
        .await
        .is(200);
    assert_eq!(patched["data"], json!({"b": "2"}));
    let message = api
        .merge(&path, &json!({"metadata": {"resourceVersion": "1"}}))
        .await
        .refused(409, "Conflict");
    assert!(
        message.contains("the object has been modified"),
        "{message}"
    );
}

#[tokio::test]
async fn a_strategic_merge_patch_merges_lists_by_key_in_built_in_kinds_only() {
    let api = Api::new();
    let mut object = pod("a");
    object["spec"]["tolerations"] = json!([{"key": "x", "operator": "Exists"}]);
    api.post(PODS, &object).await.is(201);
    let patch = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let path = format!("{PODS}/a/status");
    let first = api
        .call("PATCH", &path, STRATEGIC, patch.to_string())
        .await
        .is(200);
    let conditions = first["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|one| one["type"] == "Ready"));
    let patch = json!({"status": {"conditions": [{"type": "Initialized", "status": "True"}]}});
    let second = api
        .call("PATCH", &path, STRATEGIC, patch.to_string())
        .await
        .is(200);
    assert_eq!(
        second["status"]["conditions"].as_array().unwrap().len(),
        conditions.len() + 1
    );

    api.post(JOBS, &pytorch_job("a", 1)).await.is(201);
    let message = api
        .call(
            "PATCH",
            &format!("{JOBS}/a"),
            STRATEGIC,
            json!({"metadata": {"labels": {"a": "b"}}}).to_string(),
        )
        .await
        .refused(415, "UnsupportedMediaType");
    assert!(
        message.contains("application/merge-patch+json"),
        "{message}"
    );
}

#[tokio::test]
async fn a_patch_of_an_unknown_kind_is_refused() {
    let api = Api::new();
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let answer = api
        .call(
            "PATCH",
            &format!("{CONFIG_MAPS}/a"),
            "application/json",
            "{}",
        )
        .await;
    answer.refused(415, "UnsupportedMediaType");
}

#[tokio::test]
async fn a_dry_run_patch_writes_nothing() {
    let api = Api::new();
    let path = format!("{CONFIG_MAPS}/a");
    let made = api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let patched = api
        .merge(&format!("{path}?dryRun=All"), &json!({"data": {"a": "2"}}))
        .await
        .is(200);
    assert_eq!(patched["data"]["a"], "2");
    assert_eq!(api.get(&path).await.is(200), made);
}
