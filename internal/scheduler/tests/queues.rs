//! Queues: turns by share, order within, bounds and guarantees.

mod support;

use resources::kinds::PodGroupPhase;
use resources::report::WaitReason;
use scheduler::Event;
use serde_json::json;
use support::*;

fn gpus_of(plan: &scheduler::Plan, prefix: &str) -> usize {
    plan.binds
        .iter()
        .filter(|bind| bind.pod.name.starts_with(prefix))
        .count()
}

#[test]
fn queues_share_by_weight() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(queue_with("heavy", |q| q["spec"]["weight"] = json!(3)));
    s.apply(queue_with("light", |_| {}));
    for i in 0..8 {
        gang_in(&mut s, &format!("heavy-{i}"), 1, 1, "heavy", 100);
        gang_in(&mut s, &format!("light-{i}"), 1, 1, "light", 100);
    }
    let plan = s.plan(now());
    assert_eq!((gpus_of(&plan, "heavy"), gpus_of(&plan, "light")), (6, 2));
}

#[test]
fn a_queue_with_a_higher_priority_goes_first() {
    let mut s = scheduler();
    s.apply(node("n1", 2));
    s.apply(queue_with("a", |_| {}));
    s.apply(queue_with("z", |q| q["spec"]["priority"] = json!(10)));
    for i in 0..2 {
        gang_in(&mut s, &format!("a-{i}"), 1, 1, "a", 500);
        gang_in(&mut s, &format!("z-{i}"), 1, 1, "z", 100);
    }
    assert_eq!(gpus_of(&s.plan(now()), "z"), 2);
}

#[test]
fn within_a_queue_priority_goes_before_age_and_age_before_name() {
    let mut s = scheduler();
    s.apply(node("n1", 1));
    s.apply(priority_class("urgent", 1000));
    gang_in(&mut s, "a-young", 1, 1, "default", 10);
    gang_in(&mut s, "b-old", 1, 1, "default", 900);
    s.apply(group_with("c-urgent", 1, |g| {
        g["spec"]["priorityClassName"] = json!("urgent")
    }));
    s.apply(pod("c-urgent-0", "c-urgent", 1));
    let plan = s.plan(now());
    assert_eq!(bound(&plan).keys().collect::<Vec<_>>(), ["c-urgent-0"]);
    let order: Vec<(&str, usize)> = plan
        .reports
        .iter()
        .map(|r| (r.group.as_str(), r.ahead))
        .collect();
    assert_eq!(order, [("b-old", 0), ("a-young", 1)]);
}

#[test]
fn a_priority_class_that_comes_late_or_goes_moves_the_gang() {
    let mut s = scheduler();
    s.apply(node("n1", 0));
    gang_in(&mut s, "a", 1, 1, "default", 100);
    s.apply(group_with("b", 1, |g| {
        g["spec"]["priorityClassName"] = json!("urgent")
    }));
    s.apply(pod("b-0", "b", 1));
    let first = |s: &mut scheduler::Scheduler| s.plan(now()).reports[0].group.clone();
    assert_eq!(first(&mut s), "a");
    s.apply(priority_class("urgent", 10));
    assert_eq!(first(&mut s), "b");
    s.apply(scheduler::Event::PriorityClassGone("urgent".into()));
    assert_eq!(first(&mut s), "a");
}

#[test]
fn a_blocked_gang_holds_up_nobody_and_its_report_counts_who_passed() {
    let mut s = scheduler();
    s.apply(node("n1", 2));
    gang_in(&mut s, "large", 4, 1, "default", 900);
    gang_in(&mut s, "small-a", 1, 1, "default", 100);
    gang_in(&mut s, "small-b", 1, 1, "default", 50);
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 2);
    let report = report(&plan, "large");
    assert_eq!(report.ahead, 0);
    assert!(
        report
            .binding
            .ends_with("2 gangs behind it in queue default started before it"),
        "{}",
        report.binding
    );
}

