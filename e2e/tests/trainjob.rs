//! TrainJobs of Kubeflow Trainer on the embedded engine: torchrun trains on two pods by the runtime that every server
//! has, a runtime of a namespace brings initializers, and the commands know the kind.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Platform, eventually, repository};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(90);
/// A program that ends when it is asked to.
const SLEEPS: &str = "trap 'exit 143' TERM; sleep 1000 & wait";
/// Python processes import PyTorch on a busy machine of two cores.
const TRAINED: Duration = Duration::from_secs(240);

fn train_job(name: &str, spec: Value) -> String {
    json!({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec})
    .to_string()
}

fn condition(platform: &Platform, name: &str, type_: &str) -> Value {
    let job = platform.get("trainjobs", name);
    let mut all = job["status"]["conditions"].as_array().into_iter().flatten();
    all.find(|one| one["type"] == type_)
        .cloned()
        .unwrap_or_default()
}

fn until(platform: &Platform, name: &str, wanted: &str, bound: Duration) -> Value {
    eventually(&format!("{name} is {wanted}"), bound, || {
        let failed = condition(platform, name, "Failed");
        assert!(
            wanted == "Failed" || failed["status"] != "True",
            "{failed:#}"
        );
        let found = condition(platform, name, wanted);
        (found["status"] == "True").then_some(found)
    })
}

#[test]
fn torchrun_trains_on_two_pods_by_the_runtime_that_every_server_has() {
    let platform = Platform::up(&[]);
    let runtimes = platform.cli(&["get", "clustertrainingruntimes"]).ok();
    for name in [
        "torch-distributed",
        "jax-distributed",
        "xgboost-distributed",
    ] {
        assert!(runtimes.contains(name), "{runtimes}");
    }
    let example = repository().join("packaging/examples/pytorch-ddp.yaml");
    let text = std::fs::read_to_string(example).unwrap();
    let documents: Vec<&str> = text.split("\n---\n").collect();
    platform.apply(documents[0]);
    let files = json!({"volumes": [{"name": "program", "configMap": {"name": "pytorch-ddp"}}],
        "containers": [{"name": "node", "volumeMounts": [{"name": "program", "mountPath": "/program"}]}]});
    platform.apply(&train_job("ddp", json!({
        "runtimeRef": {"name": "torch-distributed"},
        "trainer": {
            "numNodes": 2, "numProcPerNode": 1,
            "command": ["python3", "-m", "torch.distributed.run", "/program/train.py"],
            // PyTorch 1.13 under Python 3.11 reads no other values of the last two, its own defaults included.
            "env": [{"name": "CHECKPOINT_DIR", "value": "/tmp"}, {"name": "EPOCHS", "value": "8"},
                {"name": "PET_REDIRECTS", "value": "1"}, {"name": "PET_TEE", "value": "1"}],
            "resourcesPerNode": {"requests": {"cpu": "200m", "memory": "256Mi"}},
        },
        "runtimePatches": [{"manager": "e2e.muster.io/test", "trainingRuntimeSpec": {"template": {"spec": {
            "replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": files}}}}]}}}}],
    })));
    let complete = until(&platform, "ddp", "Complete", TRAINED);
    assert_eq!(complete["reason"], "AllJobsCompleted");
    let log = platform.cli(&["logs", "trainjob/ddp"]).ok();
    assert!(log.contains("rank 0 of 2"), "{log}");
    // torchrun puts the process before each line.
    let (_, accuracy) = log.split_once("test accuracy ").unwrap();
    let accuracy: f64 = accuracy.split_whitespace().next().unwrap().parse().unwrap();
    assert!(accuracy > 0.9, "{log}");
    let log = platform.cli(&["logs", "ddp", "--rank", "1"]).ok();
    assert!(log.contains("rank 1 of 2"), "{log}");
    let job = platform.get("trainjobs", "ddp");
    assert_eq!(job["status"]["jobsStatus"][0]["name"], "node");
    assert_eq!(job["status"]["jobsStatus"][0]["succeeded"], 1);
    let set = platform.get("jobsets", "ddp");
    assert_eq!(set["metadata"]["ownerReferences"][0]["kind"], "TrainJob");
    let said = platform.cli(&["wait", "trainjob/ddp"]).ok();
    assert!(said.contains("condition Succeeded met"), "{said}");
    let described = platform.cli(&["describe", "trainjob", "ddp"]).ok();
    for part in ["State:       Complete", "node", "torch.distributed.run"] {
        assert!(described.contains(part), "{part}: {described}");
    }
    platform.cli(&["cancel", "trainjob/ddp"]).ok();
    eventually("what it made is gone", SOON, || {
        let left = platform
            .kubectl(&["get", "jobsets,jobs,pods", "-o", "name"])
            .ok();
        (!left.contains("ddp")).then_some(())
    });
}

