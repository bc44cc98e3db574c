//! The devices of pods on the embedded engine. Machines are described in files, also for the stand-in for the
//! driver's library; a machine with RDMA cards has a tree of files as its sysfs, and device files that are copies of
//! /dev/null and similar ones under other names.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use e2e::{
    Agent, Containerd, IMAGE, Mounts, Platform, eventually, make_device, make_rdma, nvml_standin,
    rdma_device_files, repository,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);

/// The output of a pod with one container that runs this script with these additional fields.
fn said(platform: &Platform, name: &str, script: &str, container: &Value, spec: &Value) -> String {
    let script = format!("{script}; echo end; exec sleep 600");
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "command": ["sh", "-c", script]}]}});
    let fields = |value: &Value| value.as_object().unwrap().clone();
    let of_pod = pod["spec"].as_object_mut().unwrap();
    of_pod.extend(fields(spec));
    let of_container = pod["spec"]["containers"][0].as_object_mut().unwrap();
    of_container.extend(fields(container));
    platform.apply(&pod.to_string());
    eventually(&format!("{name} says what it has"), SOON, || {
        let found = platform.get("pod", name);
        assert_ne!(found["status"]["phase"], "Failed", "{}", found["status"]);
        let log = platform.cli(&["logs", name]).out;
        log.strip_suffix("end\n").map(str::to_owned)
    })
}

#[test]
fn nccl_is_told_the_tree_of_a_machine_that_hides_it_unless_the_author_says_one() {
    let machine = repository().join("packaging/examples/machines/hgx-h100.toml");
    let machine = machine.display().to_string();
    let platform = Platform::server(&[]);
    let _told = platform.agent("told", None, &["--machine", &machine, "--metrics", "off"]);
    platform.await_nodes(1);
    // Pods run under other users than the agent, whose directories are private.
    let gpu = json!({"resources": {"limits": {"nvidia.com/gpu": "2"}}});
    let script = "echo $NCCL_TOPO_FILE; cat $NCCL_TOPO_FILE";
    let log = said(&platform, "told", script, &gpu, &json!({}));
    let kept = include_str!("../../internal/hardware/tests/nccl/hgx-h100.xml");
    assert_eq!(log, format!("/dev/nccl-topology.xml\n{kept}"));

    let mut own = gpu.clone();
    own["env"] = json!([{"name": "NCCL_TOPO_FILE", "value": "/mine.xml"}]);
    let script = "echo $NCCL_TOPO_FILE; test -e /dev/nccl-topology.xml || echo and no other";
    let log = said(&platform, "own", script, &own, &json!({}));
    assert_eq!(log, "/mine.xml\nand no other\n");
    let script = "echo \"told ${NCCL_TOPO_FILE-nothing}\"";
    let plain = json!({"resources": {"requests": {"cpu": "10m"}}});
    let log = said(&platform, "plain", script, &plain, &json!({}));
    assert_eq!(log, "told nothing\n");

    // If the administrator disables it, a GPU changes nothing.
    let more = [
        "--machine",
        &machine,
        "--metrics",
        "off",
        "--nccl-topology",
        "never",
        "--label",
        "quiet=yes",
    ];
    let _quiet = platform.agent("quiet", None, &more);
    platform.await_nodes(2);
    let there = json!({"nodeSelector": {"quiet": "yes"}});
    assert_eq!(
        said(&platform, "quiet", script, &gpu, &there),
        "told nothing\n"
    );
}

/// The stand-in under the driver's library's name, in a subdirectory.
fn library(directory: &Path) -> PathBuf {
    let library = directory.join("library");
    nvml_standin(&library);
    library
}

/// A node with a GPU and an InfiniBand card under each of two switches, and a container runtime.
struct Rdma {
    agent: Option<Agent>,
    containerd: Containerd,
    mounts: Mounts,
    directory: tempfile::TempDir,
}

