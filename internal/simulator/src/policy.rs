//! The names of the policies.

use std::fmt;
use std::str::FromStr;

use crate::error::SimulatorError;

/// The scheduler of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// The production scheduler with its defaults.
    #[default]
    Muster,
    /// First come, first served; a gang that does not fit blocks all behind it.
    Fifo,
    /// The shortest first, by expected duration; a gang that does not fit blocks none.
    Sjf,
    /// The highest priority first, then the oldest; a gang that does not fit blocks all behind it.
    Priority,
    /// As `Priority`, with backfill that does not delay the first waiting gang.
    Easy,
    /// As `Easy`, but among gangs of one priority, those of the queue with the smallest allocation
    /// per weight come before the oldest: backfill that honours shares.
    EasyShares,
    /// As `Priority`, with backfill that delays no gang ahead in the queue.
    Conservative,
}

impl Policy {
    /// All, in the order of reports.
    pub const ALL: [Policy; 7] = [
        Policy::Muster,
        Policy::Fifo,
        Policy::Sjf,
        Policy::Priority,
        Policy::Easy,
        Policy::EasyShares,
        Policy::Conservative,
    ];

    /// Its name in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Policy::Muster => "muster",
            Policy::Fifo => "fifo",
            Policy::Sjf => "sjf",
            Policy::Priority => "priority",
            Policy::Easy => "easy",
            Policy::EasyShares => "easy-shares",
            Policy::Conservative => "conservative",
        }
    }

    /// The reference scheduler of this policy; none for the production scheduler.
    pub(crate) fn reference(self) -> Option<Policy> {
        (self != Policy::Muster).then_some(self)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = SimulatorError;

    fn from_str(text: &str) -> Result<Policy, SimulatorError> {
        Policy::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| {
                let valid = format!("one of {}", Policy::ALL.map(Policy::name).join(", "));
                SimulatorError::option("--policy", text, valid)
            })
    }
}
