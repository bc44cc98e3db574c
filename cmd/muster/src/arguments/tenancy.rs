//! Options for the Unix accounts of pods on this machine, their write access to the host's files, and their limits on
//! number, CPU, memory, processes and disk.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use agent::{PodDisk, Reserved};
use clap::{Args, ValueEnum};
use resources::quantity::Quantity;

use super::option_error::ServerOptionError;

#[derive(Args, Debug, Clone)]
pub struct TenancyOptions {
    /// Unix accounts of pods, in YAML: users: {NAME: ACCOUNT} by the pod's user (muster.io/user), namespaces: {NAME:
    /// ACCOUNT} for pods of users that are not listed, and labels: {VALUE: ACCOUNT} by the namespace's label
    /// muster.io/unix-account if neither is listed. Root is refused; example: packaging/examples/accounts.yaml
    /// [default: each namespace gets an id of --pod-ids]
    #[arg(long, value_name = "FILE")]
    pub accounts: Option<PathBuf>,
    /// User ids for namespaces without an account on this node, as FIRST-LAST; each namespace keeps its id for good,
    /// and ids of the machine's accounts are skipped [default: 2000000000-2000065535]
    #[arg(long, value_name = "RANGE", value_parser = ids)]
    pub pod_ids: Option<RangeInclusive<u32>>,
    /// Maximum number of processes and threads per container; capped at a quarter of kernel.pid_max
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = agent::POD_PROCESSES,
        value_parser = clap::value_parser!(u64).range(16..)
    )]
    pub pod_pids_limit: u64,
    /// Maximum number of pods on this node
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = agent::MAX_PODS,
        value_parser = clap::value_parser!(u32).range(1..=MAX_PODS_MAX)
    )]
    pub max_pods: u32,
    /// Network of pods without hostNetwork. own: a network and an address for each pod that runs without a container
    /// runtime, from the node's part of the server's --pod-cidr; needs root, ip (iproute2) and nft (nftables)
    /// [default: host]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub pod_network: Option<PodNetwork>,
    /// CPU and memory of this machine that pods may not use because the agent and the container runtime need them, as
    /// cpu=4,memory=8Gi; they are not allocatable [default: nothing]
    #[arg(long, value_name = "AMOUNTS", value_parser = reserved)]
    pub kube_reserved: Option<Reserved>,
    /// The same for the system's own services; both amounts add up [default: nothing]
    #[arg(long, value_name = "AMOUNTS", value_parser = reserved)]
    pub system_reserved: Option<Reserved>,
    /// Access to world-writable host files for pods that run under an id of --pod-ids and see the host's files. Their
    /// volumes and their own /tmp, /var/tmp and /dev/shm are writable in any case; pods of Unix accounts (--accounts)
    /// write wherever their account may [default: read-only]
    #[arg(long, value_enum, value_name = "HOW")]
    pub host_files: Option<HostFiles>,
    /// Disk limit of a pod's volumes and logs if the pod sets no limits.ephemeral-storage, such as 50Gi, or
    /// `unlimited`; a pod that uses more is evicted [default: a tenth of the file system of the agent's data, at
    /// least 1Gi]
    #[arg(long, value_name = "SIZE", value_parser = pod_disk)]
    pub pod_disk: Option<PodDisk>,
}

/// The network of pods.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNetwork {
    /// All pods are in the machine's network
    Host,
    /// Each pod has a network and an address of its own
    Own,
}

/// Access to the host's files for pods without a Unix account.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFiles {
    /// Read world-readable files
    ReadOnly,
    /// Also write to world-writable files
    AsPermitted,
}

/// The most pods that `--max-pods` allows.
const MAX_PODS_MAX: i64 = 10_000;

/// Reads `cpu=4,memory=8Gi`; each of both at most once.
fn reserved(text: &str) -> Result<Reserved, ServerOptionError> {
    let mut found = Reserved::default();
    let mut named = Vec::new();
    for part in text.split(',') {
        let (name, amount) = part.split_once('=').ok_or(ServerOptionError::Reserved)?;
        let amount = amount.parse::<Quantity>().ok();
        let amount = amount.ok_or(ServerOptionError::Reserved)?;
        let number = |number: i64| u64::try_from(number).map_err(|_| ServerOptionError::Reserved);
        match name {
            "cpu" => found.millicpus = number(amount.milli())?,
            "memory" => found.memory_bytes = number(amount.value())?,
            _ => return Err(ServerOptionError::Reserved),
        }
        if named.contains(&name) {
            return Err(ServerOptionError::Reserved);
        }
        named.push(name);
    }
    Ok(found)
}

fn pod_disk(text: &str) -> Result<PodDisk, ServerOptionError> {
    if text == "unlimited" {
        return Ok(PodDisk::Unlimited);
    }
    let bytes = text.parse::<Quantity>().ok().map(|size| size.value());
    let bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    let fine = bytes.filter(|bytes| *bytes > 0).map(PodDisk::Bytes);
    fine.ok_or(ServerOptionError::PodDisk)
}

/// The smallest id of a pod: ids below it belong to the system.
const LEAST_ID: u32 = 1000;
/// The largest id: the two above it stand for the user `nobody` (-2) and for "no change" (-1).
const GREATEST_ID: u32 = u32::MAX - 2;

fn ids(text: &str) -> Result<RangeInclusive<u32>, ServerOptionError> {
    let wrong = || ServerOptionError::Ids {
        least: LEAST_ID,
        most: GREATEST_ID,
    };
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let id = |text: &str| text.parse::<u32>().map_err(|_| wrong());
    let range = id(first)?..=id(last)?;
    let fine = !range.is_empty() && *range.start() >= LEAST_ID && *range.end() <= GREATEST_ID;
    if fine { Ok(range) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_disk_is_a_size_or_unlimited() {
        assert_eq!(pod_disk("50Gi"), Ok(PodDisk::Bytes(50 << 30)));
        assert_eq!(pod_disk("unlimited"), Ok(PodDisk::Unlimited));
        for bad in ["", "0", "-1Gi", "none", "50 GiB"] {
            assert_eq!(pod_disk(bad), Err(ServerOptionError::PodDisk), "{bad}");
        }
    }

    #[test]
    fn reserved_amounts_are_cpu_and_memory() {
        let both = Reserved {
            millicpus: 1500,
            memory_bytes: 8 << 30,
        };
        assert_eq!(reserved("cpu=1500m,memory=8Gi"), Ok(both));
        let cpu = Reserved {
            millicpus: 4000,
            memory_bytes: 0,
        };
        assert_eq!(reserved("cpu=4"), Ok(cpu));
        for bad in [
            "",
            "cpu",
            "cpu=",
            "cpu=-1",
            "disk=1Gi",
            "cpu=1,cpu=2",
            "cpu=1,",
        ] {
            assert_eq!(reserved(bad), Err(ServerOptionError::Reserved), "{bad}");
        }
    }

    #[test]
    fn a_range_of_ids_has_two_ends_above_the_systems_own() {
        assert_eq!(ids("1000-1000"), Ok(1000..=1000));
        assert_eq!(ids("1000-4294967293"), Ok(1000..=4_294_967_293));
        for bad in [
            "",
            "1000",
            "0-5",
            "999-2000",
            "2000-1999",
            "1000-4294967294",
            "1000-99999999999",
            "-1-5",
            "a-b",
        ] {
            let wrong = ids(bad).unwrap_err().to_string();
            assert!(wrong.contains("FIRST-LAST"), "{bad}");
        }
    }
}