impl Rdma {
    fn new() -> Rdma {
        let directory = tempfile::tempdir().unwrap();
        make_rdma(directory.path());
        library(directory.path());
        let gpus = "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\ncount = 2\n\
                    pci = [\"0000:18:00.0\", \"0000:3a:00.0\"]\n";
        std::fs::write(directory.path().join("machine.toml"), gpus).unwrap();
        // The tree's sysfs has no control groups.
        let script = format!(
            "mkdir \"$DIR/rdma/sys/fs\"; mount --rbind /sys/fs \"$DIR/rdma/sys/fs\"; {}",
            rdma_device_files()
        );
        let mounts = Mounts::new(directory.path(), &script);
        Rdma {
            agent: None,
            containerd: Containerd::start_inside(&mounts.file()),
            mounts,
            directory,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts the node's agent, instead of the previous one.
    fn agent(&mut self, platform: &Platform, more: &[&str]) {
        if let Some(mut before) = self.agent.take() {
            before.kill();
        }
        let namespace = format!("--mount={}", self.mounts.file().display());
        let script = "mount --rbind \"$0\" /sys && exec \"$@\"";
        let sys = self.at("rdma/sys").display().to_string();
        let inside = [
            "nsenter", &namespace, "unshare", "--mount", "sh", "-c", script, &sys,
        ];
        let socket = self.containerd.socket().display().to_string();
        let common = ["--cri", &socket, "--metrics", "off", "--kmsg", "off"];
        let (library, machine) = (self.at("library"), self.at("machine.toml"));
        let environment: [(&str, &Path); 2] = [
            ("LD_LIBRARY_PATH", &library),
            ("MUSTER_NVML_MACHINE", &machine),
        ];
        let inside = inside.map(str::to_owned).to_vec();
        let arguments = [&common[..], more].concat();
        self.agent = Some(platform.agent_by("box", inside, &environment, &arguments));
    }
}

/// Waits until the node has this capacity and allocatable amount of a resource; `null` if it lacks the resource.
fn until_offered(platform: &Platform, resource: &str, capacity: &Value, allocatable: &Value) {
    let what = format!("{resource} is {capacity}, of which {allocatable} are given out");
    eventually(&what, SOON, || {
        let status = &platform.get("node", "box")["status"];
        let seen = [
            &status["capacity"][resource],
            &status["allocatable"][resource],
        ];
        (seen == [capacity, allocatable]).then_some(())
    });
}

/// Creates a pod that requests one of a resource and prints its devices' variable, and waits until it waits for the
/// resource.
fn waits(platform: &Platform, name: &str, resource: &str) {
    let script = "echo has $CARDS; exec sleep 600";
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main",
            "command": ["sh", "-c", script], "resources": {"limits": {resource: "1"}}}]}});
    platform.apply(&pod.to_string());
    eventually(&format!("{name} waits for {resource}"), SOON, || {
        let pod = platform.get("pod", name);
        let conditions = pod["status"]["conditions"].as_array()?;
        let mut waits = conditions.iter().filter(|it| it["type"] == "PodScheduled");
        let why = waits.next()?["message"].as_str()?;
        why.contains(resource).then_some(())
    });
}

#[test]
fn rdma_cards_are_shared_by_those_who_ask_and_reach_containers_with_their_files() {
    let platform = Platform::server(&[]);
    let mut node = Rdma::new();
    let (all, second) = ("rdma/hca_all", "rdma/hca_b");
    let configure = |resources: Value| {
        let file = node.at("rdma.json");
        std::fs::write(&file, json!({"configList": resources}).to_string()).unwrap();
        file.display().to_string()
    };
    let of_all = json!({"resourceName": "hca_all", "rdmaHcaMax": 20});
    let of_second = json!({"resourceName": "hca_b", "rdmaHcaMax": 2,
        "selectors": {"ifNames": ["ib1"]}});
    let file = configure(json!([of_all, of_second]));
    node.agent(&platform, &["--rdma-config", &file]);
    platform.await_nodes(1);
    let count = |count: &str| json!(count);
    until_offered(&platform, all, &count("20"), &count("20"));
    until_offered(&platform, second, &count("2"), &count("2"));

    // In an image: the files of its cards with their numbers, and NCCL's setting for these only.
    let script = "for file in $(busybox find /dev/infiniband -type c | busybox sort); do \
        busybox stat -c '%n %t:%T' $file; done; echo told $NCCL_IB_HCA";
    let limits = |resource: &str, gpus: &str| json!({"resources": {"limits": {resource: "1", "nvidia.com/gpu": gpus}}, "image": IMAGE});
    let log = said(&platform, "both", script, &limits(second, "2"), &json!({}));
    let own = "/dev/infiniband/issm1 1:6\n/dev/infiniband/rdma_cm 1:7\n\
               /dev/infiniband/umad1 1:4\n/dev/infiniband/uverbs1 1:2\n";
    assert_eq!(log, format!("{own}told =mlx5_1:1\n"));
    // A process sees the node's files, and gets the same setting.
    let process = json!({"resources": {"limits": {second: "1"}}});
    let script = "ls /dev/infiniband | tr '\\n' ' '; echo told $NCCL_IB_HCA";
    let log = said(&platform, "process", script, &process, &json!({}));
    assert_eq!(
        log,
        "issm0 issm1 rdma_cm umad0 umad1 uverbs0 uverbs1 told\n"
    );

    // Both shares are taken: a third pod waits, with a message that names the resource.
    waits(&platform, "third", second);

    // If all ports of a resource are down, it is not allocated until one is up.
    let state = node.at("rdma/sys/class/infiniband/mlx5_1/ports/1/state");
    std::fs::write(&state, "1: DOWN\n").unwrap();
    until_offered(&platform, second, &count("2"), &count("0"));
    until_offered(&platform, all, &count("20"), &count("20"));
    std::fs::write(&state, "4: ACTIVE\n").unwrap();
    until_offered(&platform, second, &count("2"), &count("2"));

    // A resource that is no longer offered is removed.
    node.agent(&platform, &["--rdma-config", "off"]);
    until_offered(&platform, second, &Value::Null, &Value::Null);
    until_offered(&platform, all, &Value::Null, &Value::Null);
}

