//! `muster agent --devices dra --mig-partitions` next to a real kubelet: kube-scheduler allocates slices that do not
//! exist yet, with shared counters; the agent partitions the GPU when a pod starts and removes the slices when it
//! ends. The stand-in for the driver's library stores the partitioning in a file; the device files belong to no
//! device.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use e2e::{
    Cluster, IMAGE, Kubelet, Network, Setup, eventually, free_address, get, make_device, muster,
    nvml_standin, run,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);
const GATE: &str = "DRAPartitionableDevices=true";
const GPU: &str = "GPU-00000000-0000-4000-8000-000000000000";
const WHOLE: &str = "gpu-00000000-0000-4000-8000-000000000000";

/// A node of one H100.
struct Ground {
    agent: Option<Child>,
    /// The address of its metrics.
    metrics: String,
    kubelet: Kubelet,
    cluster: Cluster,
    _network: Network,
}

impl Ground {
    /// Starts in a cluster with these feature gates.
    fn start(gates: &str) -> Ground {
        let network = Network::new(0);
        let address = network.host().parse().unwrap();
        let setup = Setup::default().at(address).kubelet("box").gates(gates);
        let cluster = setup.start().with_controller_manager().with_scheduler(None);
        cluster.apply_packaged(&["agent-rbac.yaml", "dra/classes.yaml"]);
        let kubelet = cluster.kubelet_with_cdi("box", &cluster.directory().join("cdi"));
        let ground = Ground {
            agent: None,
            metrics: free_address(),
            kubelet,
            cluster,
            _network: network,
        };
        ground.make_root();
        ground
    }

    fn at(&self, name: &str) -> PathBuf {
        self.cluster.directory().join(name)
    }

    /// The stand-in with its machine, device files, and the driver's list of slices' device files: those of GPU
    /// instance 3 are nvidia-cap30 and nvidia-cap31.
    fn make_root(&self) {
        for name in ["nvidia0", "nvidiactl"] {
            make_device(&self.at("root/dev").join(name), 3);
        }
        for number in (10..150).filter(|number| number % 10 < 2) {
            let file = format!("root/dev/nvidia-caps/nvidia-cap{number}");
            make_device(&self.at(&file), number);
        }
        nvml_standin(&self.at("library"));
        self.describe("");
        let roots = format!(
            "version: v1\nflags: {{nvidiaDriverRoot: {}}}\n",
            self.at("root").display()
        );
        std::fs::write(self.at("plugin.yaml"), roots).unwrap();
        let script = r#"
            set -e
            for instance in $(seq 1 14); do
                place=$DIR/driver/nvidia/capabilities/gpu0/mig/gi$instance
                mkdir -p $place/ci0
                echo "DeviceFileMinor: ${instance}0" > $place/access
                echo "DeviceFileMinor: ${instance}1" > $place/ci0/access
            done
            mount --bind $DIR/driver /proc/driver
        "#;
        let mut shell = self.kubelet.inside(Path::new("sh"));
        let directory = self.cluster.directory();
        run(shell.args(["-c", script]).env("DIR", directory)).ok();
    }

    /// Describes the machine, with these states.
    fn describe(&self, states: &str) {
        let machine = format!(
            "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nid = [\"{GPU}\"]\n{states}"
        );
        std::fs::write(self.at("machine.partial"), machine).unwrap();
        std::fs::rename(self.at("machine.partial"), self.at("machine.toml")).unwrap();
    }

