//! Evictions, by table: which gangs are evicted, which stay, which room is nominated for which
//! gang, and what the report says.

mod support;

use std::collections::BTreeMap;

use jiff::SignedDuration;
use scheduler::{Actions, Config, Event, EvictionReason};
use serde_json::json;
use support::cluster::*;
use support::*;

#[test]
fn a_gang_preempts_lower_priorities_and_is_bound_when_its_victims_have_left() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 4), ("n2", 4)]);
    c.gang("old", "default", "low", 2, 2, 4);
    assert_eq!(c.run().binds.len(), 2);
    c.gang("new", "default", "high", 2, 2, 4);
    let plan = c.plan();
    assert_eq!(evicted(&plan), ["old-0", "old-1"]);
    assert!(
        plan.evictions
            .iter()
            .all(|e| e.why == EvictionReason::Preempted)
    );
    assert_eq!(plan.evictions[0].by.as_ref().unwrap().name, "new");
    assert_eq!(nominated(&plan), ["new-0", "new-1"]);
    assert!(
        plan.binds.is_empty(),
        "no member is bound while the victims still run"
    );
    assert!(
        report(&plan, "new").binding.contains("nominated nodes"),
        "{:?}",
        report(&plan, "new")
    );
    c.confirm(&plan);
    assert!(c.plan().binds.is_empty());
    // One free node is not enough for the gang.
    c.gone("old-0");
    assert!(c.plan().binds.is_empty());
    c.gone("old-1");
    let plan = c.run();
    assert_eq!(bound(&plan).len(), 2);
    assert!(nominated(&plan).is_empty());
    assert!(c.plan().evictions.is_empty());
}

#[test]
fn preemption_happens_only_where_it_saves_more_waiting_than_work_lost() {
    // The wait of a gang of higher priority weighs four times, lost work twice, and half of the
    // wait once more for the victim: with 10 hours of walltime, victims are evicted up to 6 hours
    // after their start.
    for cpus in [0, 4] {
        for (ran, goes) in [(1, true), (6, true), (7, false)] {
            let mut c = Cluster::new();
            c.nodes(&[("n1", 4)]);
            c.gang_with("old", "default", "low", 2, 2, 2, |g| {
                g["metadata"]["annotations"]["muster.io/walltime"] = json!("10h");
            });
            for name in ["old-0", "old-1"] {
                c.change(name, |pod| {
                    let main = &mut pod["spec"]["containers"][0];
                    main["resources"]["requests"]["cpu"] = json!(cpus.to_string());
                });
            }
            c.run();
            c.at += SignedDuration::from_hours(ran);
            c.gang("new", "default", "high", 2, 2, 2);
            let gone = evicted(&c.plan()).len();
            assert_eq!(gone, if goes { 2 } else { 0 }, "{cpus} CPUs, after {ran} h");
        }
    }
}

#[test]
fn a_queue_reclaims_its_share_only_from_gangs_with_little_work_to_lose() {
    // Ten hours of walltime: after two hours, eight hours of waiting are saved, and two hours of
    // work, which count twice, and half of eight hours of waiting are lost.
    for (ran, gone) in [(1, 2), (2, 2), (3, 0)] {
        let mut c = Cluster::new();
        for queue in ["a", "b"] {
            c.notify(queue_with(queue, |_| {}));
        }
        c.nodes(&[("n1", 4), ("n2", 4)]);
        for old in ["old", "older"] {
            c.gang_with(old, "a", "low", 2, 2, 2, |g| {
                g["metadata"]["annotations"]["muster.io/walltime"] = json!("10h");
            });
        }
        c.run();
        c.at += SignedDuration::from_hours(ran);
        c.gang("new", "b", "low", 2, 2, 2);
        assert_eq!(evicted(&c.plan()).len(), gone, "after {ran} h");
    }
}

