//! A CronJob's schedule: its syntax, with Kubernetes' error messages, and its times (robfig/cron 3).
//!
//! The time after a given one is found field by field: the month, the day, the hour, then the minute, each by stepping
//! to its next start in the schedule's time zone. A day takes 24 steps at most, so a search costs a few thousand steps
//! at most: a schedule without a time within [`YEARS_MAX`] years has none. Example: after 2026-03-01 02:00 UTC, `0 2 * *
//! 1` steps over one day and two hours to 2026-03-02 02:00. As in robfig/cron, a time that a clock change skips is left
//! out, and one that it repeats comes twice.
//!
//! No library is used: none has Kubernetes' syntax (`?`, `@every`, both day fields) and its error messages, which
//! validation needs, together with this project's type of time.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, Zoned};

use crate::go_duration;

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// The short forms, each with the fields that it stands for.
const DESCRIPTORS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];
const EVERY: &str = "@every ";
/// A schedule without a time in this many years, such as 30 February, has none.
const YEARS_MAX: i16 = 5;
/// When Jobs are due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule(Form);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    /// Minute, hour, day of the month, month, day of the week: the numbers that each admits, as bits.
    Fields([FieldSet; 5]),
    /// Whole seconds, at least one.
    Every(SignedDuration),
}

/// The numbers that a field admits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FieldSet {
    bits: u64,
    /// A field with `*` does not restrict the day.
    star: bool,
}

impl FieldSet {
    fn has(self, number: i8) -> bool {
        u32::try_from(number).is_ok_and(|number| self.bits >> number & 1 == 1)
    }
}

/// The range of one of the five fields.
struct FieldRange {
    min: u32,
    max: u32,
    /// Names that stand for numbers, starting at this number.
    names: &'static [&'static str],
}

/// Minute, hour, day of the month, month, day of the week.
const FIELDS: [FieldRange; 5] = [
    bounds(0, 59, &[]),
    bounds(0, 23, &[]),
    bounds(1, 31, &[]),
    bounds(1, 12, &MONTHS),
    bounds(0, 6, &DAYS),
];

const fn bounds(min: u32, max: u32, names: &'static [&'static str]) -> FieldRange {
    FieldRange { min, max, names }
}

/// Why a schedule is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// The schedule names a time zone.
    #[error("cannot use TZ or CRON_TZ in schedule, use timeZone field instead")]
    TimeZone,
    /// `@every` is not followed by a duration.
    #[error(
        "failed to parse duration {schedule}: time: invalid duration {duration:?}: write 90m or 1h30m"
    )]
    Duration {
        /// The whole schedule.
        schedule: String,
        /// The duration.
        duration: String,
    },
    /// An unknown short form.
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    /// Not five fields.
    #[error("expected exactly {} fields, found {}: [{}]", FIELDS.len(), .0.len(), .0.join(" "))]
    FieldCount(Vec<String>),
    /// A range with several hyphens.
    #[error("too many hyphens: {0}")]
    Hyphens(String),
    /// A range with several steps.
    #[error("too many slashes: {0}")]
    Slashes(String),
    /// A range begins below the field's minimum.
    #[error("beginning of range ({start}) below minimum ({min}): {range}")]
    BelowMinimum {
        /// Its beginning.
        start: u32,
        /// The minimum.
        min: u32,
        /// The range.
        range: String,
    },
    /// A range ends above the field's maximum.
    #[error("end of range ({end}) above maximum ({max}): {range}")]
    AboveMaximum {
        /// Its end.
        end: u32,
        /// The maximum.
        max: u32,
        /// The range.
        range: String,
    },
    /// A range ends before it begins.
    #[error("beginning of range ({start}) beyond end of range ({end}): {range}")]
    Reversed {
        /// Its beginning.
        start: u32,
        /// Its end.
        end: u32,
        /// The range.
        range: String,
    },
    /// A step of zero.
    #[error("step of range should be a positive number: {0}")]
    NoStep(String),
    /// A negative number.
    #[error("negative number ({0}) not allowed: {0}")]
    Negative(String),
    /// Neither a number nor a name.
    #[error("failed to parse int from {0}: strconv.Atoi: parsing {0:?}: invalid syntax")]
    NotANumber(String),
}

