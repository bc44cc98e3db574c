//! Gangs start whole or not at all, on two nodes that a network lies between.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Agent, Network, Platform, eventually, eventually_ok, repository, run};

const SOON: Duration = Duration::from_secs(90);

/// A server on the bridge and two agents with four described GPUs each.
fn two_nodes() -> (Network, Platform, Vec<Agent>) {
    let network = Network::new(2);
    let port = 20_000 + std::process::id() % 10_000;
    let listen = format!("{}:{port}", network.host());
    let platform = Platform::server_on(&listen, &["--node-grace", "10"]);
    let machine = repository().join("packaging/examples/machines/4x-h100.toml");
    let agents = network
        .nodes
        .iter()
        .enumerate()
        .map(|(i, node)| {
            let machine = machine.display().to_string();
            let arguments = ["--machine", &machine, "--node-address", &node.address];
            platform.agent(&format!("node-{i}"), Some(node), &arguments)
        })
        .collect();
    platform.await_nodes(2);
    (network, platform, agents)
}

/// A gang of one-GPU replicas that run until their file exists.
fn gang(name: &str, restart: &str, script: &str) -> String {
    let template = format!(
        r#"
      template:
        spec:
          containers:
            - name: pytorch
              command: [/bin/sh, -c, {script:?}]
              resources:
                requests: {{cpu: 50m, memory: 32Mi}}
                limits: {{nvidia.com/gpu: 1}}"#
    );
    format!(
        r#"apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {name}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: {restart}{template}
    Worker:
      replicas: 5
      restartPolicy: {restart}{template}
"#
    )
}

fn pods(platform: &Platform, job: &str) -> Vec<serde_json::Value> {
    let selector = format!("training.kubeflow.org/job-name={job}");
    let out = platform
        .cli(&["get", "pods", "-l", &selector, "-o", "json"])
        .ok();
    let list: serde_json::Value = serde_json::from_str(&out).unwrap();
    list["items"].as_array().cloned().unwrap_or_default()
}

fn phases(platform: &Platform, job: &str) -> Vec<String> {
    let phase = |pod: &serde_json::Value| pod["status"]["phase"].as_str().unwrap_or("").to_string();
    pods(platform, job).iter().map(phase).collect()
}

fn all_are(phases: &[String], count: usize, phase: &str) -> bool {
    phases.len() == count && phases.iter().all(|p| p == phase)
}

#[test]
fn one_gang_runs_whole_the_other_waits_whole_and_runs_when_the_first_ends() {
    let (_network, platform, _agents) = two_nodes();
    let flag = platform.manifest("go", "");
    std::fs::remove_file(&flag).unwrap();
    let flag = flag.display().to_string();
    // Every rank prints its node, its devices and its master, then waits for the flag.
    let script = format!(
        "echo rank $RANK gpu $CUDA_VISIBLE_DEVICES; getent hosts $MASTER_ADDR; while [ ! -e {flag} ]; do sleep 0.2; done"
    );
    platform.apply(&gang("first", "Never", &script));
    eventually("the first gang runs", SOON, || {
        all_are(&phases(&platform, "first"), 6, "Running").then_some(())
    });
    platform.apply(&gang("second", "Never", "echo second $RANK"));
    let explained = eventually("the second gang is explained", SOON, || {
        let ran = platform.cli(&["explain", "second"]);
        ran.out
            .contains("Insufficient nvidia.com/gpu")
            .then_some(ran.out)
    });
    println!("{explained}");
    assert!(
        explained.contains("gang of 6 must start together"),
        "{explained}"
    );
    assert!(all_are(&phases(&platform, "second"), 6, "Pending"));
    for pod in pods(&platform, "second") {
        assert!(
            pod["spec"]["nodeName"].is_null(),
            "half of the second gang was placed"
        );
    }
    assert_eq!(
        platform.get("podgroup", "first")["status"]["phase"],
        "Running"
    );

    // No device is allocated twice, and both nodes take part.
    let mut given = std::collections::BTreeSet::new();
    let mut nodes = std::collections::BTreeSet::new();
    for pod in pods(&platform, "first") {
        let node = pod["spec"]["nodeName"].as_str().unwrap().to_string();
        let devices = pod["metadata"]["annotations"]["muster.io/devices"]
            .as_str()
            .unwrap();
        assert!(
            given.insert((node.clone(), devices.to_string())),
            "given twice: {devices}"
        );
        nodes.insert(node);
    }
    assert_eq!(nodes.len(), 2);
    let log = platform.cli(&["logs", "first", "--rank", "5"]).ok();
    assert!(log.contains("rank 5 gpu "), "{log}");
    assert!(
        log.contains("first-master-0"),
        "the master's name does not resolve: {log}"
    );

    std::fs::write(&flag, "").unwrap();
    platform
        .cli(&["wait", "pytorchjob/first", "--timeout", "90"])
        .ok();
    platform
        .cli(&["wait", "pytorchjob/second", "--timeout", "90"])
        .ok();
    // The job ends with its master; the workers end themselves.
    eventually("all ranks of the second gang succeed", SOON, || {
        all_are(&phases(&platform, "second"), 6, "Succeeded").then_some(())
    });
}

