//! Server-side apply and the ownership of fields, with the semantics of structured-merge-diff as kube-apiserver uses
//! it. It must not know kinds, admission or storage: the caller passes in the objects and the time.

mod compare;
mod element;
mod fields;
#[cfg(test)]
mod laws;
mod managers;
mod merge;
mod set;
#[cfg(test)]
mod tests;

use serde_json::Value;

use self::compare::compare;
use self::element::Element;
use self::managers::{Contested, Managers};
use self::set::PathSet;
use crate::shape::Schemas;

/// The kind of a manager's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ManagerOperation {
    /// Server-side apply.
    Apply,
    /// Any other write.
    Update,
}

/// The writing field manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldManager {
    /// The field manager's name; empty stands for `unknown`.
    pub name: String,
    /// The kind of its write; `apply` and `track_update` set it themselves.
    pub operation: ManagerOperation,
    /// The version of the object that was written, e.g. `batch/v1`.
    pub api_version: String,
    /// The subresource that was written through, e.g. `status`.
    pub subresource: Option<String>,
}

/// Why an apply failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApplyError {
    /// Other managers own fields that would change: 409, with a cause for each conflict.
    #[error("{}", worded(.0))]
    Conflicts(Vec<Conflict>),
    /// The request is invalid: 400.
    #[error("{0}")]
    BadRequest(String),
    /// The configuration doesn't fit the definition. kube-apiserver answers 500 with this text; the fault is the
    /// caller's, so 400 is the right answer.
    #[error("{0}")]
    Typed(String),
}

/// A field that another manager owns.
#[derive(Debug, Clone, PartialEq)]
pub struct Conflict {
    /// The owner as messages show it: `"kubectl" using v1` or `"ci" with subresource "status"`.
    pub manager: String,
    /// The field's path, e.g. `.spec.replicas`.
    pub field: String,
}

/// The most conflicts in a response. Each names its full path, which a caller can make long.
pub const MOST_CONFLICTS: usize = 100;

/// The most bytes of a path in a conflict.
const LONGEST_FIELD: usize = 1024;

/// Why one run of an apply ended.
enum Stopped {
    /// Other managers own fields that would change.
    Contested(Vec<Contested>),
    /// The configuration can't be applied under any ownership.
    Failed(ApplyError),
}

impl From<Stopped> for ApplyError {
    fn from(stopped: Stopped) -> ApplyError {
        match stopped {
            Stopped::Contested(contested) => ApplyError::Conflicts(listed(&contested)),
            Stopped::Failed(error) => error,
        }
    }
}

/// The first conflicts, in manager order.
fn listed(contested: &[Contested]) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    for Contested { manager, fields } in contested {
        let left = MOST_CONFLICTS - conflicts.len();
        let fields = fields.shown(left, LONGEST_FIELD).into_iter();
        conflicts.extend(fields.map(|field| Conflict {
            manager: manager.clone(),
            field,
        }));
    }
    conflicts
}

impl Conflict {
    /// The cause's message (its reason is `FieldManagerConflict`, its field is `field`).
    pub fn message(&self) -> String {
        format!("conflict with {}", self.manager)
    }
}

fn worded(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            only.manager, only.field
        );
    }
    let mut lines = Vec::new();
    let mut last = "";
    for conflict in conflicts {
        if conflict.manager != last {
            lines.push(format!("conflicts with {}:", conflict.manager));
            last = &conflict.manager;
        }
        lines.push(format!("- {}", conflict.field));
    }
    if conflicts.len() == MOST_CONFLICTS {
        lines.push(format!("(only the first {MOST_CONFLICTS} are listed)"));
    }
    format!(
        "Apply failed with {} conflicts: {}",
        conflicts.len(),
        lines.join("\n")
    )
}

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager whose applies maintain the last-applied annotation.
const KUBECTL: &str = "kubectl";
/// The owner of the fields that an object without managed fields had before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Applies a configuration: merges it over `live`, removes the fields that this manager applied before and no other
/// manager owns, and records the owners. `now` is RFC 3339 with seconds (`2025-01-02T03:04:05Z`). Returns the merged
/// object with its managedFields; it equals `live` if nothing changed. The caller defaults and validates the object
/// before it stores it.
///
/// # Errors
/// [`ApplyError::Conflicts`] unless `force`; the others for a configuration that can't be merged.
pub fn apply(
    schemas: &Schemas,
    definition: &str,
    live: Option<&Value>,
    applied: &Value,
    manager: &FieldManager,
    force: bool,
    now: &str,
) -> Result<Value, ApplyError> {
    if applied
        .pointer("/metadata/managedFields")
        .is_some_and(|fields| !fields.is_null())
    {
        return Err(ApplyError::BadRequest(
            "metadata.managedFields must be nil".to_owned(),
        ));
    }
    let me = identity(manager, ManagerOperation::Apply);
    let ignored = ignored(schemas, definition, manager);
    let nothing = Value::Object(serde_json::Map::new());
    let had = live.and_then(managed_fields);
    let mut owners = match had {
        Some(fields) => Managers::decode(fields).map_err(|problem| {
            ApplyError::BadRequest(format!("failed to decode managed fields: {problem}"))
        })?,
        None => Managers::default(),
    };
    if let Some(live) = live
        && owners.is_empty()
    {
        let before = FieldManager {
            name: BEFORE_FIRST_APPLY.to_owned(),
            operation: ManagerOperation::Update,
            ..manager.clone()
        };
        let held = fields::created(schemas, definition, live, &top_level(&ignored));
        owners.push_json(before, now, Value::Object(held));
    }
    let live = without_managed_fields(live.unwrap_or(&nothing));
    let request = ApplyRequest {
        schemas,
        definition,
        live: &live,
        applied,
        me: &me,
        ignored: &ignored,
    };
    let (mut merged, mut owners) = match request.run(owners.clone(), force) {
        Err(Stopped::Contested(contested)) if me.name == KUBECTL => {
            request.retry_after_client_side_apply(owners, contested)?
        }
        other => other?,
    };
    // Nulls in the configuration have no further effect.
    schemas.drop_nulls(definition, &mut merged);
    if me.name == KUBECTL {
        refresh_last_applied(&mut merged, applied);
    }
    if owners.changed(&me) || merged != live {
        owners.touch(&me, now);
    }
    set_managed_fields(&mut merged, owners.encode());
    Ok(merged)
}

