//! What is known to fail in other schedulers, each as a scenario that does not fail here. The
//! issue that reports it is in the name. What is about size rather than outcome is counted, in
//! writes or plans here and in allocations in `known_growth`; never timed.

mod support;

use std::collections::BTreeSet;

use scheduler::{Event, Plan, Scheduler};
use serde_json::json;
use support::cluster::Cluster;
use support::*;

/// Pods of a gang that are on a node.
fn placed(c: &Cluster, gang: &str) -> usize {
    let view = c.scheduler.view();
    let prefix = format!("{gang}-");
    let mine = view
        .pods
        .iter()
        .filter(|((_, name), _)| name.starts_with(&prefix));
    mine.filter(|(_, pod)| pod.node.is_some()).count()
}

/// 140 thousand pods on 5 thousand nodes made a one-pod job wait 8 minutes after a restart. Here
/// the first plan places it, whatever the order in which a restarted scheduler reads the cluster.
#[test]
fn volcano_5819_a_restarted_scheduler_places_a_waiting_pod_in_its_first_plan() {
    let running = |node: usize, at: usize| {
        pod_with(&format!("p{node}-{at}"), None, 0, |pod| {
            pod["spec"]["nodeName"] = json!(format!("n{node}"));
            pod["status"] = json!({"phase": "Running"});
        })
    };
    let nodes: Vec<Event> = (0..100).map(|i| node(&format!("n{i}"), 8)).collect();
    let pods: Vec<Event> = (0..100)
        .flat_map(|n| (0..28).map(move |i| running(n, i)))
        .collect();
    for pods_first in [true, false] {
        let mut s = scheduler();
        let mut told = [nodes.clone(), pods.clone()];
        if pods_first {
            told.reverse();
        }
        told.into_iter().flatten().for_each(|event| s.apply(event));
        s.apply(lone("wants", 8));
        let plan = s.plan(now());
        assert_eq!(plan.binds.len(), 1);
        assert!(plan.evictions.is_empty());
    }
}

/// Status writes stormed the API server. Here a gang's reason is written when it changes, once.
#[test]
fn volcano_3852_and_3318_a_waiting_gang_is_written_once_while_its_reason_stands() {
    let mut c = Cluster::new();
    let nodes: Vec<String> = (0..10).map(|i| format!("n{i}")).collect();
    c.nodes(
        &nodes
            .iter()
            .map(|name| (name.as_str(), 8))
            .collect::<Vec<_>>(),
    );
    c.gang("runs", "default", "mid", 10, 10, 8);
    c.run();
    for i in 0..50 {
        c.gang(&format!("waits{i:02}"), "default", "mid", 4, 4, 8);
    }
    let writes = |plan: &Plan| plan.groups.len() + plan.unscheduled.len();
    // One status and one message each, and the running gang's status.
    let first = c.run();
    assert!(writes(&first) <= 101, "{}", writes(&first));
    assert_eq!(first.unscheduled.len(), 50);
    let mut later = 0;
    for round in 0..40 {
        // Heartbeats, changes of running pods, and pods that have nothing to do with it.
        c.notify(node_with(&nodes[round % 10], 8, |node| {
            node["status"]["conditions"][0]["lastHeartbeatTime"] = json!(c_time(round));
        }));
        c.change(&format!("runs-{}", round % 10), |pod| {
            pod["status"]["message"] = json!(format!("step {round}"));
        });
        let name = format!("other{round}");
        c.notify(lone(&name, 0));
        let plan = c.run();
        assert_eq!(plan.binds.len(), 1);
        later += writes(&plan);
        c.gone(&name);
        later += writes(&c.run());
    }
    assert_eq!(later, 0, "writes of what was written before");
}

fn c_time(round: usize) -> String {
    (now() + jiff::SignedDuration::from_secs(round as i64)).to_string()
}

/// Evictions were carried out although the gang that they were for could not start.
#[test]
fn volcano_5022_and_5026_nobody_is_evicted_for_a_gang_that_cannot_start() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 8), ("n2", 8)]);
    for i in 0..4 {
        c.gang(&format!("old{i}"), "default", "low", 1, 1, 4);
    }
    assert_eq!(c.run().binds.len(), 4);
    // Room for two could be made; the third asks for a node that does not exist.
    c.gang("new", "default", "high", 3, 3, 4);
    c.change("new-2", |pod| {
        pod["spec"]["nodeSelector"] = json!({"disk": "fast"})
    });
    let plan = c.round();
    assert!(plan.evictions.is_empty() && plan.reservations.is_empty());
    assert_eq!(report(&plan, "new").group, "new");
    // Nor across queues.
    c.queue("a", 16);
    c.gang("other", "a", "high", 3, 3, 8);
    let plan = c.round();
    assert!(plan.evictions.is_empty(), "three nodes' worth on two nodes");
}