#[test]
fn repeated_work_counts_for_all_waiting_gangs() {
    // Waiting gangs request three times the cluster beside the gang of higher priority: lost work
    // weighs four times.
    for (others, ran, goes) in [(0, 6, true), (3, 2, true), (3, 3, false), (3, 6, false)] {
        let mut c = Cluster::new();
        c.nodes(&[("n1", 4)]);
        c.gang_with("old", "default", "low", 2, 2, 2, |g| {
            g["metadata"]["annotations"]["muster.io/walltime"] = json!("10h");
        });
        c.run();
        for other in 0..others {
            c.gang(&format!("other-{other}"), "default", "low", 2, 2, 2);
        }
        c.run();
        c.at += SignedDuration::from_hours(ran);
        c.gang("new", "default", "high", 2, 2, 2);
        let gone = evicted(&c.plan()).len();
        assert_eq!(
            gone,
            if goes { 2 } else { 0 },
            "{others} wait, after {ran} h"
        );
    }
}

#[test]
fn a_pod_with_checkpoints_gets_its_grace_period_up_to_an_hour() {
    for (group, pod, want) in [
        (None, None, None),
        (Some("10m"), None, Some(600)),
        (Some("10m"), Some("90"), Some(90)),
        (Some("2d"), None, Some(3600)),
        (Some("soon"), None, None),
    ] {
        let mut c = Cluster::new();
        c.nodes(&[("n1", 4)]);
        c.gang_with("old", "default", "low", 1, 1, 4, |g| {
            if let Some(grace) = group {
                g["metadata"]["annotations"]["muster.io/checkpoint-grace"] = json!(grace);
            }
        });
        if let Some(grace) = pod {
            c.change("old-0", |p| {
                p["metadata"]["annotations"]["muster.io/checkpoint-grace"] = json!(grace);
            });
        }
        c.run();
        c.gang("new", "default", "high", 1, 1, 4);
        let plan = c.plan();
        assert_eq!(evicted(&plan), ["old-0"]);
        assert_eq!(plan.evictions[0].grace, want, "{group:?} {pod:?}");
    }
}

#[test]
fn nominated_room_is_not_given_to_other_gangs() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 4)]);
    c.gang("old", "default", "low", 1, 1, 4);
    c.run();
    c.gang("new", "default", "high", 1, 1, 4);
    let plan = c.run();
    assert_eq!(evicted(&plan), ["old-0"]);
    c.gone("old-0");
    c.gang("thief", "default", "high", 1, 1, 4);
    assert_eq!(
        bound(&c.plan()),
        BTreeMap::from([("new-0".into(), "n1".into())])
    );
}

#[test]
fn a_nomination_ends_when_its_gang_is_deleted() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 4)]);
    c.gang("old", "default", "low", 1, 1, 4);
    c.run();
    c.gang("new", "default", "high", 1, 1, 4);
    let plan = c.run();
    c.gone("new-0");
    c.notify(Event::PodGroupGone("ns".into(), "new".into()));
    c.leave(&plan);
    c.gang("other", "default", "low", 1, 1, 4);
    assert_eq!(bound(&c.plan()).len(), 1);
}

#[test]
fn a_nomination_is_replaced_by_a_place_that_is_free_at_once() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 4)]);
    c.gang("old", "default", "low", 1, 1, 4);
    c.run();
    c.gang("new", "default", "high", 1, 1, 4);
    c.run();
    c.nodes(&[("n2", 4)]);
    let plan = c.plan();
    assert_eq!(
        bound(&plan),
        BTreeMap::from([("new-0".into(), "n2".into())])
    );
}

#[test]
fn a_failed_eviction_ends_the_nomination() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 4)]);
    c.gang("old", "default", "low", 1, 1, 4);
    c.run();
    let before = c.scheduler.view().nodes;
    c.gang("new", "default", "high", 1, 1, 4);
    let plan = c.plan();
    c.scheduler.forget_eviction(&plan.evictions[0].pod);
    c.scheduler.hold(
        &plan.reservations[0].group,
        now() + jiff::SignedDuration::from_secs(5),
    );
    let plan = c.plan();
    assert!(plan.evictions.is_empty() && plan.binds.is_empty() && plan.reservations.is_empty());
    assert_eq!(c.scheduler.view().nodes, before);
}

