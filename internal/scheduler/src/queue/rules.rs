//! A Queue object, read once: its parent, bounds, rights and policies. An annotation that cannot be
//! read is ignored and recorded as a fault, which the queue's view shows.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as K8sQuantity;
use resources::kinds::{Queue as Object, QueueState};
use resources::names;
use resources::quantity::Quantity;
use serde::Deserialize;
use serde_json::Value;

use crate::queue_access::AdmittedNamespaces;
use crate::resource::{Ix, ResourceNames};

/// Amounts by resource number. An explicit zero is kept: it differs from an absent amount.
pub(crate) type SparseAmounts = Vec<(Ix, i64)>;

/// Weights are counted in thousandths.
pub(crate) const WEIGHT_UNIT: i64 = 1000;

/// The order of a queue's waiting gangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum GangOrder {
    /// Priority; gangs below their minimum before members beyond one; age.
    #[default]
    Priority,
    /// Age only.
    Fifo,
    /// The shortest expected run first; gangs of unknown length last.
    Sjf,
    /// The queue's users in turn.
    RoundRobin,
    /// The user with the smallest share of the queue first.
    Fair,
}

/// Which gangs of its own queue a gang may preempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum WithinQueue {
    /// Gangs of lower priority.
    #[default]
    LowerPriority,
    /// Gangs of lower priority, and younger gangs of equal priority.
    LowerOrNewerEqualPriority,
    /// None.
    Never,
}

/// Which gangs of other queues a gang may reclaim from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum ReclaimWithinCohort {
    /// Gangs of any priority.
    #[default]
    Any,
    /// Gangs of lower priority.
    LowerPriority,
    /// None.
    Never,
}

/// Whether a queue that would borrow may evict other queues' gangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) enum BorrowPolicy {
    /// No.
    #[default]
    Never,
    /// Only gangs of lower priority.
    LowerPriority,
}

/// Preemption while borrowing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct BorrowWithinCohort {
    pub(crate) policy: BorrowPolicy,
    /// The highest priority of a gang that may be evicted; no bound if absent.
    pub(crate) max_priority_threshold: Option<i32>,
}

/// When fair sharing lets a queue reclaim from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum FairStrategy {
    /// The preemptor's new share is at most the victim queue's share afterwards.
    LessThanOrEqualToFinalShare,
    /// The preemptor's new share is less than the victim queue's share before.
    LessThanInitialShare,
}

/// Which evictions a queue's gangs may cause.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct PreemptionRules {
    pub(crate) within_queue: WithinQueue,
    pub(crate) reclaim: ReclaimWithinCohort,
    /// Whether to evict while borrowing. If present, even as null, evictions go by quota instead of
    /// shares.
    #[serde(deserialize_with = "present_or_null")]
    pub(crate) borrow: Option<Option<BorrowWithinCohort>>,
    /// Fair sharing's strategies, tried in this order; `None`: classic preemption.
    pub(crate) fair: Option<Vec<FairStrategy>>,
    /// With fair sharing: a queue that stays within its deserved amount may reclaim from a queue
    /// that borrows, whatever their shares are.
    pub(crate) fair_within_deserved: bool,
}

impl Default for PreemptionRules {
    fn default() -> PreemptionRules {
        PreemptionRules {
            within_queue: WithinQueue::default(),
            reclaim: ReclaimWithinCohort::default(),
            borrow: None,
            fair: None,
            fair_within_deserved: true,
        }
    }
}

/// Distinguishes null from an absent field.
fn present_or_null<'de, D: serde::Deserializer<'de>>(
    reader: D,
) -> Result<Option<Option<BorrowWithinCohort>>, D::Error> {
    Option::<BorrowWithinCohort>::deserialize(reader).map(Some)
}

/// A weight for each resource, or one for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Surplus {
    all: Option<i64>,
    each: SparseAmounts,
}

/// Whether a queue admits gangs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It admits gangs.
    #[default]
    Open,
    /// It admits no gangs; gangs admitted earlier go on.
    Draining,
    /// Like `Draining`; the object's state is Closed.
    Closed,
}

