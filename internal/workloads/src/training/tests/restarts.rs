//! Failing replicas: policies, exit codes, backoff limits, waits, lost nodes.

use resources::kinds::JobConditionType::{Failed, Restarting, Running, Succeeded};
use serde_json::json;

use super::world::{World, at, master_and_workers};
use crate::training::Network;

fn running(policy: &str, limit: Option<i32>) -> World {
    let mut spec = master_and_workers(2, policy);
    if let Some(limit) = limit {
        spec["runPolicy"] = json!({"backoffLimit": limit});
    }
    let mut world = World::new(spec);
    world.settle(at(0));
    world.run_all();
    world.settle(at(1));
    world
}

#[test]
fn a_signal_recreates_only_the_failed_replica_at_its_own_index() {
    for code in [128, 130, 137, 143, 255] {
        let mut world = running("ExitCode", None);
        let master = world.pods["demo-master-0"].metadata.uid.clone();
        let lost = world.pods["demo-worker-1"].metadata.uid.clone();
        world.exit("demo-worker-1", code, at(2));
        world.step(at(2));
        assert!(world.holds(Restarting) && !world.holds(Running));
        let message = world.message(Restarting);
        let begin = "PyTorchJob demo is restarting because 1 Worker replica(s) failed: Rank 2 (demo-worker-1) ";
        assert!(
            message.starts_with(begin) && message.contains(&code.to_string()),
            "{message}"
        );
        world.settle(at(2));
        assert_ne!(world.pods["demo-worker-1"].metadata.uid, lost);
        assert_eq!(world.pods["demo-master-0"].metadata.uid, master);
        assert_eq!(world.pods.len(), 3);
        assert!(world.holds(Running) && !world.holds(Restarting));
    }
}

#[test]
fn a_programs_own_exit_code_fails_the_job_at_once() {
    for code in [1, 2, 126, 127] {
        let mut world = running("ExitCode", None);
        world.exit("demo-worker-1", code, at(2));
        world.settle(at(2));
        assert!(world.holds(Failed), "{code}");
        assert!(
            world
                .message(Failed)
                .contains(&format!("Rank 2 (demo-worker-1) exited with code {code}"))
        );
    }
}

#[test]
fn a_failure_without_a_code_is_retryable() {
    let mut world = running("ExitCode", None);
    let before = world.pods["demo-master-0"].metadata.uid.clone();
    world.lose("demo-master-0");
    world.settle(at(2));
    assert_ne!(world.pods["demo-master-0"].metadata.uid, before);
    assert!(!world.holds(Failed));
}

#[test]
fn a_lost_nodes_replicas_come_back_under_every_policy_that_restarts() {
    for policy in ["Always", "OnFailure", "ExitCode"] {
        let mut world = running(policy, Some(5));
        world.lose("demo-worker-0");
        world.settle(at(2));
        assert_eq!(
            world
                .created
                .iter()
                .filter(|name| *name == "demo-worker-0")
                .count(),
            2,
            "{policy}"
        );
        assert!(
            world.job.metadata.annotations.as_ref().unwrap()["muster.io/restarts"]
                .contains("failures")
        );
        let spares = |name: &str| {
            let labels = world.pods[name].metadata.labels.as_ref().unwrap();
            labels.contains_key("muster.io/replaces-lost")
        };
        assert!(spares("demo-worker-0"), "may use spare nodes");
        assert!(!spares("demo-worker-1"));
    }
}

