//! The link between a job and its dependents: the controller's owner reference.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// The reference that makes `owner` the controller of the object that carries it.
pub(crate) fn controller_reference(
    api_version: &str,
    kind: &str,
    owner: &ObjectMeta,
) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: owner.name.clone().unwrap_or_default(),
        uid: owner.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Whether the object is controlled by the owner with this uid.
pub(crate) fn controlled_by(object: &ObjectMeta, owner: &ObjectMeta) -> bool {
    let owner = owner.uid.as_deref().unwrap_or_default();
    let references = object.owner_references.as_deref().unwrap_or_default();
    references
        .iter()
        .any(|reference| reference.controller == Some(true) && reference.uid == owner)
}
