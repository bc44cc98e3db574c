//! Notifies open pages of changes; they then reload their content.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::Stream;
use futures::stream;

use super::PageCaller;
use crate::state::Portal;

/// The shortest time between two notifications of one page.
const PACE: Duration = Duration::from_millis(400);

/// A stream of `changed` events, each with the board's version.
pub async fn changes(
    State(portal): State<Portal>,
    _: PageCaller,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let mut version = portal.board.version();
    version.mark_changed();
    let stream = stream::unfold(version, async |mut version| {
        version.changed().await.ok()?;
        let now = *version.borrow_and_update();
        tokio::time::sleep(PACE).await;
        let event = Event::default()
            .event("changed")
            .id(now.to_string())
            .data(now.to_string());
        Some((Ok(event), version))
    });
    Sse::new(stream).keep_alive(KeepAlive::default())
}
