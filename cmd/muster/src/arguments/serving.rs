//! Options of the commands that run on this machine: server, agent and checks.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::audit::AUDIT;
use super::device_plugin::DEVICE_PLUGIN;
use super::invalid::InvalidValue;
use super::name_and_value;
use super::pod_security::POD_SECURITY;
use super::sharing::{ISOLATION, SharingOptions};
use super::tenancy::TenancyOptions;

/// The server's default listen address.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8443";

/// Help text on the scheduler's configuration; the example shows the defaults.
const SCHEDULER: &str = "Scheduler (--scheduler-config; `muster simulate` reads the same):
  apiVersion: muster.io/v1alpha1
  kind: SchedulerConfig
  spec:                          # all of it may be left out; these are the defaults
    actions: [allocate, reclaim, preempt, backfill]   # also consolidate and defragment, which move work
    topology: [topology.kubernetes.io/zone, muster.io/spine, muster.io/leaf, muster.io/rack,
      muster.io/nvlink-domain]   # node labels that name network domains, widest first
    placement: fragmentation     # or pack, or spread: which nodes are taken first
    gpus: pack                   # or spread: of a node's GPUs for pods that share one
    reserveAfter: 4h             # a gang that waited so long gets room reserved for it
    reserveFor: response         # or age, share, size: whom first of several such gangs
    weighLosses: true            # evictions must save more waiting than they lose work
    breakBudgets: false          # true: evictions may break PodDisruptionBudgets as a last resort
    staleAfter: 60s              # how long a gang below its minimum is left running
    loadAge: 120s                # older reports of GPUs' load are not gone by
    schedulerNames: [muster, default-scheduler, volcano, \"\"]   # --engine kubernetes: [muster]
    defragmentation: {movesAnHour: 8, gpusInterruptedEach: 2}
    mig:                         # off; as in {queues: [], after: 30s, every: 10m}: cut idle GPUs for gangs of
                                 # these queues (none: all) that waited so long for slices, or make them
                                 # whole, at most so often; --engine kubernetes, agents with --mig-manager
    usage:                       # none; as in {halfLife: 7d, strength: 1}: past use counts against a queue
    expected: []                 # pods to come, placed for; else such as those there are
      # - {count: 40, requests: {cpu: 8, nvidia.com/gpu: 1}, annotations: {}, nodeSelector: {}}

  Volcano's volcano-scheduler.conf (or its ConfigMap) and a KubeSchedulerConfiguration are read too;
  each key of theirs without a counterpart is named in the log.
  packaging/examples/scheduler.yaml is one to start from. What is wrong is said at the start, with
  its field and what would be right.";

#[derive(Args, Debug)]
#[command(after_long_help = format!("{SCHEDULER}\n\n{POD_SECURITY}\n\n{AUDIT}"))]
pub struct Up {
    #[command(flatten)]
    pub server: ServerOptions,
    #[command(flatten)]
    pub machine: MachineOptions,
}

#[derive(Args, Debug)]
#[command(after_long_help = format!("{SCHEDULER}\n\n{POD_SECURITY}\n\n{AUDIT}"))]
pub struct Server {
    /// Engine that stores resources and runs pods
    #[arg(long, value_enum, default_value_t = Engine::Embedded)]
    pub engine: Engine,
    #[command(flatten)]
    pub server: ServerOptions,
    #[command(flatten, next_help_heading = "Options of --engine kubernetes")]
    pub kubernetes: KubernetesOptions,
}

/// The engine that stores resources and runs pods.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// This server: own API and store; agents run the pods
    Embedded,
    /// A Kubernetes cluster (--kubeconfig, else the cluster of this pod): scheduler and job controllers only; a Lease
    /// elects one active server among several. If a StorageClass waits for the first consumer, claims are bound
    /// before their pods. --listen serves /metrics, /healthz and /readyz over plain HTTP
    Kubernetes,
}

