//! Evaluates the alert rules over successive samples of GPUs.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Alert, AlertRule, CORRECTED_WITHIN};

/// One sample of a GPU. An unknown value causes no alert and ends one, as a missing sample does in
/// Prometheus.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuSample {
    /// Its id.
    pub id: String,
    /// Its index.
    pub gpu: u32,
    /// Utilisation in percent of the time.
    pub percent: Option<f64>,
    /// The fraction of its memory in use.
    pub memory: Option<f64>,
    /// Its temperature, degrees Celsius.
    pub celsius: Option<f64>,
    /// The fraction of its power limit that it draws.
    pub power: Option<f64>,
    /// Single-bit errors corrected over the GPU's lifetime.
    pub corrected: Option<u64>,
    /// True if the GPU is allocated.
    pub held: bool,
}

/// Remembers since when each condition has held. A restarted watcher knows nothing: earlier alerts
/// fire again once their conditions have held for the full time.
#[derive(Clone, Debug, Default)]
pub struct AlertWatcher {
    gpus: BTreeMap<String, AlertHistory>,
}

#[derive(Clone, Debug, Default)]
struct AlertHistory {
    /// The time since which each rule's condition has held.
    since: BTreeMap<AlertRule, Timestamp>,
    active: BTreeMap<AlertRule, Alert>,
    /// Counts of corrected errors: the value at each change within the window, and the last value
    /// from before it.
    corrected: Vec<(Timestamp, u64)>,
}

impl AlertWatcher {
    /// Evaluates a sample of all GPUs and returns the firing alerts. GPUs without a sample have
    /// none.
    pub fn observe(&mut self, gpus: &[GpuSample], now: Timestamp) -> Vec<Alert> {
        let here = |id: &String| gpus.iter().any(|gpu| gpu.id == *id);
        self.gpus.retain(|id, _| here(id));
        let mut active = Vec::new();
        for gpu in gpus {
            let past = self.gpus.entry(gpu.id.clone()).or_default();
            past.observe(gpu, now);
            active.extend(past.active.values().cloned());
        }
        active
    }
}

impl AlertHistory {
    fn observe(&mut self, gpu: &GpuSample, now: Timestamp) {
        let grown = self.grown(gpu.corrected, now);
        for rule in AlertRule::ALL {
            let value = match rule {
                AlertRule::GpuUnderused => gpu.percent.filter(|_| gpu.held),
                AlertRule::GpuHot => gpu.celsius,
                AlertRule::GpuMemoryNearlyFull => gpu.memory,
                AlertRule::GpuPowerNearLimit => gpu.power,
                AlertRule::GpuCorrectedErrorsGrow => grown,
            };
            let Some(value) = value.filter(|value| rule.holds(*value)) else {
                self.since.remove(&rule);
                self.active.remove(&rule);
                continue;
            };
            let since = *self.since.entry(rule).or_insert(now);
            let held = now.duration_since(since);
            if held.unsigned_abs() >= rule.hold() && !held.is_negative() {
                self.active.entry(rule).or_insert_with(|| Alert {
                    alert: rule,
                    id: gpu.id.clone(),
                    gpu: gpu.gpu,
                    since: now,
                    value,
                });
            }
        }
    }

    /// The number of errors corrected within the window.
    fn grown(&mut self, corrected: Option<u64>, now: Timestamp) -> Option<f64> {
        let corrected = corrected?;
        // Another card, or the counter was reset.
        if self
            .corrected
            .last()
            .is_some_and(|(_, last)| *last > corrected)
        {
            self.corrected.clear();
        }
        if self
            .corrected
            .last()
            .is_none_or(|(_, last)| *last != corrected)
        {
            self.corrected.push((now, corrected));
        }
        // The last entry from before the window holds the count at its beginning.
        let begin = now.checked_sub(CORRECTED_WITHIN).ok()?;
        let before = self.corrected.iter().filter(|(at, _)| *at <= begin).count();
        self.corrected.drain(..before.saturating_sub(1));
        let (_, first) = self.corrected.first()?;
        Some((corrected - first) as f64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).expect("a time")
    }

    fn quiet() -> GpuSample {
        GpuSample {
            id: "GPU-0".into(),
            percent: Some(80.0),
            memory: Some(0.5),
            celsius: Some(60.0),
            power: Some(0.7),
            corrected: Some(0),
            held: true,
            ..GpuSample::default()
        }
    }

    fn seen(watcher: &mut AlertWatcher, gpu: &GpuSample, second: i64) -> Vec<Alert> {
        watcher.observe(std::slice::from_ref(gpu), at(second))
    }

