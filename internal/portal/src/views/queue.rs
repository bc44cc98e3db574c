//! One queue's page.

use askama::Template;
use axum::extract::{Path, State};
use axum::response::Response;

use super::{PageCaller, PageFrame, message, page};
use crate::rest::{QueueAnswer, queue_answer};
use crate::state::Portal;

/// The maximum number of pending gangs on the page.
const SHOWN_WAITING: usize = 50;

#[derive(Template)]
#[template(path = "queue.html")]
struct QueuePage {
    frame: PageFrame,
    queue: QueueAnswer,
    share: String,
    of_entitled: String,
    more: usize,
}

/// The page.
pub async fn one(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(name): Path<String>,
) -> Response {
    match queue_answer(&portal, &caller, &name).await {
        Ok(mut queue) => {
            let waiting = &mut queue.usage.waiting;
            let more = waiting.len().saturating_sub(SHOWN_WAITING);
            waiting.truncate(SHOWN_WAITING);
            page(&QueuePage {
                frame: PageFrame::of(&caller, "queues"),
                share: percent(queue.usage.share),
                of_entitled: percent(queue.usage.share_of_entitled),
                queue,
                more,
            })
        }
        Err(problem) => message(&caller, "queues", &problem),
    }
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}
