//! Strategic merge patch: lists merge by the keys of their definitions, and directives in the patch delete, replace and
//! order items. It must not know owners of fields.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::PatchError;
use crate::shape::{Field, Schemas, ShapeNode, TypeId, TypeUse, UNTYPED, ValueShape};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Applies `patch` to `original` by the definition's merge keys and strategies.
///
/// # Errors
/// [`PatchError::Malformed`] with kube-apiserver's words for a contradictory patch or one without merge keys.
pub fn apply(
    schemas: &Schemas,
    definition: &str,
    original: &Value,
    patch: &Value,
) -> Result<Value, PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (original, patch) else {
        return Err(malformed("Invalid JSON document"));
    };
    merge_map(
        schemas,
        schemas.root(definition),
        original.clone(),
        patch.clone(),
    )
    .map(Value::Object)
}

fn malformed(message: impl Into<String>) -> PatchError {
    PatchError::Malformed(message.into())
}

fn unknown_directive(kind: &Value, map: &Map<String, Value>) -> PatchError {
    malformed(format!(
        "unknown patch type: {} in map: {}",
        go(kind),
        go_map(map)
    ))
}

fn no_key(map: &Map<String, Value>, key: &str) -> PatchError {
    malformed(format!(
        "map: {} does not contain declared merge key: {key}",
        go_map(map)
    ))
}

/// A value as Go's `%v` prints it, for kube-apiserver's messages.
fn go(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => go_list(items),
        Value::Object(map) => go_map(map),
        other => other.to_string(),
    }
}

fn go_list(items: &[Value]) -> String {
    let items: Vec<String> = items.iter().map(go).collect();
    format!("[{}]", items.join(" "))
}

fn go_map(map: &Map<String, Value>) -> String {
    let mut entries: Vec<String> = map.iter().map(|(k, v)| format!("{k}:{}", go(v))).collect();
    entries.sort();
    format!("map[{}]", entries.join(" "))
}

/// The definition's data for one field.
struct Meta<'s> {
    used: TypeUse<'s>,
    merge: bool,
    replace: bool,
    key: Option<&'s str>,
}

fn meta<'s>(schemas: &'s Schemas, parent: TypeUse<'s>, name: &str) -> Meta<'s> {
    let used = schemas.member(parent.node, name).unwrap_or(TypeUse {
        node: &UNTYPED,
        atomic: None,
    });
    let field = match &parent.node.shape {
        ValueShape::Object(object) => object.field(name),
        _ => None,
    };
    Meta {
        used,
        merge: field.is_some_and(|field: &Field| field.patch.merge),
        replace: field.is_some_and(|field: &Field| field.patch.replace),
        key: field.and_then(|field| field.patch.key.as_deref()),
    }
}

fn items_of<'s>(schemas: &'s Schemas, node: &'s ShapeNode) -> TypeUse<'s> {
    let id: Option<TypeId> = match &node.shape {
        ValueShape::List(list) => Some(list.items),
        _ => None,
    };
    id.map_or(
        TypeUse {
            node: &UNTYPED,
            atomic: None,
        },
        |id| schemas.plain(id),
    )
}

fn merge_map(
    schemas: &Schemas,
    used: TypeUse<'_>,
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
) -> Result<Map<String, Value>, PatchError> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => {
                patch.remove(DIRECTIVE);
                Ok(patch)
            }
            Some("delete") => Ok(Map::new()),
            _ => Err(unknown_directive(directive, &patch)),
        };
    }
    retain_keys(&mut original, &mut patch)?;
    merge_ordered(schemas, used, &mut original, &mut patch)?;
    for (key, change) in patch {
        let (key, deletes) = match key.strip_prefix(DELETE_FROM) {
            Some(list) => (list.to_owned(), true),
            None => (key, false),
        };
        if change.is_null() {
            original.remove(&key);
            continue;
        }
        let Some(old) = original.remove(&key) else {
            if !deletes && let Some(value) = plain(change) {
                original.insert(key, value);
            }
            continue;
        };
        let field = meta(schemas, used, &key);
        let merged = match (old, change) {
            (Value::Object(old), Value::Object(change)) => Some(Value::Object(if field.replace {
                change
            } else {
                merge_map(schemas, field.used, old, change)?
            })),
            (Value::Array(old), Value::Array(change)) => {
                Some(Value::Array(if field.merge || deletes {
                    merge_list(schemas, &field, old, change, deletes)?
                } else {
                    change
                }))
            }
            (old, _) if deletes => Some(old),
            (_, change) => plain(change),
        };
        if let Some(merged) = merged {
            original.insert(key, merged);
        }
    }
    Ok(original)
}

