//! The command line: commands, options and their defaults.

mod audit;
mod device_plugin;
mod invalid;
mod pod_security;
mod serving;
mod sharing;
mod tenancy;
mod until;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use serving::{
    Agent, AuditFlags, ControlledKind, DevicesBy, Doctor, Engine, KubernetesOptions,
    MachineOptions, Metrics, MigDrain, NcclTopology, PodsOf, Server, ServerOptions, Topology, Up,
    Xids,
};
pub use tenancy::HostFiles;
pub use until::{SUCCEEDED, Until};

use self::invalid::InvalidValue;
use crate::client::{HELP, RUN_HELP, WAIT_HELP};

/// Schedules AI workloads on your own machines: a gang starts with all its pods or not at all.
#[derive(Parser, Debug)]
#[command(
    name = "muster",
    version,
    max_term_width = 100,
    after_help = HELP,
    propagate_version = true
)]
pub struct Arguments {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes.
#[derive(Args, Debug, Clone)]
pub struct Global {
    /// Data directory; client commands read the administrator's kubeconfig from it [default: ./.muster if it exists,
    /// else /var/lib/muster]
    #[arg(long, global = true, env = "MUSTER_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Kubeconfig with the server's address and the user's credentials [default: server/admin.kubeconfig under
    /// --data, else the KUBECONFIG that kubectl would use]
    #[arg(long, global = true, env = "MUSTER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the resources [default: the kubeconfig's, else `default`]
    #[arg(short, long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
}

/// Commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the server and an agent on this machine
    Up(Up),
    /// Run the server: API, scheduler, controllers and web UI; or scheduler and controllers for a Kubernetes cluster
    Server(Server),
    /// Run this machine's agent, which joins a server and runs pods
    Agent(Agent),
    /// Create or update the objects in manifests (server-side apply)
    Apply(Apply),
    /// List resources, or print the named ones
    Get(Get),
    /// Show one resource with its events
    Describe(Target),
    /// Delete resources
    Delete(Delete),
    /// Print the logs of a pod, or of one rank of a job
    Logs(Logs),
    /// Show why a job waits: the limits that hold it, changes that would let it fit, pods that it could preempt, and
    /// its estimated start; or the decisions on it (--history)
    Explain(Subject),
    /// Wait until a resource has a condition
    Wait(Wait),
    /// Suspend a job: delete its pods and give up its place in the queue
    Suspend(JobTarget),
    /// Resume a suspended job
    Resume(JobTarget),
    /// Cancel a job: delete it and its pods
    Cancel(JobTarget),
    /// Run a command as a job of several replicas, scheduled as one gang
    Run(Run),
    /// Show the allocatable and allocated resources of nodes
    Top(Listing),
    /// List nodes with their devices
    Nodes(Listing),
    /// Remove nodes that are gone or whose keys may be compromised
    #[command(subcommand)]
    Node(Node),
    /// List queues with their shares, or show one queue: weight, deserved and guaranteed resources, borrowing, limits
    /// by resource and by user, waiting jobs
    Queue(Queue),
    /// Show which pods defragmentation would move now, with gain and loss; move nothing
    Defragmentation(Listing),
    /// Simulate the scheduler on a cluster and a workload over simulated time
    Simulate(Box<crate::simulate::Simulate>),
    /// Manage tokens: access tokens for programs (`create`) and join tokens for agents (`join`)
    #[command(subcommand)]
    Token(Token),
    /// Verify the audit log
    #[command(subcommand)]
    Audit(Audit),
    /// Print a kubeconfig for kubectl and SDKs
    Kubeconfig(Kubeconfig),
    /// Install Muster's custom resource definitions in a Kubernetes cluster (server-side apply), and wait until the
    /// cluster serves them. Definitions of kinds that Muster stores but does not run (Volcano Jobs, RayClusters,
    /// ScaledObjects, Knative Services) are skipped if another operator has installed them
    Crds(Crds),
    /// Check this machine: isolation that the agent can give to pods, devices, and RDMA; name a remedy for each fault
    Doctor(Doctor),
    /// Draw the links between this machine's GPUs and network cards, as `nvidia-smi topo -m` does, with the bandwidth
    /// of each kind of path
    Topology(Topology),
    /// Print the action for each GPU error (XID) that the driver reports, as a file for --xid-policy of `muster
    /// agent`
    Xids(Xids),
    /// Write a backup of the running server to one file: all objects, and the keys needed for a restore on another
    /// machine
    Backup {
        /// File to create, on the server's disk
        file: PathBuf,
        /// File with the passphrase on its first line; encrypts the backup [default: not encrypted]
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
    },
    /// Restore a backup into an empty data directory; the server must be stopped
    Restore {
        /// Backup file
        file: PathBuf,
        /// File with the passphrase that the backup was encrypted with
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
    },
    /// Check the server's store on this machine
    #[command(subcommand)]
    Store(StoreCommand),
    /// Print the versions of this binary and of the server
    Version,
    /// Print shell completions
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Write man pages
    Man {
        /// Directory for the pages
        directory: PathBuf,
    },
    /// Parent process of one container; started by the agent, never by hand
    #[command(hide = true)]
    Shim {
        /// The container's directory
        directory: PathBuf,
    },
}

