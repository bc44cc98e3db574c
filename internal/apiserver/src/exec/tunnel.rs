//! Forwarded ports as kubectl tunnels them: SPDY in a WebSocket, two streams for each connection, one for its data and
//! one for the reason of its end. Pure.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::connections::{CONNECTIONS_MAX, Piece};
use super::forward::{Framing, ProtocolError, Wish};
use super::spdy::{Frame, FrameReader, FrameWriter, SpdyError, data, pong, refusal};
use crate::exec_opener::ExecInput;

/// The maximum number of open streams of one client; each connection has two, of which one may be opened before.
const STREAMS_MAX: usize = 2 * CONNECTIONS_MAX + 2;

/// What a stream is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Data,
    Error,
}

/// A stream that the client opened.
struct Stream {
    role: Role,
    request: String,
    port: u16,
}

/// A client's streams. A connection has the number of its data stream.
#[derive(Default)]
pub(super) struct SpdyTunnel {
    reader: FrameReader,
    writer: FrameWriter,
    streams: BTreeMap<u32, Stream>,
    /// The stream for the error of each connection.
    errors: BTreeMap<u32, u32>,
}

impl From<SpdyError> for ProtocolError {
    fn from(error: SpdyError) -> ProtocolError {
        ProtocolError(error.to_string())
    }
}

impl SpdyTunnel {
    fn open(&mut self, id: u32, headers: &BTreeMap<String, String>) -> Vec<Wish> {
        let Some(stream) = stream(headers) else {
            return vec![Wish::Reply(refusal(id))];
        };
        if self.streams.len() >= STREAMS_MAX || self.streams.contains_key(&id) {
            return vec![Wish::Reply(refusal(id))];
        }
        let mut wishes = vec![Wish::Reply(self.writer.reply(id))];
        let other = self.streams.iter().find(|(_, other)| {
            other.role != stream.role
                && other.request == stream.request
                && other.port == stream.port
        });
        if let Some((other, _)) = other {
            let (connection, error) = match stream.role {
                Role::Data => (id, *other),
                Role::Error => (*other, id),
            };
            self.errors.insert(connection, error);
            wishes.push(Wish::Open {
                id: connection,
                port: stream.port,
            });
        }
        self.streams.insert(id, stream);
        wishes
    }

    /// A stream's input has meaning only where it is a connection's data.
    fn is_connection(&self, stream: u32) -> bool {
        self.errors.contains_key(&stream)
    }

    fn forget(&mut self, connection: u32) -> Option<u32> {
        let error = self.errors.remove(&connection)?;
        self.streams.remove(&connection);
        self.streams.remove(&error)?;
        Some(error)
    }
}

fn stream(headers: &BTreeMap<String, String>) -> Option<Stream> {
    let role = match headers.get("streamtype")?.as_str() {
        "data" => Role::Data,
        "error" => Role::Error,
        _ => return None,
    };
    let port = headers.get("port")?.parse().ok()?;
    let request = headers.get("requestid").cloned().unwrap_or_default();
    (port != 0).then_some(Stream {
        role,
        request,
        port,
    })
}

impl Framing for SpdyTunnel {
    fn begin(&mut self) -> Vec<Wish> {
        Vec::new()
    }

    fn read(&mut self, message: &Bytes) -> Result<Vec<Wish>, ProtocolError> {
        let mut wishes = Vec::new();
        for frame in self.reader.read(message)? {
            match frame {
                Frame::Open { stream, headers } => wishes.extend(self.open(stream, &headers)),
                Frame::Data { stream, data, last } if self.is_connection(stream) => {
                    let mut pass = |input| wishes.push(Wish::Input { id: stream, input });
                    if !data.is_empty() {
                        pass(ExecInput::Data(data));
                    }
                    if last {
                        pass(ExecInput::End);
                    }
                }
                Frame::Reset { stream } if self.is_connection(stream) => {
                    wishes.push(Wish::Close { id: stream });
                }
                Frame::Reset { stream } => {
                    // Half a connection; a whole one's is forgotten with its data stream.
                    if !self.errors.values().any(|error| *error == stream) {
                        self.streams.remove(&stream);
                    }
                }
                Frame::Ping(number) => wishes.push(Wish::Reply(pong(number))),
                Frame::Data { .. } => {}
            }
        }
        Ok(wishes)
    }

