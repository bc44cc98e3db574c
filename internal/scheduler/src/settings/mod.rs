//! How the scheduler is set up, as its users write it: the `SchedulerConfig` document that the
//! server and `muster simulate` read, and what is wrong with one. What is not said stays as
//! [`Config`] has it. Other schedulers' configurations are read too (`foreign`).

mod foreign;
mod kube;
mod mix;
mod volcano;
mod words;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use resources::syntax;
use serde_json::Value;

use crate::config::{Actions, Config, Lead, Strategy};
use crate::cutting::Cutting;
use crate::evict::Tidying;
use crate::queue::Decay;
use crate::share::GpuOrder;
use words::{count, known, object, one_of, span, texts, truth};

pub use foreign::{Parse, Read, read, takes};
pub use words::Wrong;

/// The kind of the document.
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
/// The words for whom room is reserved.
const LEADS: [(&str, Lead); 4] = [
    ("share", Lead::Share),
    ("age", Lead::Age),
    ("size", Lead::Size),
    ("response", Lead::Response),
];
/// A document's own fields.
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
/// The most moves an hour that may be asked for.
const MOVES_MAX: i64 = 100_000;
/// The shortest time that GPUs stay as they were cut.
const EVERY_LEAST: SignedDuration = SignedDuration::from_mins(1);
/// The most GPUs of interrupted work that one may be worth.
const INTERRUPTED_MAX: i64 = 1000;

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
    pub stale_after: Option<i64>,
    /// The `schedulerName` values that are answered to.
    pub scheduler_names: Option<Vec<String>>,
    /// How past use counts.
    pub usage: Option<Decay>,
    /// Seconds that a gang waits before room is reserved for it.
    pub reserve_after: Option<i64>,
    /// Which of several gangs room is reserved for.
    pub lead: Option<Lead>,
    /// Must evictions save more waiting than they lose work?
    pub weigh_losses: Option<bool>,
    /// May evictions break PodDisruptionBudgets where nothing else makes room?
    pub break_budgets: Option<bool>,
    /// Seconds after which a node's load is not known any more.
    pub load_age: Option<i64>,
    /// How much defragmentation may move, and for how much.
    pub tidying: Option<Tidying>,
    /// For whom idle GPUs are cut (MIG); `Some(None)`: for nobody.
    pub mig: Option<Option<Cutting>>,
    /// Such pods are to come, so many of each.
    pub expected: Option<Vec<(Pod, u64)>>,
}

impl Settings {
    /// Reads a document.
    pub fn read(document: &Value) -> Result<Settings, Wrong> {
        let top = document.as_object().ok_or_else(|| {
            let wanted = format!("a mapping with apiVersion {API_VERSION} and kind {KIND}");
            Wrong::new("document", document, wanted)
        })?;
        for (field, right) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            if document[field] != right {
                let wanted = format!("a scheduler's configuration has {field} {right}");
                return Err(Wrong::new(field, &document[field], wanted));
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

    fn set(&mut self, name: &str, field: &str, value: &Value) -> Result<(), Wrong> {
        match name {
            "actions" => self.actions = Some(actions(field, &texts(field, value)?)?),
            "topology" => self.topology = Some(levels(field, texts(field, value)?)?),
            "placement" => self.placement = Some(one_of(field, value, &PLACEMENTS)?),
            "gpus" => self.gpus = Some(one_of(field, value, &GPUS)?),
            "staleAfter" => self.stale_after = Some(span(field, value)?),
            "schedulerNames" => {
                let names = texts(field, value)?;
                if names.is_empty() {
                    let wanted = "at least one name: with none no pod is scheduled";
                    return Err(Wrong::new(field, value, wanted));
                }
                self.scheduler_names = Some(names);
            }
            "usage" => self.usage = usage(field, value)?,
            "reserveAfter" => self.reserve_after = Some(span(field, value)?),
            "reserveFor" => self.lead = Some(one_of(field, value, &LEADS)?),
            "weighLosses" => self.weigh_losses = Some(truth(field, value)?),
            "breakBudgets" => self.break_budgets = Some(truth(field, value)?),
            "loadAge" => self.load_age = Some(span(field, value)?),
            "defragmentation" => self.tidying = Some(tidying(field, value)?),
            "mig" => self.mig = Some(mig(field, value)?),
            _ => self.expected = Some(mix::read(field, value)?),
        }
        Ok(())
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
            reserve_after: self.reserve_after.or(other.reserve_after),
            lead: self.lead.or(other.lead),
            weigh_losses: self.weigh_losses.or(other.weigh_losses),
            break_budgets: self.break_budgets.or(other.break_budgets),
            load_age: self.load_age.or(other.load_age),
            tidying: self.tidying.or(other.tidying),
            mig: self.mig.or(other.mig),
            expected: self.expected.or(other.expected),
        }
    }

    /// The scheduler's configuration with what was said.
    #[must_use]
    pub fn applied(&self, config: Config) -> Config {
        let seconds =
            |said: Option<i64>, kept: SignedDuration| said.map_or(kept, SignedDuration::from_secs);
        let said = self.clone();
        Config {
            scheduler_names: said.scheduler_names.unwrap_or(config.scheduler_names),
            actions: said.actions.unwrap_or(config.actions),
            stale_after: seconds(said.stale_after, config.stale_after),
            break_budgets: said.break_budgets.unwrap_or(config.break_budgets),
            gpus: said.gpus.unwrap_or(config.gpus),
            tidying: said.tidying.unwrap_or(config.tidying),
            cutting: said.mig.unwrap_or(config.cutting),
            usage: said.usage.or(config.usage),
            topology: said.topology.unwrap_or(config.topology),
            placement: said.placement.unwrap_or(config.placement),
            reserve_after: seconds(said.reserve_after, config.reserve_after),
            lead: said.lead.unwrap_or(config.lead),
            weigh_losses: said.weigh_losses.unwrap_or(config.weigh_losses),
            load_age: seconds(said.load_age, config.load_age),
            volumes_told: config.volumes_told,
            expected: said.expected.unwrap_or(config.expected),
        }
    }
}

/// What plans may do, from words; `field` is what messages call them.
pub fn actions(field: &str, words: &[String]) -> Result<Actions, Wrong> {
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
                let wanted = format!("the actions are {}", ACTIONS.join(", "));
                return Err(Wrong::new(field, &Value::from(word.as_str()), wanted));
            }
        };
        *own = true;
    }
    Ok(actions)
}

