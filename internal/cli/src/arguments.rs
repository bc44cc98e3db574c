//! The client's commands with their options.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

mod login;
mod people;

pub use login::{Login, Logout, WhoAmI};
pub use people::{
    ExplainSignIn, NewTeam, NewUserArguments, OIDC_GROUPS_CLAIM, OIDC_USERNAME_CLAIM, TeamCommand,
    TeamNetwork, TeamRole, UserCommand,
};

use crate::exit::{RUN_HELP, WAIT_HELP};
use crate::option_error::ClientOptionError;
use crate::wait_events::{SUCCEEDED, WaitEvent, until};

/// The most nodes that may join with one token; the server's limit is the same.
pub const JOIN_USES_MAX: u32 = 1000;

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

/// Commands that ask a server.
#[derive(Subcommand, Debug)]
pub enum Command {
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
    /// Run a command in a container of a running pod, or of one rank of a job
    Exec(Exec),
    /// Forward ports of this machine to ports of a running pod, or of one rank of a job
    PortForward(PortForward),
    /// Open a web page inside a job: the port of a pod, of one rank of a job, of a Service, or Ray's dashboard of a
    /// RayCluster. Prints the address, and starts a browser if there is one
    Open(Open),
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
    /// Open a shell in a pod of your own, with GPUs: creates the pod the first time, and continues with it later. After an
    /// idle time (--idle) its GPUs are given back
    Dev(Dev),
    /// Show the allocatable and allocated resources of nodes
    Top(Listing),
    /// List nodes with their devices
    Nodes(Listing),
    /// Cordon, uncordon, drain or remove nodes
    #[command(subcommand)]
    Node(NodeCommand),
    /// List queues with their shares, or show one queue: weight, deserved and guaranteed resources, borrowing, limits
    /// by resource and by user, waiting jobs
    Queue(QueueArguments),
    /// Show which pods defragmentation would move now, with gain and loss; move nothing
    Defragmentation(Listing),
    /// Show how many GPU, core and memory hours were allocated to teams, queues, namespaces and users, and how long the
    /// GPUs were idle, or the single allocations
    Usage(UsageArguments),
    /// List the jobs whose GPUs do nothing: since when, their limit, and when they are cancelled
    Idle(IdleArguments),
    /// List the alerts that fire; silence them; show and test the receivers that are notified
    Alerts(AlertsArguments),
    /// Manage users: create, list, disable and delete them, give roles, reset passwords; change your own password
    /// (`passwd`)
    #[command(subcommand)]
    User(UserCommand),
    /// Manage teams: namespaces with a queue, a quota and members
    #[command(subcommand)]
    Team(TeamCommand),
    /// Manage tokens: access tokens for programs (`create`) and join tokens for agents (`join`)
    #[command(subcommand)]
    Token(TokenCommand),
    /// Sign in at a server from this machine: shows a code, which you approve in a browser where you are signed in, and
    /// writes a token of yours to the kubeconfig (--kubeconfig, else the one that kubectl uses)
    Login(Login),
    /// Sign out: revoke the token of the kubeconfig's current context at the server, and remove it from the file
    Logout(Logout),
    /// Show the server, the user that commands act as, its token, and the fingerprint of the server's certificate
    /// authority
    Whoami(WhoAmI),
    /// Print a kubeconfig for kubectl and SDKs
    Kubeconfig(Kubeconfig),
    /// Install Muster's custom resource definitions in a Kubernetes cluster (server-side apply), and wait until the
    /// cluster serves them. A definition that another operator has installed stays as it is, and the command says
    /// whether Muster can share it. Exit status 1 if a kind that Muster needs cannot be used
    Crds(Crds),
    /// Write a backup of the running server to one file: all objects, and the keys needed for a restore on another
    /// machine
    Backup {
        /// File to create, on the server's disk
        file: PathBuf,
        /// File with the passphrase on its first line; encrypts the backup [default: not encrypted]
        #[arg(long, value_name = "FILE")]
        passphrase_file: Option<PathBuf>,
    },
    /// Upgrade the server and its agents: see how far an upgrade is, replace the agents' binaries, make it final, or
    /// go back
    #[command(subcommand)]
    Upgrade(UpgradeCommand),
    /// Print the versions of this binary and of the server
    Version,
}

/// Reads NAME=VALUE.
///
/// # Errors
/// The text has no `=`, or no name before it.
pub fn name_and_value(text: &str) -> Result<(String, String), ClientOptionError> {
    text.split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .ok_or_else(|| ClientOptionError::NameAndValue(text.to_owned()))
}

