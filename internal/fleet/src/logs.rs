//! Reads a container's log through its node's session. The agent may send only as much as the
//! reader has consumed (credit), so that a slow reader delays only its own log.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use rpc::LOG_WINDOW_CHUNKS;
use rpc::agent::v1::{CloseLog, LogCredit, OpenLog};
use tokio::sync::mpsc;

use crate::error::LogReadError;
use crate::live_index::LiveIndex;
use crate::log_streams::{LogPiece, MAX_STREAMS};
use crate::open_sessions::{OpenSessions, Session};
use crate::pod_fields::node_of;

/// How long a node may take to open a log.
const OPEN: Duration = Duration::from_secs(15);

/// The log, and the part of it to read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentLogQuery {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's uid: excludes a later pod of the same name.
    pub uid: Option<String>,
    /// The node to ask, if the caller knows it better than the pod object.
    pub node: Option<String>,
    /// The container; empty for the pod's first.
    pub container: String,
    /// Follow the log until the container ends.
    pub follow: bool,
    /// Only the last lines.
    pub tail_lines: Option<i64>,
    /// Only lines written at this time or later.
    pub since: Option<Timestamp>,
    /// Prefix each line with its time.
    pub timestamps: bool,
    /// The container's previous run.
    pub previous: bool,
    /// At most this many bytes.
    pub limit_bytes: Option<i64>,
}

/// A log's bytes as they arrive.
pub type LogBytes = Pin<Box<dyn Stream<Item = Result<Bytes, io::Error>> + Send>>;

/// One open log; the agent is notified when the reader is dropped.
struct AgentLogReader {
    session: Arc<Session>,
    id: u64,
    pieces: mpsc::Receiver<LogPiece>,
    taken: u32,
    over: bool,
}

impl Drop for AgentLogReader {
    fn drop(&mut self) {
        self.session.logs.remove(self.id);
        if self.over {
            return;
        }
        let close = CloseLog { stream_id: self.id };
        if !self.session.try_send(close)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let session = self.session.clone();
            runtime.spawn(async move { session.send(close).await });
        }
    }
}

/// The logs of the pods of all nodes.
pub struct NodeLogs {
    client: Client,
    index: Arc<LiveIndex>,
    sessions: Arc<OpenSessions>,
}

impl NodeLogs {
    /// Finds pods in the index or by the client, and reads their logs through these sessions.
    pub fn new(client: Client, index: Arc<LiveIndex>, sessions: Arc<OpenSessions>) -> NodeLogs {
        NodeLogs {
            client,
            index,
            sessions,
        }
    }

    /// Opens a container's log. If the pod object is gone, every connected node is asked: logs
    /// outlast the pods.
    pub async fn open(&self, query: AgentLogQuery) -> Result<LogBytes, LogReadError> {
        let pod = self
            .index
            .lock()
            .pod(&query.namespace, &query.pod)
            .filter(|pod| query.uid.is_none() || pod.metadata.uid == query.uid);
        let pod = match pod {
            Some(pod) => Some(pod),
            None => self.unlisted_pod(&query).await,
        };
        let Some(pod) = pod else {
            return self.open_of_deleted_pod(query).await;
        };
        let container = default_container(&pod, &query.container);
        let node = query.node.as_deref().or_else(|| node_of(&pod));
        let Some(node) = node else {
            return Err(LogReadError::NotReady(format!(
                "pod {:?} has no node yet, so there is no log",
                query.pod
            )));
        };
        let session = self
            .sessions
            .get(node)
            .ok_or_else(|| LogReadError::NodeAway {
                node: node.to_owned(),
                pod: query.pod.clone(),
            })?;
        let open = open_message(&query, container.clone(), pod.metadata.uid.clone());
        match self.open_on(session, open).await {
            Err(LogReadError::NotFound(text)) => match waiting_reason(&pod, &container) {
                Some(reason) => Err(LogReadError::NotReady(format!(
                    "container {container:?} in pod {:?} is waiting to start: {reason}",
                    query.pod
                ))),
                None => Err(LogReadError::NotFound(text)),
            },
            other => other,
        }
    }