#[test]
fn slices_of_gpus_are_offered_by_profile_or_as_gpus_and_their_containers_see_them_alone() {
    let platform = Platform::server(&[]);
    let directory = tempfile::tempdir().unwrap();
    let library = library(directory.path());
    let machine = directory.path().join("machine.toml");
    // One whole GPU, and one with the slices of its state.
    let describe = |slices: &str| {
        let h100 = "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\n";
        let whole = format!("{h100}id = [\"GPU-00000000-0000-4000-8000-000000000001\"]\n");
        let cut = format!("{h100}id = [\"GPU-00000000-0000-4000-8000-000000000002\"]\nmig = []\n");
        let state = format!("[[state]]\ngpu = 1\nmig = {slices}\n");
        let partial = directory.path().join("machine.partial");
        std::fs::write(&partial, whole + &cut + &state).unwrap();
        std::fs::rename(&partial, &machine).unwrap();
    };
    describe("[\"1g.10gb\", \"1g.10gb\"]");
    let environment: [(&str, &Path); 2] = [
        ("LD_LIBRARY_PATH", &library),
        ("MUSTER_NVML_MACHINE", &machine),
    ];
    let agent = |strategy: &str| {
        let arguments = [
            "--metrics",
            "off",
            "--kmsg",
            "off",
            "--mig-strategy",
            strategy,
        ];
        platform.agent_with("box", None, &environment, &arguments)
    };
    let mut mixed = agent("mixed");
    platform.await_nodes(1);
    let (gpu, small) = ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb");
    let count = |count: &str| json!(count);
    until_offered(&platform, small, &count("2"), &count("2"));
    until_offered(&platform, gpu, &count("1"), &count("1"));
    let script = "echo $NVIDIA_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES";
    let sees = |name: &str, resource: &str| -> String {
        let one = json!({"resources": {"limits": {resource: "1"}}});
        let log = said(&platform, name, script, &one, &json!({}));
        let words: Vec<&str> = log.split_whitespace().collect();
        // CUDA selects a whole GPU by its index, and a slice by its id.
        let [id, cuda] = words[..] else {
            panic!("{log}")
        };
        assert!(
            cuda == id || (id.starts_with("GPU-") && cuda == "0"),
            "{log}"
        );
        id.to_owned()
    };
    let (first, second) = (sees("first", small), sees("second", small));
    assert!(first.starts_with("MIG-") && second.starts_with("MIG-"));
    assert_ne!(first, second);
    assert!(sees("whole", gpu).starts_with("GPU-"));

    // As GPUs: the slices are numbered among them, and a pod gets a free one.
    for pod in ["second", "whole"] {
        platform.cli(&["delete", "pod", pod]).ok();
    }
    mixed.kill();
    let _single = agent("single");
    // A slice that a pod has under another name is not allocated again.
    until_offered(&platform, gpu, &count("3"), &count("2"));
    until_offered(&platform, small, &Value::Null, &Value::Null);
    let mut given = ["third", "fourth"].map(|name| sees(name, gpu));
    given.sort();
    let whole = "GPU-00000000-0000-4000-8000-000000000001".to_owned();
    assert_eq!(given, [whole, second]);

    // Slices of several profiles are not GPUs: they are offered by profile, and the node's condition says why.
    describe("[\"1g.10gb\", \"1g.10gb\", \"3g.40gb\"]");
    until_offered(
        &platform,
        "nvidia.com/mig-3g.40gb",
        &count("1"),
        &count("1"),
    );
    until_offered(&platform, gpu, &count("1"), &count("1"));
    eventually("the node says why", SOON, || {
        let node = platform.get("node", "box");
        let mut all = node["status"]["conditions"].as_array()?.iter();
        let said = all.find(|it| it["type"] == "muster.io/mig-not-uniform")?;
        let why = said["message"]
            .as_str()
            .filter(|_| said["status"] == "True")?;
        why.contains("1g.10gb, 3g.40gb").then_some(())
    });
}

