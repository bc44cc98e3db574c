//! Pods with an image: as containers of a real containerd if the node has one, on the host if an
//! administrator allows it, and with an explanation otherwise.

use std::time::Duration;

use e2e::{Agent, Containerd, IMAGE, Platform, eventually, require_root};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(120);
/// A server, a node named `boxes` with a container runtime, and one named `plain` without.
fn two_nodes(daemon: &Containerd) -> (Platform, Vec<Agent>) {
    let platform = Platform::server(&[]);
    let socket = daemon.socket().display().to_string();
    let agents = vec![
        platform.agent("boxes", None, &["--cri", &socket]),
        platform.agent("plain", None, &[]),
    ];
    platform.await_nodes(2);
    (platform, agents)
}

/// Lets the default namespace's pods mount directories of their node.
fn allow_host_paths(platform: &Platform) {
    let label = "pod-security.kubernetes.io/enforce=privileged";
    platform
        .kubectl(&["label", "namespace", "default", label, "--overwrite"])
        .ok();
}

/// A pod of one container that runs a shell script in the image.
fn pod(name: &str, restart: &str, script: &str, more: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  restartPolicy: {restart}
  terminationGracePeriodSeconds: 60
  containers:
    - name: c
      image: {IMAGE}
      command: [sh, -c, {script:?}]
      resources: {{requests: {{cpu: 50m, memory: 16Mi}}}}
{more}"#
    )
}

fn job(name: &str, script: &str) -> String {
    format!(
        r#"apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: c
          image: {IMAGE}
          command: [/bin/sh, -c, {script:?}]
          resources: {{requests: {{cpu: 50m, memory: 16Mi}}}}
"#
    )
}

