//! Idle GPUs: whose GPUs do nothing is listed, its owner warned, and the job cancelled at the limit with the same sentence
//! everywhere; a job that works is left alone. And `muster dev`, whose pod is given back that way.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Mounts, Platform, device_files, eventually, nvml_standin};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);

const GPU_FILES: &str = r#"for minor in 0 1; do
        rm -f "$DIR/dev/nvidia$minor"; mknod -m 666 "$DIR/dev/nvidia$minor" c 195 "$minor"
    done"#;

/// Two GPUs with this utilisation in percent.
fn machine(utilisation: [u8; 2]) -> String {
    let state =
        |(gpu, percent): (usize, &u8)| format!("[[state]]\ngpu = {gpu}\nutilisation = {percent}\n");
    let states: String = utilisation.iter().enumerate().map(state).collect();
    format!("[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81920\ncount = 2\n{states}")
}

fn job(name: &str, gpus: usize, node: &str) -> String {
    json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "restartPolicy": "Never", "template": {
            "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 1, "containers": [{"name": "pytorch",
                "command": ["sh", "-c", "while :; do sleep 1; done"],
                "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]}}}}}})
    .to_string()
}

fn idle(platform: &Platform) -> Vec<Value> {
    let answer = platform.cli(&["idle", "-o", "json"]).ok();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["items"].as_array().unwrap().clone()
}

#[test]
fn a_job_whose_gpus_do_nothing_is_listed_warned_and_cancelled_and_one_that_works_goes_on() {
    e2e::require_root();
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("library");
    nvml_standin(&library);
    let platform = Platform::server(&[]);
    let mut agents = Vec::new();
    for (node, utilisation) in [("quiet", [1, 0]), ("busy", [0, 90])] {
        let own = directory.path().join(node);
        std::fs::create_dir(&own).unwrap();
        let (mounts, file) = (
            Mounts::new(&own, &device_files(GPU_FILES)),
            own.join("machine.toml"),
        );
        std::fs::write(&file, machine(utilisation)).unwrap();
        let agent = platform.agent_with_gpus(node, &mounts, &library, &file);
        agents.push((agent, mounts));
    }
    platform.await_nodes(2);

    // A wrong policy is refused with the field and what it may be.
    let annotate =
        |text: &str| platform.kubectl(&["annotate", "--overwrite", "namespace", "default", text]);
    for (text, words) in [
        (
            "muster.io/idle-gpu-limit=soon",
            "must be a time from 1m to 90d",
        ),
        (
            "muster.io/idle-gpu-action=cancel",
            "has no effect without muster.io/idle-gpu-limit",
        ),
    ] {
        let refused = annotate(text).refused();
        assert!(refused.contains(words), "{refused}");
    }
    annotate("muster.io/idle-gpu-limit=1m").ok();

    platform.apply(&job("still", 2, "quiet"));
    platform.apply(&job("works", 2, "busy"));
    for pod in ["still-master-0", "works-master-0"] {
        eventually("it runs", SOON, || {
            (platform.phase(pod) == "Running").then_some(())
        });
    }
    let listed = eventually("the idle job is listed", SOON, || idle(&platform).pop());
    assert_eq!(listed["name"], "still");
    assert_eq!(
        (&listed["gpus"], &listed["limit"]["action"]),
        (&json!(2), &json!("warn"))
    );

    // The policy only warns: twice before the limit and once at it.
    let warned = eventually("three warnings", SOON, || {
        let warned = platform.events("still", "IdleGpus");
        (warned.len() >= 3).then_some(warned)
    });
    assert!(
        warned
            .iter()
            .all(|text| text.contains("All 2 GPUs of the job have done nothing since")),
        "{warned:?}"
    );
    assert!(
        warned
            .iter()
            .all(|text| text.contains("the job is not cancelled")),
        "{warned:?}"
    );
    assert_eq!(platform.phase("still-master-0"), "Running");

    // It cancels: the job is over its limit already.
    annotate("muster.io/idle-gpu-action=cancel").ok();
    eventually("the job is cancelled", SOON, || {
        let job = platform
            .kubectl(&["get", "pytorchjob", "still", "-o", "json"])
            .ok();
        let job: Value = serde_json::from_str(&job).unwrap();
        (job["spec"]["runPolicy"]["suspend"] == true).then_some(())
    });
    eventually("its pod ends", SOON, || {
        platform.phase("still-master-0").is_empty().then_some(())
    });
    let explained = platform.cli(&["explain", "still"]).ok();
    let sentence = "The job was cancelled because its 2 GPUs did nothing for";
    assert!(
        explained.contains(sentence) && explained.contains("namespace default permits 60s"),
        "{explained}"
    );
    let answer = platform
        .kubectl(&[
            "get",
            "--raw",
            "/api/v1/jobs/default/pytorchjobs/still/explain",
        ])
        .ok();
    assert!(answer.contains(sentence), "{answer}");
    let cancelled = platform.events("still", "IdleGpusCancelled");
    assert_eq!(cancelled.len(), 1, "{cancelled:?}");

    // The job that works goes on, and `explain` no longer calls the resumed job cancelled.
    assert_eq!(platform.phase("works-master-0"), "Running");
    assert!(platform.events("works", "IdleGpus").is_empty());
    annotate("muster.io/idle-gpu-exempt-jobs=still").ok();
    platform.cli(&["resume", "still"]).ok();
    eventually("it runs again", SOON, || {
        (platform.phase("still-master-0") == "Running").then_some(())
    });
    let explained = platform.cli(&["explain", "still"]).ok();
    assert!(!explained.contains("cancelled"), "{explained}");
    eventually("it is idle and exempt", SOON, || {
        let listed = idle(&platform);
        let exempt = |job: &Value| job["name"] == "still" && job["limit"].is_null();
        listed.iter().any(exempt).then_some(())
    });
    platform.cli(&["cancel", "still"]).ok();

    // A pod of one's own is kept over calls, and its GPU is given back by its own limit.
    annotate("muster.io/idle-gpu-exempt-users=admin").ok();
    let run = |words: &[&str]| platform.cli(&[&["dev"][..], words].concat());
    let first = run(&[
        "--gpus",
        "1",
        "--idle",
        "1m",
        "--memory",
        "256Mi",
        "--",
        "sh",
        "-c",
        "echo $$ >/tmp/mark; id -u",
    ]);
    assert_ne!(first.ok().trim(), "0");
    let again = run(&["--", "sh", "-c", "test -s /tmp/mark && echo kept"]);
    assert_eq!(again.ok().trim(), "kept");
    let refused = run(&["works"]).refused();
    assert!(refused.contains("`muster dev` did not create"), "{refused}");
    eventually("its GPU is given back", SOON, || {
        let explained = platform.cli(&["explain", "dev-admin"]).ok();
        explained
            .contains("the job permits itself 60s")
            .then_some(())
    });
    let resumed = run(&["--", "echo", "back"]);
    assert_eq!(resumed.ok().trim(), "back");
}
