//! What a GPU shows of faults: what its driver wants done about it, rows of memory, throttling,
//! NVLinks. Owns the types, the words for what stops a GPU, and the reading; whether a sign is one
//! of a fault at all is judged elsewhere where it takes two looks to tell.

use nvml_wrapper::device::Device;
use nvml_wrapper::error::NvmlError;
use serde::{Deserialize, Serialize};

use crate::description::State;

/// NVML's numbers of fields: what the driver wants done, whether a replacement of rows waits, and
/// whether one has failed; then errors on all NVLinks, as [`NvlinkErrors`] has them.
const FIELDS: [u32; 7] = [230, 144, 145, 38, 45, 52, 59];

/// What a GPU shows of faults now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Signs {
    /// What the driver would have done about it; `None` where it doesn't say (before 570).
    pub recovery: Option<Recovery>,
    /// Whether rows of its memory wait for a reset to be replaced.
    pub rows_pending: bool,
    /// Whether rows of its memory could not be replaced.
    pub rows_failed: bool,
    /// Why its clocks are low: NVML's bits (`nvmlClocksEventReasons`).
    pub throttle: u64,
    /// Its NVLinks that are up.
    pub nvlinks: u32,
    /// Errors on its NVLinks since the driver was loaded; `None` where it doesn't say.
    pub nvlink_errors: Option<NvlinkErrors>,
}

/// Errors on all NVLinks of a GPU, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvlinkErrors {
    /// Damaged units of flow control (CRC).
    pub flits: u64,
    /// Damaged data (CRC).
    pub data: u64,
    /// What was sent again.
    pub replays: u64,
    /// How often a link had to be trained anew.
    pub recoveries: u64,
}

impl NvlinkErrors {
    /// NVML's numbers of their fields, in the order above.
    pub(crate) const FIELDS: [u32; 4] = [38, 45, 52, 59];

    /// From the value of each of [`NvlinkErrors::FIELDS`].
    pub(crate) fn of(value: impl Fn(u32) -> Option<u64>) -> Option<NvlinkErrors> {
        let [flits, data, replays, recoveries] = NvlinkErrors::FIELDS.map(value);
        Some(NvlinkErrors {
            flits: flits?,
            data: data?,
            replays: replays?,
            recoveries: recoveries?,
        })
    }

    fn described(state: &State) -> Option<NvlinkErrors> {
        let [flits, data, replays, recoveries] = state.nvlink_errors?;
        Some(NvlinkErrors {
            flits,
            data,
            replays,
            recoveries,
        })
    }
}

/// What the driver would have done about a GPU before it is used again.
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
    /// That nobody sends over its NVLinks any more.
    DrainPeers,
    /// That it gets no new work, and a reset once what runs has ended.
    DrainAndReset,
}

impl Recovery {
    /// By NVML's number (`nvmlDeviceGpuRecoveryAction_t`); one that isn't known here wants nothing.
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

/// What stops a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// In words, with what is to be done.
    pub problem: String,
    /// Whether what runs on it can't go on. Else it may end by itself.
    pub fatal: bool,
}

impl Fault {
    /// A GPU's that does not answer.
    pub(crate) fn silent(error: &NvmlError) -> Fault {
        Fault {
            problem: format!("it does not answer: {error}"),
            fatal: matches!(error, NvmlError::GpuLost),
        }
    }
}

impl Signs {
    /// A GPU's, from its driver.
    pub(crate) fn read(device: &Device<'_>) -> Signs {
        let fields = crate::meter::fields(device, &FIELDS);
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

    /// A described GPU's, whose memory corrects its errors or not.
    pub(crate) fn described(state: &State, corrects: bool) -> Signs {
        if state.lost {
            return Signs::default();
        }
        Signs {
            recovery: (!state.old_driver).then(|| Recovery::of(state.recovery.into())),
            rows_pending: corrects && state.remap_pending,
            rows_failed: corrects && state.remap_failed,
            throttle: state.throttle,
            nvlinks: 0,
            nvlink_errors: NvlinkErrors::described(state),
        }
    }

    /// What stops the GPU, if anything does.
    pub fn fault(&self) -> Option<Fault> {
        let (problem, fatal) = match (self.recovery.unwrap_or_default(), self.rows_failed) {
            (Recovery::Reset, _) => ("the driver wants it reset (nvidia-smi --gpu-reset)", true),
            (Recovery::Reboot, _) => ("the driver wants the machine restarted", true),
            (_, true) => (
                "rows of its memory could not be replaced; have the card exchanged",
                false,
            ),
            (Recovery::DrainPeers, _) => (
                "the driver wants nobody to send over its NVLinks; end its work",
                false,
            ),
            (Recovery::DrainAndReset, _) => (
                "the driver wants it to have no new work, and reset once its work has ended \
                 (nvidia-smi --gpu-reset)",
                false,
            ),
            (Recovery::None, false) => return None,
        };
        Some(Fault {
            problem: problem.to_owned(),
            fatal,
        })
    }
}
