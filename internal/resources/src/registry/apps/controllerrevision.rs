//! ControllerRevision, `apps/v1`: an earlier template of a StatefulSet or DaemonSet.

use serde_json::Value;

use super::super::columns::{AGE, NAME, column, or_none};
use super::super::meta::{self, NameRule};
use super::super::{Kind, TableColumn};
use super::number;
use crate::field::{FieldError, Path};
use crate::json;

const COLUMNS: &[TableColumn] = &[
    NAME,
    column(
        "Controller",
        "string",
        "Controller of the object",
        |revision, _| {
            let owners = json::items(revision, &["metadata", "ownerReferences"]).iter();
            let mut owners = owners.filter(|owner| json::truth(owner, &["controller"]));
            let text = owners.next().map(|owner| {
                let group = json::text(owner, &["apiVersion"])
                    .split_once('/')
                    .map_or("", |(group, _)| group);
                let kind = json::text(owner, &["kind"]).to_ascii_lowercase();
                let dot = if group.is_empty() { "" } else { "." };
                format!("{kind}{dot}{group}/{}", json::text(owner, &["name"]))
            });
            or_none(&text.unwrap_or_default())
        },
    ),
    column(
        "Revision",
        "string",
        "The number of the state, in order.",
        |revision, _| number(revision, &["revision"]),
    ),
    AGE,
];

pub(in super::super) const KIND: Kind = Kind {
    group: "apps",
    kind: "ControllerRevision",
    plural: "controllerrevisions",
    singular: "controllerrevision",
    list_kind: "ControllerRevisionList",
    schema: "io.k8s.api.apps.v1.ControllerRevision",
    validate,
    columns: COLUMNS,
    ..Kind::BASE
};

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let number = json::int(new, &["revision"]).unwrap_or(0);
    if number < 0 {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("revision", number, detail));
    }
    match json::at(new, &["data"]) {
        Value::Null => errors.push(FieldError::required("data", "data is mandatory")),
        Value::Object(_) => {}
        _ => {
            let detail = "data must be a valid JSON object";
            errors.push(FieldError::required("data", detail));
        }
    }
    if let Some(old) = old
        && !json::same(json::at(new, &["data"]), json::at(old, &["data"]))
    {
        let value = json::at(new, &["data"]).clone();
        let path = Path::new("data");
        errors.push(FieldError::invalid(&path, value, meta::IMMUTABLE));
    }
    errors
}
