//! Volcano Jobs on the embedded engine, with real programs: PyTorch trains on three pods that find each other by the
//! plugins, Open MPI's ranks run in the workers, and policies restart, stop and complete jobs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Platform, eventually, repository};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
/// Three Python processes import PyTorch on a busy machine of two cores.
const TRAINED: Duration = Duration::from_secs(240);

fn job(name: &str, spec: Value) -> String {
    json!({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
        "metadata": {"name": name, "namespace": "default"}, "spec": spec})
    .to_string()
}

fn task(name: &str, replicas: u32, script: &str) -> Value {
    json!({"name": name, "replicas": replicas, "template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "command": ["/bin/sh", "-c", script],
            "resources": {"requests": {"cpu": "50m", "memory": "16Mi"}}}]}}})
}

fn phase(platform: &Platform, name: &str) -> String {
    let job = platform.get("vcjob", name);
    job["status"]["state"]["phase"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn until(platform: &Platform, name: &str, wanted: &str, bound: Duration) -> Value {
    eventually(&format!("{name} is {wanted}"), bound, || {
        let now = phase(platform, name);
        assert!(
            now != "Failed" || wanted == "Failed",
            "{:#}",
            platform.get("vcjob", name)["status"]
        );
        (now == wanted).then_some(())
    });
    platform.get("vcjob", name)["status"].clone()
}

#[test]
fn pytorch_trains_in_a_volcano_job_whose_pods_find_each_other_by_the_plugins() {
    let platform = Platform::up(&[]);
    let example = repository().join("packaging/examples/pytorch-ddp.yaml");
    let text = std::fs::read_to_string(example).unwrap();
    let documents: Vec<&str> = text.split("\n---\n").collect();
    let (training, others) = documents.split_last().unwrap();
    platform.apply(&others.join("\n---\n"));
    let mut training: serde_norway::Value = serde_norway::from_str(training).unwrap();
    training.apply_merge().unwrap();
    let training = serde_json::to_value(&training).unwrap();
    let template = &training["spec"]["pytorchReplicaSpecs"]["Master"]["template"];
    let task = |name: &str, replicas: u32| json!({"name": name, "replicas": replicas, "template": template});
    platform.apply(&job(
        "ddp",
        json!({
            "schedulerName": "volcano", "plugins": {"pytorch": ["--master=master", "--worker=worker"]},
            "tasks": [task("master", 1), task("worker", 2)],
        }),
    ));
    let status = until(&platform, "ddp", "Completed", TRAINED);
    assert_eq!(status["succeeded"], 3);
    let log = platform.cli(&["logs", "pod/ddp-master-0"]).ok();
    let line = log.lines().find(|line| line.starts_with("test accuracy "));
    let accuracy: f64 = line.unwrap().split(' ').nth(2).unwrap().parse().unwrap();
    assert!(accuracy > 0.95, "{log}");
    assert!(log.contains("rank 0 of 3"), "{log}");
    let log = platform.cli(&["logs", "pod/ddp-worker-1"]).ok();
    assert!(log.contains("rank 2 of 3"), "{log}");
}

/// Each rank adds the numbers of all ranks.
const ALLREDUCE: &str = "import socket; from mpi4py import MPI; world = MPI.COMM_WORLD; \
    print(f'rank {world.rank} of {world.size} on {socket.gethostname()}: {world.allreduce(world.rank + 1)}', flush=True)";

#[test]
fn mpirun_in_the_master_of_a_volcano_job_starts_its_ranks_in_the_workers() {
    let platform = Platform::up(&[]);
    // As in Volcano's example for the plugin, where mpirun uses SSH: here no SSH server is needed, and none can run.
    let master = format!(
        "mkdir -p /var/run/sshd; /usr/sbin/sshd; \
         mpiexec --allow-run-as-root --host ${{MPI_HOST}} -np 2 /usr/bin/python3 -c \"{ALLREDUCE}\" || exit 9; \
         cd /etc/volcano-ssh; stat -c 'mode %a' id_rsa; head -n 1 id_rsa; cmp id_rsa.pub authorized_keys && echo one key; \
         grep Host config"
    );
    let mut master = task("master", 1, &master);
    master["policies"] = json!([{"event": "TaskCompleted", "action": "CompleteJob"}]);
    let mut worker = task("worker", 2, "mkdir -p /var/run/sshd; /usr/sbin/sshd -D;");
    for one in [&mut master, &mut worker] {
        let container = &mut one["template"]["spec"]["containers"][0];
        container["resources"]["requests"]["memory"] = json!("128Mi");
    }
    platform.apply(&job(
        "sum",
        json!({"minAvailable": 3, "plugins": {"mpi": [], "ssh": []}, "tasks": [master, worker]}),
    ));
    let status = until(&platform, "sum", "Completed", TRAINED);
    assert_eq!(status["state"]["message"], "task master is complete.");
    let log = platform.cli(&["logs", "pod/sum-master-0"]).ok();
    for line in [
        "rank 0 of 2 on sum-worker-0: 3",
        "rank 1 of 2 on sum-worker-1: 3",
        "mode 600",
        "-----BEGIN PRIVATE KEY-----",
        "one key",
        "Host sum-worker-1 sum-worker-1.sum",
    ] {
        assert!(log.lines().any(|one| one == line), "{line}: {log}");
    }
    // The workers waited for the master's commands, and its account may do nothing in other pods.
    let rules = platform.kubectl(&["get", "roles", "-o", "json"]).ok();
    let rules: Value = serde_json::from_str(&rules).unwrap();
    let of_job: Vec<&Value> = rules["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|role| role["metadata"]["ownerReferences"][0]["name"] == "sum")
        .collect();
    assert_eq!(of_job.len(), 1, "{rules:#}");
    for rule in of_job[0]["rules"].as_array().unwrap() {
        assert_eq!(
            rule["resourceNames"],
            json!(["sum-worker-0", "sum-worker-1"])
        );
    }
    let pods = platform.cli(&["get", "pods", "-o", "name"]).ok();
    assert!(!pods.contains("sum-worker"), "they run on: {pods}");
}

#[test]
fn policies_restart_stop_and_complete_jobs_and_the_cause_is_told() {
    let platform = Platform::up(&[]);
    // Fails in its first run only: an annotation tells the second one.
    let mut flaky = task("worker", 1, "test \"$RETRY\" = 1 || exit 9");
    flaky["template"]["spec"]["containers"][0]["env"] = json!([{"name": "RETRY",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['volcano.sh/job-retry-count']"}}}]);
    platform.apply(&job(
        "restarts",
        json!({
            "policies": [{"event": "PodFailed", "action": "RestartJob"}],
            "tasks": [flaky, task("other", 1, "sleep 0.1")],
        }),
    ));
    let status = until(&platform, "restarts", "Completed", SOON);
    assert_eq!(
        (&status["retryCount"], &status["version"]),
        (&json!(1), &json!(1))
    );

    platform.apply(&job(
        "gives-up",
        json!({"maxRetry": 2, "policies": [{"event": "*", "action": "RestartJob"}],
            "tasks": [task("worker", 1, "echo no shard 17 >&2; exit 3")]}),
    ));
    let status = until(&platform, "gives-up", "Failed", SOON);
    let words = "Rank 0 (gives-up-worker-0) exited with code 3: no shard 17; the job was run 2 times, and maxRetry is 2.";
    assert_eq!(status["state"]["message"], words);
    let events = platform.kubectl(&["describe", "vcjob", "gives-up"]).ok();
    assert!(events.contains(words), "{events}");

    let hosts = "sleep 1; cat /etc/volcano/other.host; echo; echo $VC_OTHER_HOSTS $VC_TASK_INDEX; \
                 getent hosts $VC_OTHER_HOSTS || exit 5";
    platform.apply(&job(
        "completes",
        json!({
            "plugins": {"svc": [], "env": []},
            "tasks": [
                {"name": "first", "replicas": 1, "policies": [{"event": "TaskCompleted", "action": "CompleteJob"}],
                    "template": task("first", 1, hosts)["template"]},
                task("other", 1, "sleep 1000"),
            ],
        }),
    ));
    let status = until(&platform, "completes", "Completed", SOON);
    assert_eq!(status["state"]["message"], "task first is complete.");
    let log = platform.cli(&["logs", "pod/completes-first-0"]).ok();
    assert!(log.contains("completes-other-0.completes\n"), "{log}");
    assert!(log.contains("completes-other-0.completes 0\n"), "{log}");
    let pods = platform.cli(&["get", "pods", "-o", "name"]).ok();
    assert!(!pods.contains("completes-other-0"), "it runs on: {pods}");

    // A whole gang waits: two GPUs are more than the machine has.
    let mut big = task("worker", 2, "true");
    big["template"]["spec"]["containers"][0]["resources"] =
        json!({"limits": {"nvidia.com/gpu": 1}});
    platform.apply(&job(
        "waits",
        json!({"tasks": [big, task("cpu", 1, "true")]}),
    ));
    eventually("it waits whole", SOON, || {
        let said = platform.cli(&["explain", "podgroup/waits"]).out;
        said.contains("nvidia.com/gpu").then_some(())
    });
    until(&platform, "waits", "Pending", SOON);
    let small = platform.get("pod", "waits-cpu-0");
    assert!(small["spec"]["nodeName"].is_null(), "{small:#}");

    // A plugin that Muster does not have.
    platform.apply(&job(
        "ray",
        json!({"plugins": {"ray": []}, "tasks": [task("head", 1, "true")]}),
    ));
    eventually("it says so", SOON, || {
        let status = platform.get("vcjob", "ray")["status"].clone();
        let said = status["state"]["message"].as_str()?.to_owned();
        said.contains("use a RayJob or RayCluster").then_some(())
    });
    platform.cli(&["delete", "vcjob/gives-up"]).ok();
}

#[test]
fn a_volcano_job_is_known_wherever_a_user_looks() {
    let platform = Platform::up(&[]);
    let tasks = json!([
        task("first", 1, "echo rank $VC_TASK_INDEX; exit 3"),
        task("other", 2, "echo other; sleep 1000")
    ]);
    let spec = json!({"plugins": {"env": []}, "tasks": tasks,
        "policies": [{"event": "PodFailed", "action": "TerminateJob"}]});
    // A `batch/v1` Job of the same name is another object.
    platform.apply(&job("both", spec.clone()));
    until(&platform, "both", "Terminated", SOON);
    let waited = platform.cli(&["wait", "vcjob/both"]);
    assert_eq!(waited.code, Some(1), "{waited:?}");
    assert!(
        waited.out.contains("is Terminated, not Succeeded"),
        "{waited:?}"
    );
    let words = "Rank 0 (both-first-0) exited with code 3: rank 0";
    for name in ["both", "vcjob/both", "job.batch.volcano.sh/both"] {
        let explained = platform.cli(&["explain", name]).ok();
        assert!(
            explained.contains("Terminated") && explained.contains(words),
            "{explained}"
        );
    }
    let raw = |path: &str| platform.kubectl(&["get", "--raw", path]).ok();
    let answer: Value =
        serde_json::from_str(&raw("/api/v1/jobs/default/vcjobs/both/explain")).unwrap();
    assert_eq!(
        (&answer["state"], &answer["sentence"]),
        (&json!("Terminated"), &json!(words))
    );
    let page = raw("/ui/jobs/default/vcjobs/both");
    assert!(
        page.contains(words) && page.contains("both-other-1"),
        "{page}"
    );
    let list = raw("/ui/jobs");
    assert!(list.contains("/ui/jobs/default/vcjobs/both"), "{list}");
    assert_eq!(platform.cli(&["logs", "both"]).ok(), "rank 0\n");
    assert_eq!(
        platform.cli(&["logs", "vcjob/both", "--rank", "2"]).ok(),
        "other\n"
    );
    let beyond = platform.cli(&["logs", "both", "--rank", "3"]);
    assert!(
        beyond.err.contains("has 3 replicas, so no rank 3"),
        "{beyond:?}"
    );
    let described = platform.cli(&["describe", "vcjob", "both"]).ok();
    for part in [
        "State:       Terminated",
        "first",
        "both-first-0",
        "Error (3)",
    ] {
        assert!(described.contains(part), "{part}: {described}");
    }
    let listed = platform.cli(&["get", "vcjobs"]).ok();
    assert!(listed.contains("Terminated"), "{listed}");
    platform.cli(&["cancel", "vcjob/both"]).ok();
    platform
        .cli(&["wait", "vcjob/both", "--for", "delete"])
        .ok();

    let refused = platform.manifest(
        "refused.yaml",
        &job(
            "timeouts",
            json!({"tasks": [task("t", 1, "true")], "policies": [
                {"event": "PodPending", "action": "AbortJob", "timeout": "10 minutes"}]}),
        ),
    );
    let refused = platform.cli(&["apply", "-f", &refused.display().to_string()]);
    assert!(
        refused.err.contains(
            "spec.policies[0].timeout: Invalid value: \"10 minutes\": must be a duration"
        ),
        "{refused:?}"
    );
}

#[test]
fn commands_stop_start_and_end_a_job_once() {
    let platform = Platform::up(&[]);
    platform.apply(&job(
        "j",
        json!({"tasks": [task("t", 2, "echo version; exec sleep 1000")]}),
    ));
    until(&platform, "j", "Running", SOON);
    let gone = |action: &str| {
        eventually(&format!("{action} was deleted"), SOON, || {
            let left = platform
                .kubectl(&["get", "commands.bus.volcano.sh", "-o", "name"])
                .ok();
            left.trim().is_empty().then_some(())
        });
    };
    let suspended = platform.cli(&["suspend", "vcjob/j"]).ok();
    assert_eq!(suspended, "job.batch.volcano.sh/j suspended\n");
    until(&platform, "j", "Aborted", SOON);
    gone("AbortJob");
    let pods = platform.kubectl(&["get", "pods", "-o", "name"]).ok();
    assert!(!pods.contains("j-t-"), "{pods}");
    platform.cli(&["resume", "j"]).ok();
    let status = until(&platform, "j", "Running", SOON);
    assert_eq!(
        (&status["retryCount"], &status["version"]),
        (&Value::Null, &json!(1))
    );

    // As vcctl and kubectl create them.
    let uid = platform.get("vcjob", "j")["metadata"]["uid"].clone();
    let order = |action: &str| {
        json!({"apiVersion": "bus.volcano.sh/v1alpha1", "kind": "Command",
            "metadata": {"name": action.to_ascii_lowercase(), "namespace": "default"}, "action": action,
            "target": {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "j", "uid": uid}})
        .to_string()
    };
    platform.apply(&order("RestartJob"));
    eventually("it was restarted", SOON, || {
        let status = platform.get("vcjob", "j")["status"].clone();
        (status["retryCount"] == 1 && status["state"]["phase"] == "Running").then_some(())
    });
    gone("RestartJob");
    platform.apply(&order("TerminateJob"));
    until(&platform, "j", "Terminated", SOON);
    gone("TerminateJob");
    let again = platform.cli(&["resume", "j"]);
    assert!(
        again.err.contains("nothing left to suspend or resume"),
        "{again:?}"
    );
    platform.apply(&order("ResumeJob"));
    gone("ResumeJob");
    assert_eq!(phase(&platform, "j"), "Terminated");
    let events = platform.kubectl(&["describe", "vcjob", "j"]).ok();
    assert!(
        events.contains("ResumeJob does not apply to a job that is Terminated"),
        "{events}"
    );
    let wrong = platform.manifest(
        "wrong.yaml",
        &order("ResumeJob").replace("ResumeJob", "OpenQueue"),
    );
    let refused = platform.cli(&["apply", "-f", &wrong.display().to_string()]);
    assert!(
        refused
            .err
            .contains("action: Unsupported value: \"OpenQueue\""),
        "{refused:?}"
    );
}
