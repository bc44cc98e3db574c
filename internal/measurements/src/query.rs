//! Questions: which series, from when until when, in which steps.

use jiff::Timestamp;
use resources::query_time::{self, DAYS, HOURS, MINUTES, SECONDS, TimeUnit};

use crate::columns::BUCKET;
use crate::retention::{COARSE_FOR_DAYS, FINE_FOR_HOURS};
use crate::series::{Series, SeriesError};
use crate::time::{HOUR, TICK};

/// The most series in one question.
pub const QUERY_SERIES_MAX: usize = 64;
/// The most points of one series in an answer: a day of 15-second values has 5,760.
pub const POINTS_MAX: i64 = 6000;
/// Points of an answer whose question has no step, at most.
const POINTS_USUAL: i64 = 400;
/// The steps that are chosen for a question without one, in seconds.
const STEPS: [i64; 9] = [15, 60, 300, 900, 1800, 3600, 7200, 21_600, 86_400];

/// The units of a question's durations.
const UNITS: [TimeUnit; 4] = [SECONDS, MINUTES, HOURS, DAYS];

/// Why a question cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryQueryError {
    /// No series.
    #[error(
        "series: Required value: name one, for instance series=node/n1/cpu; several with commas"
    )]
    NoSeries,
    /// A text that names none.
    #[error(transparent)]
    Series(#[from] SeriesError),
    /// Too many series.
    #[error("series: {count} series are too many; ask for at most {QUERY_SERIES_MAX} at a time")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// Neither a date, nor a time, nor a duration.
    #[error(
        "{field}: {value:?} is no time; write a date (2026-11-01), a time (2026-11-01T08:00:00Z), or a duration before \
         now (30m, 12h, 7d)"
    )]
    Time {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// The interval ends before it begins.
    #[error("to: {to} is not after from, {from}; write a later time")]
    Empty {
        /// Its beginning.
        from: Timestamp,
        /// Its end.
        to: Timestamp,
    },
    /// It begins before anything is kept.
    #[error(
        "from: {from} is more than {COARSE_FOR_DAYS} days ago, and older values are not kept; write {COARSE_FOR_DAYS}d or \
         a later time"
    )]
    TooOld {
        /// Its beginning.
        from: Timestamp,
    },
    /// The step is no duration.
    #[error(
        "step: {value:?} is no step; write a duration of whole 15 seconds, for instance 15s, 5m or 1h"
    )]
    Step {
        /// The value.
        value: String,
    },
    /// The step is shorter than what is kept of that time.
    #[error(
        "step: {step}s is too short: of the time before the last {FINE_FOR_HOURS} hours only 5 minutes are kept; write 5m \
         or more, or ask for a later time"
    )]
    Fine {
        /// Seconds.
        step: i64,
    },
    /// The answer would be too long.
    #[error(
        "step: {step}s gives {points} points, more than {POINTS_MAX}; write a longer step or a shorter time"
    )]
    Long {
        /// Seconds.
        step: i64,
        /// Points.
        points: i64,
    },
}

/// A question that has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// The series.
    pub series: Vec<Series>,
    /// The beginning.
    pub from: Timestamp,
    /// The end.
    pub to: Timestamp,
    /// Seconds of a step.
    pub step: i64,
    /// Whether the answer comes from the values each 15 seconds, and not from 5 minutes.
    pub fine: bool,
}

impl HistoryQuery {
    /// Reads a question: `series` is a list with commas; `from` is an hour ago if empty, `to` is now; without a step one
    /// is chosen that gives at most 400 points.
    ///
    /// # Errors
    /// A field that cannot be read.
    pub fn read(
        series: &str,
        from: &str,
        to: &str,
        step: &str,
        now: Timestamp,
    ) -> Result<HistoryQuery, HistoryQueryError> {
        let names = series.split(',').map(str::trim);
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        if names.is_empty() {
            return Err(HistoryQueryError::NoSeries);
        }
        if names.len() > QUERY_SERIES_MAX {
            return Err(HistoryQueryError::TooMany { count: names.len() });
        }
        let series: Result<Vec<Series>, SeriesError> =
            names.iter().map(|name| name.parse()).collect();
        let from = time("from", if from.is_empty() { "1h" } else { from }, now)?;
        let to = if to.is_empty() {
            now
        } else {
            time("to", to, now)?
        };
        HistoryQuery::of(series?, from, to, step, now)
    }

