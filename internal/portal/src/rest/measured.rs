//! What was measured over time: the points of series, for callers who may see what they are about.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use measurements::{HistoryQuery, Point, Subject};
use resources::access::Caller;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::problem::Problem;
use crate::state::{Portal, SignedIn};

/// The query of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MeasuredParameters {
    series: String,
    from: String,
    to: String,
    step: String,
}

/// Answers `GET /api/v1/history`.
pub async fn history(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Query(asked): Query<MeasuredParameters>,
) -> Result<Json<Value>, Problem> {
    let now = Timestamp::now();
    let query = HistoryQuery::read(&asked.series, &asked.from, &asked.to, &asked.step, now);
    let query = query.map_err(|error| Problem::invalid(error.to_string()))?;
    let points = read(&portal, &caller, query.clone()).await?;
    let item = |(series, points): (&measurements::Series, &Vec<Point>)| {
        let points: Vec<Value> = points.iter().map(point).collect();
        json!({"series": series.to_string(), "unit": series.metric.unit(), "points": points})
    };
    let items: Vec<Value> = query.series.iter().zip(&points).map(item).collect();
    Ok(Json(json!({
        "from": query.from, "to": query.to, "stepSeconds": query.step, "items": items,
    })))
}

fn point(point: &Point) -> Value {
    let at = Timestamp::from_second(point.at).unwrap_or_default();
    json!({"at": at, "mean": point.mean, "max": point.max})
}

/// The points of each series of a question.
///
/// # Errors
/// The caller may not see what a series is about, or the history cannot be read.
pub async fn read(
    portal: &Portal,
    caller: &Caller,
    query: HistoryQuery,
) -> Result<Vec<Vec<Point>>, Problem> {
    for series in &query.series {
        may(portal, caller, &series.subject)?;
    }
    let read = (portal.hooks.measured)(query).await;
    read.map_err(|error| {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Problem::new(status, "unavailable", error.to_string())
    })
}

/// Refuses callers that may not see what is measured: of the cluster, of a node and of its GPUs those who may not see
/// the page of nodes, of pods those who may not see pods of that namespace.
fn may(portal: &Portal, caller: &Caller, subject: &Subject) -> Result<(), Problem> {
    match subject {
        Subject::Cluster => portal.require(caller, "list", "", "nodes", None),
        Subject::Node(node) | Subject::Gpu { node, .. } => {
            portal.require(caller, "get", "", "nodes", Some(node))
        }
        Subject::Pod { namespace, .. } => match portal.may_see(caller, "", "pods", namespace) {
            true => Ok(()),
            false => Err(Problem::forbidden(format!(
                "user {:?} may not see pods in namespace {namespace:?}; an administrator can bind a role that permits it",
                caller.user
            ))),
        },
    }
}
