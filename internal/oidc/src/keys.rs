//! The provider's keys: a JSON Web Key Set (RFC 7517), and which of them may have signed a token. Keys of other types and
//! uses are left out, so that a provider may publish any.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;
use serde_json::Value;

use crate::limits::KEYS_MAX;

/// A signature algorithm that the server accepts. All are asymmetric: a token that is signed with the client's secret
/// (HS256), or not at all (none), is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    /// The algorithm of this name.
    pub(crate) fn of_name(name: &str) -> Option<Algorithm> {
        Some(match name {
            "RS256" => Algorithm::Rs256,
            "RS384" => Algorithm::Rs384,
            "RS512" => Algorithm::Rs512,
            "PS256" => Algorithm::Ps256,
            "PS384" => Algorithm::Ps384,
            "PS512" => Algorithm::Ps512,
            "ES256" => Algorithm::Es256,
            "ES384" => Algorithm::Es384,
            "EdDSA" => Algorithm::EdDsa,
            _ => return None,
        })
    }
}

/// A public key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PublicKey {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point on P-256.
    P256(Vec<u8>),
    /// An uncompressed point on P-384.
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ProviderKey {
    id: Option<String>,
    /// The only algorithm that the key is for, if the provider names one.
    algorithm: Option<String>,
    key: PublicKey,
}

/// The keys that sign tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySet(Vec<ProviderKey>);

#[derive(Deserialize)]
struct KeyDocument {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// The usable keys of a JSON Web Key Set; none if the document is none.
    pub(crate) fn of_document(document: &Value) -> Option<KeySet> {
        let all = document.get("keys")?.as_array()?.iter();
        let keys = all
            .filter_map(|key| serde_json::from_value::<KeyDocument>(key.clone()).ok())
            .filter(|key| {
                key.purpose
                    .as_deref()
                    .is_none_or(|purpose| purpose == "sig")
            })
            .filter_map(|key| {
                Some(ProviderKey {
                    key: public_key(&key)?,
                    id: key.kid,
                    algorithm: key.alg,
                })
            });
        Some(KeySet(keys.take(KEYS_MAX).collect()))
    }

    /// True if a key has this id.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.0.iter().any(|key| key.id.as_deref() == Some(id))
    }

    /// True if one of the keys with this id, or of all keys if the token names none, signed the message.
    pub(crate) fn signed(
        &self,
        id: Option<&str>,
        (name, algorithm): (&str, Algorithm),
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let named = |key: &&ProviderKey| {
            let of_id = id.is_none_or(|id| key.id.as_deref() == Some(id));
            of_id && key.algorithm.as_deref().is_none_or(|only| only == name)
        };
        self.0
            .iter()
            .filter(named)
            .any(|key| key.key.signed(algorithm, message, signature))
    }
}

fn decoded(text: Option<&String>) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text?.trim_end_matches('=')).ok()
}

fn public_key(key: &KeyDocument) -> Option<PublicKey> {
    match (key.kty.as_str(), key.crv.as_deref()) {
        ("RSA", _) => {
            let unsigned = |bytes: Vec<u8>| {
                let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
                bytes[zeros..].to_vec()
            };
            Some(PublicKey::Rsa {
                n: unsigned(decoded(key.n.as_ref())?),
                e: unsigned(decoded(key.e.as_ref())?),
            })
        }
        ("EC", Some("P-256")) => Some(PublicKey::P256(point(key, 32)?)),
        ("EC", Some("P-384")) => Some(PublicKey::P384(point(key, 48)?)),
        ("OKP", Some("Ed25519")) => Some(PublicKey::Ed25519(decoded(key.x.as_ref())?)),
        _ => None,
    }
}

fn point(key: &KeyDocument, size: usize) -> Option<Vec<u8>> {
    let (x, y) = (decoded(key.x.as_ref())?, decoded(key.y.as_ref())?);
    let fits = x.len() == size && y.len() == size;
    fits.then(|| [&[4], x.as_slice(), y.as_slice()].concat())
}

impl PublicKey {
    fn signed(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let rsa = |parameters: &'static signature::RsaParameters| match self {
            PublicKey::Rsa { n, e } => RsaPublicKeyComponents { n, e }
                .verify(parameters, message, signature)
                .is_ok(),
            _ => false,
        };
        let other = |method: &'static dyn signature::VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(method, key)
                .verify(message, signature)
                .is_ok()
        };
        match (algorithm, self) {
            (Algorithm::Rs256, _) => rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            (Algorithm::Rs384, _) => rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            (Algorithm::Rs512, _) => rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            (Algorithm::Ps256, _) => rsa(&signature::RSA_PSS_2048_8192_SHA256),
            (Algorithm::Ps384, _) => rsa(&signature::RSA_PSS_2048_8192_SHA384),
            (Algorithm::Ps512, _) => rsa(&signature::RSA_PSS_2048_8192_SHA512),
            (Algorithm::Es256, PublicKey::P256(key)) => {
                other(&signature::ECDSA_P256_SHA256_FIXED, key)
            }
            (Algorithm::Es384, PublicKey::P384(key)) => {
                other(&signature::ECDSA_P384_SHA384_FIXED, key)
            }
            (Algorithm::EdDsa, PublicKey::Ed25519(key)) => other(&signature::ED25519, key),
            _ => false,
        }
    }
}
