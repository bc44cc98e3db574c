//! POST pods/NAME/binding.

use resources::access::Caller;
use serde_json::json;

use crate::harness::{Api, PODS, pod, request};

#[tokio::test]
async fn a_pod_is_bound_once_with_the_devices_chosen_for_it() {
    let api = Api::new();
    let made = api.post(PODS, &pod("a")).await.is(201);
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": "a", "uid": made["metadata"]["uid"], "annotations": {"muster.io/devices": "{}"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    });
    let sent = request(
        "POST",
        &format!("{PODS}/a/binding"),
        "application/json",
        binding.to_string(),
    );
    // Only Muster's own components set devices.
    let status = api
        .send_as(Caller::component("scheduler"), sent)
        .await
        .is(201);
    assert_eq!(status["status"], "Success");
    let bound = api.get(&format!("{PODS}/a")).await.is(200);
    assert_eq!(bound["spec"]["nodeName"], "n1");
    assert_eq!(bound["metadata"]["annotations"]["muster.io/devices"], "{}");
    let conditions = bound["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|one| one["type"] == "PodScheduled" && one["status"] == "True")
    );
    let message = api
        .post(&format!("{PODS}/a/binding"), &binding)
        .await
        .refused(409, "Conflict");
    assert_eq!(
        message,
        "Operation cannot be fulfilled on pods/binding \"a\": pod a is already assigned to node \"n1\""
    );
}

#[tokio::test]
async fn a_binding_for_another_pod_of_the_name_is_refused() {
    let api = Api::new();
    api.post(PODS, &pod("a")).await.is(201);
    let other = json!({"metadata": {"name": "a", "uid": "other"}, "target": {"name": "n1"}});
    let message = api
        .post(&format!("{PODS}/a/binding"), &other)
        .await
        .refused(409, "Conflict");
    assert!(
        message.contains("Precondition failed: UID in precondition: other"),
        "{message}"
    );
    let nowhere = json!({"metadata": {"name": "a"}, "target": {}});
    api.post(&format!("{PODS}/a/binding"), &nowhere)
        .await
        .refused(422, "Invalid");
}

#[tokio::test]
async fn bindings_can_be_posted_to_their_collection() {
    let api = Api::new();
    api.post(PODS, &pod("a")).await.is(201);
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    api.post("/api/v1/namespaces/default/bindings", &binding)
        .await
        .is(201);
    assert_eq!(
        api.get(&format!("{PODS}/a")).await.is(200)["spec"]["nodeName"],
        "n1"
    );
}

#[tokio::test]
async fn of_two_bindings_at_once_one_wins() {
    let api = Api::new();
    api.post(PODS, &pod("a")).await.is(201);
    let bind = |node: &'static str| {
        let api = &api;
        async move {
            let binding =
                json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": node}});
            api.post(&format!("{PODS}/a/binding"), &binding)
                .await
                .status
                .as_u16()
        }
    };
    let (first, second) = tokio::join!(bind("n1"), bind("n2"));
    assert_eq!(
        [first, second].iter().filter(|code| **code == 201).count(),
        1
    );
    assert_eq!(
        [first, second].iter().filter(|code| **code == 409).count(),
        1
    );
}

#[tokio::test]
async fn a_binding_that_would_leave_a_damaged_pod_is_refused() {
    let api = Api::new();
    api.post(PODS, &pod("a")).await.is(201);
    let path = format!("{PODS}/a/binding");
    let with = |annotations: serde_json::Value, node: &str| json!({"metadata": {"annotations": annotations}, "target": {"kind": "Node", "name": node}});
    let number = with(json!({"a": 1}), "n1");
    api.post(&path, &number).await.refused(400, "BadRequest");
    let key = with(json!({"no key": "x"}), "n1");
    api.post(&path, &key).await.refused(422, "Invalid");
    let node = with(json!({}), "no name");
    api.post(&path, &node).await.refused(422, "Invalid");
    api.post(&path, &with(json!({"a": "1"}), "n1"))
        .await
        .is(201);
}
