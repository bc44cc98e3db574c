//! Between this crate's containers and those of the container runtime interface. Pure.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::{WritableLayer, api};
use crate::mounts::kernel::{MASKED, READ_ONLY};
use crate::proc::ProcessId;
use crate::spec::{ContainerId, ContainerSpec, Mount, MountSource, PodIdentity};
use crate::state::{ContainerExit, ContainerState, ContainerStatus, ExitReason, START_ERROR_CODE};

/// Label: whose containers these are.
pub const OWNER: &str = "muster.io/owner";
/// Label: the container's id with us.
pub const ID: &str = "muster.io/container-id";
/// Annotation: its log file.
pub const LOG_PATH: &str = "muster.io/log-path";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label: the pod's uid.
pub const POD_UID: &str = "io.kubernetes.pod.uid";

/// The period of CPU quotas, microseconds.
const CPU_PERIOD_US: i64 = 100_000;
/// The file of a cgroup of version 2 that bounds its processes and threads.
const PIDS_MAX: &str = "pids.max";

/// The sandbox that a container's pod needs: the node's network, an IPC namespace of its own.
/// With the node's network goes the node's host name: the interface refuses another one.
pub fn sandbox(spec: &ContainerSpec, owner: &str, attempt: u32) -> api::PodSandboxConfig {
    api::PodSandboxConfig {
        metadata: Some(api::PodSandboxMetadata {
            name: spec.pod.name.clone(),
            uid: spec.pod.uid.clone(),
            namespace: spec.pod.namespace.clone(),
            attempt,
        }),
        hostname: String::new(),
        // Log paths of containers are relative to this, and each has its own directory.
        log_directory: "/".into(),
        labels: pod_labels(&spec.pod, owner).collect(),
        annotations: HashMap::new(),
        linux: Some(api::LinuxPodSandboxConfig {
            cgroup_parent: String::new(),
            security_context: Some(api::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(spec)),
                seccomp: Some(seccomp(spec)),
            }),
        }),
    }
}

fn namespaces(spec: &ContainerSpec) -> api::NamespaceOption {
    let isolation = spec.isolation.as_ref();
    let pid = match isolation.is_some_and(|isolation| !isolation.own_processes) {
        true => api::NamespaceMode::Node,
        false => api::NamespaceMode::Container,
    };
    api::NamespaceOption {
        network: api::NamespaceMode::Node.into(),
        pid: pid.into(),
        ipc: api::NamespaceMode::Pod.into(),
        target_id: String::new(),
    }
}

fn seccomp(spec: &ContainerSpec) -> api::SecurityProfile {
    let isolation = spec.isolation.as_ref();
    let profile = match isolation.is_some_and(|isolation| !isolation.seccomp) {
        true => api::security_profile::ProfileType::Unconfined,
        false => api::security_profile::ProfileType::RuntimeDefault,
    };
    api::SecurityProfile {
        profile_type: profile.into(),
        localhost_ref: String::new(),
    }
}

fn pod_labels(pod: &PodIdentity, owner: &str) -> impl Iterator<Item = (String, String)> {
    [
        (OWNER, owner),
        (POD_NAME, pod.name.as_str()),
        (POD_NAMESPACE, pod.namespace.as_str()),
        (POD_UID, pod.uid.as_str()),
    ]
    .map(|(key, value)| (key.to_string(), value.to_string()))
    .into_iter()
}

/// What a container is made of beside its description.
#[derive(Clone, Copy, Debug)]
pub struct Means<'a> {
    /// Whose containers these are.
    pub owner: &'a str,
    /// The image, as the runtime names it.
    pub image: &'a str,
    /// Where the subPath of each mount that has one is, by the mount's index in the description.
    pub sub_paths: &'a BTreeMap<usize, PathBuf>,
    /// Whether the node's control groups are of version 2 alone.
    pub unified: bool,
}

/// Why a container runtime can't mount a volume; the container's status shows the text.
#[derive(Debug, thiserror::Error)]
pub enum VolumeMountError {
    /// The volume is memory.
    #[error(
        "the volume at {}: a container runtime takes directories only; mount memory on one first",
        .0.display()
    )]
    Memory(PathBuf),
    /// No place shows the volume's subPath.
    #[error("subPath {sub} of the volume at {} was not bound", target.display())]
    NotBound {
        /// The subPath.
        sub: String,
        /// Where it is to be seen.
        target: PathBuf,
    },
}

