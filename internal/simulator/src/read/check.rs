//! Validates Muster's annotations. Where the scheduler would ignore an unreadable value, a
//! simulation refuses the input and states the accepted values. Where the scheduler would make the
//! gang wait and report why, the simulation does the same, and adds a note.

use std::collections::BTreeMap;

use resources::devices::{ChosenDevices, NodeInventory};
use resources::names;
use resources::quantity::Quantity;
use serde::Deserialize;
use serde_json::Value;

use super::duration;
use super::trace;
use crate::error::{InputLocation, SimulatorError};

/// An annotation's value that can't be read; the text states the accepted values.
#[derive(Debug, thiserror::Error)]
enum InvalidAnnotation {
    #[error("{}", .0.valid())]
    Value(ValueForm),
    #[error("{} ({error})", .form.valid())]
    Json {
        error: serde_json::Error,
        form: ValueForm,
    },
}

/// The form of an annotation's value.
#[derive(Clone, Copy, Debug)]
enum ValueForm {
    /// JSON of resource to quantity.
    Amounts,
    /// A quantity, or JSON of resource to quantity.
    Weights,
    /// JSON of a preemption rule: which gangs may be evicted.
    Preemption,
    /// One of these words.
    Word(&'static [&'static str]),
    /// JSON of network topology requirements.
    Topology,
    /// JSON of sub-groups.
    SubGroups,
    /// A length of time.
    Span,
    /// Seconds or a time.
    Moment,
    /// A fraction, more than 0 and at most 1.
    Part,
    /// A whole number that is not negative.
    Count,
    /// JSON of container to resource to device ids.
    Devices,
    /// JSON of a node's device inventory.
    Inventory,
    /// Anything.
    Text,
}

const TRUTH: ValueForm = ValueForm::Word(&["true", "false"]);

/// The known annotations, and the kinds they apply to; empty: work of any kind.
const KNOWN: [(&str, &[&str], ValueForm); 32] = [
    (names::BORROWING_LIMIT, &["Queue"], ValueForm::Amounts),
    (names::LENDING_LIMIT, &["Queue"], ValueForm::Amounts),
    (names::USER_LIMIT, &["Queue"], ValueForm::Amounts),
    (names::SURPLUS_WEIGHT, &["Queue"], ValueForm::Weights),
    (names::PREEMPTION, &["Queue"], ValueForm::Preemption),
    (
        names::QUEUE_POLICY,
        &["Queue"],
        ValueForm::Word(&["priority", "fifo", "sjf", "round-robin", "fair"]),
    ),
    (names::INVENTORY, &["Node"], ValueForm::Inventory),
    (names::LOAD, &["Node"], ValueForm::Text),
    (names::TOPOLOGY, &[], ValueForm::Topology),
    (names::SUB_GROUPS, &["PodGroup"], ValueForm::SubGroups),
    (names::PREEMPTIBLE, &[], TRUTH),
    (names::MOVABLE, &[], TRUTH),
    (names::WALLTIME, &[], ValueForm::Span),
    (names::MIN_RUNTIME, &[], ValueForm::Span),
    (names::DURATION, &[], ValueForm::Span),
    (names::ARRIVAL, &[], ValueForm::Moment),
    (names::RANK, &["Pod"], ValueForm::Count),
    (names::GPU_FRACTION, &["Pod"], ValueForm::Part),
    (names::GPU_MEMORY, &["Pod"], ValueForm::Count),
    (names::GPU_COUNT, &["Pod"], ValueForm::Count),
    (names::DEVICES, &["Pod"], ValueForm::Devices),
    (names::SUB_GROUP, &["Pod"], ValueForm::Text),
    (names::GPU_MODEL, &["Pod"], ValueForm::Text),
    (names::GPU_MIN_MEMORY, &["Pod"], ValueForm::Text),
    (names::GPU_MIN_COMPUTE, &["Pod"], ValueForm::Text),
    (names::GPU_MIN_DRIVER, &["Pod"], ValueForm::Text),
    (names::USER, &[], ValueForm::Text),
    (names::TEAM, &[], ValueForm::Text),
    (names::RESERVE_AFTER, &["Queue"], ValueForm::Span),
    (names::CHECKPOINT, &[], ValueForm::Text),
    (names::CHECKPOINT_GRACE, &[], ValueForm::Span),
    (names::TEAM_LIMIT, &["Queue"], ValueForm::Amounts),
];
/// Annotations that controllers and clients write for their own use.
const OTHERS: [&str; 14] = [
    names::CANCELLED_BY,
    names::CANCELLED_BECAUSE,
    names::IDLE_GPU_LIMIT,
    names::IDLE_GPU_ACTION,
    names::IDLE_GPU_EXEMPT_USERS,
    names::IDLE_GPU_EXEMPT_JOBS,
    names::RENDEZVOUS_PORT,
    names::RESTARTS,
    names::ON_FAILURE,
    names::FAILURE,
    names::RECOVERY,
    names::HANG_AFTER,
    names::ON_HANG,
    names::HUNG,
];
/// The prefix of Muster's annotations.
const OURS: &str = "muster.io/";

