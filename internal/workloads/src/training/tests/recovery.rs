//! Jobs with `muster.io/on-failure`: which ranks start anew, in which attempt, on which nodes, and for how long.

use resources::kinds::JobConditionType::{Failed, Restarting, Running};
use serde_json::{Value, json};

use super::world::{World, at, master_and_workers};
use crate::training::Network;

const ALL: [&str; 3] = ["demo-master-0", "demo-worker-0", "demo-worker-1"];

fn running(policy: &str, limit: Option<i32>) -> World {
    let mut spec = master_and_workers(2, "OnFailure");
    if let Some(limit) = limit {
        spec["runPolicy"] = json!({"backoffLimit": limit});
    }
    let mut world = World::new(spec);
    world.network = Network::HostShared {
        ports: 20_000..=20_009,
    };
    let annotations = world.job.metadata.annotations.get_or_insert_default();
    annotations.insert("muster.io/on-failure".to_owned(), policy.to_owned());
    world.settle(at(0));
    world.run_all();
    world.settle(at(1));
    world
}

fn uids(world: &World) -> Vec<Option<String>> {
    world
        .pods
        .values()
        .map(|pod| pod.metadata.uid.clone())
        .collect()
}

fn annotation(world: &World, name: &str) -> Value {
    let annotations = world.job.metadata.annotations.as_ref().unwrap();
    serde_json::from_str(&annotations[name]).unwrap()
}

/// The pod's program printed this before it ended.
fn said(world: &mut World, pod: &str, message: &str) {
    let status = world.pods.get_mut(pod).unwrap().status.as_mut().unwrap();
    let container = &mut status.container_statuses.as_mut().unwrap()[0];
    let state = container.state.as_mut().unwrap();
    state.terminated.as_mut().unwrap().message = Some(message.to_owned());
}

#[test]
fn a_restart_of_the_gang_ends_all_ranks_before_the_next_attempt_meets_elsewhere() {
    let mut world = running("default=restart-gang", None);
    for pod in ALL {
        let spec = world.pods[pod].spec.as_ref().unwrap();
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        assert_eq!(world.variable(pod, "MUSTER_ATTEMPT").as_deref(), Some("0"));
    }
    let first = world.variable("demo-master-0", "MASTER_PORT");
    world.slow_deletion = true;
    world.exit("demo-worker-0", 137, at(10));
    world.settle(at(10));
    assert!(world.holds(Restarting));
    let sentence = "Rank 1 (demo-worker-0) was killed by SIGKILL (exit code 137)";
    assert_eq!(
        world.message(Restarting),
        format!("PyTorchJob demo is restarting all ranks (restart 1 of 6): {sentence}.")
    );
    // Two are gone, one takes its time: nothing of the new attempt exists.
    assert!(
        world
            .pods
            .values()
            .all(|pod| pod.metadata.deletion_timestamp.is_some())
    );
    world.pods.remove("demo-master-0");
    world.pods.remove("demo-worker-0");
    world.settle(at(11));
    assert_eq!(world.pod_names(), ["demo-worker-1"]);
    world.finish_deletions();
    world.settle(at(12));
    assert_eq!(world.pod_names(), ALL);
    for pod in ALL {
        assert_eq!(
            world.variable(pod, "MUSTER_ATTEMPT").as_deref(),
            Some("1"),
            "{pod}"
        );
        let labels = world.pods[pod].metadata.labels.as_ref().unwrap();
        assert_eq!(labels["muster.io/attempt"], "1");
        assert_ne!(world.variable(pod, "MASTER_PORT"), first, "{pod}");
    }
    world.run_all();
    world.settle(at(13));
    assert!(world.holds(Running) && !world.holds(Restarting));
    let record = annotation(&world, "muster.io/failure");
    assert_eq!(
        (&record["class"], &record["action"]),
        (&json!("signal"), &json!("restart-gang"))
    );
    assert_eq!(
        annotation(&world, "muster.io/recovery"),
        json!({"attempt": 1, "charged": 1})
    );
}

