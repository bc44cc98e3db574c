//! The agent's configuration, checked.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use devices::mps::MpsConfig;
use devices::over_share::OverShare;
use devices::rdma::RdmaSettings;
use devices::sharing::Sharing;
use devices::vendors::Vendor;
use devices::xids::XidSources;
use hardware::Inventory;
use hardware::nccl::TreeDelivery;

use crate::accounts::Accounts;
use crate::container::PodLimits;
use crate::error::AgentError;
use crate::eviction::PodDisk;
use crate::identity::Trust;
use crate::metrics::Listen;
use crate::pod_network::PodNetworkMode;
use crate::upgrade::BinaryUpgrade;

/// Default maximum number of pods on a node.
pub const MAX_PODS: u32 = 250;

/// Processes and threads that a container may have unless configured otherwise: the data loaders of
/// eight ranks on a machine of many cores need thousands of threads.
pub const POD_PROCESSES: u64 = 32_768;

/// A container may use one in so many of the kernel's process ids.
const PROCESS_SHARE: u64 = 4;

/// A private temporary directory may use one in so many bytes of the machine's memory,
const TEMPORARY_SHARE: u64 = 8;
/// and at most so many bytes.
const TEMPORARY_MOST: u64 = 16 << 30;

/// Default interval at which the hardware is read.
pub const LOOK: Duration = Duration::from_secs(15);

/// CPU and memory that pods may not use: they are left to the system and to the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Thousandths of a CPU.
    pub millicpus: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

impl Reserved {
    /// Both amounts together.
    #[must_use]
    pub fn and(self, other: Reserved) -> Reserved {
        Reserved {
            millicpus: self.millicpus.saturating_add(other.millicpus),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
        }
    }

    /// Refuses amounts that leave pods nothing of a machine.
    pub(crate) fn check(self, cpus: u64, memory_bytes: u64) -> Result<(), AgentError> {
        let too_much = |value: u64, unit: &str, resource: &str| AgentError::Setting {
            field: "kube-reserved and system-reserved",
            value: format!("{value} {unit}"),
            detail: format!("reserve less {resource} than the machine has, so that pods can run"),
        };
        if self.millicpus >= cpus.saturating_mul(1000).max(1) {
            return Err(too_much(self.millicpus, "thousandths of a CPU", "CPU"));
        }
        if self.memory_bytes >= memory_bytes.max(1) {
            return Err(too_much(self.memory_bytes, "bytes of memory", "memory"));
        }
        Ok(())
    }
}

/// An agent's configuration.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The server, `https://HOST:PORT`.
    pub server: String,
    /// A join token; needed at the first start only.
    pub token: Option<String>,
    /// The file with the certificate of the server's authority; or
    pub ca: Option<PathBuf>,
    /// that certificate's SHA-256 fingerprint; one of them is needed at the first start only.
    pub ca_fingerprint: Option<String>,
    /// The directory of all of the agent's files (`DIR/agent`).
    pub data: PathBuf,
    /// The node's name.
    pub node_name: String,
    /// The address under which the node and its pods are reached.
    pub node_ip: IpAddr,
    /// A file that describes a machine; it replaces the GPUs that are present.
    pub machine_description: Option<PathBuf>,
    /// Whether the commands of pods that name an image may run on the host.
    pub host_images: bool,
    /// A container runtime's CRI socket.
    pub cri_socket: Option<PathBuf>,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// A file that describes the expected network cards; by default, what most cards of a kind
    /// have.
    pub expected: Option<PathBuf>,
    /// How MIG slices are offered: `none`, `single` or `mixed`. If absent, as the machine's
    /// description says, else `mixed`.
    pub mig_strategy: Option<String>,
    /// Devices of other vendors.
    pub vendors: Vec<Vendor>,
    /// The RDMA cards that containers share, and the resource name of each.
    pub rdma: RdmaSettings,
    /// When NCCL gets a file with the PCIe tree, of the machine or as in `expected`.
    pub topology: TreeDelivery,
    /// Interval at which the hardware is read for changes and for its load.
    pub look: Duration,
    /// Where XIDs of GPUs are read, and the action for each. State is kept below `data` if this
    /// names no file.
    pub xids: XidSources,
    /// Where metrics are served; not served if absent.
    pub metrics: Option<Listen>,
    /// Which GPUs containers share by MPS; the containers of other shared GPUs use them in turns.
    pub sharing: Sharing,
    /// How MPS daemons are started.
    pub mps: MpsConfig,
    /// The action for containers that use more of a GPU than their share.
    pub over_share: OverShare,
    /// The Unix accounts that pods run as.
    pub accounts: Accounts,
    /// The range of ids for the namespaces of pods without an account.
    pub pod_ids: RangeInclusive<u32>,
    /// Maximum number of processes and threads of a container.
    pub pod_processes: u64,
    /// Maximum number of pods on the node.
    pub max_pods: u32,
    /// Which network pods are in.
    pub pod_network: PodNetworkMode,
    /// What pods may not use of the machine.
    pub reserved: Reserved,
    /// Disk limit of a pod that specifies none.
    pub pod_disk: PodDisk,
    /// Whether pods that run as an id of `pod_ids` see the host's own files read-only.
    pub read_only_host: bool,
    /// Directories that are hidden from pods: `data`, and a server's on the same machine.
    pub hidden: Vec<PathBuf>,
    /// The command that becomes a container's shim once a directory is appended.
    pub shim_command: Vec<OsString>,
    /// The agent's own binary, and whether the server may replace it.
    pub upgrade: Arc<BinaryUpgrade>,
}

