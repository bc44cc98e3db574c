//! The server's own certificate authority: made once, kept with the server's data, and trusted
//! by the nodes that joined. It signs the server's certificate and those of nodes and people; it
//! checks nobody's right to one.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use sha2::{Digest, Sha256};

use crate::error::FleetError;

/// How long the authority itself is good, in days.
const AUTHORITY_DAYS: i64 = 3650;

/// How long a certificate of a server, node or person is good, in days.
const LEAF_DAYS: i64 = 365;

/// How far the clocks of machines may be apart, in days: certificates start that much earlier.
const CLOCK_SLACK_DAYS: i64 = 1;

const CERTIFICATE_FILE: &str = "ca.pem";
const KEY_FILE: &str = "ca.key";

/// The server's certificate authority.
pub struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
    certificate_der: Vec<u8>,
}

/// A certificate with its private key.
#[derive(Clone)]
pub struct IssuedKey {
    /// The certificate and then the authority's, as PEM.
    pub chain_pem: String,
    /// The private key as PEM (PKCS#8).
    pub key_pem: String,
}

/// A certificate for a key that its owner kept.
#[derive(Clone, Debug)]
pub struct SignedCertificate {
    /// The certificate as PEM.
    pub certificate_pem: String,
    /// When it ends.
    pub not_after: Timestamp,
}

impl CertificateAuthority {
    /// Reads the authority of a data directory, or makes it: `ca.pem` and `ca.key` (mode 0600).
    pub fn load_or_create(dir: &Path) -> Result<Self, FleetError> {
        let certificate_path = dir.join(CERTIFICATE_FILE);
        let key_path = dir.join(KEY_FILE);
        match (certificate_path.exists(), key_path.exists()) {
            (true, true) => {
                let certificate_pem = read(&certificate_path)?;
                let key_pem = read(&key_path)?;
                Self::from_pem(certificate_pem, &key_pem)
            }
            (false, false) => {
                fs::create_dir_all(dir).map_err(|source| FleetError::File {
                    path: dir.to_owned(),
                    source,
                })?;
                let (certificate_pem, key_pem) = make_authority(Timestamp::now())?;
                // The key first: a certificate without its key would be half an authority.
                write_private(&key_path, key_pem.as_bytes())?;
                write_private(&certificate_path, certificate_pem.as_bytes())?;
                Self::from_pem(certificate_pem, &key_pem)
            }
            (true, false) => Err(FleetError::HalfAuthority { path: key_path }),
            // A crash between the two writes leaves a key that nobody has trusted yet.
            (false, true) => {
                fs::remove_file(&key_path).map_err(|source| FleetError::File {
                    path: key_path.clone(),
                    source,
                })?;
                Self::load_or_create(dir)
            }
        }
    }

    /// The authority from its certificate and key, both PEM.
    pub fn from_pem(certificate_pem: String, key_pem: &str) -> Result<Self, FleetError> {
        let key = KeyPair::from_pem(key_pem)
            .map_err(certificate("the certificate authority's key (ca.key)"))?;
        let issuer = Issuer::from_ca_cert_pem(&certificate_pem, key)
            .map_err(certificate("the certificate authority (ca.pem)"))?;
        let certificate_der = first_der(&certificate_pem)?;
        Ok(CertificateAuthority {
            issuer,
            certificate_pem,
            certificate_der,
        })
    }

    /// The authority's certificate as PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// What an agent pins: `sha256:` and the hex digest of the certificate (DER).
    pub fn fingerprint(&self) -> String {
        format!("sha256:{}", hex(&Sha256::digest(&self.certificate_der)))
    }

    /// A certificate for the server under these DNS names and addresses. The chain carries the
    /// authority's certificate too, so that an agent that knows only its fingerprint can check it.
    pub fn issue_server(&self, names: &[String], ips: &[IpAddr]) -> Result<IssuedKey, FleetError> {
        let mut params = leaf("muster server", &[], ExtendedKeyUsagePurpose::ServerAuth);
        for name in names {
            let name = name.as_str().try_into().map_err(certificate(format!(
                "the server's name {name:?} can't be in a certificate"
            )))?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        for ip in ips {
            params.subject_alt_names.push(SanType::IpAddress(*ip));
        }
        self.issue(params)
    }

    /// A client certificate for a person or component, with a key made here.
    pub fn issue_client(
        &self,
        common_name: &str,
        organisations: &[&str],
    ) -> Result<IssuedKey, FleetError> {
        self.issue(leaf(
            common_name,
            organisations,
            ExtendedKeyUsagePurpose::ClientAuth,
        ))
    }

    /// Signs a certificate request. Subject and usage are decided here; only the key, whose
    /// possession the request proves, is taken from it.
    pub fn sign_csr(
        &self,
        csr_pem: &str,
        common_name: &str,
        organisation: &str,
    ) -> Result<SignedCertificate, FleetError> {
        let mut request = CertificateSigningRequestParams::from_pem(csr_pem)
            .map_err(certificate("the certificate request (csr_pem)"))?;
        request.params = leaf(
            common_name,
            &[organisation],
            ExtendedKeyUsagePurpose::ClientAuth,
        );
        let not_after = request.params.not_after.unix_timestamp();
        let signed = request
            .signed_by(&self.issuer)
            .map_err(certificate("signing the certificate request"))?;
        Ok(SignedCertificate {
            certificate_pem: signed.pem(),
            not_after: Timestamp::from_second(not_after).unwrap_or(Timestamp::MAX),
        })
    }

    fn issue(&self, params: CertificateParams) -> Result<IssuedKey, FleetError> {
        let key = KeyPair::generate().map_err(certificate("making a key"))?;
        let signed = params
            .signed_by(&key, &self.issuer)
            .map_err(certificate("signing a certificate"))?;
        Ok(IssuedKey {
            chain_pem: format!("{}{}", signed.pem(), self.certificate_pem),
            key_pem: key.serialize_pem(),
        })
    }
}

impl std::fmt::Debug for CertificateAuthority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateAuthority")
            .field("fingerprint", &self.fingerprint())
            .finish_non_exhaustive()
    }
}

