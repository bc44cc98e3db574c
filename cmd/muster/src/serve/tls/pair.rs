//! A certificate with its key: read, checked, and ready to be served.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use crate::arguments::KeyFiles;

/// The most bytes of a file with a certificate or a key.
const FILE_MAX: u64 = 1 << 20;

/// What the certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The server presents it.
    Server,
    /// The server issues its certificate by it.
    Authority,
}

/// The contents of the files.
#[derive(Clone, PartialEq, Eq)]
pub struct PairText {
    /// The certificate with its chain, in PEM.
    pub chain: String,
    /// The key, in PEM.
    pub key: String,
}

/// A certificate that is valid now, with the key that fits it.
#[derive(Debug)]
pub struct CertificatePair {
    /// The chain and the key, as TLS takes them.
    pub key: Arc<CertifiedKey>,
    /// Its DNS names.
    pub names: Vec<String>,
    /// The first second of its validity.
    pub not_before: Timestamp,
    /// The last second of its validity.
    pub not_after: Timestamp,
}

/// Why a certificate and a key are not usable. The first field is the option that names the file.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// A file cannot be read.
    #[error("--{option} = {}: the file cannot be read: {reason}; name a file that the server's user may read", .path.display())]
    File {
        option: &'static str,
        path: PathBuf,
        reason: String,
    },
    /// No certificate.
    #[error("--{option} = {}: the file has no certificate in PEM: {reason}; it starts with -----BEGIN CERTIFICATE-----", .path.display())]
    Certificate {
        option: &'static str,
        path: PathBuf,
        reason: String,
    },
    /// No key.
    #[error("--{option} = {}: the file has no private key in PEM without a passphrase: {reason}; it starts with -----BEGIN PRIVATE KEY-----", .path.display())]
    Key {
        option: &'static str,
        path: PathBuf,
        reason: String,
    },
    /// The key is another certificate's.
    #[error("--{option} = {}: the key does not belong to the certificate {}: {reason}; name the key with which the certificate was requested", .path.display(), .certificate.display())]
    Mismatch {
        option: &'static str,
        path: PathBuf,
        certificate: PathBuf,
        reason: String,
    },
    /// It has expired.
    #[error("--{option} = {}: the certificate expired at {not_after}; renew it", .path.display())]
    Expired {
        option: &'static str,
        path: PathBuf,
        not_after: Timestamp,
    },
    /// It is not valid yet.
    #[error("--{option} = {}: the certificate is valid from {not_before}; check this machine's clock, or wait", .path.display())]
    NotYet {
        option: &'static str,
        path: PathBuf,
        not_before: Timestamp,
    },
    /// It has no DNS name.
    #[error("--{option} = {}: the certificate has no DNS name (subject alternative name); clients would refuse it: request one for the server's names", .path.display())]
    NoName { option: &'static str, path: PathBuf },
    /// It is no CA's.
    #[error("--{option} = {}: the certificate is not a CA's (basic constraints CA:TRUE); use --tls-cert for the server's own, or name the CA's", .path.display())]
    NoAuthority { option: &'static str, path: PathBuf },
}

/// Reads the files.
///
/// # Errors
/// One of them cannot be read, or is too large.
pub fn read(files: &KeyFiles) -> Result<PairText, PairError> {
    Ok(PairText {
        chain: text(files.certificate_option, &files.certificate)?,
        key: text(files.key_option, &files.key)?,
    })
}

fn text(option: &'static str, path: &Path) -> Result<String, PairError> {
    let failed = |reason: String| PairError::File {
        option,
        path: path.to_owned(),
        reason,
    };
    let size = std::fs::metadata(path)
        .map_err(|error| failed(error.to_string()))?
        .len();
    if size > FILE_MAX {
        return Err(failed(format!("it has {size} bytes, more than {FILE_MAX}")));
    }
    std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))
}

