//! Strategic merge patch: lists merge by the keys that definitions declare, and directives in
//! the patch delete, replace and order. It must not know owners of fields.

use serde_json::{Map, Value};

use crate::PatchError;
use crate::shape::{Field, Node, Schemas, Shape, TypeId, UNTYPED, Use};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Applies `patch` to `original` by the definition's merge keys and strategies.
///
/// # Errors
/// [`PatchError::Malformed`] with kube-apiserver's words for a patch that contradicts itself or
/// lacks merge keys.
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

/// A value as Go's `%v` prints it, which kube-apiserver's messages show.
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

/// What the definition says about one field.
struct Meta<'s> {
    used: Use<'s>,
    merge: bool,
    replace: bool,
    key: Option<&'s str>,
}

fn meta<'s>(schemas: &'s Schemas, parent: Use<'s>, name: &str) -> Meta<'s> {
    let used = schemas.member(parent.node, name).unwrap_or(Use {
        node: &UNTYPED,
        atomic: None,
    });
    let field = match &parent.node.shape {
        Shape::Object(object) => object.field(name),
        _ => None,
    };
    Meta {
        used,
        merge: field.is_some_and(|field: &Field| field.patch.merge),
        replace: field.is_some_and(|field: &Field| field.patch.replace),
        key: field.and_then(|field| field.patch.key.as_deref()),
    }
}

fn items_of<'s>(schemas: &'s Schemas, node: &'s Node) -> Use<'s> {
    let id: Option<TypeId> = match &node.shape {
        Shape::List(list) => Some(list.items),
        _ => None,
    };
    id.map_or(
        Use {
            node: &UNTYPED,
            atomic: None,
        },
        |id| schemas.plain(id),
    )
}

fn merge_map(
    schemas: &Schemas,
    used: Use<'_>,
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

/// `$retainKeys`: keys of the original that aren't listed go.
fn retain_keys(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), PatchError> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let wrong = || malformed("invalid patch format of retainKeys");
    let retained: Vec<String> = retained
        .as_array()
        .ok_or_else(wrong)?
        .iter()
        .filter_map(|key| key.as_str().map(str::to_owned))
        .collect();
    let listed = |key: &str| retained.iter().any(|kept| kept == key);
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
    used: Use<'_>,
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

/// The items of a patch must come in the order that `$setElementOrder` says.
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
            original.retain(|item| !patch.contains(item));
            return Ok(original);
        }
        let server_order = original.clone();
        for item in &patch {
            if !original.contains(item) {
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
    for change in &changes {
        let Value::Object(change) = change else {
            continue;
        };
        let Some(value) = change.get(key) else {
            return Err(no_key(change, key));
        };
        let found = merged.iter_mut().find(|item| item.get(key) == Some(value));
        match found {
            Some(Value::Object(old)) => {
                *old = merge_map(schemas, item_type, std::mem::take(old), change.clone())?;
            }
            _ => merged.extend(plain(Value::Object(change.clone()))),
        }
    }
    arrange(merged, &changes, &server_order, Some(key))
}

/// Takes `$patch` items out of a patch and does what they say: the list to merge into, and the
/// items to merge.
fn special_items(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut changes = Vec::with_capacity(patch.len());
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
                    original.retain(|old| old.get(key) != Some(value));
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
    Ok(if replace {
        (changes, Vec::new())
    } else {
        (original, changes)
    })
}

/// Puts the items that `order` names in its order, and the others, in the server's order, before
/// the first of them that the server had behind them.
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
    let place = |list: &[Value], item: &Value| list.iter().position(|o| same_item(item, o, key));
    let (mut ordered, mut others): (Vec<Value>, Vec<Value>) = items
        .into_iter()
        .partition(|item| place(order, item).is_some());
    ordered.sort_by_key(|item| place(order, item));
    // Stable: items that the server doesn't have stay behind.
    others.sort_by_key(|item| place(server_order, item).unwrap_or(usize::MAX));
    let mut merged = Vec::with_capacity(ordered.len() + others.len());
    let mut others = others.into_iter().peekable();
    for item in ordered {
        let here = place(server_order, &item);
        while let Some(other) = others.peek() {
            match (place(server_order, other), here) {
                (Some(there), Some(here)) if there < here => merged.extend(others.next()),
                _ => break,
            }
        }
        merged.push(item);
    }
    merged.extend(others);
    Ok(merged)
}

/// A value of a patch that meets nothing in the original: without directives and nulls. `None`
/// for a map that carries `$patch`: there is nothing to delete or replace.
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
