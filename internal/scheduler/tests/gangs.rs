//! Gangs start whole or not at all.

mod support;

use resources::kinds::PodGroupPhase;
use resources::report::WaitReason;
use scheduler::{GroupRef, PodRef};
use serde_json::json;
use support::*;

#[test]
fn a_gang_that_fits_is_bound_whole_on_few_nodes() {
    let mut s = scheduler();
    for name in ["n1", "n2", "n3"] {
        s.apply(node(name, 4));
    }
    gang(&mut s, "g", 8, 1);
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 8);
    assert_eq!(nodes_used(&plan, "g"), ["n1", "n2"]);
    assert!(plan.reports.is_empty());
}

#[test]
fn a_gang_that_does_not_fit_binds_nothing_and_says_why() {
    let mut s = scheduler();
    s.apply(node("n1", 4));
    s.apply(node("n2", 4));
    gang(&mut s, "first", 6, 1);
    assert_eq!(s.plan(now()).binds.len(), 6);
    gang(&mut s, "second", 6, 1);
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    let report = report(&plan, "second");
    assert_eq!(report.verdict, WaitReason::InsufficientResources);
    assert_eq!(
        (report.members_wanted, report.members_placed_possible),
        (6, 2)
    );
    assert_eq!(
        report.sentence(),
        "gang of 6 must start together (2 can be scheduled): 0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    );
    assert_eq!(
        report.binding,
        "2 of 8 nvidia.com/gpu are free, and 4 more are needed"
    );
    assert_eq!(
        report.would_fit,
        "room for 4 more members on matching nodes, each nvidia.com/gpu: 1"
    );
}

#[test]
fn the_waiting_gang_starts_when_the_other_has_ended() {
    let mut s = scheduler();
    s.apply(node("n1", 4));
    gang(&mut s, "first", 3, 1);
    s.plan(now());
    gang(&mut s, "second", 3, 1);
    assert!(s.plan(now()).binds.is_empty());
    for i in 0..3 {
        s.apply(pod_with(&format!("first-{i}"), Some("first"), 1, |pod| {
            pod["spec"]["nodeName"] = json!("n1");
            pod["status"] = json!({"phase": "Succeeded"});
        }));
    }
    let plan = s.plan(now());
    assert_eq!(bound(&plan).len(), 3);
    let first = plan
        .groups
        .iter()
        .find(|update| update.group.name == "first")
        .unwrap();
    assert_eq!(
        (first.phase, first.succeeded),
        (PodGroupPhase::Completed, 3)
    );
}

#[test]
fn a_gang_whose_members_do_not_exist_yet_waits_for_them() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(group("g", 3));
    s.apply(pod("g-0", "g", 1));
    let plan = s.plan(now());
    assert_eq!(report(&plan, "g").verdict, WaitReason::NotEnoughMembers);
    assert_eq!(report(&plan, "g").binding, "1 of 3 members exist");
    assert_eq!(plan.groups[0].phase, PodGroupPhase::Inqueue);
    s.apply(pod("g-1", "g", 1));
    s.apply(pod("g-2", "g", 1));
    assert_eq!(s.plan(now()).binds.len(), 3);
}

#[test]
fn pods_may_come_before_their_group() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(pod("g-0", "g", 1));
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    assert!(report(&plan, "g").binding.contains("does not exist"));
    s.apply(group("g", 1));
    assert_eq!(s.plan(now()).binds.len(), 1);
}

#[test]
fn every_task_has_its_own_minimum() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    let tasks =
        |g: &mut serde_json::Value| g["spec"]["minTaskMember"] = json!({"master": 1, "worker": 2});
    s.apply(group_with("g", 3, tasks));
    for i in 0..3 {
        s.apply(task(&format!("g-worker-{i}"), "g", 1, "worker"));
    }
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    assert_eq!(
        report(&plan, "g").binding,
        "0 of 1 of task master members exist"
    );
    s.apply(task("g-master-0", "g", 1, "master"));
    assert_eq!(s.plan(now()).binds.len(), 4);
}

#[test]
fn a_task_that_does_not_fit_holds_the_whole_gang() {
    let mut s = scheduler();
    s.apply(node("n1", 2));
    let tasks =
        |g: &mut serde_json::Value| g["spec"]["minTaskMember"] = json!({"master": 1, "worker": 2});
    s.apply(group_with("g", 3, tasks));
    s.apply(task("g-master-0", "g", 4, "master"));
    for i in 0..2 {
        s.apply(task(&format!("g-worker-{i}"), "g", 1, "worker"));
    }
    let before = s.view();
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    assert_eq!(report(&plan, "g").verdict, WaitReason::NoNodeFits);
    assert_eq!(report(&plan, "g").tasks.len(), 2);
    let mut after = s.view();
    after.queues = before.queues.clone();
    assert_eq!(after, before, "what was tried is given back");
}

