//! The command line: what can be typed, and what it means when left out.

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

/// Runs AI work on machines that people own: gangs start whole or not at all.
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
    /// Muster's data directory; client commands find the administrator's kubeconfig there
    /// [default: ./.muster if it exists, else /var/lib/muster]
    #[arg(long, global = true, env = "MUSTER_DATA", value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Which server to talk to, and as whom [default: server/admin.kubeconfig under --data,
    /// else the KUBECONFIG that kubectl would use]
    #[arg(long, global = true, env = "MUSTER_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The namespace to work in [default: the kubeconfig's, else `default`]
    #[arg(short, long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
}

/// Commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run server and agent on this machine
    Up(Up),
    /// Run the server: API, scheduler, controllers and web UI; or scheduler and controllers for
    /// a Kubernetes cluster
    Server(Server),
    /// Run this machine's agent, which joins a server and runs pods
    Agent(Agent),
    /// Create or update what manifests describe (server-side apply)
    Apply(Apply),
    /// List resources, or show some
    Get(Get),
    /// Show one resource with its events
    Describe(Target),
    /// Delete resources
    Delete(Delete),
    /// Print the logs of a pod, or of one rank of a job
    Logs(Logs),
    /// Say why a job waits, what binds it, what would make it fit, whom it could evict, and when
    /// it may start; or what was decided on it (--history)
    Explain(Subject),
    /// Wait until a resource has a condition
    Wait(Wait),
    /// Suspend a job: its pods go, its place in the queue is given up
    Suspend(JobTarget),
    /// Resume a suspended job
    Resume(JobTarget),
    /// Cancel a job: delete it and its pods
    Cancel(JobTarget),
    /// Run a command as a job of several replicas, a gang
    Run(Run),
    /// Show what nodes have and what is in use
    Top(Listing),
    /// List nodes with their devices
    Nodes(Listing),
    /// Remove nodes that are gone, or whose keys may be stolen
    #[command(subcommand)]
    Node(Node),
    /// List queues with their shares, or show how one stands: weight, entitlement, guarantee,
    /// what it borrows, limits by resource and by user, who waits
    Queue(Queue),
    /// Say what defragmentation would move now, what that gains and what it loses; moves nothing
    Defragmentation(Listing),
    /// Say what would become of work on a cluster: the scheduler over simulated time
    Simulate(Box<crate::simulate::Simulate>),
    /// Manage tokens: for programs (`create`) and for agents that join (`join`)
    #[command(subcommand)]
    Token(Token),
    /// Check the audit log
    #[command(subcommand)]
    Audit(Audit),
    /// Print a kubeconfig for kubectl and SDKs
    Kubeconfig(Kubeconfig),
    /// Install Muster's kinds in a Kubernetes cluster (server-side apply), and wait until it
    /// serves them. Kinds that Muster keeps and does not run yet (Volcano Jobs, RayClusters,
    /// ScaledObjects, Knative Services) are left alone where another operator has them
    Crds(Crds),
    /// Check this machine: what the agent can isolate, which devices it sees, and whether its RDMA
    /// works, with what to do where it doesn't
    Doctor(Doctor),
    /// Draw how this machine's GPUs and network cards are joined, as `nvidia-smi topo -m` does,
    /// and what each kind of path carries
    Topology(Topology),
    /// Print what is done about a GPU for each error (XID) that its driver reports, as a file for
    /// --xid-policy of `muster agent`
    Xids(Xids),
    /// Write everything the server knows to one file, while it runs: all objects, and the keys that
    /// it needs to come back on another machine
    Backup {
        /// The file to make, on the server's disk
        file: PathBuf,
        /// Encrypt it with the passphrase on this file's first line [default: not encrypted]
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
    },
    /// Fill an empty data directory from a backup; the server must not be running
    Restore {
        /// The backup
        file: PathBuf,
        /// The file with the passphrase that it was made with
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
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages
    Man {
        /// The directory to write them to
        directory: PathBuf,
    },
    /// One container's parent process; started by the agent, never by hand
    #[command(hide = true)]
    Shim {
        /// The container's directory
        directory: PathBuf,
    },
}

impl Command {
    /// How many worker threads the command needs; none for the client's commands, which
    /// wait for one server.
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

/// How to print.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// One JSON document
    Json,
    /// YAML
    Yaml,
    /// The table with all columns
    Wide,
    /// kind/name
    Name,
}

