//! Nodes that are suspect, kept as spares, hot or secretly busy; gangs that lost members.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use scheduler::{Event, Scheduler};
use serde_json::{Value, json};
use support::*;

fn suspect(name: &str, gpus: i64) -> Event {
    node_with(name, gpus, |node| {
        let condition = json!({"type": "muster.io/suspect", "status": "True"});
        let conditions = node["status"]["conditions"].as_array_mut();
        conditions.unwrap().push(condition);
    })
}

fn spare(name: &str, gpus: i64) -> Event {
    node_with(name, gpus, |node| {
        node["metadata"]["labels"]["muster.io/spare"] = json!("true");
    })
}

/// A node whose first GPU is as told, `ago` seconds before `now`.
fn loaded(name: &str, ago: i64, gpu: &Value) -> Event {
    node_with(name, 8, |node| {
        let at = now() - jiff::SignedDuration::from_secs(ago);
        let load = json!({"at": at.to_string(), "gpus": {format!("{name}-0"): gpu}});
        node["metadata"]["annotations"]["muster.io/load"] = json!(load.to_string());
    })
}

fn place(s: &mut Scheduler, name: &str, gpus: i64) -> Option<String> {
    s.apply(lone(name, gpus));
    bound(&s.plan(now())).remove(name)
}

#[test]
fn suspect_nodes_are_taken_last_but_taken() {
    let mut s = scheduler();
    s.apply(suspect("a", 8));
    s.apply(node("b", 8));
    assert_eq!(place(&mut s, "first", 8).as_deref(), Some("b"));
    assert_eq!(place(&mut s, "second", 8).as_deref(), Some("a"));
}

#[test]
fn a_gang_that_fits_on_healthy_nodes_keeps_off_suspect_ones_though_those_are_fuller() {
    let mut s = scheduler();
    s.apply(suspect("a", 4));
    s.apply(node("b", 8));
    gang(&mut s, "g", 4, 1);
    assert_eq!(nodes_used(&s.plan(now()), "g"), ["b"]);
}

fn failing(name: &str, gpus: i64) -> Event {
    node_with(name, gpus, |node| {
        let condition = json!({"type": "muster.io/fabric-failed", "status": "True"});
        let conditions = node["status"]["conditions"].as_array_mut();
        conditions.unwrap().push(condition);
    })
}

#[test]
fn gangs_keep_off_nodes_whose_rdma_fails_and_who_does_not_need_it_goes_there() {
    let mut s = scheduler();
    s.apply(failing("a", 8));
    gang(&mut s, "g", 2, 1);
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    let said = report(&plan, "g").sentence();
    let words = "1 node(s) had failed RDMA, which the gang's pods need";
    assert!(said.contains(words), "{said}");
    assert_eq!(place(&mut s, "alone", 4).as_deref(), Some("a"));
    gang(&mut s, "one", 1, 1);
    assert_eq!(nodes_used(&s.plan(now()), "one"), ["a"]);
    gang(&mut s, "none", 2, 0);
    assert_eq!(nodes_used(&s.plan(now()), "none"), ["a"]);
    // Its RDMA works again.
    s.apply(node("a", 8));
    assert_eq!(nodes_used(&s.plan(now()), "g"), ["a"]);
}

#[test]
fn a_gang_that_waits_keeps_off_a_node_whose_rdma_fails_meanwhile() {
    let mut s = scheduler();
    gang(&mut s, "before", 2, 8);
    assert!(s.plan(now()).binds.is_empty());
    s.apply(failing("a", 8));
    s.apply(node("b", 8));
    assert!(
        s.plan(now()).binds.is_empty(),
        "one of its pods has no node"
    );
    s.apply(node("c", 8));
    assert_eq!(nodes_used(&s.plan(now()), "before"), ["b", "c"]);
}

#[test]
fn a_gang_whose_group_comes_after_its_pods_keeps_off_too() {
    let mut s = scheduler();
    s.apply(failing("a", 8));
    for member in ["late-0", "late-1"] {
        s.apply(pod(member, "late", 1));
    }
    s.apply(group_with("late", 2, |_| {}));
    assert!(s.plan(now()).binds.is_empty());
    // One that asks for less than two is none that works over the network.
    s.apply(group_with("late", 1, |_| {}));
    assert_eq!(nodes_used(&s.plan(now()), "late"), ["a"]);
}

#[test]
fn spare_nodes_wait_for_pods_that_replace_lost_ones() {
    let mut s = scheduler();
    s.apply(spare("a", 8));
    s.apply(lone("new", 1));
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    assert_eq!(
        report(&plan, "new").sentence(),
        "0/1 nodes are available: 1 node(s) were kept as spares for interrupted gangs."
    );
    s.apply(pod_with("again", None, 1, |pod| {
        pod["metadata"]["labels"] = json!({"muster.io/replaces-lost": "true"});
    }));
    assert_eq!(bound(&s.plan(now()))["again"], "a");
}