#[test]
fn tasks_that_compete_for_the_same_room_are_not_half_placed() {
    let mut s = scheduler();
    s.apply(node("n1", 4));
    let tasks =
        |g: &mut serde_json::Value| g["spec"]["minTaskMember"] = json!({"big": 1, "small": 3});
    s.apply(group_with("g", 4, tasks));
    s.apply(task("big-0", "g", 2, "big"));
    for i in 0..3 {
        s.apply(task(&format!("small-{i}"), "g", 1, "small"));
    }
    let plan = s.plan(now());
    assert!(plan.binds.is_empty());
    assert_eq!(s.view().nodes["n1"].pods, 0);
    assert_eq!(report(&plan, "g").members_placed_possible, 3);
}

#[test]
fn members_beyond_the_minimum_start_as_they_fit() {
    let mut s = scheduler();
    s.apply(node("n1", 4));
    s.apply(group("g", 2));
    for i in 0..6 {
        s.apply(pod(&format!("g-{i}"), "g", 1));
    }
    let plan = s.plan(now());
    let names: Vec<&str> = plan
        .binds
        .iter()
        .map(|bind| bind.pod.name.as_str())
        .collect();
    assert_eq!(names, ["g-0", "g-1", "g-2", "g-3"]);
    let report = report(&plan, "g");
    assert_eq!(
        report.sentence(),
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    );
    assert_eq!(plan.groups[0].phase, PodGroupPhase::Running);
    s.apply(node("n2", 1));
    assert_eq!(
        bound(&s.plan(now())),
        [("g-4".to_owned(), "n2".to_owned())].into()
    );
}

#[test]
fn succeeded_members_count_and_a_lost_one_is_placed_alone() {
    let mut s = scheduler();
    s.apply(node("n1", 4));
    gang(&mut s, "g", 3, 1);
    s.plan(now());
    s.apply(pod_with("g-0", Some("g"), 1, |pod| {
        pod["spec"]["nodeName"] = json!("n1");
        pod["status"] = json!({"phase": "Succeeded"});
    }));
    s.apply(pod_gone("g-1"));
    let plan = s.plan(now());
    assert_eq!(plan.groups[0].phase, PodGroupPhase::Unknown);
    s.apply(pod("g-1", "g", 1));
    let plan = s.plan(now());
    assert_eq!(bound(&plan).keys().collect::<Vec<_>>(), ["g-1"]);
    assert_eq!(plan.groups[0].phase, PodGroupPhase::Running);
}

#[test]
fn a_pod_without_a_group_is_a_gang_of_one() {
    let mut s = scheduler();
    s.apply(node("n1", 1));
    s.apply(lone("a", 1));
    s.apply(lone("b", 1));
    let plan = s.plan(now());
    assert_eq!(bound(&plan), [("a".to_owned(), "n1".to_owned())].into());
    assert_eq!(
        report(&plan, "b").sentence(),
        "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    );
    assert!(plan.groups.is_empty());
    assert_eq!(plan.unscheduled[0].pods[0].name, "b");
}

#[test]
fn planning_again_says_nothing_new() {
    let mut s = scheduler();
    s.apply(node("n1", 2));
    gang(&mut s, "a", 2, 1);
    gang(&mut s, "b", 2, 1);
    assert!(!s.plan(now()).unchanged);
    assert!(s.plan(now()).unchanged);
    // An event that repeats what is known changes nothing either.
    s.apply(node("n1", 2));
    assert!(s.plan(now()).unchanged);
    // Even when everything is looked at again, there is nothing new to say.
    s.apply(queue_with("other", |_| {}));
    let plan = s.plan(now());
    assert!(plan.binds.is_empty() && plan.groups.is_empty() && plan.unscheduled.is_empty());
    assert_eq!(plan.reports.len(), 1);
}

#[test]
fn a_binding_that_failed_is_forgotten_held_and_tried_again() {
    let mut s = scheduler();
    s.apply(node("n1", 2));
    gang(&mut s, "g", 2, 1);
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 2);
    s.forget(&plan.binds[0].pod);
    let later = now() + jiff::SignedDuration::from_secs(1);
    s.hold(&plan.binds[0].group, later);
    let held = s.plan(now());
    assert!(held.binds.is_empty());
    assert_eq!(held.requeue_at, Some(later));
    assert_eq!(held.groups[0].phase, PodGroupPhase::Unknown);
    assert!(s.plan(now()).unchanged);
    let again = s.plan(later);
    assert_eq!(again.binds.len(), 1);
    assert_eq!(again.binds[0].pod, plan.binds[0].pod);
}

