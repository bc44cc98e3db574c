//! The production scheduler's settings for a simulation: the same [`Settings`] that a server reads,
//! from a `SchedulerConfig` among the files or from the command line.

use scheduler::{Actions, PlacementStrategy, settings};

use crate::error::SimulatorError;

pub use scheduler::settings::{KIND, ParseError, Settings, read, takes};

/// Reads `--actions`: words separated by commas.
pub fn actions_option(text: &str) -> Result<Actions, SimulatorError> {
    let words: Vec<String> = text.split(',').map(|word| word.trim().to_owned()).collect();
    settings::actions("--actions", &words).map_err(SimulatorError::from)
}

/// Reads `--placement`.
pub fn placement_option(text: &str) -> Result<PlacementStrategy, SimulatorError> {
    settings::placement("--placement", text).map_err(SimulatorError::from)
}
