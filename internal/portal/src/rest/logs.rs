//! Logs by pod name, also of deleted pods: nodes keep their pods' logs.

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::problem::Problem;
use crate::state::{LogQuery, Portal, SignedIn};

/// The query's parameters, named as the pods' `log` subresource names them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
pub struct Parameters {
    container: Option<String>,
    follow: bool,
    tail_lines: Option<u64>,
    timestamps: bool,
    previous: bool,
}

/// Streams a log as plain text.
pub async fn read(
    State(portal): State<Portal>,
    SignedIn(caller): SignedIn,
    Path((namespace, pod)): Path<(String, String)>,
    Query(parameters): Query<Parameters>,
) -> Result<Response, Problem> {
    if !portal.reads_log(&caller, &namespace, &pod) {
        return Err(Problem::forbidden(format!(
            "user {:?} may not read logs in namespace {namespace:?}; an administrator can bind a role that permits it",
            caller.user
        )));
    }
    let query = LogQuery {
        namespace,
        pod,
        container: parameters.container,
        follow: parameters.follow,
        tail_lines: parameters.tail_lines,
        timestamps: parameters.timestamps,
        previous: parameters.previous,
    };
    let stream = (portal.hooks.open_log)(query).await.map_err(|problem| {
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY);
        Problem::new(status, "log-unavailable", problem.detail)
    })?;
    let kind = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((kind, Body::from_stream(stream)).into_response())
}