/// Irregularities that are no reason to refuse the input.
#[derive(Default)]
pub(super) struct Doubts {
    /// Annotations of Muster's that have no meaning on this kind.
    pub(super) unknown: Vec<String>,
    /// Why gangs would wait for ever, in sentences.
    pub(super) hopeless: Vec<String>,
}

/// Checks an object's annotations.
pub(super) fn annotations(
    kind: &str,
    value: &Value,
    place: &InputLocation,
) -> Result<Doubts, SimulatorError> {
    let mut doubts = Doubts::default();
    let Some(map) = value["metadata"]["annotations"].as_object() else {
        return Ok(doubts);
    };
    let work = !["Node", "Queue", "PriorityClass", "ResourceQuota"].contains(&kind);
    for (name, text) in map.iter().filter(|(name, _)| name.starts_with(OURS)) {
        let wrong = |valid: String| {
            let whose = value["metadata"]["name"].as_str().unwrap_or_default();
            let field = format!("metadata.annotations[{name}] of {kind} {whose}");
            let written = text.as_str();
            let written = written.map_or_else(|| text.to_string(), str::to_owned);
            SimulatorError::value(place.clone(), field, written, valid)
        };
        let Some(text) = text.as_str() else {
            return Err(wrong(
                "the annotation's value as text, in quotes".to_owned(),
            ));
        };
        let known = KNOWN.iter().find(|(known, kinds, _)| {
            *known == name && (kinds.contains(&kind) || (kinds.is_empty() && work))
        });
        let read = known.map(|(_, _, form)| (form, form.read(text)));
        match read {
            Some((_, Ok(()))) => {}
            Some((ValueForm::Topology | ValueForm::SubGroups, Err(valid)))
                if serde_json::from_str::<Value>(text).is_ok() =>
            {
                doubts.hopeless.push(wrong(valid.to_string()).to_string());
            }
            Some((_, Err(valid))) => return Err(wrong(valid.to_string())),
            None if OTHERS.contains(&name.as_str()) => {}
            None => doubts.unknown.push(name.clone()),
        }
    }
    Ok(doubts)
}

impl ValueForm {
    /// Whether this value can be read. An error states the accepted values.
    fn read(self, text: &str) -> Result<(), InvalidAnnotation> {
        let text = text.trim();
        let good = match self {
            ValueForm::Text => true,
            ValueForm::Word(words) => words.contains(&text),
            ValueForm::Span => duration::seconds(text).is_ok(),
            ValueForm::Moment => trace::arrival(text).is_ok(),
            ValueForm::Part => text
                .parse::<f64>()
                .is_ok_and(|part| part > 0.0 && part <= 1.0),
            ValueForm::Count => text.parse::<u64>().is_ok(),
            ValueForm::Amounts => amounts(text),
            ValueForm::Weights => text.parse::<Quantity>().is_ok() || amounts(text),
            ValueForm::Preemption => return json::<PreemptionAnnotation>(text, self),
            ValueForm::Topology => return json::<TopologyAnnotation>(text, self),
            ValueForm::SubGroups => return json::<Vec<SubGroupAnnotation>>(text, self),
            ValueForm::Devices => return json::<ChosenDevices>(text, self),
            ValueForm::Inventory => return json::<NodeInventory>(text, self),
        };
        if good {
            Ok(())
        } else {
            Err(InvalidAnnotation::Value(self))
        }
    }

