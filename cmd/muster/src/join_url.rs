//! The address by which agents join a server.

use std::net::{IpAddr, SocketAddr};

/// The address at which agents reach the server: the first advertised name, else the address it listens on, or this
/// machine's own name if it listens on all.
pub fn join_url(listen: SocketAddr, advertise: &[String], own: Option<&str>) -> String {
    let port = listen.port();
    let host = advertise.first().map(String::as_str);
    let host = host.or_else(|| own.filter(|_| listen.ip().is_unspecified()));
    match host {
        None if listen.ip().is_unspecified() => format!("https://HOST:{port}"),
        None => format!("https://{listen}"),
        Some(host) => match host.parse() {
            Ok(address @ IpAddr::V6(_)) => format!("https://{}", SocketAddr::new(address, port)),
            _ => format!("https://{host}:{port}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_join_at_an_address_that_they_can_reach() {
        let names = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        for (listen, advertise, own, url) in [
            (
                "0.0.0.0:8443",
                names(&[]),
                Some("head"),
                "https://head:8443",
            ),
            ("0.0.0.0:8443", names(&[]), None, "https://HOST:8443"),
            (
                "[::]:1",
                names(&["gpu.example"]),
                Some("head"),
                "https://gpu.example:1",
            ),
            (
                "0.0.0.0:1",
                names(&["fd00::1"]),
                None,
                "https://[fd00::1]:1",
            ),
            ("10.0.0.1:1", names(&[]), Some("head"), "https://10.0.0.1:1"),
            (
                "[fd00::2]:1",
                names(&[]),
                Some("head"),
                "https://[fd00::2]:1",
            ),
        ] {
            let listen = listen.parse().unwrap();
            assert_eq!(join_url(listen, &advertise, own), url);
        }
    }
}