/// The container itself.
pub fn container(
    spec: &ContainerSpec,
    means: &Means,
) -> Result<api::ContainerConfig, VolumeMountError> {
    let mut mounts = Vec::new();
    for (index, volume) in spec.mounts.iter().enumerate() {
        let sub_path = means.sub_paths.get(&index).map(PathBuf::as_path);
        mounts.push(mount(volume, sub_path)?);
    }
    if let Some(hosts) = &spec.hosts_file
        && spec
            .mounts
            .iter()
            .all(|mount| mount.target != Path::new("/etc/hosts"))
    {
        mounts.push(api::Mount {
            container_path: "/etc/hosts".into(),
            host_path: hosts.display().to_string(),
            readonly: false,
        });
    }
    let mut labels: HashMap<String, String> = pod_labels(&spec.pod, means.owner).collect();
    labels.insert(ID.into(), spec.id.to_string());
    labels.insert(CONTAINER_NAME.into(), spec.name.clone());
    let log = spec.log.path.display().to_string();
    Ok(api::ContainerConfig {
        // The name is unique in a sandbox only together with the attempt.
        metadata: Some(api::ContainerMetadata {
            name: spec.name.clone(),
            attempt: spec.attempt,
        }),
        image: Some(api::ImageSpec {
            image: means.image.into(),
            annotations: HashMap::new(),
        }),
        command: spec.command.clone(),
        args: spec.args.clone(),
        working_dir: spec
            .cwd
            .as_ref()
            .map(|cwd| cwd.display().to_string())
            .unwrap_or_default(),
        envs: spec
            .env
            .iter()
            .map(|(key, value)| api::KeyValue {
                key: key.clone(),
                value: value.clone(),
            })
            .collect(),
        mounts,
        devices: spec.devices.given.iter().map(|path| device(path)).collect(),
        labels,
        annotations: HashMap::from([(LOG_PATH.into(), log.clone())]),
        log_path: log.trim_start_matches('/').into(),
        linux: Some(linux(spec, means.unified)),
    })
}

fn linux(spec: &ContainerSpec, unified: bool) -> api::LinuxContainerConfig {
    let limits = &spec.limits;
    // The interface has no field for it, and runtimes refuse cgroup files by name on version 1.
    let processes = limits.pids_max.filter(|_| unified);
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let number = |value: Option<u32>| {
        value.map(|value| api::Int64Value {
            value: value.into(),
        })
    };
    api::LinuxContainerConfig {
        resources: Some(api::LinuxContainerResources {
            cpu_period: CPU_PERIOD_US,
            cpu_quota: limits.cpu_limit_milli.map_or(0, |m| {
                signed(m).saturating_mul(CPU_PERIOD_US / 1000).max(1000)
            }),
            cpu_shares: limits.cpu_request_milli.map_or(0, |m| {
                (signed(m).saturating_mul(1024) / 1000).clamp(2, 262_144)
            }),
            memory_limit_in_bytes: limits.memory_limit_bytes.map_or(0, signed),
            oom_score_adj: spec.oom_score_adj.map_or(0, i64::from),
            unified: processes
                .map(|most| (PIDS_MAX.to_owned(), most.to_string()))
                .into_iter()
                .collect(),
        }),
        security_context: Some(api::LinuxContainerSecurityContext {
            capabilities: spec.isolation.as_ref().map(|isolation| api::Capability {
                add_capabilities: isolation.capabilities.clone(),
                drop_capabilities: vec!["ALL".into()],
            }),
            privileged: false,
            namespace_options: Some(namespaces(spec)),
            run_as_user: number(spec.user.uid),
            // The interface takes a group only together with a user.
            run_as_group: spec.user.uid.and_then(|_| number(spec.user.gid)),
            readonly_rootfs: false,
            supplemental_groups: spec.user.groups.iter().copied().map(i64::from).collect(),
            no_new_privs: spec.isolation.is_some(),
            masked_paths: MASKED.map(String::from).to_vec(),
            readonly_paths: READ_ONLY.map(String::from).to_vec(),
            seccomp: Some(seccomp(spec)),
        }),
    }
}

/// A device file of the node, at the same place.
fn device(path: &Path) -> api::Device {
    let path = path.display().to_string();
    api::Device {
        container_path: path.clone(),
        host_path: path,
        permissions: "rw".into(),
    }
}

