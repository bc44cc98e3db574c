//! Join tokens, with which an administrator enrols a new node. They are stored as Secrets in the
//! system namespace, the secret half only as its SHA-256 digest, and shown in clear once, at
//! creation. A token is valid for a number of joins (one by default), for a limited time, and, if
//! it names a node, for that node only. The agent in the server's own process joins with a token
//! that exists only in this process's memory.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams, Preconditions};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::{FleetError, TokenError, api, status_code};
use crate::node::valid_name;

/// The type of the Secrets that contain join tokens.
pub const SECRET_TYPE: &str = "muster.io/join-token";

/// The longest validity of a join token.
pub const LONGEST_TTL: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The maximum number of joins of one token: as many machines as are installed together.
pub const MOST_USES: u32 = 1000;

const NAME_PREFIX: &str = "join-token-";
const DIGEST_KEY: &str = "token-sha256";
const EXPIRES_KEY: &str = "expiration";
const DESCRIPTION_KEY: &str = "description";
const NODE_KEY: &str = "node";
const USES_KEY: &str = "uses";

/// Characters of the public half of a token.
const ID_LENGTH: usize = 6;

/// Random bytes of the secret half; 160 bits.
const SECRET_BYTES: usize = 20;

/// How often a use is counted again after a conflict. Of this many concurrent writers one succeeds
/// each time.
const COUNT_TRIES_MAX: u32 = 64;

/// The options of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinTokenOptions {
    /// How long the token is valid.
    pub ttl: SignedDuration,
    /// The token's purpose, for administrators.
    pub description: String,
    /// The only node that may join with the token; any node if none.
    pub node: Option<String>,
    /// How many joins the token is valid for.
    pub uses: u32,
}

/// A new token; its text cannot be read later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedJoinToken {
    /// The public half, by which it is listed and revoked.
    pub id: String,
    /// The whole token, to be given to the agent.
    pub token: String,
    /// When the token expires.
    pub expires: Timestamp,
}

/// A token as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinToken {
    /// The public half.
    pub id: String,
    /// The token's purpose.
    pub description: String,
    /// When the token expires.
    pub expires: Timestamp,
    /// The only node that may join with the token.
    pub node: Option<String>,
    /// How many joins remain.
    pub uses: u32,
}

/// The token of the agent in the server's process.
struct OwnToken {
    id: String,
    digest: String,
    node: String,
}

/// The join tokens stored in a namespace.
pub struct JoinTokens {
    secrets: Api<Secret>,
    own: Mutex<Option<OwnToken>>,
}

impl JoinTokens {
    /// The tokens stored in `namespace`.
    pub fn new(client: kube::Client, namespace: &str) -> Self {
        JoinTokens {
            secrets: Api::namespaced(client, namespace),
            own: Mutex::new(None),
        }
    }

    /// Creates a token.
    pub async fn create(&self, options: &JoinTokenOptions) -> Result<IssuedJoinToken, FleetError> {
        check_options(options)?;
        self.drop_expired(Timestamp::now()).await;
        let id = random_text(ID_LENGTH)?;
        let secret = random_text(SECRET_BYTES * 8 / 5)?;
        let expires = Timestamp::now()
            .checked_add(options.ttl)
            .unwrap_or(Timestamp::MAX);
        let token = JoinToken {
            id: id.clone(),
            description: options.description.clone(),
            expires,
            node: options.node.clone(),
            uses: options.uses,
        };
        let object = Secret {
            metadata: ObjectMeta {
                name: Some(format!("{NAME_PREFIX}{id}")),
                ..ObjectMeta::default()
            },
            type_: Some(SECRET_TYPE.to_owned()),
            data: Some(data_of(&token, digest(&secret))),
            ..Secret::default()
        };
        self.secrets
            .create(&PostParams::default(), &object)
            .await
            .map_err(api("keeping the join token"))?;
        Ok(IssuedJoinToken {
            token: format!("{id}.{secret}"),
            id,
            expires,
        })
    }

    /// Generates the token with which the agent in this process joins as `node`: valid while the
    /// process runs, for any number of joins. It needs no disk, so that the server can start with a
    /// full one. A later call replaces the token.
    pub fn draw_own(&self, node: &str) -> Result<String, FleetError> {
        let id = random_text(ID_LENGTH)?;
        let secret = random_text(SECRET_BYTES * 8 / 5)?;
        *self.own.lock() = Some(OwnToken {
            id: id.clone(),
            digest: digest(&secret),
            node: node.to_owned(),
        });
        Ok(format!("{id}.{secret}"))
    }

