//! The stage that runs one more command in a running container: it joins the container's
//! cgroup and namespaces and is replaced by the command. Owns the request's format.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use nix::sched::{CloneFlags, setns};
use nix::unistd::{chdir, geteuid};
use serde::{Deserialize, Serialize};

use super::start::take_user;
use crate::spec::ContainerSpec;
use crate::state::{ContainerState, SPEC_FILE, STATE_FILE, StateFile, load};

/// Exit code when the command could not be run at all.
pub const CANNOT_EXEC: u8 = 126;
/// Longest request read.
const MAX_REQUEST: u64 = 1024 * 1024;

/// What arrives on standard input, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// The program and its arguments.
    pub command: Vec<String>,
}

/// Runs the stage; returns only on failure.
pub fn run(dir: &Path) -> ExitCode {
    eprintln!("exec: {}", enter(dir));
    ExitCode::from(CANNOT_EXEC)
}

fn enter(dir: &Path) -> String {
    let mut command = match prepare(dir) {
        Ok(command) => command,
        Err(fault) => return fault,
    };
    let program = command.get_program().to_string_lossy().into_owned();
    format!("{program:?}: {}", command.exec())
}

fn prepare(dir: &Path) -> Result<Command, String> {
    let mut text = String::new();
    io::stdin()
        .take(MAX_REQUEST)
        .read_to_string(&mut text)
        .map_err(|e| e.to_string())?;
    let request: Request =
        serde_json::from_str(&text).map_err(|e| format!("not a request: {e}"))?;
    let (program, arguments) = request.command.split_first().ok_or("there is no command")?;
    let spec: ContainerSpec = load(dir, SPEC_FILE)
        .map_err(|e| e.to_string())?
        .ok_or("no such container")?;
    let state: StateFile = load(dir, STATE_FILE)
        .map_err(|e| e.to_string())?
        .ok_or("the container is not running")?;
    let ContainerState::Running { process, .. } = state.state else {
        return Err("the container is not running".into());
    };
    let space = |name: &str| {
        let path = format!("/proc/{}/ns/{name}", process.pid);
        File::open(&path).map_err(|e| format!("{path}: {e}"))
    };
    let (user, mnt, uts, ipc) = (space("user")?, space("mnt")?, space("uts")?, space("ipc")?);
    // Opened first, then checked: these are surely that process's own.
    if !process.is_alive() {
        return Err("the container is not running".into());
    }
    state.cgroup.join(std::process::id())?;
    let join = |fd: &File, flag: CloneFlags| {
        setns(fd, flag).map_err(|e| format!("cannot join its namespaces: {e}"))
    };
    if !geteuid().is_root() {
        join(&user, CloneFlags::CLONE_NEWUSER)?;
    }
    join(&ipc, CloneFlags::CLONE_NEWIPC)?;
    join(&uts, CloneFlags::CLONE_NEWUTS)?;
    join(&mnt, CloneFlags::CLONE_NEWNS)?;
    take_user(&spec.user)?;
    let cwd = spec.cwd.as_deref().unwrap_or(Path::new("/"));
    chdir(cwd).map_err(|e| format!("working directory {}: {e}", cwd.display()))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(spec.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null());
    Ok(command)
}