/// `$retainKeys`: removes the unlisted keys of the original.
fn retain_keys(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let wrong = || malformed("invalid patch format of retainKeys");
    let retained: HashSet<&str> = retained
        .as_array()
        .ok_or_else(wrong)?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let listed = |key: &str| retained.contains(key);
    for (key, change) in patch.iter() {
        if !change.is_null()
            && !key.starts_with(DELETE_FROM)
            && !key.starts_with(ORDER)
            && !listed(key)
        {
            return Err(wrong());
        }
    }
    original.retain(|key, _| listed(key));
    Ok(())
}

/// `$setElementOrder/x`, together with the changes to `x`.
fn merge_ordered(
    schemas: &Schemas,
    used: TypeUse<'_>,
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    let directives: Vec<String> = patch
        .keys()
        .filter(|key| key.starts_with(ORDER))
        .cloned()
        .collect();
    for directive in directives {
        let order = match patch.remove(&directive) {
            Some(Value::Array(order)) => order,
            _ => return Err(malformed(format!("{directive} must be a list"))),
        };
        let name = &directive[ORDER.len()..];
        let list = |value: Option<Value>| match value {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(malformed(format!("{name} must be a list, not {other}"))),
        };
        let old = list(original.get(name).cloned())?;
        let change = list(patch.remove(name).filter(|v| !v.is_null()))?;
        let field = meta(schemas, used, name);
        check_order(change.as_deref().unwrap_or_default(), &order, field.key)?;
        let server_order = old.clone().unwrap_or_default();
        let merged = match (old, change) {
            (None, None) => continue,
            (Some(old), None) => old,
            (None, Some(change)) => change.into_iter().filter_map(plain).collect(),
            (Some(old), Some(change)) if field.merge => {
                merge_list(schemas, &field, old, change, false)?
            }
            (Some(_), Some(change)) => change,
        };
        let merged = arrange(merged, &order, &server_order, field.key)?;
        original.insert(name.to_owned(), Value::Array(merged));
    }
    Ok(())
}

/// Checks that the items of a patch are in the order of `$setElementOrder`.
fn check_order(change: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    let mut at = 0;
    for item in change.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        match order[at..]
            .iter()
            .position(|other| same_item(item, other, key))
        {
            Some(found) => at += found + 1,
            None => {
                return Err(malformed(format!(
                    "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                    go_list(change),
                    go_list(order)
                )));
            }
        }
    }
    Ok(())
}

fn same_item(a: &Value, b: &Value, key: Option<&str>) -> bool {
    match key {
        Some(key) => a.get(key).is_some() && a.get(key) == b.get(key),
        None => a == b,
    }
}

/// The identity of a list's item, as text that is equal if [`same_item`] is true: its merge key's value, or without a
/// merge key the item. `None` for an item without its key.
fn identity(item: &Value, key: Option<&str>) -> Option<String> {
    match key {
        Some(key) => item.get(key).map(Value::to_string),
        None => Some(item.to_string()),
    }
}

/// The first position of each item of a list. The index makes a merge linear in the length of the list instead of
/// quadratic.
fn places(list: &[Value], key: Option<&str>) -> HashMap<String, usize> {
    let mut places = HashMap::with_capacity(list.len());
    for (at, item) in list.iter().enumerate() {
        if let Some(identity) = identity(item, key) {
            places.entry(identity).or_insert(at);
        }
    }
    places
}

