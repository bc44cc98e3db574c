//! The stage that becomes the container: it moves itself into the cgroup and namespaces,
//! mounts the volumes, gives up its privileges, and is replaced by the command. Owns the order
//! of these steps; where the container has a process namespace of its own, a process of that
//! namespace takes the steps after the first ([`super::processes`]).
//!
//! It reports to its parent through the pipe on its standard input: a line `note TEXT` for each
//! thing done without; `process PID` if another process becomes the container; `error TEXT` if
//! the container cannot be started, or `unfit TEXT` if that is the node's fault. The pipe closes
//! at the moment the command takes over.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{chdir, geteuid, getppid, sethostname, setsid};

use super::processes::{self, NamespaceSide};
use super::{privileges, seccomp, streams};
use crate::error::StartFault;
use crate::mounts::{MountError, apply, kernel};
use crate::spec::{ContainerSpec, Isolation, Mount};
use crate::state::{SPEC_FILE, StateFile, load, load_state};

/// In a container's directory: where a private root is put together.
pub const STAGING: &str = "root";
/// In a container's directory: what is bound over `/etc/hostname`.
pub const HOSTNAME_FILE: &str = "hostname";
/// Open files a container may have, where the machine permits so many.
const MAX_OPEN_FILES: rlim_t = 1_048_576;

/// Runs the stage; returns only on failure.
pub fn run(dir: &Path) -> ExitCode {
    let mut report = match io::stdin().as_fd().try_clone_to_owned() {
        Ok(fd) => File::from(fd),
        Err(e) => {
            eprintln!("no report pipe: {e}");
            return ExitCode::from(127);
        }
    };
    default_signals();
    // Shim and container share no fate but one: without its shim a container is lost.
    let parent = getppid();
    let fault = match become_container(dir, parent, &mut report) {
        Ok(HandedOver) => return ExitCode::SUCCESS,
        Err(fault) => fault,
    };
    let kind = match &fault {
        StartFault::Container(_) => "error",
        StartFault::Node(_) => "unfit",
        StartFault::Busy(_) => "busy",
    };
    let _ = writeln!(report, "{kind} {}", fault.to_string().replace('\n', " "));
    ExitCode::from(127)
}

/// Another process becomes the container; this one has nothing more to do.
struct HandedOver;

/// Unblocks every signal and restores its default action, because exec keeps both settings: the
/// shim blocks the signals that it reads itself, and the agent's parent (nohup, a script's `&`) may
/// have ignored some.
fn default_signals() {
    let _ = SigSet::empty().thread_set_mask();
    for signal in Signal::iterator() {
        // Safety: no handler is set, and nothing in this process relies on one.
        let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
    }
}

/// Returns only if another process becomes the container, or none can.
fn become_container(
    dir: &Path,
    parent: nix::unistd::Pid,
    report: &mut File,
) -> Result<HandedOver, StartFault> {
    let Some(mut command) = prepare(dir, parent, report)? else {
        return Ok(HandedOver);
    };
    let program = command.get_program().to_string_lossy().into_owned();
    let error = command.exec();
    Err(StartFault::Container(match error.kind() {
        io::ErrorKind::NotFound => {
            format!("exec: {program:?}: not found on this node (looked in the container's PATH)")
        }
        _ => format!("exec: {program:?}: {error}"),
    }))
}

