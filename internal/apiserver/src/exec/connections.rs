//! The connections of one client that forwards ports: opens them through the nodes, and carries each in a task of
//! its own. Knows no protocol of the client's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::exec_opener::{
    ExecAction, ExecError, ExecEvent, ExecInput, ExecOpener, ExecRequest, ExecStreams,
};

/// The maximum number of connections of one client at the same time.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// Pieces of a connection's input that wait; a process that does not read its input slows its client down.
const WAITING: usize = 8;
/// How long a process may take nothing of its input while more arrives; then its connection ends, since the client's
/// other connections wait for it.
const STUCK: Duration = Duration::from_secs(120);

/// What a connection sends to its client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A piece of its data.
    Data(Bytes),
    /// Why it ended, or was not made.
    Error(String),
    /// It is over; always the last.
    End,
}

/// Pieces to the client, each with its connection's number.
pub(super) type ToClient = mpsc::Sender<(u32, Piece)>;

/// A client's open connections.
#[derive(Clone)]
pub(super) struct Connections {
    open: Arc<Mutex<BTreeMap<u32, mpsc::Sender<ExecInput>>>>,
    tasks: Arc<Mutex<JoinSet<()>>>,
    to_client: ToClient,
    opener: ExecOpener,
    request: ExecRequest,
}

impl Connections {
    /// Connections to the pod that the request names.
    pub(super) fn new(
        opener: ExecOpener,
        request: ExecRequest,
        to_client: ToClient,
    ) -> Connections {
        Connections {
            open: Arc::default(),
            tasks: Arc::default(),
            to_client,
            opener,
            request,
        }
    }

    /// Opens one; false if the client has too many.
    pub(super) fn open(&self, id: u32, port: u16) -> bool {
        let mut open = self.open.lock();
        if open.len() >= CONNECTIONS_MAX || open.contains_key(&id) {
            return false;
        }
        let (sender, input) = mpsc::channel(WAITING);
        open.insert(id, sender);
        let request = ExecRequest {
            action: ExecAction::Forward(port),
            ..self.request.clone()
        };
        let (opener, to_client, all) = (
            self.opener.clone(),
            self.to_client.clone(),
            self.open.clone(),
        );
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let error = carry(opener(request).await, input, id, &to_client).await;
            all.lock().remove(&id);
            if let Some(error) = error {
                let _ = to_client.send((id, Piece::Error(error))).await;
            }
            let _ = to_client.send((id, Piece::End)).await;
        });
        true
    }

    /// Passes the client's input on; a connection that is over takes none.
    pub(super) async fn send(&self, id: u32, input: ExecInput) {
        let sender = self.open.lock().get(&id).cloned();
        let Some(sender) = sender else { return };
        if tokio::time::timeout(STUCK, sender.send(input))
            .await
            .is_err()
        {
            self.close(id);
        }
    }

    /// Ends one: its task sees that no more input can come.
    pub(super) fn close(&self, id: u32) {
        self.open.lock().remove(&id);
    }

    /// Ends all.
    pub(super) fn close_all(&self) {
        self.open.lock().clear();
        self.tasks.lock().abort_all();
    }
}

/// Carries one connection; the reason for an end that is not the process's own.
async fn carry(
    opened: Result<ExecStreams, ExecError>,
    mut input: mpsc::Receiver<ExecInput>,
    id: u32,
    to_client: &ToClient,
) -> Option<String> {
    let ExecStreams {
        mut send,
        mut events,
    } = match opened {
        Ok(streams) => streams,
        Err(error) => return Some(error.to_string()),
    };
    let inbound = async {
        while let Some(piece) = input.recv().await {
            if !send(piece).await {
                // Its end is on its way.
                return std::future::pending().await;
            }
        }
    };
    let outbound = async {
        loop {
            let data = match events.next().await {
                Some(ExecEvent::Output(data) | ExecEvent::Errors(data)) => data,
                Some(ExecEvent::Exit(_)) => return None,
                Some(ExecEvent::Failed(why)) => return Some(why),
                None => return Some("the node ended the connection".to_owned()),
            };
            if to_client.send((id, Piece::Data(data))).await.is_err() {
                return None;
            }
        }
    };
    tokio::select! {
        () = inbound => None,
        error = outbound => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> ExecRequest {
        ExecRequest {
            namespace: "default".into(),
            pod: "web".into(),
            uid: "1".into(),
            node: "n1".into(),
            container: String::new(),
            action: ExecAction::Attach,
            stdin: true,
            stdout: true,
            stderr: false,
            tty: false,
        }
    }

    #[tokio::test]
    async fn a_client_has_a_bounded_number_of_connections_and_places_come_back() {
        let opener: ExecOpener = Arc::new(|_| Box::pin(std::future::pending()));
        let (to_client, _pieces) = mpsc::channel(1);
        let connections = Connections::new(opener, request(), to_client);
        let most = u32::try_from(CONNECTIONS_MAX).unwrap();
        assert!((0..most).all(|id| connections.open(id, 80)));
        assert!(!connections.open(most, 80));
        connections.close(0);
        assert!(connections.open(most, 80));
    }

    #[tokio::test]
    async fn a_connection_that_is_not_made_tells_why_and_ends() {
        let opener: ExecOpener = Arc::new(|request| {
            assert_eq!(request.action, ExecAction::Forward(80));
            let refused = ExecError::Refused("not the pod's".into());
            Box::pin(std::future::ready(Err(refused)))
        });
        let (to_client, mut pieces) = mpsc::channel(1);
        let connections = Connections::new(opener, request(), to_client);
        assert!(connections.open(3, 80));
        let told = Piece::Error("not the pod's".into());
        assert_eq!(pieces.recv().await, Some((3, told)));
        assert_eq!(pieces.recv().await, Some((3, Piece::End)));
    }
}