    /// Starts the agent, instead of the previous one.
    fn agent(&mut self) {
        self.end_agent();
        let account = (self.cluster).kubeconfig_of_account("muster-system", "muster-agent");
        let log = self.at("agent.log");
        let log = File::options().create(true).append(true).open(log);
        let mut command = self.kubelet.inside(&muster());
        command.arg("--kubeconfig").arg(account);
        command.arg("--data").arg(self.at("agent-data"));
        command.args(["agent", "kubernetes", "--node-name", "box"]);
        command.args(["--metrics", &self.metrics, "--kmsg", "off"]);
        command.args(["--devices", "dra", "--mig-partitions"]);
        command.arg("--cdi-dir").arg(self.at("cdi"));
        command
            .arg("--device-plugin-config")
            .arg(self.at("plugin.yaml"));
        command.env("LD_LIBRARY_PATH", self.at("library"));
        command.env("MUSTER_NVML_MACHINE", self.at("machine.toml"));
        command.env("MUSTER_NVML_CUTS", self.at("cuts"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.agent = Some(command.stderr(log.unwrap()).spawn().unwrap());
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

    /// The driver's partitioning of the GPU: its mode, then a line for each instance.
    fn cuts(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.at("cuts")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.strip_prefix("0 "));
        lines.map(str::to_owned).collect()
    }

    fn until_cut(&self, wanted: &[&str]) {
        let what = format!("the GPU is partitioned as {wanted:?}");
        eventually(&what, SOON, || (self.cuts() == wanted).then_some(()));
    }

    /// The node's slices, once they list this many devices.
    fn until_offered(&self, count: usize) -> Vec<Value> {
        let mut seen = String::new();
        eventually(&format!("{count} devices are offered"), SOON, || {
            let all = self.cluster.get(&["resourceslices"]);
            let slices = all["items"].as_array()?.clone();
            let said = format!("{slices:?}");
            if said != seen {
                eprintln!("slices: {said}");
                seen = said;
            }
            (devices(&slices).len() == count).then_some(slices)
        })
    }

    /// A template of claims for one device of a class, of this profile unless it is empty.
    fn template(&self, name: &str, class: &str, profile: &str) {
        let selectors = match profile {
            "" => json!([]),
            profile => json!([{"cel": {"expression":
                format!("device.attributes['gpu.muster.io'].profile == '{profile}'")}}]),
        };
        let request = json!({"name": "it",
            "exactly": {"deviceClassName": class, "selectors": selectors}});
        let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"spec": {"devices": {"requests": [request]}}}});
        self.cluster.apply(&template.to_string());
    }

    /// A pod with such a claim, which prints its devices and keeps running.
    fn pod(&self, name: &str, template: &str) {
        let script = "env | grep '^MUSTER_'; busybox find /dev -name 'nvidia*' -type c; echo end; \
            trap 'exit 0' TERM; while :; do sleep 1; done";
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2,
                "resourceClaims": [{"name": "it", "resourceClaimTemplateName": template}],
                "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Never",
                    "command": ["sh", "-c", script], "resources": {"claims": [{"name": "it"}]}}]}});
        self.cluster.apply(&pod.to_string());
    }

    /// The devices that a pod sees, once it runs.
    fn seen(&self, pod: &str) -> BTreeSet<String> {
        self.cluster.said(pod, SOON).into_iter().collect()
    }

    /// Waits until kube-scheduler has found no room for a pod.
    fn until_it_waits(&self, pod: &str) {
        eventually(&format!("{pod} waits"), SOON, || {
            let pod = self.cluster.get(&["pod", pod]);
            let conditions = pod["status"]["conditions"].as_array()?;
            let message = conditions[0]["message"].as_str()?;
            message.contains("cannot allocate all claims").then_some(())
        });
    }

    /// Waits until a pod's events contain this reason for not starting.
    fn until_told(&self, words: &str) {
        eventually(&format!("an event says {words:?}"), SOON, || {
            let events = (self.cluster).get(&["events", "--field-selector", "type=Warning"]);
            let mut events = events["items"].as_array()?.iter();
            let says = |event: &Value| Some(event["message"].as_str()?.contains(words));
            events.any(|event| says(event) == Some(true)).then_some(())
        });
    }

    fn delete(&self, pod: &str, wait: bool) {
        let wait = format!("--wait={wait}");
        let gone = ["delete", "pod", pod, &wait, "--grace-period=1"];
        self.cluster.kubectl(&gone).ok();
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.end_agent();
        if std::thread::panicking() {
            eprintln!("--- the agent's log:\n{}", self.logged());
            eprintln!("--- the GPU: {:?}", self.cuts());
            let events = self.cluster.kubectl(&["get", "events", "-A"]);
            eprintln!("--- events:\n{}", events.out);
        }
    }
}

fn devices(slices: &[Value]) -> Vec<&Value> {
    let all = slices.iter();
    let devices = all.filter_map(|slice| slice["spec"]["devices"].as_array());
    devices.flatten().collect()
}

/// The devices that a pod sees with the slice that begins at this memory slice and has this GPU instance.
fn slice(start: u32, instance: u32) -> BTreeSet<String> {
    let id = format!(
        "MIG-00000000-0000-4000-8000-{:012x}",
        0x00a5_0000_0000_u64 | u64::from(instance << 8)
    );
    BTreeSet::from([
        "/dev/nvidia0".to_owned(),
        "/dev/nvidiactl".to_owned(),
        format!("/dev/nvidia-caps/nvidia-cap{instance}0"),
        format!("/dev/nvidia-caps/nvidia-cap{instance}1"),
        format!("MUSTER_MIG_0_{start}={id}"),
    ])
}

/// The devices that a pod sees with the whole GPU.
fn whole() -> BTreeSet<String> {
    let seen = ["/dev/nvidia0", "/dev/nvidiactl"].map(str::to_owned);
    let told = format!("MUSTER_GPU_0={GPU}");
    seen.into_iter().chain([told]).collect()
}