#[test]
fn another_vendors_devices_are_had_by_one_pod_each_while_they_are_well_and_over_the_agents_restart()
{
    let platform = Platform::server(&[]);
    let containerd = Containerd::start();
    let directory = platform.shared("vendor");
    let at = |name: &str| directory.join(name).display().to_string();
    let resource = "example.com/card";
    // They are /dev/full and /dev/random, each with a status file.
    make_device(Path::new(&at("dev/card0")), 7);
    make_device(Path::new(&at("dev/card1")), 8);
    let says =
        |number: &str, state: &str| std::fs::write(at(&format!("state{number}")), state).unwrap();
    says("0", "well");
    says("1", "well");
    let vendor = json!({"resource": resource, "device": at("dev/card{number}"),
        "environment": {"CARDS": "{numbers}"},
        "health": {"command": ["grep", "-qx", "well", at("state{number}")], "everySeconds": 5}});
    std::fs::write(at("vendor.json"), vendor.to_string()).unwrap();
    let (socket, file) = (containerd.socket().display().to_string(), at("vendor.json"));
    let common = ["--cri", &socket, "--metrics", "off", "--kmsg", "off"];
    let with = [&common[..], &["--vendor", &file]].concat();
    let mut agent = platform.agent("box", None, &with);
    platform.await_nodes(1);
    let count = |count: &str| json!(count);
    until_offered(&platform, resource, &count("2"), &count("2"));

    // In an image: its own device's file and number. A process has these too, and can open no other device.
    let files = format!(
        "for file in $(busybox find {0} -type c); do busybox stat -c '%n' $file; done; echo $CARDS",
        at("dev")
    );
    let one = json!({"resources": {"limits": {resource: "1"}}});
    let mut in_image = one.clone();
    in_image["image"] = json!(IMAGE);
    let log = said(&platform, "first", &files, &in_image, &json!({}));
    let first = log.trim_end().rsplit('\n').next().unwrap().to_owned();
    assert_eq!(log, format!("{}{first}\n{first}\n", at("dev/card")));
    let second = if first == "0" { "1" } else { "0" };
    let opens = format!(
        "for file in {0}*; do (: < $file) 2> /dev/null && echo $file; done; echo $CARDS",
        at("dev/card")
    );
    let log = said(&platform, "second", &opens, &one, &json!({}));
    assert_eq!(log, format!("{}{second}\n{second}\n", at("dev/card")));
    waits(&platform, "third", resource);
    eventually("the pages say who has which", SOON, || {
        let said = platform.kubectl(&["get", "--raw", "/api/v1/overview"]).out;
        let said: Value = serde_json::from_str(&said).ok()?;
        let devices = said["nodes"][0]["others"].as_array()?.iter();
        let held: Vec<_> = devices.map(|it| (&it["id"], &it["holder"])).collect();
        let has = |number: &str, pod: &str| {
            let id = at(&format!("dev/card{number}"));
            held.contains(&(&json!(id), &json!(format!("default/{pod}"))))
        };
        (held.len() == 2 && has(&first, "first") && has(second, "second")).then_some(())
    });

    // A device that becomes unhealthy is not offered until it is healthy, and the node's condition says why.
    let condition = |status: &str| {
        let what = format!("that devices are unhealthy is {status}");
        eventually(&what, SOON, || {
            let node = platform.get("node", "box");
            let mut all = node["status"]["conditions"].as_array()?.iter();
            let said = all.find(|it| it["type"] == "muster.io/devices-unhealthy")?;
            let why = said["message"].as_str()?.to_owned();
            (said["status"] == status).then_some(why)
        })
    };
    says(second, "broken");
    until_offered(&platform, resource, &count("2"), &count("1"));
    let why = condition("True");
    assert!(why.contains(&at(&format!("dev/card{second}"))), "{why}");
    assert_eq!(platform.get("pod", "second")["status"]["phase"], "Running");
    says(second, "well");
    until_offered(&platform, resource, &count("2"), &count("2"));
    condition("False");

    // A restarted agent allocates no device twice: the third pod gets the first's device after the first pod's end.
    agent.kill();
    agent.restart();
    eventually("the agent has found its pods again", SOON, || {
        let log = agent.logged();
        (log.matches("pods of an earlier agent were found").count() == 2).then_some(())
    });
    platform.cli(&["delete", "pod", "first"]).ok();
    let has = eventually("the third has a device", SOON, || {
        let log = platform.cli(&["logs", "third"]).out;
        log.strip_prefix("has ")?
            .strip_suffix('\n')
            .map(str::to_owned)
    });
    assert_eq!(has, first);
    let kept = platform.get("pod", "second");
    let status = &kept["status"];
    assert_eq!(
        [
            &status["phase"],
            &status["containerStatuses"][0]["restartCount"]
        ],
        [&json!("Running"), &json!(0)]
    );

    // A removed description removes the resource from the node.
    agent.kill();
    let _without = platform.agent("box", None, &common);
    until_offered(&platform, resource, &Value::Null, &Value::Null);
}
