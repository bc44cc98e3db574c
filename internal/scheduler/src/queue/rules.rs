//! What a Queue object says, read once: its place in the tree, its bounds and rights, its policies.
//! Words that cannot be read are left out and kept as faults, so that somebody is told.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use resources::kinds::{Queue as Object, QueueState};
use resources::names;
use resources::quantity::Quantity;
use serde::Deserialize;
use serde_json::Value;

use crate::resource::{Ix, Names};

/// Amounts for some resources, by number; zero is said, not left out.
pub(crate) type Bounds = Vec<(Ix, i64)>;

/// Weights are counted in thousandths.
pub(crate) const WEIGHT_UNIT: i64 = 1000;

/// How a queue's gangs follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Priority; gangs below their minimum before members beyond one; age.
    #[default]
    Priority,
    /// Age alone.
    Fifo,
    /// The shortest expected run first; gangs of unknown length last.
    Sjf,
    /// The queue's users one after the other.
    RoundRobin,
    /// The user who holds the smallest share of what the queue holds.
    Fair,
}

/// From whom a gang of the queue may take within the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum WithinQueue {
    /// From gangs of lower priority.
    #[default]
    LowerPriority,
    /// From those, and from gangs of its own priority that are younger.
    LowerOrNewerEqualPriority,
    /// From nobody.
    Never,
}

/// From whom a gang of the queue may take in other queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum Reclaim {
    /// From gangs of any priority.
    #[default]
    Any,
    /// From gangs of lower priority.
    LowerPriority,
    /// From nobody.
    Never,
}

/// Whether a queue that would borrow may evict others' gangs for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum BorrowPolicy {
    /// No.
    #[default]
    Never,
    /// Those of lower priority.
    LowerPriority,
}

/// Preemption while borrowing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct Borrow {
    pub(crate) policy: BorrowPolicy,
    /// Only gangs of at most this priority may be taken; any, if none is said.
    pub(crate) max_priority_threshold: Option<i32>,
}

/// When fair sharing lets a queue take from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum FairStrategy {
    /// The taker's new share is at most the other's share afterwards.
    LessThanOrEqualToFinalShare,
    /// The taker's new share is less than the other's share before.
    LessThanInitialShare,
}

/// What a queue's gangs may evict.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct Preemption {
    pub(crate) within_queue: WithinQueue,
    pub(crate) reclaim: Reclaim,
    /// Whether to evict while borrowing. Where it is said, even as null, evictions go by quota
    /// rather than by shares.
    #[serde(deserialize_with = "said_or_null")]
    pub(crate) borrow: Option<Option<Borrow>>,
    /// Strategies of fair sharing, tried in this order; none: classic preemption.
    pub(crate) fair: Option<Vec<FairStrategy>>,
    /// By fair sharing: a queue that stays within what it deserves may take from one that borrows
    /// whatever their shares are.
    pub(crate) fair_within_deserved: bool,
}

impl Default for Preemption {
    fn default() -> Preemption {
        Preemption {
            within_queue: WithinQueue::default(),
            reclaim: Reclaim::default(),
            borrow: None,
            fair: None,
            fair_within_deserved: true,
        }
    }
}

/// Tells a null from what is not there.
fn said_or_null<'de, D: serde::Deserializer<'de>>(
    reader: D,
) -> Result<Option<Option<Borrow>>, D::Error> {
    Option::<Borrow>::deserialize(reader).map(Some)
}

/// A weight for every resource, or one for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Surplus {
    all: Option<i64>,
    each: Bounds,
}

/// Does a queue take work?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Door {
    /// It lets gangs in.
    #[default]
    Open,
    /// It lets nobody in; those that it let in earlier may go on.
    Draining,
    /// The same, and it is told to be empty.
    Closed,
}

