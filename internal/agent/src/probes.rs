//! When a probe's results count: delays, periods and thresholds. Pure; `checks` queries the
//! container.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};

/// The kind of probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// Until it succeeds, the other probes wait; if it fails for good, the container ends.
    Startup,
    /// If it fails for good, the container ends.
    Liveness,
    /// Reports whether the container is ready.
    Readiness,
}

impl ProbeKind {
    /// The start of its messages.
    pub fn title(self) -> &'static str {
        match self {
            ProbeKind::Startup => "Startup",
            ProbeKind::Liveness => "Liveness",
            ProbeKind::Readiness => "Readiness",
        }
    }
}

/// The times of a probe, with Kubernetes' defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Before the first try, from the container's start.
    pub initial_delay: Duration,
    /// Between tries.
    pub period: Duration,
    /// For one try.
    pub timeout: Duration,
    /// Successes in a row that count.
    pub successes: u32,
    /// Failures in a row that count.
    pub failures: u32,
}

impl Schedule {
    /// Reads a probe.
    pub fn of(probe: &Probe) -> Schedule {
        let number = |value: Option<i32>, default: u32, least: u32| {
            value
                .and_then(|value| u32::try_from(value).ok())
                .map_or(default, |value| value.max(least))
        };
        let seconds =
            |value, default, least| Duration::from_secs(u64::from(number(value, default, least)));
        Schedule {
            initial_delay: seconds(probe.initial_delay_seconds, 0, 0),
            period: seconds(probe.period_seconds, 10, 1),
            timeout: seconds(probe.timeout_seconds, 1, 1),
            successes: number(probe.success_threshold, 1, 1),
            failures: number(probe.failure_threshold, 3, 1),
        }
    }
}

/// A container's probes.
pub fn of(container: &Container) -> Vec<(ProbeKind, Probe)> {
    [
        (ProbeKind::Startup, &container.startup_probe),
        (ProbeKind::Liveness, &container.liveness_probe),
        (ProbeKind::Readiness, &container.readiness_probe),
    ]
    .into_iter()
    .filter_map(|(kind, probe)| Some((kind, probe.clone()?)))
    .collect()
}

/// Counts results in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsecutiveResults {
    row: u32,
    last: Option<bool>,
}

impl ConsecutiveResults {
    /// Adds a result; returns it when it has occurred often enough in a row to count.
    pub fn add(&mut self, success: bool, schedule: &Schedule) -> Option<bool> {
        if self.last == Some(success) {
            self.row = self.row.saturating_add(1);
        } else {
            self.last = Some(success);
            self.row = 1;
        }
        let enough = if success {
            schedule.successes
        } else {
            schedule.failures
        };
        (self.row >= enough).then_some(success)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_counts_when_it_has_come_often_enough_in_a_row() {
        let schedule = Schedule {
            successes: 2,
            failures: 3,
            ..Schedule::of(&Probe::default())
        };
        let mut counter = ConsecutiveResults::default();
        let results = [
            false, false, true, false, false, false, false, true, true, true,
        ];
        let counted: Vec<_> = results.iter().map(|r| counter.add(*r, &schedule)).collect();
        assert_eq!(
            counted,
            [
                None,
                None,
                None,
                None,
                None,
                Some(false),
                Some(false),
                None,
                Some(true),
                Some(true)
            ]
        );
    }

    #[test]
    fn defaults_are_those_of_kubernetes() {
        let schedule = Schedule::of(&Probe::default());
        assert_eq!(schedule.period, Duration::from_secs(10));
        assert_eq!(schedule.timeout, Duration::from_secs(1));
        assert_eq!((schedule.successes, schedule.failures), (1, 3));
        let odd = Probe {
            period_seconds: Some(-5),
            failure_threshold: Some(0),
            ..Probe::default()
        };
        assert_eq!(Schedule::of(&odd).period, Duration::from_secs(10));
        assert_eq!(Schedule::of(&odd).failures, 1);
    }
}