impl Schedule {
    /// Reads a schedule.
    ///
    /// # Errors
    ///
    /// Why the schedule is invalid.
    pub fn parse(schedule: &str) -> Result<Schedule, ScheduleError> {
        if schedule.contains("TZ") {
            return Err(ScheduleError::TimeZone);
        }
        if let Some(duration) = schedule.strip_prefix(EVERY) {
            let parsed = parse_interval(duration);
            let parsed = parsed.ok_or_else(|| ScheduleError::Duration {
                schedule: schedule.to_owned(),
                duration: duration.to_owned(),
            })?;
            return Ok(Schedule(Form::Every(parsed)));
        }
        if schedule.starts_with('@') {
            let known = DESCRIPTORS.iter().find(|(name, _)| *name == schedule);
            let (_, fields) =
                known.ok_or_else(|| ScheduleError::Descriptor(schedule.to_owned()))?;
            return Schedule::parse(fields);
        }
        let fields: Vec<&str> = schedule.split_whitespace().collect();
        if fields.len() != FIELDS.len() {
            let fields = fields.into_iter().map(str::to_owned).collect();
            return Err(ScheduleError::FieldCount(fields));
        }
        let mut sets = [FieldSet::default(); 5];
        for ((field, bounds), set) in fields.iter().zip(&FIELDS).zip(&mut sets) {
            for range in field.split(',').filter(|range| !range.is_empty()) {
                let part = bounds.read(range)?;
                set.bits |= part.bits;
                set.star |= part.star;
            }
        }
        Ok(Schedule(Form::Fields(sets)))
    }

    /// The first time after `after`, in this zone; `None` if there is none within the next years.
    #[must_use]
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let whole = Timestamp::from_second(after.as_second()).ok()?;
        match &self.0 {
            Form::Every(interval) => whole.checked_add(*interval).ok(),
            Form::Fields(fields) => next(fields, whole, zone),
        }
    }
}

/// The first time after `after` that all fields admit. Each round steps the largest field that does not fit to its next
/// start, so that a round never passes over a time.
fn next(fields: &[FieldSet; 5], after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let [minutes, hours, days, months, weekdays] = fields;
    let second = SignedDuration::from_secs(60 - after.as_second().rem_euclid(60));
    let mut at = after.checked_add(second).ok()?.to_zoned(zone.clone());
    let last = at.year().saturating_add(YEARS_MAX);
    while at.year() <= last {
        if !months.has(at.month()) {
            at = start_of(at.date().last_of_month().tomorrow().ok()?, zone)?;
        } else if !day_fits(*days, *weekdays, &at) {
            at = start_of(at.date().tomorrow().ok()?, zone)?;
        } else if !hours.has(at.hour()) {
            // Hours are stepped in elapsed time, in which no clock change matters.
            let into = i64::from(at.minute()) * 60;
            let ahead = SignedDuration::from_secs(3600 - into);
            at = at.checked_add(ahead).ok()?;
        } else if !minutes.has(at.minute()) {
            at = at.checked_add(SignedDuration::from_mins(1)).ok()?;
        } else {
            return Some(at.timestamp());
        }
    }
    None
}

fn start_of(date: Date, zone: &TimeZone) -> Option<Zoned> {
    date.to_zoned(zone.clone()).ok()
}

/// If both day fields restrict the day, it has to fit one of them.
fn day_fits(days: FieldSet, weekdays: FieldSet, at: &Zoned) -> bool {
    let day = days.has(at.day());
    let weekday = weekdays.has(at.weekday().to_sunday_zero_offset());
    if days.star || weekdays.star {
        day && weekday
    } else {
        day || weekday
    }
}

