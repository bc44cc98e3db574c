//! Options of the agent, for each engine, and of the checks of a machine.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use cli::name_and_value;
use devices::sharing::DeviceSelection;

use super::configuration::ConfigurationOptions;
use super::device_plugin::{DEVICE_PLUGIN, MIG_MANAGER, RDMA, VENDORS};
use super::option_error::ServerOptionError;
use super::serving::LogOptions;
use super::sharing::{ISOLATION, SharingOptions, selection};
use super::tenancy::TenancyOptions;

#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_long_help = format!("{VENDORS}\n\n{RDMA}\n\n{ISOLATION}")
)]
pub struct Agent {
    #[command(subcommand)]
    pub engine: Option<AgentEngine>,
    #[command(flatten)]
    pub embedded: EmbeddedAgent,
}

/// What runs a machine's pods, other than the agent itself.
#[derive(Subcommand, Debug)]
pub enum AgentEngine {
    /// Give this machine's devices to the pods of its kubelet: the agent offers the GPUs, allocates those that the
    /// scheduler chose, and describes the machine on its Node (--kubeconfig, else the cluster of this pod)
    Kubernetes(Box<KubeletAgent>),
}

/// Options of an agent of Muster's own server.
#[derive(Args, Debug)]
pub struct EmbeddedAgent {
    /// Server address, as https://HOST:PORT
    #[arg(long, env = "MUSTER_SERVER", value_name = "URL", required = true)]
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
    /// Whether the server may replace this agent's binary (`muster upgrade agents`); the new one is kept in the data
    /// directory. A package's binary (/usr/bin/muster) is never replaced
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub allow_upgrade: bool,
    #[command(flatten)]
    pub machine: MachineOptions,
    #[command(flatten)]
    pub pods: PodOptions,
    #[command(flatten)]
    pub log: LogOptions,
    #[command(flatten)]
    pub configuration: ConfigurationOptions,
}

/// Options of `muster agent kubernetes`.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{DEVICE_PLUGIN}\n\n{MIG_MANAGER}\n\n{VENDORS}\n\n{RDMA}\n\n{ISOLATION}"))]
pub struct KubeletAgent {
    /// Directory of the kubelet
    #[arg(long, value_name = "DIR", default_value = agent::KUBELET_DIR)]
    pub kubelet_dir: PathBuf,
    /// How the kubelet's pods get this machine's devices: as extended resources (nvidia.com/gpu), or through
    /// ResourceClaims (driver gpu.muster.io, allocated by kube-scheduler of Kubernetes 1.34 or later). Never both on
    /// one node
    #[arg(long, value_enum, value_name = "WAY")]
    pub devices: Option<DevicesBy>,
    /// Partition this node's GPUs (MIG) by its label nvidia.com/mig.config, see below; either wait for the pods that
    /// use them, or evict these through the Eviction API, with their grace period and within their disruption
    /// budgets. Not together with another MIG manager [default: GPUs are not partitioned]
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
    /// Take part in `muster doctor --pair` of the cluster: every user that may patch Nodes can have this node run
    /// perftest's ib_write_bw and ib_write_lat, one test at a time and, unless forced, only while no pod has GPUs. The
    /// agent must use the node's network and be allowed to watch its Node
    #[arg(long)]
    pub pair: bool,
    /// Device plugin configuration in YAML, in the format of NVIDIA's device plugin, see below
    #[arg(long, value_name = "FILE")]
    pub device_plugin_config: Option<PathBuf>,
    /// Also offer fractions of GPUs to the kubelet, for pods that Muster's scheduler places: aliyun.com/gpu-mem (GiB
    /// of GPU memory), aliyun.com/gpu-core and aliyun.com/gpu-core.percentage (100 per GPU)
    #[arg(long)]
    pub gpu_parts: bool,
    /// Mount point of the node's root in the agent's container, searched for other vendors' devices and the files of
    /// RDMA cards
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub host_root: PathBuf,
    /// How containers learn their devices, separated by commas: the environment variable of NVIDIA's runtime, or the
    /// Container Device Interface by annotations or by the kubelet's own field [default: as in
    /// --device-plugin-config, else envvar]
    #[arg(
        long,
        value_name = "WAYS",
        value_delimiter = ',',
        value_parser = ["envvar", "cdi-annotations", "cdi-cri"]
    )]
    pub device_list_strategy: Vec<String>,
    /// Directory in which container runtimes look for CDI files
    #[arg(long, value_name = "DIR", default_value = devices::cdi::DIRECTORY)]
    pub cdi_dir: PathBuf,
    #[command(flatten)]
    pub machine: MachineOptions,
    #[command(flatten)]
    pub log: LogOptions,
    #[command(flatten)]
    pub configuration: ConfigurationOptions,
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

/// Options on a machine and its devices, on each engine.
#[derive(Args, Debug, Clone)]
pub struct MachineOptions {
    /// Name of the node [default: the hostname]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Machine description (TOML) that replaces this machine's GPUs, for tests and demos
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// Machine description with the expected network cards, their ports and rates: a file that `muster doctor
    /// --save-machine` wrote while all cards were healthy. Without it, cards are compared with each other and with
    /// their earlier state
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// How MIG slices are offered: not at all, as nvidia.com/gpu if all have one profile, or as
    /// nvidia.com/mig-PROFILE [default: as in --machine or in --device-plugin-config, else mixed]
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
}

/// Options of an agent that runs the pods itself.
#[derive(Args, Debug, Clone)]
pub struct PodOptions {
    /// IP address at which other nodes reach this node [default: the address of the route to the server]
    #[arg(long, value_name = "IP")]
    pub node_address: Option<IpAddr>,
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
    /// GPUs that containers share through NVIDIA's Multi-Process Service (MPS), which limits each container to its
    /// requested share: all, or indices and UUIDs with commas. A container gets one of these GPUs or a share of one;
    /// a container that requests more than one GPU is placed only on nodes with enough GPUs that are not shared
    /// through MPS [default: none, containers share GPUs by time slicing]
    #[arg(long, value_name = "GPUS", value_parser = selection)]
    pub mps: Option<DeviceSelection>,
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

fn metrics(text: &str) -> Result<Metrics, ServerOptionError> {
    if text == "off" {
        return Ok(Metrics::Off);
    }
    let good = text.parse().map(Metrics::At);
    good.map_err(|_| ServerOptionError::Metrics)
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
            assert_eq!(metrics(bad), Err(ServerOptionError::Metrics), "{bad}");
        }
    }
}
