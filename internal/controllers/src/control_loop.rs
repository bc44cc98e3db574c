//! A running control loop with its name.

use tokio::task::JoinHandle;

/// A running control loop.
pub struct ControlLoop {
    /// Its name in errors.
    pub name: &'static str,
    /// Its task, which ends when the loop is asked to stop.
    pub task: JoinHandle<()>,
}

impl ControlLoop {
    pub(crate) fn new(name: &'static str, task: JoinHandle<()>) -> ControlLoop {
        ControlLoop { name, task }
    }
}
