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
        "apiVersion": "policy/v1", "kind": "Eviction",
        // Only the scheduler's own request may give a reason.
        "metadata": {"name": "a", "annotations": {"muster.io/eviction-reason": "Preempted: by job forged"}},
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
    assert_eq!(target["message"], "Eviction API: evicting");
    api.post(
        &format!("{PODS}/none/eviction"),
        &json!({"metadata": {"name": "none"}}),
    )
    .await
    .refused(404, "NotFound");
}

#[tokio::test]
async fn an_eviction_that_would_break_a_budget_is_refused_until_it_would_not() {
    let api = Api::new();
    for name in ["a", "b"] {
        let mut pod = pod(name);
        pod["metadata"]["labels"] = json!({"app": "web"});
        api.post(PODS, &pod).await.is(201);
        let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}});
        api.post(&format!("{PODS}/{name}/binding"), &binding)
            .await
            .is(201);
        let mut live = api.get(&format!("{PODS}/{name}")).await.is(200);
        live["status"]["phase"] = json!("Running");
        api.put(&format!("{PODS}/{name}/status"), &live)
            .await
            .is(200);
    }
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    api.post(budgets, &budget).await.is(201);
    let evict = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    api.post(&format!("{PODS}/a/eviction"), &evict("a"))
        .await
        .is(201);
    // One of them is terminating: the other must stay.
    api.post(&format!("{PODS}/b/eviction"), &evict("b"))
        .await
        .refused(429, "TooManyRequests");
    api.delete(&format!("{budgets}/web"), None).await.is(200);
    api.post(&format!("{PODS}/b/eviction"), &evict("b"))
        .await
        .is(201);
}

#[tokio::test]
async fn a_budgets_condition_without_its_time_is_refused_and_evictions_go_on() {
    let api = Api::new();
    api.post(PODS, &pod("a")).await.is(201);
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "all"},
        "spec": {"minAvailable": 0, "selector": {}},
    });
    let mut budget = api.post(budgets, &budget).await.is(201);
    let status = format!("{budgets}/all/status");
    budget["status"] = json!({"conditions": [{"type": "DisruptionAllowed", "status": "True", "reason": "Enough"}]});
    let message = api.put(&status, &budget).await.refused(422, "Invalid");
    assert!(
        message.contains("status.conditions[0].lastTransitionTime: Required value"),
        "{message}"
    );
    budget["status"]["conditions"][0]["lastTransitionTime"] = "2026-11-24T00:00:00Z".into();
    budget["status"]["conditions"][0]["message"] = "".into();
    api.put(&status, &budget).await.is(200);
    let evict = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    api.post(&format!("{PODS}/a/eviction"), &evict)
        .await
        .is(201);
}
