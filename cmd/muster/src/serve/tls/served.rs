//! Which certificate a handshake gets.
//!
//! - An agent gets the one of Muster's own CA, which it pinned when it joined. It asks for
//!   [`rpc::AGENT_SERVER_NAME`]. Agents before that name ask for the server's host; they are known by the protocols that
//!   they offer: HTTP/2 alone, as gRPC does, while browsers, kubectl and other clients of the API offer HTTP/1.1 too.
//! - A client that calls the server by a DNS name of the configured certificate gets that one.
//! - All others get the one of Muster's own CA: clients that call the server by an address send no name.
//! - An ACME server that asks for `acme-tls/1` gets the certificate of its challenge.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::acme::Challenges;
use super::pair::CertificatePair;
use crate::serve::certificate::Certificate;

/// The certificates of the server.
#[derive(Debug)]
pub struct ServedCertificates {
    own: Arc<Certificate>,
    configured: RwLock<Option<Arc<CertificatePair>>>,
    /// The answers to challenges of an ACME server.
    pub challenges: Challenges,
}

/// What a handshake gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Own,
    Configured,
    Challenge,
}

impl ServedCertificates {
    /// Serves the certificate of Muster's own CA, until another one is configured.
    pub fn new(own: Arc<Certificate>) -> Arc<ServedCertificates> {
        Arc::new(ServedCertificates {
            own,
            configured: RwLock::default(),
            challenges: Challenges::default(),
        })
    }

    /// Serves this certificate to the next handshakes by its names.
    pub fn configure(&self, pair: Arc<CertificatePair>) {
        *self
            .configured
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Some(pair);
    }

    /// Serves the certificate of Muster's own CA alone.
    pub fn forget_configured(&self) {
        *self
            .configured
            .write()
            .unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The configured certificate.
    pub fn configured(&self) -> Option<Arc<CertificatePair>> {
        let configured = self.configured.read();
        configured.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn choice(name: Option<&str>, protocols: &[&[u8]], configured: Option<&CertificatePair>) -> Choice {
    if protocols == [b"acme-tls/1"] {
        return Choice::Challenge;
    }
    let (Some(name), Some(configured)) = (name, configured) else {
        return Choice::Own;
    };
    if name == rpc::AGENT_SERVER_NAME || protocols == [b"h2"] || !configured.covers(name) {
        return Choice::Own;
    }
    Choice::Configured
}

impl ResolvesServerCert for ServedCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let protocols: Vec<&[u8]> = hello.alpn().into_iter().flatten().collect();
        let configured = self.configured();
        match choice(hello.server_name(), &protocols, configured.as_deref()) {
            Choice::Own => Some(self.own.current()),
            Choice::Configured => configured.map(|pair| pair.key.clone()),
            Choice::Challenge => self.challenges.certificate(hello.server_name()?),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::arguments::KeyFiles;
    use crate::serve::tls::pair::{PairText, Purpose};

    fn pair(name: &str) -> CertificatePair {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let text = PairText {
            chain: params.self_signed(&key).unwrap().pem(),
            key: key.serialize_pem(),
        };
        let files = KeyFiles {
            certificate_option: "tls-cert",
            certificate: "c".into(),
            key_option: "tls-key",
            key: "k".into(),
        };
        CertificatePair::of(&text, &files, Purpose::Server, Timestamp::now()).unwrap()
    }

    #[test]
    fn agents_get_musters_certificate_and_clients_the_configured_one_by_its_names() {
        let configured = pair("*.site.example");
        let browser: &[&[u8]] = &[b"h2", b"http/1.1"];
        let grpc: &[&[u8]] = &[b"h2"];
        for (name, protocols, expected) in [
            (Some("muster.site.example"), browser, Choice::Configured),
            (Some("muster.site.example"), &[], Choice::Configured),
            (
                Some("muster.site.example"),
                &[b"http/1.1".as_slice()],
                Choice::Configured,
            ),
            // An agent before the reserved name.
            (Some("muster.site.example"), grpc, Choice::Own),
            (Some(rpc::AGENT_SERVER_NAME), grpc, Choice::Own),
            (Some(rpc::AGENT_SERVER_NAME), browser, Choice::Own),
            (Some("localhost"), browser, Choice::Own),
            (None, browser, Choice::Own),
            (
                Some("muster.site.example"),
                &[b"acme-tls/1".as_slice()],
                Choice::Challenge,
            ),
        ] {
            let found = choice(name, protocols, Some(&configured));
            assert_eq!(found, expected, "{name:?}");
            let without = choice(name, protocols, None);
            assert_ne!(without, Choice::Configured, "{name:?}");
        }
        // No certificate takes the agents' name.
        let all = pair("*.muster.internal");
        assert_eq!(
            choice(Some(rpc::AGENT_SERVER_NAME), browser, Some(&all)),
            Choice::Own
        );
    }
}
