//! JobSets on the embedded engine, with real programs: pods that find each other by name, restarts by the failure policy,
//! jobs that start one after the other, and a gang that waits whole.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Platform, eventually};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(90);
/// A program that ends when it is asked to.
const SLEEPS: &str = "trap 'exit 143' TERM; sleep 1000 & wait";

fn job_set(name: &str, spec: Value) -> String {
    json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec})
    .to_string()
}

/// A job of `pods` pods that run a shell script, with the restart of the JobSet in the variable ATTEMPT.
fn job(name: &str, replicas: u32, pods: u32, script: &str) -> Value {
    let attempt = json!({"name": "ATTEMPT", "valueFrom": {"fieldRef": {
        "fieldPath": "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"}}});
    json!({"name": name, "replicas": replicas, "template": {"spec": {
        "parallelism": pods, "completions": pods, "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c",
            "command": ["/bin/sh", "-c", script], "env": [attempt],
            "resources": {"requests": {"cpu": "50m", "memory": "16Mi"}}}]}}}}})
}

fn status(platform: &Platform, name: &str) -> Value {
    platform.get("jobsets", name)["status"].clone()
}

fn until(platform: &Platform, name: &str, wanted: &str) -> Value {
    eventually(&format!("{name} is {wanted}"), SOON, || {
        let now = status(platform, name);
        let end = now["terminalState"].as_str().unwrap_or_default();
        assert!(end.is_empty() || end == wanted, "{now:#}");
        (end == wanted).then_some(now)
    })
}

fn condition(status: &Value, type_: &str) -> Value {
    let mut all = status["conditions"].as_array().into_iter().flatten();
    all.find(|one| one["type"] == type_)
        .cloned()
        .unwrap_or_default()
}

#[test]
fn pods_of_all_jobs_find_each_other_and_the_commands_know_the_job_set() {
    let platform = Platform::up(&[]);
    let find = "for host in js-leader-0-0 js-worker-0-0 js-worker-0-1 js-worker-1-1; do \
                until getent hosts $host.js; do sleep 0.1; done; done; \
                echo $(hostname) $JOB_COMPLETION_INDEX";
    platform.apply(&job_set(
        "js",
        json!({
            "replicatedJobs": [job("leader", 1, 1, find), job("worker", 2, 2, find)],
        }),
    ));
    let done = until(&platform, "js", "Completed");
    assert_eq!(done["replicatedJobsStatus"][1]["succeeded"], 2);
    assert_eq!(condition(&done, "Completed")["reason"], "AllJobsCompleted");
    let said = platform.cli(&["wait", "jobset/js"]).ok();
    assert!(said.contains("condition Succeeded met"), "{said}");
    // Ranks follow the Jobs and their indexes.
    for (rank, last) in [
        ("0", "js-leader-0-0 0\n"),
        ("2", "js-worker-0-1 1\n"),
        ("4", "js-worker-1-1 1\n"),
    ] {
        let log = platform.cli(&["logs", "js", "--rank", rank]).ok();
        assert!(log.ends_with(last), "{rank}: {log}");
    }
    let jobs = platform.kubectl(&["get", "jobs", "-o", "name"]).ok();
    assert_eq!(jobs.lines().count(), 3, "{jobs}");
    let listed = platform.cli(&["get", "jobsets"]).ok();
    assert!(listed.contains("Completed"), "{listed}");
    let described = platform.cli(&["describe", "jobset", "js"]).ok();
    for part in [
        "State:       Completed",
        "leader",
        "worker",
        "js-worker-1-1",
    ] {
        assert!(described.contains(part), "{part}: {described}");
    }
    platform.cli(&["cancel", "jobset/js"]).ok();
    platform.cli(&["wait", "jobset/js", "--for", "delete"]).ok();
}

