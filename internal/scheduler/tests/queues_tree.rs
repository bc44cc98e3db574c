//! The tree of queues at work: shares on every level, bounds of every ancestor, policies within a
//! queue, users, priorities; and the reports that name what binds.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use resources::report::WaitReason;
use scheduler::{Config, Decay, Event, Plan, Scheduler};
use serde_json::{Value, json};
use support::*;

fn gpus(n: i64) -> Value {
    json!({"nvidia.com/gpu": n.to_string()})
}

/// A queue below another, with these fields of its spec.
fn below(name: &str, parent: &str, spec: Value) -> Event {
    noted(name, parent, spec, json!({}))
}

fn noted(name: &str, parent: &str, spec: Value, notes: Value) -> Event {
    queue_with(name, |queue| {
        for (field, value) in spec.as_object().unwrap() {
            queue["spec"][field] = value.clone();
        }
        if !parent.is_empty() {
            queue["spec"]["parent"] = json!(parent);
        }
        queue["metadata"]["annotations"] = notes;
    })
}

fn singles(s: &mut Scheduler, prefix: &str, count: usize, queue: &str) {
    for i in 0..count {
        gang_in(s, &format!("{prefix}-{i:02}"), 1, 1, queue, 100);
    }
}

/// How many pods were bound, by what their names begin with.
fn counts<const N: usize>(plan: &Plan, prefixes: [&str; N]) -> [usize; N] {
    prefixes.map(|prefix| {
        let binds = plan.binds.iter();
        binds.filter(|b| b.pod.name.starts_with(prefix)).count()
    })
}

fn order(plan: &Plan) -> Vec<&str> {
    plan.binds
        .iter()
        .map(|bind| bind.group.name.as_str())
        .collect()
}

/// A gang of one with annotations, so old.
fn one(s: &mut Scheduler, name: &str, queue: &str, age: i64, notes: Value) {
    let created = (now() - jiff::SignedDuration::from_secs(age)).to_string();
    s.apply(group_with(name, 1, |group| {
        group["spec"]["queue"] = json!(queue);
        group["metadata"]["creationTimestamp"] = json!(created);
        group["metadata"]["annotations"] = notes;
    }));
    s.apply(pod(&format!("{name}-0"), name, 1));
}

#[test]
fn departments_share_by_weight_and_so_do_the_queues_within() {
    let mut s = scheduler();
    s.apply(node("n1", 12));
    s.apply(below("left", "", json!({"weight": 2})));
    s.apply(below("right", "", json!({"weight": 1})));
    s.apply(below("a", "left", json!({"weight": 1})));
    s.apply(below("b", "left", json!({"weight": 3})));
    s.apply(below("c", "right", json!({})));
    for name in ["a", "b", "c"] {
        singles(&mut s, name, 12, name);
    }
    let plan = s.plan(now());
    assert_eq!(counts(&plan, ["a-", "b-", "c-"]), [2, 6, 4]);
    let views = s.view().queues;
    let left = &views["left"];
    assert_eq!(left.allocated.get("nvidia.com/gpu"), 8);
    assert_eq!(left.entitled.get("nvidia.com/gpu"), 8);
    assert_eq!(left.requested.get("nvidia.com/gpu"), 24);
    assert_eq!(left.dominant.as_deref(), Some("nvidia.com/gpu"));
    assert!((left.share - 8.0 / 12.0).abs() < 1e-9);
    assert_eq!(views["a"].parent.as_deref(), Some("left"));
    assert_eq!(left.above, None);
}

#[test]
fn the_queue_that_is_given_first_place_does_not_depend_on_the_order_of_events() {
    let events = |reverse: bool| {
        let mut s = scheduler();
        let mut events = vec![
            below("a", "dept", json!({"deserved": gpus(1)})),
            below("b", "dept", json!({"deserved": gpus(2)})),
            below("dept", "", json!({"capability": gpus(4)})),
            below("other", "", json!({})),
            node("n1", 6),
        ];
        if reverse {
            events.reverse();
        }
        events.into_iter().for_each(|event| s.apply(event));
        for name in ["a", "b", "other"] {
            singles(&mut s, name, 6, name);
        }
        s.plan(now())
    };
    assert_eq!(events(false).binds, events(true).binds);
    assert_eq!(counts(&events(false), ["a-", "b-", "other-"]), [1, 2, 3]);
}