/// The time between two Jobs of `@every`: whole seconds, at least one.
fn parse_interval(text: &str) -> Option<SignedDuration> {
    let interval = go_duration::parse(text)?;
    Some(SignedDuration::from_secs(interval.as_secs().max(1)))
}

impl FieldRange {
    /// Reads `*`, `n`, `n-m`, each with or without a step.
    fn read(&self, text: &str) -> Result<FieldSet, ScheduleError> {
        let mut parts = text.split('/');
        let range = parts.next().unwrap_or_default();
        let (step, more) = (parts.next(), parts.next());
        let mut ends = range.split('-');
        let low = ends.next().unwrap_or_default();
        let (high, beyond) = (ends.next(), ends.next());
        let everything = low == "*" || low == "?";
        let (start, end) = if everything {
            (self.min, self.max)
        } else {
            let start = self.number(low)?;
            let end = match (high, beyond) {
                (_, Some(_)) => return Err(ScheduleError::Hyphens(text.to_owned())),
                (Some(high), None) => self.number(high)?,
                (None, None) => start,
            };
            (start, end)
        };
        if more.is_some() {
            return Err(ScheduleError::Slashes(text.to_owned()));
        }
        let step_by = step.map(number).transpose()?;
        // `n/step` means from n to the maximum.
        let end = if step.is_some() && high.is_none() {
            self.max
        } else {
            end
        };
        if start < self.min {
            return Err(ScheduleError::BelowMinimum {
                start,
                min: self.min,
                range: text.to_owned(),
            });
        }
        if end > self.max {
            return Err(ScheduleError::AboveMaximum {
                end,
                max: self.max,
                range: text.to_owned(),
            });
        }
        if start > end {
            return Err(ScheduleError::Reversed {
                start,
                end,
                range: text.to_owned(),
            });
        }
        let step = step_by.unwrap_or(1);
        if step == 0 {
            return Err(ScheduleError::NoStep(text.to_owned()));
        }
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        let bits = (start..=end)
            .step_by(step)
            .fold(0, |bits, number| bits | 1_u64 << number);
        Ok(FieldSet {
            bits,
            star: everything && step == 1,
        })
    }

    fn number(&self, text: &str) -> Result<u32, ScheduleError> {
        let lower = text.to_ascii_lowercase();
        match self.names.iter().position(|name| *name == lower) {
            Some(at) => Ok(self.min + u32::try_from(at).unwrap_or_default()),
            None => number(text),
        }
    }
}