    /// A pod that the index lacks, because the index contains only pods with a node.
    async fn unlisted_pod(&self, query: &AgentLogQuery) -> Option<Arc<Pod>> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &query.namespace);
        let found = api.get_opt(&query.pod).await.unwrap_or_else(|error| {
            tracing::debug!(%error, pod = query.pod, "the server could not read the pod of a requested log");
            None
        });
        found
            .filter(|pod| query.uid.is_none() || pod.metadata.uid == query.uid)
            .map(Arc::new)
    }

    async fn open_of_deleted_pod(&self, query: AgentLogQuery) -> Result<LogBytes, LogReadError> {
        let sessions: Vec<Arc<Session>> = match &query.node {
            Some(node) => self.sessions.get(node).into_iter().collect(),
            None => self.sessions.all().into_values().collect(),
        };
        let mut answers: futures::stream::FuturesUnordered<_> = sessions
            .into_iter()
            .map(|session| {
                let open = open_message(&query, query.container.clone(), query.uid.clone());
                self.open_on(session, open)
            })
            .collect();
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(stream) => return Ok(stream),
                Err(LogReadError::NotFound(_)) => {}
                Err(error) => tracing::debug!(%error, "a node did not answer whether it has a log"),
            }
        }
        Err(LogReadError::NotFound(format!(
            "pods {:?} not found, and no connected node keeps a log of it",
            query.pod
        )))
    }

    async fn open_on(
        &self,
        session: Arc<Session>,
        mut open: OpenLog,
    ) -> Result<LogBytes, LogReadError> {
        let id = self.sessions.next_id();
        open.stream_id = id;
        let (pod, container) = (open.pod.clone(), open.container.clone());
        let away = || LogReadError::NodeAway {
            node: session.node.clone(),
            pod: pod.clone(),
        };
        let pieces = session.logs.add(id).ok_or_else(|| {
            LogReadError::Failed(format!(
                "{MAX_STREAMS} logs are being read from node {:?}; close one and try again",
                session.node
            ))
        })?;
        let mut reader = AgentLogReader {
            session: session.clone(),
            id,
            pieces,
            taken: 0,
            over: false,
        };
        if !session.send(open).await {
            return Err(away());
        }
        match tokio::time::timeout(OPEN, reader.pieces.recv()).await {
            Err(_) => Err(LogReadError::Failed(format!(
                "node {:?} did not open the log of pod {pod:?} within {} s; try again",
                session.node,
                OPEN.as_secs()
            ))),
            Ok(None) => Err(away()),
            Ok(Some(LogPiece::End(end))) => {
                reader.over = true;
                if end.not_found {
                    Err(LogReadError::NotFound(format!(
                        "node {:?} has no log of container {container:?} of pod {pod:?}",
                        session.node
                    )))
                } else if end.error.is_empty() {
                    Ok(Box::pin(futures::stream::empty()))
                } else {
                    Err(LogReadError::Failed(end.error))
                }
            }
            Ok(Some(LogPiece::Opened)) => Ok(Box::pin(stream(reader, None))),
            Ok(Some(LogPiece::Data(data))) => Ok(Box::pin(stream(reader, Some(data)))),
        }
    }
}

fn stream(
    reader: AgentLogReader,
    first: Option<Bytes>,
) -> impl Stream<Item = Result<Bytes, io::Error>> + Send {
    let rest = futures::stream::unfold(reader, |mut reader| async move {
        if reader.over {
            return None;
        }
        match reader.pieces.recv().await {
            Some(LogPiece::Data(data)) => {
                reader.taken += 1;
                if reader.taken >= LOG_WINDOW_CHUNKS / 2 {
                    let credit = LogCredit {
                        stream_id: reader.id,
                        chunks: reader.taken,
                    };
                    reader.taken = 0;
                    reader.session.send(credit).await;
                }
                Some((Ok(data), reader))
            }
            Some(LogPiece::Opened) => Some((Ok(Bytes::new()), reader)),
            Some(LogPiece::End(end)) => {
                reader.over = true;
                if end.error.is_empty() {
                    None
                } else {
                    Some((Err(io::Error::other(end.error)), reader))
                }
            }
            None => {
                reader.over = true;
                let text = format!("the connection to node {:?} was lost", reader.session.node);
                Some((
                    Err(io::Error::new(io::ErrorKind::ConnectionAborted, text)),
                    reader,
                ))
            }
        }
    });
    futures::stream::iter(first.map(Ok)).chain(rest)
}

