//! POST.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apiserver::ApiConfig;
use serde_json::{Value, json};
use store::Options;

use crate::harness::{Api, CONFIG_MAPS, PODS, config_map, pod, request, user};
use resources::access::{Caller, UserRole};

#[tokio::test]
async fn a_created_object_has_what_the_server_sets() {
    let api = Api::new();
    let made = api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let meta = &made["metadata"];
    assert_eq!(meta["namespace"], "default");
    assert_eq!(meta["uid"].as_str().unwrap().len(), 36);
    assert!(meta["creationTimestamp"].as_str().unwrap().ends_with('Z'));
    assert!(
        meta["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
            > 0
    );
    assert!(meta.get("selfLink").is_none());
    assert_eq!(api.get(&format!("{CONFIG_MAPS}/a")).await.is(200), made);
}

#[tokio::test]
async fn a_name_taken_is_refused_in_kubernetes_words() {
    let api = Api::new();
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let message = api
        .post(CONFIG_MAPS, &config_map("a"))
        .await
        .refused(409, "AlreadyExists");
    assert_eq!(message, "configmaps \"a\" already exists");
    let message = api
        .get(&format!("{CONFIG_MAPS}/b"))
        .await
        .refused(404, "NotFound");
    assert_eq!(message, "configmaps \"b\" not found");
}

#[tokio::test]
async fn a_generated_name_is_the_prefix_and_five_letters() {
    let api = Api::new();
    let mut object = config_map("x");
    object["metadata"] = json!({"generateName": "run-"});
    let first = api.post(CONFIG_MAPS, &object).await.is(201);
    let second = api.post(CONFIG_MAPS, &object).await.is(201);
    let name = first["metadata"]["name"].as_str().unwrap();
    assert_eq!((name.len(), &name[..4]), (9, "run-"));
    assert_ne!(first["metadata"]["name"], second["metadata"]["name"]);
    object["metadata"] = json!({});
    let message = api.post(CONFIG_MAPS, &object).await.refused(422, "Invalid");
    assert!(
        message.contains("metadata.name: Required value: name or generateName is required"),
        "{message}"
    );
}

#[tokio::test]
async fn an_object_needs_its_namespace() {
    let api = Api::new();
    let message = api
        .post("/api/v1/namespaces/none/configmaps", &config_map("a"))
        .await
        .refused(404, "NotFound");
    assert_eq!(message, "namespaces \"none\" not found");
    let mut object = config_map("a");
    object["metadata"]["namespace"] = "other".into();
    let message = api
        .post(CONFIG_MAPS, &object)
        .await
        .refused(400, "BadRequest");
    assert_eq!(
        message,
        "the namespace of the provided object does not match the namespace sent on the request"
    );
}

#[tokio::test]
async fn the_kind_and_version_in_a_body_must_be_the_paths() {
    let api = Api::new();
    let message = api
        .post(PODS, &config_map("a"))
        .await
        .refused(400, "BadRequest");
    assert!(
        message.contains("does not match the expected kind (Pod)"),
        "{message}"
    );
}

#[tokio::test]
async fn an_invalid_object_names_each_field_at_fault() {
    let api = Api::new();
    let mut object = pod("a");
    object["spec"]["containers"] =
        json!([{"name": "Not_A_Name"}, {"name": "b", "imagePullPolicy": "Perhaps"}]);
    let status = api.post(PODS, &object).await.is(422);
    assert_eq!(status["reason"], "Invalid");
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with("Pod \"a\" is invalid: ["), "{message}");
    assert_eq!(status["details"]["kind"], "Pod");
    let fields: Vec<&str> = status["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| cause["field"].as_str().unwrap())
        .collect();
    assert!(fields.contains(&"spec.containers[0].name"), "{fields:?}");
}

#[tokio::test]
async fn a_dry_run_returns_the_result_and_writes_nothing() {
    let api = Api::new();
    let before = api.get(CONFIG_MAPS).await.is(200)["metadata"]["resourceVersion"].clone();
    let made = api
        .post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("a"))
        .await
        .is(201);
    assert_eq!(made["metadata"]["name"], "a");
    assert_eq!(made["metadata"]["resourceVersion"], "");
    api.get(&format!("{CONFIG_MAPS}/a"))
        .await
        .refused(404, "NotFound");
    assert_eq!(
        api.get(CONFIG_MAPS).await.is(200)["metadata"]["resourceVersion"],
        before
    );
}

