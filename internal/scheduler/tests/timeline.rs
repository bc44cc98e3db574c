//! Reservation and backfill, case by case: which gang is the head, when it is expected to start,
//! which gangs may start before it, and the estimated starts of the others.

mod support;

use jiff::{SignedDuration, Timestamp};
use scheduler::{Actions, Config, Event, Plan, ReservationKind, Scheduler};
use serde_json::json;
use support::*;

/// Room is reserved at once.
fn scheduler() -> Scheduler {
    Scheduler::new(Config {
        reserve_after: SignedDuration::ZERO,
        ..Config::default()
    })
}

/// A gang with a walltime, of so many members of so many GPUs each, older by `age`.
fn timed(
    s: &mut Scheduler,
    name: &str,
    members: usize,
    gpus: i64,
    walltime: Option<i64>,
    age: i64,
) {
    s.apply(group_with(name, members as i32, |group| {
        group["metadata"]["creationTimestamp"] =
            json!((now() - SignedDuration::from_secs(age)).to_string());
        if let Some(walltime) = walltime {
            group["metadata"]["annotations"] = json!({"muster.io/walltime": walltime.to_string()});
        }
    }));
    for i in 0..members {
        s.apply(pod(&format!("{name}-{i}"), name, gpus));
    }
}

fn end(s: &mut Scheduler, group: &str, members: usize) {
    for i in 0..members {
        let name = format!("{group}-{i}");
        s.apply(pod_with(&name, Some(group), 1, |pod| {
            pod["spec"]["nodeName"] = json!("n0");
            pod["status"] = json!({"phase": "Succeeded"});
        }));
        s.apply(pod_gone(&name));
    }
    s.apply(Event::PodGroupGone("ns".into(), group.into()));
}

fn planned(plan: &Plan) -> Option<(String, Timestamp)> {
    plan.reservations.iter().find_map(|held| match held.kind {
        ReservationKind::Planned { at } => Some((held.group.name.clone(), at)),
        ReservationKind::Nominated => None,
    })
}

/// Two nodes of 8 GPUs; `running` holds 6 of one for 1000 s; `head` needs both whole.
fn blocked(s: &mut Scheduler) {
    s.apply(node("n0", 8));
    s.apply(node("n1", 8));
    timed(s, "running", 1, 6, Some(1000), 300);
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 1);
    run(s, &plan, 6, now());
    timed(s, "head", 2, 8, Some(500), 200);
    let plan = s.plan(now());
    assert_eq!(bound(&plan).len(), 0);
}

#[test]
fn room_is_reserved_for_the_head_when_those_that_run_are_expected_to_end() {
    let mut s = scheduler();
    blocked(&mut s);
    timed(&mut s, "other", 1, 1, Some(5000), 100);
    let plan = s.plan(at(1));
    assert_eq!(planned(&plan), Some(("head".into(), at(1000))));
    let places = &plan.reservations[0].pods;
    let nodes: Vec<&str> = places.iter().map(|(_, node)| node.as_str()).collect();
    assert_eq!(nodes, ["n0", "n1"]);
    let told = report(&plan, "head").estimate.unwrap();
    assert_eq!(told.likely, at(1000));
    assert!(told.earliest <= told.likely && told.likely <= told.latest);
}

