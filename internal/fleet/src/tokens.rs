//! Join tokens: what an administrator hands to a new node. Kept as Secrets in the system
//! namespace, the secret half only as its SHA-256 digest; shown in clear once, when made.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::{FleetError, TokenError, api, status_code};

/// The type of the Secrets that hold join tokens.
pub const SECRET_TYPE: &str = "muster.io/join-token";

const NAME_PREFIX: &str = "join-token-";
const DIGEST_KEY: &str = "token-sha256";
const EXPIRES_KEY: &str = "expiration";
const DESCRIPTION_KEY: &str = "description";

/// Characters of the public half of a token.
const ID_LENGTH: usize = 6;

/// Random bytes of the secret half; 160 bits.
const SECRET_BYTES: usize = 20;

/// A token just made; the only time that it is seen in clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJoinToken {
    /// The public half, by which it is listed and revoked.
    pub id: String,
    /// The whole token, to be given to the agent.
    pub token: String,
    /// When it ends.
    pub expires: Timestamp,
}

/// A token as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// The public half.
    pub id: String,
    /// What it was made for.
    pub description: String,
    /// When it ends.
    pub expires: Timestamp,
}

/// The join tokens kept in a namespace.
#[derive(Clone)]
pub struct JoinTokens {
    secrets: Api<Secret>,
}

impl JoinTokens {
    /// The tokens kept in `namespace`.
    pub fn new(client: kube::Client, namespace: &str) -> Self {
        JoinTokens {
            secrets: Api::namespaced(client, namespace),
        }
    }

    /// Makes a token that is good for `ttl` from now.
    pub async fn create(
        &self,
        ttl: SignedDuration,
        description: &str,
    ) -> Result<NewJoinToken, FleetError> {
        let id = random_text(ID_LENGTH)?;
        let secret = random_text(SECRET_BYTES * 8 / 5)?;
        let expires = Timestamp::now().checked_add(ttl).unwrap_or(Timestamp::MAX);
        let text = |value: String| ByteString(value.into_bytes());
        let object = Secret {
            metadata: ObjectMeta {
                name: Some(format!("{NAME_PREFIX}{id}")),
                ..ObjectMeta::default()
            },
            type_: Some(SECRET_TYPE.to_owned()),
            data: Some(BTreeMap::from([
                (DIGEST_KEY.to_owned(), text(digest(&secret))),
                (EXPIRES_KEY.to_owned(), text(expires.to_string())),
                (DESCRIPTION_KEY.to_owned(), text(description.to_owned())),
            ])),
            ..Secret::default()
        };
        self.secrets
            .create(&PostParams::default(), &object)
            .await
            .map_err(api("keeping the join token"))?;
        Ok(NewJoinToken {
            token: format!("{id}.{secret}"),
            id,
            expires,
        })
    }

    /// Every token, expired ones too.
    pub async fn list(&self) -> Result<Vec<JoinToken>, FleetError> {
        let secrets = self
            .secrets
            .list(&ListParams::default())
            .await
            .map_err(api("listing the join tokens"))?;
        Ok(secrets
            .items
            .iter()
            .filter_map(stored)
            .map(|s| s.0)
            .collect())
    }

    /// Ends a token; true if there was one.
    pub async fn revoke(&self, id: &str) -> Result<bool, FleetError> {
        if !well_formed(id, ID_LENGTH) {
            return Err(TokenError::Malformed.into());
        }
        let name = format!("{NAME_PREFIX}{id}");
        match self.secrets.delete(&name, &DeleteParams::default()).await {
            Ok(_) => Ok(true),
            Err(error) if status_code(&error) == Some(404) => Ok(false),
            Err(error) => Err(api("revoking the join token")(error)),
        }
    }

