//! Reads Volcano's scheduler configuration (`volcano-scheduler.conf`, as of 1.16).
//!
//! | Volcano | Muster |
//! |---|---|
//! | actions `allocate`, `preempt`, `reclaim`, `backfill` | the same; those that are not listed are off |
//! | actions `gangpreempt`, `gangreclaim` | `preempt`, `reclaim`: gangs are evicted whole or down to their minimum |
//! | plugin `binpack`; `nodeorder` with `mostrequested.weight` above `leastrequested.weight` | `placement: pack` |
//! | plugin `nodeorder` otherwise, without `binpack` | `placement: spread`, as `leastrequested` is its default |
//! | plugin `sla`, argument `sla-waiting-time` | `reserveAfter` |
//! | plugins `priority`, `gang`, `drf`, `proportion`, `capacity`, `predicates` | always on |

use serde_json::Value;

use super::foreign::{ForeignSettings, Parse, WarningCollector, items, within};
use super::words::{object, unusable};
use super::{InvalidValue, Settings, span};
use crate::config::{Actions, PlacementStrategy};

/// The suffix of the ConfigMap key that has the text.
const ENDING: &str = ".conf";
/// Volcano's default actions.
const DEFAULT_ACTIONS: &str = "enqueue, allocate, backfill";
/// The prefix of a plugin's `enable…` keys.
const SWITCH: &str = "enable";

/// True if this is Volcano's configuration, or a ConfigMap that contains it.
pub(super) fn is(document: &Value) -> bool {
    if document["kind"] == "ConfigMap" {
        return text_of(document).is_some();
    }
    document["kind"].is_null() && (document["tiers"].is_array() || document["actions"].is_string())
}

/// The key and text of the configuration in a ConfigMap.
fn text_of(map: &Value) -> Option<(&str, &str)> {
    let data = map["data"].as_object()?;
    let texts = data
        .iter()
        .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
    let mut named = texts.filter(|(key, _)| key.ends_with(ENDING) && key.contains("scheduler"));
    named.next()
}

pub(super) fn read(document: &Value, parse: Parse<'_>) -> Result<ForeignSettings, InvalidValue> {
    let Some((key, text)) = text_of(document) else {
        return configuration("volcano-scheduler.conf", document);
    };
    let field = format!("data[{key}]");
    let inner = parse(text).map_err(|error| {
        let first = text.lines().next().unwrap_or_default();
        let valid = format!("Volcano's configuration in YAML ({error})");
        InvalidValue::new(&field, first, valid)
    })?;
    let name = document["metadata"]["name"].as_str().unwrap_or_default();
    configuration(&format!("ConfigMap {name}, {key}"), &inner).map_err(|error| {
        let field = format!("{field}: {}", error.field());
        InvalidValue::new(field, error.value(), error.valid())
    })
}

fn configuration(name: &str, document: &Value) -> Result<ForeignSettings, InvalidValue> {
    let mut notes = WarningCollector::on(name);
    let mut settings = Settings::default();
    let Some(top) = object("", document)? else {
        let valid = "a mapping with actions and tiers";
        return Err(unusable("document", document, valid));
    };
    notes.rest("", top, &["actions", "tiers"]);
    settings.actions = Some(actions(&document["actions"], &mut notes)?);
    let mut order = Order::default();
    for (at, tier) in items("tiers", &document["tiers"])?.iter().enumerate() {
        let path = format!("tiers[{at}]");
        if let Some(tier) = object(&path, tier)? {
            notes.rest(&path, tier, &["plugins"]);
        }
        let path = within(&path, "plugins");
        for (at, own) in items(&path, &tier["plugins"])?.iter().enumerate() {
            plugin(
                &format!("{path}[{at}]"),
                own,
                &mut settings,
                &mut order,
                &mut notes,
            )?;
        }
    }
    settings.placement = order.placement();
    Ok(ForeignSettings {
        settings,
        warnings: notes.warnings,
    })
}