#[test]
fn a_capability_is_never_passed_and_the_report_names_it() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(queue_with("q", |q| {
        q["spec"]["capability"] = json!({"nvidia.com/gpu": "4"})
    }));
    gang_in(&mut s, "a", 3, 1, "q", 200);
    gang_in(&mut s, "b", 2, 1, "q", 100);
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 3);
    let report = report(&plan, "b");
    assert_eq!(report.verdict, WaitReason::QuotaExceeded);
    assert_eq!(
        report.sentence(),
        "gang of 2 must start together (1 can be scheduled): queue q holds 4 of the 4 nvidia.com/gpu it may use, and 1 more are needed."
    );
    assert_eq!(
        report.would_fit,
        "1 nvidia.com/gpu released in queue q, or that much more capability"
    );
    s.apply(queue_with("q", |q| {
        q["spec"]["capability"] = json!({"nvidia.com/gpu": "5"})
    }));
    assert_eq!(s.plan(now()).binds.len(), 2);
}

#[test]
fn a_guarantee_is_kept_free_for_its_queue() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(queue_with("kept", |q| {
        q["spec"]["guarantee"] = json!({"resource": {"nvidia.com/gpu": "3"}})
    }));
    for i in 0..8 {
        s.apply(lone(&format!("other-{i}"), 1));
    }
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 5);
    assert_eq!(report(&plan, "other-5").verdict, WaitReason::QuotaExceeded);
    assert!(
        report(&plan, "other-5")
            .binding
            .contains("reserved for other queues' guarantees")
    );
    gang_in(&mut s, "mine", 3, 1, "kept", 10);
    assert_eq!(gpus_of(&s.plan(now()), "mine"), 3);
}

#[test]
fn a_closed_queue_lets_nobody_in_but_keeps_those_it_let_in() {
    let mut s = scheduler();
    s.apply(node("n1", 2));
    s.apply(queue_with("q", |_| {}));
    gang_in(&mut s, "early", 4, 1, "q", 200);
    s.plan(now());
    s.apply(queue_with("q", |q| {
        q["status"] = json!({"state": "Closed"})
    }));
    gang_in(&mut s, "late", 1, 1, "q", 100);
    let plan = s.plan(now());
    assert_eq!(report(&plan, "late").verdict, WaitReason::QueueClosed);
    assert_eq!(report(&plan, "late").sentence(), "queue q is closed.");
    let late = plan
        .groups
        .iter()
        .find(|update| update.group.name == "late")
        .unwrap();
    assert_eq!(late.phase, PodGroupPhase::Pending);
    s.apply(node("n2", 2));
    assert_eq!(gpus_of(&s.plan(now()), "early"), 4);
    s.apply(queue_with("q", |_| {}));
    s.apply(node("n3", 2));
    assert_eq!(gpus_of(&s.plan(now()), "late"), 1);
}

#[test]
fn a_queue_that_does_not_exist_is_named() {
    let mut s = scheduler();
    s.apply(node("n1", 2));
    gang_in(&mut s, "g", 1, 1, "nowhere", 100);
    let plan = s.plan(now());
    assert_eq!(report(&plan, "g").verdict, WaitReason::QueueMissing);
    s.apply(queue_with("nowhere", |_| {}));
    assert_eq!(s.plan(now()).binds.len(), 1);
    s.apply(scheduler::Event::QueueGone("nowhere".into()));
    assert_eq!(
        s.view().queues["nowhere"].allocated.get("nvidia.com/gpu"),
        1
    );
}

#[test]
fn min_resources_gate_a_gang_by_its_queues_capability() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(queue_with("q", |q| {
        q["spec"]["capability"] = json!({"nvidia.com/gpu": "4"})
    }));
    let needs = |gpus: &'static str| {
        move |g: &mut serde_json::Value| {
            g["spec"]["queue"] = json!("q");
            g["spec"]["minResources"] = json!({"nvidia.com/gpu": gpus});
        }
    };
    s.apply(group_with("a", 3, needs("3")));
    s.apply(group_with("b", 3, needs("3")));
    let plan = s.plan(now());
    let phases: Vec<PodGroupPhase> = plan.groups.iter().map(|update| update.phase).collect();
    assert_eq!(phases, [PodGroupPhase::Inqueue, PodGroupPhase::Pending]);
    assert_eq!(report(&plan, "b").verdict, WaitReason::QuotaExceeded);
    s.apply(scheduler::Event::PodGroupGone("ns".into(), "a".into()));
    let plan = s.plan(now());
    assert_eq!(plan.groups[0].phase, PodGroupPhase::Inqueue);
}

