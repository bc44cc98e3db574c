//! The state file as the shim keeps it. Owns what happens when the disk is full: the state is
//! written as soon as there is room.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;

use crate::state::{STATE_FILE, StateFile, save};

/// Between two attempts to write the state to a full disk.
pub(super) const SAVE_RETRY: Duration = Duration::from_secs(1);
/// Such attempts: a day of them.
const SAVE_ATTEMPTS: u32 = 24 * 60 * 60;

/// The state could not be written for a day.
#[derive(Debug, thiserror::Error)]
#[error("gave up writing the state")]
pub(super) struct Unsaved;

/// The state on disk.
pub(super) struct ShimRecord {
    pub(super) dir: PathBuf,
    pub(super) state: StateFile,
    /// Whether the last attempt to write it failed.
    pub(super) unsaved: bool,
}

impl ShimRecord {
    pub(super) fn save(&mut self) -> Result<(), crate::error::RuntimeError> {
        let outcome = save(&self.dir, STATE_FILE, &self.state);
        self.unsaved = outcome.is_err();
        outcome
    }

    pub(super) fn save_surely(&mut self) -> Result<(), Unsaved> {
        for _ in 0..SAVE_ATTEMPTS {
            match self.save() {
                Ok(()) => return Ok(()),
                // The container was removed meanwhile, so its record is not needed.
                Err(_) if !self.dir.exists() => return Ok(()),
                Err(e) => eprintln!("{} {e}", Timestamp::now()),
            }
            std::thread::sleep(SAVE_RETRY);
        }
        Err(Unsaved)
    }
}
