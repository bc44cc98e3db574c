//! Owns how the production scheduler is set up for a simulation: what a `SchedulerConfig`
//! document or the command line says, and what is wrong with it. What is not said stays as the
//! scheduler has it.

use jiff::SignedDuration;
use scheduler::{Actions, Config, Decay, GpuOrder, Strategy};
use serde_json::{Map, Value};

use crate::error::SimulatorError;
use crate::read::duration;
use crate::scenario::Seconds;

/// The kind of document that says them.
pub const KIND: &str = "SchedulerConfig";
/// Its apiVersion.
pub const API_VERSION: &str = "muster.io/v1alpha1";

/// The words for what plans may do, in the order in which they do it.
const ACTIONS: [&str; 6] = [
    "allocate",
    "consolidate",
    "reclaim",
    "preempt",
    "backfill",
    "defragment",
];
/// The words for which nodes are taken first.
const PLACEMENTS: [(&str, Strategy); 3] = [
    ("fragmentation", Strategy::Fragmentation),
    ("pack", Strategy::Pack),
    ("spread", Strategy::Spread),
];
/// The words for which GPU of a node a pod gets that shares one.
const GPUS: [(&str, GpuOrder); 2] = [("pack", GpuOrder::Pack), ("spread", GpuOrder::Spread)];
/// The fields of a document's `spec`.
const FIELDS: [&str; 7] = [
    "actions",
    "topology",
    "placement",
    "gpus",
    "staleAfter",
    "schedulerNames",
    "usage",
];

/// What was said of the scheduler; none where nothing was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// What plans may do.
    pub actions: Option<Actions>,
    /// Node labels that name network domains, widest first.
    pub topology: Option<Vec<String>>,
    /// Which nodes are taken first.
    pub placement: Option<Strategy>,
    /// Which GPU of a node a pod gets that shares one.
    pub gpus: Option<GpuOrder>,
    /// Seconds that a gang below its minimum is left running.
    pub stale_after: Option<Seconds>,
    /// The `schedulerName` values that are answered to.
    pub scheduler_names: Option<Vec<String>>,
    /// How past use counts.
    pub usage: Option<Decay>,
}

/// One thing that can't be read: field, value, what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) field: String,
    pub(crate) value: String,
    pub(crate) wanted: String,
}

impl Wrong {
    fn new(field: &str, value: &Value, wanted: impl Into<String>) -> Wrong {
        Wrong {
            field: field.to_owned(),
            value: match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            },
            wanted: wanted.into(),
        }
    }

    fn of_option(self, option: &str) -> SimulatorError {
        SimulatorError::Option {
            option: option.to_owned(),
            value: self.value,
            wanted: self.wanted,
        }
    }
}

impl Settings {
    /// Reads a document.
    pub(crate) fn read(document: &Value) -> Result<Settings, Wrong> {
        if document["apiVersion"] != API_VERSION {
            let value = &document["apiVersion"];
            let wanted = format!("a {KIND} is of {API_VERSION}");
            return Err(Wrong::new("apiVersion", value, wanted));
        }
        let mut settings = Settings::default();
        let Some(spec) = object("spec", &document["spec"])? else {
            return Ok(settings);
        };
        known("spec", spec, &FIELDS)?;
        for (name, value) in spec {
            let field = format!("spec.{name}");
            match name.as_str() {
                "actions" => settings.actions = Some(actions(&field, &words(&field, value)?)?),
                "topology" => settings.topology = Some(words(&field, value)?),
                "placement" => settings.placement = Some(one_of(&field, value, &PLACEMENTS)?),
                "gpus" => settings.gpus = Some(one_of(&field, value, &GPUS)?),
                "staleAfter" => settings.stale_after = Some(span(&field, value)?),
                "schedulerNames" => settings.scheduler_names = Some(words(&field, value)?),
                _ => settings.usage = usage(&field, value)?,
            }
        }
        Ok(settings)
    }

    /// What this says, and what that says where this says nothing.
    #[must_use]
    pub fn or(self, other: Settings) -> Settings {
        Settings {
            actions: self.actions.or(other.actions),
            topology: self.topology.or(other.topology),
            placement: self.placement.or(other.placement),
            gpus: self.gpus.or(other.gpus),
            stale_after: self.stale_after.or(other.stale_after),
            scheduler_names: self.scheduler_names.or(other.scheduler_names),
            usage: self.usage.or(other.usage),
        }
    }

    /// The scheduler's configuration with what was said.
    #[must_use]
    pub fn applied(&self, mut config: Config) -> Config {
        if let Some(actions) = self.actions {
            config.actions = actions;
        }
        if let Some(topology) = &self.topology {
            config.topology.clone_from(topology);
        }
        if let Some(placement) = self.placement {
            config.placement = placement;
        }
        if let Some(gpus) = self.gpus {
            config.gpus = gpus;
        }
        if let Some(seconds) = self.stale_after {
            config.stale_after = SignedDuration::from_secs(seconds);
        }
        if let Some(names) = &self.scheduler_names {
            config.scheduler_names.clone_from(names);
        }
        if self.usage.is_some() {
            config.usage = self.usage;
        }
        config
    }
}

/// Reads `--actions`: words with commas between.
pub fn actions_option(text: &str) -> Result<Actions, SimulatorError> {
    let words: Vec<String> = text.split(',').map(|word| word.trim().to_owned()).collect();
    actions("--actions", &words).map_err(|wrong| wrong.of_option("--actions"))
}

/// Reads `--placement`.
pub fn placement_option(text: &str) -> Result<Strategy, SimulatorError> {
    let value = Value::from(text);
    one_of("--placement", &value, &PLACEMENTS).map_err(|wrong| wrong.of_option("--placement"))
}

