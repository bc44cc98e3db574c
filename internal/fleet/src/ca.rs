//! The server's own certificate authority: created once, stored with the server's data, and trusted
//! by the nodes that joined. It signs the certificates of the server, of nodes and of users; it
//! does not check permissions.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rpc::{NODE_GROUP, PeerIdentity};
use sha2::{Digest, Sha256};

use crate::error::FleetError;

/// The validity of the authority's certificate. An administrator replaces it by hand (stop the
/// server, remove `ca.pem` and `ca.key`, let every node join again): agents and kubeconfigs pin it.
const AUTHORITY_LIFE: SignedDuration = SignedDuration::from_hours(3650 * 24);

/// The validity of the server's certificate. The server renews it while it runs; the limit only
/// bounds how long a stolen copy of the key is usable.
pub const SERVER_LIFE: SignedDuration = SignedDuration::from_hours(90 * 24);

/// The validity of a node's certificate. Agents renew it while they run. A node that was off for
/// longer needs a new join token. With a week, a machine that is off over a long weekend reconnects
/// without one, and an unreported stolen key expires within the week unless it is renewed.
pub const NODE_LIFE: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The tolerated difference between the clocks of machines: certificates are valid from that much
/// earlier.
const CLOCK_SLACK: SignedDuration = SignedDuration::from_hours(24);

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
    /// The certificate followed by the authority's, as PEM.
    pub chain_pem: String,
    /// The private key as PEM (PKCS#8).
    pub key_pem: String,
    /// When the certificate expires.
    pub not_after: Timestamp,
}

/// A certificate for a key that the requester keeps.
#[derive(Clone, Debug)]
pub struct SignedCertificate {
    /// The certificate as PEM.
    pub certificate_pem: String,
    /// When the certificate expires.
    pub not_after: Timestamp,
}

