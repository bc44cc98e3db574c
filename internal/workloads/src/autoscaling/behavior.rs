//! How fast a target follows what its metrics propose: stabilisation windows and policies of
//! `spec.behavior`, and what an autoscaler must remember for them. The rules and the defaults are those of Kubernetes
//! 1.34: up by 4 pods or 100 % in 15 seconds, whichever is more; down by 100 %, after the highest proposal of 300 seconds.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscaler};
use resources::quantity::Quantity;

use super::replicas::Tolerances;

/// The part by which a ratio may differ from one without a change, if the behavior names none.
const TOLERANCE: f64 = 0.1;
/// How long the highest proposal counts before a target shrinks, if the behavior does not say.
const DOWN_WINDOW: SignedDuration = SignedDuration::from_mins(5);
/// The longest window and the longest period that Kubernetes accepts, in seconds.
const WINDOW_MAX: i32 = 3600;
const PERIOD_MAX: i32 = 1800;
/// The most proposals that an autoscaler remembers: one each 15 seconds for the longest window, and some.
const REMEMBERED_MAX: usize = 256;

/// How much may change in a period.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Amount {
    Pods(i32),
    Percent(i32),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Policy {
    amount: Amount,
    period: SignedDuration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Select {
    /// The policy that allows the larger change.
    Max,
    /// The policy that allows the smaller change.
    Min,
    Disabled,
}

#[derive(Clone, Debug, PartialEq)]
struct Direction {
    window: SignedDuration,
    select: Select,
    policies: Vec<Policy>,
}

/// The rules of an autoscaler.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rules {
    up: Direction,
    down: Direction,
}

impl Rules {
    pub(super) fn of(scaler: &HorizontalPodAutoscaler) -> Rules {
        let quarter = SignedDuration::from_secs(15);
        let policy = |amount| Policy {
            amount,
            period: quarter,
        };
        let up = vec![policy(Amount::Pods(4)), policy(Amount::Percent(100))];
        let down = vec![policy(Amount::Percent(100))];
        let asked = scaler.spec.as_ref().and_then(|spec| spec.behavior.as_ref());
        Rules {
            up: direction(
                asked.and_then(|asked| asked.scale_up.as_ref()),
                SignedDuration::ZERO,
                up,
            ),
            down: direction(
                asked.and_then(|asked| asked.scale_down.as_ref()),
                DOWN_WINDOW,
                down,
            ),
        }
    }
}

fn direction(
    asked: Option<&HPAScalingRules>,
    window: SignedDuration,
    policies: Vec<Policy>,
) -> Direction {
    let Some(asked) = asked else {
        return Direction {
            window,
            select: Select::Max,
            policies,
        };
    };
    let named = asked.policies.as_deref().unwrap_or_default().iter();
    let named: Vec<Policy> = named
        .map(|policy| Policy {
            amount: match policy.type_.as_str() {
                "Percent" => Amount::Percent(policy.value.max(0)),
                _ => Amount::Pods(policy.value.max(0)),
            },
            period: seconds(policy.period_seconds.clamp(1, PERIOD_MAX)),
        })
        .collect();
    Direction {
        window: asked
            .stabilization_window_seconds
            .map_or(window, |length| seconds(length.clamp(0, WINDOW_MAX))),
        select: match asked.select_policy.as_deref() {
            Some("Disabled") => Select::Disabled,
            Some("Min") => Select::Min,
            _ => Select::Max,
        },
        policies: if named.is_empty() { policies } else { named },
    }
}

fn seconds(length: i32) -> SignedDuration {
    SignedDuration::from_secs(i64::from(length))
}

/// The tolerances of an autoscaler.
pub(super) fn tolerances(scaler: &HorizontalPodAutoscaler) -> Tolerances {
    let behavior = scaler.spec.as_ref().and_then(|spec| spec.behavior.as_ref());
    let named = |rules: Option<&HPAScalingRules>| {
        let asked = rules.and_then(|rules| rules.tolerance.as_ref());
        let asked = asked.and_then(|asked| Quantity::parse_k8s(asked).ok());
        asked.map_or(TOLERANCE, |asked| asked.as_f64().max(0.0))
    };
    Tolerances {
        up: named(behavior.and_then(|behavior| behavior.scale_up.as_ref())),
        down: named(behavior.and_then(|behavior| behavior.scale_down.as_ref())),
    }
}

/// Which limit holds the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// The rules for growing.
    ScaleUp,
    /// The rules for shrinking.
    ScaleDown,
    /// The most replicas.
    Max,
    /// The fewest replicas.
    Min,
}

