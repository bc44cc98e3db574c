//! What nodes and pods use, as `kubectl top` shows it to those who may see it; and HorizontalPodAutoscalers that scale by
//! it: the seeds' by the utilisation of GPUs, and one that `kubectl autoscale` makes by CPU time.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use e2e::{Mounts, Platform, device_files, eventually, nvml_standin, repository};
use serde_json::Value;

/// An agent measures each 15 seconds, an autoscaler looks each 15 seconds, and CPU time counts once a pod was ready for
/// 15 seconds.
const SOON: Duration = Duration::from_secs(180);

const GPU_FILES: &str = r#"for minor in 0 1 2 3; do
        rm -f "$DIR/dev/nvidia$minor"; mknod -m 666 "$DIR/dev/nvidia$minor" c 195 "$minor"
    done"#;

/// Four GPUs with this utilisation in percent.
fn machine(utilisation: u8) -> String {
    let state = |gpu: usize| format!("[[state]]\ngpu = {gpu}\nutilisation = {utilisation}\n");
    let states: String = (0..4).map(state).collect();
    format!("[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81920\ncount = 4\n{states}")
}

fn deployment(name: &str, command: &str, resources: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: 1\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n      \
         terminationGracePeriodSeconds: 1\n      containers:\n      - {{name: main, command: [sh, -c, '{command}'], resources: {resources}}}\n"
    )
}

fn running(platform: &Platform, app: &str) -> usize {
    let pods = platform.kubectl(&["get", "pods", "-l", &format!("app={app}"), "--no-headers"]);
    pods.out.matches("Running").count()
}

fn condition(platform: &Platform, scaler: &str, type_: &str) -> (String, String) {
    let scaler = platform.get("hpa", scaler);
    let all = scaler["status"]["conditions"].as_array();
    let found = all.into_iter().flatten().find(|one| one["type"] == type_);
    let text = |key: &str| found.map_or("", |one| one[key].as_str().unwrap_or_default());
    (text("reason").to_owned(), text("message").to_owned())
}

#[test]
fn the_seeds_autoscaler_follows_the_utilisation_of_gpus_up_and_down() {
    e2e::require_root();
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("library");
    nvml_standin(&library);
    let platform = Platform::server(&[]);
    let mounts = Mounts::new(directory.path(), &device_files(GPU_FILES));
    let file = directory.path().join("machine.toml");
    std::fs::write(&file, machine(95)).unwrap();
    let _agent = platform.agent_with_gpus("n1", &mounts, &library, &file);
    platform.await_nodes(1);

    let seed = repository().join("../shared/seed-manifests/002-hpa-gpu.yaml");
    platform
        .kubectl(&["apply", "-f", &seed.display().to_string()])
        .ok();
    let scaler = "gpu-node-autoscaler";
    eventually("the missing target is told", SOON, || {
        let (reason, message) = condition(&platform, scaler, "AbleToScale");
        (reason == "FailedGetScale" && message.contains("\"ai-workload\" not found")).then_some(())
    });

    platform.apply(&deployment(
        "ai-workload",
        "sleep 600",
        "{limits: {nvidia.com/gpu: 1}}",
    ));
    // 95 % of one GPU at a target of 80 % asks for two, and so on; the fifth has no GPU and counts as unused.
    eventually("all four GPUs are at work", SOON, || {
        (running(&platform, "ai-workload") == 4).then_some(())
    });
    let table = platform.kubectl(&["get", "hpa", scaler]).ok();
    assert!(table.contains("nvidia.com/gpu: 95%/80%"), "{table}");
    let metrics = platform
        .kubectl(&[
            "get",
            "--raw",
            "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods",
        ])
        .ok();
    let metrics: Value = serde_json::from_str(&metrics).unwrap();
    let usage = &metrics["items"][0]["containers"][0]["usage"];
    assert_eq!(usage["nvidia.com/gpu"], "950m", "{metrics}");
    let events = platform
        .kubectl(&[
            "get",
            "events",
            "--field-selector",
            "reason=SuccessfulRescale",
        ])
        .ok();
    assert!(
        events.contains("New size: 2; reason: nvidia.com/gpu resource utilization (percentage of request) above target"),
        "{events}"
    );

    // It shrinks at once where its rules say so, and after five minutes where they say nothing.
    let at_once = r#"{"spec":{"behavior":{"scaleDown":{"stabilizationWindowSeconds":0}}}}"#;
    platform
        .kubectl(&["patch", "hpa", scaler, "--type", "merge", "-p", at_once])
        .ok();
    std::fs::write(&file, machine(10)).unwrap();
    eventually("one GPU is left at work", SOON, || {
        (running(&platform, "ai-workload") == 1).then_some(())
    });
    eventually("the bound is told", SOON, || {
        let table = platform.kubectl(&["get", "hpa", scaler]).ok();
        table.contains("nvidia.com/gpu: 10%/80%").then_some(())
    });
}

