//! Columns that several kinds share, such as name and age.

use jiff::Timestamp;
use serde_json::Value;

use super::Column;
use crate::json;
use crate::span::human_duration;

/// The object's name.
pub(super) const NAME: Column = Column {
    name: "Name",
    type_: "string",
    format: "name",
    description: "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names",
    priority: 0,
    value: |object, _| json::at(object, &["metadata", "name"]).clone(),
};

/// The time since its creation.
pub(super) const AGE: Column = Column {
    name: "Age",
    type_: "string",
    format: "",
    description: "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.",
    priority: 0,
    value: |object, now| {
        Value::from(since(
            json::at(object, &["metadata", "creationTimestamp"]),
            now,
        ))
    },
};

/// Name and age only.
pub(super) const NAME_AND_AGE: &[Column] = &[NAME, AGE];

/// A column shown always.
pub(super) const fn column(
    name: &'static str,
    type_: &'static str,
    description: &'static str,
    value: fn(&Value, Timestamp) -> Value,
) -> Column {
    Column {
        name,
        type_,
        format: "",
        description,
        priority: 0,
        value,
    }
}

/// A column shown with `-o wide`.
pub(super) const fn wide(
    name: &'static str,
    type_: &'static str,
    description: &'static str,
    value: fn(&Value, Timestamp) -> Value,
) -> Column {
    Column {
        priority: 1,
        ..column(name, type_, description, value)
    }
}

/// The time since a timestamp, as kubectl prints it; `<unknown>` without one.
pub(super) fn since(timestamp: &Value, now: Timestamp) -> String {
    match instant(timestamp) {
        Some(then) => human_duration(now.as_second() - then.as_second()),
        None => "<unknown>".to_owned(),
    }
}

/// A timestamp of an object.
pub(super) fn instant(timestamp: &Value) -> Option<Timestamp> {
    timestamp.as_str()?.parse().ok()
}

/// The text, or `<none>` if it is empty.
pub(super) fn or_none(text: &str) -> Value {
    Value::from(if text.is_empty() { "<none>" } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_without_a_time_has_an_unknown_age() {
        assert_eq!(since(&Value::Null, Timestamp::UNIX_EPOCH), "<unknown>");
        assert_eq!(
            since(&Value::from("1970-01-01T00:00:00Z"), Timestamp::UNIX_EPOCH),
            "0s"
        );
    }
}
