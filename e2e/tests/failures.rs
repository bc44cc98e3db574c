//! Failures made on purpose, with real programs: the sentence about each, its class and what followed it are the same
//! in the CLI, the REST API, the job's condition and events, and on the job's page; and `muster.io/on-failure` decides
//! what follows.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Agent, Network, Platform, eventually, repository, run};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);

/// A job of a master and one worker that run the same command.
fn job(name: &str, policy: &str, limit: u32, command: &Value) -> Value {
    let replica = json!({"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "pytorch", "command": command, "resources": {
            "requests": {"cpu": "50m", "memory": "16Mi"}, "limits": {"memory": "256Mi"}}}]}}});
    json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default", "annotations": {"muster.io/on-failure": policy}},
        "spec": {"runPolicy": {"backoffLimit": limit},
            "pytorchReplicaSpecs": {"Master": replica, "Worker": replica}}})
}

fn shell(script: &str) -> Value {
    json!(["/bin/sh", "-c", script])
}

fn python(rank: u32, program: &str) -> Value {
    let other = "import time\ntime.sleep(1000)";
    let script = format!(
        "if [ \"$RANK\" = {rank} ]; then exec python3 -c \"$P\"; else exec python3 -c \"$Q\"; fi"
    );
    shell(&format!("P='{program}'\nQ='{other}'\n{script}"))
}

fn raw(platform: &Platform, path: &str) -> String {
    platform.kubectl(&["get", "--raw", path]).ok()
}

/// The text of a page, with its characters as a reader sees them.
fn page(platform: &Platform, name: &str, tab: &str) -> String {
    let page = raw(
        platform,
        &format!("/ui/jobs/default/pytorchjobs/{name}?tab={tab}"),
    );
    let entities = [
        ("&#39;", "'"),
        ("&#34;", "\""),
        ("&quot;", "\""),
        ("&#60;", "<"),
        ("&lt;", "<"),
        ("&#62;", ">"),
        ("&gt;", ">"),
        ("&#38;", "&"),
        ("&amp;", "&"),
    ];
    entities
        .iter()
        .fold(page, |page, (entity, text)| page.replace(entity, text))
}

fn explained(platform: &Platform, name: &str) -> Value {
    let path = format!("/api/v1/jobs/default/pytorchjobs/{name}/explain");
    serde_json::from_str(&raw(platform, &path)).unwrap()
}

fn condition(platform: &Platform, name: &str, type_: &str) -> Option<String> {
    let job = platform.get("pytorchjob", name);
    let conditions = job["status"]["conditions"].as_array()?;
    let found = conditions
        .iter()
        .find(|one| one["type"] == type_ && one["status"] == "True")?;
    found["message"].as_str().map(str::to_owned)
}

/// Waits until the job has failed, and checks that every face says the same about it.
fn fails(platform: &Platform, name: &str, class: &str, sentence: &str) {
    let message = eventually(&format!("{name} fails"), SOON, || {
        condition(platform, name, "Failed")
    });
    let answer = explained(platform, name);
    let said = answer["sentence"].as_str().unwrap();
    assert!(said.starts_with(sentence), "{name}: {said}");
    assert_eq!(
        (&answer["class"], &answer["action"]),
        (&json!(class), &json!("fail")),
        "{answer:#}"
    );
    assert!(message.contains(said), "{name}: {message}");
    let cli = platform.cli(&["explain", name]).ok();
    for part in [said, class, "action      fail"] {
        assert!(cli.contains(part), "{part}: {cli}");
    }
    let summary = page(platform, name, "summary");
    assert!(
        summary.contains(said) && summary.contains(class),
        "{summary}"
    );
    let events = platform.cli(&["describe", "pytorchjob", name]).ok();
    assert!(events.contains(said), "{events}");
    let listed = page(platform, name, "events");
    assert!(listed.contains(said), "{listed}");
}

/// Waits until the job has gone on after a failure, and checks that every face says the same about it.
fn goes_on(platform: &Platform, name: &str, class: &str, action: &str, sentence: &str) {
    let last = eventually(&format!("{name} runs again"), SOON, || {
        let last = explained(platform, name)["lastFailure"].clone();
        let runs = condition(platform, name, "Running").is_some();
        (runs && last["class"] == class).then_some(last)
    });
    let said = last["sentence"].as_str().unwrap();
    assert!(said.starts_with(sentence), "{name}: {said}");
    assert_eq!(last["action"], action, "{last:#}");
    let cli = platform.cli(&["explain", name]).ok();
    assert!(
        cli.contains(said) && cli.contains(class) && cli.contains(action),
        "{cli}"
    );
    let summary = page(platform, name, "summary");
    assert!(
        summary.contains(said) && summary.contains(action),
        "{summary}"
    );
    let events = platform.cli(&["describe", "pytorchjob", name]).ok();
    assert!(events.contains(said), "{events}");
}

