//! The scheduler from its operator's view: configured by a file; the CLI and REST explain in the
//! same terms why a job waits, which pods it could evict, when it may start, and the earlier
//! decisions.

use std::process::Command;
use std::time::Duration;

use e2e::{Platform, eventually, muster, repository, run};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

/// No evictions, and no start out of order.
const CONFIG: &str = "apiVersion: muster.io/v1alpha1
kind: SchedulerConfig
spec:
  actions: [allocate]
  placement: pack
";

/// A queue with a quota, a limit for each user, and two priorities.
const RULES: &str = "apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata:
  name: research
  annotations: {muster.io/user-limit: '{\"nvidia.com/gpu\": \"8\"}'}
spec:
  weight: 3
  deserved: {nvidia.com/gpu: '2'}
  guarantee: {resource: {nvidia.com/gpu: '1'}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: urgent}
value: 1000
";

fn job(name: &str, gpus: usize, priority: &str) -> String {
    format!(
        "apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {name}
  annotations: {{muster.io/walltime: 2h, muster.io/user: ann}}
spec:
  runPolicy: {{schedulingPolicy: {{queue: research, priorityClass: '{priority}'}}}}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
            - name: pytorch
              command: [sleep, '600']
              resources:
                requests: {{cpu: 50m, memory: 32Mi}}
                limits: {{nvidia.com/gpu: {gpus}}}
"
    )
}

#[test]
fn a_server_does_not_start_with_a_configuration_that_can_not_be_read() {
    let directory = tempfile::tempdir().unwrap();
    for (text, parts) in [
        (
            CONFIG.replace("allocate", "alocate"),
            [
                "spec.actions",
                "\"alocate\"",
                "write one of allocate, consolidate",
            ],
        ),
        (
            CONFIG.replace("  actions", "  acts"),
            [
                "spec: \"acts\" is not usable",
                "one of the fields",
                "reserveAfter",
            ],
        ),
        (
            "[".to_owned(),
            ["--scheduler-config", "config.yaml", "is not YAML"],
        ),
    ] {
        let file = directory.path().join("config.yaml");
        std::fs::write(&file, text).unwrap();
        let data = directory.path().join("data");
        let mut server = Command::new(muster());
        server
            .arg("--data")
            .arg(&data)
            .args(["server", "--listen", "127.0.0.1:0"]);
        let ran = run(server.arg("--scheduler-config").arg(&file));
        assert_ne!(ran.code, Some(0));
        for part in parts {
            assert!(
                ran.err.contains(part),
                "{part:?} is missing in\n{}",
                ran.err
            );
        }
    }
}

