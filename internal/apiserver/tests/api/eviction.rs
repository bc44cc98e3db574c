//! POST pods/NAME/eviction.

use serde_json::json;

use crate::harness::{Api, PODS, pod};

#[tokio::test]
async fn an_evicted_pod_says_why_and_gets_its_grace() {
    let api = Api::new();
    api.post(PODS, &pod("a")).await.is(201);
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{PODS}/a/binding"), &binding)
        .await
        .is(201);
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"},
        "deleteOptions": {"gracePeriodSeconds": 7},
    });
    api.post(&format!("{PODS}/a/eviction"), &eviction)
        .await
        .is(201);
    let evicted = api.get(&format!("{PODS}/a")).await.is(200);
    assert_eq!(evicted["metadata"]["deletionGracePeriodSeconds"], 7);
    let conditions = evicted["status"]["conditions"].as_array().unwrap();
    let target = conditions
        .iter()
        .find(|one| one["type"] == "DisruptionTarget")
        .unwrap();
    assert_eq!(target["reason"], "EvictionByEvictionAPI");
    api.post(
        &format!("{PODS}/none/eviction"),
        &json!({"metadata": {"name": "none"}}),
    )
    .await
    .refused(404, "NotFound");
}
