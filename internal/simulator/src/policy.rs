//! Owns the names of those who can decide.

use std::fmt;
use std::str::FromStr;

use crate::error::SimulatorError;

/// Who decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// The production scheduler with its defaults.
    #[default]
    Muster,
    /// First come, first served; whoever does not fit holds up all behind.
    Fifo,
    /// The shortest first, by expected duration; what does not fit holds up nobody.
    Sjf,
    /// The highest priority first, then the oldest; whoever does not fit holds up all behind.
    Priority,
    /// As `Priority`, and others go ahead where they don't delay the first that waits.
    Easy,
    /// As `Easy`, but of one priority those whose queue holds the least for its weight go before
    /// the oldest: backfill that honours shares.
    EasyShares,
    /// As `Priority`, and others go ahead where they delay none of those before them.
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

    /// The reference scheduler that it is; none for the production scheduler.
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
            .ok_or_else(|| SimulatorError::Option {
                option: "--policy".to_owned(),
                value: text.to_owned(),
                wanted: format!(
                    "the policies are {}",
                    Policy::ALL.map(Policy::name).join(", ")
                ),
            })
    }
}