#[derive(Args, Debug, Clone, Default)]
pub struct KubernetesOptions {
    /// schedulerName to serve (repeatable); pods of jobs whose template names none get the first [default: muster]
    #[arg(long = "scheduler-name", value_name = "NAME")]
    pub scheduler_names: Vec<String>,
    /// Job kinds to control, separated by commas; omit kinds that another operator controls [default: PyTorchJob]
    #[arg(
        long,
        value_name = "KINDS",
        value_enum,
        ignore_case = true,
        value_delimiter = ','
    )]
    pub kinds: Vec<ControlledKind>,
    /// Namespace of the Lease, the same for all servers of a cluster [default: muster-system]
    #[arg(long, value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// Address of the extender for a stock kube-scheduler: it filters nodes by their GPUs, and binds pods with their
    /// devices; configuration: packaging/examples/kube-scheduler.yaml. Plain HTTP without authentication: every
    /// client that reaches the address can bind pods
    #[arg(long, value_name = "ADDR")]
    pub extender: Option<SocketAddr>,
}

impl KubernetesOptions {
    /// The first of these options that is set, so that the embedded engine can refuse it.
    pub fn given(&self) -> Option<&'static str> {
        [
            (!self.scheduler_names.is_empty(), "--scheduler-name"),
            (!self.kinds.is_empty(), "--kinds"),
            (self.lease_namespace.is_some(), "--lease-namespace"),
            (self.extender.is_some(), "--extender"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}

/// A job kind that the server can control in a cluster.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlledKind {
    /// kubeflow.org/v1 PyTorchJob
    #[value(name = "PyTorchJob")]
    PyTorchJob,
    /// No kind
    #[value(name = "none")]
    None,
}

#[derive(Args, Debug, Clone)]
pub struct ServerOptions {
    /// Listen address of the API, the web UI and the agents' sessions
    #[arg(long, env = "MUSTER_LISTEN", default_value = DEFAULT_LISTEN, value_name = "ADDR")]
    pub listen: SocketAddr,
    /// Additional DNS name or IP address in the server's certificate (repeatable)
    #[arg(long = "advertise", value_name = "NAME")]
    pub advertise: Vec<String>,
    /// File with the first administrator's password, read at the first start only [default: generate one and store it
    /// in server/first-password under --data]
    #[arg(long, value_name = "FILE")]
    pub first_password_file: Option<PathBuf>,
    /// Seconds without contact after which a node's pods are declared lost [default: 40]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(3..))]
    pub node_grace: Option<u64>,
    /// Scheduler configuration: a SchedulerConfig in YAML, see below [default: as below]
    #[arg(long, env = "MUSTER_SCHEDULER_CONFIG", value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
    #[command(flatten)]
    pub audit: AuditFlags,
    /// Pod security levels for namespaces without labels, and exemptions: a Kubernetes PodSecurityConfiguration in
    /// YAML, see below [default: baseline for all namespaces, no exemptions]
    #[arg(long, env = "MUSTER_POD_SECURITY_CONFIG", value_name = "FILE")]
    pub pod_security_config: Option<PathBuf>,
    /// Host directories, capabilities and host network access that pods of some namespaces may use in addition: a
    /// PodSecurityAllowList in YAML, see below [default: as below]
    #[arg(long, env = "MUSTER_POD_SECURITY_ALLOW", value_name = "FILE")]
    pub pod_security_allow: Option<PathBuf>,
}

/// Options of the embedded engine's audit log, named as kube-apiserver names them if it has them.
#[derive(Args, Debug, Clone)]
pub struct AuditFlags {
    /// Audit policy: a Policy of audit.k8s.io/v1 in YAML, see below [default: every change, sign-in and token;
    /// responses 401 and 403 are always recorded]
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    /// Directory of the audit log, readable only by the server's user [default: audit under --data]
    #[arg(long, value_name = "DIR")]
    pub audit_log_dir: Option<PathBuf>,
    /// File size in MiB at which the audit log starts a new file
    #[arg(long, value_name = "MIB", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub audit_log_maxsize: u64,
    /// Number of full audit log files to keep
    #[arg(long, value_name = "FILES", default_value_t = 10, value_parser = backups)]
    pub audit_log_maxbackup: usize,
}

fn backups(text: &str) -> Result<usize, InvalidValue> {
    let (least, most) = (1, 1000);
    text.parse()
        .ok()
        .filter(|count| (least..=most).contains(count))
        .ok_or_else(|| InvalidValue::Number {
            value: text.to_owned(),
            least,
            most,
        })
}

impl ServerOptions {
    /// How long a node may be out of contact before its pods are declared lost.
    pub fn node_grace(&self) -> Duration {
        Duration::from_secs(self.node_grace.unwrap_or(40))
    }

