//! The host names of ports: one label for each, below the domain. Pure.

use axum::http::header;
use axum::http::uri::Authority;
use sha2::{Digest, Sha256};

use crate::http::WebPort;

/// The path at a port's host that takes a ticket. Pods cannot serve it.
pub const ENTER: &str = "/.muster/enter";
/// The domain where none is configured: browsers resolve every name below it to their own machine.
const OWN_MACHINE: &str = "localhost";
/// Hexadecimal digits of a label that no other port has: 96 bits.
const DIGITS: usize = 24;
/// Characters of a pod's name in its label, for people.
const NAME_MAX: usize = 24;
/// The longest domain, so that a label and the domain are a DNS name.
const DOMAIN_MAX: usize = 180;

/// A DNS domain whose names all lead to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyDomain(String);

/// A text that is no domain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no domain of at least two labels, as in proxy.example.org; every name below it must lead to the server"
)]
pub struct DomainError(String);

impl ProxyDomain {
    /// Reads a domain, with or without `*.` before it.
    ///
    /// # Errors
    /// The text is no DNS domain of at least two labels, or is longer than 180 characters.
    pub fn parse(text: &str) -> Result<ProxyDomain, DomainError> {
        let domain = text.strip_prefix("*.").unwrap_or(text).to_ascii_lowercase();
        let label = |label: &str| {
            let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            (1..=63).contains(&label.len())
                && label.bytes().all(inside)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let labels: Vec<&str> = domain.split('.').collect();
        // An address has no names below it.
        let address = labels
            .last()
            .is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
        let fine = domain.len() <= DOMAIN_MAX
            && labels.len() >= 2
            && labels.iter().all(|one| label(one))
            && !address;
        match fine {
            true => Ok(ProxyDomain(domain)),
            false => Err(DomainError(text.to_owned())),
        }
    }

    /// The domain.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name that a certificate has for all ports.
    pub fn wildcard(&self) -> String {
        format!("*.{}", self.0)
    }
}

/// The host of a request, without and with its port; none if it names none or several.
pub fn authority<B>(request: &axum::http::Request<B>) -> Option<Authority> {
    let mut named = request.headers().get_all(header::HOST).into_iter();
    let header = match (named.next(), named.next()) {
        (None, _) => None,
        (Some(host), None) => Some(host.to_str().ok()?.parse::<Authority>().ok()?),
        (Some(_), Some(_)) => return None,
    };
    // HTTP/2 has it in the URI.
    match (request.uri().authority().cloned(), header) {
        (Some(uri), Some(header)) if uri.as_str().eq_ignore_ascii_case(header.as_str()) => {
            Some(uri)
        }
        (Some(_), Some(_)) => None,
        (uri, header) => uri.or(header),
    }
}

fn canonical(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// True if a host is this machine's own as a browser on it names it.
fn is_own_machine(host: &str) -> bool {
    let host = canonical(host.trim_start_matches('[').trim_end_matches(']'));
    let address: Option<std::net::IpAddr> = host.parse().ok();
    host == OWN_MACHINE || address.is_some_and(|address| address.is_loopback())
}

/// The domain of the ports' hosts for a client that calls the server by this host; none if it cannot open pages.
pub fn domain_for<'a>(domain: Option<&'a ProxyDomain>, host: &str) -> Option<&'a str> {
    match domain {
        Some(domain) => Some(domain.as_str()),
        None => is_own_machine(host).then_some(OWN_MACHINE),
    }
}

/// The label of a port's own host that a request is for.
pub fn label<B>(request: &axum::http::Request<B>, domain: Option<&ProxyDomain>) -> Option<String> {
    let host = canonical(authority(request)?.host());
    let domain = domain.map_or(OWN_MACHINE, ProxyDomain::as_str);
    let label = host.strip_suffix(domain)?.strip_suffix('.')?;
    is_label(label).then(|| label.to_owned())
}

/// True if a label has the form of a port's.
fn is_label(label: &str) -> bool {
    let mut parts = label.rsplitn(3, '-');
    let (digits, port, name) = (parts.next(), parts.next(), parts.next());
    let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_digits = |text: &str| text.len() == DIGITS && text.bytes().all(hexadecimal);
    digits.is_some_and(is_digits)
        && port.is_some_and(|port| port.parse::<u16>().is_ok())
        && name.is_some_and(|name| !name.is_empty() && !name.contains('.'))
}

