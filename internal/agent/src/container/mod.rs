//! Builds one container's spec for the runtime from the pod's. Pure but for the existence of device
//! files and mounts of other vendors, the list of GPU device files in /dev, and the groups of the
//! allocated device files.

mod device_files;
mod environment;
mod error;
mod mounts;

use std::path::{Path, PathBuf};

use devices::allocation::Allocation;
use devices::device_groups;
use devices::inventory::NodeHardware;
use k8s_openapi::api::core::v1::{Container, Pod};
use resources::invalid_value::InvalidValue;
use resources::quantity::Quantity;
use rpc::agent::v1::ContainerEnv;
use runtime::spec::PullPolicy;
use runtime::{ContainerId, ContainerSpec, LogSettings, ResourceLimits};

pub use error::ContainerError;

use crate::accounts::ProcessOwner;
use crate::confinement::{self, NodeIsolation};
use crate::fields::NodeFieldValues;
use crate::temporary;
use crate::volumes::VolumePaths;

/// Default path of a container's termination message file.
pub const DEFAULT_MESSAGE_PATH: &str = "/dev/termination-log";

/// The maximum length of a host name.
const MAX_HOSTNAME: usize = 63;

/// The inputs of a container's spec.
pub struct Parts<'a> {
    /// Its pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// Values from ConfigMaps and Secrets.
    pub resolved: Option<&'a ContainerEnv>,
    /// The node.
    pub node: &'a NodeFieldValues,
    /// The node's devices.
    pub machine: &'a NodeHardware,
    /// The pod's volumes.
    pub places: &'a VolumePaths,
    /// The pod's hosts file.
    pub hosts_file: &'a Path,
    /// The pod's `resolv.conf`; none if it has the node's.
    pub resolv_conf: Option<&'a Path>,
    /// The file for the container's termination message.
    pub message_file: &'a Path,
    /// The file of the pod's network namespace; none of a pod in the node's network.
    pub network: Option<&'a Path>,
    /// Its log.
    pub log: PathBuf,
    /// Whether a container runtime runs it in an image, not the node as a process.
    pub in_image: bool,
    /// The directory of device files, normally /dev.
    pub dev: &'a Path,
    /// The user of the pod; `None` if the agent can't run processes as another user.
    pub owner: Option<&'a ProcessOwner>,
    /// The limits of every pod on the node.
    pub bounds: &'a PodLimits,
}

/// The limits of every pod on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLimits {
    /// Directories of the node that are hidden from pods.
    pub hidden: Vec<PathBuf>,
    /// Processes and threads that a container may have.
    pub processes: u64,
    /// Size limit of each of its private temporary directories, in bytes.
    pub temporary: u64,
    /// Whether pods that run as an id assigned by the node see the host's own files read-only.
    pub read_only_host: bool,
    /// The `muster` program, for pods that ask for it; none if its path is not known.
    pub command_line: Option<PathBuf>,
}

