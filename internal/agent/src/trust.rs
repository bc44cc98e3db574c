//! How the agent verifies the server: by its authority's certificate or that certificate's
//! fingerprint. (As in Kubernetes, HTTPS probes verify nothing.)

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::AgentError;

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A SHA-256 fingerprint: `sha256:` and 64 hex digits, colons between bytes allowed.
pub fn parse_fingerprint(text: &str) -> Result<[u8; 32], AgentError> {
    let wrong = || AgentError::Setting {
        field: "ca-fingerprint",
        value: text.to_owned(),
        detail: "use sha256: and 64 hex digits, as `muster token join` prints it".to_owned(),
    };
    let trimmed = text.trim().to_ascii_lowercase();
    let digits: String = trimmed
        .strip_prefix("sha256:")
        .unwrap_or(&trimmed)
        .chars()
        .filter(|c| *c != ':')
        .collect();
    if digits.len() != 64 || !digits.is_ascii() {
        return Err(wrong());
    }
    let mut bytes = [0; 32];
    for (byte, place) in bytes.iter_mut().zip(0..) {
        *byte = u8::from_str_radix(&digits[place * 2..place * 2 + 2], 16).map_err(|_| wrong())?;
    }
    Ok(bytes)
}

/// Accepts a server with a certificate of the pinned authority for [`rpc::AGENT_SERVER_NAME`], or for the server's host:
/// a server before that name has a certificate for its host only.
#[derive(Debug)]
pub struct PinnedAuthority {
    authority: Authority,
    host: ServerName<'static>,
    provider: Arc<CryptoProvider>,
}

/// The authority.
#[derive(Debug)]
enum Authority {
    /// By its certificate's SHA-256 fingerprint; the certificate must be in the chain that the server sends.
    Fingerprint([u8; 32]),
    /// By its certificate.
    Certificate(Arc<RootCertStore>),
}

impl PinnedAuthority {
    /// For the authority whose certificate has this fingerprint, and a server at this host.
    ///
    /// # Errors
    /// The host is no name or address.
    pub fn by_fingerprint(
        fingerprint: [u8; 32],
        host: &str,
    ) -> Result<Arc<PinnedAuthority>, AgentError> {
        PinnedAuthority::of(Authority::Fingerprint(fingerprint), host)
    }

