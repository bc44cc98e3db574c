//! Options of `muster agent` and `muster up` for GPU sharing, and the help text on its isolation.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use devices::over_share::OverShare;
use devices::sharing::DeviceSelection;

use super::option_error::ServerOptionError;

/// Isolation of each way of sharing a GPU; wrapped for a terminal.
pub const ISOLATION: &str = "Sharing GPUs: what is kept apart, and what is not
  whole      a GPU that one container has. Work on other GPUs affects it over PCIe, NVLinks,
             power and cooling only.
  MIG        slices have their own memory, its bandwidth and cache, and multiprocessors; a
             fault in a slice ends that slice's processes only. Not apart: power, heat,
             PCIe, and a GPU that fails or is reset.
  MPS        processes run at once, each within its memory limit and its part of the
             multiprocessors, in an address space of its own. Not apart: memory bandwidth,
             caches, copy engines, PCIe, and faults: a fatal fault of a process ends all
             processes that share the GPU, and so does the end of the daemon. Containers share the
             node's /dev/shm; those of different users have the GPU in turns. Where parts are
             not all equal their limits are in the container's environment, which its
             processes can change.
  in turns   (time slicing, and parts of GPUs without MPS) processes run one after another,
             in address spaces of their own. Not apart: memory, of which each can take all;
             time, of which each gets as much as it has work for; and faults of the GPU as a
             whole.
  With MPS and in turns, the agent measures each container's GPU memory, as the driver counts it for
  each process. A container that uses more than its part at 3 measurements, 5 seconds apart, is
  reported (event OverGpuShare, metric muster_gpu_over_share); --over-share end also ends it. 512 MiB
  or 5% above the part are allowed, for memory that the driver adds to a program's own. Only MPS limits
  a container's time. A container that takes turns by replicas alone has no part that it could
  exceed, and the memory of slices is not measured.";

/// Options for GPU sharing.
#[derive(Args, Debug, Clone, Default)]
pub struct SharingOptions {
    /// NVIDIA's MPS control program
    #[arg(long, value_name = "PROGRAM", default_value = devices::mps::PROGRAM)]
    pub mps_control: PathBuf,
    /// Directory for the MPS control daemons; containers see it under the same path
    #[arg(long, value_name = "DIR", default_value = devices::mps::DIRECTORY)]
    pub mps_dir: PathBuf,
    /// Action on a container that uses more GPU memory than its requested share: report it, or also end it (in a
    /// Kubernetes cluster its pod is evicted)
    #[arg(long, value_enum, value_name = "POLICY", default_value_t)]
    pub over_share: OverShareBy,
}

/// Actions on a container that uses more than its share.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverShareBy {
    /// Report it
    #[default]
    Report,
    /// Report it and end it
    End,
}

impl From<OverShareBy> for OverShare {
    fn from(by: OverShareBy) -> OverShare {
        match by {
            OverShareBy::Report => OverShare::Report,
            OverShareBy::End => OverShare::End,
        }
    }
}

/// Reads the GPUs of --mps.
pub fn selection(text: &str) -> Result<DeviceSelection, ServerOptionError> {
    if text == "all" {
        return Ok(DeviceSelection::All);
    }
    let gpu = |one: &str| one.starts_with("GPU-") || one.parse::<u32>().is_ok();
    let these: Vec<String> = text.split(',').map(str::to_owned).collect();
    if these.iter().all(|one| gpu(one)) {
        return Ok(DeviceSelection::These(these));
    }
    Err(ServerOptionError::Gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_all_or_named_by_index_and_uuid() {
        let these = DeviceSelection::These(vec!["0".into(), "GPU-ab".into()]);
        assert_eq!(selection("all"), Ok(DeviceSelection::All));
        assert_eq!(selection("0,GPU-ab"), Ok(these));
        for bad in ["", "0,", "none", "MIG-1", "0:1", "-1"] {
            assert_eq!(selection(bad), Err(ServerOptionError::Gpus), "{bad}");
        }
    }
}
