//! New pairs of keys for SSH, as a Secret of type `kubernetes.io/ssh-auth` has them. The private key is in PKCS #8, which
//! OpenSSH reads; the public key's form is that of RFC 5656.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _};

const ALGORITHM: &str = "ecdsa-sha2-nistp256";
const CURVE: &str = "nistp256";

/// A pair of keys cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("no keys for SSH can be made: {0}")]
pub(super) struct NoKeys(#[from] rcgen::Error);

/// Gives the Secret a new pair.
pub(super) fn fill(secret: &mut Secret) -> Result<(), NoKeys> {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let public = public_key(pair.der_bytes());
    secret.data = Some(BTreeMap::from([
        (
            "ssh-privatekey".to_owned(),
            ByteString(pair.serialize_pem().into_bytes()),
        ),
        ("ssh-publickey".to_owned(), ByteString(public.into_bytes())),
    ]));
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
    use super::*;

    #[test]
    fn each_secret_gets_a_pair_of_its_own_in_the_forms_of_ssh() {
        let made = || {
            let mut secret = Secret::default();
            fill(&mut secret).unwrap();
            let data = secret.data.unwrap();
            let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
            (text("ssh-privatekey"), text("ssh-publickey"))
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