    /// The first of these options that is set and has no meaning if a Kubernetes cluster stores the resources and
    /// runs the pods, so that the server can refuse it.
    pub fn embedded_only(&self) -> Option<&'static str> {
        [
            (!self.advertise.is_empty(), "--advertise"),
            (self.first_password_file.is_some(), "--first-password-file"),
            (self.node_grace.is_some(), "--node-grace"),
            (
                self.audit.audit_policy_file.is_some(),
                "--audit-policy-file",
            ),
            (self.audit.audit_log_dir.is_some(), "--audit-log-dir"),
            (self.pod_security_config.is_some(), "--pod-security-config"),
            (self.pod_security_allow.is_some(), "--pod-security-allow"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}

#[derive(Args, Debug)]
#[command(after_long_help = format!("{DEVICE_PLUGIN}\n\n{ISOLATION}"))]
pub struct Agent {
    /// Engine that runs this machine's pods
    #[arg(long, value_enum, default_value_t = PodsOf::Embedded)]
    pub engine: PodsOf,
    /// Server address, as https://HOST:PORT; required unless a kubelet runs the pods
    #[arg(long, env = "MUSTER_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// Join token (`muster token join`); required until the agent has its certificate
    #[arg(
        long,
        env = "MUSTER_JOIN_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    /// File with the server's CA certificate (server/ca.pem on the server) [default: check the fingerprint in the
    /// join token]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Directory of the kubelet, with --engine kubernetes
    #[arg(long, value_name = "DIR", default_value = agent::KUBELET_DIR)]
    pub kubelet_dir: PathBuf,
    /// How the kubelet's pods get this machine's devices, with --engine kubernetes: as extended resources
    /// (nvidia.com/gpu), or through ResourceClaims (driver gpu.muster.io, allocated by kube-scheduler of Kubernetes
    /// 1.34 or later). Never both on one node
    #[arg(long, value_enum, value_name = "WAY")]
    pub devices: Option<DevicesBy>,
    /// Partition this node's GPUs (MIG) by its label nvidia.com/mig.config, see below; either wait for the pods that
    /// use them, or evict these through the Eviction API, with their grace period and within their disruption
    /// budgets; with --engine kubernetes. Not together with another MIG manager [default: GPUs are not partitioned]
    #[arg(long, value_enum, value_name = "PODS")]
    pub mig_manager: Option<MigDrain>,
    /// Configurations that the label may name, in YAML in the format of NVIDIA's MIG manager, see below; with
    /// --mig-manager [default: configurations of the GPUs' own profiles]
    #[arg(long, value_name = "FILE")]
    pub mig_config: Option<PathBuf>,
    /// Also offer to ResourceClaims every MIG slice that the GPUs can be partitioned into, besides the whole GPU, and
    /// create a slice when kube-scheduler allocates it; with --devices dra, in a cluster with the feature gate
    /// DRAPartitionableDevices (alpha in Kubernetes 1.34). A slice is deleted with its claim, and MIG mode ends when
    /// a claim gets the whole GPU; GPUs that another program has partitioned are offered as they are. Not together
    /// with a MIG manager [default: GPUs are not partitioned for claims]
    #[arg(long)]
    pub mig_partitions: bool,
    /// Take part in `muster doctor --pair` of the cluster, with --engine kubernetes: every user that may patch Nodes
    /// can have this node run perftest's ib_write_bw and ib_write_lat, one test at a time and, unless forced, only
    /// while no pod has GPUs. The agent must use the node's network and be allowed to watch its Node
    #[arg(long)]
    pub pair: bool,
    /// Device plugin configuration in YAML, in the format of NVIDIA's device plugin, see below; with --engine
    /// kubernetes
    #[arg(long, value_name = "FILE")]
    pub device_plugin_config: Option<PathBuf>,
    /// Also offer fractions of GPUs to the kubelet, for pods that Muster's scheduler places: aliyun.com/gpu-mem (GiB
    /// of GPU memory), aliyun.com/gpu-core and aliyun.com/gpu-core.percentage (100 per GPU); with --engine kubernetes
    #[arg(long)]
    pub gpu_parts: bool,
    /// Mount point of the node's root in the agent's container, searched for other vendors' devices and the files of
    /// RDMA cards; with --engine kubernetes
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub host_root: PathBuf,
    /// How containers learn their devices, separated by commas: the environment variable of NVIDIA's runtime, or the
    /// Container Device Interface by annotations or by the kubelet's own field; with --engine kubernetes [default: as
    /// in --device-plugin-config, else envvar]
    #[arg(
        long,
        value_name = "WAYS",
        value_delimiter = ',',
        value_parser = ["envvar", "cdi-annotations", "cdi-cri"]
    )]
    pub device_list_strategy: Vec<String>,
    /// Directory in which container runtimes look for CDI files, with --engine kubernetes
    #[arg(long, value_name = "DIR", default_value = devices::cdi::DIRECTORY)]
    pub cdi_dir: PathBuf,
    #[command(flatten)]
    pub machine: MachineOptions,
}

/// What the agent does with pods whose GPU it is to partition anew.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigDrain {
    /// Wait for them to end
    Wait,
    /// Evict them
    Evict,
}

