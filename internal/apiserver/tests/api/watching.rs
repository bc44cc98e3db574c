//! WATCH.

use std::time::Duration;

use apiserver::ApiConfig;
use apiserver::limits::{INITIAL_PAGE, WATCHES_PER_USER};
use serde_json::{Value, json};
use store::Options;

use crate::harness::{Api, CONFIG_MAPS, config_map};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

fn colored(name: &str, color: &str) -> Value {
    let mut object = config_map(name);
    object["metadata"]["labels"] = json!({"color": color});
    object
}

#[tokio::test]
async fn a_watch_resumes_where_a_list_ended_without_gap_or_repeat() {
    let api = Api::new();
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let list = api.get(CONFIG_MAPS).await.is(200);
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap();
    api.post(CONFIG_MAPS, &config_map("b")).await.is(201);
    let mut frames = api
        .watch(&format!(
            "{CONFIG_MAPS}?watch=true&resourceVersion={revision}"
        ))
        .await;
    assert_eq!(frames.pair().await, ("ADDED".into(), "b".into()));
    api.merge(&format!("{CONFIG_MAPS}/a"), &json!({"data": {"a": "2"}}))
        .await
        .is(200);
    let frame = frames.next().await.unwrap();
    assert_eq!(
        (&frame["type"], &frame["object"]["data"]["a"]),
        (&json!("MODIFIED"), &json!("2"))
    );
    let seen = frame["object"]["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_string();
    drop(frames);
    api.delete(&format!("{CONFIG_MAPS}/a"), None).await.is(200);
    let mut frames = api
        .watch(&format!("{CONFIG_MAPS}?watch=true&resourceVersion={seen}"))
        .await;
    assert_eq!(frames.pair().await, ("DELETED".into(), "a".into()));
}

#[tokio::test]
async fn a_watch_without_a_revision_begins_with_what_is_there() {
    let api = Api::new();
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let mut frames = api.watch(&format!("{CONFIG_MAPS}?watch=true")).await;
    assert_eq!(frames.pair().await, ("ADDED".into(), "a".into()));
    api.post(CONFIG_MAPS, &config_map("b")).await.is(201);
    assert_eq!(frames.pair().await, ("ADDED".into(), "b".into()));
}

#[tokio::test]
async fn what_begins_or_ceases_to_match_is_added_or_deleted() {
    let api = Api::new();
    let mut frames = api
        .watch(&format!(
            "{CONFIG_MAPS}?watch=true&labelSelector=color%3Dred"
        ))
        .await;
    api.post(CONFIG_MAPS, &colored("a", "blue")).await.is(201);
    let paint = |color: &str| json!({"metadata": {"labels": {"color": color}}});
    let path = format!("{CONFIG_MAPS}/a");
    api.merge(&path, &paint("red")).await.is(200);
    assert_eq!(frames.pair().await, ("ADDED".into(), "a".into()));
    api.merge(&path, &json!({"data": {"b": "1"}})).await.is(200);
    assert_eq!(frames.pair().await, ("MODIFIED".into(), "a".into()));
    api.merge(&path, &paint("blue")).await.is(200);
    assert_eq!(frames.pair().await, ("DELETED".into(), "a".into()));
    api.delete(&path, None).await.is(200);
    api.post(CONFIG_MAPS, &colored("b", "red")).await.is(201);
    assert_eq!(frames.pair().await, ("ADDED".into(), "b".into()));
}

#[tokio::test]
async fn a_streamed_list_ends_with_a_bookmark_that_says_so() {
    let api = Api::new();
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut frames = api.watch(&format!("{CONFIG_MAPS}?{query}")).await;
    assert_eq!(frames.pair().await, ("ADDED".into(), "a".into()));
    let bookmark = frames.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(
        bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    let revision = &bookmark["object"]["metadata"]["resourceVersion"];
    assert_eq!(
        *revision,
        api.get(CONFIG_MAPS).await.is(200)["metadata"]["resourceVersion"]
    );
    let unmatched = format!("{CONFIG_MAPS}?watch=true&sendInitialEvents=true");
    api.get(&unmatched).await.refused(400, "BadRequest");
}

#[tokio::test]
async fn bookmarks_tell_of_progress_elsewhere() {
    let config = ApiConfig {
        bookmark_every: Duration::from_millis(20),
        ..ApiConfig::default()
    };
    let api = Api::with(Options::default(), config);
    let mut frames = api
        .watch(&format!(
            "{CONFIG_MAPS}?watch=true&allowWatchBookmarks=true"
        ))
        .await;
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    let written = api.post("/api/v1/namespaces", &space).await.is(201);
    let written = written["metadata"]["resourceVersion"].clone();
    loop {
        let frame = frames.next().await.unwrap();
        assert_eq!(frame["type"], "BOOKMARK");
        if frame["object"]["metadata"]["resourceVersion"] == written {
            break;
        }
    }
}

#[tokio::test]
async fn an_expired_revision_is_reported_in_the_stream_and_a_future_one_is_refused() {
    let options = Options {
        history: 4,
        ..Options::default()
    };
    let api = Api::with(options, ApiConfig::default());
    for index in 0..8 {
        api.post(CONFIG_MAPS, &config_map(&format!("m{index}")))
            .await
            .is(201);
    }
    let mut frames = api
        .watch(&format!("{CONFIG_MAPS}?watch=true&resourceVersion=1"))
        .await;
    let frame = frames.next().await.unwrap();
    assert_eq!(frame["type"], "ERROR");
    assert_eq!(
        (&frame["object"]["code"], &frame["object"]["reason"]),
        (&json!(410), &json!("Expired"))
    );
    assert!(
        frame["object"]["message"]
            .as_str()
            .unwrap()
            .starts_with("too old resource version: 1 (")
    );
    assert!(frames.next().await.is_none());
    api.get(&format!("{CONFIG_MAPS}?watch=true&resourceVersion=99999"))
        .await
        .is(504);
}

#[tokio::test]
async fn a_watch_ends_when_its_time_is_up() {
    let api = Api::new();
    let mut frames = api
        .watch(&format!("{CONFIG_MAPS}?watch=true&timeoutSeconds=1"))
        .await;
    assert!(frames.next().await.is_none());
}

#[tokio::test]
async fn one_object_can_be_watched_by_name() {
    let api = Api::new();
    let mut frames = api.watch(&format!("{CONFIG_MAPS}/b?watch=true")).await;
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    api.post(CONFIG_MAPS, &config_map("b")).await.is(201);
    assert_eq!(frames.pair().await, ("ADDED".into(), "b".into()));
}

#[tokio::test]
async fn a_table_is_watched_row_by_row() {
    let api = Api::new();
    let mut frames = api
        .watch_as(&format!("{CONFIG_MAPS}?watch=true"), TABLE)
        .await;
    api.post(CONFIG_MAPS, &config_map("a")).await.is(201);
    api.post(CONFIG_MAPS, &config_map("b")).await.is(201);
    let first = frames.next().await.unwrap();
    assert_eq!(first["object"]["kind"], "Table");
    assert_eq!(first["object"]["columnDefinitions"][0]["name"], "Name");
    assert_eq!(first["object"]["rows"][0]["cells"][0], "a");
    let second = frames.next().await.unwrap();
    assert!(second["object"]["columnDefinitions"].is_null());
    assert_eq!(
        second["object"]["rows"][0]["object"]["metadata"]["name"],
        "b"
    );
}

const STREAMED_LIST: &str =
    "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

/// An API with one object more than a watch reads at once.
async fn more_than_a_page(options: Options) -> Api {
    let api = Api::with(options, ApiConfig::default());
    for index in 0..=INITIAL_PAGE {
        let mut object = config_map(&format!("m{index:04}"));
        object["data"] = json!({"text": "x".repeat(512)});
        api.post(CONFIG_MAPS, &object).await.is(201);
    }
    api
}

#[tokio::test]
async fn a_streamed_list_of_several_pages_shows_one_revision_and_then_the_changes() {
    let api = more_than_a_page(Options::default()).await;
    let listed = api.get(&format!("{CONFIG_MAPS}?limit=1")).await.is(200);
    let revision = listed["metadata"]["resourceVersion"].clone();
    let mut frames = api.watch(&format!("{CONFIG_MAPS}?{STREAMED_LIST}")).await;
    assert_eq!(frames.pair().await, ("ADDED".into(), "m0000".into()));
    // The second page is read after these.
    let (last, before) = (
        format!("m{INITIAL_PAGE:04}"),
        format!("m{:04}", INITIAL_PAGE - 1),
    );
    let path = format!("{CONFIG_MAPS}/{last}");
    api.merge(&path, &json!({"data": {"text": "new"}}))
        .await
        .is(200);
    api.delete(&format!("{CONFIG_MAPS}/{before}"), None)
        .await
        .is(200);
    api.post(CONFIG_MAPS, &config_map("m9999")).await.is(201);
    for index in 1..=INITIAL_PAGE {
        let frame = frames.next().await.unwrap();
        assert_eq!(frame["type"], "ADDED");
        assert_eq!(frame["object"]["metadata"]["name"], format!("m{index:04}"));
        assert_ne!(frame["object"]["data"]["text"], "new");
    }
    let bookmark = frames.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], revision);
    assert_eq!(frames.pair().await, ("MODIFIED".into(), last));
    assert_eq!(frames.pair().await, ("DELETED".into(), before));
    assert_eq!(frames.pair().await, ("ADDED".into(), "m9999".into()));
}