#[test]
fn initializers_run_before_the_training_and_a_failure_is_told_by_the_commands() {
    let platform = Platform::up(&[]);
    let step = |name: &str, step: &str, container: &str, script: &str| {
        json!({"name": name, "template": {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": step}},
            "spec": {"backoffLimit": 0, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": container,
                "command": ["/bin/sh", "-c", script], "resources": {"requests": {"cpu": "50m", "memory": "16Mi"}}}]}}}}})
    };
    let mut node = step(
        "node",
        "trainer",
        "node",
        "echo $PET_NODE_RANK of $PET_NNODES at $PET_MASTER_ADDR, $MORE",
    );
    node["dependsOn"] = json!([{"name": "dataset-initializer", "status": "Complete"}]);
    let runtime = json!({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime",
        "metadata": {"name": "with-data", "namespace": "default"},
        "spec": {"mlPolicy": {"numNodes": 2, "torch": {}}, "template": {"spec": {"replicatedJobs": [
            step("dataset-initializer", "dataset-initializer", "dataset-initializer", "echo loading $STORAGE_URI"), node]}}}});
    // The job comes before its runtime, and waits for it.
    let reference = json!({"kind": "TrainingRuntime", "name": "with-data"});
    platform.apply(&train_job(
        "loads",
        json!({
            "runtimeRef": reference,
            "initializer": {"dataset": {"storageUri": "hf://owner/data"}},
            "trainer": {"env": [{"name": "MORE", "value": "more"}]},
        }),
    ));
    eventually("it says what it waits for", SOON, || {
        let job = platform.get("trainjobs", "loads");
        let message = job["status"]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        message
            .contains("There is no TrainingRuntime \"with-data\"")
            .then_some(())
    });
    platform.apply(&runtime.to_string());
    until(&platform, "loads", "Complete", SOON);
    assert_eq!(
        platform.cli(&["logs", "loads"]).ok(),
        "loading hf://owner/data\n"
    );
    assert_eq!(
        platform.cli(&["logs", "loads", "--rank", "2"]).ok(),
        "1 of 2 at loads-node-0-0.loads, more\n"
    );

    platform.apply(&train_job("fails", json!({
        "runtimeRef": reference,
        "trainer": {"numNodes": 1, "command": ["/bin/sh", "-c", "echo no shard 17 >&2; exit 3"]},
    })));
    let failed = until(&platform, "fails", "Failed", SOON);
    let message = failed["message"].as_str().unwrap();
    assert!(
        message.ends_with("exited with code 3: no shard 17"),
        "{message}"
    );
    let explained = platform.cli(&["explain", "trainjob/fails"]).ok();
    assert!(
        explained.contains("exited with code 3: no shard 17"),
        "{explained}"
    );

    platform.apply(&train_job(
        "held",
        json!({
            "runtimeRef": reference, "suspend": true,
            "trainer": {"command": ["/bin/sh", "-c", SLEEPS]},
        }),
    ));
    until(&platform, "held", "Suspended", SOON);
    platform.cli(&["resume", "trainjob/held"]).ok();
    platform
        .cli(&[
            "wait",
            "trainjob/held",
            "--for",
            "condition=Running",
            "--timeout",
            "60",
        ])
        .ok();
    platform.cli(&["suspend", "held"]).ok();
    eventually("its pods are gone", SOON, || {
        let pods = platform.kubectl(&["get", "pods", "-o", "name"]).ok();
        let held = condition(&platform, "held", "Suspended")["status"] == "True";
        (held && !pods.contains("held-node")).then_some(())
    });
    let pending = platform.kubectl(&["get", "trainjobs"]).ok();
    assert!(pending.contains("Suspended"), "{pending}");

    let refused = platform.manifest(
        "refused.yaml",
        &train_job(
            "bad",
            json!({
        "runtimeRef": reference, "trainer": {"env": [{"name": "PET_NNODES", "value": "9"}]}}),
        ),
    );
    let refused = platform.cli(&["apply", "-f", &refused.display().to_string()]);
    let words = "spec.trainer.env[0].name: Invalid value: \"PET_NNODES\": the controller sets this variable; leave it out";
    assert!(refused.err.contains(words), "{refused:?}");
}

