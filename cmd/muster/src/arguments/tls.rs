//! Options of the certificate that browsers and clients get by the server's names.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;

/// Let's Encrypt's directory.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The most names of a certificate by ACME: Let's Encrypt's own limit.
const DOMAINS_MAX: usize = 100;

/// The certificate that the server presents to browsers and clients that call it by a DNS name of the certificate.
/// Agents always get the one of Muster's own CA.
#[derive(Args, Debug, Clone, Default)]
pub struct TlsOptions {
    /// Certificate for browsers and clients, with its chain, in PEM; read again when it changes and at SIGHUP [default:
    /// one of Muster's own CA]
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Certificate of your own CA, with its chain, in PEM: the server issues its certificate for browsers and clients
    /// by it
    #[arg(long, value_name = "FILE")]
    pub tls_ca_cert: Option<PathBuf>,
    /// Private key of --tls-ca-cert, in PEM
    #[arg(long, value_name = "FILE")]
    pub tls_ca_key: Option<PathBuf>,
    /// DNS name for which an ACME server such as Let's Encrypt issues the certificate for browsers and clients
    /// (repeatable)
    #[arg(long = "acme-domain", value_name = "NAME")]
    pub acme_domains: Vec<String>,
    /// Directory URL of the ACME server
    #[arg(long, value_name = "URL", default_value = LETS_ENCRYPT)]
    pub acme_directory: String,
    /// E-mail address for the ACME server's notices (repeatable)
    #[arg(long = "acme-contact", value_name = "EMAIL")]
    pub acme_contacts: Vec<String>,
    /// Agree to the ACME server's terms of service
    #[arg(long)]
    pub acme_agree_tos: bool,
    /// Answer http-01 challenges at this address, to which port 80 of the names must lead [default: answer tls-alpn-01
    /// challenges at --listen, to which port 443 of the names must lead]
    #[arg(long, value_name = "ADDR")]
    pub acme_http: Option<SocketAddr>,
    /// CA certificates that verify the ACME server itself, in PEM [default: this machine's]
    #[arg(long, value_name = "FILE")]
    pub acme_root: Option<PathBuf>,
}

/// Where the certificate for browsers and clients comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsSource {
    /// Muster's own CA.
    Own,
    /// Files with the certificate and its key.
    Files(KeyFiles),
    /// Files with the certificate and the key of a CA that issues it.
    Authority(KeyFiles),
    /// An ACME server.
    Acme(AcmeSettings),
}

impl TlsSource {
    /// What the log calls it.
    pub fn name(&self) -> &'static str {
        match self {
            TlsSource::Own => "Muster's own CA",
            TlsSource::Files(_) => "files (tls-cert)",
            TlsSource::Authority(_) => "your CA (tls-ca-cert)",
            TlsSource::Acme(_) => "ACME",
        }
    }
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFiles {
    /// The option that names the certificate.
    pub certificate_option: &'static str,
    /// The certificate with its chain, in PEM.
    pub certificate: PathBuf,
    /// The option that names the key.
    pub key_option: &'static str,
    /// The private key, in PEM.
    pub key: PathBuf,
}

/// How a certificate is got from an ACME server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcmeSettings {
    /// The directory's URL.
    pub directory: String,
    /// The certificate's DNS names.
    pub domains: Vec<String>,
    /// E-mail addresses for notices.
    pub contacts: Vec<String>,
    /// The address for http-01 challenges; without it, tls-alpn-01.
    pub http: Option<SocketAddr>,
    /// CA certificates that verify the ACME server; the machine's without it.
    pub root: Option<PathBuf>,
}

/// Options of the certificate that do not fit together, or a value that no certificate can have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsOptionError {
    /// One of two files.
    #[error("--{given} = {value}: the option needs --{missing} too; add it, or leave both out")]
    Half {
        /// The given option.
        given: &'static str,
        /// Its value.
        value: String,
        /// The missing one.
        missing: &'static str,
    },
    /// More than one source.
    #[error("{}: the certificate has one source; keep one of them", .0.join(", "))]
    Several(Vec<&'static str>),
    /// An option of ACME without names.
    #[error(
        "--{option} = {value}: the option is ACME's, which needs --acme-domain NAME; add it, or leave this out"
    )]
    NoDomain {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
    },
    /// A name that ACME's challenges over HTTP and TLS cannot prove.
    #[error("--acme-domain = {value:?}: {reason}; write a DNS name such as muster.example.com")]
    Domain {
        /// The name.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Too many names.
    #[error("--acme-domain: {count} names; use at most {DOMAINS_MAX}")]
    ManyDomains {
        /// The number of names.
        count: usize,
    },
    /// The directory is no URL.
    #[error("--acme-directory = {0:?}: the URL is invalid; write https://HOST/PATH")]
    Directory(String),
    /// No e-mail address.
    #[error(
        "--acme-contact = {0:?}: the e-mail address is invalid; write NAME@HOST, without mailto:"
    )]
    Contact(String),
    /// The terms are not agreed to.
    #[error(
        "--acme-agree-tos: an ACME server gives certificates only to those who agree to its terms of service; read \
         them ({0} names them), and add --acme-agree-tos"
    )]
    Terms(String),
}