/// `sub_path` is where the volume's subPath is, if it has one.
fn mount(volume: &Mount, sub_path: Option<&Path>) -> Result<api::Mount, VolumeMountError> {
    let MountSource::Bind(source) = &volume.source else {
        return Err(VolumeMountError::Memory(volume.target.clone()));
    };
    let source = match volume.sub_path.as_deref().filter(|sub| !sub.is_empty()) {
        None => source.clone(),
        // A path in the volume may lead elsewhere by the time that the runtime follows it.
        Some(sub) => sub_path
            .ok_or_else(|| VolumeMountError::NotBound {
                sub: sub.to_owned(),
                target: volume.target.clone(),
            })?
            .to_path_buf(),
    };
    Ok(api::Mount {
        container_path: volume.target.display().to_string(),
        host_path: source.display().to_string(),
        readonly: volume.read_only,
    })
}

/// A container's status from the runtime's; `None` if it is not one of ours.
pub fn status(
    found: &api::ContainerStatus,
    info: &HashMap<String, String>,
) -> Option<ContainerStatus> {
    let label = |key: &str| found.labels.get(key).cloned().unwrap_or_default();
    let id = ContainerId::new(label(ID)).ok()?;
    let log_path = found
        .annotations
        .get(LOG_PATH)
        .map_or_else(|| found.log_path.clone().into(), PathBuf::from);
    Some(ContainerStatus {
        id,
        pod: PodIdentity {
            namespace: label(POD_NAMESPACE),
            name: label(POD_NAME),
            uid: label(POD_UID),
        },
        name: label(CONTAINER_NAME),
        attempt: found
            .metadata
            .as_ref()
            .map_or(0, |metadata| metadata.attempt),
        state: state(found, info),
        log_path,
        notes: Vec::new(),
    })
}

/// The writable layer of one of the known containers, by the runtime's ids. None if the runtime
/// has not measured it yet.
pub fn layer(
    stats: api::ContainerStats,
    known: &HashMap<&str, &ContainerStatus>,
) -> Option<WritableLayer> {
    let status = known.get(stats.attributes?.id.as_str())?;
    let found = stats.writable_layer?;
    Some(WritableLayer {
        pod_uid: status.pod.uid.clone(),
        container: status.name.clone(),
        bytes: found.used_bytes?.value,
        files: found.inodes_used.map_or(0, |files| files.value),
        mountpoint: found.fs_id.unwrap_or_default().mountpoint.into(),
    })
}

fn state(found: &api::ContainerStatus, info: &HashMap<String, String>) -> ContainerState {
    match found.state() {
        api::ContainerState::ContainerCreated => ContainerState::Starting,
        api::ContainerState::ContainerRunning => ContainerState::Running {
            process: process(info),
            started_at: time(found.started_at).unwrap_or(Timestamp::UNIX_EPOCH),
        },
        api::ContainerState::ContainerExited => ContainerState::Exited(exit(found)),
        api::ContainerState::ContainerUnknown => {
            let at = time(found.finished_at)
                .or_else(|| time(found.created_at))
                .unwrap_or(Timestamp::UNIX_EPOCH);
            let message = "the container runtime no longer knows the container";
            ContainerState::Exited(ContainerExit::unknown(message, time(found.started_at), at))
        }
    }
}

fn exit(found: &api::ContainerStatus) -> ContainerExit {
    let started_at = time(found.started_at);
    let oom_killed = found.reason == "OOMKilled";
    let reason = match found.exit_code {
        _ if oom_killed => ExitReason::OomKilled,
        START_ERROR_CODE if started_at.is_none() => ExitReason::StartError,
        0 => ExitReason::Completed,
        _ => ExitReason::Error,
    };
    // The interface gives a shell's code for a signal; a program may end with such a code
    // itself, so only the two that end containers as a rule are taken for signals.
    let signal = match found.exit_code {
        137 => Some(9),
        143 => Some(15),
        _ => None,
    };
    ContainerExit {
        code: found.exit_code,
        signal,
        oom_killed,
        reason,
        message: found.message.clone(),
        started_at,
        finished_at: time(found.finished_at).unwrap_or(Timestamp::UNIX_EPOCH),
    }
}

/// The process, if the runtime reports it, else number 0.
fn process(info: &HashMap<String, String>) -> ProcessId {
    let process_info = info
        .get("info")
        .and_then(|text| serde_json::from_str::<BTreeMap<String, serde_json::Value>>(text).ok());
    let pid = process_info
        .and_then(|process_info| process_info.get("pid")?.as_i64())
        .and_then(|pid| i32::try_from(pid).ok());
    pid.and_then(ProcessId::of).unwrap_or(ProcessId {
        pid: pid.unwrap_or(0),
        start_ticks: 0,
    })
}

