//! `muster agent --mig-manager`: a label on the node partitions its GPUs, and a real kubelet, kube-scheduler and
//! their pods use the result. The stand-in for the driver's library creates and removes instances by the products'
//! own profiles and placements.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{
    Cluster, IMAGE, Kubelet, Network, Setup, eventually, free_address, muster, nvml_standin,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);
const GPU: &str = "nvidia.com/gpu";
const SMALL: &str = "nvidia.com/mig-1g.10gb";
const LARGE: &str = "nvidia.com/mig-3g.40gb";

/// A node of two H100, and its agent.
struct Ground {
    agent: Option<Child>,
    server: Option<Child>,
    kubelet: Kubelet,
    cluster: Cluster,
    _network: Network,
}

impl Ground {
    fn start() -> Ground {
        let network = Network::new(0);
        let address = network.host().parse().unwrap();
        let cluster = Setup::default().at(address).kubelet("box").start();
        let cluster = cluster.with_controller_manager().with_scheduler(None);
        // The chart's rights for an agent that may evict.
        cluster.apply_chart(
            "agent-rbac.yaml",
            "server.enabled=false,agent.mig.manager=evict",
        );
        cluster.apply_packaged(&["dra/classes.yaml"]);
        let kubelet = cluster.kubelet("box");
        let ground = Ground {
            agent: None,
            server: None,
            kubelet,
            cluster,
            _network: network,
        };
        nvml_standin(&ground.at("library"));
        ground.describe("");
        ground
    }

    fn at(&self, name: &str) -> PathBuf {
        self.cluster.directory().join(name)
    }

    /// Describes the machine, with these states.
    fn describe(&self, states: &str) {
        let gpu = |at: usize| {
            format!(
                "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nid = [\"{}\"]\n",
                id(at)
            )
        };
        let text = gpu(0) + &gpu(1) + states;
        std::fs::write(self.at("machine.partial"), text).unwrap();
        std::fs::rename(self.at("machine.partial"), self.at("machine.toml")).unwrap();
    }