/// The rules of a Queue object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QueueRules {
    pub(crate) parent: Option<String>,
    /// Its weight among its siblings, in [`WEIGHT_UNIT`]s.
    pub(crate) weight: i64,
    surplus: Surplus,
    pub(crate) priority: i32,
    /// The most that the queue and all queues below it may hold.
    pub(crate) capability: SparseAmounts,
    /// Reserved for it: no other queue may use it.
    pub(crate) guarantee: SparseAmounts,
    /// What it is entitled to first; others may use the idle part.
    pub(crate) deserved: SparseAmounts,
    /// How far above its deserved amount it may go.
    pub(crate) borrowing: SparseAmounts,
    /// How much of its deserved amount others may use.
    pub(crate) lending: SparseAmounts,
    /// The most that one user may hold in it.
    pub(crate) user_limit: SparseAmounts,
    /// The most that one team may hold in it.
    pub(crate) team_limit: SparseAmounts,
    /// May other queues reclaim what it holds beyond its share?
    pub(crate) reclaimable: bool,
    pub(crate) admission: Admission,
    /// The namespaces whose gangs it admits; `None`: all.
    pub(crate) namespaces: Option<AdmittedNamespaces>,
    pub(crate) policy: GangOrder,
    /// How long its gangs wait before capacity is reserved for them.
    pub(crate) reserve_after: Option<SignedDuration>,
    pub(crate) preemption: PreemptionRules,
    pub(crate) created: Timestamp,
    /// What could not be read, as messages.
    pub(crate) faults: Vec<String>,
}

impl Default for QueueRules {
    fn default() -> QueueRules {
        QueueRules {
            parent: None,
            weight: WEIGHT_UNIT,
            surplus: Surplus::default(),
            priority: 0,
            capability: SparseAmounts::new(),
            guarantee: SparseAmounts::new(),
            deserved: SparseAmounts::new(),
            borrowing: SparseAmounts::new(),
            lending: SparseAmounts::new(),
            user_limit: SparseAmounts::new(),
            team_limit: SparseAmounts::new(),
            reclaimable: true,
            admission: Admission::Open,
            namespaces: None,
            policy: GangOrder::Priority,
            reserve_after: None,
            preemption: PreemptionRules::default(),
            created: Timestamp::UNIX_EPOCH,
            faults: Vec::new(),
        }
    }
}

/// The amount set for a resource.
pub(crate) fn amount_for(bounds: &SparseAmounts, ix: Ix) -> Option<i64> {
    bounds
        .iter()
        .find(|(at, _)| *at == ix)
        .map(|(_, amount)| *amount)
}

