//! The times that a question names, such as the beginning of a report: a date, a time, or a duration before now. Pure:
//! the current time is a parameter. Spans in configuration and annotations have more forms; [`crate::span`] reads them.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// A unit of a duration: its letter, and its seconds.
pub type TimeUnit = (char, i64);

/// Seconds, as in `30s`.
pub const SECONDS: TimeUnit = ('s', 1);
/// Minutes, as in `5m`.
pub const MINUTES: TimeUnit = ('m', 60);
/// Hours, as in `12h`.
pub const HOURS: TimeUnit = ('h', 3600);
/// Days of 24 hours, as in `7d`.
pub const DAYS: TimeUnit = ('d', 86_400);

/// A date at its beginning in UTC, a time, or a duration before now in one of these units; none if the text is none of
/// them.
#[must_use]
pub fn point(text: &str, units: &[TimeUnit], now: Timestamp) -> Option<Timestamp> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time);
    }
    if let Ok(date) = text.parse::<Date>() {
        let start = date.to_zoned(TimeZone::UTC).ok()?;
        return Some(start.timestamp());
    }
    let before = SignedDuration::from_secs(duration(text, units)?);
    now.checked_sub(before).ok()
}

/// The seconds of a whole number with one of these units.
#[must_use]
pub fn duration(text: &str, units: &[TimeUnit]) -> Option<i64> {
    let unit = text.chars().next_back()?;
    let (_, seconds) = units.iter().find(|(letter, _)| *letter == unit)?;
    let number: u32 = text.strip_suffix(unit)?.parse().ok()?;
    Some(i64::from(number) * seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [TimeUnit; 4] = [SECONDS, MINUTES, HOURS, DAYS];

    #[test]
    fn a_date_a_time_and_a_duration_before_now_are_points_in_time() {
        let now = "2026-11-26T12:30:00Z".parse().unwrap();
        let at = |text: &str| point(text, &ALL, now).map(|time| time.to_string());
        let noon = Some("2026-11-26T12:00:00Z".to_owned());
        assert_eq!(at("2026-11-26T13:00:00+01:00"), noon);
        assert_eq!(at("30m"), noon);
        assert_eq!(at("2026-11-26"), Some("2026-11-26T00:00:00Z".to_owned()));
        assert_eq!(at("2d"), Some("2026-11-24T12:30:00Z".to_owned()));
        for wrong in ["", "é", "h", "2x", "1h30m", "yesterday", "4294967295d"] {
            assert_eq!(at(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_duration_has_one_of_the_units_that_the_question_takes() {
        assert_eq!(duration("90s", &ALL), Some(90));
        assert_eq!(duration("5m", &ALL), Some(300));
        assert_eq!(duration("5m", &[HOURS, DAYS]), None);
        assert_eq!(duration("7d", &[HOURS, DAYS]), Some(604_800));
        assert_eq!(duration("-1h", &ALL), None);
        assert_eq!(duration("99999999999h", &ALL), None);
    }
}
