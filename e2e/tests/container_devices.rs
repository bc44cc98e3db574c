//! The devices of containers, and the node's report of them: by the Container Device Interface, whose file a real
//! containerd reads for pods of a real kubelet; another vendor's devices by description; and RDMA cards that
//! containers share, on a machine whose sysfs is a tree of files. The stand-in for the driver's library provides the
//! GPUs; the device files are copies of /dev/null and similar ones under other names, and the driver's libraries are
//! text files.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{
    Cluster, IMAGE, Kubelet, Network, Setup, eventually, make_device, make_rdma, muster,
    nvml_standin, rdma_device_files, repository, run,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);
const GPU: &str = "nvidia.com/gpu";
const SLICE: &str = "nvidia.com/mig-1g.10gb";

/// Each device file with its number in a container: its minor, of major 1.
const FILES: [(&str, u32); 6] = [
    ("nvidia0", 3),
    ("nvidia1", 5),
    ("nvidiactl", 7),
    ("nvidia-uvm", 8),
    ("nvidia-caps/nvidia-cap30", 9),
    ("nvidia-caps/nvidia-cap31", 11),
];

/// A node with a whole GPU, and one with slices.
struct Ground {
    agent: Option<Child>,
    kubelet: Kubelet,
    cluster: Cluster,
    _network: Network,
}