// Volcano #5022 and #5026: evictions were committed although the preemptor failed.
#[test]
fn no_gang_is_evicted_for_a_gang_that_still_would_not_fit() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 4), ("n2", 4)]);
    c.gang("old", "default", "low", 1, 1, 4);
    c.gang("firm", "default", "high", 1, 1, 4);
    c.run();
    c.gang("new", "default", "high", 2, 2, 4);
    let plan = c.plan();
    assert!(plan.evictions.is_empty() && plan.reservations.is_empty());
    let said = &report(&plan, "new").evictions;
    assert!(said.contains("would not make room"), "{said}");
}

// Volcano #5984: ten pods were evicted where one was enough.
#[test]
fn one_large_victim_is_preferred_to_ten_small_ones_that_do_not_help() {
    let mut c = Cluster::new();
    c.nodes(&[("n0", 8)]);
    for i in 0..10 {
        c.nodes(&[(&format!("s{i}"), 1)]);
    }
    c.gang("large", "default", "mid", 1, 1, 8);
    for i in 0..10 {
        c.gang(&format!("small{i}"), "default", "low", 1, 1, 1);
    }
    assert_eq!(c.run().binds.len(), 11);
    c.gang("new", "default", "high", 1, 1, 8);
    assert_eq!(evicted(&c.plan()), ["large-0"]);
}

#[test]
fn the_youngest_gang_of_the_lowest_priority_is_evicted_first() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 3)]);
    c.gang("a", "default", "low", 1, 1, 1);
    c.run();
    c.at += jiff::SignedDuration::from_secs(10);
    c.gang("b", "default", "low", 1, 1, 1);
    c.gang("c", "default", "mid", 1, 1, 1);
    c.run();
    c.gang("new", "default", "high", 1, 1, 1);
    assert_eq!(evicted(&c.plan()), ["b-0"]);
}

#[test]
fn an_elastic_gang_shrinks_before_any_gang_is_evicted_whole() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 8)]);
    c.gang("elastic", "default", "low", 2, 4, 1);
    c.gang("rigid", "default", "low", 4, 4, 1);
    assert_eq!(c.run().binds.len(), 8);
    c.gang("new", "default", "high", 2, 2, 1);
    let plan = c.run();
    assert_eq!(evicted(&plan), ["elastic-2", "elastic-3"]);
    c.leave(&plan);
    c.run();
    c.gang("more", "default", "high", 1, 1, 1);
    let plan = c.plan();
    let names = evicted(&plan);
    assert!(
        names == ["elastic-0", "elastic-1"] || names.len() == 4,
        "a gang is evicted whole: {names:?}"
    );
}

#[test]
fn gangs_of_equal_priority_preempt_only_where_the_queue_permits_older_over_younger() {
    for (policy, want) in [
        ("LowerPriority", 0),
        ("LowerOrNewerEqualPriority", 1),
        ("Never", 0),
    ] {
        let mut c = Cluster::new();
        c.nodes(&[("n1", 1)]);
        c.notify(queue_with("q", |queue| {
            queue["metadata"]["annotations"] =
                json!({"muster.io/preemption": json!({"withinQueue": policy}).to_string()});
        }));
        c.gang_with("young", "q", "mid", 1, 1, 1, |group| {
            group["metadata"]["creationTimestamp"] = json!("2025-12-31T23:59:59Z");
        });
        c.run();
        c.gang_with("old", "q", "mid", 1, 1, 1, |group| {
            group["metadata"]["creationTimestamp"] = json!("2025-12-31T00:00:00Z");
        });
        assert_eq!(c.plan().evictions.len(), want, "{policy}");
    }
}

