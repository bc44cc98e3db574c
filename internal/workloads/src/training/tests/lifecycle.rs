//! A job's life cycle: creation, suspension and resumption, deadline, end, and cleanup.

use resources::kinds::JobConditionType::{Failed, Running, Succeeded, Suspended};
use serde_json::json;

use super::world::{World, at, master_and_workers, replica};

fn with_policy(policy: serde_json::Value) -> World {
    let mut spec = master_and_workers(2, "Never");
    spec["runPolicy"] = policy;
    World::new(spec)
}

#[test]
fn a_job_is_created_runs_and_succeeds_with_its_master() {
    let mut world = World::new(master_and_workers(2, "OnFailure"));
    world.settle(at(0));
    assert_eq!(world.conditions(), ["Created=True(PyTorchJobCreated)"]);
    assert_eq!(world.status().start_time.as_ref().unwrap().0, at(0));

    world.run_all();
    world.settle(at(10));
    assert_eq!(
        world.conditions(),
        [
            "Created=True(PyTorchJobCreated)",
            "Running=True(PyTorchJobRunning)"
        ]
    );
    let replicas = serde_json::to_value(&world.status().replica_statuses).unwrap();
    assert_eq!(replicas["Worker"]["active"], 2);
    assert_eq!(
        replicas["Worker"]["selector"],
        "training.kubeflow.org/job-name=demo,training.kubeflow.org/operator-name=pytorchjob-controller,\
         training.kubeflow.org/replica-type=worker"
    );

    world.exit("demo-master-0", 0, at(20));
    world.settle(at(21));
    assert_eq!(
        world.conditions(),
        [
            "Created=True(PyTorchJobCreated)",
            "Running=False(PyTorchJobRunning)",
            "Succeeded=True(PyTorchJobSucceeded)"
        ]
    );
    assert_eq!(
        world.message(Succeeded),
        "PyTorchJob demo is successfully completed."
    );
    assert_eq!(world.status().completion_time.as_ref().unwrap().0, at(21));
    let replicas = serde_json::to_value(&world.status().replica_statuses).unwrap();
    assert_eq!(
        replicas["Worker"]["succeeded"], 2,
        "who was active counts as done"
    );
    assert!(world.group.is_none(), "the gang has no more use");
    assert_eq!(world.pods.len(), 3, "cleanPodPolicy None keeps pods");
}

#[test]
fn without_a_master_all_workers_have_to_succeed() {
    let mut world = World::new(json!({"pytorchReplicaSpecs": {"Worker": replica(2, "OnFailure")}}));
    world.settle(at(0));
    world.run_all();
    world.exit("demo-worker-0", 0, at(5));
    world.settle(at(5));
    assert!(world.holds(Running) && !world.holds(Succeeded));
    world.exit("demo-worker-1", 0, at(6));
    world.settle(at(6));
    assert!(world.holds(Succeeded));
}

#[test]
fn a_failed_replica_fails_a_job_that_never_restarts() {
    let mut world = with_policy(json!({}));
    world.settle(at(0));
    world.run_all();
    world.settle(at(1));
    world.exit("demo-worker-1", 1, at(2));
    world.settle(at(3));
    assert!(world.holds(Failed));
    assert_eq!(
        world.message(Failed),
        "PyTorchJob demo is failed because 1 Worker replica(s) failed: Rank 2 (demo-worker-1) exited with code 1."
    );
    assert!(!world.holds(Running));
}

#[test]
fn an_end_is_final() {
    let mut world = with_policy(json!({}));
    world.settle(at(0));
    world.run_all();
    world.exit("demo-worker-1", 1, at(2));
    world.settle(at(3));
    let ended = world.job.clone();
    world.exit("demo-master-0", 0, at(4));
    world.job.spec.run_policy.suspend = Some(true);
    world.settle(at(5));
    assert_eq!(world.job.status, ended.status);
}

