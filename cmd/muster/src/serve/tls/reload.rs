//! SIGHUP, and the request that it makes of the source of the certificate.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// SIGHUP, unless standard input is a terminal, which sends that signal when it closes.
#[derive(Debug)]
pub struct Hangup(Option<Signal>);

impl Hangup {
    /// Listens for the signal.
    ///
    /// # Errors
    /// The signal cannot be handled.
    pub fn listen() -> Result<Hangup> {
        if std::io::stdin().is_terminal() {
            return Ok(Hangup(None));
        }
        let signal = signal(SignalKind::hangup()).context("SIGHUP cannot be handled")?;
        Ok(Hangup(Some(signal)))
    }

    /// Returns when the signal arrives.
    pub async fn received(&mut self) {
        let received = match &mut self.0 {
            Some(signal) => signal.recv().await,
            None => None,
        };
        if received.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// The request that a source reads its files again now.
#[derive(Clone, Debug, Default)]
pub struct Reload(Arc<Notify>);

impl Reload {
    /// Makes the request; several that nothing waits for yet count as one.
    pub fn request(&self) {
        self.0.notify_one();
    }

    /// Returns when the request was made.
    pub async fn requested(&self) {
        self.0.notified().await;
    }
}