#[test]
fn a_gpu_is_cut_for_the_claims_that_get_slices_and_whole_again_for_one_that_gets_it_all() {
    let mut ground = Ground::start(GATE);
    ground.agent();
    // 25 places that the driver lists, and the GPU.
    let slices = ground.until_offered(26);
    let [offered] = &slices[..] else {
        panic!("{slices:?}")
    };
    let sets = &offered["spec"]["sharedCounters"];
    assert_eq!(sets[0]["name"], WHOLE, "{sets}");
    let counts = |device: &&Value| device["consumesCounters"][0]["counterSet"] == WHOLE;
    assert!(devices(&slices).iter().all(counts), "{offered}");

    ground.template("large", "mig.muster.io", "3g.40gb");
    ground.template("small", "mig.muster.io", "1g.10gb");
    ground.template("whole", "gpu.muster.io", "");
    ground.pod("large-a", "large");
    assert_eq!(ground.seen("large-a"), slice(4, 1));
    ground.pod("large-b", "large");
    assert_eq!(ground.seen("large-b"), slice(0, 2));
    ground.until_cut(&["on", "1 3g.40gb 4 3", "2 3g.40gb 0 3"]);
    let after = ground.until_offered(26);
    assert_eq!(
        after[0]["spec"], offered["spec"],
        "what is cut changes nothing"
    );

    eventually("metrics say whose slices these are", SOON, || {
        let (_, page) = get(&ground.metrics, "/metrics").ok()?;
        let whose = |pod: &str| page.contains(&format!("pod=\"{pod}\""));
        (whose("large-a") && whose("large-b")).then_some(())
    });

    // No room for a third pod, until one of them ends.
    ground.pod("small-a", "small");
    ground.until_it_waits("small-a");
    ground.delete("large-a", true);
    assert_eq!(ground.seen("small-a"), slice(6, 1));
    ground.until_cut(&["on", "1 1g.10gb 6 1", "2 3g.40gb 0 3"]);

    // The whole GPU is not allocated while it has slices.
    ground.pod("all", "whole");
    ground.until_it_waits("all");

    // A new agent keeps running slices, and knows their pods.
    ground.agent();
    ground.pod("small-b", "small");
    assert_eq!(ground.seen("small-b"), slice(5, 3));
    ground.until_cut(&["on", "1 1g.10gb 6 1", "2 3g.40gb 0 3", "3 1g.10gb 5 1"]);
    for pod in ["large-b", "small-a"] {
        let phase = ground.cluster.get(&["pod", pod])["status"]["phase"].clone();
        assert_eq!(phase, "Running", "{pod}");
    }

    // A restarted kubelet removes the node's slices and prepares every claim again.
    ground.kubelet.stop();
    ground.kubelet.restart();
    let again = ground.until_offered(26);
    assert_eq!(again[0]["spec"]["devices"], offered["spec"]["devices"]);
    ground.pod("small-c", "small");
    assert_eq!(ground.seen("small-c"), slice(4, 4));
    ground.delete("small-c", true);
    ground.until_cut(&["on", "1 1g.10gb 6 1", "2 3g.40gb 0 3", "3 1g.10gb 5 1"]);

    // A new agent removes the slices of claims that ended without an agent.
    ground.end_agent();
    ground.delete("small-b", false);
    ground.delete("large-b", false);
    ground.agent();
    ground.until_cut(&["on", "1 1g.10gb 6 1"]);
    ground.until_it_waits("all");
    ground.delete("small-a", true);
    assert_eq!(ground.seen("all"), whole());
    ground.until_cut(&["off"]);
    ground.template("middle", "mig.muster.io", "2g.20gb");
    ground.pod("middle", "middle");
    ground.until_it_waits("middle");

    // If the driver refuses, the agent reports it and retries.
    ground.describe("[[state]]\ngpu = 0\nmig_refused = [\"2g.20gb\"]\n");
    ground.delete("all", true);
    ground.until_told("GPU 0 cannot be partitioned as requested: making 2g.20gb at memory slice 4");
    ground.until_cut(&["off"]);
    ground.describe("");
    assert_eq!(ground.seen("middle"), slice(4, 1));

    // A MIG mode that waits for a reset is reported; until then the GPU is not allocated to other claims.
    ground.delete("middle", true);
    ground.until_cut(&["on"]);
    ground.describe("[[state]]\ngpu = 0\nmig_waits = true\n");
    ground.pod("last", "whole");
    ground.until_told("MIG mode of GPU 0 changes when it is reset (nvidia-smi --gpu-reset -i 0)");
    ground.until_offered(0);
    ground.describe("");
    assert_eq!(ground.seen("last"), whole());
    ground.until_offered(26);
    ground.delete("last", true);

    // GPUs that another program has partitioned are offered as they are, and stay so.
    ground.end_agent();
    std::fs::write(ground.at("cuts"), "0 on\n0 4 2g.20gb 2 2\n").unwrap();
    ground.agent();
    let slices = ground.until_offered(1);
    let device = devices(&slices)[0];
    assert_eq!(device["attributes"]["profile"]["string"], "2g.20gb");
    assert_eq!(device["consumesCounters"], Value::Null);
    ground.until_cut(&["on", "4 2g.20gb 2 2"]);
}

#[test]
fn where_the_api_drops_counters_gpus_are_offered_whole_and_the_log_says_what_to_do() {
    let mut ground = Ground::start("");
    ground.agent();
    let slices = ground.until_offered(1);
    let device = devices(&slices)[0];
    assert_eq!(device["name"], WHOLE);
    assert_eq!(device["consumesCounters"], Value::Null);
    ground.template("whole", "gpu.muster.io", "");
    ground.pod("all", "whole");
    assert_eq!(ground.seen("all"), whole());
    let logged = ground.logged();
    let told = logged.matches("--feature-gates=DRAPartitionableDevices=true");
    assert_eq!(told.count(), 1, "{logged}");
}
