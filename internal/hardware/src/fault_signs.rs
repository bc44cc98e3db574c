//! A GPU's signs of faults: the driver's recovery action, remapped rows, throttling, NVLinks. Owns
//! the types, the messages for faults that stop a GPU, and the reading; other code judges signs
//! that need two readings.

use std::collections::BTreeMap;

use nvml_wrapper::device::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use serde::{Deserialize, Serialize};

/// NVML's field numbers: recovery action, pending row remapping, failed row remapping; then errors
/// on all NVLinks, in the order of [`NvlinkErrors`].
const FIELDS: [u32; 7] = [230, 144, 145, 38, 45, 52, 59];

/// A GPU's current signs of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Signs {
    /// The driver's recovery action; `None` if it does not report one (before 570).
    pub recovery: Option<Recovery>,
    /// Whether a row remapping is pending until a reset.
    pub rows_pending: bool,
    /// Whether a row remapping has failed.
    pub rows_failed: bool,
    /// Why its clocks are low: NVML's bits (`nvmlClocksEventReasons`).
    pub throttle: u64,
    /// Number of its NVLinks that are up.
    pub nvlinks: u32,
    /// Errors on its NVLinks since the driver was loaded; `None` if not reported.
    pub nvlink_errors: Option<NvlinkErrors>,
}

/// Errors on all NVLinks of a GPU, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvlinkErrors {
    /// Flow control CRC errors.
    pub flits: u64,
    /// Data CRC errors.
    pub data: u64,
    /// Replays.
    pub replays: u64,
    /// Recoveries: how often a link was trained again.
    pub recoveries: u64,
}

impl NvlinkErrors {
    /// NVML's field numbers, in the order above.
    pub(crate) const FIELDS: [u32; 4] = [38, 45, 52, 59];

    /// The errors with the given value of each of [`NvlinkErrors::FIELDS`].
    pub(crate) fn of(value: impl Fn(u32) -> Option<u64>) -> Option<NvlinkErrors> {
        let [flits, data, replays, recoveries] = NvlinkErrors::FIELDS.map(value);
        Some(NvlinkErrors {
            flits: flits?,
            data: data?,
            replays: replays?,
            recoveries: recoveries?,
        })
    }
}

/// The recovery action that a GPU needs before it is used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// Nothing.
    #[default]
    None,
    /// A reset.
    Reset,
    /// A restart of the machine.
    Reboot,
    /// Stop all traffic over its NVLinks.
    DrainPeers,
    /// Give it no new work, and reset it when the running work has ended.
    DrainAndReset,
}

impl Recovery {
    /// The action of NVML's number (`nvmlDeviceGpuRecoveryAction_t`); an unknown number means
    /// none.
    pub fn of(number: u64) -> Recovery {
        match number {
            1 => Recovery::Reset,
            2 => Recovery::Reboot,
            3 => Recovery::DrainPeers,
            4 => Recovery::DrainAndReset,
            _ => Recovery::None,
        }
    }
}

/// A fault that stops a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFault {
    /// The fault with its remedy.
    pub problem: String,
    /// Whether running work on it cannot continue. Otherwise the work may finish.
    pub fatal: bool,
}

impl GpuFault {
    /// The fault of a GPU that does not answer.
    pub(crate) fn silent(error: &NvmlError) -> GpuFault {
        GpuFault {
            problem: format!("it does not answer: {error}"),
            fatal: matches!(error, NvmlError::GpuLost),
        }
    }
}

impl Signs {
    /// A GPU's signs, from its driver.
    pub(crate) fn read(device: &Device<'_>) -> Signs {
        let fields = fields(device, &FIELDS);
        let field = |number: u32| fields.get(&number).copied();
        Signs {
            recovery: field(230).map(Recovery::of),
            rows_pending: field(144) == Some(1),
            rows_failed: field(145) == Some(1),
            throttle: (device.current_throttle_reasons()).map_or(0, |reasons| reasons.bits()),
            nvlinks: 0,
            nvlink_errors: NvlinkErrors::of(field),
        }
    }

    /// The fault that stops the GPU, if any.
    pub fn fault(&self) -> Option<GpuFault> {
        let (problem, fatal) = match (self.recovery.unwrap_or_default(), self.rows_failed) {
            (Recovery::Reset, _) => (
                "the driver asks for a reset of the GPU (nvidia-smi --gpu-reset)",
                true,
            ),
            (Recovery::Reboot, _) => ("the driver asks for a restart of the machine", true),
            (_, true) => (
                "rows of the GPU's memory could not be replaced; have the card exchanged",
                false,
            ),
            (Recovery::DrainPeers, _) => (
                "the driver asks that no program use the GPU's NVLinks; end the GPU's work",
                false,
            ),
            (Recovery::DrainAndReset, _) => (
                "the driver asks that the GPU take no new work, and for a reset once its work has ended (nvidia-smi \
                 --gpu-reset)",
                false,
            ),
            (Recovery::None, false) => return None,
        };
        Some(GpuFault {
            problem: problem.to_owned(),
            fatal,
        })
    }
}

/// The values of these fields that the GPU has, by number.
pub(crate) fn fields(device: &Device<'_>, wanted: &[u32]) -> BTreeMap<u32, u64> {
    let wanted: Vec<FieldId> = wanted.iter().copied().map(FieldId).collect();
    let answers = device.field_values_for(&wanted);
    let samples = answers.into_iter().flatten().flatten();
    samples
        .filter_map(|sample| {
            let value = match sample.value.ok()? {
                SampleValue::U32(value) => u64::from(value),
                SampleValue::U64(value) => value,
                SampleValue::I64(value) => u64::try_from(value).ok()?,
                SampleValue::F64(_) => return None,
            };
            Some((sample.field.0, value))
        })
        .collect()
}
