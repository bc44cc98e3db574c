//! Access tokens and sessions: random secrets that are stored only as digests.
//!
//! A secret reads `muster_<id>_<64 hex digits><checksum>`; the id is public and names the token in
//! lists, the digits are 256 random bits, so a plain SHA-256 is enough to store it by. The checksum
//! is the CRC-32 of all that comes before it, as six digits of base 62 (GitHub's tokens have the
//! same). It protects nothing: by it a mistyped secret is refused without a look-up, and a scanner
//! for leaked secrets distinguishes one from similar text. Secrets that were issued before have no
//! checksum, and stay valid.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::address_range::AddressRange;
use crate::error::IdentityError;
use crate::limits::{TOKEN_LABEL_MAX, TOKENS_PER_USER_MAX};

const PREFIX: &str = "muster_";

/// Hex digits of a token's id.
const ID_DIGITS: usize = 12;

/// Hex digits of the random part.
const RANDOM_DIGITS: usize = 64;

/// The digits of base 62, by value.
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Digits of the checksum; 62^6 is more than 2^32.
const CHECKSUM_DIGITS: usize = 6;

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
    /// The addresses from which requests may carry it; all if there is none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<AddressRange>,
    /// The id of the token that replaces it, once it was rotated.
    #[serde(
        rename = "replacedBy",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub replaced_by: Option<String>,
    /// When a request carried it last, to the second; only of access tokens. After a restart of the
    /// server it may be up to an hour too early (`LAST_USE_WRITE_INTERVAL`). It is not part of
    /// the stored record.
    #[serde(rename = "lastUsed", default, skip_serializing_if = "Option::is_none")]
    pub last_used: Option<Timestamp>,
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
    let mut secret = format!("{PREFIX}{id}_{}", hex(&random::<32>()?));
    secret.push_str(&checksum(&secret));
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

/// The CRC-32 of a text, as digits of base 62.
fn checksum(text: &str) -> String {
    let mut rest = crc32fast::hash(text.as_bytes());
    let mut digits = [b'0'; CHECKSUM_DIGITS];
    for digit in digits.iter_mut().rev() {
        *digit = BASE62[(rest % 62) as usize];
        rest /= 62;
    }
    digits.map(char::from).iter().collect()
}

/// What a text is that a client sends as a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfferedSecret<'a> {
    /// It has the form of a secret, of the token with this id.
    Token {
        /// The public id.
        id: &'a str,
    },
    /// It begins as a secret and is none: characters are wrong, missing or too many.
    Mistyped,
    /// Another text.
    Other,
}

/// Reads a text that a client sends as a token.
pub(crate) fn offered(text: &str) -> OfferedSecret<'_> {
    let Some(rest) = text.strip_prefix(PREFIX) else {
        return OfferedSecret::Other;
    };
    let hex_digits = |text: &str, count: usize| {
        let digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        text.len() == count && text.bytes().all(digit)
    };
    let read = || {
        let (id, rest) = rest.split_once('_')?;
        let (random, check) = rest.split_at_checked(RANDOM_DIGITS)?;
        let (signed, _) = text.split_at_checked(text.len() - check.len())?;
        let whole = check.is_empty() || check == checksum(signed);
        (whole && hex_digits(id, ID_DIGITS) && hex_digits(random, RANDOM_DIGITS)).then_some(id)
    };
    match read() {
        Some(id) => OfferedSecret::Token { id },
        None => OfferedSecret::Mistyped,
    }
}

/// The public id inside a secret, if it has the form of one.
pub(crate) fn id_of(secret: &str) -> Option<&str> {
    match offered(secret) {
        OfferedSecret::Token { id } => Some(id),
        OfferedSecret::Mistyped | OfferedSecret::Other => None,
    }
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
    fn checksums_are_six_digits_of_base_62() {
        // The check value of CRC-32 is 0xcbf43926.
        for (text, crc, digits) in [("", 0, "000000"), ("123456789", 0xcbf4_3926, "3jZRME")] {
            assert_eq!(crc32fast::hash(text.as_bytes()), crc, "{text}");
            assert_eq!(checksum(text), digits, "{text}");
        }
    }

    #[test]
    fn secrets_from_before_are_read_and_mistyped_ones_are_known() {
        let secret = draw().unwrap().secret;
        let old = &secret[..secret.len() - CHECKSUM_DIGITS];
        let id = &secret[PREFIX.len()..PREFIX.len() + ID_DIGITS];
        let token = OfferedSecret::Token { id };
        let swapped = format!("{}{}", &old[..old.len() - 1], checksum(old));
        let upper = format!(
            "{PREFIX}{}{}",
            id.to_uppercase(),
            &old[PREFIX.len() + ID_DIGITS..]
        );
        for (text, expected) in [
            (secret.as_str(), token),
            (old, token),
            (&secret[..secret.len() - 1], OfferedSecret::Mistyped),
            (&*format!("{secret}x"), OfferedSecret::Mistyped),
            (&*swapped, OfferedSecret::Mistyped),
            (&old[..old.len() - 1], OfferedSecret::Mistyped),
            (&*secret.replace('_', "-"), OfferedSecret::Other),
            (&secret[1..], OfferedSecret::Other),
            ("muster_", OfferedSecret::Mistyped),
            ("eyJhbGciOiJSUzI1NiJ9.e30.c2ln", OfferedSecret::Other),
            ("", OfferedSecret::Other),
        ] {
            assert_eq!(offered(text), expected, "{text}");
        }
        if id.bytes().any(|b| b.is_ascii_lowercase()) {
            assert_eq!(offered(&upper), OfferedSecret::Mistyped, "{upper}");
        }
    }

    proptest::proptest! {
        #[test]
        fn one_wrong_character_is_always_known(
            at in 0..(PREFIX.len() + ID_DIGITS + 1 + RANDOM_DIGITS + CHECKSUM_DIGITS),
            typed in proptest::char::range('!', '~'),
        ) {
            let secret = draw().unwrap().secret;
            let mut wrong: Vec<char> = secret.chars().collect();
            let right = std::mem::replace(&mut wrong[at], typed);
            let wrong: String = wrong.into_iter().collect();
            proptest::prop_assert_eq!(id_of(&wrong).is_some(), typed == right);
        }

        #[test]
        fn no_offered_text_panics(text in "\\PC{0,120}", cut in 0..120_usize) {
            for text in [text.clone(), format!("muster_{text}"), format!("muster_0123456789ab_{}{text}", "0".repeat(cut))] {
                let _ = offered(&text);
            }
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