impl QueueRules {
    pub(crate) fn read(queue: &Object, names: &mut ResourceNames) -> QueueRules {
        let spec = &queue.spec;
        let mut reader = RuleReader {
            notes: queue.metadata.annotations.as_ref(),
            names,
            faults: Vec::new(),
        };
        let state = queue.status.as_ref().and_then(|status| status.state);
        let weight = i64::from(spec.weight.unwrap_or(1).max(1)).saturating_mul(WEIGHT_UNIT);
        let mut rules = QueueRules {
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
            admission: match state {
                Some(QueueState::Closed) => Admission::Closed,
                Some(QueueState::Closing) => Admission::Draining,
                _ => Admission::Open,
            },
            namespaces: spec
                .namespace_selector
                .as_ref()
                .map(AdmittedNamespaces::read),
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

    /// The queue's weight for capacity beyond all deserved amounts.
    pub(crate) fn surplus_weight(&self, ix: Ix) -> i64 {
        amount_for(&self.surplus.each, ix)
            .or(self.surplus.all)
            .unwrap_or(self.weight)
    }

    /// The queue's weight where no single resource is meant.
    pub(crate) fn share_weight(&self) -> i64 {
        self.surplus.all.unwrap_or(self.weight)
    }

    /// What no other queue may use: the guarantee, and the part of the deserved amount that is not
    /// lent.
    pub(crate) fn reserved(&self, ix: Ix) -> i64 {
        let guarantee = amount_for(&self.guarantee, ix).unwrap_or(0);
        let unlent = match (
            amount_for(&self.deserved, ix),
            amount_for(&self.lending, ix),
        ) {
            (Some(deserved), Some(lent)) => deserved.saturating_sub(lent),
            _ => 0,
        };
        guarantee.max(unlent).max(0)
    }

    /// The deserved amount, or the guarantee if that is more.
    pub(crate) fn entitled_first(&self, ix: Ix) -> i64 {
        let deserved = amount_for(&self.deserved, ix).unwrap_or(0);
        deserved
            .max(amount_for(&self.guarantee, ix).unwrap_or(0))
            .max(0)
    }

    /// The most that the borrowing limit allows the queue to hold.
    pub(crate) fn borrowing_ceiling(&self, ix: Ix) -> Option<i64> {
        amount_for(&self.borrowing, ix).map(|limit| self.entitled_first(ix).saturating_add(limit))
    }

    /// The most the queue may hold, by capability and borrowing limit.
    pub(crate) fn ceiling(&self, ix: Ix) -> Option<i64> {
        let capability = amount_for(&self.capability, ix);
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

/// Reads lists and annotations, and records what cannot be read.
struct RuleReader<'a> {
    notes: Option<&'a BTreeMap<String, String>>,
    names: &'a mut ResourceNames,
    faults: Vec<String>,
}

impl RuleReader<'_> {
    fn list(&mut self, list: Option<&BTreeMap<String, K8sQuantity>>) -> SparseAmounts {
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
        let seconds = resources::span::seconds(&text);
        if seconds.is_none() {
            self.fault(
                names::RESERVE_AFTER,
                "write seconds, or a length of time such as 90s or 1h30m",
            );
        }
        seconds.map(SignedDuration::from_secs)
    }

    fn note_list(&mut self, name: &str) -> SparseAmounts {
        let Some(text) = self.note(name) else {
            return SparseAmounts::new();
        };
        let Ok(map) = serde_json::from_str::<BTreeMap<String, Value>>(&text) else {
            self.fault(name, "write a JSON object of resource to quantity");
            return SparseAmounts::new();
        };
        let mut list = BTreeMap::new();
        for (resource, value) in map {
            match quantity(&value) {
                Some(quantity) => {
                    list.insert(resource, quantity.to_k8s());
                }
                None => self.fault(name, &format!("write a quantity for {resource}")),
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
            let mut each = SparseAmounts::new();
            for (resource, value) in map {
                match weight(value) {
                    Some(weight) => each.push((self.names.intern(resource), weight)),
                    None => self.fault(name, &format!("write a weight for {resource}")),
                }
            }
            each.sort_unstable();
            return Surplus { all: None, each };
        }
        let all = weight(&value);
        if all.is_none() {
            self.fault(
                name,
                "write a number, or a JSON object of resource to number",
            );
        }
        Surplus {
            all,
            each: SparseAmounts::new(),
        }
    }

    fn policy(&mut self) -> GangOrder {
        let name = names::QUEUE_POLICY;
        match self.note(name).as_deref() {
            None | Some("priority") => GangOrder::Priority,
            Some("fifo") => GangOrder::Fifo,
            Some("sjf") => GangOrder::Sjf,
            Some("round-robin") => GangOrder::RoundRobin,
            Some("fair") => GangOrder::Fair,
            Some(_) => {
                self.fault(name, "write priority, fifo, sjf, round-robin or fair");
                GangOrder::Priority
            }
        }
    }

    fn preemption(&mut self) -> PreemptionRules {
        let name = names::PREEMPTION;
        let Some(text) = self.note(name) else {
            return PreemptionRules::default();
        };
        serde_json::from_str(&text).unwrap_or_else(|error| {
            self.fault(name, &error.to_string());
            PreemptionRules::default()
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
