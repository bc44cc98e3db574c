//! An ID token as a text: three parts in base64url (RFC 7515, section 7.1), of which the last signs the first two.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::claims::Claims;
use crate::error::{OidcError, shortened};
use crate::keys::{Algorithm, KeySet};

/// A token whose signature is not verified yet.
pub(crate) struct UnverifiedToken<'a> {
    algorithm: (String, Algorithm),
    key: Option<String>,
    signed: &'a str,
    payload: &'a str,
    signature: Vec<u8>,
}

fn invalid(problem: impl Into<String>) -> OidcError {
    OidcError::Token {
        problem: problem.into(),
    }
}

fn decoded(part: &str) -> Result<Vec<u8>, OidcError> {
    let bytes = URL_SAFE_NO_PAD.decode(part);
    bytes.map_err(|_| invalid("a part is not base64url"))
}

fn document(part: &str) -> Result<Value, OidcError> {
    serde_json::from_slice(&decoded(part)?).map_err(|_| invalid("a part is not JSON"))
}

impl<'a> UnverifiedToken<'a> {
    /// Takes a token apart. Refuses algorithms without a public key, and extensions that the token calls critical.
    pub(crate) fn of_text(text: &'a str) -> Result<UnverifiedToken<'a>, OidcError> {
        let (signed, signature) = text
            .rsplit_once('.')
            .ok_or_else(|| invalid("it does not have three parts"))?;
        let (header, payload) = match signed.split_once('.') {
            Some((header, payload)) if !payload.contains('.') => (header, payload),
            _ => return Err(invalid("it does not have three parts")),
        };
        let header = document(header)?;
        if header.get("crit").is_some() {
            return Err(invalid("its header has extensions (crit)"));
        }
        let name = header["alg"].as_str().unwrap_or_default();
        let algorithm = Algorithm::of_name(name).ok_or_else(|| {
            invalid(format!(
                "its algorithm {:?} is none of RS256, PS256, ES256 (also with 384, RS and PS also with 512) and EdDSA; an \
                 administrator chooses one of these at the provider",
                shortened(name)
            ))
        })?;
        Ok(UnverifiedToken {
            algorithm: (name.to_owned(), algorithm),
            key: header["kid"].as_str().map(str::to_owned),
            signed,
            payload,
            signature: decoded(signature)?,
        })
    }

    /// True if the token names a key that the set does not have.
    pub(crate) fn names_unknown_key(&self, keys: &KeySet) -> bool {
        self.key.as_deref().is_some_and(|id| !keys.has(id))
    }

    /// True if one of these keys signed the token.
    pub(crate) fn signed_by(&self, keys: &KeySet) -> bool {
        let (name, algorithm) = &self.algorithm;
        keys.signed(
            self.key.as_deref(),
            (name, *algorithm),
            self.signed.as_bytes(),
            &self.signature,
        )
    }

    /// The claims, if one of these keys signed the token.
    ///
    /// # Errors
    /// None did, or the claims are no object.
    pub(crate) fn verified(&self, keys: &KeySet) -> Result<Claims, OidcError> {
        if !self.signed_by(keys) {
            return Err(invalid("none of the provider's keys signed it"));
        }
        Claims::of(document(self.payload)?).ok_or_else(|| invalid("its claims are no object"))
    }
}