#[test]
fn a_gang_that_no_end_lets_start_gets_no_estimate_and_gangs_behind_it_do() {
    let mut s = scheduler();
    s.apply(queue_with("small", |queue| {
        queue["spec"]["capability"] = json!({"nvidia.com/gpu": "4"});
    }));
    s.apply(node("n0", 8));
    s.apply(node("n1", 8));
    timed(&mut s, "running", 1, 6, Some(1000), 900);
    let plan = s.plan(now());
    run(&mut s, &plan, 6, now());
    // Each is older than the gang that other gangs' ends let start.
    timed(&mut s, "too-large", 1, 12, Some(500), 800);
    timed(&mut s, "too-many", 3, 8, Some(500), 700);
    timed(&mut s, "not-all-there", 2, 8, Some(500), 600);
    s.apply(pod_gone("not-all-there-1"));
    for (name, queue) in [("nowhere", "none"), ("over-limit", "small")] {
        s.apply(group_with(name, 1, |group| {
            group["spec"]["queue"] = json!(queue);
            group["metadata"]["creationTimestamp"] =
                json!((now() - SignedDuration::from_secs(500)).to_string());
        }));
        s.apply(pod(&format!("{name}-0"), name, 8));
    }
    timed(&mut s, "head", 2, 8, Some(500), 200);
    timed(&mut s, "behind", 1, 6, Some(5000), 100);
    s.plan(now());
    // The estimates are computed anew once it is known which gangs can't start.
    let plan = look(&mut s, 61);
    for name in [
        "too-large",
        "too-many",
        "not-all-there",
        "nowhere",
        "over-limit",
    ] {
        let told = report(&plan, name);
        assert_eq!(told.estimate, None, "{name}: {}", told.binding);
    }
    assert_eq!(report(&plan, "head").estimate.unwrap().likely, at(1000));
    assert_eq!(report(&plan, "behind").estimate.unwrap().likely, at(1500));
    // A node that is large enough: now the gang may start.
    timed(&mut s, "first", 1, 16, Some(300), 950);
    s.apply(node("n2", 16));
    let plan = s.plan(at(62));
    run(&mut s, &plan, 16, at(62));
    let plan = look(&mut s, 123);
    let told = report(&plan, "too-large").estimate.unwrap();
    assert!(told.likely >= at(362), "{told:?}");
}

#[test]
fn a_gang_that_ends_before_the_head_starts_is_backfilled_and_a_longer_one_waits() {
    let mut s = scheduler();
    blocked(&mut s);
    timed(&mut s, "long", 1, 2, Some(1100), 100);
    timed(&mut s, "unknown", 1, 2, None, 99);
    timed(&mut s, "short", 1, 2, Some(990), 98);
    let plan = s.plan(at(5));
    let names: Vec<String> = bound(&plan).into_keys().collect();
    assert_eq!(names, ["short-0"]);
    let why = report(&plan, "long");
    assert!(why.binding.contains("ns/head"), "{}", why.binding);
    assert!(why.would_fit.contains("walltime"), "{}", why.would_fit);
    // Time passes: no wait has become shorter.
    let plan = s.plan(at(20));
    assert!(plan.binds.is_empty());
}

#[test]
fn a_gang_on_room_that_the_head_does_not_need_is_backfilled_whatever_its_run_time() {
    let mut s = scheduler();
    blocked(&mut s);
    s.apply(node("n2", 4));
    timed(&mut s, "long", 1, 4, None, 100);
    let plan = s.plan(at(5));
    let names: Vec<String> = bound(&plan).into_keys().collect();
    assert_eq!(names, ["long-0"]);
    assert_eq!(planned(&plan), Some(("head".into(), at(1000))));
}

#[test]
fn the_head_starts_as_soon_as_it_can_before_any_other_gang() {
    let mut s = scheduler();
    blocked(&mut s);
    timed(&mut s, "long", 1, 8, Some(5000), 100);
    s.plan(at(5));
    end(&mut s, "running", 1);
    timed(&mut s, "younger", 1, 1, Some(5000), 1);
    let plan = s.plan(at(600));
    let names: Vec<String> = bound(&plan).into_keys().collect();
    assert_eq!(names, ["head-0", "head-1"]);
    assert_eq!(
        planned(&plan),
        Some(("long".into(), at(1100))),
        "the next one leads"
    );
}

#[test]
fn the_next_head_has_the_longest_wait_in_relation_to_its_run_time() {
    let mut s = scheduler();
    s.apply(node("n0", 8));
    timed(&mut s, "running", 1, 6, Some(1000), 300);
    let plan = s.plan(now());
    run(&mut s, &plan, 6, now());
    timed(&mut s, "head", 1, 8, Some(500), 5000);
    timed(&mut s, "long", 1, 8, Some(1200), 2400);
    timed(&mut s, "short", 1, 8, Some(600), 600);
    assert_eq!(
        planned(&s.plan(at(1))),
        Some(("head".into(), at(1000))),
        "the oldest gang becomes the head where there was none"
    );
    end(&mut s, "running", 1);
    // By then the long gang has waited 3000 s for a run of 1200 s, the short one 1200 s for 600 s.
    let plan = s.plan(at(600));
    assert_eq!(bound(&plan).len(), 1);
    assert_eq!(planned(&plan), Some(("long".into(), at(1100))));
}

