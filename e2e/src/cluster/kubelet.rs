//! A real kubelet with its own containerd, both in a mount namespace with a private
//! `/var/lib/kubelet`: device plugins register at a fixed path there, and several kubelets run on
//! one machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;

use super::process::Process;
use super::{Cluster, START, token};
use crate::containerd::{Containerd, Variant, command_inside};
use crate::ports::free_port;
use crate::{Mounts, eventually, part, require_root, run};

/// Numbers the pod networks of one process's kubelets.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A node of a cluster, with its programs and pods; all end when it is dropped.
pub struct Kubelet {
    // Dropped in this order: otherwise the kubelet would restart the containers that containerd
    // ends.
    process: Option<Process>,
    containerd: Option<Containerd>,
    /// The node's name.
    pub node: String,
    arguments: Vec<String>,
    directory: PathBuf,
    bridge: String,
    mounts: Mounts,
}

impl Cluster {
    /// Starts a kubelet under a name that the cluster's [`super::Setup`] allowed, with the
    /// API's own address as the node's; the node is ready when this returns.
    pub fn kubelet(&self, node: &str) -> Kubelet {
        self.kubelet_with(node, None)
    }

    /// Like `kubelet`, with a container runtime that reads CDI files in this directory.
    pub fn kubelet_with_cdi(&self, node: &str, specs: &Path) -> Kubelet {
        self.kubelet_with(node, Some(specs.to_path_buf()))
    }

    fn kubelet_with(&self, node: &str, cdi: Option<PathBuf>) -> Kubelet {
        require_root();
        let directory = self.directory().join(format!("node-{node}"));
        let number = std::process::id().wrapping_mul(37) + NEXT.fetch_add(1, Ordering::Relaxed);
        let mut kubelet = Kubelet {
            process: None,
            containerd: None,
            node: node.to_string(),
            arguments: Vec::new(),
            mounts: own_mounts(&directory),
            directory,
            bridge: format!("mk{:05}", number % 100_000),
        };
        let subnet = format!("10.{}.{}.0/24", 160 + (number / 256) % 64, number % 256);
        kubelet.own_network(&subnet);
        let network = format!(
            "  [plugins.\"io.containerd.grpc.v1.cri\".cni]\n    bin_dir = \"/usr/lib/cni\"\n    conf_dir = \"{}\"\n",
            kubelet.at("cni").display()
        );
        let variant = Variant { network, cdi };
        let inside = kubelet.namespace();
        let containerd = Containerd::start_in(&kubelet.directory, Some(&inside), &variant);
        kubelet.configure(self, &containerd);
        kubelet.containerd = Some(containerd);
        kubelet.restart();
        eventually("the node is ready", START, || {
            kubelet.process.as_ref().expect("it was started").must_run();
            let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
            let ran = self.kubectl(&["get", "node", node, "-o", ready]);
            (ran.out == "True").then_some(())
        });
        kubelet
    }
}

impl Kubelet {
    fn at(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The file of its mount namespace.
    fn namespace(&self) -> PathBuf {
        self.mounts.file()
    }

    /// A command that sees the node's own `/var/lib/kubelet`.
    pub fn inside(&self, program: &Path) -> Command {
        command_inside(Some(&self.namespace()), &program.display().to_string())
    }

    fn own_network(&self, subnet: &str) {
        let network = json!({
            "cniVersion": "0.4.0", "name": self.bridge, "plugins": [
                {"type": "bridge", "bridge": self.bridge, "isGateway": true, "ipMasq": false,
                 "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]],
                    "dataDir": self.at("addresses"), "routes": [{"dst": "0.0.0.0/0"}]}},
            ],
        });
        std::fs::write(self.at("cni/10-pods.conflist"), network.to_string())
            .expect("a network's configuration is written");
    }

    fn configure(&mut self, cluster: &Cluster, containerd: &Containerd) {
        let nothing = "0%";
        let configuration = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": format!("unix://{}", containerd.socket().display()),
            // Kubelets on one machine would otherwise end each other's pods as orphans.
            "cgroupDriver": "cgroupfs", "cgroupsPerQOS": false, "enforceNodeAllocatable": [],
            "failCgroupV1": false, "failSwapOn": false, "localStorageCapacityIsolation": false,
            "evictionHard": {"memory.available": nothing, "nodefs.available": nothing,
                "nodefs.inodesFree": nothing, "imagefs.available": nothing,
                "imagefs.inodesFree": nothing, "pid.available": nothing},
            "imageGCHighThresholdPercent": 100,
            "port": free_port(), "readOnlyPort": 0, "healthzPort": 0,
            "podLogsDir": self.at("logs"), "volumePluginDir": self.at("plugins"),
            "resolvConf": "", "nodeStatusUpdateFrequency": "2s", "syncFrequency": "5s",
            "kubeAPIQPS": 500, "kubeAPIBurst": 500,
        });
        let file = self.at("kubelet.json");
        std::fs::write(&file, configuration.to_string()).expect("a configuration is written");
        let kubeconfig = cluster.write_kubeconfig(&self.node, &token(&self.node));
        self.arguments = vec![
            format!("--config={}", file.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--hostname-override={}", self.node),
            format!("--node-ip={}", cluster.address),
            format!("--cert-dir={}", self.at("certificates").display()),
        ];
    }

    /// Starts the kubelet's process (again); containers keep running in between.
    pub fn restart(&mut self) {
        self.process = None;
        let mut command = self.inside(&part("kubelet"));
        command.args(&self.arguments);
        self.process = Some(Process::of("kubelet", command, &self.directory).start());
    }

    /// Ends the kubelet's process; containers keep running.
    pub fn stop(&mut self) {
        self.process = None;
    }
}

/// A mount namespace with the kubelet's own `/var/lib/kubelet`.
fn own_mounts(directory: &Path) -> Mounts {
    for path in ["cni", "kubelet"].map(|name| directory.join(name)) {
        std::fs::create_dir_all(path).expect("a directory");
    }
    std::fs::create_dir_all("/var/lib/kubelet").expect("a directory");
    let script = r#"
        mount --bind "$DIR/kubelet" /var/lib/kubelet
        mount --make-shared /var/lib/kubelet
    "#;
    Mounts::new(directory, script)
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.process = None;
        self.containerd = None;
        run(Command::new("ip").args(["link", "del", &self.bridge]));
    }
}