#[test]
fn the_failure_policy_restarts_and_gives_up_and_the_cause_is_told() {
    let platform = Platform::up(&[]);
    let flaky = "test $ATTEMPT = 1 || exit 9; echo again";
    platform.apply(&job_set(
        "restarts",
        json!({
            "failurePolicy": {"maxRestarts": 2},
            "replicatedJobs": [job("worker", 1, 2, flaky), job("other", 1, 1, SLEEPS)],
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["worker"]},
        }),
    ));
    let done = until(&platform, "restarts", "Completed");
    assert_eq!(
        (&done["restarts"], &done["restartsCountTowardsMax"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(
        platform.cli(&["logs", "restarts", "--rank", "1"]).ok(),
        "again\n"
    );

    platform.apply(&job_set("gives-up", json!({
        "failurePolicy": {"maxRestarts": 1},
        "replicatedJobs": [job("worker", 1, 1, "echo no shard 17 >&2; exit 3"), job("other", 1, 1, SLEEPS)],
    })));
    let failed = until(&platform, "gives-up", "Failed");
    let ended = condition(&failed, "Failed");
    assert_eq!(ended["reason"], "ReachedMaxRestarts");
    let message = ended["message"].as_str().unwrap();
    assert!(message.starts_with("jobset failed due to reaching max number of restarts (first failed job: gives-up-worker-0)"), "{message}");
    assert!(
        message.ends_with("exited with code 3: no shard 17"),
        "{message}"
    );
    // The command, REST and the page say the same.
    let explained = platform.cli(&["explain", "jobset/gives-up"]).ok();
    assert!(
        explained.contains("exited with code 3: no shard 17"),
        "{explained}"
    );
    let waited = platform.cli(&["wait", "jobset/gives-up"]);
    assert!(
        waited.out.contains("is Failed, not Succeeded"),
        "{waited:?}"
    );
    eventually("the pods that still ran are gone", SOON, || {
        let pods = platform.kubectl(&["get", "pods", "-o", "name"]).ok();
        (!pods.contains("gives-up-other")).then_some(())
    });

    let stops = json!({"rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": ["exit code 4"]}], "maxRestarts": 5});
    let mut worker = job("worker", 1, 1, "exit 4");
    worker["template"]["spec"]["podFailurePolicy"] = json!({"rules": [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [4]}}]});
    platform.apply(&job_set(
        "stops",
        json!({"failurePolicy": stops, "replicatedJobs": [worker]}),
    ));
    let failed = until(&platform, "stops", "Failed");
    assert_eq!(
        condition(&failed, "Failed")["reason"],
        "FailJobSetFailurePolicyAction"
    );
    assert_eq!(failed["restarts"], 0);
}

#[test]
fn jobs_start_in_turn_and_a_job_set_waits_whole_is_suspended_and_resumed() {
    let platform = Platform::up(&[]);
    let mut train = job("train", 1, 2, "echo trained");
    train["dependsOn"] = json!([{"name": "init", "status": "Complete"}]);
    platform.apply(&job_set("turns", json!({
        "replicatedJobs": [job("init", 1, 1, "echo loaded"), train], "ttlSecondsAfterFinished": 3600,
    })));
    until(&platform, "turns", "Completed");
    let end = |job: &str, field: &str| {
        platform.get("job", job)["status"][field]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(end("turns-init-0", "completionTime") <= end("turns-train-0", "startTime"));
    assert_eq!(
        platform.cli(&["logs", "turns", "--rank", "2"]).ok(),
        "trained\n"
    );

    // One pod fits, and the other asks for more than the machine has: neither starts.
    let mut large = job("large", 1, 1, "true");
    large["template"]["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] =
        json!("5000");
    platform.apply(&job_set(
        "waits",
        json!({"replicatedJobs": [job("small", 1, 1, "true"), large]}),
    ));
    let waits = |what: &str| {
        eventually(&format!("{what} waits for CPUs"), SOON, || {
            let said = platform.cli(&["explain", what]).ok();
            said.contains("cpu").then_some(())
        });
    };
    waits("jobset/waits");
    let selected = "jobset.sigs.k8s.io/jobset-name=waits";
    eventually("its pods wait without a node", SOON, || {
        let pods = platform
            .kubectl(&["get", "pods", "-o", "json", "-l", selected])
            .ok();
        let pods: Value = serde_json::from_str(&pods).unwrap();
        let pods = pods["items"].as_array().unwrap();
        assert!(
            pods.iter().all(|pod| pod["spec"]["nodeName"].is_null()),
            "{pods:#?}"
        );
        (pods.len() == 2).then_some(())
    });
    // A Job of it waits with it.
    waits("job/waits-small-0");

    platform.apply(&job_set(
        "runs",
        json!({"replicatedJobs": [job("one", 1, 2, SLEEPS)]}),
    ));
    let running = [
        "wait",
        "jobset/runs",
        "--for",
        "condition=Running",
        "--timeout",
        "60",
    ];
    platform.cli(&running).ok();
    assert_eq!(
        platform.cli(&["suspend", "jobset/runs"]).ok(),
        "jobset.jobset.x-k8s.io/runs suspended\n"
    );
    eventually("its pods are gone", SOON, || {
        let now = status(&platform, "runs");
        let pods = platform.kubectl(&["get", "pods", "-o", "name"]).ok();
        (condition(&now, "Suspended")["status"] == "True" && !pods.contains("runs-one"))
            .then_some(())
    });
    platform.cli(&["resume", "runs"]).ok();
    platform.cli(&running).ok();

    let refused = platform.manifest("refused.yaml", &job_set("bad", json!({
        "replicatedJobs": [job("a", 1, 1, "true")], "successPolicy": {"operator": "All", "targetReplicatedJobs": ["b"]}})));
    let refused = platform.cli(&["apply", "-f", &refused.display().to_string()]);
    let words = "spec.successPolicy.targetReplicatedJobs[0]: Invalid value: \"b\": there is no job of this name";
    assert!(refused.err.contains(words), "{refused:?}");
}
