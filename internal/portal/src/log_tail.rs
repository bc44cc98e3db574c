//! Reads the end of a log for a page, within bounds of size and time.

use std::time::Duration;

use futures::StreamExt;
use resources::access::Caller;

use crate::state::{LogQuery, Portal};

/// The most bytes of a log that a page reads; of a longer answer the end is kept.
const BYTES_MAX: usize = 512 * 1024;
/// How long a page waits for a log: a node that does not answer must not hold the page.
const PATIENCE: Duration = Duration::from_secs(4);

/// Why a page shows no log; the text is for the reader.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TailProblem {
    /// The caller may not read it.
    #[error(
        "user {0:?} may not read logs in this namespace; an administrator can bind a role that permits it"
    )]
    Forbidden(String),
    /// The node does not have it, or did not answer.
    #[error("{0}")]
    Unavailable(String),
    /// The node has not sent it in time.
    #[error("the node did not send the log within {} s; reload the page to try again", PATIENCE.as_secs())]
    Slow,
}

/// The last lines of a log as the caller may read them.
pub async fn read(
    portal: &Portal,
    caller: &Caller,
    query: LogQuery,
) -> Result<String, TailProblem> {
    if !portal.reads_log(caller, &query.namespace, &query.pod) {
        return Err(TailProblem::Forbidden(caller.user.clone()));
    }
    let read = async {
        let mut stream = (portal.hooks.open_log)(query)
            .await
            .map_err(|problem| TailProblem::Unavailable(problem.detail))?;
        let mut bytes: Vec<u8> = Vec::new();
        while let Some(Ok(chunk)) = stream.next().await {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > 2 * BYTES_MAX {
                bytes.drain(..bytes.len() - BYTES_MAX);
            }
        }
        let from = bytes.len().saturating_sub(BYTES_MAX);
        Ok(String::from_utf8_lossy(&bytes[from..]).into_owned())
    };
    let answer = tokio::time::timeout(PATIENCE, read).await;
    answer.unwrap_or(Err(TailProblem::Slow))
}

/// The same of a program that has ended for good. A run that was ended before it wrote anything is passed over: its
/// container started again just when its job reached its limit.
pub async fn read_last_run(
    portal: &Portal,
    caller: &Caller,
    query: LogQuery,
) -> Result<String, TailProblem> {
    let before = LogQuery {
        previous: true,
        ..query.clone()
    };
    let last = read(portal, caller, query).await;
    match &last {
        Ok(text) if text.trim().is_empty() => {
            let earlier = read(portal, caller, before).await;
            earlier.or(last)
        }
        _ => last,
    }
}