impl AgentConfig {
    /// How the agent verifies the server at the first start; a file takes precedence over a
    /// fingerprint.
    pub(crate) fn trust(&self) -> Option<Trust> {
        let file = self.ca.clone().map(Trust::AuthorityFile);
        file.or_else(|| self.ca_fingerprint.clone().map(Trust::Fingerprint))
    }

    /// The join token, and how the agent verifies the server to which it sends the token.
    /// `identity` is the directory that has no identity yet.
    pub(crate) fn credentials(&self, identity: &Path) -> Result<(&str, Trust), AgentError> {
        let Some(token) = &self.token else {
            return Err(AgentError::NotJoined {
                path: identity.to_owned(),
            });
        };
        let trust = self.trust().ok_or(AgentError::TokenWithoutFingerprint)?;
        Ok((token, trust))
    }

    pub(crate) fn check(&self) -> Result<(), AgentError> {
        let name = &self.node_name;
        let fine = !name.is_empty()
            && name.len() <= 253
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b));
        if fine {
            return Ok(());
        }
        Err(AgentError::Setting {
            field: "node-name",
            value: name.clone(),
            detail: "use lower case letters, digits, '-' and '.', at most 253".to_owned(),
        })
    }

    /// The limits of every pod on a machine with so much memory.
    pub(crate) fn bounds(&self, memory_bytes: u64) -> PodLimits {
        let numbers = std::fs::read_to_string("/proc/sys/kernel/pid_max");
        let numbers = numbers.ok().and_then(|text| text.trim().parse().ok());
        // If the kernel has few process ids, a container must leave some to the others.
        let most = numbers.map_or(u64::MAX, |count: u64| (count / PROCESS_SHARE).max(1));
        let hidden = self.hidden.iter().chain([&self.data]);
        PodLimits {
            hidden: hidden.filter_map(|dir| dir.canonicalize().ok()).collect(),
            processes: self.pod_processes.min(most),
            temporary: (memory_bytes / TEMPORARY_SHARE).clamp(1, TEMPORARY_MOST),
            read_only_host: self.read_only_host,
            command_line: self.shim_command.first().map(PathBuf::from),
        }
    }

    /// Merges the administrator's settings into the inventory.
    pub(crate) fn take_in(&self, mut found: Inventory) -> Inventory {
        if let Some(strategy) = &self.mig_strategy {
            found.mig_strategy.clone_from(strategy);
        }
        found
    }

    pub(crate) fn hardware(&self) -> hardware::InventorySources {
        hardware::InventorySources {
            description: self.machine_description.clone(),
            ..hardware::InventorySources::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> AgentConfig {
        AgentConfig {
            server: "https://127.0.0.1:1".to_owned(),
            token: None,
            ca: None,
            ca_fingerprint: None,
            data: PathBuf::new(),
            node_name: name.to_owned(),
            node_ip: IpAddr::from([127, 0, 0, 1]),
            machine_description: None,
            expected: None,
            mig_strategy: None,
            vendors: Vec::new(),
            rdma: RdmaSettings::default(),
            topology: TreeDelivery::default(),
            host_images: false,
            cri_socket: None,
            labels: BTreeMap::new(),
            look: LOOK,
            xids: XidSources::default(),
            metrics: None,
            sharing: Sharing::default(),
            mps: MpsConfig::default(),
            over_share: OverShare::default(),
            accounts: Accounts::default(),
            pod_ids: crate::POD_IDS,
            pod_processes: POD_PROCESSES,
            max_pods: MAX_PODS,
            pod_network: PodNetworkMode::default(),
            reserved: Reserved::default(),
            pod_disk: PodDisk::Share,
            read_only_host: true,
            hidden: Vec::new(),
            shim_command: Vec::new(),
            upgrade: BinaryUpgrade::off("a test"),
        }
    }

    #[test]
    fn the_limits_of_pods_follow_the_machine_within_bounds() {
        let mut config = named("a");
        config.data = "/tmp".into();
        config.hidden = vec!["/nowhere/at/all".into(), "/tmp".into()];
        let bounds = config.bounds(64 << 30);
        assert_eq!(bounds.temporary, 8 << 30);
        assert!(bounds.processes >= 1 && bounds.processes <= POD_PROCESSES);
        assert_eq!(bounds.hidden, vec![PathBuf::from("/tmp"); 2]);
        assert_eq!(config.bounds(u64::MAX).temporary, TEMPORARY_MOST);
        config.pod_processes = 3;
        assert_eq!(config.bounds(0).processes, 3);
        assert_eq!(config.bounds(0).temporary, 1);
    }

    #[test]
    fn what_is_reserved_must_leave_something_to_pods() {
        let amounts = |millicpus, memory_bytes| Reserved {
            millicpus,
            memory_bytes,
        };
        let both = amounts(2000, 4).and(amounts(1000, u64::MAX));
        assert_eq!(both, amounts(3000, u64::MAX));
        assert!(amounts(3999, 7).check(4, 8).is_ok());
        assert!(Reserved::default().check(0, 0).is_ok());
        let error = amounts(4000, 0).check(4, 8).unwrap_err().to_string();
        assert!(error.contains("4000 thousandths of a CPU"), "{error}");
        let error = amounts(0, 8).check(4, 8).unwrap_err().to_string();
        assert!(error.contains("8 bytes of memory"), "{error}");
    }

    #[test]
    fn a_file_takes_precedence_over_a_fingerprint() {
        let mut config = named("a");
        assert_eq!(config.trust(), None);
        config.ca_fingerprint = Some("sha256:x".to_owned());
        assert_eq!(
            config.trust(),
            Some(Trust::Fingerprint("sha256:x".to_owned()))
        );
        config.ca = Some(PathBuf::from("ca.pem"));
        assert_eq!(
            config.trust(),
            Some(Trust::AuthorityFile(PathBuf::from("ca.pem")))
        );
    }

    #[test]
    fn a_token_is_refused_without_a_fingerprint_and_its_absence_is_another_error() {
        let mut config = named("a");
        let missing = |config: &AgentConfig| {
            let error = config.credentials(Path::new("identity")).unwrap_err();
            error.to_string()
        };
        assert!(missing(&config).contains("no identity in identity"));
        config.token = Some("id.secret".to_owned());
        let error = missing(&config);
        assert!(error.contains("fingerprint") && !error.contains("id.secret"));
        config.ca_fingerprint = Some("sha256:x".to_owned());
        let (token, trust) = config.credentials(Path::new("identity")).unwrap();
        assert_eq!(
            (token, trust),
            ("id.secret", Trust::Fingerprint("sha256:x".to_owned()))
        );
    }

    #[test]
    fn a_name_that_no_node_can_have_is_refused() {
        for (name, good) in [
            ("gpu-1.rack", true),
            ("", false),
            ("GPU", false),
            ("a b", false),
        ] {
            assert_eq!(named(name).check().is_ok(), good, "{name}");
        }
    }
}
