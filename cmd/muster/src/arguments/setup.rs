//! Options of `muster setup`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::tls::TlsOptions;

/// The service that `muster setup` prepares this machine for.
#[derive(Subcommand, Debug)]
pub enum Setup {
    /// Prepare this machine for the server: check clock, port and disk, and write
    /// /etc/muster/conf.d/50-setup.toml
    Server(Box<SetupServer>),
    /// Prepare this machine for the agent: check clock, cgroups, mounts, GPUs, RDMA and the server's certificate, and
    /// write /etc/muster/conf.d/50-setup.toml, and the join token to /etc/default/muster-agent
    Agent(SetupAgent),
}

/// Options of `muster setup server`.
#[derive(Args, Debug)]
pub struct SetupServer {
    /// Address of the API, the web UI and the agents' sessions [default: as in the settings file, else 0.0.0.0:8443]
    #[arg(long, env = "MUSTER_LISTEN", value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// Further name or address by which clients and agents reach the server (repeatable)
    #[arg(long, value_name = "NAME")]
    pub advertise: Vec<String>,
    #[command(flatten)]
    pub tls: TlsOptions,
    #[command(flatten)]
    pub common: SetupOptions,
}

/// Options of `muster setup agent`.
#[derive(Args, Debug)]
pub struct SetupAgent {
    /// Address of the server to join, as https://HOST:PORT [default: as in the settings file]
    #[arg(long, env = "MUSTER_SERVER", value_name = "URL")]
    pub server: Option<String>,
    /// Join token with the fingerprint of the server's CA, as `muster token join` prints it; not needed once the
    /// agent has its certificate [default: as in the environment file]
    #[arg(
        long,
        env = "MUSTER_JOIN_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    #[command(flatten)]
    pub common: SetupOptions,
}

/// Options of both.
#[derive(Args, Debug)]
pub struct SetupOptions {
    /// Ask nothing: take the options, then the settings file, then the defaults. Without a terminal, this is always so
    #[arg(short, long)]
    pub yes: bool,
    /// Check and print the settings; write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Write the settings although a check found a problem
    #[arg(long)]
    pub force: bool,
    /// Settings file, in TOML; its other keys stay [default: /etc/muster/conf.d/50-setup.toml]
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Environment file of the service's unit; the agent's holds the join token [default: /etc/default/muster-server or
    /// /etc/default/muster-agent]
    #[arg(long, value_name = "FILE")]
    pub environment_file: Option<PathBuf>,
}