/// Reports as the callbacks of Trainer's SDK do, then tries what the token must not do.
const REPORTS: &str = r#"
import json, os, ssl, time, urllib.error, urllib.request

url = os.environ["KUBEFLOW_TRAINER_SERVER_URL"]
context = ssl.create_default_context(cafile=os.environ["KUBEFLOW_TRAINER_SERVER_CA_CERT"])
token = open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read()

def send(method, url, body):
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, context=context) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)

now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
report = {"trainerStatus": {"progressPercentage": 40, "estimatedRemainingSeconds": 90,
    "metrics": [{"name": "loss", "value": "0.31"}], "lastUpdatedTime": now}}
status, answer = send("POST", url, report)
assert status == 200 and answer == report, (status, answer)
# What a report leaves out is gone.
report = {"trainerStatus": {"progressPercentage": 45, "metrics": [{"name": "loss", "value": "0.25"}], "lastUpdatedTime": now}}
status, answer = send("POST", url, report)
assert status == 200, (status, answer)
status, answer = send("POST", url, {"trainerStatus": {"progressPercentage": 450, "lastUpdatedTime": now}})
assert status == 422 and "status.trainerStatus.progressPercentage" in answer["message"], (status, answer)
status, answer = send("POST", url, {"trainerStatus": {"x": "y" * 70_000, "lastUpdatedTime": now}})
assert status == 413, (status, answer)
status, answer = send("POST", url.replace("/reports/", "/other/"), report)
assert status == 401, (status, answer)
status, answer = send("PUT", url, report)
assert status == 401, (status, answer)
print("reported", flush=True)
time.sleep(600)
"#;

#[test]
fn a_training_program_reports_its_progress_by_a_token_that_does_nothing_else() {
    let platform = Platform::up(&[]);
    platform.apply(&train_job(
        "reports",
        json!({
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "numNodes": 1,
                "command": ["python3", "-c", REPORTS],
                "resourcesPerNode": {"requests": {"cpu": "50m", "memory": "32Mi"}},
            },
        }),
    ));
    eventually("the program has reported", SOON, || {
        let log = platform.cli(&["logs", "trainjob/reports"]).out;
        assert!(!log.contains("Error"), "{log}");
        log.contains("reported").then_some(())
    });
    let status = platform.get("trainjobs", "reports")["status"]["trainerStatus"].clone();
    assert_eq!(status["progressPercentage"], 45);
    assert_eq!(status["estimatedRemainingSeconds"], Value::Null);
    let described = platform.cli(&["describe", "trainjob", "reports"]).ok();
    let sentence = "45 % done; loss 0.25; reported at 20";
    assert!(described.contains(sentence), "{described}");
    platform.cli(&["cancel", "trainjob/reports"]).ok();
}
