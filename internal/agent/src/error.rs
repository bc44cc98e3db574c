//! What can stop an agent, and what to do about it. Troubles of single pods are in their status
//! instead.

use std::path::PathBuf;

/// An error that ends the agent, or one try of reaching the server.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A file can't be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was being done, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A setting can't be used.
    #[error("{field}: {value:?} can't be used: {detail}")]
    Setting {
        /// The setting.
        field: &'static str,
        /// What was given.
        value: String,
        /// What would be right.
        detail: String,
    },
    /// There is neither an identity nor a token to get one with.
    #[error(
        "this node has not joined yet: no identity in {}; give a join token (--token, made with \
         `muster token join` on the server)",
        path.display()
    )]
    NotJoined {
        /// Where the identity would be.
        path: PathBuf,
    },
    /// The server won't have it.
    #[error("the server refused to let node {node:?} join: {detail}")]
    JoinRefused {
        /// The node.
        node: String,
        /// In the server's words.
        detail: String,
    },
    /// The server couldn't be reached or the connection broke.
    #[error("{what} {server}: {detail}")]
    Connection {
        /// What was being done.
        what: &'static str,
        /// The server.
        server: String,
        /// What went wrong.
        detail: String,
    },
    /// The server doesn't take the node's certificate any more.
    #[error("{server} refused the node's certificate: {detail}")]
    CertificateRefused {
        /// The server.
        server: String,
        /// In the server's words.
        detail: String,
    },
    /// A certificate or key can't be read or made.
    #[error("{0}")]
    Certificate(String),
    /// The machine's hardware can't be read.
    #[error(transparent)]
    Hardware(#[from] hardware::HardwareError),
    /// The runtime can't be started.
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
    /// The port for metrics can't be had.
    #[error(transparent)]
    Metrics(#[from] crate::metrics::NoPort),
    /// The runtime can't say what runs.
    #[error("finding this node's containers again: {0}")]
    Recover(String),
}

pub(crate) fn file(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(std::io::Error) -> AgentError {
    let path = path.into();
    move |source| AgentError::File {
        action,
        path,
        source,
    }
}