fn open_message(query: &AgentLogQuery, container: String, uid: Option<String>) -> OpenLog {
    OpenLog {
        stream_id: 0,
        namespace: query.namespace.clone(),
        pod: query.pod.clone(),
        uid: uid.unwrap_or_default(),
        container,
        follow: query.follow,
        tail_lines: query.tail_lines,
        since_unix_nanos: query
            .since
            .map(|since| i64::try_from(since.as_nanosecond()).unwrap_or(0)),
        timestamps: query.timestamps,
        previous: query.previous,
        limit_bytes: query.limit_bytes,
        credit: LOG_WINDOW_CHUNKS,
    }
}

/// The container requested, or kubectl's default.
fn default_container(pod: &Pod, requested: &str) -> String {
    if !requested.is_empty() {
        return requested.to_owned();
    }
    let annotated = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get("kubectl.kubernetes.io/default-container"));
    annotated.cloned().unwrap_or_else(|| {
        let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
        first
            .map(|container| container.name.clone())
            .unwrap_or_default()
    })
}

/// Why a container has not started, if it has not.
fn waiting_reason(pod: &Pod, container: &str) -> Option<String> {
    let status = pod.status.as_ref()?;
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let statuses = status
        .container_statuses
        .iter()
        .flatten()
        .chain(status.init_container_statuses.iter().flatten());
    let mut any = false;
    for one in statuses {
        any = true;
        if one.name == container {
            let waiting = one.state.as_ref()?.waiting.as_ref()?;
            return Some(waiting.reason.clone().unwrap_or_default());
        }
    }
    (!any).then(|| "ContainerCreating".to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn the_container_is_the_one_asked_for_or_the_default_or_the_first() {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}))
        .unwrap();
        assert_eq!(default_container(&pod, "b"), "b");
        assert_eq!(default_container(&pod, ""), "a");
        pod.metadata.annotations = Some(BTreeMap::from([(
            "kubectl.kubernetes.io/default-container".to_owned(),
            "b".to_owned(),
        )]));
        assert_eq!(default_container(&pod, ""), "b");
    }

    #[test]
    fn a_container_that_waits_says_why() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "status": {"phase": "Pending", "containerStatuses": [{
                "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}}))
        .unwrap();
        assert_eq!(
            waiting_reason(&pod, "a").as_deref(),
            Some("CrashLoopBackOff")
        );
        assert_eq!(waiting_reason(&pod, "b"), None);
    }

    #[tokio::test]
    async fn a_pod_without_a_node_has_no_log_yet_and_one_that_is_not_there_none_at_all() {
        let api = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
            let (code, body) = if request.uri().path().ends_with("/pods/waiting") {
                let pod = json!({
                    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waiting", "uid": "u"},
                    "spec": {"containers": [{"name": "a"}]}});
                (200, pod)
            } else {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "reason": "NotFound", "code": 404});
                (404, status)
            };
            let answer = http::Response::builder().status(code);
            answer.body(kube::client::Body::from(body.to_string().into_bytes()))
        });
        let sessions: Arc<OpenSessions> = Arc::default();
        let index = Arc::new(LiveIndex::new(sessions.clone()));
        let logs = NodeLogs::new(Client::new(api, "default"), index, sessions);
        let refused = async |pod: &str, uid: Option<&str>| {
            let query = AgentLogQuery {
                namespace: "ns".to_owned(),
                pod: pod.to_owned(),
                uid: uid.map(str::to_owned),
                ..AgentLogQuery::default()
            };
            logs.open(query).await.err().unwrap().to_string()
        };
        let waits = "has no node yet";
        assert!(refused("waiting", None).await.contains(waits));
        assert!(refused("waiting", Some("u")).await.contains(waits));
        assert!(refused("waiting", Some("old")).await.contains("not found"));
        assert!(refused("gone", None).await.contains("not found"));
    }
}
