//! Sharing GPUs: parts of one, by fraction or by memory, on GPUs known one by one or only counted;
//! with whole ones beside them, queues' bounds, pods that leave, and evictions.

mod support;

use std::collections::BTreeMap;

use resources::report::WaitReason;
use scheduler::{Config, Event, GpuOrder, Plan, Scheduler};
use serde_json::{Value, json};
use support::*;

/// A pod by itself with an annotation and no whole GPU.
fn noted(name: &str, note: &str, value: &str, change: impl FnOnce(&mut Value)) -> Event {
    pod_with(name, None, 0, |pod| {
        pod["metadata"]["annotations"][note] = json!(value);
        change(pod);
    })
}

fn part(name: &str, fraction: &str) -> Event {
    noted(name, "muster.io/gpu-fraction", fraction, |_| {})
}

fn memory(name: &str, mib: i64) -> Event {
    noted(name, "muster.io/gpu-memory", &mib.to_string(), |_| {})
}

/// The same pod where it runs.
fn running(name: &str, fraction: &str, node: &str, gpu: &str) -> Event {
    noted(name, "muster.io/gpu-fraction", fraction, |pod| {
        place(pod, node, gpu);
    })
}

fn place(pod: &mut Value, node: &str, gpu: &str) {
    let devices = json!({"main": {"nvidia.com/gpu": [gpu]}}).to_string();
    pod["metadata"]["annotations"]["muster.io/devices"] = json!(devices);
    pod["spec"]["nodeName"] = json!(node);
    pod["status"] = json!({"phase": "Running"});
}

fn labelled(name: &str, gpus: i64, mib: i64) -> Event {
    node_with(name, gpus, |node| {
        node["metadata"]["labels"]["nvidia.com/gpu.memory"] = json!(mib.to_string());
    })
}

/// Pod name to the GPUs that it was given.
fn given(plan: &Plan) -> BTreeMap<String, Vec<String>> {
    let ids = |bind: &scheduler::Bind| -> Vec<String> {
        let lists = bind.devices.values().flat_map(|by| by.values());
        lists.flatten().cloned().collect()
    };
    let binds = plan.binds.iter();
    binds
        .map(|bind| (bind.pod.name.clone(), ids(bind)))
        .collect()
}

fn tell(events: impl IntoIterator<Item = Event>) -> Scheduler {
    let mut s = scheduler();
    for event in events {
        s.apply(event);
    }
    s
}

fn reasons(plan: &Plan, name: &str) -> Vec<String> {
    let reasons = report(plan, name).per_reason.iter();
    reasons.map(|reason| reason.reason.clone()).collect()
}

#[test]
fn parts_fill_a_gpu_and_whole_ones_are_taken_whole() {
    let mut s = tell([
        described("n", 2, |_| true),
        part("a", "0.5"),
        part("b", "0.5"),
        lone("c", 1),
        part("d", "0.3"),
    ]);
    let plan = s.plan(now());
    let gpus = given(&plan);
    assert_eq!(gpus["a"], gpus["b"]);
    assert_ne!(gpus["a"], gpus["c"]);
    assert!(!gpus.contains_key("d"));
    assert_eq!(reasons(&plan, "d"), ["no GPU has 300 of 1000 free"]);
    s.apply(pod_gone("b"));
    assert_eq!(given(&s.plan(now()))["d"], gpus["a"]);
}

#[test]
fn pieces_on_different_gpus_do_not_add_up() {
    let mut s = tell([
        described("n", 2, |_| true),
        running("x", "0.7", "n", "n-0"),
        running("y", "0.7", "n", "n-1"),
        part("a", "0.5"),
        lone("whole", 1),
    ]);
    let plan = s.plan(now());
    assert_eq!(bound(&plan), BTreeMap::new());
    let why = report(&plan, "a");
    assert_eq!(why.verdict, WaitReason::InsufficientResources);
    assert_eq!(
        why.sentence(),
        "0/1 nodes are available: 1 no GPU has 500 of 1000 free."
    );
    assert!(why.would_fit.contains("0.5 of a GPU") || why.would_fit.contains("500m of a GPU"));
    assert_eq!(reasons(&plan, "whole"), ["Insufficient nvidia.com/gpu"]);
}