#[test]
fn a_higher_priority_is_not_held_back_by_the_head() {
    let mut s = scheduler();
    s.apply(priority_class("urgent", 100));
    blocked(&mut s);
    s.apply(group_with("urgent", 1, |group| {
        group["spec"]["priorityClassName"] = json!("urgent");
    }));
    s.apply(pod("urgent-0", "urgent", 8));
    let plan = s.plan(at(5));
    let names: Vec<String> = bound(&plan).into_keys().collect();
    assert_eq!(names, ["urgent-0"]);
}

#[test]
fn a_gang_that_exceeds_its_walltime_moves_the_heads_start() {
    let mut s = scheduler();
    blocked(&mut s);
    timed(&mut s, "other", 1, 8, Some(50), 100);
    s.plan(at(5));
    nudge(&mut s);
    let plan = s.plan(at(1001));
    assert_eq!(
        planned(&plan),
        Some(("head".into(), at(1250))),
        "a quarter more"
    );
    nudge(&mut s);
    let plan = s.plan(at(1300));
    assert_eq!(planned(&plan), Some(("head".into(), at(1500))));
}

#[test]
fn a_gang_of_unknown_length_is_expected_to_run_as_long_again() {
    let mut s = scheduler();
    s.apply(node("n0", 8));
    timed(&mut s, "running", 1, 6, None, 300);
    let plan = s.plan(now());
    run(&mut s, &plan, 6, now());
    timed(&mut s, "head", 1, 8, None, 200);
    s.plan(at(1));
    nudge(&mut s);
    assert_eq!(planned(&s.plan(at(2))), Some(("head".into(), at(600))));
    nudge(&mut s);
    assert_eq!(planned(&s.plan(at(700))), Some(("head".into(), at(1200))));
}

#[test]
fn completed_gangs_predict_the_run_time_of_others() {
    let mut s = scheduler();
    s.apply(node("n0", 8));
    for i in 0..8 {
        let name = format!("past{i}");
        timed(&mut s, &name, 1, 2, None, 300);
        let plan = s.plan(at(100 * i));
        run(&mut s, &plan, 2, at(100 * i));
        s.plan(at(100 * i + 1));
        end(&mut s, &name, 1);
        s.plan(at(100 * i + 90));
    }
    timed(&mut s, "running", 1, 2, None, 300);
    let plan = s.plan(at(1000));
    run(&mut s, &plan, 2, at(1000));
    timed(&mut s, "head", 1, 8, None, 200);
    timed(&mut s, "alike", 1, 2, None, 100);
    let plan = s.plan(at(1001));
    let names: Vec<String> = bound(&plan).into_keys().collect();
    let (head, when) = planned(&plan).unwrap();
    assert_eq!(head, "head");
    assert!((at(1088)..=at(1100)).contains(&when), "{when}");
    assert!(names.is_empty(), "nine of ten take as long as it has left");
}

#[test]
fn room_is_reserved_by_latest_ends_and_estimated_by_expected_ends() {
    let mut s = scheduler();
    s.apply(node("n0", 8));
    // Users declare twice the run time of their work.
    for i in 0..8 {
        let name = format!("past{i}");
        timed(&mut s, &name, 1, 2, Some(200), 300);
        let plan = s.plan(at(100 * i));
        run(&mut s, &plan, 2, at(100 * i));
        s.plan(at(100 * i + 1));
        end(&mut s, &name, 1);
        s.plan(at(100 * i + 100));
    }
    timed(&mut s, "running", 1, 4, Some(1000), 300);
    let plan = s.plan(at(1000));
    run(&mut s, &plan, 4, at(1000));
    timed(&mut s, "head", 1, 8, Some(500), 200);
    s.plan(at(1000));
    timed(&mut s, "beyond", 1, 2, Some(1001), 100);
    timed(&mut s, "between", 1, 2, Some(900), 99);
    let plan = s.plan(at(1000));
    assert_eq!(planned(&plan), Some(("head".into(), at(2000))));
    let names: Vec<String> = bound(&plan).into_keys().collect();
    assert_eq!(names, ["between-0"]);
    let likely = report(&plan, "head").estimate.unwrap().likely;
    assert!((at(1500)..=at(1520)).contains(&likely), "{likely}");
}