fn time(nanos: i64) -> Option<Timestamp> {
    (nanos > 0)
        .then(|| Timestamp::from_nanosecond(nanos.into()).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ResourceLimits;

    fn spec() -> ContainerSpec {
        let id = ContainerId::of("uid", "main", 2).unwrap();
        let mut spec = ContainerSpec::new(id, vec!["run".into()], "/logs/pod/main/2.log".into());
        spec.pod = PodIdentity {
            namespace: "team".into(),
            name: "job-0".into(),
            uid: "uid".into(),
        };
        spec.name = "main".into();
        spec.attempt = 2;
        spec
    }

    fn container(
        spec: &ContainerSpec,
        sub_paths: &[(usize, &str)],
        unified: bool,
    ) -> Result<api::ContainerConfig, VolumeMountError> {
        let places = (sub_paths.iter()).map(|(index, place)| (*index, PathBuf::from(place)));
        let places: BTreeMap<usize, PathBuf> = places.collect();
        let means = Means {
            owner: "node-1",
            image: "sha256:abc",
            sub_paths: &places,
            unified,
        };
        super::container(spec, &means)
    }

    #[test]
    fn a_description_becomes_a_config() {
        let mut spec = spec();
        spec.hosts_file = Some("/hosts".into());
        spec.mounts = vec![Mount::bind("/src", "/data").read_only()];
        spec.limits = ResourceLimits {
            cpu_limit_milli: Some(1500),
            cpu_request_milli: Some(500),
            memory_limit_bytes: Some(1 << 30),
            pids_max: None,
        };
        spec.devices.given = vec!["/dev/infiniband/rdma_cm".into()];
        spec.user.uid = Some(1000);
        spec.user.groups = vec![7];
        let config = container(&spec, &[], true).unwrap();
        assert_eq!(config.log_path, "logs/pod/main/2.log");
        assert_eq!(config.image.unwrap().image, "sha256:abc");
        assert_eq!(config.labels[ID], "uid_main_2");
        let paths: Vec<_> = config
            .mounts
            .iter()
            .map(|m| (m.container_path.as_str(), m.host_path.as_str(), m.readonly))
            .collect();
        assert_eq!(
            paths,
            [("/data", "/src", true), ("/etc/hosts", "/hosts", false)]
        );
        let [device] = &config.devices[..] else {
            panic!("{:?}", config.devices)
        };
        let file = "/dev/infiniband/rdma_cm";
        assert_eq!(
            [
                &*device.host_path,
                &*device.container_path,
                &*device.permissions
            ],
            [file, file, "rw"]
        );
        let linux = config.linux.unwrap();
        let resources = linux.resources.unwrap();
        assert_eq!(
            (
                resources.cpu_quota,
                resources.cpu_shares,
                resources.memory_limit_in_bytes
            ),
            (150_000, 512, 1 << 30)
        );
        assert!(resources.unified.is_empty());
        let context = linux.security_context.unwrap();
        assert_eq!(context.run_as_user.unwrap().value, 1000);
        assert_eq!(context.supplemental_groups, [7]);
    }

    #[test]
    fn processes_are_limited_where_a_cgroup_takes_its_files_by_name() {
        let unified = |most: Option<u64>, unified: bool| {
            let mut spec = spec();
            spec.limits.pids_max = most;
            let config = container(&spec, &[], unified).unwrap();
            config.linux.unwrap().resources.unwrap().unified
        };
        let limited = HashMap::from([("pids.max".to_owned(), "77".to_owned())]);
        assert_eq!(unified(Some(77), true), limited);
        assert_eq!(unified(Some(77), false), HashMap::new());
        assert_eq!(unified(None, true), HashMap::new());
    }

    #[test]
    fn a_held_container_has_no_capabilities_but_those_it_keeps_and_cannot_gain_any() {
        use crate::spec::Isolation;
        let context = |spec: &ContainerSpec| {
            let config = container(spec, &[], true).unwrap();
            config.linux.unwrap().security_context.unwrap()
        };
        let mut held = spec();
        held.isolation = Some(Isolation {
            own_processes: true,
            capabilities: vec!["NET_BIND_SERVICE".into()],
            seccomp: true,
            ..Isolation::default()
        });
        let found = context(&held);
        let capabilities = found.capabilities.clone().unwrap();
        assert_eq!(capabilities.add_capabilities, ["NET_BIND_SERVICE"]);
        assert_eq!(capabilities.drop_capabilities, ["ALL"]);
        assert!(found.no_new_privs && !found.privileged);
        let default = api::security_profile::ProfileType::RuntimeDefault;
        assert_eq!(found.seccomp.unwrap().profile_type(), default);
        let pid = found.namespace_options.unwrap().pid();
        assert_eq!(pid, api::NamespaceMode::Container);
        assert_eq!(found.masked_paths, MASKED);
        // What an administrator's namespace may ask for.
        held.isolation = Some(Isolation::default());
        let found = context(&held);
        let unconfined = api::security_profile::ProfileType::Unconfined;
        assert_eq!(found.seccomp.unwrap().profile_type(), unconfined);
        let pid = found.namespace_options.unwrap().pid();
        assert_eq!(pid, api::NamespaceMode::Node);
    }

    #[test]
    fn a_sandbox_in_the_nodes_network_asks_for_no_host_name() {
        let mut spec = spec();
        spec.hostname = Some("job-0".into());
        let config = sandbox(&spec, "node-1", 0);
        assert_eq!(config.hostname, "");
        assert_eq!(config.metadata.unwrap().name, "job-0");
    }

    #[test]
    fn a_memory_volume_is_refused_and_a_sub_path_is_where_it_was_bound() {
        let mut spec = spec();
        spec.mounts = vec![Mount {
            source: MountSource::Tmpfs(None),
            ..Mount::bind("/x", "/y")
        }];
        let why = container(&spec, &[], true).unwrap_err().to_string();
        assert!(why.contains("/y"), "{why}");
        let with = |sub: &str| Mount {
            sub_path: Some(sub.into()),
            ..Mount::bind("/volume", "/data")
        };
        spec.mounts = vec![with(""), with("a/b")];
        let why = container(&spec, &[], true).unwrap_err().to_string();
        assert!(why.contains("subPath a/b of the volume at /data"), "{why}");
        let config = container(&spec, &[(1, "/places/1")], true).unwrap();
        let paths: Vec<&str> = (config.mounts.iter())
            .map(|mount| mount.host_path.as_str())
            .collect();
        assert_eq!(paths, ["/volume", "/places/1"]);
    }

    #[test]
    fn ends_are_told_apart() {
        let base = |code, reason: &str, started_at| api::ContainerStatus {
            labels: HashMap::from([(ID.into(), "uid_main_2".into())]),
            state: api::ContainerState::ContainerExited.into(),
            exit_code: code,
            reason: reason.into(),
            started_at,
            finished_at: 5_000_000_000,
            ..api::ContainerStatus::default()
        };
        let cases = [
            (base(0, "Completed", 1), ExitReason::Completed, None),
            (base(1, "Error", 1), ExitReason::Error, None),
            (base(137, "OOMKilled", 1), ExitReason::OomKilled, Some(9)),
            (base(128, "StartError", 0), ExitReason::StartError, None),
            (base(128, "Error", 1), ExitReason::Error, None),
            (base(143, "Error", 1), ExitReason::Error, Some(15)),
        ];
        for (found, reason, signal) in cases {
            let status = status(&found, &HashMap::new()).unwrap();
            let exit = status.exit().unwrap();
            assert_eq!((exit.reason, exit.signal), (reason, signal), "{found:?}");
        }
        assert_eq!(
            status(&api::ContainerStatus::default(), &HashMap::new()),
            None
        );
    }

    #[test]
    fn the_layers_of_known_containers_are_those_that_the_runtime_measured() {
        let found = api::ContainerStatus {
            labels: HashMap::from([
                (ID.into(), "uid_main_2".into()),
                (CONTAINER_NAME.into(), "main".into()),
                (POD_UID.into(), "uid".into()),
            ]),
            ..api::ContainerStatus::default()
        };
        let status = status(&found, &HashMap::new()).unwrap();
        let known = HashMap::from([("cri-1", &status)]);
        let stats = |id: &str, bytes: Option<u64>| api::ContainerStats {
            attributes: Some(api::ContainerAttributes { id: id.into() }),
            writable_layer: Some(api::FilesystemUsage {
                fs_id: Some(api::FilesystemIdentifier {
                    mountpoint: "/snapshots".into(),
                }),
                used_bytes: bytes.map(|value| api::UInt64Value { value }),
                inodes_used: Some(api::UInt64Value { value: 3 }),
                ..api::FilesystemUsage::default()
            }),
            ..api::ContainerStats::default()
        };
        let measured = WritableLayer {
            pod_uid: "uid".into(),
            container: "main".into(),
            bytes: 7,
            files: 3,
            mountpoint: "/snapshots".into(),
        };
        assert_eq!(layer(stats("cri-1", Some(7)), &known), Some(measured));
        assert_eq!(layer(stats("cri-1", None), &known), None);
        assert_eq!(layer(stats("another's", Some(7)), &known), None);
        assert_eq!(layer(api::ContainerStats::default(), &known), None);
    }
}