/// Reads the address of a server, `https://HOST:PORT`, for a kubeconfig.
fn server_address(text: &str) -> Result<String, ClientOptionError> {
    let host = text.strip_prefix("https://").unwrap_or_default();
    let host = host.strip_suffix('/').unwrap_or(host);
    let sound = !host.is_empty() && !host.contains(|c: char| c == '/' || c.is_whitespace());
    sound
        .then(|| text.to_owned())
        .ok_or(ClientOptionError::ServerAddress)
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

/// Options of `muster apply`.
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
    /// Output format [default: a text for people]
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

/// Options of `muster crds`.
#[derive(Args, Debug)]
pub struct Crds {
    /// Print the definitions as YAML instead of installing them
    #[arg(long)]
    pub print: bool,
    /// Take ownership of fields that another field manager owns, such as those of another operator's CRDs
    #[arg(long, conflicts_with = "print")]
    pub force_conflicts: bool,
}

/// Options of `muster get`.
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
    /// Output format [default: a text for people]
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

/// One resource.
#[derive(Args, Debug)]
pub struct Target {
    /// Kind, or KIND/NAME
    pub what: String,
    /// Name
    pub name: Option<String>,
}

/// Options of `muster delete`.
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

/// Options of `muster logs`.
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

/// Options of `muster exec`.
#[derive(Args, Debug)]
pub struct Exec {
    /// Name of a job or a pod
    pub name: String,
    /// Rank of a job's replica
    #[arg(long, default_value_t = 0)]
    pub rank: u32,
    /// Container [default: the only one]
    #[arg(short, long)]
    pub container: Option<String>,
    /// Pass the standard input on to the command
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Run the command at a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Options of `muster port-forward`.
#[derive(Args, Debug)]
pub struct PortForward {
    /// Name of a job or a pod
    pub name: String,
    /// Ports: LOCAL:REMOTE, :REMOTE for a free local port, or one number for both
    #[arg(required = true, value_name = "PORTS")]
    pub ports: Vec<String>,
    /// Rank of a job's replica
    #[arg(long, default_value_t = 0)]
    pub rank: u32,
    /// Address of this machine to listen on
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub address: String,
}

/// Options of `muster open`.
#[derive(Args, Debug)]
pub struct Open {
    /// Name of a pod, job, RayCluster or Service, or KIND/NAME
    pub name: String,
    /// Number or name of the port [default: the only one that is declared; of a RayCluster its dashboard's]
    #[arg(long, value_name = "PORT")]
    pub port: Option<String>,
    /// Rank of a job's replica
    #[arg(long, default_value_t = 0)]
    pub rank: u32,
    /// Lead a port of this machine to the pod, until the command ends, and open that; so does a server without a domain
    /// for pages of pods (`muster server --proxy-domain`)
    #[arg(long)]
    pub forward: bool,
    /// Print the address and start no browser
    #[arg(long)]
    pub print: bool,
}

/// One job.
#[derive(Args, Debug)]
pub struct JobTarget {
    /// Name of the job, or KIND/NAME
    pub name: String,
    /// Output format [default: a text for people]
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

/// Options of `muster explain`.
#[derive(Args, Debug)]
pub struct Subject {
    /// Name of a job, pod or gang, or KIND/NAME
    pub name: String,
    /// Show past decisions, oldest first, including those on deleted objects and those of earlier servers
    #[arg(long)]
    pub history: bool,
    /// Output format [default: a text for people]
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

/// Options of `muster wait`.
#[derive(Args, Debug)]
#[command(after_help = WAIT_HELP)]
pub struct Wait {
    /// KIND/NAME, or the name of a job
    pub target: String,
    /// condition=NAME or delete
    #[arg(
        long = "for",
        default_value_t = WaitEvent::Condition(SUCCEEDED.to_string()),
        value_name = "WHAT",
        value_parser = until
    )]
    pub until: WaitEvent,
    /// Timeout in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    pub timeout: u64,
}

/// Options of `muster run`.
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
    /// Working directory [default: the current directory, or / where only root may enter that; with an image, the
    /// image's]
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// Return at once instead of following rank 0 until it ends
    #[arg(long)]
    pub detach: bool,
    /// Command, after --
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// Options of `muster dev`. All but the name and the command concern the creation.
#[derive(Args, Debug)]
pub struct Dev {
    /// Name of the job whose pod it is [default: `dev-` and your user's name]
    pub name: Option<String>,
    /// GPUs
    #[arg(long, default_value_t = 0)]
    pub gpus: u32,
    /// CPUs, such as 2 or 500m
    #[arg(long, default_value = "1")]
    pub cpus: String,
    /// Memory, such as 16Gi
    #[arg(long, default_value = "4Gi")]
    pub memory: String,
    /// Queue of the job
    #[arg(long)]
    pub queue: Option<String>,
    /// Environment variable, as NAME=VALUE (repeatable)
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub env: Vec<(String, String)>,
    /// Working directory of the pod [default: the current directory, or / where only root may enter that]
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// How long the GPUs may do nothing before the job is suspended and gives them back: 1m to 90d
    #[arg(long, default_value = "2h", value_name = "TIME")]
    pub idle: String,
    /// How long the pod may run in all, such as 8h [default: as long as its queue lets it]
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
    /// Command in place of a shell, after --
    #[arg(last = true)]
    pub command: Vec<String>,
}

/// Options of a listing.
#[derive(Args, Debug)]
pub struct Listing {
    /// Output format [default: a text for people]
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

/// Options of `muster queue`.
#[derive(Args, Debug)]
pub struct QueueArguments {
    /// Queue to show [default: list all]
    pub name: Option<String>,
    /// Output format [default: a text for people]
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}

/// Options of `muster usage`.
#[derive(Args, Debug)]
pub struct UsageArguments {
    /// What to tell apart, with commas: team, queue, namespace, user, model, and hour, day or month
    #[arg(long, default_value = "namespace,user", value_name = "LIST")]
    pub by: String,
    /// Begin: a date (2026-11-01), a time (2026-11-01T08:00:00Z), or a duration before now (12h, 7d); UTC
    #[arg(long, default_value = "7d", value_name = "TIME")]
    pub since: String,
    /// End, in the same forms [default: now]
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// List the allocations, one for each pod, in place of sums; those that are held come first
    #[arg(long, conflicts_with = "by")]
    pub allocations: bool,
    /// Most allocations to list, the latest
    #[arg(long, requires = "allocations", default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    /// Output format [default: a table for people]
    #[arg(short, long, value_enum)]
    pub output: Option<UsageOutput>,
}

/// Options of `muster idle`.
#[derive(Args, Debug)]
pub struct IdleArguments {
    /// Output format [default: a table for people]
    #[arg(short, long, value_enum)]
    pub output: Option<UsageOutput>,
}

/// Arguments of `muster alerts`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AlertsArguments {
    #[command(subcommand)]
    pub command: Option<AlertsCommand>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<AlertsOutput>,
}

/// Output formats of `muster alerts`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertsOutput {
    /// One JSON document
    Json,
}

/// Commands of `muster alerts`.
#[derive(Subcommand, Debug)]
pub enum AlertsCommand {
    /// List the receivers (--alert-receivers of `muster server`) and what was delivered to them
    Receivers,
    /// Send a test to a receiver and wait for its answer. Exit status 1 if the receiver does not take it
    Test {
        /// Name of the receiver
        name: String,
    },
    /// List the silences that have not ended
    Silences,
    /// Keep matching alerts from being delivered for a time; they are still listed
    #[command(group = ArgGroup::new("match").args(["rule", "on"]).required(true).multiple(true))]
    Silence {
        /// Rule, such as NodeLost [default: all rules]
        #[arg(long, value_name = "RULE")]
        rule: Option<String>,
        /// Node, namespace, or subject as `muster alerts` lists it [default: all]
        #[arg(long, value_name = "NAME")]
        on: Option<String>,
        /// Duration, such as 2h or 3d; at most 30d
        #[arg(long = "for", value_name = "TIME", value_parser = span)]
        seconds: i64,
        /// Reason
        #[arg(long, default_value = "", value_name = "TEXT")]
        comment: String,
    },
    /// End a silence before its time
    Unsilence {
        /// Number of the silence, as listed
        id: u64,
    },
}

fn span(text: &str) -> Result<i64, ClientOptionError> {
    resources::span::seconds(text).ok_or(ClientOptionError::Span)
}

/// Output formats of `muster usage`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageOutput {
    /// One JSON document
    Json,
    /// Comma-separated values with a heading
    Csv,
}

