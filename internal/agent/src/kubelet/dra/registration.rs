//! Registers the driver with the kubelet: its pluginregistration service, with two calls.
//!
//! The kubelet connects to this socket by its path and sends the path as the request's `:authority`
//! (`%2Fvar%2Flib%2F...`), which is not a valid authority, and which tonic's HTTP/2 refuses with
//! PROTOCOL_ERROR before any code of Muster runs. So this module implements the little of HTTP/2
//! that two calls need. Headers of requests are not read, because the messages distinguish the
//! calls: a GetInfo is empty.

use std::io;
use std::path::Path;

use devices::dra::DRIVER;
use prost::Message;
use rpc::kubelet::registration as wire;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixListener;

/// The kubelet's type for DRA drivers, and the service that it calls.
const KIND: &str = "DRAPlugin";
const SERVICE: &str = "v1.DRAPlugin";

/// The client's connection preface of HTTP/2 (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The default maximum size of a frame, and the maximum size of a request.
const FRAME_MAX: usize = 16_384;

/// Types of frames, and flags (RFC 9113, 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// `:status: 200` and `content-type: application/grpc` in HPACK, by their indices in the static
/// table.
const ANSWERED: &[u8] = b"\x88\x0f\x10\x10application/grpc";

/// `grpc-status: 0` in HPACK.
const WELL: &[u8] = b"\x00\x0bgrpc-status\x010";

/// The driver's identity.
#[derive(Clone)]
pub struct Registration {
    info: wire::PluginInfo,
}

/// A received frame.
struct ReceivedFrame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

