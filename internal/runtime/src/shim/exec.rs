//! The stage that runs one more command in a running container: it joins the container's
//! cgroup and namespaces, gives up what the container gave up, and is replaced by the command; in
//! a process namespace it makes a process that is, and ends as that does. Owns the request's
//! format.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, chdir, fork, geteuid, setsid};
use serde::{Deserialize, Serialize};

use super::privileges::PrivilegeError;
use super::seccomp::SeccompError;
use super::start::{limit, set_oom_score};
use super::{privileges, seccomp};
use crate::cgroup::CgroupError;
use crate::error::{RuntimeError, StartFault};
use crate::spec::ContainerSpec;
use crate::state::{ContainerState, SPEC_FILE, StateFile, load, load_state};

/// Exit code when the command could not be run at all.
pub const CANNOT_EXEC: u8 = 126;
/// Longest request read.
const MAX_REQUEST: u64 = 1024 * 1024;
/// The environment variable with the request of a command whose standard input is its own. The command does not see
/// it: its environment is the container's.
pub const REQUEST: &str = "MUSTER_SHIM_EXEC";
/// Longest request in [`REQUEST`], in bytes: the kernel takes 128 KiB in one variable.
pub const REQUEST_BYTES_MAX: usize = 100 * 1024;

/// What arrives as JSON, on standard input or in [`REQUEST`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ExecRequest {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether the standard input is the command's.
    #[serde(default)]
    pub stdin: bool,
    /// Whether the standard streams are a terminal, which becomes the command's own.
    #[serde(default)]
    pub tty: bool,
}

