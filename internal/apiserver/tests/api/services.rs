//! Services: their addresses and node ports, given, kept, refused and freed.

use apiserver::ApiConfig;
use serde_json::{Value, json};
use store::Options;

use crate::harness::Api;

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn config() -> ApiConfig {
    ApiConfig {
        service_range: Some("10.96.0.0/24".parse().unwrap()),
        ..ApiConfig::default()
    }
}

fn api() -> Api {
    Api::with(Options::default(), config())
}

fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

fn ports() -> Value {
    json!([{"port": 80}])
}

#[tokio::test]
async fn a_service_keeps_its_address_and_frees_it_at_its_end() {
    let api = api();
    let web = service("web", json!({"ports": ports(), "selector": {"app": "web"}}));
    let made = api.post(SERVICES, &web).await.is(201);
    let address = made["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert!(address.starts_with("10.96.0."), "{address}");
    assert_eq!(made["spec"]["clusterIPs"], json!([address]));
    // A replacement and a patch that do not name the address keep it.
    let path = format!("{SERVICES}/web");
    let replaced = api.put(&path, &web).await.is(200);
    assert_eq!(replaced["spec"]["clusterIP"], address.as_str());
    let other = json!({"spec": {"clusterIP": "10.96.0.77", "clusterIPs": ["10.96.0.77"]}});
    let refused = api.merge(&path, &other).await.is(422);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("spec.clusterIPs[0]"), "{message}");
    assert!(message.contains("may not change once set"), "{message}");
    // Another Service gets it only when it is free.
    let same = service("same", json!({"ports": ports(), "clusterIP": address}));
    let refused = api.post(SERVICES, &same).await.is(422);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("provided IP is already allocated"),
        "{message}"
    );
    api.delete(&path, None).await.is(200);
    let made = api.post(SERVICES, &same).await.is(201);
    assert_eq!(made["spec"]["clusterIP"], address.as_str());
    let outside = service(
        "outside",
        json!({"ports": ports(), "clusterIP": "10.97.0.1"}),
    );
    let refused = api.post(SERVICES, &outside).await.is(422);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("The range of valid IPs is 10.96.0.0/24"),
        "{message}"
    );
}

#[tokio::test]
async fn many_services_at_once_get_different_addresses() {
    let api = api();
    let made = (0..40).map(|number| {
        let one = service(
            &format!("s{number}"),
            json!({"type": "NodePort", "ports": ports()}),
        );
        let api = &api;
        async move {
            let made = api.post(SERVICES, &one).await.is(201);
            let spec = &made["spec"];
            (
                spec["clusterIP"].to_string(),
                spec["ports"][0]["nodePort"].to_string(),
            )
        }
    });
    let made = futures::future::join_all(made).await;
    let (addresses, ports): (std::collections::BTreeSet<_>, std::collections::BTreeSet<_>) =
        made.into_iter().unzip();
    assert_eq!((addresses.len(), ports.len()), (40, 40));
}

#[tokio::test]
async fn node_ports_follow_the_type_of_the_service() {
    let api = api();
    let web = service("web", json!({"ports": ports()}));
    let made = api.post(SERVICES, &web).await.is(201);
    assert!(made["spec"]["ports"][0]["nodePort"].is_null());
    let path = format!("{SERVICES}/web");
    let opened = json!({"spec": {"type": "NodePort"}});
    let changed = api.merge(&path, &opened).await.is(200);
    let port = changed["spec"]["ports"][0]["nodePort"].as_u64().unwrap();
    assert!((30000..=32767).contains(&port), "{port}");
    assert_eq!(changed["spec"]["clusterIP"], made["spec"]["clusterIP"]);
    assert_eq!(changed["spec"]["externalTrafficPolicy"], "Cluster");
    let taken = service(
        "taken",
        json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}),
    );
    let refused = api.post(SERVICES, &taken).await.is(422);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("provided port is already allocated"),
        "{message}"
    );
    let closed = json!({"spec": {"type": "ClusterIP"}});
    let changed = api.merge(&path, &closed).await.is(200);
    assert!(changed["spec"]["ports"][0]["nodePort"].is_null());
    api.post(SERVICES, &taken).await.is(201);
    let named = json!({"spec": {"type": "ExternalName", "externalName": "example.org"}});
    let changed = api.merge(&path, &named).await.is(200);
    assert!(changed["spec"]["clusterIP"].is_null(), "{changed}");
}

#[tokio::test]
async fn without_a_range_services_are_headless() {
    let api = Api::new();
    let web = service("web", json!({"type": "NodePort", "ports": ports()}));
    let made = api.post(SERVICES, &web).await.is(201);
    assert_eq!(made["spec"]["clusterIP"], "None");
    assert!(made["spec"]["ports"][0]["nodePort"].is_null());
}
