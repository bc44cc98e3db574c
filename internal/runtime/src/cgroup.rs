//! Control groups, versions 1 and 2: bounding a container, counting what it uses,
//! killing all of it. Owns the files under `/sys/fs/cgroup`; starts no processes.
//!
//! Version 1 has a hierarchy a controller, version 2 one for all. A controller that is
//! missing or not ours to write costs its bound and gives a note, never the container.

mod layout;
mod settings;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

pub use layout::HierarchyLayout;
use settings::{settings_v1, settings_v2};

use crate::spec::{DevicePolicy, ResourceLimits};

/// The controllers used, as version 1 names them.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", "memory", "pids", "devices"];
/// Rounds of killing what is in a cgroup before it is given up, [`KILL_PAUSE`] apart.
const KILL_ROUNDS: u32 = 500;
/// Between two rounds.
const KILL_PAUSE: Duration = Duration::from_millis(10);
/// Attempts to remove an emptied cgroup: the kernel lets go of the last member a little late.
const REMOVE_ROUNDS: u32 = 50;

/// One container's cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cgroup {
    /// It has none.
    #[default]
    None,
    /// Version 1: a directory a controller.
    V1(BTreeMap<String, PathBuf>),
    /// Version 2: one directory.
    V2(PathBuf),
}

/// Why a cgroup is not used as asked.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// One of its files can't be written.
    #[error("cannot write {value} to {}: {source}", path.display())]
    Write {
        /// What was to be written.
        value: String,
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The controller is missing.
    #[error("this machine has no {0} controller")]
    NoController(String),
    /// Devices are not denied by files in version 2.
    #[error("version 2 needs an eBPF program for that; a nodev mount hides them instead")]
    NeedsProgram,
    /// The process has no table of its cgroups.
    #[error("the process's cgroups cannot be read: {0}")]
    Process(#[source] std::io::Error),
    /// A bound would count for other processes as well.
    #[error("the process is in no cgroup of its own")]
    NotItsOwn,
    /// The device can't be looked at.
    #[error("{0}")]
    Device(#[source] std::io::Error),
    /// The file is no device.
    #[error("it is not a device file")]
    NotADevice,
}

/// What a container has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// CPU time since it started, nanoseconds.
    pub cpu_nanos: u64,
    /// Memory that cannot be reclaimed at will (usage less inactive file pages), bytes.
    pub memory_working_set: u64,
    /// Anonymous memory, bytes.
    pub memory_rss: u64,
}

/// Bounds the processes of the version-1 cgroup that process `pid` is in. Container runtimes take no such bound for
/// version 1, and a kubelet sets it on the pod's cgroup; Muster sets it on the container's once that runs.
///
/// # Errors
/// There is no such hierarchy, the process is gone or in no cgroup of its own, or the kernel refuses the value.
pub fn limit_processes_v1(
    mounts: &BTreeMap<String, PathBuf>,
    pid: i32,
    most: u64,
) -> Result<(), CgroupError> {
    let mount = mounts.get("pids");
    let mount = mount.ok_or_else(|| CgroupError::NoController("pids".to_owned()))?;
    let table = fs::read_to_string(format!("/proc/{pid}/cgroup")).map_err(CgroupError::Process)?;
    let own = pids_path(&table).ok_or(CgroupError::NotItsOwn)?;
    write(&mount.join(own).join("pids.max"), &most.to_string())
}

/// The path of the pids controller in `/proc/PID/cgroup`, without its slash; none if the process is in the root.
fn pids_path(table: &str) -> Option<&str> {
    let mut lines = table.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let (_, path) = lines.find(|(names, _)| names.split(',').any(|name| name == "pids"))?;
    let path = path.trim_start_matches('/');
    (!path.is_empty()).then_some(path)
}

impl Cgroup {
    /// Makes `parent/name` with the bounds asked for. The notes name what could not be
    /// done.
    pub fn create(
        layout: &HierarchyLayout,
        parent: &str,
        name: &str,
        limits: &ResourceLimits,
        devices: &DevicePolicy,
    ) -> (Cgroup, Vec<String>) {
        let mut notes = Vec::new();
        let cgroup = match layout {
            HierarchyLayout::Absent(reason) => {
                if *limits != ResourceLimits::default() {
                    notes.push(format!("limits are not enforced: {reason}"));
                }
                Cgroup::None
            }
            HierarchyLayout::V1(mounts) => create_v1(mounts, parent, name, &mut notes),
            HierarchyLayout::V2(root) => create_v2(root, parent, name, &mut notes),
        };
        cgroup.bound(limits, &mut notes);
        cgroup.deny(devices, &mut notes);
        (cgroup, notes)
    }

    fn bound(&self, limits: &ResourceLimits, notes: &mut Vec<String>) {
        let settings = match self {
            Cgroup::None => return,
            Cgroup::V1(_) => settings_v1(limits),
            Cgroup::V2(_) => settings_v2(limits),
        };
        for (controller, file, value) in settings {
            let outcome = match self.dir(controller) {
                None => Err(CgroupError::NoController(controller.to_owned())),
                Some(dir) => write(&dir.join(file), &value),
            };
            if let Err(reason) = outcome {
                notes.push(format!("{file}={value} is not enforced: {reason}"));
            }
        }
    }

    fn deny(&self, devices: &DevicePolicy, notes: &mut Vec<String>) {
        // One note for all devices of one reason: machines have many.
        let mut refused: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for path in &devices.denied {
            if let Err(reason) = self.deny_one(path) {
                refused
                    .entry(reason.to_string())
                    .or_default()
                    .push(path.display().to_string());
            }
        }
        for (reason, paths) in refused {
            notes.push(format!(
                "{} not denied by cgroup: {reason}",
                paths.join(", ")
            ));
        }
    }

    fn deny_one(&self, path: &Path) -> Result<(), CgroupError> {
        match (self, self.dir("devices")) {
            (Cgroup::V1(_), Some(dir)) => match device_rule(path)? {
                Some(rule) => write(&dir.join("devices.deny"), &rule),
                None => Ok(()),
            },
            (Cgroup::V2(_), _) => Err(CgroupError::NeedsProgram),
            _ => Err(CgroupError::NoController("devices".to_owned())),
        }
    }

    /// The directory of a controller.
    pub fn dir(&self, controller: &str) -> Option<&Path> {
        match self {
            Cgroup::None => None,
            Cgroup::V1(dirs) => dirs.get(controller).map(PathBuf::as_path),
            Cgroup::V2(dir) => Some(dir),
        }
    }

    fn dirs(&self) -> Vec<&Path> {
        match self {
            Cgroup::None => Vec::new(),
            Cgroup::V1(dirs) => {
                let mut dirs: Vec<&Path> = dirs.values().map(PathBuf::as_path).collect();
                dirs.sort();
                dirs.dedup();
                dirs
            }
            Cgroup::V2(dir) => vec![dir],
        }
    }

    /// Moves process `pid` in; the first refusal is the answer.
    pub fn join(&self, pid: u32) -> Result<(), CgroupError> {
        for dir in self.dirs() {
            write(&dir.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// The processes in it.
    pub fn processes(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self
            .dirs()
            .iter()
            .filter_map(|dir| fs::read_to_string(dir.join("cgroup.procs")).ok())
            .flat_map(|text| {
                text.lines()
                    .filter_map(|l| l.parse().ok())
                    .collect::<Vec<i32>>()
            })
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// SIGKILLs every process in it, once.
    pub fn kill_once(&self) {
        // Without this a fork bomb wins the race against its own killer.
        if let Some(dir) = self.dir("pids") {
            let _ = write(&dir.join("pids.max"), "0");
        }
        if let Cgroup::V2(dir) = self
            && write(&dir.join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        for pid in self.processes() {
            // Gone already is as good as killed.
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    /// SIGKILLs until none is left; false if some stay (in an uninterruptible sleep).
    pub fn kill_all(&self) -> bool {
        for _ in 0..KILL_ROUNDS {
            if self.processes().is_empty() {
                return true;
            }
            self.kill_once();
            std::thread::sleep(KILL_PAUSE);
        }
        self.processes().is_empty()
    }

    /// How often the kernel killed in it for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let file = match self {
            Cgroup::None => return 0,
            Cgroup::V1(_) => "memory.oom_control",
            Cgroup::V2(_) => "memory.events",
        };
        self.dir("memory")
            .and_then(|dir| keyed(&dir.join(file), "oom_kill"))
            .unwrap_or(0)
    }

    /// What it has used; zero where nothing counts.
    pub fn usage(&self) -> ContainerUsage {
        let at = |controller: &str, file: &str| self.dir(controller).map(|dir| dir.join(file));
        let plain = |path: Option<PathBuf>| {
            path.and_then(|p| fs::read_to_string(p).ok())
                .and_then(|t| t.trim().parse::<u64>().ok())
                .unwrap_or(0)
        };
        let by_key = |path: Option<PathBuf>, key| path.and_then(|p| keyed(&p, key)).unwrap_or(0);
        match self {
            Cgroup::None => ContainerUsage::default(),
            Cgroup::V1(_) => ContainerUsage {
                cpu_nanos: plain(at("cpuacct", "cpuacct.usage")),
                memory_working_set: plain(at("memory", "memory.usage_in_bytes"))
                    .saturating_sub(by_key(at("memory", "memory.stat"), "total_inactive_file")),
                memory_rss: by_key(at("memory", "memory.stat"), "total_rss"),
            },
            Cgroup::V2(_) => ContainerUsage {
                cpu_nanos: by_key(at("cpu", "cpu.stat"), "usage_usec").saturating_mul(1_000),
                memory_working_set: plain(at("memory", "memory.current"))
                    .saturating_sub(by_key(at("memory", "memory.stat"), "inactive_file")),
                memory_rss: by_key(at("memory", "memory.stat"), "anon"),
            },
        }
    }

    /// Removes its directories once they are empty; true when none is left.
    pub fn remove(&self) -> bool {
        let mut left = self.dirs();
        for round in 0..REMOVE_ROUNDS {
            left.retain(|dir| match fs::remove_dir(dir) {
                Ok(()) => false,
                Err(e) => e.kind() != std::io::ErrorKind::NotFound,
            });
            if left.is_empty() || round + 1 == REMOVE_ROUNDS {
                break;
            }
            std::thread::sleep(KILL_PAUSE);
        }
        left.is_empty()
    }
}

fn create_v1(
    mounts: &BTreeMap<String, PathBuf>,
    parent: &str,
    name: &str,
    notes: &mut Vec<String>,
) -> Cgroup {
    let mut dirs = BTreeMap::new();
    for (controller, root) in mounts {
        let dir = root.join(parent).join(name);
        match fs::create_dir_all(&dir) {
            Ok(()) => {
                dirs.insert(controller.clone(), dir);
            }
            Err(e) => notes.push(format!(
                "no {controller} cgroup: cannot make {}: {e}",
                dir.display()
            )),
        }
    }
    if dirs.is_empty() {
        Cgroup::None
    } else {
        Cgroup::V1(dirs)
    }
}

fn create_v2(root: &Path, parent: &str, name: &str, notes: &mut Vec<String>) -> Cgroup {
    let above = root.join(parent);
    let dir = above.join(name);
    if let Err(e) = fs::create_dir_all(&dir) {
        notes.push(format!("no cgroup: cannot make {}: {e}", dir.display()));
        return Cgroup::None;
    }
    for level in [root, &above] {
        for controller in ["cpu", "memory", "pids"] {
            // A controller that is on already, or is not to be had here, is noticed when a
            // bound is written.
            let _ = write(
                &level.join("cgroup.subtree_control"),
                &format!("+{controller}"),
            );
        }
    }
    Cgroup::V2(dir)
}

/// The rule that names a device file; `None` if there is no such file.
fn device_rule(path: &Path) -> Result<Option<String>, CgroupError> {
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(CgroupError::Device(e)),
    };
    let kind = if meta.file_type().is_char_device() {
        'c'
    } else if meta.file_type().is_block_device() {
        'b'
    } else {
        return Err(CgroupError::NotADevice);
    };
    let number = meta.rdev();
    Ok(Some(format!(
        "{kind} {}:{} rwm",
        nix::sys::stat::major(number),
        nix::sys::stat::minor(number)
    )))
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    fs::write(path, value).map_err(|source| CgroupError::Write {
        value: value.to_owned(),
        path: path.to_path_buf(),
        source,
    })
}

/// The number after `key` in a file of `key number` lines.
fn keyed(path: &Path, key: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pids_cgroup_of_a_process_is_found_unless_it_is_the_root() {
        let table = "8:cpu,pids:/k8s.io/one\n7:memory:/k8s.io/other\n0::/";
        assert_eq!(pids_path(table), Some("k8s.io/one"));
        // So the kernel shows a process that has ended and is not waited for yet.
        assert_eq!(pids_path("8:pids:/\n0::/k8s.io/one"), None);
        assert_eq!(pids_path("0::/k8s.io/one"), None);
    }

    #[test]
    fn bounds_become_the_files_of_version_two() {
        let root = tempfile::tempdir().unwrap();
        let limits = ResourceLimits {
            cpu_request_milli: Some(1000),
            cpu_limit_milli: Some(1500),
            memory_limit_bytes: Some(1 << 30),
            pids_max: Some(64),
        };
        let layout = HierarchyLayout::V2(root.path().into());
        let (cgroup, notes) = Cgroup::create(
            &layout,
            "muster",
            "a_b_0",
            &limits,
            &DevicePolicy::default(),
        );
        assert_eq!(notes, Vec::<String>::new());
        let read =
            |file: &str| fs::read_to_string(root.path().join("muster/a_b_0").join(file)).unwrap();
        assert_eq!(read("cpu.weight"), "39");
        assert_eq!(read("cpu.max"), "150000 100000");
        assert_eq!(read("memory.max"), "1073741824");
        assert_eq!(read("pids.max"), "64");
        assert_eq!(
            fs::read_to_string(root.path().join("muster/cgroup.subtree_control")).unwrap(),
            "+pids"
        );
        fs::write(
            root.path().join("muster/a_b_0/memory.events"),
            "low 0\noom 3\noom_kill 2\noom_group_kill 1\n",
        )
        .unwrap();
        assert_eq!(cgroup.oom_kills(), 2);
    }

    #[test]
    fn without_cgroups_a_limit_is_a_note_and_no_limit_is_silence() {
        let absent = HierarchyLayout::Absent("no cgroup file system is mounted".into());
        let create = |limits: &ResourceLimits| {
            Cgroup::create(&absent, "p", "n", limits, &DevicePolicy::default())
        };
        assert_eq!(create(&ResourceLimits::default()), (Cgroup::None, vec![]));
        let (_, notes) = create(&ResourceLimits {
            pids_max: Some(1),
            ..ResourceLimits::default()
        });
        assert_eq!(notes.len(), 1);
    }
}
