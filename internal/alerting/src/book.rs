//! The book of alerts: which conditions wait for their hold time, which fire, and which have ended.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::conditions::{Condition, Subject};
use crate::rule::Rule;

/// How long a condition must be absent before its alert ends, so that one that comes and goes is told once.
pub const ENDS_AFTER: SignedDuration = SignedDuration::from_secs(60);
/// The most conditions that are followed at a time. Of more, those of the first rules and subjects count.
pub const ALERTS_MAX: usize = 10_000;

type Key = (Rule, Subject);

/// An alert that fires.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FiringAlert {
    /// The rule.
    pub rule: Rule,
    /// What it is about.
    pub subject: Subject,
    /// Since when the condition has held.
    pub since: Timestamp,
    /// A sentence without a full stop.
    pub message: String,
    /// True once its beginning was handed to the receivers.
    #[serde(default)]
    pub announced: bool,
}

/// The conditions and alerts.
#[derive(Clone, Debug, Default)]
pub struct AlertBook {
    /// Conditions that have not held long enough, and since when they have.
    pending: BTreeMap<Key, Timestamp>,
    firing: BTreeMap<Key, Followed>,
}

#[derive(Clone, Debug)]
struct Followed {
    alert: FiringAlert,
    /// Since when the condition has been absent.
    absent: Option<Timestamp>,
}

impl AlertBook {
    /// The book as it was saved.
    pub fn restore(firing: Vec<FiringAlert>) -> AlertBook {
        let followed = firing.into_iter().take(ALERTS_MAX).map(|alert| {
            let key = (alert.rule, alert.subject.clone());
            (
                key,
                Followed {
                    alert,
                    absent: None,
                },
            )
        });
        AlertBook {
            pending: BTreeMap::new(),
            firing: followed.collect(),
        }
    }

    /// Takes in all conditions that hold now. Returns the alerts that have ended.
    pub fn observe(&mut self, conditions: Vec<Condition>, now: Timestamp) -> Vec<FiringAlert> {
        let mut present: BTreeMap<Key, Condition> = conditions
            .into_iter()
            .map(|one| ((one.rule, one.subject.clone()), one))
            .collect();
        while present.len() > ALERTS_MAX {
            present.pop_last();
        }
        self.pending.retain(|key, _| present.contains_key(key));
        let mut ended = Vec::new();
        self.firing.retain(|key, followed| {
            if present.contains_key(key) {
                followed.absent = None;
                return true;
            }
            let absent = *followed.absent.get_or_insert(now);
            if now.duration_since(absent) < ENDS_AFTER {
                return true;
            }
            ended.push(followed.alert.clone());
            false
        });
        for (key, condition) in present {
            if let Some(followed) = self.firing.get_mut(&key) {
                followed.alert.message = condition.message;
                continue;
            }
            let seen = *self.pending.entry(key.clone()).or_insert(now);
            // A clock that was set back does not lengthen the wait.
            if now.duration_since(seen.min(now)) < key.0.hold() {
                continue;
            }
            self.pending.remove(&key);
            if self.firing.len() >= ALERTS_MAX {
                continue;
            }
            let alert = FiringAlert {
                rule: condition.rule,
                subject: condition.subject,
                since: condition.since.unwrap_or(seen),
                message: condition.message,
                announced: false,
            };
            self.firing.insert(
                key,
                Followed {
                    alert,
                    absent: None,
                },
            );
        }
        ended
    }

    /// The alerts that fire, by rule and subject.
    pub fn firing(&self) -> impl Iterator<Item = &FiringAlert> {
        self.firing.values().map(|followed| &followed.alert)
    }

    /// Marks the alerts that `chosen` accepts as announced, and returns them.
    pub fn announce(&mut self, chosen: impl Fn(&FiringAlert) -> bool) -> Vec<FiringAlert> {
        let fresh = self.firing.values_mut().map(|followed| &mut followed.alert);
        let mut announced = Vec::new();
        for alert in fresh.filter(|alert| !alert.announced) {
            if chosen(alert) {
                alert.announced = true;
                announced.push(alert.clone());
            }
        }
        announced
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::conditions::SubjectKind;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn condition(rule: Rule, name: &str) -> Condition {
        Condition {
            rule,
            subject: Subject {
                kind: SubjectKind::Node,
                name: name.to_owned(),
            },
            since: None,
            message: format!("{rule} of {name}"),
        }
    }

    #[test]
    fn an_alert_fires_after_its_hold_time_and_ends_after_a_minute_without_its_condition() {
        let mut book = AlertBook::default();
        let suspect = || vec![condition(Rule::NodeSuspect, "n1")];
        assert!(book.observe(suspect(), at(0)).is_empty());
        assert_eq!(book.firing().count(), 0);
        // A gap begins the hold anew.
        book.observe(vec![], at(50));
        book.observe(suspect(), at(55));
        book.observe(suspect(), at(114));
        assert_eq!(book.firing().count(), 0);
        book.observe(suspect(), at(115));
        let alert = book.firing().next().unwrap().clone();
        assert_eq!((alert.since, alert.announced), (at(55), false));
        // A short absence does not end it.
        assert!(book.observe(vec![], at(120)).is_empty());
        assert!(book.observe(suspect(), at(170)).is_empty());
        assert!(book.observe(vec![], at(180)).is_empty());
        assert!(book.observe(vec![], at(239)).is_empty());
        assert_eq!(book.observe(vec![], at(240)), [alert]);
        assert_eq!(book.firing().count(), 0);
    }

    #[test]
    fn an_alert_is_announced_once_also_after_a_restart() {
        let mut book = AlertBook::default();
        let lost = || vec![condition(Rule::NodeLost, "n1")];
        book.observe(lost(), at(0));
        assert!(book.announce(|_| false).is_empty());
        assert_eq!(book.announce(|_| true).len(), 1);
        let saved: Vec<FiringAlert> = book.firing().cloned().collect();
        let mut book = AlertBook::restore(saved);
        book.observe(lost(), at(5));
        assert!(book.announce(|_| true).is_empty());
        // Its condition went away while the server was down.
        book.observe(vec![], at(10));
        assert_eq!(book.observe(vec![], at(70)).len(), 1);
    }

    proptest! {
        /// Beginnings and ends alternate for each alert, whatever comes and goes.
        #[test]
        fn each_end_has_one_beginning(
            rounds in proptest::collection::vec((1..90_i64, proptest::collection::btree_set(0..6_usize, 0..5)), 1..60),
        ) {
            let mut book = AlertBook::default();
            let mut open = std::collections::BTreeSet::new();
            let mut now = 0;
            for (step, present) in rounds {
                now += step;
                let rules = [Rule::NodeLost, Rule::NodeSuspect];
                let conditions = present.iter().map(|one| condition(rules[one % 2], &format!("n{}", one / 2)));
                for ended in book.observe(conditions.collect(), at(now)) {
                    prop_assert!(open.remove(&(ended.rule, ended.subject)));
                }
                for begun in book.announce(|_| true) {
                    prop_assert!(open.insert((begun.rule, begun.subject)));
                }
                let firing: std::collections::BTreeSet<_> =
                    book.firing().map(|one| (one.rule, one.subject.clone())).collect();
                prop_assert_eq!(&firing, &open);
            }
        }
    }
}
