//! Owns the steps of an object between decoding and writing: identity, unknown fields, defaults,
//! admission, server-set fields, validation, field managers. Reads only snapshots and writes
//! nothing.

use resources::registry::meta;
use resources::times;
use schema::apply::{FieldManager, ManagerOperation, track_update};
use serde_json::Value;
use uuid::Uuid;

use crate::admission;
use crate::call::Call;
use crate::escalation;
use crate::fields;
use crate::network_policies;
use crate::node_restriction;
use crate::object::{self, ObjectPart, carry, meta_mut, meta_text};
use crate::pod_security;
use crate::reserved;
use crate::rewrite::RewriteDecision;
use crate::status::{Cause, Failure};

/// The maximum length of a generated name, with its suffix.
const MAX_GENERATED: usize = 63;
/// The length of a generated name's suffix.
const SUFFIX: usize = 5;
/// Kinds whose creator reports their first status: an agent registers its node completely.
const KEEPS_FIRST_STATUS: [&str; 1] = ["Node"];
/// Letters that form no words, as in Kubernetes.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// How the write's field managers are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tracking {
    /// By comparison with the stored object.
    Update,
    /// Server-side apply has already computed them.
    Applied,
}

/// The request's field manager.
pub(crate) fn manager(
    call: &Call,
    operation: ManagerOperation,
    part: ObjectPart,
) -> Result<FieldManager, Failure> {
    Ok(FieldManager {
        name: call.manager()?,
        operation,
        api_version: call.kind.api_version(),
        subresource: (part == ObjectPart::Status).then(|| "status".to_string()),
    })
}

