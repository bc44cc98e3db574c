//! Owns the special rules of namespaces: the finalizers in their spec, which their controller
//! removes after all content is gone, and the namespaces that cannot be deleted.

use resources::names;
use resources::registry::Kind;
use serde_json::Value;

use crate::core_kinds::is_namespace;
use crate::object;
use crate::status::Failure;

/// True if finalizers in the spec hold a namespace.
pub(crate) fn holds(kind: &Kind, object: &Value) -> bool {
    is_namespace(kind)
        && object["spec"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty())
}

/// Sets the phase of a namespace that is being deleted.
pub(crate) fn mark(kind: &Kind, object: &mut Value) {
    if is_namespace(kind) {
        object::member_mut(object, "status").insert("phase".into(), "Terminating".into());
    }
}

/// Refuses to delete the namespaces that every server has.
pub(crate) fn may_be_deleted(kind: &Kind, name: &str) -> Result<(), Failure> {
    if is_namespace(kind) && names::FIRST_NAMESPACES.contains(&name) {
        return Err(Failure::forbidden(
            kind,
            name,
            "this namespace may not be deleted",
        ));
    }
    Ok(())
}
