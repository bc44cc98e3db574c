//! How a command ended.

/// The result of a command that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// The command succeeded, or the answer is yes.
    Yes,
    /// The answer is no: the job failed, or a check found a fault.
    No,
    /// The awaited event did not happen in time.
    TimedOut,
    /// The command of a job ended with this exit status.
    Ended(u8),
}
