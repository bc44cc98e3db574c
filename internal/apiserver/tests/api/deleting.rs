//! DELETE of one object and of collections.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Api, CONFIG_MAPS, JOBS, PODS, config_map, names, pod, pytorch_job};

/// Binds a pod, so that its deletion waits for an agent.
async fn running(api: &Api, name: &str) -> Value {
    api.post(PODS, &pod(name)).await.is(201);
    let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{PODS}/{name}/binding"), &binding)
        .await
        .is(201);
    api.get(&format!("{PODS}/{name}")).await.is(200)
}

#[tokio::test]
async fn a_deletion_is_answered_with_a_status_and_the_object_is_gone() {
    let api = Api::new();
    let made = api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let status = api.delete(&format!("{CONFIG_MAPS}/a"), None).await.is(200);
    assert_eq!(status["status"], "Success");
    assert_eq!(status["details"]["uid"], made["metadata"]["uid"]);
    api.get(&format!("{CONFIG_MAPS}/a"))
        .await
        .refused(404, "NotFound");
    api.delete(&format!("{CONFIG_MAPS}/a"), None)
        .await
        .refused(404, "NotFound");
}

#[tokio::test]
async fn a_deletion_can_be_tied_to_one_object_and_one_version() {
    let api = Api::new();
    let path = format!("{CONFIG_MAPS}/a");
    let made = api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let with = |field: &str, value: &str| json!({"preconditions": {field: value}});
    let message = api
        .delete(&path, Some(&with("uid", "other")))
        .await
        .refused(409, "Conflict");
    assert!(
        message.contains("Precondition failed: UID in precondition: other"),
        "{message}"
    );
    api.delete(&path, Some(&with("resourceVersion", "1")))
        .await
        .refused(409, "Conflict");
    let uid = made["metadata"]["uid"].as_str().unwrap();
    api.delete(&path, Some(&with("uid", uid))).await.is(200);
}

#[tokio::test]
async fn a_pod_that_never_ran_goes_at_once() {
    let api = Api::new();
    api.post(PODS, &pod("a")).await.is(201);
    let last = api.delete(&format!("{PODS}/a"), None).await.is(200);
    assert_eq!(last["kind"], "Pod");
    api.get(&format!("{PODS}/a")).await.refused(404, "NotFound");
}