#[test]
fn an_idle_departments_part_is_used_by_others() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(below("a", "", json!({"deserved": gpus(4)})));
    s.apply(below("b", "", json!({"deserved": gpus(4)})));
    singles(&mut s, "a", 8, "a");
    assert_eq!(s.plan(now()).binds.len(), 8);
    let view = &s.view().queues["a"];
    assert_eq!(view.entitled.get("nvidia.com/gpu"), 8);
    singles(&mut s, "b", 3, "b");
    s.plan(now());
    let views = s.view().queues;
    assert_eq!(views["a"].entitled.get("nvidia.com/gpu"), 5);
    assert_eq!(views["a"].above.as_deref(), Some("nvidia.com/gpu"));
    assert_eq!(views["b"].entitled.get("nvidia.com/gpu"), 3);
}

#[test]
fn the_report_names_the_queue_above_that_binds() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(below("dept", "", json!({"capability": gpus(3)})));
    s.apply(below("team", "dept", json!({"capability": gpus(6)})));
    singles(&mut s, "g", 4, "team");
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 3);
    let report = report(&plan, "g-03");
    assert_eq!(report.verdict, WaitReason::QuotaExceeded);
    assert_eq!(
        report.binding,
        "queue dept, above queue team, holds 3 of the 3 nvidia.com/gpu it may use, and 1 more are needed"
    );
    assert_eq!(
        report.would_fit,
        "1 nvidia.com/gpu released in queue dept, or that much more capability"
    );
}

#[test]
fn non_preemptible_work_does_not_start_beyond_what_is_deserved_and_says_so() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(below("q", "", json!({"deserved": gpus(2)})));
    let fixed = json!({"muster.io/preemptible": "false"});
    for name in ["a", "b", "c"] {
        one(&mut s, name, "q", 100, fixed.clone());
    }
    one(&mut s, "d", "q", 50, json!({}));
    let plan = s.plan(now());
    assert_eq!(order(&plan), ["a", "b", "d"]);
    let binding = &report(&plan, "c").binding;
    assert!(
        binding.starts_with("non-preemptible work of queue q holds 2 of the 2 nvidia.com/gpu that the queue deserves, and 1 more are needed"),
        "{binding}"
    );
    // Volcano's word for the same, and a change of mind.
    s.apply(group_with("c", 1, |group| {
        group["spec"]["queue"] = json!("q");
        group["metadata"]["annotations"] = json!({"volcano.sh/preemptable": "true"});
    }));
    assert_eq!(order(&s.plan(now())), ["c"]);
    assert_eq!(s.view().queues["q"].fixed.get("nvidia.com/gpu"), 2);
}

#[test]
fn a_borrowing_limit_ends_borrowing_and_is_named() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    let limit = json!({"muster.io/borrowing-limit": "{\"nvidia.com/gpu\": 1}"});
    s.apply(noted("q", "", json!({"deserved": gpus(2)}), limit));
    singles(&mut s, "g", 5, "q");
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 3);
    assert_eq!(
        report(&plan, "g-03").binding,
        "queue q holds 3 of the 3 nvidia.com/gpu that it deserves and may borrow, and 1 more are needed"
    );
}

#[test]
fn what_a_queue_does_not_lend_stays_free_for_it() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    let limit = json!({"muster.io/lending-limit": "{\"nvidia.com/gpu\": \"1\"}"});
    s.apply(noted("own", "", json!({"deserved": gpus(4)}), limit));
    s.apply(below("q", "", json!({})));
    singles(&mut s, "g", 8, "q");
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 5);
    assert!(
        report(&plan, "g-05")
            .binding
            .contains("3 of them reserved for other queues")
    );
    singles(&mut s, "mine", 4, "own");
    assert_eq!(counts(&s.plan(now()), ["mine", "g-"]), [3, 0]);
}