impl Ground {
    fn start() -> Ground {
        let network = Network::new(0);
        let address = network.host().parse().expect("an address");
        let cluster = Setup::default().at(address).kubelet("box").start();
        let cluster = cluster.with_controller_manager();
        cluster.apply_packaged(&["agent-rbac.yaml"]);
        let kubelet = cluster.kubelet_with_cdi("box", &cluster.directory().join("cdi"));
        Ground {
            agent: None,
            kubelet,
            cluster,
            _network: network,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.cluster.directory().join(name)
    }

    /// A root with device files and the driver's libraries, the stand-in, and its machine.
    fn make_root(&self) {
        for (name, minor) in FILES {
            make_device(&self.at("root/dev").join(name), minor);
        }
        let libraries = self.at("root/usr/lib/x86_64-linux-gnu");
        std::fs::create_dir_all(&libraries).expect("a directory");
        std::fs::write(libraries.join("libcuda.so.550.1"), "the driver's\n").expect("a library");
        symlink("libcuda.so.550.1", libraries.join("libcuda.so.1")).expect("a link");

        nvml_standin(&self.at("library"));
        let gpu = |id: &str, more: &str| {
            format!(
                "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nid = [\"{id}\"]\n{more}\n"
            )
        };
        let cut = "mig = [\"1g.10gb\"]";
        let whole = "GPU-00000000-0000-4000-8000-000000000001";
        let second = "GPU-00000000-0000-4000-8000-000000000002";
        let hot = "[[state]]\ngpu = 0\nutilisation = 50\ncelsius = 91\n";
        let machine = gpu(whole, "") + &gpu(second, cut) + hot;
        std::fs::write(self.at("machine.toml"), machine).expect("a machine");

        // The files of slices that the driver lists in proc: the stand-in chooses the instances' numbers, so that all
        // possible files are created.
        let script = r#"
            set -e
            for instance in $(seq 0 14); do
                place=$DIR/driver/nvidia/capabilities/gpu1/mig/gi$instance
                mkdir -p $place/ci0
                echo "DeviceFileMinor: 30" > $place/access
                echo "DeviceFileMinor: 31" > $place/ci0/access
            done
            mount --bind $DIR/driver /proc/driver
        "#;
        let mut shell = self.kubelet.inside(Path::new("sh"));
        let dir = self.cluster.directory();
        run(shell.args(["-c", script]).env("DIR", dir)).ok();
    }

    /// Starts the agent with this strategy, instead of the previous one.
    fn agent_by(&mut self, strategy: &str) {
        let configuration = format!(
            "version: v1\nflags:\n  nvidiaDriverRoot: {}\n  plugin:\n    deviceListStrategy: [{strategy}]\n",
            self.at("root").display()
        );
        std::fs::write(self.at("plugin.yaml"), configuration).expect("a configuration");
        let plugin = self.at("plugin.yaml").display().to_string();
        self.agent(&["--device-plugin-config", &plugin], 2);
    }

    /// Starts the agent with these arguments, instead of the previous one, and waits until it has registered this
    /// many resources.
    fn agent(&mut self, more: &[&str], resources: usize) {
        let program = self.kubelet.inside(&muster());
        self.agent_by_command(program, more, resources);
    }

    /// Like `agent`, on a machine whose sysfs is in this directory.
    fn agent_seeing(&mut self, sys: &Path, more: &[&str], resources: usize) {
        let mut program = self.kubelet.inside(Path::new("unshare"));
        let script = "mount --bind \"$0\" /sys && exec \"$@\"";
        program.args(["--mount", "sh", "-c", script]);
        program.arg(sys).arg(muster());
        self.agent_by_command(program, more, resources);
    }

    fn agent_by_command(&mut self, mut command: Command, more: &[&str], resources: usize) {
        self.end_agent();
        let log = self.at("agent.log");
        let log = File::options().create(true).append(true).open(log);
        let account = self
            .cluster
            .kubeconfig_of_account("muster-system", "muster-agent");
        command.arg("--kubeconfig").arg(account);
        command.arg("--data").arg(self.at("agent-data"));
        command.args(["agent", "kubernetes", "--node-name", "box"]);
        command
            .args(["--metrics", "off", "--kmsg", "off"])
            .args(more);
        command.arg("--cdi-dir").arg(self.at("cdi"));
        command.env("LD_LIBRARY_PATH", self.at("library"));
        command.env("MUSTER_NVML_MACHINE", self.at("machine.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(log.expect("a log"));
        let before = self.logged().len();
        self.agent = Some(command.spawn().expect("the agent starts"));
        eventually("its resources are registered", SOON, || {
            let said = self.logged();
            let registered = said[before..].matches("registered with the kubelet");
            (registered.count() == resources).then_some(())
        });
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

    fn until_allocatable(&self, resource: &str, count: usize) {
        let what = format!("{count} of {resource} are allocatable");
        eventually(&what, SOON, || {
            let node = self.cluster.get(&["node", "box"]);
            (node["status"]["allocatable"][resource] == count.to_string().as_str()).then_some(())
        });
    }

    /// The devices of a pod with one of a resource: its device files with their numbers, the variable for NVIDIA's
    /// runtime, and the driver's library.
    fn seen(&self, pod: &str, resource: &str) -> Vec<String> {
        self.until_allocatable(resource, 1);
        let script = "for file in $(busybox find /dev -name 'nvidia*' -type c | busybox sort); do \
            busybox stat -c '%n %t:%T' $file; done; echo told $NVIDIA_VISIBLE_DEVICES; \
            cat /usr/lib/x86_64-linux-gnu/libcuda.so.1 /usr/lib64/libcuda.so.1";
        let said = self.said(pod, resource, script);
        let gone = [
            "delete",
            "pod",
            pod,
            "--wait",
            "--grace-period=0",
            "--force",
        ];
        self.cluster.kubectl(&gone).ok();
        said
    }

    /// The output of a pod with one of a resource, which keeps running.
    fn said(&self, pod: &str, resource: &str, script: &str) -> Vec<String> {
        self.said_with(pod, &json!({resource: "1"}), script)
    }

    /// Like `said`, with all of these resources.
    fn said_with(&self, pod: &str, limits: &Value, script: &str) -> Vec<String> {
        let script = format!("{script}; echo end; trap 'exit 0' TERM; while :; do sleep 1; done");
        let pod_object = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod, "namespace": "default"},
            "spec": {"nodeName": "box", "restartPolicy": "Never",
                "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Never",
                    "command": ["sh", "-c", script],
                    "resources": {"limits": limits}}]}});
        self.cluster.apply(&pod_object.to_string());
        self.cluster.said(pod, SOON)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.end_agent();
        if std::thread::panicking() {
            eprintln!("--- the agent's log:\n{}", self.logged());
        }
    }
}

