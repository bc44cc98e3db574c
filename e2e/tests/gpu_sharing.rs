//! Pods that share a GPU on the embedded engine: the scheduler's choice, MPS with its limits, and the action on a pod
//! that takes more than its share. GPUs and their processes are described in a file, and NVIDIA's control program is
//! a stand-in, because the test machines have no GPU.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::{Platform, eventually, free_address, get, repository, run};

const SOON: Duration = Duration::from_secs(120);
const UUIDS: [&str; 2] = ["GPU-first", "GPU-second"];
const OTHERS: [&str; 2] = ["GPU-third", "GPU-fourth"];

/// Two GPUs in these states, replaced atomically.
fn describe(file: &Path, states: &str) {
    describe_as(file, UUIDS, states);
}

/// Like `describe`, with these UUIDs.
fn describe_as(file: &Path, ids: [&str; 2], states: &str) {
    let gpus = format!(
        "[machine]\n[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 80000\ncount = 2\n\
         compute_capability = \"9.0\"\nid = {ids:?}\n"
    );
    let partial = file.with_extension("partial");
    std::fs::write(&partial, format!("{gpus}{states}")).unwrap();
    std::fs::rename(partial, file).unwrap();
}

/// A pod with this share of a GPU, which prints its name and its MPS settings.
fn pod(name: &str, fraction: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, annotations: {{muster.io/gpu-fraction: '{fraction}'}}}}\n\
         spec:\n  restartPolicy: Never\n  containers:\n    - name: main\n      command:\n        - sh\n        - -c\n        \
         - echo $HOSTNAME $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT \
         $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; exec sleep 600\n      resources: {{requests: {{cpu: 50m}}}}\n"
    )
}

