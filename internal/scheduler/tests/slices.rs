//! Slices of GPUs (MIG): as resources by profile, each with its id, or as GPUs.

mod support;

use scheduler::Event;
use serde_json::{Value, json};
use support::*;

const SMALL: &str = "nvidia.com/mig-1g.10gb";
const LARGE: &str = "nvidia.com/mig-3g.40gb";

/// A node of two GPUs with two small slices each, one of the second GPU's large.
fn cut(name: &str, strategy: &str, sick: &[&str]) -> Event {
    let slice = |id: &str, profile: &str| json!({"id": id, "profile": profile, "memoryMib": 9728, "healthy": !sick.contains(&id)});
    let gpu = |index: u32, slices: Value| {
        json!({
            "id": format!("GPU-{index}"), "index": index, "memoryMib": 81559, "healthy": true,
            "slices": slices,
        })
    };
    let large = if strategy == "mixed" {
        "3g.40gb"
    } else {
        "1g.10gb"
    };
    let gpus = json!([
        gpu(
            0,
            json!([slice("MIG-a", "1g.10gb"), slice("MIG-b", "1g.10gb")])
        ),
        gpu(1, json!([slice("MIG-c", "1g.10gb"), slice("MIG-d", large)])),
    ]);
    node_with(name, 0, |node| {
        let inventory = json!({"gpus": gpus, "migStrategy": strategy});
        node["metadata"]["annotations"]["muster.io/inventory"] = json!(inventory.to_string());
        let allocatable = &mut node["status"]["allocatable"];
        match strategy {
            "single" => allocatable["nvidia.com/gpu"] = json!("4"),
            "mixed" => {
                allocatable[SMALL] = json!("3");
                allocatable[LARGE] = json!("1");
            }
            _ => allocatable[SMALL] = json!("4"),
        }
    })
}

fn asks(name: &str, resource: &'static str, count: &'static str) -> Event {
    pod_with(name, None, 0, move |pod: &mut Value| {
        let list = &mut pod["spec"]["containers"][0]["resources"];
        list["requests"][resource] = json!(count);
        list["limits"][resource] = json!(count);
    })
}

fn ids(plan: &scheduler::Plan, pod: &str, resource: &str) -> Vec<String> {
    let bind = plan.binds.iter().find(|bind| bind.pod.name == pod);
    let chosen = bind.and_then(|bind| bind.devices.values().next()?.get(resource));
    chosen.cloned().unwrap_or_default()
}

#[test]
fn each_pod_gets_slices_of_its_profile_that_nobody_holds() {
    let mut s = scheduler();
    s.apply(cut("n", "mixed", &[]));
    s.apply(asks("a", SMALL, "1"));
    s.apply(asks("b", SMALL, "2"));
    s.apply(asks("c", LARGE, "1"));
    s.apply(asks("d", SMALL, "1"));
    let plan = s.plan(now());
    let mut all: Vec<String> = ["a", "b"]
        .iter()
        .flat_map(|pod| ids(&plan, pod, SMALL))
        .collect();
    all.sort();
    assert_eq!(all, ["MIG-a", "MIG-b", "MIG-c"]);
    assert_eq!(ids(&plan, "c", LARGE), ["MIG-d"]);
    assert_eq!(bound(&plan).len(), 3, "there is none for the fourth");
    s.apply(pod_gone("a"));
    let freed = ids(&plan, "a", SMALL);
    assert_eq!(ids(&s.plan(now()), "d", SMALL), freed);
}

#[test]
fn slices_that_running_pods_hold_or_that_are_sick_are_not_given_out() {
    let mut s = scheduler();
    s.apply(cut("n", "mixed", &["MIG-a"]));
    s.apply(pod_with("old", None, 0, |pod: &mut Value| {
        pod["spec"]["nodeName"] = json!("n");
        pod["status"] = json!({"phase": "Running"});
        pod["spec"]["containers"][0]["resources"]["requests"][SMALL] = json!("1");
        pod["metadata"]["annotations"]["muster.io/devices"] =
            json!(json!({"main": {SMALL: ["MIG-b"]}}).to_string());
    }));
    s.apply(asks("p", SMALL, "1"));
    s.apply(asks("q", SMALL, "1"));
    let plan = s.plan(now());
    assert_eq!(bound(&plan).len(), 1);
    let given: Vec<String> = ["p", "q"]
        .iter()
        .flat_map(|pod| ids(&plan, pod, SMALL))
        .collect();
    assert_eq!(given, ["MIG-c"]);
}

#[test]
fn a_gpu_that_is_begun_is_used_up_before_one_that_is_idle() {
    let mut s = scheduler();
    s.apply(cut("n", "", &[]));
    s.apply(pod_with("old", None, 0, |pod: &mut Value| {
        pod["spec"]["nodeName"] = json!("n");
        pod["spec"]["containers"][0]["resources"]["requests"][SMALL] = json!("1");
        pod["metadata"]["annotations"]["muster.io/devices"] =
            json!(json!({"main": {SMALL: ["MIG-c"]}}).to_string());
    }));
    s.apply(asks("p", SMALL, "1"));
    assert_eq!(ids(&s.plan(now()), "p", SMALL), ["MIG-d"]);
    s.apply(asks("q", SMALL, "1"));
    assert_eq!(ids(&s.plan(now()), "q", SMALL), ["MIG-a"]);
}

#[test]
fn a_slice_whose_binding_failed_is_free_again() {
    let mut s = scheduler();
    s.apply(cut("n", "mixed", &[]));
    s.apply(asks("a", LARGE, "1"));
    let plan = s.plan(now());
    s.forget(&plan.binds[0].pod);
    assert_eq!(ids(&s.plan(now()), "a", LARGE), ["MIG-d"]);
}

#[test]
fn under_the_single_strategy_a_slice_is_a_gpu() {
    let mut s = scheduler();
    s.apply(cut("n", "single", &["MIG-b"]));
    s.apply(lone("a", 3));
    let plan = s.plan(now());
    assert_eq!(
        ids(&plan, "a", "nvidia.com/gpu"),
        ["MIG-a", "MIG-c", "MIG-d"]
    );
    s.apply(lone("b", 1));
    assert!(s.plan(now()).binds.is_empty());
}

#[test]
fn a_gpu_that_is_cut_is_not_given_out_whole() {
    let mut s = scheduler();
    s.apply(cut("n", "mixed", &[]));
    s.apply(lone("a", 1));
    assert!(s.plan(now()).binds.is_empty());
}
