//! Access tokens and sessions: random secrets that are stored only as digests.
//!
//! A secret reads `muster_<id>_<64 hex digits>`; the id is public and names the token in
//! lists, the rest is 256 random bits, so a plain SHA-256 is enough to store it by.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::IdentityError;
use crate::limits::{TOKEN_LABEL_MAX, TOKENS_PER_USER_MAX};

const PREFIX: &str = "muster_";

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenPurpose {
    /// A browser that signed in.
    Session,
    /// A program.
    Access,
    /// A link to set a password, once. It authenticates no request.
    Reset,
}

/// A token's data except its secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenInfo {
    /// The public id.
    pub id: String,
    /// The user it acts as.
    pub user: String,
    /// The user's label for the token.
    pub label: String,
    /// The token's kind.
    pub purpose: TokenPurpose,
    /// When it was issued.
    pub created: Timestamp,
    /// When it expires.
    pub expires: Timestamp,
}

/// A new token, returned once.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    /// The secret for the client.
    pub secret: String,
    /// The data that is stored.
    pub info: TokenInfo,
}

/// Refuses an access token if the label is too long or if the user has the maximum number of
/// tokens.
pub(crate) fn check_new(label: &str, held: usize) -> Result<(), IdentityError> {
    if label.len() > TOKEN_LABEL_MAX {
        return Err(IdentityError::TokenLabel { bytes: label.len() });
    }
    if held >= TOKENS_PER_USER_MAX {
        return Err(IdentityError::TooManyTokens { held });
    }
    Ok(())
}

pub(crate) struct Drawn {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) digest: String,
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], IdentityError> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes).map_err(|e| IdentityError::Entropy(e.to_string()))?;
    Ok(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn draw() -> Result<Drawn, IdentityError> {
    let id = hex(&random::<6>()?);
    let secret = format!("{PREFIX}{id}_{}", hex(&random::<32>()?));
    let digest = digest(&secret);
    Ok(Drawn { id, secret, digest })
}

/// A secret of 256 random bits that is no token, as hex digits.
pub(crate) fn draw_secret() -> Result<String, IdentityError> {
    Ok(hex(&random::<32>()?))
}

/// A password of 20 letters and digits (over 100 bits), without characters that look alike.
pub(crate) fn draw_password() -> Result<String, IdentityError> {
    const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    Ok(random::<20>()?
        .iter()
        .map(|b| char::from(ALPHABET[usize::from(b % 32)]))
        .collect())
}

pub(crate) fn digest(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

/// The public id inside a secret, if it has the form of one.
pub(crate) fn id_of(secret: &str) -> Option<&str> {
    let (id, rest) = secret.strip_prefix(PREFIX)?.split_once('_')?;
    (id.len() == 12 && rest.len() == 64).then_some(id)
}

/// `now + ttl`, or the latest representable time.
pub(crate) fn expiry(now: Timestamp, ttl: Duration) -> Timestamp {
    now.checked_add(ttl).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_secret_carries_its_id_and_no_two_are_alike() {
        let (a, b) = (draw().unwrap(), draw().unwrap());
        assert_eq!(id_of(&a.secret), Some(a.id.as_str()));
        assert_ne!(a.secret, b.secret);
        assert_eq!(a.digest, digest(&a.secret));
        assert!(!a.digest.contains(&a.secret[20..40]));
    }

    #[test]
    fn text_that_is_no_token_has_no_id() {
        for text in [
            "",
            "muster_",
            "muster_1_2",
            "bearer",
            "muster_000000000000_short",
        ] {
            assert_eq!(id_of(text), None, "{text}");
        }
    }

    #[test]
    fn labels_and_tokens_are_taken_to_their_bounds() {
        let label = "x".repeat(TOKEN_LABEL_MAX);
        assert!(check_new(&label, TOKENS_PER_USER_MAX - 1).is_ok());
        let refused = |label: &str, held: usize| check_new(label, held).unwrap_err().to_string();
        let long = format!("{label}x");
        assert!(refused(&long, 0).starts_with("label: "), "{long}");
        let many = refused(&label, TOKENS_PER_USER_MAX);
        assert!(many.contains("muster token revoke"), "{many}");
    }

    #[test]
    fn a_drawn_password_is_long_and_easy_to_read() {
        let password = draw_password().unwrap();
        assert_eq!(password.len(), 20);
        assert!(!password.contains(['0', '1', 'l', 'o']));
    }
}