#[test]
fn the_clean_pod_policy_decides_which_pods_go() {
    // The master succeeds; a worker runs, another is bound and waits on its node, a third waits for
    // a node.
    for (policy, left) in [
        (
            "None",
            vec!["demo-master-0", "demo-worker-0", "demo-worker-1"],
        ),
        ("Running", vec!["demo-master-0"]),
        ("All", vec![]),
    ] {
        let mut spec = master_and_workers(3, "Never");
        spec["runPolicy"] = json!({"cleanPodPolicy": policy});
        let mut world = World::new(spec);
        world.settle(at(0));
        world.phase("demo-worker-0", "Running");
        world.phase("demo-worker-1", "Pending");
        world.exit("demo-master-0", 0, at(3));
        world.settle(at(4));
        assert_eq!(world.pod_names(), left, "{policy}");
        assert_eq!(
            world.services.keys().collect::<Vec<_>>(),
            left,
            "services go with their pods"
        );
    }
}

#[test]
fn a_job_out_of_time_fails_and_stops_whatever_the_policy() {
    let mut world = with_policy(json!({"activeDeadlineSeconds": 60}));
    world.settle(at(0));
    world.run_all();
    let outcome = world.step(at(10));
    assert_eq!(outcome.requeue_at, Some(at(60)));
    world.exit("demo-worker-0", 0, at(20));
    world.settle(at(59));
    assert!(!world.holds(Failed));
    world.settle(at(60));
    assert_eq!(
        world.message(Failed),
        "Job demo has failed because it was active longer than specified deadline"
    );
    assert_eq!(
        world.pod_names(),
        ["demo-worker-0"],
        "what had ended keeps its logs"
    );
    assert_eq!(world.status().completion_time.as_ref().unwrap().0, at(60));
}

#[test]
fn a_finished_job_goes_after_its_time_to_live() {
    let mut world = with_policy(json!({"ttlSecondsAfterFinished": 30}));
    world.settle(at(0));
    world.run_all();
    world.exit("demo-master-0", 0, at(5));
    let outcome = world.step(at(5));
    assert_eq!(outcome.requeue_at, Some(at(35)));
    let outcome = world.step(at(34));
    assert!(!world.job_deleted);
    assert_eq!(outcome.requeue_at, Some(at(35)));
    world.step(at(35));
    assert!(world.job_deleted);
}

#[test]
fn a_job_to_be_deleted_at_once_first_shows_how_it_ended() {
    let mut world = with_policy(json!({"ttlSecondsAfterFinished": 0}));
    world.settle(at(0));
    world.exit("demo-master-0", 0, at(5));
    let outcome = world.step(at(5));
    assert!(!world.job_deleted && world.holds(Succeeded));
    assert_eq!(outcome.requeue_at, Some(at(5)));
    world.step(at(5));
    assert!(world.job_deleted);
}

#[test]
fn a_held_job_gives_everything_back_and_a_resumed_one_starts_its_clock_anew() {
    let mut world = with_policy(json!({"activeDeadlineSeconds": 60}));
    world.settle(at(0));
    world.run_all();
    world.settle(at(1));

    world.job.spec.run_policy.suspend = Some(true);
    world.settle(at(50));
    assert!(world.pods.is_empty() && world.services.is_empty() && world.group.is_none());
    assert_eq!(
        world.conditions(),
        [
            "Created=True(PyTorchJobCreated)",
            "Running=False(PyTorchJobSuspended)",
            "Suspended=True(PyTorchJobSuspended)"
        ]
    );
    assert_eq!(world.message(Suspended), "PyTorchJob demo is suspended.");
    world.settle(at(500));
    assert!(
        !world.holds(Failed),
        "no deadline runs while the job is held"
    );

    world.job.spec.run_policy.suspend = Some(false);
    world.settle(at(1000));
    assert_eq!(world.pods.len(), 3);
    assert_eq!(world.status().start_time.as_ref().unwrap().0, at(1000));
    assert_eq!(
        world.conditions().last().unwrap(),
        "Suspended=False(PyTorchJobResumed)"
    );
    world.run_all();
    world.settle(at(1001));
    assert_eq!(
        world.conditions().last().unwrap(),
        "Running=True(PyTorchJobRunning)"
    );
}

