//! Carries a command's input and output between a WebSocket and the node, until either ends, the
//! caller loses its right, or nothing was said for hours.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures::{Sink, SinkExt as _, Stream, StreamExt as _};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::frames;
use crate::exec_opener::{ExecEvent, ExecInput, ExecStreams};
use crate::watch_rights::Rights;

/// How long a client may take the last messages.
pub(super) const GOODBYE: Duration = Duration::from_secs(10);
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
    bound: Duration,
) {
    let (to_client, from_client) = socket.split();
    between(to_client, from_client, streams, tty, rights, bound).await;
}

async fn between<E>(
    mut to_client: impl Sink<Message> + Unpin,
    from_client: impl Stream<Item = Result<Message, E>> + Unpin,
    streams: ExecStreams,
    tty: bool,
    rights: Option<Rights>,
    bound: Duration,
) {
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
            () = lost(rights) => Some(frames::failed("the right to do this in this pod was taken from you")),
            () = idle(&used, bound) => Some(frames::failed(&format!(
                "the connection was ended: it had no input and output for {} s", bound.as_secs()
            ))),
        }
    };
    if let Some(last) = last {
        let _ = tokio::time::timeout(GOODBYE, goodbye(to_client, last)).await;
    }
}

/// Passes the client's input on until the client is gone.
async fn input<E>(
    mut from_client: impl Stream<Item = Result<Message, E>> + Unpin,
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
pub(super) async fn lost(rights: Option<Rights>) {
    match rights {
        Some(rights) => rights.lost().await,
        None => std::future::pending().await,
    }
}

/// Returns when there was no input and output for so long.
pub(super) async fn idle(used: &Mutex<Instant>, bound: Duration) {
    loop {
        let until = *used.lock() + bound;
        if until <= Instant::now() {
            return;
        }
        tokio::time::sleep_until(until).await;
    }
}

async fn goodbye(mut to_client: impl Sink<Message> + Unpin, last: bytes::Bytes) {
    let close = Message::Close(Some(CloseFrame {
        code: close_code::NORMAL,
        reason: "".into(),
    }));
    if to_client.send(Message::Binary(last)).await.is_ok() && to_client.send(close).await.is_ok() {
        let _ = to_client.close().await;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::channel::mpsc;

    use super::*;

    fn silent() -> ExecStreams {
        ExecStreams {
            send: Box::new(|_| Box::pin(async { true })),
            events: futures::stream::pending().boxed(),
        }
    }

    #[tokio::test]
    async fn a_client_without_input_and_output_is_ended_and_learns_why() {
        let (to_client, mut seen) = mpsc::unbounded();
        let from_client = futures::stream::pending::<Result<Message, axum::Error>>();
        let bound = Duration::from_millis(20);
        between(to_client, from_client, silent(), false, None, bound).await;
        let Some(Message::Binary(last)) = seen.next().await else {
            panic!("the client got no status");
        };
        let text = String::from_utf8_lossy(&last).into_owned();
        assert!(text.contains("it had no input and output for"), "{text}");
        assert!(matches!(seen.next().await, Some(Message::Close(_))));
    }

    #[tokio::test]
    async fn input_and_output_put_the_end_off() {
        let begun = Instant::now();
        let (bound, pauses) = (Duration::from_millis(40), 10_u32);
        let every = Duration::from_millis(10);
        let input = futures::stream::unfold(0, |count| async move {
            tokio::time::sleep(every).await;
            let message = Message::Binary(Bytes::from_static(b"\0x"));
            (count < pauses).then_some((Ok::<_, axum::Error>(message), count + 1))
        });
        let input = input.chain(futures::stream::pending());
        let (to_client, _seen) = mpsc::unbounded();
        between(to_client, Box::pin(input), silent(), false, None, bound).await;
        // Each pause of the input is at least as long as it was asked to be.
        assert!(begun.elapsed() >= every * 4 + bound);
    }
}
