//! A panic over one object: an event names the object, and the loop goes on with the others. The
//! client panics on requests about objects named `bad`; the API behind it is the embedded one.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod served;

use std::collections::BTreeSet;
use std::time::Duration;

use controllers::Config;
use http::{Method, Request};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Endpoints, Event, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ListParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use served::served;

/// Far longer than any step here takes: a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client that panics instead of writing an object named `bad`.
fn wild(client: Client) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let path = parts.uri.path().to_owned();
            let named = path.contains("/bad")
                || path.ends_with("/endpoints")
                    && String::from_utf8_lossy(&body).contains("\"name\":\"bad\"");
            assert!(parts.method == Method::GET || !named, "over {path}");
            let request = Request::from_parts(parts, Body::from(body.to_vec()));
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

async fn until<T>(met: impl AsyncFn() -> Option<T>, what: &str) -> T {
    let waiting = async {
        loop {
            if let Some(found) = met().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, waiting).await;
    found.unwrap_or_else(|_| panic!("{what}"))
}

#[tokio::test]
async fn an_object_that_a_loop_panics_over_is_named_in_an_event_and_the_others_are_handled() {
    let (_data, client) = served("core_controllers").await;
    let running = controllers::start(
        wild(client.clone()),
        Config {
            scheduler: controllers::SchedulerConfig::default(),
            node_grace: Duration::from_secs(40),
            jobs: BTreeSet::new(),
            core_controllers: true,
            rendezvous_ports: 20_000..=20_099,
            root_ca: None,
        },
    );
    let services: Api<Service> = Api::default_namespaced(client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(client.clone());
    let sets: Api<StatefulSet> = Api::default_namespaced(client.clone());
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let params = PostParams::default();
    for name in ["bad", "good"] {
        let about = |spec| json!({"metadata": {"name": name}, "spec": spec});
        let service = about(json!({"selector": {"app": "a"}, "ports": [{"port": 80}]}));
        let service = serde_json::from_value(service).unwrap();
        services.create(&params, &service).await.unwrap();
        let claim = about(json!({
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        }));
        let claim = serde_json::from_value(claim).unwrap();
        claims.create(&params, &claim).await.unwrap();
        let budget = about(json!({"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}));
        let budget = serde_json::from_value(budget).unwrap();
        budgets.create(&params, &budget).await.unwrap();
        let set = about(json!({
            "serviceName": name, "selector": {"matchLabels": {"app": "a"}},
            "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        }));
        let set = serde_json::from_value(set).unwrap();
        sets.create(&params, &set).await.unwrap();
        let pod = about(json!({
            "nodeName": "gone", "containers": [{"name": "c", "image": "i"}],
        }));
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&params, &pod).await.unwrap();
    }
    let events: Api<Event> = Api::default_namespaced(client.clone());
    let expected = [
        "PersistentVolumeClaim",
        "Pod",
        "PodDisruptionBudget",
        "Service",
        "StatefulSet",
    ];
    let told = async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        let panicked = all.items.into_iter().filter(|event| {
            event.reason.as_deref() == Some("ReconcilePanicked")
                && event.type_.as_deref() == Some("Warning")
        });
        let about: BTreeSet<(String, String)> = panicked
            .map(|event| event.involved_object)
            .map(|about| {
                (
                    about.kind.unwrap_or_default(),
                    about.name.unwrap_or_default(),
                )
            })
            .collect();
        (about.len() >= expected.len()).then_some(about)
    };
    let about = until(told, "not every object was named in an event").await;
    let about: Vec<(&str, &str)> = about.iter().map(|(a, b)| (&**a, &**b)).collect();
    assert_eq!(about, expected.map(|kind| (kind, "bad")));

    let endpoints: Api<Endpoints> = Api::default_namespaced(client.clone());
    let handled = async || {
        let claim = claims.get("good").await.unwrap();
        let bound = claim.status.and_then(|status| status.phase).as_deref() == Some("Bound");
        let counted = budgets.get("good").await.unwrap().status.is_some();
        let gone = pods.get_opt("good").await.unwrap().is_none();
        let listed = endpoints.get_opt("good").await.unwrap().is_some();
        let reported = sets.get("good").await.unwrap().status;
        let reported = reported.is_some_and(|status| status.conditions.is_some());
        (bound && counted && gone && listed && reported).then_some(())
    };
    until(handled, "another object was not handled").await;
    assert!(
        pods.get("bad")
            .await
            .is_ok_and(|pod| pod.name_any() == "bad")
    );
    running.cut_off();
}
