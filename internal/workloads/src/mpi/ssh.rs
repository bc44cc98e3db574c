//! The files with keys for SSH in a job's pods.

use k8s_openapi::api::core::v1::{KeyToPath, SecretVolumeSource, Volume};

/// Where root's keys are.
pub(crate) const OF_ROOT: &str = "/root/.ssh";
/// The private key's file, whatever its algorithm.
pub(crate) const PRIVATE_KEY: &str = "id_rsa";
/// The public key's file.
pub(crate) const PUBLIC_KEY: &str = "id_rsa.pub";
/// The file with the keys that may sign in.
pub(crate) const AUTHORIZED_KEYS: &str = "authorized_keys";
/// Only the owner may read: SSH refuses other keys. The agent gives the files to the pod's user.
const PRIVATE: i32 = 0o600;

/// The volume with these files of a Secret: each is a key of its data and the file's name.
pub(crate) fn volume(name: &str, secret: &str, files: &[(&str, &str)]) -> Volume {
    let items = files.iter().map(|(key, path)| KeyToPath {
        key: (*key).to_owned(),
        path: (*path).to_owned(),
        mode: Some(PRIVATE),
    });
    Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            default_mode: Some(PRIVATE),
            items: Some(items.collect()),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}
