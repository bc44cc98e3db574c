//! Reads single values of a configuration; an error names the field, the value, and what is
//! expected.

use std::fmt;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

/// An invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The field's path in the document.
    pub field: String,
    /// The value found.
    pub value: String,
    /// What is expected.
    pub wanted: String,
}

impl Wrong {
    pub(super) fn new(field: &str, value: &Value, wanted: impl Into<String>) -> Wrong {
        Wrong {
            field: field.to_owned(),
            value: match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            },
            wanted: wanted.into(),
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong {
            field,
            value,
            wanted,
        } = self;
        write!(f, "{field}: {value:?} is not right: {wanted}")
    }
}

impl std::error::Error for Wrong {}

/// The value that a name stands for.
pub(super) fn one_of<T: Copy>(field: &str, value: &Value, words: &[(&str, T)]) -> Result<T, Wrong> {
    let found = words.iter().find(|(word, _)| *value == *word);
    found.map(|(_, meant)| *meant).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        Wrong::new(field, value, format!("one of {}", words.join(", ")))
    })
}

/// A duration, in seconds.
pub(super) fn span(field: &str, value: &Value) -> Result<i64, Wrong> {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    resources::span::seconds(&text).ok_or_else(|| Wrong::new(field, value, resources::span::FORMS))
}

/// A list of strings.
pub(super) fn texts(field: &str, value: &Value) -> Result<Vec<String>, Wrong> {
    let wrong = || Wrong::new(field, value, "a list of words, as in [a, b]");
    let items = value.as_array().ok_or_else(wrong)?;
    let words = items.iter().map(|item| item.as_str().map(str::to_owned));
    words.collect::<Option<Vec<String>>>().ok_or_else(wrong)
}

pub(super) fn truth(field: &str, value: &Value) -> Result<bool, Wrong> {
    value
        .as_bool()
        .ok_or_else(|| Wrong::new(field, value, "true or false"))
}

/// An integer in a range.
pub(super) fn count(field: &str, value: &Value, range: RangeInclusive<i64>) -> Result<i64, Wrong> {
    let found = value.as_i64().filter(|number| range.contains(number));
    found.ok_or_else(|| {
        let (low, high) = (range.start(), range.end());
        Wrong::new(field, value, format!("a whole number from {low} to {high}"))
    })
}

/// A mapping; `None` if absent.
pub(super) fn object<'a>(
    field: &str,
    value: &'a Value,
) -> Result<Option<&'a Map<String, Value>>, Wrong> {
    match value {
        Value::Null => Ok(None),
        Value::Object(map) => Ok(Some(map)),
        other => Err(Wrong::new(field, other, "a mapping of fields")),
    }
}

/// Checks that a mapping has only known fields.
pub(super) fn known(field: &str, map: &Map<String, Value>, names: &[&str]) -> Result<(), Wrong> {
    match map.iter().find(|(name, _)| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, value)) => {
            let wanted = format!(
                "there is no such field; the fields are {}",
                names.join(", ")
            );
            let dot = if field.is_empty() { "" } else { "." };
            Err(Wrong::new(&format!("{field}{dot}{name}"), value, wanted))
        }
    }
}
