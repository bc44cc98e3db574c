//! Options of the commands by which a person signs in at a terminal.

use std::path::PathBuf;

use clap::Args;

use super::{Output, server_address};

/// Options of `muster login`.
#[derive(Args, Debug)]
pub struct Login {
    /// Address of the server, as https://HOST:PORT [default: the one in the kubeconfig]
    #[arg(long, value_name = "URL", value_parser = server_address)]
    pub server: Option<String>,
    /// CA certificate of the server, in PEM [default: the one in the kubeconfig for this server, else those that this
    /// machine trusts]
    #[arg(long, value_name = "FILE", conflicts_with = "pin")]
    pub ca: Option<PathBuf>,
    /// Fingerprint of the server's certificate authority, sha256: and 64 hex digits, in place of --ca; `muster whoami`
    /// prints it on a machine that knows the authority
    #[arg(long, value_name = "FINGERPRINT")]
    pub pin: Option<String>,
    /// User that signs in; the server refuses an approval by another one [default: the user that approves]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Lifetime of the token in days
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=90))]
    pub days: u64,
    /// Name of this client on the page and in the list of tokens [default: your user's name and the hostname]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Print the address and start no browser
    #[arg(long)]
    pub no_browser: bool,
}

/// Options of `muster logout`.
#[derive(Args, Debug)]
pub struct Logout {
    /// Ask no server: the token is removed from the kubeconfig and stays valid until it expires
    #[arg(long)]
    pub local: bool,
}

/// Options of `muster whoami`.
#[derive(Args, Debug)]
pub struct WhoAmI {
    /// Output format [default: a text for people]
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
}
