//! Restarts of loops that are parts of a component: a loop that ends or panics while its owner still
//! needs it is started again, with a growing wait.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument as _;

/// The wait before the first restart of a loop; it doubles with each further one.
pub const RESTART_FIRST: Duration = Duration::from_secs(1);
/// The longest wait before a restart.
pub const RESTART_LONGEST: Duration = Duration::from_secs(60);
/// A loop that ran for this long is healthy: the wait after its next end is the first one again.
pub const RESTART_HEALTHY: Duration = Duration::from_secs(120);

/// How a loop ended that did not panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopEnd {
    /// The loop's owner is gone, or its input is: nothing is left to do.
    Finished,
    /// The loop ended although it still has an owner.
    Unexpected,
}

/// Runs a loop until it is [`LoopEnd::Finished`]. After an unexpected end or a panic an error in
/// the log names the loop, and the loop is started again after [`RESTART_FIRST`], then after twice
/// the wait each time, at most [`RESTART_LONGEST`]. Dropping the future aborts the loop.
///
/// `start` must make a loop that reads its state anew, because a panic may leave state changed in
/// part.
pub async fn keep_running<F, R>(name: &'static str, mut start: F)
where
    F: FnMut() -> R,
    R: Future<Output = LoopEnd> + Send + 'static,
{
    let mut wait = RESTART_FIRST;
    loop {
        let began = Instant::now();
        // A task of its own, so that the panic ends only this run; a set aborts it when dropped.
        let mut run = JoinSet::new();
        run.spawn(start().in_current_span());
        let why = match run.join_next().await {
            None | Some(Ok(LoopEnd::Finished)) => return,
            Some(Ok(LoopEnd::Unexpected)) => {
                "it ended although its owner still needs it".to_owned()
            }
            Some(Err(error)) => match error.try_into_panic() {
                Ok(panic) => format!("it panicked: {}", panic_message(panic.as_ref())),
                // Only the runtime's end cancels the task.
                Err(_) => return,
            },
        };
        if began.elapsed() >= RESTART_HEALTHY {
            wait = RESTART_FIRST;
        }
        tracing::error!(
            name,
            why,
            "a loop ended unexpectedly; the process starts it again in {} s",
            wait.as_secs()
        );
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RESTART_LONGEST);
    }
}

/// Work that panicked, as the message of the panic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Panicked(String);

impl Panicked {
    /// The panic's message.
    pub fn message(&self) -> &str {
        &self.0
    }
}

/// Does the work about one object of a loop. The caller logs a panic with the object's name and
/// goes on with the other objects.
///
/// # Errors
///
/// When the work panicked.
pub async fn contained<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    outcome.map_err(|panic| Panicked(panic_message(panic.as_ref())))
}

/// Like [`contained`], for work that does not wait. The caller discards state that the work may
/// have changed in part.
///
/// # Errors
///
/// When the work panicked.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| Panicked(panic_message(panic.as_ref())))
}

/// The objects over which a loop panicked, each with the time at which it is tried again: after
/// [`RESTART_FIRST`], then after twice the wait each time, at most [`RESTART_LONGEST`]. It holds at
/// most the objects that exist.
#[derive(Debug)]
pub struct SetAside<K, T>(BTreeMap<K, Aside<T>>);

#[derive(Debug)]
struct Aside<T> {
    object: T,
    wait: Duration,
    at: Instant,
}

impl<K, T> Default for SetAside<K, T> {
    fn default() -> Self {
        SetAside(BTreeMap::new())
    }
}

impl<K: Ord + Clone, T: Clone> SetAside<K, T> {
    /// Sets an object aside; its latest form replaces an earlier one.
    pub fn put(&mut self, key: K, object: T) {
        let before = self.0.get(&key).map(|aside| aside.wait);
        let wait = before.map_or(RESTART_FIRST, |wait| (wait * 2).min(RESTART_LONGEST));
        let at = Instant::now() + wait;
        self.0.insert(key, Aside { object, wait, at });
    }

    /// The object was handled, or is gone.
    pub fn remove(&mut self, key: &K) {
        self.0.remove(key);
    }

    /// Waits for an object that is to be tried again. It stays here until [`SetAside::remove`].
    pub async fn due(&self) -> (K, T) {
        match self.0.iter().min_by_key(|(_, aside)| aside.at) {
            Some((key, aside)) => {
                tokio::time::sleep_until(aside.at).await;
                (key.clone(), aside.object.clone())
            }
            None => std::future::pending().await,
        }
    }
}

/// The message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&'static str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_ends_or_panics_is_started_again_with_longer_waits() {
        let began = Instant::now();
        let starts = Arc::new(std::sync::Mutex::new(Vec::new()));
        let noted = starts.clone();
        keep_running("test", move || {
            let noted = noted.clone();
            async move {
                let run = {
                    let mut starts = noted.lock().unwrap();
                    starts.push(began.elapsed().as_secs());
                    starts.len()
                };
                match run {
                    1..=4 => LoopEnd::Unexpected,
                    5..=8 => panic!("run {run}"),
                    9 => {
                        tokio::time::sleep(RESTART_HEALTHY).await;
                        LoopEnd::Unexpected
                    }
                    _ => LoopEnd::Finished,
                }
            }
        })
        .await;
        let starts = starts.lock().unwrap();
        let waits: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        // The last wait follows a run of 120 s.
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 121]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_is_aborted_with_its_keeper() {
        let held = Arc::new(());
        let inside = held.clone();
        let keeper = tokio::spawn(keep_running("test", move || {
            let inside = inside.clone();
            async move {
                let _inside = inside;
                std::future::pending().await
            }
        }));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(Arc::strong_count(&held) > 2, "the loop does not run");
        keeper.abort();
        assert!(keeper.await.unwrap_err().is_cancelled());
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(Arc::strong_count(&held), 1, "the loop runs on");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_set_aside_is_tried_again_later_each_time_until_it_is_removed() {
        let mut aside = SetAside::default();
        aside.put("bad", 1);
        let mut waits = Vec::new();
        for number in 2..10 {
            let before = Instant::now();
            assert_eq!(aside.due().await, ("bad", number - 1));
            waits.push(before.elapsed().as_secs());
            aside.put("bad", number);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        aside.put("other", 0);
        assert_eq!(aside.due().await, ("other", 0));
        aside.remove(&"other");
        aside.remove(&"bad");
        let none = tokio::time::timeout(RESTART_LONGEST * 2, aside.due()).await;
        assert!(none.is_err());
    }

    #[tokio::test]
    async fn a_panic_over_one_object_is_a_result() {
        let done = AtomicU32::new(0);
        for object in 0..3_u32 {
            let outcome = contained(async {
                assert!(object != 1, "object {object}");
                done.fetch_add(1, Ordering::Relaxed);
            })
            .await;
            let panicked = (object == 1).then(|| Panicked("object 1".to_owned()));
            assert_eq!(outcome.err(), panicked);
        }
        assert_eq!(done.into_inner(), 2);
    }

    #[test]
    fn the_result_of_work_that_does_not_wait_has_the_panics_message() {
        assert_eq!(caught(|| 5), Ok(5));
        assert_eq!(
            caught(|| -> u8 { panic!("at {}", 7) }),
            Err(Panicked("at 7".to_owned()))
        );
        assert_eq!(
            caught(|| -> u8 { panic!("plain") }),
            Err(Panicked("plain".to_owned()))
        );
    }
}
