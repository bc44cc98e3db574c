//! Which node, which devices, and the words for those that are out.

mod support;

use resources::report::WaitReason;
use serde_json::{Value, json};
use support::*;

fn spec(field: &'static str, value: Value) -> impl FnOnce(&mut Value) {
    move |pod| pod["spec"][field] = value
}

#[test]
fn a_small_pod_fills_what_is_begun_and_a_large_one_finds_its_node_whole() {
    let mut s = scheduler();
    for name in ["n1", "n2"] {
        s.apply(node(name, 8));
    }
    s.apply(pod_with("begun", None, 2, |pod| {
        pod["spec"]["nodeName"] = json!("n2")
    }));
    s.apply(lone("small", 2));
    s.apply(lone("whole", 8));
    let bound = bound(&s.plan(now()));
    assert_eq!(
        (bound["small"].as_str(), bound["whole"].as_str()),
        ("n2", "n1")
    );
}

#[test]
fn a_pod_without_gpus_keeps_off_gpu_nodes_while_it_can() {
    let mut s = scheduler();
    s.apply(node("a-gpu", 8));
    s.apply(node("b-cpu", 0));
    s.apply(lone("cpu", 0));
    assert_eq!(bound(&s.plan(now()))["cpu"], "b-cpu");
    s.apply(scheduler::Event::NodeGone("b-cpu".into()));
    s.apply(lone("cpu2", 0));
    assert_eq!(bound(&s.plan(now()))["cpu2"], "a-gpu");
}

#[test]
fn a_gang_takes_the_node_that_just_holds_it() {
    let mut s = scheduler();
    for (name, gpus) in [("n1", 8), ("n2", 4), ("n3", 2)] {
        s.apply(node(name, gpus));
    }
    gang(&mut s, "g", 4, 1);
    assert_eq!(nodes_used(&s.plan(now()), "g"), ["n2"]);
}

#[test]
fn rank_order_follows_numbers_in_names() {
    let mut s = scheduler();
    for name in ["n1", "n2", "n3"] {
        s.apply(node(name, 4));
    }
    gang(&mut s, "g", 12, 1);
    let plan = s.plan(now());
    let order: Vec<String> = plan
        .binds
        .iter()
        .map(|bind| bind.pod.name.clone())
        .collect();
    let want: Vec<String> = (0..12).map(|i| format!("g-{i}")).collect();
    assert_eq!(order, want);
    let bound = bound(&plan);
    assert_eq!(bound["g-4"], bound["g-7"]);
}

#[test]
fn devices_are_chosen_on_one_numa_node_and_written_by_container() {
    let mut s = scheduler();
    s.apply(described("n1", 8, |i| i != 1));
    s.apply(pod_with("held", None, 1, |pod| {
        pod["spec"]["nodeName"] = json!("n1");
        pod["metadata"]["annotations"]["muster.io/devices"] =
            json!(json!({"main": {"nvidia.com/gpu": ["n1-0"]}}).to_string());
    }));
    s.apply(lone("a", 2));
    let plan = s.plan(now());
    assert_eq!(
        plan.binds[0].devices["main"]["nvidia.com/gpu"],
        ["n1-2", "n1-3"]
    );
    s.apply(lone("b", 3));
    assert_eq!(
        s.plan(now()).binds[0].devices["main"]["nvidia.com/gpu"],
        ["n1-4", "n1-5", "n1-6"]
    );
    s.apply(lone("c", 2));
    let plan = s.plan(now());
    assert!(
        plan.binds.is_empty(),
        "one device is left, one is unhealthy"
    );
    assert_eq!(
        report(&plan, "c").sentence(),
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    );
}

#[test]
fn a_pod_that_does_not_name_its_devices_still_takes_them() {
    let mut s = scheduler();
    s.apply(described("n1", 4, |_| true));
    s.apply(pod_with("nameless", None, 3, |pod| {
        pod["spec"]["nodeName"] = json!("n1")
    }));
    s.apply(lone("a", 2));
    assert!(s.plan(now()).binds.is_empty());
    s.apply(lone("b", 1));
    assert_eq!(s.plan(now()).binds.len(), 1);
}