    /// Every stored token, expired ones too.
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

    /// Revokes a token; true if it existed.
    pub async fn revoke(&self, id: &str) -> Result<bool, FleetError> {
        if !well_formed(id, ID_LENGTH) {
            return Ok(false);
        }
        let name = format!("{NAME_PREFIX}{id}");
        match self.secrets.delete(&name, &DeleteParams::default()).await {
            Ok(_) => Ok(true),
            Err(error) if status_code(&error) == Some(404) => Ok(false),
            Err(error) => Err(api("revoking the join token")(error)),
        }
    }

    /// Uses a token for one join of `node`; returns its id if the join is allowed. A node that is
    /// already `known` may join again only with a token that names it. If two concurrent joins
    /// compete for the last use, one is refused: the API's revisions decide which.
    pub async fn take(
        &self,
        token: &str,
        node: &str,
        known: bool,
        now: Timestamp,
    ) -> Result<String, FleetError> {
        let (id, secret) = split(token)?;
        if self.is_own(id, secret, node) {
            return Ok(id.to_owned());
        }
        let name = format!("{NAME_PREFIX}{id}");
        for _ in 0..COUNT_TRIES_MAX {
            let found = self
                .secrets
                .get_opt(&name)
                .await
                .map_err(api("looking up the join token"))?;
            let Some(found) = found else {
                return Err(TokenError::Unknown.into());
            };
            let (kept, kept_digest) = stored(&found).ok_or(TokenError::Unknown)?;
            check(&kept, &kept_digest, secret, node, now)?;
            if known && kept.node.is_none() {
                return Err(TokenError::NameTaken.into());
            }
            match self.count(&name, found, kept, kept_digest).await {
                Ok(()) => return Ok(id.to_owned()),
                Err(error) if matches!(status_code(&error), Some(404 | 409)) => {}
                Err(error) => return Err(api("counting the use of the join token")(error)),
            }
        }
        Err(TokenError::Busy.into())
    }

    /// Records the use of a token, unless the token was changed since it was read.
    async fn count(
        &self,
        name: &str,
        mut read: Secret,
        token: JoinToken,
        digest: String,
    ) -> Result<(), kube::Error> {
        if token.uses > 1 {
            let left = JoinToken {
                uses: token.uses - 1,
                ..token
            };
            read.data = Some(data_of(&left, digest));
            // The object contains the revision that was read.
            let written = self
                .secrets
                .replace(name, &PostParams::default(), &read)
                .await;
            return written.map(drop);
        }
        let unchanged = Preconditions {
            resource_version: read.metadata.resource_version,
            uid: read.metadata.uid,
        };
        let parameters = DeleteParams::default().preconditions(unchanged);
        self.secrets.delete(name, &parameters).await.map(drop)
    }

    fn is_own(&self, id: &str, secret: &str, node: &str) -> bool {
        self.own.lock().as_ref().is_some_and(|own| {
            own.id == id
                && own.node == node
                && bool::from(digest(secret).as_bytes().ct_eq(own.digest.as_bytes()))
        })
    }

    /// Removes tokens that cannot be used any more. A failure here prevents nothing.
    async fn drop_expired(&self, now: Timestamp) {
        let Ok(tokens) = self.list().await else {
            return;
        };
        for token in tokens.iter().filter(|token| token.expires <= now) {
            if let Err(error) = self.revoke(&token.id).await {
                tracing::warn!(token = token.id, %error, "an expired join token was not removed");
            }
        }
    }
}

fn check_options(options: &JoinTokenOptions) -> Result<(), FleetError> {
    let wrong = |field, value: String, valid: String| FleetError::TokenOption {
        field,
        value,
        valid,
    };
    if !options.ttl.is_positive() || options.ttl > LONGEST_TTL {
        let valid = format!("1 to {} seconds", LONGEST_TTL.as_secs());
        let value = format!("{} s", options.ttl.as_secs());
        return Err(wrong("ttl", value, valid));
    }
    if !(1..=MOST_USES).contains(&options.uses) {
        let valid = format!("1 to {MOST_USES}");
        return Err(wrong("uses", options.uses.to_string(), valid));
    }
    match &options.node {
        Some(name) if !valid_name(name) => Err(FleetError::NodeName { name: name.clone() }),
        _ => Ok(()),
    }
}

