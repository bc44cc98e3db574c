//! Options of `muster agent` and `muster up` for GPU sharing, and the help text on its isolation.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use devices::over_share::OverShare;
use devices::sharing::Selection;

use super::invalid::InvalidValue;

/// Isolation of each way of sharing a GPU; wrapped for a terminal.
pub const ISOLATION: &str = "Sharing GPUs: what is kept apart, and what is not
  whole      a GPU that one container has. What others do on other GPUs reaches it over PCIe,
             NVLinks, power and cooling alone.
  MIG        slices have their own memory, its bandwidth and cache, and multiprocessors; what
             fails in one ends that one. Not apart: what the GPU draws and how hot it is,
             PCIe, and a GPU that fails or is reset.
  MPS        processes run at once, each within its memory limit and its part of the
             multiprocessors, in an address space of its own. Not apart: memory bandwidth,
             caches, copy engines, PCIe, and faults: a process that ends in a fatal one takes
             all with it that share the GPU, and so does the daemon. Containers share the
             node's /dev/shm; those of different users have the GPU in turns. Where parts are
             not all equal their limits are in the container's environment, which its
             processes can change.
  in turns   (time slicing, and parts of GPUs without MPS) processes run one after another,
             in address spaces of their own. Not apart: memory, of which each can take all;
             time, of which each gets as much as it has work for; and what the GPU as a whole
             goes down with.
  By MPS and in turns a container's real memory is watched, as the driver counts it for each
  process: who has more than his part at 3 looks, 5 seconds apart, is told of (event
  OverGpuShare, metric muster_gpu_over_share), and by --over-share end ended. 512 MiB, or 5%,
  are spared for what a program does not know that it has. Nothing holds a container to its
  time but MPS. Who shares in turns by replicas alone has no part that he could exceed, and
  the memory of slices is not watched.";

/// Options for GPU sharing.
#[derive(Args, Debug, Clone, Default)]
pub struct SharingOptions {
    /// GPUs that containers share through NVIDIA's Multi-Process Service (MPS), which limits each container to its
    /// requested share: all, or indices and UUIDs with commas. A container gets one of these GPUs or a share of one;
    /// a container that requests more than one GPU is placed only on nodes with enough GPUs that are not shared
    /// through MPS. With --engine kubernetes, set sharing.mps in --device-plugin-config instead [default: none,
    /// containers share GPUs by time slicing]
    #[arg(long, value_name = "GPUS", value_parser = selection)]
    pub mps: Option<Selection>,
    /// NVIDIA's MPS control program
    #[arg(long, value_name = "PROGRAM", default_value = devices::mps::PROGRAM)]
    pub mps_control: PathBuf,
    /// Directory for the MPS control daemons; containers see it under the same path
    #[arg(long, value_name = "DIR", default_value = devices::mps::DIRECTORY)]
    pub mps_dir: PathBuf,
    /// Action on a container that uses more GPU memory than its requested share: report it, or also end it (with
    /// --engine kubernetes its pod is evicted)
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

fn selection(text: &str) -> Result<Selection, InvalidValue> {
    if text == "all" {
        return Ok(Selection::All);
    }
    let gpu = |one: &str| one.starts_with("GPU-") || one.parse::<u32>().is_ok();
    let these: Vec<String> = text.split(',').map(str::to_owned).collect();
    if these.iter().all(|one| gpu(one)) {
        return Ok(Selection::These(these));
    }
    Err(InvalidValue::Gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_all_or_named_by_index_and_uuid() {
        let these = Selection::These(vec!["0".into(), "GPU-ab".into()]);
        assert_eq!(selection("all"), Ok(Selection::All));
        assert_eq!(selection("0,GPU-ab"), Ok(these));
        for bad in ["", "0,", "none", "MIG-1", "0:1", "-1"] {
            assert_eq!(selection(bad), Err(InvalidValue::Gpus), "{bad}");
        }
    }
}