#[test]
fn non_preemptible_gangs_are_not_evicted_and_policy_never_does_not_evict() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 1)]);
    c.gang_with("firm", "default", "low", 1, 1, 1, |group| {
        group["metadata"]["annotations"]["muster.io/preemptible"] = json!("false");
    });
    c.run();
    c.gang("new", "default", "high", 1, 1, 1);
    let plan = c.plan();
    assert!(plan.evictions.is_empty());
    assert!(
        report(&plan, "new")
            .evictions
            .contains("queue default has no running gang")
    );

    let mut c = Cluster::new();
    c.nodes(&[("n1", 1)]);
    c.gang("old", "default", "low", 1, 1, 1);
    c.run();
    let class = json!({"metadata": {"name": "polite"}, "value": 100, "preemptionPolicy": "Never"});
    c.notify(Event::PriorityClassChanged(Box::new(
        serde_json::from_value(class).unwrap(),
    )));
    c.gang("new", "default", "polite", 1, 1, 1);
    let plan = c.plan();
    assert!(plan.evictions.is_empty());
    assert!(report(&plan, "new").evictions.contains("policy is Never"));
}

#[test]
fn a_gang_keeps_its_minimum_until_its_minimum_runtime_is_over() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 2)]);
    c.gang_with("old", "default", "low", 2, 2, 1, |group| {
        group["metadata"]["annotations"]["muster.io/min-runtime"] = json!("10m");
    });
    c.run();
    c.gang("new", "default", "high", 1, 1, 1);
    let plan = c.plan();
    assert!(plan.evictions.is_empty());
    let over = now() + jiff::SignedDuration::from_mins(10);
    assert_eq!(
        plan.requeue_at,
        Some(over),
        "it is looked at again by itself"
    );
    c.at = over;
    assert_eq!(evicted(&c.plan()), ["old-0", "old-1"]);
}

// Volcano #4679 and #4817: reclaim was blocked because the full cluster refused to let it in.
#[test]
fn a_queue_reclaims_its_share_on_a_full_cluster() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 8)]);
    c.queue("a", 4);
    c.queue("b", 4);
    for i in 0..8 {
        c.gang(&format!("a{i}"), "a", "high", 1, 1, 1);
    }
    assert_eq!(c.run().binds.len(), 8);
    c.gang_with("b", "b", "low", 4, 4, 1, |group| {
        group["spec"]["minResources"] = json!({"nvidia.com/gpu": "4"});
    });
    let plan = c.run();
    assert_eq!(plan.evictions.len(), 4, "{:?}", plan.reports);
    assert!(
        plan.evictions
            .iter()
            .all(|e| e.why == EvictionReason::Reclaimed)
    );
    c.leave(&plan);
    assert_eq!(c.run().binds.len(), 4);
    // A queue within its share loses nothing, and takes nothing above it.
    c.gang("more", "b", "low", 1, 1, 1);
    let plan = c.plan();
    assert!(plan.evictions.is_empty(), "{:?}", plan.evictions);
    assert!(report(&plan, "more").evictions.contains("than its share"));
}

#[test]
fn a_queue_that_is_not_reclaimable_loses_nothing() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 2)]);
    c.queue("b", 2);
    c.notify(queue_with("a", |queue| {
        queue["spec"]["deserved"] = json!({"nvidia.com/gpu": "0"});
        queue["spec"]["reclaimable"] = json!(false);
    }));
    c.gang("a", "a", "low", 1, 1, 2);
    c.run();
    c.gang("b", "b", "high", 1, 1, 2);
    assert!(c.plan().evictions.is_empty());
}

#[test]
fn a_queue_of_higher_priority_loses_only_what_another_deserves() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 4)]);
    for (name, priority, surplus) in [("first", 2, "0"), ("second", 1, "1")] {
        c.notify(queue_with(name, |queue| {
            queue["spec"]["deserved"] =
                json!({"nvidia.com/gpu": "1", "cpu": "1000", "memory": "1000Ti"});
            queue["spec"]["priority"] = json!(priority);
            queue["metadata"]["annotations"] = json!({"muster.io/surplus-weight": surplus});
        }));
    }
    for i in 0..4 {
        c.gang(&format!("f{i}"), "first", "low", 1, 1, 1);
    }
    assert_eq!(c.run().binds.len(), 4);
    c.gang("s0", "second", "low", 1, 1, 1);
    c.gang("s1", "second", "low", 1, 1, 1);
    let plan = c.run();
    assert_eq!(evicted(&plan), ["f3-0"]);
    assert_eq!(nominated(&plan), ["s0-0"]);
    c.leave(&plan);
    // The second gang would be within its queue's share, but not within its deserved amount.
    let plan = c.run();
    assert_eq!((plan.binds.len(), plan.evictions.len()), (1, 0));
    assert!(c.plan().evictions.is_empty());
}