/// What a Queue object says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rules {
    pub(crate) parent: Option<String>,
    /// Its weight among its siblings, in [`WEIGHT_UNIT`]s.
    pub(crate) weight: i64,
    surplus: Surplus,
    pub(crate) priority: i32,
    /// The most that the queue and all below it may hold.
    pub(crate) capability: Bounds,
    /// Kept for it: nobody else may use it.
    pub(crate) guarantee: Bounds,
    /// What it is entitled to first; others may use what is idle of it.
    pub(crate) deserved: Bounds,
    /// How far above its deserved amount it may go.
    pub(crate) borrowing: Bounds,
    /// How much of its deserved amount others may use.
    pub(crate) lending: Bounds,
    /// The most that one user may hold in it.
    pub(crate) user_limit: Bounds,
    /// The most that one team may hold in it.
    pub(crate) team_limit: Bounds,
    /// May others win back what it holds beyond its share?
    pub(crate) reclaimable: bool,
    pub(crate) door: Door,
    pub(crate) policy: Policy,
    /// How long its gangs wait for room before room is reserved for them.
    pub(crate) reserve_after: Option<SignedDuration>,
    pub(crate) preemption: Preemption,
    pub(crate) created: Timestamp,
    /// What could not be read, in words.
    pub(crate) faults: Vec<String>,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            parent: None,
            weight: WEIGHT_UNIT,
            surplus: Surplus::default(),
            priority: 0,
            capability: Bounds::new(),
            guarantee: Bounds::new(),
            deserved: Bounds::new(),
            borrowing: Bounds::new(),
            lending: Bounds::new(),
            user_limit: Bounds::new(),
            team_limit: Bounds::new(),
            reclaimable: true,
            door: Door::Open,
            policy: Policy::Priority,
            reserve_after: None,
            preemption: Preemption::default(),
            created: Timestamp::UNIX_EPOCH,
            faults: Vec::new(),
        }
    }
}

/// The amount said for a resource.
pub(crate) fn said(bounds: &Bounds, ix: Ix) -> Option<i64> {
    bounds
        .iter()
        .find(|(at, _)| *at == ix)
        .map(|(_, amount)| *amount)
}

impl Rules {
    pub(crate) fn read(queue: &Object, names: &mut Names) -> Rules {
        let spec = &queue.spec;
        let mut reader = Reader {
            notes: queue.metadata.annotations.as_ref(),
            names,
            faults: Vec::new(),
        };
        let state = queue.status.as_ref().and_then(|status| status.state);
        let weight = i64::from(spec.weight.unwrap_or(1).max(1)).saturating_mul(WEIGHT_UNIT);
        let mut rules = Rules {
            parent: spec.parent.clone().filter(|name| !name.is_empty()),
            weight,
            priority: spec.priority.unwrap_or(0),
            capability: reader.list(spec.capability.as_ref()),
            guarantee: reader.list(spec.guaranteed_resources()),
            deserved: reader.list(spec.deserved.as_ref()),
            borrowing: reader.note_list(names::BORROWING_LIMIT),
            lending: reader.note_list(names::LENDING_LIMIT),
            user_limit: reader.note_list(names::USER_LIMIT),
            team_limit: reader.note_list(names::TEAM_LIMIT),
            surplus: reader.surplus(),
            reclaimable: spec.reclaimable.unwrap_or(true),
            door: match state {
                Some(QueueState::Closed) => Door::Closed,
                Some(QueueState::Closing) => Door::Draining,
                _ => Door::Open,
            },
            policy: reader.policy(),
            reserve_after: reader.reserve_after(),
            preemption: reader.preemption(),
            created: queue
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            faults: Vec::new(),
        };
        rules.faults = reader.faults;
        rules
    }

    /// The weight by which the queue shares in what is beyond everybody's deserved amount.
    pub(crate) fn surplus_weight(&self, ix: Ix) -> i64 {
        said(&self.surplus.each, ix)
            .or(self.surplus.all)
            .unwrap_or(self.weight)
    }

    /// The weight of the queue as a whole, where no single resource is meant.
    pub(crate) fn share_weight(&self) -> i64 {
        self.surplus.all.unwrap_or(self.weight)
    }

    /// What nobody else may use although the queue does not: its guarantee, and what of its
    /// deserved amount it does not lend.
    pub(crate) fn reserved(&self, ix: Ix) -> i64 {
        let guarantee = said(&self.guarantee, ix).unwrap_or(0);
        let unlent = match (said(&self.deserved, ix), said(&self.lending, ix)) {
            (Some(deserved), Some(lent)) => deserved.saturating_sub(lent),
            _ => 0,
        };
        guarantee.max(unlent).max(0)
    }

    /// The deserved amount, or the guarantee where that is more.
    pub(crate) fn entitled_first(&self, ix: Ix) -> i64 {
        let deserved = said(&self.deserved, ix).unwrap_or(0);
        deserved.max(said(&self.guarantee, ix).unwrap_or(0)).max(0)
    }

