//! Reading and changing JSON objects of any shape without panics. To a reader, a missing member, a null and a member of
//! another type are all absent.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

static NULL: Value = Value::Null;

/// The value at a path; null if absent.
pub(crate) fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    let mut now = value;
    for key in path {
        match now.get(*key) {
            Some(next) => now = next,
            None => return &NULL,
        }
    }
    now
}

/// The text at a path; empty if absent.
pub(crate) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

/// The integer at a path.
pub(crate) fn int(value: &Value, path: &[&str]) -> Option<i64> {
    at(value, path).as_i64()
}

/// The boolean at a path; false if absent.
pub(crate) fn truth(value: &Value, path: &[&str]) -> bool {
    at(value, path).as_bool().unwrap_or(false)
}

/// The items at a path; empty if there is no list.
pub(crate) fn items<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// The members at a path, in order; empty if there is no object.
pub(crate) fn members<'a>(
    value: &'a Value,
    path: &[&str],
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    at(value, path).as_object().into_iter().flatten()
}

/// The text members at a path: labels, annotations, selectors.
pub(crate) fn texts(value: &Value, path: &[&str]) -> BTreeMap<String, String> {
    members(value, path)
        .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
        .collect()
}

/// True if the value at a path is present.
pub(crate) fn has(value: &Value, path: &[&str]) -> bool {
    !at(value, path).is_null()
}

/// The object under a key, created if absent or null; `None` if the key has another value or `value` is no object.
pub(crate) fn object<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    let map = value.as_object_mut()?;
    let child = map.entry(key).or_insert(Value::Null);
    if child.is_null() {
        *child = Value::Object(Map::new());
    }
    child.is_object().then_some(child)
}

/// The object under a key, if there is one.
pub(crate) fn child<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    value.get_mut(key).filter(|child| child.is_object())
}

/// The items under a key, if there is a list.
pub(crate) fn list<'a>(value: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    value
        .get_mut(key)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
}

/// Sets a member that is absent or null.
pub(crate) fn fill(value: &mut Value, key: &str, with: impl Into<Value>) {
    if let Some(map) = value.as_object_mut() {
        match map.get_mut(key) {
            Some(had) if had.is_null() => *had = with.into(),
            Some(_) => {}
            None => {
                map.insert(key.to_owned(), with.into());
            }
        }
    }
}

/// Like [`fill`], also over an empty text: Kubernetes' defaulting treats empty strings as absent.
pub(crate) fn fill_text(value: &mut Value, key: &str, with: &str) {
    if let Some(map) = value.as_object_mut() {
        let absent = match map.get(key) {
            None | Some(Value::Null) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(_) => false,
        };
        if absent {
            map.insert(key.to_owned(), Value::from(with));
        }
    }
}

/// Like [`fill`], also over a zero: for numbers whose zero means absent.
pub(crate) fn fill_number(value: &mut Value, key: &str, with: i64) {
    if let Some(map) = value.as_object_mut()
        && map
            .get(key)
            .is_none_or(|had| had.is_null() || had.as_i64() == Some(0))
    {
        map.insert(key.to_owned(), with.into());
    }
}

/// Rewrites every quantity of a resource list in canonical form; validation reports the malformed ones.
pub(crate) fn canonical_quantities(value: &mut Value, key: &str) {
    for (_, quantity) in value
        .get_mut(key)
        .and_then(Value::as_object_mut)
        .into_iter()
        .flatten()
    {
        canonical_quantity(quantity);
    }
}

/// Rewrites one quantity in canonical form.
pub(crate) fn canonical_quantity(quantity: &mut Value) {
    if let Some(parsed) = quantity_of(quantity) {
        let canonical = parsed.to_string();
        if quantity.as_str() != Some(&canonical) {
            *quantity = Value::String(canonical);
        }
    }
}

/// True if two values are equal to Kubernetes, which treats absent, null and empty members alike.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            x.iter().all(|(k, v)| same(v, y.get(k).unwrap_or(&NULL)))
                && y.iter().all(|(k, v)| x.contains_key(k) || is_empty(v))
        }
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(v, w)| same(v, w))
        }
        _ => a == b || (is_empty(a) && is_empty(b)),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_empty),
        _ => false,
    }
}

/// The quantity in a JSON string or number.
pub(crate) fn quantity_of(value: &Value) -> Option<crate::quantity::Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reading_the_wrong_shape_finds_nothing_and_never_panics() {
        for value in [
            json!(null),
            json!(1),
            json!([1]),
            json!("x"),
            json!({"a": 1}),
            json!({"a": [1]}),
        ] {
            assert!(at(&value, &["a", "b", "c"]).is_null());
            assert_eq!(text(&value, &["a", "b"]), "");
            assert!(items(&value, &["b"]).is_empty());
            assert!(members(&value, &["a", "b"]).next().is_none());
            let mut changed = value.clone();
            fill(&mut changed, "z", 1);
            fill_text(&mut changed, "z", "y");
            let _ = object(&mut changed, "a");
            canonical_quantities(&mut changed, "a");
        }
    }

    #[test]
    fn numbers_become_canonical_quantities() {
        let mut value =
            json!({"limits": {"cpu": 0.5, "nvidia.com/gpu": 2, "memory": "1024Mi", "bad": "x"}});
        canonical_quantities(&mut value, "limits");
        assert_eq!(
            value,
            json!({"limits": {"cpu": "500m", "nvidia.com/gpu": "2", "memory": "1Gi", "bad": "x"}})
        );
    }
}
