//! Waits for a condition, with a time limit and a reason.

use std::time::{Duration, Instant};

/// Interval of checks.
const PACE: Duration = Duration::from_millis(100);

/// Checks until `look` returns a value; the failure names the awaited event.
pub fn eventually<T>(what: &str, bound: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    eventually_ok(what, bound, || look().ok_or_else(String::new))
}

/// Like `eventually`, with a reason for each failed check: the failure shows the last reason.
pub fn eventually_ok<T>(
    what: &str,
    bound: Duration,
    mut look: impl FnMut() -> Result<T, String>,
) -> T {
    let begin = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(why) => assert!(
                begin.elapsed() < bound,
                "{what}: not within {} s {why}",
                bound.as_secs()
            ),
        }
        std::thread::sleep(PACE);
    }
}

/// Like `eventually`, with an asynchronous check.
pub async fn eventually_async<T, F>(what: &str, bound: Duration, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let begin = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(
            begin.elapsed() < bound,
            "{what}: not within {} s",
            bound.as_secs()
        );
        tokio::time::sleep(PACE).await;
    }
}
