//! Owns the signing key of service accounts' tokens: a Secret in `muster-system`, with the same
//! durability as all objects, included in backups, and readable only by administrators. Without it
//! no token is valid; the server generates a new one at its start. Signs and verifies bytes;
//! `service_account` interprets tokens.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use resources::names::SYSTEM_NAMESPACE;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::{Value, json};
use store::Store;

use crate::core_kinds::kind_of;
use crate::object;

const NAME: &str = "service-account-key";
const FIELD: &str = "key";
/// The key's length, equal to the digest's, in bytes (RFC 2104).
const BYTES: usize = 32;

/// No new key could be generated.
#[derive(Debug, thiserror::Error)]
#[error("the operating system gave no random bytes")]
pub(crate) struct NoRandomBytes;

/// The store's key of the Secret.
pub(crate) fn key() -> String {
    kind_of("", "Secret").key(Some(SYSTEM_NAMESPACE), NAME)
}

/// A Secret with a new key.
pub(crate) fn draw() -> Result<Value, NoRandomBytes> {
    let mut bytes = [0u8; BYTES];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| NoRandomBytes)?;
    Ok(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": NAME, "namespace": SYSTEM_NAMESPACE},
        "type": "muster.io/service-account-key",
        "data": {FIELD: STANDARD.encode(bytes)},
    }))
}

/// The key, if the Secret exists and is valid.
fn read(store: &Store) -> Option<hmac::Key> {
    let stored = store.get(&key())?;
    let secret = object::parse(&stored).ok()?;
    let bytes = STANDARD.decode(secret["data"][FIELD].as_str()?).ok()?;
    (bytes.len() == BYTES).then(|| hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

/// Signs a text.
pub(crate) fn sign(store: &Store, text: &str) -> Option<Vec<u8>> {
    let tag = hmac::sign(&read(store)?, text.as_bytes());
    Some(tag.as_ref().to_vec())
}

/// True if this server signed the text with this signature.
pub(crate) fn signed(store: &Store, text: &str, signature: &[u8]) -> bool {
    read(store).is_some_and(|key| hmac::verify(&key, text.as_bytes(), signature).is_ok())
}
