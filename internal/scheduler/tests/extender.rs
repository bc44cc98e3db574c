//! Beside another scheduler: which nodes take its pod, which it should prefer, and the devices there.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use scheduler::{Event, Scheduler};
use serde_json::{Value, json};
use support::*;

fn theirs(name: &str, gpus: i64, change: impl FnOnce(&mut Value)) -> Pod {
    pod_object(name, None, gpus, |pod| {
        pod["spec"]["schedulerName"] = json!("default-scheduler");
        change(pod);
    })
}

fn plain(name: &str, gpus: i64) -> Pod {
    theirs(name, gpus, |_| {})
}

/// What the other scheduler's binding makes of the pod; the GPUs that it got.
fn settle(s: &mut Scheduler, pod: &Pod, node: &str) -> Vec<String> {
    let devices = s.extender_devices(pod, node).unwrap();
    let mut bound = serde_json::to_value(pod).unwrap();
    bound["spec"]["nodeName"] = json!(node);
    bound["metadata"]["annotations"]["muster.io/devices"] =
        json!(serde_json::to_string(&devices).unwrap());
    let bound: Pod = serde_json::from_value(bound).unwrap();
    s.apply(Event::PodChanged(Box::new(bound)));
    let lists = devices.into_values().flat_map(BTreeMap::into_values);
    lists.flatten().collect()
}

fn told(events: impl IntoIterator<Item = Event>) -> Scheduler {
    let mut s = scheduler();
    for event in events {
        s.apply(event);
    }
    s
}

fn words(s: &mut Scheduler, pod: &Pod, nodes: &[&str]) -> Vec<(String, bool)> {
    let places = s.extender_filter(pod, nodes).into_iter();
    let said = |place: Result<(), scheduler::Infeasible>| match place {
        Ok(()) => (String::new(), false),
        Err(no) => (no.why, no.lasting),
    };
    places.map(said).collect()
}

#[test]
fn a_node_is_out_for_what_only_its_gpus_say_and_says_whether_evictions_would_help() {
    let mut s = told([
        described("good", 2, |_| true),
        described("ill", 2, |gpu| gpu == 0),
        described("full", 2, |_| true),
        described("small", 1, |_| true),
        lone("ours", 2),
    ]);
    let ours = pod_with("ours", None, 2, |pod| {
        pod["spec"]["nodeName"] = json!("full");
        pod["metadata"]["annotations"]["muster.io/devices"] =
            json!(r#"{"main":{"nvidia.com/gpu":["full-0","full-1"]}}"#);
    });
    s.apply(ours);
    let nodes = ["good", "ill", "full", "small", "elsewhere"];
    let lacks = |lasting| ("Insufficient nvidia.com/gpu".to_owned(), lasting);
    let expected = [
        (String::new(), false),
        lacks(true),
        lacks(false),
        lacks(true),
        ("the scheduler does not know the node yet".to_owned(), true),
    ];
    assert_eq!(words(&mut s, &plain("p", 2), &nodes), expected);
    let newer = theirs("newer", 1, |pod| {
        pod["metadata"]["annotations"]["muster.io/gpu-model"] = json!("H100");
    });
    assert_eq!(
        words(&mut s, &newer, &["good"]),
        [("another GPU".to_owned(), true)]
    );
}

#[test]
fn a_node_is_out_where_it_has_enough_gpus_only_with_such_as_a_container_gets_one_of() {
    let shares = |name: &str, alone: usize| {
        let gpu =
            |i: usize| json!({"id": format!("{name}-{i}"), "healthy": true, "alone": i < alone});
        let gpus: Vec<Value> = (0..4).map(gpu).collect();
        node_with(name, 4, |node| {
            node["metadata"]["annotations"]["muster.io/inventory"] =
                json!(json!({"gpus": gpus}).to_string());
        })
    };
    let mut s = told([shares("all", 4), shares("half", 2)]);
    s.apply(pod_with("ours", None, 1, |pod| {
        pod["spec"]["nodeName"] = json!("half");
        pod["metadata"]["annotations"]["muster.io/devices"] =
            json!(r#"{"main":{"nvidia.com/gpu":["half-2"]}}"#);
    }));
    let one = |lasting| ("one shared GPU per container".to_owned(), lasting);
    let nodes = ["all", "half"];
    assert_eq!(
        words(&mut s, &plain("p", 2), &nodes),
        [one(true), one(false)]
    );
    let good = (String::new(), false);
    assert_eq!(words(&mut s, &plain("q", 1), &nodes), [good.clone(), good]);
    s.apply(pod_gone("ours"));
    assert_eq!(settle(&mut s, &plain("p", 2), "half"), ["half-2", "half-3"]);
}

#[test]
fn resource_claims_are_the_other_schedulers_to_allocate() {
    let mut s = told([described("good", 2, |_| true)]);
    let pod = theirs("claims", 1, |pod| {
        pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "c"}]);
    });
    assert_eq!(words(&mut s, &pod, &["good"]), [(String::new(), false)]);
}