impl Command {
    /// Number of worker threads of the command. None for client commands, which only wait for one server.
    pub fn worker_threads(&self) -> Option<usize> {
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
        match self {
            Command::Up(_) | Command::Server(_) => Some(cores.clamp(2, 16)),
            Command::Agent(_) => Some(2),
            _ => None,
        }
    }
}

fn name_and_value(text: &str) -> Result<(String, String), InvalidValue> {
    text.split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .ok_or_else(|| InvalidValue::NameAndValue(text.to_owned()))
}

/// Output formats.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// One JSON document
    Json,
    /// YAML
    Yaml,
    /// Table with all columns
    Wide,
    /// kind/name
    Name,
}

#[derive(Args, Debug)]
pub struct Apply {
    /// Manifest file or directory, or - for standard input (repeatable)
    #[arg(short, long = "filename", required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Let the server validate the objects without changing them
    #[arg(long)]
    pub dry_run: bool,
    /// Take ownership of fields that another field manager owns
    #[arg(long)]
    pub force_conflicts: bool,
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

#[derive(Args, Debug)]
pub struct Crds {
    /// Print the definitions as YAML instead of installing them
    #[arg(long)]
    pub print: bool,
    /// Take ownership of fields that another field manager owns, such as those of another operator's CRDs
    #[arg(long, conflicts_with = "print")]
    pub force_conflicts: bool,
}

#[derive(Args, Debug)]
pub struct Get {
    /// Kind (pods, pytorchjob, pg), or KIND/NAME
    pub what: String,
    /// Names [default: all]
    pub names: Vec<String>,
    /// List all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Label selector
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Watch for changes
    #[arg(short, long)]
    pub watch: bool,
    /// Include managedFields in JSON and YAML
    #[arg(long)]
    pub show_managed_fields: bool,
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

#[derive(Args, Debug)]
pub struct Target {
    /// Kind, or KIND/NAME
    pub what: String,
    /// Name
    pub name: Option<String>,
}

#[derive(Args, Debug)]
pub struct Delete {
    /// Kind, or KIND/NAME
    pub what: Option<String>,
    /// Names
    pub names: Vec<String>,
    /// Manifest file or directory of the objects to delete (repeatable)
    #[arg(short, long = "filename", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Termination grace period of the pods, in seconds
    #[arg(long, value_name = "SECONDS")]
    pub grace_period: Option<u32>,
    /// Keep the dependent objects
    #[arg(long)]
    pub orphan: bool,
}

#[derive(Args, Debug)]
pub struct Logs {
    /// Name of a job or a pod
    pub name: String,
    /// Follow the log until the container ends
    #[arg(short, long)]
    pub follow: bool,
    /// Rank of a job's replica
    #[arg(long, default_value_t = 0)]
    pub rank: u32,
    /// Number of lines from the end of the log
    #[arg(long, value_name = "LINES")]
    pub tail: Option<i64>,
    /// Container [default: the first]
    #[arg(short, long)]
    pub container: Option<String>,
    /// Print each line's timestamp
    #[arg(long)]
    pub timestamps: bool,
    /// Print the log of the container's previous run
    #[arg(long)]
    pub previous: bool,
}

#[derive(Args, Debug)]
pub struct JobTarget {
    /// Name of the job, or KIND/NAME
    pub name: String,
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

#[derive(Args, Debug)]
pub struct Subject {
    /// Name of a job, pod or gang, or KIND/NAME
    pub name: String,
    /// Show past decisions, oldest first, including those on deleted objects and those of earlier servers
    #[arg(long)]
    pub history: bool,
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

#[derive(Args, Debug)]
#[command(after_help = WAIT_HELP)]
pub struct Wait {
    /// KIND/NAME, or the name of a job
    pub target: String,
    /// condition=NAME or delete
    #[arg(
        long = "for",
        default_value_t = Until::Condition(SUCCEEDED.to_string()),
        value_name = "WHAT",
        value_parser = until::until
    )]
    pub until: Until,
    /// Timeout in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub timeout: u64,
}

#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub struct Run {
    /// Name of the job [default: generated by the server]
    #[arg(long)]
    pub name: Option<String>,
    /// Number of replicas; rank 0 is the master
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub replicas: u32,
    /// GPUs per replica
    #[arg(long, default_value_t = 0)]
    pub gpus: u32,
    /// CPUs per replica, such as 2 or 500m
    #[arg(long, default_value = "1")]
    pub cpus: String,
    /// Memory per replica, such as 4Gi
    #[arg(long, default_value = "1Gi")]
    pub memory: String,
    /// Queue of the job
    #[arg(long)]
    pub queue: Option<String>,
    /// Container image; needs nodes with a CRI runtime
    #[arg(long)]
    pub image: Option<String>,
    /// Environment variable, as NAME=VALUE (repeatable)
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub env: Vec<(String, String)>,
    /// Working directory [default: the current directory, if no image is given]
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// Return at once instead of following rank 0 until it ends
    #[arg(long)]
    pub detach: bool,
    /// Command, after --
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

#[derive(Args, Debug)]
pub struct Listing {
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

#[derive(Args, Debug)]
pub struct Queue {
    /// Queue to show [default: list all]
    pub name: Option<String>,
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

#[derive(Subcommand, Debug)]
pub enum StoreCommand {
    /// Check the store under --data: list its contents, damaged records and the objects lost with them; change
    /// nothing. The server must be stopped. Exit status 1 if any record is damaged
    Check,
}

#[derive(Subcommand, Debug)]
pub enum Token {
    /// Issue an access token for a program and print it once
    Create {
        /// Label of the token
        #[arg(long, default_value = "access token")]
        label: String,
        /// Lifetime in days
        #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=366))]
        days: u64,
        /// User of the token [default: you]
        #[arg(long)]
        user: Option<String>,
    },
    /// Issue a short-lived join token for agents and print it once
    Join {
        /// Only node that may join with the token [default: any one node]
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// Number of nodes that may join with the token
        #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(fleet::MOST_USES)))]
        uses: u32,
        /// Lifetime in minutes
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_080))]
        minutes: u64,
    },
    /// List valid tokens; administrators also see join tokens
    List,
    /// Revoke an access token or a join token at once
    Revoke {
        /// Id of the token, as listed
        id: String,
    },
}

#[derive(Subcommand, Debug)]
pub enum Audit {
    /// Verify the audit log's hash chain: detect changed, removed or inserted lines and a truncated end. Reads the
    /// files on this machine, also while the server runs. Exit status 1 if the chain is broken
    Verify {
        /// Directory of the log [default: audit under --data]
        directory: Option<PathBuf>,
    },
}

#[derive(Subcommand, Debug)]
pub enum Node {
    /// Remove a node and revoke its certificates: the server refuses its agent until the agent joins with a new token
    /// (`muster token join --node NAME`). Jobs replace the node's pods on other nodes; stop the agent and the pods on
    /// the machine itself by hand
    Remove {
        /// Name of the node
        name: String,
    },
}

#[derive(Args, Debug)]
pub struct Kubeconfig {
    /// Server address to write [default: the one in use]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// User of the token [default: you]
    #[arg(long)]
    pub user: Option<String>,
    /// Lifetime of the token in days
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=366))]
    pub days: u64,
}
