//! GPUs of which a container gets at most one: shared through MPS, or by a device plugin that refuses requests for
//! several. A container that requests several gets other GPUs, or waits with that reason; a container that requests
//! one gets any.

mod support;

use std::collections::BTreeMap;

use jiff::SignedDuration;
use resources::report::WaitReason;
use scheduler::{Config, Event, Plan, ReservationKind, Scheduler};
use serde_json::{Value, json};
use support::cluster::{Cluster, evicted};
use support::*;

const ONE: &str = "node(s) give a container only one of their shared GPUs";

/// A node of so many GPUs, of which these are such.
fn with_alone(name: &str, gpus: usize, alone: &[usize]) -> Event {
    let gpu = |i: usize| {
        json!({"id": format!("{name}-{i}"), "index": i, "healthy": true, "memoryMib": 1000,
            "alone": alone.contains(&i)})
    };
    let list: Vec<Value> = (0..gpus).map(gpu).collect();
    node_with(name, gpus as i64, |node| {
        node["metadata"]["annotations"]["muster.io/inventory"] =
            json!(json!({"gpus": list}).to_string());
    })
}

/// A pod whose containers ask for so many each.
fn containers(name: &str, resource: &str, counts: &[i64]) -> Event {
    pod_with(name, None, 0, |pod| {
        let each = counts.iter().enumerate().map(|(at, count)| {
            json!({"name": format!("c{at}"),
                "resources": {"limits": {resource: count.to_string()}}})
        });
        pod["spec"]["containers"] = each.collect();
    })
}

/// Such a part of each of so many GPUs.
fn part(name: &str, fraction: &str, gpus: i64) -> Event {
    pod_with(name, None, 0, |pod| {
        let notes = &mut pod["metadata"]["annotations"];
        notes["muster.io/gpu-fraction"] = json!(fraction);
        notes["muster.io/gpu-count"] = json!(gpus.to_string());
    })
}

fn tell(events: impl IntoIterator<Item = Event>) -> Scheduler {
    let mut s = scheduler();
    for event in events {
        s.apply(event);
    }
    s
}

/// Pod name to the GPUs that it was given, in order.
fn given(plan: &Plan) -> BTreeMap<String, Vec<String>> {
    let ids = |bind: &scheduler::Bind| {
        let lists = bind.devices.values().flat_map(|by| by.values());
        let mut ids: Vec<String> = lists.flatten().cloned().collect();
        ids.sort();
        ids
    };
    let binds = plan.binds.iter();
    binds
        .map(|bind| (bind.pod.name.clone(), ids(bind)))
        .collect()
}

#[test]
fn who_needs_several_gpus_gets_only_such_as_one_can_have_several_of() {
    const GPU: &str = "nvidia.com/gpu";
    let all = &[0, 1, 2, 3][..];
    // Those of four GPUs of which a container gets one; the pod; what it gets.
    type Case<'a> = (&'a [usize], Event, Option<&'a [&'a str]>);
    let init = pod_with("p", None, 1, |pod| {
        pod["spec"]["initContainers"] =
            json!([{"name": "fetch", "resources": {"limits": {GPU: "2"}}}]);
    });
    let cases: [Case; 14] = [
        (&[], lone("p", 2), Some(&["n-0", "n-1"])),
        (&[0, 2], lone("p", 2), Some(&["n-1", "n-3"])),
        (&[0, 2], lone("p", 3), None),
        (all, lone("p", 2), None),
        (all, lone("p", 1), Some(&["n-0"])),
        (all, lone("p", 0), Some(&[])),
        // Each container has one.
        (all, containers("p", GPU, &[1, 1]), Some(&["n-0", "n-1"])),
        (
            &[0],
            containers("p", GPU, &[1, 2]),
            Some(&["n-1", "n-2", "n-3"]),
        ),
        (&[0, 1, 2], containers("p", GPU, &[2, 0]), None),
        (all, part("p", "0.5", 1), Some(&["n-0"])),
        (all, part("p", "0.5", 2), None),
        (&[0, 1], part("p", "0.5", 2), Some(&["n-2", "n-3"])),
        (&[0, 1], part("p", "1", 2), Some(&["n-2", "n-3"])),
        // What starts the pod needs two.
        (all, init, None),
    ];
    for (alone, pod, wanted) in cases {
        let mut s = tell([with_alone("n", 4, alone), pod.clone()]);
        let plan = s.plan(now());
        let wanted = wanted.map(|ids| ids.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(given(&plan).remove("p"), wanted, "{alone:?} {pod:?}");
        if wanted.is_none() {
            let why = report(&plan, "p");
            assert_eq!(
                why.sentence(),
                format!("0/1 nodes are available: 1 {ONE}."),
                "{pod:?}"
            );
            assert_eq!(why.verdict, WaitReason::NoNodeFits);
            assert!(
                why.would_fit.contains("one GPU for each container"),
                "{}",
                why.would_fit
            );
        }
    }
}

