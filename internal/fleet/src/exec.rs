//! Commands in containers, through the node that runs them: asks the node's agent by its session,
//! and hands over the call `Exec` that the agent then opens. Does not interpret input and output.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use parking_lot::Mutex;
use rpc::agent::v1::exec_frame::Body;
use rpc::agent::v1::{ExecFrame, ExecOpened, OpenExec};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

use crate::error::ExecError;
use crate::node_places::{NodePlace, NodePlaces};
use crate::open_sessions::OpenSessions;

/// How long a node may take to start a command and open the call.
const OPEN: Duration = Duration::from_secs(15);
/// How long an agent may take over its first message.
const FIRST: Duration = Duration::from_secs(10);
/// Maximum number of commands on one node at the same time.
const PER_NODE_MAX: usize = 256;
/// Messages to the agent that wait; a command that does not read its input slows its client down.
const WAITING: usize = 8;

/// The stream of messages to the agent.
pub type ToAgent = Pin<Box<dyn futures::Stream<Item = Result<ExecFrame, Status>> + Send + 'static>>;

/// The two directions of a running command.
pub struct ExecConnection {
    /// Input, sizes of the terminal, the end of the input.
    pub to_agent: mpsc::Sender<Result<ExecFrame, Status>>,
    /// Output and the command's end.
    pub from_agent: Streaming<ExecFrame>,
    _place: NodePlace,
}

struct Awaited {
    node: String,
    requester: oneshot::Sender<Opened>,
}

struct Opened {
    error: String,
    to_agent: mpsc::Sender<Result<ExecFrame, Status>>,
    from_agent: Streaming<ExecFrame>,
}

/// The commands whose call is awaited, and how many run on each node.
pub struct Execs {
    awaited: Mutex<BTreeMap<u64, Awaited>>,
    places: NodePlaces,
}

impl Default for Execs {
    fn default() -> Execs {
        Execs {
            awaited: Mutex::default(),
            places: NodePlaces::new(PER_NODE_MAX),
        }
    }
}

impl Execs {
    fn place(&self, node: &str) -> Result<NodePlace, ExecError> {
        let taken = self.places.take(node);
        taken.ok_or_else(|| ExecError::TooMany {
            node: node.to_owned(),
            most: PER_NODE_MAX,
        })
    }

    /// Starts a command in a container on a node.
    ///
    /// # Errors
    /// If the node is not connected, does not answer in time, has too many commands, or cannot start this one.
    pub async fn open(
        &self,
        sessions: &OpenSessions,
        node: &str,
        mut open: OpenExec,
    ) -> Result<ExecConnection, ExecError> {
        let place = self.place(node)?;
        let away = || ExecError::NodeAway {
            node: node.to_owned(),
        };
        let session = sessions.get(node).ok_or_else(away)?;
        let id = sessions.next_id();
        open.stream_id = id;
        let (requester, opened) = oneshot::channel();
        self.awaited.lock().insert(
            id,
            Awaited {
                node: node.to_owned(),
                requester,
            },
        );
        // Removed however this ends, the caller's disconnection included.
        let _awaited = AwaitedEntry { execs: self, id };
        if !session.send(open).await {
            return Err(away());
        }
        let opened = match tokio::time::timeout(OPEN, opened).await {
            Err(_) => {
                return Err(ExecError::Silent {
                    node: node.to_owned(),
                    seconds: OPEN.as_secs(),
                });
            }
            Ok(Err(_)) => return Err(away()),
            Ok(Ok(opened)) => opened,
        };
        if !opened.error.is_empty() {
            return Err(ExecError::NotStarted(opened.error));
        }
        Ok(ExecConnection {
            to_agent: opened.to_agent,
            from_agent: opened.from_agent,
            _place: place,
        })
    }

    /// The call of a node's agent; the first message names the command.
    pub async fn opened(
        &self,
        node: &str,
        mut from_agent: Streaming<ExecFrame>,
    ) -> Result<Response<ToAgent>, Status> {
        let first = tokio::time::timeout(FIRST, from_agent.message());
        let first = first
            .await
            .map_err(|_| Status::deadline_exceeded("the agent sent no ExecOpened in time"))??;
        let Some(ExecFrame {
            body: Some(Body::Opened(ExecOpened { stream_id, error })),
        }) = first
        else {
            return Err(Status::invalid_argument(
                "the first message of a command's call must be ExecOpened",
            ));
        };
        let found = {
            let mut awaited = self.awaited.lock();
            let of_node = awaited.get(&stream_id).is_some_and(|one| one.node == node);
            of_node.then(|| awaited.remove(&stream_id)).flatten()
        };
        let unknown = || {
            Status::not_found(format!(
                "no client waits for command {stream_id} on node {node:?}"
            ))
        };
        let awaited = found.ok_or_else(unknown)?;
        let (to_agent, stream) = mpsc::channel(WAITING);
        let opened = Opened {
            error,
            to_agent,
            from_agent,
        };
        awaited.requester.send(opened).map_err(|_| unknown())?;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

struct AwaitedEntry<'a> {
    execs: &'a Execs,
    id: u64,
}

impl Drop for AwaitedEntry<'_> {
    fn drop(&mut self) {
        self.execs.awaited.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_a_bounded_number_of_commands_and_places_come_back() {
        let execs = Execs::default();
        let mut places: Vec<NodePlace> = (0..PER_NODE_MAX)
            .map(|_| execs.place("n1").unwrap())
            .collect();
        let refused = execs.place("n1").err().unwrap();
        assert!(refused.to_string().contains("256 commands"), "{refused}");
        assert!(execs.place("n2").is_ok());
        places.pop();
        assert!(execs.place("n1").is_ok());
    }
}
