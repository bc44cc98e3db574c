//! The overview, the nodes and the queues.

use askama::Template;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use jiff::Timestamp;

use super::{PageCaller, PageFrame, message, page};
use crate::board::{ClusterTotals, JobRow, NodeCard, Picture, QueueRow, Tone};
use crate::problem::Problem;
use crate::state::Portal;

/// The number of jobs on the overview.
const RECENT: usize = 8;

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: PageFrame,
    cluster: ClusterTotals,
    cards: Vec<NodeCard>,
    recent: Vec<JobRow>,
    running: usize,
    waiting: usize,
}

/// The first page.
pub async fn overview(State(portal): State<Portal>, PageCaller(caller): PageCaller) -> Response {
    let mut jobs = portal.jobs(&caller, Timestamp::now());
    let count = |tone: Tone| jobs.iter().filter(|job| job.tone == tone).count();
    let (running, waiting) = (count(Tone::Busy), count(Tone::Idle));
    jobs.truncate(RECENT);
    let cards = portal.nodes(&caller).unwrap_or_default();
    page(&Overview {
        frame: PageFrame::of(&caller, "overview"),
        cluster: ClusterTotals::of(&cards),
        cards,
        recent: jobs,
        running,
        waiting,
    })
}

#[derive(Template)]
#[template(path = "nodes.html")]
struct NodesSummary {
    frame: PageFrame,
    cards: Vec<NodeCard>,
}

/// All nodes.
pub async fn nodes(State(portal): State<Portal>, PageCaller(caller): PageCaller) -> Response {
    match portal.nodes(&caller) {
        Ok(cards) => page(&NodesSummary {
            frame: PageFrame::of(&caller, "nodes"),
            cards,
        }),
        Err(problem) => message(&caller, "nodes", &problem),
    }
}

#[derive(Template)]
#[template(path = "node.html")]
struct OneNode {
    frame: PageFrame,
    card: NodeCard,
    picture: Option<Picture>,
}

/// One node.
pub async fn node(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(name): Path<String>,
) -> Response {
    match portal.node(&caller, &name) {
        Ok(Some((card, picture))) => page(&OneNode {
            frame: PageFrame::of(&caller, "nodes"),
            card,
            picture,
        }),
        Err(problem) => message(&caller, "nodes", &problem),
        Ok(None) => {
            let detail = format!("there is no node {name:?}; `muster nodes` lists the nodes");
            let gone = Problem::new(StatusCode::NOT_FOUND, "not-found", detail);
            message(&caller, "nodes", &gone)
        }
    }
}

#[derive(Template)]
#[template(path = "queues.html")]
struct QueuesSummary {
    frame: PageFrame,
    queues: Vec<QueueRow>,
}

/// All queues.
pub async fn queues(State(portal): State<Portal>, PageCaller(caller): PageCaller) -> Response {
    match portal.queues(&caller) {
        Ok(queues) => page(&QueuesSummary {
            frame: PageFrame::of(&caller, "queues"),
            queues,
        }),
        Err(problem) => message(&caller, "queues", &problem),
    }
}
