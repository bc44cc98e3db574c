//! Merges an applied configuration into an object, and removes fields from one. It must not know
//! owners.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::compare::is_atomic;
use super::element::{Element, NoElement, of_item};
use super::set::PathSet;
use crate::shape::{ListShape, Relation, Schemas, TypeUse, ValueShape};

/// Why a configuration can't be merged, and at which path.
#[derive(Debug)]
pub(crate) struct MergeError {
    path: String,
    problem: MergeProblem,
}

/// The cause of a failed merge.
#[derive(Debug, thiserror::Error)]
enum MergeProblem {
    #[error("expected {expected}, got &{{{found}}}")]
    Form {
        expected: &'static str,
        found: Value,
    },
    #[error("field not declared in schema")]
    Undeclared,
    #[error("element {at}: {reason}")]
    NoElement { at: usize, reason: NoElement },
    #[error("duplicate entries for key {key}")]
    Duplicate { key: String },
}

impl std::fmt::Display for MergeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "{}", self.problem)
    }
}

impl std::error::Error for MergeError {}

impl From<MergeProblem> for MergeError {
    fn from(problem: MergeProblem) -> MergeError {
        MergeError {
            path: String::new(),
            problem,
        }
    }
}

/// Merges `config` over `live`.
///
/// # Errors
/// With the path: an unknown field, a list item without its key or with a repeated key, a value of
/// another type than the definition's.
pub(crate) fn merge(
    schemas: &Schemas,
    definition: &str,
    live: &Value,
    config: &Value,
) -> Result<Value, MergeError> {
    Ok(
        merge_value(schemas, schemas.root(definition), Some(live), Some(config))?
            .unwrap_or_else(|| Value::Object(Map::new())),
    )
}

/// Prefixes an error's path with one element.
fn below(element: &impl std::fmt::Display) -> impl FnOnce(MergeError) -> MergeError {
    let prefix = element.to_string();
    move |error| MergeError {
        path: format!("{prefix}{}", error.path),
        ..error
    }
}

fn wrong_form(expected: &'static str, found: &Value) -> MergeError {
    MergeError::from(MergeProblem::Form {
        expected,
        found: found.clone(),
    })
}

fn merge_value(
    schemas: &Schemas,
    used: TypeUse<'_>,
    live: Option<&Value>,
    config: Option<&Value>,
) -> Result<Option<Value>, MergeError> {
    let keep = || Ok(config.or(live).cloned());
    if is_atomic(used) {
        return keep();
    }
    match &used.node.shape {
        ValueShape::AnyAtomic | ValueShape::Scalar(_) => {
            if let Some(container @ (Value::Object(_) | Value::Array(_))) = config
                && matches!(used.node.shape, ValueShape::Scalar(_))
            {
                return Err(wrong_form("scalar", container));
            }
            keep()
        }
        ValueShape::Any if empty(live) && empty(config) => keep(),
        ValueShape::Any => match (live, config) {
            (Some(Value::Object(_)) | None, Some(Value::Object(_))) => {
                merge_maps(schemas, used, live, config)
            }
            _ => keep(),
        },
        ValueShape::Object(_) => match config {
            Some(other) if !other.is_object() && !other.is_null() => Err(wrong_form("map", other)),
            _ if empty(live) && empty(config) => keep(),
            _ => merge_maps(schemas, used, live, config),
        },
        ValueShape::List(list) => match config {
            Some(other) if !other.is_array() && !other.is_null() => Err(wrong_form("list", other)),
            _ if list.relation == Relation::Atomic || (empty(live) && empty(config)) => keep(),
            _ => merge_lists(schemas, list, items(live), items(config)),
        },
    }
}

fn empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

