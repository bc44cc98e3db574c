//! Owns `GET pods/NAME/log`: parses the request, finds the container, passes the bytes on. The
//! nodes' agents store the logs; a [`LogOpener`] reads them.

use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use http::{HeaderValue, Response, header};
use jiff::Timestamp;
use serde_json::Value;

use crate::call::Call;
use crate::object;
use crate::rewrite::absent;
use crate::status::Failure;

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

pub(crate) async fn get(call: &Call) -> Result<Response<Body>, Failure> {
    let key = call.key();
    let entry = call.server.0.store.get(&key);
    let entry = entry.ok_or_else(|| absent(call, &key, call.object_name()))?;
    let request = read(call, &object::parse(&entry)?)?;
    if request.node.is_empty() {
        // Kubernetes returns an empty log for a pod without a node too.
        return Ok(plain(Body::empty()));
    }
    let opener = call.server.0.logs.read().clone();
    let opener = opener.ok_or_else(|| {
        Failure::unavailable(
            "no agent that can read logs is connected; check that the node's agent runs",
        )
    })?;
    let stream = opener(request).await.map_err(|error| match error {
        LogError::NotFound(why) => Failure::not_found_because(why),
        LogError::BadRequest(why) => Failure::bad_request(why),
        LogError::Unavailable(why) => Failure::unavailable(why),
    })?;
    Ok(plain(Body::from_stream(stream)))
}

fn plain(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

fn read(call: &Call, pod: &Value) -> Result<LogRequest, Failure> {
    let params = &call.params;
    let since_time = params.get("sinceTime").map(|text| {
        text.parse::<Timestamp>().map_err(|error| {
            Failure::bad_request(format!(
                "sinceTime: Invalid value: \"{text}\": {error}; write it as RFC 3339"
            ))
        })
    });
    Ok(LogRequest {
        namespace: call.namespace.clone().unwrap_or_default(),
        pod: call.object_name().to_string(),
        uid: object::meta_text(pod, "uid").to_string(),
        node: pod["spec"]["nodeName"]
            .as_str()
            .unwrap_or_default()
            .to_string(),
        container: container(call, pod)?,
        follow: params.switch("follow") == Some(true),
        tail: params.number("tailLines")?,
        since_seconds: params.number("sinceSeconds")?,
        since_time: since_time.transpose()?,
        timestamps: params.switch("timestamps") == Some(true),
        previous: params.switch("previous") == Some(true),
        limit_bytes: params.number("limitBytes")?,
    })
}

/// The requested container: the named one, or the only one.
pub(crate) fn container(call: &Call, pod: &Value) -> Result<String, Failure> {
    let names = |list: &str| -> Vec<String> {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        containers
            .filter_map(|one| one["name"].as_str().map(str::to_owned))
            .collect()
    };
    let (ordinary, first) = (names("containers"), names("initContainers"));
    let pod_name = call.object_name();
    match call.params.get("container") {
        Some(name) if ordinary.iter().chain(&first).any(|one| one == name) => Ok(name.to_string()),
        Some(name) => Err(Failure::bad_request(format!(
            "container {name} is not valid for pod {pod_name}"
        ))),
        None => match ordinary.as_slice() {
            [only] => Ok(only.clone()),
            several => {
                let mut choose = format!(
                    "a container name must be specified for pod {pod_name}, choose one of: [{}]",
                    several.join(" ")
                );
                if !first.is_empty() {
                    choose.push_str(&format!(
                        " or one of the init containers: [{}]",
                        first.join(" ")
                    ));
                }
                Err(Failure::bad_request(choose))
            }
        },
    }
}
