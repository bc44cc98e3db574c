//! New pairs of keys for SSH in Secrets. The private key is in PKCS #8, which OpenSSH reads; the public key's form is that
//! of RFC 5656.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _};
use workloads::SshKeys;

const ALGORITHM: &str = "ecdsa-sha2-nistp256";
const CURVE: &str = "nistp256";

/// A pair of keys cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("no keys for SSH can be made: {0}")]
pub(super) struct NoKeys(#[from] rcgen::Error);

/// Gives the Secret a new pair, unless it has a private key.
pub(super) fn fill(keys: &mut SshKeys) -> Result<(), NoKeys> {
    let data = keys.secret.data.get_or_insert_default();
    if data.contains_key(keys.private) {
        return Ok(());
    }
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let public = public_key(pair.der_bytes());
    let private = ByteString(pair.serialize_pem().into_bytes());
    data.insert(keys.private.to_owned(), private);
    for name in keys.public {
        let public = ByteString(public.clone().into_bytes());
        data.insert((*name).to_owned(), public);
    }
    Ok(())
}

/// One line of `authorized_keys` for a point of the curve.
fn public_key(point: &[u8]) -> String {
    let mut blob = Vec::new();
    for part in [ALGORITHM.as_bytes(), CURVE.as_bytes(), point] {
        let length = u32::try_from(part.len()).unwrap_or_default();
        blob.extend_from_slice(&length.to_be_bytes());
        blob.extend_from_slice(part);
    }
    format!("{ALGORITHM} {}\n", STANDARD.encode(blob))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::Secret;

    use super::*;

    /// Keys of a Secret with this data.
    fn keys(data: &[(&str, &str)]) -> SshKeys {
        let data = data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec())));
        SshKeys {
            secret: Secret {
                data: Some(data.collect()),
                ..Secret::default()
            },
            private: "id_rsa",
            public: &["id_rsa.pub", "authorized_keys"],
        }
    }

    fn texts(keys: SshKeys) -> BTreeMap<String, String> {
        let data = keys.secret.data.unwrap_or_default().into_iter();
        data.map(|(key, text)| (key, String::from_utf8(text.0).unwrap()))
            .collect()
    }

    #[test]
    fn a_pair_is_made_only_where_none_is_given() {
        let mut given = keys(&[("id_rsa", "private"), ("id_rsa.pub", "public")]);
        let before = given.clone();
        fill(&mut given).unwrap();
        assert_eq!(given, before);
        let mut new = keys(&[("config", "Host h")]);
        fill(&mut new).unwrap();
        let texts = texts(new);
        assert_eq!(texts["config"], "Host h");
        assert!(texts["id_rsa"].starts_with("-----BEGIN PRIVATE KEY-----"));
        assert_eq!(texts["id_rsa.pub"], texts["authorized_keys"]);
    }

    #[test]
    fn each_secret_gets_a_pair_of_its_own_in_the_forms_of_ssh() {
        let made = || {
            let mut keys = keys(&[]);
            fill(&mut keys).unwrap();
            let texts = texts(keys);
            (texts["id_rsa"].clone(), texts["id_rsa.pub"].clone())
        };
        let (private, public) = made();
        assert!(
            private.starts_with("-----BEGIN PRIVATE KEY-----"),
            "{private}"
        );
        let encoded = public
            .trim_end()
            .strip_prefix("ecdsa-sha2-nistp256 ")
            .unwrap();
        let blob = STANDARD.decode(encoded).unwrap();
        // Two names and an uncompressed point, each after its length.
        assert_eq!(blob.len(), 4 + 19 + 4 + 8 + 4 + 65);
        assert_eq!(blob[39], 4);
        assert_ne!(made().1, public);
    }
}