#[test]
fn nodes_that_are_hot_or_secretly_busy_come_after_others() {
    let table = [
        json!({"celsius": 91}),
        json!({"watts": 690, "wattsLimit": 700}),
        json!({"utilisation": 80}),
    ];
    for gpu in table {
        let mut s = scheduler();
        s.apply(loaded("a", 10, &gpu));
        s.apply(node("b", 8));
        assert_eq!(place(&mut s, "p", 1).as_deref(), Some("b"), "{gpu}");
        // It is told again that all is well.
        s.apply(loaded("a", 5, &json!({})));
        assert_eq!(place(&mut s, "q", 8).as_deref(), Some("a"), "{gpu}");
    }
}

#[test]
fn a_load_seen_too_long_ago_is_not_gone_by() {
    for (ago, want) in [(119, "b"), (120, "a")] {
        let mut s = scheduler();
        s.apply(loaded("a", ago, &json!({"celsius": 91})));
        s.apply(node("b", 8));
        assert_eq!(place(&mut s, "p", 1).as_deref(), Some(want), "{ago} s");
    }
}

#[test]
fn a_new_load_alone_plans_nothing() {
    let mut s = scheduler();
    s.apply(loaded("a", 10, &json!({})));
    s.plan(now());
    s.apply(loaded("a", 5, &json!({"celsius": 99})));
    assert!(s.plan(now()).unchanged);
}

#[test]
fn of_empty_nodes_the_one_that_draws_least_is_woken() {
    let mut s = scheduler();
    for (name, watts) in [("a", "900"), ("b", "300")] {
        s.apply(node_with(name, 8, |node| {
            node["metadata"]["labels"]["muster.io/idle-watts"] = json!(watts);
        }));
    }
    assert_eq!(place(&mut s, "p", 2).as_deref(), Some("b"));
    assert_eq!(place(&mut s, "q", 6).as_deref(), Some("b"));
}

/// A gang of two that runs on one node, and an older one that waits.
fn one_runs_and_an_older_waits() -> Scheduler {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    gang_in(&mut s, "runs", 2, 4, "default", 50);
    assert_eq!(s.plan(now()).binds.len(), 2);
    for i in 0..2 {
        s.apply(pod_with(&format!("runs-{i}"), Some("runs"), 4, |pod| {
            pod["spec"]["nodeName"] = json!("n1");
            pod["status"] = json!({"phase": "Running"});
        }));
    }
    gang_in(&mut s, "waits", 2, 4, "default", 100);
    assert!(s.plan(now()).binds.is_empty());
    s
}

#[test]
fn a_gang_that_lost_its_members_starts_again_before_older_work() {
    let mut s = one_runs_and_an_older_waits();
    for i in 0..2 {
        s.apply(pod_gone(&format!("runs-{i}")));
    }
    s.apply(Event::NodeGone("n1".into()));
    let plan = s.plan(now());
    let update = plan
        .groups
        .iter()
        .find(|update| update.group.name == "runs");
    let interrupted = |c: &&scheduler::GroupCondition| c.kind == "Interrupted" && c.status;
    assert!(update.unwrap().conditions.iter().any(|c| interrupted(&c)));
    for i in 0..2 {
        let name = format!("runs-{i}");
        s.apply(pod_with(&name, Some("runs"), 4, |pod| {
            pod["metadata"]["uid"] = json!(format!("{name}-again"));
        }));
    }
    s.apply(node("n2", 8));
    let plan = s.plan(now());
    assert_eq!(nodes_used(&plan, "runs"), ["n2"]);
    assert_eq!(report(&plan, "waits").group, "waits");
    let update = plan
        .groups
        .iter()
        .find(|update| update.group.name == "runs");
    let over = |c: &&scheduler::GroupCondition| c.kind == "Interrupted" && !c.status;
    assert!(update.unwrap().conditions.iter().any(|c| over(&c)));
}

#[test]
fn a_gang_that_was_evicted_is_not_interrupted() {
    let mut s = one_runs_and_an_older_waits();
    s.apply(priority_class("high", 100));
    s.apply(group_with("urgent", 2, |group| {
        group["spec"]["priorityClassName"] = json!("high");
    }));
    for i in 0..2 {
        s.apply(pod(&format!("urgent-{i}"), "urgent", 4));
    }
    let plan = s.plan(now());
    assert_eq!(plan.evictions.len(), 2);
    let update = plan
        .groups
        .iter()
        .find(|update| update.group.name == "runs");
    let told = update.into_iter().flat_map(|update| &update.conditions);
    assert!(told.into_iter().all(|c| c.kind != "Interrupted"));
}
