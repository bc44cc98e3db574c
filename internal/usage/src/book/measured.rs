//! What was measured of one open allocation, for as long as an end that becomes known late may take it back.

use std::collections::{BTreeMap, VecDeque};

use crate::sums::{Span, hours_of};

/// Parts that are kept one by one: four minutes of observations.
const RECENT_MAX: usize = 16;
/// Hours of older parts. An end that becomes known later than that takes back no more; the answers then show no more
/// active and idle time than was allocated.
const HOURS_MAX: usize = 32;

/// A part of one hour, in milliseconds since 1970, with GPU-milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredPart {
    /// The hour.
    pub span: Span,
    /// Its beginning.
    pub from: i64,
    /// Its end.
    pub until: i64,
    /// Active GPU-milliseconds.
    pub active: i64,
    /// Idle GPU-milliseconds.
    pub idle: i64,
}

impl MeasuredPart {
    /// The part until an earlier end: of its sums the same fraction as of its time, rounded down, so that they never
    /// exceed what was allocated in that time.
    fn until(self, end: i64) -> MeasuredPart {
        let end = end.clamp(self.from, self.until);
        let (kept, whole) = (
            i128::from(end - self.from),
            i128::from(self.until - self.from),
        );
        let part = |sum: i64| {
            let part = (i128::from(sum) * kept).checked_div(whole).unwrap_or(0);
            i64::try_from(part).unwrap_or(0)
        };
        MeasuredPart {
            until: end,
            active: part(self.active),
            idle: part(self.idle),
            ..self
        }
    }
}

/// The measured parts of one allocation. Not stored: after a restart only what is counted from then on can be taken back.
#[derive(Clone, Debug, Default)]
pub struct MeasuredParts {
    recent: VecDeque<MeasuredPart>,
    hours: BTreeMap<i64, MeasuredPart>,
    /// No time before it is counted again.
    until: i64,
}

impl MeasuredParts {
    /// Nothing is measured until this time, in milliseconds, or everything before it is counted.
    pub fn from(until: i64) -> MeasuredParts {
        MeasuredParts {
            until,
            ..MeasuredParts::default()
        }
    }

    /// Adds an interval with so many active and idle GPUs, and returns its parts by hour. What overlaps with earlier
    /// intervals is left out.
    pub fn add(&mut self, from: i64, until: i64, active: i64, idle: i64) -> Vec<MeasuredPart> {
        let from = from.max(self.until);
        if until <= from {
            return Vec::new();
        }
        self.until = until;
        let mut at = from;
        let mut parts = Vec::new();
        for (span, length) in hours_of(from, until) {
            parts.push(MeasuredPart {
                span,
                from: at,
                until: at + length,
                active: active.saturating_mul(length),
                idle: idle.saturating_mul(length),
            });
            at += length;
        }
        self.recent.extend(&parts);
        while self.recent.len() > RECENT_MAX {
            if let Some(part) = self.recent.pop_front() {
                let hour = self.hours.entry(part.span.start).or_insert(MeasuredPart {
                    active: 0,
                    idle: 0,
                    ..part
                });
                hour.until = part.until;
                hour.active = hour.active.saturating_add(part.active);
                hour.idle = hour.idle.saturating_add(part.idle);
            }
        }
        while self.hours.len() > HOURS_MAX {
            self.hours.pop_first();
        }
        parts
    }

    /// What is to be taken back if the allocation ended at this time: for each part its hour, active and idle
    /// GPU-milliseconds.
    pub fn after(&self, end: i64) -> Vec<(Span, i64, i64)> {
        let all = self.hours.values().chain(&self.recent);
        let late = all.filter(|part| part.until > end);
        late.map(|part| {
            let kept = part.until(end);
            (part.span, part.active - kept.active, part.idle - kept.idle)
        })
        .collect()
    }
}