#[test]
fn gpus_that_are_only_counted_are_shared_by_index() {
    let mut s = tell([
        node("n", 2),
        part("a", "0.6"),
        part("b", "0.6"),
        part("c", "0.4"),
    ]);
    let gpus = given(&s.plan(now()));
    assert_eq!(gpus["a"], ["0"]);
    assert_eq!(gpus["b"], ["1"]);
    assert_eq!(gpus["c"], ["0"]);
    s.apply(lone("whole", 1));
    assert_eq!(bound(&s.plan(now())), BTreeMap::new());
    s.apply(pod_gone("b"));
    let plan = s.plan(now());
    assert_eq!(bound(&plan)["whole"], "n");
    assert_eq!(given(&plan)["whole"], Vec::<String>::new());
    // Nobody says which GPU the whole one is: a part finds room beside the other parts only.
    s.apply(pod_gone("c"));
    s.apply(part("d", "0.5"));
    assert_eq!(bound(&s.plan(now())), BTreeMap::new());
    s.apply(part("e", "0.4"));
    assert_eq!(given(&s.plan(now()))["e"], ["0"]);
}

#[test]
fn a_part_of_memory_depends_on_what_the_node_has() {
    let mut s = tell([
        labelled("small", 1, 1000),
        labelled("large", 1, 4000),
        memory("a", 2000),
        memory("b", 990),
    ]);
    let plan = s.plan(now());
    assert_eq!(bound(&plan)["a"], "large");
    let held = |s: &Scheduler, node: &str| s.view().nodes[node].gpus.clone();
    assert_eq!(
        held(&s, "large")["0"],
        if bound(&plan)["b"] == "large" {
            750
        } else {
            500
        }
    );
    s.apply(memory("c", 5000));
    let plan = s.plan(now());
    assert_eq!(report(&plan, "c").verdict, WaitReason::NoNodeFits);
    assert_eq!(reasons(&plan, "c"), ["no GPU has 5000 MiB free"]);
}

#[test]
fn a_node_that_does_not_say_its_memory_holds_no_part_of_it() {
    let mut s = tell([node("n", 1), memory("a", 10)]);
    assert_eq!(bound(&s.plan(now())), BTreeMap::new());
    s.apply(labelled("n", 1, 100));
    assert_eq!(bound(&s.plan(now()))["a"], "n");
}

#[test]
fn what_pods_count_as_follows_their_nodes_memory() {
    let pod = |mib| noted("a", "gpu-memory", mib, |pod| place(pod, "n", "0"));
    let waits = || memory("waits", 300);
    let mut s = tell([labelled("n", 1, 1000), pod("500"), waits()]);
    assert_eq!(s.view().nodes["n"].gpus["0"], 500);
    for mib in [2000, 500, 100] {
        s.apply(labelled("n", 1, mib));
        let fresh = tell([waits(), pod("500"), labelled("n", 1, mib)]);
        assert_eq!(s.view(), fresh.view(), "{mib}");
    }
    s.apply(Event::NodeGone("n".into()));
    assert_eq!(s.view().nodes["n"].gpus["0"], 1000);
}

#[test]
fn a_whole_gpu_asked_for_beside_a_fraction_is_what_the_fraction_is_of() {
    let half = |name: &str, gpus| {
        pod_with(name, None, gpus, |pod| {
            pod["metadata"]["annotations"]["gpu-fraction"] = json!("0.5");
        })
    };
    let mut s = tell([described("n", 2, |_| true), half("a", 1), half("b", 1)]);
    let gpus = given(&s.plan(now()));
    assert_eq!(gpus["a"], gpus["b"]);
    s.apply(half("c", 2));
    assert!(bound(&s.plan(now())).is_empty());
    s.apply(pod_gone("a"));
    let gpus = given(&s.plan(now()));
    let mut both = gpus["c"].clone();
    both.sort();
    assert_eq!(both, ["n-0", "n-1"]);
}

