//! The stage that becomes the container: it moves itself into the cgroup and namespaces,
//! mounts the volumes, takes the user, and is replaced by the command. Owns the order of
//! these steps.
//!
//! It tells its parent through the pipe on its standard input: a line `note TEXT` for each
//! thing done without, a line `error TEXT` if it could not become the container. The pipe
//! closes at the moment the command takes over.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, Signal};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{
    Gid, Uid, chdir, fchown, geteuid, getgrouplist, getgroups, getppid, setgroups, sethostname,
    setresgid, setresuid, setsid,
};

use crate::mounts::apply;
use crate::spec::{ContainerSpec, Mount, User};
use crate::state::{SPEC_FILE, STATE_FILE, StateFile, load};

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
    let fault = become_container(dir, parent, &mut report);
    let _ = writeln!(report, "error {}", fault.replace('\n', " "));
    ExitCode::from(127)
}

/// A container begins with every signal let through and none ignored: the shim that it
/// comes from blocks those that it reads itself, and whoever started the agent (nohup, a
/// script's `&`) may have had some ignored, both of which the exec would hand on.
fn default_signals() {
    let _ = SigSet::empty().thread_set_mask();
    for signal in Signal::iterator() {
        // Safety: no handler is set, and nothing in this process relies on one.
        let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
    }
}

/// Does not return if all goes well; the error is for the container's status.
fn become_container(dir: &Path, parent: nix::unistd::Pid, report: &mut File) -> String {
    match prepare(dir, parent, report) {
        Err(fault) => fault,
        Ok(mut command) => {
            let program = command.get_program().to_string_lossy().into_owned();
            let error = command.exec();
            match error.kind() {
                io::ErrorKind::NotFound => format!(
                    "exec: {program:?}: not found on this node (looked in the container's PATH)"
                ),
                _ => format!("exec: {program:?}: {error}"),
            }
        }
    }
}

fn prepare(dir: &Path, parent: nix::unistd::Pid, report: &mut File) -> Result<Command, String> {
    let spec: ContainerSpec = load(dir, SPEC_FILE)
        .map_err(|e| e.to_string())?
        .ok_or("the container's description is gone")?;
    let state: StateFile = load(dir, STATE_FILE)
        .map_err(|e| e.to_string())?
        .ok_or("the container's state is gone")?;
    let mut note = |text: String| {
        let _ = writeln!(report, "note {}", text.replace('\n', " "));
    };
    state
        .cgroup
        .join(std::process::id())
        .unwrap_or_else(|e| note(format!("limits are not enforced: {e}")));
    setsid().map_err(|e| format!("cannot start a session: {e}"))?;
    if let Some(adjust) = spec.oom_score_adj
        && let Err(e) = fs::write("/proc/self/oom_score_adj", adjust.to_string())
    {
        note(format!("oom_score_adj {adjust} is not set: {e}"));
    }
    umask(Mode::from_bits_truncate(0o022));
    match isolate() {
        Ok(()) => view(dir, &spec, &mut note)?,
        Err(reason) if spec.mounts.is_empty() => {
            note(format!(
                "it sees the node's own files and host name: {reason}"
            ));
        }
        Err(reason) => return Err(format!("volumes cannot be mounted on this node: {reason}")),
    }
    raise(Resource::RLIMIT_NOFILE, MAX_OPEN_FILES);
    // RDMA registers memory with the card, which counts as locked.
    raise(Resource::RLIMIT_MEMLOCK, rlim_t::MAX);
    take_user(&spec.user)?;
    // After the change of user, which would undo it. The parent may have died before.
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|e| format!("cannot tie it to its shim: {e}"))?;
    if getppid() != parent {
        return Err("the shim died".into());
    }
    let cwd = spec.cwd.as_deref().unwrap_or(Path::new("/"));
    chdir(cwd).map_err(|e| format!("working directory {}: {e}", cwd.display()))?;
    command_of(&spec)
}

/// The container's command with its environment and no input.
fn command_of(spec: &ContainerSpec) -> Result<Command, String> {
    let mut words = spec.command.iter().chain(&spec.args);
    let program = words.next().ok_or("there is no command")?;
    let mut command = Command::new(program);
    command
        .args(words)
        .env_clear()
        .envs(spec.env.iter().map(|(k, v)| (k, v)))
        .stdin(Stdio::null());
    Ok(command)
}