fn items(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn merge_maps(
    schemas: &Schemas,
    used: TypeUse<'_>,
    live: Option<&Value>,
    config: Option<&Value>,
) -> Result<Option<Value>, MergeError> {
    let nothing = Map::new();
    let live = live.and_then(Value::as_object).unwrap_or(&nothing);
    let config = config.and_then(Value::as_object).unwrap_or(&nothing);
    let mut merged = Map::new();
    for (key, old) in live {
        let value = match config.get(key) {
            None => Some(old.clone()),
            Some(new) => merge_member(schemas, used, key, Some(old), new)?,
        };
        if let Some(value) = value {
            merged.insert(key.clone(), value);
        }
    }
    for (key, new) in config {
        if !live.contains_key(key)
            && let Some(value) = merge_member(schemas, used, key, None, new)?
        {
            merged.insert(key.clone(), value);
        }
    }
    Ok((!merged.is_empty()).then_some(Value::Object(merged)))
}

fn merge_member(
    schemas: &Schemas,
    used: TypeUse<'_>,
    key: &str,
    old: Option<&Value>,
    new: &Value,
) -> Result<Option<Value>, MergeError> {
    let member = schemas.member(used.node, key).ok_or_else(|| MergeError {
        path: format!(".{key}"),
        problem: MergeProblem::Undeclared,
    })?;
    merge_value(schemas, member, old, Some(new)).map_err(below(&format_args!(".{key}")))
}

/// Merges by key, in the configuration's order where both lists have an item.
fn merge_lists(
    schemas: &Schemas,
    list: &ListShape,
    live: &[Value],
    config: &[Value],
) -> Result<Option<Value>, MergeError> {
    let mut new: Vec<(Element, &Value)> = Vec::with_capacity(config.len());
    for (at, item) in config.iter().enumerate() {
        let element = of_item(schemas, list, item)
            .map_err(|reason| MergeProblem::NoElement { at, reason })?;
        new.push((element, item));
    }
    let mut place: BTreeMap<&Element, usize> = BTreeMap::new();
    for (at, (element, _)) in new.iter().enumerate() {
        if place.insert(element, at).is_some() {
            let key = element.to_string();
            return Err(MergeProblem::Duplicate { key }.into());
        }
    }
    let mut old: Vec<(Option<Element>, &Value)> = Vec::with_capacity(live.len());
    for item in live {
        old.push((of_item(schemas, list, item).ok(), item));
    }
    // An item cannot be merged with duplicates; the configuration's item replaces them all.
    let mut partner: BTreeMap<&Element, Option<&Value>> = BTreeMap::new();
    for (element, item) in &old {
        if let Some(element) = element {
            partner
                .entry(element)
                .and_modify(|only| *only = None)
                .or_insert(Some(item));
        }
    }
    let place_of = |element: &Option<Element>| element.as_ref().and_then(|e| place.get(e).copied());
    let merge_item = |(element, item): &(Element, &Value)| {
        let live = partner.get(element).copied().flatten();
        merge_value(schemas, schemas.plain(list.items), live, Some(item)).map_err(below(element))
    };
    let shared: Vec<&Element> = new
        .iter()
        .map(|(element, _)| element)
        .filter(|element| partner.contains_key(element))
        .collect();
    let mut shared = shared.into_iter().peekable();
    let mut merged = Vec::with_capacity(old.len().max(new.len()));
    let (mut l, mut r) = (0, 0);
    while l < old.len() || r < new.len() {
        if let (Some((left, _)), Some((right, _))) = (old.get(l), new.get(r)) {
            if left.as_ref() == Some(right) {
                merged.extend(merge_item(&new[r])?);
                l += 1;
                r += 1;
                shared.next();
                continue;
            }
            if place_of(left).is_some()
                && shared
                    .peek()
                    .is_some_and(|next| Some(*next) != left.as_ref())
            {
                // The item is added at its position in the configuration.
                l += 1;
                continue;
            }
        }
        if let Some((left, item)) = old.get(l) {
            let wanted = place_of(left);
            if wanted.is_none() {
                merged.push((*item).clone());
                l += 1;
                continue;
            }
            if wanted.is_some_and(|at| at < r) {
                l += 1;
            }
        }
        if let Some(item) = new.get(r) {
            merged.extend(merge_item(item)?);
            r += 1;
            if shared.peek().is_some_and(|next| **next == item.0) {
                shared.next();
            }
        }
    }
    Ok((!merged.is_empty()).then_some(Value::Array(merged)))
}

/// Removes the given fields from an object. An emptied container remains, because it was not
/// removed itself.
pub(crate) fn remove(
    schemas: &Schemas,
    definition: &str,
    object: &Value,
    fields: &PathSet,
) -> Value {
    remove_in(schemas, schemas.root(definition), object, fields)
        .unwrap_or_else(|| Value::Object(Map::new()))
}

fn remove_in(
    schemas: &Schemas,
    used: TypeUse<'_>,
    value: &Value,
    fields: &PathSet,
) -> Option<Value> {
    match (&used.node.shape, value) {
        (ValueShape::List(_), Value::Array(_)) | (_, Value::Object(_)) if is_atomic(used) => None,
        (ValueShape::List(list), Value::Array(items)) => {
            if list.relation == Relation::Atomic {
                return None;
            }
            let mut kept = Vec::with_capacity(items.len());
            for item in items {
                let Ok(element) = of_item(schemas, list, item) else {
                    kept.push(item.clone());
                    continue;
                };
                if fields.has_element(&element) {
                    continue;
                }
                match fields.below(&element) {
                    Some(below) => {
                        kept.extend(remove_in(schemas, schemas.plain(list.items), item, below));
                    }
                    None => kept.push(item.clone()),
                }
            }
            Some(Value::Array(kept))
        }
        (ValueShape::Object(_) | ValueShape::Any, Value::Object(map)) => {
            let mut kept = Map::new();
            for (key, child) in map {
                let element = Element::Field(key.as_str().into());
                if fields.has_element(&element) {
                    continue;
                }
                let child = match (fields.below(&element), schemas.member(used.node, key)) {
                    (Some(below), Some(member)) => remove_in(schemas, member, child, below),
                    _ => Some(child.clone()),
                };
                if let Some(child) = child {
                    kept.insert(key.clone(), child);
                }
            }
            Some(Value::Object(kept))
        }
        _ => Some(value.clone()),
    }
}

/// The set with the fields on the path to its members as additional members.
pub(crate) fn with_parents(schemas: &Schemas, definition: &str, set: &PathSet) -> PathSet {
    parents_in(schemas, Some(schemas.root(definition)), set)
}

fn parents_in(schemas: &Schemas, used: Option<TypeUse<'_>>, set: &PathSet) -> PathSet {
    let mut all = PathSet::default();
    for (element, member, below) in set.branches() {
        let (declared, next) = match (element, used) {
            (Element::Field(name), Some(used)) => {
                let declared =
                    matches!(&used.node.shape, ValueShape::Object(o) if o.field(name).is_some());
                (declared, schemas.member(used.node, name))
            }
            (_, Some(used)) => match &used.node.shape {
                ValueShape::List(list) => (false, Some(schemas.plain(list.items))),
                _ => (false, None),
            },
            _ => (false, None),
        };
        all.insert_element(
            element.clone(),
            member || (declared && !below.is_empty()),
            parents_in(schemas, next, below),
        );
    }
    all
}