    /// Starts the agent, instead of the previous one. Its driver is its own: GPUs are whole again.
    fn agent(&mut self, more: &[&str]) {
        self.end_agent();
        let account = (self.cluster).kubeconfig_of_account("muster-system", "muster-agent");
        let log = self.at("agent.log");
        let log = File::options().create(true).append(true).open(log);
        let mut command = self.kubelet.inside(&muster());
        command.arg("--kubeconfig").arg(account);
        command.arg("--data").arg(self.at("agent-data"));
        command.args(["agent", "kubernetes", "--node-name", "box"]);
        command.args(["--metrics", "off", "--kmsg", "off"]);
        command.arg("--cdi-dir").arg(self.at("cdi")).args(more);
        command.env("LD_LIBRARY_PATH", self.at("library"));
        command.env("MUSTER_NVML_MACHINE", self.at("machine.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.agent = Some(command.stderr(log.unwrap()).spawn().unwrap());
    }

    /// Starts Muster's own scheduler with this configuration, and the rights of the chart's `server.mig`.
    fn schedule(&mut self, mig: &Value) {
        self.cluster.install_muster();
        self.cluster.apply_packaged(&["mig/rbac.yaml"]);
        let config = json!({"apiVersion": "muster.io/v1alpha1", "kind": "SchedulerConfig",
            "spec": {"mig": mig}});
        std::fs::write(self.at("scheduler.yaml"), config.to_string()).unwrap();
        let account = (self.cluster).kubeconfig_of_account("muster-system", "muster-server");
        let mut command = Command::new(muster());
        command.arg("--kubeconfig").arg(account);
        command.args(["server", "kubernetes", "--listen", &free_address()]);
        command
            .arg("--scheduler-config")
            .arg(self.at("scheduler.yaml"));
        let log = File::create(self.at("server.log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.server = Some(command.stderr(log).spawn().unwrap());
    }

    fn end_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }

    fn logged(&self) -> String {
        std::fs::read_to_string(self.at("agent.log")).unwrap_or_default()
    }

    fn node(&self) -> Value {
        self.cluster.get(&["node", "box"])
    }

    /// Requests a configuration.
    fn configure(&self, name: &str) {
        let label = format!("nvidia.com/mig.config={name}");
        let all = ["label", "node", "box", "--overwrite", &label];
        self.cluster.kubectl(&all).ok();
    }

    fn until_state(&self, state: &str) {
        eventually(&format!("the node's state is {state}"), SOON, || {
            let labels = &self.node()["metadata"]["labels"];
            (labels["nvidia.com/mig.config.state"] == state).then_some(())
        });
    }

    /// Waits until the node has this allocatable amount of each resource.
    fn until_allocatable(&self, wanted: &[(&str, usize)]) {
        eventually(&format!("{wanted:?} are allocatable"), SOON, || {
            let node = self.node();
            let there = |(resource, count): &(&str, usize)| {
                let given = &node["status"]["allocatable"][resource];
                *given == count.to_string().as_str() || (*count == 0 && given.is_null())
            };
            wanted.iter().all(there).then_some(())
        });
    }

    /// Waits until the node's MIG condition has this status; returns its message.
    fn until_condition(&self, status: &str) -> String {
        eventually(&format!("the condition is {status}"), SOON, || {
            let node = self.node();
            let all = node["status"]["conditions"].as_array()?.iter();
            let mut all = all.filter(|it| it["type"] == "muster.io/mig-config-failed");
            let found = all.next().filter(|it| it["status"] == status)?;
            found["message"].as_str().map(str::to_owned)
        })
    }

    /// Waits until an event of the node that names the awaited pods contains this text.
    fn until_waited(&self, words: &str) {
        let about = "involvedObject.kind=Node,reason=MigConfigPending";
        eventually(&format!("an event says {words:?}"), SOON, || {
            let events = (self.cluster).get(&["events", "--field-selector", about]);
            let mut all = events["items"].as_array()?.iter();
            all.any(|event| {
                event["message"]
                    .as_str()
                    .is_some_and(|it| it.contains(words))
            })
            .then_some(())
        });
    }

    /// Creates a pod that requests one of a resource, waits until it runs, and returns its devices.
    fn run(&self, name: &str, resource: &str) -> String {
        self.run_by("default-scheduler", name, resource)
    }

    /// Like `run`, with this scheduler.
    fn run_by(&self, scheduler: &str, name: &str, resource: &str) -> String {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
            "spec": {"schedulerName": scheduler,
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 5,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Never",
                    "command": ["sh", "-c",
                        "trap 'exit 0' TERM; echo $NVIDIA_VISIBLE_DEVICES; while :; do sleep 1; done"],
                    "resources": {"limits": {resource: "1"}}}]}});
        self.cluster.apply(&pod.to_string());
        let log = eventually(&format!("{name} says what it has"), SOON, || {
            let ran = self.cluster.kubectl(&["logs", name]);
            (ran.code == Some(0) && !ran.out.is_empty()).then_some(ran.out)
        });
        log.trim().to_owned()
    }

    fn phase(&self, pod: &str) -> Value {
        self.cluster.get(&["pod", pod])["status"]["phase"].clone()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the agent's log:\n{}", self.logged());
            let server = std::fs::read_to_string(self.at("server.log"));
            eprintln!("--- the server's log:\n{}", server.unwrap_or_default());
        }
        self.end_agent();
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// The UUID of a GPU.
fn id(at: usize) -> String {
    format!("GPU-0000000{at}-0000-4000-8000-000000000000")
}

