//! What can go wrong at the server's end of the fleet, and what to do about it.

use std::path::PathBuf;

/// An error of the fleet.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// A file of the certificate authority can't be read or written.
    #[error("{}: {source}; check the data directory's owner and permissions", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Half of the certificate authority is there.
    #[error(
        "{} is missing but its counterpart is there; restore it from a backup, or remove both to \
         make a new authority (every node must then join again)",
        path.display()
    )]
    HalfAuthority {
        /// The file that is missing.
        path: PathBuf,
    },
    /// A certificate or key doesn't parse, or can't be made.
    #[error("{what}: {source}")]
    Certificate {
        /// What was being done.
        what: String,
        /// What the certificate library said.
        source: rcgen::Error,
    },
    /// A certificate file isn't what it should be.
    #[error("{what}")]
    Malformed {
        /// What is wrong, and what would be right.
        what: String,
    },
    /// A join token isn't known, has expired, or isn't a token.
    #[error("{0}")]
    Token(#[from] TokenError),
    /// A node's name can't be used.
    #[error(
        "node name {name:?} is not valid: lower case letters, digits, '-' and '.', starting and \
         ending with a letter or digit, at most 253 characters"
    )]
    NodeName {
        /// The name.
        name: String,
    },
    /// A join token can't be made so.
    #[error("join token: {field}: {value} is out of range; use {valid}")]
    TokenOption {
        /// The option.
        field: &'static str,
        /// What was asked for.
        value: String,
        /// What can be asked for.
        valid: String,
    },
    /// The resource API refused or didn't answer.
    #[error("{what}: {source}")]
    Api {
        /// What was being done.
        what: String,
        /// What the API said.
        #[source]
        source: Box<kube::Error>,
    },
    /// The system has no random numbers to give.
    #[error("no random numbers from the system: {0}")]
    Random(getrandom::Error),
}

/// Why a join token was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It doesn't look like a token.
    #[error(
        "the join token has the wrong form; it reads ID.SECRET, as `muster token join` prints it"
    )]
    Malformed,
    /// No such token, or it was used up or revoked.
    #[error(
        "the join token is not known: it was used already, revoked, or never made; make one with \
         `muster token join`"
    )]
    Unknown,
    /// Its time is over.
    #[error("the join token has expired; make a new one with `muster token join`")]
    Expired,
    /// It was made for another node.
    #[error(
        "the join token is for another node; `muster token list` says for which, and \
         `muster token join --node NAME` makes one for this node"
    )]
    OtherNode,
    /// It names no node, and a node of that name has joined before.
    #[error(
        "a node of this name has joined before, and the join token names no node; \
         `muster token join --node NAME` makes one for this node, or give this machine another \
         name with --node-name"
    )]
    NameTaken,
    /// Too many nodes use it at the same moment.
    #[error("too many nodes join with this token at the same moment; try again")]
    Busy,
}

/// Why a log can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The pod isn't there and no connected node keeps a log of it.
    #[error("{0}")]
    NotFound(String),
    /// The pod has no node yet, or its container hasn't started.
    #[error("{0}")]
    NotReady(String),
    /// The node that has the log isn't connected.
    #[error(
        "node {node:?} is not connected, so logs of pod {pod:?} can't be read now; check that its \
         agent runs and reaches the server"
    )]
    NodeAway {
        /// The node.
        node: String,
        /// The pod.
        pod: String,
    },
    /// The node couldn't read it.
    #[error("{0}")]
    Failed(String),
}

/// Why a node didn't answer a question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// It isn't connected.
    #[error("node {node:?} is not connected; check that its agent runs and reaches the server")]
    NodeAway {
        /// The node.
        node: String,
    },
    /// It said nothing.
    #[error(
        "node {node:?} did not answer within {seconds} s; check that its agent is as new as the server"
    )]
    Silent {
        /// The node.
        node: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// It says why it can't, and what to do.
    #[error("{0}")]
    Refused(String),
}

pub(crate) fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> FleetError {
    let what = what.into();
    move |source| FleetError::Api {
        what,
        source: Box::new(source),
    }
}

/// The status code of an error that the API answered with.
pub(crate) fn status_code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}
