//! Failed Jobs: the failure policy's rules, restarts, and what counts towards their limits.

use resources::failure::FailureAction;
use resources::jobset as labels;
use serde_json::json;

use super::{World, holds_in};
use crate::action::NoteKind;

#[test]
fn without_a_failure_policy_a_failed_job_fails_the_job_set_and_the_cause_is_told() {
    let mut world = World::two(json!({}));
    world.settle();
    world.all_ready();
    world.settle();
    world.second = 5;
    world.end_pod("js-worker-1", 1, json!({"code": 3, "message": "no shard"}));
    world.fail(
        "js-worker-1",
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    );
    world.settle();
    let (_, reason, message) = world.condition("Failed").unwrap();
    assert_eq!(reason, "FailedJobs");
    assert_eq!(
        message,
        "jobset failed due to one or more job failures (first failed job: js-worker-1): \
         Rank 5 (js-worker-1-1) exited with code 3"
    );
    let record = world.record().unwrap();
    assert_eq!(
        (record.rank, record.action, record.charged),
        (Some(5), Some(FailureAction::Fail), true)
    );
    assert_eq!(world.names(), ["js-worker-1"]);
    assert!(world.group.is_none());
    assert_eq!(world.status().terminal_state.as_deref(), Some("Failed"));
}

#[test]
fn a_restart_creates_all_jobs_anew_once_the_pods_before_have_ended_and_counts() {
    let mut world = World::two(json!({"failurePolicy": {"maxRestarts": 1}}));
    world.settle();
    world.all_ready();
    world.settle();
    world.second = 5;
    world.fail("js-leader-0", "BackoffLimitExceeded", "limit");
    world.settle();
    assert_eq!(world.status().restarts, 1);
    assert_eq!(world.status().restarts_count_towards_max, Some(1));
    let (status, reason, message) = world.condition("RestartingJobSet").unwrap();
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("True", "DefaultFailurePolicy")
    );
    assert!(
        message.starts_with(
            "applying RestartJobSet failure policy action (first failed job: js-leader-0)"
        ),
        "{message}"
    );
    // The pods of the first run still end.
    assert!(world.names().is_empty());
    assert_eq!(
        world.status().message.as_deref(),
        Some("The pods of the run before are ending.")
    );
    assert!(world.decide().requeue_at.is_some());
    world.collect();
    world.settle();
    assert_eq!(world.names().len(), 3);
    let restarted = world.jobs["js-worker-0"].metadata.labels.as_ref().unwrap();
    assert_eq!(restarted[labels::RESTART_ATTEMPT], "1");
    world.all_ready();
    world.settle();
    let (status, reason, _) = world.condition("RestartingJobSet").unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "JobsReady"));
    world.fail("js-worker-1", "BackoffLimitExceeded", "limit");
    world.settle();
    let (_, reason, _) = world.condition("Failed").unwrap();
    assert_eq!(reason, "ReachedMaxRestarts");
    let warned = world
        .events
        .iter()
        .filter(|event| event.kind == NoteKind::Warning)
        .count();
    assert_eq!(warned, 2, "{:?}", world.events);
}

#[test]
fn the_first_rule_that_matches_decides() {
    let rules = json!([
        {"name": "code", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"],
            "onJobFailureMessagePatterns": ["exit code (3|4)\\b"]},
        {"name": "leader", "action": "RestartJobSetAndIgnoreMaxRestarts", "targetReplicatedJobs": ["leader"]},
        {"name": "worker", "action": "RestartJob", "targetReplicatedJobs": ["worker"]},
    ]);
    for (job, reason, message, wanted) in [
        (
            "js-worker-0",
            "PodFailurePolicy",
            "failed with exit code 4",
            (0, None, "FailJobSetFailurePolicyAction"),
        ),
        (
            "js-worker-0",
            "PodFailurePolicy",
            "failed with exit code 41",
            (0, Some(1), ""),
        ),
        (
            "js-leader-0",
            "BackoffLimitExceeded",
            "failed with exit code 3",
            (1, None, ""),
        ),
        (
            "js-worker-1",
            "BackoffLimitExceeded",
            "limit",
            (0, Some(1), ""),
        ),
    ] {
        let mut world = World::two(json!({"failurePolicy": {"maxRestarts": 3, "rules": rules}}));
        world.settle();
        world.all_ready();
        world.settle();
        world.fail(job, reason, message);
        world.settle();
        world.collect();
        world.settle();
        let (restarts, alone, failed) = wanted;
        assert_eq!(world.status().restarts, restarts, "{job} {message}");
        let counts = &world.status().replicated_jobs_status[1];
        let sum = counts
            .job_restarts
            .as_ref()
            .map(|all| all.iter().sum::<i32>());
        assert_eq!(sum, alone, "{job} {message}");
        let found = world.condition("Failed").map(|(_, reason, _)| reason);
        assert_eq!(found.unwrap_or_default(), failed);
        if alone.is_some() {
            // Only this Job is another one.
            assert_eq!(world.names().len(), 3);
            let anew = world.jobs[job].metadata.labels.as_ref().unwrap();
            assert_eq!(
                (
                    anew[labels::JOB_RESTART_ATTEMPT].as_str(),
                    anew[labels::RESTART_ATTEMPT].as_str()
                ),
                ("1", "0")
            );
            assert!(world.jobs[job].status.is_none());
            assert!(world.jobs["js-leader-0"].status.is_some());
        }
        if restarts > 0 {
            assert_eq!(world.status().restarts_count_towards_max, None);
        }
    }
}

#[test]
fn what_the_platform_ended_counts_towards_no_limit() {
    let lost = json!({"reason": "NodeLost", "message": "The node has not reported for 40 s."});
    for policy in [json!({}), json!({"failurePolicy": {"maxRestarts": 0}})] {
        let mut world = World::two(policy);
        world.settle();
        world.all_ready();
        world.settle();
        for run in 1..=3 {
            world.second += 100;
            world.end_pod("js-worker-0", 0, lost.clone());
            world.settle();
            // Another rank fails because of it.
            world.second += 3;
            world.end_pod("js-leader-0", 0, json!({"code": 1}));
            world.fail("js-leader-0", "BackoffLimitExceeded", "limit");
            world.settle();
            world.collect();
            world.settle();
            assert_eq!(
                (
                    world.status().restarts,
                    world.status().restarts_count_towards_max
                ),
                (run, None)
            );
            assert!(world.condition("Failed").is_none());
            world.all_ready();
            world.settle();
        }
        // The program's own failure in the next run does count.
        world.second += 100;
        world.end_pod("js-leader-0", 0, json!({"code": 1}));
        world.fail("js-leader-0", "BackoffLimitExceeded", "limit");
        world.settle();
        assert!(holds_in(&world, "Failed"));
    }
}
