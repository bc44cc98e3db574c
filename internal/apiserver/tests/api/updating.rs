//! PUT.

use serde_json::json;

use crate::harness::{Api, CONFIG_MAPS, JOBS, PODS, config_map, pod, pytorch_job};

#[tokio::test]
async fn an_update_from_an_old_version_is_a_conflict() {
    let api = Api::new();
    let path = format!("{CONFIG_MAPS}/a");
    let first = api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let mut next = first.clone();
    next["data"]["a"] = "2".into();
    let second = api.put(&path, &next).await.is(200);
    assert_ne!(
        first["metadata"]["resourceVersion"],
        second["metadata"]["resourceVersion"]
    );
    next["data"]["a"] = "3".into();
    let message = api.put(&path, &next).await.refused(409, "Conflict");
    assert_eq!(
        message,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again"
    );
    next["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("resourceVersion");
    assert_eq!(api.put(&path, &next).await.is(200)["data"]["a"], "3");
}

#[tokio::test]
async fn an_update_that_changes_nothing_writes_nothing() {
    let api = Api::new();
    let first = api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let again = api.put(&format!("{CONFIG_MAPS}/a"), &first).await.is(200);
    assert_eq!(again, first);
}

#[tokio::test]
async fn what_the_server_owns_cannot_be_changed() {
    let api = Api::new();
    let first = api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let path = format!("{CONFIG_MAPS}/a");
    let mut next = first.clone();
    next["metadata"]["creationTimestamp"] = "2000-01-01T00:00:00Z".into();
    next["metadata"]["labels"] = json!({"x": "y"});
    let second = api.put(&path, &next).await.is(200);
    assert_eq!(
        second["metadata"]["creationTimestamp"],
        first["metadata"]["creationTimestamp"]
    );
    assert_eq!(second["metadata"]["labels"]["x"], "y");
    let mut other = second.clone();
    other["metadata"]["uid"] = "another".into();
    let message = api.put(&path, &other).await.refused(409, "Conflict");
    assert!(
        message.contains("Precondition failed: UID in precondition: another"),
        "{message}"
    );
    let mut renamed = second;
    renamed["metadata"]["name"] = "b".into();
    let message = api.put(&path, &renamed).await.refused(400, "BadRequest");
    assert_eq!(
        message,
        "the name of the object (b) does not match the name on the URL (a)"
    );
    api.put(&format!("{CONFIG_MAPS}/b"), &config_map("b"))
        .await
        .refused(404, "NotFound");
}

#[tokio::test]
async fn spec_and_status_are_written_apart_and_only_spec_bumps_the_generation() {
    let api = Api::new();
    let path = format!("{JOBS}/a");
    let mut sent = pytorch_job("a", 2);
    sent["status"] = json!({"startTime": "2026-01-01T00:00:00Z"});
    let first = api.post(JOBS, &sent).await.is(201);
    assert!(first["status"].get("startTime").is_none(), "{first}");
    assert_eq!(first["metadata"]["generation"], 1);

    let mut next = first.clone();
    next["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 3.into();
    next["status"] = json!({"startTime": "2026-01-01T00:00:00Z"});
    let second = api.put(&path, &next).await.is(200);
    assert_eq!(second["metadata"]["generation"], 2);
    assert!(second["status"].get("startTime").is_none());

    let mut status = second.clone();
    status["status"] = json!({"startTime": "2026-01-01T00:00:00Z"});
    status["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = 9.into();
    let third = api.put(&format!("{path}/status"), &status).await.is(200);
    assert_eq!(third["metadata"]["generation"], 2);
    assert_eq!(third["status"]["startTime"], "2026-01-01T00:00:00Z");
    assert_eq!(
        third["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"],
        3
    );
}

#[tokio::test]
async fn a_custom_resource_is_updated_only_from_a_known_version() {
    let api = Api::new();
    api.post(JOBS, &pytorch_job("a", 2)).await.is(201);
    let message = api
        .put(&format!("{JOBS}/a"), &pytorch_job("a", 3))
        .await
        .refused(422, "Invalid");
    assert!(
        message.contains(
            "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        ),
        "{message}"
    );
}

#[tokio::test]
async fn a_running_pods_spec_stays_as_it_is() {
    let api = Api::new();
    let mut next = api.post(PODS, &pod("a")).await.is(201);
    next["spec"]["containers"][0]["command"] = json!(["false"]);
    let message = api
        .put(&format!("{PODS}/a"), &next)
        .await
        .refused(422, "Invalid");
    assert!(
        message.contains("spec: Forbidden: pod updates may not change fields"),
        "{message}"
    );
}

#[tokio::test]
async fn concurrent_updates_lose_no_write() {
    let api = Api::new();
    let path = format!("{CONFIG_MAPS}/a");
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let writes = (0..16).map(|index| {
        let (api, path) = (&api, &path);
        async move {
            let key = format!("k{index}");
            api.merge(path, &json!({"data": {key: "x"}})).await.is(200);
        }
    });
    futures::future::join_all(writes).await;
    let last = api.get(&path).await.is(200);
    assert_eq!(last["data"].as_object().unwrap().len(), 17);
}

#[tokio::test]
async fn a_status_write_may_change_labels_and_only_to_usable_ones() {
    let api = Api::new();
    let first = api.post(PODS, &pod("a")).await.is(201);
    let status = format!("{PODS}/a/status");
    let mut next = first.clone();
    next["metadata"]["labels"] = json!({"cpu": "\u{0}\u{7f}\r\n"});
    let message = api.put(&status, &next).await.refused(422, "Invalid");
    assert!(
        message.contains("metadata.labels: Invalid value"),
        "{message}"
    );
    next["metadata"]["labels"] = json!({"cpu": "fast"});
    next["metadata"]["annotations"] = json!({"not a key": "x"});
    let message = api.put(&status, &next).await.refused(422, "Invalid");
    assert!(
        message.contains("metadata.annotations: Invalid value"),
        "{message}"
    );
    next["metadata"]["annotations"] = json!({"a": "b"});
    let written = api.put(&status, &next).await.is(200);
    assert_eq!(written["metadata"]["labels"]["cpu"], "fast");
}