#[test]
fn nodes_that_have_enough_only_with_such_gpus_are_counted_apart() {
    let mut s = tell([
        with_alone("all", 4, &[0, 1, 2, 3]),
        with_alone("half", 4, &[0, 1]),
        with_alone("none", 2, &[]),
        // Too small in any case.
        with_alone("one", 1, &[0]),
    ]);
    // All but the GPUs of which a container gets one are held.
    for (name, node, gpu) in [("a", "half", "half-2"), ("b", "none", "none-0")] {
        s.apply(pod_with(name, None, 1, |pod| {
            let devices = json!({"main": {"nvidia.com/gpu": [gpu]}}).to_string();
            pod["metadata"]["annotations"]["muster.io/devices"] = json!(devices);
            pod["spec"]["nodeName"] = json!(node);
            pod["status"] = json!({"phase": "Running"});
        }));
    }
    s.apply(lone("p", 2));
    let plan = s.plan(now());
    assert_eq!(given(&plan), BTreeMap::new());
    let why = report(&plan, "p");
    assert_eq!(
        why.sentence(),
        format!("0/4 nodes are available: 2 Insufficient nvidia.com/gpu, 2 {ONE}.")
    );
    assert_eq!(why.verdict, WaitReason::InsufficientResources);
    assert!(why.would_fit.contains("; or a node with enough GPUs"));
    // It is only for now.
    s.apply(pod_gone("a"));
    assert_eq!(given(&s.plan(now()))["p"], ["half-2", "half-3"]);
}

#[test]
fn a_gang_starts_where_all_its_members_have_gpus_that_one_can_have_several_of() {
    let mut s = tell([
        with_alone("a", 4, &[0, 1, 2, 3]),
        with_alone("b", 4, &[2, 3]),
    ]);
    gang(&mut s, "g", 2, 2);
    let plan = s.plan(now());
    assert_eq!(bound(&plan), BTreeMap::new());
    let why = report(&plan, "g").sentence();
    assert!(why.contains(&format!("1 {ONE}")), "{why}");
    // Those of one each could start meanwhile, whatever has one.
    gang(&mut s, "ones", 4, 1);
    let ones = given(&s.plan(now()));
    assert_eq!(ones.len(), 4, "{ones:?}");
    // The first node gets more, which aren't shared.
    s.apply(with_alone("a", 8, &[0, 1, 2, 3]));
    let ids: Vec<String> = given(&s.plan(now())).into_values().flatten().collect();
    let shared = ["a-0", "a-1", "a-2", "a-3", "b-2", "b-3"];
    assert_eq!(ids.len(), 4);
    assert!(!ids.iter().any(|id| shared.contains(&&**id)), "{ids:?}");
}

#[test]
fn a_gpu_and_a_slice_are_several() {
    const SMALL: &str = "nvidia.com/mig-1g.10gb";
    let slice = json!({"id": "MIG-a", "profile": "1g.10gb", "healthy": true});
    let cut = json!({"id": "n-cut", "index": 1, "healthy": true, "slices": [slice]});
    let asks = |apart: bool| {
        pod_with("p", None, 0, |pod| {
            let asks = |of: &[&str]| {
                let limits: serde_json::Map<String, Value> =
                    of.iter().map(|of| (of.to_string(), json!("1"))).collect();
                json!({"name": of.join("-").replace(['/', '.'], "-"),
                    "resources": {"limits": limits}})
            };
            pod["spec"]["containers"] = match apart {
                true => json!([asks(&["nvidia.com/gpu"]), asks(&[SMALL])]),
                false => json!([asks(&["nvidia.com/gpu", SMALL])]),
            };
        })
    };
    for (alone, apart, fits) in [
        (true, true, true),
        (true, false, false),
        (false, false, true),
    ] {
        let gpu = json!({"id": "n-0", "index": 0, "healthy": true, "alone": alone});
        let inventory = json!({"gpus": [gpu, cut.clone()]}).to_string();
        let node = node_with("n", 1, |node| {
            node["status"]["allocatable"][SMALL] = json!("1");
            node["metadata"]["annotations"]["muster.io/inventory"] = json!(inventory);
        });
        let plan = tell([node, asks(apart)]).plan(now());
        let is_bound = bound(&plan).contains_key("p");
        assert_eq!(is_bound, fits, "alone {alone}, apart {apart}");
        if !fits {
            assert!(report(&plan, "p").sentence().contains(ONE));
        }
    }
}

#[test]
fn where_it_can_start_at_once_is_better_than_where_somebody_has_yet_to_leave() {
    let mut s = tell([with_alone("a", 4, &[0, 1]), with_alone("b", 4, &[])]);
    s.apply(pod_with("leaver", None, 1, |pod| {
        let devices = json!({"main": {"nvidia.com/gpu": ["a-2"]}}).to_string();
        pod["metadata"]["annotations"]["muster.io/devices"] = json!(devices);
        pod["metadata"]["deletionTimestamp"] = json!(now().to_string());
        pod["spec"]["nodeName"] = json!("a");
        pod["status"] = json!({"phase": "Running"});
    }));
    // Two are free on the first node, and it is the fuller one; but a container has each by itself.
    s.apply(lone("p", 2));
    assert_eq!(bound(&s.plan(now()))["p"], "b");
}

