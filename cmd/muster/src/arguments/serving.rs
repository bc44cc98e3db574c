//! What the commands take that run something on this machine: server, agent, checks.

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

/// Where the server listens when nothing else is said.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:8443";

/// What help says of the scheduler's configuration; everything in it is the default.
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
    /// Where resources are kept and who runs pods
    #[arg(long, value_enum, default_value_t = Engine::Embedded)]
    pub engine: Engine,
    #[command(flatten)]
    pub server: ServerOptions,
    #[command(flatten, next_help_heading = "Options of --engine kubernetes")]
    pub kubernetes: KubernetesOptions,
}

/// Where resources are kept and who runs pods.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// This server itself: its own API and store; agents run pods
    Embedded,
    /// A Kubernetes cluster (--kubeconfig, else the one that this runs in): scheduler and job
    /// controllers only; of several such servers one acts, by a Lease. Pods' claims are bound
    /// before the pods are, where their StorageClass waits for them. --listen serves /metrics,
    /// /healthz and /readyz over plain HTTP
    Kubernetes,
}

#[derive(Args, Debug, Clone, Default)]
pub struct KubernetesOptions {
    /// A schedulerName to answer to (repeatable); the pods of jobs whose template names none
    /// get the first [default: muster]
    #[arg(long = "scheduler-name", value_name = "NAME")]
    pub scheduler_names: Vec<String>,
    /// The kinds of jobs to control, with commas: leave out what another operator controls
    /// [default: PyTorchJob]
    #[arg(
        long,
        value_name = "KINDS",
        value_enum,
        ignore_case = true,
        value_delimiter = ','
    )]
    pub kinds: Vec<ControlledKind>,
    /// The namespace of the Lease, the same for all servers of one cluster [default:
    /// muster-system]
    #[arg(long, value_name = "NAME")]
    pub lease_namespace: Option<String>,
    /// Let a stock kube-scheduler ask here, by its extender protocol, which nodes' GPUs a pod
    /// fits, and have its pods bound with devices chosen: packaging/examples/kube-scheduler.yaml
    /// sets it up. Plain HTTP without accounts: whoever reaches the address can have pods bound
    #[arg(long, value_name = "ADDR")]
    pub extender: Option<SocketAddr>,
}

impl KubernetesOptions {
    /// The first of these options that was given, to refuse it where it means nothing.
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

/// A kind of job that can be controlled in a cluster.
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
    /// The address for everything: API, web UI and agents
    #[arg(long, env = "MUSTER_LISTEN", default_value = DEFAULT_LISTEN, value_name = "ADDR")]
    pub listen: SocketAddr,
    /// Another name or address that the server's certificate is for (repeatable)
    #[arg(long = "advertise", value_name = "NAME")]
    pub advertise: Vec<String>,
    /// A file with the first administrator's password, used at the first start only
    /// [default: draw one, and keep it in server/first-password under --data]
    #[arg(long, value_name = "FILE")]
    pub first_password_file: Option<PathBuf>,
    /// Seconds a node may be silent before its pods are declared lost [default: 40]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(3..))]
    pub node_grace: Option<u64>,
    /// How the scheduler is set up: a SchedulerConfig in YAML, see below [default: as below]
    #[arg(long, env = "MUSTER_SCHEDULER_CONFIG", value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
    #[command(flatten)]
    pub audit: AuditFlags,
    /// Which pods namespaces without labels take, and what is exempt: a PodSecurityConfiguration of
    /// Kubernetes in YAML, see below [default: the baseline everywhere, and no exemptions]
    #[arg(long, env = "MUSTER_POD_SECURITY_CONFIG", value_name = "FILE")]
    pub pod_security_config: Option<PathBuf>,
    /// The host directories, capabilities and use of the node's network that pods of some namespaces
    /// may have beyond that: a PodSecurityAllowList in YAML, see below [default: as below]
    #[arg(long, env = "MUSTER_POD_SECURITY_ALLOW", value_name = "FILE")]
    pub pod_security_allow: Option<PathBuf>,
}

/// The audit log of the embedded engine; the names are kube-apiserver's where it has the option.
#[derive(Args, Debug, Clone)]
pub struct AuditFlags {
    /// What the audit log records: a Policy of audit.k8s.io/v1 in YAML, see below [default: every change,
    /// sign-in and token; answers 401 and 403 are always recorded]
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    /// Where the audit log is kept, readable for the server's user only [default: audit under --data]
    #[arg(long, value_name = "DIR")]
    pub audit_log_dir: Option<PathBuf>,
    /// The size in MiB at which a file of the audit log is closed and the next one begun
    #[arg(long, value_name = "MIB", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub audit_log_maxsize: u64,
    /// How many full files of the audit log are kept
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
    /// How long a node may be silent before its pods are declared lost.
    pub fn node_grace(&self) -> Duration {
        Duration::from_secs(self.node_grace.unwrap_or(40))
    }

