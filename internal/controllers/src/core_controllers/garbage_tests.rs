//! The garbage collector against an API that counts its requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::Value;

use super::*;

/// How many times the API was asked for an object, and how many times to delete one.
#[derive(Clone, Default)]
struct Asked {
    gets: Arc<AtomicUsize>,
    deletes: Arc<AtomicUsize>,
}

impl Asked {
    /// An API that has no objects, and so nothing to delete either.
    fn client(&self) -> kube::Client {
        let asked = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let counter = match *request.method() {
                Method::GET => &asked.gets,
                Method::DELETE => &asked.deletes,
                _ => panic!("{} {}", request.method(), request.uri()),
            };
            counter.fetch_add(1, Ordering::SeqCst);
            let body = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "reason": "NotFound", "message": "not found", "code": 404,
            });
            let mut response = Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = StatusCode::NOT_FOUND;
            async move { Ok::<_, kube::Error>(response) }
        });
        kube::Client::new(service, "default")
    }

    fn counts(&self) -> (usize, usize) {
        let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
        (count(&self.gets), count(&self.deletes))
    }
}

fn owner(kind: &str, uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "name": "owner", "uid": uid})
}

fn map(version: u64, owners: Vec<Value>) -> Metadata {
    serde_json::from_value(json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {
            "name": "c", "namespace": "ns", "uid": "c", "resourceVersion": version.to_string(),
            "ownerReferences": owners,
        },
    }))
    .unwrap()
}

fn config_maps() -> &'static Kind {
    registry::by_kind("", "v1", "ConfigMap").unwrap()
}

/// Performs steps until none is due.
async fn settle(collector: &mut Collector) {
    while !collector.work.is_empty() {
        collector.work.ready().await;
        collector.act().await;
    }
}

#[tokio::test]
async fn absent_owners_are_asked_for_once_however_many_there_are() {
    let asked = Asked::default();
    let mut collector = Collector::new(asked.client(), &[config_maps()]);
    let many = ABSENT_FEW + 500;
    let owners = |count: usize| -> Vec<Value> {
        let uid = |n: usize| owner("Secret", &format!("gone-{n}"));
        (0..count).map(uid).collect()
    };
    collector.take(config_maps(), watcher::Event::Apply(map(1, owners(many))));
    settle(&mut collector).await;
    assert_eq!(
        asked.counts(),
        (many, 1),
        "each owner once, then the object goes"
    );
    // A change of the object causes no new request, and an owner that is named twice is requested
    // once.
    let mut more = owners(many);
    more.extend([owner("Secret", "new"), owner("Secret", "new")]);
    collector.take(config_maps(), watcher::Event::Apply(map(2, more)));
    settle(&mut collector).await;
    assert_eq!(asked.counts(), (many + 1, 2));
    collector.take(config_maps(), watcher::Event::Delete(map(2, Vec::new())));
    settle(&mut collector).await;
    assert_eq!(asked.counts(), (many + 1, 2));
}

#[tokio::test]
async fn an_owner_of_a_kind_that_is_not_watched_is_left_to_others() {
    let asked = Asked::default();
    let mut collector = Collector::new(asked.client(), &[config_maps()]);
    let owners = vec![owner("Event", "e"), owner("Thing", "t")];
    collector.take(config_maps(), watcher::Event::Apply(map(1, owners)));
    settle(&mut collector).await;
    assert_eq!(asked.counts(), (0, 0));
}

#[tokio::test]
async fn absent_owners_that_no_object_names_are_forgotten() {
    let mut collector = Collector::new(Asked::default().client(), &[config_maps()]);
    collector
        .graph
        .apply(node(config_maps(), map(1, vec![owner("Secret", "named")])));
    collector.is_absent("named".to_owned());
    for n in 0..ABSENT_FEW {
        collector.is_absent(format!("gone-{n}"));
    }
    assert_eq!(collector.absent, BTreeSet::from(["named".to_owned()]));
    assert_eq!(collector.absent_max, ABSENT_FEW);
}