#[test]
fn who_waits_is_told_why_whom_it_could_evict_when_it_may_start_and_what_was_decided() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("scheduler.yaml");
    std::fs::write(&config, CONFIG).unwrap();
    let machine = repository().join("packaging/examples/machines/4x-h100.toml");
    let platform = Platform::up(&[
        "--machine",
        &machine.display().to_string(),
        "--scheduler-config",
        &config.display().to_string(),
    ]);
    let out = |arguments: &[&str]| platform.cli(arguments).ok();
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&out(&[arguments, &["-o", "json"]].concat())).unwrap()
    };
    platform.apply(RULES);
    platform.apply(&job("first", 4, ""));
    eventually("the first runs", SOON, || {
        (platform.get("pod", "first-master-0")["status"]["phase"] == "Running").then_some(())
    });
    platform.apply(&job("second", 4, "urgent"));
    let told = eventually("the second is told when it may start", SOON, || {
        let told = json(&["explain", "second"]);
        told["may_start"].is_string().then_some(told)
    });
    let text = |field: &str| told[field].as_str().unwrap().to_owned();
    assert!(
        text("binding").contains("0 of 4 nvidia.com/gpu are free"),
        "{told}"
    );
    assert!(text("may_start").contains("most likely between"), "{told}");
    assert_eq!(
        text("evictions"),
        "no pods are evicted for it: evictions are switched off"
    );
    assert_eq!(
        text("could_evict"),
        "it would start now if evicted: 1 member of default/first (Preempted)"
    );
    assert_eq!(told["victims"][0]["group"], "first");
    let shown = out(&["explain", "second"]);
    for field in [
        "binding",
        "would_fit",
        "may_start",
        "evictions",
        "could_evict",
    ] {
        // Only the estimate changes between two requests.
        if field != "may_start" {
            assert!(shown.contains(&text(field)), "{field} is not in\n{shown}");
        }
    }
    assert!(
        shown.contains("may start") && shown.contains("rejected    1 node(s)"),
        "{shown}"
    );

    let history = json(&["explain", "second", "--history"]);
    let items = history["items"].as_array().unwrap();
    assert_eq!(items.last().unwrap()["decision"], "pending", "{history}");
    assert!(
        items.last().unwrap()["firstEstimate"].is_object(),
        "{history}"
    );
    let bound = out(&["explain", "first", "--history"]);
    assert!(
        bound.contains("1 pod placed: first-master-0 on "),
        "{bound}"
    );
    let unknown = platform.cli(&["explain", "third", "--history"]);
    assert_eq!(unknown.code, Some(3), "{unknown:?}");

    let queue = out(&["queue", "research"]);
    let row = queue
        .lines()
        .find(|line| line.starts_with("nvidia.com/gpu "))
        .unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        cells,
        [
            "nvidia.com/gpu",
            "4",
            "8",
            "4",
            "2",
            "1",
            "2",
            "-",
            "8",
            "-"
        ],
        "{queue}"
    );
    for part in [
        "weight     3",
        "ann",
        "nvidia.com/gpu=4",
        "first in line: default/second",
    ] {
        assert!(queue.contains(part), "{part:?} is missing in\n{queue}");
    }
    let said = json(&["queue", "research"]);
    assert_eq!(said["state"], "Open");
    assert_eq!(said["users"]["ann"]["nvidia.com/gpu"], "4");
    assert_eq!(platform.cli(&["queue", "nosuch"]).code, Some(3));

    let tidy = out(&["defragmentation"]);
    assert!(
        tidy.starts_with("Defragmentation would move nothing"),
        "{tidy}"
    );
    assert_eq!(json(&["defragmentation"])["report"]["enabled"], false);

    // A pod without a job gets the same explanation.
    platform.apply(
        "apiVersion: v1
kind: Pod
metadata: {name: alone}
spec:
  restartPolicy: Never
  containers:
    - {name: main, command: ['true'], resources: {limits: {nvidia.com/gpu: 3}}}
",
    );
    let alone = eventually("the pod has a report", SOON, || {
        let told = json(&["explain", "pod/alone"]);
        told["report"].is_object().then_some(told)
    });
    assert!(
        alone["binding"].as_str().unwrap().contains("0 of 4"),
        "{alone}"
    );
    out(&["delete", "pod", "alone"]);

    // A deleted job still has its history.
    out(&["delete", "pytorchjob", "first"]);
    eventually("the second runs", SOON, || {
        let history = platform.cli(&["explain", "second", "--history"]).out;
        history
            .contains("1 pod placed: second-master-0")
            .then_some(())
    });
    let gone = out(&["explain", "first", "--history"]);
    assert!(gone.contains("first-master-0"), "{gone}");
}

#[test]
fn work_that_named_a_queue_before_it_was_another_teams_waits_and_says_why() {
    let platform = Platform::up(&[]);
    let annotated = |name: &str| {
        format!(
            "apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
  annotations: {{scheduling.volcano.sh/queue-name: theirs}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          command: ['true']
          resources: {{requests: {{cpu: 10m, memory: 16Mi}}}}
"
        )
    };
    platform.apply(&annotated("early"));
    let explained = |words: &str| {
        eventually(words, SOON, || {
            let told = platform.cli(&["explain", "job/early"]).ok();
            told.contains(words).then_some(())
        });
    };
    explained("queue theirs does not exist");
    platform.apply(
        "apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: theirs}
spec:
  weight: 1
  namespaceSelector: {matchLabels: {team: theirs}}
",
    );
    explained("queue theirs admits no work from namespace default");
    let label = ["label", "namespace", "default", "team=theirs"];
    platform.kubectl(&label).ok();
    eventually("the job has run", SOON, || {
        let job = platform.get("jobs", "early");
        (job["status"]["succeeded"] == 1).then_some(())
    });
}