    /// For the authority with this certificate in PEM, and a server at this host.
    ///
    /// # Errors
    /// The certificate is unreadable, or the host is no name or address.
    pub fn by_certificate(pem: &str, host: &str) -> Result<Arc<PinnedAuthority>, AgentError> {
        let unreadable = |error: &dyn std::fmt::Display| {
            AgentError::Certificate(format!(
                "the authority's certificate cannot be read: {error}"
            ))
        };
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let root = root.map_err(|error| unreadable(&error))?;
            roots.add(root).map_err(|error| unreadable(&error))?;
        }
        if roots.is_empty() {
            return Err(unreadable(&"there is none in PEM"));
        }
        PinnedAuthority::of(Authority::Certificate(Arc::new(roots)), host)
    }

    fn of(authority: Authority, host: &str) -> Result<Arc<PinnedAuthority>, AgentError> {
        let host = ServerName::try_from(host.to_owned()).map_err(|_| AgentError::Setting {
            field: "server",
            value: host.to_owned(),
            detail: "the host is no name or address; use https://HOST:PORT".to_owned(),
        })?;
        Ok(Arc::new(PinnedAuthority {
            authority,
            host,
            provider: provider(),
        }))
    }

    /// The authority's certificate.
    fn roots(&self, intermediates: &[CertificateDer<'_>]) -> Result<Arc<RootCertStore>, Error> {
        let fingerprint = match &self.authority {
            Authority::Certificate(roots) => return Ok(roots.clone()),
            Authority::Fingerprint(fingerprint) => fingerprint,
        };
        let pinned = intermediates
            .iter()
            .find(|certificate| Sha256::digest(certificate.as_ref())[..] == *fingerprint)
            .ok_or_else(|| {
                Error::General(
                    "the server's certificate authority does not have the fingerprint given with \
                     the join token; this is another server, or another machine intercepts the connection"
                        .to_owned(),
                )
            })?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        Ok(Arc::new(roots))
    }
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let roots = self.roots(intermediates)?;
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, self.provider.clone())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let verify = |name: &ServerName<'_>| {
            verifier.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
        };
        verify(server_name).or_else(|_| verify(&self.host))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Accepts every certificate, for probes only.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Why there is no TLS to a container's server.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The settings can't be used.
    #[error(transparent)]
    Settings(#[from] rustls::Error),
    /// The host can't be a server's name.
    #[error(transparent)]
    Name(#[from] InvalidDnsNameError),
    /// The handshake failed.
    #[error("TLS: {0}")]
    Handshake(#[source] std::io::Error),
}

/// TLS to a container's own server without verification: an HTTPS probe checks whether the server
/// answers, not its identity.
pub async fn unverified(stream: TcpStream, host: &str) -> Result<TlsStream<TcpStream>, TlsError> {
    let provider = provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned())?;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(TlsError::Handshake)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate for this name with its authority's, and that one as PEM.
    fn issued(name: &str) -> (Vec<CertificateDer<'static>>, String) {
        use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let leaf = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let leaf_key = KeyPair::generate().unwrap();
        let leaf = leaf.signed_by(&leaf_key, &issuer).unwrap();
        let chain = vec![leaf.der().clone(), authority.der().clone()];
        (chain, authority.pem())
    }

    #[test]
    fn a_server_is_accepted_by_the_agents_name_or_its_host_and_by_no_other() {
        let verified = |verifier: &PinnedAuthority, chain: &[CertificateDer<'_>]| {
            let asked = ServerName::try_from(rpc::AGENT_SERVER_NAME).unwrap();
            let now = UnixTime::now();
            verifier.verify_server_cert(&chain[0], &chain[1..], &asked, &[], now)
        };
        let (_, foreign) = issued("head.example");
        for (name, accepted) in [
            (rpc::AGENT_SERVER_NAME, true),
            ("head.example", true),
            ("other.example", false),
        ] {
            let (chain, pem) = issued(name);
            let by_certificate = PinnedAuthority::by_certificate(&pem, "head.example").unwrap();
            assert_eq!(
                verified(&by_certificate, &chain).is_ok(),
                accepted,
                "{name}"
            );
            let fingerprint = Sha256::digest(&chain[1]).into();
            let pinned = PinnedAuthority::by_fingerprint(fingerprint, "head.example").unwrap();
            assert_eq!(verified(&pinned, &chain).is_ok(), accepted, "{name}");
            let other = PinnedAuthority::by_certificate(&foreign, "head.example").unwrap();
            assert!(
                verified(&other, &chain).is_err(),
                "{name}: another authority"
            );
            let other = PinnedAuthority::by_fingerprint([0; 32], "head.example").unwrap();
            assert!(
                verified(&other, &chain).is_err(),
                "{name}: another fingerprint"
            );
        }
        assert!(PinnedAuthority::by_certificate("", "head.example").is_err());
        assert!(PinnedAuthority::by_certificate(&foreign, "a b").is_err());
    }

    #[test]
    fn fingerprints_are_read_in_their_usual_forms() {
        let plain = "ab".repeat(32);
        let colons = vec!["AB"; 32].join(":");
        for text in [
            plain.clone(),
            format!("sha256:{plain}"),
            format!("SHA256:{colons}"),
        ] {
            assert_eq!(parse_fingerprint(&text).unwrap(), [0xab; 32], "{text}");
        }
        for bad in ["", "sha256:", "ab", &"zz".repeat(32), &"é".repeat(32)] {
            assert!(parse_fingerprint(bad).is_err(), "{bad}");
        }
    }
}
