//! The server's own certificate: the server's authority issues it at the start, and a new one
//! after two thirds of its lifetime. Open connections keep the old certificate; new ones get the
//! new one.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result};
use fleet::CertificateAuthority;
use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;

/// The longest sleep until a renewal, because the clock may be set and the machine may be
/// suspended.
const LOOK: Duration = Duration::from_secs(600);

/// The application protocols of the listener. An ACME server that asks for `acme-tls/1` (RFC 8737) gets the certificate
/// of its challenge, or no handshake.
const PROTOCOLS: [&[u8]; 3] = [b"h2", b"http/1.1", b"acme-tls/1"];

/// The server's names and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerNames {
    /// DNS names.
    pub dns: Vec<String>,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
}

#[derive(Debug)]
struct Issued {
    key: Arc<CertifiedKey>,
    /// Time of the renewal, in seconds since 1970.
    renewal: i64,
}

/// The certificate in use.
#[derive(Debug)]
pub struct Certificate(RwLock<Issued>);

impl Certificate {
    /// A certificate for these names.
    pub fn issue(
        authority: &CertificateAuthority,
        names: &ServerNames,
    ) -> Result<Arc<Certificate>> {
        Ok(Arc::new(Certificate(RwLock::new(issue(authority, names)?))))
    }

    /// Renews the certificate on time, as long as the future is polled. The names are determined
    /// anew each time, because a machine's addresses change.
    pub async fn renew_in_time(
        &self,
        authority: &CertificateAuthority,
        names: impl Fn() -> ServerNames + Send,
    ) {
        loop {
            let left = self.renewal() - Timestamp::now().as_second();
            let left = Duration::from_secs(u64::try_from(left).unwrap_or_default());
            if !left.is_zero() {
                tokio::time::sleep(left.min(LOOK)).await;
                continue;
            }
            match issue(authority, &names()) {
                Ok(issued) => {
                    self.replace(issued);
                    tracing::info!("the server's certificate was renewed");
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::error!(
                        error,
                        "the server's certificate was not renewed; trying again"
                    );
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
    }

    fn renewal(&self) -> i64 {
        let issued = self.0.read().unwrap_or_else(PoisonError::into_inner);
        issued.renewal
    }

    fn replace(&self, issued: Issued) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = issued;
    }

    /// The certificate with its key.
    pub fn current(&self) -> Arc<CertifiedKey> {
        let issued = self.0.read().unwrap_or_else(PoisonError::into_inner);
        issued.key.clone()
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

/// TLS with the certificates of a resolver; clients may present a certificate of this authority.
pub fn tls(
    authority: &CertificateAuthority,
    certificates: Arc<dyn ResolvesServerCert>,
) -> Result<rustls::ServerConfig> {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(authority.certificate_pem().as_bytes()) {
        roots.add(root.context("the authority's certificate cannot be read")?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .context("client certificates cannot be checked")?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("TLS cannot be set up")?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(certificates);
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(config)
}

fn issue(authority: &CertificateAuthority, names: &ServerNames) -> Result<Issued> {
    let now = Timestamp::now().as_second();
    // Agents reach the server by this name, whatever its other names are.
    let mut dns = names.dns.clone();
    dns.push(rpc::AGENT_SERVER_NAME.to_owned());
    let issued = authority.issue_server(&dns, &names.addresses)?;
    let chain = CertificateDer::pem_slice_iter(issued.chain_pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .context("the server's own certificate cannot be read")?;
    let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes())
        .context("the server's own key cannot be read")?;
    let provider = rustls::crypto::ring::default_provider();
    let key = CertifiedKey::from_der(chain, key, &provider)
        .context("the server's own certificate does not fit its key")?;
    Ok(Issued {
        key: Arc::new(key),
        renewal: rpc::renewal_second(now, issued.not_after.as_second()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> ServerNames {
        ServerNames {
            dns: vec!["localhost".to_string()],
            addresses: vec![[127, 0, 0, 1].into()],
        }
    }

    #[tokio::test]
    async fn a_certificate_that_is_due_is_issued_anew_and_given_to_the_next_connection() {
        let dir = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::load_or_create(dir.path()).unwrap();
        let certificate = Certificate::issue(&authority, &names()).unwrap();
        let first = certificate.current();
        let mut due = issue(&authority, &names()).unwrap();
        due.renewal = 0;
        certificate.replace(due);
        let old = certificate.current();
        assert_ne!(first.cert[0], old.cert[0]);
        let renewed = async {
            while certificate.current().cert[0] == old.cert[0] {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = renewed => {}
            () = certificate.renew_in_time(&authority, names) => unreachable!("it never ends"),
        }
        let now = Timestamp::now().as_second();
        let life = fleet::ca::SERVER_LIFE.as_secs();
        assert!((now + life / 2..now + life).contains(&certificate.renewal()));
    }
}
