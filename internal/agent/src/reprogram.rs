//! Keeps the kernel as the server wants it: programs it after each change, and again where that failed.

use std::time::Duration;

use network::NetworkError;
use tokio::sync::watch;

/// The pause before something that failed is tried again.
pub(crate) const AGAIN: Duration = Duration::from_secs(5);

/// Does the work once, and again after each change; without a change, again [`AGAIN`] after a failure. Of failures in a
/// row only the first is logged, as `failure`. `work_for` makes the work, which blocks, of what is wanted at that time.
/// Ends when the sender of changes is gone.
pub(crate) async fn after_each_change<T, W>(
    mut changes: watch::Receiver<T>,
    failure: &str,
    work_for: impl Fn(T) -> W,
) where
    T: Clone,
    W: FnOnce() -> Result<(), NetworkError> + Send + 'static,
{
    let mut failing = false;
    loop {
        let wanted = changes.borrow_and_update().clone();
        let failed = match tokio::task::spawn_blocking(work_for(wanted)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = failed.as_ref().filter(|_| !failing) {
            tracing::error!(error, "{failure}");
        }
        failing = failed.is_some();
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(AGAIN), if failing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// Waits until the work was done for these, in this order.
    async fn done(seen: &Mutex<Vec<u32>>, expected: &[u32]) {
        while *seen.lock() != expected {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_works_at_the_start_after_each_change_and_again_after_a_failure() {
        let sender = watch::Sender::new(1);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = seen.clone();
        let work_for = move |wanted| {
            let noted = noted.clone();
            move || {
                let mut noted = noted.lock();
                noted.push(wanted);
                match noted.len() {
                    // The second time it fails once.
                    2 => Err(NetworkError::NotRoot),
                    _ => Ok(()),
                }
            }
        };
        let receiver = sender.subscribe();
        let task = tokio::spawn(after_each_change(receiver, "it failed", work_for));
        done(&seen, &[1]).await;
        sender.send_replace(2);
        done(&seen, &[1, 2, 2]).await;
        sender.send_replace(3);
        done(&seen, &[1, 2, 2, 3]).await;
        drop(sender);
        task.await.expect("it ends with its sender");
    }
}