#[test]
fn forgetting_a_confirmed_pod_or_another_of_its_name_does_nothing() {
    let mut s = scheduler();
    s.apply(node("n1", 2));
    s.apply(lone("a", 1));
    let bind = s.plan(now()).binds.remove(0);
    s.forget(&PodRef {
        uid: "older".into(),
        ..bind.pod.clone()
    });
    assert_eq!(s.view().nodes["n1"].pods, 1);
    s.apply(pod_with("a", None, 1, |pod| {
        pod["spec"]["nodeName"] = json!("n1")
    }));
    s.forget(&bind.pod);
    assert_eq!(s.view().nodes["n1"].pods, 1);
}

#[test]
fn an_event_from_before_the_binding_does_not_undo_it() {
    let mut s = scheduler();
    s.apply(node("n1", 1));
    s.apply(lone("a", 1));
    assert_eq!(s.plan(now()).binds.len(), 1);
    s.apply(pod_with("a", None, 1, |pod| {
        pod["metadata"]["labels"] = json!({"late": "yes"})
    }));
    s.apply(lone("b", 1));
    assert!(s.plan(now()).binds.is_empty());
    // Another pod of the same name is another pod.
    s.apply(pod_with("a", None, 0, |pod| {
        pod["metadata"]["uid"] = json!("new")
    }));
    assert_eq!(bound(&s.plan(now())).len(), 2);
}

#[test]
fn a_status_that_could_not_be_written_is_said_again() {
    let mut s = scheduler();
    s.apply(node("n1", 2));
    gang(&mut s, "g", 2, 1);
    assert_eq!(s.plan(now()).groups.len(), 1);
    let group = GroupRef {
        namespace: "ns".into(),
        name: "g".into(),
        lone: false,
    };
    s.forget_status(&group);
    assert_eq!(s.plan(now()).groups.len(), 1);
}

#[test]
fn a_status_already_there_is_not_said_again_after_a_restart() {
    let mut s = scheduler();
    s.apply(node("n1", 2));
    gang(&mut s, "g", 3, 1);
    let update = s.plan(now()).groups.remove(0);
    let conditions: Vec<_> = update
        .conditions
        .iter()
        .map(|c| json!({"type": c.kind, "status": if c.status { "True" } else { "False" }, "reason": c.reason, "message": c.message}))
        .collect();
    let mut again = scheduler();
    again.apply(node("n1", 2));
    gang(&mut again, "g", 3, 1);
    again.apply(support::group_with("g", 3, |_| {}));
    let mut fresh = scheduler();
    fresh.apply(node("n1", 2));
    fresh.apply(group_with("g", 3, |g| {
        g["spec"]["queue"] = json!("default");
        g["status"] = json!({"phase": "Inqueue", "conditions": conditions});
    }));
    for i in 0..3 {
        fresh.apply(pod(&format!("g-{i}"), "g", 1));
    }
    assert!(fresh.plan(now()).groups.is_empty());
}

#[test]
fn a_gated_terminating_or_foreign_pod_is_not_placed() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(pod_with("gated", None, 1, |pod| {
        pod["spec"]["schedulingGates"] = json!([{"name": "wait"}])
    }));
    s.apply(pod_with("going", None, 1, |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")
    }));
    s.apply(pod_with("foreign", None, 1, |pod| {
        pod["spec"]["schedulerName"] = json!("other")
    }));
    let plan = s.plan(now());
    assert!(plan.binds.is_empty() && plan.reports.is_empty());
}

#[test]
fn a_pod_with_resource_claims_waits_for_kube_scheduler_and_says_so() {
    let mut s = scheduler();
    s.apply(node("n1", 8));
    s.apply(pod_with("claims", None, 0, |pod| {
        pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": "c"}])
    }));
    let plan = s.plan(now());
    assert!(plan.binds.is_empty() && plan.evictions.is_empty());
    let said = format!("{:?}", plan.reports);
    for words in [
        "pod has resourceClaims, which only kube-scheduler allocates",
        "schedulerName: default-scheduler",
    ] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_pod_being_deleted_keeps_its_room_until_it_is_gone() {
    let mut s = scheduler();
    s.apply(node("n1", 1));
    s.apply(pod_with("old", None, 1, |pod| {
        pod["spec"]["nodeName"] = json!("n1");
        pod["spec"]["schedulerName"] = json!("other");
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }));
    s.apply(lone("new", 1));
    assert!(s.plan(now()).binds.is_empty());
    s.apply(pod_gone("old"));
    assert_eq!(s.plan(now()).binds.len(), 1);
}
