//! Owns the checks of requests against the rules for the system's fields, its priority classes and
//! queues' users, with the caller, the namespace and the queue. The rules are in
//! `resources::admission`. Muster's own components are exempt: they write objects derived from
//! checked ones.

use resources::access::RequestAttributes;
use resources::admission::{
    AllowedWriter, NotAdmitted, admits_namespace, critical, default_queue, keep_reserved,
    name_queue, queues_named, reserved, takes_critical_pods,
};
use serde_json::Value;

use crate::call::Call;
use crate::core_kinds::kind_of;
use crate::object::{self, ObjectPart};
use crate::status::Failure;

/// Sets the namespace's queue on an object without one, before the kind's own defaults. On update
/// it applies only to a PodGroup, whose default would otherwise be the queue `default`.
pub(crate) fn queue(call: &Call, object: &mut Value, live: Option<&Value>) -> Result<(), Failure> {
    let again = live.is_some() && call.kind.kind != "PodGroup";
    if call.caller.is_component() || again || queues_named(call.kind, object).is_empty() {
        return Ok(());
    }
    let Some(namespace) = namespace(call) else {
        return Ok(());
    };
    if let Some(queue) = default_queue(&object::parse(&namespace)?) {
        name_queue(call.kind, object, queue);
    }
    Ok(())
}

/// Refuses an object whose writer may not set one of its fields, and restores the system's fields
/// that a write omitted.
pub(crate) fn check(
    call: &Call,
    part: ObjectPart,
    object: &mut Value,
    live: Option<&Value>,
) -> Result<(), Failure> {
    if call.caller.is_component() {
        return Ok(());
    }
    if let Some(live) = live {
        keep_reserved(call.kind, object, live, |holder| holds(call, holder));
    }
    refuse_reserved(call, object, live)?;
    if part == ObjectPart::Status {
        return Ok(());
    }
    refuse_critical(call, object, live)?;
    refuse_queues(call, object, live)
}

/// Refuses a write that sets a field reserved for another writer.
pub(crate) fn refuse_reserved(
    call: &Call,
    object: &Value,
    live: Option<&Value>,
) -> Result<(), Failure> {
    if call.caller.is_component() {
        return Ok(());
    }
    let mut all = reserved(call.kind, object, live).into_iter();
    match all.find(|violation| !holds(call, violation.holder)) {
        None => Ok(()),
        Some(violation) => Err(refused(call, object, &violation.to_string())),
    }
}

fn refused(call: &Call, object: &Value, why: &str) -> Failure {
    Failure::forbidden(call.kind, object::name(object), why)
}

/// True if the caller, which is not a component of Muster, may write the fields of this owner.
pub(crate) fn holds(call: &Call, holder: AllowedWriter) -> bool {
    let may = |wanted: &RequestAttributes<'_>| call.server.permits(&call.caller, wanted);
    match holder {
        AllowedWriter::System => false,
        AllowedWriter::Binder => may(&RequestAttributes {
            verb: "create",
            resource: "pods",
            subresource: Some("binding"),
            namespace: call.namespace.as_deref(),
            ..RequestAttributes::default()
        }),
        AllowedWriter::NodeStatus => may(&RequestAttributes {
            verb: "update",
            resource: "nodes",
            subresource: Some("status"),
            name: call.name.as_deref().or(call.caller.node_name()),
            ..RequestAttributes::default()
        }),
        AllowedWriter::Administrator => may(&RequestAttributes {
            verb: "impersonate",
            resource: "users",
            ..RequestAttributes::default()
        }),
    }
}

fn refuse_critical(call: &Call, object: &Value, live: Option<&Value>) -> Result<(), Failure> {
    let Some(found) = critical(call.kind, object, live) else {
        return Ok(());
    };
    let name = call.namespace.as_deref().unwrap_or_default();
    let namespace = namespace(call);
    let labels = namespace.map(|entry| entry.meta.labels.clone());
    if takes_critical_pods(name, &labels.unwrap_or_default()) {
        return Ok(());
    }
    Err(refused(call, object, &found.to_string()))
}

/// Refuses an object with a queue that its namespace may not use, unless it had the queue before. A
/// queue that does not exist is not checked: its workloads wait.
fn refuse_queues(call: &Call, object: &Value, live: Option<&Value>) -> Result<(), Failure> {
    let named = queues_named(call.kind, object);
    if named.is_empty() {
        return Ok(());
    }
    let before = live.map(|live| queues_named(call.kind, live));
    let before = before.unwrap_or_default();
    let queues = kind_of_queue();
    for (field, queue) in named {
        if before.iter().any(|(_, had)| *had == queue) {
            continue;
        }
        let Some(entry) = call.server.0.store.get(&queues.key(None, &queue)) else {
            continue;
        };
        let labels = namespace(call).map(|entry| entry.meta.labels.clone());
        if !admits_namespace(&object::parse(&entry)?, &labels.unwrap_or_default()) {
            let why = NotAdmitted {
                field,
                queue,
                namespace: call.namespace.clone().unwrap_or_default(),
            };
            return Err(refused(call, object, &why.to_string()));
        }
    }
    Ok(())
}

fn kind_of_queue() -> &'static resources::registry::Kind {
    resources::registry::by_kind("scheduling.volcano.sh", "v1beta1", "Queue")
        .expect("queues are registered")
}

fn namespace(call: &Call) -> Option<std::sync::Arc<store::Entry>> {
    let key = kind_of("", "Namespace").key(None, call.namespace.as_deref()?);
    call.server.0.store.get(&key)
}
