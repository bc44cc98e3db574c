//! The crate's errors. Each message says what to do about it. Owns no behaviour.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::spec::{ContainerId, SpecError};

/// Why a container's process could not be started, and whose fault that is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartFault {
    /// Its description cannot be carried out: another node would not do better.
    #[error("{0}")]
    Container(String),
    /// The node lacks what every container needs; it says nothing about the container
    /// ([`crate::ExitReason::NodeUnfit`]).
    #[error("{0}")]
    Node(String),
    /// The node could not do it at this moment, for instance for want of a process number or of
    /// memory ([`crate::ExitReason::NodeBusy`]): the next start may succeed.
    #[error("{0}")]
    Busy(String),
}

/// The kernel's answers that may be others a moment later.
const PASSING: [Errno; 7] = [
    Errno::EAGAIN,
    Errno::EBUSY,
    Errno::EINTR,
    Errno::EMFILE,
    Errno::ENFILE,
    Errno::ENOMEM,
    Errno::ENOSPC,
];

/// Whether an error, or what caused it, is an answer of the kernel that may pass.
fn is_passing(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let of_call = error.downcast_ref::<Errno>().copied();
        let of_file = error.downcast_ref::<io::Error>();
        let of_file = of_file.and_then(|error| error.raw_os_error().map(Errno::from_raw));
        if of_call
            .or(of_file)
            .is_some_and(|errno| PASSING.contains(&errno))
        {
            return true;
        }
        cause = error.source();
    }
    false
}

impl StartFault {
    /// The container's fault.
    pub(crate) fn container(error: impl std::fmt::Display) -> StartFault {
        StartFault::Container(error.to_string())
    }

    /// The node's fault, which may pass or not.
    pub(crate) fn node(error: impl Error + 'static) -> StartFault {
        StartFault::of_node(&error)
    }

    /// Like [`StartFault::node`], for a borrowed error.
    pub(crate) fn of_node(error: &(dyn Error + 'static)) -> StartFault {
        match is_passing(error) {
            true => StartFault::Busy(error.to_string()),
            false => StartFault::Node(error.to_string()),
        }
    }
}

impl From<String> for StartFault {
    fn from(why: String) -> StartFault {
        StartFault::Container(why)
    }
}

impl From<&str> for StartFault {
    fn from(why: &str) -> StartFault {
        StartFault::Container(why.to_owned())
    }
}

/// Why the runtime could not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A field of a container's description, or of a request about it, cannot be used.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// No container of that id is known to this runtime.
    #[error("no container {0} on this node; it may have been removed already")]
    NotFound(ContainerId),
    /// A container of that id exists.
    #[error("container {0} exists already; remove it first or use another attempt number")]
    Exists(ContainerId),
    /// The operation needs a running container.
    #[error("container {0} is not running")]
    NotRunning(ContainerId),
    /// The operation needs a finished container.
    #[error("container {0} is still running; stop it first")]
    StillRunning(ContainerId),
    /// The shim could not be started.
    #[error(
        "cannot start the shim {command}: {source}; check that this program's file is still there and executable"
    )]
    Shim {
        /// The command line.
        command: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Something took longer than its bound.
    #[error("{what} took longer than {limit:?}; look at {}", look_at.display())]
    Timeout {
        /// What was waited for.
        what: String,
        /// The bound.
        limit: std::time::Duration,
        /// Where the reason may be found.
        look_at: PathBuf,
    },
    /// A state or request file holds what this version cannot read.
    #[error("cannot read {}: {detail}; it was written by another version or is damaged", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A state file has a format that this version does not read.
    #[error(
        "{} has format {found}, and this binary reads formats {oldest} to {newest}: {} shim wrote it, and its container \
         may still run; run the agent of that version again, which keeps it running, or let its pods end there first",
        path.display(),
        if found > newest { "a newer muster's" } else { "an older muster's" }
    )]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The oldest format that this version reads.
        oldest: u32,
        /// The newest format that this version reads.
        newest: u32,
    },
    /// An image cannot be had.
    #[error("{reason}: {image}: {detail}")]
    Image {
        /// In one word, as Kubernetes says it: ErrImagePull, ErrImageNeverPull.
        reason: &'static str,
        /// The image.
        image: String,
        /// What the container runtime said.
        detail: String,
    },
    /// A container runtime behind a socket refused or cannot be reached.
    #[error("container runtime at {endpoint}: {action}: {detail}")]
    Cri {
        /// The socket.
        endpoint: String,
        /// The call.
        action: String,
        /// What it said.
        detail: String,
    },
}

impl RuntimeError {
    /// An [`RuntimeError::Io`] for `path`, shaped for `map_err`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RuntimeError {
        let path = path.to_path_buf();
        move |source| RuntimeError::Io {
            action,
            path,
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot do it: {0}")]
    struct Because(#[source] io::Error);

    #[test]
    fn a_fault_of_the_node_lasts_unless_the_kernels_answer_may_pass() {
        for (errno, lasts) in [
            (Errno::EPERM, true),
            (Errno::ENOSYS, true),
            (Errno::EINVAL, true),
            (Errno::EAGAIN, false),
            (Errno::EBUSY, false),
            (Errno::ENOMEM, false),
        ] {
            let of_file = || io::Error::from(errno);
            for fault in [
                StartFault::node(errno),
                StartFault::node(of_file()),
                StartFault::node(Because(of_file())),
            ] {
                assert_eq!(matches!(fault, StartFault::Node(_)), lasts, "{fault:?}");
            }
        }
    }
}