#[test]
fn a_label_cuts_the_gpus_pods_get_slices_and_what_has_them_is_waited_for() {
    let mut ground = Ground::start();
    let file = ground.at("mig.yaml");
    let configurations = json!({"version": "v1", "mig-configs": {
        "first": [{"devices": [0], "mig-enabled": true,
            "mig-devices": {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}}],
        "fewer": [{"devices": [0], "mig-enabled": true, "mig-devices": {"1g.10gb": 1, "3g.40gb": 1}}],
        "whole": [{"devices": "all", "mig-enabled": false}],
    }});
    std::fs::write(&file, configurations.to_string()).unwrap();
    let file = file.display().to_string();
    ground.agent(&["--mig-manager", "wait", "--mig-config", &file]);
    ground.until_allocatable(&[(GPU, 2), (SMALL, 0)]);
    let state = ground.node()["metadata"]["labels"]["nvidia.com/mig.config.state"].clone();
    assert_eq!(state, Value::Null, "nobody asked");

    // The other GPU and its pod keep running.
    ground.configure("first");
    ground.until_state("success");
    ground.until_allocatable(&[(GPU, 1), (SMALL, 2), (LARGE, 1)]);
    let labels = ground.node()["metadata"]["labels"].clone();
    assert_eq!(labels["nvidia.com/mig-1g.10gb.count"], "2", "{labels}");
    let whole = ground.run("whole", GPU);
    assert_eq!(whole, id(1));
    let large = ground.run("large", LARGE);
    assert!(large.starts_with("MIG-"), "{large}");

    // Kept instances are neither touched nor waited for.
    ground.configure("fewer");
    ground.until_state("success");
    ground.until_allocatable(&[(GPU, 1), (SMALL, 1), (LARGE, 1)]);
    let inventory = ground.node()["metadata"]["annotations"]["muster.io/inventory"].clone();
    assert!(inventory.as_str().unwrap().contains(&large), "{inventory}");
    assert_eq!(ground.phase("large"), "Running");

    // To make the GPUs whole, the pods of both matter; one of them has a slice.
    ground.configure("whole");
    ground.until_waited("these must be gone: pod default/large");
    ground.until_state("pending");
    ground.until_allocatable(&[(GPU, 1), (SMALL, 0), (LARGE, 0)]);
    assert_eq!(ground.phase("large"), "Running");
    let gone = ["delete", "pod", "large", "--wait"];
    ground.cluster.kubectl(&gone).ok();
    ground.until_state("success");
    ground.until_allocatable(&[(GPU, 2), (SMALL, 0), (LARGE, 0)]);
    assert_eq!(ground.phase("whole"), "Running");

    // Without the label there is no condition.
    let none = ["label", "node", "box", "nvidia.com/mig.config-"];
    ground.cluster.kubectl(&none).ok();
    eventually("the state is gone", SOON, || {
        let labels = &ground.node()["metadata"]["labels"];
        labels["nvidia.com/mig.config.state"]
            .is_null()
            .then_some(())
    });
}

#[test]
fn pods_are_evicted_as_budgets_allow_and_what_fails_is_told_and_put_back() {
    let mut ground = Ground::start();
    ground.agent(&["--mig-manager", "evict"]);
    ground.until_allocatable(&[(GPU, 2)]);
    let held = ground.run("kept", GPU);
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "kept", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}});
    ground.cluster.apply(&budget.to_string());
    eventually("the budget counts its pod", SOON, || {
        let budget = ground.cluster.get(&["pdb", "kept"]);
        (budget["status"]["currentHealthy"] == 1).then_some(())
    });

    // The free GPU is partitioned meanwhile.
    ground.configure("all-1g.10gb");
    ground.until_waited(
        "pod default/kept (its eviction is refused: Cannot evict pod as it would violate",
    );
    ground.until_allocatable(&[(GPU, 0), (SMALL, 7)]);
    ground.until_state("pending");
    assert_eq!(ground.phase("kept"), "Running");
    ground.cluster.kubectl(&["delete", "pdb", "kept"]).ok();
    eventually("the pod is evicted", SOON, || {
        ground.phase("kept").is_null().then_some(())
    });
    ground.until_state("success");
    ground.until_allocatable(&[(GPU, 0), (SMALL, 14)]);
    assert!(held.starts_with("GPU-"), "{held}");

    // An impossible configuration is reported with the possible ones.
    ground.configure("all-9g.90gb");
    ground.until_state("failed");
    let why = ground.until_condition("True");
    assert!(
        why.contains("no configuration all-9g.90gb") && why.contains("all-balanced, all-1g.10gb"),
        "{why}"
    );
    ground.until_allocatable(&[(GPU, 0), (SMALL, 14)]);

    // If the driver refuses a step, the earlier partitioning is restored.
    ground.describe("[[state]]\ngpu = 1\nmig_refused = [\"3g.40gb\"]\n");
    ground.configure("all-3g.40gb");
    eventually("the driver's refusal is told", SOON, || {
        let why = ground.until_condition("True");
        why.contains("GPU 1: making 3g.40gb at memory slice")
            .then_some(why)
    });
    ground.until_state("failed");
    let why = ground.until_condition("True");
    assert!(
        why.contains("put back to what it was: 7 of 1g.10gb"),
        "{why}"
    );
    ground.until_allocatable(&[(SMALL, 7), (LARGE, 2)]);

    // A MIG mode that changes at a reset.
    ground.describe("[[state]]\ngpu = 0\nmig_waits = true\n");
    ground.configure("all-disabled");
    ground.until_state("rebooting");
    ground.until_condition("False");
    ground.until_waited("MIG mode changes when GPU 0 is reset (nvidia-smi --gpu-reset -i 0)");
    ground.until_allocatable(&[(GPU, 1), (SMALL, 0), (LARGE, 0)]);
    ground.describe("");
    ground.until_state("success");
    ground.until_allocatable(&[(GPU, 2), (SMALL, 0), (LARGE, 0)]);

    // A new agent reads the requested configuration, and applies it.
    ground.configure("all-balanced");
    ground.until_state("success");
    ground.agent(&["--mig-manager", "evict"]);
    ground.until_allocatable(&[(GPU, 0), (SMALL, 4), (LARGE, 2)]);

    // By claims, too.
    ground.end_agent();
    ground.agent(&["--mig-manager", "evict", "--devices", "dra"]);
    let kinds = || {
        let slices = ground.cluster.get(&["resourceslices"]);
        let all = slices["items"].as_array()?.iter();
        let devices =
            all.flat_map(|slice| slice["spec"]["devices"].as_array().into_iter().flatten());
        let kinds = devices.map(|device| device["attributes"]["type"]["string"].as_str());
        let mut kinds: Vec<String> = kinds
            .map(|kind| kind.unwrap_or_default().to_owned())
            .collect();
        kinds.sort();
        Some(kinds)
    };
    eventually("claims can have the slices", SOON, || {
        (kinds()? == vec!["mig"; 8]).then_some(())
    });
    ground.configure("all-disabled");
    eventually("claims can have the GPUs", SOON, || {
        (kinds()? == vec!["gpu"; 2]).then_some(())
    });
}

