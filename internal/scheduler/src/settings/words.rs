//! Reads single values of a configuration; an error names the field, the value, and what is
//! expected.

use std::ops::RangeInclusive;

use resources::invalid_value::InvalidValue;
use serde_json::{Map, Value};

/// The error for a value that the field does not accept; `valid` completes "write ...".
pub(super) fn unusable(field: &str, value: &Value, valid: impl Into<String>) -> InvalidValue {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    InvalidValue::new(field, text, valid)
}

/// The value that a name stands for.
pub(super) fn one_of<T: Copy>(
    field: &str,
    value: &Value,
    words: &[(&str, T)],
) -> Result<T, InvalidValue> {
    let found = words.iter().find(|(word, _)| *value == *word);
    found.map(|(_, meant)| *meant).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        unusable(field, value, format!("one of {}", words.join(", ")))
    })
}

/// A duration, in seconds.
pub(super) fn span(field: &str, value: &Value) -> Result<i64, InvalidValue> {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    resources::span::seconds(&text).ok_or_else(|| unusable(field, value, resources::span::FORMS))
}

/// A list of strings.
pub(super) fn texts(field: &str, value: &Value) -> Result<Vec<String>, InvalidValue> {
    let error = || unusable(field, value, "a list of words, as in [a, b]");
    let items = value.as_array().ok_or_else(error)?;
    let words = items.iter().map(|item| item.as_str().map(str::to_owned));
    words.collect::<Option<Vec<String>>>().ok_or_else(error)
}

pub(super) fn truth(field: &str, value: &Value) -> Result<bool, InvalidValue> {
    value
        .as_bool()
        .ok_or_else(|| unusable(field, value, "true or false"))
}

/// An integer in a range.
pub(super) fn count(
    field: &str,
    value: &Value,
    range: RangeInclusive<i64>,
) -> Result<i64, InvalidValue> {
    let found = value.as_i64().filter(|number| range.contains(number));
    found.ok_or_else(|| {
        let (low, high) = (range.start(), range.end());
        unusable(field, value, format!("a whole number from {low} to {high}"))
    })
}

/// A mapping; `None` if absent.
pub(super) fn object<'a>(
    field: &str,
    value: &'a Value,
) -> Result<Option<&'a Map<String, Value>>, InvalidValue> {
    match value {
        Value::Null => Ok(None),
        Value::Object(map) => Ok(Some(map)),
        other => Err(unusable(field, other, "a mapping of fields")),
    }
}

/// Checks that a mapping has only known fields.
pub(super) fn known(
    field: &str,
    map: &Map<String, Value>,
    names: &[&str],
) -> Result<(), InvalidValue> {
    match map.keys().find(|name| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let place = if field.is_empty() { "document" } else { field };
            let valid = format!("one of the fields {}", names.join(", "));
            Err(InvalidValue::new(place, name, valid))
        }
    }
}
