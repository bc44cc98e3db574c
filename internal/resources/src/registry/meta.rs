//! The rules of `metadata` that all kinds share, with Kubernetes' messages.

use serde_json::Value;

use crate::field::{FieldError, Path};
use crate::json;
use crate::numbers::OWNER_REFERENCES_MAX;
use crate::syntax;

use super::{hang, idle_gpus};

/// The most bytes of all annotations of an object together.
const ANNOTATIONS_MAX: usize = 256 * 1024;
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";
/// Kubernetes' message for a change of an immutable field.
pub const IMMUTABLE: &str = "field is immutable";

/// The rule for an object's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// DNS-1123 subdomain: most kinds.
    Subdomain,
    /// DNS-1123 label: namespaces.
    Label,
    /// DNS-1035 label: services.
    Dns1035,
    /// Anything that can stand in a URL's path.
    Segment,
}

impl NameRule {
    fn faults(self, name: &str) -> Vec<String> {
        match self {
            Self::Subdomain => syntax::dns1123_subdomain(name),
            Self::Label => syntax::dns1123_label(name),
            Self::Dns1035 => syntax::dns1035_label(name),
            Self::Segment => segment(name),
        }
    }
}

/// Removes the status of a new object: for kinds with a status subresource.
pub(super) fn without_status(new: &mut Value, old: Option<&Value>) {
    if old.is_none()
        && let Some(map) = new.as_object_mut()
    {
        map.remove("status");
    }
}

/// Sets the first status of a new object, in place of the one in the request.
pub(super) fn with_status(new: &mut Value, old: Option<&Value>, status: Value) {
    if old.is_none()
        && let Some(map) = new.as_object_mut()
    {
        map.insert("status".to_owned(), status);
    }
}

/// The longest name that is only a path segment, in bytes. Kubernetes has no bound; an object whose name exceeds the
/// longest request line could be created but neither read nor deleted.
const SEGMENT_MAX: usize = 1024;

pub(super) fn segment(name: &str) -> Vec<String> {
    let mut out = Vec::new();
    if name.len() > SEGMENT_MAX {
        out.push(format!("must be no more than {SEGMENT_MAX} bytes"));
    }
    if name == "." || name == ".." {
        out.push(format!("may not be '{name}'"));
    }
    for illegal in ["/", "%"] {
        if name.contains(illegal) {
            out.push(format!("may not contain '{illegal}'"));
        }
    }
    out
}

/// Checks `metadata` of a new object, or of a change.
pub fn check(
    new: &Value,
    old: Option<&Value>,
    namespaced: bool,
    rule: NameRule,
    errors: &mut Vec<FieldError>,
) {
    let path = Path::new("metadata");
    let meta = json::at(new, &["metadata"]);
    let generate = json::text(meta, &["generateName"]);
    if old.is_none() && !generate.is_empty() {
        // The generated suffix follows a dash, so the prefix may end in one.
        let shape = generate
            .strip_suffix('-')
            .map_or_else(|| generate.to_owned(), |rest| format!("{rest}a"));
        for fault in rule.faults(&shape) {
            errors.push(FieldError::invalid(
                &path.child("generateName"),
                generate,
                fault,
            ));
        }
    }
    let name = json::text(meta, &["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(
            &path.child("name"),
            "name or generateName is required",
        ));
    } else {
        for fault in rule.faults(name) {
            errors.push(FieldError::invalid(&path.child("name"), name, fault));
        }
    }
    let namespace = json::text(meta, &["namespace"]);
    if namespaced && namespace.is_empty() {
        errors.push(FieldError::required(&path.child("namespace"), ""));
    } else if namespaced {
        for fault in syntax::dns1123_label(namespace) {
            errors.push(FieldError::invalid(
                &path.child("namespace"),
                namespace,
                fault,
            ));
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden(
            &path.child("namespace"),
            "not allowed on this type",
        ));
    }
    labels(json::at(meta, &["labels"]), &path.child("labels"), errors);
    annotations(
        json::at(meta, &["annotations"]),
        &path.child("annotations"),
        errors,
    );
    owners(
        meta,
        old.map(|old| json::at(old, &["metadata"])),
        &path,
        errors,
    );
    finalizers(meta, &path, errors);
    // A namespace checks its limit as a part of its policy.
    if namespaced {
        idle_gpus::check_own(new, old, errors);
        hang::check(new, old, errors);
    }
    if let Some(old) = old {
        check_change(meta, json::at(old, &["metadata"]), &path, errors);
    }
}