#[test]
fn a_full_cluster_is_no_reason_to_keep_a_gang_out_but_a_small_one_is() {
    let mut s = scheduler();
    s.apply(node("n1", 4));
    gang(&mut s, "busy", 4, 1);
    s.plan(now());
    s.apply(group_with("fits", 4, |g| {
        g["spec"]["minResources"] = json!({"nvidia.com/gpu": "4"})
    }));
    s.apply(group_with("never", 9, |g| {
        g["spec"]["minResources"] = json!({"nvidia.com/gpu": "9"})
    }));
    let plan = s.plan(now());
    let phase = |name: &str| {
        plan.groups
            .iter()
            .find(|u| u.group.name == name)
            .unwrap()
            .phase
    };
    assert_eq!(phase("fits"), PodGroupPhase::Inqueue);
    assert_eq!(phase("never"), PodGroupPhase::Pending);
    assert_eq!(
        report(&plan, "never").binding,
        "the gang requests nvidia.com/gpu: 9 in all, and all nodes together have 4"
    );
}

#[test]
fn a_gang_that_changes_its_queue_takes_its_account_along() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(queue_with("a", |_| {}));
    s.apply(queue_with("b", |_| {}));
    gang_in(&mut s, "g", 2, 1, "a", 100);
    s.plan(now());
    assert_eq!(s.view().queues["a"].allocated.get("nvidia.com/gpu"), 2);
    s.apply(group_with("g", 2, |g| g["spec"]["queue"] = json!("b")));
    assert_eq!(s.view().queues["a"].allocated.get("nvidia.com/gpu"), 0);
    assert_eq!(s.view().queues["b"].allocated.get("nvidia.com/gpu"), 2);
    assert_eq!(s.view().queues["a"].requested.get("nvidia.com/gpu"), 0);
    assert_eq!(s.view().queues["b"].requested.get("nvidia.com/gpu"), 2);
}

fn namespace(name: &str, team: &str) -> Event {
    let object = json!({"metadata": {"name": name, "labels": {"team": team}}});
    Event::NamespaceChanged(Box::new(
        serde_json::from_value(object).expect("a namespace"),
    ))
}

fn queue_of_team(name: &str, team: &str) -> Event {
    queue_with(name, |queue| {
        queue["spec"]["namespaceSelector"] = json!({"matchLabels": {"team": team}});
    })
}

#[test]
fn work_that_named_a_queue_before_it_excluded_the_namespace_waits() {
    let mut s = scheduler();
    s.apply(namespace("ns", "b"));
    s.apply(node("n1", 4));
    gang_in(&mut s, "g", 1, 1, "late", 100);
    assert_eq!(
        report(&s.plan(now()), "g").verdict,
        WaitReason::QueueMissing
    );
    s.apply(queue_of_team("late", "a"));
    let plan = s.plan(now());
    assert_eq!(report(&plan, "g").verdict, WaitReason::NamespaceNotAdmitted);
    assert_eq!(
        report(&plan, "g").sentence(),
        "queue late admits no work from namespace ns."
    );
    assert_eq!(gpus_of(&plan, "g"), 0);
    s.apply(namespace("ns", "a"));
    assert_eq!(gpus_of(&s.plan(now()), "g"), 1);
}

#[test]
fn work_that_runs_goes_on_when_its_queue_excludes_its_namespace() {
    let mut s = scheduler();
    s.apply(namespace("ns", "b"));
    s.apply(node("n1", 2));
    s.apply(queue_with("q", |_| {}));
    gang_in(&mut s, "runs", 1, 2, "q", 200);
    gang_in(&mut s, "waits", 1, 1, "q", 100);
    let plan = s.plan(now());
    assert_eq!(gpus_of(&plan, "runs"), 1);
    run(&mut s, &plan, 2, now());
    s.apply(queue_of_team("q", "a"));
    let plan = s.plan(now());
    assert_eq!(plan.evictions.len(), 0);
    assert_eq!(
        report(&plan, "waits").verdict,
        WaitReason::NamespaceNotAdmitted
    );
    s.apply(node("n2", 2));
    assert_eq!(gpus_of(&s.plan(now()), "waits"), 0);
    s.apply(queue_with("q", |_| {}));
    assert_eq!(gpus_of(&s.plan(now()), "waits"), 1);
}