// Volcano #3373: two gangs deadlocked, each running in part. Here no gang is left running in part.
#[test]
fn two_incomplete_gangs_do_not_deadlock() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 4)]);
    c.gang("a", "default", "mid", 3, 3, 1);
    c.gang("b", "default", "mid", 3, 3, 1);
    // Another scheduler bound two members of each gang.
    for name in ["a-0", "a-1", "b-0", "b-1"] {
        c.change(name, |pod| {
            pod["spec"]["nodeName"] = json!("n1");
            pod["status"] = json!({"phase": "Running"});
        });
    }
    let plan = c.run();
    assert!(plan.binds.is_empty() && plan.evictions.is_empty());
    c.at = plan.requeue_at.expect("it will be looked at again");
    let plan = c.run();
    assert!(
        plan.evictions
            .iter()
            .all(|e| e.why == EvictionReason::StaleGang)
    );
    assert!(!plan.evictions.is_empty());
    c.leave(&plan);
    let plan = c.run();
    let whole = c.scheduler.view();
    let running = |gang: &str| {
        let pods = whole
            .pods
            .iter()
            .filter(|((_, name), _)| name.starts_with(gang));
        pods.filter(|(_, pod)| pod.node.is_some()).count()
    };
    assert!(
        [running("a"), running("b")]
            .iter()
            .all(|n| *n == 0 || *n == 3),
        "{plan:?}"
    );
}

// Volcano #5805: a gang stayed below its minimum after a node was repaired.
#[test]
fn a_gang_below_its_minimum_is_completed_when_a_node_is_repaired() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 1), ("n2", 1)]);
    c.gang("g", "default", "mid", 2, 2, 1);
    c.run();
    c.notify(Event::NodeGone("n2".into()));
    let lost: Vec<String> = {
        let view = c.scheduler.view();
        let on = view
            .pods
            .iter()
            .filter(|(_, pod)| pod.node.as_deref() == Some("n2"));
        on.map(|((_, name), _)| name.clone()).collect()
    };
    assert_eq!(lost.len(), 1);
    c.gone(&lost[0]);
    c.notify(pod(&lost[0], "g", 1));
    let plan = c.run();
    assert!(plan.evictions.is_empty() && plan.binds.is_empty());
    c.nodes(&[("n2", 1)]);
    let plan = c.run();
    assert_eq!(
        bound(&plan),
        BTreeMap::from([(lost[0].clone(), "n2".to_owned())])
    );
    c.at += jiff::SignedDuration::from_hours(1);
    assert!(c.plan().evictions.is_empty());
}

#[test]
fn disabled_actions_are_not_taken() {
    let off = Actions {
        preempt: false,
        reclaim: false,
        ..Actions::default()
    };
    let mut c = Cluster::with(Config {
        actions: off,
        ..Config::default()
    });
    c.nodes(&[("n1", 1)]);
    c.gang("old", "default", "low", 1, 1, 1);
    c.run();
    c.gang("new", "default", "high", 1, 1, 1);
    let plan = c.plan();
    assert!(plan.evictions.is_empty());
    assert!(report(&plan, "new").evictions.contains("switched off"));
}

#[test]
fn devices_of_leaving_pods_are_not_allocated() {
    let mut c = Cluster::new();
    c.notify(described("n1", 4, |_| true));
    c.gang("old", "default", "low", 1, 1, 2);
    c.gang("stays", "default", "high", 1, 1, 1);
    c.run();
    c.gang("new", "default", "high", 1, 1, 2);
    let plan = c.run();
    assert_eq!(evicted(&plan), ["old-0"]);
    c.leave(&plan);
    let plan = c.run();
    assert_eq!(plan.binds.len(), 1);
    let ids: Vec<&String> = plan.binds[0].devices["main"]["nvidia.com/gpu"]
        .iter()
        .collect();
    assert_eq!(ids.len(), 2);
}

