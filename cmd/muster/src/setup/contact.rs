//! One connection to the server that a node is to join: whether it is there, whether its certificate is the expected
//! authority's, and what its clock says. The certificate is verified as the agent verifies it at its join.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent::{PinnedAuthority, parse_fingerprint};
use jiff::Timestamp;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::checks::ServerContact;

/// How long connecting, and then an answer, may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of an answer's head.
const HEAD_MAX: usize = 16 << 10;

/// What verifies the server.
enum Verifier {
    Fingerprint([u8; 32]),
    Authority(String),
}

/// Connects to `https://HOST:PORT`. The fingerprint in the token verifies the server, else the stored authority.
pub async fn server(url: &str, token: Option<&str>, authority: Option<&str>) -> ServerContact {
    let Some((host, port)) = host_and_port(url) else {
        return ServerContact::Unreachable(format!("{url:?} is not an https://HOST:PORT address"));
    };
    let connecting = TcpStream::connect((host.as_str(), port));
    let stream = match tokio::time::timeout(PATIENCE, connecting).await {
        Err(_) => return ServerContact::Unreachable(silence()),
        Ok(Err(error)) => return ServerContact::Unreachable(error.to_string()),
        Ok(Ok(stream)) => stream,
    };
    let fingerprint = token
        .and_then(|token| token.split_once('@'))
        .map(|all| all.1);
    let verifier = match (fingerprint.map(parse_fingerprint), authority) {
        (Some(Ok(fingerprint)), _) => Verifier::Fingerprint(fingerprint),
        (None, Some(authority)) => Verifier::Authority(authority.to_owned()),
        // The check of the token says what is wrong with it.
        (Some(Err(_)), _) | (None, None) => return ServerContact::Unverified,
    };
    match tokio::time::timeout(PATIENCE, ask(stream, &host, &verifier)).await {
        Err(_) => ServerContact::Unreachable(silence()),
        Ok(Err(error)) => ServerContact::Untrusted(error.to_string()),
        Ok(Ok(ahead)) => ServerContact::Answered(ahead),
    }
}

fn silence() -> String {
    format!("no answer within {} s", PATIENCE.as_secs())
}

/// Host and port of `https://HOST:PORT`; an IPv6 address is in brackets.
pub fn host_and_port(url: &str) -> Option<(String, u16)> {
    let authority = url.strip_prefix("https://")?.trim_end_matches('/');
    let (host, port) = authority.rsplit_once(':')?;
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    let fits = |letter: char| letter.is_ascii_alphanumeric() || ".-_:%".contains(letter);
    let good = !bare.is_empty() && bare.chars().all(fits);
    Some((bare.to_owned(), port.parse().ok()?)).filter(|_| good)
}

/// The certificate authority that the agent stored when it joined; `None` before.
pub fn stored_authority(identity: &Path) -> Option<String> {
    let text = std::fs::read_to_string(identity).ok()?;
    let identity: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some(identity["caPem"].as_str()?.to_owned())
}

/// Verifies the server and returns by how many seconds its clock is ahead.
async fn ask(stream: TcpStream, host: &str, verifier: &Verifier) -> io::Result<Option<i64>> {
    let verifier = match verifier {
        Verifier::Fingerprint(fingerprint) => PinnedAuthority::by_fingerprint(*fingerprint, host),
        Verifier::Authority(pem) => PinnedAuthority::by_certificate(pem, host),
    };
    let mut config = ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(verifier.map_err(io::Error::other)?)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(rpc::AGENT_SERVER_NAME).map_err(io::Error::other)?;
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, stream).await?;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let sent = Timestamp::now();
    stream.write_all(request.as_bytes()).await?;
    let head = head(&mut stream).await?;
    let received = Timestamp::now();
    let middle = (sent.as_second() + received.as_second()) / 2;
    Ok(date(&head).map(|date| date - middle))
}

/// The answer up to its first empty line, or up to [`HEAD_MAX`] bytes.
async fn head(stream: &mut (impl AsyncReadExt + Unpin)) -> io::Result<String> {
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while head.len() < HEAD_MAX && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut part).await?;
        if count == 0 {
            break;
        }
        head.extend_from_slice(&part[..count]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// The second of an answer's Date header.
fn date(head: &str) -> Option<i64> {
    let lines = head.lines().skip(1).take_while(|line| !line.is_empty());
    let mut headers = lines.filter_map(|line| line.split_once(':'));
    let (_, value) = headers.find(|(name, _)| name.eq_ignore_ascii_case("date"))?;
    let parser = jiff::fmt::rfc2822::DateTimeParser::new();
    Some(parser.parse_timestamp(value.trim()).ok()?.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_servers_have_https_a_host_and_a_port() {
        let host = |name: &str, port| Some((name.to_owned(), port));
        for (url, found) in [
            ("https://gpu.example:8443", host("gpu.example", 8443)),
            ("https://10.0.0.1:8443/", host("10.0.0.1", 8443)),
            ("https://[fd00::1]:8443", host("fd00::1", 8443)),
            ("https://gpu.example", None),
            ("http://gpu.example:8443", None),
            ("gpu.example:8443", None),
            ("https://:8443", None),
            ("https://fd00::1:8443", None),
            ("https://a b:1", None),
            ("https://a:99999", None),
        ] {
            assert_eq!(host_and_port(url), found, "{url}");
        }
    }

    #[test]
    fn the_servers_clock_is_read_from_its_answer() {
        let head =
            |line: &str| format!("HTTP/1.1 200 OK\r\n{line}\r\ncontent-length: 3\r\n\r\nok\n");
        assert_eq!(
            date(&head("Date: Thu, 01 Jan 1970 00:01:40 GMT")),
            Some(100)
        );
        assert_eq!(
            date(&head("date: Thu, 01 Jan 1970 00:01:40 GMT")),
            Some(100)
        );
        assert_eq!(date(&head("date: yesterday")), None);
        assert_eq!(date(&head("x: y")), None);
        assert_eq!(date(""), None);
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_unreachable() {
        let closed = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap()
        };
        let found = server(&format!("https://{closed}"), None, None).await;
        assert!(matches!(found, ServerContact::Unreachable(_)), "{found:?}");
        let open = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", open.local_addr().unwrap());
        assert_eq!(server(&url, None, None).await, ServerContact::Unverified);
    }
}
