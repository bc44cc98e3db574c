//! Devices that reach containers by the Container Device Interface: the agent's file, read by a real
//! containerd for pods of a real kubelet. The GPUs are the driver's library's stand-in's; their
//! device files are those of /dev/null and its like under other names, and the driver's libraries
//! are text.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use e2e::{Cluster, IMAGE, Kubelet, Network, Setup, eventually, muster, repository, run};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(120);
const GPU: &str = "nvidia.com/gpu";
const SLICE: &str = "nvidia.com/mig-1g.10gb";

/// Each device file with the number that tells it in a container: its minor, of major 1.
const FILES: [(&str, u32); 6] = [
    ("nvidia0", 3),
    ("nvidia1", 5),
    ("nvidiactl", 7),
    ("nvidia-uvm", 8),
    ("nvidia-caps/nvidia-cap30", 9),
    ("nvidia-caps/nvidia-cap31", 11),
];

/// A node with a GPU, and one that is cut into slices.
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
        let rights = repository().join("packaging/kubernetes/agent-rbac.yaml");
        let rights = rights.display().to_string();
        cluster.kubectl(&["apply", "-f", &rights]).ok();
        let kubelet = cluster.kubelet_with_cdi("box", &cluster.directory().join("cdi"));
        let ground = Ground {
            agent: None,
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

    /// A root with device files and the driver's libraries, the stand-in, and its machine.
    fn make_root(&self) {
        let dev = self.at("root/dev");
        std::fs::create_dir_all(dev.join("nvidia-caps")).expect("a directory");
        for (name, minor) in FILES {
            let minor = minor.to_string();
            let made = Command::new("mknod")
                .arg(dev.join(name))
                .args(["c", "1", &minor])
                .status();
            assert!(made.expect("mknod").success());
        }
        let libraries = self.at("root/usr/lib/x86_64-linux-gnu");
        std::fs::create_dir_all(&libraries).expect("a directory");
        std::fs::write(libraries.join("libcuda.so.550.1"), "the driver's\n").expect("a library");
        symlink("libcuda.so.550.1", libraries.join("libcuda.so.1")).expect("a link");

        std::fs::create_dir_all(self.at("library")).expect("a directory");
        let beside = std::env::current_exe().expect("this test");
        let built = beside.with_file_name("libnvml_standin.so");
        std::fs::copy(built, self.at("library/libnvidia-ml.so.1")).expect("the stand-in");
        let gpu = |id: &str, more: &str| {
            format!(
                "[[gpu]]\nmodel = \"NVIDIA H100 80GB HBM3\"\nmemory_mib = 81559\nid = [\"{id}\"]\n{more}\n"
            )
        };
        let cut = "mig = [\"1g.10gb\"]";
        let whole = "GPU-00000000-0000-4000-8000-000000000001";
        let second = "GPU-00000000-0000-4000-8000-000000000002";
        let machine = gpu(whole, "") + &gpu(second, cut);
        std::fs::write(self.at("machine.toml"), machine).expect("a machine");

        // What the driver says in proc of the slice's files: its instances' numbers are the
        // stand-in's, so all that there can be are written.
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

    /// Starts the agent with this strategy, in place of the one before.
    fn agent(&mut self, strategy: &str) {
        self.end_agent();
        let configuration = format!(
            "version: v1\nflags:\n  nvidiaDriverRoot: {}\n  plugin:\n    deviceListStrategy: [{strategy}]\n",
            self.at("root").display()
        );
        std::fs::write(self.at("plugin.yaml"), configuration).expect("a configuration");
        let log = self.at("agent.log");
        let log = File::options().create(true).append(true).open(log);
        let account = self
            .cluster
            .kubeconfig_of_account("muster-system", "muster-agent");
        let mut command = self.kubelet.inside(&muster());
        command.arg("--kubeconfig").arg(account);
        command.arg("--data").arg(self.at("agent-data"));
        command.args(["agent", "--engine", "kubernetes", "--node-name", "box"]);
        command.args([
            "--metrics",
            "off",
            "--kmsg",
            "off",
            "--device-plugin-config",
        ]);
        command.arg(self.at("plugin.yaml"));
        command.arg("--cdi-dir").arg(self.at("cdi"));
        command.env("LD_LIBRARY_PATH", self.at("library"));
        command.env("MUSTER_NVML_MACHINE", self.at("machine.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(log.expect("a log"));
        let before = self.logged().len();
        self.agent = Some(command.spawn().expect("the agent starts"));
        eventually("both resources are registered", SOON, || {
            let said = self.logged();
            let registered = said[before..].matches("registered with the kubelet");
            (registered.count() == 2).then_some(())
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

    /// What a pod with one of a resource sees: its device files with their numbers, what NVIDIA's
    /// runtime would be told, and the driver's library.
    fn seen(&self, pod: &str, resource: &str) -> Vec<String> {
        eventually("the resource is allocatable", SOON, || {
            let node = self.cluster.get(&["node", "box"]);
            (node["status"]["allocatable"][resource] == "1").then_some(())
        });
        let script = "for file in $(busybox find /dev -name 'nvidia*' -type c | busybox sort); do \
            busybox stat -c '%n %t:%T' $file; done; echo told $NVIDIA_VISIBLE_DEVICES; \
            cat /usr/lib/x86_64-linux-gnu/libcuda.so.1 /usr/lib64/libcuda.so.1; echo end";
        let pod_object = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod, "namespace": "default"},
            "spec": {"nodeName": "box", "restartPolicy": "Never",
                "containers": [{"name": "c", "image": IMAGE, "imagePullPolicy": "Never",
                    "command": ["sh", "-c", script],
                    "resources": {"limits": {resource: "1"}}}]}});
        self.cluster.apply(&pod_object.to_string());
        let log = eventually(&format!("{pod} says what it sees"), SOON, || {
            let found = self.cluster.get(&["pod", pod]);
            let phase = found["status"]["phase"].as_str()?;
            assert_ne!(phase, "Failed", "{}", found["status"]);
            let ran = self.cluster.kubectl(&["logs", pod]);
            (ran.code == Some(0) && ran.out.ends_with("end\n")).then_some(ran.out)
        });
        let gone = [
            "delete",
            "pod",
            pod,
            "--wait",
            "--grace-period=0",
            "--force",
        ];
        self.cluster.kubectl(&gone).ok();
        log.lines().map(String::from).collect()
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
    ground.agent("cdi-cri");
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

    let library = ["the driver's", "the driver's", "end"];
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

    // By annotations the same.
    ground.agent("cdi-annotations");
    assert_eq!(ground.seen("noted", GPU), [&whole[..], &library].concat());

    // What is told by the variable as well, a runtime of NVIDIA's may bring too.
    ground.agent("envvar, cdi-cri");
    let both = ground.seen("both", GPU);
    assert_eq!(both[..3], whole[..3]);
    let id = names
        .iter()
        .find(|name| name.ends_with("01"))
        .expect("the first GPU");
    assert_eq!(both[3], format!("told {id}"));

    // A file that nobody needs goes.
    ground.agent("envvar");
    assert!(!file.exists());
}