    fn valid(self) -> String {
        match self {
            ValueForm::Text => "a word".to_owned(),
            ValueForm::Word(words) => format!("one of {}", words.join(", ")),
            ValueForm::Span => duration::SPAN.to_owned(),
            ValueForm::Moment => duration::MOMENT.to_owned(),
            ValueForm::Part => "a part of one GPU, as in 0.5".to_owned(),
            ValueForm::Count => "a whole number, 0 or more".to_owned(),
            ValueForm::Amounts => {
                r#"JSON of resource to quantity, as in {"nvidia.com/gpu": "8"}"#.to_owned()
            }
            ValueForm::Weights => {
                r#"a weight, as in 2, or JSON of resource to weight, as in {"cpu": "1"}"#.to_owned()
            }
            ValueForm::Preemption => concat!(
                r#"JSON, as in {"withinQueue": "LowerPriority|LowerOrNewerEqualPriority|Never", "#,
                r#""reclaim": "Any|LowerPriority|Never", "borrow": {"policy": "LowerPriority|Never", "#,
                r#""maxPriorityThreshold": 0}, "fair": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"], "#,
                r#""fairWithinDeserved": true}"#
            )
            .to_owned(),
            ValueForm::Topology => {
                r#"JSON, as in {"required": KEY, "preferred": KEY, "slices": [{"level": KEY, "size": 4}]}"#.to_owned()
            }
            ValueForm::SubGroups => {
                r#"JSON, as in [{"name": "a", "parent": "b", "minMember": 2, "topology": {"required": KEY}}]"#.to_owned()
            }
            ValueForm::Devices => {
                r#"JSON, as in {"main": {"nvidia.com/gpu": ["GPU-0"]}}"#.to_owned()
            }
            ValueForm::Inventory => {
                r#"JSON, as in {"gpus": [{"id": "GPU-0", "index": 0, "model": "H100", "memoryMib": 81559, "healthy": true}]}"#.to_owned()
            }
        }
    }
}

fn json<T: serde::de::DeserializeOwned>(
    text: &str,
    form: ValueForm,
) -> Result<(), InvalidAnnotation> {
    match serde_json::from_str::<T>(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(InvalidAnnotation::Json { error, form }),
    }
}

fn amounts(text: &str) -> bool {
    let Ok(map) = serde_json::from_str::<BTreeMap<String, Value>>(text) else {
        return false;
    };
    map.values().all(|value| match value {
        Value::String(text) => text.parse::<Quantity>().is_ok(),
        Value::Number(number) => number.to_string().parse::<Quantity>().is_ok(),
        _ => false,
    })
}

// The shapes of the scheduler's annotations; the fields exist only to be checked.

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "read to be checked")]
struct PreemptionAnnotation {
    within_queue: Option<WithinQueueAnnotation>,
    reclaim: Option<ReclaimAnnotation>,
    borrow: Option<BorrowAnnotation>,
    fair: Option<Vec<Fair>>,
    fair_within_deserved: Option<bool>,
}

#[derive(Deserialize)]
enum WithinQueueAnnotation {
    LowerPriority,
    LowerOrNewerEqualPriority,
    Never,
}

#[derive(Deserialize)]
enum ReclaimAnnotation {
    Any,
    LowerPriority,
    Never,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "read to be checked")]
struct BorrowAnnotation {
    policy: Option<BorrowPolicyAnnotation>,
    max_priority_threshold: Option<i32>,
}

#[derive(Deserialize)]
enum BorrowPolicyAnnotation {
    LowerPriority,
    Never,
}

#[derive(Deserialize)]
enum Fair {
    LessThanOrEqualToFinalShare,
    LessThanInitialShare,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "read to be checked")]
struct TopologyAnnotation {
    required: Option<String>,
    preferred: Option<String>,
    #[serde(default)]
    slices: Vec<SliceAnnotation>,
    #[serde(default)]
    unconstrained: bool,
    #[serde(default)]
    balanced: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read to be checked")]
struct SliceAnnotation {
    level: String,
    size: std::num::NonZeroU32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "read to be checked")]
struct SubGroupAnnotation {
    name: String,
    parent: Option<String>,
    min_member: Option<u32>,
    topology: Option<TopologyAnnotation>,
}
