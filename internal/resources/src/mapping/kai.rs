//! KAI Scheduler's Queue: quotas in GPUs, millicores and megabytes, -1 for no bound.

use serde_json::Value;

use super::{Fields, MappingError, QueueDraft, ResourceAmounts, USUAL, Warning, name_of};
use crate::names::{NVIDIA_GPU, SURPLUS_WEIGHT};
use crate::quantity::Quantity;

/// KAI's resources, Muster's names for them, and thousandths of Muster's unit in one of KAI's.
const RESOURCES: [(&str, &str, i64); 3] = [
    ("gpu", NVIDIA_GPU, 1000),
    ("cpu", "cpu", 1),
    ("memory", "memory", 1_000_000_000),
];
/// The priority of a queue without one.
const PRIORITY: i32 = 100;
/// More GPUs than any cluster has.
const GPUS: i64 = 100_000_000;

pub(super) fn read(
    object: &Value,
    drafts: &mut Vec<QueueDraft>,
    warnings: &mut Vec<Warning>,
) -> Result<(), MappingError> {
    let name = name_of(object);
    let spec = Fields::of(&name, "spec", &object["spec"]);
    spec.get("displayName");
    let mut draft = QueueDraft {
        name: object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        parent: spec.word("parentQueue").map(str::to_owned),
        priority: Some(match spec.text("priority") {
            None => PRIORITY,
            Some(text) => text
                .parse()
                .map_err(|_| spec.wrong("priority", text.clone(), "a whole number".to_owned()))?,
        }),
        ..QueueDraft::default()
    };
    let (mut deserved, mut weights) = (ResourceAmounts::new(), ResourceAmounts::new());
    let resources = spec.inner("resources");
    for (theirs, ours, unit) in RESOURCES {
        let own = resources.inner(theirs);
        let quota = number(&own, "quota")?.unwrap_or(0.0);
        let plenty = USUAL.iter().find(|(name, _)| *name == ours);
        let plenty = Quantity::from_value(plenty.map_or(GPUS, |(_, plenty)| *plenty));
        let quota = amount(quota, unit).unwrap_or(plenty);
        deserved.insert(ours.to_owned(), quota);
        if let Some(limit) = number(&own, "limit")?.and_then(|limit| amount(limit, unit)) {
            draft.capability.insert(ours.to_owned(), limit);
        }
        if let Some(weight) = number(&own, "overQuotaWeight")? {
            let weight = Quantity::from_milli((weight * 1000.0).round() as i64);
            weights.insert(ours.to_owned(), weight);
        }
        own.rest(warnings);
    }
    resources.rest(warnings);
    draft.deserved = Some(deserved);
    draft.annotate(SURPLUS_WEIGHT, &weights);
    for key in ["preemptMinRuntime", "reclaimMinRuntime"] {
        if spec.text(key).is_some() {
            let why = "has no counterpart on queues; set muster.io/min-runtime on each PodGroup";
            spec.warn(key, why, warnings);
        }
    }
    spec.rest(warnings);
    drafts.push(draft);
    Ok(())
}

/// An amount in KAI's units; `None` for no bound.
fn amount(number: f64, unit: i64) -> Option<Quantity> {
    (number >= 0.0).then(|| Quantity::from_milli((number * unit as f64).round() as i64))
}

fn number(fields: &Fields<'_>, key: &str) -> Result<Option<f64>, MappingError> {
    let Some(text) = fields.text(key) else {
        return Ok(None);
    };
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    let wanted = "a number, or -1 for no limit";
    number
        .map(Some)
        .ok_or_else(|| fields.wrong(key, text, wanted.to_owned()))
}