fn odd(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<ReceivedFrame> {
    let mut head = [0; 9];
    from.read_exact(&mut head).await?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    if length > FRAME_MAX {
        return Err(odd("a frame is too large"));
    }
    let mut payload = vec![0; length];
    from.read_exact(&mut payload).await?;
    Ok(ReceivedFrame {
        kind,
        flags,
        stream: u32::from_be_bytes(stream) & 0x7fff_ffff,
        payload,
    })
}

/// A frame to send.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The data of a frame without its padding.
fn data(frame: &ReceivedFrame) -> io::Result<&[u8]> {
    if frame.flags & PADDED == 0 {
        return Ok(&frame.payload);
    }
    let (padding, data) =
        (frame.payload.split_first()).ok_or_else(|| odd("padded with nothing"))?;
    let end = data.len().checked_sub(usize::from(*padding));
    Ok(&data[..end.ok_or_else(|| odd("more padding than data"))?])
}

/// A gRPC message: whether it is compressed, its length, its bytes.
fn message(body: &[u8]) -> io::Result<&[u8]> {
    match body {
        [0, a, b, c, d, message @ ..]
            if u32::from_be_bytes([*a, *b, *c, *d]) as usize == message.len() =>
        {
            Ok(message)
        }
        _ => Err(odd("no single message of gRPC")),
    }
}

impl Registration {
    /// For the driver that is served at this socket.
    pub fn new(endpoint: &Path) -> Registration {
        Registration {
            info: wire::PluginInfo {
                r#type: KIND.into(),
                name: DRIVER.into(),
                endpoint: endpoint.display().to_string(),
                supported_versions: vec![SERVICE.into()],
            },
        }
    }

    /// Answers all connections.
    ///
    /// # Errors
    ///
    /// When the socket accepts no connections any more.
    pub async fn serve(&self, listener: UnixListener) -> io::Result<()> {
        loop {
            let (stream, _) = listener.accept().await?;
            let registration = self.clone();
            tokio::spawn(async move {
                if let Err(error) = registration.converse(stream).await {
                    tracing::debug!(%error, "a connection of the kubelet's broke");
                }
            });
        }
    }

    /// The answer to a call.
    fn answer(&self, call: &[u8]) -> io::Result<Vec<u8>> {
        if call.is_empty() {
            return Ok(self.info.encode_to_vec());
        }
        let status = wire::RegistrationStatus::decode(call);
        let status = status.map_err(|error| odd(&error.to_string()))?;
        if status.plugin_registered {
            tracing::info!("registered with the kubelet as DRA driver {DRIVER}");
        } else {
            tracing::warn!(
                "the kubelet does not take the DRA driver (it must be of Kubernetes 1.34 or \
                 later): {}",
                status.error
            );
        }
        Ok(wire::RegistrationStatusResponse {}.encode_to_vec())
    }

    /// One connection, until the client ends it.
    async fn converse(&self, mut with: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        let mut preface = [0; PREFACE.len()];
        with.read_exact(&mut preface).await?;
        if preface != PREFACE {
            return Err(odd("not HTTP/2"));
        }
        with.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
        // The kubelet sends one call after the other.
        let (mut stream, mut body) = (0, Vec::new());
        loop {
            let next = match read(&mut with).await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                next => next?,
            };
            match next.kind {
                SETTINGS if next.flags & ACK == 0 => {
                    with.write_all(&frame(SETTINGS, ACK, 0, &[])).await?;
                }
                PING if next.flags & ACK == 0 => {
                    with.write_all(&frame(PING, ACK, 0, &next.payload)).await?;
                }
                GOAWAY => return Ok(()),
                HEADERS => (stream, body) = (next.stream, Vec::new()),
                RESET if next.stream == stream => body.clear(),
                DATA if next.stream == stream => {
                    body.extend(data(&next)?);
                    if body.len() > FRAME_MAX {
                        return Err(odd("a call is too large"));
                    }
                    if next.flags & END_STREAM != 0 {
                        let answer = self.answer(message(&body)?)?;
                        let length = u32::try_from(answer.len()).unwrap_or(0).to_be_bytes();
                        let framed = [&[0], &length[..], &answer].concat();
                        let end = END_HEADERS | END_STREAM;
                        let all = [
                            frame(HEADERS, END_HEADERS, stream, ANSWERED),
                            frame(DATA, 0, stream, &framed),
                            frame(HEADERS, end, stream, WELL),
                        ];
                        with.write_all(&all.concat()).await?;
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::net::UnixStream;
    use tonic::transport::Endpoint;

    use super::*;

    #[tokio::test]
    async fn a_grpc_client_gets_the_driver_and_reports_whether_it_was_accepted() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("reg.sock");
        let registration = Registration::new(Path::new("/var/lib/kubelet/plugins/x/dra.sock"));
        let listener = UnixListener::bind(&path).expect("a socket");
        tokio::spawn(async move { registration.serve(listener).await });
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move {
                let stream = UnixStream::connect(path).await?;
                Ok::<_, io::Error>(hyper_util::rt::TokioIo::new(stream))
            }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = endpoint.connect_with_connector(connector).await;
        let channel = channel.expect("a connection");
        let mut client = wire::registration_client::RegistrationClient::new(channel);
        for _ in 0..3 {
            let info = client.get_info(wire::InfoRequest {}).await;
            let info = info.expect("an answer").into_inner();
            assert_eq!((info.r#type.as_str(), info.name.as_str()), (KIND, DRIVER));
            assert_eq!(info.endpoint, "/var/lib/kubelet/plugins/x/dra.sock");
            assert_eq!(info.supported_versions, [SERVICE]);
            let status = wire::RegistrationStatus {
                plugin_registered: true,
                error: String::new(),
            };
            let told = client.notify_registration_status(status).await;
            told.expect("an answer");
        }
    }

    proptest! {
        /// For any input the connection ends or waits; nothing panics.
        #[test]
        fn no_rubbish_panics(
            frames in prop::collection::vec((0_u8..12, any::<u8>(), 0_u32..4, prop::collection::vec(any::<u8>(), 0..40)), 0..8),
        ) {
            let mut sent = PREFACE.to_vec();
            for (kind, flags, stream, payload) in frames {
                sent.extend(frame(kind, flags, stream, &payload));
            }
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let (near, mut far) = tokio::io::duplex(1 << 20);
                far.write_all(&sent).await.expect("room");
                far.shutdown().await.expect("an end");
                let _ = Registration::new(Path::new("/x")).converse(near).await;
            });
        }
    }
}