impl CertificateAuthority {
    /// Reads the authority of a data directory, or creates it: `ca.pem` and `ca.key` (mode 0600).
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
                fs::DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(dir)
                    .map_err(|source| FleetError::File {
                        path: dir.to_owned(),
                        source,
                    })?;
                let (certificate_pem, key_pem) = make_authority(Timestamp::now())?;
                // Writes the key first: a certificate without its key would be unusable.
                write_private(&key_path, key_pem.as_bytes())?;
                write_private(&certificate_path, certificate_pem.as_bytes())?;
                Self::from_pem(certificate_pem, &key_pem)
            }
            (true, false) => Err(FleetError::HalfAuthority { path: key_path }),
            // A crash between the two writes leaves a key that no node has trusted yet.
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
        let key =
            KeyPair::from_pem(key_pem).map_err(certificate("the certificate authority's key"))?;
        let issuer = Issuer::from_ca_cert_pem(&certificate_pem, key)
            .map_err(certificate("the certificate authority's certificate"))?;
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

    /// The fingerprint that agents pin: `sha256:` and the hex digest of the certificate (DER).
    pub fn fingerprint(&self) -> String {
        format!("sha256:{}", hex(&Sha256::digest(&self.certificate_der)))
    }

    /// A certificate for the server under these DNS names and addresses. The chain includes the
    /// authority's certificate, so that an agent that knows only its fingerprint can verify the
    /// chain.
    pub fn issue_server(&self, names: &[String], ips: &[IpAddr]) -> Result<IssuedKey, FleetError> {
        let mut params = leaf(
            subject("muster server", None, None),
            ExtendedKeyUsagePurpose::ServerAuth,
            SERVER_LIFE,
        );
        for name in names {
            let name = name.as_str().try_into().map_err(certificate(format!(
                "the server's name {name:?} cannot be in a certificate; use a DNS name or an IP address"
            )))?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        for ip in ips {
            params.subject_alt_names.push(SanType::IpAddress(*ip));
        }
        self.issue(params)
    }

    /// Signs a node's certificate request, for one admission of the node. The server sets subject,
    /// usage and validity; it takes only the key from the request, which proves its possession.
    pub fn sign_node(
        &self,
        csr_pem: &str,
        node: &str,
        admission: &str,
    ) -> Result<SignedCertificate, FleetError> {
        let mut request = CertificateSigningRequestParams::from_pem(csr_pem)
            .map_err(certificate("the certificate request (csr_pem)"))?;
        let name = PeerIdentity::node_common_name(node);
        request.params = leaf(
            subject(&name, Some(NODE_GROUP), Some(admission)),
            ExtendedKeyUsagePurpose::ClientAuth,
            NODE_LIFE,
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
        let not_after = params.not_after.unix_timestamp();
        let signed = params
            .signed_by(&key, &self.issuer)
            .map_err(certificate("signing a certificate"))?;
        Ok(IssuedKey {
            chain_pem: format!("{}{}", signed.pem(), self.certificate_pem),
            key_pem: key.serialize_pem(),
            not_after: Timestamp::from_second(not_after).unwrap_or(Timestamp::MAX),
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
    params.distinguished_name = subject("muster certificate authority", Some("muster"), None);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    valid(&mut params, now, AUTHORITY_LIFE);
    let signed = params
        .self_signed(&key)
        .map_err(certificate("making the authority's certificate"))?;
    Ok((signed.pem(), key.serialize_pem()))
}

/// The peer's identity according to a client certificate that TLS has verified.
pub fn peer_identity(certificate_der: &[u8]) -> Option<PeerIdentity> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate_der).ok()?;
    let subject = certificate.subject();
    let common_name = subject.iter_common_name().next()?.as_str().ok()?;
    let unit = subject.iter_organizational_unit().next();
    Some(PeerIdentity {
        common_name: common_name.to_owned(),
        admission: unit.and_then(|unit| unit.as_str().ok()).map(str::to_owned),
        not_after: certificate.validity().not_after.timestamp(),
    })
}

fn leaf(
    subject: DistinguishedName,
    usage: ExtendedKeyUsagePurpose,
    life: SignedDuration,
) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params.use_authority_key_identifier_extension = true;
    valid(&mut params, Timestamp::now(), life);
    params
}

fn subject(common_name: &str, organisation: Option<&str>, unit: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organisation) = organisation {
        name.push(DnType::OrganizationName, organisation);
    }
    if let Some(unit) = unit {
        name.push(DnType::OrganizationalUnitName, unit);
    }
    name.push(DnType::CommonName, common_name);
    name
}