#[test]
fn a_place_that_is_held_is_given_back_where_its_gpus_are_shared_meanwhile() {
    let mut c = Cluster::new();
    c.notify(with_alone("n", 2, &[]));
    c.gang("low", "default", "low", 1, 1, 2);
    assert_eq!(c.run().binds.len(), 1);
    c.gang("high", "default", "high", 1, 1, 2);
    let plan = c.run();
    assert_eq!(evicted(&plan), ["low-0"]);
    c.notify(with_alone("n", 2, &[1]));
    c.leave(&plan);
    let plan = c.run();
    assert_eq!(given(&plan), BTreeMap::new());
    assert!(report(&plan, "high").sentence().contains(ONE));
}

#[test]
fn those_are_evicted_who_have_what_several_can_be_had_of() {
    let mut c = Cluster::new();
    c.notify(with_alone("n", 4, &[0, 1]));
    c.gang("low", "default", "low", 1, 4, 1);
    let plan = c.run();
    let holders: Vec<String> = (plan.binds.iter())
        .filter(|bind| ["n-2", "n-3"].contains(&&*bind.devices["main"]["nvidia.com/gpu"][0]))
        .map(|bind| bind.pod.name.clone())
        .collect();
    assert_eq!(holders.len(), 2);
    c.gang("high", "default", "high", 1, 1, 2);
    let plan = c.run();
    let mut wanted: Vec<&str> = holders.iter().map(String::as_str).collect();
    wanted.sort_unstable();
    assert_eq!(evicted(&plan), wanted);
    c.leave(&plan);
    assert_eq!(given(&c.run())["high-0"], ["n-2", "n-3"]);
}

#[test]
fn room_is_reserved_from_when_what_several_can_be_had_of_is_given_back() {
    let mut s = Scheduler::new(Config {
        reserve_after: SignedDuration::ZERO,
        ..Config::default()
    });
    s.apply(with_alone("n", 4, &[0, 1]));
    // Those that have what the head can't end first.
    for (gpu, seconds) in [100, 200, 300, 400].into_iter().enumerate() {
        s.apply(pod_with(&format!("p{gpu}"), None, 1, |pod| {
            let devices = json!({"main": {"nvidia.com/gpu": [format!("n-{gpu}")]}}).to_string();
            pod["metadata"]["annotations"] = json!({"muster.io/devices": devices,
                "muster.io/walltime": seconds.to_string()});
            pod["spec"]["nodeName"] = json!("n");
            pod["status"] = json!({"phase": "Running", "startTime": now().to_string()});
        }));
    }
    s.apply(group("head", 1));
    s.apply(pod("head-0", "head", 2));
    let plan = s.plan(at(1));
    let planned = plan.reservations.iter().map(|held| held.kind);
    let planned: Vec<ReservationKind> = planned.collect();
    assert_eq!(planned, [ReservationKind::Planned { at: at(400) }]);
    assert_eq!(report(&plan, "head").estimate.unwrap().likely, at(400));
    // Who ends before it may have any, and longer only what the head can't have.
    s.apply(pod_gone("p0"));
    s.apply(pod_gone("p2"));
    for (name, seconds) in [("long", "9000"), ("longer", "9000"), ("short", "50")] {
        s.apply(pod_with(name, None, 1, |pod| {
            pod["metadata"]["annotations"] = json!({"muster.io/walltime": seconds});
            pod["metadata"]["creationTimestamp"] = json!(at(1).to_string());
        }));
    }
    let plan = s.plan(at(2));
    let got = given(&plan);
    assert_eq!(got.len(), 2, "{got:?}");
    assert!(got.contains_key("short"), "{got:?}");
    let estimate = report(&plan, "head").estimate.unwrap();
    assert_eq!(estimate.likely, at(400));
}

#[test]
fn a_resource_of_which_a_container_gets_one_is_not_given_twice_to_one() {
    const SHARED: &str = "nvidia.com/gpu.shared";
    let shares = |one_at_most: Value| {
        node_with("n", 0, |node| {
            node["status"]["allocatable"][SHARED] = json!("8");
            node["metadata"]["annotations"]["muster.io/inventory"] =
                json!(json!({"oneAtMost": one_at_most}).to_string());
        })
    };
    for (one_at_most, counts, fits) in [
        (json!([]), &[2][..], true),
        (json!([SHARED]), &[2], false),
        (json!([SHARED]), &[1], true),
        (json!([SHARED]), &[1, 1], true),
        (json!([SHARED]), &[1, 2], false),
        (json!(["nvidia.com/part"]), &[2], true),
    ] {
        let mut s = tell([shares(one_at_most.clone()), containers("p", SHARED, counts)]);
        let plan = s.plan(now());
        let is_bound = bound(&plan).contains_key("p");
        assert_eq!(is_bound, fits, "{counts:?} where one of {one_at_most}");
        if !fits {
            let sentence = format!("0/1 nodes are available: 1 {ONE}.");
            assert_eq!(report(&plan, "p").sentence(), sentence);
            // The agent is told to give several.
            s.apply(shares(json!([])));
            assert!(bound(&s.plan(now())).contains_key("p"));
        }
    }
}
