//! Which gangs a waiting gang could evict, asked before anything is decided.

mod support;

use scheduler::{Actions, Config};
use support::cluster::*;
use support::{now, pod_object};

/// A cluster whose plans evict no gang.
fn gentle() -> Cluster {
    let actions = Actions {
        reclaim: false,
        preempt: false,
        ..Actions::default()
    };
    Cluster::with(Config {
        actions,
        ..Config::default()
    })
}

fn whom(c: &mut Cluster, gang: &str) -> Vec<(String, usize, String)> {
    let at = c.at;
    let victims = c
        .scheduler
        .what_if()
        .could_evict("ns", gang, at)
        .into_iter();
    victims.map(|v| (v.group, v.members, v.why)).collect()
}

#[test]
fn possible_victims_are_named_while_evictions_are_off_and_nothing_changes() {
    let mut c = gentle();
    c.nodes(&[("n1", 4), ("n2", 4)]);
    c.gang("one", "default", "low", 1, 1, 4);
    c.run();
    c.gang("two", "default", "low", 1, 1, 4);
    c.run();
    c.gang("new", "default", "high", 1, 1, 4);
    assert!(c.run().evictions.is_empty());
    let before = c.scheduler.view();
    let named = whom(&mut c, "new");
    assert_eq!(named, [("two".to_owned(), 1, "Preempted".to_owned())]);
    assert_eq!(whom(&mut c, "new"), named);
    assert_eq!(c.scheduler.view(), before);
    assert!(c.plan().evictions.is_empty(), "it was a question");
}

#[test]
fn no_victim_is_named_for_a_gang_that_may_not_evict_does_not_wait_or_does_not_exist() {
    let mut c = gentle();
    c.nodes(&[("n1", 4)]);
    c.gang("old", "default", "high", 1, 1, 4);
    c.run();
    c.gang("new", "default", "low", 1, 1, 4);
    c.run();
    for gang in ["new", "old", "nobody"] {
        assert_eq!(whom(&mut c, gang), [], "{gang}");
    }
}

/// A preview between two plans: an earlier implementation ran it as real events, which made the
/// cluster look changed to the rule that ends cycles of evictions.
#[test]
fn a_preview_between_two_plans_changes_no_plan_that_evicts() {
    let cluster = || {
        let mut c = Cluster::new();
        c.nodes(&[("n1", 4), ("n2", 4)]);
        c.gang("one", "default", "low", 1, 1, 4);
        c.gang("two", "default", "low", 1, 1, 4);
        c.run();
        c.gang("new", "default", "high", 1, 1, 4);
        c
    };
    let (mut asked, mut plain) = (cluster(), cluster());
    let evicting = asked.plan();
    assert_eq!(evicting.evictions.len(), 1, "one victim makes room");
    assert_eq!(evicting, plain.plan());
    let before = format!("{:?}", asked.scheduler);
    let pods = [pod_object("t-0", None, 4, |_| {})];
    let trial = asked.scheduler.what_if().would_place(None, &pods, now());
    assert_eq!(trial.reports.len(), 1, "the cluster is full");
    assert_eq!(format!("{:?}", asked.scheduler), before);
    assert_eq!(asked.plan(), plain.plan());
    assert_eq!(asked.run(), plain.run());
}