/// Checks what a write to /status may change in the `metadata` of a kind built into Kubernetes: labels and
/// annotations. Unchanged ones are not checked, so that an agent can report about an object that was stored earlier.
pub fn check_status(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let path = Path::new("metadata");
    let changed = |field: &str| {
        let [new, old] = [new, old].map(|object| json::at(object, &["metadata", field]));
        (!json::same(new, old)).then_some(new)
    };
    if let Some(new) = changed("labels") {
        labels(new, &path.child("labels"), errors);
    }
    if let Some(new) = changed("annotations") {
        annotations(new, &path.child("annotations"), errors);
    }
}

/// Checks `status.conditions` of the type `meta/v1 Condition`, whose fields are required except for the message and
/// the generation. Without this check, a typed client cannot read the object.
pub(super) fn conditions(new: &Value) -> Vec<FieldError> {
    let path = Path::new("status");
    let path = path.child("conditions");
    let mut errors = Vec::new();
    for (i, condition) in json::items(new, &["status", "conditions"])
        .iter()
        .enumerate()
    {
        let path = path.index(i);
        for field in ["type", "status", "lastTransitionTime", "reason"] {
            if json::text(condition, &[field]).is_empty() {
                errors.push(FieldError::required(&path.child(field), "must be set"));
            }
        }
    }
    errors
}

fn check_change(new: &Value, old: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for key in ["name", "namespace", "uid", "creationTimestamp"] {
        let (now, before) = (json::at(new, &[key]), json::at(old, &[key]));
        if !json::same(now, before) {
            errors.push(FieldError::invalid(
                &path.child(key),
                now.clone(),
                IMMUTABLE,
            ));
        }
    }
    if json::has(old, &["deletionTimestamp"]) {
        let before = json::items(old, &["finalizers"]);
        let added: Vec<String> = json::items(new, &["finalizers"])
            .iter()
            .filter(|f| !before.contains(f))
            .map(|f| f.to_string())
            .collect();
        if !added.is_empty() {
            let list = added.join(", ");
            errors.push(FieldError::forbidden(
                &path.child("finalizers"),
                format!("no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}"),
            ));
        }
    }
}

/// Checks labels, or a node selector, which has the same form.
pub fn labels(labels: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (key, value) in json::members(labels, &[]) {
        for fault in syntax::qualified_name(key) {
            errors.push(FieldError::invalid(path, key.as_str(), fault));
        }
        let value = value.as_str().unwrap_or_default();
        for fault in syntax::label_value(value) {
            errors.push(FieldError::invalid(path, value, fault));
        }
    }
}

/// Checks a label key on its own.
pub fn label_key(key: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for fault in syntax::qualified_name(key) {
        errors.push(FieldError::invalid(path, key, fault));
    }
}

/// Checks annotations.
pub fn annotations(annotations: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut size = 0;
    for (key, value) in json::members(annotations, &[]) {
        size += key.len() + value.as_str().map_or(0, str::len);
        // Kubernetes permits capitals in an annotation's prefix; many users rely on it.
        let faults = if key.bytes().any(|b| b.is_ascii_uppercase()) {
            syntax::qualified_name(&key.to_lowercase())
        } else {
            syntax::qualified_name(key)
        };
        for fault in faults {
            errors.push(FieldError::invalid(path, key.as_str(), fault));
        }
    }
    if size > ANNOTATIONS_MAX {
        errors.push(FieldError::too_long(path, ANNOTATIONS_MAX));
    }
}

