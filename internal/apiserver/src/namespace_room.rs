//! Owns the bound on the bytes of a namespace's objects. The store counts them.

use resources::access::MASTERS_GROUP;
use resources::names::SYSTEM_NAMESPACES;
use serde_json::Value;

use crate::call::Call;
use crate::object;
use crate::status::Failure;

/// Refuses a write by which an object of a namespace grows, while the namespace has as many bytes as
/// it may. Not counted are writes of administrators, of the system's namespaces, events of Muster's
/// own components and nodes, and changes by them: they note what happens to objects that exist.
pub(crate) fn require(
    call: &Call,
    object: &Value,
    before: usize,
    after: usize,
) -> Result<(), Failure> {
    let Some(namespace) = call.namespace.as_deref() else {
        return Ok(());
    };
    let caller = &call.caller;
    let own = caller.is_component() || caller.node_name().is_some();
    let exempt = caller.is_in(MASTERS_GROUP)
        || SYSTEM_NAMESPACES.contains(&namespace)
        || own && (before > 0 || call.kind.kind == "Event");
    if exempt || after <= before {
        return Ok(());
    }
    let most = call.server.0.config.namespace_bytes;
    let held = call.server.0.store.namespace_bytes(namespace);
    let grown = u64::try_from(after - before).unwrap_or(u64::MAX);
    if held.saturating_add(grown) <= most {
        return Ok(());
    }
    let why = format!(
        "the objects of namespace {namespace:?} have {held} bytes, and {most} are the most of a namespace; delete \
         finished jobs and other objects that are not needed"
    );
    Err(Failure::forbidden(call.kind, object::name(object), &why))
}
