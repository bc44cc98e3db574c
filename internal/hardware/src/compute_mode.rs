//! How many processes a GPU takes at once: NVML's compute mode.

use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::error::NvmlError;

use crate::Source;
use crate::gpus::open;

/// The driver does not change how many processes a GPU takes.
#[derive(Debug, thiserror::Error)]
#[error("the compute mode of GPU {gpu} can't be set: {error}")]
pub struct ComputeModeError {
    /// The GPU's UUID.
    pub gpu: String,
    /// What the driver says.
    pub error: NvmlError,
}

/// Lets one process at a time use a GPU, as MPS wants it, whose server is that one; or any number.
/// A described GPU takes any.
///
/// # Errors
///
/// Why the driver doesn't.
pub fn set_exclusive(source: &Source, gpu: &str, exclusive: bool) -> Result<(), ComputeModeError> {
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
    // Nobody is asked for a right that isn't needed.
    if device.compute_mode().is_ok_and(|now| now == mode) {
        return Ok(());
    }
    device.set_compute_mode(mode).map_err(failed)
}