fn actions(value: &Value, notes: &mut WarningCollector) -> Result<Actions, InvalidValue> {
    let text = match value {
        Value::Null => DEFAULT_ACTIONS,
        Value::String(text) => text,
        other => {
            let valid = "the actions' names with commas between them, as in \"enqueue, allocate, backfill\"";
            return Err(unusable("actions", other, valid));
        }
    };
    let mut actions = Actions::NONE;
    let key = |word: &str| format!("actions, {word}");
    for word in text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        match word {
            "allocate" => actions.allocate = true,
            "preempt" | "gangpreempt" => actions.preempt = true,
            "reclaim" | "gangreclaim" => actions.reclaim = true,
            "backfill" => {
                actions.backfill = true;
                notes.add(
                    &key(word),
                    "in Volcano it places pods without requests, which Muster's allocate does; in Muster it starts a gang ahead of its turn if that delays no gang before it",
                );
            }
            "enqueue" => notes.add(
                &key(word),
                "Muster has no counterpart and needs none: a gang waits, and its report says what it lacks",
            ),
            _ => notes.add(&key(word), "Muster has no counterpart and ignores it"),
        }
    }
    Ok(actions)
}

/// What the plugins say about node order.
#[derive(Default)]
struct Order {
    packs: bool,
    spreads: bool,
}

impl Order {
    fn placement(&self) -> Option<PlacementStrategy> {
        match (self.packs, self.spreads) {
            (true, _) => Some(PlacementStrategy::Pack),
            (false, true) => Some(PlacementStrategy::Spread),
            (false, false) => None,
        }
    }
}

fn plugin(
    path: &str,
    own: &Value,
    settings: &mut Settings,
    order: &mut Order,
    notes: &mut WarningCollector,
) -> Result<(), InvalidValue> {
    let Some(fields) = object(path, own)? else {
        return Ok(());
    };
    let name = match &own["name"] {
        Value::String(name) => name.as_str(),
        other => {
            let field = within(path, "name");
            return Err(unusable(&field, other, "the plugin's name"));
        }
    };
    let mut arguments: Vec<&str> = Vec::new();
    match name {
        "priority" | "gang" | "drf" | "proportion" | "capacity" | "predicates" => {}
        "binpack" => order.packs = true,
        "nodeorder" => {
            arguments.extend(["leastrequested.weight", "mostrequested.weight"]);
            let weight = |key: &str, default: f64| number(&own["arguments"][key], default);
            let (least, most) = (
                weight("leastrequested.weight", 1.0),
                weight("mostrequested.weight", 0.0),
            );
            order.packs |= most > least;
            order.spreads |= least > most;
        }
        "sla" => {
            arguments.push("sla-waiting-time");
            let value = &own["arguments"]["sla-waiting-time"];
            if !value.is_null() {
                let field = within(path, "arguments.sla-waiting-time");
                settings.reserve_after = Some(span(&field, value)?);
            }
        }
        "conformance" => notes.add(
            path,
            "Muster has no counterpart of conformance; to keep a system pod from eviction, give it a higher priority, a PodDisruptionBudget, or the annotation muster.io/preemptible: \"false\"",
        ),
        "overcommit" => notes.add(
            path,
            "Muster has no counterpart of overcommit and needs none: it has no enqueue action that holds gangs back",
        ),
        other => notes.add(path, format!("Muster has no counterpart of the plugin {other} and ignores it")),
    }
    for key in fields.keys() {
        let at = within(path, key);
        match key.as_str() {
            "name" | "arguments" => {}
            key if key.starts_with(SWITCH) => notes.add(
                &at,
                format!("Muster cannot switch parts of {name} on or off and ignores it"),
            ),
            _ => notes.add(&at, "Muster has no counterpart and ignores it"),
        }
    }
    let path = within(path, "arguments");
    if let Some(given) = object(&path, &own["arguments"])? {
        notes.rest(&path, given, &arguments);
    }
    Ok(())
}

/// A weight, written as a number or as text.
fn number(value: &Value, default: f64) -> f64 {
    let text = value.as_str().and_then(|text| text.trim().parse().ok());
    value.as_f64().or(text).unwrap_or(default)
}
