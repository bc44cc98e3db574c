//! The nodes and the queues; an administrator takes a node out of use with a reason, and back.

use askama::Template;
use axum::Form;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use resources::access::Caller;
use serde::Deserialize;
use serde_json::json;

use super::chart::{Chart, ChartRange, RangeQuery};
use super::flash::FlashQuery;
use super::measured;
use super::{PageCaller, PageFrame, message, page};
use crate::board::{CORDON_REASON, NodeCard, Picture, QueueRow};
use crate::problem::Problem;
use crate::state::Portal;

/// The longest reason, in characters.
const REASON_MAX: usize = 200;

#[derive(Template)]
#[template(path = "nodes.html")]
struct NodesSummary {
    frame: PageFrame,
    cards: Vec<NodeCard>,
}

/// All nodes.
pub async fn nodes(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Query(flash): Query<FlashQuery>,
) -> Response {
    match portal.nodes(&caller) {
        Ok(cards) => page(&NodesSummary {
            frame: PageFrame::of(&caller, "nodes").flash(&flash, "/ui/nodes"),
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
    charts: Vec<Chart>,
    range: ChartRange,
    /// The reader may take the node out of use.
    manages: bool,
}

/// True if this caller may change nodes.
pub(super) fn manages(portal: &Portal, caller: &Caller, name: &str) -> bool {
    portal.permits_cluster(caller, "patch", "", "nodes", Some(name))
}

/// One node.
pub async fn node(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(name): Path<String>,
    Query(flash): Query<FlashQuery>,
    Query(query): Query<RangeQuery>,
) -> Response {
    let range = ChartRange::named(&query.range, "1h");
    match portal.node(&caller, &name) {
        Ok(Some((card, picture))) => page(&OneNode {
            frame: PageFrame::of(&caller, "nodes").flash(&flash, &format!("/ui/nodes/{name}")),
            manages: manages(&portal, &caller, &name),
            // A page without its charts is better than none.
            charts: measured::of_node(&portal, &caller, &card, range)
                .await
                .unwrap_or_default(),
            range,
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

/// Why a node is taken out of use.
#[derive(Deserialize, Default)]
#[serde(default)]
pub struct Reason {
    reason: String,
}

/// The reason as it is stored.
fn reason(text: &str) -> Result<&str, Problem> {
    let text = text.trim();
    let length = text.chars().count();
    if text.is_empty() {
        let detail = "reason: Required value: say why the node takes no new work";
        return Err(Problem::invalid(detail));
    }
    if length > REASON_MAX || text.chars().any(char::is_control) {
        return Err(Problem::invalid(format!(
            "reason: Invalid value: use one line of at most {REASON_MAX} characters"
        )));
    }
    Ok(text)
}

/// Answers `POST /ui/nodes/{name}/cordon`.
pub async fn cordon(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(name): Path<String>,
    Form(form): Form<Reason>,
) -> Response {
    match reason(&form.reason) {
        Ok(reason) => mark(&portal, &caller, &name, Some(reason)).await,
        Err(problem) => message(&caller, "nodes", &problem),
    }
}

/// Answers `POST /ui/nodes/{name}/uncordon`.
pub async fn uncordon(
    State(portal): State<Portal>,
    PageCaller(caller): PageCaller,
    Path(name): Path<String>,
) -> Response {
    mark(&portal, &caller, &name, None).await
}

/// Takes a node out of use with a reason, or back; as the caller, so that the API decides on the right.
async fn mark(portal: &Portal, caller: &Caller, name: &str, reason: Option<&str>) -> Response {
    let by = reason.map(|reason| format!("{reason} ({})", caller.user));
    let patched = set_mark(portal, caller, name, by.as_deref()).await;
    let done = match reason {
        Some(_) => "cordoned",
        None => "uncordoned",
    };
    match patched {
        Ok(_) => {
            let page = format!("/ui/nodes/{}?flash={done}", super::escape(name));
            Redirect::to(&page).into_response()
        }
        Err(problem) => message(caller, "nodes", &problem),
    }
}

/// Sets the mark by which the node takes no new work, with its reason, or clears both.
pub(super) async fn set_mark(
    portal: &Portal,
    caller: &Caller,
    name: &str,
    reason: Option<&str>,
) -> Result<(), Problem> {
    let nodes: Api<Node> = Api::all(portal.client(caller));
    let change = json!({
        "metadata": {"annotations": {CORDON_REASON: reason}},
        "spec": {"unschedulable": reason.map(|_| true)},
    });
    let change = Patch::Merge(change);
    nodes.patch(name, &PatchParams::default(), &change).await?;
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_taken_out_of_use_only_with_a_reason() {
        assert_eq!(reason(" new fan ").unwrap(), "new fan");
        for bad in ["", "  ", "two\nlines", &"x".repeat(REASON_MAX + 1)] {
            let problem = reason(bad).unwrap_err();
            assert!(problem.detail().starts_with("reason: "), "{bad:?}");
        }
    }
}
