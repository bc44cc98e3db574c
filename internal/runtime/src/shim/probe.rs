//! The stage that tries what this machine allows and prints the answer as JSON. Owns the
//! trying of namespaces and of the isolation of containers; cgroups are tried by the agent itself.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, geteuid};

use super::start::isolate;
use super::{privileges, seccomp};
use crate::capabilities::{ProbeReply, Support};
use crate::error::StartFault;
use crate::mounts::apply::{hide_device, try_read_only_host};
use crate::mounts::kernel;
use crate::spec::{Isolation, ProcessUser};

/// The user id that the trial takes. Most systems give it to no account, and no file belongs to it.
const TRIAL_USER: u32 = 65_533;
/// Longest reason read from the trial.
const MAX_REASON: u64 = 4096;

/// Runs the stage.
pub fn run() -> ExitCode {
    // In a process of its own, for each trial changes the process that makes it.
    let isolation = match geteuid().is_root() {
        true => apart(hold),
        false => Support::No(
            "the agent is not root: pods run as its own user and see its files and processes; run it as root"
                .into(),
        ),
    };
    let read_only_host = match geteuid().is_root() {
        true => match in_a_process(hold_host) {
            Support::Yes(_) => Support::Yes("mount_setattr".into()),
            no => no,
        },
        false => Support::No("the agent is not root: pods write where its own user may".into()),
    };
    let tried = isolate(false).and_then(|()| Ok(hide_device(Path::new("/dev/null"))?));
    let namespaces = match tried {
        Ok(()) if geteuid().is_root() => Support::Yes("mount, UTS and IPC namespaces".into()),
        Ok(()) => Support::Yes("mount, UTS and IPC namespaces inside a user namespace".into()),
        Err(reason) => Support::No(reason.to_string()),
    };
    let answer = ProbeReply {
        namespaces,
        isolation,
        read_only_host,
    };
    match serde_json::to_string(&answer) {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that holds a container, one after the other; the first refusal.
fn hold() -> Result<(), StartFault> {
    isolate(true).map_err(StartFault::node)?;
    // What follows is tried by a process of the new namespace.
    match in_a_process(|| {
        kernel::own_proc()?;
        let isolation = Isolation {
            own_processes: true,
            seccomp: true,
            ..Isolation::default()
        };
        let user = ProcessUser {
            uid: Some(TRIAL_USER),
            gid: Some(TRIAL_USER),
            groups: Vec::new(),
        };
        let identity = privileges::look_up(&user)?;
        privileges::give_up(identity.as_ref(), Some(&isolation))?;
        seccomp::install().map_err(StartFault::node)
    }) {
        Support::Yes(_) => Ok(()),
        Support::No(why) => Err(StartFault::Node(why)),
    }
}

/// Tries to make the host read-only for this process.
fn hold_host() -> Result<(), StartFault> {
    isolate(false).map_err(StartFault::node)?;
    Ok(try_read_only_host()?)
}

fn apart(trial: fn() -> Result<(), StartFault>) -> Support {
    match in_a_process(trial) {
        Support::Yes(_) => Support::Yes(
            "user, process, mount, UTS and IPC namespaces, capabilities, no_new_privs, seccomp"
                .into(),
        ),
        Support::No(why) => Support::No(format!(
            "{why}; run the agent as root with CAP_SYS_ADMIN, outside of containers that forbid mounts and namespaces"
        )),
    }
}

/// Tries something in a child process, which says why it fails through a pipe.
fn in_a_process(trial: impl FnOnce() -> Result<(), StartFault>) -> Support {
    let (reader, mut writer) = match io::pipe() {
        Ok(pipe) => pipe,
        Err(e) => return Support::No(format!("cannot make a pipe: {e}")),
    };
    // SAFETY: this process has one thread.
    match unsafe { fork() } {
        Err(e) => Support::No(format!("cannot start a process: {e}")),
        Ok(ForkResult::Child) => {
            drop(reader);
            let code = match trial() {
                Ok(()) => 0,
                Err(why) => {
                    let _ = writer.write_all(why.to_string().as_bytes());
                    1
                }
            };
            std::process::exit(code)
        }
        Ok(ForkResult::Parent { child }) => {
            drop(writer);
            let mut why = String::new();
            let _ = reader.take(MAX_REASON).read_to_string(&mut why);
            match waitpid(child, None) {
                Ok(WaitStatus::Exited(_, 0)) => Support::Yes(String::new()),
                ended if why.is_empty() => Support::No(format!("the trial ended: {ended:?}")),
                _ => Support::No(why),
            }
        }
    }
}