fn uid(platform: &Platform, pod: &str) -> String {
    platform.get("pod", pod)["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn runs(platform: &Platform, name: &str) {
    eventually(&format!("{name} runs"), SOON, || {
        let all = ["master", "worker"].iter();
        let mut phases = all.map(|role| platform.phase(&format!("{name}-{role}-0")));
        phases.all(|phase| phase == "Running").then_some(())
    });
}

#[test]
fn each_failure_of_a_program_has_its_class_and_the_same_sentence_everywhere() {
    let platform = Platform::up(&[]);
    let apply = |name: &str, policy: &str, limit: u32, command: &Value| {
        platform.apply(&job(name, policy, limit, command).to_string());
    };
    // A typo is not tried again, although the default restarts.
    apply("typo", "default=restart-gang", 6, &python(1, "def load(:"));
    // A module that does not exist, of a job that says fail for its class.
    apply(
        "raises",
        "python-error=fail,default=restart-gang",
        6,
        &python(
            1,
            "import time\ndef load(shard):\n    raise ValueError(f\"bad shard {shard}\")\nload(17)",
        ),
    );
    apply(
        "command",
        "default=restart-gang",
        6,
        &json!(["pyhton3", "-c", "1"]),
    );
    apply(
        "code",
        "default=restart-rank",
        1,
        &shell("[ $RANK = 0 ] && exec sleep 1000; echo no disk >&2; exit 7"),
    );
    apply(
        "memory",
        "out-of-memory=fail",
        6,
        &python(
            1,
            "import os\nos.dup2(2, 1)\nblock = bytearray(2000000000)\nprint(len(bytes(block)))",
        ),
    );
    fails(
        &platform,
        "typo",
        "python-error",
        "Rank 1 (typo-worker-0) exited with code 1: SyntaxError: ",
    );
    fails(
        &platform,
        "raises",
        "python-error",
        "Rank 1 (raises-worker-0) exited with code 1: ValueError: bad shard 17 (<string> line 3, in load)",
    );
    fails(&platform, "command", "start-error", "Rank ");
    let command = explained(&platform, "command")["sentence"].to_string();
    assert!(
        command.contains(" did not start: exec: \\\"pyhton3\\\": not found"),
        "{command}"
    );
    fails(
        &platform,
        "code",
        "exit-code",
        "Rank 1 (code-worker-0) exited with code 7 after 2 attempts: no disk",
    );
    fails(
        &platform,
        "memory",
        "out-of-memory",
        "Rank 1 (memory-worker-0) ran out of memory (exit code 137, OOMKilled): its memory limit is 256Mi",
    );

    // A rank is killed: all ranks start anew, as another attempt that meets elsewhere.
    apply(
        "killed",
        "signal=restart-gang",
        6,
        &shell("echo attempt $MUSTER_ATTEMPT port $MASTER_PORT; exec sleep 1000"),
    );
    runs(&platform, "killed");
    let master = uid(&platform, "killed-master-0");
    let said = platform.cli(&["logs", "killed"]).ok();
    let process = eventually("its process", SOON, || {
        platform.pod_process("killed-worker-0")
    });
    run(std::process::Command::new("kill").args(["-9", &process.to_string()])).ok();
    goes_on(
        &platform,
        "killed",
        "signal",
        "restart-gang",
        "Rank 1 (killed-worker-0) was killed by SIGKILL (exit code 137)",
    );
    runs(&platform, "killed");
    assert_ne!(
        uid(&platform, "killed-master-0"),
        master,
        "the other rank ran on"
    );
    let again = eventually("the second attempt prints", SOON, || {
        let log = platform.cli(&["logs", "killed"]).out;
        log.starts_with("attempt 1 ").then_some(log)
    });
    let port = |log: &str| log.trim().rsplit(' ').next().map(str::to_owned);
    assert!(
        said.starts_with("attempt 0 ") && port(&said) != port(&again),
        "{said}{again}"
    );

    // Admission refuses what no controller could follow.
    let wrong = platform.manifest(
        "wrong.yaml",
        &job("wrong", "oom=retry", 1, &shell("true")).to_string(),
    );
    let refused = platform.cli(&["apply", "-f", &wrong.display().to_string()]);
    let words = "metadata.annotations[muster.io/on-failure]: Invalid value: \"oom=retry\": \"oom\" is no class";
    assert!(
        refused.err.contains("\"retry\" is no action") || refused.err.contains(words),
        "{refused:?}"
    );
    assert_ne!(refused.code, Some(0));
}

/// A server on a bridge and two nodes.
fn two_nodes() -> (Network, Platform, Vec<Agent>) {
    let network = Network::new(2);
    let port = 20_000 + std::process::id() % 10_000;
    let listen = format!("{}:{port}", network.host());
    let platform = Platform::server_on(&listen, &["--node-grace", "10"]);
    let nodes = network.nodes.iter().enumerate();
    let agents = nodes.map(|(i, node)| {
        let arguments = ["--node-address", node.address.as_str()];
        platform.agent(&format!("node-{i}"), Some(node), &arguments)
    });
    let agents = agents.collect();
    platform.await_nodes(2);
    (network, platform, agents)
}

#[test]
fn what_the_platform_does_to_a_rank_is_told_and_charged_to_no_budget() {
    let (_network, platform, mut agents) = two_nodes();
    // No failure of its own is forgiven: backoffLimit is 0.
    let policy = "default=restart-gang,node-lost=restart-gang+exclude-node";
    let flag = platform.manifest("fails", "");
    std::fs::remove_file(&flag).unwrap();
    let wait = format!(
        "while [ $RANK = 0 ] || [ ! -e {} ]; do sleep 0.2; done; exit 9",
        flag.display()
    );
    let job = job("train", policy, 0, &shell(&wait));
    platform.apply(&job.to_string());
    runs(&platform, "train");
    let node_of = |pod: &str| {
        platform.get("pod", pod)["spec"]["nodeName"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };

    // A drain of the worker's node.
    let drained = node_of("train-worker-0");
    platform.cli(&["node", "drain", &drained]);
    goes_on(&platform, "train", "evicted", "restart-gang", "Rank ");
    platform.cli(&["node", "uncordon", &drained]);
    runs(&platform, "train");

    // The loss of a node.
    let lost = node_of("train-worker-0");
    let index: usize = lost.trim_start_matches("node-").parse().unwrap();
    agents[index].kill();
    goes_on(&platform, "train", "node-lost", "restart-gang", "Rank ");
    let job = platform.get("pytorchjob", "train");
    let recovery: Value = serde_json::from_str(
        job["metadata"]["annotations"]["muster.io/recovery"]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    assert!(recovery["charged"].is_null(), "{recovery}");
    assert_eq!(recovery["excluded"], json!([lost]));
    runs(&platform, "train");
    for pod in ["train-master-0", "train-worker-0"] {
        assert_ne!(node_of(pod), lost, "{pod} is on the excluded node");
    }

    // Its own failure is one too many.
    std::fs::write(&flag, "").unwrap();
    fails(
        &platform,
        "train",
        "exit-code",
        "Rank 1 (train-worker-0) exited with code 9",
    );
}

#[test]
fn a_preempted_gang_starts_anew_when_there_is_room_and_keeps_its_budget() {
    let machine = repository().join("packaging/examples/machines/4x-h100.toml");
    let platform = Platform::up(&["--machine", &machine.display().to_string()]);
    platform.apply("{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: urgent}, value: 1000}");
    let with_gpus = |name: &str, priority: &str| {
        let mut job = job(name, "default=restart-gang", 0, &shell("exec sleep 1000"));
        job["spec"]["runPolicy"]["schedulingPolicy"] = json!({"priorityClass": priority});
        for role in ["Master", "Worker"] {
            let containers =
                &mut job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]["containers"];
            containers[0]["resources"]["limits"]["nvidia.com/gpu"] = json!(2);
        }
        job.to_string()
    };
    platform.apply(&with_gpus("low", ""));
    runs(&platform, "low");
    platform.apply(&with_gpus("urgent", "urgent"));
    runs(&platform, "urgent");
    let waits = eventually("it waits, and says what ended it", SOON, || {
        let answer = explained(&platform, "low");
        let waits = answer["report"].is_object() && answer["lastFailure"]["class"] == "preempted";
        waits.then_some(answer)
    });
    assert_eq!(waits["lastFailure"]["charged"], false, "{waits:#}");
    platform.cli(&["cancel", "urgent"]).ok();
    goes_on(&platform, "low", "preempted", "restart-gang", "Rank ");
    assert_eq!(
        platform.get("pod", "low-master-0")["metadata"]["labels"]["muster.io/attempt"],
        "1"
    );
}