    /// The first of these options that was given and means nothing where a Kubernetes cluster
    /// keeps the resources and runs the pods, to refuse it there.
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
    /// Who runs this machine's pods
    #[arg(long, value_enum, default_value_t = PodsOf::Embedded)]
    pub engine: PodsOf,
    /// The server's address, as https://HOST:PORT; needed unless a kubelet runs the pods
    #[arg(long, env = "MUSTER_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// A join token (`muster token join`); needed until the agent has its certificate
    #[arg(
        long,
        env = "MUSTER_JOIN_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    /// The file with the server's CA certificate (server/ca.pem on the server)
    /// [default: the fingerprint inside the join token]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The kubelet's directory, with --engine kubernetes
    #[arg(long, value_name = "DIR", default_value = agent::KUBELET_DIR)]
    pub kubelet_dir: PathBuf,
    /// How the kubelet's pods get this machine's devices, with --engine kubernetes: as resources that
    /// containers ask for by number (nvidia.com/gpu), or by ResourceClaims (driver gpu.muster.io, which
    /// kube-scheduler of Kubernetes 1.34 or later allocates). Never both on one node
    #[arg(long, value_enum, value_name = "WAY")]
    pub devices: Option<DevicesBy>,
    /// Cut this node's GPUs (MIG) as its label nvidia.com/mig.config says, see below, and wait for pods
    /// that have them, or evict them by the Eviction API, with their grace and as their disruption
    /// budgets allow; with --engine kubernetes. Beside no other MIG manager [default: GPUs are not cut]
    #[arg(long, value_enum, value_name = "PODS")]
    pub mig_manager: Option<MigDrain>,
    /// What that label may name, in YAML as NVIDIA's MIG manager reads it, see below; with
    /// --mig-manager [default: configurations made of the GPUs' own profiles]
    #[arg(long, value_name = "FILE")]
    pub mig_config: Option<PathBuf>,
    /// Also offer claims every slice (MIG) that GPUs can be cut into, beside the whole GPU, and cut the GPU
    /// when kube-scheduler has given one out; with --devices dra, and a cluster with the feature gate
    /// DRAPartitionableDevices (alpha in Kubernetes 1.34). Slices end with their claims, and MIG mode when a
    /// claim gets the whole GPU; GPUs that somebody else has cut are offered as they are. Beside no MIG
    /// manager [default: GPUs are not cut for claims]
    #[arg(long)]
    pub mig_partitions: bool,
    /// Take part in `muster doctor --pair` of the cluster, with --engine kubernetes: who may patch Nodes has
    /// this node run perftest's ib_write_bw and ib_write_lat, one test at a time and none where pods have
    /// GPUs unless forced. The agent must be in the node's own network, and may watch its Node
    #[arg(long)]
    pub pair: bool,
    /// The device plugin's configuration as NVIDIA's reads it, in YAML, see below; with
    /// --engine kubernetes
    #[arg(long, value_name = "FILE")]
    pub device_plugin_config: Option<PathBuf>,
    /// Also offer the kubelet GPUs in parts, for pods that Muster's scheduler places: aliyun.com/gpu-mem
    /// (GiB of a GPU's memory), aliyun.com/gpu-core and aliyun.com/gpu-core.percentage (100 for each
    /// GPU); with --engine kubernetes
    #[arg(long)]
    pub gpu_parts: bool,
    /// Where an agent in a container of its own sees the node's root: below it other vendors'
    /// devices and RDMA cards' files are looked for; with --engine kubernetes
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub host_root: PathBuf,
    /// By which ways containers are told their devices, with commas: the variable that NVIDIA's
    /// runtime reads, or the Container Device Interface, by annotations or by the kubelet's own
    /// field; with --engine kubernetes [default: what --device-plugin-config says, else envvar]
    #[arg(
        long,
        value_name = "WAYS",
        value_delimiter = ',',
        value_parser = ["envvar", "cdi-annotations", "cdi-cri"]
    )]
    pub device_list_strategy: Vec<String>,
    /// Where container runtimes look for CDI files, with --engine kubernetes
    #[arg(long, value_name = "DIR", default_value = agent::CDI_DIRECTORY)]
    pub cdi_dir: PathBuf,
    #[command(flatten)]
    pub machine: MachineOptions,
}

/// What is done about pods whose GPU is to be cut anew.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigDrain {
    /// They are waited for
    Wait,
    /// They are evicted
    Evict,
}

/// How a kubelet's pods get devices.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicesBy {
    /// The device plugin: the default
    Plugin,
    /// Dynamic resource allocation
    Dra,
}

/// Who runs a machine's pods.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodsOf {
    /// The agent itself, for the server that it joins
    Embedded,
    /// A kubelet: the agent offers it the GPUs, hands out those that the scheduler chose, and
    /// describes the machine on its Node (--kubeconfig, else the cluster
    /// that this runs in)
    Kubernetes,
}