#[test]
fn what_the_platform_ended_is_replaced_under_every_policy_and_charged_to_no_budget() {
    for policy in ["Always", "OnFailure", "ExitCode", "Never"] {
        let mut world = running(policy, Some(0));
        for round in 0..3_i64 {
            let now = at(1000 * (round + 1));
            let before = world.pods["demo-worker-0"].metadata.uid.clone();
            world.lose("demo-worker-0");
            world.settle(now);
            world.settle(at(1000 * (round + 1) + 400));
            assert!(!world.holds(Failed), "{policy}, round {round}");
            assert_ne!(world.pods["demo-worker-0"].metadata.uid, before, "{policy}");
            let record = &world.job.metadata.annotations.as_ref().unwrap()["muster.io/failure"];
            assert!(record.contains(r#""class":"node-lost""#), "{record}");
            assert!(record.contains(r#""charged":false"#), "{record}");
        }
        // The program's own failure is charged as ever.
        world.run_all();
        world.exit("demo-worker-0", 137, at(9000));
        world.settle(at(9000));
        assert!(world.holds(Failed), "{policy}");
    }
}

#[test]
fn a_pod_that_its_node_cannot_start_counts_against_no_job_under_any_policy() {
    for policy in ["Always", "OnFailure", "ExitCode", "Never"] {
        let mut world = running(policy, Some(0));
        for round in 0..3_i64 {
            let now = at(1000 * (round + 1));
            let before = world.pods["demo-worker-0"].metadata.uid.clone();
            world.cannot_start("demo-worker-0");
            world.settle(now);
            // Later failures wait longer; all of these waits are over by the next round.
            world.settle(at(1000 * (round + 1) + 400));
            assert!(!world.holds(Failed), "{policy}, round {round}");
            assert_ne!(world.pods["demo-worker-0"].metadata.uid, before, "{policy}");
        }
    }
}

#[test]
fn restarts_in_place_count_against_the_limit() {
    let mut world = running("OnFailure", Some(3));
    world.restarted("demo-worker-0", 1);
    world.restarted("demo-worker-1", 1);
    world.settle(at(2));
    assert!(!world.holds(Failed));
    world.restarted("demo-worker-1", 2);
    world.settle(at(3));
    assert_eq!(
        world.message(Failed),
        "Job demo has failed because it has reached the specified backoff limit"
    );
    assert!(world.pods.is_empty(), "what still ran was stopped");
}

#[test]
fn at_limit_zero_the_first_restart_is_one_too_many() {
    let mut world = running("OnFailure", Some(0));
    world.settle(at(2));
    assert!(!world.holds(Failed));
    world.restarted("demo-worker-0", 1);
    world.settle(at(3));
    assert!(world.holds(Failed));

    let mut world = running("ExitCode", Some(0));
    world.exit("demo-worker-0", 137, at(2));
    world.settle(at(2));
    assert!(world.holds(Failed));
    assert_eq!(world.created.len(), 3, "nothing was recreated");
}

#[test]
fn failures_count_against_the_limit_even_when_their_pods_are_gone() {
    let mut world = running("ExitCode", Some(2));
    for round in 0..2_i64 {
        let now = at(1000 * (round + 1));
        world.exit("demo-worker-1", 137, now);
        world.settle(now);
        world.settle(at(1000 * (round + 1) + 400));
        assert!(!world.holds(Failed), "failure {round} is answered");
        world.run_all();
    }
    world.exit("demo-worker-1", 137, at(5000));
    world.settle(at(5000));
    assert!(world.holds(Failed));
    assert_eq!(world.created.len(), 3 + 2);
}

#[test]
fn restarts_of_a_pod_stay_counted_once_it_is_replaced() {
    let mut world = running("OnFailure", Some(4));
    world.restarted("demo-worker-1", 2);
    world.settle(at(2));
    world.exit("demo-worker-1", 137, at(3));
    world.settle(at(3));
    world.run_all();
    world.settle(at(4));
    assert!(!world.holds(Failed), "two restarts and one failure");
    world.restarted("demo-worker-1", 2);
    world.settle(at(5));
    assert!(world.holds(Failed), "four restarts and one failure");
}

#[test]
fn the_same_failure_is_counted_once() {
    let mut world = running("ExitCode", Some(1));
    world.slow_deletion = true;
    world.exit("demo-worker-1", 137, at(2));
    for second in 2..6 {
        world.step(at(second));
    }
    assert!(!world.holds(Failed));
    world.finish_deletions();
    world.settle(at(7));
    assert!(!world.holds(Failed));
}

#[test]
fn replicas_that_keep_failing_wait_longer_each_time() {
    let mut world = running("ExitCode", None);
    let mut now = 10;
    for wait in [0, 10, 20, 40, 80, 160, 300, 300] {
        world.phase("demo-worker-1", "Running");
        world.exit("demo-worker-1", 137, at(now));
        let before = world.created.len();
        if wait > 0 {
            world.settle(at(now + wait - 1));
            assert_eq!(world.created.len(), before, "not before {wait} s");
            assert_eq!(
                world.ask(at(now + wait - 1)).requeue_at,
                Some(at(now + wait))
            );
        }
        world.settle(at(now + wait));
        assert_eq!(world.created.len(), before + 1, "after {wait} s");
        now += wait + 1;
    }
}

#[test]
fn a_gang_that_failed_as_a_whole_restarts_with_another_port() {
    let mut world = World::new(master_and_workers(2, "OnFailure"));
    world.network = Network::HostShared {
        ports: 20_000..=20_009,
    };
    world.taken.insert(20_001);
    world.settle(at(0));
    assert_eq!(
        world.variable("demo-master-0", "MASTER_PORT").as_deref(),
        Some("20000")
    );
    world.run_all();
    world.settle(at(1));
    for pod in ["demo-master-0", "demo-worker-0", "demo-worker-1"] {
        world.lose(pod);
    }
    world.settle(at(2));
    for pod in ["demo-master-0", "demo-worker-0", "demo-worker-1"] {
        assert_eq!(
            world.variable(pod, "MASTER_PORT").as_deref(),
            Some("20002"),
            "{pod}"
        );
    }
    assert_eq!(world.created.len(), 6);
}

#[test]
fn a_master_that_is_done_outweighs_a_worker_that_failed() {
    let mut world = running("Never", None);
    world.exit("demo-master-0", 0, at(2));
    world.exit("demo-worker-0", 1, at(2));
    world.settle(at(2));
    assert!(world.holds(Succeeded) && !world.holds(Failed));
}

#[test]
fn an_annotation_that_cannot_be_read_counts_as_none() {
    let mut world = running("ExitCode", Some(1));
    world
        .job
        .metadata
        .annotations
        .get_or_insert_default()
        .insert("muster.io/restarts".to_owned(), "{broken".to_owned());
    world.exit("demo-worker-1", 137, at(2));
    world.settle(at(2));
    assert!(!world.holds(Failed));
    let text = &world.job.metadata.annotations.as_ref().unwrap()["muster.io/restarts"];
    assert_eq!(text, r#"{"worker":{"1":{"failures":1}}}"#);
}
