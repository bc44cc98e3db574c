//! The errors of the fleet's server side, with their remedies.

use std::path::PathBuf;

/// An error of the fleet.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// A file of the certificate authority can't be read or written.
    #[error("{}: {source}; check the data directory's owner and permissions", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// One file of the certificate authority is missing.
    #[error(
        "{} is missing but its counterpart is there; restore it from a backup, or remove both to \
         make a new authority (every node must then join again)",
        path.display()
    )]
    HalfAuthority {
        /// The file that is missing.
        path: PathBuf,
    },
    /// A certificate or key cannot be parsed or created.
    #[error("{what}: {source}")]
    Certificate {
        /// The operation.
        what: String,
        /// The certificate library's error.
        source: rcgen::Error,
    },
    /// The content of a certificate file is invalid.
    #[error("{what}")]
    Malformed {
        /// The problem and the expected content.
        what: String,
    },
    /// A join token is unknown, expired or malformed.
    #[error("{0}")]
    Token(#[from] TokenError),
    /// A node's name is invalid.
    #[error(
        "node name {name:?} is not valid: lower case letters, digits, '-' and '.', starting and \
         ending with a letter or digit, at most 253 characters"
    )]
    NodeName {
        /// The name.
        name: String,
    },
    /// The options of a join token are invalid.
    #[error("join token: {field}: {value} is out of range; use {valid}")]
    TokenOption {
        /// The option.
        field: &'static str,
        /// The given value.
        value: String,
        /// The accepted values.
        valid: String,
    },
    /// The resource API refused a request or did not answer.
    #[error("{what}: {source}")]
    Api {
        /// The operation.
        what: String,
        /// The API's error.
        #[source]
        source: Box<kube::Error>,
    },
    /// The operating system returned no random bytes.
    #[error("the operating system gave no random numbers: {0}; look at the system's log")]
    Random(getrandom::Error),
}

/// Why a join token was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token is malformed.
    #[error(
        "the join token has the wrong form; it reads ID.SECRET, as `muster token join` prints it"
    )]
    Malformed,
    /// The token does not exist, or was used up or revoked.
    #[error(
        "the server does not know the join token: it was used already, revoked or never created; create one with `muster token \
         join`"
    )]
    Unknown,
    /// The token has expired.
    #[error("the join token has expired; make a new one with `muster token join`")]
    Expired,
    /// The token was made for another node.
    #[error(
        "the join token is for another node, which `muster token list` shows; `muster token join --node NAME` creates \
         a token for this node"
    )]
    OtherNode,
    /// The token names no node, and a node of that name has joined before.
    #[error(
        "a node of this name has joined before, and the join token names no node; \
         `muster token join --node NAME` makes one for this node, or give this machine another \
         name with --node-name"
    )]
    NameTaken,
    /// Too many nodes use the token at the same moment.
    #[error("too many nodes join with this token at the same moment; try again")]
    Busy,
}

/// Why a log cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogReadError {
    /// The pod does not exist and no connected node has a log of it.
    #[error("{0}")]
    NotFound(String),
    /// The pod has no node yet, or its container has not started.
    #[error("{0}")]
    NotReady(String),
    /// The node with the log is not connected.
    #[error(
        "node {node:?} is not connected, so the server cannot read logs of pod {pod:?} now; check that the node's \
         agent runs and reaches the server"
    )]
    NodeAway {
        /// The node.
        node: String,
        /// The pod.
        pod: String,
    },
    /// The node could not read the log.
    #[error("{0}")]
    Failed(String),
}

/// Why a node did not answer a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeRequestError {
    /// The node is not connected.
    #[error("node {node:?} is not connected; check that its agent runs and reaches the server")]
    NodeAway {
        /// The node.
        node: String,
    },
    /// The node did not answer in time.
    #[error(
        "node {node:?} did not answer within {seconds} s; check that its agent is as new as the server"
    )]
    Silent {
        /// The node.
        node: String,
        /// The timeout.
        seconds: u64,
    },
    /// The node reported an error, with its remedy.
    #[error("{0}")]
    Refused(String),
}

/// Why agents are not upgraded.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// A rollout is running.
    #[error(
        "the agents are being upgraded to another binary; wait for it (`muster upgrade status`), or stop it (`muster \
         upgrade agents --stop`)"
    )]
    Running,
    /// The binary can't be offered.
    #[error("binary: {}: {reason}; name an executable of muster on the server", path.display())]
    Binary {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No agent is connected.
    #[error("no agent is connected; `muster nodes` lists the nodes")]
    NoAgents,
    /// The progress can't be recorded.
    #[error("the progress of the upgrade can't be written: {0}; check the server's disk")]
    Record(#[from] durable::Error),
}

pub(crate) fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> FleetError {
    let what = what.into();
    move |source| FleetError::Api {
        what,
        source: Box::new(source),
    }
}

/// The status code of an error from the API.
pub(crate) fn status_code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// Why a command was not started in a container.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The node is not connected.
    #[error(
        "node {node:?} is not connected, so no command can be started there now; check that the node's agent runs and \
         reaches the server"
    )]
    NodeAway {
        /// The node.
        node: String,
    },
    /// The node did not answer.
    #[error(
        "node {node:?} did not start the command within {seconds} s; try again, and look at its agent's log"
    )]
    Silent {
        /// The node.
        node: String,
        /// How long it had.
        seconds: u64,
    },
    /// Too many commands run there.
    #[error("{most} commands run in containers of node {node:?} already; end one and try again")]
    TooMany {
        /// The node.
        node: String,
        /// The bound.
        most: usize,
    },
    /// The node's reason.
    #[error("{0}")]
    NotStarted(String),
}
