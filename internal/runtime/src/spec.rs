//! What a container is to be: the description that the agent hands over and the
//! shim reads back from its directory. Owns the types and their validation; runs
//! nothing.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Longest container id.
pub const MAX_ID: usize = 200;
/// Rotation of a log file when the caller names none: 10 MiB, as the kubelet's default.
pub const DEFAULT_LOG_BYTES: u64 = 10 * 1024 * 1024;
/// Log files kept for a container, the current one included, as the kubelet's default.
pub const DEFAULT_LOG_FILES: u32 = 5;

/// A field of a container's description that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value:?} is not usable; {detail}")]
pub struct SpecError {
    /// The field, as a path in [`ContainerSpec`].
    pub field: String,
    /// Its value.
    pub value: String,
    /// What to write instead, or why the value fails.
    pub detail: String,
}

/// The name of one run of one container on this node; also a directory's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerId(String);

impl ContainerId {
    /// Checks that `id` can name a directory and a cgroup: 1 to [`MAX_ID`] of
    /// `[A-Za-z0-9._-]`, not starting with a dot.
    pub fn new(id: impl Into<String>) -> Result<ContainerId, SpecError> {
        let id = id.into();
        let good = !id.is_empty()
            && id.len() <= MAX_ID
            && !id.starts_with('.')
            && id
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if good {
            Ok(ContainerId(id))
        } else {
            Err(SpecError {
                field: "id".into(),
                value: id,
                detail: format!(
                    "write 1 to {MAX_ID} of A-Z, a-z, 0-9, '.', '_', '-', not starting with '.'"
                ),
            })
        }
    }

    /// The id of the `attempt`th run (from 0) of container `name` of the pod `pod_uid`.
    pub fn of(pod_uid: &str, name: &str, attempt: u32) -> Result<ContainerId, SpecError> {
        ContainerId::new(format!("{pod_uid}_{name}_{attempt}"))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ContainerId {
    type Error = SpecError;
    fn try_from(id: String) -> Result<ContainerId, SpecError> {
        ContainerId::new(id)
    }
}

impl From<ContainerId> for String {
    fn from(id: ContainerId) -> String {
        id.0
    }
}

/// The pod a container belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodIdentity {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// Everything needed to run one container once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Names this run on this node.
    pub id: ContainerId,
    /// The pod it belongs to.
    pub pod: PodIdentity,
    /// The container's name in the pod.
    pub name: String,
    /// Which run of that container this is, from 0.
    pub attempt: u32,
    /// The image; used by a CRI runtime only, ignored for processes.
    #[serde(default)]
    pub image: Option<String>,
    /// When the image is fetched; ignored for processes.
    #[serde(default)]
    pub pull: PullPolicy,
    /// The program and its first arguments. For a process it must not be empty together
    /// with `args`; for an image an empty one means the image's own entry point.
    pub command: Vec<String>,
    /// More arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// The whole environment: a process gets exactly this.
    pub env: Vec<(String, String)>,
    /// The working directory; `/` if absent (for an image: the image's).
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// Volumes, in any order.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// A file to which the network namespace of the container is bound; absent: it is in the node's network.
    #[serde(default)]
    pub network: Option<PathBuf>,
    /// The host name inside; absent: the node's.
    #[serde(default)]
    pub hostname: Option<String>,
    /// A file bound over `/etc/hosts`. Change it in place
    /// ([`crate::volumes::write_in_place`]) and running containers see the change.
    #[serde(default)]
    pub hosts_file: Option<PathBuf>,
    /// A file bound over `/etc/resolv.conf` of a process; absent: it sees the node's. Containers of a container runtime
    /// have the runtime's.
    #[serde(default)]
    pub resolv_conf: Option<PathBuf>,
    /// Bounds on what it may use.
    #[serde(default)]
    pub limits: ResourceLimits,
    /// Devices kept from it.
    #[serde(default)]
    pub devices: DevicePolicy,
    /// Who it runs as.
    #[serde(default)]
    pub user: ProcessUser,
    /// How it is kept apart from the node; absent only for a privileged container.
    #[serde(default)]
    pub isolation: Option<Isolation>,
    /// Written to `/proc/self/oom_score_adj` where permitted. If none is named, the agent's own counts, but at least 0.
    #[serde(default)]
    pub oom_score_adj: Option<i32>,
    /// Whether it has a standard input, which attached clients write.
    #[serde(default)]
    pub stdin: bool,
    /// Whether its standard input ends with the first client that wrote it.
    #[serde(default)]
    pub stdin_once: bool,
    /// Whether it runs at a terminal.
    #[serde(default)]
    pub tty: bool,
    /// Where its output goes.
    pub log: LogSettings,
    /// Seconds between SIGTERM and SIGKILL when the shim itself gets SIGTERM
    /// (the machine shuts down) rather than asked to stop with a time of its own.
    #[serde(default = "default_grace")]
    pub grace_seconds: u64,
}

fn default_grace() -> u64 {
    30
}

impl ContainerSpec {
    /// A container with nothing but a command and a log file: no volumes, no limits,
    /// the caller's user, a minimal `PATH`.
    pub fn new(id: ContainerId, command: Vec<String>, log_path: PathBuf) -> ContainerSpec {
        ContainerSpec {
            id,
            pod: PodIdentity::default(),
            name: String::new(),
            attempt: 0,
            image: None,
            pull: PullPolicy::default(),
            command,
            args: Vec::new(),
            env: vec![("PATH".into(), DEFAULT_PATH.into())],
            cwd: None,
            mounts: Vec::new(),
            network: None,
            hostname: None,
            hosts_file: None,
            resolv_conf: None,
            limits: ResourceLimits::default(),
            devices: DevicePolicy::default(),
            user: ProcessUser::default(),
            isolation: None,
            oom_score_adj: None,
            stdin: false,
            stdin_once: false,
            tty: false,
            log: LogSettings::new(log_path),
            grace_seconds: default_grace(),
        }
    }

