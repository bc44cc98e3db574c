//! Options on configuration files, and the commands of `muster config`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Where a long-running command reads its configuration files.
#[derive(Args, Debug, Clone)]
pub struct ConfigurationOptions {
    /// Configuration: a file in TOML, or a directory with muster.toml and conf.d/*.toml; `muster config example` prints
    /// all its keys [default: /etc/muster/muster.toml and /etc/muster/conf.d/*.toml, where they exist]
    #[arg(long, env = "MUSTER_CONFIG", value_name = "PATH")]
    pub config: Option<PathBuf>,
}

/// The commands that read configuration files, each with a section of its own in them.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// `muster server`
    #[value(name = "server")]
    Server,
    /// `muster server kubernetes`
    #[value(name = "server.kubernetes")]
    ServerKubernetes,
    /// `muster agent`
    #[value(name = "agent")]
    Agent,
    /// `muster agent kubernetes`
    #[value(name = "agent.kubernetes")]
    AgentKubernetes,
    /// `muster up`
    #[value(name = "up")]
    Up,
}

impl Section {
    /// All sections, in the order in which they are listed.
    pub const ALL: [Section; 5] = [
        Section::Server,
        Section::ServerKubernetes,
        Section::Agent,
        Section::AgentKubernetes,
        Section::Up,
    ];

    /// The words of the section's command after `muster`.
    pub fn path(self) -> &'static [&'static str] {
        match self {
            Section::Server => &["server"],
            Section::ServerKubernetes => &["server", "kubernetes"],
            Section::Agent => &["agent"],
            Section::AgentKubernetes => &["agent", "kubernetes"],
            Section::Up => &["up"],
        }
    }

    /// The section's name in a file.
    pub fn name(self) -> String {
        self.path().join(".")
    }
}

/// Commands of `muster config`.
#[derive(Subcommand, Debug)]
pub enum ConfigCommand {
    /// Check the configuration files: unknown sections and keys, types, and values. Exit status 2 if any is invalid;
    /// each error names file, line, key, value and the valid form
    Check {
        /// File or directory to check, as for --config of `muster server` [default: as there]
        #[arg(long, env = "MUSTER_CONFIG", value_name = "PATH")]
        file: Option<PathBuf>,
    },
    /// Print the settings that a command would run with, as TOML; secrets are hidden. The environment is that of this
    /// shell: a systemd unit's own variables are not known here
    Show {
        /// Command, as its section in the files [default: all]
        #[arg(value_enum)]
        section: Option<Section>,
        /// Also print where each value comes from: the command line, an environment variable, FILE:LINE, or the default
        #[arg(long)]
        origin: bool,
        /// File or directory to read, as for --config of `muster server` [default: as there]
        #[arg(long, env = "MUSTER_CONFIG", value_name = "PATH")]
        file: Option<PathBuf>,
        /// Options of the command, as it would be started with; needs a section
        #[arg(last = true, value_name = "OPTIONS", requires = "section")]
        options: Vec<OsString>,
    },
    /// Print a configuration file with every key, commented out: its meaning, and its default or form
    Example,
}
