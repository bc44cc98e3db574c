//! Tables of a Service's addresses.

use serde_json::{Value, json};

use super::*;

fn service(spec: Value) -> Service {
    serde_json::from_value(json!({
        "metadata": { "namespace": "ns", "name": "svc", "uid": "s", "labels": { "team": "a" } },
        "spec": spec,
    }))
    .unwrap()
}

fn headless() -> Service {
    service(json!({ "clusterIP": "None", "selector": { "app": "x" } }))
}

fn pod(name: &str, ip: Option<&str>, ready: bool) -> Value {
    json!({
        "metadata": { "namespace": "ns", "name": name, "uid": name, "labels": { "app": "x" } },
        "spec": {
            "nodeName": "node-1",
            "hostname": name,
            "subdomain": "svc",
            "containers": [{ "name": "c", "ports": [{ "name": "web", "containerPort": 8080 }] }],
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
        },
    })
}

fn backend(pod: Value) -> Backend {
    Backend::of(serde_json::from_value(pod).unwrap())
}

/// Ready and not ready addresses with the numbers of the ports, per subset.
fn told(service: &Service, pods: &[Value]) -> Vec<(Vec<String>, Vec<String>, Vec<i32>)> {
    let backends: Vec<_> = pods.iter().cloned().map(backend).collect();
    let found = endpoints(service, &Vec::from_iter(&backends));
    let ips = |list: Option<Vec<EndpointAddress>>| -> Vec<String> {
        list.unwrap_or_default().into_iter().map(|a| a.ip).collect()
    };
    let subsets = found.subsets.unwrap_or_default().into_iter();
    subsets
        .map(|s| {
            let ports = s.ports.unwrap_or_default();
            let ports = ports.iter().map(|p| p.port).collect();
            (ips(s.addresses), ips(s.not_ready_addresses), ports)
        })
        .collect()
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn a_headless_service_without_ports_has_its_pods_addresses() {
    let pods = [
        pod("b", Some("10.0.0.2"), true),
        pod("a", Some("10.0.0.1"), true),
        pod("starting", Some("10.0.0.3"), false),
        pod("pending", None, false),
    ];
    let expected = (
        strings(&["10.0.0.1", "10.0.0.2"]),
        strings(&["10.0.0.3"]),
        vec![],
    );
    assert_eq!(told(&headless(), &pods), [expected]);
    let backends: Vec<_> = pods.into_iter().map(backend).collect();
    let found = endpoints(&headless(), &Vec::from_iter(&backends));
    let labels = found.metadata.labels.unwrap();
    assert_eq!(labels["team"], "a");
    assert!(labels.contains_key(HEADLESS));
    let subsets = found.subsets.unwrap();
    let first = &subsets[0].addresses.as_ref().unwrap()[0];
    assert_eq!(first.hostname.as_deref(), Some("a"));
    assert_eq!(first.node_name.as_deref(), Some("node-1"));
    assert_eq!(
        first.target_ref.as_ref().unwrap().name.as_deref(),
        Some("a")
    );
}

#[test]
fn pods_that_ended_or_are_ending_are_left_out() {
    let mut ended = pod("ended", Some("10.0.0.1"), true);
    ended["status"]["phase"] = json!("Succeeded");
    let mut ending = pod("ending", Some("10.0.0.2"), true);
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(told(&headless(), &[ended, ending]), []);
}

#[test]
fn a_service_may_publish_pods_before_they_are_ready() {
    let service = service(json!({
        "clusterIP": "None",
        "selector": { "app": "x" },
        "publishNotReadyAddresses": true,
    }));
    let told = told(&service, &[pod("a", Some("10.0.0.1"), false)]);
    assert_eq!(told, [(strings(&["10.0.0.1"]), vec![], vec![])]);
}

#[test]
fn ports_are_the_pods_own() {
    let ports = |target: Value| {
        service(json!({
            "selector": { "app": "x" },
            "ports": [{ "name": "http", "port": 80, "targetPort": target }],
        }))
    };
    let mut other = pod("other", Some("10.0.0.2"), true);
    other["spec"]["containers"][0]["ports"][0]["containerPort"] = json!(9090);
    let mut without = pod("without", Some("10.0.0.3"), true);
    without["spec"]["containers"][0]["ports"] = json!([]);
    let pods = [pod("a", Some("10.0.0.1"), true), other, without];
    let (one, two) = (strings(&["10.0.0.1"]), strings(&["10.0.0.2"]));
    let all = strings(&["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    assert_eq!(
        told(&ports(json!("web")), &pods),
        [(one, vec![], vec![8080]), (two, vec![], vec![9090])]
    );
    for (target, number) in [(json!(7000), 7000), (Value::Null, 80), (json!(0), 80)] {
        let expected = (all.clone(), vec![], vec![number]);
        assert_eq!(told(&ports(target), &pods), [expected]);
    }
}

#[test]
fn slices_hold_all_pods_with_their_conditions_in_chunks() {
    let mut ending = pod("ending", Some("10.9.9.9"), true);
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut pods = vec![backend(ending), backend(pod("six", Some("fd00::1"), true))];
    for n in 0..1500 {
        let ip = format!("10.0.{}.{}", n / 250, n % 250);
        pods.push(backend(pod(&format!("p{n}"), Some(&ip), true)));
    }
    let found = slices(&headless(), &Vec::from_iter(&pods));
    let sizes: Vec<_> = found
        .iter()
        .map(|s| (&*s.address_type, s.endpoints.len()))
        .collect();
    assert_eq!(sizes, [("IPv4", 1000), ("IPv4", 501), ("IPv6", 1)]);
    let names: Vec<_> = found
        .iter()
        .map(|s| text(s.metadata.name.as_ref()))
        .collect();
    assert_eq!(names, ["svc-muster-0", "svc-muster-1", "svc-muster-2"]);
    let ending = found[1].endpoints.last().unwrap();
    let conditions = ending.conditions.clone().unwrap();
    assert_eq!(
        (conditions.ready, conditions.serving, conditions.terminating),
        (Some(false), Some(true), Some(true))
    );
    let labels = found[0].metadata.labels.clone().unwrap();
    assert_eq!(labels[SERVICE_NAME], "svc");
    assert_eq!(slices(&headless(), &[]).len(), 1);
}

#[test]
fn only_a_selector_takes_pods() {
    let cases = [
        (json!({ "selector": { "app": "x" } }), true),
        (json!({ "selector": {} }), false),
        (json!({}), false),
        (
            json!({ "selector": { "app": "x" }, "type": "ExternalName" }),
            false,
        ),
    ];
    for (spec, expected) in cases {
        assert_eq!(
            selects(&service(spec.clone())).is_some(),
            expected,
            "{spec}"
        );
    }
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect()
    };
    let wanted = labels(&[("app", "x")]);
    assert!(matches(&wanted, &labels(&[("app", "x"), ("y", "z")])));
    assert!(!matches(&wanted, &labels(&[("app", "y")])));
    assert!(!matches(&wanted, &labels(&[])));
}