/// One apply request, run once or twice.
struct ApplyRequest<'a> {
    schemas: &'a Schemas,
    definition: &'a str,
    live: &'a Value,
    applied: &'a Value,
    me: &'a FieldManager,
    ignored: &'a PathSet,
}

impl ApplyRequest<'_> {
    fn run(&self, mut owners: Managers, force: bool) -> Result<(Value, Managers), Stopped> {
        let (schemas, definition) = (self.schemas, self.definition);
        let merged = merge::merge(schemas, definition, self.live, self.applied)
            .map_err(|problem| Stopped::Failed(self.typed(&problem.to_string())))?;
        let applied =
            fields::applied(schemas, definition, self.applied).without_subtrees(self.ignored);
        let before = owners.replace(self.me, applied);
        let merged = match before {
            Some(before) if !before.is_empty() => self.take_out(&merged, &before, &owners),
            _ => merged,
        };
        let mut difference = compare(schemas, definition, self.live, &merged);
        difference.exclude(self.ignored);
        let changed = difference.modified.union(&difference.added);
        if !force {
            let contested = owners.contested(self.me, &changed);
            if !contested.is_empty() {
                return Err(Stopped::Contested(contested));
            }
        }
        owners.release(Some(self.me), &changed, &difference.removed);
        owners.strip(self.me, &fields::unowned());
        owners.drop_empty();
        Ok((merged, owners))
    }

    /// Removes the fields that this manager applied before, does not apply now, and no other manager owns.
    fn take_out(&self, merged: &Value, before: &PathSet, owners: &Managers) -> Value {
        let (schemas, definition) = (self.schemas, self.definition);
        let named = |set: &PathSet| merge::with_parents(schemas, definition, set);
        let held = |value: &Value| named(&fields::held(schemas, definition, value));
        let before = named(before);
        let pruned = merge::remove(schemas, definition, merged, &before);
        // Owned fields are restored, including those of removed items.
        let all = held(merged);
        let stay = held(&pruned).union(&named(&owners.all_owned()));
        let pruned = merge::remove(schemas, definition, merged, &all.difference(&stay));
        // Only fields that this manager owned are removed; fields without an owner stay too.
        let gone = all.difference(&held(&pruned)).intersection(&before);
        merge::remove(schemas, definition, merged, &gone)
    }

    fn typed(&self, problem: &str) -> ApplyError {
        let text = |path: &str| {
            self.applied
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        ApplyError::Typed(format!(
            "failed to create typed patch object ({}/{}; {}, Kind={}): {problem}",
            text("/metadata/namespace"),
            text("/metadata/name"),
            text("/apiVersion"),
            text("/kind")
        ))
    }

    /// `kubectl apply --server-side` on an object that client-side apply created: kubectl takes over the fields that
    /// the last-applied annotation has and the object still holds.
    fn retry_after_client_side_apply(
        &self,
        owners: Managers,
        contested: Vec<Contested>,
    ) -> Result<(Value, Managers), Stopped> {
        let Some(allowed) = self.last_applied_fields() else {
            return Err(Stopped::Contested(contested));
        };
        let left: Vec<Contested> = contested
            .into_iter()
            .map(|Contested { manager, fields }| Contested {
                manager,
                fields: fields.difference(&allowed),
            })
            .filter(|contested| !contested.fields.is_empty())
            .collect();
        if left.is_empty() {
            self.run(owners, true)
        } else {
            Err(Stopped::Contested(left))
        }
    }

    fn last_applied_fields(&self) -> Option<PathSet> {
        let text = annotation(self.live)?;
        let config: Value = serde_json::from_str(text).ok()?;
        if config["apiVersion"] != self.me.api_version.as_str() {
            return None;
        }
        let difference = compare(self.schemas, self.definition, &config, self.live);
        Some(
            fields::applied(self.schemas, self.definition, &config)
                .difference(&difference.modified)
                .difference(&difference.added)
                .difference(&difference.removed),
        )
    }
}