    /// The most the borrowing limit lets the queue hold.
    pub(crate) fn borrowing_ceiling(&self, ix: Ix) -> Option<i64> {
        said(&self.borrowing, ix).map(|limit| self.entitled_first(ix).saturating_add(limit))
    }

    /// The most the queue may hold, by capability and borrowing limit.
    pub(crate) fn ceiling(&self, ix: Ix) -> Option<i64> {
        let capability = said(&self.capability, ix);
        match (capability, self.borrowing_ceiling(ix)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Every resource that some rule reserves.
    pub(crate) fn reserving(&self) -> impl Iterator<Item = Ix> + '_ {
        let lists = self.guarantee.iter().chain(&self.lending);
        lists.map(|(ix, _)| *ix)
    }
}

/// Reads lists and annotations, and notes what cannot be read.
struct Reader<'a> {
    notes: Option<&'a BTreeMap<String, String>>,
    names: &'a mut Names,
    faults: Vec<String>,
}

impl Reader<'_> {
    fn list(&mut self, list: Option<&BTreeMap<String, K8sQuantity>>) -> Bounds {
        list.map(|list| self.names.bounds(list)).unwrap_or_default()
    }

    fn note(&self, name: &str) -> Option<String> {
        let text = self.notes?.get(name)?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn fault(&mut self, name: &str, what: &str) {
        self.faults
            .push(format!("annotation {name} is ignored: {what}"));
    }

    fn reserve_after(&mut self) -> Option<SignedDuration> {
        let text = self.note(names::RESERVE_AFTER)?;
        let seconds = crate::terms::seconds(&text);
        if seconds.is_none() {
            self.fault(
                names::RESERVE_AFTER,
                "write seconds, or a time such as 90s or 1h30m",
            );
        }
        seconds.map(SignedDuration::from_secs)
    }

    fn note_list(&mut self, name: &str) -> Bounds {
        let Some(text) = self.note(name) else {
            return Bounds::new();
        };
        let Ok(map) = serde_json::from_str::<BTreeMap<String, Value>>(&text) else {
            self.fault(name, "it is no JSON object of resource to quantity");
            return Bounds::new();
        };
        let mut list = BTreeMap::new();
        for (resource, value) in map {
            match quantity(&value) {
                Some(quantity) => {
                    list.insert(resource, quantity.to_k8s());
                }
                None => self.fault(name, &format!("{resource} has no quantity")),
            }
        }
        self.list(Some(&list))
    }

    fn surplus(&mut self) -> Surplus {
        let name = names::SURPLUS_WEIGHT;
        let Some(text) = self.note(name) else {
            return Surplus::default();
        };
        let value = serde_json::from_str::<Value>(&text).unwrap_or(Value::String(text));
        let weight = |value: &Value| quantity(value).map(|weight| weight.milli().max(0));
        if let Value::Object(map) = &value {
            let mut each = Bounds::new();
            for (resource, value) in map {
                match weight(value) {
                    Some(weight) => each.push((self.names.intern(resource), weight)),
                    None => self.fault(name, &format!("{resource} has no weight")),
                }
            }
            each.sort_unstable();
            return Surplus { all: None, each };
        }
        let all = weight(&value);
        if all.is_none() {
            self.fault(name, "it is neither a number nor an object of them");
        }
        Surplus {
            all,
            each: Bounds::new(),
        }
    }

    fn policy(&mut self) -> Policy {
        let name = names::QUEUE_POLICY;
        match self.note(name).as_deref() {
            None | Some("priority") => Policy::Priority,
            Some("fifo") => Policy::Fifo,
            Some("sjf") => Policy::Sjf,
            Some("round-robin") => Policy::RoundRobin,
            Some("fair") => Policy::Fair,
            Some(_) => {
                self.fault(name, "it is none of priority, fifo, sjf, round-robin, fair");
                Policy::Priority
            }
        }
    }

    fn preemption(&mut self) -> Preemption {
        let name = names::PREEMPTION;
        let Some(text) = self.note(name) else {
            return Preemption::default();
        };
        serde_json::from_str(&text).unwrap_or_else(|error| {
            self.fault(name, &error.to_string());
            Preemption::default()
        })
    }
}

/// A quantity written as a string or a number.
fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.trim().parse().ok(),
        Value::Number(number) => number.to_string().parse().ok(),
        _ => None,
    }
}