fn merge_list(
    schemas: &Schemas,
    field: &Meta<'_>,
    mut original: Vec<Value>,
    patch: Vec<Value>,
    deletes: bool,
) -> Result<Vec<Value>, PatchError> {
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    let maps = original
        .iter()
        .chain(&patch)
        .filter(|i| i.is_object())
        .count();
    if maps == 0 {
        if deletes {
            let gone = places(&patch, None);
            original.retain(|item| !gone.contains_key(&item.to_string()));
            return Ok(original);
        }
        let server_order = original.clone();
        let mut known: HashSet<String> = original.iter().map(Value::to_string).collect();
        for item in &patch {
            if known.insert(item.to_string()) {
                original.push(item.clone());
            }
        }
        return arrange(original, &patch, &server_order, None);
    }
    if maps != original.len() + patch.len() {
        return Err(malformed("list element types are not identical"));
    }
    let Some(key) = field.key else {
        return Err(malformed("cannot merge lists without merge key"));
    };
    let (mut merged, changes) = special_items(original, patch, key)?;
    let server_order = merged.clone();
    let item_type = items_of(schemas, field.used.node);
    let mut known = places(&merged, Some(key));
    for change in &changes {
        let Value::Object(change) = change else {
            continue;
        };
        let Some(value) = change.get(key) else {
            return Err(no_key(change, key));
        };
        let identity = value.to_string();
        let found = match known.get(&identity) {
            Some(place) => merged.get_mut(*place),
            None => None,
        };
        match found {
            Some(Value::Object(old)) => {
                *old = merge_map(schemas, item_type, std::mem::take(old), change.clone())?;
            }
            _ => {
                if let Some(added) = plain(Value::Object(change.clone())) {
                    known.insert(identity, merged.len());
                    merged.push(added);
                }
            }
        }
    }
    arrange(merged, &changes, &server_order, Some(key))
}

/// Removes `$patch` items from a patch and executes them. Returns the list to merge into, and the items to merge.
fn special_items(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut changes = Vec::with_capacity(patch.len());
    let mut deleted = HashSet::new();
    let mut replace = false;
    for item in patch {
        let Value::Object(map) = &item else {
            continue;
        };
        match map.get(DIRECTIVE) {
            None => changes.push(item),
            Some(directive) => match directive.as_str() {
                Some("delete") => {
                    let value = map.get(key).ok_or_else(|| no_key(map, key))?;
                    deleted.insert(value.to_string());
                }
                Some("replace") => replace = true,
                Some("merge") => {
                    return Err(malformed(
                        "merging lists cannot yet be specified in the patch",
                    ));
                }
                _ => return Err(unknown_directive(directive, map)),
            },
        }
    }
    if !deleted.is_empty() {
        original.retain(|old| identity(old, Some(key)).is_none_or(|one| !deleted.contains(&one)));
    }
    Ok(if replace {
        (changes, Vec::new())
    } else {
        (original, changes)
    })
}

/// Arranges the items that `order` names in that order. The other items keep the server's order; each comes before the
/// first item that followed it on the server.
fn arrange(
    items: Vec<Value>,
    order: &[Value],
    server_order: &[Value],
    key: Option<&str>,
) -> Result<Vec<Value>, PatchError> {
    if let Some(key) = key
        && let Some(Value::Object(item)) = items.iter().find(|item| item.get(key).is_none())
    {
        return Err(no_key(item, key));
    }
    let (in_order, on_server) = (places(order, key), places(server_order, key));
    let mut ordered = Vec::new();
    let mut others = Vec::new();
    for item in items {
        let identity = identity(&item, key);
        let place = |places: &HashMap<String, usize>| {
            identity
                .as_ref()
                .and_then(|identity| places.get(identity).copied())
        };
        let here = place(&on_server);
        match place(&in_order) {
            Some(wanted) => ordered.push((wanted, here, item)),
            None => others.push((here, item)),
        }
    }
    ordered.sort_by_key(|(wanted, _, _)| *wanted);
    // Stable: items that the server doesn't have come last, in their order.
    others.sort_by_key(|(here, _)| here.unwrap_or(usize::MAX));
    let mut merged = Vec::with_capacity(ordered.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, here, item) in ordered {
        while let Some((Some(there), _)) = others.peek()
            && here.is_some_and(|here| *there < here)
        {
            merged.extend(others.next().map(|(_, other)| other));
        }
        merged.push(item);
    }
    merged.extend(others.map(|(_, other)| other));
    Ok(merged)
}

/// A value of a patch without a counterpart in the original: without directives and nulls. `None` for a map with
/// `$patch`: there is nothing to delete or replace.
fn plain(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) => {
            if map.contains_key(DIRECTIVE) {
                return None;
            }
            let mut kept = Map::new();
            for (key, child) in map {
                if is_directive(&key) || child.is_null() {
                    continue;
                }
                if let Some(child) = plain(child) {
                    kept.insert(key, child);
                }
            }
            Some(Value::Object(kept))
        }
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(plain).collect())),
        scalar => Some(scalar),
    }
}

fn is_directive(key: &str) -> bool {
    key == RETAIN_KEYS || key.starts_with(DELETE_FROM) || key.starts_with(ORDER)
}

#[cfg(test)]
mod tests;
