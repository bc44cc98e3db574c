//! Carries a running container's own output, and a client's input for it, between the container's shim and the
//! server.

use rpc::agent::v1::exec_frame::Body;
use rpc::agent::v1::{ExecData, ExecExit, ExecFrame, OpenExec};
use rpc::exec_channel;
use runtime::{AttachInput, AttachOutput, AttachSession};
use tokio::sync::mpsc;
use tonic::Streaming;

use super::{frame, relay};

/// Carries until the container ends, or the server ends the call.
pub(super) async fn run(
    session: AttachSession,
    open: &OpenExec,
    inbound: Streaming<ExecFrame>,
    outbound: mpsc::Sender<ExecFrame>,
) {
    let output = send(session.output, open, outbound.clone());
    let input = take(inbound, session.input);
    relay(output, input, outbound).await;
}

async fn send(
    mut output: AttachOutput,
    open: &OpenExec,
    outbound: mpsc::Sender<ExecFrame>,
) -> ExecExit {
    loop {
        let (errors, data) = match output.next().await {
            Ok(Some(piece)) => piece,
            // As in Kubernetes, the container's exit code is in the pod's status and not in this answer.
            Ok(None) => return ExecExit::default(),
            Err(error) => {
                return ExecExit {
                    code: 0,
                    error: error.to_string(),
                };
            }
        };
        let (channel, wanted) = match errors {
            false => (exec_channel::OUTPUT, open.stdout || open.tty),
            true => (exec_channel::ERRORS, open.stderr),
        };
        if wanted {
            // A closed connection is seen by the caller.
            let _ = outbound
                .send(frame(Body::Data(ExecData { channel, data })))
                .await;
        }
    }
}

/// Takes the client's input and the sizes of its terminal; returns once the connection has ended.
async fn take(mut inbound: Streaming<ExecFrame>, mut input: AttachInput) {
    while let Ok(Some(message)) = inbound.message().await {
        // If the shim is gone, the output's end is on its way.
        let _ = match message.body {
            Some(Body::Data(data)) => input.write(&data.data).await,
            Some(Body::InputEnd(_)) => input.end().await,
            Some(Body::Resize(size)) => {
                let bounded = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
                input
                    .resize(bounded(size.width), bounded(size.height))
                    .await
            }
            Some(Body::Opened(_) | Body::Exit(_)) | None => Ok(()),
        };
    }
}
