//! Starting again what failed: how soon an interrupted watch is asked for anew, and a loop that ends
//! with whoever runs it.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use tokio::task::{JoinError, JoinSet};

/// How long the first wait is.
const FIRST: Duration = Duration::from_millis(100);
/// The longest: for so long after the API is there again a loop may not know it, and go by what it
/// knew before. client-go's half a minute is for thousands of watchers; these are a few dozen.
const LONGEST: Duration = Duration::from_secs(2);

/// The waits before an interrupted watch is asked for again: each is twice as long as the one before.
/// What comes through starts them anew.
pub(crate) struct Waits(Duration);

impl Default for Waits {
    fn default() -> Waits {
        Waits(FIRST)
    }
}

impl Iterator for Waits {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.0;
        self.0 = (wait * 2).min(LONGEST);
        Some(wait)
    }
}

impl Backoff for Waits {
    fn reset(&mut self) {
        *self = Waits::default();
    }
}

/// Runs a loop as a task of its own, so that its panic is an answer; it is cut off when this is
/// dropped.
pub(crate) async fn apart(run: impl Future<Output = ()> + Send + 'static) -> Result<(), JoinError> {
    let mut tasks = JoinSet::new();
    tasks.spawn(run);
    tasks.join_next().await.unwrap_or(Ok(()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_start_anew() {
        let mut waits = Waits::default();
        let first: Vec<u128> = waits
            .by_ref()
            .take(7)
            .map(|wait| wait.as_millis())
            .collect();
        assert_eq!(first, [100, 200, 400, 800, 1600, 2000, 2000]);
        waits.reset();
        assert_eq!(waits.next(), Some(FIRST));
    }

    #[tokio::test]
    async fn a_loop_ends_with_whoever_runs_it() {
        let held = Arc::new(());
        let inside = held.clone();
        let outer = tokio::spawn(apart(async move {
            let _inside = inside;
            std::future::pending().await
        }));
        tokio::task::yield_now().await;
        outer.abort();
        let ended = async {
            while Arc::strong_count(&held) > 1 {
                tokio::task::yield_now().await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(30), ended).await;
        assert!(ended.is_ok(), "the loop goes on without its runner");
    }
}
