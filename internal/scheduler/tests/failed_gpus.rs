//! GPUs that fail while pods have them.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use scheduler::{Event, EvictionReason, Plan};
use serde_json::json;
use support::cluster::Cluster;
use support::*;

/// A node of four GPUs, of which this one has failed, or is only out.
fn ill(gpu: usize, failed: bool) -> Event {
    let list: Vec<_> = (0..4)
        .map(|i| json!({"id": format!("n-{i}"), "index": i, "healthy": i != gpu, "failed": i == gpu && failed}))
        .collect();
    node_with("n", 4, |node| {
        node["metadata"]["annotations"]["muster.io/inventory"] =
            json!(json!({ "gpus": list }).to_string());
    })
}

/// Three pods on the node, of a gang that needs them all. Returns the pod on GPU 1.
fn running() -> (Cluster, String) {
    let mut c = Cluster::new();
    c.notify(described("n", 4, |_| true));
    c.gang("g", "default", "mid", 3, 3, 1);
    let plan = c.run();
    assert_eq!(plan.binds.len(), 3);
    let has = |bind: &&scheduler::Bind| bind.devices["main"]["nvidia.com/gpu"] == ["n-1"];
    let holder = plan.binds.iter().find(has).unwrap().pod.name.clone();
    (c, holder)
}

fn evicted(plan: &Plan) -> Vec<(&str, EvictionReason)> {
    let all = plan.evictions.iter();
    all.map(|eviction| (&*eviction.pod.name, eviction.why))
        .collect()
}

#[test]
fn a_pod_on_a_failed_gpu_is_evicted_alone_and_gets_another_gpu() {
    let (mut c, holder) = running();
    c.notify(ill(1, true));
    let plan = c.run();
    assert_eq!(evicted(&plan), [(&*holder, EvictionReason::FailedDevice)]);
    assert!(plan.evictions[0].message.contains("GPU that failed"));
    assert!(c.run().evictions.is_empty(), "once");
    let pod = c.pods[&holder].clone();
    c.leave(&plan);
    // Its job creates another pod of the same name.
    let mut again = serde_json::to_value(pod).unwrap();
    again["metadata"]["uid"] = json!("another");
    again["metadata"]["deletionTimestamp"] = json!(null);
    again["metadata"]["annotations"] = json!({"scheduling.k8s.io/group-name": "g"});
    again["spec"]["nodeName"] = json!(null);
    again["status"] = json!({"phase": "Pending"});
    c.notify(Event::PodChanged(Box::new(
        serde_json::from_value(again).unwrap(),
    )));
    let plan = c.run();
    assert_eq!(
        plan.binds[0].devices["main"]["nvidia.com/gpu"],
        ["n-3"],
        "{plan:?}"
    );
    assert!(plan.evictions.is_empty());
}

#[test]
fn a_pod_on_a_gpu_out_of_service_continues() {
    let (mut c, _) = running();
    c.notify(ill(1, false));
    assert!(c.run().evictions.is_empty());
    // Until it fails as well.
    c.notify(ill(1, true));
    assert_eq!(c.run().evictions.len(), 1);
}

#[test]
fn a_pod_that_arrives_after_its_gpu_failed_is_evicted_too() {
    let (before, holder) = running();
    let mut c = Cluster::new();
    c.notify(ill(1, true));
    assert!(c.run().evictions.is_empty());
    c.notify(Event::PodChanged(Box::new(before.pods[&holder].clone())));
    assert_eq!(
        evicted(&c.run()),
        [(&*holder, EvictionReason::FailedDevice)]
    );
}

#[test]
fn pods_of_other_schedulers_are_not_evicted() {
    let (before, holder) = running();
    let mut c = Cluster::new();
    c.notify(ill(1, true));
    let mut pod = serde_json::to_value(&before.pods[&holder]).unwrap();
    pod["spec"]["schedulerName"] = json!("somebody-else");
    c.notify(Event::PodChanged(Box::new(
        serde_json::from_value(pod).unwrap(),
    )));
    assert!(c.run().evictions.is_empty());
}

#[test]
fn no_eviction_breaks_a_disruption_budget() {
    let (mut c, _) = running();
    for name in ["g-0", "g-1", "g-2"] {
        c.change(name, |pod| {
            pod["metadata"]["labels"] = json!({"app": "web"})
        });
    }
    let selector = json!({"matchLabels": {"app": "web"}});
    let budget = json!({"metadata": {"name": "keep", "namespace": "ns"},
        "spec": {"minAvailable": 3, "selector": selector}});
    c.notify(Event::BudgetChanged(Box::new(
        serde_json::from_value(budget).unwrap(),
    )));
    c.notify(ill(1, true));
    assert!(c.run().evictions.is_empty());
}