    /// A question about these series.
    ///
    /// # Errors
    /// The interval is empty or too old, or the step does not fit it.
    pub fn of(
        series: Vec<Series>,
        from: Timestamp,
        to: Timestamp,
        step: &str,
        now: Timestamp,
    ) -> Result<HistoryQuery, HistoryQueryError> {
        if to <= from {
            return Err(HistoryQueryError::Empty { from, to });
        }
        let age = now.as_second().saturating_sub(from.as_second());
        // A minute more, so that "30d" is asked in time.
        if age > COARSE_FOR_DAYS * 24 * HOUR + 60 {
            return Err(HistoryQueryError::TooOld { from });
        }
        let fine = age <= FINE_FOR_HOURS * HOUR + 60;
        let length = to.as_second().saturating_sub(from.as_second());
        let least = if fine { TICK } else { BUCKET };
        let step = match step {
            "" => {
                let fits = |step: &&i64| **step >= least && length / **step <= POINTS_USUAL;
                STEPS.iter().find(fits).copied().unwrap_or(86_400)
            }
            text => seconds(text).ok_or_else(|| HistoryQueryError::Step {
                value: text.to_owned(),
            })?,
        };
        if step < least {
            return Err(HistoryQueryError::Fine { step });
        }
        let points = length / step;
        if points > POINTS_MAX {
            return Err(HistoryQueryError::Long { step, points });
        }
        Ok(HistoryQuery {
            series,
            from,
            to,
            step,
            fine,
        })
    }
}

/// A duration of whole ticks, in seconds.
fn seconds(text: &str) -> Option<i64> {
    let seconds = query_time::duration(text, &UNITS)?;
    (seconds > 0 && seconds % TICK == 0).then_some(seconds)
}

/// A date at its beginning, a time, or a duration before now.
fn time(field: &'static str, value: &str, now: Timestamp) -> Result<Timestamp, HistoryQueryError> {
    query_time::point(value, &UNITS, now).ok_or_else(|| HistoryQueryError::Time {
        field,
        value: value.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-26T12:30:00Z".parse().unwrap()
    }

    fn read(series: &str, from: &str, to: &str, step: &str) -> Result<HistoryQuery, String> {
        let query = HistoryQuery::read(series, from, to, step, now());
        query.map_err(|error| error.to_string())
    }

    #[test]
    fn a_question_without_times_is_about_the_last_hour() {
        let query = read("node/n1/cpu, cluster/gpus", "", "", "").unwrap();
        assert_eq!(query.series.len(), 2);
        assert_eq!(query.from.to_string(), "2026-11-26T11:30:00Z");
        assert_eq!((query.to, query.step, query.fine), (now(), 15, true));
        for (from, step, fine) in [
            ("24h", 300, true),
            ("25h", 300, false),
            ("7d", 1800, false),
            ("30d", 7200, false),
        ] {
            let query = read("node/n1/cpu", from, "", "").unwrap();
            assert_eq!((query.step, query.fine), (step, fine), "{from}");
        }
        assert_eq!(read("node/n1/cpu", "24h", "", "15s").unwrap().step, 15);
    }

    #[test]
    fn wrong_questions_are_refused_with_field_value_and_form() {
        let many = vec!["node/n/cpu"; 65].join(",");
        for (asked, words) in [
            (read("", "", "", ""), "series: Required value"),
            (read("x", "", "", ""), "series: \"x\" names no series"),
            (read(&many, "", "", ""), "series: 65 series are too many"),
            (
                read("node/n/cpu", "soon", "", ""),
                "from: \"soon\" is no time",
            ),
            (read("node/n/cpu", "", "é", ""), "to: \"é\" is no time"),
            (
                read("node/n/cpu", "1h", "2h", ""),
                "to: 2026-11-26T10:30:00Z is not after",
            ),
            (
                read("node/n/cpu", "31d", "", ""),
                "from: 2026-10-26T12:30:00Z is more than 30 days",
            ),
            (read("node/n/cpu", "", "", "7s"), "step: \"7s\" is no step"),
            (read("node/n/cpu", "", "", "0s"), "step: \"0s\" is no step"),
            (
                read("node/n/cpu", "2d", "", "15s"),
                "step: 15s is too short",
            ),
            (
                read("node/n/cpu", "30d", "", "5m"),
                "step: 300s gives 8640 points",
            ),
        ] {
            let error = asked.unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        let later = read("node/n/cpu", "2099-01-01", "2099-01-02", "15s");
        assert!(
            later.is_ok(),
            "nothing is kept of the future, and nothing is shown"
        );
    }
}
