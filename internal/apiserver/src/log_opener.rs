//! Owns what the API asks of the nodes' agents for `pods/NAME/log`: the request, and the function that opens a log.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use jiff::Timestamp;

/// The options of a log request.
#[derive(Debug, Clone, PartialEq)]
pub struct LogRequest {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid: excludes a later pod of the same name.
    pub uid: String,
    /// The node that runs or ran the pod.
    pub node: String,
    /// The container, init containers included.
    pub container: String,
    /// True to follow the log.
    pub follow: bool,
    /// Only this many last lines.
    pub tail: Option<u64>,
    /// Only lines that are at most this old, in seconds.
    pub since_seconds: Option<u64>,
    /// Only lines written at or after this time.
    pub since_time: Option<Timestamp>,
    /// True to prefix each line with its time.
    pub timestamps: bool,
    /// True for the container's previous run.
    pub previous: bool,
    /// At most this many bytes.
    pub limit_bytes: Option<u64>,
}

/// Why a log cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The log does not exist (yet); the text says why.
    #[error("{0}")]
    NotFound(String),
    /// The request is invalid for this pod; the text names the valid values.
    #[error("{0}")]
    BadRequest(String),
    /// The node cannot be reached now; the text names it.
    #[error("{0}")]
    Unavailable(String),
}

/// Opens a container's log.
pub type LogOpener = Arc<
    dyn Fn(
            LogRequest,
        ) -> BoxFuture<
            'static,
            Result<BoxStream<'static, Result<Bytes, std::io::Error>>, LogError>,
        > + Send
        + Sync,
>;