impl CertificatePair {
    /// Checks the texts of files at this time.
    ///
    /// # Errors
    /// They are not a valid certificate for the purpose with its key.
    pub fn of(
        text: &PairText,
        files: &KeyFiles,
        purpose: Purpose,
        now: Timestamp,
    ) -> Result<CertificatePair, PairError> {
        let (option, path) = (files.certificate_option, files.certificate.clone());
        let unreadable = |reason: String| PairError::Certificate {
            option,
            path: path.clone(),
            reason,
        };
        let chain = CertificateDer::pem_slice_iter(text.chain.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| unreadable(error.to_string()))?;
        let first = chain
            .first()
            .ok_or_else(|| unreadable("it has none".to_owned()))?
            .clone();
        let (_, parsed) = x509_parser::parse_x509_certificate(&first)
            .map_err(|error| unreadable(error.to_string()))?;
        let not_before = second(parsed.validity().not_before.timestamp());
        let not_after = second(parsed.validity().not_after.timestamp());
        if now > not_after {
            return Err(PairError::Expired {
                option,
                path,
                not_after,
            });
        }
        if now < not_before {
            return Err(PairError::NotYet {
                option,
                path,
                not_before,
            });
        }
        let names = dns_names(&parsed);
        match purpose {
            Purpose::Server if names.is_empty() => {
                return Err(PairError::NoName { option, path });
            }
            Purpose::Authority if !parsed.is_ca() => {
                return Err(PairError::NoAuthority { option, path });
            }
            Purpose::Server | Purpose::Authority => {}
        }
        let key =
            PrivateKeyDer::from_pem_slice(text.key.as_bytes()).map_err(|error| PairError::Key {
                option: files.key_option,
                path: files.key.clone(),
                reason: error.to_string(),
            })?;
        let provider = rustls::crypto::ring::default_provider();
        let key =
            CertifiedKey::from_der(chain, key, &provider).map_err(|error| PairError::Mismatch {
                option: files.key_option,
                path: files.key.clone(),
                certificate: files.certificate.clone(),
                reason: error.to_string(),
            })?;
        Ok(CertificatePair {
            key: Arc::new(key),
            names,
            not_before,
            not_after,
        })
    }

    /// Whether the certificate is for this DNS name; a wildcard is for one label.
    pub fn covers(&self, name: &str) -> bool {
        let Ok(name) = ServerName::try_from(name) else {
            return false;
        };
        let first = self.key.cert.first().map(ParsedCertificate::try_from);
        matches!(first, Some(Ok(parsed)) if verify_server_name(&parsed, &name).is_ok())
    }

    /// When it is due for renewal, in seconds since 1970.
    pub fn renewal(&self) -> i64 {
        rpc::renewal_second(self.not_before.as_second(), self.not_after.as_second())
    }
}

fn second(timestamp: i64) -> Timestamp {
    Timestamp::from_second(timestamp).unwrap_or(Timestamp::MAX)
}

