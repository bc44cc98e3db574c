//! Parses spans and moments in the forms that people and clusters write.

use jiff::{Timestamp, civil, tz::TimeZone};
use resources::span;

use crate::scenario::Seconds;

/// The accepted forms of a span, for messages.
pub(crate) const SPAN: &str = span::FORMS;
/// The accepted forms of a moment, for messages.
pub(crate) const MOMENT: &str = "seconds (5400) or a time (2026-01-31T08:00:00Z)";

/// Reads a span of time; parts of a second are rounded up.
#[expect(
    clippy::result_unit_err,
    reason = "the reader knows the place and names the valid form"
)]
pub fn seconds(text: &str) -> Result<Seconds, ()> {
    span::seconds(text).ok_or(())
}

/// A moment: seconds on a clock of the file's own, or a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceMoment {
    /// Seconds since the file's own origin.
    Second(Seconds),
    /// A time.
    Time(Timestamp),
}

impl TraceMoment {
    /// Seconds for comparing moments of one file.
    #[must_use]
    pub fn second(self) -> Seconds {
        match self {
            TraceMoment::Second(second) => second,
            TraceMoment::Time(time) => time.as_second(),
        }
    }
}

/// Reads a moment. A time without a zone is taken as UTC.
#[expect(
    clippy::result_unit_err,
    reason = "the reader knows the place and names the valid form"
)]
pub fn moment(text: &str) -> Result<TraceMoment, ()> {
    let text = text.trim();
    if let Some(number) = span::number(text) {
        return Ok(TraceMoment::Second(number.floor() as Seconds));
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(TraceMoment::Time(time));
    }
    // A zone's letters behind the time (`2017-10-07 01:00:19 PDT`) shift all times of a file alike.
    let plain = text
        .trim_end_matches(|c: char| c.is_ascii_alphabetic())
        .trim();
    let local: civil::DateTime = plain.parse().map_err(|_| ())?;
    local
        .to_zoned(TimeZone::UTC)
        .map(|zoned| TraceMoment::Time(zoned.timestamp()))
        .map_err(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_seconds_or_times() {
        assert_eq!(moment("17.9"), Ok(TraceMoment::Second(17)));
        let time = |text| moment(text).unwrap().second();
        assert_eq!(
            time("2026-01-01T00:00:10Z") - time("2026-01-01 00:00:00"),
            10
        );
        assert_eq!(time("2017-10-07 01:00:19 PDT"), time("2017-10-07T01:00:19"));
        assert!(moment("Unknown").is_err());
    }
}