/// The spec.
///
/// # Errors
///
/// When the container can't be created; the next try may differ.
pub fn describe(parts: &Parts, attempt: u32) -> Result<ContainerSpec, ContainerError> {
    let Parts { pod, container, .. } = parts;
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let id = ContainerId::of(uid, &container.name, attempt)?;
    let allocation = Allocation::of(pod, container, parts.machine)?;
    let mut variables = environment::variables(parts, &allocation)?;
    let held = confine(parts, &allocation)?;
    // An isolated process has no rights of root: its home is its owner's.
    let owner = parts.owner.filter(|_| held.isolation.is_some());
    let home = owner.filter(|_| !parts.in_image);
    if let Some(owner) = home {
        variables.set_default("HOME", &owner.home.display().to_string());
        // Without it programs look up the name of an id that has none.
        variables.set_default("USER", &owner.name);
        variables.set_default("LOGNAME", &owner.name);
    }
    let expand = |words: &Option<Vec<String>>| -> Vec<String> {
        words
            .iter()
            .flatten()
            .map(|word| variables.expand(word))
            .collect()
    };
    let (command, args) = (expand(&container.command), expand(&container.args));
    if !parts.in_image && command.is_empty() && args.is_empty() {
        return Err(ContainerError::NoCommand(container.name.clone()));
    }
    let mut spec = ContainerSpec::new(id, command, parts.log.clone());
    spec.args = args;
    spec.pod = runtime::PodIdentity {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: uid.to_owned(),
    };
    spec.name.clone_from(&container.name);
    spec.attempt = attempt;
    spec.image = container.image.clone().filter(|_| parts.in_image);
    spec.pull = match container.image_pull_policy.as_deref() {
        Some("Always") => PullPolicy::Always,
        Some("Never") => PullPolicy::Never,
        _ => PullPolicy::IfNotPresent,
    };
    spec.cwd = container.working_dir.as_ref().map(PathBuf::from);
    spec.cwd = spec.cwd.or_else(|| home.map(|owner| owner.home.clone()));
    spec.mounts = mounts::mounts(parts, &allocation, &variables)?;
    if home.is_some() {
        let own = temporary::private(&spec.mounts, parts.bounds.temporary);
        spec.mounts.extend(own);
    }
    spec.network = parts.network.map(Path::to_owned);
    spec.hostname = Some(hostname(pod, parts.node));
    spec.hosts_file = Some(parts.hosts_file.to_owned());
    spec.resolv_conf = parts.resolv_conf.map(Path::to_owned);
    spec.limits = limits(container)?;
    if owner.is_some() {
        spec.limits.pids_max = Some(parts.bounds.processes);
    }
    spec.devices = device_files::policy(parts, &allocation);
    spec.user = held.user;
    if owner.is_some() {
        let groups = device_groups::needed(&allocation.files(parts.dev), device_groups::look);
        device_groups::add(&mut spec.user, groups);
    }
    spec.isolation = held.isolation;
    spec.stdin = container.stdin == Some(true);
    spec.stdin_once = container.stdin_once == Some(true);
    spec.tty = container.tty == Some(true);
    spec.log = LogSettings::new(parts.log.clone());
    let grace = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    if let Some(grace) = grace.and_then(|grace| u64::try_from(grace).ok()) {
        spec.grace_seconds = grace;
    }
    spec.env = variables.into_pairs();
    spec.validate()?;
    Ok(spec)
}

/// How the container is isolated.
fn confine(
    parts: &Parts,
    allocation: &Allocation,
) -> Result<confinement::Confinement, ContainerError> {
    let isolation = NodeIsolation {
        owner: parts.owner,
        hidden: &parts.bounds.hidden,
        read_only_host: parts.bounds.read_only_host,
        registers_memory: allocation.registers_memory(),
    };
    Ok(confinement::of(parts.pod, parts.container, &isolation)?)
}

/// The pod's host name.
pub fn hostname(pod: &Pod, node: &NodeFieldValues) -> String {
    let spec = pod.spec.as_ref();
    if spec.and_then(|spec| spec.host_network) == Some(true) {
        return node.name.clone();
    }
    let name = spec
        .and_then(|spec| spec.hostname.as_deref())
        .filter(|name| !name.is_empty())
        .or(pod.metadata.name.as_deref())
        .unwrap_or_default();
    let short: String = name.chars().take(MAX_HOSTNAME).collect();
    short.trim_end_matches(['-', '.']).to_owned()
}

fn limits(container: &Container) -> Result<ResourceLimits, InvalidValue> {
    let Some(resources) = &container.resources else {
        return Ok(ResourceLimits::default());
    };
    let read = |limits: bool, name: &str| -> Result<Option<Quantity>, InvalidValue> {
        let (field, map) = match limits {
            true => ("limits", &resources.limits),
            false => ("requests", &resources.requests),
        };
        let Some(quantity) = map.as_ref().and_then(|map| map.get(name)) else {
            return Ok(None);
        };
        quantity.0.parse().map(Some).map_err(|_| {
            let field = format!("container {:?}: resources.{field}.{name}", container.name);
            InvalidValue::new(field, &quantity.0, "a quantity, as 500m or 2Gi")
        })
    };
    let positive = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0);
    let limit = read(true, "cpu")?;
    Ok(ResourceLimits {
        cpu_request_milli: read(false, "cpu")?
            .or(limit)
            .and_then(|q| positive(q.milli())),
        cpu_limit_milli: limit.and_then(|q| positive(q.milli())),
        memory_limit_bytes: read(true, "memory")?.and_then(|q| positive(q.value())),
        pids_max: None,
    })
}

#[cfg(test)]
mod tests;
