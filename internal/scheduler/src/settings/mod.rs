//! The scheduler's configuration as users write it: the `SchedulerConfig` document that the server
//! and `muster simulate` read, and its errors. An absent field keeps the default of [`Config`].
//! Other schedulers' configurations are read by `foreign`.

mod foreign;
mod kube;
mod mix;
mod volcano;
mod words;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use resources::syntax;
use serde_json::Value;

use crate::config::{Actions, Config, Lead, PlacementStrategy};
use crate::evict::DefragmentationBudget;
use crate::queue::Decay;
use crate::repartition::RepartitionBudget;
use crate::share::GpuOrder;
use words::{count, known, object, one_of, span, texts, truth, unusable};

pub use foreign::{ForeignSettings, Parse, ParseError, read, takes};
pub use resources::invalid_value::InvalidValue;

/// The kind of the document.
pub const KIND: &str = "SchedulerConfig";
/// Its apiVersion.
pub const API_VERSION: &str = "muster.io/v1alpha1";

/// The names of the actions, in the order in which a plan takes them.
const ACTIONS: [&str; 6] = [
    "allocate",
    "consolidate",
    "reclaim",
    "preempt",
    "backfill",
    "defragment",
];
/// The names of the placement strategies.
const PLACEMENTS: [(&str, PlacementStrategy); 3] = [
    ("fragmentation", PlacementStrategy::Fragmentation),
    ("pack", PlacementStrategy::Pack),
    ("spread", PlacementStrategy::Spread),
];
/// The names of the GPU orders.
const GPUS: [(&str, GpuOrder); 2] = [("pack", GpuOrder::Pack), ("spread", GpuOrder::Spread)];
/// The names of the rules for which gang capacity is reserved.
const LEADS: [(&str, Lead); 4] = [
    ("share", Lead::Share),
    ("age", Lead::Age),
    ("size", Lead::Size),
    ("response", Lead::Response),
];
/// The document's top-level fields.
const TOP: [&str; 4] = ["apiVersion", "kind", "metadata", "spec"];
/// The fields of its `spec`.
const FIELDS: [&str; 15] = [
    "actions",
    "topology",
    "placement",
    "gpus",
    "staleAfter",
    "schedulerNames",
    "usage",
    "reserveAfter",
    "reserveFor",
    "weighLosses",
    "breakBudgets",
    "loadAge",
    "defragmentation",
    "mig",
    "expected",
];
/// The largest number of moves in an hour.
const MOVES_MAX: i64 = 100_000;
/// The shortest time that a MIG configuration may be kept.
const EVERY_LEAST: SignedDuration = SignedDuration::from_mins(1);
/// The largest number of interrupted GPUs that one freed GPU may be worth.
const INTERRUPTED_MAX: i64 = 1000;

/// The settings of a document; `None` for a field that is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// What plans may do.
    pub actions: Option<Actions>,
    /// Node labels that name network domains, widest first.
    pub topology: Option<Vec<String>>,
    /// Which nodes are taken first.
    pub placement: Option<PlacementStrategy>,
    /// Which GPU of a node a pod gets that requests a part of one.
    pub gpus: Option<GpuOrder>,
    /// Seconds that a gang below its minimum keeps running.
    pub stale_after: Option<i64>,
    /// The `schedulerName` values whose pods are scheduled.
    pub scheduler_names: Option<Vec<String>>,
    /// How past use counts.
    pub usage: Option<Decay>,
    /// Seconds that a gang waits before capacity is reserved for it.
    pub reserve_after: Option<i64>,
    /// Which waiting gang capacity is reserved for.
    pub lead: Option<Lead>,
    /// Must evictions save more waiting time than they lose work?
    pub weigh_losses: Option<bool>,
    /// May evictions violate PodDisruptionBudgets if nothing else makes room?
    pub break_budgets: Option<bool>,
    /// Seconds after which a node's reported load is ignored.
    pub load_age: Option<i64>,
    /// How much defragmentation may move, and for what gain.
    pub defragmentation: Option<DefragmentationBudget>,
    /// MIG repartitioning of idle GPUs; `Some(None)`: off.
    pub mig: Option<Option<RepartitionBudget>>,
    /// The expected pods: each kind with its number.
    pub expected: Option<Vec<(Pod, u64)>>,
}