/// Why a command can't be run in a container.
#[derive(Debug, thiserror::Error)]
enum ExecError {
    /// The request can't be read.
    #[error("{0}")]
    Read(#[source] io::Error),
    #[error("not a request: {0}")]
    Request(#[source] serde_json::Error),
    #[error("the container has no command")]
    NoCommand,
    /// The container's own files can't be read.
    #[error(transparent)]
    Files(#[from] RuntimeError),
    #[error("no such container")]
    NoContainer,
    #[error("the container is not running")]
    NotRunning,
    #[error(transparent)]
    Privileges(#[from] PrivilegeError),
    #[error("{path}: {source}")]
    Namespace { path: String, source: io::Error },
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("cannot join its namespaces: {0}")]
    Join(#[source] Errno),
    #[error("cannot start a process: {0}")]
    Fork(#[source] Errno),
    #[error(transparent)]
    Fault(#[from] StartFault),
    #[error("cannot bind the process to its parent: {0}")]
    Tie(#[source] Errno),
    #[error("the terminal is not the command's own: {0}")]
    Terminal(#[source] io::Error),
    #[error("working directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: Errno },
    #[error(transparent)]
    Seccomp(#[from] SeccompError),
}

/// Runs the stage; returns only on failure.
pub fn run(dir: &Path) -> ExitCode {
    eprintln!("exec: {}", enter(dir));
    ExitCode::from(CANNOT_EXEC)
}

fn enter(dir: &Path) -> String {
    let mut command = match prepare(dir) {
        Ok(command) => command,
        Err(fault) => return fault.to_string(),
    };
    let program = command.get_program().to_string_lossy().into_owned();
    format!("{program:?}: {}", command.exec())
}

fn prepare(dir: &Path) -> Result<Command, ExecError> {
    let request = read_request()?;
    let (program, arguments) = request.command.split_first().ok_or(ExecError::NoCommand)?;
    let (has_input, tty) = (request.stdin || request.tty, request.tty);
    let spec: ContainerSpec = load(dir, SPEC_FILE)?.ok_or(ExecError::NoContainer)?;
    let state: StateFile = load_state(dir)?.ok_or(ExecError::NotRunning)?;
    let ContainerState::Running { process, .. } = state.state else {
        return Err(ExecError::NotRunning);
    };
    // Before the container's files are joined, in which anything may be.
    let identity = privileges::look_up(&spec.user)?;
    privileges::keep_files()?;
    let space = |name: &str| {
        let path = format!("/proc/{}/ns/{name}", process.pid);
        File::open(&path).map_err(|source| ExecError::Namespace { path, source })
    };
    let (user, mnt, uts, ipc) = (space("user")?, space("mnt")?, space("uts")?, space("ipc")?);
    let net = spec.network.as_ref().map(|_| space("net")).transpose()?;
    let held = spec.isolation.as_ref().filter(|_| geteuid().is_root());
    let own_processes = held.is_some_and(|held| held.own_processes);
    let pid = own_processes.then(|| space("pid")).transpose()?;
    // Opened first, then checked: these are surely that process's own.
    if !process.is_alive() {
        return Err(ExecError::NotRunning);
    }
    state.cgroup.join(std::process::id())?;
    // As far as it can be set: where it can't, the container has a note of that.
    let _ = set_oom_score(spec.oom_score_adj);
    let join = |fd: &File, flag: CloneFlags| setns(fd, flag).map_err(ExecError::Join);
    if !geteuid().is_root() {
        join(&user, CloneFlags::CLONE_NEWUSER)?;
    }
    if let Some(net) = &net {
        join(net, CloneFlags::CLONE_NEWNET)?;
    }
    join(&ipc, CloneFlags::CLONE_NEWIPC)?;
    join(&uts, CloneFlags::CLONE_NEWUTS)?;
    join(&mnt, CloneFlags::CLONE_NEWNS)?;
    if let Some(pid) = &pid {
        join(pid, CloneFlags::CLONE_NEWPID)?;
        // SAFETY: this process has one thread.
        match unsafe { fork() }.map_err(ExecError::Fork)? {
            ForkResult::Child => {}
            ForkResult::Parent { child } => std::process::exit(end_of(child)),
        }
    }
    if tty {
        // In the container's process namespace: a shell there must see its own number as the terminal's foreground.
        take_terminal()?;
    }
    // As the container's own command has it; the agent's is stricter.
    umask(Mode::from_bits_truncate(0o022));
    limit(&spec, state.cgroup.dir("pids").is_none());
    privileges::give_up(identity.as_ref(), spec.isolation.as_ref())?;
    if own_processes {
        prctl::set_pdeathsig(Signal::SIGKILL).map_err(ExecError::Tie)?;
    }
    let cwd = spec.cwd.as_deref().unwrap_or(Path::new("/"));
    chdir(cwd).map_err(|source| ExecError::Directory {
        path: cwd.to_path_buf(),
        source,
    })?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(spec.env.iter().map(|(k, v)| (k, v)))
        .stdin(if has_input {
            Stdio::inherit()
        } else {
            Stdio::null()
        });
    if tty && spec.env.iter().all(|(name, _)| name != "TERM") {
        command.env("TERM", "xterm");
    }
    if spec.isolation.as_ref().is_some_and(|it| it.seccomp) {
        seccomp::install()?;
    }
    Ok(command)
}

fn read_request() -> Result<ExecRequest, ExecError> {
    let text = match std::env::var(REQUEST) {
        Ok(text) => text,
        Err(_) => {
            let mut text = String::new();
            io::stdin()
                .take(MAX_REQUEST)
                .read_to_string(&mut text)
                .map_err(ExecError::Read)?;
            text
        }
    };
    serde_json::from_str(&text).map_err(ExecError::Request)
}

/// Makes the terminal on the standard streams this process's own, in a session of its own.
fn take_terminal() -> Result<(), ExecError> {
    // Fails only where this process leads its session already.
    let _ = setsid();
    // SAFETY: it changes which terminal this process's session has, and no memory.
    if unsafe { libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) } < 0 {
        return Err(ExecError::Terminal(io::Error::last_os_error()));
    }
    Ok(())
}

/// Waits for the process that runs the command; its exit code, as a shell reports it.
fn end_of(child: Pid) -> i32 {
    loop {
        match waitpid(child, None) {
            Ok(WaitStatus::Exited(_, code)) => return code,
            Ok(WaitStatus::Signaled(_, signal, _)) => return 128 + signal as i32,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return i32::from(CANNOT_EXEC),
        }
    }
}