/// Commands of `muster token`.
#[derive(Subcommand, Debug)]
pub enum TokenCommand {
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
        /// Range of addresses from which the token is accepted, such as 10.0.0.0/8; repeat it for further ones
        /// [default: all]
        #[arg(long, value_name = "CIDR", value_delimiter = ',')]
        from: Vec<String>,
    },
    /// Replace an access token by a new one of the same user, label, address ranges and lifetime, and print that once;
    /// the old one expires after the overlap
    Rotate {
        /// Id of the token, or its label if no other token has it
        name: String,
        /// How long the old token stays valid, such as 2h or 7d; at most 30d
        #[arg(long, default_value = "24h", value_name = "TIME", value_parser = span)]
        overlap: i64,
    },
    /// Issue a short-lived join token for agents and print it once
    Join {
        /// Only node that may join with the token [default: any one node]
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// Number of nodes that may join with the token
        #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(JOIN_USES_MAX)))]
        uses: u32,
        /// Lifetime in minutes
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=10_080))]
        minutes: u64,
    },
    /// List valid tokens and when they were used last; administrators also see join tokens
    List,
    /// Revoke an access token or a join token at once
    Revoke {
        /// Id of the token, as listed
        id: String,
    },
}

/// Commands of `muster node`.
#[derive(Subcommand, Debug)]
pub enum NodeCommand {
    /// Mark a node so that no further pods are placed on it; its pods run on
    Cordon {
        /// Name of the node
        name: String,
    },
    /// Let pods be placed on a node again
    Uncordon {
        /// Name of the node
        name: String,
    },
    /// Cordon a node and evict its pods: jobs and Deployments start them on other nodes. A PodDisruptionBudget holds
    /// pods back until it allows their eviction; a pod with `muster.io/checkpoint-grace` has that long to save a
    /// checkpoint; pods of DaemonSets stay. Exit status 124 if pods are left at the timeout
    Drain(Drain),
    /// Remove a node and revoke its certificates: the server refuses its agent until the agent joins with a new token
    /// (`muster token join --node NAME`). Jobs replace the node's pods on other nodes; stop the agent and the pods on
    /// the machine itself by hand
    Remove {
        /// Name of the node
        name: String,
    },
}

