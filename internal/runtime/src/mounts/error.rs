//! Why a container's volumes are not mounted, with the operation, the path and the kernel's answer.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::plan::PlanError;
use crate::error::StartFault;

/// Why what a path below a directory leads to can't be had.
#[derive(Debug, thiserror::Error)]
pub enum BeneathError {
    /// A link in the path leads out of the directory.
    #[error("it leads out of the volume")]
    Outside,
    /// No mount of the container's own lies above the path.
    #[error("no mount above it is private to the container")]
    NothingAbove,
    /// A system call failed.
    #[error("{0}")]
    Call(#[source] Errno),
    /// A file operation failed.
    #[error("{0}")]
    Io(#[source] io::Error),
}

impl From<Errno> for BeneathError {
    fn from(errno: Errno) -> BeneathError {
        match errno {
            Errno::EXDEV => BeneathError::Outside,
            other => BeneathError::Call(other),
        }
    }
}

/// Why something is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The volumes can't be mounted together, or not on this node.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Call {
        /// What was being done, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The kernel's answer.
        source: Errno,
    },
    /// What is seen at a path can't be opened.
    #[error("cannot open {}: {reason}", path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// Why not.
        reason: BeneathError,
    },
    /// A volume can't be mounted.
    #[error("volume at {}: {reason}", target.display())]
    Volume {
        /// Where it is to be seen.
        target: PathBuf,
        /// Why not.
        reason: Box<MountError>,
    },
    /// A mount point can't be made.
    #[error("cannot make the mount point {}: {reason}", path.display())]
    Point {
        /// The mount point.
        path: PathBuf,
        /// Why not.
        reason: BeneathError,
    },
    /// The container's own processes moved a mount point meanwhile.
    #[error("{} was moved while something was mounted there", .0.display())]
    Moved(PathBuf),
    /// The table of this process's mounts can't be read.
    #[error("cannot read the mount table: {0}")]
    Table(#[source] io::Error),
    /// What the kernel says of an open file can't be read.
    #[error("{path}: {source}")]
    FileInfo {
        /// The file in `/proc` that says it.
        path: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel does not say through which mount an open file was reached.
    #[error("{0} names no mount")]
    NoMount(String),
    /// A volume's source can't be opened.
    #[error("cannot mount {} at {}: {source}", path.display(), target.display())]
    Source {
        /// The source.
        path: PathBuf,
        /// Where it is to be seen.
        target: PathBuf,
        /// The kernel's answer.
        source: Errno,
    },
    /// A part of a volume's source can't be opened or made.
    #[error("cannot mount subPath {sub} of {} at {}: {reason}", path.display(), target.display())]
    SubPath {
        /// The part.
        sub: String,
        /// The source.
        path: PathBuf,
        /// Where it is to be seen.
        target: PathBuf,
        /// Why not.
        reason: BeneathError,
    },
    /// The directory that a path is to be found below can't be opened.
    #[error("{}: {source}", path.display())]
    Base {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: Errno,
    },
    /// What a path leads to can't be had.
    #[error(transparent)]
    Beneath(#[from] BeneathError),
    /// A volume's source was not opened before.
    #[error("{} was not opened", .0.display())]
    NotOpened(PathBuf),
    /// Mounts made here would reach the node.
    #[error("cannot make the mount tree private: {0}")]
    Private(#[source] Errno),
    /// A bind stays a peer of what it shows.
    #[error("cannot make {} private: {source}", path.display())]
    Peer {
        /// Where the bind is.
        path: PathBuf,
        /// The kernel's answer.
        source: Errno,
    },
    /// A volume's mounts can't be copied before the host's become read-only.
    #[error("cannot copy a volume's mounts: {0}")]
    CopyVolume(#[source] Errno),
    /// The copy of a volume's mounts can't be mounted.
    #[error("cannot mount it: {0}")]
    Copy(#[source] Errno),
    /// The host's mounts can't be made read-only for the container.
    #[error(
        "cannot make the host's mounts read-only: {0} (mount_setattr needs Linux 5.12; start the agent with --host-files as-permitted to do without)"
    )]
    ReadOnlyHost(#[source] Errno),
    /// A trial found that mounts can't be copied.
    #[error("cannot copy mounts: {0} (open_tree needs Linux 5.2)")]
    NoCopies(#[source] Errno),
    /// The container gets no `/proc` of its own.
    #[error("cannot mount a /proc of its own: {0}")]
    OwnProc(#[source] Errno),
    /// The mounts below `/sys` are not known.
    #[error("/sys is not read-only: {0}")]
    Sys(#[source] io::Error),
}

impl MountError {
    /// A [`MountError::Io`], shaped for `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MountError {
        move |source| MountError::Io {
            action,
            path: path.to_path_buf(),
            source,
        }
    }

    /// A [`MountError::Call`], shaped for `map_err`.
    pub(super) fn call(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> MountError {
        move |source| MountError::Call {
            action,
            path: path.to_path_buf(),
            source,
        }
    }
}

/// The volumes are the container's own matter; showing it the host read-only is the node's.
impl From<MountError> for StartFault {
    fn from(error: MountError) -> StartFault {
        match error {
            MountError::CopyVolume(_) | MountError::ReadOnlyHost(_) | MountError::NoCopies(_) => {
                StartFault::node(error)
            }
            other => StartFault::container(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_cannot_be_made_read_only_is_the_nodes_fault_and_a_volume_the_containers() {
        for error in [
            MountError::CopyVolume(Errno::ENOSYS),
            MountError::ReadOnlyHost(Errno::ENOSYS),
        ] {
            let fault = StartFault::from(error);
            assert!(matches!(fault, StartFault::Node(_)), "{fault:?}");
        }
        let fault = StartFault::from(MountError::CopyVolume(Errno::ENOMEM));
        assert!(matches!(fault, StartFault::Busy(_)), "{fault:?}");
        let volume = MountError::Volume {
            target: "/data".into(),
            reason: Box::new(MountError::Copy(Errno::EINVAL)),
        };
        let text = format!("volume at /data: cannot mount it: {}", Errno::EINVAL);
        assert_eq!(StartFault::from(volume), StartFault::Container(text));
    }
}
