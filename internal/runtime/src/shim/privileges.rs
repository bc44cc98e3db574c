//! Giving up privileges, in the process that is about to become a container: open files, user and
//! groups, capabilities, `no_new_privs`. Owns the order of these steps; the system call filter comes
//! last and is [`super::seccomp`]'s.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::RawFd;

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::unistd::{
    Gid, Uid, fchown, geteuid, getgrouplist, getgroups, setgroups, setresgid, setresuid,
};

use crate::error::StartFault;
use crate::spec::{Isolation, ProcessUser};

/// Why privileges are not given up.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    #[error(
        "cannot run as user {uid}: the agent runs as user {me}, and only root can change users"
    )]
    NotRoot { uid: Uid, me: Uid },
    #[error("cannot keep open files from the container: {0}")]
    Files(#[source] io::Error),
    #[error("capability {0:?} is not known; use names like NET_ADMIN")]
    UnknownCapability(String),
    #[error("cannot read this process's capabilities: {0}")]
    Read(#[source] CapsError),
    #[error("cannot drop capabilities: {0}")]
    Drop(#[source] CapsError),
    #[error("cannot keep capabilities: {0}")]
    Keep(#[source] Errno),
    #[error("cannot set no_new_privs: {0}")]
    NoNewPrivs(#[source] Errno),
    #[error("cannot take {what} {uid}:{gid}: {source}")]
    Take {
        what: &'static str,
        uid: Uid,
        gid: Gid,
        source: Errno,
    },
}

/// Who a container runs as is its own matter.
impl From<PrivilegeError> for StartFault {
    fn from(error: PrivilegeError) -> StartFault {
        StartFault::container(error)
    }
}

/// A user of the node with its groups, as the node's database has it.
pub struct NodeUser {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

/// Looks up the user that a container runs as; `None` if that is the caller's own user.
///
/// Call it before the container's volumes are mounted: the C library reads `/etc/passwd` and
/// `/etc/group` and loads libraries for it, as root, and a volume may lie in the place of each.
pub fn look_up(user: &ProcessUser) -> Result<Option<NodeUser>, PrivilegeError> {
    let me = geteuid();
    let Some(uid) = user
        .uid
        .map(Uid::from_raw)
        .or_else(|| (user.gid.is_some() || !user.groups.is_empty()).then_some(me))
    else {
        return Ok(None);
    };
    if !me.is_root() {
        if uid == me
            && user.groups.is_empty()
            && user
                .gid
                .is_none_or(|gid| gid == nix::unistd::getegid().as_raw())
        {
            return Ok(None);
        }
        return Err(PrivilegeError::NotRoot { uid, me });
    }
    let known = nix::unistd::User::from_uid(uid).ok().flatten();
    let gid = match (user.gid, &known) {
        (Some(gid), _) => Gid::from_raw(gid),
        (None, Some(known)) => known.gid,
        (None, None) => Gid::from_raw(uid.as_raw()),
    };
    let mut groups = known
        .and_then(|known| CString::new(known.name).ok())
        .and_then(|name| getgrouplist(&name, gid).ok())
        .unwrap_or_else(|| vec![gid]);
    groups.extend(user.groups.iter().copied().map(Gid::from_raw));
    groups.sort_unstable_by_key(|gid| gid.as_raw());
    groups.dedup();
    Ok(Some(NodeUser { uid, gid, groups }))
}

/// Closes every open file but the three standard ones when the command that follows is executed: the
/// agent may have inherited some, and an open directory would show the command the whole node.
pub fn keep_files() -> Result<(), PrivilegeError> {
    let refused = PrivilegeError::Files;
    for entry in fs::read_dir("/proc/self/fd").map_err(refused)? {
        let name = entry.map_err(refused)?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<RawFd>().ok());
        let Some(file) = number.filter(|file| *file > libc::STDERR_FILENO) else {
            continue;
        };
        // SAFETY: it changes a flag of an open file and no memory.
        if unsafe { libc::fcntl(file, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
            return Err(refused(io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// Becomes the user that was looked up, with the capabilities that the isolation leaves it and no
/// way to more. Without an isolation only the user changes.
pub fn give_up(
    identity: Option<&NodeUser>,
    isolation: Option<&Isolation>,
) -> Result<(), StartFault> {
    let Some(isolation) = isolation else {
        return Ok(take_user(identity)?);
    };
    if geteuid().is_root() {
        let kept = permitted(named(&isolation.capabilities)?).map_err(StartFault::node)?;
        bound(&kept).map_err(StartFault::node)?;
        // The change of user would take those away, too, that are to stay.
        prctl::set_keepcaps(!kept.is_empty())
            .map_err(|e| StartFault::node(PrivilegeError::Keep(e)))?;
        take_user(identity).map_err(StartFault::node)?;
        keep(&kept).map_err(StartFault::node)?;
    } else {
        take_user(identity)?;
    }
    prctl::set_no_new_privs().map_err(|e| StartFault::node(PrivilegeError::NoNewPrivs(e)))
}

/// Drops every capability of this process and keeps its user.
pub fn drop_all() -> Result<(), PrivilegeError> {
    let none = CapsHashSet::new();
    bound(&none)?;
    keep(&none)
}

fn named(names: &[String]) -> Result<CapsHashSet, PrivilegeError> {
    if names.iter().any(|name| name == "ALL") {
        return Ok(caps::all());
    }
    let read = |name: &String| {
        caps::to_canonical(name)
            .parse::<Capability>()
            .map_err(|_| PrivilegeError::UnknownCapability(name.clone()))
    };
    names.iter().map(read).collect()
}

/// Those of them that this process has: an agent in a container has not all.
fn permitted(asked: CapsHashSet) -> Result<CapsHashSet, PrivilegeError> {
    let had = caps::read(None, CapSet::Permitted).map_err(PrivilegeError::Read)?;
    Ok(asked.intersection(&had).copied().collect())
}

/// Takes all but these out of the bounding set.
fn bound(kept: &CapsHashSet) -> Result<(), PrivilegeError> {
    let refused = PrivilegeError::Drop;
    let all = caps::read(None, CapSet::Bounding).map_err(refused)?;
    for capability in all.difference(kept) {
        caps::drop(None, CapSet::Bounding, *capability).map_err(refused)?;
    }
    Ok(())
}

/// Leaves these alone in the other sets. A user that is not root has them by the ambient set: a
/// program's own file names none.
fn keep(kept: &CapsHashSet) -> Result<(), PrivilegeError> {
    let refused = PrivilegeError::Drop;
    for set in [CapSet::Effective, CapSet::Inheritable, CapSet::Permitted] {
        caps::set(None, set, kept).map_err(refused)?;
    }
    if geteuid().is_root() {
        return Ok(());
    }
    caps::set(None, CapSet::Ambient, kept).map_err(refused)
}

/// Becomes the user that was looked up.
fn take_user(identity: Option<&NodeUser>) -> Result<(), PrivilegeError> {
    let Some(NodeUser { uid, gid, groups }) = identity else {
        return Ok(());
    };
    let (uid, gid) = (*uid, *gid);
    let refused = |what: &'static str, source: Errno| PrivilegeError::Take {
        what,
        uid,
        gid,
        source,
    };
    // /dev/stdout of a process is the pipe's file: opening it again asks for permission.
    let _ = fchown(io::stdout(), Some(uid), None);
    let _ = fchown(io::stderr(), Some(uid), None);
    if getgroups().map_or(true, |mine| mine != *groups) {
        setgroups(groups).map_err(|e| refused("the groups of", e))?;
    }
    setresgid(gid, gid, gid).map_err(|e| refused("group", e))?;
    setresuid(uid, uid, uid).map_err(|e| refused("user", e))
}
