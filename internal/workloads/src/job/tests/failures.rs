//! Failed pods: limits, waits, restarts in place, and the policies about failure and success.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};
use serde_json::json;

use super::{World, at};

#[test]
fn failures_beyond_the_limit_fail_the_job() {
    let mut world = World::new(json!({"backoffLimit": 1}));
    let mut now = 0;
    let mut last = String::new();
    for _ in 0..2 {
        world.settle(at(now));
        let name = world.live()[0].clone();
        world.exit(&name, 1, at(now));
        world.settle(at(now));
        last = name;
        now += 1000;
    }
    world.settle(at(now));
    assert_eq!(
        world.conditions(),
        [
            "FailureTarget=True(BackoffLimitExceeded)",
            "Failed=True(BackoffLimitExceeded)"
        ]
    );
    assert_eq!((world.created, world.status().failed), (2, Some(2)));
    assert!(world.status().completion_time.is_none());
    let message = format!(
        "Job has reached the specified backoff limit: Pod {last} exited with code 1 after 2 attempts"
    );
    for condition in world.status().conditions.iter().flatten() {
        assert_eq!(condition.message.as_deref(), Some(message.as_str()));
    }
}

#[test]
fn failures_stay_counted_when_their_pods_are_gone() {
    let mut world = World::new(json!({"backoffLimit": 2}));
    for round in 0..3_i64 {
        world.settle(at(round * 1000));
        let name = world.live()[0].clone();
        world.exit(&name, 1, at(round * 1000));
        world.settle(at(round * 1000));
        world.pods.clear();
    }
    world.settle(at(9000));
    assert!(world.holds("Failed"));
    assert_eq!(world.status().failed, Some(3));
}

#[test]
fn a_failed_job_waits_for_its_other_pods_to_stop() {
    let mut world = World::new(json!({"parallelism": 2, "completions": 2, "backoffLimit": 0}));
    world.slow_deletion = true;
    world.settle(at(0));
    let names = world.live();
    world.run(&names[1]);
    world.exit(&names[0], 1, at(1));
    world.settle(at(1));
    assert_eq!(
        world.conditions(),
        ["FailureTarget=True(BackoffLimitExceeded)"]
    );
    assert_eq!(world.status().terminating, Some(1));
    world.exit(&names[1], 143, at(2));
    world.settle(at(2));
    assert!(world.holds("Failed"));
    assert_eq!(
        world.status().failed,
        Some(1),
        "what was stopped did not fail"
    );
}

#[test]
fn replacements_wait_longer_after_each_failure_in_a_row() {
    let mut world = World::new(json!({"backoffLimit": 10}));
    let mut now = 0;
    for wait in [10, 20, 40, 80, 160, 320, 600, 600] {
        world.settle(at(now));
        let name = world.live()[0].clone();
        world.exit(&name, 1, at(now));
        world.settle(at(now + wait - 1));
        assert!(world.live().is_empty(), "not before {wait} s");
        now += wait;
    }
}

#[test]
fn restarts_in_place_count_under_on_failure() {
    let mut world = World::new(json!({"backoffLimit": 2, "template": {"spec": {
        "restartPolicy": "OnFailure", "containers": [{"name": "main"}],
    }}}));
    world.settle(at(0));
    let name = world.live()[0].clone();
    for (restarts, failed) in [(1, false), (2, true)] {
        world.run(&name);
        world
            .pods
            .get_mut(&name)
            .unwrap()
            .status
            .as_mut()
            .unwrap()
            .container_statuses = Some(vec![ContainerStatus {
            restart_count: restarts,
            ..ContainerStatus::default()
        }]);
        world.step(at(1));
        assert_eq!(world.holds("FailureTarget"), failed);
    }
    world.settle(at(2));
    assert!(world.pods.is_empty() && world.holds("Failed"));
}

#[test]
fn the_failure_policy_decides_the_effect_of_a_failed_pod() {
    let policy = json!({"rules": [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]});
    let mut world = World::new(json!({"backoffLimit": 0, "podFailurePolicy": policy}));
    world.settle(at(0));
    let name = world.live()[0].clone();
    world.exit(&name, 137, at(1));
    world
        .pods
        .get_mut(&name)
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .conditions = Some(vec![PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        ..PodCondition::default()
    }]);
    world.settle(at(100));
    assert!(!world.holds("Failed"), "a disruption is no failure");
    let name = world.live()[0].clone();
    world.exit(&name, 42, at(101));
    world.settle(at(101));
    assert_eq!(world.conditions()[1], "Failed=True(PodFailurePolicy)");
    let message = world.status().conditions.as_ref().unwrap()[1]
        .message
        .clone()
        .unwrap();
    assert_eq!(
        message,
        format!(
            "Container main for pod team/{name} failed with exit code 42 matching FailJob rule at index 0"
        )
    );
}

#[test]
fn what_the_platform_ended_is_charged_to_no_budget_unless_a_rule_says_so() {
    let lose = |world: &mut World, reason: &str, now: i64| {
        let name = world.live()[0].clone();
        world.exit(&name, 128, at(now));
        let status = world.pods.get_mut(&name).unwrap().status.as_mut().unwrap();
        status.reason = Some(reason.to_owned());
        let disrupted = json!([{"type": "DisruptionTarget", "status": "True", "reason": reason}]);
        status.conditions = serde_json::from_value(disrupted).unwrap();
        world.settle(at(now + 700));
        name
    };
    let mut world = World::new(json!({"backoffLimit": 0}));
    world.settle(at(0));
    for (round, reason) in [(1, "NodeUnfit"), (2, "NodeLost"), (3, "Evicted")] {
        let name = lose(&mut world, reason, 1000 * round);
        assert!(!world.holds("Failed"), "{reason}");
        assert_ne!(world.live(), [name], "another pod is in its place");
    }
    let record = &world.job.metadata.annotations.as_ref().unwrap()["muster.io/failure"];
    assert!(record.contains(r#""class":"evicted""#) && record.contains(r#""charged":false"#));
    let rule = json!({"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]});
    let mut world = World::new(json!({"podFailurePolicy": {"rules": [rule]}}));
    world.settle(at(0));
    lose(&mut world, "NodeLost", 1000);
    assert!(world.holds("Failed"));
}

#[test]
fn indexes_may_be_judged_one_by_one() {
    let mut world = World::new(json!({
        "completionMode": "Indexed", "parallelism": 2, "completions": 2, "backoffLimitPerIndex": 0,
    }));
    world.settle(at(0));
    let (zero, one) = (world.with_index(0), world.with_index(1));
    world.exit(&zero, 1, at(1));
    world.settle(at(2000));
    assert!(!world.holds("Failed"));
    assert_eq!(world.status().failed_indexes.as_deref(), Some("0"));
    world.exit(&one, 0, at(2001));
    world.settle(at(2001));
    assert_eq!(world.conditions()[1], "Failed=True(FailedIndexes)");
}

#[test]
fn a_success_policy_ends_the_job_early() {
    let mut world = World::new(json!({
        "completionMode": "Indexed", "parallelism": 3, "completions": 3,
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
    }));
    world.settle(at(0));
    let leader = world.with_index(0);
    world.exit(&leader, 0, at(1));
    world.settle(at(1));
    assert_eq!(
        world.conditions(),
        [
            "SuccessCriteriaMet=True(SuccessPolicy)",
            "Complete=True(SuccessPolicy)"
        ]
    );
    assert_eq!(world.pods.len(), 1, "the others were stopped");
}
