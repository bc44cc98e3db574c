//! The utilisation of a node's GPUs, as its agent measured it: the annotation
//! [`crate::names::LOAD`], and the conditions for writing it again. Data and thresholds; the
//! scheduler decides what follows from them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::alerts::{FULL_POWER, HOT_CELSIUS};

/// A GPU with at least this utilisation in percent, or this fraction of its memory in use, is busy.
const BUSY_PERCENT: f64 = 20.0;
const BUSY_MEMORY: f64 = 0.1;
/// The smallest reported changes: of utilisation in percent, of the fractions of memory and of the
/// power limit, and of the temperature in degrees.
const MUCH_PERCENT: f64 = 25.0;
const MUCH_PART: f64 = 0.1;
const MUCH_POWER: f64 = 0.25;
const MUCH_CELSIUS: f64 = 10.0;

/// One GPU; absent values are unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuLoad {
    /// Utilisation in percent of the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
    /// The fraction of its memory in use, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Its temperature, in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub celsius: Option<f64>,
    /// The power that it draws.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<f64>,
    /// Its power limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts_limit: Option<f64>,
}

/// A node's GPUs by id.
pub type GpuLoads = BTreeMap<String, GpuLoad>;

/// The annotation: the GPUs' utilisation, and the time of the measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeLoad {
    /// The time of the measurement.
    pub at: Timestamp,
    /// The GPUs by id.
    #[serde(default)]
    pub gpus: GpuLoads,
}

impl GpuLoad {
    /// True if the GPU is too hot or at its power limit.
    #[must_use]
    pub fn strained(&self) -> bool {
        let hot = self.celsius.is_some_and(|celsius| celsius >= HOT_CELSIUS);
        let drawn = self.watts.zip(self.watts_limit);
        hot || drawn.is_some_and(|(watts, limit)| limit > 0.0 && watts >= FULL_POWER * limit)
    }

    /// True if the GPU is busy.
    #[must_use]
    pub fn busy(&self) -> bool {
        self.utilisation
            .is_some_and(|percent| percent >= BUSY_PERCENT)
            || self.memory.is_some_and(|part| part >= BUSY_MEMORY)
    }

    /// True if it differs from `before` by a reported change.
    #[must_use]
    pub fn differs_much(&self, before: &GpuLoad) -> bool {
        let apart = |now: Option<f64>, then: Option<f64>, much: f64| match (now, then) {
            (Some(now), Some(then)) => (now - then).abs() >= much,
            (now, then) => now.is_some() != then.is_some(),
        };
        let limit = self.watts_limit.unwrap_or(f64::INFINITY);
        self.strained() != before.strained()
            || self.busy() != before.busy()
            || apart(self.utilisation, before.utilisation, MUCH_PERCENT)
            || apart(self.memory, before.memory, MUCH_PART)
            || apart(self.celsius, before.celsius, MUCH_CELSIUS)
            || apart(self.watts, before.watts, MUCH_POWER * limit)
    }

    /// As text for the web pages; empty if nothing is known.
    #[must_use]
    pub fn message(&self) -> String {
        let mut words = Vec::new();
        if let Some(percent) = self.utilisation {
            words.push(format!("{percent:.0}% busy"));
        }
        if let Some(part) = self.memory {
            words.push(format!("{:.0}% of its memory", part * 100.0));
        }
        if let Some(celsius) = self.celsius {
            words.push(format!("{celsius:.0} °C"));
        }
        if let Some(watts) = self.watts {
            words.push(format!("{watts:.0} W"));
        }
        words.join(", ")
    }
}

/// True if the current loads should be reported, given the last reported ones.
#[must_use]
pub fn worth_telling(now: &GpuLoads, before: &GpuLoads) -> bool {
    now.len() != before.len()
        || now.iter().any(|(id, load)| match before.get(id) {
            Some(then) => load.differs_much(then),
            None => true,
        })
}

/// True if any GPU is busy, too hot or at its power limit. Only then must the report be renewed
/// before it is too old.
#[must_use]
pub fn counts(loads: &GpuLoads) -> bool {
    loads.values().any(|load| load.busy() || load.strained())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(utilisation: f64, celsius: f64) -> GpuLoad {
        GpuLoad {
            utilisation: Some(utilisation),
            memory: Some(0.05),
            celsius: Some(celsius),
            ..GpuLoad::default()
        }
    }

    fn loads(all: &[GpuLoad]) -> GpuLoads {
        let named = all.iter().enumerate();
        named.map(|(i, load)| (format!("GPU-{i}"), *load)).collect()
    }

    #[test]
    fn only_large_changes_are_reported() {
        let before = loads(&[load(50.0, 60.0), load(3.0, 40.0)]);
        for (now, told) in [
            (loads(&[load(60.0, 65.0), load(5.0, 42.0)]), false),
            (loads(&[load(80.0, 65.0), load(5.0, 42.0)]), true),
            (loads(&[load(50.0, 70.0), load(3.0, 40.0)]), true),
            // A small change that crosses the threshold between idle and busy.
            (loads(&[load(50.0, 60.0), load(21.0, 40.0)]), true),
            (loads(&[load(50.0, 60.0)]), true),
        ] {
            assert_eq!(worth_telling(&now, &before), told, "{now:?}");
        }
        assert!(counts(&before));
        assert!(!counts(&loads(&[load(3.0, 40.0)])));
        assert!(!counts(&loads(&[])));
    }

    #[test]
    fn unknown_values_are_neither_written_nor_reported_again() {
        let nothing = GpuLoad::default();
        assert_eq!(serde_json::to_string(&nothing).unwrap(), "{}");
        assert!(!nothing.differs_much(&nothing) && !nothing.busy());
        assert!(load(1.0, 1.0).differs_much(&nothing));
        assert_eq!(
            load(93.4, 71.0).message(),
            "93% busy, 5% of its memory, 71 °C"
        );
    }
}
