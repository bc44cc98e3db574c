//! GET of collections.

use serde_json::{Value, json};
use store::Options;

use crate::harness::{Api, CONFIG_MAPS, PODS, config_map, names, pod};
use apiserver::ApiConfig;

async fn with_five(api: &Api) {
    for name in ["a", "b", "c", "d", "e"] {
        let mut object = config_map(name);
        object["metadata"]["labels"] = json!({"vowel": (name == "a" || name == "e").to_string()});
        api.post(CONFIG_MAPS, &object).await.is(201);
    }
}

fn continued(list: &Value) -> String {
    format!(
        "{CONFIG_MAPS}?limit=2&continue={}",
        list["metadata"]["continue"].as_str().unwrap()
    )
}

#[tokio::test]
async fn pages_show_one_state_whatever_is_written_meanwhile() {
    let api = Api::new();
    with_five(&api).await;
    let first = api.get(&format!("{CONFIG_MAPS}?limit=2")).await.is(200);
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    api.delete(&format!("{CONFIG_MAPS}/c"), None).await.is(200);
    api.post(CONFIG_MAPS, &config_map("bb")).await.is(201);
    api.merge(
        &format!("{CONFIG_MAPS}/d"),
        &json!({"data": {"a": "changed"}}),
    )
    .await
    .is(200);
    let second = api.get(&continued(&first)).await.is(200);
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(second["items"][1]["data"]["a"], "1");
    assert_eq!(
        second["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let third = api.get(&continued(&second)).await.is(200);
    assert_eq!(names(&third), ["e"]);
    assert!(third["metadata"].get("continue").is_none());
}

#[tokio::test]
async fn pages_of_a_selection_hold_what_was_selected() {
    let api = Api::new();
    with_five(&api).await;
    let first = api
        .get(&format!("{CONFIG_MAPS}?limit=1&labelSelector=vowel%3Dtrue"))
        .await
        .is(200);
    assert_eq!(names(&first), ["a"]);
    assert!(first["metadata"].get("remainingItemCount").is_none());
    let next = first["metadata"]["continue"].as_str().unwrap();
    let second = api
        .get(&format!(
            "{CONFIG_MAPS}?limit=1&labelSelector=vowel%3Dtrue&continue={next}"
        ))
        .await
        .is(200);
    assert_eq!(names(&second), ["e"]);
    assert!(second["metadata"].get("continue").is_none());
}

#[tokio::test]
async fn an_expired_page_answers_gone_with_a_new_token() {
    let options = Options {
        history: 4,
        ..Options::default()
    };
    let api = Api::with(options, ApiConfig::default());
    with_five(&api).await;
    let first = api.get(&format!("{CONFIG_MAPS}?limit=2")).await.is(200);
    for value in 0..6 {
        api.merge(
            &format!("{CONFIG_MAPS}/a"),
            &json!({"data": {"a": format!("v{value}")}}),
        )
        .await
        .is(200);
    }
    let status = api.get(&continued(&first)).await.is(410);
    assert_eq!(status["reason"], "Expired");
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .starts_with("The provided continue parameter is too old")
    );
    let rest = api.get(&continued(&status)).await.is(200);
    assert_eq!(names(&rest), ["c", "d"]);
}

#[tokio::test]
async fn selectors_choose_by_labels_and_fields() {
    let api = Api::new();
    with_five(&api).await;
    let by = |query: &str| format!("{CONFIG_MAPS}?{query}");
    for (query, expected) in [
        ("labelSelector=vowel%3Dtrue", vec!["a", "e"]),
        ("labelSelector=vowel%21%3Dtrue", vec!["b", "c", "d"]),
        ("labelSelector=vowel+in+(true,none)", vec!["a", "e"]),
        ("labelSelector=!vowel", vec![]),
        ("fieldSelector=metadata.name%3Db", vec!["b"]),
        (
            "fieldSelector=metadata.name!%3Db&labelSelector=vowel%3Dfalse",
            vec!["c", "d"],
        ),
        ("fieldSelector=metadata.namespace%3Dother", vec![]),
    ] {
        assert_eq!(
            names(&api.get(&by(query)).await.is(200)),
            expected,
            "{query}"
        );
    }
    let message = api
        .get(&by("fieldSelector=data.a%3D1"))
        .await
        .refused(400, "BadRequest");
    assert!(
        message.ends_with("field label not supported: data.a"),
        "{message}"
    );
    api.get(&by("labelSelector=%3D%3D"))
        .await
        .refused(400, "BadRequest");
}

#[tokio::test]
async fn pods_are_found_by_node_and_phase() {
    let api = Api::new();
    api.post(PODS, &pod("a")).await.is(201);
    api.post(PODS, &pod("b")).await.is(201);
    let binding = json!({"metadata": {"name": "b"}, "target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{PODS}/b/binding"), &binding)
        .await
        .is(201);
    let found = api
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
        .await
        .is(200);
    assert_eq!(names(&found), ["b"]);
    let found = api
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3D,status.phase%3DPending")
        .await
        .is(200);
    assert_eq!(names(&found), ["a"]);
}

#[tokio::test]
async fn a_list_can_be_of_an_exact_revision_and_never_of_one_to_come() {
    let api = Api::new();
    with_five(&api).await;
    let before = api.get(CONFIG_MAPS).await.is(200);
    let revision = before["metadata"]["resourceVersion"].as_str().unwrap();
    api.delete(&format!("{CONFIG_MAPS}/a"), None).await.is(200);
    let exact = api
        .get(&format!(
            "{CONFIG_MAPS}?resourceVersion={revision}&resourceVersionMatch=Exact"
        ))
        .await
        .is(200);
    assert_eq!(names(&exact).len(), 5);
    let newer =
        format!("{CONFIG_MAPS}?resourceVersion={revision}&resourceVersionMatch=NotOlderThan");
    assert_eq!(names(&api.get(&newer).await.is(200)).len(), 4);
    let status = api
        .get(&format!("{CONFIG_MAPS}?resourceVersion=999999"))
        .await
        .is(504);
    assert_eq!(
        status["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
    api.get(&format!("{CONFIG_MAPS}?resourceVersion=x"))
        .await
        .refused(400, "BadRequest");
    api.get(&format!("{CONFIG_MAPS}?resourceVersionMatch=Exact"))
        .await
        .refused(400, "BadRequest");
    api.get(&format!("{CONFIG_MAPS}?continue=garbage"))
        .await
        .refused(400, "BadRequest");
}

#[tokio::test]
async fn a_long_list_comes_whole() {
    let api = Api::new();
    let creations = (0..200).map(|index| {
        let api = &api;
        async move {
            let mut object = config_map(&format!("m{index:03}"));
            object["data"]["long"] = "x".repeat(1000).into();
            api.post(CONFIG_MAPS, &object).await.is(201);
        }
    });
    futures::future::join_all(creations).await;
    let list = api.get(CONFIG_MAPS).await.is(200);
    assert_eq!(list["kind"], "ConfigMapList");
    assert_eq!(names(&list).len(), 200);
    assert_eq!(
        names(&api.get("/api/v1/configmaps").await.is(200)).len(),
        200
    );
}
