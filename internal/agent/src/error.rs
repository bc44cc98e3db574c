//! Errors that stop an agent, and the remedy for each. Failures of single pods are in the pods'
//! status instead.

use std::path::PathBuf;

/// An error that ends the agent, or one attempt to reach the server.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A file can't be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was being done, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A setting can't be used.
    #[error("{field}: {value:?} can't be used: {detail}")]
    Setting {
        /// The setting.
        field: &'static str,
        /// The given value.
        value: String,
        /// The accepted values.
        detail: String,
    },
    /// The agent has neither an identity nor a token to request one.
    #[error(
        "this node has not joined yet: no identity in {}; give a join token (--token, made with \
         `muster token join` on the server)",
        path.display()
    )]
    NotJoined {
        /// Where the identity is expected.
        path: PathBuf,
    },
    /// The server refused to let the node join.
    #[error("the server refused to let node {node:?} join: {detail}")]
    JoinRefused {
        /// The node.
        node: String,
        /// The server's answer.
        detail: String,
    },
    /// The server couldn't be reached or the connection broke.
    #[error("{what} {server}: {detail}")]
    Connection {
        /// The failed operation.
        what: &'static str,
        /// The server.
        server: String,
        /// The cause.
        detail: String,
    },
    /// The server no longer accepts the node's certificate.
    #[error("{server} refused the node's certificate: {detail}")]
    CertificateRefused {
        /// The server.
        server: String,
        /// The server's answer.
        detail: String,
    },
    /// A certificate or key can't be read or created.
    #[error("{0}")]
    Certificate(String),
    /// The machine's hardware can't be read.
    #[error(transparent)]
    Hardware(#[from] hardware::HardwareError),
    /// The runtime can't be started.
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
    /// The port for metrics can't be opened.
    #[error(transparent)]
    Metrics(#[from] crate::metrics::NoPort),
    /// The runtime can't list running containers.
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
