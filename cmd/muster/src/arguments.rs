//! The command line: commands, options and their defaults.

mod audit;
mod backups;
mod combination;
mod configuration;
mod device_plugin;
mod engine_flag;
mod machine;
mod oidc;
mod option_error;
mod pod_security;
mod serving;
mod setup;
mod sharing;
mod tenancy;
mod tls;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use cli::{Doctor, Global, HELP};

pub use backups::BackupFlags;
pub use combination::CombinationError;
pub use configuration::{ConfigCommand, Section};
pub use machine::{
    Agent, AgentEngine, DevicesBy, EmbeddedAgent, KubeletAgent, MachineOptions, Metrics, MigDrain,
    NcclTopology, PodOptions, Topology, Xids,
};
pub use oidc::OidcFlags;
pub use serving::{
    AuditFlags, ControlledKind, KubernetesServer, LogOptions, NODE_GRACE, Server, ServerEngine,
    ServerOptions, Up,
};
pub use setup::{Setup, SetupAgent, SetupOptions, SetupServer};
pub use tenancy::{HostFiles, PodNetwork};
pub use tls::{AcmeSettings, KeyFiles, TlsOptions, TlsSource};

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

/// This process's command line, with the former spelling of the engine replaced.
pub fn words_of_process() -> Vec<OsString> {
    engine_flag::as_subcommand(std::env::args_os().collect())
}

/// Commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the server and an agent on this machine
    Up(Box<Up>),
    /// Run the server: API, scheduler, controllers and web UI; or scheduler and controllers for a Kubernetes cluster
    Server(Box<Server>),
    /// Run this machine's agent, which joins a server and runs pods; or gives devices to a kubelet's pods
    Agent(Box<Agent>),
    #[command(flatten)]
    Client(cli::Command),
    /// Simulate the scheduler on a cluster and a workload over simulated time
    Simulate(Box<crate::simulate::Simulate>),
    /// Verify the audit log
    #[command(subcommand)]
    Audit(Audit),
    /// Check this machine: isolation that the agent can give to pods, devices, and RDMA; name a remedy for each fault
    Doctor(Doctor),
    /// Prepare this machine for the server or the agent: check what the service needs, name a remedy for each fault,
    /// write the settings and print the next command. Exit status 1, and nothing written, if a check finds a problem
    #[command(subcommand)]
    Setup(Setup),
    /// Draw the links between this machine's GPUs and network cards, as `nvidia-smi topo -m` does, with the bandwidth
    /// of each kind of path
    Topology(Topology),
    /// Print the action for each GPU error (XID) that the driver reports, as a file for --xid-policy of `muster
    /// agent`
    Xids(Xids),
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
    /// Check, print and explain the configuration files of server and agent (/etc/muster)
    #[command(subcommand)]
    Config(ConfigCommand),
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
    /// Run a command in another pod of an MPIJob or Volcano Job; started by mpirun, never by hand
    #[command(hide = true)]
    RemoteShell {
        /// The host, which is the other pod's name, and the command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
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

    /// The options of the certificate that the embedded engine's server serves; none for other commands.
    pub fn tls_options(&self) -> Option<&TlsOptions> {
        match self {
            Command::Up(up) => Some(&up.server.tls),
            Command::Server(server) if server.engine.is_none() => Some(&server.server.tls),
            _ => None,
        }
    }

    /// The options of OpenID Connect of the embedded engine's server; none for other commands.
    pub fn oidc_flags(&self) -> Option<&OidcFlags> {
        match self {
            Command::Up(up) => Some(&up.server.oidc),
            Command::Server(server) if server.engine.is_none() => Some(&server.server.oidc),
            _ => None,
        }
    }

    /// The command's section in configuration files, and the files' path if one is given. None for commands that read
    /// no configuration file.
    pub fn configuration(&self) -> Option<(Section, Option<&Path>)> {
        let (section, options) = match self {
            Command::Up(up) => (Section::Up, &up.configuration),
            Command::Server(server) => match &server.engine {
                Some(ServerEngine::Kubernetes(kubernetes)) => {
                    (Section::ServerKubernetes, &kubernetes.configuration)
                }
                None => (Section::Server, &server.configuration),
            },
            Command::Agent(agent) => match &agent.engine {
                Some(AgentEngine::Kubernetes(kubernetes)) => {
                    (Section::AgentKubernetes, &kubernetes.configuration)
                }
                None => (Section::Agent, &agent.embedded.configuration),
            },
            _ => return None,
        };
        Some((section, options.config.as_deref()))
    }
}

#[derive(Subcommand, Debug)]
pub enum StoreCommand {
    /// Check the store under --data: list its contents, damaged records and the objects lost with them; change
    /// nothing. The server must be stopped. Exit status 1 if any record is damaged
    Check,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Command, clap::error::ErrorKind> {
        let words = ["muster"].iter().chain(words);
        match Arguments::try_parse_from(words) {
            Ok(arguments) => Ok(arguments.command),
            Err(error) => Err(error.kind()),
        }
    }

    #[test]
    fn each_engine_takes_its_own_options_only() {
        let fine: [&[&str]; 6] = [
            &["server", "--advertise", "gpu.example", "--node-grace", "60"],
            &[
                "server",
                "kubernetes",
                "--kinds",
                "none",
                "--extender",
                "127.0.0.1:1",
            ],
            &[
                "--data",
                "/d",
                "server",
                "kubernetes",
                "--log-format",
                "json",
            ],
            &["agent", "--server", "https://s:8443", "--label", "a=b"],
            &["agent", "kubernetes", "--gpu-parts", "--node-name", "n"],
            &["up", "--log-format", "json", "--host-images"],
        ];
        for words in fine {
            assert!(parsed(words).is_ok(), "{words:?}");
        }
        let refused: [&[&str]; 16] = [
            &["server", "kubernetes", "--advertise", "gpu.example"],
            &["server", "kubernetes", "--first-password-file", "/f"],
            &["server", "kubernetes", "--node-grace", "60"],
            &["server", "kubernetes", "--audit-log-dir", "/d"],
            &["server", "kubernetes", "--pod-security-config", "/f"],
            &["server", "--kinds", "none"],
            &["server", "--extender", "127.0.0.1:1"],
            &["server", "--advertise", "gpu.example", "kubernetes"],
            &["agent", "kubernetes", "--server", "https://s:8443"],
            &["agent", "kubernetes", "--host-images"],
            &["agent", "kubernetes", "--mps", "all"],
            &["agent", "kubernetes", "--pod-pids-limit", "64"],
            &["agent", "--server=https://s:8443", "--gpu-parts"],
            &["agent", "--server=https://s:8443", "--devices", "dra"],
            &["agent", "--server=https://s:8443", "--pair"],
            &["agent", "--server=https://s:8443", "--kubelet-dir", "/k"],
        ];
        for words in refused {
            assert!(parsed(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn an_agent_of_a_server_needs_its_address_and_one_beside_a_kubelet_does_not() {
        use clap::error::ErrorKind::MissingRequiredArgument;
        if std::env::var_os("MUSTER_SERVER").is_none() {
            assert_eq!(parsed(&["agent"]).unwrap_err(), MissingRequiredArgument);
        }
        let Command::Agent(agent) = parsed(&["agent", "kubernetes"]).unwrap() else {
            panic!("an agent")
        };
        assert!(matches!(agent.engine, Some(AgentEngine::Kubernetes(_))));
    }

    #[test]
    fn the_client_allows_as_many_uses_of_a_join_token_as_the_server() {
        assert_eq!(cli::JOIN_USES_MAX, fleet::MOST_USES);
    }
}