/// Options of `muster node drain`.
#[derive(Args, Debug)]
pub struct Drain {
    /// Name of the node
    pub name: String,
    /// Only show what would happen: which pods go, which ones a PodDisruptionBudget holds back, how much work is lost,
    /// and what cannot be moved. Exit status 1 if a pod cannot be moved
    #[arg(long)]
    pub dry_run: bool,
    /// Evict pods without a controller, too; nothing creates them again
    #[arg(long)]
    pub force: bool,
    /// Time that each pod has to end, in seconds; a checkpoint's grace holds if it is longer [default: the pod's own]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub grace_period: Option<u32>,
    /// Timeout in seconds
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub timeout: u64,
}

/// Commands of `muster upgrade`.
#[derive(Subcommand, Debug)]
pub enum UpgradeCommand {
    /// Show the server's version, the store's format, each agent's version, the snapshots, and the progress of an
    /// upgrade of the agents
    Status(Listing),
    /// Replace the agents' binaries one after another, while pods run on: each agent fetches the binary from the
    /// server, starts it, and goes back if it gets no session within half of the server's --node-grace. The first failure stops the upgrade; the
    /// same command continues it. Agents that a package installed are left out, with the command to upgrade them.
    /// Exit status 1 if the upgrade stopped
    Agents(UpgradeAgents),
    /// Make the upgrade of the server final: the version before can no longer read the store. Refused while the
    /// server refuses the version of a node's agent
    Finalize,
    /// Print the snapshots on this machine and the commands that go back to the version before. Needs no running
    /// server
    Rollback,
}

/// Options of `muster upgrade agents`.
#[derive(Args, Debug)]
pub struct UpgradeAgents {
    /// The most agents that are upgraded at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub max_unavailable: u32,
    /// Binary for the agents, a file on the server [default: the server's own binary]
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
    /// Return at once instead of following the progress
    #[arg(long)]
    pub detach: bool,
    /// Stop the running upgrade before its next agent
    #[arg(long, conflicts_with_all = ["max_unavailable", "binary", "detach"])]
    pub stop: bool,
}

/// Options of `muster kubeconfig`.
#[derive(Args, Debug)]
pub struct Kubeconfig {
    /// Server address to write, as https://HOST:PORT [default: the one in use]
    #[arg(long, value_name = "URL", value_parser = server_address)]
    pub server: Option<String>,
    /// CA certificate to write, in PEM [default: the one in use, or none if the server has a certificate that this
    /// machine trusts]
    #[arg(long, value_name = "FILE")]
    pub certificate_authority: Option<PathBuf>,
    /// User of the token [default: you]
    #[arg(long)]
    pub user: Option<String>,
    /// Lifetime of the token in days
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=366))]
    pub days: u64,
}

/// Options of `muster doctor`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfigs_server_is_an_https_address() {
        for (text, sound) in [
            ("https://gpu.example:8443", true),
            ("https://[::1]:8443/", true),
            ("http://gpu.example:8443", false),
            ("gpu.example", false),
            ("https://", false),
            ("https://a b", false),
        ] {
            assert_eq!(server_address(text).is_ok(), sound, "{text}");
        }
    }
}
