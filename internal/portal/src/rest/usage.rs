//! Usage: hours that were allocated, by team, queue, namespace, user or model, and the single allocations.

use axum::Json;
use axum::extract::{Query, State};
use jiff::Timestamp;
use resources::access::Caller;
use serde::Deserialize;
use serde_json::{Value, json};
use usage::{Allocation, UsageQuery, UsageRow};

use crate::problem::Problem;
use crate::state::{Portal, SignedIn};

/// How many allocations are listed if the request does not say.
const LIMIT: usize = 100;
/// The most allocations in one answer.
const LIMIT_MAX: usize = 10_000;

/// The query of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UsageParameters {
    by: String,
    since: String,
    until: String,
}

/// The query of a request for allocations.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AllocationParameters {
    since: String,
    until: String,
    limit: Option<usize>,
}

/// An answer about usage.
pub struct UsageAnswer {
    /// The question as it was read.
    pub query: UsageQuery,
    /// The rows.
    pub rows: Vec<UsageRow>,
}

/// Answers `GET /api/v1/usage`.
pub async fn usage(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Query(asked): Query<UsageParameters>,
) -> Result<Json<Value>, Problem> {
    let answer = answer(&portal, &caller, &asked.by, &asked.since, &asked.until)?;
    let (since, until) = (answer.query.since(), answer.query.until());
    Ok(Json(
        json!({"since": since, "until": until, "items": answer.rows}),
    ))
}

/// The usage of the namespaces whose pods the caller may see.
///
/// # Errors
/// A parameter that cannot be read.
pub fn answer(
    portal: &Portal,
    caller: &Caller,
    by: &str,
    since: &str,
    until: &str,
) -> Result<UsageAnswer, Problem> {
    let now = Timestamp::now();
    let query = UsageQuery::read(by, since, until, now);
    let query = query.map_err(|error| Problem::invalid(error.to_string()))?;
    let mut book = portal.hooks.usage.lock();
    book.count_until(now);
    let sees = |namespace: &str| portal.may_see(caller, "", "pods", namespace);
    let rows = query.answer(&book, sees);
    Ok(UsageAnswer { query, rows })
}

/// Answers `GET /api/v1/allocations`: those that are held first, and of the ended ones the latest first.
pub async fn allocations(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Query(asked): Query<AllocationParameters>,
) -> Result<Json<Value>, Problem> {
    let limit = asked.limit.unwrap_or(LIMIT);
    if limit == 0 || limit > LIMIT_MAX {
        return Err(Problem::invalid(format!(
            "limit: {limit} is not between 1 and {LIMIT_MAX}"
        )));
    }
    let query = UsageQuery::read("", &asked.since, &asked.until, Timestamp::now());
    let query = query.map_err(|error| Problem::invalid(error.to_string()))?;
    let book = portal.hooks.usage.lock();
    let shown = |one: &&Allocation| {
        let ended = one.ended.as_ref().map(|end| end.at);
        query.covers(one.started, ended)
            && portal.may_see(&caller, "", "pods", &one.owner.namespace)
    };
    let items: Vec<&Allocation> = book.allocations().filter(shown).take(limit).collect();
    Ok(Json(json!({ "items": items })))
}
