//! Sums of allocations over hours and days: amounts multiplied by time.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use resources::amounts::{Amounts, MEMORY};
use resources::devices::is_whole_gpu;
use serde::{Deserialize, Serialize};

/// How long sums by hour are kept; older ones are added up by day.
pub const HOURLY_FOR: SignedDuration = SignedDuration::from_hours(35 * 24);
/// How many days sums are kept: three years.
pub const DAYS_MAX: i64 = 3 * 366;

/// Milliseconds of an hour.
pub(crate) const HOUR: i64 = 3_600_000;
/// Milliseconds of a day.
pub(crate) const DAY: i64 = 24 * HOUR;
/// Bytes of memory are summed in this unit, so that a sum over an hour of a thousand machines fits 64 bits.
const MEBIBYTE: i64 = 1 << 20;

/// The names under which active and idle GPU-milliseconds are summed. They are no resources, whose names have a slash.
const ACTIVE: &str = "gpu-active";
const IDLE: &str = "gpu-idle";

/// Time of held GPUs, in GPU-milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuTime {
    /// How long pods held GPUs of any vendor.
    pub allocated: i64,
    /// Of that, how long the GPUs worked.
    pub active: i64,
    /// Of that, how long they did nothing.
    pub idle: i64,
}

impl GpuTime {
    /// How long no agent measured: what is neither active nor idle.
    pub fn unmeasured(self) -> i64 {
        self.allocated - self.active - self.idle
    }

    /// Both times.
    pub fn plus(self, other: GpuTime) -> GpuTime {
        GpuTime {
            allocated: self.allocated.saturating_add(other.allocated),
            active: self.active.saturating_add(other.active),
            idle: self.idle.saturating_add(other.idle),
        }
    }

    /// The same in hours.
    pub fn hours(self) -> GpuHours {
        let hours = |milliseconds: i64| milliseconds as f64 / HOUR as f64;
        GpuHours {
            allocated: hours(self.allocated),
            active: hours(self.active),
            idle: hours(self.idle),
            unmeasured: hours(self.unmeasured()),
        }
    }
}

/// Time of held GPUs, in GPU-hours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuHours {
    /// How long pods held GPUs of any vendor.
    pub allocated: f64,
    /// Of that, how long the GPUs worked.
    pub active: f64,
    /// Of that, how long they did nothing.
    pub idle: f64,
    /// Of that, how long it is not known, because no agent measured it.
    pub unmeasured: f64,
}

/// Resource to amount times milliseconds: thousandths of a core for cpu, mebibytes for memory, units for others. A sum
/// may be negative for a while: an end that became known late takes back what was counted after it. All arithmetic
/// saturates; an hour of ten thousand machines is far from the limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sums(BTreeMap<String, i64>);

impl Sums {
    /// Adds (or, if negative, takes back) these amounts held for so many milliseconds.
    pub fn add_held(&mut self, amounts: &Amounts, milliseconds: i64) {
        for (name, amount) in amounts.iter() {
            let amount = if name == MEMORY {
                amount / MEBIBYTE
            } else {
                amount
            };
            let sum = self.0.entry(name.to_owned()).or_default();
            *sum = sum.saturating_add(amount.saturating_mul(milliseconds));
        }
    }

    /// Adds (or, if negative, takes back) GPU-milliseconds that were measured.
    pub fn add_activity(&mut self, active: i64, idle: i64) {
        for (name, more) in [(ACTIVE, active), (IDLE, idle)] {
            if more != 0 {
                let sum = self.0.entry(name.to_owned()).or_default();
                *sum = sum.saturating_add(more);
            }
        }
    }