#[test]
fn a_container_has_the_device_files_that_the_cdi_file_names_and_the_drivers_libraries() {
    let mut ground = Ground::start();
    ground.make_root();
    ground.agent_by("cdi-cri");
    let file = ground.at("cdi/muster.io-gpu.json");
    let text = std::fs::read_to_string(&file).expect("the CDI file");
    let spec: Value = serde_json::from_str(&text).expect("the CDI file is JSON");
    let devices = spec["devices"].as_array().expect("devices").iter();
    let names: Vec<&str> = devices
        .filter_map(|device| device["name"].as_str())
        .collect();
    assert_eq!(names.len(), 7, "{names:?}");
    for name in ["0", "1", "1:0", "all"] {
        assert!(names.contains(&name), "{names:?}");
    }

    let library = ["the driver's", "the driver's"];
    let whole = [
        "/dev/nvidia-uvm 1:8",
        "/dev/nvidia0 1:3",
        "/dev/nvidiactl 1:7",
        "told void",
    ];
    assert_eq!(ground.seen("whole", GPU), [&whole[..], &library].concat());
    let slice = [
        "/dev/nvidia-caps/nvidia-cap30 1:9",
        "/dev/nvidia-caps/nvidia-cap31 1:b",
        "/dev/nvidia-uvm 1:8",
        "/dev/nvidia1 1:5",
        "/dev/nvidiactl 1:7",
        "told void",
    ];
    assert_eq!(ground.seen("slice", SLICE), [&slice[..], &library].concat());

    // The same with annotations.
    ground.agent_by("cdi-annotations");
    assert_eq!(ground.seen("noted", GPU), [&whole[..], &library].concat());

    // With the variable as well, NVIDIA's runtime may add the same devices.
    ground.agent_by("envvar, cdi-cri");
    let both = ground.seen("both", GPU);
    assert_eq!(both[..3], whole[..3]);
    let id = names
        .iter()
        .find(|name| name.ends_with("01"))
        .expect("the first GPU");
    assert_eq!(both[3], format!("told {id}"));

    // An unused CDI file is removed.
    ground.agent_by("envvar");
    assert!(!file.exists());

    // GPU metrics are served next to a kubelet too, and so is the alert on a hot GPU.
    let said = |name: &str| {
        eventually(&format!("the node has {name}"), SOON, || {
            let node = ground.cluster.get(&["node", "box"]);
            let text = node["metadata"]["annotations"][name].as_str()?;
            serde_json::from_str::<Value>(text).ok()
        })
    };
    assert_eq!(said("muster.io/load")["gpus"][*id]["celsius"], 91.0);
    let alert = &said("muster.io/alerts")[0];
    assert_eq!([&alert["alert"], &alert["id"]], ["GpuHot", *id]);
    let about = "reason=GpuHot,involvedObject.name=box";
    let events = ground
        .cluster
        .kubectl(&["get", "events", "--field-selector", about])
        .ok();
    assert!(events.contains("GPU 0 is over 85"), "{events}");
}

#[test]
fn a_described_vendors_devices_are_given_to_pods_while_they_are_well() {
    let resource = "habana.ai/gaudi";
    let mut ground = Ground::start();
    // The example's description, with its files elsewhere.
    let example = repository().join("packaging/examples/vendors/gaudi.yaml");
    let example = std::fs::read_to_string(example).expect("the example");
    let root = ground.at("machine").display().to_string();
    let text = example
        .replace("/dev/", &format!("{root}/dev/"))
        .replace("/sys/", &format!("{root}/sys/"))
        .replace("everySeconds: 10", "everySeconds: 5");
    std::fs::write(ground.at("vendor.yaml"), text).expect("a description");
    let directory = ground.cluster.directory().to_path_buf();
    let about = |number: u32, file: &str, says: &str| {
        let at = format!("machine/sys/class/accel/accel{number}/device/{file}");
        let path = directory.join(at);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("it is made");
        std::fs::write(path, says).expect("it is written");
    };
    // The third device is not Gaudi's.
    for (number, vendor) in [(0, "0x1da3\n"), (1, "0x1da3\n"), (2, "0x8086\n")] {
        let dev = ground.at("machine/dev/accel");
        make_device(&dev.join(format!("accel{number}")), 3 + number * 2);
        make_device(&dev.join(format!("accel_controlD{number}")), 4 + number * 2);
        about(number, "vendor", vendor);
        about(number, "status", "Operational\n");
    }
    about(1, "status", "Malfunction\n");
    let file = ground.at("vendor.yaml").display().to_string();
    let machine = ground.at("none.toml");
    std::fs::write(&machine, "").expect("a machine without GPUs");
    let machine = machine.display().to_string();
    ground.agent(&["--vendor", &file, "--machine", &machine], 2);
    ground.until_allocatable(resource, 1);
    let says = |status: &str| {
        eventually("the node says which device is unhealthy", SOON, || {
            let node = ground.cluster.get(&["node", "box"]);
            let mut all = node["status"]["conditions"].as_array()?.iter();
            let ours = all.find(|it| it["type"] == "muster.io/devices-unhealthy")?;
            (ours["status"] == status).then(|| ours["message"].to_string())
        })
    };
    let message = says("True");
    for word in [
        "accel1 (habana.ai/gaudi) is not allocatable",
        "exit status: 1",
    ] {
        assert!(message.contains(word), "{message}");
    }

    // A pod gets the healthy device: both of its files, none of the others', and its number.
    let script = format!(
        "for file in $(busybox find {root}/dev -type c | busybox sort); do \
         busybox stat -c '%n %t:%T' $file; done; echo sees $HABANA_VISIBLE_DEVICES"
    );
    let wanted = [
        format!("{root}/dev/accel/accel0 1:3"),
        format!("{root}/dev/accel/accel_controlD0 1:4"),
        "sees 0".to_owned(),
    ];
    assert_eq!(ground.said("first", resource, &script), wanted);

    // The other device comes back when its check succeeds, and is not allocated twice.
    about(1, "status", "Operational\n");
    ground.until_allocatable(resource, 2);
    says("False");
    let second = ground.said("second", resource, &script);
    assert_eq!(second.last().map(String::as_str), Some("sees 1"));
}