#[test]
fn a_rank_killed_by_sigkill_is_restarted_or_fails_the_job_as_its_policy_says() {
    let (_network, platform, _agents) = two_nodes();
    let marker = |job: &str| format!("sleep 31{}", job.len());
    let kill_one = |job: &str| {
        let running =
            run(std::process::Command::new("pgrep").args(["-f", &format!("^{}$", marker(job))]));
        let pid = running.out.lines().next().expect("a rank runs").to_string();
        run(std::process::Command::new("kill").args(["-KILL", &pid])).ok();
    };
    let running = |job: &str, what: &str| {
        eventually_ok(what, SOON, || {
            let phases = phases(&platform, job);
            match all_are(&phases, 6, "Running") {
                true => Ok(()),
                false => {
                    let explained = platform.cli(&["explain", job]).out;
                    let waiting = [
                        "describe",
                        "pods",
                        "--field-selector",
                        "status.phase=Pending",
                    ];
                    let waiting = platform.kubectl(&waiting).out;
                    Err(format!("{phases:?}\n{explained}\n{waiting}"))
                }
            }
        });
    };

    // OnFailure: the rank restarts in its own pod, and the job continues.
    platform.apply(&gang(
        "again",
        "OnFailure",
        &format!("exec {}", marker("again")),
    ));
    running("again", "the job runs");
    kill_one("again");
    eventually("one container was started again", SOON, || {
        let pods = pods(&platform, "again");
        let restarts = |pod: &serde_json::Value| {
            pod["status"]["containerStatuses"][0]["restartCount"]
                .as_i64()
                .unwrap_or(0)
        };
        (pods.iter().map(restarts).sum::<i64>() == 1).then_some(())
    });
    running("again", "all ranks run again");
    platform.cli(&["cancel", "again"]).ok();
    eventually("the devices are free", SOON, || {
        pods(&platform, "again").is_empty().then_some(())
    });

    // ExitCode: 137 is retryable, so that the pod is created again with its index.
    platform.apply(&gang(
        "anew",
        "ExitCode",
        &format!("exec {}", marker("anew")),
    ));
    running("anew", "the job runs");
    let uids = |job: &str| -> std::collections::BTreeMap<String, String> {
        let text = |pod: &serde_json::Value, field: &str| {
            pod["metadata"][field].as_str().unwrap().to_string()
        };
        pods(&platform, job)
            .iter()
            .map(|pod| (text(pod, "name"), text(pod, "uid")))
            .collect()
    };
    let before = uids("anew");
    kill_one("anew");
    eventually("one pod was made anew", SOON, || {
        let after = uids("anew");
        let same_names = after.keys().eq(before.keys());
        let anew = before
            .iter()
            .filter(|(name, uid)| after.get(*name) != Some(uid))
            .count();
        (same_names && anew == 1).then_some(())
    });
    running("anew", "all ranks run again");
    platform.cli(&["cancel", "anew"]).ok();
    eventually("the devices are free", SOON, || {
        pods(&platform, "anew").is_empty().then_some(())
    });

    // Never: the job fails.
    platform.apply(&gang(
        "never",
        "Never",
        &format!("exec {}", marker("never")),
    ));
    running("never", "the job runs");
    kill_one("never");
    let ran = platform.cli(&[
        "wait",
        "pytorchjob/never",
        "--for",
        "condition=Failed",
        "--timeout",
        "60",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_node_that_is_cut_off_loses_its_pods_and_is_fenced_when_it_returns() {
    let (network, platform, _agents) = two_nodes();
    platform.apply(&gang("cut", "ExitCode", "exec sleep 3199"));
    eventually("the job runs", SOON, || {
        all_are(&phases(&platform, "cut"), 6, "Running").then_some(())
    });
    let on_node_1 = |pod: &&serde_json::Value| pod["spec"]["nodeName"] == "node-1";
    let before = pods(&platform, "cut");
    let lost: Vec<String> = before
        .iter()
        .filter(on_node_1)
        .map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_string())
        .collect();
    assert!(!lost.is_empty());

    network.link(1, false);
    eventually("the node is unknown", SOON, || {
        let node = platform.get("node", "node-1");
        let conditions = node["status"]["conditions"].as_array()?.clone();
        conditions
            .iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "Unknown")
            .then_some(())
    });
    // The lost replicas are created again; node-0 has room for only four of the six, so they wait.
    eventually("the lost pods were replaced", SOON, || {
        let now = pods(&platform, "cut");
        let stale = |pod: &serde_json::Value| {
            lost.iter()
                .any(|uid| pod["metadata"]["uid"] == uid.as_str())
        };
        (now.len() == 6 && !now.iter().any(stale)).then_some(())
    });

    network.link(1, true);
    eventually("all ranks run again", SOON, || {
        all_are(&phases(&platform, "cut"), 6, "Running").then_some(())
    });
    // No rank runs twice: there are as many processes as ranks.
    eventually("the stale pods were ended", SOON, || {
        let out = run(std::process::Command::new("pgrep").args(["-f", "^sleep 3199$"])).out;
        (out.lines().count() == 6).then_some(())
    });
}