/// Replicas within all limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limited {
    pub(super) replicas: i32,
    /// The limit that changed them, if one did.
    pub(super) by: Option<Limit>,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    at: Timestamp,
    /// How many replicas were added; negative if they were taken away.
    added: i32,
}

/// What was proposed and done for one autoscaler, as far as its rules look back. A restart of the controller forgets it, as
/// in Kubernetes.
#[derive(Clone, Debug, Default)]
pub struct ScalingMemory {
    proposals: Vec<(Timestamp, i32)>,
    changes: Vec<Change>,
}

impl ScalingMemory {
    /// Notes that the target's scale was changed.
    pub fn scaled(&mut self, before: i32, after: i32, now: Timestamp) {
        let oldest = now - seconds(PERIOD_MAX);
        self.changes.retain(|change| change.at > oldest);
        let excess = (self.changes.len() + 1).saturating_sub(REMEMBERED_MAX);
        self.changes.drain(..excess);
        self.changes.push(Change {
            at: now,
            added: after.saturating_sub(before),
        });
    }

    /// Remembers a proposal; the answer is the one that counts, by the windows.
    pub(super) fn stabilized(
        &mut self,
        rules: &Rules,
        current: i32,
        proposed: i32,
        now: Timestamp,
    ) -> i32 {
        if self.proposals.is_empty() {
            // A new memory must not shrink a target at once: what runs counts as proposed.
            self.proposals.push((now, current));
        }
        let longest = now - seconds(WINDOW_MAX);
        self.proposals.retain(|(at, _)| *at > longest);
        let excess = (self.proposals.len() + 1).saturating_sub(REMEMBERED_MAX);
        self.proposals.drain(..excess);
        let within = |window: SignedDuration| {
            let from = now - window;
            let recent = self.proposals.iter().filter(move |(at, _)| *at > from);
            recent.map(|(_, replicas)| *replicas).chain([proposed])
        };
        let up = within(rules.up.window).min().unwrap_or(proposed);
        let down = within(rules.down.window).max().unwrap_or(proposed);
        self.proposals.push((now, proposed));
        current.clamp(up.min(down), down.max(up))
    }

    /// The replicas within the policies and the spec's bounds.
    pub(super) fn limited(
        &self,
        rules: &Rules,
        current: i32,
        wanted: i32,
        (min, max): (i32, i32),
        now: Timestamp,
    ) -> Limited {
        let (replicas, by) = if wanted > current {
            let most = self.most(&rules.up, current, now).max(current);
            match wanted > most.min(max) {
                true if most < max => (most, Some(Limit::ScaleUp)),
                true => (max, Some(Limit::Max)),
                false => (wanted, None),
            }
        } else if wanted < current {
            let fewest = self.fewest(&rules.down, current, now).min(current);
            match wanted < fewest.max(min) {
                true if fewest > min => (fewest, Some(Limit::ScaleDown)),
                true => (min, Some(Limit::Min)),
                false => (wanted, None),
            }
        } else {
            (wanted, None)
        };
        Limited { replicas, by }
    }

    /// The most replicas that growing may reach now.
    fn most(&self, rules: &Direction, current: i32, now: Timestamp) -> i32 {
        let reached = rules.policies.iter().map(|policy| {
            let start = self.before(policy, current, now);
            match policy.amount {
                Amount::Pods(pods) => start.saturating_add(pods),
                Amount::Percent(percent) => {
                    (f64::from(start) * (1.0 + f64::from(percent) / 100.0)).ceil() as i32
                }
            }
        });
        match rules.select {
            Select::Disabled => current,
            Select::Max => reached.max().unwrap_or(current),
            Select::Min => reached.min().unwrap_or(current),
        }
    }

    /// The fewest replicas that shrinking may reach now.
    fn fewest(&self, rules: &Direction, current: i32, now: Timestamp) -> i32 {
        let reached = rules.policies.iter().map(|policy| {
            let start = self.before(policy, current, now);
            match policy.amount {
                Amount::Pods(pods) => start.saturating_sub(pods),
                Amount::Percent(percent) => {
                    (f64::from(start) * (1.0 - f64::from(percent) / 100.0)).floor() as i32
                }
            }
        });
        match rules.select {
            Select::Disabled => current,
            Select::Max => reached.min().unwrap_or(current),
            Select::Min => reached.max().unwrap_or(current),
        }
    }