#[test]
fn each_pod_gets_gpus_of_its_own_that_go_well_together() {
    let mut s = told([described("n", 8, |_| true)]);
    let first = settle(&mut s, &plain("a", 1), "n");
    assert_eq!(first, ["n-0"]);
    // Four on one NUMA node are joined better than four on two.
    let four = settle(&mut s, &plain("b", 4), "n");
    assert_eq!(four, ["n-4", "n-5", "n-6", "n-7"]);
    let rest = settle(&mut s, &plain("c", 3), "n");
    assert_eq!(rest, ["n-1", "n-2", "n-3"]);
    assert!(s.extender_devices(&plain("d", 1), "n").is_err());
}

#[test]
fn parts_of_a_gpu_are_begun_gpus_first() {
    let mut s = told([described("n", 2, |_| true)]);
    let half = |name: &str| {
        theirs(name, 0, |pod| {
            pod["metadata"]["annotations"]["muster.io/gpu-fraction"] = json!("0.5");
        })
    };
    let given = ["a", "b", "c"].map(|name| settle(&mut s, &half(name), "n"));
    assert_eq!(given, [["n-0"], ["n-0"], ["n-1"]]);
    assert!(s.extender_filter(&plain("whole", 1), &["n"])[0].is_err());
}

#[test]
fn the_node_that_leaves_whole_nodes_whole_is_preferred_and_equals_are_preferred_equally() {
    let mut s = told([
        described("empty-a", 8, |_| true),
        described("empty-b", 8, |_| true),
        described("begun", 8, |_| true),
    ]);
    settle(&mut s, &plain("a", 4), "begun");
    let got = s.extender_scores(&plain("p", 2), &["empty-a", "begun", "empty-b", "none"]);
    assert_eq!(got, [0, 10, 0, 0]);
    // Nothing is left to choose where only one kind of node has room.
    let got = s.extender_scores(&plain("p", 8), &["empty-a", "begun", "empty-b"]);
    assert_eq!(got, [10, 0, 10]);
}