#[test]
fn the_fraction_one_is_a_whole_gpu() {
    let mut s = tell([
        described("n", 2, |_| true),
        part("a", "1"),
        part("b", "0.1"),
    ]);
    let gpus = given(&s.plan(now()));
    assert_ne!(gpus["a"], gpus["b"]);
    assert_eq!(s.view().nodes["n"].gpus[&gpus["a"][0]], 1000);
}

#[test]
fn packing_takes_the_fullest_gpu_and_spreading_the_emptiest() {
    let choose = |order| {
        let mut s = Scheduler::new(Config {
            gpus: order,
            ..Config::default()
        });
        s.apply(described("n", 3, |_| true));
        s.apply(running("x", "0.5", "n", "n-0"));
        s.apply(running("y", "0.7", "n", "n-1"));
        s.apply(part("a", "0.2"));
        given(&s.plan(now()))["a"].clone()
    };
    assert_eq!(choose(GpuOrder::Pack), ["n-1"]);
    assert_eq!(choose(GpuOrder::Spread), ["n-2"]);
}

#[test]
fn a_begun_gpu_on_another_node_goes_before_a_free_one() {
    let mut s = tell([
        described("a", 1, |_| true),
        described("b", 8, |_| true),
        running("x", "0.5", "b", "b-5"),
        part("p", "0.5"),
    ]);
    assert_eq!(given(&s.plan(now()))["p"], ["b-5"]);
}

#[test]
fn a_broken_gpu_is_not_shared() {
    let mut s = tell([
        described("n", 2, |i| i == 1),
        part("a", "0.5"),
        part("b", "0.6"),
    ]);
    let plan = s.plan(now());
    assert_eq!(given(&plan)["a"], ["n-1"]);
    assert!(!bound(&plan).contains_key("b"));
}

#[test]
fn queues_are_charged_the_part() {
    let limit = |gpus: &str| {
        queue_with("default", |queue| {
            queue["spec"]["capability"] = json!({ "nvidia.com/gpu": gpus });
        })
    };
    let parts = || ["a", "b", "c"].map(|name| part(name, "0.5"));
    let mut s = tell([described("n", 4, |_| true), limit("1")]);
    parts().into_iter().for_each(|event| s.apply(event));
    let plan = s.plan(now());
    assert_eq!(bound(&plan).len(), 2);
    let why = report(&plan, "c");
    assert_eq!(why.verdict, WaitReason::QuotaExceeded);
    assert!(why.binding.contains("holds 1 of the 1"), "{}", why.binding);
    s.apply(limit("1500m"));
    assert_eq!(bound(&s.plan(now())).len(), 1);
    assert_eq!(s.view().queues["default"].gpu_milli, 1500);
}

#[test]
fn a_gang_of_sharers_starts_whole_or_not_at_all() {
    let member = |i: usize| {
        pod_with(&format!("g-{i}"), Some("g"), 0, |pod| {
            pod["metadata"]["annotations"]["muster.io/gpu-fraction"] = json!("0.4");
        })
    };
    let mut s = tell([described("n", 2, |_| true), group("g", 5)]);
    (0..5).for_each(|i| s.apply(member(i)));
    let plan = s.plan(now());
    assert!(bound(&plan).is_empty());
    assert_eq!(report(&plan, "g").members_placed_possible, 4);
    assert!(s.view().nodes["n"].gpus.is_empty());
    s.apply(described("m", 1, |_| true));
    assert_eq!(bound(&s.plan(now())).len(), 5);
}

