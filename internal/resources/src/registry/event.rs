//! Event: a record of something that happened to an object.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::columns::{column, instant, since, wide};
use super::meta::{self, NameRule};
use super::{Kind, TableColumn};
use crate::field::FieldError;
use crate::json;

const COLUMNS: &[TableColumn] = &[
    column("Last Seen", "string", "When it last happened.", last_seen),
    column("Type", "string", "Normal or Warning.", |event, _| {
        Value::from(json::text(event, &["type"]))
    }),
    column("Reason", "string", "The reason in one word.", |event, _| {
        Value::from(json::text(event, &["reason"]))
    }),
    column(
        "Object",
        "string",
        "The object that the event is about.",
        |event, _| {
            let kind = json::text(event, &["involvedObject", "kind"]).to_lowercase();
            let name = json::text(event, &["involvedObject", "name"]);
            Value::from(if name.is_empty() {
                kind
            } else {
                format!("{kind}/{name}")
            })
        },
    ),
    wide(
        "Subobject",
        "string",
        "The part of the object that the event is about.",
        |event, _| Value::from(json::text(event, &["involvedObject", "fieldPath"])),
    ),
    wide(
        "Source",
        "string",
        "The component that reported the event.",
        |event, _| source(event),
    ),
    column("Message", "string", "What happened.", |event, _| {
        Value::from(json::text(event, &["message"]).trim())
    }),
    wide(
        "First Seen",
        "string",
        "When it first happened.",
        |event, now| Value::from(first_seen(event, now)),
    ),
    wide("Count", "string", "How often.", |event, _| {
        let series = json::int(event, &["series", "count"]);
        let count = series
            .or(json::int(event, &["count"]))
            .filter(|n| *n != 0)
            .unwrap_or(1);
        Value::from(count)
    }),
    TableColumn {
        priority: 1,
        ..super::columns::NAME
    },
];

pub(super) const KIND: Kind = Kind {
    kind: "Event",
    plural: "events",
    singular: "event",
    list_kind: "EventList",
    short_names: &["ev"],
    schema: "io.k8s.api.core.v1.Event",
    default: |event| json::fill(event, "involvedObject", json!({})),
    validate,
    columns: COLUMNS,
    fields: &[
        ("involvedObject.kind", |e| {
            json::text(e, &["involvedObject", "kind"]).to_owned()
        }),
        ("involvedObject.namespace", |e| {
            json::text(e, &["involvedObject", "namespace"]).to_owned()
        }),
        ("involvedObject.name", |e| {
            json::text(e, &["involvedObject", "name"]).to_owned()
        }),
        ("involvedObject.uid", |e| {
            json::text(e, &["involvedObject", "uid"]).to_owned()
        }),
        ("involvedObject.apiVersion", |e| {
            json::text(e, &["involvedObject", "apiVersion"]).to_owned()
        }),
        ("involvedObject.resourceVersion", |e| {
            json::text(e, &["involvedObject", "resourceVersion"]).to_owned()
        }),
        ("involvedObject.fieldPath", |e| {
            json::text(e, &["involvedObject", "fieldPath"]).to_owned()
        }),
        ("reason", |e| json::text(e, &["reason"]).to_owned()),
        ("reportingComponent", |e| {
            json::text(e, &["reportingComponent"]).to_owned()
        }),
        ("source", |e| {
            first_of(
                json::text(e, &["source", "component"]),
                json::text(e, &["reportingComponent"]),
            )
            .to_owned()
        }),
        ("type", |e| json::text(e, &["type"]).to_owned()),
    ],
    ..Kind::BASE
};

fn first_of<'a>(a: &'a str, b: &'a str) -> &'a str {
    if a.is_empty() { b } else { a }
}

fn validate(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    meta::check(new, old, true, NameRule::Subdomain, &mut errors);
    let about = json::text(new, &["involvedObject", "namespace"]);
    if !about.is_empty() && about != json::text(new, &["metadata", "namespace"]) {
        errors.push(FieldError::invalid(
            "involvedObject.namespace",
            about,
            "does not match event.namespace",
        ));
    }
    errors
}

fn seen(event: &Value, path: &[&str], now: Timestamp) -> Option<String> {
    let at = json::at(event, path);
    instant(at).map(|_| since(at, now))
}

fn first_seen(event: &Value, now: Timestamp) -> String {
    seen(event, &["firstTimestamp"], now)
        .or_else(|| seen(event, &["eventTime"], now))
        .unwrap_or_else(|| "<unknown>".to_owned())
}

fn last_seen(event: &Value, now: Timestamp) -> Value {
    let last = seen(event, &["series", "lastObservedTime"], now)
        .or_else(|| seen(event, &["lastTimestamp"], now));
    Value::from(last.unwrap_or_else(|| first_seen(event, now)))
}

fn source(event: &Value) -> Value {
    let component = first_of(
        json::text(event, &["source", "component"]),
        json::text(event, &["reportingComponent"]),
    );
    let host = first_of(
        json::text(event, &["source", "host"]),
        json::text(event, &["reportingInstance"]),
    );
    Value::from(if host.is_empty() {
        component.to_owned()
    } else {
        format!("{component}, {host}")
    })
}
