//! Waits for the board if the API is ahead of it. Independent of the type that is awaited.

use std::time::Duration;

use tokio::sync::watch;

/// How long a page waits for the board to show what the API already has.
const LAG_MAX: Duration = Duration::from_secs(10);

/// Returns an object from the board, and waits for the board if the object exists in the API but
/// not yet there: after a submission the browser is redirected to the job's page at once, while the
/// board's watch reports the job a moment later. None if the object does not exist, or if the board
/// does not show it within [`LAG_MAX`].
pub async fn caught_up<T>(
    mut version: watch::Receiver<u64>,
    shown: impl Fn() -> Option<T>,
    exists: impl Future<Output = bool>,
) -> Option<T> {
    if let Some(found) = shown() {
        return Some(found);
    }
    if !exists.await {
        return None;
    }
    let appears = async {
        loop {
            version.changed().await.ok()?;
            if let Some(found) = shown() {
                return Some(found);
            }
        }
    };
    tokio::time::timeout(LAG_MAX, appears).await.ok()?
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::ready;

    use super::*;

    #[tokio::test]
    async fn what_exists_is_waited_for_until_the_board_shows_it() {
        let (bump, mut version) = watch::channel(0u64);
        version.mark_changed();
        let asked = Cell::new(0);
        // The board shows it at its third version.
        let shown = || {
            asked.set(asked.get() + 1);
            (*bump.borrow() == 2).then_some("the job")
        };
        let goes_on = async {
            for _ in 0..2 {
                tokio::task::yield_now().await;
                bump.send_modify(|version| *version += 1);
            }
        };
        let (found, ()) = tokio::join!(caught_up(version, shown, ready(true)), goes_on);
        assert_eq!(found, Some("the job"));
        assert!(asked.get() > 1, "it was there at once");
    }

    #[tokio::test]
    async fn what_does_not_exist_is_not_waited_for() {
        let (_bump, version) = watch::channel(0u64);
        let found = caught_up(version, || None::<()>, ready(false)).await;
        assert_eq!(found, None);
    }
}
