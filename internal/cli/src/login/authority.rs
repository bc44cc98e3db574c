//! The certificate authority of a server: from a file, or by the fingerprint of its certificate, which the server sends
//! with its own.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::ByteString;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::exit::ExitCause;
use crate::failure;

/// How long the connection to the server may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The port of an address that names none.
const HTTPS: u16 = 443;

/// The most bytes of a file with a certificate.
const FILE_MAX: u64 = 1024 * 1024;

/// Reads an authority's certificate.
pub fn from_file(file: &Path) -> Result<String> {
    let size = std::fs::metadata(file).map(|found| found.len());
    if size.is_ok_and(|size| size > FILE_MAX) {
        bail!("--ca: {} is larger than 1 MiB", file.display());
    }
    let pem = std::fs::read_to_string(file)
        .with_context(|| format!("--ca: {} cannot be read", file.display()))?;
    match CertificateDer::pem_slice_iter(pem.as_bytes()).next() {
        Some(Ok(_)) => Ok(pem),
        _ => Err(failure::usage(format!(
            "--ca: {} has no certificate in PEM",
            file.display()
        ))),
    }
}

/// The fingerprint of the first certificate in PEM, as `--pin` takes it.
pub fn fingerprint(pem: &str) -> Option<String> {
    let certificate = CertificateDer::pem_slice_iter(pem.as_bytes())
        .next()?
        .ok()?;
    let digest = Sha256::digest(&certificate);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("sha256:{hex}"))
}

/// The bytes of a fingerprint: 64 hex digits after `sha256:`, in any case, with or without colons between them.
fn parse(pin: &str) -> Result<[u8; 32]> {
    let pin = pin.trim().to_ascii_lowercase();
    let digits = pin.strip_prefix("sha256:").unwrap_or(&pin).replace(':', "");
    let mut bytes = [0; 32];
    let whole = digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    for (at, byte) in bytes.iter_mut().enumerate().filter(|_| whole) {
        *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16)?;
    }
    match whole {
        true => Ok(bytes),
        false => Err(failure::usage(
            "--pin: use sha256: and 64 hex digits, as `muster whoami` prints them",
        )),
    }
}

/// Accepts a server whose chain has the pinned authority, and keeps that authority's certificate.
#[derive(Debug)]
struct PinVerifier {
    pin: [u8; 32],
    found: Mutex<Option<Vec<u8>>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_pinned = |one: &&CertificateDer<'_>| Sha256::digest(one)[..] == self.pin;
        let Some(pinned) = intermediates.iter().find(is_pinned) else {
            let text = "the server's certificate is of no authority with the fingerprint of --pin; this is another server, \
                        or another machine intercepts the connection";
            return Err(Error::General(text.to_owned()));
        };
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(roots.into(), self.provider.clone())
                .build()
                .map_err(|error| Error::General(error.to_string()))?;
        let verified = verifier.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        if let Ok(mut found) = self.found.lock() {
            *found = Some(pinned.to_vec());
        }
        Ok(verified)
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
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// Host and port of `https://HOST:PORT`.
fn host_and_port(server: &str) -> Result<(String, u16)> {
    let authority = server.strip_prefix("https://").unwrap_or(server);
    let authority: http::uri::Authority = authority
        .trim_end_matches('/')
        .parse()
        .map_err(|_| failure::usage(format!("--server {server:?}: use https://HOST:PORT")))?;
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    Ok((host, authority.port_u16().unwrap_or(HTTPS)))
}

/// The certificate in PEM of the authority with this fingerprint, from a server that proves to be its.
pub async fn pinned(server: &str, pin: &str) -> Result<String> {
    let pin = parse(pin)?;
    let (host, port) = host_and_port(server)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(PinVerifier {
        pin,
        found: Mutex::default(),
        provider: provider.clone(),
    });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_no_client_auth();
    let name = ServerName::try_from(host.clone())
        .map_err(|_| failure::usage(format!("--server {server:?}: use https://HOST:PORT")))?;
    let connect = async {
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    };
    let no_answer = |reason: String| {
        let text = format!("no answer from {server}: {reason}");
        failure::with(ExitCause::Unreachable, text)
    };
    match tokio::time::timeout(PATIENCE, connect).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(no_answer(error.to_string())),
        Err(_) => return Err(no_answer("it took more than 10 s".to_owned())),
    }
    let found = verifier
        .found
        .lock()
        .ok()
        .and_then(|mut found| found.take());
    found
        .map(|der| pem(&der))
        .context("the server sent no certificate")
}

/// A certificate in PEM (RFC 7468).
fn pem(der: &[u8]) -> String {
    let base64 = serde_json::to_value(ByteString(der.to_vec())).unwrap_or_default();
    let base64 = base64.as_str().unwrap_or_default();
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = base64;
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_in_pem_is_read_back_and_has_a_fingerprint() {
        for length in [1, 47, 48, 49, 200] {
            let der = vec![7; length];
            let text = pem(&der);
            let mut read = CertificateDer::pem_slice_iter(text.as_bytes());
            assert_eq!(read.next().unwrap().unwrap().as_ref(), &der[..]);
            assert!(text.lines().all(|line| line.len() <= 64));
            let print = fingerprint(&text).unwrap();
            assert_eq!(parse(&print).unwrap()[..], Sha256::digest(&der)[..]);
        }
        assert_eq!(fingerprint("none"), None);
    }

    #[test]
    fn fingerprints_are_read_in_their_usual_forms() {
        let plain = "ab".repeat(32);
        for text in [
            plain.clone(),
            format!(" sha256:{plain}\n"),
            format!("SHA256:{}", vec!["AB"; 32].join(":")),
        ] {
            assert_eq!(parse(&text).unwrap(), [0xab; 32], "{text}");
        }
        for bad in [
            "",
            "sha256:",
            "ab",
            &"zz".repeat(32),
            &"é".repeat(32),
            &"+f".repeat(32),
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn host_and_port_are_read_from_an_address() {
        for (server, host, port) in [
            ("https://gpu.example:8443", "gpu.example", 8443),
            ("https://gpu.example", "gpu.example", HTTPS),
            ("https://[::1]:8443/", "::1", 8443),
        ] {
            assert_eq!(host_and_port(server).unwrap(), (host.to_owned(), port));
        }
        assert!(host_and_port("https://a b").is_err());
    }
}
