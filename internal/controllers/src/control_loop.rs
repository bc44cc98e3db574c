//! A running control loop with its name.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The wait before a loop that panicked is started again.
const RESTART_AFTER: Duration = Duration::from_secs(1);

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

    /// Runs a loop until `stop` turns true, and restarts it after a panic. A restart loses
    /// nothing: the loop rebuilds its state from the API. Must be called within a tokio runtime.
    pub(crate) fn kept_running<F, R>(
        stop: &watch::Receiver<bool>,
        name: &'static str,
        run: F,
    ) -> ControlLoop
    where
        F: Fn() -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let mut stop = stop.clone();
        let task = tokio::spawn(async move {
            loop {
                let ended = crate::retry::apart(run()).await;
                let Err(error) = ended else { return };
                tracing::error!(name, %error, "a control loop ended unexpectedly; the server starts it again");
                tokio::select! {
                    () = stopped(&mut stop) => return,
                    () = tokio::time::sleep(RESTART_AFTER) => {}
                }
            }
        });
        ControlLoop::new(name, task)
    }
}

/// Resolves once the server is stopping.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender of the signal is gone, which counts as a stop.
    let _ = stop.wait_for(|stop| *stop).await;
}