    fn names(alerts: &[Alert]) -> Vec<&'static str> {
        alerts.iter().map(|alert| alert.alert.name()).collect()
    }

    #[test]
    fn each_alert_stands_once_it_has_held_and_no_longer_than_that() {
        type Change = fn(&mut GpuSample);
        let cases: [(&str, i64, Change); 4] = [
            ("GpuUnderused", 600, |gpu| gpu.percent = Some(29.0)),
            ("GpuHot", 60, |gpu| gpu.celsius = Some(86.0)),
            ("GpuMemoryNearlyFull", 300, |gpu| gpu.memory = Some(0.91)),
            ("GpuPowerNearLimit", 300, |gpu| gpu.power = Some(0.96)),
        ];
        for (name, hold, change) in cases {
            let mut gpu = quiet();
            change(&mut gpu);
            let mut watcher = AlertWatcher::default();
            assert!(seen(&mut watcher, &gpu, 0).is_empty());
            assert!(seen(&mut watcher, &gpu, hold - 1).is_empty(), "{name}");
            let active = seen(&mut watcher, &gpu, hold);
            assert_eq!(names(&active), [name]);
            let later = seen(&mut watcher, &gpu, hold + 50);
            assert_eq!(later, active, "it says since when it has stood");
            assert!(seen(&mut watcher, &quiet(), hold + 60).is_empty(), "{name}");
            // The condition must hold for the full time again.
            assert!(seen(&mut watcher, &gpu, hold + 61).is_empty(), "{name}");
        }
        let mut idle = quiet();
        (idle.percent, idle.held) = (Some(0.0), false);
        let mut watcher = AlertWatcher::default();
        for second in [0, 600, 1200] {
            assert!(
                seen(&mut watcher, &idle, second).is_empty(),
                "nobody has it"
            );
        }
    }

    #[test]
    fn no_alert_fires_at_the_threshold_itself() {
        let gpu = GpuSample {
            percent: Some(30.0),
            memory: Some(0.9),
            celsius: Some(85.0),
            power: Some(0.95),
            ..quiet()
        };
        let mut watcher = AlertWatcher::default();
        for second in [0, 600, 1200] {
            assert!(seen(&mut watcher, &gpu, second).is_empty());
        }
    }

    #[test]
    fn errors_are_counted_over_the_last_ten_minutes_and_a_cleared_count_begins_anew() {
        let mut watcher = AlertWatcher::default();
        let mut stands = |second: i64, corrected: u64| {
            let gpu = GpuSample {
                corrected: Some(corrected),
                ..quiet()
            };
            let active = seen(&mut watcher, &gpu, second);
            active.first().map(|alert| alert.value)
        };
        // Errors from before the first sample do not count.
        assert_eq!(stands(0, 5000), None);
        assert_eq!(stands(300, 5010), None);
        assert_eq!(stands(400, 5011), Some(11.0));
        // At second 900, the errors of second 300 leave the window.
        assert_eq!(stands(899, 5011), Some(11.0));
        assert_eq!(stands(901, 5011), None);
        assert_eq!(stands(1000, 5021), None);
        assert_eq!(stands(1010, 3), None);
        assert_eq!(stands(1020, 14), Some(11.0));
    }

    #[test]
    fn what_is_not_known_ends_an_alert_and_a_gpu_that_is_gone_has_none() {
        let hot = GpuSample {
            celsius: Some(95.0),
            ..quiet()
        };
        let mut watcher = AlertWatcher::default();
        seen(&mut watcher, &hot, 0);
        assert_eq!(seen(&mut watcher, &hot, 60).len(), 1);
        let unknown = GpuSample {
            celsius: None,
            ..quiet()
        };
        assert!(seen(&mut watcher, &unknown, 75).is_empty());
        seen(&mut watcher, &hot, 90);
        assert_eq!(seen(&mut watcher, &hot, 150).len(), 1);
        assert!(watcher.observe(&[], at(160)).is_empty());
        assert!(seen(&mut watcher, &hot, 230).is_empty());
    }

    proptest! {
        /// The slow model: all samples are kept, and an alert fires if the condition holds in all
        /// samples of the hold time and the first of them is old enough.
        #[test]
        fn alerts_stand_where_every_look_for_as_long_says_so(
            looks in prop::collection::vec((1i64..200, prop::option::of(80u32..90)), 1..40)
        ) {
            let mut watcher = AlertWatcher::default();
            let mut second = 0;
            let mut all: Vec<(i64, bool)> = Vec::new();
            for (step, celsius) in looks {
                second += step;
                let gpu = GpuSample { celsius: celsius.map(f64::from), ..quiet() };
                all.push((second, celsius.is_some_and(|celsius| celsius > 85)));
                let run = all.iter().rev().take_while(|(_, hot)| *hot);
                let since = run.last().map(|(at, _)| *at);
                let wanted = since.is_some_and(|since| second - since >= 60);
                prop_assert_eq!(!seen(&mut watcher, &gpu, second).is_empty(), wanted);
            }
        }
    }
}