    /// The time of GPUs. Never more is active and idle than allocated, nor less than nothing: an end that became known
    /// very late takes back what was allocated, and not all that was measured.
    pub fn gpu_time(&self) -> GpuTime {
        let gpus = self.0.iter().filter(|(name, _)| is_whole_gpu(name));
        let allocated = gpus.fold(0i64, |sum, (_, more)| sum.saturating_add(*more));
        let of = |name: &str| self.0.get(name).copied().unwrap_or(0);
        let active = of(ACTIVE).clamp(0, allocated.max(0));
        GpuTime {
            allocated,
            active,
            idle: of(IDLE).clamp(0, (allocated - active).max(0)),
        }
    }

    /// Adds other sums.
    pub fn add(&mut self, other: &Sums) {
        for (name, sum) in &other.0 {
            let total = self.0.entry(name.clone()).or_default();
            *total = total.saturating_add(*sum);
        }
    }

    /// Whether all sums are zero.
    pub fn is_zero(&self) -> bool {
        self.0.values().all(|sum| *sum == 0)
    }

    /// Resource and hours: core-hours for cpu, GiB-hours for memory, unit-hours for others.
    pub fn hours(&self) -> BTreeMap<String, f64> {
        let hours = |(name, sum): (&String, &i64)| {
            let per_unit = match name.as_str() {
                resources::amounts::CPU => 1000.0,
                MEMORY => 1024.0,
                _ => 1.0,
            };
            (name.clone(), *sum as f64 / per_unit / HOUR as f64)
        };
        let resources = self
            .0
            .iter()
            .filter(|(name, _)| ![ACTIVE, IDLE].contains(&name.as_str()));
        resources.map(hours).collect()
    }
}

/// An hour or a day, by its beginning in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Span {
    /// Milliseconds since 1970.
    pub(crate) start: i64,
    /// Whether it is a day.
    pub(crate) day: bool,
}

impl Span {
    fn hour_of(milliseconds: i64) -> Span {
        Span {
            start: milliseconds.div_euclid(HOUR) * HOUR,
            day: false,
        }
    }

    /// The day that contains the span.
    pub(crate) fn day(self) -> Span {
        Span {
            start: self.start.div_euclid(DAY) * DAY,
            day: true,
        }
    }

    /// Milliseconds since 1970 at its end.
    pub(crate) fn end(self) -> i64 {
        self.start + if self.day { DAY } else { HOUR }
    }
}

/// The hours that an interval touches, each with its milliseconds in it.
pub(crate) fn hours_of(from: i64, until: i64) -> impl Iterator<Item = (Span, i64)> {
    let mut at = from;
    std::iter::from_fn(move || {
        if at >= until {
            return None;
        }
        let span = Span::hour_of(at);
        let part = span.end().min(until) - at;
        at += part;
        Some((span, part))
    })
}

/// The time in milliseconds since 1970.
pub(crate) fn milliseconds(at: Timestamp) -> i64 {
    at.as_millisecond()
}

/// The time of so many milliseconds since 1970, or the first or last time there is.
pub(crate) fn time(milliseconds: i64) -> Timestamp {
    Timestamp::from_millisecond(milliseconds).unwrap_or(if milliseconds < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_cut_at_the_hours() {
        let parts: Vec<(i64, i64)> = hours_of(HOUR - 10, 2 * HOUR + 5)
            .map(|(span, part)| (span.start, part))
            .collect();
        assert_eq!(parts, [(0, 10), (HOUR, HOUR), (2 * HOUR, 5)]);
        assert_eq!(hours_of(7, 7).count(), 0);
        assert_eq!(hours_of(-5, 5).count(), 2);
    }

    #[test]
    fn sums_are_read_in_hours() {
        let amounts = Amounts::from_iter([
            ("cpu".to_owned(), 1500),
            ("memory".to_owned(), 2 << 30),
            ("nvidia.com/gpu".to_owned(), 4),
        ]);
        let mut sums = Sums::default();
        sums.add_held(&amounts, HOUR / 2);
        let hours: Vec<f64> = sums.hours().into_values().collect();
        assert_eq!(hours, [0.75, 1.0, 2.0]);
        sums.add_held(&amounts, -HOUR / 2);
        assert!(sums.is_zero());
    }
}