impl TlsOptions {
    /// Where the certificate comes from.
    ///
    /// # Errors
    /// Options do not fit together, or a value of ACME's is invalid.
    pub fn source(&self) -> Result<TlsSource, TlsOptionError> {
        let files = pair(("tls-cert", &self.tls_cert), ("tls-key", &self.tls_key))?;
        let authority = pair(
            ("tls-ca-cert", &self.tls_ca_cert),
            ("tls-ca-key", &self.tls_ca_key),
        )?;
        let acme = !self.acme_domains.is_empty();
        let given: Vec<&'static str> = [
            (files.is_some(), "--tls-cert"),
            (authority.is_some(), "--tls-ca-cert"),
            (acme, "--acme-domain"),
        ]
        .into_iter()
        .filter_map(|(given, option)| given.then_some(option))
        .collect();
        if given.len() > 1 {
            return Err(TlsOptionError::Several(given));
        }
        if acme {
            return self.acme().map(TlsSource::Acme);
        }
        self.refuse_acme_without_domain()?;
        Ok(match (files, authority) {
            (Some(files), _) => TlsSource::Files(files),
            (None, Some(authority)) => TlsSource::Authority(authority),
            (None, None) => TlsSource::Own,
        })
    }

    fn refuse_acme_without_domain(&self) -> Result<(), TlsOptionError> {
        let directory = (self.acme_directory != LETS_ENCRYPT && !self.acme_directory.is_empty())
            .then(|| self.acme_directory.clone());
        let root = self
            .acme_root
            .as_ref()
            .map(|path| path.display().to_string());
        let options = [
            ("acme-directory", directory),
            ("acme-contact", self.acme_contacts.first().cloned()),
            (
                "acme-agree-tos",
                self.acme_agree_tos.then(|| "true".to_owned()),
            ),
            (
                "acme-http",
                self.acme_http.map(|address| address.to_string()),
            ),
            ("acme-root", root),
        ];
        let given = options
            .into_iter()
            .find_map(|(option, value)| value.map(|value| (option, value)));
        given.map_or(Ok(()), |(option, value)| {
            Err(TlsOptionError::NoDomain { option, value })
        })
    }

    fn acme(&self) -> Result<AcmeSettings, TlsOptionError> {
        let count = self.acme_domains.len();
        if count > DOMAINS_MAX {
            return Err(TlsOptionError::ManyDomains { count });
        }
        let mut domains = self
            .acme_domains
            .iter()
            .map(|name| domain(name))
            .collect::<Result<Vec<_>, _>>()?;
        domains.sort();
        domains.dedup();
        let url: Option<axum::http::Uri> = self.acme_directory.parse().ok();
        if !url.is_some_and(|url| url.scheme_str() == Some("https") && url.host().is_some()) {
            return Err(TlsOptionError::Directory(self.acme_directory.clone()));
        }
        for contact in &self.acme_contacts {
            let parts = contact.split_once('@');
            let good = parts.is_some_and(|(name, host)| !name.is_empty() && !host.is_empty());
            if !good || contact.contains([':', ',', ' ', '?']) {
                return Err(TlsOptionError::Contact(contact.clone()));
            }
        }
        if !self.acme_agree_tos {
            return Err(TlsOptionError::Terms(self.acme_directory.clone()));
        }
        Ok(AcmeSettings {
            directory: self.acme_directory.clone(),
            domains,
            contacts: self.acme_contacts.clone(),
            http: self.acme_http,
            root: self.acme_root.clone(),
        })
    }
}

