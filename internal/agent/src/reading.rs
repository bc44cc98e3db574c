//! Parses configuration files: a value that is not understood is refused with its field, the value
//! and the accepted values. Pure.

use serde_json::{Map, Value};

/// The fields of a mapping; an unknown field is an error.
pub(crate) fn fields<'a>(
    at: &str,
    value: &'a Value,
    known: &[&str],
) -> Result<&'a Map<String, Value>, String> {
    let name = if at.is_empty() { "the document" } else { at };
    let Value::Object(map) = value else {
        let right = format!("a mapping of {}", known.join(", "));
        return Err(wrong(name, Some(value), &right));
    };
    if let Some(odd) = map.keys().find(|key| !known.contains(&key.as_str())) {
        let known = known.join(", ");
        return Err(format!(
            "{}: no such field; there are {known}",
            join(at, odd)
        ));
    }
    Ok(map)
}

/// A field's value, unless it is absent or null.
pub(crate) fn present<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    map.get(name).filter(|value| !value.is_null())
}

/// The value of a boolean field.
pub(crate) fn flag(at: &str, map: &Map<String, Value>, name: &str) -> Result<Option<bool>, String> {
    match present(map, name) {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        other => Err(wrong(&join(at, name), other, "true or false")),
    }
}

/// A field's full name.
pub(crate) fn join(at: &str, name: &str) -> String {
    if at.is_empty() {
        return name.to_owned();
    }
    format!("{at}.{name}")
}

/// The error message for a field.
pub(crate) fn wrong(at: &str, given: Option<&Value>, right: &str) -> String {
    match given {
        None => format!("{at}: missing; write {right}"),
        Some(given) => format!("{at}: {given} is not usable; write {right}"),
    }
}

/// Whether this is an extended resource's name: a domain and a name.
pub(crate) fn is_resource(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = |text: &str| {
        let end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        end(text.chars().next()) && end(text.chars().next_back())
    };
    let fine = |text: &str| text.len() <= 63 && ends(text) && text.chars().all(inner);
    (name.split_once('/')).is_some_and(|(domain, rest)| fine(domain) && fine(rest))
}