#[test]
fn a_user_limit_holds_in_every_queue_below() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    let limit = json!({"muster.io/user-limit": "{\"nvidia.com/gpu\": 2}"});
    s.apply(noted("dept", "", json!({}), limit));
    s.apply(below("a", "dept", json!({})));
    s.apply(below("b", "dept", json!({})));
    for i in 0..3 {
        for queue in ["a", "b"] {
            let user = json!({"muster.io/user": "ann"});
            one(&mut s, &format!("ann-{queue}{i}"), queue, 100, user);
        }
    }
    one(&mut s, "bob", "a", 100, json!({"muster.io/user": "bob"}));
    let plan = s.plan(now());
    assert_eq!(counts(&plan, ["ann", "bob"]), [2, 1]);
    let binding = &report(&plan, "ann-a2").binding;
    assert!(
        binding.starts_with("user ann holds 2 of the 2 nvidia.com/gpu that a user may use in queue dept, above queue a, and 1 more are needed"),
        "{binding}"
    );
}

#[test]
fn policies_order_the_gangs_of_a_queue() {
    let gangs = [
        (
            "old",
            900,
            json!({"muster.io/user": "ann", "muster.io/walltime": "3h"}),
        ),
        (
            "older",
            990,
            json!({"muster.io/user": "ann", "muster.io/walltime": "2h"}),
        ),
        (
            "short",
            100,
            json!({"muster.io/user": "ann", "muster.io/walltime": "60"}),
        ),
        ("unknown", 500, json!({"muster.io/user": "bob"})),
    ];
    let order_by = |policy: &str| -> Vec<String> {
        let mut s = scheduler();
        s.apply(node("n1", 8));
        s.apply(noted(
            "q",
            "",
            json!({}),
            json!({"muster.io/policy": policy}),
        ));
        for (name, age, notes) in gangs.clone() {
            one(&mut s, name, "q", age, notes);
        }
        order(&s.plan(now()))
            .into_iter()
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(order_by("fifo"), ["older", "old", "unknown", "short"]);
    assert_eq!(order_by("sjf"), ["short", "older", "old", "unknown"]);
    assert_eq!(
        order_by("round-robin"),
        ["older", "unknown", "old", "short"]
    );
    assert_eq!(order_by("fair"), ["older", "unknown", "old", "short"]);
    assert_eq!(order_by("nonsense"), ["older", "old", "unknown", "short"]);
}

#[test]
fn fifo_looks_at_age_alone_and_the_default_at_priority_first() {
    let first = |policy: &str| {
        let mut s = scheduler();
        s.apply(node("n1", 1));
        s.apply(priority_class("urgent", 10));
        s.apply(noted(
            "q",
            "",
            json!({}),
            json!({"muster.io/policy": policy}),
        ));
        one(&mut s, "old", "q", 900, json!({}));
        s.apply(group_with("urgent", 1, |group| {
            group["spec"]["queue"] = json!("q");
            group["spec"]["priorityClassName"] = json!("urgent");
        }));
        s.apply(pod("urgent-0", "urgent", 1));
        order(&s.plan(now()))[0].to_owned()
    };
    assert_eq!(first("fifo"), "old");
    assert_eq!(first("priority"), "urgent");
}

#[test]
fn a_policy_that_changes_moves_those_who_wait() {
    let mut s = scheduler();
    s.apply(node("n1", 0));
    let policy = |policy: &str| noted("q", "", json!({}), json!({"muster.io/policy": policy}));
    s.apply(policy("fifo"));
    one(
        &mut s,
        "long",
        "q",
        900,
        json!({"muster.io/walltime": "9h"}),
    );
    one(
        &mut s,
        "short",
        "q",
        100,
        json!({"muster.io/walltime": "1m"}),
    );
    let first = |s: &mut Scheduler| s.plan(now()).reports[0].group.clone();
    assert_eq!(first(&mut s), "long");
    s.apply(policy("sjf"));
    assert_eq!(first(&mut s), "short");
    s.apply(policy("fifo"));
    assert_eq!(first(&mut s), "long");
}

#[test]
fn round_robin_goes_on_where_the_last_plan_ended() {
    let mut s = scheduler();
    s.apply(node("n1", 1));
    s.apply(noted(
        "q",
        "",
        json!({}),
        json!({"muster.io/policy": "round-robin"}),
    ));
    for user in ["ann", "bob", "cid"] {
        for i in 0..2 {
            let notes = json!({"muster.io/user": user});
            one(&mut s, &format!("{user}-{i}"), "q", 100, notes);
        }
    }
    let mut served = Vec::new();
    for _ in 0..6 {
        let plan = s.plan(now());
        let name = plan.binds[0].pod.name.clone();
        served.push(name[..3].to_owned());
        s.apply(pod_gone(&name));
    }
    assert_eq!(served, ["ann", "bob", "cid", "ann", "bob", "cid"]);
}

#[test]
fn reports_count_who_is_ahead_in_the_order_of_turns() {
    let mut s = scheduler();
    s.apply(node("n1", 0));
    let policy = json!({"muster.io/policy": "round-robin"});
    s.apply(noted("q", "", json!({}), policy));
    for (name, user, age) in [("a", "ann", 900), ("b", "ann", 800), ("c", "bob", 100)] {
        one(&mut s, name, "q", age, json!({"muster.io/user": user}));
    }
    let plan = s.plan(now());
    let reports = plan.reports.iter();
    let ahead: Vec<(&str, usize)> = reports.map(|r| (r.group.as_str(), r.ahead)).collect();
    assert_eq!(ahead, [("a", 0), ("c", 1), ("b", 2)]);
}

#[test]
fn an_elastic_gangs_surplus_waits_for_others_minimum() {
    let mut s = scheduler();
    s.apply(node("n1", 6));
    for name in ["a", "b"] {
        s.apply(group(name, 2));
        for i in 0..5 {
            s.apply(pod(&format!("{name}-{i}"), name, 1));
        }
    }
    // a is first by name, yet b has its minimum before a grows.
    let plan = s.plan(now());
    assert_eq!(counts(&plan, ["a-", "b-"]), [4, 2]);
    let firsts: Vec<&str> = order(&plan).into_iter().take(4).collect();
    assert_eq!(firsts, ["a", "a", "b", "b"]);
}

#[test]
fn elastic_gangs_of_two_queues_grow_side_by_side() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    for name in ["a", "b"] {
        s.apply(below(name, "", json!({})));
        s.apply(group_with(name, 1, |group| {
            group["spec"]["queue"] = json!(name)
        }));
        for i in 0..9 {
            s.apply(pod(&format!("{name}-{i}"), name, 1));
        }
    }
    assert_eq!(counts(&s.plan(now()), ["a-", "b-"]), [4, 4]);
}