impl Settings {
    /// Reads a document.
    pub fn read(document: &Value) -> Result<Settings, InvalidValue> {
        let top = document.as_object().ok_or_else(|| {
            let valid = format!("a mapping with apiVersion {API_VERSION} and kind {KIND}");
            unusable("document", document, valid)
        })?;
        for (field, right) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            if document[field] != right {
                return Err(unusable(field, &document[field], right));
            }
        }
        known("", top, &TOP)?;
        let mut settings = Settings::default();
        let Some(spec) = object("spec", &document["spec"])? else {
            return Ok(settings);
        };
        known("spec", spec, &FIELDS)?;
        for (name, value) in spec {
            let field = format!("spec.{name}");
            settings.set(name, &field, value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, field: &str, value: &Value) -> Result<(), InvalidValue> {
        match name {
            "actions" => self.actions = Some(actions(field, &texts(field, value)?)?),
            "topology" => self.topology = Some(levels(field, texts(field, value)?)?),
            "placement" => self.placement = Some(one_of(field, value, &PLACEMENTS)?),
            "gpus" => self.gpus = Some(one_of(field, value, &GPUS)?),
            "staleAfter" => self.stale_after = Some(span(field, value)?),
            "schedulerNames" => {
                let names = texts(field, value)?;
                if names.is_empty() {
                    let valid = "at least one name; without a name the scheduler places no pod";
                    return Err(unusable(field, value, valid));
                }
                self.scheduler_names = Some(names);
            }
            "usage" => self.usage = usage(field, value)?,
            "reserveAfter" => self.reserve_after = Some(span(field, value)?),
            "reserveFor" => self.lead = Some(one_of(field, value, &LEADS)?),
            "weighLosses" => self.weigh_losses = Some(truth(field, value)?),
            "breakBudgets" => self.break_budgets = Some(truth(field, value)?),
            "loadAge" => self.load_age = Some(span(field, value)?),
            "defragmentation" => self.defragmentation = Some(defragmentation(field, value)?),
            "mig" => self.mig = Some(mig(field, value)?),
            _ => self.expected = Some(mix::read(field, value)?),
        }
        Ok(())
    }

    /// These settings, with those of `other` for absent fields.
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
            reserve_after: self.reserve_after.or(other.reserve_after),
            lead: self.lead.or(other.lead),
            weigh_losses: self.weigh_losses.or(other.weigh_losses),
            break_budgets: self.break_budgets.or(other.break_budgets),
            load_age: self.load_age.or(other.load_age),
            defragmentation: self.defragmentation.or(other.defragmentation),
            mig: self.mig.or(other.mig),
            expected: self.expected.or(other.expected),
        }
    }

    /// The scheduler's configuration with these settings applied.
    #[must_use]
    pub fn applied(&self, config: Config) -> Config {
        let seconds = |given: Option<i64>, default: SignedDuration| {
            given.map_or(default, SignedDuration::from_secs)
        };
        let settings = self.clone();
        Config {
            scheduler_names: settings.scheduler_names.unwrap_or(config.scheduler_names),
            actions: settings.actions.unwrap_or(config.actions),
            stale_after: seconds(settings.stale_after, config.stale_after),
            break_budgets: settings.break_budgets.unwrap_or(config.break_budgets),
            gpus: settings.gpus.unwrap_or(config.gpus),
            defragmentation: settings.defragmentation.unwrap_or(config.defragmentation),
            repartition: settings.mig.unwrap_or(config.repartition),
            usage: settings.usage.or(config.usage),
            topology: settings.topology.unwrap_or(config.topology),
            placement: settings.placement.unwrap_or(config.placement),
            reserve_after: seconds(settings.reserve_after, config.reserve_after),
            lead: settings.lead.unwrap_or(config.lead),
            weigh_losses: settings.weigh_losses.unwrap_or(config.weigh_losses),
            load_age: seconds(settings.load_age, config.load_age),
            volumes_told: config.volumes_told,
            expected: settings.expected.unwrap_or(config.expected),
        }
    }
}