/// Ten pods were evicted where one was enough.
#[test]
fn volcano_5984_one_pod_is_evicted_where_one_is_enough() {
    for nodes in [10, 5, 1] {
        let mut c = Cluster::new();
        let names: Vec<String> = (0..nodes).map(|i| format!("n{i}")).collect();
        for name in &names {
            c.nodes(&[(name, 10 / nodes)]);
        }
        c.gang("old", "default", "low", 1, 10, 1);
        assert_eq!(c.run().binds.len(), 10);
        c.gang("new", "default", "high", 1, 1, 1);
        assert_eq!(c.run().evictions.len(), 1, "{nodes} nodes");
    }
}

/// A full cluster let no gang into its queue, so that the queue never won back its share.
#[test]
fn volcano_4679_and_4817_a_full_cluster_lets_a_gang_in_that_reclaims_its_queues_share() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 8), ("n2", 8)]);
    c.queue("a", 8);
    c.queue("b", 8);
    for i in 0..16 {
        c.gang(&format!("b{i:02}"), "b", "high", 1, 1, 1);
    }
    assert_eq!(c.run().binds.len(), 16);
    c.gang_with("wants", "a", "low", 8, 8, 1, |group| {
        group["spec"]["minResources"] = json!({"nvidia.com/gpu": "8"});
    });
    assert_eq!(c.round().evictions.len(), 8);
    let plan = c.round();
    assert_eq!((placed(&c, "wants"), plan.evictions.len()), (8, 0));
}

/// Two gangs each got half of what they needed and waited for each other for ever.
#[test]
fn volcano_3373_of_two_gangs_that_do_not_fit_together_one_runs_whole() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 1), ("n2", 1), ("n3", 1), ("n4", 1)]);
    // Their pods come one by one, in turn, with a plan after each.
    c.gang("a", "default", "mid", 3, 0, 1);
    c.gang("b", "default", "mid", 3, 0, 1);
    for i in 0..3 {
        for gang in ["a", "b"] {
            c.notify(pod(&format!("{gang}-{i}"), gang, 1));
            c.round();
            let both = [placed(&c, "a"), placed(&c, "b")];
            assert!(both.iter().all(|n| [0, 3].contains(n)), "{both:?}");
        }
    }
    assert_eq!(placed(&c, "a") + placed(&c, "b"), 3);
    // Found half running, as somebody else's work, they do not stay so either.
    let mut c = Cluster::new();
    c.nodes(&[("n1", 4)]);
    for gang in ["a", "b"] {
        c.gang(gang, "default", "mid", 3, 3, 1);
        for i in 0..2 {
            c.change(&format!("{gang}-{i}"), |pod| {
                pod["spec"]["nodeName"] = json!("n1");
                pod["status"] = json!({"phase": "Running"});
            });
        }
    }
    for _ in 0..6 {
        c.round();
    }
    let mut both = [placed(&c, "a"), placed(&c, "b")];
    both.sort_unstable();
    assert_eq!(both, [0, 3]);
}

/// A gang stayed below its minimum after a node had been repaired.
#[test]
fn volcano_5805_a_gang_is_completed_when_the_node_comes_back() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 8), ("n2", 8), ("n3", 8)]);
    c.gang("g", "default", "mid", 3, 3, 8);
    assert_eq!(c.round().binds.len(), 3);
    let lost = {
        let view = c.scheduler.view();
        let mut on = view
            .pods
            .iter()
            .filter(|(_, pod)| pod.node.as_deref() == Some("n2"));
        on.next().unwrap().0.1.clone()
    };
    c.notify(Event::NodeGone("n2".into()));
    c.gone(&lost);
    c.notify(pod(&lost, "g", 8));
    assert!(c.run().binds.is_empty());
    c.nodes(&[("n2", 8)]);
    assert_eq!(c.round().binds.len(), 1);
    assert_eq!(placed(&c, "g"), 3);
}

/// One workload was taken from each queue in a cycle: 9.6 admissions a minute at a depth of 536.
#[test]
fn kueue_14477_one_plan_admits_all_that_fit_however_deep_the_queue() {
    let mut s = scheduler();
    for i in 0..67 {
        s.apply(node(&format!("n{i:02}"), 8));
    }
    s.apply(queue_with("deep", |_| {}));
    for i in 0..600 {
        gang_in(&mut s, &format!("w{i:03}"), 1, 1, "deep", 1000 - i);
    }
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 536);
    let last: BTreeSet<&str> = plan.reports.iter().map(|r| r.group.as_str()).collect();
    assert_eq!(last.len(), 64);
    assert!(last.iter().all(|name| *name >= "w536"), "the youngest wait");
}

