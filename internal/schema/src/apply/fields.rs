//! The fields that an object sets: for an applied configuration and for a newly created object. It
//! must not know owners.

use serde_json::{Map, Value};

use super::compare::is_atomic;
use super::element::{Element, key_default, of_item, print_key};
use super::set::PathSet;
use crate::shape::{ListShape, Relation, Schemas, TypeUse, UNTYPED, ValueShape};

/// The fields of an applied configuration: leaves, list items, empty objects and free keys.
pub(crate) fn applied(schemas: &Schemas, definition: &str, config: &Value) -> PathSet {
    of_value(schemas, schemas.root(definition), config, false).below
}

/// The fields of an object in the middle of an apply: those of [`applied`], plus containers that
/// were emptied, including lists.
pub(crate) fn held(schemas: &Schemas, definition: &str, object: &Value) -> PathSet {
    of_value(schemas, schemas.root(definition), object, true).below
}

struct FoundField {
    /// The value itself is a field (a leaf).
    leaf: bool,
    below: PathSet,
}

fn of_value(schemas: &Schemas, used: TypeUse<'_>, value: &Value, empty_lists: bool) -> FoundField {
    let mut below = PathSet::default();
    let leaf = match (&used.node.shape, value) {
        _ if is_atomic(used) => true,
        (ValueShape::Object(_) | ValueShape::Any, Value::Object(map)) => {
            for (key, child) in map {
                let declared = match &used.node.shape {
                    ValueShape::Object(object) => object.field(key).is_some(),
                    _ => false,
                };
                let member = schemas.member(used.node, key).unwrap_or(TypeUse {
                    node: &UNTYPED,
                    atomic: None,
                });
                let found = of_value(schemas, member, child, empty_lists);
                let empty = match child {
                    Value::Null => true,
                    Value::Object(map) => map.is_empty(),
                    Value::Array(items) => empty_lists && items.is_empty(),
                    _ => false,
                };
                below.insert_element(
                    Element::Field(key.as_str().into()),
                    found.leaf || empty || !declared,
                    found.below,
                );
            }
            false
        }
        (ValueShape::List(list), _) if list.relation == Relation::Atomic => true,
        (ValueShape::List(list), Value::Array(items)) => {
            let item_type = schemas.plain(list.items);
            for item in items {
                if let Ok(element) = of_item(schemas, list, item) {
                    let found = of_value(schemas, item_type, item, empty_lists);
                    below.insert_element(element, true, found.below);
                }
            }
            false
        }
        (ValueShape::Object(_) | ValueShape::List(_), Value::Null) => false,
        _ => true,
    };
    FoundField { leaf, below }
}

/// Top-level and metadata fields without an owner.
const UNOWNED: [&str; 3] = ["apiVersion", "kind", "metadata"];
const UNOWNED_METADATA: [&str; 9] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
];

/// The paths of fields without an owner, as a set.
pub(crate) fn unowned() -> PathSet {
    let mut set = PathSet::default();
    for name in UNOWNED {
        set.insert(&[Element::Field(name.into())]);
    }
    for name in UNOWNED_METADATA {
        set.insert(&[
            Element::Field("metadata".into()),
            Element::Field(name.into()),
        ]);
    }
    set
}

/// The fieldsV1 of everything that a created object sets, written straight to JSON: this runs for
/// every create. `skip` names top-level fields that this request can't set.
///
/// A built-in kind's empty Go struct already holds its required fields, so their containers have no
/// owner there; a custom object starts empty.
pub(crate) fn created(
    schemas: &Schemas,
    definition: &str,
    object: &Value,
    skip: &[&str],
) -> Map<String, Value> {
    let root = schemas.root(definition);
    let builtin = schemas.has(definition) && !schemas.is_custom(definition);
    let mut fields = Map::new();
    let Value::Object(map) = object else {
        return fields;
    };
    for (key, value) in map {
        if skip.contains(&key.as_str()) || matches!(key.as_str(), "apiVersion" | "kind") {
            continue;
        }
        let (member, zero) = member_of(schemas, root, key, builtin);
        if key == "metadata" {
            let Value::Object(metadata) = value else {
                continue;
            };
            let mut below = Map::new();
            for (name, value) in metadata {
                if UNOWNED_METADATA.contains(&name.as_str()) {
                    continue;
                }
                let (member, zero) = member_of(schemas, member, name, builtin);
                emit(schemas, member, value, zero, field_key(name), &mut below);
            }
            if !below.is_empty() {
                fields.insert("f:metadata".to_owned(), Value::Object(below));
            }
            continue;
        }
        emit(schemas, member, value, zero, field_key(key), &mut fields);
    }
    fields
}