    /// Whether a token may be used now; its id if so.
    pub async fn verify(&self, token: &str, now: Timestamp) -> Result<String, FleetError> {
        let (id, secret) = split(token)?;
        let found = self
            .secrets
            .get_opt(&format!("{NAME_PREFIX}{id}"))
            .await
            .map_err(api("looking up the join token"))?;
        let (kept, kept_digest) = found.as_ref().and_then(stored).ok_or(TokenError::Unknown)?;
        check(&kept, &kept_digest, secret, now)?;
        Ok(kept.id)
    }
}

/// Checks a secret against what is kept; the comparison takes as long whatever differs.
fn check(
    kept: &JoinToken,
    kept_digest: &str,
    secret: &str,
    now: Timestamp,
) -> Result<(), TokenError> {
    if !bool::from(digest(secret).as_bytes().ct_eq(kept_digest.as_bytes())) {
        return Err(TokenError::Unknown);
    }
    if kept.expires <= now {
        return Err(TokenError::Expired);
    }
    Ok(())
}

/// What a Secret says about a token, with the digest of its secret half.
fn stored(secret: &Secret) -> Option<(JoinToken, String)> {
    if secret.type_.as_deref() != Some(SECRET_TYPE) {
        return None;
    }
    let id = secret.metadata.name.as_deref()?.strip_prefix(NAME_PREFIX)?;
    let data = secret.data.as_ref()?;
    let text = |key: &str| -> Option<String> { String::from_utf8(data.get(key)?.0.clone()).ok() };
    let token = JoinToken {
        id: id.to_owned(),
        description: text(DESCRIPTION_KEY).unwrap_or_default(),
        expires: text(EXPIRES_KEY)?.parse().ok()?,
    };
    Some((token, text(DIGEST_KEY)?))
}

fn split(token: &str) -> Result<(&str, &str), TokenError> {
    let (id, secret) = token.trim().split_once('.').ok_or(TokenError::Malformed)?;
    let secret_length = SECRET_BYTES * 8 / 5;
    if well_formed(id, ID_LENGTH) && well_formed(secret, secret_length) {
        Ok((id, secret))
    } else {
        Err(TokenError::Malformed)
    }
}

fn well_formed(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| ALPHABET.contains(&byte))
}

fn digest(secret: &str) -> String {
    Sha256::digest(secret.as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// 32 characters, so that five random bits choose one evenly; none that are easily confused.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

fn random_text(length: usize) -> Result<String, FleetError> {
    let mut bytes = vec![0; length];
    getrandom::fill(&mut bytes).map_err(FleetError::Random)?;
    Ok(bytes
        .iter()
        .map(|byte| char::from(ALPHABET[usize::from(byte % 32)]))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> JoinToken {
        JoinToken {
            id: "abcdef".to_owned(),
            description: String::new(),
            expires: Timestamp::from_second(1000).unwrap(),
        }
    }

    #[test]
    fn a_token_is_good_until_it_expires() {
        let digest = digest("s");
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        assert_eq!(check(&kept(), &digest, "s", at(999)), Ok(()));
        assert_eq!(
            check(&kept(), &digest, "s", at(1000)),
            Err(TokenError::Expired)
        );
        assert_eq!(
            check(&kept(), &digest, "t", at(999)),
            Err(TokenError::Unknown)
        );
    }

    #[test]
    fn only_the_form_that_is_printed_is_taken() {
        let secret = random_text(SECRET_BYTES * 8 / 5).unwrap();
        let good = format!("abcdef.{secret}");
        assert_eq!(split(&good), Ok(("abcdef", secret.as_str())));
        assert_eq!(split(&format!(" {good}\n")).unwrap().0, "abcdef");
        for bad in ["", "abcdef", "abcdef.", "../../x.y", &secret, "abcde/.aaaa"] {
            assert_eq!(split(bad), Err(TokenError::Malformed), "{bad:?}");
        }
    }

    #[test]
    fn the_secret_half_is_kept_only_as_a_digest() {
        assert_eq!(digest("abc").len(), 64);
        assert_ne!(digest("abc"), digest("abd"));
        assert_ne!(random_text(32).unwrap(), random_text(32).unwrap());
    }
}
