//! How the agent verifies the server: by its authority's certificate or that certificate's
//! fingerprint. (As in Kubernetes, HTTPS probes verify nothing.)

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
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

/// Accepts a server whose chain ends in the authority with this fingerprint, whose certificate must
/// be in the chain that the server sends.
#[derive(Debug)]
pub struct PinnedAuthority {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl PinnedAuthority {
    /// For the authority with this fingerprint.
    pub fn new(fingerprint: [u8; 32]) -> Arc<PinnedAuthority> {
        Arc::new(PinnedAuthority {
            fingerprint,
            provider: provider(),
        })
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
        let pinned = intermediates
            .iter()
            .find(|certificate| Sha256::digest(certificate.as_ref())[..] == self.fingerprint)
            .ok_or_else(|| {
                Error::General(
                    "the server's certificate authority does not have the fingerprint given with \
                     the join token; this is another server, or another machine intercepts the connection"
                        .to_owned(),
                )
            })?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|error| Error::General(error.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
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
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
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
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
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