fn owners(meta: &Value, old: Option<&Value>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("ownerReferences");
    let owners = json::items(meta, &["ownerReferences"]);
    // An object that was stored with more may keep or remove some: otherwise it could not be repaired.
    let before = old.map_or(0, |old| json::items(old, &["ownerReferences"]).len());
    if owners.len() > before.max(OWNER_REFERENCES_MAX) {
        errors.push(FieldError::too_many(
            &path,
            owners.len(),
            OWNER_REFERENCES_MAX,
        ));
        return;
    }
    let mut controller: Option<String> = None;
    for owner in owners {
        if json::text(owner, &["apiVersion"]).is_empty() {
            errors.push(FieldError::invalid(
                &path.child("apiVersion"),
                "",
                "version must not be empty",
            ));
        }
        for key in ["kind", "name", "uid"] {
            if json::text(owner, &[key]).is_empty() {
                errors.push(FieldError::invalid(
                    &path.child(key),
                    "",
                    "must not be empty",
                ));
            }
        }
        if json::truth(owner, &["controller"]) {
            let this = format!(
                "{}/{}",
                json::text(owner, &["kind"]),
                json::text(owner, &["name"])
            );
            match &controller {
                None => controller = Some(this),
                Some(first) => errors.push(FieldError::invalid(
                    &path,
                    Value::from(owners),
                    format!("Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"),
                )),
            }
        }
    }
}

fn finalizers(meta: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let path = path.child("finalizers");
    let finalizers = json::items(meta, &["finalizers"]);
    for finalizer in finalizers.iter().filter_map(Value::as_str) {
        for fault in syntax::qualified_name(finalizer) {
            errors.push(FieldError::invalid(&path, finalizer, fault));
        }
    }
    let has = |name: &str| finalizers.iter().any(|f| f.as_str() == Some(name));
    if has(FOREGROUND) && has(ORPHAN) {
        errors.push(FieldError::invalid(
            &path,
            Value::from(finalizers),
            format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set"),
        ));
    }
}

/// Checks a label selector object.
pub fn selector(selector: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    labels(
        json::at(selector, &["matchLabels"]),
        &path.child("matchLabels"),
        errors,
    );
    let list = path.child("matchExpressions");
    for (i, expression) in json::items(selector, &["matchExpressions"])
        .iter()
        .enumerate()
    {
        let path = list.index(i);
        let values = json::items(expression, &["values"]);
        match json::text(expression, &["operator"]) {
            "In" | "NotIn" if values.is_empty() => errors.push(FieldError::required(
                &path.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            )),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.push(FieldError::forbidden(
                &path.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                errors.push(FieldError::invalid(
                    &path.child("operator"),
                    other,
                    "not a valid selector operator",
                ));
            }
        }
        label_key(json::text(expression, &["key"]), &path.child("key"), errors);
        for (j, value) in values.iter().filter_map(Value::as_str).enumerate() {
            for fault in syntax::label_value(value) {
                errors.push(FieldError::invalid(
                    &path.child("values").index(j),
                    value,
                    fault,
                ));
            }
        }
    }
}

/// Reports a field that changed although it may not.
pub fn immutable(
    new: &Value,
    old: &Value,
    keys: &[&str],
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    for key in keys {
        let (now, before) = (json::at(new, &[key]), json::at(old, &[key]));
        if !json::same(now, before) {
            errors.push(FieldError::invalid(
                &path.child(key),
                now.clone(),
                IMMUTABLE,
            ));
        }
    }
}

/// Reports a number below zero.
pub fn not_negative(value: &Value, key: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if let Some(number) = json::int(value, &[key]).filter(|n| *n < 0) {
        errors.push(FieldError::invalid(
            &path.child(key),
            number,
            "must be greater than or equal to 0",
        ));
    }
}

/// Reports a text that is not supported; an absent one is valid.
pub fn one_of(
    value: &Value,
    key: &str,
    supported: &[&str],
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let text = json::text(value, &[key]);
    if !text.is_empty() && !supported.contains(&text) {
        errors.push(FieldError::not_supported(&path.child(key), text, supported));
    }
}