    /// Checks all that can be checked without touching the machine; the first fault found.
    pub fn validate(&self) -> Result<(), SpecError> {
        let bad = |field: String, value: String, detail: &str| {
            Err(SpecError {
                field,
                value,
                detail: detail.into(),
            })
        };
        if self.image.is_none() && self.command.is_empty() && self.args.is_empty() {
            return bad(
                "command".into(),
                String::new(),
                "write a command or args, which only an image can supply instead",
            );
        }
        if let Some(first) = self.command.iter().chain(&self.args).next()
            && first.is_empty()
        {
            return bad(
                "command[0]".into(),
                String::new(),
                "write the name of a program",
            );
        }
        for (index, word) in self.command.iter().chain(&self.args).enumerate() {
            if word.contains('\0') {
                return bad(
                    format!("command[{index}]"),
                    word.clone(),
                    "write a text without NUL bytes",
                );
            }
        }
        for (index, (name, value)) in self.env.iter().enumerate() {
            if name.is_empty() || name.contains(['=', '\0']) {
                return bad(
                    format!("env[{index}].name"),
                    name.clone(),
                    "write a variable's name without '=' and NUL bytes",
                );
            }
            if value.contains('\0') {
                return bad(
                    format!("env[{index}].value"),
                    name.clone(),
                    "write a text without NUL bytes",
                );
            }
        }
        if let Some(cwd) = &self.cwd
            && !cwd.is_absolute()
        {
            return bad(
                "cwd".into(),
                cwd.display().to_string(),
                "write an absolute path",
            );
        }
        if let Some(hostname) = &self.hostname
            && (hostname.is_empty() || hostname.len() > 64)
        {
            return bad(
                "hostname".into(),
                hostname.clone(),
                "write a host name of 1 to 64 bytes",
            );
        }
        for (index, mount) in self.mounts.iter().enumerate() {
            mount.validate(index)?;
        }
        if !self.log.path.is_absolute() {
            return bad(
                "log.path".into(),
                self.log.path.display().to_string(),
                "write an absolute path",
            );
        }
        if self.log.max_bytes == 0 || self.log.max_files == 0 {
            return bad(
                "log".into(),
                format!(
                    "max_bytes {} max_files {}",
                    self.log.max_bytes, self.log.max_files
                ),
                "write 1 or more for both",
            );
        }
        Ok(())
    }
}

/// The `PATH` used to find a command when the environment names none.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// When an image is fetched, in Kubernetes' words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PullPolicy {
    /// Each time.
    Always,
    /// When the node does not have it.
    #[default]
    IfNotPresent,
    /// Not at all: the node has it or the container cannot start.
    Never,
}

/// A volume and where it is seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The absolute path inside. It need not exist on the node.
    pub target: PathBuf,
    /// What is seen there.
    pub source: MountSource,
    /// A path inside a bound directory to use instead of the whole; made as a directory
    /// if missing. It cannot lead out of the source, by `..` or by a symlink.
    #[serde(default)]
    pub sub_path: Option<String>,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
}

/// What a volume's mount point shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MountSource {
    /// A directory or file of the node. Must exist when the container starts.
    Bind(PathBuf),
    /// A memory file system of the container's own, of at most so many bytes, gone with it.
    Tmpfs(Option<u64>),
}

impl Mount {
    /// `source` of the node seen at `target`, writable.
    pub fn bind(source: impl Into<PathBuf>, target: impl Into<PathBuf>) -> Mount {
        Mount {
            target: target.into(),
            source: MountSource::Bind(source.into()),
            sub_path: None,
            read_only: false,
        }
    }

    /// The same, with writes refused.
    pub fn read_only(mut self) -> Mount {
        self.read_only = true;
        self
    }

