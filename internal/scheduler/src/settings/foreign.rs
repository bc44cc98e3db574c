//! Other schedulers' configurations in Muster's words: which document is whose, and what all of
//! them share. Pure: text inside a ConfigMap is read by a function that the caller gives. Nothing
//! is left out silently: each key without a counterpart is named.

use serde_json::{Map, Value};

use resources::mapping::Warning;

use super::{KIND, Settings, Wrong, kube, volcano};

/// What a document says, and what of it has no counterpart here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Read {
    /// What was said.
    pub settings: Settings,
    /// Keys without a counterpart, or with another meaning.
    pub warnings: Vec<Warning>,
}

/// Turns YAML into a value; what is wrong with it in words.
pub type Parse<'a> = &'a dyn Fn(&str) -> Result<Value, String>;

/// Is this the configuration of a scheduler, this one's or another's?
#[must_use]
pub fn takes(document: &Value) -> bool {
    document["kind"] == KIND || kube::is(document) || volcano::is(document)
}

/// Reads a configuration: Muster's own; Volcano's `volcano-scheduler.conf`, by itself or in its
/// ConfigMap; or a KubeSchedulerConfiguration.
///
/// # Errors
/// The field that can't be read, its value, and what would be right.
pub fn read(document: &Value, parse: Parse<'_>) -> Result<Read, Wrong> {
    if kube::is(document) {
        return kube::read(document);
    }
    if volcano::is(document) {
        return volcano::read(document, parse);
    }
    Ok(Read {
        settings: Settings::read(document)?,
        warnings: Vec::new(),
    })
}

/// Where warnings go: those on one object.
pub(super) struct Notes {
    object: String,
    pub(super) warnings: Vec<Warning>,
}

impl Notes {
    pub(super) fn on(object: &str) -> Notes {
        Notes {
            object: object.to_owned(),
            warnings: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, key: &str, why: impl Into<String>) {
        self.warnings.push(Warning {
            object: self.object.clone(),
            key: key.to_owned(),
            why: why.into(),
        });
    }

    /// Names every key of a mapping but the known ones.
    pub(super) fn rest(&mut self, path: &str, map: &Map<String, Value>, known: &[&str]) {
        for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
            self.add(&within(path, key), "no counterpart");
        }
    }
}

/// A key's path.
pub(super) fn within(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}

/// The items of a list that may be left out.
pub(super) fn items<'a>(field: &str, value: &'a Value) -> Result<&'a [Value], Wrong> {
    match value {
        Value::Null => Ok(&[]),
        Value::Array(items) => Ok(items),
        other => Err(Wrong::new(field, other, "a list")),
    }
}