/// Everything but the command itself; nothing in the process that hands over.
fn prepare(
    dir: &Path,
    parent: nix::unistd::Pid,
    report: &mut File,
) -> Result<Option<Command>, StartFault> {
    let spec: ContainerSpec = load(dir, SPEC_FILE)
        .map_err(|e| e.to_string())?
        .ok_or("the container's description no longer exists")?;
    let state: StateFile = load_state(dir)
        .map_err(|e| e.to_string())?
        .ok_or("the container's state no longer exists")?;
    // Before anything of the container's is mounted, in whose place whatever may be.
    let identity = privileges::look_up(&spec.user)?;
    privileges::keep_files().map_err(StartFault::node)?;
    // Before the node's files change: the agent's directory may be hidden then.
    if let Some(file) = &spec.network {
        join_network(file)?;
    }
    // What only root can do for it; an agent of another user's runs it as that user.
    let held = spec.isolation.as_ref().filter(|_| geteuid().is_root());
    let own_processes = held.is_some_and(|held| held.own_processes);
    let isolated = isolate(own_processes);
    if let (Err(reason), Some(_)) = (&isolated, held) {
        return Err(StartFault::of_node(reason));
    }
    if own_processes {
        tie_to(parent)?;
        match processes::enter(report)? {
            NamespaceSide::Outside => return Ok(None),
            NamespaceSide::Inside => {}
        }
    }
    let mut note = |text: String| {
        let _ = writeln!(report, "note {}", text.replace('\n', " "));
    };
    state
        .cgroup
        .join(std::process::id())
        .unwrap_or_else(|e| note(format!("limits are not enforced: {e}")));
    setsid().map_err(|e| format!("cannot start a session: {e}"))?;
    let input = streams::input(&spec).map_err(|e| format!("cannot open the input: {e}"))?;
    if let Err(e) = set_oom_score(spec.oom_score_adj) {
        note(format!("oom_score_adj is not set: {e}"));
    }
    umask(Mode::from_bits_truncate(0o022));
    match isolated {
        Ok(()) => {
            let read_only_host = held.is_some_and(|held| held.read_only_host);
            view(dir, &spec, read_only_host, &mut note)?;
        }
        Err(reason) if spec.mounts.is_empty() => {
            note(format!(
                "it sees the node's own files and host name: {reason}"
            ));
        }
        Err(reason) => {
            return Err(format!("volumes cannot be mounted on this node: {reason}").into());
        }
    }
    if let Some(held) = held {
        confine(held, &spec.mounts, &mut note)?;
    }
    limit(&spec, state.cgroup.dir("pids").is_none());
    privileges::give_up(identity.as_ref(), spec.isolation.as_ref())?;
    // After the change of user, which would undo it. The parent may have died before.
    if own_processes {
        prctl::set_pdeathsig(Signal::SIGKILL)
            .map_err(|e| format!("cannot bind the process to its shim: {e}"))?;
        // The parent is in another namespace and has no number here; with it goes the pipe.
        report
            .write_all(b"tied\n")
            .map_err(|e| format!("the shim died: {e}"))?;
    } else {
        tie_to(parent)?;
    }
    let cwd = spec.cwd.as_deref().unwrap_or(Path::new("/"));
    chdir(cwd).map_err(|e| {
        let user = geteuid();
        format!(
            "working directory {}: {e} (for user {user}; choose one that this user may enter)",
            cwd.display()
        )
    })?;
    let command = command_of(&spec, input)?;
    // Last: the filter refuses most of the above.
    if spec.isolation.as_ref().is_some_and(|it| it.seccomp) {
        seccomp::install().map_err(StartFault::node)?;
    }
    Ok(Some(command))
}

/// Moves this process into the network namespace that is bound to a file.
fn join_network(file: &Path) -> Result<(), StartFault> {
    let joined = File::open(file).and_then(|space| Ok(setns(space, CloneFlags::CLONE_NEWNET)?));
    joined.map_err(|e| format!("cannot join the pod's network {}: {e}", file.display()).into())
}

/// Has the kernel end this process with the shim.
fn tie_to(parent: nix::unistd::Pid) -> Result<(), StartFault> {
    prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|e| format!("cannot bind the process to its shim: {e}"))?;
    if getppid() == parent {
        Ok(())
    } else {
        Err("the shim died".into())
    }
}

/// What a held container sees of the node's own.
fn confine(
    held: &Isolation,
    volumes: &[Mount],
    note: &mut impl FnMut(String),
) -> Result<(), StartFault> {
    if held.own_processes {
        kernel::own_proc().map_err(StartFault::node)?;
    }
    for directory in &held.hidden {
        // Where a volume covers it, the pod's own processes may change what is there meanwhile.
        let covered = (volumes.iter()).any(|volume| directory.starts_with(&volume.target));
        kernel::hide(directory).map_err(|error| match covered {
            true => StartFault::container(error),
            false => StartFault::node(error),
        })?;
    }
    kernel::restrict(note);
    Ok(())
}

/// Sets this process's priority for the kernel's OOM killer to the container's. The shim's own comes from the agent,
/// whose service may be protected by a negative one; a container is not, unless it names such a value itself.
pub(super) fn set_oom_score(named: Option<i32>) -> io::Result<()> {
    const SCORE: &str = "/proc/self/oom_score_adj";
    let inherited = fs::read_to_string(SCORE)?;
    let inherited: i32 = inherited.trim().parse().map_err(io::Error::other)?;
    match changed_oom_score(named, inherited) {
        Some(score) => fs::write(SCORE, score.to_string()),
        None => Ok(()),
    }
}

/// The value to set, if it is another than the inherited one.
fn changed_oom_score(named: Option<i32>, inherited: i32) -> Option<i32> {
    let score = named.unwrap_or(inherited.max(0));
    (score != inherited).then_some(score)
}