/// Prepares a decoded object for creation, under a generated name if it requests one.
pub(crate) fn creation(
    call: &Call,
    mut object: Value,
    duplicates: &[String],
    tracking: Tracking,
) -> Result<(Value, Vec<String>), Failure> {
    let kind = call.kind;
    identify(call, &mut object)?;
    if !meta_text(&object, "resourceVersion").is_empty() {
        return Err(Failure::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    let mut warnings = fields::check(call, &mut object, duplicates)?;
    if let Some(namespace) = &call.namespace {
        let store = &call.server.0.store;
        admission::namespace_takes(|key| store.get(key), kind, object::name(&object), namespace)?;
    }
    if name_wanted(call, &object)? {
        generate_name(&mut object);
    }

    let now = times::seconds(call.server.now());
    let meta = meta_mut(&mut object);
    for unwanted in [
        "resourceVersion",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
    ] {
        meta.remove(unwanted);
    }
    if tracking == Tracking::Update {
        meta.remove("managedFields");
    }
    meta.insert("uid".into(), Uuid::new_v4().to_string().into());
    meta.insert("creationTimestamp".into(), now.clone().into());
    if kind.generation {
        meta.insert("generation".into(), 1.into());
    }
    if kind.status
        && !KEEPS_FIRST_STATUS.contains(&kind.kind)
        && let Some(members) = object.as_object_mut()
    {
        members.remove("status");
    }
    reserved::queue(call, &mut object, None)?;
    (kind.default)(&mut object);
    // As in Kubernetes, the client does not own what admission adds: a later server-side apply would remove it.
    if tracking == Tracking::Update {
        let manager = manager(call, ManagerOperation::Update, ObjectPart::Main)?;
        track_update(
            &call.server.0.schemas,
            kind.schema,
            None,
            &mut object,
            &manager,
            &now,
        );
    }
    admission::mutate(call, &mut object)?;
    reserved::check(call, ObjectPart::Main, &mut object, None)?;
    node_restriction::written(call, &object, None)?;
    (kind.prepare)(&mut object, None);
    refuse_invalid(call, &object, (kind.validate)(&object, None))?;
    warnings.extend(pod_security::created(call, &mut object)?);
    warnings.extend(network_policies::warnings(call, &object));
    escalation::check(call, &object, None)?;
    Ok((object, warnings))
}

/// Computes the new state of an object from the client's `wanted` state.
pub(crate) fn change(
    call: &Call,
    part: ObjectPart,
    tracking: Tracking,
    live: &Value,
    mut wanted: Value,
    duplicates: &[String],
    warnings: &mut Vec<String>,
) -> Result<RewriteDecision, Failure> {
    let kind = call.kind;
    identify(call, &mut wanted)?;
    require_current(call, live, &wanted)?;
    *warnings = fields::check(call, &mut wanted, duplicates)?;

    let mut next = match part {
        ObjectPart::Main => main_part(call, live, wanted),
        ObjectPart::Status => status_part(call, live, wanted),
    };
    if part == ObjectPart::Main {
        reserved::queue(call, &mut next, Some(live))?;
    }
    (kind.default)(&mut next);
    admission::own(call, &mut next, Some(live))?;
    reserved::check(call, part, &mut next, Some(live))?;
    node_restriction::written(call, &next, Some(live))?;
    pod_security::keep_level(kind, live, &mut next);
    (kind.prepare)(&mut next, Some(live));
    if kind.generation && intent_differs(live, &next) {
        let generation = live["metadata"]["generation"].as_i64().unwrap_or(0);
        meta_mut(&mut next).insert("generation".into(), generation.saturating_add(1).into());
    }
    let errors = match part {
        ObjectPart::Main => (kind.validate)(&next, Some(live)),
        ObjectPart::Status => {
            let mut errors = (kind.validate_status)(&next, live);
            if !kind.is_custom() {
                meta::check_status(&next, live, &mut errors);
            }
            errors
        }
    };
    refuse_invalid(call, &next, errors)?;
    refuse_new_finalizers(call, live, &next)?;
    if part == ObjectPart::Main {
        warnings.extend(pod_security::changed(call, live, &next)?);
        warnings.extend(network_policies::warnings(call, &next));
    }
    escalation::check(call, &next, Some(live))?;
    if tracking == Tracking::Update {
        let manager = manager(call, ManagerOperation::Update, part)?;
        let now = times::seconds(call.server.now());
        track_update(
            &call.server.0.schemas,
            kind.schema,
            Some(live),
            &mut next,
            &manager,
            &now,
        );
    }
    if same_but_times(live, &next) {
        return Ok(RewriteDecision::Keep);
    }
    Ok(RewriteDecision::Put(Box::new(next)))
}

/// Checks apiVersion, kind, namespace and name against the path, and fills them in.
fn identify(call: &Call, object: &mut Value) -> Result<(), Failure> {
    let kind = call.kind;
    let api_version = kind.api_version();
    // An object under another served version's name is written under the stored version.
    let stored = kind.stored_api_version();
    if object["apiVersion"] == stored.as_str() {
        object["apiVersion"] = api_version.as_str().into();
    }
    let pairs = [
        ("apiVersion", api_version.as_str(), "API version"),
        ("kind", kind.kind, "kind"),
    ];
    for (field, expected, word) in pairs {
        match object[field].as_str() {
            Some(found) if found == expected => {}
            None | Some("") => object[field] = expected.into(),
            Some(found) => {
                return Err(Failure::bad_request(format!(
                    "the {word} in the data ({found}) does not match the expected {word} ({expected})"
                )));
            }
        }
    }
    object["apiVersion"] = stored.into();
    let named = call.name.as_deref();
    let meta = meta_mut(object);
    match call.namespace.as_deref() {
        None => {
            meta.remove("namespace");
        }
        Some(namespace) => match meta.get("namespace").and_then(Value::as_str) {
            Some(found) if found == namespace => {}
            None | Some("") => {
                meta.insert("namespace".into(), namespace.into());
            }
            Some(_) => {
                return Err(Failure::bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
        },
    }
    let Some(named) = named else { return Ok(()) };
    match meta.get("name").and_then(Value::as_str) {
        Some(found) if found == named => Ok(()),
        None | Some("") => {
            meta.insert("name".into(), named.into());
            Ok(())
        }
        Some(found) => Err(Failure::bad_request(format!(
            "the name of the object ({found}) does not match the name on the URL ({named})"
        ))),
    }
}

/// True if a name is to be generated; refuses objects with neither a name nor a `generateName`.
fn name_wanted(call: &Call, object: &Value) -> Result<bool, Failure> {
    if !object::name(object).is_empty() {
        return Ok(false);
    }
    if !meta_text(object, "generateName").is_empty() {
        return Ok(true);
    }
    let cause = Cause {
        reason: "FieldValueRequired".into(),
        message: "Required value: name or generateName is required".into(),
        field: "metadata.name".into(),
    };
    Err(Failure::invalid(call.kind, "", vec![cause]))
}

/// Sets a name generated from the object's `generateName`.
fn generate_name(object: &mut Value) {
    let prefix: String = meta_text(object, "generateName")
        .chars()
        .take(MAX_GENERATED - SUFFIX)
        .collect();
    let random = Uuid::new_v4();
    // The first bytes of a version 4 uuid are all random.
    let suffix = random.as_bytes()[..SUFFIX]
        .iter()
        .map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
    let name: String = prefix.chars().chain(suffix).collect();
    meta_mut(object).insert("name".into(), name.into());
}

/// Refuses a write that is based on another state of the object, or on another object of the name.
fn require_current(call: &Call, live: &Value, wanted: &Value) -> Result<(), Failure> {
    let name = object::name(live);
    let (had, has) = (meta_text(wanted, "uid"), meta_text(live, "uid"));
    if !had.is_empty() && had != has {
        let why =
            format!("Precondition failed: UID in precondition: {had}, UID in object meta: {has}");
        return Err(Failure::conflict(call.kind, name, &why));
    }
    let sent = meta_text(wanted, "resourceVersion");
    if sent.is_empty() && call.kind.is_custom() {
        let cause = Cause {
            reason: "FieldValueInvalid".into(),
            message: "Invalid value: 0: must be specified for an update".into(),
            field: "metadata.resourceVersion".into(),
        };
        return Err(Failure::invalid(call.kind, name, vec![cause]));
    }
    if !sent.is_empty() && sent != meta_text(live, "resourceVersion") {
        return Err(Failure::modified(call.kind, name));
    }
    Ok(())
}

/// Keeps the fields of `metadata` that only the server sets.
const SERVERS_OWN: [&str; 5] = [
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

fn main_part(call: &Call, live: &Value, mut wanted: Value) -> Value {
    let meta = meta_mut(&mut wanted);
    for field in SERVERS_OWN {
        carry(&live["metadata"], meta, field);
    }
    carry(&live["metadata"], meta, "resourceVersion");
    meta.remove("selfLink");
    if call.kind.status
        && let Some(wanted) = wanted.as_object_mut()
    {
        carry(live, wanted, "status");
    }
    wanted
}

fn status_part(call: &Call, live: &Value, mut wanted: Value) -> Value {
    let mut next = live.clone();
    if let (Some(from), Some(to)) = (wanted.as_object_mut(), next.as_object_mut()) {
        match from.remove("status") {
            Some(status) => to.insert("status".into(), status),
            None => to.remove("status"),
        };
    }
    // Kubelets and agents annotate nodes and pods together with their status; custom kinds do not
    // allow that.
    if !call.kind.is_custom() {
        for field in ["labels", "annotations"] {
            carry(&wanted["metadata"], meta_mut(&mut next), field);
        }
    }
    carry(&wanted["metadata"], meta_mut(&mut next), "managedFields");
    next
}

/// True if any field outside `metadata` and `status` differs.
fn intent_differs(live: &Value, next: &Value) -> bool {
    let intent = |object: &Value, other: &Value| {
        object
            .as_object()
            .into_iter()
            .flatten()
            .any(|(key, value)| {
                !matches!(key.as_str(), "metadata" | "status") && other.get(key) != Some(value)
            })
    };
    intent(live, next) || intent(next, live)
}

/// True if two states differ at most in the times of field managers.
fn same_but_times(live: &Value, next: &Value) -> bool {
    let same_metadata =
        |live: &Value, next: &Value| same_members(live, next, "managedFields", same_managers);
    same_members(live, next, "metadata", same_metadata)
}

/// True if two objects have equal members; `same` compares one member.
fn same_members(
    live: &Value,
    next: &Value,
    one: &str,
    same: impl Fn(&Value, &Value) -> bool,
) -> bool {
    let (Some(live), Some(next)) = (live.as_object(), next.as_object()) else {
        return false;
    };
    live.len() == next.len()
        && live.iter().all(|(key, value)| match next.get(key) {
            Some(other) if key == one => same(value, other),
            other => other == Some(value),
        })
}

fn same_managers(live: &Value, next: &Value) -> bool {
    let (Some(live), Some(next)) = (live.as_array(), next.as_array()) else {
        return live == next;
    };
    let fields = [
        "manager",
        "operation",
        "apiVersion",
        "subresource",
        "fieldsV1",
    ];
    live.len() == next.len()
        && live
            .iter()
            .zip(next)
            .all(|(a, b)| fields.iter().all(|field| a.get(field) == b.get(field)))
}

fn refuse_invalid(
    call: &Call,
    object: &Value,
    errors: Vec<resources::field::FieldError>,
) -> Result<(), Failure> {
    if errors.is_empty() {
        return Ok(());
    }
    let causes = errors.iter().map(Cause::from).collect();
    Err(Failure::invalid(call.kind, object::name(object), causes))
}

fn refuse_new_finalizers(call: &Call, live: &Value, next: &Value) -> Result<(), Failure> {
    if !object::deleting(live) {
        return Ok(());
    }
    let had = object::finalizers(live);
    let new: Vec<String> = object::finalizers(next)
        .into_iter()
        .filter(|one| !had.contains(one))
        .collect();
    if new.is_empty() {
        return Ok(());
    }
    let quoted: Vec<String> = new.iter().map(|one| format!("{one:?}")).collect();
    let cause = Cause {
        reason: "FieldValueForbidden".into(),
        message: format!(
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            quoted.join(", ")
        ),
        field: "metadata.finalizers".into(),
    };
    Err(Failure::invalid(call.kind, object::name(live), vec![cause]))
}
