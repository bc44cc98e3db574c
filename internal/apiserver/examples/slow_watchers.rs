//! Prints the memory that 200 slow watchers of 5,000 objects take, which start one group after
//! another while every object changes between the groups. `cargo run --example slow_watchers`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use apiserver::{ApiConfig, ApiServer};
use axum::Extension;
use axum::body::Body;
use futures::StreamExt as _;
use http::{Request, StatusCode};
use resources::access::Caller;
use tower::ServiceExt as _;

const OBJECTS: usize = 5_000;
const GROUPS: usize = 10;
const WATCHERS: usize = 20;
const PATH: &str = "/api/v1/namespaces/default/configmaps";

/// The process's resident memory, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::main]
async fn main() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let opening = tokio::task::spawn_blocking(move || {
        let options = store::Options {
            history: 1_000,
            ..store::Options::default()
        };
        ApiServer::open(
            store::Store::open(&path, options).unwrap(),
            ApiConfig::default(),
        )
        .unwrap()
    });
    let server = opening.await.unwrap();
    let router = server
        .router()
        .layer(Extension(Caller::component("measurement")));
    let send = |method: &'static str, path: String, body: String| {
        let router = router.clone();
        async move {
            let request = Request::builder().method(method).uri(path);
            let kind = if method == "PATCH" {
                "application/merge-patch+json"
            } else {
                "application/json"
            };
            let request = request
                .header("content-type", kind)
                .body(Body::from(body))
                .unwrap();
            let response = router.oneshot(request).await.unwrap();
            assert!(response.status().is_success(), "{}", response.status());
        }
    };
    let text = "x".repeat(2_000);
    let create = |at: usize| {
        let body = format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"m{at:05}\"}},\"data\":{{\"a\":\"{text}\"}}}}"
        );
        send("POST", PATH.to_owned(), body)
    };
    futures::stream::iter((0..OBJECTS).map(create))
        .buffer_unordered(256)
        .collect::<Vec<_>>()
        .await;
    let rewrite = async |round: usize| {
        let change = |at: usize| {
            let body = format!("{{\"data\":{{\"b\":\"{round}\"}}}}");
            send("PATCH", format!("{PATH}/m{at:05}"), body)
        };
        futures::stream::iter((0..OBJECTS).map(change))
            .buffer_unordered(256)
            .collect::<Vec<_>>()
            .await;
    };
    rewrite(0).await;
    rewrite(1).await;
    let before = resident();
    let mut held = Vec::new();
    for group in 0..GROUPS {
        for _ in 0..WATCHERS {
            let request = Request::get(format!("{PATH}?watch=true"))
                .body(Body::empty())
                .unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            let mut body = response.into_body().into_data_stream();
            // The first piece, and then nothing more.
            body.next().await.unwrap().unwrap();
            held.push(body);
        }
        rewrite(group + 2).await;
    }
    let after = resident();
    println!(
        "{} watchers of {OBJECTS} objects: {before} KiB before, {after} KiB after",
        held.len()
    );
}