/// Which nodes are taken first, from a word; `field` is what messages call it.
pub fn placement(field: &str, word: &str) -> Result<Strategy, Wrong> {
    one_of(field, &Value::from(word), &PLACEMENTS)
}

/// Levels: label keys, each once.
fn levels(field: &str, keys: Vec<String>) -> Result<Vec<String>, Wrong> {
    for (at, key) in keys.iter().enumerate() {
        let value = Value::from(key.as_str());
        if let Some(problem) = syntax::qualified_name(key).into_iter().next() {
            let wanted = format!("the key of a node label: {problem}");
            return Err(Wrong::new(&format!("{field}[{at}]"), &value, wanted));
        }
        if keys[..at].contains(key) {
            let wanted = "each level once, widest first";
            return Err(Wrong::new(&format!("{field}[{at}]"), &value, wanted));
        }
    }
    Ok(keys)
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

fn tidying(field: &str, value: &Value) -> Result<Tidying, Wrong> {
    let mut tidying = Tidying::default();
    let Some(fields) = object(field, value)? else {
        return Ok(tidying);
    };
    known(field, fields, &["movesAnHour", "gpusInterruptedEach"])?;
    for (name, value) in fields {
        let field = format!("{field}.{name}");
        match name.as_str() {
            "movesAnHour" => {
                let moves = count(&field, value, 0..=MOVES_MAX)?;
                tidying.moves_an_hour = usize::try_from(moves).unwrap_or(0);
            }
            _ => tidying.gpus_interrupted_each = count(&field, value, 0..=INTERRUPTED_MAX)?,
        }
    }
    Ok(tidying)
}

fn mig(field: &str, value: &Value) -> Result<Option<Cutting>, Wrong> {
    let Some(fields) = object(field, value)? else {
        return Ok(None);
    };
    known(field, fields, &["queues", "after", "every"])?;
    let mut cutting = Cutting::default();
    for (name, value) in fields {
        let field = format!("{field}.{name}");
        let seconds = || span(&field, value).map(SignedDuration::from_secs);
        match name.as_str() {
            "queues" => cutting.queues = texts(&field, value)?,
            "after" => cutting.after = seconds()?,
            _ => {
                cutting.every = seconds()?;
                if cutting.every < EVERY_LEAST {
                    let wanted =
                        "at least 1m: what nodes have after a change is told a while later";
                    return Err(Wrong::new(&field, value, wanted));
                }
            }
        }
    }
    Ok(Some(cutting))
}

#[cfg(test)]
mod tests;