fn actions(field: &str, words: &[String]) -> Result<Actions, Wrong> {
    let mut actions = Actions {
        allocate: false,
        consolidate: false,
        reclaim: false,
        preempt: false,
        backfill: false,
        defragment: false,
    };
    for word in words {
        let own = match word.as_str() {
            "allocate" => &mut actions.allocate,
            "consolidate" => &mut actions.consolidate,
            "reclaim" => &mut actions.reclaim,
            "preempt" => &mut actions.preempt,
            "backfill" => &mut actions.backfill,
            "defragment" => &mut actions.defragment,
            _ => {
                let wanted = format!("the actions are {}", ACTIONS.join(", "));
                return Err(Wrong::new(field, &Value::from(word.as_str()), wanted));
            }
        };
        *own = true;
    }
    Ok(actions)
}

/// One of some words, as what it stands for.
fn one_of<T: Copy>(field: &str, value: &Value, words: &[(&str, T)]) -> Result<T, Wrong> {
    let found = words.iter().find(|(word, _)| *value == *word);
    found.map(|(_, meant)| *meant).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        Wrong::new(field, value, format!("one of {}", words.join(", ")))
    })
}

fn span(field: &str, value: &Value) -> Result<Seconds, Wrong> {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    duration::seconds(&text).map_err(|()| Wrong::new(field, value, duration::SPAN))
}

fn words(field: &str, value: &Value) -> Result<Vec<String>, Wrong> {
    let wrong = || Wrong::new(field, value, "a list of words, as in [a, b]");
    let items = value.as_array().ok_or_else(wrong)?;
    let words = items.iter().map(|item| item.as_str().map(str::to_owned));
    words.collect::<Option<Vec<String>>>().ok_or_else(wrong)
}

fn usage(field: &str, value: &Value) -> Result<Option<Decay>, Wrong> {
    let Some(fields) = object(field, value)? else {
        return Ok(None);
    };
    known(field, fields, &["halfLife", "strength"])?;
    let half_life = fields.get("halfLife").unwrap_or(&Value::Null);
    let seconds = span(&format!("{field}.halfLife"), half_life)?;
    let strength = match fields.get("strength") {
        None => 1000,
        Some(value) => value
            .as_f64()
            .filter(|strength| (0.0..=1000.0).contains(strength))
            .map(|strength| (strength * 1000.0).round() as i64)
            .ok_or_else(|| {
                let field = format!("{field}.strength");
                Wrong::new(&field, value, "a number from 0 (none) up; 1 is customary")
            })?,
    };
    Ok(Some(Decay {
        half_life_seconds: seconds,
        strength,
    }))
}

fn object<'a>(field: &str, value: &'a Value) -> Result<Option<&'a Map<String, Value>>, Wrong> {
    match value {
        Value::Null => Ok(None),
        Value::Object(map) => Ok(Some(map)),
        other => Err(Wrong::new(field, other, "a mapping of fields")),
    }
}

fn known(field: &str, map: &Map<String, Value>, names: &[&str]) -> Result<(), Wrong> {
    match map.iter().find(|(name, _)| !names.contains(&name.as_str())) {
        None => Ok(()),
        Some((name, value)) => {
            let wanted = format!(
                "there is no such field; the fields are {}",
                names.join(", ")
            );
            Err(Wrong::new(&format!("{field}.{name}"), value, wanted))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document(spec: Value) -> Value {
        json!({"apiVersion": API_VERSION, "kind": KIND, "spec": spec})
    }

    #[test]
    fn a_document_sets_what_it_says_and_leaves_the_rest() {
        let read = Settings::read(&document(json!({
            "actions": ["reclaim"], "topology": ["block", "rack"], "placement": "spread",
            "gpus": "spread", "staleAfter": "1m30s", "usage": {"halfLife": "7d", "strength": 0.5},
        })))
        .unwrap();
        let config = read.applied(Config::default());
        assert!(config.actions.reclaim && !config.actions.allocate && !config.actions.backfill);
        assert_eq!(config.topology, ["block", "rack"]);
        assert_eq!(config.placement, Strategy::Spread);
        assert_eq!(config.gpus, GpuOrder::Spread);
        assert_eq!(config.stale_after, SignedDuration::from_secs(90));
        let usage = config.usage.unwrap();
        assert_eq!((usage.half_life_seconds, usage.strength), (604_800, 500));
        assert_eq!(config.scheduler_names, Config::default().scheduler_names);
        let nothing = Settings::read(&document(Value::Null)).unwrap();
        assert_eq!(nothing, Settings::default());
    }

    #[test]
    fn what_cannot_be_read_is_named_with_what_would_be_right() {
        let table = [
            (
                json!({"actions": ["alocate"]}),
                "spec.actions",
                "consolidate",
            ),
            (json!({"actions": "allocate"}), "spec.actions", "list"),
            (json!({"placement": "tight"}), "spec.placement", "spread"),
            (json!({"staleAfter": "soon"}), "spec.staleAfter", "1h30m"),
            (json!({"topologies": []}), "spec.topologies", "topology"),
            (
                json!({"usage": {"strength": 1}}),
                "spec.usage.halfLife",
                "1h30m",
            ),
            (
                json!({"usage": {"halfLife": "1d", "strength": "much"}}),
                "spec.usage.strength",
                "number",
            ),
        ];
        for (spec, field, word) in table {
            let wrong = Settings::read(&document(spec)).unwrap_err();
            assert_eq!(wrong.field, field);
            assert!(wrong.wanted.contains(word), "{wrong:?}");
        }
        let wrong = Settings::read(&json!({"kind": KIND})).unwrap_err();
        assert_eq!(wrong.field, "apiVersion");
    }
}