    fn refuse(&mut self, id: u32, why: &str) -> Vec<Bytes> {
        let mut messages = self.write(id, Piece::Error(why.to_owned()));
        messages.extend(self.write(id, Piece::End));
        messages
    }

    fn write(&mut self, id: u32, piece: Piece) -> Vec<Bytes> {
        match piece {
            Piece::Data(piece) => vec![data(id, &piece, false)],
            Piece::Error(why) => {
                let error = self.errors.get(&id);
                let message = error.map(|error| data(*error, why.as_bytes(), false));
                message.into_iter().collect()
            }
            Piece::End => {
                let error = self.forget(id);
                let ended = error.map(|error| [data(error, b"", true), data(id, b"", true)]);
                ended.into_iter().flatten().collect()
            }
        }
    }

    /// The client may open further connections.
    fn over(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::forward::input;
    use super::*;

    fn headers(role: &str, port: &str, request: &str) -> BTreeMap<String, String> {
        [("streamtype", role), ("port", port), ("requestid", request)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into()
    }

    fn opened(tunnel: &mut SpdyTunnel, request: u32) -> Vec<Wish> {
        let (error, connection) = (4 * request + 1, 4 * request + 3);
        let request = request.to_string();
        let mut wishes = tunnel.open(error, &headers("error", "8080", &request));
        wishes.extend(tunnel.open(connection, &headers("data", "8080", &request)));
        wishes
    }

    #[test]
    fn a_connection_opens_with_its_second_stream_and_ends_on_both() {
        let mut tunnel = SpdyTunnel::default();
        let wishes = opened(&mut tunnel, 0);
        assert!(matches!(wishes[0], Wish::Reply(_)) && matches!(wishes[1], Wish::Reply(_)));
        assert_eq!(wishes[2..], [Wish::Open { id: 3, port: 8080 }]);
        let sent = [
            data(1, b"", true),
            data(3, b"GET", false),
            data(3, b"", true),
        ]
        .concat();
        let read = tunnel.read(&sent.into()).unwrap();
        let end = Wish::Input {
            id: 3,
            input: ExecInput::End,
        };
        assert_eq!(read, [input(3, b"GET"), end]);
        assert_eq!(
            tunnel.write(3, Piece::Data(Bytes::from_static(b"200"))),
            [data(3, b"200", false)]
        );
        assert_eq!(
            tunnel.write(3, Piece::Error("broken".into())),
            [data(1, b"broken", false)]
        );
        assert_eq!(
            tunnel.write(3, Piece::End),
            [data(1, b"", true), data(3, b"", true)]
        );
        assert!(tunnel.streams.is_empty() && tunnel.errors.is_empty());
        // What comes late is for no connection.
        assert_eq!(tunnel.read(&data(3, b"late", false)), Ok(Vec::new()));
    }

    #[test]
    fn a_stream_without_a_purpose_or_a_port_is_refused() {
        let mut tunnel = SpdyTunnel::default();
        for (role, port) in [
            ("control", "80"),
            ("data", "0"),
            ("data", "70000"),
            ("data", ""),
        ] {
            assert_eq!(
                tunnel.open(1, &headers(role, port, "0")),
                [Wish::Reply(refusal(1))]
            );
        }
        assert_eq!(tunnel.open(1, &BTreeMap::new()), [Wish::Reply(refusal(1))]);
    }

    #[test]
    fn the_streams_of_a_client_are_bounded() {
        let mut tunnel = SpdyTunnel::default();
        for id in 0..u32::try_from(STREAMS_MAX).unwrap() {
            let wishes = tunnel.open(id, &headers("error", "80", &id.to_string()));
            assert_eq!(wishes.len(), 1);
        }
        assert_eq!(
            tunnel.open(9999, &headers("error", "80", "more")),
            [Wish::Reply(refusal(9999))]
        );
        tunnel.read(&refusal(0)).unwrap();
        let wishes = tunnel.open(9999, &headers("error", "80", "more"));
        assert_ne!(wishes, [Wish::Reply(refusal(9999))]);
    }
}