#[derive(Args, Debug, Clone)]
pub struct MachineOptions {
    /// The node's name [default: the host's name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// The address that other nodes reach this one by [default: the one that leads to the
    /// server]
    #[arg(long, value_name = "IP")]
    pub node_address: Option<IpAddr>,
    /// A machine description (TOML) that stands in for this machine's GPUs, for tests and
    /// demos
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// A machine description that says which network cards there are to be, with which ports up and
    /// at which rates: one that `muster doctor --save-machine` wrote where all is well. Without it,
    /// cards are held against each other and against what they were
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// How slices of GPUs (MIG) are offered: not at all, as nvidia.com/gpu where all are of one profile,
    /// or as nvidia.com/mig-PROFILE [default: what --machine says or, of `muster agent`,
    /// --device-plugin-config, else mixed]
    #[arg(long, value_name = "STRATEGY", value_parser = ["none", "single", "mixed"])]
    pub mig_strategy: Option<String>,
    /// The description of another vendor's devices, in YAML (`muster agent --help` has the fields), which
    /// are offered as the resource that it names (repeatable)
    #[arg(long = "vendor", value_name = "FILE")]
    pub vendors: Vec<PathBuf>,
    /// The RDMA cards that containers share, in YAML or JSON (`muster agent --help` has the fields), each
    /// set of which is offered as the resource that it names; or off. Not with --devices dra [default:
    /// all cards as rdma/hca_shared_devices_a, and none with --machine]
    #[arg(long, value_name = "FILE")]
    pub rdma_config: Option<PathBuf>,
    /// When NCCL is told this machine's PCIe tree (NCCL_TOPO_FILE, unless the pod says one itself), in
    /// containers with GPUs: where the kernel shows no switches or links of GPUs, as in many virtual
    /// machines, and --expect or --machine has them, by PCI addresses as they are here; always, as
    /// described there, else as found; or never. Elsewhere NCCL finds the tree itself [default: hidden]
    #[arg(long, value_enum, value_name = "WHEN")]
    pub nccl_topology: Option<NcclTopology>,
    /// Let pods that name an image run their command on the host, without the image
    #[arg(long)]
    pub host_images: bool,
    /// The CRI runtime's socket, such as /run/containerd/containerd.sock
    #[arg(long, value_name = "SOCKET")]
    pub cri: Option<PathBuf>,
    /// Where metrics of GPUs and RDMA ports are served for Prometheus (/metrics, plain HTTP), as
    /// IP:PORT, or off [default: port 9400, of `muster agent` on all addresses, of `muster up` on
    /// 127.0.0.1; an agent starts without metrics where that port is taken]
    #[arg(long, env = "MUSTER_METRICS", value_name = "ADDR", value_parser = metrics)]
    pub metrics: Option<Metrics>,
    /// What is done about GPUs for the errors (XIDs) that the driver reports of them, in YAML, in
    /// place of what `muster xids` prints
    #[arg(long, value_name = "FILE")]
    pub xid_policy: Option<PathBuf>,
    /// The kernel's log, a second source of XIDs, or a file that grows like it; or off
    /// [default: /dev/kmsg where it can be read, and none with --machine]
    #[arg(long, value_name = "FILE")]
    pub kmsg: Option<PathBuf>,
    #[command(flatten)]
    pub sharing: SharingOptions,
    #[command(flatten)]
    pub tenancy: TenancyOptions,
    /// A label for the node, as NAME=VALUE (repeatable)
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub labels: Vec<(String, String)>,
}

/// When NCCL is told a machine's PCIe tree.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcclTopology {
    /// Where the kernel hides what a description knows
    Hidden,
    /// Wherever there are GPUs
    Always,
    /// Nowhere
    Never,
}

/// Where metrics are served, as given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metrics {
    /// Nowhere.
    Off,
    /// Here.
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
    /// A machine description to check in place of this machine's devices
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Write what was seen to FILE as a machine description, for --machine here or elsewhere
    #[arg(long, value_name = "FILE")]
    pub save_machine: Option<PathBuf>,
    /// A machine description that says which network cards there are to be, with which firmware
    /// and rates: one saved on a machine that is well. Without it, cards are held against each
    /// other
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// Look for sys, proc, etc and dev below DIR: a host's as a container has it, or a copy
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Check RDMA between this node and NODE, of the same server or cluster, instead: what must be alike on both,
    /// and the bandwidth each way and latency of each pair of ports, by perftest's ib_write_bw and
    /// ib_write_lat, which both agents must have in their PATH. The nodes must reach each other by TCP.
    /// For administrators; some 10 seconds a pair of ports. In a Kubernetes cluster agents take part that
    /// run with --pair (chart: agent.pair)
    #[arg(long, value_name = "NODE", conflicts_with_all = ["machine", "save_machine", "expect", "root"])]
    pub pair: Option<String>,
    /// The first node of --pair [default: the host's name]
    #[arg(long, value_name = "NODE", requires = "pair")]
    pub node: Option<String>,
    /// Measure although pods with GPUs run on one of the nodes
    #[arg(long, requires = "pair")]
    pub force: bool,
}

#[derive(Args, Debug)]
pub struct Xids {
    /// A file with other answers, as --xid-policy of `muster agent` takes it
    #[arg(long, value_name = "FILE")]
    pub xid_policy: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct Topology {
    /// A machine description to draw in place of this machine
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