#[test]
fn room_that_somebody_is_still_leaving_is_no_room_yet() {
    let mut s = told([described("n", 1, |_| true)]);
    let pod = plain("a", 1);
    settle(&mut s, &pod, "n");
    let leaving = theirs("a", 1, |pod| {
        pod["spec"]["nodeName"] = json!("n");
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["metadata"]["annotations"]["muster.io/devices"] =
            json!(r#"{"main":{"nvidia.com/gpu":["n-0"]}}"#);
    });
    s.apply(Event::PodChanged(Box::new(leaving)));
    let said = words(&mut s, &plain("b", 1), &["n"]);
    assert_eq!(
        said,
        [(
            "terminating pods still hold what it requests".to_owned(),
            false
        )]
    );
    s.apply(pod_gone("a"));
    assert_eq!(settle(&mut s, &plain("b", 1), "n"), ["n-0"]);
}

#[test]
fn only_victims_whose_gpus_make_room_make_a_node_fit() {
    let mut s = told([
        described("n", 2, |_| true),
        described("ill", 2, |gpu| gpu == 0),
    ]);
    settle(&mut s, &plain("a", 1), "n");
    settle(&mut s, &plain("b", 1), "n");
    settle(&mut s, &plain("c", 1), "ill");
    let uids = |names: &[&'static str]| names.iter().copied().collect::<BTreeSet<_>>();
    let asked = [
        ("n", uids(&["uid-a"])),
        ("n", uids(&["uid-a", "uid-b"])),
        ("n", uids(&["uid-a", "uid-c"])),
        ("ill", uids(&["uid-c"])),
        ("elsewhere", uids(&["uid-a"])),
    ];
    let fits = s.extender_filter_without(&plain("p", 2), &asked);
    assert_eq!(fits, [false, true, false, false, false]);
    // It was but a question.
    assert!(s.extender_filter(&plain("p", 1), &["n"])[0].is_err());
}

#[derive(Clone, Debug)]
struct Load {
    nodes: Vec<(usize, usize)>,
    pods: Vec<(i64, usize)>,
}

fn loads() -> impl Strategy<Value = Load> {
    let nodes = prop::collection::vec((1usize..5, 0usize..6), 1..5);
    let pods = prop::collection::vec((1i64..4, 0usize..9), 0..14);
    (nodes, pods).prop_map(|(nodes, pods)| Load { nodes, pods })
}

proptest! {
    #![proptest_config(cases(60))]

    /// Another scheduler that heeds the answers never overfills a node and never shares a GPU, and
    /// wherever it may place a pod there are devices for it. Ours, asked all the time, plans what it
    /// would have planned unasked.
    #[test]
    fn heeding_the_answers_is_safe_and_asking_changes_nothing(load in loads()) {
        let mut asked = scheduler();
        let mut unasked = scheduler();
        let mut names = Vec::new();
        for (i, (gpus, ill)) in load.nodes.iter().enumerate() {
            let name = format!("n{i}");
            for s in [&mut asked, &mut unasked] {
                s.apply(described(&name, *gpus, |gpu| gpu != *ill));
            }
            names.push(name);
        }
        let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut given: BTreeSet<String> = BTreeSet::new();
        for (i, (gpus, which)) in load.pods.iter().enumerate() {
            let name = format!("p{i}");
            if *which == 8 {
                for s in [&mut asked, &mut unasked] {
                    s.apply(lone(&name, *gpus));
                }
                continue;
            }
            let pod = plain(&name, *gpus);
            let places = asked.extender_filter(&pod, &nodes);
            let liked = asked.extender_scores(&pod, &nodes);
            let open: Vec<usize> = (0..nodes.len()).filter(|at| places[*at].is_ok()).collect();
            prop_assert_eq!(open.is_empty(), liked.iter().all(|liked| *liked == 0) );
            if open.is_empty() {
                continue;
            }
            prop_assert!(open.iter().any(|at| liked[*at] == 10));
            let node = nodes[open[which % open.len()]];
            let ids = settle(&mut asked, &pod, node);
            prop_assert_eq!(ids.len() as i64, *gpus);
            for id in &ids {
                prop_assert!(id.starts_with(node), "{} is not on {}", id, node);
                prop_assert!(given.insert(id.clone()), "{} was given twice", id);
            }
            let mut bound = serde_json::to_value(&pod).unwrap();
            bound["spec"]["nodeName"] = json!(node);
            bound["metadata"]["annotations"]["muster.io/devices"] =
                json!(json!({"main": {"nvidia.com/gpu": ids}}).to_string());
            unasked.apply(Event::PodChanged(Box::new(serde_json::from_value(bound).unwrap())));
        }
        prop_assert_eq!(asked.plan(now()), unasked.plan(now()));
    }
}