/// The label of a port: of this pod or Service and of no later one of the same name, whose pages must not find what
/// pages of the earlier one left in a browser.
pub fn label_of(port: &WebPort, uid: &str) -> String {
    let mut digest = Sha256::new();
    for part in [&port.kind, &port.namespace, &port.name, &port.port] {
        // No name has a slash.
        digest.update(part.as_bytes());
        digest.update(b"/");
    }
    digest.update(uid.as_bytes());
    let digest = digest.finalize();
    let hexadecimal: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let name: String = port
        .name
        .chars()
        .take(NAME_MAX)
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect();
    let name = name.trim_matches('-');
    let name = if name.is_empty() { "port" } else { name };
    format!("{name}-{}-{}", port.port, &hexadecimal[..DIGITS])
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn port(name: &str) -> WebPort {
        WebPort {
            kind: "pods".into(),
            namespace: "team-a".into(),
            name: name.into(),
            port: "8265".into(),
        }
    }

    #[test]
    fn a_domain_has_two_labels_and_is_no_address() {
        let read = |text: &str| ProxyDomain::parse(text).ok().map(|domain| domain.0);
        assert_eq!(
            read("proxy.example.org").as_deref(),
            Some("proxy.example.org")
        );
        assert_eq!(read("*.Proxy.Example").as_deref(), Some("proxy.example"));
        for wrong in [
            "",
            "localhost",
            "*.",
            "a..b",
            "-a.b",
            "a_b.c",
            "10.0.0.1",
            "a.b:80",
            "https://a.b",
            "*.*.a",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_ports_label_is_its_own_and_a_dns_label() {
        let label = label_of(&port("ray-head"), "u1");
        assert!(label.starts_with("ray-head-8265-"), "{label}");
        assert!(is_label(&label));
        for other in [
            label_of(&port("ray-head"), "u2"),
            label_of(&port("ray-hea"), "du1"),
            label_of(
                &WebPort {
                    kind: "services".into(),
                    ..port("ray-head")
                },
                "u1",
            ),
            label_of(
                &WebPort {
                    port: "826".into(),
                    ..port("ray-head")
                },
                "5u1",
            ),
        ] {
            assert_ne!(label, other);
        }
        let long = label_of(&port(&"a.b-".repeat(60)), "u1");
        assert!(long.len() <= 63 && is_label(&long), "{long}");
    }

    #[test]
    fn only_ports_hosts_are_taken_from_the_web_ui() {
        let domain = ProxyDomain::parse("proxy.example").unwrap();
        let known = label_of(&port("web"), "u");
        let of = |host: &str, domain: Option<&ProxyDomain>| {
            let request = Request::get("/").header("host", host).body(()).unwrap();
            label(&request, domain)
        };
        let host = |end: &str| format!("{known}.{end}");
        assert_eq!(
            of(&host("proxy.example:8443"), Some(&domain)),
            Some(known.clone())
        );
        assert_eq!(
            of(&host("Proxy.Example."), Some(&domain)),
            Some(known.clone())
        );
        assert_eq!(of(&host("localhost:8443"), None), Some(known.clone()));
        for other in [
            host("localhost"),
            host("proxy.example.evil"),
            host("evilproxy.example"),
            "proxy.example".into(),
            "muster.proxy.example".into(),
            format!("a.{known}.proxy.example"),
        ] {
            assert_eq!(of(&other, Some(&domain)), None, "{other}");
        }
        let two = Request::get("/")
            .header("host", host("localhost"))
            .header("host", "localhost");
        assert_eq!(label(&two.body(()).unwrap(), None), None);
        let differs =
            Request::get(format!("https://{}/", host("localhost"))).header("host", "localhost");
        assert_eq!(label(&differs.body(()).unwrap(), None), None);
    }

    #[test]
    fn without_a_domain_only_the_own_machine_opens_pages() {
        for (host, found) in [
            ("localhost", Some("localhost")),
            ("127.0.0.1", Some("localhost")),
            ("[::1]", Some("localhost")),
            ("gpu1.example.org", None),
            ("10.0.0.1", None),
        ] {
            assert_eq!(domain_for(None, host), found, "{host}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_host_panics(host in "\\PC{0,40}", name in "\\PC{0,40}", number in "\\PC{0,6}") {
            if let Ok(value) = axum::http::HeaderValue::from_str(&host) {
                let request = Request::get("/").header("host", value).body(()).unwrap();
                label(&request, None);
            }
            let _ = ProxyDomain::parse(&host);
            label_of(&WebPort { port: number, ..port(&name) }, &host);
        }
    }
}
