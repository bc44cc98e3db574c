//! What pods ask their GPUs to be: product, memory, compute capability, driver; and which GPUs of
//! a node go together.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use resources::report::WaitReason;
use scheduler::{Event, Plan};
use serde_json::{Value, json};
use support::*;

/// A node with labels as NVIDIA's feature discovery writes them.
fn labelled(name: &str, product: &str, mib: i64, compute: (i64, i64), driver: &str) -> Event {
    node_with(name, 8, |node| {
        let labels = &mut node["metadata"]["labels"];
        labels["nvidia.com/gpu.product"] = json!(product);
        labels["nvidia.com/gpu.memory"] = json!(mib.to_string());
        labels["nvidia.com/gpu.compute.major"] = json!(compute.0.to_string());
        labels["nvidia.com/gpu.compute.minor"] = json!(compute.1.to_string());
        labels["nvidia.com/cuda.driver-version.full"] = json!(driver);
    })
}

fn fleet() -> [Event; 4] {
    [
        labelled("t4", "Tesla-T4", 15360, (7, 5), "470.82.01"),
        labelled("a100", "NVIDIA-A100-SXM4-40GB", 40960, (8, 0), "535.104.05"),
        labelled("h100", "NVIDIA-H100-80GB-HBM3", 81559, (9, 0), "550.54.15"),
        node("cpu", 0),
    ]
}

fn asking(name: &str, notes: &[(&str, &str)]) -> Event {
    pod_with(name, None, 1, |pod| {
        for (note, value) in notes {
            pod["metadata"]["annotations"][format!("muster.io/{note}")] = json!(value);
        }
    })
}

fn plan(events: impl IntoIterator<Item = Event>) -> Plan {
    let mut s = scheduler();
    events.into_iter().for_each(|event| s.apply(event));
    s.plan(now())
}

#[test]
fn a_pod_goes_where_the_gpus_are_what_it_asks_for() {
    type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);
    let table: [Case; 9] = [
        (&[("gpu-model", "h100")], Some("h100")),
        (&[("gpu-model", "A100-40GB")], Some("a100")),
        (&[("gpu-model", "A10")], None),
        (
            &[("gpu-min-memory", "40Gi"), ("gpu-model", "A100,T4")],
            Some("a100"),
        ),
        (&[("gpu-min-memory", "41000")], Some("h100")),
        (&[("gpu-min-compute", "8.6")], Some("h100")),
        (&[("gpu-min-driver", "550")], Some("h100")),
        (
            &[("gpu-min-driver", "535.104"), ("gpu-model", "A100")],
            Some("a100"),
        ),
        (&[("gpu-min-driver", "551"), ("gpu-model", "H100")], None),
    ];
    for (notes, want) in table {
        let plan = plan(fleet().into_iter().chain([asking("p", notes)]));
        let node = bound(&plan).get("p").cloned();
        assert_eq!(node.as_deref(), want, "{notes:?}");
    }
}

#[test]
fn parts_of_gpus_have_the_same_needs() {
    let notes = [("gpu-fraction", "0.5"), ("gpu-min-compute", "9.0")];
    let part = pod_with("p", None, 0, |pod| {
        for (note, value) in notes {
            pod["metadata"]["annotations"][format!("muster.io/{note}")] = json!(value);
        }
    });
    assert_eq!(bound(&plan(fleet().into_iter().chain([part])))["p"], "h100");
}

#[test]
fn the_report_says_what_no_gpu_is() {
    let notes = [("gpu-model", "B200|H200"), ("gpu-min-memory", "100Gi")];
    let plan = plan(fleet().into_iter().chain([asking("p", &notes)]));
    let report = report(&plan, "p");
    assert_eq!(report.verdict, WaitReason::NoNodeFits);
    assert_eq!(
        report.sentence(),
        "0/4 nodes are available: 4 node(s) had no GPU of the model asked for."
    );
    assert_eq!(report.would_fit, "a node with GPUs of model B200 or H200");
}

#[test]
fn each_node_is_counted_under_the_first_need_that_it_does_not_meet() {
    let notes = [
        ("gpu-min-memory", "20000"),
        ("gpu-min-compute", "8.9"),
        ("gpu-min-driver", "560"),
    ];
    let plan = plan(fleet().into_iter().chain([asking("p", &notes)]));
    let reasons = &report(&plan, "p").per_reason;
    let reasons: BTreeMap<&str, usize> = reasons
        .iter()
        .map(|reason| (reason.reason.as_str(), reason.nodes))
        .collect();
    let want = [
        ("node(s) had no GPU driver as new as asked for", 1),
        ("node(s) had no GPU of the compute capability asked for", 1),
        ("node(s) had no GPU with the memory asked for", 2),
    ];
    assert_eq!(reasons, BTreeMap::from(want));
    let would_fit = &report(&plan, "p").would_fit;
    for part in [
        "20000 MiB",
        "capability 8.9 or higher",
        "version 560.0 or newer",
    ] {
        assert!(would_fit.contains(part), "{would_fit}");
    }
}

#[test]
fn a_node_of_several_products_is_taken_where_each_of_them_will_do() {
    let mixed = node_with("mixed", 2, |node| {
        let gpus: Vec<Value> = ["A100", "H100"]
            .iter()
            .enumerate()
            .map(|(i, model)| json!({"id": format!("g{i}"), "index": i, "model": model, "healthy": true}))
            .collect();
        node["metadata"]["annotations"]["muster.io/inventory"] =
            json!(json!({ "gpus": gpus }).to_string());
    });
    let plan = plan([
        mixed,
        asking("one", &[("gpu-model", "H100")]),
        asking("both", &[("gpu-model", "H100,A100")]),
    ]);
    assert_eq!(bound(&plan).keys().collect::<Vec<_>>(), ["both"]);
}

