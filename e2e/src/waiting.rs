//! Waiting for what must come about, with a bound and a reason.

use std::time::{Duration, Instant};

/// How often it is looked.
const PACE: Duration = Duration::from_millis(100);

/// Looks until there is something, and fails naming what was waited for.
pub fn eventually<T>(what: &str, bound: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    eventually_ok(what, bound, || look().ok_or_else(String::new))
}

/// The same for a look that says why there is nothing yet: the last reason is told where it fails.
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

/// The same for a look that waits.
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
