//! Reads other schedulers' configurations: which document belongs to which, and what all readers
//! share. Pure: the caller passes a function that parses text inside a ConfigMap. Every key without
//! a counterpart is reported as a warning.

use serde_json::{Map, Value};

use resources::invalid_value::InvalidValue;
use resources::mapping::Warning;

use super::words::unusable;
use super::{KIND, Settings, kube, volcano};

/// The settings of a document, and its keys that have no counterpart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForeignSettings {
    /// The settings.
    pub settings: Settings,
    /// Keys without a counterpart, or with another meaning.
    pub warnings: Vec<Warning>,
}

/// The error of a parser, which belongs to the caller.
pub type ParseError = Box<dyn std::error::Error + Send + Sync>;

/// Parses YAML.
pub type Parse<'a> = &'a dyn Fn(&str) -> Result<Value, ParseError>;

/// True if this is the configuration of a scheduler: Muster's or another's.
#[must_use]
pub fn takes(document: &Value) -> bool {
    document["kind"] == KIND || kube::is(document) || volcano::is(document)
}

/// Reads a configuration: Muster's own; Volcano's `volcano-scheduler.conf`, alone or in its
/// ConfigMap; or a KubeSchedulerConfiguration.
///
/// # Errors
/// The field that cannot be read, its value, and the valid form.
pub fn read(document: &Value, parse: Parse<'_>) -> Result<ForeignSettings, InvalidValue> {
    if kube::is(document) {
        return kube::read(document);
    }
    if volcano::is(document) {
        return volcano::read(document, parse);
    }
    Ok(ForeignSettings {
        settings: Settings::read(document)?,
        warnings: Vec::new(),
    })
}

/// Collects warnings about one object.
pub(super) struct WarningCollector {
    object: String,
    pub(super) warnings: Vec<Warning>,
}

impl WarningCollector {
    pub(super) fn on(object: &str) -> WarningCollector {
        WarningCollector {
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

    /// Warns about every key of a mapping except the known ones.
    pub(super) fn rest(&mut self, path: &str, map: &Map<String, Value>, known: &[&str]) {
        for key in map.keys().filter(|key| !known.contains(&key.as_str())) {
            self.add(
                &within(path, key),
                "Muster has no counterpart and ignores it",
            );
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

/// The items of a list that may be absent.
pub(super) fn items<'a>(field: &str, value: &'a Value) -> Result<&'a [Value], InvalidValue> {
    match value {
        Value::Null => Ok(&[]),
        Value::Array(items) => Ok(items),
        other => Err(unusable(field, other, "a list")),
    }
}