#[test]
fn the_first_failure_decides_and_the_others_of_the_gang_cost_nothing() {
    let mut world = running("network-error=restart-gang,python-error=fail", None);
    // A peer loses its connection and is seen first; the cause follows within its time.
    world.exit("demo-worker-1", 1, at(10));
    said(
        &mut world,
        "demo-worker-1",
        "RuntimeError: gloo/transport: Connection closed by peer",
    );
    world.settle(at(10));
    assert!(!world.holds(Restarting), "it waits for the cause");
    assert_eq!(world.ask(at(10)).requeue_at, Some(at(12)));
    world.exit("demo-worker-0", 1, at(10));
    said(
        &mut world,
        "demo-worker-0",
        "  File \"t.py\", line 3, in load\nValueError: bad shard 17\n",
    );
    world.settle(at(11));
    assert!(world.holds(Failed));
    assert_eq!(
        world.message(Failed),
        "PyTorchJob demo has failed because muster.io/on-failure says python-error=fail: Rank 1 (demo-worker-0) exited \
         with code 1: ValueError: bad shard 17 (t.py line 3, in load)."
    );
    assert_eq!(annotation(&world, "muster.io/failure")["action"], "fail");
    assert!(
        !world.pods.contains_key("demo-master-0"),
        "the rank that ran was stopped"
    );
    assert!(
        world.pods.contains_key("demo-worker-0"),
        "the log of the failed one stays"
    );

    let mut world = running("default=restart-gang", Some(1));
    for pod in ALL {
        world.exit(pod, 7, at(10));
    }
    world.settle(at(10));
    assert_eq!(annotation(&world, "muster.io/recovery")["charged"], 1);
    assert!(!world.holds(Failed));
}

#[test]
fn a_rank_restarts_alone_and_the_others_run_on() {
    let mut world = running("default=restart-rank", None);
    let before = uids(&world);
    world.exit("demo-worker-0", 3, at(10));
    world.settle(at(10));
    let after = uids(&world);
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    assert_ne!(after[1], before[1]);
    assert_eq!(
        world.variable("demo-worker-0", "MUSTER_ATTEMPT").as_deref(),
        Some("0")
    );
    // The second time it waits.
    world.run_all();
    world.settle(at(11));
    world.exit("demo-worker-0", 3, at(20));
    world.settle(at(20));
    assert_eq!(world.pod_names(), ["demo-master-0", "demo-worker-1"]);
    assert_eq!(world.ask(at(29)).requeue_at, Some(at(30)));
    world.settle(at(29));
    assert_eq!(world.pods.len(), 2);
    world.settle(at(30));
    assert_eq!(world.pods.len(), 3);
}

#[test]
fn a_budget_is_spent_by_the_job_and_never_by_the_platform() {
    let mut world = running("default=restart-gang", Some(2));
    let mut now = 1000;
    for round in 0..5 {
        world.lose("demo-worker-0");
        world.settle(at(now));
        world.run_all();
        world.settle(at(now + 1));
        assert!(!world.holds(Failed), "round {round}");
        now += 1000;
    }
    let recovery = annotation(&world, "muster.io/recovery");
    assert_eq!(recovery, json!({"attempt": 5, "excused": 5}));
    for wait in [0, 10] {
        world.exit("demo-worker-1", 9, at(now));
        world.settle(at(now));
        assert_eq!(world.pods.is_empty(), wait > 0, "{wait}");
        world.settle(at(now + wait));
        assert_eq!(world.pods.len(), 3);
        world.run_all();
        world.settle(at(now + wait + 1));
        now += 1000;
    }
    world.exit("demo-worker-1", 9, at(now));
    world.settle(at(now));
    assert_eq!(
        world.message(Failed),
        "Job demo has failed because it has reached the specified backoff limit: Rank 2 (demo-worker-1) exited with code \
         9 after 3 attempts."
    );
}

#[test]
fn an_excluded_node_is_kept_off_by_the_affinity_of_new_pods() {
    let mut world = running("signal=restart-gang+exclude-node", None);
    world.exit("demo-worker-0", 139, at(10));
    world.settle(at(10));
    assert_eq!(
        annotation(&world, "muster.io/recovery")["excluded"],
        json!(["node-a"])
    );
    for pod in ALL {
        let spec = serde_json::to_value(world.pods[pod].spec.as_ref().unwrap()).unwrap();
        let required =
            &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let field = json!({"key": "metadata.name", "operator": "NotIn", "values": ["node-a"]});
        assert_eq!(
            required["nodeSelectorTerms"],
            json!([{"matchFields": [field]}]),
            "{pod}"
        );
    }
}

