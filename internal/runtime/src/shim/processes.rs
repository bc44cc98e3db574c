//! A container's process namespace: how the starting stage gets into a new one, and the process
//! that is its init. Owns what runs as number 1 there.
//!
//! The starting stage makes two processes, both of them children of the shim (`CLONE_PARENT`), and
//! ends. The first is the namespace's init: it reaps orphans and does nothing else; it carries
//! none of the container's outputs and is in none of its cgroups. When it ends the kernel kills
//! all that is in the namespace, and it ends with the shim, or by the shim once the container is
//! over. The second becomes the container. It is not number 1 itself, for the kernel keeps signals
//! without a handler from number 1, and a command that knows nothing of SIGTERM could not be
//! stopped.

use std::fs::File;
use std::io::{self, Read, Write};
use std::num::TryFromIntError;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, dup2_stderr, dup2_stdin, dup2_stdout};

use super::privileges;
use crate::error::StartFault;

/// Why there is no process in a new process namespace.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProcessError {
    #[error("cannot make a pipe: {0}")]
    Pipe(#[source] io::Error),
    #[error("the process that starts the container was ended")]
    Ended,
    #[error("the number of the container's process was not reported: {0}")]
    NotReported(#[source] io::Error),
    #[error("{what}: {source}")]
    Number {
        what: &'static str,
        source: TryFromIntError,
    },
    #[error("cannot make {what}: {source}")]
    Make {
        what: &'static str,
        source: io::Error,
    },
}

/// A process that ended meanwhile, for instance because the container is stopped while it starts,
/// says nothing lasting about the node.
impl From<ProcessError> for StartFault {
    fn from(error: ProcessError) -> StartFault {
        match error {
            ProcessError::Ended | ProcessError::NotReported(_) => {
                StartFault::Busy(error.to_string())
            }
            other => StartFault::node(other),
        }
    }
}

/// On which side of the new namespace the caller goes on.
pub(super) enum NamespaceSide {
    /// Outside: the container is another process, whose number the shim has received.
    Outside,
    /// Inside: it is the process that becomes the container.
    Inside,
}

/// Splits the caller, which has asked for a new process namespace, into a process inside and
/// itself. The shim receives the number of the process inside by the line `process PID`.
pub(super) fn enter(report: &mut File) -> Result<NamespaceSide, ProcessError> {
    if fork_for_parent("the container's init")?.is_none() {
        init(report);
    }
    let (mut wait, mut go) = io::pipe().map_err(ProcessError::Pipe)?;
    let Some(pid) = fork_for_parent("the container's process")? else {
        drop(go);
        let mut word = [0];
        return match wait.read(&mut word) {
            Ok(1) => Ok(NamespaceSide::Inside),
            _ => Err(ProcessError::Ended),
        };
    };
    drop(wait);
    // In one piece: half a number would be another process's.
    let reported = report.write_all(format!("process {pid}\n").as_bytes());
    reported
        .and_then(|()| go.write_all(b"."))
        .map_err(ProcessError::NotReported)?;
    Ok(NamespaceSide::Outside)
}

/// Makes a process that is a child of this one's parent; nothing in the new process.
fn fork_for_parent(what: &'static str) -> Result<Option<Pid>, ProcessError> {
    let flags = libc::c_long::from(libc::CLONE_PARENT | libc::SIGCHLD);
    let none: libc::c_long = 0;
    // SAFETY: like fork: a copy of this process, which has one thread, on a copy of its stack.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) };
    match pid {
        0 => Ok(None),
        pid if pid > 0 => {
            let pid = i32::try_from(pid).map_err(|source| ProcessError::Number { what, source })?;
            Ok(Some(Pid::from_raw(pid)))
        }
        _ => Err(ProcessError::Make {
            what,
            source: io::Error::last_os_error(),
        }),
    }
}

/// The namespace's first process: reaps what its parents left, until it is killed.
fn init(report: &mut File) -> ! {
    let tied = prctl::set_pdeathsig(Signal::SIGKILL).is_ok();
    // If the pipe has no reader, the shim is gone already.
    if !tied || report.write_all(b"init\n").is_err() {
        std::process::exit(1);
    }
    // Or the ends of the container's outputs and of the report would never be seen.
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = dup2_stdin(&null);
        let _ = dup2_stdout(&null);
        let _ = dup2_stderr(&null);
    }
    // SAFETY: this function does not return, so nothing uses the file after it.
    unsafe { libc::close(report.as_raw_fd()) };
    let _ = prctl::set_name(c"muster-init");
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGCHLD);
    let blocked = ends.thread_block().is_ok();
    // It needs none, and it is the one process here that is root's.
    if !blocked || privileges::drop_all().is_err() {
        std::process::exit(1);
    }
    loop {
        while !matches!(
            waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)),
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD)
        ) {}
        let _ = ends.wait();
    }
}