#[test]
fn a_part_that_somebody_leaves_is_waited_for_and_given_to_nobody_else() {
    let leaving = noted("old", "muster.io/gpu-fraction", "0.5", |pod| {
        place(pod, "n", "n-0");
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    let mut s = tell([
        described("n", 1, |_| true),
        running("stays", "0.5", "n", "n-0"),
        leaving,
        part("a", "0.5"),
    ]);
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    assert_eq!(plan.reservations.len(), 1);
    let held = &plan.reservations[0].devices[0]["main"]["nvidia.com/gpu"];
    assert_eq!(*held, ["n-0"]);
    s.apply(part("b", "0.1"));
    assert!(s.plan(now()).binds.is_empty());
    s.apply(pod_gone("old"));
    assert_eq!(
        given(&s.plan(now())),
        BTreeMap::from([("a".into(), vec!["n-0".into()])])
    );
}

#[test]
fn a_whole_gpu_waits_for_the_last_of_its_sharers() {
    let leaving = |name: &str| {
        noted(name, "muster.io/gpu-fraction", "0.5", |pod| {
            place(pod, "n", "n-0");
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        })
    };
    let mut s = tell([
        described("n", 1, |_| true),
        leaving("x"),
        leaving("y"),
        lone("a", 1),
    ]);
    assert_eq!(s.plan(now()).reservations.len(), 1);
    s.apply(pod_gone("x"));
    assert!(s.plan(now()).binds.is_empty());
    s.apply(pod_gone("y"));
    let plan = s.plan(now());

    assert_eq!(given(&plan)["a"], ["n-0"]);
}

#[test]
fn evictions_free_a_part_of_one_gpu() {
    let junior = |name: &str, fraction: &str, gpu: &str| {
        noted(name, "muster.io/gpu-fraction", fraction, |pod| {
            place(pod, "n", gpu);
            pod["spec"]["priority"] = json!(1);
        })
    };
    let mut s = tell([
        described("n", 2, |_| true),
        junior("small", "0.3", "n-0"),
        junior("large", "0.6", "n-0"),
        junior("other", "0.9", "n-1"),
        noted("a", "muster.io/gpu-fraction", "0.7", |pod| {
            pod["spec"]["priority"] = json!(9);
        }),
    ]);
    let plan = s.plan(now());
    assert_eq!(plan.evictions.len(), 1, "{:?}", plan.evictions);
    let gone = plan.evictions[0].pod.name.clone();
    assert_ne!(gone, "small");
    assert_eq!(plan.reservations.len(), 1);
    s.apply(pod_gone(&gone));
    let want = if gone == "large" { "n-0" } else { "n-1" };
    assert_eq!(given(&s.plan(now()))["a"], [want]);
}

#[test]
fn what_cannot_be_read_waits_and_says_so() {
    let mut s = tell([described("n", 2, |_| true), part("a", "1.5")]);
    let plan = s.plan(now());
    assert!(bound(&plan).is_empty());
    let why = report(&plan, "a");
    assert!(why.binding.contains("gpu-fraction"), "{}", why.binding);
}

#[test]
fn slices_are_resources_of_their_own() {
    let slice = |name: &str| {
        pod_with(name, None, 0, |pod| {
            pod["spec"]["containers"][0]["resources"]["limits"] =
                json!({"nvidia.com/mig-1g.10gb": "1"});
        })
    };
    let mixed = node_with("n", 0, |node| {
        node["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] = json!("1");
        let gpus = json!({"gpus": [{"id": "n-0", "index": 0, "healthy": true}]});
        node["metadata"]["annotations"]["muster.io/inventory"] = json!(gpus.to_string());
    });
    let mut s = tell([mixed, slice("a"), slice("b"), part("p", "0.1")]);
    let plan = s.plan(now());
    assert_eq!(bound(&plan).keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!(reasons(&plan, "b"), ["Insufficient nvidia.com/mig-1g.10gb"]);
    assert_eq!(reasons(&plan, "p"), ["no GPU has 100 of 1000 free"]);
}

#[test]
fn a_sharer_that_does_not_say_its_gpu_counts_with_a_whole_one() {
    let nameless = pod_with("x", None, 0, |pod| {
        pod["metadata"]["annotations"]["gpu-fraction"] = json!("0.1");
        pod["spec"]["nodeName"] = json!("n");
    });
    let mut s = tell([
        described("n", 2, |_| true),
        nameless,
        part("a", "0.5"),
        part("b", "0.6"),
    ]);
    assert_eq!(bound(&s.plan(now())).keys().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn containers_that_ask_for_gpus_get_their_number_of_shared_ones() {
    let event = noted("a", "gpu-fraction", "0.5", |pod| {
        let one = json!({"limits": {"nvidia.com/gpu": "1"}});
        pod["spec"]["containers"] = json!([
            {"name": "x", "resources": one}, {"name": "y"}, {"name": "z", "resources": one},
        ]);
    });
    let mut s = tell([described("n", 2, |_| true), event]);
    let plan = s.plan(now());
    let devices = &plan.binds[0].devices;
    assert_eq!(devices.keys().collect::<Vec<_>>(), ["x", "z"]);
    assert_ne!(devices["x"], devices["z"]);
}

#[test]
fn the_named_container_gets_the_gpu() {
    let event = noted("a", "gpu-fraction", "0.5", |pod| {
        pod["metadata"]["annotations"]["gpu-fraction-container-name"] = json!("worker");
        pod["spec"]["containers"] = json!([{"name": "side"}, {"name": "worker"}]);
    });
    let mut s = tell([described("n", 1, |_| true), event]);
    let plan = s.plan(now());
    let containers: Vec<_> = plan.binds[0].devices.keys().collect();
    assert_eq!(containers, ["worker"]);
}

#[test]
fn parts_in_other_plugins_words_share_gpus_with_ours() {
    let foreign = |name: &str, limits: Value| {
        pod_with(name, None, 0, |pod| {
            pod["spec"]["containers"][0]["resources"]["limits"] = limits;
        })
    };
    let mut s = tell([
        labelled("n", 1, 16384),
        foreign("a", json!({"aliyun.com/gpu-mem": "4"})),
        foreign(
            "b",
            json!({"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-cores": "30"}),
        ),
        part("c", "0.4"),
        foreign("d", json!({"koordinator.sh/gpu-core": "10"})),
    ]);
    let plan = s.plan(now());
    assert_eq!(bound(&plan).keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(given(&plan)["a"], ["0"]);
    assert_eq!(s.view().nodes["n"].gpus["0"], 950);
    assert_eq!(reasons(&plan, "d"), ["no GPU has 100 of 1000 free"]);
    s.apply(foreign("e", json!({"aliyun.com/gpu-core": "150"})));
    let plan = s.plan(now());
    assert!(report(&plan, "e").binding.contains("cannot be read"));
}

#[test]
fn gpus_that_another_plugin_offers_for_sharing_are_shared() {
    let offers = node_with("n", 0, |node| {
        let allocatable = &mut node["status"]["allocatable"];
        allocatable["aliyun.com/gpu-count"] = json!("2");
        allocatable["aliyun.com/gpu-mem"] = json!("30");
    });
    let asks = |name: &str, gib: &str| {
        pod_with(name, None, 0, |pod| {
            pod["spec"]["containers"][0]["resources"]["limits"] =
                json!({"aliyun.com/gpu-mem": gib});
        })
    };
    let mut s = tell([offers, asks("a", "10"), asks("b", "10"), asks("c", "10")]);
    let plan = s.plan(now());
    // Pieces of 5 GiB on two GPUs are not 10.
    assert_eq!(bound(&plan).len(), 2);
    assert_eq!(reasons(&plan, "c"), ["no GPU has 10240 MiB free"]);
}
