//! Jobs: run, followed, described, explained, suspended, cancelled; and their logs.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use e2e::{eventually, muster};
use serde_json::json;

use super::{SOON, ends, holds, platform, row};

#[test]
fn run_follows_a_job_and_ends_with_its_status_and_its_logs_outlast_it() {
    let platform = platform();
    let script = "echo rank $RANK of $WORLD_SIZE gpu $CUDA_VISIBLE_DEVICES";
    let gang = ["run", "--name", "two", "--replicas", "2", "--gpus", "1"];
    let cpus = ["--cpus", "100m", "--memory", "64Mi", "--", "sh", "-c"];
    let ran = ends(&platform, 0, &[&gang[..], &cpus, &[script]].concat());
    // Standard output has rank 0's log only; all other messages go to standard error.
    assert!(
        ran.out.starts_with("rank 0 of 2 gpu ") && ran.out.lines().count() == 1,
        "{ran:?}"
    );
    holds(
        &ran.err,
        &[
            "pytorchjob.kubeflow.org/two created",
            "condition Succeeded met",
        ],
    );

    let ran = ends(
        &platform,
        7,
        &["run", "--name", "bad", "--", "sh", "-c", "echo no; exit 7"],
    );
    assert_eq!(ran.out, "no\n");
    holds(
        &ran.err,
        &["is Failed, not Succeeded", "exited with code 7: no"],
    );
    ends(&platform, 1, &["wait", "bad"]);
    let ran = ends(&platform, 1, &["suspend", "bad"]);
    holds(&ran.err, &["nothing left to suspend"]);

    let described = ends(&platform, 0, &["describe", "pytorchjob", "bad"]).out;
    holds(
        &described,
        &[
            "State:       Failed",
            "Error (7)",
            "PyTorchJobFailed",
            "pod/bad-master-0",
        ],
    );
    let described = ends(&platform, 0, &["describe", "pytorchjob/two"]).out;
    holds(&described, &["nvidia.com/gpu=1", "(NVIDIA H100 80GB HBM3)"]);
    let (_, timeline) = described.split_once("Conditions:").unwrap();
    // A short job may end before its running state is seen.
    let conditions = ["  Created ", "  Succeeded "];
    let places = conditions.map(|condition| timeline.find(condition).unwrap());
    assert!(places.is_sorted(), "{described}");
    let explained = ends(&platform, 0, &["explain", "two"]).out;
    holds(&explained, &["Succeeded", "successfully completed"]);

    let log = |code: i32, rank: &str| ends(&platform, code, &["logs", "two", "--rank", rank]);
    holds(&log(0, "1").out, &["rank 1 of 2"]);
    holds(&log(3, "2").err, &["has 2 replicas, so no rank 2"]);
    ends(&platform, 0, &["cancel", "two"]);
    ends(&platform, 0, &["wait", "two", "--for", "delete"]);
    eventually("the pods are gone", SOON, || {
        let pods = platform.cli(&["get", "pods", "-o", "name"]).out;
        (!pods.contains("two-")).then_some(())
    });
    holds(&log(0, "0").out, &["rank 0 of 2"]);
    holds(&log(0, "1").out, &["rank 1 of 2"]);
    holds(&log(3, "2").err, &["no connected node keeps a log"]);
}

#[test]
fn the_logs_of_pods_that_a_policy_removed_are_found_by_rank() {
    let platform = platform();
    // The job succeeds with its first worker, and then the policy ends the other one: the first worker waits for the
    // other's output.
    platform.apply(
        r#"apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: said}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Mi}}}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: clean}
spec:
  runPolicy: {cleanPodPolicy: All}
  elasticPolicy: {minReplicas: 1, maxReplicas: 2, rdzvBackend: c10d}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: Never
      template:
        spec:
          containers:
            - name: pytorch
              command: [sh, -c, "echo here is $HOSTNAME; touch /said/$HOSTNAME; until [ -e /said/clean-worker-1 ]; do sleep 0.1; done"]
              resources: {requests: {cpu: 50m, memory: 16Mi}}
              volumeMounts: [{name: said, mountPath: /said}]
          volumes: [{name: said, persistentVolumeClaim: {claimName: said}}]
"#,
    );
    ends(&platform, 0, &["wait", "clean", "--timeout", "60"]);
    eventually("the pods are gone", SOON, || {
        platform
            .cli(&["get", "pods", "-o", "name"])
            .out
            .is_empty()
            .then_some(())
    });
    for (rank, pod) in [("0", "clean-worker-0"), ("1", "clean-worker-1")] {
        let log = ends(&platform, 0, &["logs", "clean", "--rank", rank]).out;
        assert_eq!(log, format!("here is {pod}\n"));
        ends(&platform, 0, &["logs", "-f", "clean", "--rank", rank]);
    }
    ends(&platform, 0, &["cancel", "clean"]);
    for (rank, pod) in [("0", "clean-worker-0"), ("1", "clean-worker-1")] {
        let log = ends(&platform, 0, &["logs", "clean", "--rank", rank]).out;
        assert_eq!(log, format!("here is {pod}\n"), "after the job is gone too");
    }
}