#[test]
fn a_program_that_cannot_be_loaded_fails_at_once_unless_the_annotation_names_its_class() {
    let typo =
        "  File \"t.py\", line 3\n    def x(\n         ^\nSyntaxError: '(' was never closed\n";
    let ended = |policy: &str| {
        let mut world = running(policy, None);
        world.exit("demo-worker-0", 1, at(10));
        said(&mut world, "demo-worker-0", typo);
        world.settle(at(10));
        world
    };
    let world = ended("default=restart-gang");
    assert!(
        world
            .message(Failed)
            .contains("SyntaxError: '(' was never closed (t.py line 3)")
    );
    assert!(!ended("python-error=restart-rank").holds(Failed));
}

#[test]
fn a_job_whose_policy_cannot_be_read_says_so() {
    let mut world = World::new(master_and_workers(1, "OnFailure"));
    let annotations = world.job.metadata.annotations.get_or_insert_default();
    annotations.insert("muster.io/on-failure".to_owned(), "signal".to_owned());
    world.settle(at(0));
    assert_eq!(
        world.message(Failed),
        "PyTorchJob demo cannot be run: metadata.annotations[muster.io/on-failure]: \"signal\" is not CLASS=ACTION; write a \
         list such as \"python-error=fail,default=restart-gang\""
    );
}

#[test]
fn pods_from_before_the_annotation_are_the_first_attempt() {
    let mut world = World::new(master_and_workers(2, "Never"));
    world.settle(at(0));
    world.run_all();
    world.settle(at(1));
    let before = uids(&world);
    let annotations = world.job.metadata.annotations.get_or_insert_default();
    annotations.insert(
        "muster.io/on-failure".to_owned(),
        "default=restart-gang".to_owned(),
    );
    world.settle(at(2));
    assert_eq!(uids(&world), before);
    world.exit("demo-worker-0", 3, at(10));
    world.settle(at(10));
    assert!(!world.holds(Failed));
    assert!(uids(&world).iter().all(|uid| !before.contains(uid)));
}

/// The server records that the job is quiet since its pods run.
fn hangs(world: &mut World, second: i64, action: &str) {
    let record = json!({"since": at(2).to_string(), "at": at(second).to_string(), "after": 60, "action": action,
        "unused": "gpu", "ranks": true, "pod": "demo-master-0",
        "uid": world.pods["demo-master-0"].metadata.uid});
    let annotations = world.job.metadata.annotations.get_or_insert_default();
    annotations.insert("muster.io/hung".to_owned(), record.to_string());
}

#[test]
fn a_job_that_hangs_starts_anew_as_a_whole_and_is_charged() {
    let mut world = running("default=restart-rank", Some(1));
    let before = uids(&world);
    hangs(&mut world, 70, "report");
    world.settle(at(70));
    assert_eq!(uids(&world), before, "it is only reported");
    hangs(&mut world, 70, "restart");
    world.settle(at(70));
    let observed = "No rank has written a log line or used its GPU since 2023-11-14T22:13:22Z, and \
         muster.io/hang-after is 60s";
    assert_eq!(
        world.message(Restarting),
        format!("PyTorchJob demo is restarting all ranks (restart 1 of 1): {observed}.")
    );
    assert_eq!(world.pod_names(), ALL);
    for pod in ALL {
        let labels = world.pods[pod].metadata.labels.as_ref().unwrap();
        assert_eq!(labels["muster.io/attempt"], "1");
    }
    let record = annotation(&world, "muster.io/failure");
    assert_eq!(
        (&record["class"], &record["action"], &record["charged"]),
        (&json!("hang"), &json!("restart-gang"), &json!(true))
    );
    assert_eq!(
        annotation(&world, "muster.io/recovery"),
        json!({"attempt": 1, "charged": 1})
    );
    // The record is of the attempt that is over.
    world.run_all();
    world.settle(at(71));
    assert!(world.holds(Running) && !world.holds(Restarting));
    hangs(&mut world, 200, "restart");
    world.settle(at(200));
    assert!(world.holds(Failed));
    assert!(world.message(Failed).contains(observed));
    assert_eq!(annotation(&world, "muster.io/failure")["action"], "fail");
}