/// A pod's RDMA: its cards' files, its GPU, and NCCL's ports.
const RDMA: &str = "for file in $(busybox find /dev/infiniband -type c | busybox sort); do \
    busybox stat -c '%n %t:%T' $file; done; echo told $NVIDIA_VISIBLE_DEVICES $NCCL_IB_HCA";

impl Ground {
    /// A machine of two GPUs, each with an InfiniBand card under its switch; the node's `/dev` has the
    /// cards' files.
    fn make_rdma(&self) -> PathBuf {
        let dir = self.cluster.directory();
        let machine = make_rdma(dir);
        let mut shell = self.kubelet.inside(Path::new("sh"));
        run(shell.args(["-ec", &rdma_device_files()]).env("DIR", dir)).ok();

        nvml_standin(&self.at("library"));
        let gpu = |number: u32, pci: &str| {
            format!(
                "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\npci = [\"{pci}\"]\n\
                 id = [\"GPU-00000000-0000-4000-8000-00000000000{number}\"]\n"
            )
        };
        let gpus = gpu(0, "0000:18:00.0") + &gpu(1, "0000:3a:00.0");
        std::fs::write(self.at("machine.toml"), gpus).expect("a machine");
        machine
    }
}

#[test]
fn shared_rdma_cards_reach_pods_with_their_files_while_a_port_is_up_and_go_with_near_gpus() {
    let mut ground = Ground::start();
    let machine = ground.make_rdma();
    let configuration = json!({"periodicUpdateInterval": 300, "configList": [
        {"resourceName": "hca_all", "rdmaHcaMax": 20, "selectors": {"vendors": ["15b3"]}},
        {"resourceName": "hca_b", "rdmaHcaMax": 10, "selectors": {"ifNames": ["ib1"]}}]});
    let file = ground.at("rdma.json").display().to_string();
    std::fs::write(&file, configuration.to_string()).expect("a configuration");
    let root = machine.display().to_string();
    let more = ["--host-root", &root, "--rdma-config", &file];
    ground.agent_seeing(&machine.join("sys"), &more, 3);
    let (all, second) = ("rdma/hca_all", "rdma/hca_b");
    ground.until_allocatable(all, 20);
    ground.until_allocatable(second, 10);

    // The second card alone: its own files, the GPU near it, and NCCL's setting for it.
    ground.until_allocatable(GPU, 2);
    let both = json!({GPU: "1", second: "1"});
    let own = [
        "/dev/infiniband/issm1 1:6",
        "/dev/infiniband/rdma_cm 1:7",
        "/dev/infiniband/umad1 1:4",
        "/dev/infiniband/uverbs1 1:2",
    ];
    let gpu = |number: u32| format!("GPU-00000000-0000-4000-8000-00000000000{number}");
    let said = ground.said_with("near", &both, RDMA);
    assert_eq!(said[..4], own);
    assert_eq!(said[4], format!("told {} =mlx5_1:1", gpu(1)));
    // All cards: every card's files, and NCCL's setting for the one near the GPU.
    let said = ground.said_with("all", &json!({GPU: "1", all: "1"}), RDMA);
    assert_eq!(said.len(), 8, "{said:?}");
    assert_eq!(said[7], format!("told {} =mlx5_0:1", gpu(0)));
    // Without a GPU, NCCL gets no setting.
    assert_eq!(ground.said("plain", second, RDMA)[4], "told");

    // If all ports of a resource are down, it is not allocated until one is up.
    let state = machine.join("sys/class/infiniband/mlx5_1/ports/1/state");
    std::fs::write(&state, "1: DOWN\n").expect("it is written");
    ground.until_allocatable(second, 0);
    ground.until_allocatable(all, 20);
    std::fs::write(&state, "4: ACTIVE\n").expect("it is written");
    ground.until_allocatable(second, 10);
}
