//! Forwarded ports in the subprotocol v4: the first byte of a message is its channel, two channels a port, for data
//! and for the reason of an end. The server's first message on each names the port. Pure.

use bytes::Bytes;

use super::connections::Piece;
use super::forward::{Framing, ProtocolError, Wish};
use crate::exec_opener::ExecInput;

/// The ports of one client.
pub(super) struct ForwardChannels {
    ports: Vec<u16>,
    ended: usize,
}

impl ForwardChannels {
    /// The most ports that one client may name.
    pub(super) const PORTS_MAX: usize = 32;

    /// One connection to each port.
    pub(super) fn new(ports: Vec<u16>) -> ForwardChannels {
        ForwardChannels { ports, ended: 0 }
    }
}

impl Framing for ForwardChannels {
    fn begin(&mut self) -> Vec<Wish> {
        let mut wishes = Vec::new();
        for (id, port) in (0_u8..).zip(&self.ports) {
            for channel in [id * 2, id * 2 + 1] {
                let [low, high] = port.to_le_bytes();
                wishes.push(Wish::Reply(vec![channel, low, high].into()));
            }
            wishes.push(Wish::Open {
                id: id.into(),
                port: *port,
            });
        }
        wishes
    }

    fn read(&mut self, message: &Bytes) -> Result<Vec<Wish>, ProtocolError> {
        let Some(channel) = message.first().copied() else {
            return Ok(Vec::new());
        };
        let id = u32::from(channel / 2);
        if usize::from(channel / 2) >= self.ports.len() {
            return Err(ProtocolError(format!("channel {channel} is no port's")));
        }
        // Clients open a channel with an empty message, and say nothing on that of errors.
        if channel % 2 == 1 || message.len() == 1 {
            return Ok(Vec::new());
        }
        Ok(vec![Wish::Input {
            id,
            input: ExecInput::Data(message.slice(1..)),
        }])
    }

    fn refuse(&mut self, id: u32, why: &str) -> Vec<Bytes> {
        let mut messages = self.write(id, Piece::Error(why.to_owned()));
        messages.extend(self.write(id, Piece::End));
        messages
    }

    fn write(&mut self, id: u32, piece: Piece) -> Vec<Bytes> {
        let channel = u8::try_from(id * 2).unwrap_or(u8::MAX);
        let on = |channel: u8, data: &[u8]| Bytes::from([&[channel], data].concat());
        match piece {
            Piece::Data(data) => vec![on(channel, &data)],
            Piece::Error(why) => vec![on(channel.saturating_add(1), why.as_bytes())],
            Piece::End => {
                self.ended += 1;
                Vec::new()
            }
        }
    }

    fn over(&self) -> bool {
        self.ended >= self.ports.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::forward::input;
    use super::*;

    #[test]
    fn each_port_has_a_channel_for_data_and_one_for_its_error() {
        let mut channels = ForwardChannels::new(vec![80, 8080]);
        let begun = channels.begin();
        let reply = |bytes: &'static [u8]| Wish::Reply(Bytes::from_static(bytes));
        assert_eq!(
            begun,
            [
                reply(b"\x00\x50\x00"),
                reply(b"\x01\x50\x00"),
                Wish::Open { id: 0, port: 80 },
                reply(b"\x02\x90\x1f"),
                reply(b"\x03\x90\x1f"),
                Wish::Open { id: 1, port: 8080 },
            ]
        );
        let mut read = |bytes: &'static [u8]| channels.read(&Bytes::from_static(bytes));
        assert_eq!(read(b"\x02GET"), Ok(vec![input(1, b"GET")]));
        assert_eq!(read(b"\x02"), Ok(Vec::new()));
        assert_eq!(read(b"\x03x"), Ok(Vec::new()));
        assert!(read(b"\x04x").is_err());
        let data = channels.write(1, Piece::Data(Bytes::from_static(b"200")));
        assert_eq!(data, [&b"\x02200"[..]]);
        assert_eq!(
            channels.write(0, Piece::Error("no".into())),
            [&b"\x01no"[..]]
        );
        for (id, over) in [(0, false), (1, true)] {
            assert!(channels.write(id, Piece::End).is_empty());
            assert_eq!(channels.over(), over);
        }
    }
}
