//! Parses configuration files: a value that is not understood is refused with its field, the value
//! and the accepted values. Pure.

use serde_json::{Map, Value};

/// Why a field of a configuration file can't be used. The message has the field, its value and the
/// valid form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigValueError {
    /// A required field is missing.
    #[error("{field}: missing; write {valid}")]
    Missing {
        /// The field's full name.
        field: String,
        /// The valid form.
        valid: String,
    },
    /// The value is not usable.
    #[error("{field}: {value} is not usable; write {valid}")]
    Unusable {
        /// The field's full name.
        field: String,
        /// The value as written.
        value: Value,
        /// The valid form.
        valid: String,
    },
    /// The value is not usable for a reason of its own.
    #[error("{field}: {why}; write {valid}")]
    Refused {
        /// The field's full name.
        field: String,
        /// The reason.
        why: String,
        /// The valid form.
        valid: String,
    },
    /// There is no field of this name.
    #[error("{field}: no such field; there are {known}")]
    Unknown {
        /// The field's full name.
        field: String,
        /// The fields that there are.
        known: String,
    },
}

impl ConfigValueError {
    /// The same error of a field within another one.
    pub(crate) fn within(mut self, outer: &str) -> ConfigValueError {
        let (ConfigValueError::Missing { field, .. }
        | ConfigValueError::Unusable { field, .. }
        | ConfigValueError::Refused { field, .. }
        | ConfigValueError::Unknown { field, .. }) = &mut self;
        *field = join(outer, field);
        self
    }
}

/// The fields of a mapping; an unknown field is an error.
pub(crate) fn fields<'a>(
    at: &str,
    value: &'a Value,
    known: &[&str],
) -> Result<&'a Map<String, Value>, ConfigValueError> {
    let name = if at.is_empty() { "the document" } else { at };
    let Value::Object(map) = value else {
        let right = format!("a mapping of {}", known.join(", "));
        return Err(wrong(name, Some(value), &right));
    };
    if let Some(odd) = map.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(ConfigValueError::Unknown {
            field: join(at, odd),
            known: known.join(", "),
        });
    }
    Ok(map)
}

/// A field's value, unless it is absent or null.
pub(crate) fn present<'a>(map: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    map.get(name).filter(|value| !value.is_null())
}

/// The value of a boolean field.
pub(crate) fn flag(
    at: &str,
    map: &Map<String, Value>,
    name: &str,
) -> Result<Option<bool>, ConfigValueError> {
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

/// The error for a field that is missing or has a value that is not usable.
pub(crate) fn wrong(at: &str, given: Option<&Value>, right: &str) -> ConfigValueError {
    let (field, valid) = (at.to_owned(), right.to_owned());
    match given {
        None => ConfigValueError::Missing { field, valid },
        Some(given) => ConfigValueError::Unusable {
            field,
            value: given.clone(),
            valid,
        },
    }
}

/// The error for a field that is not usable for this reason.
pub(crate) fn refused(at: &str, why: impl Into<String>, right: &str) -> ConfigValueError {
    ConfigValueError::Refused {
        field: at.to_owned(),
        why: why.into(),
        valid: right.to_owned(),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_have_the_field_its_value_and_the_valid_form() {
        let three = json!(3);
        for (error, words) in [
            (wrong("a.b", None, "x"), "o.a.b: missing; write x"),
            (
                wrong("a", Some(&three), "x"),
                "o.a: 3 is not usable; write x",
            ),
            (
                wrong("a", Some(&json!("y")), "x"),
                "o.a: \"y\" is not usable; write x",
            ),
            (refused("a", "it is odd", "x"), "o.a: it is odd; write x"),
            (
                fields("a", &json!({"c": 1}), &["b", "d"]).expect_err("no c"),
                "o.a.c: no such field; there are b, d",
            ),
        ] {
            assert_eq!(error.within("o").to_string(), words);
        }
    }
}
