//! Reads spans and moments as people and clusters write them.

use jiff::{Timestamp, civil, tz::TimeZone};

use crate::scenario::Seconds;

/// What a span may look like, for messages.
pub(crate) const SPAN: &str = "write seconds (5400), a span (1h30m), or hours, minutes and seconds (1:30:00, 2-06:00:00 with days)";
/// What a moment may look like, for messages.
pub(crate) const MOMENT: &str = "write seconds (5400) or a time (2026-01-31T08:00:00Z)";

/// Reads a span of time; parts of a second are rounded up.
#[expect(
    clippy::result_unit_err,
    reason = "the reader knows the place and says what would be right"
)]
pub fn seconds(text: &str) -> Result<Seconds, ()> {
    let text = text.trim();
    if let Some(number) = number(text) {
        return if number >= 0.0 {
            Ok(number.ceil() as Seconds)
        } else {
            Err(())
        };
    }
    if text.contains(':') {
        return clock(text);
    }
    let mut total = 0_i64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or(())?;
        let value: i64 = rest[..digits].parse().map_err(|_| ())?;
        let unit = match rest.as_bytes().get(digits) {
            Some(b'd') => 86_400,
            Some(b'h') => 3600,
            Some(b'm') => 60,
            Some(b's') => 1,
            _ => return Err(()),
        };
        total = value
            .checked_mul(unit)
            .and_then(|more| total.checked_add(more))
            .ok_or(())?;
        rest = &rest[digits + 1..];
    }
    if text.is_empty() { Err(()) } else { Ok(total) }
}

/// A finite number of a size that seconds can have.
fn number(text: &str) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    (number.is_finite() && number.abs() < 1e15).then_some(number)
}

/// `[days-]hours:minutes:seconds[.parts]`, or `minutes:seconds`, as Slurm writes it.
fn clock(text: &str) -> Result<Seconds, ()> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (days.parse::<i64>().map_err(|_| ())?, rest),
        None => (0, text),
    };
    let rest = rest.split('.').next().unwrap_or(rest);
    let parts: Vec<i64> = rest
        .split(':')
        .map(|part| part.parse().map_err(|_| ()))
        .collect::<Result<_, _>>()?;
    let (hours, minutes, seconds) = match parts[..] {
        [hours, minutes, seconds] => (hours, minutes, seconds),
        [minutes, seconds] => (0, minutes, seconds),
        _ => return Err(()),
    };
    let bound = |n: i64| (0..1_000_000_000).contains(&n);
    if !(bound(days) && bound(hours) && bound(minutes) && bound(seconds)) {
        return Err(());
    }
    Ok(days * 86_400 + hours * 3600 + minutes * 60 + seconds)
}

/// A moment: seconds on a clock of the file's own, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Seconds since whatever the file counts from.
    Second(Seconds),
    /// A time.
    Time(Timestamp),
}

impl Moment {
    /// Seconds for comparing moments of one file.
    #[must_use]
    pub fn second(self) -> Seconds {
        match self {
            Moment::Second(second) => second,
            Moment::Time(time) => time.as_second(),
        }
    }
}

/// Reads a moment. A time without a zone is taken as UTC.
#[expect(
    clippy::result_unit_err,
    reason = "the reader knows the place and says what would be right"
)]
pub fn moment(text: &str) -> Result<Moment, ()> {
    let text = text.trim();
    if let Some(number) = number(text) {
        return Ok(Moment::Second(number.floor() as Seconds));
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(Moment::Time(time));
    }
    // A zone's letters behind the time (`2017-10-07 01:00:19 PDT`) shift all times of a file alike.
    let plain = text
        .trim_end_matches(|c: char| c.is_ascii_alphabetic())
        .trim();
    let local: civil::DateTime = plain.parse().map_err(|_| ())?;
    local
        .to_zoned(TimeZone::UTC)
        .map(|zoned| Moment::Time(zoned.timestamp()))
        .map_err(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_in_every_way_that_clusters_write_them() {
        for (text, wanted) in [
            ("5400", 5400),
            ("12.2", 13),
            ("1h30m", 5400),
            ("2d", 172_800),
            ("90s", 90),
            ("1:30:00", 5400),
            ("2-06:00:00", 194_400),
            ("01:30", 90),
            ("00:00:01.5", 1),
        ] {
            assert_eq!(seconds(text), Ok(wanted), "{text}");
        }
        for text in [
            "",
            "h",
            "1x",
            "-5",
            "nan",
            "1e99",
            "1:2:3:4",
            "UNLIMITED",
            "1h30",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn moments_are_seconds_or_times() {
        assert_eq!(moment("17.9"), Ok(Moment::Second(17)));
        let time = |text| moment(text).unwrap().second();
        assert_eq!(
            time("2026-01-01T00:00:10Z") - time("2026-01-01 00:00:00"),
            10
        );
        assert_eq!(time("2017-10-07 01:00:19 PDT"), time("2017-10-07T01:00:19"));
        assert!(moment("Unknown").is_err());
    }
}
