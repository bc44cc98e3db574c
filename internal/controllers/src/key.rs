//! The key by which the controllers' copies of watched objects are sorted.

use kube::Resource;

/// Namespace (empty for cluster-scoped kinds) and name.
pub(crate) type ObjectKey = (String, String);

/// The key of an object.
pub(crate) fn key_of<K: Resource>(object: &K) -> ObjectKey {
    let meta = object.meta();
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}
