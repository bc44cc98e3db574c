//! Jobs that hang: with real pods, a job that falls silent is reported with the same sentence everywhere until it works
//! again, one that says so starts anew as a whole, and one that writes to its log is left alone.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::Command;
use std::time::Duration;

use e2e::{Platform, eventually, run};
use serde_json::{Value, json};

/// The shortest time until a hang, and what pods take to start on a busy machine.
const SOON: Duration = Duration::from_secs(240);

/// A job of a master and one worker that run the same script.
fn job(name: &str, annotations: &Value, script: &str) -> String {
    let replica = json!({"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "pytorch", "command": ["/bin/sh", "-c", script], "resources": {
            "requests": {"cpu": "50m", "memory": "16Mi"}, "limits": {"memory": "256Mi"}}}]}}});
    json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}}})
    .to_string()
}

fn raw(platform: &Platform, path: &str) -> String {
    platform.kubectl(&["get", "--raw", path]).ok()
}

fn explained(platform: &Platform, name: &str) -> Value {
    let path = format!("/api/v1/jobs/default/pytorchjobs/{name}/explain");
    serde_json::from_str(&raw(platform, &path)).unwrap()
}

#[test]
fn a_silent_job_is_reported_or_starts_anew_and_one_that_writes_is_left_alone() {
    let platform = Platform::up(&[]);
    // A pod that reads from a pipe without a writer waits without any work.
    let pipe = platform.manifest("pipe", "");
    std::fs::remove_file(&pipe).unwrap();
    run(Command::new("mkfifo").args(["-m", "644"]).arg(&pipe)).ok();
    let waits = format!(
        "echo begun; read line <{}; echo it goes on; exec sleep 1000",
        pipe.display()
    );
    platform.apply(&job(
        "still",
        &json!({"muster.io/hang-after": "1m"}),
        &waits,
    ));
    platform.apply(&job(
        "writes",
        &json!({"muster.io/hang-after": "1m"}),
        "while :; do echo a step; sleep 10; done",
    ));
    platform.apply(&job(
        "again",
        &json!({"muster.io/hang-after": "1m", "muster.io/on-hang": "restart",
            "muster.io/on-failure": "default=restart-gang"}),
        "echo attempt $MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT = 0 ] && exec sleep 1000; exit 0",
    ));

    // Wrong values are refused with the field and what they may be.
    for (text, words) in [
        ("muster.io/hang-after=5s", "must be a time from 1m to 7d"),
        ("muster.io/on-hang=kill", "must be report or restart"),
        (
            "muster.io/on-hang=restart",
            "restart needs muster.io/on-failure",
        ),
    ] {
        let annotate = ["annotate", "--overwrite", "pytorchjob", "still", text];
        let refused = platform.kubectl(&annotate).refused();
        assert!(refused.contains(words), "{refused}");
    }

    let answer = eventually("the silent job is reported", SOON, || {
        let answer = explained(&platform, "still");
        (answer["hangs"] == true).then_some(answer)
    });
    let sentence = answer["sentence"].as_str().unwrap();
    let begins = "No rank has written a log line or used its CPU since ";
    let ends = ", and muster.io/hang-after is 60s: the job may hang.";
    assert!(
        sentence.starts_with(begins) && sentence.ends_with(ends),
        "{sentence}"
    );
    assert_eq!(answer["state"], "Running", "{answer:#}");
    let said = eventually("an event says it", SOON, || {
        platform.events("still", "Hung").pop()
    });
    assert_eq!(said, sentence);
    let cli = platform.cli(&["explain", "still"]).ok();
    assert!(cli.contains(sentence), "{cli}");
    let described = platform.cli(&["describe", "pytorchjob", "still"]).ok();
    assert!(described.contains(sentence), "{described}");
    let page = "/ui/jobs/default/pytorchjobs/still?tab=summary";
    eventually("the job's page says it", SOON, || {
        raw(&platform, page).contains(sentence).then_some(())
    });

    // The other one starts anew as a whole, and its second attempt ends well.
    let restarted = eventually("the hung job succeeds in its second attempt", SOON, || {
        let answer = explained(&platform, "again");
        (answer["state"] == "Succeeded").then_some(answer)
    });
    let last = &restarted["lastFailure"];
    assert_eq!(
        (&last["class"], &last["action"], &last["charged"]),
        (&json!("hang"), &json!("restart-gang"), &json!(true)),
        "{last:#}"
    );
    let last = last["sentence"].as_str().unwrap();
    assert!(last.starts_with(begins), "{last}");
    let described = platform.cli(&["describe", "pytorchjob", "again"]).ok();
    assert!(described.contains(last), "{described}");

    // The job that writes was running all the time.
    assert_eq!(explained(&platform, "writes")["hangs"], false);
    assert!(platform.events("writes", "Hung").is_empty());

    // The report ends with the silence.
    std::fs::write(&pipe, "go\n").unwrap();
    eventually("the job is no longer reported", SOON, || {
        (explained(&platform, "still")["hangs"] == false).then_some(())
    });
    let ended = eventually("an event says it", SOON, || {
        platform.events("still", "HangEnded").pop()
    });
    assert!(ended.contains("a rank works again"), "{ended}");
    assert_eq!(platform.events("still", "Hung").len(), 1);
}