#[test]
fn an_evicted_pod_is_not_evicted_again_after_a_stale_event() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 4)]);
    c.gang("old", "default", "low", 1, 1, 4);
    c.run();
    c.gang("new", "default", "high", 1, 1, 4);
    let plan = c.plan();
    assert_eq!(evicted(&plan), ["old-0"]);
    // An event from before the eviction reached the API.
    c.change("old-0", |pod| pod["metadata"]["labels"] = json!({"a": "b"}));
    assert!(c.plan().evictions.is_empty());
    c.queue("else", 0);
    let plan = c.plan();
    assert!(plan.evictions.is_empty());
    assert_eq!(nominated(&plan), ["new-0"]);
}

#[test]
fn a_gang_moves_only_to_a_new_place_that_is_reserved_for_it() {
    let mut c = Cluster::with(Config {
        actions: Actions {
            consolidate: true,
            ..Actions::default()
        },
        ..Config::default()
    });
    c.nodes(&[("n1", 4), ("n2", 4)]);
    // Two pods of two GPUs, on one node each.
    for (name, at) in [("a", "n1"), ("b", "n2")] {
        c.gang(name, "default", "mid", 1, 1, 2);
        c.change(&format!("{name}-0"), |pod| {
            pod["spec"]["nodeName"] = json!(at);
            pod["status"] = json!({"phase": "Running"});
        });
    }
    c.gang("new", "default", "mid", 1, 1, 4);
    let plan = c.run();
    let [eviction] = &plan.evictions[..] else {
        panic!("one is moved: {:?}", plan.evictions)
    };
    assert_eq!(eviction.why, EvictionReason::Consolidated);
    let moved = eviction.pod.name.clone();
    assert_eq!(nominated(&plan).len(), 2, "a place for each");
    // No other gang gets the place; the pod that comes back does.
    c.gone(&moved);
    c.gang("thief", "default", "low", 1, 1, 2);
    let plan = c.run();
    assert_eq!(bound(&plan).keys().collect::<Vec<_>>(), ["new-0"]);
    let gang = moved.trim_end_matches("-0").to_owned();
    c.notify(pod(&moved, &gang, 2));
    let plan = c.run();
    assert!(bound(&plan).contains_key(&moved), "{:?}", plan.reports);
    assert!(nominated(&plan).is_empty());
}

#[test]
fn no_gang_moves_without_permission() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 4), ("n2", 4)]);
    for (name, at) in [("a", "n1"), ("b", "n2")] {
        c.gang(name, "default", "mid", 1, 1, 2);
        c.change(&format!("{name}-0"), |pod| {
            pod["spec"]["nodeName"] = json!(at);
            pod["status"] = json!({"phase": "Running"});
        });
    }
    c.gang("new", "default", "mid", 1, 1, 4);
    assert!(c.plan().evictions.is_empty());
}

#[test]
fn victims_are_taken_node_by_node_where_their_order_clears_no_node() {
    let mut c = Cluster::new();
    let names: Vec<String> = (0..4).map(|i| format!("n{i}")).collect();
    for name in &names {
        c.nodes(&[(name, 4)]);
    }
    c.queue("greedy", 8);
    c.queue("entitled", 8);
    for i in 0..16 {
        let name = format!("old{i:02}");
        c.gang(&name, "greedy", "mid", 1, 1, 1);
        // The youngest gangs are spread over all nodes.
        c.change(&format!("{name}-0"), |pod| {
            pod["spec"]["nodeName"] = json!(format!("n{}", i % 4));
            pod["status"] = json!({"phase": "Running"});
        });
    }
    c.gang("new", "entitled", "mid", 2, 2, 4);
    let plan = c.plan();
    assert_eq!(plan.evictions.len(), 8, "{:?}", report(&plan, "new"));
    let nodes: std::collections::BTreeSet<&str> =
        plan.evictions.iter().map(|e| e.node.as_str()).collect();
    assert_eq!(nodes.len(), 2);
}
