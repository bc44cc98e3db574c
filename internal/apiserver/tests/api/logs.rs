//! GET pods/NAME/log.

use std::sync::Arc;

use apiserver::{LogError, LogRequest};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, stream};
use serde_json::json;

use crate::harness::{Api, PODS, pod};

async fn api() -> Api {
    let api = Api::new();
    api.server.set_log_opener(Arc::new(|request: LogRequest| {
        async move {
            if request.previous {
                return Err(LogError::NotFound("there was no run before".into()));
            }
            let said = format!(
                "{} {} {:?} {}",
                request.node, request.container, request.tail, request.follow
            );
            Ok(stream::iter([Ok(Bytes::from(said)), Ok(Bytes::from("\nend\n"))]).boxed())
        }
        .boxed()
    }));
    let mut object = pod("a");
    object["spec"]["containers"] =
        json!([{"name": "one", "command": ["a"]}, {"name": "two", "command": ["b"]}]);
    api.post(PODS, &object).await.is(201);
    api
}

async fn bind(api: &Api) {
    let binding = json!({"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}});
    api.post(&format!("{PODS}/a/binding"), &binding)
        .await
        .is(201);
}

#[tokio::test]
async fn a_log_is_passed_on_as_text() {
    let api = api().await;
    bind(&api).await;
    let answer = api
        .get(&format!(
            "{PODS}/a/log?container=two&tailLines=5&follow=true"
        ))
        .await;
    assert_eq!(answer.headers["content-type"], "text/plain");
    assert_eq!(answer.text, "n1 two Some(5) true\nend\n");
}

#[tokio::test]
async fn the_container_must_be_named_when_there_are_several() {
    let api = api().await;
    bind(&api).await;
    let message = api
        .get(&format!("{PODS}/a/log"))
        .await
        .refused(400, "BadRequest");
    assert_eq!(
        message,
        "a container name must be specified for pod a, choose one of: [one two]"
    );
    let message = api
        .get(&format!("{PODS}/a/log?container=three"))
        .await
        .refused(400, "BadRequest");
    assert_eq!(message, "container three is not valid for pod a");
    let message = api
        .get(&format!("{PODS}/a/log?container=one&previous=true"))
        .await
        .refused(404, "NotFound");
    assert_eq!(message, "there was no run before");
    api.get(&format!("{PODS}/none/log"))
        .await
        .refused(404, "NotFound");
}

#[tokio::test]
async fn a_pod_without_a_node_has_an_empty_log() {
    let api = api().await;
    let answer = api.get(&format!("{PODS}/a/log?container=one")).await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, ""));
}