#[derive(Args, Debug)]
pub struct Apply {
    /// A file or directory of manifests, or - for standard input (repeatable)
    #[arg(short, long = "filename", required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Ask the server to check it all and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Take over fields that another manager owns
    #[arg(long)]
    pub force_conflicts: bool,
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

#[derive(Args, Debug)]
pub struct Crds {
    /// Write them to standard output as YAML instead
    #[arg(long)]
    pub print: bool,
    /// Take over fields that another manager owns, such as those of an operator's own CRDs
    #[arg(long, conflicts_with = "print")]
    pub force_conflicts: bool,
}

#[derive(Args, Debug)]
pub struct Get {
    /// What: a kind (pods, pytorchjob, pg), or KIND/NAME
    pub what: String,
    /// Names; none means all
    pub names: Vec<String>,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// Only those with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub selector: Option<String>,
    /// Keep watching for changes
    #[arg(short, long)]
    pub watch: bool,
    /// Show in JSON and YAML who owns which field, too
    #[arg(long)]
    pub show_managed_fields: bool,
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

#[derive(Args, Debug)]
pub struct Target {
    /// What: a kind, or KIND/NAME
    pub what: String,
    /// The name
    pub name: Option<String>,
}

#[derive(Args, Debug)]
pub struct Delete {
    /// What: a kind, or KIND/NAME
    pub what: Option<String>,
    /// The names
    pub names: Vec<String>,
    /// Delete what these manifests describe (repeatable)
    #[arg(short, long = "filename", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Seconds that pods get to end by themselves
    #[arg(long, value_name = "SECONDS")]
    pub grace_period: Option<u32>,
    /// Leave the dependents alone
    #[arg(long)]
    pub orphan: bool,
}

#[derive(Args, Debug)]
pub struct Logs {
    /// A job's or a pod's name
    pub name: String,
    /// Keep following until the container ends
    #[arg(short, long)]
    pub follow: bool,
    /// The rank, for a job
    #[arg(long, default_value_t = 0)]
    pub rank: u32,
    /// Only the last lines
    #[arg(long, value_name = "LINES")]
    pub tail: Option<i64>,
    /// The container [default: the first]
    #[arg(short, long)]
    pub container: Option<String>,
    /// With each line's time
    #[arg(long)]
    pub timestamps: bool,
    /// Of the container's run before this one
    #[arg(long)]
    pub previous: bool,
}

#[derive(Args, Debug)]
pub struct JobTarget {
    /// The job's name, or KIND/NAME
    pub name: String,
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

#[derive(Args, Debug)]
pub struct Subject {
    /// A job's, pod's or gang's name, or KIND/NAME
    pub name: String,
    /// What was decided on it, the oldest first; also when it is gone, and by earlier servers
    #[arg(long)]
    pub history: bool,
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

#[derive(Args, Debug)]
#[command(after_help = WAIT_HELP)]
pub struct Wait {
    /// KIND/NAME, or a job's name
    pub target: String,
    /// condition=NAME, or delete
    #[arg(
        long = "for",
        default_value_t = Until::Condition(SUCCEEDED.to_string()),
        value_name = "WHAT",
        value_parser = until::until
    )]
    pub until: Until,
    /// Seconds to wait
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub timeout: u64,
}

#[derive(Args, Debug)]
#[command(after_help = RUN_HELP)]
pub struct Run {
    /// The job's name [default: drawn by the server]
    #[arg(long)]
    pub name: Option<String>,
    /// How many replicas: rank 0 is the master
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub replicas: u32,
    /// GPUs for each replica
    #[arg(long, default_value_t = 0)]
    pub gpus: u32,
    /// CPUs for each replica, such as 2 or 500m
    #[arg(long, default_value = "1")]
    pub cpus: String,
    /// Memory for each replica, such as 4Gi
    #[arg(long, default_value = "1Gi")]
    pub memory: String,
    /// The queue
    #[arg(long)]
    pub queue: Option<String>,
    /// A container image, where a node has a CRI runtime
    #[arg(long)]
    pub image: Option<String>,
    /// An environment variable, as NAME=VALUE (repeatable)
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub env: Vec<(String, String)>,
    /// The working directory [default: this one, without an image]
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// Return at once instead of following rank 0 to the end
    #[arg(long)]
    pub detach: bool,
    /// The command, after --
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
    /// The queue to show [default: all, in a list]
    pub name: Option<String>,
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

#[derive(Subcommand, Debug)]
pub enum StoreCommand {
    /// Say what the store under --data holds, which records are damaged, and which objects are lost with
    /// them; changes nothing. The server must not be running. Ends with 1 where anything is damaged
    Check,
}

#[derive(Subcommand, Debug)]
pub enum Token {
    /// Issue an access token for a program; printed once
    Create {
        /// What it is for
        #[arg(long, default_value = "access token")]
        label: String,
        /// Days until it expires
        #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=366))]
        days: u64,
        /// The user it acts as [default: you]
        #[arg(long)]
        user: Option<String>,
    },
    /// Issue a short-lived token with which an agent joins; printed once
    Join {
        /// The only node that may join with it [default: any one node]
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// How many nodes may join with it
        #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(fleet::MOST_USES)))]
        uses: u32,
        /// Minutes until it expires
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_080))]
        minutes: u64,
    },
    /// List tokens that have not expired; administrators see join tokens, too
    List,
    /// End a token at once, an access token or a join token
    Revoke {
        /// Its id, as listed
        id: String,
    },
}

#[derive(Subcommand, Debug)]
pub enum Audit {
    /// Check the audit log's hash chain: whether a line was changed, removed or inserted, or the end
    /// cut off. Reads the files on this machine, also while the server runs. Ends with 1 where the
    /// chain is broken
    Verify {
        /// The log's directory [default: audit under --data]
        directory: Option<PathBuf>,
    },
}

#[derive(Subcommand, Debug)]
pub enum Node {
    /// Remove a node and revoke its certificates: its agent is refused until it joins again with a
    /// new token (`muster token join --node NAME`). Jobs replace the pods that it ran elsewhere; on the
    /// machine itself stop its agent and its pods by hand
    Remove {
        /// Its name
        name: String,
    },
}

#[derive(Args, Debug)]
pub struct Kubeconfig {
    /// The server's address to write [default: the one in use]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The user whose token goes in [default: you]
    #[arg(long)]
    pub user: Option<String>,
    /// Days until the token expires
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=366))]
    pub days: u64,
}