/// How a kubelet's pods get devices.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicesBy {
    /// Device plugin (the default)
    Plugin,
    /// Dynamic resource allocation
    Dra,
}

/// The engine that runs a machine's pods.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodsOf {
    /// The agent, for the server that it joins
    Embedded,
    /// The kubelet: the agent offers it the GPUs, allocates those that the scheduler chose, and describes the machine
    /// on its Node (--kubeconfig, else the cluster of this pod)
    Kubernetes,
}

#[derive(Args, Debug, Clone)]
pub struct MachineOptions {
    /// Name of the node [default: the hostname]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// IP address at which other nodes reach this node [default: the address of the route to the server]
    #[arg(long, value_name = "IP")]
    pub node_address: Option<IpAddr>,
    /// Machine description (TOML) that replaces this machine's GPUs, for tests and demos
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Machine description with the expected network cards, their ports and rates: a file that `muster doctor
    /// --save-machine` wrote while all cards were healthy. Without it, cards are compared with each other and with
    /// their earlier state
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// How MIG slices are offered: not at all, as nvidia.com/gpu if all have one profile, or as
    /// nvidia.com/mig-PROFILE [default: as in --machine or, for `muster agent`, in --device-plugin-config, else
    /// mixed]
    #[arg(long, value_name = "STRATEGY", value_parser = ["none", "single", "mixed"])]
    pub mig_strategy: Option<String>,
    /// Description of another vendor's devices in YAML (fields: `muster agent --help`), offered as the resource that
    /// it names (repeatable)
    #[arg(long = "vendor", value_name = "FILE")]
    pub vendors: Vec<PathBuf>,
    /// RDMA cards that containers share, in YAML or JSON (fields: `muster agent --help`), each set offered as the
    /// resource that it names; or off. Not with --devices dra [default: all cards as rdma/hca_shared_devices_a, and
    /// none with --machine]
    #[arg(long, value_name = "FILE")]
    pub rdma_config: Option<PathBuf>,
    /// When containers with GPUs get this machine's PCIe tree for NCCL (NCCL_TOPO_FILE, unless the pod sets it): only
    /// if the kernel hides the GPUs' switches or links, as in many virtual machines, and --expect or --machine lists
    /// them under the same PCI addresses; always, from that description or else as detected; or never. Otherwise NCCL
    /// detects the tree itself [default: hidden]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub nccl_topology: Option<NcclTopology>,
    /// Let pods that name an image run their command on the host, without the image
    #[arg(long)]
    pub host_images: bool,
    /// Socket of the CRI runtime, such as /run/containerd/containerd.sock
    #[arg(long, value_name = "SOCKET")]
    pub cri: Option<PathBuf>,
    /// Address for the Prometheus metrics of GPUs and RDMA ports (/metrics, plain HTTP), as IP:PORT, or off [default:
    /// port 9400, on all addresses for `muster agent`, on 127.0.0.1 for `muster up`; the agent starts without metrics
    /// if that port is in use]
    #[arg(long, env = "MUSTER_METRICS", value_name = "ADDR", value_parser = metrics)]
    pub metrics: Option<Metrics>,
    /// Actions on GPUs for the errors (XIDs) that the driver reports, in YAML; replaces the policy that `muster xids`
    /// prints
    #[arg(long, value_name = "FILE")]
    pub xid_policy: Option<PathBuf>,
    /// Kernel log, a second source of XIDs, or a file with the same format; or off [default: /dev/kmsg if readable,
    /// and none with --machine]
    #[arg(long, value_name = "FILE")]
    pub kmsg: Option<PathBuf>,
    #[command(flatten)]
    pub sharing: SharingOptions,
    #[command(flatten)]
    pub tenancy: TenancyOptions,
    /// Label of the node, as NAME=VALUE (repeatable)
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub labels: Vec<(String, String)>,
}

