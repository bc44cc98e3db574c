//! Owns finding the kinds that the API itself reads and writes, whatever kind a request is for.

use resources::registry::{self, Kind};

/// The kind of this group and name, in version `v1`.
pub(crate) fn kind_of(group: &str, kind: &str) -> &'static Kind {
    registry::by_kind(group, "v1", kind)
        .expect("the kinds that the API itself reads are registered")
}

/// True if objects of a kind are namespaces.
pub(crate) fn is_namespace(kind: &Kind) -> bool {
    kind.kind == "Namespace" && kind.group.is_empty()
}