#[test]
fn a_job_that_waits_is_explained_suspended_resumed_and_cancelled() {
    let platform = platform();
    let words = "run --name big --detach --replicas 2 --gpus 4 --cpus 100m -- sleep 600";
    let words: Vec<&str> = words.split(' ').collect();
    assert_eq!(
        ends(&platform, 0, &words).out,
        "pytorchjob.kubeflow.org/big created\n"
    );
    let says = |subject: &str, part: &str| {
        eventually(&format!("{subject} is {part}"), SOON, || {
            let ran = platform.cli(&["explain", subject]);
            ran.out.contains(part).then_some(ran.out)
        })
    };
    let why = "all nodes together have 4";
    holds(
        &says("big", why),
        &["Pending", "binds", "would fit", "ahead in queue"],
    );
    for subject in ["pod/big-master-0", "podgroup/big"] {
        holds(&says(subject, why), &["Pending", "would fit"]);
    }
    let json = ends(&platform, 0, &["explain", "big", "-o", "json"]).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["report"]["queue"], "default");

    let ran = ends(&platform, 124, &["wait", "big", "--timeout", "1"]);
    holds(&ran.err, &["was not reached within 1 s", "`muster explain"]);
    let ran = ends(&platform, 4, &["logs", "big"]);
    holds(&ran.err, &["`muster logs -f big` waits for the log"]);
    eventually("the gang is counted as waiting", SOON, || {
        let queues = platform.cli(&["queue"]).out;
        (row(&queues, "default")[7] == "1").then_some(())
    });

    holds(
        &ends(&platform, 0, &["suspend", "big"]).out,
        &["big suspended"],
    );
    says("big", "is suspended");
    holds(
        &ends(&platform, 0, &["resume", "big"]).out,
        &["big resumed"],
    );
    says("big", why);
    holds(
        &ends(&platform, 0, &["cancel", "big"]).out,
        &["big cancelled"],
    );
    let ran = ends(&platform, 0, &["wait", "pytorchjob/big", "--for", "delete"]);
    holds(&ran.out, &["is gone"]);

    // The other training kinds as well.
    let worker = json!({"replicas": 1, "template": {"spec": {"containers": [
        {"name": "tensorflow", "command": ["sleep", "600"]}]}}});
    let job = json!({"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "tf"},
        "spec": {"tfReplicaSpecs": {"Worker": worker}}});
    platform.apply(&job.to_string());
    for (word, suspended) in [("suspend", true), ("resume", false)] {
        ends(&platform, 0, &[word, "tfjob/tf"]);
        let job = platform.get("tfjob", "tf");
        assert_eq!(job["spec"]["runPolicy"]["suspend"], suspended, "{job:#}");
    }
}

#[test]
fn a_job_is_followed_to_its_end_through_the_servers_death_and_return() {
    let mut platform = platform();
    let script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done; exit 5";
    let arguments = [
        "run", "--name", "through", "--cpus", "100m", "--", "sh", "-c", script,
    ];
    let mut command = platform.command(&muster(), &arguments);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "1");
    platform.kill();
    platform.restart();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let ended = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(rest, ["2", "3", "4", "5", "6"], "{err}");
    assert_eq!(ended.status.code(), Some(5), "{err}");
    holds(
        &err,
        &["the log ended early", "trying again", "exited with code 5"],
    );
}

#[test]
fn a_quota_and_a_missing_queue_refuse_in_words_with_limit_and_use() {
    let platform = platform();
    platform.apply(
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: gpus}\nspec: {hard: {requests.nvidia.com/gpu: 2}}\n",
    );
    let gang = [
        "run",
        "--name",
        "big",
        "--replicas",
        "2",
        "--gpus",
        "2",
        "--detach",
    ];
    let cpus = ["--cpus", "100m", "--memory", "64Mi", "--", "true"];
    ends(&platform, 0, &[&gang[..], &cpus].concat());
    let explained = eventually("the quota is named", SOON, || {
        let out = platform.cli(&["explain", "big"]).out;
        out.contains("ResourceQuota").then_some(out)
    });
    holds(
        &explained,
        &[
            "ResourceQuota gpus limits namespace default to 2 requests.nvidia.com/gpu, of which 2 are in use, and 2 more",
            "have an administrator raise ResourceQuota gpus",
        ],
    );
    assert!(!explained.contains("create the members"), "{explained}");

    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: one}\nspec:\n  containers:\n  - name: main\n    \
               command: ['true']\n    resources: {limits: {nvidia.com/gpu: 3}}\n";
    let file = platform.manifest("pod.yaml", pod).display().to_string();
    let refused = ends(&platform, 4, &["apply", "-f", &file]);
    holds(
        &refused.err,
        &[
            "limits the object's namespace to 2 requests.nvidia.com/gpu",
            "and 3 more are asked for",
        ],
    );

    let nope = ends(&platform, 1, &["run", "--queue", "nope", "--", "true"]);
    holds(
        &nope.err,
        &["--queue \"nope\": there is no such queue; the queues are default"],
    );
    let jobs = platform.cli(&["get", "pytorchjobs", "-o", "name"]).out;
    assert_eq!(jobs, "pytorchjob.kubeflow.org/big\n");
}
