//! Why a pod gets no address of its own.

use std::io;
use std::path::PathBuf;

use crate::address_book::AddressesExhausted;

/// Why something about pods' networks failed.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Another user cannot change the machine's network.
    #[error("the agent is not root, and only root can make pods' networks; run it as root")]
    NotRoot,
    /// A program is missing.
    #[error("the program {program:?} is not installed; install the package {package}")]
    NoProgram {
        /// The program.
        program: &'static str,
        /// Debian's and Fedora's package.
        package: &'static str,
    },
    /// A trial in a namespace of its own failed.
    #[error(
        "this machine gives no pod a network of its own: {0}; the agent needs CAP_SYS_ADMIN and CAP_NET_ADMIN, and a \
         kernel with veth devices and nftables' masquerade (modules veth, nf_tables, nft_masq and nft_chain_nat)"
    )]
    Unfit(#[source] Box<NetworkError>),
    /// Another agent has the machine's network.
    #[error(
        "another agent in the same network gives pods addresses already; run one such agent for each machine"
    )]
    OtherAgent,
    /// The machine has an address of the pods' range.
    #[error(
        "device {device} of this machine has an address of the pods' range {range}; give the server another --pod-cidr"
    )]
    RangeInUse {
        /// The device.
        device: String,
        /// The range of all pods.
        range: String,
    },
    /// The machine has an address of the Services' range.
    #[error(
        "device {device} of this machine has an address of the Services' range {range}; give the server another --service-cidr"
    )]
    ServiceRangeInUse {
        /// The device.
        device: String,
        /// The range of Services' addresses.
        range: String,
    },
    /// The kernel or a file refused.
    #[error("cannot {what}: {source}")]
    Kernel {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// `ip` or `nft` failed.
    #[error("{program} failed: {detail}")]
    Command {
        /// The program.
        program: &'static str,
        /// What it wrote.
        detail: String,
    },
    /// A file was not written.
    #[error(transparent)]
    File(#[from] durable::Error),
    /// The file with the addresses is damaged.
    #[error("{} cannot be read ({source}); move it away once no pod with an address of its own runs on this node", path.display())]
    Book {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The server sent something else than a range.
    #[error("the server sent {range:?} as a range of pod addresses: {source}")]
    Range {
        /// What it sent.
        range: String,
        /// What is wrong.
        source: resources::pod_ranges::RangeError,
    },
    /// No address is free.
    #[error(transparent)]
    Exhausted(#[from] AddressesExhausted),
    /// The node has no range.
    #[error(
        "the server has not given this node a range of pod addresses yet; if it has none left, start it with a larger --pod-cidr"
    )]
    NoRange,
}

/// An error of the kernel or a file, with what was tried.
pub(crate) fn kernel<E: Into<io::Error>>(
    what: impl Into<String>,
) -> impl FnOnce(E) -> NetworkError {
    move |source| NetworkError::Kernel {
        what: what.into(),
        source: source.into(),
    }
}