#[test]
fn a_queue_under_quota_with_its_next_gang_goes_before_one_that_is_not() {
    let mut s = scheduler();
    s.apply(node("n1", 4));
    s.apply(below("rich", "", json!({"deserved": gpus(4)})));
    s.apply(below("poor", "", json!({"deserved": gpus(0)})));
    gang_in(&mut s, "poor", 3, 1, "poor", 900);
    gang_in(&mut s, "rich", 3, 1, "rich", 10);
    assert_eq!(counts(&s.plan(now()), ["rich", "poor"]), [3, 0]);
}

#[test]
fn a_closed_or_missing_queue_is_entitled_to_no_more_than_it_holds() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(below("a", "", json!({})));
    s.apply(below("b", "", json!({})));
    singles(&mut s, "a", 8, "a");
    s.apply(queue_with("b", |queue| {
        queue["status"] = json!({"state": "Closing"})
    }));
    singles(&mut s, "b", 8, "b");
    assert_eq!(counts(&s.plan(now()), ["a-", "b-"]), [8, 0]);
    assert_eq!(s.view().queues["a"].entitled.get("nvidia.com/gpu"), 8);
    assert_eq!(s.view().queues["b"].entitled.get("nvidia.com/gpu"), 0);
}

#[test]
fn past_use_counts_until_it_is_forgotten() {
    let mut s = Scheduler::new(Config {
        usage: Some(Decay {
            half_life_seconds: 3600,
            strength: 1000,
        }),
        ..Config::default()
    });
    s.apply(node("n1", 8));
    s.apply(below("glutton", "", json!({})));
    s.apply(below("newcomer", "", json!({})));
    let later = |hours: i64| now() + jiff::SignedDuration::from_hours(hours);
    singles(&mut s, "glutton", 8, "glutton");
    assert_eq!(s.plan(now()).binds.len(), 8);
    for i in 0..8 {
        s.apply(pod_gone(&format!("glutton-{i:02}-0")));
        s.apply(Event::PodGroupGone("ns".into(), format!("glutton-{i:02}")));
    }
    for i in 0..8 {
        gang_in(&mut s, &format!("glutton-again-{i}"), 1, 1, "glutton", 50);
        gang_in(&mut s, &format!("newcomer-{i}"), 1, 1, "newcomer", 50);
    }
    let entitled = |s: &Scheduler| {
        let views = s.view().queues;
        ["glutton", "newcomer"].map(|name| views[name].entitled.get("nvidia.com/gpu"))
    };
    let mut soon = s.clone();
    soon.apply(node("n1", 0));
    soon.plan(later(6));
    soon.apply(node("n1", 8));
    soon.plan(later(6));
    assert!(
        entitled(&soon)[0] < entitled(&soon)[1],
        "{:?}",
        entitled(&soon)
    );
    let usage = soon.view().queues["glutton"].usage.get("nvidia.com/gpu");
    assert_eq!(usage, 7);
    // Half a day with nothing to run on: it is forgotten.
    let mut late = soon.clone();
    late.apply(node("n1", 0));
    for bind in soon
        .view()
        .pods
        .iter()
        .filter(|(_, pod)| pod.node.is_some())
    {
        late.apply(Event::PodGone(bind.0.0.clone(), bind.0.1.clone()));
    }
    late.plan(later(6));
    late.apply(node("n2", 0));
    late.plan(later(90));
    assert_eq!(late.view().queues["glutton"].usage.get("nvidia.com/gpu"), 0);
}

