//! How a component learns that it should stop.

use tokio::sync::watch;

/// Whether a component should stop; each component has its own.
#[derive(Clone, Debug)]
pub struct Stop(pub(crate) watch::Receiver<bool>);

impl Stop {
    /// Waits until the component should stop.
    pub async fn requested(&self) {
        let mut requested = self.0.clone();
        // An error: the supervisor is gone, and without it nothing may run on.
        let _ = requested.wait_for(|requested| *requested).await;
    }

    /// Whether the component should stop now.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// The token as a channel that says true once the component should stop.
    pub fn receiver(&self) -> watch::Receiver<bool> {
        self.0.clone()
    }

    /// Runs a future until it ends, or drops it when the component should stop; `None` after that.
    pub async fn run_until_requested<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.requested() => None,
            output = future => Some(output),
        }
    }
}