#[track_caller]
fn reaches(platform: &Platform, pod: &str, wanted: &str) -> Value {
    let begin = std::time::Instant::now();
    loop {
        let now = platform.get("pod", pod);
        if now["status"]["phase"] == wanted {
            return now;
        }
        assert!(
            begin.elapsed() < SOON,
            "pod {pod} is not {wanted}: {:#}",
            now["status"]
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[track_caller]
fn completes(platform: &Platform, job: &str) {
    let (job, seconds) = (format!("job/{job}"), SOON.as_secs().to_string());
    platform
        .cli(&[
            "wait",
            &job,
            "--for",
            "condition=Complete",
            "--timeout",
            &seconds,
        ])
        .ok();
}

fn status(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

/// The scheduler's message on the pod.
fn unschedulable(platform: &Platform, pod: &str) -> Option<String> {
    let pod = platform.get("pod", pod);
    let condition = pod["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|c| c["type"] == "PodScheduled" && c["status"] == "False")?
        .clone();
    assert_eq!(condition["reason"], "Unschedulable");
    condition["message"].as_str().map(String::from)
}

/// One containerd serves all checks: its start takes seconds.
#[test]
fn a_pod_that_names_an_image_runs_as_a_container() {
    let daemon = Containerd::start();
    let (platform, _agents) = two_nodes(&daemon);
    it_sees_its_image_its_environment_and_its_volumes(&platform);
    it_is_started_again_as_its_policy_says(&platform);
    it_is_told_and_tried_again_when_its_image_is_not_there(&platform);
    a_job_of_several_ranks_runs_in_its_image(&platform);
    it_waits_while_the_only_node_that_could_is_cordoned(&platform);
    it_ends_gracefully_when_deleted(&platform, &daemon);
    for pod in ["whole", "again", "waits"] {
        platform.cli(&["delete", "pod", pod]).ok();
    }
    platform.cli(&["cancel", "ranks"]).ok();
    eventually("nothing is left in the runtime", SOON, || {
        daemon.containers().is_empty().then_some(())
    });
}

fn it_sees_its_image_its_environment_and_its_volumes(platform: &Platform) {
    platform.apply(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {greeting: from the map, word: key}\n",
    );
    let script = "cat /etc/conf/greeting; echo; echo $FROM_IMAGE $RANK $WORD $(ls /bin/bash 2>/dev/null || echo no-bash); \
                  echo $HOSTNAME; grep -q $(hostname) /etc/hosts && echo found; touch /etc/conf/x 2>/dev/null || echo refused; touch /scratch/x && echo scratched; \
                  echo last words > /dev/termination-log; exit 7";
    let more = r#"      env:
        - {name: RANK, value: "3"}
        - name: WORD
          valueFrom: {configMapKeyRef: {name: conf, key: word}}
      volumeMounts:
        - {name: conf, mountPath: /etc/conf}
        - {name: scratch, mountPath: /scratch}
  volumes:
    - {name: conf, configMap: {name: conf}}
    - {name: scratch, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
"#;
    platform.apply(&pod("whole", "Never", script, more));
    let ended = reaches(platform, "whole", "Failed");
    assert_eq!(ended["spec"]["nodeName"], "boxes");
    let state = &status(&ended)["state"]["terminated"];
    assert_eq!(state["exitCode"], 7, "{state}");
    assert_eq!(state["reason"], "Error", "{state}");
    assert_eq!(state["message"], "last words\n", "{state}");
    assert_eq!(status(&ended)["image"], IMAGE);
    assert_eq!(
        platform.cli(&["logs", "whole"]).ok(),
        "from the map\nyes 3 key no-bash\nwhole\nfound\nrefused\nscratched\n"
    );
}

fn it_is_started_again_as_its_policy_says(platform: &Platform) {
    let script = "echo try; [ -e /scratch/tried ] && exit 0; touch /scratch/tried; exit 3";
    let more = "      volumeMounts: [{name: scratch, mountPath: /scratch}]\n  volumes: [{name: scratch, emptyDir: {}}]\n";
    platform.apply(&pod("again", "OnFailure", script, more));
    let ended = reaches(platform, "again", "Succeeded");
    let status = status(&ended);
    assert_eq!(status["restartCount"], 1);
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 3);
    assert_eq!(platform.cli(&["logs", "again"]).ok(), "try\n");
    assert_eq!(platform.cli(&["logs", "again", "--previous"]).ok(), "try\n");
}

fn it_is_told_and_tried_again_when_its_image_is_not_there(platform: &Platform) {
    let absent = pod("absent", "Never", "true", "")
        .replace(IMAGE, "localhost/absent:1\n      imagePullPolicy: Never");
    platform.apply(&absent);
    eventually("the missing image is told", SOON, || {
        let pod = platform.get("pod", "absent");
        assert_ne!(pod["status"]["phase"], "Failed", "{}", pod["status"]);
        let waiting = &status(&pod)["state"]["waiting"];
        (waiting["reason"] == "ErrImageNeverPull"
            && waiting["message"].as_str()?.contains("localhost/absent:1"))
        .then_some(())
    });
    platform.cli(&["delete", "pod", "absent"]).ok();
    eventually("it is gone", SOON, || {
        platform.get("pod", "absent").is_null().then_some(())
    });
}

fn a_job_of_several_ranks_runs_in_its_image(platform: &Platform) {
    let template = format!(
        r#"
      template:
        spec:
          containers:
            - name: pytorch
              image: {IMAGE}
              command: [sh, -c, 'echo rank $RANK of $WORLD_SIZE; grep $MASTER_ADDR /etc/hosts']
              resources: {{requests: {{cpu: 50m, memory: 16Mi}}}}
"#
    );
    platform.apply(&format!(
        r#"apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {{name: ranks}}
spec:
  runPolicy: {{cleanPodPolicy: None}}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: Never{template}
    Worker:
      replicas: 1
      restartPolicy: Never{template}
"#
    ));
    platform
        .cli(&["wait", "pytorchjob/ranks", "--timeout", "120"])
        .ok();
    reaches(platform, "ranks-worker-0", "Succeeded");
    let log = platform.cli(&["logs", "ranks", "--rank", "1"]).ok();
    assert!(log.contains("rank 1 of 2\n"), "{log}");
    assert!(log.contains("ranks-master-0"), "{log}");
}

fn it_waits_while_the_only_node_that_could_is_cordoned(platform: &Platform) {
    platform.kubectl(&["cordon", "boxes"]).ok();
    platform.apply(&pod("waits", "Never", "echo ran", ""));
    let why = eventually("it is explained", SOON, || unschedulable(platform, "waits"));
    assert!(why.starts_with("0/2 nodes are available: "), "{why}");
    assert!(
        why.contains("1 node(s) had no runtime for container images"),
        "{why}"
    );
    assert!(why.contains("1 node(s) were unschedulable"), "{why}");
    platform.apply(&job("batch", "echo ran"));
    let explained = eventually("the job is explained", SOON, || {
        let ran = platform.cli(&["explain", "job/batch"]);
        ran.out
            .contains("0/2 nodes are available")
            .then_some(ran.out)
    });
    println!("{explained}");
    assert!(
        explained.contains("1 of 2 nodes can run images: boxes (cordoned)"),
        "{explained}"
    );
    platform.kubectl(&["uncordon", "boxes"]).ok();
    completes(platform, "batch");
    platform.cli(&["delete", "job", "batch"]).ok();
    reaches(platform, "waits", "Succeeded");
    assert_eq!(platform.cli(&["logs", "waits"]).ok(), "ran\n");
}

fn it_ends_gracefully_when_deleted(platform: &Platform, daemon: &Containerd) {
    allow_host_paths(platform);
    let out = daemon.directory().join("out");
    std::fs::create_dir(&out).expect("a directory");
    // The container runs as its namespace's own user.
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    std::fs::set_permissions(&out, everyone).expect("its mode");
    let script =
        "trap 'sleep 1; echo bye > /out/bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done";
    let more = format!(
        "      volumeMounts: [{{name: out, mountPath: /out}}]\n  volumes: [{{name: out, hostPath: {{path: {}}}}}]\n",
        out.display()
    );
    platform.apply(&pod("trapped", "Always", script, &more));
    eventually("it is ready", SOON, || {
        (platform.cli(&["logs", "trapped"]).out == "ready\n").then_some(())
    });
    platform.cli(&["delete", "pod", "trapped"]).ok();
    eventually("it is gone", SOON, || {
        platform.get("pod", "trapped").is_null().then_some(())
    });
    assert_eq!(
        std::fs::read_to_string(out.join("bye")).unwrap_or_default(),
        "bye\n"
    );
}

#[test]
fn a_container_runs_on_while_its_agent_is_dead_and_is_found_again() {
    let daemon = Containerd::start();
    let (platform, mut agents) = two_nodes(&daemon);
    allow_host_paths(&platform);
    let out = daemon.directory().join("out");
    std::fs::create_dir(&out).unwrap();
    // The container runs as its namespace's own user.
    let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    std::fs::set_permissions(&out, everyone).unwrap();
    let script = "i=0; until [ -e /out/go ]; do i=$((i+1)); echo count $i; sleep 0.2; done; echo end; touch /out/done";
    let more = format!(
        "      volumeMounts: [{{name: out, mountPath: /out}}]\n  volumes: [{{name: out, hostPath: {{path: {}}}}}]\n",
        out.display()
    );
    platform.apply(&pod("steady", "OnFailure", script, &more));
    let before = reaches(&platform, "steady", "Running");
    let lines = || platform.cli(&["logs", "steady"]).out.lines().count();
    eventually("it counts", SOON, || (lines() > 0).then_some(()));

    let agent = &mut agents[0];
    agent.kill();
    agent.restart();
    let then = eventually("its log is read again", SOON, || {
        Some(lines()).filter(|count| *count > 0)
    });
    eventually("it counts on", SOON, || (lines() > then).then_some(()));
    let after = platform.get("pod", "steady");
    assert_eq!(
        status(&after)["state"],
        status(&before)["state"],
        "it was started again"
    );
    assert_eq!(status(&after)["restartCount"], 0);

    // Containers that end while the agent is dead are reported when it is back.
    agent.kill();
    std::fs::write(out.join("go"), "").unwrap();
    eventually("it ended", SOON, || out.join("done").exists().then_some(()));
    agent.restart();
    let ended = reaches(&platform, "steady", "Succeeded");
    assert_eq!(
        status(&ended)["state"]["terminated"]["startedAt"],
        status(&before)["state"]["running"]["startedAt"]
    );
    let log = platform.cli(&["logs", "steady", "--tail", "1"]).ok();
    assert_eq!(log, "end\n");

    // An agent that has lost its pods' records removes their containers from the runtime.
    assert!(!daemon.containers().is_empty());
    agent.kill();
    std::fs::remove_dir_all(agent.data.join("agent/pods")).unwrap();
    agent.restart();
    eventually("nothing is left in the runtime", SOON, || {
        daemon.containers().is_empty().then_some(())
    });
}

#[test]
fn an_image_that_no_node_can_run_is_explained_and_runs_on_the_host_where_that_is_allowed() {
    require_root();
    let platform = Platform::server(&[]);
    let _plain = platform.agent("plain", None, &[]);
    platform.await_nodes(1);
    // The same manifest then runs on the host, so that its command must exist there.
    let script = "echo on $(cat /proc/1/comm); exit 0";
    platform.apply(&pod("lone", "Never", script, "").replace("[sh,", "[/bin/sh,"));
    platform.apply(&job("batch", script));

    let words = "0/1 nodes are available: 1 node(s) had no runtime for container images";
    let why = eventually("the pod is explained", SOON, || {
        unschedulable(&platform, "lone")
    });
    assert!(why.contains(words), "{why}");
    let explained = eventually("the job is explained", SOON, || {
        let ran = platform.cli(&["explain", "job/batch"]);
        ran.out.contains(words).then_some(ran.out)
    });
    println!("{explained}");
    assert!(
        explained.contains("the only node has no container runtime"),
        "{explained}"
    );
    assert!(
        explained.contains("a node with a container runtime"),
        "{explained}"
    );
    assert_eq!(platform.phase("lone"), "Pending");

    let _host = platform.agent("host", None, &["--host-images"]);
    let ended = reaches(&platform, "lone", "Succeeded");
    assert_eq!(ended["spec"]["nodeName"], "host");
    let log = platform.cli(&["logs", "lone"]).ok();
    assert!(log.starts_with("on "), "{log}");
    completes(&platform, "batch");
}
