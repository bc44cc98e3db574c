//! The number of processes that may use a GPU at once: NVML's compute mode.

use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::error::NvmlError;

use crate::gpus::open;
use crate::sources::InventorySources;

/// The driver refuses to change a GPU's compute mode.
#[derive(Debug, thiserror::Error)]
#[error("the compute mode of GPU {gpu} cannot be set: {error}")]
pub struct ComputeModeError {
    /// The GPU's UUID.
    pub gpu: String,
    /// The driver's error.
    pub error: NvmlError,
}

/// Limits a GPU to one process at a time, as MPS requires (that process is its server), or lifts
/// the limit. A described GPU has no limit.
///
/// # Errors
///
/// The driver's error.
pub fn set_exclusive(
    source: &InventorySources,
    gpu: &str,
    exclusive: bool,
) -> Result<(), ComputeModeError> {
    if source.description.is_some() || !source.nvml {
        return Ok(());
    }
    let mode = if exclusive {
        ComputeMode::ExclusiveProcess
    } else {
        ComputeMode::Default
    };
    let failed = |error| ComputeModeError {
        gpu: gpu.to_owned(),
        error,
    };
    let nvml = open(source.library.as_deref()).map_err(failed)?;
    let mut device = nvml.device_by_uuid(gpu).map_err(failed)?;
    // Without a change, no privilege is needed.
    if device.compute_mode().is_ok_and(|now| now == mode) {
        return Ok(());
    }
    device.set_compute_mode(mode).map_err(failed)
}