    /// The replicas at the beginning of a policy's period.
    fn before(&self, policy: &Policy, current: i32, now: Timestamp) -> i32 {
        let from = now - policy.period;
        let recent = self.changes.iter().filter(|change| change.at > from);
        recent.fold(current, |replicas, change| {
            replicas.saturating_sub(change.added)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rules(behavior: Value) -> Rules {
        let scaler = json!({
            "metadata": {"name": "s"},
            "spec": {
                "scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 100,
                "behavior": behavior,
            },
        });
        Rules::of(&serde_json::from_value(scaler).unwrap())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn without_a_behavior_a_target_doubles_or_grows_by_four_and_shrinks_after_five_minutes() {
        let rules = rules(Value::Null);
        let mut memory = ScalingMemory::default();
        assert_eq!(memory.stabilized(&rules, 2, 50, at(0)), 50);
        let limited = |memory: &ScalingMemory, current, wanted, second| {
            let limited = memory.limited(&rules, current, wanted, (1, 40), at(second));
            (limited.replicas, limited.by)
        };
        assert_eq!(limited(&memory, 2, 50, 0), (6, Some(Limit::ScaleUp)));
        memory.scaled(2, 6, at(0));
        // Within the period the growth counts from its beginning.
        assert_eq!(limited(&memory, 6, 50, 10), (6, Some(Limit::ScaleUp)));
        assert_eq!(limited(&memory, 6, 50, 15), (12, Some(Limit::ScaleUp)));
        assert_eq!(limited(&memory, 30, 50, 60), (40, Some(Limit::Max)));
        assert_eq!(memory.stabilized(&rules, 40, 1, at(299)), 40);
        assert_eq!(memory.stabilized(&rules, 40, 3, at(600)), 3);
        assert_eq!(limited(&memory, 40, 0, 600), (1, Some(Limit::Min)));
        assert_eq!(limited(&memory, 40, 3, 600), (3, None));
    }

    #[test]
    fn a_policy_may_be_the_smaller_one_or_disabled() {
        let rules = rules(json!({
            "scaleUp": {"selectPolicy": "Disabled"},
            "scaleDown": {
                "stabilizationWindowSeconds": 0, "selectPolicy": "Min",
                "policies": [
                    {"type": "Pods", "value": 4, "periodSeconds": 60},
                    {"type": "Percent", "value": 10, "periodSeconds": 60},
                ],
            },
        }));
        let mut memory = ScalingMemory::default();
        let limited = |memory: &ScalingMemory, current, wanted, second| {
            let limited = memory.limited(&rules, current, wanted, (1, 100), at(second));
            (limited.replicas, limited.by)
        };
        assert_eq!(limited(&memory, 5, 9, 0), (5, Some(Limit::ScaleUp)));
        assert_eq!(memory.stabilized(&rules, 80, 10, at(0)), 10);
        assert_eq!(limited(&memory, 80, 10, 0), (76, Some(Limit::ScaleDown)));
        memory.scaled(80, 76, at(0));
        assert_eq!(limited(&memory, 76, 10, 30), (76, Some(Limit::ScaleDown)));
        assert_eq!(limited(&memory, 20, 10, 90), (18, Some(Limit::ScaleDown)));
    }

    #[test]
    fn a_window_for_growing_takes_the_lowest_proposal() {
        let rules = rules(json!({"scaleUp": {"stabilizationWindowSeconds": 60}}));
        let mut memory = ScalingMemory::default();
        assert_eq!(memory.stabilized(&rules, 2, 8, at(0)), 2);
        assert_eq!(memory.stabilized(&rules, 2, 6, at(30)), 2);
        assert_eq!(memory.stabilized(&rules, 2, 9, at(61)), 6);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let rules = rules(Value::Null);
        let mut memory = ScalingMemory::default();
        for second in 0..2000 {
            memory.stabilized(&rules, 2, 2, at(second));
            memory.scaled(1, 2, at(second));
        }
        assert!(memory.proposals.len() <= REMEMBERED_MAX && memory.changes.len() <= REMEMBERED_MAX);
    }

    proptest::proptest! {
        #[test]
        fn replicas_stay_within_the_bounds_and_move_towards_what_is_wanted(
            current in 1..200i32, wanted in 0..400i32, min in 1..50i32, width in 0..100i32,
            earlier in proptest::collection::vec((0..3600i64, -50..50i32), 0..20),
        ) {
            let max = min + width;
            let current = current.clamp(min, max);
            let mut memory = ScalingMemory::default();
            for (second, added) in earlier {
                memory.scaled(0, added, at(second));
            }
            let limited = memory.limited(&rules(Value::Null), current, wanted, (min, max), at(3600));
            proptest::prop_assert!((min..=max).contains(&limited.replicas));
            let (low, high) = (current.min(wanted.clamp(min, max)), current.max(wanted.clamp(min, max)));
            proptest::prop_assert!((low..=high).contains(&limited.replicas));
            proptest::prop_assert_eq!(limited.by.is_none(), limited.replicas == wanted);
        }
    }
}