fn make_authority(now: Timestamp) -> Result<(String, String), FleetError> {
    let key = KeyPair::generate().map_err(certificate("making the authority's key"))?;
    let mut params = CertificateParams::default();
    params.distinguished_name = subject("muster certificate authority", &["muster"]);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    valid(&mut params, now, AUTHORITY_DAYS);
    let signed = params
        .self_signed(&key)
        .map_err(certificate("making the authority's certificate"))?;
    Ok((signed.pem(), key.serialize_pem()))
}

fn leaf(
    common_name: &str,
    organisations: &[&str],
    usage: ExtendedKeyUsagePurpose,
) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = subject(common_name, organisations);
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    valid(&mut params, Timestamp::now(), LEAF_DAYS);
    params
}

fn subject(common_name: &str, organisations: &[&str]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for organisation in organisations {
        name.push(DnType::OrganizationName, *organisation);
    }
    name.push(DnType::CommonName, common_name);
    name
}

fn valid(params: &mut CertificateParams, now: Timestamp, days: i64) {
    const DAY: i64 = 24 * 60 * 60;
    let at = |seconds: i64| {
        let date = Timestamp::from_second(now.as_second() + seconds)
            .unwrap_or(now)
            .to_zoned(jiff::tz::TimeZone::UTC)
            .date();
        let unsigned = |value: i8| u8::try_from(value).unwrap_or(1);
        rcgen::date_time_ymd(
            i32::from(date.year()),
            unsigned(date.month()),
            unsigned(date.day()),
        )
    };
    params.not_before = at(-CLOCK_SLACK_DAYS * DAY);
    params.not_after = at(days * DAY);
}

fn certificate(what: impl Into<String>) -> impl FnOnce(rcgen::Error) -> FleetError {
    let what = what.into();
    move |source| FleetError::Certificate { what, source }
}

/// The first certificate of a PEM text, as DER.
fn first_der(pem: &str) -> Result<Vec<u8>, FleetError> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    CertificateDer::from_pem_slice(pem.as_bytes())
        .map(|der| der.to_vec())
        .map_err(|error| FleetError::Malformed {
            what: format!("ca.pem is not a certificate in PEM form: {error}"),
        })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(path: &Path) -> Result<String, FleetError> {
    fs::read_to_string(path).map_err(|source| FleetError::File {
        path: path.to_owned(),
        source,
    })
}

/// Writes a file that only its owner may read, whole or not at all.
fn write_private(path: &Path, content: &[u8]) -> Result<(), FleetError> {
    let mut temporary = PathBuf::from(path);
    temporary.as_mut_os_string().push(".new");
    let written = (|| {
        let _ = fs::remove_file(&temporary);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        if let Some(dir) = path.parent() {
            fs::File::open(dir)?.sync_all()?;
        }
        Ok(())
    })();
    written.map_err(|source| FleetError::File {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_authority_is_made_once_and_its_files_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let first = CertificateAuthority::load_or_create(dir.path()).unwrap();
        let again = CertificateAuthority::load_or_create(dir.path()).unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert!(first.fingerprint().starts_with("sha256:"));
        for file in [CERTIFICATE_FILE, KEY_FILE] {
            let mode = fs::metadata(dir.path().join(file)).unwrap().permissions();
            assert_eq!(mode.mode() & 0o777, 0o600, "{file}");
        }
    }

    #[test]
    fn a_certificate_without_its_key_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        CertificateAuthority::load_or_create(dir.path()).unwrap();
        fs::remove_file(dir.path().join(KEY_FILE)).unwrap();
        let error = CertificateAuthority::load_or_create(dir.path()).unwrap_err();
        assert!(error.to_string().contains("restore it from a backup"));
    }

    #[test]
    fn a_key_left_by_a_crash_before_the_certificate_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(KEY_FILE), "half").unwrap();
        CertificateAuthority::load_or_create(dir.path()).unwrap();
    }

    #[test]
    fn a_request_gets_the_subject_that_the_authority_decides() {
        let dir = tempfile::tempdir().unwrap();
        let ca = CertificateAuthority::load_or_create(dir.path()).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = subject("system:masters", &["system:masters"]);
        let csr = params.serialize_request(&key).unwrap().pem().unwrap();
        let signed = ca.sign_csr(&csr, "system:node:a", rpc::NODE_GROUP).unwrap();
        assert!(signed.not_after > Timestamp::now());
        let der = first_der(&signed.certificate_pem).unwrap();
        let text = String::from_utf8_lossy(&der).into_owned();
        assert!(text.contains("system:node:a"));
        assert!(text.contains("system:nodes"));
        assert!(!text.contains("system:masters"));
    }

    #[test]
    fn a_request_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let ca = CertificateAuthority::load_or_create(dir.path()).unwrap();
        assert!(ca.sign_csr("nonsense", "system:node:a", "o").is_err());
    }
}