fn dns_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    let names = names.value.general_names.iter();
    names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use base64::Engine as _;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};

    use super::*;

    fn files() -> KeyFiles {
        KeyFiles {
            certificate_option: "tls-cert",
            certificate: "c.pem".into(),
            key_option: "tls-key",
            key: "k.pem".into(),
        }
    }

    fn params(names: &[&str]) -> CertificateParams {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2024, 1, 1);
        params.not_after = date_time_ymd(2025, 1, 1);
        params
    }

    fn signed(params: &CertificateParams) -> PairText {
        let key = KeyPair::generate().unwrap();
        PairText {
            chain: params.self_signed(&key).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    fn checked(text: &PairText, purpose: Purpose, now: &str) -> Result<CertificatePair, String> {
        let now: Timestamp = now.parse().unwrap();
        CertificatePair::of(text, &files(), purpose, now).map_err(|error| error.to_string())
    }

    const WHILE_VALID: &str = "2024-06-01T00:00:00Z";

    #[test]
    fn a_certificate_is_for_its_names_and_one_label_of_its_wildcards() {
        let text = signed(&params(&["a.example", "*.b.example"]));
        let pair = checked(&text, Purpose::Server, WHILE_VALID).unwrap();
        assert_eq!(pair.names, ["a.example", "*.b.example"]);
        for (name, covered) in [
            ("a.example", true),
            ("A.Example", true),
            ("x.b.example", true),
            ("b.example", false),
            ("y.x.b.example", false),
            ("localhost", false),
            ("10.0.0.1", false),
            ("not a name", false),
        ] {
            assert_eq!(pair.covers(name), covered, "{name}");
        }
        // Two thirds of 366 days.
        let renewed = Timestamp::from_second(pair.renewal()).unwrap();
        assert_eq!(renewed.to_string(), "2024-09-01T00:00:00Z");
    }

    #[test]
    fn what_clients_would_refuse_is_refused_with_option_value_and_what_to_do() {
        let good = signed(&params(&["a.example"]));
        let other = signed(&params(&["a.example"]));
        let with = |chain: &str, key: &str| PairText {
            chain: chain.to_owned(),
            key: key.to_owned(),
        };
        let server = Purpose::Server;
        let cases = [
            (
                good.clone(),
                server,
                "2025-01-01T00:00:01Z",
                "--tls-cert = c.pem: the certificate expired at 2025-01-01T00:00:00Z; renew it",
            ),
            (
                good.clone(),
                server,
                "2023-12-31T23:59:59Z",
                "--tls-cert = c.pem: the certificate is valid from 2024-01-01T00:00:00Z",
            ),
            (
                with(&good.chain, &other.key),
                server,
                WHILE_VALID,
                "--tls-key = k.pem: the key does not belong to the certificate c.pem",
            ),
            (
                with("", &good.key),
                server,
                WHILE_VALID,
                "--tls-cert = c.pem: the file has no certificate in PEM",
            ),
            (
                with(&good.chain, ""),
                server,
                WHILE_VALID,
                "--tls-key = k.pem: the file has no private key in PEM",
            ),
            (
                signed(&params(&[])),
                server,
                WHILE_VALID,
                "--tls-cert = c.pem: the certificate has no DNS name",
            ),
            (
                good.clone(),
                Purpose::Authority,
                WHILE_VALID,
                "--tls-cert = c.pem: the certificate is not a CA's",
            ),
        ];
        for (text, purpose, now, expected) in cases {
            let error = checked(&text, purpose, now).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(checked(&good, server, "2025-01-01T00:00:00Z").is_ok());
        assert!(checked(&good, server, "2024-01-01T00:00:00Z").is_ok());
        let mut authority = params(&[]);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        assert!(checked(&signed(&authority), Purpose::Authority, WHILE_VALID).is_ok());
    }

    /// PEM of these bytes.
    fn pem(label: &str, der: &[u8]) -> String {
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        let lines: Vec<&str> = text
            .as_bytes()
            .chunks(64)
            .map(|line| std::str::from_utf8(line).unwrap())
            .collect();
        format!(
            "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
            lines.join("\n")
        )
    }

    fn der(pem: &str) -> Vec<u8> {
        let lines: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        base64::engine::general_purpose::STANDARD
            .decode(lines)
            .unwrap()
    }

    /// Pairs of a server and of a CA.
    static SOUND: LazyLock<[PairText; 2]> = LazyLock::new(|| {
        let mut authority = params(&["ca.example"]);
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        [
            signed(&params(&["a.example", "*.b.example"])),
            signed(&authority),
        ]
    });

    proptest::proptest! {
        #[test]
        fn no_certificate_with_its_key_panics(
            which in 0..2_usize,
            inside in crate::documents::damage(),
            key_inside in crate::documents::damage(),
            outside in crate::documents::damage(),
            authority in proptest::prelude::any::<bool>(),
            name in "[a-z*.\\PC]{0,20}",
        ) {
            let sound = &SOUND[which];
            // What is damaged within its PEM reaches the readers of X.509 and of keys.
            let chain = pem("CERTIFICATE", &crate::documents::damaged(der(&sound.chain), &inside));
            let key = pem("PRIVATE KEY", &crate::documents::damaged(der(&sound.key), &key_inside));
            let chain = crate::documents::damaged(chain.into_bytes(), &outside);
            let text = PairText {
                chain: String::from_utf8_lossy(&chain).into_owned(),
                key,
            };
            let purpose = if authority { Purpose::Authority } else { Purpose::Server };
            match checked(&text, purpose, WHILE_VALID) {
                Ok(pair) => {
                    let _ = (pair.covers(&name), pair.renewal());
                }
                Err(error) => proptest::prop_assert!(error.starts_with("--tls-"), "{}", error),
            }
        }
    }

    #[test]
    fn a_file_that_is_missing_or_too_large_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = files();
        files.certificate = dir.path().join("c.pem");
        files.key = dir.path().join("k.pem");
        let missing = read(&files).err().unwrap().to_string();
        assert!(
            missing.starts_with("--tls-cert = ") && missing.contains("cannot be read"),
            "{missing}"
        );
        let most = usize::try_from(FILE_MAX).unwrap();
        std::fs::write(&files.certificate, "x".repeat(most)).unwrap();
        std::fs::write(&files.key, "").unwrap();
        assert!(read(&files).is_ok());
        std::fs::write(&files.certificate, "x".repeat(most + 1)).unwrap();
        let large = read(&files).err().unwrap().to_string();
        assert!(large.contains("more than 1048576"), "{large}");
    }
}