#[test]
fn every_filter_has_kube_schedulers_words() {
    let term =
        json!([{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100"]}]}]);
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": term}}});
    let image = json!([{"name": "main", "image": "busybox"}]);
    type Change = Box<dyn FnOnce(&mut Value)>;
    let none = || -> Change { Box::new(|_| {}) };
    let table: [(Change, Change, &str); 7] = [
        (
            Box::new(|n| n["spec"]["unschedulable"] = json!(true)),
            none(),
            "1 node(s) were unschedulable",
        ),
        (
            Box::new(|n| n["status"]["conditions"][0]["status"] = json!("Unknown")),
            none(),
            "1 node(s) were not ready",
        ),
        (
            Box::new(|n| n["spec"]["taints"] = json!([{"key": "k", "effect": "NoExecute"}])),
            none(),
            "1 node(s) had untolerated taint(s)",
        ),
        (
            none(),
            Box::new(spec("nodeSelector", json!({"disk": "ssd"}))),
            "1 node(s) didn't match Pod's node affinity/selector",
        ),
        (
            none(),
            Box::new(spec("affinity", affinity)),
            "1 node(s) didn't match Pod's node affinity/selector",
        ),
        (
            Box::new(|n| n["metadata"]["labels"] = json!({"muster.io/runtime.process": "true"})),
            Box::new(spec("containers", image)),
            "1 node(s) had no runtime for container images",
        ),
        (
            Box::new(|n| n["metadata"]["labels"] = json!({"muster.io/runtime.cri": "true"})),
            none(),
            "1 node(s) did not run pods without an image",
        ),
    ];
    for (node_change, pod_change, words) in table {
        let mut s = scheduler();
        s.apply(node_with("n1", 8, node_change));
        s.apply(pod_with("p", None, 0, pod_change));
        let plan = s.plan(now());
        let report = report(&plan, "p");
        assert_eq!(
            report.sentence(),
            format!("0/1 nodes are available: {words}.")
        );
        assert_eq!(report.verdict, WaitReason::NoNodeFits);
        assert!(!report.would_fit.is_empty());
    }
}

#[test]
fn reasons_are_counted_by_node() {
    let mut s = scheduler();
    s.apply(node("n1", 1));
    s.apply(node("n2", 1));
    s.apply(node_with("n3", 8, |n| {
        n["spec"]["unschedulable"] = json!(true)
    }));
    s.apply(pod_with("p", None, 2, |pod| {
        pod["spec"]["containers"][0]["resources"]["requests"] = json!({"cpu": "100"});
    }));
    let plan = s.plan(now());
    assert_eq!(
        report(&plan, "p").sentence(),
        "0/3 nodes are available: 2 Insufficient cpu, 2 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable."
    );
}

#[test]
fn preferred_affinity_and_soft_taints_choose_among_nodes_that_fit() {
    let preferred = json!({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 5, "preference": {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]}}]}});
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(node("n2", 8));
    s.apply(pod_with("p", None, 1, spec("affinity", preferred.clone())));
    assert_eq!(bound(&s.plan(now()))["p"], "n2");
    s.apply(node_with("n2", 8, |n| {
        n["spec"]["taints"] = json!([{"key": "k", "effect": "PreferNoSchedule"}])
    }));
    s.apply(pod_with("q", None, 1, spec("affinity", preferred)));
    assert_eq!(bound(&s.plan(now()))["q"], "n1");
}

#[test]
fn pods_on_a_node_that_is_not_known_yet_are_counted_when_it_comes() {
    let mut s = scheduler();
    s.apply(pod_with("early", None, 3, |pod| {
        pod["spec"]["nodeName"] = json!("n1")
    }));
    s.apply(node("n1", 4));
    s.apply(lone("a", 2));
    assert!(s.plan(now()).binds.is_empty());
    s.apply(lone("b", 1));
    assert_eq!(s.plan(now()).binds.len(), 1);
}

#[test]
fn an_empty_cluster_says_that_it_is_empty() {
    let mut s = scheduler();
    s.apply(lone("p", 1));
    let plan = s.plan(now());
    assert_eq!(report(&plan, "p").verdict, WaitReason::NoNodes);
    assert_eq!(report(&plan, "p").sentence(), "there are no nodes.");
}

#[test]
fn a_gang_larger_than_all_nodes_together_is_told_so() {
    let mut s = scheduler();
    s.apply(node("n1", 4));
    gang(&mut s, "g", 6, 1);
    let plan = s.plan(now());
    let report = report(&plan, "g");
    assert_eq!(
        report.would_fit,
        "room for 2 more members on matching nodes, each nvidia.com/gpu: 1 (matching nodes hold 4 such members when empty: add nodes)"
    );
}

#[test]
fn free_room_in_useless_places_is_called_that() {
    let mut s = scheduler();
    for name in ["n1", "n2"] {
        s.apply(node(name, 8));
        s.apply(pod_with(&format!("busy-{name}"), None, 5, |pod| {
            pod["spec"]["nodeName"] = json!(name)
        }));
    }
    s.apply(lone("p", 4));
    let plan = s.plan(now());
    assert_eq!(
        report(&plan, "p").binding,
        "6 of 16 nvidia.com/gpu are free, on nodes where no member fits, and 4 more are needed"
    );
}

#[test]
fn a_trial_says_where_a_gang_would_go_and_leaves_nothing_behind() {
    let mut s = scheduler();
    s.apply(described("n1", 4, |_| true));
    gang(&mut s, "g", 2, 1);
    s.plan(now());
    let before = s.view();
    let group = group_object("g", 2, |_| {});
    let pods: Vec<_> = (0..2)
        .map(|i| pod_object(&format!("g-{i}"), Some("g"), 1, |_| {}))
        .collect();
    let trial = s.what_if().would_place(Some(&group), &pods, now());
    assert_eq!(trial.binds.len(), 2);
    assert_eq!(trial.binds[0].pod.name, "g-0");
    assert_eq!(trial.binds[0].devices["main"]["nvidia.com/gpu"], ["n1-2"]);
    let more: Vec<_> = (0..3)
        .map(|i| pod_object(&format!("g-{i}"), Some("g"), 1, |_| {}))
        .collect();
    let group = group_object("g", 3, |_| {});
    let trial = s.what_if().would_place(Some(&group), &more, now());
    assert!(trial.binds.is_empty());
    assert_eq!(
        (
            trial.reports[0].group.as_str(),
            trial.reports[0].members_placed_possible
        ),
        ("g", 2)
    );
    assert_eq!(s.view(), before);
    assert!(s.plan(now()).unchanged);
}
