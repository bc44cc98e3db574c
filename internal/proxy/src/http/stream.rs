//! A connection with a pod's port as a stream of bytes, over the pieces that its node's agent sends and takes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use apiserver::{ExecEvent, ExecInput, ExecStreams};
use futures::StreamExt as _;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf,
};
use tokio::sync::oneshot;

/// Bytes that wait in each direction.
const WAITING_BYTES: usize = 64 * 1024;
/// Bytes of one piece to the pod.
const PIECE_BYTES: usize = 32 * 1024;

/// The stream; dropping it ends the connection.
pub(super) struct PodStream {
    near: DuplexStream,
    _open: oneshot::Sender<()>,
}

impl PodStream {
    /// The stream over these pieces.
    pub(super) fn over(streams: ExecStreams) -> PodStream {
        let (near, far) = tokio::io::duplex(WAITING_BYTES);
        let (open, dropped) = oneshot::channel();
        tokio::spawn(async move {
            tokio::select! {
                () = carry(far, streams) => {}
                // The sender is dropped with the stream.
                _ = dropped => {}
            }
        });
        PodStream { near, _open: open }
    }
}

/// Carries until the pod ends the connection.
async fn carry(far: DuplexStream, streams: ExecStreams) {
    let ExecStreams {
        mut send,
        mut events,
    } = streams;
    let (mut from_client, mut to_client) = tokio::io::split(far);
    let inbound = async {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let read = from_client.read(&mut buffer).await.unwrap_or(0);
            if read == 0 {
                send(ExecInput::End).await;
                break;
            }
            let piece = bytes::Bytes::copy_from_slice(&buffer[..read]);
            if !send(ExecInput::Data(piece)).await {
                break;
            }
        }
        // The rest of the pod's answer still comes.
        std::future::pending::<()>().await;
    };
    let outbound = async {
        while let Some(event) = events.next().await {
            let (ExecEvent::Output(data) | ExecEvent::Errors(data)) = event else {
                break;
            };
            if to_client.write_all(&data).await.is_err() {
                break;
            }
        }
        let _ = to_client.shutdown().await;
    };
    tokio::select! {
        () = inbound => {}
        () = outbound => {}
    }
}

impl AsyncRead for PodStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_read(context, buffer)
    }
}

impl AsyncWrite for PodStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.near).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_shutdown(context)
    }
}
