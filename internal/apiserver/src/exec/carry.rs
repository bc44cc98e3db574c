//! Carries a command's input and output between a WebSocket and the node, until either ends, the
//! caller loses its right, or nothing was said for hours.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{ExecEvent, ExecInput, ExecStreams, frames};
use crate::watch_rights::Rights;

/// A command without input and output for this long is ended, as by a kubelet.
const IDLE: Duration = Duration::from_secs(14_400);
/// How long a client may take the last messages.
const GOODBYE: Duration = Duration::from_secs(10);
/// The byte that types Control-D: at a terminal the end of the input.
const END_OF_TRANSMISSION: &[u8] = b"\x04";

type Send =
    Box<dyn FnMut(ExecInput) -> futures::future::BoxFuture<'static, bool> + std::marker::Send>;

/// Carries until the command or the client ends; the command ends with `streams`.
pub(super) async fn carry(
    socket: WebSocket,
    streams: ExecStreams,
    tty: bool,
    rights: Option<Rights>,
) {
    let (mut to_client, from_client) = socket.split();
    let used = Arc::new(Mutex::new(Instant::now()));
    let ExecStreams { send, mut events } = streams;
    let last = {
        let output = async {
            loop {
                let message = match events.next().await {
                    Some(ExecEvent::Output(data)) => frames::output(&data),
                    Some(ExecEvent::Errors(data)) => frames::errors(&data),
                    Some(ExecEvent::Exit(code)) => return Some(frames::exited(code)),
                    Some(ExecEvent::Failed(why)) => return Some(frames::failed(&why)),
                    None => {
                        return Some(frames::failed(
                            "the node ended the connection; the command was ended with it",
                        ));
                    }
                };
                *used.lock() = Instant::now();
                if to_client.send(Message::Binary(message)).await.is_err() {
                    return None;
                }
            }
        };
        tokio::select! {
            last = output => last,
            () = input(from_client, send, tty, &used) => None,
            () = lost(rights) => Some(frames::failed("you may no longer run commands in this pod")),
            () = idle(&used) => Some(frames::failed("the command was ended: it had no input and output for 4 hours")),
        }
    };
    if let Some(last) = last {
        let _ = tokio::time::timeout(GOODBYE, goodbye(to_client, last)).await;
    }
}

/// Passes the client's input on until the client is gone.
async fn input(
    mut from_client: SplitStream<WebSocket>,
    mut send: Send,
    tty: bool,
    used: &Mutex<Instant>,
) {
    let mut open = true;
    while let Some(Ok(message)) = from_client.next().await {
        *used.lock() = Instant::now();
        let message = match message {
            Message::Binary(message) => message,
            // As the Python client writes a text.
            Message::Text(message) => message.into(),
            Message::Close(_) => return,
            _ => continue,
        };
        let wanted = match frames::read(&message) {
            // A terminal has no other end of its input.
            Some(ExecInput::End) if tty => ExecInput::Data(END_OF_TRANSMISSION.into()),
            Some(wanted) => wanted,
            None => continue,
        };
        // A command that is gone says so itself: its end is on its way.
        open = open && send(wanted).await;
    }
}

/// Returns when the caller may no longer run commands.
async fn lost(rights: Option<Rights>) {
    match rights {
        Some(rights) => rights.lost().await,
        None => std::future::pending().await,
    }
}

async fn idle(used: &Mutex<Instant>) {
    loop {
        let until = *used.lock() + IDLE;
        if until <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(until).await;
    }
}

async fn goodbye(mut to_client: SplitSink<WebSocket, Message>, last: bytes::Bytes) {
    let close = Message::Close(Some(CloseFrame {
        code: close_code::NORMAL,
        reason: "".into(),
    }));
    if to_client.send(Message::Binary(last)).await.is_ok() && to_client.send(close).await.is_ok() {
        let _ = to_client.close().await;
    }
}