/// Sets the limits of resources that are counted for each process or user.
pub(super) fn limit(spec: &ContainerSpec, uncounted: bool) {
    raise(Resource::RLIMIT_NOFILE, MAX_OPEN_FILES);
    let Some(isolation) = &spec.isolation else {
        // RDMA registers memory with the card, which counts as locked.
        raise(Resource::RLIMIT_MEMLOCK, rlim_t::MAX);
        return;
    };
    raise(
        Resource::RLIMIT_MEMLOCK,
        isolation.locked_memory.unwrap_or(rlim_t::MAX),
    );
    raise(Resource::RLIMIT_CORE, 0);
    // Without a cgroup that counts its processes those of its user are counted.
    if let Some(most) = spec.limits.pids_max.filter(|_| uncounted) {
        raise(Resource::RLIMIT_NPROC, most);
    }
}

/// The container's command with its environment and input.
fn command_of(spec: &ContainerSpec, input: Stdio) -> Result<Command, StartFault> {
    let mut words = spec.command.iter().chain(&spec.args);
    let program = words.next().ok_or("the container has no command")?;
    let mut command = Command::new(program);
    command
        .args(words)
        .env_clear()
        .envs(spec.env.iter().map(|(k, v)| (k, v)))
        .stdin(input);
    if spec.tty && spec.env.iter().all(|(name, _)| name != "TERM") {
        command.env("TERM", "xterm");
    }
    Ok(command)
}

/// Why this process gets no namespaces of its own.
#[derive(Debug, thiserror::Error)]
pub enum IsolateError {
    /// The kernel makes none for root.
    #[error("new namespaces are refused: {0}")]
    Namespaces(#[source] Errno),
    /// The kernel makes no user namespace for another user.
    #[error("not root, and user namespaces are refused: {0}")]
    UserNamespaces(#[source] Errno),
    /// A user namespace was made, and its users can't be set.
    #[error("not root, and {file} is refused: {source}")]
    Map {
        /// The file that sets them.
        file: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The mounts can't be kept from the node.
    #[error(transparent)]
    Mount(#[from] MountError),
}

/// Gives this process namespaces of its own; without root, inside a user namespace. With
/// `own_processes` those that it makes from now on are in a process namespace of theirs.
pub fn isolate(own_processes: bool) -> Result<(), IsolateError> {
    let mut own = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC;
    own.set(CloneFlags::CLONE_NEWPID, own_processes);
    if geteuid().is_root() {
        unshare(own).map_err(IsolateError::Namespaces)?;
    } else {
        let (uid, gid) = (geteuid(), nix::unistd::getegid());
        unshare(own | CloneFlags::CLONE_NEWUSER).map_err(IsolateError::UserNamespaces)?;
        let map = |file: &'static str, text: String| {
            fs::write(file, text).map_err(|source| IsolateError::Map { file, source })
        };
        map("/proc/self/setgroups", "deny".into())?;
        map("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        map("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    Ok(apply::detach()?)
}

/// Host name, hosts file, volumes, devices.
fn view(
    dir: &Path,
    spec: &ContainerSpec,
    read_only_host: bool,
    note: &mut impl FnMut(String),
) -> Result<(), StartFault> {
    let mut mounts = spec.mounts.clone();
    let mut over = |source: &Path, target: &str| {
        // A volume at the same path is what the user wants to see there.
        if Path::new(target).exists() && mounts.iter().all(|m| m.target != Path::new(target)) {
            mounts.push(Mount::bind(source, target));
        }
    };
    if let Some(hosts) = &spec.hosts_file {
        over(hosts, "/etc/hosts");
    }
    if let Some(file) = &spec.resolv_conf {
        over(file, "/etc/resolv.conf");
    }
    if let Some(hostname) = &spec.hostname {
        let file = dir.join(HOSTNAME_FILE);
        fs::write(&file, format!("{hostname}\n"))
            .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        over(&file, "/etc/hostname");
        sethostname(hostname).map_err(|e| format!("cannot set the host name: {e}"))?;
    }
    let staging = dir.join(STAGING);
    fs::create_dir_all(&staging).map_err(|e| format!("cannot make {}: {e}", staging.display()))?;
    apply::apply(&mounts, &staging, read_only_host)?;
    for device in &spec.devices.denied {
        if let Err(reason) = apply::hide_device(device) {
            note(format!("{} is not hidden: {reason}", device.display()));
        }
    }
    Ok(())
}

/// Sets a limit, or raises it as far as permitted.
fn raise(resource: Resource, wanted: rlim_t) {
    if setrlimit(resource, wanted, wanted).is_err()
        && let Ok((_, hard)) = getrlimit(resource)
    {
        let _ = setrlimit(resource, hard, hard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_inherits_no_protection_and_gets_the_value_that_it_names() {
        for (named, inherited, set) in [
            (None, -900, Some(0)),
            (None, 0, None),
            (None, 200, None),
            (Some(-900), -900, None),
            (Some(-500), -900, Some(-500)),
            (Some(1000), 0, Some(1000)),
        ] {
            assert_eq!(
                changed_oom_score(named, inherited),
                set,
                "{named:?} {inherited}"
            );
        }
    }
}