fn field_key(name: &str) -> String {
    let mut key = String::with_capacity(name.len() + 2);
    key.push_str("f:");
    key.push_str(name);
    key
}

/// The state of a field in the empty object: absent, or present with its zero value.
#[derive(Clone, Copy, PartialEq)]
enum Before {
    Absent,
    Zero,
}

fn member_of<'s>(
    schemas: &'s Schemas,
    parent: TypeUse<'s>,
    key: &str,
    parent_zero: bool,
) -> (TypeUse<'s>, Before) {
    let unknown = TypeUse {
        node: &UNTYPED,
        atomic: None,
    };
    match &parent.node.shape {
        ValueShape::Object(object) => match object.field(key) {
            Some(field) => {
                // Go always writes a field with a default in a built-in definition, and a required
                // list.
                let always = field
                    .default
                    .as_deref()
                    .is_some_and(|d| matches!(d, "{}" | "\"\"" | "0" | "false"))
                    || (field.required
                        && matches!(schemas.node(field.ty).shape, ValueShape::List(_)));
                let used = TypeUse {
                    node: schemas.node(field.ty),
                    atomic: field.atomic,
                };
                (
                    used,
                    if parent_zero && always {
                        Before::Zero
                    } else {
                        Before::Absent
                    },
                )
            }
            None => (
                schemas.member(parent.node, key).unwrap_or(unknown),
                Before::Absent,
            ),
        },
        _ => (unknown, Before::Absent),
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Writes the fields at and below one value under `key`, if there are any.
fn emit(
    schemas: &Schemas,
    used: TypeUse<'_>,
    value: &Value,
    before: Before,
    key: String,
    into: &mut Map<String, Value>,
) {
    let zero = before == Before::Zero;
    if value.is_null() && !used.node.nullable {
        return;
    }
    let mut below = Map::new();
    let container = match (&used.node.shape, value) {
        _ if is_atomic(used) || is_zero(value) => false,
        (ValueShape::Object(_) | ValueShape::Any, Value::Object(map)) => {
            for (name, child) in map {
                let (member, state) = member_of(schemas, used, name, zero);
                emit(schemas, member, child, state, field_key(name), &mut below);
            }
            true
        }
        (ValueShape::List(list), Value::Array(items)) if list.relation != Relation::Atomic => {
            let item_type = schemas.plain(list.items);
            for item in items {
                if let Some(key) = item_key(schemas, list, item) {
                    if below.contains_key(&key) {
                        // Several items with the same key are owned as one.
                        below.insert(key, Value::Object(Map::new()));
                    } else {
                        emit(schemas, item_type, item, Before::Absent, key, &mut below);
                    }
                }
            }
            true
        }
        _ => false,
    };
    if container {
        if !zero && !below.is_empty() {
            below.insert(".".to_owned(), Value::Object(Map::new()));
        } else if zero && below.is_empty() {
            return;
        }
    } else if zero && is_zero(value) {
        return;
    }
    into.insert(key, Value::Object(below));
}

/// The fieldsV1 key of a list's item, without building an element.
fn item_key(schemas: &Schemas, list: &ListShape, item: &Value) -> Option<String> {
    match (&list.relation, item) {
        (Relation::Map(names), Value::Object(map)) => {
            let defaults: Vec<Option<Value>> = names
                .iter()
                .map(|name| {
                    if map.contains_key(&**name) {
                        None
                    } else {
                        key_default(schemas, list, name)
                    }
                })
                .collect();
            let mut keys = names
                .iter()
                .zip(&defaults)
                .filter_map(|(name, default)| {
                    map.get(&**name)
                        .or(default.as_ref())
                        .map(|value| (&**name, value))
                })
                .peekable();
            keys.peek()?;
            Some(print_key(keys))
        }
        (Relation::Set, Value::Object(_) | Value::Array(_) | Value::Null) => None,
        (Relation::Set, scalar) => Some(format!("v:{scalar}")),
        _ => None,
    }
}
