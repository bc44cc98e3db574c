//! The answers to the challenges of an ACME server while it validates: by HTTP (RFC 8555, section 8.3) or by TLS
//! (RFC 8737).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;

/// The current answers.
#[derive(Debug, Default)]
pub struct Challenges(Mutex<Answers>);

#[derive(Debug, Default)]
struct Answers {
    /// By token: the key authorization.
    http: BTreeMap<String, String>,
    /// By DNS name: the certificate.
    tls: BTreeMap<String, Arc<CertifiedKey>>,
}

impl Challenges {
    /// Answers an http-01 challenge.
    pub fn answer_http(&self, token: &str, authorization: &str) {
        let mut answers = self.answers();
        answers
            .http
            .insert(token.to_owned(), authorization.to_owned());
    }

    /// Answers a tls-alpn-01 challenge with the digest of its key authorization.
    ///
    /// # Errors
    /// The certificate cannot be made.
    pub fn answer_tls(&self, name: &str, digest: &[u8]) -> Result<()> {
        let what = || format!("the certificate that answers the challenge for {name} was not made");
        let key = KeyPair::generate().with_context(what)?;
        let mut params = CertificateParams::new(vec![name.to_owned()]).with_context(what)?;
        params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        let certificate = params.self_signed(&key).with_context(what)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = rustls::crypto::ring::sign::any_supported_type(&key).with_context(what)?;
        // Not checked against the key, as other certificates are: the check knows no critical extension of ACME's.
        let key = CertifiedKey::new(vec![CertificateDer::from(certificate)], key);
        self.answers().tls.insert(name.to_owned(), Arc::new(key));
        Ok(())
    }

    /// Keeps the answers of an order until it ends, in whatever way.
    pub fn of_order(&self) -> OrderAnswers<'_> {
        OrderAnswers(self)
    }

    /// The key authorization for a token.
    pub fn authorization(&self, token: &str) -> Option<String> {
        self.answers().http.get(token).cloned()
    }

    /// The certificate for a name.
    pub fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.answers().tls.get(name).cloned()
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Dropping it forgets the answers of an order.
pub struct OrderAnswers<'a>(&'a Challenges);

impl Drop for OrderAnswers<'_> {
    fn drop(&mut self) {
        *self.0.answers() = Answers::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_there_until_the_order_ends() {
        let challenges = Challenges::default();
        let order = challenges.of_order();
        challenges.answer_http("token", "token.print");
        challenges.answer_tls("a.example", &[7; 32]).unwrap();
        assert_eq!(challenges.authorization("token").unwrap(), "token.print");
        assert_eq!(challenges.authorization("other"), None);
        let certificate = challenges.certificate("a.example").unwrap();
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate.cert[0]).unwrap();
        // id-pe-acmeIdentifier (RFC 8737, section 6.1), critical, with the digest as its value.
        let extension = parsed
            .extensions()
            .iter()
            .find(|extension| extension.oid.to_id_string() == "1.3.6.1.5.5.7.1.31")
            .unwrap();
        assert!(extension.critical);
        assert!(extension.value.ends_with(&[7; 32]));
        drop(order);
        assert!(challenges.authorization("token").is_none());
        assert!(challenges.certificate("a.example").is_none());
    }
}