#[test]
fn a_word_that_cannot_be_read_is_told() {
    let mut s = scheduler();
    let notes = json!({
        "muster.io/borrowing-limit": "five",
        "muster.io/policy": "lottery",
        "muster.io/surplus-weight": "much",
        "muster.io/preemption": "{\"reclaim\": \"Sometimes\"}",
    });
    s.apply(noted("q", "", json!({}), notes));
    let faults = &s.view().queues["q"].faults;
    assert_eq!(faults.len(), 4, "{faults:?}");
    assert!(faults.iter().any(|fault| fault
        == "annotation muster.io/policy is ignored: write priority, fifo, sjf, round-robin or fair"));
}

#[test]
fn a_queue_that_moves_takes_what_it_holds_along() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(below("x", "", json!({})));
    s.apply(below("y", "", json!({"capability": gpus(2)})));
    s.apply(below("q", "x", json!({})));
    singles(&mut s, "g", 2, "q");
    s.plan(now());
    let held = |s: &Scheduler| {
        let views = s.view().queues;
        ["x", "y"].map(|name| views[name].allocated.get("nvidia.com/gpu"))
    };
    assert_eq!(held(&s), [2, 0]);
    s.apply(below("q", "y", json!({})));
    assert_eq!(held(&s), [0, 2]);
    singles(&mut s, "h", 1, "q");
    assert_eq!(s.plan(now()).binds.len(), 0);
    s.apply(Event::QueueGone("y".into()));
    assert_eq!(s.plan(now()).binds.len(), 1);
}