/// Gives this process namespaces of its own; without root, inside a user namespace.
pub fn isolate() -> Result<(), String> {
    let own = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC;
    if geteuid().is_root() {
        unshare(own).map_err(|e| format!("new namespaces are refused: {e}"))?;
    } else {
        let (uid, gid) = (geteuid(), nix::unistd::getegid());
        unshare(own | CloneFlags::CLONE_NEWUSER)
            .map_err(|e| format!("not root, and user namespaces are refused: {e}"))?;
        let map = |file: &str, text: String| {
            fs::write(file, text).map_err(|e| format!("not root, and {file} is refused: {e}"))
        };
        map("/proc/self/setgroups", "deny".into())?;
        map("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        map("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    apply::detach()
}

/// Host name, hosts file, volumes, devices.
fn view(dir: &Path, spec: &ContainerSpec, note: &mut impl FnMut(String)) -> Result<(), String> {
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
    if let Some(hostname) = &spec.hostname {
        let file = dir.join(HOSTNAME_FILE);
        fs::write(&file, format!("{hostname}\n"))
            .map_err(|e| format!("cannot write {}: {e}", file.display()))?;
        over(&file, "/etc/hostname");
        sethostname(hostname).map_err(|e| format!("cannot set the host name: {e}"))?;
    }
    let staging = dir.join(STAGING);
    fs::create_dir_all(&staging).map_err(|e| format!("cannot make {}: {e}", staging.display()))?;
    apply::apply(&mounts, &staging)?;
    for device in &spec.devices.denied {
        if let Err(reason) = apply::hide_device(device) {
            note(format!("{} is not hidden: {reason}", device.display()));
        }
    }
    Ok(())
}

/// Raises a limit as far as permitted.
fn raise(resource: Resource, wanted: rlim_t) {
    if setrlimit(resource, wanted, wanted).is_err()
        && let Ok((_, hard)) = getrlimit(resource)
    {
        let _ = setrlimit(resource, hard, hard);
    }
}

/// Becomes the user asked for.
pub fn take_user(user: &User) -> Result<(), String> {
    let me = geteuid();
    let Some(uid) = user
        .uid
        .map(Uid::from_raw)
        .or_else(|| (user.gid.is_some() || !user.groups.is_empty()).then_some(me))
    else {
        return Ok(());
    };
    let known = nix::unistd::User::from_uid(uid).ok().flatten();
    let gid = match (user.gid, &known) {
        (Some(gid), _) => Gid::from_raw(gid),
        (None, Some(known)) => known.gid,
        (None, None) => Gid::from_raw(uid.as_raw()),
    };
    if !me.is_root() {
        if uid == me
            && user.groups.is_empty()
            && user
                .gid
                .is_none_or(|gid| gid == nix::unistd::getegid().as_raw())
        {
            return Ok(());
        }
        return Err(format!(
            "cannot run as user {uid}: the agent runs as user {me}, and only root can change users"
        ));
    }
    let mut groups = known
        .and_then(|known| CString::new(known.name).ok())
        .and_then(|name| getgrouplist(&name, gid).ok())
        .unwrap_or_else(|| vec![gid]);
    groups.extend(user.groups.iter().copied().map(Gid::from_raw));
    groups.sort_unstable_by_key(|gid| gid.as_raw());
    groups.dedup();
    let refused = |what: &str, e: nix::errno::Errno| format!("cannot take {what} {uid}:{gid}: {e}");
    // /dev/stdout of a process is the pipe's file: opening it again asks for permission.
    let _ = fchown(io::stdout(), Some(uid), None);
    let _ = fchown(io::stderr(), Some(uid), None);
    if getgroups().map_or(true, |mine| mine != groups) {
        setgroups(&groups).map_err(|e| refused("the groups of", e))?;
    }
    setresgid(gid, gid, gid).map_err(|e| refused("group", e))?;
    setresuid(uid, uid, uid).map_err(|e| refused("user", e))
}
