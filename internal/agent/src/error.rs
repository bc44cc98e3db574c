//! Errors that stop an agent, and the remedy for each. Failures of single pods are in the pods'
//! status instead.

use std::path::PathBuf;

use supervisor::{Cause, Ended};

use crate::engine::EngineError;

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
    /// Pods cannot have networks of their own here.
    #[error("--pod-network own: {0}; or start the agent with --pod-network host")]
    PodNetwork(#[source] network::NetworkError),
    /// The networks of pods of an earlier agent cannot be handled.
    #[error(
        "pods of an earlier agent have networks of their own, which this one cannot handle: {0}"
    )]
    EarlierPodNetworks(#[source] network::NetworkError),
    /// Another version's agent wrote the data directory.
    #[error(
        "{} was written by another agent's format ({found:?}; this agent reads formats up to {newest}); run the newer \
         agent that wrote it, under which the node's pods go on",
        path.display()
    )]
    DataFormat {
        /// The data directory.
        path: PathBuf,
        /// The format in it.
        found: String,
        /// The newest format that this agent reads.
        newest: u32,
    },
    /// The server refused the agent's version.
    #[error("{server} refused this agent's version: {detail}")]
    VersionRefused {
        /// The server.
        server: String,
        /// The server's answer.
        detail: String,
    },
    /// A setting can't be used.
    #[error("{field}: {value:?} cannot be used: {detail}")]
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
    /// The agent has a token, and nothing by which it could verify the server.
    #[error(
        "--token: the token ends without the fingerprint of the server's certificate authority, so \
         the agent cannot verify the server; give the whole token that `muster token join` printed \
         (its form is ID.SECRET@sha256:DIGITS), or the server's server/ca.pem with --ca"
    )]
    TokenWithoutFingerprint,
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
    Recover(EngineError),
    /// A part of the agent ended although it must run until the agent stops.
    #[error(transparent)]
    Component(Ended),
}

impl From<Ended> for AgentError {
    /// The component's own error if that is of this type, because it says all that can be done.
    fn from(ended: Ended) -> AgentError {
        let Ended { component, cause } = ended;
        let cause = match cause {
            Cause::Failed(failure) => match failure.downcast::<AgentError>() {
                Ok(error) => return *error,
                Err(failure) => Cause::Failed(failure),
            },
            cause => cause,
        };
        AgentError::Component(Ended { component, cause })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_components_end_names_it_and_its_own_error_stays_as_it_is() {
        let ended = |cause| {
            let component = "session";
            AgentError::from(Ended { component, cause }).to_string()
        };
        assert!(ended(Cause::Returned).contains("\"session\" ended"));
        let failed = ended(Cause::Panicked("no index 3".to_owned()));
        assert!(failed.contains("session") && failed.contains("no index 3"));
        let own = AgentError::Certificate("no key".to_owned());
        assert_eq!(ended(Cause::Failed(Box::new(own))), "no key");
    }
}
