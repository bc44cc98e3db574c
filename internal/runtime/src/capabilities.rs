//! What this machine and this user allow: found out by trying, with a reason for each no.
//! Owns the answers and their text; the trying in namespaces is the shim's
//! ([`crate::shim`]), because only a process of its own can try.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cgroup::{Cgroup, HierarchyLayout};
use crate::spec::{DevicePolicy, ResourceLimits};

/// What an administrator does about a node that can't isolate pods ([`Capabilities::unfit`]).
pub const UNFIT_REMEDY: &str = "run the agent as root on the host, or in a container with CAP_SYS_ADMIN and without a \
     seccomp or AppArmor profile (`docker run --privileged`), with Linux 5.12 or later; `muster doctor` tries it again";

/// Whether something works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Support {
    /// It works, in this way.
    Yes(String),
    /// It does not, for this reason.
    No(String),
}

impl Support {
    /// Whether it works.
    pub fn works(&self) -> bool {
        matches!(self, Support::Yes(_))
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Support::Yes(how) => write!(f, "yes ({how})"),
            Support::No(why) => write!(f, "no: {why}"),
        }
    }
}

/// What the shim found out by trying, as JSON on its standard output.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProbeReply {
    /// Mount, UTS and IPC namespaces, and mounts in them.
    pub namespaces: Support,
    /// All that holds a container, as [`crate::spec::Isolation`] describes it, but for what follows.
    pub isolation: Support,
    /// Showing a container the host's files read-only.
    pub read_only_host: Support,
}

/// What containers run as processes get on this machine. Where something is missing they
/// run without it, and their status carries a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// CPU limits and shares.
    pub cpu: Support,
    /// Memory limits, and knowing that one was hit.
    pub memory: Support,
    /// Limits on the number of processes, and killing a container as a whole.
    pub pids: Support,
    /// A view of the file system and a host name of one's own: volumes, hosts files.
    pub namespaces: Support,
    /// Keeping a GPU's device file from containers that were not given it.
    pub devices: Support,
    /// Running as another user.
    pub users: Support,
    /// Holding a container that is not privileged: a user of its own, its own processes, no
    /// capabilities, the system call filter.
    pub isolation: Support,
    /// Showing containers the host's files read-only, so that they write through volumes alone.
    pub read_only_host: Support,
}

impl Capabilities {
    /// Tries cgroups by making one; `tried` is the answer of a shim that tried the rest.
    pub fn probe(layout: &HierarchyLayout, parent: &str, tried: ProbeReply) -> Capabilities {
        let ProbeReply {
            namespaces,
            isolation,
            read_only_host,
        } = tried;
        let limits = ResourceLimits {
            cpu_request_milli: Some(1000),
            cpu_limit_milli: Some(1000),
            memory_limit_bytes: Some(64 << 20),
            pids_max: Some(64),
        };
        let name = format!("probe-{}", std::process::id());
        let (cgroup, notes) =
            Cgroup::create(layout, parent, &name, &limits, &DevicePolicy::default());
        let version = match cgroup {
            Cgroup::V2(_) => "cgroup version 2",
            _ => "cgroup version 1",
        };
        let bounded = |prefix: &str| match notes.iter().find(|note| note.contains(prefix)) {
            Some(note) => Support::No(note.clone()),
            None if cgroup == Cgroup::None => Support::No(
                notes
                    .first()
                    .cloned()
                    .unwrap_or_else(|| "no cgroups".into()),
            ),
            None => Support::Yes(version.into()),
        };
        let (cpu, memory, pids) = (bounded("cpu."), bounded("memory."), bounded("pids."));
        let devices = match (cgroup.dir("devices"), &cgroup) {
            (Some(_), Cgroup::V1(_)) => Support::Yes("devices cgroup".into()),
            _ if namespaces.works() => {
                Support::Yes("nodev mounts only: a root process inside can undo them; the devices cgroup of version 1 is not here".into())
            }
            _ => Support::No("no devices cgroup (version 1) and no namespaces".into()),
        };
        cgroup.remove();
        let users = if nix::unistd::geteuid().is_root() {
            Support::Yes("root".into())
        } else {
            Support::No("not root: containers run as this user".into())
        };
        Capabilities {
            cpu,
            memory,
            pids,
            namespaces,
            devices,
            users,
            isolation,
            read_only_host,
        }
    }

    /// Why a container that is to be held can't be started here, where the host's files are to be
    /// read-only for it or not; nothing where it can, and where the agent is not root and holds none.
    pub fn unfit(&self, read_only_host: bool) -> Option<String> {
        let needed = read_only_host.then_some(&self.read_only_host);
        let mut needed = [Some(&self.isolation), needed].into_iter().flatten();
        needed.find_map(|support| match support {
            Support::No(why) if self.users.works() => Some(why.clone()),
            _ => None,
        })
    }

    /// Each capability with the name an operator knows it by.
    pub fn lines(&self) -> [(&'static str, &Support); 8] {
        [
            ("cpu limits", &self.cpu),
            ("memory limits", &self.memory),
            ("process limits", &self.pids),
            ("volumes and host names", &self.namespaces),
            ("device access control", &self.devices),
            ("running as other users", &self.users),
            ("isolation of pods", &self.isolation),
            ("read-only host files", &self.read_only_host),
        ]
    }

    /// What does not work, in sentences; empty when all does.
    pub fn missing(&self) -> Vec<String> {
        self.lines()
            .into_iter()
            .filter_map(|(name, support)| match support {
                Support::No(why) => Some(format!("{name}: {why}")),
                Support::Yes(_) => None,
            })
            .collect()
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, support) in self.lines() {
            writeln!(f, "{name:<24}{support}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_anything_says_why_for_each() {
        let layout = HierarchyLayout::Absent("no cgroup file system is mounted".into());
        let no = || Support::No("not permitted".into());
        let tried = ProbeReply {
            namespaces: no(),
            isolation: no(),
            read_only_host: no(),
        };
        let mut found = Capabilities::probe(&layout, "muster-probe", tried);
        assert!(
            !found.memory.works()
                && !found.cpu.works()
                && !found.pids.works()
                && !found.devices.works()
        );
        assert!(
            found
                .missing()
                .iter()
                .any(|line| line.contains("not permitted"))
        );
        assert!(found.to_string().contains("memory limits"));
        // An agent that is not root holds no pods; for root it is a fault of the node.
        found.users = Support::No("not root".into());
        assert_eq!(found.unfit(true), None);
        found.users = Support::Yes("root".into());
        assert_eq!(found.unfit(false).as_deref(), Some("not permitted"));
        found.isolation = Support::Yes("all".into());
        assert_eq!(found.unfit(false), None);
        // What the host's files being read-only takes is asked for only where they are to be.
        assert_eq!(found.unfit(true).as_deref(), Some("not permitted"));
        found.read_only_host = Support::Yes("all".into());
        assert_eq!(found.unfit(true), None);
    }
}
