//! Owns the printed forms of objects that the server builds: tables with a kind's columns, and
//! metadata alone.

use jiff::Timestamp;
use resources::registry::Kind;
use serde_json::{Value, json};

use crate::call::Call;
use crate::status::Failure;

/// How much of an object a table's row contains in addition to the cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inclusion {
    None,
    Metadata,
    Object,
}

impl Inclusion {
    /// Reads `includeObject`.
    pub(crate) fn of(call: &Call) -> Result<Self, Failure> {
        match call.params.get("includeObject") {
            None | Some("Metadata") => Ok(Inclusion::Metadata),
            Some("None") => Ok(Inclusion::None),
            Some("Object") => Ok(Inclusion::Object),
            Some(other) => Err(Failure::bad_request(format!(
                "includeObject: Unsupported value: \"{other}\": supported values: \"None\", \"Metadata\", \"Object\""
            ))),
        }
    }
}

/// A table of one object.
pub(crate) fn of_one(call: &Call, version: &str, object: &Value) -> Result<Value, Failure> {
    let inclusion = Inclusion::of(call)?;
    let revision = object["metadata"]["resourceVersion"].clone();
    let mut table = table(
        call.kind,
        version,
        inclusion,
        call.server.now(),
        std::slice::from_ref(object),
        true,
    );
    table["metadata"] = json!({"resourceVersion": revision});
    Ok(table)
}

/// Adds columns and rows to a list's head.
pub(crate) fn fill(
    call: &Call,
    version: &str,
    list: &mut Value,
    objects: &[Value],
) -> Result<(), Failure> {
    let mut table = table(
        call.kind,
        version,
        Inclusion::of(call)?,
        call.server.now(),
        objects,
        true,
    );
    for key in ["columnDefinitions", "rows"] {
        list[key] = table[key].take();
    }
    Ok(())
}

/// A table of objects, with or without column definitions.
pub(crate) fn table(
    kind: &Kind,
    version: &str,
    inclusion: Inclusion,
    now: Timestamp,
    objects: &[Value],
    headed: bool,
) -> Value {
    let rows = objects
        .iter()
        .map(|object| row(kind, version, inclusion, now, object))
        .collect();
    let columns = if headed { columns(kind) } else { Value::Null };
    json!({
        "kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"), "metadata": {},
        "columnDefinitions": columns, "rows": Value::Array(rows),
    })
}

fn columns(kind: &Kind) -> Value {
    let column = |column: &resources::registry::TableColumn| {
        json!({
            "name": column.name, "type": column.type_, "format": column.format,
            "description": column.description, "priority": column.priority,
        })
    };
    kind.columns.iter().map(column).collect()
}

fn row(kind: &Kind, version: &str, inclusion: Inclusion, now: Timestamp, object: &Value) -> Value {
    let cells = kind
        .columns
        .iter()
        .map(|column| column.cell(object, now))
        .collect();
    let mut row = json!({"cells": Value::Array(cells)});
    match inclusion {
        Inclusion::None => {}
        Inclusion::Metadata => row["object"] = metadata_of(version, object),
        Inclusion::Object => row["object"] = object.clone(),
    }
    row
}

/// A table without rows that only contains a revision.
pub(crate) fn bookmark(kind: &Kind, version: &str, meta: &Value) -> Value {
    let object = json!({"kind": kind.kind, "apiVersion": kind.api_version(), "metadata": meta});
    json!({
        "kind": "Table", "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": {"resourceVersion": meta["resourceVersion"]}, "columnDefinitions": null,
        "rows": [{"cells": [], "object": object}],
    })
}

/// An object's metadata as a separate object.
pub(crate) fn metadata_of(version: &str, object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": format!("meta.k8s.io/{version}"),
        "metadata": object["metadata"],
    })
}
