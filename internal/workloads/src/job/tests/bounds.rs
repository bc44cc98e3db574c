//! Bounds on what a Job creates and on what it costs.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::JobStatus;
use serde_json::json;

use super::{World, at};

#[test]
fn a_job_has_no_more_waiting_pods_than_the_bound_whatever_its_parallelism() {
    let most = usize::try_from(super::super::WAITING_MAX).unwrap();
    for (mode, parallelism) in [("NonIndexed", i32::MAX), ("Indexed", 100_000)] {
        let mut world = World::new(json!({
            "completionMode": mode, "parallelism": parallelism, "completions": i32::MAX,
        }));
        let mut steps = 0;
        while !world.step(at(0)).actions.is_empty() {
            steps += 1;
            assert!(steps < 100, "{mode}: pods are made without end");
        }
        assert_eq!(world.pods.len(), most, "{mode}");
        // A pod that has a node no longer waits: another is created for each.
        for name in world.live().into_iter().take(3) {
            world
                .pods
                .get_mut(&name)
                .unwrap()
                .spec
                .as_mut()
                .unwrap()
                .node_name = Some("n".into());
        }
        world.settle(at(1));
        assert_eq!(world.pods.len(), most + 3, "{mode}");
    }
}

#[test]
fn a_job_whose_pods_are_a_gang_has_as_many_waiting_pods_as_the_gang_may_have() {
    let most = usize::try_from(resources::numbers::GANG_MEMBERS_MAX).unwrap();
    for (parallelism, made) in [(5_000, 5_000), (i32::MAX, most)] {
        let mut world = World::new(json!({"parallelism": parallelism}));
        let notes = [(resources::names::GROUP_NAME.to_owned(), "gang".to_owned())];
        let template = &mut world.job.spec.as_mut().unwrap().template;
        let meta = template.metadata.get_or_insert_default();
        meta.annotations = Some(BTreeMap::from(notes));
        let mut steps = 0;
        while !world.step(at(0)).actions.is_empty() {
            steps += 1;
            assert!(steps < 100, "pods are made without end");
        }
        assert_eq!(world.pods.len(), made);
    }
}

#[test]
fn a_job_with_extreme_numbers_costs_as_much_as_its_text() {
    let all = "0-4294967295";
    for completions in [0, 1, i32::MAX] {
        for policy in [
            json!(null),
            json!({"rules": [{"succeededCount": i32::MAX}]}),
        ] {
            let mut world = World::new(json!({
                "completionMode": "Indexed", "parallelism": 100_000, "completions": completions,
                "backoffLimitPerIndex": i32::MAX, "maxFailedIndexes": i32::MAX,
                "ttlSecondsAfterFinished": i32::MAX, "activeDeadlineSeconds": i64::MAX,
                "successPolicy": policy,
            }));
            let stored = json!({"succeeded": all, "failed": "", "failedIndexes": all});
            let notes = world.job.metadata.annotations.get_or_insert_default();
            notes.insert(super::super::ATTEMPTS.to_owned(), stored.to_string());
            let status = JobStatus {
                completed_indexes: Some(all.to_owned()),
                ..JobStatus::default()
            };
            world.job.status = Some(status);
            let outcome = world.ask(at(0));
            assert!(outcome.actions.is_empty(), "{completions}");
        }
    }
}

#[test]
fn no_two_attempts_share_a_name() {
    let mut world = World::new(json!({"parallelism": 500, "completions": 100_000}));
    for _ in 0..4 {
        world.step(at(0));
        for name in world.live() {
            world.exit(&name, 0, at(0));
        }
    }
    assert_eq!(world.pods.len(), 2000);
}