fn pair(
    certificate: (&'static str, &Option<PathBuf>),
    key: (&'static str, &Option<PathBuf>),
) -> Result<Option<KeyFiles>, TlsOptionError> {
    let half = |given: &'static str, value: &PathBuf, missing| TlsOptionError::Half {
        given,
        value: value.display().to_string(),
        missing,
    };
    match (certificate.1, key.1) {
        (None, None) => Ok(None),
        (Some(path), None) => Err(half(certificate.0, path, key.0)),
        (None, Some(path)) => Err(half(key.0, path, certificate.0)),
        (Some(certificate_file), Some(key_file)) => Ok(Some(KeyFiles {
            certificate_option: certificate.0,
            certificate: certificate_file.clone(),
            key_option: key.0,
            key: key_file.clone(),
        })),
    }
}

/// A DNS name in lower case.
fn domain(name: &str) -> Result<String, TlsOptionError> {
    let wrong = |reason| TlsOptionError::Domain {
        value: name.to_owned(),
        reason,
    };
    if name.starts_with("*.") {
        return Err(wrong(
            "a wildcard needs a challenge over DNS, which the server does not answer",
        ));
    }
    if name.parse::<IpAddr>().is_ok() {
        return Err(wrong("an address is no DNS name"));
    }
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > 253 || !name.contains('.') || !name.split('.').all(label) {
        return Err(wrong("the name is not a full DNS name"));
    }
    Ok(name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        tls: TlsOptions,
    }

    fn source(words: &[&str]) -> Result<TlsSource, TlsOptionError> {
        let words = std::iter::once(&"muster").chain(words);
        Line::try_parse_from(words).unwrap().tls.source()
    }

    #[test]
    fn each_source_is_chosen_by_its_options() {
        assert_eq!(source(&[]), Ok(TlsSource::Own));
        assert!(matches!(
            source(&["--tls-cert=c", "--tls-key=k"]),
            Ok(TlsSource::Files(_))
        ));
        let authority = source(&["--tls-ca-cert=c", "--tls-ca-key=k"]);
        assert!(matches!(authority, Ok(TlsSource::Authority(_))));
        let acme = [
            "--acme-domain=B.example.com",
            "--acme-domain=a.example.com",
            "--acme-agree-tos",
        ];
        let Ok(TlsSource::Acme(settings)) = source(&acme) else {
            panic!("ACME")
        };
        assert_eq!(settings.domains, ["a.example.com", "b.example.com"]);
        assert_eq!(settings.directory, LETS_ENCRYPT);
    }

    #[test]
    fn what_does_not_fit_together_is_refused_with_option_value_and_what_to_do() {
        let agreed = "--acme-agree-tos";
        let cases: &[(&[&str], &str)] = &[
            (
                &["--tls-cert=c.pem"],
                "--tls-cert = c.pem: the option needs --tls-key too",
            ),
            (
                &["--tls-key=k.pem"],
                "--tls-key = k.pem: the option needs --tls-cert too",
            ),
            (
                &["--tls-ca-key=k.pem"],
                "--tls-ca-key = k.pem: the option needs --tls-ca-cert too",
            ),
            (
                &[
                    "--tls-cert=c",
                    "--tls-key=k",
                    "--acme-domain=a.example",
                    agreed,
                ],
                "--tls-cert, --acme-domain: the certificate has one source",
            ),
            (
                &["--acme-http=[::]:80"],
                "--acme-http = [::]:80: the option is ACME's",
            ),
            (&[agreed], "--acme-agree-tos = true: the option is ACME's"),
            (
                &["--acme-domain=a.example"],
                "--acme-agree-tos: an ACME server",
            ),
            (
                &["--acme-domain=*.a.example", agreed],
                "\"*.a.example\": a wildcard",
            ),
            (
                &["--acme-domain=10.0.0.1", agreed],
                "\"10.0.0.1\": an address",
            ),
            (
                &["--acme-domain=localhost", agreed],
                "\"localhost\": the name is not a full DNS name",
            ),
            (&["--acme-domain=a..example", agreed], "not a full DNS name"),
            (
                &[
                    "--acme-domain=a.example",
                    agreed,
                    "--acme-directory=http://a/dir",
                ],
                "--acme-directory = \"http://a/dir\": the URL is invalid; write https://HOST/PATH",
            ),
            (
                &[
                    "--acme-domain=a.example",
                    agreed,
                    "--acme-contact=mailto:a@b",
                ],
                "without mailto:",
            ),
        ];
        for (words, expected) in cases {
            let error = source(words).unwrap_err().to_string();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
    }

    #[test]
    fn a_hundred_names_are_the_most() {
        let names = |count: usize| {
            let options = TlsOptions {
                acme_domains: (0..count)
                    .map(|number| format!("n{number}.example"))
                    .collect(),
                acme_directory: LETS_ENCRYPT.to_owned(),
                acme_agree_tos: true,
                ..TlsOptions::default()
            };
            options.source()
        };
        assert!(names(DOMAINS_MAX).is_ok());
        let count = DOMAINS_MAX + 1;
        assert_eq!(names(count), Err(TlsOptionError::ManyDomains { count }));
    }
}
