//! Moves, by table: as few as possible, only to a place of their own, and which pods never move.

mod support;

use scheduler::{Actions, Config, EvictionReason};
use serde_json::json;
use support::cluster::*;
use support::*;

fn consolidating() -> Cluster {
    Cluster::with(Config {
        actions: Actions {
            consolidate: true,
            ..Actions::default()
        },
        topology: vec!["rack".into()],
        ..Config::default()
    })
}

/// Running members of a gang, one for each listed node, of `gpus` GPUs each.
fn running(c: &mut Cluster, name: &str, queue: &str, min: i32, on: &[&str], gpus: i64) {
    c.gang(name, queue, "mid", min, on.len(), gpus);
    for (i, node) in on.iter().enumerate() {
        c.change(&format!("{name}-{i}"), |pod| {
            pod["spec"]["nodeName"] = json!(node);
            pod["status"] = json!({"phase": "Running"});
        });
    }
}

#[test]
fn one_member_of_a_gang_moves_where_one_is_enough() {
    let mut c = consolidating();
    c.nodes(&[("n1", 4), ("n2", 4)]);
    running(&mut c, "wide", "default", 2, &["n1", "n1", "n2"], 1);
    c.gang("new", "default", "mid", 1, 1, 4);
    let plan = c.run();
    assert_eq!(evicted(&plan), ["wide-2"]);
    assert_eq!(plan.evictions[0].why, EvictionReason::Consolidated);
    assert_eq!(nominated(&plan), ["new-0", "wide-2"]);
}

#[test]
fn of_two_sufficient_members_the_smaller_moves() {
    let mut c = consolidating();
    c.nodes(&[("n1", 4), ("n2", 4)]);
    running(&mut c, "three", "default", 1, &["n1"], 3);
    running(&mut c, "one", "default", 1, &["n2"], 1);
    running(&mut c, "two", "default", 1, &["n2"], 2);
    c.gang("new", "default", "mid", 1, 1, 2);
    assert_eq!(evicted(&c.plan()), ["one-0"]);
}

#[test]
fn a_gang_that_needs_one_domain_has_others_moved_out_of_it() {
    let mut c = consolidating();
    for (name, rack) in [("n1", "r1"), ("n2", "r1"), ("n3", "r2"), ("n4", "r2")] {
        c.notify(node_with(name, 4, |node| {
            node["metadata"]["labels"]["rack"] = json!(rack);
        }));
    }
    running(&mut c, "a", "default", 1, &["n1"], 2);
    running(&mut c, "b", "default", 1, &["n3"], 2);
    c.gang_with("new", "default", "mid", 2, 2, 4, |group| {
        group["metadata"]["annotations"]["muster.io/topology"] =
            json!(json!({"required": "rack"}).to_string());
    });
    let plan = c.plan();
    assert_eq!(plan.evictions.len(), 1, "{:?}", report(&plan, "new"));
    assert_eq!(nominated(&plan).len(), 3);
}

#[test]
fn a_gang_that_needs_one_domain_evicts_the_gangs_in_one_domain() {
    let mut c = Cluster::with(Config {
        topology: vec!["rack".into()],
        ..Config::default()
    });
    for (name, rack) in [("n1", "r1"), ("n2", "r1"), ("n3", "r2"), ("n4", "r2")] {
        c.notify(node_with(name, 4, |node| {
            node["metadata"]["labels"]["rack"] = json!(rack);
        }));
    }
    for (i, at) in ["n1", "n2", "n3", "n4"].into_iter().enumerate() {
        running(&mut c, &format!("old{i}"), "default", 1, &[at], 2);
    }
    c.gang_with("new", "default", "high", 2, 2, 4, |group| {
        group["metadata"]["annotations"]["muster.io/topology"] =
            json!(json!({"required": "rack"}).to_string());
    });
    let plan = c.plan();
    let nodes: Vec<&str> = plan.evictions.iter().map(|e| e.node.as_str()).collect();
    assert!(
        nodes == ["n1", "n2"] || nodes == ["n3", "n4"] || nodes == ["n4", "n3"],
        "{nodes:?}"
    );
    assert_eq!(
        nominated(&plan).len(),
        4,
        "both find room in the other rack"
    );
}

