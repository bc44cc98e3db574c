//! Retries: the growing wait before an interrupted watch is started again, a task that is aborted
//! when its owner drops it, and the containment of a panic over one object.

use std::time::Duration;

use kube::runtime::utils::Backoff;
use supervisor::{Panicked, contained};
use tokio::task::{JoinError, JoinSet};

/// The first wait.
const FIRST: Duration = Duration::from_millis(100);
/// The longest wait. It bounds how long a loop works from stale state after the API is back.
/// client-go uses 30 s because it serves thousands of watchers; here there are a few dozen.
const LONGEST: Duration = Duration::from_secs(2);

/// The waits before an interrupted watch is started again. Each is twice as long as the one before;
/// a received event resets them.
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

/// Runs a loop as a task of its own, so that a panic becomes a result. Dropping the future aborts
/// the task.
pub(crate) async fn apart(run: impl Future<Output = ()> + Send + 'static) -> Result<(), JoinError> {
    let mut tasks = JoinSet::new();
    tasks.spawn(run);
    tasks.join_next().await.unwrap_or(Ok(()))
}

/// The reason of the event on an object whose reconciliation panicked.
pub(crate) const PANICKED: &str = "ReconcilePanicked";

/// The message of the event on an object whose reconciliation panicked.
pub(crate) fn panicked_note(panic: &str) -> String {
    format!(
        "The controller panicked while it handled this object, left the object as it is, and will try again: {panic}. \
         Other objects are not affected. Change or delete this object, and report the panic with the object's \
         manifest."
    )
}

/// Does the work about one object. A panic becomes an ordinary error, which the loop logs and
/// retries.
pub(crate) async fn guarded<T>(work: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    contained(work)
        .await
        .unwrap_or_else(|panic| Err(kube::Error::Service(PanickedWork(panic).into())))
}

/// The error of work that panicked.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
struct PanickedWork(Panicked);

/// The panic's message, if the work failed by a panic.
pub(crate) fn panic_in(error: &kube::Error) -> Option<&str> {
    match error {
        kube::Error::Service(error) => {
            let panicked = error.downcast_ref::<PanickedWork>()?;
            Some(panicked.0.message())
        }
        _ => None,
    }
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
    async fn a_panic_over_one_object_is_its_own_error() {
        let did =
            |number: Option<u8>| async move { Ok::<u8, kube::Error>(number.expect("over it")) };
        assert_eq!(guarded(did(Some(5))).await.unwrap(), 5);
        let failed = guarded(did(None)).await.unwrap_err();
        assert!(failed.to_string().contains("panicked: over it"));
        assert_eq!(panic_in(&failed), Some("over it"));
        assert_eq!(panic_in(&kube::Error::Service("refused".into())), None);
    }

    #[tokio::test]
    async fn a_loop_is_aborted_when_its_owner_drops_it() {
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
