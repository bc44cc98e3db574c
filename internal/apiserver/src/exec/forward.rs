//! Owns `pods/NAME/portforward` over WebSocket: as kubectl from 1.31 tunnels SPDY through it, and with two channels
//! for each port, as the Python client uses it.

use std::time::Duration;

use axum::body::Body;
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use http::{Method, Response};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::carry::{GOODBYE, idle, lost};
use super::channels::ForwardChannels;
use super::connections::{Connections, Piece};
use super::tunnel::SpdyTunnel;
use crate::call::Call;
use crate::exec_opener::{ExecAction, ExecInput, ExecOpener, ExecRequest};
use crate::status::Failure;
use crate::watch_rights::Rights;

/// The subprotocols, the best first.
const PROTOCOLS: [&str; 2] = [TUNNEL, "v4.channel.k8s.io"];
/// SPDY frames in the WebSocket's messages.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// Pieces for the client that wait; a client that does not read slows its connections down.
const WAITING: usize = 16;

/// What a client's message asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// A connection to a port.
    Open { id: u32, port: u16 },
    /// Input of a connection.
    Input { id: u32, input: ExecInput },
    /// The end of a connection.
    Close { id: u32 },
    /// A message that answers at once.
    Reply(Bytes),
}

/// What a client sent is no part of the protocol; the text says what.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct ProtocolError(pub(super) String);

/// A client's protocol: what its messages ask for, and how pieces are sent to it.
pub(super) trait Framing: Send {
    /// What comes before any message: connections to open, and messages.
    fn begin(&mut self) -> Vec<Wish>;
    /// What a message asks for.
    fn read(&mut self, message: &Bytes) -> Result<Vec<Wish>, ProtocolError>;
    /// A connection is not opened, since there are too many.
    fn refuse(&mut self, id: u32, why: &str) -> Vec<Bytes>;
    /// A piece of a connection, as messages.
    fn write(&mut self, id: u32, piece: Piece) -> Vec<Bytes>;
    /// Whether nothing can follow.
    fn over(&self) -> bool;
}

/// Answers GET and POST of `pods/NAME/portforward`.
pub(crate) async fn portforward(call: &Call, method: &Method) -> Result<Response<Body>, Failure> {
    let pod = super::entered(call, "portforward")?;
    let request = super::of_pod(call, &pod, "forward a port to", ExecAction::Attach)?;
    let upgrade = super::upgrade(call, method, "port-forward", &PROTOCOLS).await?;
    let tunnelled = upgrade
        .selected_protocol()
        .is_some_and(|protocol| protocol.as_bytes() == TUNNEL.as_bytes());
    let framing: Box<dyn Framing> = match tunnelled {
        true => Box::new(SpdyTunnel::default()),
        false => Box::new(ForwardChannels::new(ports(call.params.all("ports"))?)),
    };
    let place = call.server.0.execs.place(&call.caller.user)?;
    let opener = super::opener(call)?;
    let rights = Rights::to_create(call, "portforward");
    let bound = call.server.0.config.stream_idle;
    Ok(
        super::bounded(upgrade).on_upgrade(move |socket| async move {
            carry(socket, framing, opener, request, rights, bound).await;
            drop(place);
        }),
    )
}

/// The ports that the parameters `ports` name, separated by commas.
fn ports<'a>(lists: impl Iterator<Item = &'a str>) -> Result<Vec<u16>, Failure> {
    let named: Vec<&str> = lists
        .flat_map(|list| list.split(','))
        .filter(|port| !port.is_empty())
        .collect();
    let wrong = |value: &str| {
        Failure::bad_request(format!(
            "ports: Invalid value: {value:?}: name 1 to {} ports from 1 to 65535, separated by commas",
            ForwardChannels::PORTS_MAX
        ))
    };
    if named.is_empty() || named.len() > ForwardChannels::PORTS_MAX {
        return Err(wrong(&named.join(",")));
    }
    let port = |text: &&str| {
        let port = text.parse::<u16>().ok().filter(|port| *port != 0);
        port.ok_or_else(|| wrong(text))
    };
    named.iter().map(port).collect()
}

