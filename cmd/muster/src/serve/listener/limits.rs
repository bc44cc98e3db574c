//! The listener's bounds. A test may choose smaller ones; a server derives its own from how many
//! files it may open.

use std::net::IpAddr;
use std::time::Duration;

/// The most connections, however many files may be open.
const CONNECTIONS_MAX: usize = 8192;

/// The most connections of one address: agents have one each, browsers six, client-go a few, and
/// many of them may come from behind one address.
const PER_ADDRESS_MAX: usize = 1024;

/// How long a client may take nothing of what is sent to it: on its connection, or on one HTTP/2 stream. A person who
/// pages through a log that is followed reads in pieces.
const UNREAD: Duration = Duration::from_secs(300);

/// What one connection may take and how long, and how many there may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections of one other machine's address.
    pub per_address: usize,
    /// Connections of one address of this machine. Half of all, so that a program here leaves
    /// room for others.
    pub per_loopback: usize,
    /// TLS handshakes at once, of other machines and of this one each. More than one address may
    /// have connections, so that slow ones of one address leave room for others.
    pub handshakes: usize,
    /// How long a client may take over its first byte, and over its TLS handshake.
    pub greeting: Duration,
    /// How long an HTTP/1 connection may take from the end of one request to the end of the next
    /// one's headers, and so how long it may be idle; and how long any connection may take over its first
    /// request.
    pub headers: Duration,
    /// How long a connection may have no request in progress.
    pub idle: Duration,
    /// The longest pause within a request's body.
    pub body_pause: Duration,
    /// The longest that a request's body may take in all: 3 MiB at 30 kB a second.
    pub body_total: Duration,
    /// How long a client may take nothing of what is sent to it. One HTTP/2 stream may last twice as long.
    pub unread: Duration,
    /// How often an HTTP/2 client is asked for a sign of life.
    pub ping: Duration,
    /// How long it may take to answer.
    pub pong: Duration,
    /// Requests at once on one HTTP/2 connection; client-go opens another connection for more.
    pub streams: u32,
    /// Bytes of a request's headers.
    pub header_bytes: u32,
}

impl Limits {
    /// The bounds of a process that may have this many files open: connections take three
    /// quarters of them, and the rest is the store's and the logs'.
    pub fn of(open_files: u64) -> Limits {
        let files = usize::try_from(open_files).unwrap_or(usize::MAX);
        let connections = CONNECTIONS_MAX.min(files / 4 * 3).max(1);
        let per_address = PER_ADDRESS_MAX.min(connections / 4).max(1);
        Limits {
            connections,
            per_address,
            per_loopback: (connections / 2).max(1),
            handshakes: per_address * 2,
            greeting: Duration::from_secs(10),
            headers: Duration::from_secs(60),
            idle: Duration::from_secs(300),
            body_pause: Duration::from_secs(20),
            body_total: Duration::from_secs(120),
            unread: UNREAD,
            ping: Duration::from_secs(30),
            pong: Duration::from_secs(20),
            streams: 512,
            header_bytes: 64 * 1024,
        }
    }

    /// How many connections this address may have.
    pub fn of_address(&self, address: IpAddr) -> usize {
        if address.is_loopback() {
            self.per_loopback
        } else {
            self.per_address
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_others_and_no_address_takes_all() {
        for (files, connections, per_address) in [
            (1_048_576, 8192, 1024),
            (10_923, 8190, 1024),
            (1024, 768, 192),
            (4, 3, 1),
            (0, 1, 1),
        ] {
            let limits = Limits::of(files);
            assert_eq!(limits.connections, connections, "{files}");
            assert_eq!(limits.per_address, per_address, "{files}");
            assert!(limits.handshakes > limits.per_address);
        }
    }
}
