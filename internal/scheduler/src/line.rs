//! Who is before whom within a queue, by the queue's policy. Unless it says otherwise: priority,
//! then gangs that were interrupted, then gangs below their minimum before members beyond one, then
//! age, then name.

use jiff::Timestamp;

use crate::gang::GangKey;
use crate::queue::Policy;

/// A waiting gang's place. Lesser comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LineKey {
    /// What the policy looks at first.
    first: i64,
    then: i64,
    last: i64,
    pub(crate) created: Timestamp,
    pub(crate) gang: GangKey,
}

/// What a gang's place depends on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) priority: i32,
    /// It was running, and lost members without being evicted.
    pub(crate) interrupted: bool,
    /// Its minimum has room: what waits is beyond it.
    pub(crate) whole: bool,
    /// How long it is expected to run, in seconds.
    pub(crate) seconds: Option<i64>,
    pub(crate) created: Option<Timestamp>,
}

impl LineKey {
    pub(crate) fn new(policy: Policy, standing: Standing, gang: GangKey) -> LineKey {
        let urgency = -i64::from(standing.priority);
        let beyond = i64::from(standing.whole) - i64::from(standing.interrupted);
        let (first, then, last) = match policy {
            Policy::Priority | Policy::RoundRobin | Policy::Fair => (urgency, beyond, 0),
            Policy::Fifo => (beyond, 0, 0),
            Policy::Sjf => (standing.seconds.unwrap_or(i64::MAX), urgency, beyond),
        };
        LineKey {
            first,
            then,
            last,
            created: standing.created.unwrap_or(Timestamp::UNIX_EPOCH),
            gang,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(policy: Policy, name: &str, standing: Standing) -> LineKey {
        LineKey::new(policy, standing, GangKey::group("ns".into(), name))
    }

    #[test]
    fn a_policy_says_who_is_first() {
        let at = |second: i64| Timestamp::from_second(second).ok();
        let gangs = [
            ("old", (0, false, None, at(1))),
            ("urgent", (9, false, None, at(3))),
            ("beyond", (9, true, Some(50), at(2))),
            ("short", (0, false, Some(5), at(4))),
            ("broken", (0, false, None, at(5))),
        ];
        let order = |policy: Policy| -> Vec<String> {
            let mut keys: Vec<LineKey> = gangs
                .iter()
                .map(|(name, (priority, whole, seconds, created))| {
                    let standing = Standing {
                        priority: *priority,
                        interrupted: *name == "broken",
                        whole: *whole,
                        seconds: *seconds,
                        created: *created,
                    };
                    key(policy, name, standing)
                })
                .collect();
            keys.sort();
            keys.iter().map(|key| key.gang.name.to_string()).collect()
        };
        assert_eq!(
            order(Policy::Priority),
            ["urgent", "beyond", "broken", "old", "short"]
        );
        assert_eq!(
            order(Policy::Fifo),
            ["broken", "old", "urgent", "short", "beyond"]
        );
        assert_eq!(
            order(Policy::Sjf),
            ["short", "beyond", "urgent", "broken", "old"]
        );
    }
}
