//! The listener's limits. A test may choose smaller ones; a server derives its limits from the number of files that
//! it may open.

use std::net::IpAddr;
use std::time::Duration;

/// The most connections, regardless of the limit on open files.
const CONNECTIONS_MAX: usize = 8192;

/// The most connections of one address: an agent has one, a browser six, client-go a few, and many of them may share
/// an address.
const PER_ADDRESS_MAX: usize = 1024;

/// The most requests in progress of all addresses, each until its response has ended. Those of nodes are not counted.
const REQUESTS_MAX: usize = 16384;

/// The most requests in progress of one other machine's address: the watches that all users together may have open
/// (`apiserver::limits::WATCHES`) may come through one proxy, with as many other requests as half of these.
const REQUESTS_PER_ADDRESS_MAX: usize = 6144;

/// The most requests in progress of one node: its session, and a call for each command and log that it may have open.
const REQUESTS_PER_NODE_MAX: usize = 1024;

/// The most bytes that the bodies of all addresses' requests in progress may have, in bytes: 170 of the largest bodies
/// (`apiserver::request::MOST_BODY_BYTES`).
const BODY_BYTES_MAX: usize = 512 << 20;

/// The same of one other machine's address; this machine's addresses may have half of all.
const BODY_BYTES_PER_ADDRESS_MAX: usize = 128 << 20;

/// The same of one node by its certificate, whose session is not counted.
const BODY_BYTES_PER_NODE_MAX: usize = 32 << 20;

/// How long a client may accept no data, on its connection or on one HTTP/2 stream. A user who pages through a
/// followed log reads in bursts.
const UNREAD: Duration = Duration::from_secs(300);

/// The time limit on the body of a request to a program in a pod: as long as the page that sends it can be open.
const STREAMED_BODY: Duration = Duration::from_secs(43_200);

/// Limits on one connection's resources and times, and on the number of connections.
#[derive(Clone, Copy, Debug)]
pub struct ListenerLimits {
    /// Connections in all.
    pub connections: usize,
    /// Connections of one other machine's address.
    pub per_address: usize,
    /// Connections of one address of this machine. Half of all, so that a local program leaves room for others.
    pub per_loopback: usize,
    /// Requests in progress of all addresses.
    pub requests: usize,
    /// Requests in progress of one other machine's address.
    pub requests_per_address: usize,
    /// Requests in progress of one address of this machine. Half of all: a proxy on this machine has those of its
    /// clients.
    pub requests_per_loopback: usize,
    /// Requests in progress of one node.
    pub requests_per_node: usize,
    /// Bytes of the bodies of all addresses' requests in progress.
    pub body_bytes: usize,
    /// The same of one other machine's address.
    pub body_bytes_per_address: usize,
    /// The same of one address of this machine.
    pub body_bytes_per_loopback: usize,
    /// The same of one node.
    pub body_bytes_per_node: usize,
    /// Concurrent TLS handshakes, for other machines and for this one separately. More than the connections of one
    /// address, so that one address with slow handshakes leaves room for others.
    pub handshakes: usize,
    /// How long a client may take over its first byte, and over its TLS handshake.
    pub greeting: Duration,
    /// The time limit from the end of one request on an HTTP/1 connection to the end of the next request's headers,
    /// and so the limit on idle time; also the limit on the first request of any connection.
    pub headers: Duration,
    /// How long a connection may have no request in progress.
    pub idle: Duration,
    /// The longest pause within a request's body.
    pub body_pause: Duration,
    /// The time limit on a request's body in total: 3 MiB at 30 kB a second.
    pub body_total: Duration,
    /// How long a client may accept no data. One HTTP/2 stream may take twice as long.
    pub unread: Duration,
    /// Interval of HTTP/2 pings.
    pub ping: Duration,
    /// The time limit on a ping's answer.
    pub pong: Duration,
    /// Concurrent requests on one HTTP/2 connection; client-go opens another connection for more.
    pub streams: u32,
    /// Bytes of a request's headers.
    pub header_bytes: u32,
}

impl ListenerLimits {
    /// The limits of a process that may have this many files open: connections get three quarters of them, the store
    /// and the logs the rest.
    pub fn of(open_files: u64) -> ListenerLimits {
        let files = usize::try_from(open_files).unwrap_or(usize::MAX);
        let connections = CONNECTIONS_MAX.min(files / 4 * 3).max(1);
        let per_address = PER_ADDRESS_MAX.min(connections / 4).max(1);
        ListenerLimits {
            connections,
            per_address,
            per_loopback: (connections / 2).max(1),
            requests: REQUESTS_MAX,
            requests_per_address: REQUESTS_PER_ADDRESS_MAX,
            requests_per_loopback: REQUESTS_MAX / 2,
            requests_per_node: REQUESTS_PER_NODE_MAX,
            body_bytes: BODY_BYTES_MAX,
            body_bytes_per_address: BODY_BYTES_PER_ADDRESS_MAX,
            body_bytes_per_loopback: BODY_BYTES_MAX / 2,
            body_bytes_per_node: BODY_BYTES_PER_NODE_MAX,
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

    /// The limits on a body that may take as long as it flows.
    pub fn of_stream(self) -> ListenerLimits {
        ListenerLimits {
            body_total: STREAMED_BODY,
            ..self
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

    /// How many requests this address may have in progress.
    pub fn requests_of_address(&self, address: IpAddr) -> usize {
        if address.is_loopback() {
            self.requests_per_loopback
        } else {
            self.requests_per_address
        }
    }

    /// How many bytes the bodies of this address's requests in progress may have.
    pub fn body_bytes_of_address(&self, address: IpAddr) -> usize {
        if address.is_loopback() {
            self.body_bytes_per_loopback
        } else {
            self.body_bytes_per_address
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
            let limits = ListenerLimits::of(files);
            assert_eq!(limits.connections, connections, "{files}");
            assert_eq!(limits.per_address, per_address, "{files}");
            assert!(limits.handshakes > limits.per_address);
        }
    }
}