#[test]
fn no_gang_moves_if_marked_immovable_or_for_a_queue_at_its_limit() {
    let mut c = consolidating();
    c.nodes(&[("n1", 4), ("n2", 4)]);
    for (name, at) in [("a", "n1"), ("b", "n2")] {
        running(&mut c, name, "default", 1, &[at], 2);
        c.notify(group_with(name, 1, |group| {
            group["spec"]["priorityClassName"] = json!("mid");
            group["metadata"]["annotations"] = json!({"muster.io/movable": "false"});
        }));
    }
    c.gang("new", "default", "mid", 1, 1, 4);
    assert!(c.plan().evictions.is_empty());

    // A queue at its capability gains nothing by moves.
    let mut c = consolidating();
    c.nodes(&[("n1", 4), ("n2", 4)]);
    c.notify(queue_with("small", |queue| {
        queue["spec"]["capability"] = json!({"nvidia.com/gpu": "4"});
    }));
    running(&mut c, "a", "small", 1, &["n1"], 2);
    running(&mut c, "b", "small", 1, &["n2"], 2);
    c.gang("new", "small", "mid", 1, 2, 1);
    assert!(c.plan().evictions.is_empty());
}

#[test]
fn gangs_within_their_share_move_for_a_queues_deserved_amount() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 3), ("n2", 2)]);
    c.queue("mine", 2);
    c.queue("theirs", 3);
    running(&mut c, "a", "theirs", 1, &["n1"], 2);
    running(&mut c, "b", "theirs", 1, &["n2"], 1);
    c.gang("new", "mine", "mid", 1, 1, 2);
    let plan = c.plan();
    assert_eq!(evicted(&plan), ["b-0"]);
    assert_eq!(plan.evictions[0].why, EvictionReason::Consolidated);
}

#[test]
fn an_evicted_gang_has_another_place_reserved_while_no_gang_wants_it() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 2), ("n2", 1)]);
    running(&mut c, "low", "default", 1, &["n1", "n1"], 1);
    c.gang("new", "default", "high", 1, 1, 2);
    let plan = c.run();
    assert_eq!(evicted(&plan), ["low-0", "low-1"]);
    assert_eq!(
        nominated(&plan),
        ["low-0", "new-0"],
        "one of them has another place"
    );
    // Another gang wants the place: the reservation yields to it.
    c.gang("other", "default", "low", 1, 1, 1);
    let plan = c.run();
    assert_eq!(bound(&plan).get("other-0").map(String::as_str), Some("n2"));
    assert_eq!(nominated(&plan), ["new-0"]);
}

#[test]
fn a_sub_group_does_not_shrink_below_its_own_minimum() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 4)]);
    c.gang_with("low", "default", "mid", 2, 0, 1, |group| {
        let parts = json!([{"name": "a", "minMember": 1}, {"name": "b", "minMember": 1}]);
        group["metadata"]["annotations"]["muster.io/sub-groups"] = json!(parts.to_string());
    });
    for (i, part) in ["a", "a", "b", "b"].into_iter().enumerate() {
        c.notify(pod_with(&format!("low-{i}"), Some("low"), 1, |pod| {
            pod["metadata"]["annotations"]["muster.io/sub-group"] = json!(part);
            pod["spec"]["nodeName"] = json!("n1");
            pod["status"] = json!({"phase": "Running"});
        }));
    }
    c.gang("new", "default", "high", 1, 1, 2);
    assert_eq!(evicted(&c.plan()), ["low-1", "low-3"]);
}

#[test]
fn a_gang_with_a_moving_member_is_not_evicted_as_incomplete() {
    let mut c = Cluster::with(Config {
        actions: Actions {
            consolidate: true,
            ..Actions::default()
        },
        stale_after: jiff::SignedDuration::ZERO,
        ..Config::default()
    });
    c.nodes(&[("n1", 4), ("n2", 4)]);
    running(&mut c, "pair", "default", 2, &["n1", "n2"], 1);
    c.gang("new", "default", "mid", 1, 1, 4);
    assert_eq!(evicted(&c.run()), ["pair-1"]);
    c.at += jiff::SignedDuration::from_secs(60);
    assert!(c.run().evictions.is_empty());
}