/// Carries until the client leaves, loses its right, or nothing was said for so long.
async fn carry(
    socket: WebSocket,
    framing: Box<dyn Framing>,
    opener: ExecOpener,
    request: ExecRequest,
    rights: Option<Rights>,
    bound: Duration,
) {
    let (mut to_client, from_client) = socket.split();
    let (pieces, waiting) = mpsc::channel(WAITING);
    let (messages, answers) = mpsc::channel(WAITING);
    let connections = Connections::new(opener, request, pieces);
    let used = Mutex::new(Instant::now());
    let framing = Mutex::new(framing);
    let code = tokio::select! {
        read = read(from_client, &framing, &connections, &messages, &used) => match read {
            Ok(()) => close_code::NORMAL,
            Err(error) => {
                tracing::debug!(%error, "a client that forwards ports broke the protocol");
                close_code::PROTOCOL
            }
        },
        () = write(&mut to_client, &framing, waiting, answers, &used) => close_code::NORMAL,
        () = lost(rights) => close_code::POLICY,
        () = idle(&used, bound) => close_code::AWAY,
    };
    connections.close_all();
    let close = Message::Close(Some(CloseFrame {
        code,
        reason: "".into(),
    }));
    let _ = tokio::time::timeout(GOODBYE, async {
        if to_client.send(close).await.is_ok() {
            let _ = to_client.close().await;
        }
    })
    .await;
}

async fn read(
    mut from_client: SplitStream<WebSocket>,
    framing: &Mutex<Box<dyn Framing>>,
    connections: &Connections,
    messages: &mpsc::Sender<Bytes>,
    used: &Mutex<Instant>,
) -> Result<(), ProtocolError> {
    let mut wishes = framing.lock().begin();
    loop {
        for wish in wishes {
            match wish {
                Wish::Open { id, port } => {
                    if !connections.open(id, port) {
                        let why = format!(
                            "this client has {} connections already; close one and try again",
                            super::connections::CONNECTIONS_MAX
                        );
                        let refusals = framing.lock().refuse(id, &why);
                        for refusal in refusals {
                            let _ = messages.send(refusal).await;
                        }
                    }
                }
                Wish::Input { id, input } => connections.send(id, input).await,
                Wish::Close { id } => connections.close(id),
                Wish::Reply(message) => {
                    let _ = messages.send(message).await;
                }
            }
        }
        let message = loop {
            match from_client.next().await {
                Some(Ok(Message::Binary(message))) => break message,
                Some(Ok(Message::Text(message))) => break message.into(),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(()),
            }
        };
        *used.lock() = Instant::now();
        wishes = framing.lock().read(&message)?;
    }
}

/// Sends what the connections and the protocol say; returns if the client is gone, or nothing can follow.
async fn write(
    to_client: &mut SplitSink<WebSocket, Message>,
    framing: &Mutex<Box<dyn Framing>>,
    mut pieces: mpsc::Receiver<(u32, Piece)>,
    mut answers: mpsc::Receiver<Bytes>,
    used: &Mutex<Instant>,
) {
    loop {
        let messages = tokio::select! {
            // An answer that opens a stream comes before the stream's data.
            biased;
            Some(answer) = answers.recv() => vec![answer],
            Some((id, piece)) = pieces.recv() => framing.lock().write(id, piece),
            else => return,
        };
        *used.lock() = Instant::now();
        for message in messages {
            if to_client.send(Message::Binary(message)).await.is_err() {
                return;
            }
        }
        if framing.lock().over() {
            return;
        }
    }
}

/// Shared by the tests of the protocols.
#[cfg(test)]
pub(super) fn input(id: u32, data: &'static [u8]) -> Wish {
    Wish::Input {
        id,
        input: ExecInput::Data(Bytes::from_static(data)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_names_a_bounded_number_of_ports() {
        let read = |lists: &[&str]| ports(lists.iter().copied()).ok();
        assert_eq!(read(&["80,8080", "22"]), Some(vec![80, 8080, 22]));
        let many = vec!["80"; ForwardChannels::PORTS_MAX];
        assert_eq!(read(&many).map(|ports| ports.len()), Some(many.len()));
        assert_eq!(read(&[&many[..], &["81"]].concat()), None);
        for wrong in ["", ",", "0", "65536", "http", "80;81"] {
            assert_eq!(read(&[wrong]), None, "{wrong}");
        }
    }
}