#[test]
fn pods_share_a_gpu_by_mps_within_their_limits_and_one_that_takes_more_is_ended() {
    let platform = Platform::server(&[]);
    let description = platform.manifest("machine.toml", "");
    describe(&description, "");
    let daemons: PathBuf = description.with_file_name("mps");
    let standin = repository().join("internal/devices/testing/mps-control-standin");
    let address = free_address();
    let [machine, directory, control] =
        [&description, &daemons, &standin].map(|path| path.display().to_string());
    let arguments = [
        "--machine",
        &machine,
        "--mps",
        "all",
        "--mps-control",
        &control,
        "--mps-dir",
        &directory,
        "--over-share",
        "end",
        "--metrics",
        &address,
    ];
    let agent = platform.agent("gpus", None, &arguments);
    platform.await_nodes(1);
    let node = platform.get("node", "gpus");
    let strategy = &node["metadata"]["labels"]["nvidia.com/gpu.sharing-strategy"];
    assert_eq!(strategy, "mps");

    // Both pods are on one GPU, as the scheduler packs them, each within its own limits.
    for (name, fraction) in [("small", "0.25"), ("large", "0.5")] {
        platform.apply(&pod(name, fraction));
    }
    let said = |name: &str| -> Vec<String> {
        eventually(&format!("{name} says what it has"), SOON, || {
            let log = platform.cli(&["logs", name]).out;
            let words: Vec<String> = log.split_whitespace().map(str::to_owned).collect();
            (words.len() == 5).then_some(words)
        })
    };
    let (small, large) = (said("small"), said("large"));
    let gpu = small[1].clone();
    assert!(UUIDS.contains(&&*gpu), "{gpu}");
    let pipe = daemons.join(&gpu).join("pipe").display().to_string();
    assert_eq!(small[1..], [&*gpu, &pipe, "0=20000M", "25"]);
    assert_eq!(large[1..], [&*gpu, &pipe, "0=40000M", "50"]);

    // The agent watches each pod's memory; one takes more than its share.
    let place = UUIDS.iter().position(|id| *id == gpu).unwrap();
    let process = |name: &str| {
        let runs = format!("{name} runs");
        eventually(&runs, SOON, || platform.pod_process(name))
    };
    let numbers = [process("small"), process("large")];
    let processes = |small_mib: u32| {
        let states = format!(
            "[[state]]\ngpu = {place}\nprocesses = [\n{{ pid = {}, memory_mib = {small_mib}, mps = true }},\n\
             {{ pid = {}, memory_mib = 39000, mps = true }},\n]\n",
            numbers[0], numbers[1]
        );
        describe(&description, &states);
    };
    processes(19_000);
    let metric = |name: &str, pod: &str| {
        let (_, page) = get(&address, "/metrics").unwrap();
        let named = format!("pod=\"{pod}\"");
        let mut lines = page.lines();
        let line = lines.find(|line| line.starts_with(name) && line.contains(&named))?;
        line.rsplit_once(' ').map(|(_, value)| value.to_owned())
    };
    eventually("what they have is measured", SOON, || {
        let used = metric("muster_gpu_share_used_bytes", "small")?;
        (used == (19_000u64 << 20).to_string()).then_some(())
    });
    assert_eq!(
        metric("muster_gpu_over_share", "small").as_deref(),
        Some("0")
    );
    processes(21_500);
    let phase = |name: &str| platform.get("pod", name)["status"]["phase"].clone();
    eventually("the pod that takes more is ended", SOON, || {
        (phase("small") == "Failed").then_some(())
    });
    let events = platform.cli(&["describe", "pod", "small"]).ok();
    for words in [
        "OverGpuShare",
        "has 21500 MiB of the memory of GPU",
        "asked for 20000 MiB",
        "Stopping container main",
    ] {
        assert!(events.contains(words), "{words}: {events}");
    }
    assert_eq!(phase("large"), "Running");

    // A container with two GPUs gets none that is shared this way. It waits with a message, and is placed elsewhere.
    platform.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: pair}\nspec:\n  restartPolicy: Never\n  containers:\n    \
         - name: main\n      command: [sh, -c, 'echo $NVIDIA_VISIBLE_DEVICES; exec sleep 600']\n      \
         resources: {limits: {nvidia.com/gpu: 2}}\n",
    );
    let why = eventually("the pod says why it waits", SOON, || {
        let pod = platform.get("pod", "pair");
        let conditions = pod["status"]["conditions"].as_array()?.clone();
        let is =
            |one: &&serde_json::Value| one["type"] == "PodScheduled" && one["status"] == "False";
        Some(conditions.iter().find(is)?["message"].to_string())
    });
    let one = "1 node(s) give a container only one of their shared GPUs";
    assert!(why.contains(one), "{why}");
    let explained = platform.cli(&["explain", "pod/pair"]).out;
    assert!(
        explained.contains(one) && explained.contains("one GPU for each container"),
        "{explained}"
    );
    let plain = platform.manifest("plain.toml", "");
    describe_as(&plain, OTHERS, "");
    let plain = plain.display().to_string();
    let _other = platform.agent("plain", None, &["--machine", &plain]);
    let seen = eventually("it runs where GPUs are not shared", SOON, || {
        let log = platform.cli(&["logs", "pair"]).out;
        let mut ids: Vec<String> = log.trim().split(',').map(str::to_owned).collect();
        ids.sort();
        (ids.len() == 2).then_some(ids)
    });
    assert_eq!(seen, ["GPU-fourth", "GPU-third"]);

    // The unused daemon ends with the agent.
    let number =
        std::fs::read_to_string(daemons.join("GPU-first/pipe/nvidia-cuda-mps-control.pid"));
    let number: i32 = number.unwrap().trim().parse().unwrap();
    let runs = || Path::new(&format!("/proc/{number}")).exists();
    assert!(runs(), "each GPU has a daemon");
    run(Command::new("kill").arg(agent.pid().to_string())).ok();
    eventually("the daemon ends", SOON, || (!runs()).then_some(()));
}
