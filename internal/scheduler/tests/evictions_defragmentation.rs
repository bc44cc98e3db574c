//! Defragmentation, by table: which pods may move, what a move must gain, and what is reported
//! before.

mod support;

use scheduler::{Actions, Config, DefragmentationBudget, EvictionReason};
use serde_json::json;
use support::cluster::*;
use support::*;

fn defragmenting(moves_an_hour: usize) -> Cluster {
    Cluster::with(Config {
        actions: Actions {
            defragment: true,
            ..Actions::default()
        },
        defragmentation: DefragmentationBudget {
            moves_an_hour,
            ..DefragmentationBudget::default()
        },
        ..Config::default()
    })
}

/// A running gang of one pod, with an annotation.
fn running(c: &mut Cluster, name: &str, node: &str, gpus: i64, says: Option<(&str, &str)>) {
    c.gang_with(name, "default", "mid", 1, 1, gpus, |group| {
        if let Some((key, value)) = says {
            group["metadata"]["annotations"][key] = json!(value);
        }
    });
    c.change(&format!("{name}-0"), |pod| {
        pod["spec"]["nodeName"] = json!(node);
        pod["status"] = json!({"phase": "Running", "startTime": now().to_string()});
    });
}

const MOVABLE: Option<(&str, &str)> = Some(("muster.io/movable", "true"));

/// Three nodes of four GPUs with movable pods: one GPU each on two nodes, two GPUs on the third.
fn scattered(c: &mut Cluster, says: Option<(&str, &str)>) {
    c.nodes(&[("n1", 4), ("n2", 4), ("n3", 4)]);
    running(c, "a", "n1", 1, says);
    running(c, "b", "n2", 1, says);
    running(c, "c", "n3", 2, says);
}

#[test]
fn the_gain_is_reported_before_any_pod_moves() {
    let mut c = defragmenting(8);
    scattered(&mut c, Some(("muster.io/checkpoint", "30m")));
    let view = c.scheduler.view();
    let at = now() + jiff::SignedDuration::from_hours(3);
    let said = c.scheduler.what_if().defragmentation(at);
    assert_eq!(c.scheduler.view(), view, "it is only said");
    assert_eq!((said.whole_before, said.whole_after), (0, 2), "{said:?}");
    assert_eq!(said.gpus_gained, 8);
    assert_eq!(said.moves.len(), 2);
    // Two GPUs with half an hour of work since the last checkpoint each.
    assert!((said.gpu_hours_lost - 1.0).abs() < 1e-9, "{said:?}");
    c.at = at;
    let plan = c.run();
    let moved: Vec<String> = said.moves.iter().map(|m| m.pod.name.clone()).collect();
    assert_eq!(evicted(&plan), moved);
    assert!(
        plan.evictions
            .iter()
            .all(|e| e.why == EvictionReason::Defragmented)
    );
    assert_eq!(nominated(&plan), moved, "each has a place kept");
}

#[test]
fn only_movable_pods_move_and_within_the_hourly_budget() {
    let table = [
        (8, None, 0),
        (8, Some(("muster.io/movable", "false")), 0),
        (8, MOVABLE, 2),
        (1, MOVABLE, 1),
        (0, MOVABLE, 0),
    ];
    for (moves, says, want) in table {
        let mut c = defragmenting(moves);
        scattered(&mut c, says);
        assert_eq!(c.plan().evictions.len(), want, "{moves} {says:?}");
    }
    let mut off = Cluster::new();
    scattered(&mut off, MOVABLE);
    assert!(off.plan().evictions.is_empty());
}

#[test]
fn the_budget_is_hourly_and_moves_converge() {
    let mut c = defragmenting(1);
    scattered(&mut c, MOVABLE);
    let mut moves = Vec::new();
    for _ in 0..6 {
        let plan = c.run();
        moves.push(plan.evictions.len());
        c.leave(&plan);
        for eviction in &plan.evictions {
            let gpus = if eviction.group.name == "c" { 2 } else { 1 };
            c.notify(pod(&eviction.pod.name, &eviction.group.name, gpus));
        }
        c.run();
        c.at += jiff::SignedDuration::from_mins(31);
        c.queue("nudge", 0);
        c.notify(scheduler::Event::QueueGone("nudge".into()));
    }
    assert_eq!(moves.iter().sum::<usize>(), 2, "{moves:?}");
    assert_eq!(c.scheduler.what_if().defragmentation(c.at).moves.len(), 0);
}

#[test]
fn defragmentation_waits_while_pods_arrive_or_leave() {
    let mut c = defragmenting(8);
    scattered(&mut c, MOVABLE);
    c.gang("comes", "default", "low", 1, 1, 1);
    let plan = c.run();
    assert_eq!((plan.binds.len(), plan.evictions.len()), (1, 0));
    // One of the two pods that could move to the third node finds room there.
    assert_eq!(c.run().evictions.len(), 1);
}

/// One member of a gang of nine stands alone on a node of four GPUs and could move. The whole gang
/// is interrupted by that: nine GPUs, more than two and fewer than three for each GPU of the node.
#[test]
fn a_node_is_emptied_only_if_few_enough_gpus_are_interrupted() {
    for (gpus_interrupted_each, want) in [(2, 0), (3, 1)] {
        let mut c = Cluster::with(Config {
            actions: Actions {
                defragment: true,
                ..Actions::default()
            },
            defragmentation: DefragmentationBudget {
                gpus_interrupted_each,
                ..DefragmentationBudget::default()
            },
            ..Config::default()
        });
        c.nodes(&[("n1", 4), ("n2", 4), ("n3", 8)]);
        running(&mut c, "stays", "n2", 2, None);
        c.gang_with("g", "default", "mid", 9, 9, 1, |group| {
            group["metadata"]["annotations"]["muster.io/movable"] = json!("true");
        });
        for member in 0..9 {
            c.change(&format!("g-{member}"), |pod| {
                pod["spec"]["nodeName"] = json!(if member == 0 { "n1" } else { "n3" });
                pod["status"] = json!({"phase": "Running", "startTime": now().to_string()});
            });
        }
        let moves = c.plan().evictions.len();
        assert_eq!(moves, want, "{gpus_interrupted_each} for each GPU");
    }
}

#[test]
fn a_pod_disruption_budget_keeps_a_node_from_being_emptied() {
    let mut c = defragmenting(8);
    scattered(&mut c, MOVABLE);
    for name in ["a-0", "b-0"] {
        c.change(name, |pod| {
            pod["metadata"]["labels"] = json!({"app": "web"});
        });
    }
    let budget = json!({
        "metadata": {"name": "b", "namespace": "ns"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    c.notify(scheduler::Event::BudgetChanged(
        serde_json::from_value(budget).unwrap(),
    ));
    assert_eq!(c.plan().evictions.len(), 1);
}
