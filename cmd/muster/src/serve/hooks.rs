//! The ways between shells that have no arrow to each other.

use std::sync::Arc;

use apiserver::ApiServer;
use fleet::Fleet;
use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use portal::{AskProblem, Hooks, JoinToken, LogProblem, LogQuery};

/// Lets the pods' `log` subresource read from the nodes.
pub fn connect_logs(api: &ApiServer, fleet: &Arc<Fleet>) {
    let fleet = fleet.clone();
    api.set_log_opener(Arc::new(move |request| {
        let fleet = fleet.clone();
        Box::pin(async move {
            let ago = |seconds: u64| {
                let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
                Timestamp::now()
                    .checked_sub(SignedDuration::from_secs(seconds))
                    .ok()
            };
            let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            let query = fleet::LogQuery {
                namespace: request.namespace,
                pod: request.pod,
                uid: Some(request.uid),
                node: Some(request.node),
                container: request.container,
                follow: request.follow,
                tail_lines: request.tail.map(signed),
                since: request.since_time.or_else(|| ago(request.since_seconds?)),
                timestamps: request.timestamps,
                previous: request.previous,
                limit_bytes: request.limit_bytes.map(signed),
            };
            match fleet.open_log(query).await {
                Ok(stream) => Ok(stream.boxed()),
                Err(error) => Err(refused(&error)),
            }
        })
    }));
}

fn refused(error: &fleet::LogError) -> apiserver::LogError {
    let words = error.to_string();
    match error {
        fleet::LogError::NotFound(_) => apiserver::LogError::NotFound(words),
        fleet::LogError::NotReady(_) => apiserver::LogError::BadRequest(words),
        fleet::LogError::NodeAway { .. } | fleet::LogError::Failed(_) => {
            apiserver::LogError::Unavailable(words)
        }
    }
}

fn status_of(error: &fleet::LogError) -> u16 {
    match error {
        fleet::LogError::NotFound(_) => 404,
        fleet::LogError::NotReady(_) => 400,
        fleet::LogError::NodeAway { .. } => 503,
        fleet::LogError::Failed(_) => 500,
    }
}

/// What the portal asks of the other shells.
pub fn hooks(
    api: &ApiServer,
    fleet: &Arc<Fleet>,
    controllers: &controllers::Handle,
    store: &store::Store,
) -> Hooks {
    let api = api.clone();
    let (logs, tokens, asks) = (fleet.clone(), fleet.clone(), fleet.clone());
    let board = || controllers.board.clone();
    let (reports, preview, history) = (board(), board(), board());
    let (could_evict, queues, defragmentation) = (board(), board(), board());
    let store = store.clone();
    Hooks {
        client_for: Box::new(move |caller| api.client(caller.clone())),
        explain: Box::new(move |namespace, group| reports.get(namespace, group)),
        could_evict: Box::new(move |namespace, group| {
            let board = could_evict.clone();
            Box::pin(async move { board.could_evict(&namespace, &group).await })
        }),
        history: Box::new(move |namespace, group| history.history(namespace, group)),
        queues: Box::new(move || {
            let board = queues.clone();
            Box::pin(async move { board.standings().await })
        }),
        defragmentation: Box::new(move || {
            let board = defragmentation.clone();
            Box::pin(async move { board.defragmentation().await })
        }),
        preview: Box::new(move |object| {
            let board = preview.clone();
            Box::pin(async move { controllers::preview::preview(&board, &object).await })
        }),
        open_log: Box::new(move |query| {
            let fleet = logs.clone();
            Box::pin(async move { open_log(&fleet, query).await })
        }),
        ask_rdma: Box::new(move |node, ask| {
            let fleet = asks.clone();
            Box::pin(async move { ask_rdma(&fleet, &node, &ask).await })
        }),
        issue_join_token: Box::new(move |ttl| {
            let fleet = tokens.clone();
            Box::pin(async move {
                let ttl = SignedDuration::try_from(ttl).map_err(|error| error.to_string())?;
                let made = fleet
                    .create_join_token(ttl, "muster token join")
                    .await
                    .map_err(|error| error.to_string())?;
                // The authority's fingerprint goes along, so that the agent can tell the
                // server from another one.
                Ok(JoinToken {
                    secret: format!("{}@{}", made.token, fleet.ca_fingerprint()),
                    expires: made.expires,
                })
            })
        }),
        backup: Box::new(move |path| {
            let store = store.clone();
            Box::pin(async move {
                let written = tokio::task::spawn_blocking(move || store.backup(&path)).await;
                match written {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => Err(error.to_string()),
                    Err(error) => Err(error.to_string()),
                }
            })
        }),
    }
}

async fn open_log(fleet: &Fleet, query: LogQuery) -> Result<portal::LogStream, LogProblem> {
    let query = fleet::LogQuery {
        namespace: query.namespace,
        pod: query.pod,
        container: query.container.unwrap_or_default(),
        follow: query.follow,
        tail_lines: query
            .tail_lines
            .map(|lines| i64::try_from(lines).unwrap_or(i64::MAX)),
        timestamps: query.timestamps,
        previous: query.previous,
        ..fleet::LogQuery::default()
    };
    match fleet.open_log(query).await {
        Ok(stream) => Ok(stream.boxed()),
        Err(error) => Err(LogProblem {
            status: status_of(&error),
            detail: error.to_string(),
        }),
    }
}

async fn ask_rdma(
    fleet: &Fleet,
    node: &str,
    ask: &serde_json::Value,
) -> Result<serde_json::Value, AskProblem> {
    let answer = fleet.ask_rdma(node, ask.to_string()).await;
    let answer = answer.map_err(|error| AskProblem {
        // Not 503 and 504, which clients try again for minutes.
        status: match error {
            fleet::AskError::NodeAway { .. } | fleet::AskError::Silent { .. } => 502,
            fleet::AskError::Refused(_) => 409,
        },
        detail: error.to_string(),
    })?;
    serde_json::from_str(&answer).map_err(|error| AskProblem {
        status: 502,
        detail: format!("node {node:?} answered what is not JSON: {error}"),
    })
}