fn valid(params: &mut CertificateParams, now: Timestamp, life: SignedDuration) {
    // rcgen uses another crate's time type; whole seconds since 1970 convert to it.
    let at = |time: i64| {
        let since_1970 = Duration::from_secs(u64::try_from(time).unwrap_or_default());
        rcgen::date_time_ymd(1970, 1, 1) + since_1970
    };
    params.not_before = at(now.as_second().saturating_sub(CLOCK_SLACK.as_secs()));
    params.not_after = at(now.as_second().saturating_add(life.as_secs()));
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

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(path: &Path) -> Result<String, FleetError> {
    fs::read_to_string(path).map_err(|source| FleetError::File {
        path: path.to_owned(),
        source,
    })
}

/// Writes a file that only its owner may read, and returns once it is on the disk.
fn write_private(path: &Path, content: &[u8]) -> Result<(), FleetError> {
    durable::replace(path, content).map_err(|error| FleetError::File {
        path: path.to_owned(),
        source: error.into(),
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
        params.distinguished_name = subject("system:masters", Some("system:masters"), None);
        let csr = params.serialize_request(&key).unwrap().pem().unwrap();
        let signed = ca.sign_node(&csr, "a", "first").unwrap();
        let der = first_der(&signed.certificate_pem).unwrap();
        let text = String::from_utf8_lossy(&der).into_owned();
        assert!(text.contains("system:nodes"));
        assert!(!text.contains("system:masters"));
        let peer = peer_identity(&der).unwrap();
        assert_eq!(peer.node_name(), Some("a"));
        assert_eq!(peer.admission.as_deref(), Some("first"));
        assert_eq!(peer.not_after, signed.not_after.as_second());
    }

    #[test]
    fn certificates_last_as_long_as_they_should_to_the_second() {
        let dir = tempfile::tempdir().unwrap();
        let ca = CertificateAuthority::load_or_create(dir.path()).unwrap();
        let before = Timestamp::now().as_second();
        let server = ca.issue_server(&["localhost".to_owned()], &[]).unwrap();
        let after = Timestamp::now().as_second();
        let life = SERVER_LIFE.as_secs();
        assert!((before + life..=after + life).contains(&server.not_after.as_second()));
    }

    #[test]
    fn a_request_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let ca = CertificateAuthority::load_or_create(dir.path()).unwrap();
        assert!(ca.sign_node("nonsense", "a", "first").is_err());
    }

    /// Certificate requests in DER: as an agent makes them, with another key, and with extensions.
    static REQUESTS: std::sync::LazyLock<Vec<Vec<u8>>> = std::sync::LazyLock::new(|| {
        let mut full = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        full.distinguished_name = subject("system:node:a", Some(NODE_GROUP), None);
        full.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        full.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let kinds = [
            (CertificateParams::default(), &rcgen::PKCS_ECDSA_P256_SHA256),
            (CertificateParams::default(), &rcgen::PKCS_ED25519),
            (full, &rcgen::PKCS_ECDSA_P256_SHA256),
        ];
        let der = |(params, algorithm): (CertificateParams, _)| {
            let key = KeyPair::generate_for(algorithm).unwrap();
            params.serialize_request(&key).unwrap().der().to_vec()
        };
        kinds.into_iter().map(der).collect()
    });

    static AUTHORITY: std::sync::LazyLock<CertificateAuthority> = std::sync::LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        CertificateAuthority::load_or_create(dir.path()).unwrap()
    });

    /// Bytes in base64.
    fn encoded(bytes: &[u8]) -> String {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let group = |chunk: &[u8]| {
            let mut bits = [0u8; 4];
            bits[1..=chunk.len()].copy_from_slice(chunk);
            let bits = u32::from_be_bytes(bits);
            (0..4)
                .map(|at| match at <= chunk.len() {
                    true => char::from(LETTERS[(bits >> (18 - 6 * at)) as usize & 63]),
                    false => '=',
                })
                .collect::<String>()
        };
        bytes.chunks(3).map(group).collect()
    }

    /// A request in PEM, whose label and lines may be wrong.
    fn pem(label: &str, der: &[u8], line: usize) -> String {
        let text = encoded(der);
        let lines: Vec<&str> = (0..text.len())
            .step_by(line)
            .map(|at| &text[at..text.len().min(at + line)])
            .collect();
        format!(
            "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
            lines.join("\n")
        )
    }

    proptest::proptest! {
        #[test]
        fn no_certificate_request_panics(
            (kind, label) in (0..3_usize, proptest::sample::select(vec!["CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST", "CERTIFICATE", ""])),
            damage in crate::documents::damage(),
            line in 1..100_usize,
            text_damage in crate::documents::damage(),
        ) {
            let sound = &REQUESTS[kind];
            let der = crate::documents::damaged(sound.clone(), &damage);
            let text = crate::documents::damaged(pem(label, &der, line).into_bytes(), &text_damage);
            let text = String::from_utf8_lossy(&text);
            if let Ok(signed) = AUTHORITY.sign_node(&text, "a", "first") {
                // Whatever the request says, the certificate is the node's.
                let der = first_der(&signed.certificate_pem).unwrap();
                let peer = peer_identity(&der).unwrap();
                proptest::prop_assert_eq!(peer.node_name(), Some("a"));
            }
        }
    }

    #[test]
    fn the_requests_that_are_damaged_are_sound() {
        for request in REQUESTS.iter() {
            AUTHORITY
                .sign_node(&pem("CERTIFICATE REQUEST", request, 64), "a", "first")
                .unwrap();
        }
    }
}
