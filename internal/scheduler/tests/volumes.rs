//! Pods go where their volumes can be reached or made, and say so where they can't.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use scheduler::{Event, Scheduler};
use serde_json::{Value, json};
use support::*;

fn zoned(name: &str, zone: &str) -> Event {
    let Event::NodeChanged(mut told) = node(name, 8) else {
        unreachable!("a node");
    };
    let labels = told.metadata.labels.get_or_insert_default();
    labels.insert("zone".into(), zone.into());
    Event::NodeChanged(told)
}

fn two_zones() -> Scheduler {
    let mut s = scheduler();
    s.apply(zoned("n1", "a"));
    s.apply(zoned("n2", "b"));
    s
}

fn claim(name: &str, class: &str, volume: &str) -> Event {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns"},
        "spec": {
            "storageClassName": class, "volumeName": volume,
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}},
        },
    }))
    .unwrap();
    Event::ClaimChanged(Box::new(claim))
}

fn volume(name: &str, class: &str, size: &str, zone: &str) -> Event {
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "storageClassName": class, "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]},
            ]}},
        },
    }))
    .unwrap();
    Event::VolumeChanged(Box::new(volume))
}

fn class(name: &str, mode: &str, provisioner: &str, zones: &[&str]) -> Event {
    let mut class = json!({
        "metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode,
    });
    if !zones.is_empty() {
        class["allowedTopologies"] =
            json!([{"matchLabelExpressions": [{"key": "zone", "values": zones}]}]);
    }
    let class: StorageClass = serde_json::from_value(class).unwrap();
    Event::StorageClassChanged(Box::new(class))
}

fn with_claim(name: &str, claim: &'static str) -> Event {
    pod_with(name, None, 1, move |pod: &mut Value| {
        pod["spec"]["volumes"] =
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
    })
}

fn reasons(plan: &scheduler::Plan, name: &str) -> Vec<String> {
    let reasons = report(plan, name).per_reason.iter();
    reasons.map(|reason| reason.reason.clone()).collect()
}

const WAITS: &str = "WaitForFirstConsumer";

#[test]
fn a_pod_goes_where_its_bound_volume_is_reached() {
    for zone in ["a", "b"] {
        let mut s = two_zones();
        s.apply(volume("pv", "", "10Gi", zone));
        s.apply(claim("data", "", "pv"));
        s.apply(with_claim("p", "data"));
        let want = if zone == "a" { "n1" } else { "n2" };
        assert_eq!(bound(&s.plan(now()))["p"], want);
    }
}

#[test]
fn a_pod_whose_volume_is_nowhere_near_says_so_until_a_node_is() {
    let mut s = two_zones();
    s.apply(volume("pv", "", "10Gi", "c"));
    s.apply(claim("data", "", "pv"));
    s.apply(with_claim("p", "data"));
    let plan = s.plan(now());
    assert_eq!(
        reasons(&plan, "p"),
        ["node(s) had volume node affinity conflict"]
    );
    s.apply(zoned("n3", "c"));
    assert_eq!(bound(&s.plan(now()))["p"], "n3");
}

#[test]
fn what_becomes_known_of_a_volume_later_counts_in_any_order() {
    let mut s = two_zones();
    s.apply(with_claim("p", "data"));
    s.apply(claim("data", "", "pv"));
    s.apply(volume("pv", "", "10Gi", "c"));
    assert!(bound(&s.plan(now())).is_empty());
    s.apply(volume("pv", "", "10Gi", "b"));
    assert_eq!(bound(&s.plan(now()))["p"], "n2");
}

#[test]
fn a_claim_that_waits_for_its_pod_goes_where_its_class_makes_volumes() {
    let mut s = two_zones();
    s.apply(class("fast", WAITS, "example.com/disk", &["b"]));
    s.apply(claim("data", "fast", ""));
    s.apply(with_claim("p", "data"));
    assert_eq!(bound(&s.plan(now()))["p"], "n2");
    let mut s = two_zones();
    s.apply(class("fast", WAITS, "example.com/disk", &["c"]));
    s.apply(claim("data", "fast", ""));
    s.apply(with_claim("p", "data"));
    assert_eq!(
        reasons(&s.plan(now()), "p"),
        ["node(s) didn't find available persistent volumes to bind"]
    );
}

#[test]
fn a_class_that_makes_no_volumes_has_those_that_are_free_and_large_enough() {
    let mut s = two_zones();
    s.apply(class("local", WAITS, "kubernetes.io/no-provisioner", &[]));
    s.apply(volume("small", "local", "1Gi", "a"));
    s.apply(claim("data", "local", ""));
    s.apply(with_claim("p", "data"));
    assert!(bound(&s.plan(now())).is_empty());
    s.apply(volume("large", "local", "20Gi", "b"));
    assert_eq!(bound(&s.plan(now()))["p"], "n2");
}

#[test]
fn a_claim_that_is_bound_at_once_is_bound_first() {
    let mut s = two_zones();
    s.apply(class("now", "Immediate", "example.com/disk", &[]));
    s.apply(claim("data", "now", ""));
    s.apply(with_claim("p", "data"));
    assert_eq!(
        reasons(&s.plan(now()), "p"),
        ["pod has unbound immediate PersistentVolumeClaims (data)"]
    );
    s.apply(volume("made", "now", "10Gi", "b"));
    s.apply(claim("data", "now", "made"));
    assert_eq!(bound(&s.plan(now()))["p"], "n2");
}

#[test]
fn claims_that_nobody_told_of_ask_for_nothing() {
    let mut s = two_zones();
    s.apply(with_claim("p", "unknown"));
    s.apply(claim("data", "unknown-class", ""));
    s.apply(with_claim("q", "data"));
    assert_eq!(bound(&s.plan(now())).len(), 2);
}

#[test]
fn pods_whose_volumes_are_in_the_same_place_are_alike_and_a_claim_that_goes_frees_them() {
    let mut s = two_zones();
    s.apply(volume("pv", "", "10Gi", "c"));
    s.apply(claim("data", "", "pv"));
    s.apply(with_claim("p", "data"));
    assert!(bound(&s.plan(now())).is_empty());
    s.apply(Event::ClaimGone("ns".into(), "data".into()));
    assert_eq!(bound(&s.plan(now())).len(), 1);
    s.apply(Event::PodGone("ns".into(), "p".into()));
    s.apply(claim("data", "", "pv"));
    assert!(s.plan(now()).binds.is_empty());
}
