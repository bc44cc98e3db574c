//! What an agent is started with, checked.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use hardware::Inventory;
use hardware::nccl::Tell;

use crate::error::AgentError;
use crate::identity::Trust;
use crate::kubelet::Sharing;
use crate::metrics::Listen;
use crate::mps::MpsConfig;
use crate::rdma::RdmaSettings;
use crate::shares::OverShare;
use crate::vendors::Vendor;
use crate::xids::Hearing;

/// Pods that a node takes.
pub const MAX_PODS: u32 = 250;

/// How often the hardware is looked at, unless configured otherwise.
pub const LOOK: Duration = Duration::from_secs(15);

/// What the node says its agent is.
pub const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"), "+muster");

/// How an agent is started.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The server, `https://HOST:PORT`.
    pub server: String,
    /// A join token; needed at the first start only.
    pub token: Option<String>,
    /// The file with the server's authority's certificate; or
    pub ca: Option<PathBuf>,
    /// that certificate's SHA-256 fingerprint; one of them is needed at the first start only.
    pub ca_fingerprint: Option<String>,
    /// Where everything of the agent lies (`DIR/agent`).
    pub data: PathBuf,
    /// The node's name.
    pub node_name: String,
    /// The address under which the node and its pods are reached.
    pub node_ip: IpAddr,
    /// A file that describes a machine, in place of the GPUs that are there.
    pub machine_description: Option<PathBuf>,
    /// Commands of pods that name an image may run on the host.
    pub host_images: bool,
    /// A container runtime's CRI socket.
    pub cri_socket: Option<PathBuf>,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// A file that describes which network cards there are to be, in place of what most of a kind have.
    pub expected: Option<PathBuf>,
    /// How slices of GPUs are given out: `none`, `single` or `mixed`; where absent as the machine's
    /// description says, else `mixed`.
    pub mig_strategy: Option<String>,
    /// Other vendors' devices.
    pub vendors: Vec<Vendor>,
    /// Which RDMA cards containers share, as which resources.
    pub rdma: RdmaSettings,
    /// When NCCL is told the PCIe tree, of the machine or as `expected` has it.
    pub topology: Tell,
    /// How often the hardware is looked at for changes, and for what it is doing.
    pub look: Duration,
    /// Where XIDs of GPUs are heard, and what is done about them. Kept below `data` if it doesn't
    /// say where.
    pub xids: Hearing,
    /// Where metrics are served; nowhere if absent.
    pub metrics: Option<Listen>,
    /// Which GPUs are shared by MPS, by containers that have parts of them; else they have them in
    /// turns.
    pub sharing: Sharing,
    /// Where MPS daemons come from.
    pub mps: MpsConfig,
    /// What is done about containers that have more of a GPU than their share.
    pub over_share: OverShare,
    /// The command that is a container's shim once a directory is added.
    pub shim_command: Vec<OsString>,
}

impl AgentConfig {
    /// How the server is known at the first start; a file goes before a fingerprint.
    pub(crate) fn trust(&self) -> Option<Trust> {
        let file = self.ca.clone().map(Trust::AuthorityFile);
        file.or_else(|| self.ca_fingerprint.clone().map(Trust::Fingerprint))
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

    /// What was found, with what the administrator says of it.
    pub(crate) fn take_in(&self, mut found: Inventory) -> Inventory {
        if let Some(strategy) = &self.mig_strategy {
            found.mig_strategy.clone_from(strategy);
        }
        found
    }

    pub(crate) fn hardware(&self) -> hardware::Source {
        hardware::Source {
            description: self.machine_description.clone(),
            ..hardware::Source::default()
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
            topology: Tell::default(),
            host_images: false,
            cri_socket: None,
            labels: BTreeMap::new(),
            look: LOOK,
            xids: Hearing::default(),
            metrics: None,
            sharing: Sharing::default(),
            mps: MpsConfig::default(),
            over_share: OverShare::default(),
            shim_command: Vec::new(),
        }
    }

    #[test]
    fn a_file_goes_before_a_fingerprint() {
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