#[tokio::test]
async fn an_unknown_field_warns_is_refused_or_is_ignored_as_the_client_says() {
    let api = Api::new();
    let mut object = pod("a");
    object["spec"]["foo"] = 1.into();
    let answer = api.post(&format!("{PODS}?dryRun=All"), &object).await;
    assert_eq!(
        answer.warnings(),
        ["299 - \"unknown field \\\"spec.foo\\\"\""]
    );
    assert!(answer.is(201)["spec"].get("foo").is_none());

    let message = api
        .post(&format!("{PODS}?fieldValidation=Strict"), &object)
        .await
        .refused(400, "BadRequest");
    assert!(
        message.ends_with("strict decoding error: unknown field \"spec.foo\""),
        "{message}"
    );

    let answer = api
        .post(&format!("{PODS}?fieldValidation=Ignore"), &object)
        .await;
    assert!(answer.warnings().is_empty());
    assert!(answer.is(201)["spec"].get("foo").is_none());
}

#[tokio::test]
async fn a_duplicate_key_is_reported_like_an_unknown_field() {
    let api = Api::new();
    let body = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"x":"1","x":"2"}}"#;
    let strict = format!("{CONFIG_MAPS}?fieldValidation=Strict");
    let message = api
        .call("POST", &strict, "application/json", body)
        .await
        .refused(400, "BadRequest");
    assert!(
        message.ends_with("strict decoding error: duplicate field \"data.x\""),
        "{message}"
    );
    let answer = api
        .call("POST", CONFIG_MAPS, "application/json", body)
        .await;
    assert_eq!(answer.warnings().len(), 1);
    assert_eq!(answer.is(201)["data"]["x"], "2");
}

#[tokio::test]
async fn a_value_of_the_wrong_type_is_refused() {
    let api = Api::new();
    let mut object = pod("a");
    object["spec"]["containers"] = "many".into();
    let message = api.post(PODS, &object).await.refused(400, "BadRequest");
    assert!(
        message.starts_with("Pod in version \"v1\" cannot be handled as a Pod:"),
        "{message}"
    );
}

#[tokio::test]
async fn yaml_and_protobuf_are_taken_and_other_formats_are_not() {
    let api = Api::new();
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  creationTimestamp: null\ndata:\n  k: v\n";
    let answer = api
        .call("POST", CONFIG_MAPS, "application/yaml", yaml)
        .await;
    let made = answer.is(201);
    assert_eq!(made["data"]["k"], "v");
    let answer = api.call("POST", CONFIG_MAPS, "application/cbor", "x").await;
    let message = answer.refused(415, "UnsupportedMediaType");
    assert!(message.contains("application/json"), "{message}");
    // runtime.Unknown of a v1 ConfigMap with metadata.name "b", as Go's typed clients send it.
    let sent = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x05\x0a\x03\x0a\x01b".to_vec();
    let answer = api
        .call(
            "POST",
            CONFIG_MAPS,
            "application/vnd.kubernetes.protobuf",
            sent,
        )
        .await;
    assert_eq!(answer.is(201)["metadata"]["name"], "b");
    let text = api
        .get_as(&format!("{CONFIG_MAPS}/a"), "application/yaml")
        .await
        .text;
    assert!(text.contains("kind: ConfigMap"), "{text}");
    api.get_as(&format!("{CONFIG_MAPS}/a"), "text/html")
        .await
        .refused(406, "NotAcceptable");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let api = Api::new();
    let body = vec![b' '; 3 * 1024 * 1024 + 1];
    let answer = api
        .call("POST", CONFIG_MAPS, "application/json", body)
        .await;
    let message = answer.refused(413, "RequestEntityTooLarge");
    assert_eq!(message, "Request entity too large: limit is 3145728");
}

#[tokio::test]
async fn who_is_unknown_or_not_permitted_gets_nowhere() {
    let api = Api::new();
    let ask = || request("GET", PODS, "", "");
    assert_eq!(
        api.send_unknown(ask()).await.refused(401, "Unauthorized"),
        "Unauthorized"
    );
    let viewer = user("eve", UserRole::Viewer, None);
    api.send_as(viewer.clone(), ask()).await.is(200);
    let create = request("POST", PODS, "application/json", pod("a").to_string());
    let message = api.send_as(viewer, create).await.refused(403, "Forbidden");
    assert_eq!(
        message,
        "pods is forbidden: User \"eve\" cannot create resource \"pods\" in API group \"\" in the namespace \"default\""
    );
}

