//! Columns: what a table prints, the same for the embedded server's tables and the definitions of custom kinds; and
//! the columns that several kinds share, such as name and age.

use jiff::Timestamp;
use serde_json::Value;

use crate::json;
use crate::span::human_duration;

/// One column of a table, and of the kind's CustomResourceDefinition.
#[derive(Clone, Copy)]
pub struct TableColumn {
    /// The heading.
    pub name: &'static str,
    /// `string`, `integer`, `date`, ...
    pub type_: &'static str,
    /// `name` for the name; else empty.
    pub format: &'static str,
    /// The description of its values.
    pub description: &'static str,
    /// 0: always; 1: with `-o wide`.
    pub priority: i32,
    /// Where its cells come from.
    pub source: Source,
}

impl TableColumn {
    /// The cell of one object. An absent text is an empty cell; an absent value of another type is null, which kubectl
    /// prints as an empty cell.
    pub fn cell(&self, object: &Value, now: Timestamp) -> Value {
        match self.source {
            Source::Field(path) if self.type_ == "string" => Value::from(shown(object, path)),
            Source::Field(path) => json::at(object, path).clone(),
            Source::Count(path) => Value::from(json::int(object, path).unwrap_or(0)),
            Source::Condition(type_, member) => {
                let conditions = json::items(object, &["status", "conditions"]);
                let mut named = conditions
                    .iter()
                    .filter(|c| json::text(c, &["type"]) == type_);
                let word = named.next().map(|c| json::text(c, &[member]));
                Value::from(word.unwrap_or_default())
            }
            Source::Since(path) => Value::from(since(json::at(object, path), now)),
            Source::Computed(value) | Source::Approximated(value, _) => value(object, now),
        }
    }
}

/// The text of a value: a number or a boolean as it is written, as kube-apiserver prints it in a column of texts.
fn shown(object: &Value, path: &[&str]) -> String {
    match json::at(object, path) {
        Value::String(text) => text.clone(),
        value @ (Value::Number(_) | Value::Bool(_)) => value.to_string(),
        _ => String::new(),
    }
}

/// Where the cells of a column come from.
#[derive(Clone, Copy)]
pub enum Source {
    /// The value at these member names.
    Field(&'static [&'static str]),
    /// The number at these member names, 0 if absent.
    Count(&'static [&'static str]),
    /// The member of the status' condition of this type: (type, member).
    Condition(&'static str, &'static str),
    /// The time since the timestamp at these member names.
    Since(&'static [&'static str]),
    /// A function of the object. A definition lacks the column, because kube-apiserver only evaluates paths.
    Computed(fn(&Value, now: Timestamp) -> Value),
    /// A function of the object, and the path whose value comes closest, for the definition.
    Approximated(fn(&Value, now: Timestamp) -> Value, &'static str),
}

impl Source {
    /// The JSON path that yields the same in kube-apiserver; `None` if none does.
    pub fn json_path(&self) -> Option<String> {
        match self {
            Source::Field(path) | Source::Count(path) | Source::Since(path) => {
                Some(path.iter().flat_map(|member| [".", *member]).collect())
            }
            Source::Condition(type_, member) => Some(format!(
                r#".status.conditions[?(@.type=="{type_}")].{member}"#
            )),
            Source::Approximated(_, path) => Some((*path).to_owned()),
            Source::Computed(_) => None,
        }
    }

    /// The type of the column in a definition, if a table of Muster's own server has this one: kube-apiserver prints
    /// the time since a timestamp only in a column of type `date`.
    pub fn definition_type(&self, own: &'static str) -> &'static str {
        match self {
            Source::Since(_) => "date",
            _ => own,
        }
    }
}

/// The object's name.
pub(super) const NAME: TableColumn = TableColumn {
    name: "Name",
    type_: "string",
    format: "name",
    description: "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names",
    priority: 0,
    source: Source::Field(&["metadata", "name"]),
};

/// The time since its creation.
pub(super) const AGE: TableColumn = of(
    "Age",
    "string",
    "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.",
    Source::Since(&["metadata", "creationTimestamp"]),
);

/// Name and age only.
pub(super) const NAME_AND_AGE: &[TableColumn] = &[NAME, AGE];

/// A column shown always.
pub(super) const fn of(
    name: &'static str,
    type_: &'static str,
    description: &'static str,
    source: Source,
) -> TableColumn {
    TableColumn {
        name,
        type_,
        format: "",
        description,
        priority: 0,
        source,
    }
}

/// The same column, shown only with `-o wide`.
pub(super) const fn only_wide(column: TableColumn) -> TableColumn {
    TableColumn {
        priority: 1,
        ..column
    }
}

/// A computed column shown always.
pub(super) const fn column(
    name: &'static str,
    type_: &'static str,
    description: &'static str,
    value: fn(&Value, Timestamp) -> Value,
) -> TableColumn {
    of(name, type_, description, Source::Computed(value))
}

/// A computed column shown with `-o wide`.
pub(super) const fn wide(
    name: &'static str,
    type_: &'static str,
    description: &'static str,
    value: fn(&Value, Timestamp) -> Value,
) -> TableColumn {
    only_wide(column(name, type_, description, value))
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
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_without_a_time_has_an_unknown_age() {
        assert_eq!(since(&Value::Null, Timestamp::UNIX_EPOCH), "<unknown>");
        assert_eq!(
            since(&Value::from("1970-01-01T00:00:00Z"), Timestamp::UNIX_EPOCH),
            "0s"
        );
    }

    #[test]
    fn a_source_yields_the_cell_that_its_path_names() {
        let object = json!({
            "metadata": {"creationTimestamp": "1970-01-01T00:00:00Z"},
            "spec": {"queue": "q", "min": 3},
            "status": {"conditions": [{"type": "A", "status": "False"}, {"type": "Ready", "status": "True"}]},
        });
        let now = Timestamp::from_second(90).unwrap();
        for (type_, source, path, cell, absent) in [
            (
                "string",
                Source::Field(&["spec", "queue"]),
                ".spec.queue",
                json!("q"),
                json!(""),
            ),
            (
                "string",
                Source::Field(&["spec", "min"]),
                ".spec.min",
                json!("3"),
                json!(""),
            ),
            (
                "integer",
                Source::Field(&["spec", "min"]),
                ".spec.min",
                json!(3),
                Value::Null,
            ),
            (
                "integer",
                Source::Count(&["spec", "min"]),
                ".spec.min",
                json!(3),
                json!(0),
            ),
            (
                "string",
                Source::Condition("Ready", "status"),
                ".status.conditions[?(@.type==\"Ready\")].status",
                json!("True"),
                json!(""),
            ),
            (
                "string",
                Source::Since(&["metadata", "creationTimestamp"]),
                ".metadata.creationTimestamp",
                json!("90s"),
                json!("<unknown>"),
            ),
        ] {
            let column = of("a", type_, "", source);
            assert_eq!(source.json_path().as_deref(), Some(path));
            assert_eq!(column.cell(&object, now), cell, "{path}");
            assert_eq!(column.cell(&Value::Null, now), absent, "{path}");
        }
    }
}