#[test]
fn needs_that_cannot_be_read_hold_the_pod_back_and_are_named() {
    let plan = plan(
        fleet()
            .into_iter()
            .chain([asking("p", &[("gpu-min-compute", "sm_90")])]),
    );
    assert!(bound(&plan).is_empty());
    let report = report(&plan, "p");
    assert!(
        report.binding.contains("gpu-min-compute"),
        "{}",
        report.binding
    );
}

#[test]
fn a_gang_is_placed_by_its_needs_whole_or_not_at_all() {
    let mut s = scheduler();
    fleet().into_iter().for_each(|event| s.apply(event));
    s.apply(group("g", 9));
    for i in 0..9 {
        s.apply(pod_with(&format!("g-{i}"), Some("g"), 1, |pod| {
            pod["metadata"]["annotations"]["muster.io/gpu-model"] = json!("H100");
        }));
    }
    let plan = s.plan(now());
    assert!(bound(&plan).is_empty());
    assert_eq!(report(&plan, "g").members_placed_possible, 8);
    s.apply(labelled(
        "more",
        "NVIDIA-H100-PCIe",
        81559,
        (9, 0),
        "550.54.15",
    ));
    assert_eq!(bound(&s.plan(now())).len(), 9);
}

/// A node with NVLinks between some of its GPUs.
fn linked(name: &str, gpus: usize, pairs: &[(usize, usize)]) -> Event {
    let id = |i: usize| format!("{name}-{i}");
    let links = |i: usize| -> Vec<Value> {
        let ends = pairs.iter().filter(|(a, _)| *a == i);
        ends.map(|(_, b)| json!({"to": id(*b), "kind": "NVL", "count": 4}))
            .collect()
    };
    let list: Vec<Value> = (0..gpus)
        .map(|i| json!({"id": id(i), "index": i, "healthy": true, "links": links(i)}))
        .collect();
    node_with(name, gpus as i64, |node| {
        node["metadata"]["annotations"]["muster.io/inventory"] =
            json!(json!({ "gpus": list }).to_string());
    })
}

fn gpus(plan: &Plan, pod: &str) -> BTreeSet<String> {
    let bind = plan.binds.iter().find(|bind| bind.pod.name == pod).unwrap();
    let lists = bind.devices.values().flat_map(|by| by.values());
    lists.flatten().cloned().collect()
}

#[test]
fn two_gpus_are_a_pair_and_one_leaves_pairs_whole() {
    let mut s = scheduler();
    s.apply(linked("n", 4, &[(0, 2), (1, 3)]));
    s.apply(lone("one", 1));
    let first = gpus(&s.plan(now()), "one");
    s.apply(lone("two", 2));
    let pair = gpus(&s.plan(now()), "two");
    let want = |a: &str, b: &str| BTreeSet::from([a.to_owned(), b.to_owned()]);
    assert!(pair == want("n-0", "n-2") || pair == want("n-1", "n-3"));
    assert!(first.is_disjoint(&pair));
    s.apply(lone("last", 1));
    let last = gpus(&s.plan(now()), "last");
    assert!(last.is_disjoint(&pair) && last.is_disjoint(&first));
}

proptest! {
    #![proptest_config(cases(64))]

    /// Whatever is asked of GPUs: nobody is where they are not so, and who waits has no such node
    /// with room.
    #[test]
    fn nobody_is_on_gpus_that_he_did_not_ask_for_nor_waits_beside_those(
        nodes in prop::collection::vec((0..3_usize, 0..3_i64, 0..3_i64), 1..6),
        pods in prop::collection::vec((0..4_usize, 0..4_i64, 0..4_i64, 1..4_i64), 1..12),
    ) {
        let models = ["A100", "H100", "L40S"];
        let mut s = scheduler();
        for (i, (model, compute, memory)) in nodes.iter().enumerate() {
            let product = format!("NVIDIA-{}-X", models[*model]);
            s.apply(labelled(&format!("n{i}"), &product, (memory + 1) * 1000, (7 + compute, 0), "535"));
        }
        for (i, (model, compute, memory, count)) in pods.iter().enumerate() {
            s.apply(pod_with(&format!("p{i}"), None, *count, |pod| {
                let notes = &mut pod["metadata"]["annotations"];
                if let Some(model) = models.get(*model) {
                    notes["muster.io/gpu-model"] = json!(model);
                }
                if *compute > 0 {
                    notes["muster.io/gpu-min-compute"] = json!((6 + compute).to_string());
                }
                if *memory > 0 {
                    notes["muster.io/gpu-min-memory"] = json!((memory * 1000).to_string());
                }
            }));
        }
        let plan = s.plan(now());
        let placed = bound(&plan);
        let mut free: BTreeMap<String, i64> = (0..nodes.len()).map(|i| (format!("n{i}"), 8)).collect();
        for (pod, node) in &placed {
            let at: usize = pod[1..].parse().unwrap();
            *free.get_mut(node).unwrap() -= pods[at].3;
        }
        prop_assert!(free.values().all(|n| *n >= 0));
        for (i, (model, compute, memory, count)) in pods.iter().enumerate() {
            let fits = |node: &str| {
                let (has, capability, mib) = nodes[node[1..].parse::<usize>().unwrap()];
                (*model == 3 || *model == has)
                    && (*compute == 0 || 7 + capability >= 6 + compute)
                    && (*memory == 0 || mib + 1 >= *memory)
            };
            match placed.get(&format!("p{i}")) {
                Some(node) => prop_assert!(fits(node), "p{} on {}", i, node),
                None => {
                    let mut open = free.iter().filter(|(_, n)| *n >= count);
                    prop_assert!(!open.any(|(node, _)| fits(node)), "p{} waits", i);
                }
            }
        }
    }
}