fn data_of(token: &JoinToken, digest: String) -> BTreeMap<String, ByteString> {
    let text = |value: String| ByteString(value.into_bytes());
    let mut data = BTreeMap::from([
        (DIGEST_KEY.to_owned(), text(digest)),
        (EXPIRES_KEY.to_owned(), text(token.expires.to_string())),
        (DESCRIPTION_KEY.to_owned(), text(token.description.clone())),
        (USES_KEY.to_owned(), text(token.uses.to_string())),
    ]);
    if let Some(node) = &token.node {
        data.insert(NODE_KEY.to_owned(), text(node.clone()));
    }
    data
}

/// Compares a secret with the stored digest, in constant time.
fn check(
    kept: &JoinToken,
    kept_digest: &str,
    secret: &str,
    node: &str,
    now: Timestamp,
) -> Result<(), TokenError> {
    if !bool::from(digest(secret).as_bytes().ct_eq(kept_digest.as_bytes())) {
        return Err(TokenError::Unknown);
    }
    if kept.expires <= now {
        return Err(TokenError::Expired);
    }
    if kept.node.as_deref().is_some_and(|only| only != node) {
        return Err(TokenError::OtherNode);
    }
    if kept.uses == 0 {
        return Err(TokenError::Unknown);
    }
    Ok(())
}

/// Parses a token's Secret; returns the token and the digest of its secret half.
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
        node: text(NODE_KEY),
        // Tokens of earlier versions lack the field: one use, the default.
        uses: text(USES_KEY).map_or(Some(1), |uses| uses.parse().ok())?,
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

/// 32 characters, so that five random bits choose one uniformly; none that are easily confused.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

pub(crate) fn random_text(length: usize) -> Result<String, FleetError> {
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

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn kept(node: Option<&str>, uses: u32) -> JoinToken {
        JoinToken {
            id: "abcdef".to_owned(),
            description: String::new(),
            expires: at(1000),
            node: node.map(str::to_owned),
            uses,
        }
    }

    #[test]
    fn a_token_is_good_for_its_node_until_it_expires_or_is_used_up() {
        let digest = digest("s");
        let cases = [
            (kept(None, 1), "s", 999, Ok(())),
            (kept(Some("a"), 1), "s", 999, Ok(())),
            (kept(None, 1), "s", 1000, Err(TokenError::Expired)),
            (kept(None, 1), "t", 999, Err(TokenError::Unknown)),
            (kept(Some("b"), 1), "s", 999, Err(TokenError::OtherNode)),
            (kept(None, 0), "s", 999, Err(TokenError::Unknown)),
        ];
        for (token, secret, now, verdict) in cases {
            assert_eq!(
                check(&token, &digest, secret, "a", at(now)),
                verdict,
                "{token:?}"
            );
        }
    }

    #[test]
    fn the_bounds_of_a_token_hold_at_their_edges() {
        let options = |ttl, uses, node: Option<&str>| JoinTokenOptions {
            ttl,
            description: String::new(),
            node: node.map(str::to_owned),
            uses,
        };
        let second = SignedDuration::from_secs(1);
        for good in [
            options(second, 1, None),
            options(LONGEST_TTL, MOST_USES, Some("n1")),
        ] {
            assert!(check_options(&good).is_ok(), "{good:?}");
        }
        for bad in [
            options(SignedDuration::ZERO, 1, None),
            options(-second, 1, None),
            options(LONGEST_TTL + second, 1, None),
            options(second, 0, None),
            options(second, MOST_USES + 1, None),
            options(second, 1, Some("No such name")),
        ] {
            assert!(check_options(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_stored_is_read_again_and_an_older_token_has_one_use() {
        let token = kept(Some("n1"), 3);
        let mut secret = Secret {
            metadata: ObjectMeta {
                name: Some(format!("{NAME_PREFIX}abcdef")),
                ..ObjectMeta::default()
            },
            type_: Some(SECRET_TYPE.to_owned()),
            data: Some(data_of(&token, digest("s"))),
            ..Secret::default()
        };
        assert_eq!(stored(&secret), Some((token, digest("s"))));
        secret.data.as_mut().unwrap().remove(USES_KEY);
        assert_eq!(stored(&secret).unwrap().0.uses, 1);
        let nonsense = ByteString(b"many".to_vec());
        (secret.data.as_mut().unwrap()).insert(USES_KEY.to_owned(), nonsense);
        assert_eq!(stored(&secret), None);
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
