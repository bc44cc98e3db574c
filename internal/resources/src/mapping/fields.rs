//! Owns the reading of one mapping's keys: a mapping reads each key by name, and every unread key
//! is reported as having no counterpart.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{MappingError, ResourceAmounts, Warning};
use crate::invalid_value::InvalidValue;
use crate::quantity::Quantity;

static EMPTY: Value = Value::Null;

/// The keys of one mapping within an object.
pub(super) struct Fields<'a> {
    object: String,
    path: String,
    map: Option<&'a Map<String, Value>>,
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Fields<'a> {
    pub(super) fn of(object: &str, path: &str, value: &'a Value) -> Fields<'a> {
        Fields {
            object: object.to_owned(),
            path: path.to_owned(),
            map: value.as_object(),
            asked: RefCell::default(),
        }
    }

    pub(super) fn path(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// The value of a key; marks the key as read.
    pub(super) fn get(&self, key: &str) -> &'a Value {
        self.asked.borrow_mut().insert(key.to_owned());
        self.map.and_then(|map| map.get(key)).unwrap_or(&EMPTY)
    }

    pub(super) fn inner(&self, key: &str) -> Fields<'a> {
        Fields::of(&self.object, &self.path(key), self.get(key))
    }

    /// The items of a list, each as a mapping.
    pub(super) fn items(&self, key: &str) -> Vec<Fields<'a>> {
        let items = self.get(key).as_array().into_iter().flatten();
        let path = self.path(key);
        items
            .enumerate()
            .map(|(at, item)| Fields::of(&self.object, &format!("{path}[{at}]"), item))
            .collect()
    }

    pub(super) fn word(&self, key: &str) -> Option<&'a str> {
        self.get(key).as_str().filter(|word| !word.is_empty())
    }

    /// A string, number or boolean as text.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        match self.get(key) {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    /// The value for a key whose text must be one of `words`.
    pub(super) fn one_of<T: Copy>(
        &self,
        key: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, MappingError> {
        let Some(text) = self.text(key) else {
            return Ok(None);
        };
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| Some(*value)).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.wrong(key, text, format!("one of {}", words.join(", ")))
        })
    }

    pub(super) fn quantity(&self, key: &str) -> Result<Option<Quantity>, MappingError> {
        let Some(text) = self.text(key) else {
            return Ok(None);
        };
        match text.trim().parse() {
            Ok(quantity) => Ok(Some(quantity)),
            Err(_) => Err(self.wrong(key, text, QUANTITY.to_owned())),
        }
    }

    /// Amounts by resource.
    pub(super) fn list(&self, key: &str) -> Result<ResourceAmounts, MappingError> {
        let inner = self.inner(key);
        let names = inner.map.into_iter().flat_map(Map::keys);
        let mut list = ResourceAmounts::new();
        for name in names {
            if let Some(quantity) = inner.quantity(name)? {
                list.insert(name.clone(), quantity);
            }
        }
        Ok(list)
    }

    pub(super) fn wrong(&self, key: &str, value: String, valid: String) -> MappingError {
        MappingError {
            object: self.object.clone(),
            error: InvalidValue::new(self.path(key), value, valid),
        }
    }

    pub(super) fn warn(&self, key: &str, why: &str, warnings: &mut Vec<Warning>) {
        warnings.push(Warning {
            object: self.object.clone(),
            key: self.path(key),
            why: why.to_owned(),
        });
    }

    /// Warns of every key that was not read.
    pub(super) fn rest(&self, warnings: &mut Vec<Warning>) {
        let asked = self.asked.borrow();
        for (key, value) in self.map.into_iter().flatten() {
            if !asked.contains(key) && !value.is_null() {
                self.warn(key, "Muster has no counterpart and leaves it out", warnings);
            }
        }
    }
}

const QUANTITY: &str = "a quantity as Kubernetes does: 8, 500m, 64Gi";