/// When containers get a machine's PCIe tree for NCCL.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcclTopology {
    /// If the kernel hides a tree that a description lists
    Hidden,
    /// In every container with GPUs
    Always,
    /// Never
    Never,
}

/// The address of the metrics endpoint, as given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metrics {
    /// No endpoint.
    Off,
    /// This address.
    At(SocketAddr),
}

fn metrics(text: &str) -> Result<Metrics, InvalidValue> {
    if text == "off" {
        return Ok(Metrics::Off);
    }
    let good = text.parse().map(Metrics::At);
    good.map_err(|_| InvalidValue::Metrics)
}

#[derive(Args, Debug)]
pub struct Doctor {
    /// Machine description to check instead of this machine's devices
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Write the detected devices to FILE as a machine description, for --machine here or elsewhere
    #[arg(long, value_name = "FILE")]
    pub save_machine: Option<PathBuf>,
    /// Machine description with the expected network cards, firmware and rates: a file saved on a healthy machine.
    /// Without it, cards are compared with each other
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// Root directory for sys, proc, etc and dev: a host's root mounted in a container, or a copy
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Check RDMA between this node and NODE of the same server or cluster instead: the settings that must match on
    /// both, and for each pair of ports the bandwidth in each direction and the latency, measured by perftest's
    /// ib_write_bw and ib_write_lat from the PATH of both agents. The nodes must reach each other over TCP. For
    /// administrators; about 10 seconds per pair of ports. In a Kubernetes cluster, only agents with --pair take part
    /// (chart: agent.pair)
    #[arg(long, value_name = "NODE", conflicts_with_all = ["machine", "save_machine", "expect", "root"])]
    pub pair: Option<String>,
    /// First node of --pair [default: the hostname]
    #[arg(long, value_name = "NODE", requires = "pair")]
    pub node: Option<String>,
    /// Measure even if pods with GPUs run on one of the nodes
    #[arg(long, requires = "pair")]
    pub force: bool,
}

#[derive(Args, Debug)]
pub struct Xids {
    /// XID policy file, as for --xid-policy of `muster agent`
    #[arg(long, value_name = "FILE")]
    pub xid_policy: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Topology {
    /// Machine description to draw instead of this machine
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_served_at_an_address_or_not_at_all() {
        assert_eq!(metrics("off"), Ok(Metrics::Off));
        let at = ([0, 0, 0, 0], 9400).into();
        assert_eq!(metrics("0.0.0.0:9400"), Ok(Metrics::At(at)));
        for bad in ["9400", ":9400", "localhost:9400", "0.0.0.0:94000", "on"] {
            assert_eq!(metrics(bad), Err(InvalidValue::Metrics), "{bad}");
        }
    }
}
