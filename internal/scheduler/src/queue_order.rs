//! The order of gangs within a queue, by the queue's policy. By default: priority, then interrupted
//! gangs, then gangs below their minimum before members beyond one, then age, then name.

use jiff::Timestamp;

use crate::gang::GangKey;
use crate::queue::GangOrder;

/// A waiting gang's position. Lesser comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LineKey {
    /// The criteria of the policy, in order.
    first: i64,
    then: i64,
    last: i64,
    pub(crate) created: Timestamp,
    pub(crate) gang: GangKey,
}

/// What a gang's position depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OrderFactors {
    pub(crate) priority: i32,
    /// True if it was running and lost members without an eviction.
    pub(crate) interrupted: bool,
    /// True if its minimum has room: the waiting members are beyond it.
    pub(crate) whole: bool,
    /// Its expected run time, in seconds.
    pub(crate) seconds: Option<i64>,
    pub(crate) created: Option<Timestamp>,
}

impl LineKey {
    pub(crate) fn new(policy: GangOrder, factors: OrderFactors, gang: GangKey) -> LineKey {
        let urgency = -i64::from(factors.priority);
        let beyond = i64::from(factors.whole) - i64::from(factors.interrupted);
        let (first, then, last) = match policy {
            GangOrder::Priority | GangOrder::RoundRobin | GangOrder::Fair => (urgency, beyond, 0),
            GangOrder::Fifo => (beyond, 0, 0),
            GangOrder::Sjf => (factors.seconds.unwrap_or(i64::MAX), urgency, beyond),
        };
        LineKey {
            first,
            then,
            last,
            created: factors.created.unwrap_or(Timestamp::UNIX_EPOCH),
            gang,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(policy: GangOrder, name: &str, factors: OrderFactors) -> LineKey {
        LineKey::new(policy, factors, GangKey::group("ns".into(), name))
    }

    #[test]
    fn a_policy_decides_the_order() {
        let at = |second: i64| Timestamp::from_second(second).ok();
        let gangs = [
            ("old", (0, false, None, at(1))),
            ("urgent", (9, false, None, at(3))),
            ("beyond", (9, true, Some(50), at(2))),
            ("short", (0, false, Some(5), at(4))),
            ("broken", (0, false, None, at(5))),
        ];
        let order = |policy: GangOrder| -> Vec<String> {
            let mut keys: Vec<LineKey> = gangs
                .iter()
                .map(|(name, (priority, whole, seconds, created))| {
                    let factors = OrderFactors {
                        priority: *priority,
                        interrupted: *name == "broken",
                        whole: *whole,
                        seconds: *seconds,
                        created: *created,
                    };
                    key(policy, name, factors)
                })
                .collect();
            keys.sort();
            keys.iter().map(|key| key.gang.name.to_string()).collect()
        };
        assert_eq!(
            order(GangOrder::Priority),
            ["urgent", "beyond", "broken", "old", "short"]
        );
        assert_eq!(
            order(GangOrder::Fifo),
            ["broken", "old", "urgent", "short", "beyond"]
        );
        assert_eq!(
            order(GangOrder::Sjf),
            ["short", "beyond", "urgent", "broken", "old"]
        );
    }
}