#[test]
fn top_shows_what_pods_use_to_those_who_may_see_them_and_an_autoscaler_follows_cpu_time() {
    let platform = Platform::server(&[]);
    let _agent = platform.agent("n1", None, &[]);
    platform.await_nodes(1);
    let token = |user: &str| {
        platform
            .cli(&["user", "create", user, "--no-namespaces"])
            .ok();
        let token = platform.cli(&["token", "create", "--user", user]).ok();
        token.trim().to_owned()
    };
    let (bob, eve) = (token("bob"), token("eve"));
    platform
        .kubectl(&[
            "create",
            "rolebinding",
            "bob",
            "--clusterrole=view",
            "--user=bob",
        ])
        .ok();

    platform.apply(&deployment(
        "busy",
        "while :; do :; done",
        "{requests: {cpu: 200m, memory: 16Mi}}",
    ));
    platform.apply(&deployment("unasked", "sleep 600", "{}"));
    platform
        .kubectl(&[
            "autoscale",
            "deployment",
            "busy",
            "--cpu-percent=50",
            "--min=1",
            "--max=2",
        ])
        .ok();
    platform
        .kubectl(&[
            "autoscale",
            "deployment",
            "unasked",
            "--cpu-percent=50",
            "--min=1",
            "--max=2",
        ])
        .ok();
    platform.apply(
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: wrong}\n\
         spec: {maxReplicas: 2, scaleTargetRef: {apiVersion: v1, kind: Pod, name: p}}\n",
    );

    let top = eventually("the use of the pod is shown", SOON, || {
        let top = platform.kubectl(&["top", "pods", "--no-headers"]).out;
        top.contains("busy-").then_some(top)
    });
    let line = top.lines().find(|line| line.starts_with("busy-")).unwrap();
    let columns: Vec<&str> = line.split_whitespace().collect();
    let milli = |text: &str| text.trim_end_matches('m').parse::<u64>().unwrap();
    assert!(milli(columns[1]) > 0 && columns[2].ends_with("Mi"), "{top}");
    let nodes = platform.kubectl(&["top", "nodes"]).ok();
    assert!(nodes.contains("n1") && nodes.contains('%'), "{nodes}");
    let containers = platform.kubectl(&["top", "pods", "--containers"]).ok();
    assert!(containers.contains("main"), "{containers}");

    // A caller that may read the pods sees what they use; another caller is refused.
    platform.kubectl_by(&bob, &["top", "pods"]).ok();
    for arguments in [
        &["top", "pods"][..],
        &["get", "--raw", "/apis/metrics.k8s.io/v1beta1/pods"],
    ] {
        let refused = platform.kubectl_by(&eve, arguments);
        assert_ne!(refused.code, Some(0), "{}", refused.out);
        assert!(refused.err.contains("forbidden"), "{}", refused.err);
        assert!(!refused.out.contains("busy-") && !refused.err.contains("busy-"));
    }
    let unknown = platform.kubectl(&["top", "pod", "absent"]);
    assert!(unknown.err.contains("not found"), "{}", unknown.err);

    eventually("the busy deployment has two replicas", SOON, || {
        (running(&platform, "busy") == 2).then_some(())
    });
    eventually("the limit is told", SOON, || {
        let (reason, _) = condition(&platform, "busy", "ScalingLimited");
        (reason == "TooManyReplicas").then_some(())
    });
    let described = platform.kubectl(&["describe", "hpa", "busy"]).ok();
    assert!(
        described.contains("resource cpu on pods") && described.contains("ValidMetricFound"),
        "{described}"
    );
    let why = eventually("what is missing is told", SOON, || {
        let (reason, message) = condition(&platform, "unasked", "ScalingActive");
        (reason == "FailedGetResourceMetric" && message.contains("missing request"))
            .then_some(message)
    });
    assert!(
        why.contains("missing request for cpu in container main of Pod unasked-"),
        "{why}"
    );
    let (reason, message) = condition(&platform, "wrong", "AbleToScale");
    assert_eq!(reason, "FailedGetScale");
    assert!(
        message.contains("spec.scaleTargetRef: \"v1\" \"Pod\" cannot be scaled"),
        "{message}"
    );
}