#[tokio::test]
async fn a_streamed_list_that_is_slower_than_the_history_ends_with_410() {
    let options = Options {
        history: 4,
        ..Options::default()
    };
    let api = more_than_a_page(options).await;
    let mut frames = api.watch(&format!("{CONFIG_MAPS}?{STREAMED_LIST}")).await;
    assert_eq!(frames.pair().await, ("ADDED".into(), "m0000".into()));
    for index in 0..8 {
        let changed = json!({"data": {"text": index.to_string()}});
        api.merge(&format!("{CONFIG_MAPS}/m0000"), &changed)
            .await
            .is(200);
    }
    for _ in 1..INITIAL_PAGE {
        assert_eq!(frames.next().await.unwrap()["type"], "ADDED");
    }
    let frame = frames.next().await.unwrap();
    assert_eq!(
        (&frame["type"], &frame["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );
    assert!(frames.next().await.is_none());
}

#[tokio::test]
async fn a_watch_beyond_a_users_bound_is_answered_429_until_another_ends() {
    let api = Api::new();
    let path = format!("{CONFIG_MAPS}?watch=true");
    let mut held = Vec::new();
    for _ in 0..WATCHES_PER_USER {
        held.push(api.watch(&path).await);
    }
    let refused = api.get(&path).await;
    assert_eq!(refused.headers["retry-after"], "1");
    let message = refused.refused(429, "TooManyRequests");
    assert!(message.contains("512 watches open"), "{message}");
    // Other requests are not affected.
    api.get(CONFIG_MAPS).await.is(200);
    held.pop();
    held.push(api.watch(&path).await);
}
