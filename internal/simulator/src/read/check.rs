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
use crate::error::{Place, SimulatorError};

/// An annotation's value that can't be read; the text states the accepted values.
#[derive(Debug, thiserror::Error)]
enum Misformed {
    #[error("{}", .0.valid())]
    Value(Form),
    #[error("{} ({error})", .form.valid())]
    Json {
        error: serde_json::Error,
        form: Form,
    },
}

/// The form of an annotation's value.
#[derive(Clone, Copy, Debug)]
enum Form {
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

const TRUTH: Form = Form::Word(&["true", "false"]);

/// The known annotations, and the kinds they apply to; empty: work of any kind.
const KNOWN: [(&str, &[&str], Form); 32] = [
    (names::BORROWING_LIMIT, &["Queue"], Form::Amounts),
    (names::LENDING_LIMIT, &["Queue"], Form::Amounts),
    (names::USER_LIMIT, &["Queue"], Form::Amounts),
    (names::SURPLUS_WEIGHT, &["Queue"], Form::Weights),
    (names::PREEMPTION, &["Queue"], Form::Preemption),
    (
        names::QUEUE_POLICY,
        &["Queue"],
        Form::Word(&["priority", "fifo", "sjf", "round-robin", "fair"]),
    ),
    (names::INVENTORY, &["Node"], Form::Inventory),
    (names::LOAD, &["Node"], Form::Text),
    (names::TOPOLOGY, &[], Form::Topology),
    (names::SUB_GROUPS, &["PodGroup"], Form::SubGroups),
    (names::PREEMPTIBLE, &[], TRUTH),
    (names::MOVABLE, &[], TRUTH),
    (names::WALLTIME, &[], Form::Span),
    (names::MIN_RUNTIME, &[], Form::Span),
    (names::DURATION, &[], Form::Span),
    (names::ARRIVAL, &[], Form::Moment),
    (names::RANK, &["Pod"], Form::Count),
    (names::GPU_FRACTION, &["Pod"], Form::Part),
    (names::GPU_MEMORY, &["Pod"], Form::Count),
    (names::GPU_COUNT, &["Pod"], Form::Count),
    (names::DEVICES, &["Pod"], Form::Devices),
    (names::SUB_GROUP, &["Pod"], Form::Text),
    (names::GPU_MODEL, &["Pod"], Form::Text),
    (names::GPU_MIN_MEMORY, &["Pod"], Form::Text),
    (names::GPU_MIN_COMPUTE, &["Pod"], Form::Text),
    (names::GPU_MIN_DRIVER, &["Pod"], Form::Text),
    (names::USER, &[], Form::Text),
    (names::TEAM, &[], Form::Text),
    (names::RESERVE_AFTER, &["Queue"], Form::Span),
    (names::CHECKPOINT, &[], Form::Text),
    (names::CHECKPOINT_GRACE, &[], Form::Span),
    (names::TEAM_LIMIT, &["Queue"], Form::Amounts),
];
/// Annotations that controllers and clients write for their own use.
const OTHERS: [&str; 2] = [names::RENDEZVOUS_PORT, names::RESTARTS];
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
    place: &Place,
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
            Some((Form::Topology | Form::SubGroups, Err(valid)))
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

impl Form {
    /// Whether this value can be read. An error states the accepted values.
    fn read(self, text: &str) -> Result<(), Misformed> {
        let text = text.trim();
        let good = match self {
            Form::Text => true,
            Form::Word(words) => words.contains(&text),
            Form::Span => duration::seconds(text).is_ok(),
            Form::Moment => trace::arrival(text).is_ok(),
            Form::Part => text
                .parse::<f64>()
                .is_ok_and(|part| part > 0.0 && part <= 1.0),
            Form::Count => text.parse::<u64>().is_ok(),
            Form::Amounts => amounts(text),
            Form::Weights => text.parse::<Quantity>().is_ok() || amounts(text),
            Form::Preemption => return json::<Preemption>(text, self),
            Form::Topology => return json::<Topology>(text, self),
            Form::SubGroups => return json::<Vec<SubGroup>>(text, self),
            Form::Devices => return json::<ChosenDevices>(text, self),
            Form::Inventory => return json::<NodeInventory>(text, self),
        };
        if good {
            Ok(())
        } else {
            Err(Misformed::Value(self))
        }
    }

    fn valid(self) -> String {
        match self {
            Form::Text => "a word".to_owned(),
            Form::Word(words) => format!("one of {}", words.join(", ")),
            Form::Span => duration::SPAN.to_owned(),
            Form::Moment => duration::MOMENT.to_owned(),
            Form::Part => "a part of one GPU, as in 0.5".to_owned(),
            Form::Count => "a whole number, 0 or more".to_owned(),
            Form::Amounts => {
                r#"JSON of resource to quantity, as in {"nvidia.com/gpu": "8"}"#.to_owned()
            }
            Form::Weights => {
                r#"a weight, as in 2, or JSON of resource to weight, as in {"cpu": "1"}"#.to_owned()
            }
            Form::Preemption => concat!(
                r#"JSON, as in {"withinQueue": "LowerPriority|LowerOrNewerEqualPriority|Never", "#,
                r#""reclaim": "Any|LowerPriority|Never", "borrow": {"policy": "LowerPriority|Never", "#,
                r#""maxPriorityThreshold": 0}, "fair": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"], "#,
                r#""fairWithinDeserved": true}"#
            )
            .to_owned(),
            Form::Topology => {
                r#"JSON, as in {"required": KEY, "preferred": KEY, "slices": [{"level": KEY, "size": 4}]}"#.to_owned()
            }
            Form::SubGroups => {
                r#"JSON, as in [{"name": "a", "parent": "b", "minMember": 2, "topology": {"required": KEY}}]"#.to_owned()
            }
            Form::Devices => {
                r#"JSON, as in {"main": {"nvidia.com/gpu": ["GPU-0"]}}"#.to_owned()
            }
            Form::Inventory => {
                r#"JSON, as in {"gpus": [{"id": "GPU-0", "index": 0, "model": "H100", "memoryMib": 81559, "healthy": true}]}"#.to_owned()
            }
        }
    }
}

fn json<T: serde::de::DeserializeOwned>(text: &str, form: Form) -> Result<(), Misformed> {
    match serde_json::from_str::<T>(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(Misformed::Json { error, form }),
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
struct Preemption {
    within_queue: Option<WithinQueue>,
    reclaim: Option<Reclaim>,
    borrow: Option<Borrow>,
    fair: Option<Vec<Fair>>,
    fair_within_deserved: Option<bool>,
}

#[derive(Deserialize)]
enum WithinQueue {
    LowerPriority,
    LowerOrNewerEqualPriority,
    Never,
}

#[derive(Deserialize)]
enum Reclaim {
    Any,
    LowerPriority,
    Never,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "read to be checked")]
struct Borrow {
    policy: Option<BorrowPolicy>,
    max_priority_threshold: Option<i32>,
}

#[derive(Deserialize)]
enum BorrowPolicy {
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
struct Topology {
    required: Option<String>,
    preferred: Option<String>,
    #[serde(default)]
    slices: Vec<Slice>,
    #[serde(default)]
    unconstrained: bool,
    #[serde(default)]
    balanced: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read to be checked")]
struct Slice {
    level: String,
    size: std::num::NonZeroU32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "read to be checked")]
struct SubGroup {
    name: String,
    parent: Option<String>,
    min_member: Option<u32>,
    topology: Option<Topology>,
}