#[test]
fn an_idle_gpu_is_cut_for_a_pod_that_waits_for_a_slice_and_made_whole_for_one_that_waits_for_a_gpu()
{
    let mut ground = Ground::start();
    ground.agent(&["--mig-manager", "wait"]);
    ground.until_allocatable(&[(GPU, 2), (SMALL, 0)]);
    ground.schedule(&json!({"after": "0s", "every": "1m"}));
    let slice = ground.run_by("muster", "small", SMALL);
    assert!(slice.starts_with("MIG-"), "{slice}");
    ground.until_allocatable(&[(GPU, 0), (SMALL, 14)]);
    let node = ground.node();
    assert_eq!(
        node["metadata"]["labels"]["nvidia.com/mig.config"],
        "all-1g.10gb"
    );
    let choice = node["metadata"]["annotations"]["muster.io/mig-choice"].as_str();
    let choice: Value = serde_json::from_str(choice.unwrap()).unwrap();
    let why = choice["why"].as_str().unwrap();
    assert!(
        why.starts_with(
            "default/small waits for 1 of nvidia.com/mig-1g.10gb; no pod uses the GPUs of box"
        ),
        "{why}"
    );
    eventually("the pod's and the node's events say why", SOON, || {
        let events = ground
            .cluster
            .get(&["events", "--field-selector", "reason=MigChosen"]);
        let events = events["items"].as_array()?.clone();
        let about = |kind: &str| {
            let is = |event: &&Value| event["involvedObject"]["kind"] == kind;
            events
                .iter()
                .filter(is)
                .any(|event| event["message"] == why)
        };
        (about("Pod") && about("Node")).then_some(())
    });

    // A used slice is kept; after its end the GPU becomes whole for the waiting pod.
    let whole = |ground: &Ground| ground.run_by("muster", "whole", GPU);
    let (whole, small) = std::thread::scope(|scope| {
        let ran = scope.spawn(|| whole(&ground));
        eventually("the pod is told why it waits", SOON, || {
            let pod = ground
                .cluster
                .kubectl(&["get", "pod", "whole", "-o", "json"]);
            let pod: Value = serde_json::from_str(&pod.out).ok()?;
            let mut said = pod["status"]["conditions"].as_array()?.iter();
            said.any(|it| it["reason"] == "Unschedulable").then_some(())
        });
        let small = ground.phase("small");
        ground.cluster.kubectl(&["delete", "pod", "small"]).ok();
        (ran.join().unwrap(), small)
    });
    assert_eq!(small, "Running");
    assert!(whole.starts_with("GPU-"), "{whole}");
    ground.until_allocatable(&[(GPU, 2), (SMALL, 0)]);
    let labels = ground.node()["metadata"]["labels"].clone();
    assert_eq!(labels["nvidia.com/mig.config"], "all-disabled");
}