#[tokio::test]
async fn a_running_pod_gets_its_grace_and_the_agent_ends_it() {
    let api = Api::new();
    let path = format!("{PODS}/a");
    let live = running(&api, "a").await;
    let marked = api.delete(&path, None).await.is(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let again = api.delete(&path, None).await.is(200);
    assert_eq!(
        again["metadata"]["resourceVersion"],
        marked["metadata"]["resourceVersion"]
    );
    let shorter = api
        .delete(&path, Some(&json!({"gracePeriodSeconds": 5})))
        .await
        .is(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    let longer = api
        .delete(&path, Some(&json!({"gracePeriodSeconds": 60})))
        .await
        .is(200);
    assert_eq!(longer["metadata"]["deletionGracePeriodSeconds"], 5);

    let confirm =
        json!({"gracePeriodSeconds": 0, "preconditions": {"uid": live["metadata"]["uid"]}});
    api.delete(&path, Some(&confirm)).await.is(200);
    api.get(&path).await.refused(404, "NotFound");
}

#[tokio::test]
async fn a_finalizer_holds_an_object_until_it_is_taken_away() {
    let api = Api::new();
    let path = format!("{CONFIG_MAPS}/a");
    let mut object = config_map("a");
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(CONFIG_MAPS, &object).await.is(201);
    let held = api.delete(&path, None).await.is(200);
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    let more = json!({"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}});
    let message = api.merge(&path, &more).await.refused(422, "Invalid");
    assert!(
        message.contains("no new finalizers can be added if the object is being deleted"),
        "{message}"
    );
    api.merge(&path, &json!({"metadata": {"finalizers": null}}))
        .await
        .is(200);
    api.get(&path).await.refused(404, "NotFound");
}

#[tokio::test]
async fn what_becomes_of_dependents_is_left_as_a_finalizer_for_the_collector() {
    let api = Api::new();
    for (policy, finalizer) in [("Foreground", "foregroundDeletion"), ("Orphan", "orphan")] {
        let path = format!("{JOBS}/{}", policy.to_lowercase());
        api.post(JOBS, &pytorch_job(&policy.to_lowercase(), 1))
            .await
            .is(201);
        let held = api
            .delete(&path, Some(&json!({"propagationPolicy": policy})))
            .await
            .is(200);
        assert_eq!(held["metadata"]["finalizers"], json!([finalizer]));
        api.merge(&path, &json!({"metadata": {"finalizers": []}}))
            .await
            .is(200);
        api.get(&path).await.refused(404, "NotFound");
    }
    api.post(JOBS, &pytorch_job("b", 1)).await.is(201);
    let gone = api
        .delete(
            &format!("{JOBS}/b"),
            Some(&json!({"propagationPolicy": "Background"})),
        )
        .await
        .is(200);
    assert_eq!(gone["status"], "Success");
    api.delete(&format!("{JOBS}/b?propagationPolicy=Sideways"), None)
        .await
        .refused(400, "BadRequest");
}

#[tokio::test]
async fn a_plain_job_keeps_its_pods_unless_asked_and_says_so() {
    let api = Api::new();
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "command": ["true"]}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": {"template": template}});
    api.post(jobs, &job).await.is(201);
    let answer = api.delete(&format!("{jobs}/a"), None).await;
    assert!(
        answer.warnings()[0].contains("child pods are preserved by default"),
        "{:?}",
        answer.warnings()
    );
    assert_eq!(answer.is(200)["metadata"]["finalizers"], json!(["orphan"]));
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    let api = Api::new();
    for (name, color) in [("a", "red"), ("b", "blue"), ("c", "red")] {
        let mut object = config_map(name);
        object["metadata"]["labels"] = json!({"color": color});
        api.post(CONFIG_MAPS, &object).await.is(201);
    }
    api.delete(
        &format!("{CONFIG_MAPS}?labelSelector=color%3Dred&dryRun=All"),
        None,
    )
    .await
    .is(200);
    assert_eq!(names(&api.get(CONFIG_MAPS).await.is(200)).len(), 3);
    let gone = api
        .delete(&format!("{CONFIG_MAPS}?labelSelector=color%3Dred"), None)
        .await
        .is(200);
    assert_eq!(names(&gone), ["a", "c"]);
    assert_eq!(names(&api.get(CONFIG_MAPS).await.is(200)), ["b"]);
}

/// Of a large collection the answer is a Status: a list would be held in memory as a whole.
#[tokio::test]
async fn a_large_collection_is_deleted_with_a_status() {
    let api = Api::new();
    let text = "x".repeat(1024 * 1024);
    for at in 0..9 {
        let mut object = config_map(&format!("large-{at}"));
        object["data"] = json!({"text": text});
        api.post(CONFIG_MAPS, &object).await.is(201);
    }
    let answer = api.delete(CONFIG_MAPS, None).await.is(200);
    assert_eq!(answer["kind"], "Status");
    assert_eq!(answer["status"], "Success");
    assert_eq!(answer["details"]["kind"], "configmaps");
    assert!(names(&api.get(CONFIG_MAPS).await.is(200)).is_empty());
}

#[tokio::test]
async fn a_namespace_going_away_takes_nothing_new_and_goes_when_finalized() {
    let api = Api::new();
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    let made = api.post("/api/v1/namespaces", &space).await.is(201);
    assert_eq!(made["status"]["phase"], "Active");
    let marked = api.delete("/api/v1/namespaces/team", None).await.is(200);
    assert_eq!(marked["status"]["phase"], "Terminating");
    let status = api
        .post("/api/v1/namespaces/team/configmaps", &config_map("a"))
        .await
        .is(403);
    assert_eq!(
        status["message"],
        "configmaps \"a\" is forbidden: unable to create new content in namespace team because it is being terminated"
    );
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "NamespaceTerminating"
    );
    let mut finalized = marked;
    finalized["spec"]["finalizers"] = json!([]);
    api.put("/api/v1/namespaces/team/finalize", &finalized)
        .await
        .is(200);
    api.get("/api/v1/namespaces/team")
        .await
        .refused(404, "NotFound");
    api.delete("/api/v1/namespaces/default", None)
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn a_deleted_objects_event_carries_the_deletions_revision() {
    let api = Api::new();
    let made = api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let from = made["metadata"]["resourceVersion"].as_str().unwrap();
    let mut frames = api
        .watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={from}"))
        .await;
    api.delete(&format!("{CONFIG_MAPS}/a"), None).await.is(200);
    let frame = tokio::time::timeout(Duration::from_secs(60), frames.next())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(frame["type"], "DELETED");
    let revision: u64 = frame["object"]["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!(revision > from.parse().unwrap());
    assert_eq!(frame["object"]["data"], made["data"]);
}

#[tokio::test]
async fn a_namespaces_finalizers_are_a_list_of_texts() {
    let api = Api::new();
    let path = "/api/v1/namespaces/default";
    let before = api.get(path).await.is(200);
    for finalizers in [json!("kubernetes"), json!([1]), json!({})] {
        let body = json!({"metadata": {"name": "default"}, "spec": {"finalizers": finalizers}});
        let answer = api.put(&format!("{path}/finalize"), &body).await;
        answer.refused(400, "BadRequest");
    }
    assert_eq!(api.get(path).await.is(200), before);
}