#[test]
fn a_pods_deadline_is_its_walltime_unless_it_declares_one() {
    let mut s = scheduler();
    s.apply(node("n0", 8));
    s.apply(pod_with("running", None, 6, |pod| {
        pod["spec"]["activeDeadlineSeconds"] = json!(400);
        pod["spec"]["nodeName"] = json!("n0");
        pod["status"] = json!({"phase": "Running", "startTime": now().to_string()});
    }));
    timed(&mut s, "head", 1, 8, None, 200);
    s.plan(at(1));
    nudge(&mut s);
    assert_eq!(planned(&s.plan(at(2))), Some(("head".into(), at(400))));
}

#[test]
fn without_backfill_nothing_is_reserved_and_every_fitting_gang_starts() {
    let mut s = Scheduler::new(Config {
        reserve_after: SignedDuration::ZERO,
        actions: Actions {
            backfill: false,
            ..Actions::default()
        },
        ..Config::default()
    });
    blocked(&mut s);
    timed(&mut s, "long", 1, 2, None, 100);
    let plan = s.plan(at(5));
    assert_eq!(bound(&plan).len(), 1);
    assert_eq!(planned(&plan), None);
}

#[test]
fn a_queue_says_how_long_its_gangs_wait_before_room_is_reserved() {
    let mut s = scheduler();
    s.apply(queue_with("default", |queue| {
        queue["metadata"]["annotations"] = json!({"muster.io/reserve-after": "5m"});
    }));
    blocked(&mut s);
    nudge(&mut s);
    assert_eq!(
        planned(&s.plan(at(99))),
        None,
        "it has waited for 200 s at 0"
    );
    nudge(&mut s);
    assert_eq!(planned(&s.plan(at(100))), Some(("head".into(), at(1000))));
}

#[test]
fn a_gang_that_must_be_in_one_rack_is_reserved_room_in_the_first_that_has_it() {
    let mut s = scheduler();
    for i in 0..4 {
        s.apply(node_with(&format!("n{i}"), 8, |node| {
            node["metadata"]["labels"]["muster.io/rack"] = json!(format!("r{}", i / 2));
        }));
    }
    // One node of each rack is taken, the first rack's for longer.
    for (name, node, seconds) in [("a", "n0", 2000), ("b", "n2", 1000)] {
        s.apply(pod_with(name, None, 8, |pod| {
            pod["metadata"]["annotations"]["muster.io/walltime"] = json!(seconds.to_string());
            pod["spec"]["nodeName"] = json!(node);
            pod["status"] = json!({"phase": "Running", "startTime": now().to_string()});
        }));
    }
    s.apply(group_with("head", 2, |group| {
        group["metadata"]["annotations"] =
            json!({"muster.io/topology": "{\"required\": \"muster.io/rack\"}"});
    }));
    for i in 0..2 {
        s.apply(pod(&format!("head-{i}"), "head", 8));
    }
    s.plan(at(1));
    timed(&mut s, "elsewhere", 1, 8, None, 10);
    timed(&mut s, "again", 1, 8, None, 9);
    let plan = s.plan(at(2));
    assert_eq!(planned(&plan), Some(("head".into(), at(1000))));
    let binds = bound(&plan);
    assert_eq!(binds.len(), 1, "{binds:?}");
    assert_eq!(binds.values().next().map(String::as_str), Some("n1"));
}

/// Makes the next plan consider everything again, without changing anything.
fn nudge(s: &mut Scheduler) {
    s.apply(queue_with("nudge", |_| {}));
    s.apply(Event::QueueGone("nudge".into()));
}