/// Under fair sharing workloads preempted each other without end.
#[test]
fn kueue_14543_fair_sharing_comes_to_rest() {
    for strategies in [
        json!(["LessThanOrEqualToFinalShare", "LessThanInitialShare"]),
        json!(["LessThanInitialShare"]),
        json!(["LessThanOrEqualToFinalShare"]),
    ] {
        let mut c = Cluster::new();
        c.nodes(&[("n1", 8), ("n2", 8)]);
        let fair = json!({"reclaim": "Any", "withinQueue": "LowerPriority", "fair": strategies});
        let plenty = |gpus: &str| json!({"nvidia.com/gpu": gpus, "cpu": "1000", "memory": "1000Ti", "pods": "1000"});
        c.notify(queue_with("cohort", |queue| {
            queue["spec"]["deserved"] = plenty("16");
            queue["spec"]["capability"] = json!({"nvidia.com/gpu": "16"});
        }));
        for (name, gpus) in [("a", "0"), ("b", "0"), ("c", "0"), ("idle", "16")] {
            c.notify(queue_with(name, |queue| {
                queue["spec"]["parent"] = json!("cohort");
                queue["spec"]["deserved"] = plenty(gpus);
                queue["metadata"]["annotations"] =
                    json!({"muster.io/preemption": fair.to_string()});
            }));
        }
        // Sizes that do not divide evenly: whoever is in, another's share would be smaller.
        for (queue, sizes) in [("a", [5, 3]), ("b", [7, 2]), ("c", [4, 6])] {
            for (i, gpus) in sizes.into_iter().enumerate() {
                c.gang(&format!("{queue}{i}"), queue, "mid", 1, 1, gpus);
                c.round();
            }
        }
        let evictions: Vec<usize> = (0..30).map(|_| c.round().evictions.len()).collect();
        assert!(
            evictions[10..].iter().all(|n| *n == 0),
            "{strategies}: {evictions:?}"
        );
        assert!(
            evictions.iter().sum::<usize>() <= 6,
            "{strategies}: {evictions:?}"
        );
    }
}

/// A workload within its quota that no node could hold was admitted, and all behind it waited.
#[test]
fn kueue_5243_a_gang_that_fragments_cannot_hold_keeps_no_quota_and_blocks_nobody() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 8), ("n2", 8)]);
    c.notify(queue_with("q", |queue| {
        queue["spec"]["capability"] = json!({"nvidia.com/gpu": "16"});
    }));
    for (name, node) in [("x", "n1"), ("y", "n2")] {
        c.gang(name, "q", "mid", 1, 1, 4);
        c.change(&format!("{name}-0"), |pod| {
            pod["spec"]["nodeName"] = json!(node);
            pod["status"] = json!({"phase": "Running"});
        });
    }
    // Eight are free, four and four. It waits for hours: had it waited for longer than
    // `Config::reserve_after`, room would be kept for it.
    c.gang_with("whole", "q", "mid", 1, 1, 8, |group| {
        group["metadata"]["creationTimestamp"] = json!("2025-12-31T20:00:00Z");
    });
    c.gang("small", "q", "mid", 2, 2, 4);
    let plan = c.round();
    assert_eq!(placed(&c, "small"), 2, "whoever is behind it starts");
    assert_eq!(placed(&c, "whole"), 0);
    let words = serde_json::to_string(report(&plan, "whole")).unwrap();
    assert!(words.contains("nvidia.com/gpu"), "{words}");
    let view = c.scheduler.view();
    assert_eq!(view.queues["q"].allocated.get("nvidia.com/gpu"), 16);
}

/// The verdict that a gang can't be placed took 249.5 seconds. Here it is in the plan that first
/// sees the gang, with what would make it fit.
#[test]
fn kai_a_gang_that_cannot_be_placed_is_told_so_by_the_first_plan() {
    let mut s = scheduler();
    for i in 0..64 {
        s.apply(node(&format!("n{i:02}"), 8));
    }
    gang(&mut s, "large", 513, 1);
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    let report = report(&plan, "large");
    assert_eq!(
        (report.members_wanted, report.members_placed_possible),
        (513, 512)
    );
    assert!(!report.binding.is_empty() && !report.would_fit.is_empty());
}

/// Nothing is done where nothing changed: a cycle of 40 seconds over waiting work (Kueue #13148)
/// does not come about.
#[test]
fn kueue_13148_a_plan_when_nothing_changed_looks_at_nothing() {
    let mut s: Scheduler = scheduler();
    s.apply(node("n1", 8));
    gang(&mut s, "runs", 1, 8);
    for i in 0..200 {
        gang(&mut s, &format!("waits{i}"), 2, 8);
    }
    assert!(!s.plan(now()).unchanged);
    for second in 1..100 {
        let plan = s.plan(now() + jiff::SignedDuration::from_millis(second));
        let empty = plan.binds.is_empty() && plan.groups.is_empty() && plan.reports.is_empty();
        assert!(plan.unchanged && empty);
    }
}
