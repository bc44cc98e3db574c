//! Errors that end an agent beside a kubelet, and the remedy for each.

use std::path::PathBuf;

use hardware::HardwareError;
use supervisor::{Cause, Ended};

use crate::metrics::NoPort;

/// An error that ends an agent beside a kubelet.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// The machine can't be read.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// The port for metrics can't be opened.
    #[error(transparent)]
    Metrics(#[from] NoPort),
    /// Pods still hold devices by claims.
    #[error(
        "--devices plugin: pods of this node have devices by claims ({claims}), which the device \
         plugin would allocate again; end these pods first, or keep --devices dra"
    )]
    Claimed {
        /// The claims, each by namespace and name.
        claims: String,
    },
    /// The CDI specifications of claims can't be read.
    #[error("the CDI specs in {}: {source}; --cdi-dir must be a directory that the agent can read", path.display())]
    Specs {
        /// The directory.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The plugin's socket can't be created.
    #[error(
        "the plugin's socket {}: {source}; the agent must run as root, with the kubelet's \
         own directory (--kubelet-dir)", path.display()
    )]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A part of the agent ended although it must run until the agent stops.
    #[error(transparent)]
    Component(Ended),
}

impl From<Ended> for KubeletError {
    /// The component's own error if that is of this type, because it says all that can be done.
    fn from(ended: Ended) -> KubeletError {
        let Ended { component, cause } = ended;
        let cause = match cause {
            Cause::Failed(failure) => match failure.downcast::<KubeletError>() {
                Ok(error) => return *error,
                Err(failure) => Cause::Failed(failure),
            },
            cause => cause,
        };
        KubeletError::Component(Ended { component, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_components_end_names_it_and_its_own_error_stays_as_it_is() {
        let ended = |cause| {
            let component = "node-publisher";
            KubeletError::from(Ended { component, cause }).to_string()
        };
        assert!(ended(Cause::Returned).contains("node-publisher"));
        let failed = ended(Cause::Failed("no memory".into()));
        assert!(failed.contains("node-publisher") && failed.contains("no memory"));
        let claimed = KubeletError::Claimed {
            claims: "team/a".to_owned(),
        };
        let text = claimed.to_string();
        assert_eq!(ended(Cause::Failed(Box::new(claimed))), text);
    }
}
