//! SIGTERM and SIGINT as a value that every part of the server can await.

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Turns true at the first signal; a second one ends the process at once.
pub fn stop() -> Result<watch::Receiver<bool>> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be handled")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be handled")?;
    let (stop_sender, stop) = watch::channel(false);
    tokio::spawn(async move {
        for attempt in 0.. {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if attempt > 0 {
                std::process::exit(130);
            }
            tracing::info!("stopping");
            let _ = stop_sender.send(true);
        }
    });
    Ok(stop)
}

/// Waits until the value is true.
pub async fn requested(mut stop: watch::Receiver<bool>) {
    // An error: the task above is gone, and no signal would be noticed any more.
    let _ = stop.wait_for(|stop| *stop).await;
}