/// The actions by name; `field` is the name used in error messages.
pub fn actions(field: &str, words: &[String]) -> Result<Actions, InvalidValue> {
    let mut actions = Actions::NONE;
    for word in words {
        let own = match word.as_str() {
            "allocate" => &mut actions.allocate,
            "consolidate" => &mut actions.consolidate,
            "reclaim" => &mut actions.reclaim,
            "preempt" => &mut actions.preempt,
            "backfill" => &mut actions.backfill,
            "defragment" => &mut actions.defragment,
            _ => {
                let valid = format!("one of {}", ACTIONS.join(", "));
                return Err(unusable(field, &Value::from(word.as_str()), valid));
            }
        };
        *own = true;
    }
    Ok(actions)
}

/// The placement strategy by name; `field` is the name used in error messages.
pub fn placement(field: &str, word: &str) -> Result<PlacementStrategy, InvalidValue> {
    one_of(field, &Value::from(word), &PLACEMENTS)
}

/// Topology levels: node label keys without duplicates.
fn levels(field: &str, keys: Vec<String>) -> Result<Vec<String>, InvalidValue> {
    for (at, key) in keys.iter().enumerate() {
        let value = Value::from(key.as_str());
        if let Some(problem) = syntax::qualified_name(key).into_iter().next() {
            let valid = format!("the key of a node label: {problem}");
            return Err(unusable(&format!("{field}[{at}]"), &value, valid));
        }
        if keys[..at].contains(key) {
            let valid = "each level once, the widest first";
            return Err(unusable(&format!("{field}[{at}]"), &value, valid));
        }
    }
    Ok(keys)
}

fn usage(field: &str, value: &Value) -> Result<Option<Decay>, InvalidValue> {
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
                unusable(
                    &field,
                    value,
                    "a number from 0 to 1000; 0 ignores past use, 1 is usual",
                )
            })?,
    };
    Ok(Some(Decay {
        half_life_seconds: seconds,
        strength,
    }))
}

fn defragmentation(field: &str, value: &Value) -> Result<DefragmentationBudget, InvalidValue> {
    let mut defragmentation = DefragmentationBudget::default();
    let Some(fields) = object(field, value)? else {
        return Ok(defragmentation);
    };
    known(field, fields, &["movesAnHour", "gpusInterruptedEach"])?;
    for (name, value) in fields {
        let field = format!("{field}.{name}");
        match name.as_str() {
            "movesAnHour" => {
                let moves = count(&field, value, 0..=MOVES_MAX)?;
                defragmentation.moves_an_hour = usize::try_from(moves).unwrap_or(0);
            }
            _ => defragmentation.gpus_interrupted_each = count(&field, value, 0..=INTERRUPTED_MAX)?,
        }
    }
    Ok(defragmentation)
}

fn mig(field: &str, value: &Value) -> Result<Option<RepartitionBudget>, InvalidValue> {
    let Some(fields) = object(field, value)? else {
        return Ok(None);
    };
    known(field, fields, &["queues", "after", "every"])?;
    let mut repartition = RepartitionBudget::default();
    for (name, value) in fields {
        let field = format!("{field}.{name}");
        let seconds = || span(&field, value).map(SignedDuration::from_secs);
        match name.as_str() {
            "queues" => repartition.queues = texts(&field, value)?,
            "after" => repartition.after = seconds()?,
            _ => {
                repartition.every = seconds()?;
                if repartition.every < EVERY_LEAST {
                    let valid =
                        "at least 1m, because a node reports its devices some time after a change";
                    return Err(unusable(&field, value, valid));
                }
            }
        }
    }
    Ok(Some(repartition))
}

#[cfg(test)]
mod tests;