    fn validate(&self, index: usize) -> Result<(), SpecError> {
        let fault = |field: &str, value: String, detail: &str| {
            Err(SpecError {
                field: format!("mounts[{index}].{field}"),
                value,
                detail: detail.into(),
            })
        };
        let target = self.target.display().to_string();
        if !self.target.is_absolute() {
            return fault("target", target, "write an absolute path");
        }
        if self
            .target
            .components()
            .any(|part| part == Component::ParentDir)
        {
            return fault("target", target, "write a path without '..'");
        }
        if self.target == Path::new("/") {
            return fault("target", target, "write a path below the root");
        }
        if let MountSource::Bind(source) = &self.source
            && !source.is_absolute()
        {
            return fault(
                "source",
                source.display().to_string(),
                "write an absolute path",
            );
        }
        if let Some(sub) = &self.sub_path {
            let path = Path::new(sub);
            if path
                .components()
                .any(|part| !matches!(part, Component::Normal(_) | Component::CurDir))
            {
                return fault(
                    "sub_path",
                    sub.clone(),
                    "write a relative path without '..'",
                );
            }
            if matches!(self.source, MountSource::Tmpfs(_)) {
                return fault(
                    "sub_path",
                    sub.clone(),
                    "write no subPath: a new memory file system has no directories",
                );
            }
        }
        Ok(())
    }
}

/// Bounds on a container. Absent means unbounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimits {
    /// CPU time as a share when the machine is busy, in thousandths of a CPU (requests.cpu).
    #[serde(default)]
    pub cpu_request_milli: Option<u64>,
    /// CPU time at most, in thousandths of a CPU (limits.cpu).
    #[serde(default)]
    pub cpu_limit_milli: Option<u64>,
    /// Memory at most, in bytes (limits.memory). Beyond it the kernel kills.
    #[serde(default)]
    pub memory_limit_bytes: Option<u64>,
    /// Processes and threads at most.
    #[serde(default)]
    pub pids_max: Option<u64>,
}

/// Devices of the node that a container must not open, or has. For a process everything else stays as
/// the file permissions have it; what is in an image sees those alone that it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePolicy {
    /// Device files refused to it, for instance `/dev/nvidia3`.
    #[serde(default)]
    pub denied: Vec<PathBuf>,
    /// Device files that a container of an image is given, where they are on the node; a process has
    /// them in any case.
    #[serde(default)]
    pub given: Vec<PathBuf>,
}

impl DevicePolicy {
    /// Refuses every NVIDIA GPU whose file is in `dev` (normally `/dev`) but those with
    /// the minor numbers in `chosen`. The control devices (`nvidiactl`, `nvidia-uvm`) stay.
    pub fn nvidia_except(dev: &Path, chosen: &[u32]) -> DevicePolicy {
        let mut denied: Vec<PathBuf> = std::fs::read_dir(dev)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| {
                entry
                    .file_name()
                    .to_str()
                    .and_then(|name| name.strip_prefix("nvidia"))
                    .and_then(|minor| minor.parse::<u32>().ok())
                    .is_some_and(|minor| !chosen.contains(&minor))
            })
            .map(|entry| entry.path())
            .collect();
        denied.sort();
        DevicePolicy {
            denied,
            given: Vec::new(),
        }
    }
}

/// Who a container's process runs as.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUser {
    /// The user's number; absent: the caller's own.
    #[serde(default)]
    pub uid: Option<u32>,
    /// The primary group; absent with a `uid`: that user's own in the node's database,
    /// else the number of the user.
    #[serde(default)]
    pub gid: Option<u32>,
    /// More groups, added to those the node's database gives the user.
    #[serde(default)]
    pub groups: Vec<u32>,
}

/// How a container is kept apart from the node and from other containers. A process gets all of
/// it only where the agent is root; by another user's agent it gets `no_new_privs` and the
/// system call filter alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Isolation {
    /// Give it a process namespace of its own, with a `/proc` that shows nothing else.
    pub own_processes: bool,
    /// The capabilities that it keeps, as `NET_BIND_SERVICE`. Every other one leaves all five
    /// sets, the bounding set included.
    pub capabilities: Vec<String>,
    /// Install the system call filter (for an image: the runtime's default one).
    pub seccomp: bool,
    /// Directories of the node in whose place it sees empty ones; ignored for images, which
    /// have a root of their own.
    pub hidden: Vec<PathBuf>,
    /// Whether it sees the host's own files read-only, whatever their permissions, so that it
    /// writes through its volumes alone; ignored for images.
    pub read_only_host: bool,
    /// Bytes of memory that it may lock; absent: as many as it likes, which RDMA needs.
    pub locked_memory: Option<u64>,
}

/// Where output goes, in the CRI log format, and how much of it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSettings {
    /// The current file; rotated ones are `path.1` (newest) and up. Its directory is made.
    pub path: PathBuf,
    /// A file is rotated before it grows beyond so many bytes.
    pub max_bytes: u64,
    /// Files kept, the current one included.
    pub max_files: u32,
}

impl LogSettings {
    /// `path` with the default bounds.
    pub fn new(path: PathBuf) -> LogSettings {
        LogSettings {
            path,
            max_bytes: DEFAULT_LOG_BYTES,
            max_files: DEFAULT_LOG_FILES,
        }
    }
}