#[test]
fn a_job_submitted_held_starts_nothing_until_it_is_resumed() {
    let mut world = with_policy(json!({"suspend": true}));
    world.settle(at(0));
    assert!(world.pods.is_empty() && world.group.is_none());
    assert!(world.status().start_time.is_none());
    world.job.spec.run_policy.suspend = None;
    world.settle(at(9));
    assert_eq!(world.pods.len(), 3);
    assert_eq!(world.status().start_time.as_ref().unwrap().0, at(9));
}

#[test]
fn pods_that_are_still_stopping_are_waited_for() {
    let mut world = with_policy(json!({}));
    world.settle(at(0));
    world.run_all();
    world.settle(at(1));
    world.slow_deletion = true;
    world.job.spec.run_policy.suspend = Some(true);
    world.settle(at(2));
    world.job.spec.run_policy.suspend = Some(false);
    world.settle(at(3));
    assert_eq!(
        world.created.len(),
        3,
        "no second pod beside a stopping one"
    );
    // Stopped by a signal, so not a failure of the program.
    world.exit("demo-worker-0", 143, at(4));
    world.settle(at(4));
    assert!(!world.holds(Failed));
    world.finish_deletions();
    world.settle(at(5));
    assert_eq!(world.created.len(), 6);
}

#[test]
fn a_job_being_deleted_is_left_to_the_collector() {
    let mut world = with_policy(json!({}));
    world.settle(at(0));
    world.pods.clear();
    world.job.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
    assert!(world.ask(at(2)).actions.is_empty());
}

#[test]
fn a_stored_job_of_more_pods_than_a_gang_may_have_fails_and_makes_none() {
    let elastic = |min: i64| {
        let mut spec = json!({"pytorchReplicaSpecs": {"Worker": replica(1, "Never")}});
        spec["elasticPolicy"] = json!({"minReplicas": min, "maxReplicas": i32::MAX});
        spec
    };
    let cases = [
        (
            master_and_workers(2_147_483_647, "Never"),
            Some("2147483648 pods"),
        ),
        (master_and_workers(20_000, "Never"), Some("20001 pods")),
        (elastic(20_001), Some("20001 pods")),
        (elastic(1), None),
    ];
    for (spec, says) in cases {
        let mut world = World::new(spec);
        let outcome = world.step(at(0));
        let Some(says) = says else {
            assert!(!world.holds(Failed));
            continue;
        };
        assert!(outcome.actions.is_empty());
        assert!(world.holds(Failed), "{:?}", world.conditions());
        let message = world.message(Failed);
        assert!(
            message.contains(says) && message.contains("at most 20000"),
            "{message}"
        );
        let again = world.step(at(1));
        assert!(again.actions.is_empty() && again.events.is_empty());
    }
}

#[test]
fn numbers_at_their_ends_neither_panic_nor_end_a_job_early() {
    for number in [i64::from(i32::MAX), i64::MAX] {
        let small = number.min(i64::from(i32::MAX));
        let mut world = with_policy(json!({
            "activeDeadlineSeconds": number, "ttlSecondsAfterFinished": small,
            "backoffLimit": small,
            "schedulingPolicy": {"minAvailable": small, "scheduleTimeoutSeconds": small},
        }));
        world.settle(at(0));
        assert_eq!(world.pods.len(), 3, "{number}");
        world.run_all();
        world.exit("demo-master-0", 0, at(20));
        world.settle(at(21));
        assert!(world.holds(Succeeded) && !world.job_deleted, "{number}");
    }
}