fn annotation(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][LAST_APPLIED]
        .as_str()
        .filter(|text| !text.is_empty())
}

/// Keeps the annotation of client-side apply up to date after `kubectl apply --server-side`.
fn refresh_last_applied(merged: &mut Value, applied: &Value) {
    if annotation(merged).is_none() {
        return;
    }
    let mut config = applied.clone();
    if let Some(annotations) = config
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove(LAST_APPLIED);
    }
    let text = Value::from(format!("{config}\n"));
    if let Some(annotations) = merged
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.insert(LAST_APPLIED.to_owned(), text);
    }
}

/// Records the owners after a write that is no apply: `new` is the object about to be stored, `live` the object that it
/// replaces (`None`: a create). The writer becomes the owner of changed fields; a write without changes leaves the
/// record as it was. A client that sends `managedFields: []` or `[{}]` resets the record, and an object without a
/// record stays without one.
pub fn track_update(
    schemas: &Schemas,
    definition: &str,
    live: Option<&Value>,
    new: &mut Value,
    manager: &FieldManager,
    now: &str,
) {
    let me = identity(manager, ManagerOperation::Update);
    let sent = take_managed_fields(new);
    let ignored = ignored(schemas, definition, manager);
    let Some(live) = live else {
        let held = fields::created(schemas, definition, new, &top_level(&ignored));
        if !held.is_empty() {
            let mut owners = Managers::default();
            owners.push_json(me, now, Value::Object(held));
            set_managed_fields(new, owners.encode());
        }
        return;
    };
    let stored = managed_fields(live).map(Vec::as_slice).unwrap_or_default();
    let sent = if me.subresource.is_some() { None } else { sent };
    let (mut owners, mut edited) = match &sent {
        Some(Value::Array(sent)) if is_reset(sent) => return,
        Some(Value::Array(sent)) if sent.as_slice() != stored => match Managers::decode(sent) {
            Ok(owners) => (owners, true),
            Err(_) => (Managers::decode(stored).unwrap_or_default(), false),
        },
        _ => (Managers::decode(stored).unwrap_or_default(), false),
    };
    if owners.is_empty() {
        return;
    }
    let mut difference = compare(schemas, definition, live, new);
    difference.exclude(&ignored);
    let unowned = fields::unowned();
    let changed = difference
        .modified
        .union(&difference.added)
        .difference(&unowned);
    let removed = difference.removed.difference(&unowned);
    if !changed.is_empty() || !removed.is_empty() {
        edited = true;
        owners.drop_other_versions(&me.api_version);
        owners.release(None, &changed, &removed);
        if !changed.is_empty() {
            owners.extend(&me, changed, now);
        }
        owners.drop_empty();
        owners.cap();
    }
    let fields = if edited {
        owners.encode()
    } else {
        Value::Array(stored.to_vec())
    };
    set_managed_fields(new, fields);
}

fn is_reset(sent: &[Value]) -> bool {
    match sent {
        [] => true,
        [only] => only.as_object().is_some_and(serde_json::Map::is_empty),
        _ => false,
    }
}

fn identity(manager: &FieldManager, operation: ManagerOperation) -> FieldManager {
    let name = if manager.name.is_empty() {
        "unknown".to_owned()
    } else {
        manager.name.clone()
    };
    FieldManager {
        name,
        operation,
        api_version: manager.api_version.clone(),
        subresource: manager.subresource.clone().filter(|s| !s.is_empty()),
    }
}

/// The fields that a request through this (sub)resource can't set, because its storage resets them.
fn ignored(schemas: &Schemas, definition: &str, manager: &FieldManager) -> PathSet {
    let mut set = PathSet::default();
    let field = |name: &str| Element::Field(name.into());
    match manager.subresource.as_deref() {
        Some("status") => {
            set.insert(&[field("spec")]);
            set.insert(&[field("metadata"), field("deletionTimestamp")]);
            set.insert(&[field("metadata"), field("ownerReferences")]);
        }
        _ if schemas.with_status.contains(definition) => set.insert(&[field("status")]),
        _ => {}
    }
    set
}

fn top_level(ignored: &PathSet) -> Vec<&str> {
    ignored
        .branches()
        .filter(|(_, member, _)| *member)
        .filter_map(|(element, _, _)| match element {
            Element::Field(name) => Some(&**name),
            _ => None,
        })
        .collect()
}

fn managed_fields(object: &Value) -> Option<&Vec<Value>> {
    object.get("metadata")?.get("managedFields")?.as_array()
}

fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object
        .get_mut("metadata")?
        .as_object_mut()?
        .remove("managedFields")
}

fn without_managed_fields(object: &Value) -> Value {
    let mut copy = object.clone();
    take_managed_fields(&mut copy);
    copy
}

fn set_managed_fields(object: &mut Value, fields: Value) {
    if fields.as_array().is_none_or(Vec::is_empty) {
        return;
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("managedFields".to_owned(), fields);
    }
}