#[tokio::test]
async fn what_is_no_resource_or_no_verb_of_it_is_refused() {
    let api = Api::new();
    api.get("/api/v1/namespaces/default/unicorns")
        .await
        .refused(404, "NotFound");
    api.get("/apis/none/v1/things")
        .await
        .refused(404, "NotFound");
    api.get("/api/v1/namespaces/default/nodes")
        .await
        .refused(404, "NotFound");
    api.get(&format!("{CONFIG_MAPS}/a/status"))
        .await
        .refused(404, "NotFound");
    api.put(CONFIG_MAPS, &Value::Null)
        .await
        .refused(405, "MethodNotAllowed");
    api.post("/api/v1/configmaps", &config_map("a"))
        .await
        .refused(405, "MethodNotAllowed");
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_answers_reads() {
    let full = Arc::new(AtomicBool::new(false));
    let seen = full.clone();
    let options = Options {
        free_bytes: Arc::new(move |_: &Path| {
            Ok(if seen.load(Ordering::Relaxed) {
                0
            } else {
                u64::MAX
            })
        }),
        ..Options::default()
    };
    let api = Api::with(options, ApiConfig::default());
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    full.store(true, Ordering::Relaxed);
    let message = api
        .post(CONFIG_MAPS, &config_map("b"))
        .await
        .refused(503, "ServiceUnavailable");
    assert!(message.contains("disk is full"), "{message}");
    api.get(&format!("{CONFIG_MAPS}/a")).await.is(200);
}

#[tokio::test]
async fn on_a_full_disk_deletions_go_on_to_their_end_and_a_session_is_kept() {
    let full = Arc::new(AtomicBool::new(false));
    let seen = full.clone();
    let options = Options {
        // Between the two floors: the reserve file has been removed.
        free_bytes: Arc::new(move |_: &Path| {
            Ok(if seen.load(Ordering::Relaxed) {
                16 << 20
            } else {
                u64::MAX
            })
        }),
        ..Options::default()
    };
    let api = Api::with(options, ApiConfig::default());
    let mut held = config_map("held");
    held["metadata"]["finalizers"] = json!(["example.com/holds"]);
    api.post(CONFIG_MAPS, &held).await.is(201);
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    full.store(true, Ordering::Relaxed);
    api.delete(&format!("{CONFIG_MAPS}/a"), None).await.is(200);
    api.get(&format!("{CONFIG_MAPS}/a"))
        .await
        .refused(404, "NotFound");
    // An object that is being deleted may lose its finalizers, but may not grow.
    let at = format!("{CONFIG_MAPS}/held");
    let mut held = api.delete(&at, None).await.is(200);
    held["data"] = json!({"much": "x".repeat(5000)});
    api.put(&at, &held).await.refused(503, "ServiceUnavailable");
    held["data"] = Value::Null;
    held["metadata"]["finalizers"] = json!([]);
    api.put(&at, &held).await.is(200);
    api.get(&at).await.refused(404, "NotFound");
    // A session's Secret is accepted, another one is not.
    let secrets = "/api/v1/namespaces/muster-system/secrets";
    let secret = |name: &str, size: usize| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "stringData": {"record": "x".repeat(size)},
        })
    };
    let as_identity = |body: Value| {
        let body = body.to_string();
        let request = request("POST", secrets, "application/json", body);
        api.send_as(Caller::component("identity"), request)
    };
    as_identity(secret("token-a", 300)).await.is(201);
    as_identity(secret("token-b", 9000))
        .await
        .refused(503, "ServiceUnavailable");
    api.post(secrets, &secret("other", 300))
        .await
        .refused(503, "ServiceUnavailable");
}

#[tokio::test]
async fn an_object_whose_record_is_damaged_is_neither_there_nor_gone_until_it_is_created_anew() {
    let dir = tempfile::tempdir().unwrap();
    let quarantine = dir.path().join("quarantine");
    std::fs::create_dir(&quarantine).unwrap();
    let record = "muster-quarantine 1\nkey /core/configmaps/default/a\nreason its checksum is wrong\nrevision 7\n\n";
    std::fs::write(quarantine.join("1.held"), record).unwrap();
    let api = Api::over(dir, Options::default(), ApiConfig::default());
    let at = format!("{CONFIG_MAPS}/a");
    // Not 404: the garbage collector would conclude that the object is gone, and delete its
    // dependents.
    let message = api.get(&at).await.refused(500, "InternalError");
    assert!(message.contains("its checksum is wrong"), "{message}");
    assert!(message.contains("create the object again"), "{message}");
    api.delete(&at, None).await.refused(500, "InternalError");
    api.merge(&at, &json!({"data": {}}))
        .await
        .refused(500, "InternalError");
    api.get(&format!("{CONFIG_MAPS}/b"))
        .await
        .refused(404, "NotFound");
    api.get(CONFIG_MAPS).await.is(200);
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    api.get(&at).await.is(200);
    api.delete(&at, None).await.is(200);
    api.get(&at).await.refused(404, "NotFound");
}

#[tokio::test]
async fn what_follows_from_a_generated_name_follows_from_the_one_that_was_kept() {
    let api = Api::new();
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "command": ["true"]}]}});
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "run-"}, "spec": {"template": template},
    });
    let made = api
        .post("/apis/batch/v1/namespaces/default/jobs", &job)
        .await
        .is(201);
    assert_eq!(
        made["metadata"]["labels"]["job-name"],
        made["metadata"]["name"]
    );
}