fn number(text: &str) -> Result<u32, ScheduleError> {
    if let Some(less) = text.strip_prefix('-')
        && less.parse::<u32>().is_ok()
    {
        return Err(ScheduleError::Negative(text.to_owned()));
    }
    text.parse()
        .map_err(|_| ScheduleError::NotANumber(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_that_kubernetes_takes_are_taken() {
        for schedule in [
            "0 2 * * *",
            "*/5 0-6/2 1,15 JAN-mar Sun",
            "? * ? * 1-5",
            "5/10 * * * *",
            "@hourly",
            "@every 1h30m",
        ] {
            let read = Schedule::parse(schedule);
            assert!(read.is_ok(), "{schedule}: {read:?}");
        }
    }

    #[test]
    fn errors_are_worded_like_kubernetes() {
        let table = [
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            (
                "5-1 * * * *",
                "beginning of range (5) beyond end of range (1): 5-1",
            ),
            (
                "*/0 * * * *",
                "step of range should be a positive number: */0",
            ),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            (
                "x * * * *",
                "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax",
            ),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("@often", "unrecognized descriptor: @often"),
            (
                "TZ=UTC 0 2 * * *",
                "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
            ),
            ("* * *", "expected exactly 5 fields, found 3: [* * *]"),
        ];
        for (schedule, words) in table {
            let wrong = Schedule::parse(schedule).unwrap_err();
            assert_eq!(wrong.to_string(), words, "{schedule}");
        }
        let wrong = Schedule::parse("@every soon").unwrap_err().to_string();
        assert!(wrong.contains("\"soon\""));
    }

    fn zone(offset: i8) -> TimeZone {
        TimeZone::fixed(jiff::tz::offset(offset))
    }

    fn after(schedule: &str, from: &str, zone: &TimeZone) -> Option<String> {
        let schedule = Schedule::parse(schedule).unwrap();
        let next = schedule.next(from.parse().unwrap(), zone);
        next.map(|time| time.to_string())
    }

    #[test]
    fn the_next_time_is_the_first_that_all_fields_admit() {
        let table = [
            (
                "0 2 * * *",
                "2026-03-01T02:00:00Z",
                Some("2026-03-02T02:00:00Z"),
            ),
            (
                "0 2 * * *",
                "2026-03-01T01:59:59.9Z",
                Some("2026-03-01T02:00:00Z"),
            ),
            (
                "*/15 * * * *",
                "2026-03-01T02:07:00Z",
                Some("2026-03-01T02:15:00Z"),
            ),
            (
                "59 23 31 12 *",
                "2026-12-31T23:59:00Z",
                Some("2027-12-31T23:59:00Z"),
            ),
            (
                "0 0 29 feb ?",
                "2026-03-01T00:00:00Z",
                Some("2028-02-29T00:00:00Z"),
            ),
            ("0 0 30 2 *", "2026-03-01T00:00:00Z", None),
            // Both day fields restrict the day: the 13th, and each Friday.
            (
                "0 0 13 * 5",
                "2026-03-01T00:00:00Z",
                Some("2026-03-06T00:00:00Z"),
            ),
            (
                "0 0 13 * 5",
                "2026-03-06T00:00:00Z",
                Some("2026-03-13T00:00:00Z"),
            ),
            // A step of more than one makes the star a restriction, as in robfig/cron.
            (
                "0 0 */2 * 5",
                "2026-03-01T00:00:00Z",
                Some("2026-03-03T00:00:00Z"),
            ),
            (
                "@weekly",
                "2026-03-01T00:00:00Z",
                Some("2026-03-08T00:00:00Z"),
            ),
            (
                "@every 90m",
                "2026-03-01T00:00:00.5Z",
                Some("2026-03-01T01:30:00Z"),
            ),
            (
                "@every 1ms",
                "2026-03-01T00:00:00Z",
                Some("2026-03-01T00:00:01Z"),
            ),
            (
                "@every 1.5h",
                "2026-03-01T00:00:00Z",
                Some("2026-03-01T01:30:00Z"),
            ),
        ];
        for (schedule, from, want) in table {
            let found = after(schedule, from, &TimeZone::UTC);
            assert_eq!(found.as_deref(), want, "{schedule} after {from}");
        }
        let east = after("0 2 * * *", "2026-03-01T02:00:00Z", &zone(3));
        assert_eq!(east.as_deref(), Some("2026-03-01T23:00:00Z"));
    }

    #[test]
    fn a_skipped_hour_has_no_time_and_a_repeated_one_has_two() {
        // Central Europe: 02:00 to 03:00 is skipped on 29 March 2026 and repeated on 25 October.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let spring = after("30 2 * * *", "2026-03-28T12:00:00Z", &zone);
        assert_eq!(spring.as_deref(), Some("2026-03-30T00:30:00Z"));
        let autumn = after("30 2 * * *", "2026-10-24T12:00:00Z", &zone);
        assert_eq!(autumn.as_deref(), Some("2026-10-25T00:30:00Z"));
        let again = after("30 2 * * *", "2026-10-25T00:30:00Z", &zone);
        assert_eq!(again.as_deref(), Some("2026-10-25T01:30:00Z"));
    }
}
