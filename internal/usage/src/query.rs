//! Questions to the book: hours by team, queue, namespace, user or model, and by hour, day or month.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use resources::devices::is_whole_gpu;
use resources::query_time::{self, DAYS, HOURS};
use serde::{Deserialize, Serialize};

use crate::allocation::Owner;
use crate::book::UsageBook;
use crate::sums::{GpuHours, GpuTime, HOUR, Span, milliseconds, time};

/// What usage is told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dimension {
    /// The team (`muster.io/team`).
    Team,
    /// The queue.
    Queue,
    /// The namespace.
    Namespace,
    /// The user.
    User,
    /// The model of the GPUs.
    Model,
}

impl Dimension {
    /// All of them, in the order in which they are listed.
    pub const ALL: [Dimension; 5] = [
        Dimension::Team,
        Dimension::Queue,
        Dimension::Namespace,
        Dimension::User,
        Dimension::Model,
    ];

    /// Its name in queries.
    pub fn name(self) -> &'static str {
        match self {
            Dimension::Team => "team",
            Dimension::Queue => "queue",
            Dimension::Namespace => "namespace",
            Dimension::User => "user",
            Dimension::Model => "model",
        }
    }

    fn of(self, owner: &Owner) -> &str {
        match self {
            Dimension::Team => &owner.team,
            Dimension::Queue => &owner.queue,
            Dimension::Namespace => &owner.namespace,
            Dimension::User => &owner.user,
            Dimension::Model => &owner.model,
        }
    }
}

/// A row for each hour, day or month, by UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// Hours; of older usage only days are known.
    Hour,
    /// Days.
    Day,
    /// Months.
    Month,
}

impl Period {
    /// Its name in queries.
    pub fn name(self) -> &'static str {
        match self {
            Period::Hour => "hour",
            Period::Day => "day",
            Period::Month => "month",
        }
    }

    fn label(self, span: Span) -> String {
        let start = time(span.start).to_zoned(TimeZone::UTC);
        let form = match self {
            Period::Hour if span.day => "%Y-%m-%d",
            Period::Hour => "%Y-%m-%dT%H:00Z",
            Period::Day => "%Y-%m-%d",
            Period::Month => "%Y-%m",
        };
        start.strftime(form).to_string()
    }
}

/// Why a query cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageQueryError {
    /// An unknown word in `by`.
    #[error("by: {word:?} is none of team, queue, namespace, user, model, hour, day, month")]
    By {
        /// The word.
        word: String,
    },
    /// Two periods in `by`.
    #[error("by: name only one of hour, day and month")]
    TwoPeriods,
    /// Neither a date, nor a time, nor a duration.
    #[error(
        "{field}: {value:?} is no time; write a date (2026-11-01), a time (2026-11-01T08:00:00Z), or a duration before \
         now (12h, 7d)"
    )]
    Time {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// The interval ends before it begins.
    #[error("until: {until} is before since, {since}; write a later time")]
    Empty {
        /// Its beginning.
        since: Timestamp,
        /// Its end.
        until: Timestamp,
    },
}

/// The period's label, and the values of the dimensions.
type RowKey<'a> = (Option<String>, Vec<&'a str>);

/// A question about usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageQuery {
    since: Timestamp,
    until: Timestamp,
    by: Vec<Dimension>,
    period: Option<Period>,
}

/// Hours of one combination of dimensions and period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UsageRow {
    /// The hour, day or month, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    /// The value of each dimension asked for.
    #[serde(flatten)]
    pub by: BTreeMap<Dimension, String>,
    /// Resource and hours: core-hours for cpu, GiB-hours for memory, unit-hours for others.
    pub hours: BTreeMap<String, f64>,
    /// Hours of GPUs of any vendor: allocated, and of these active, idle and not measured. Absent in the answer of a
    /// server that does not tell them apart.
    #[serde(rename = "gpuHours", default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuHours>,
}

impl UsageQuery {
    /// Reads a query: `by` is a list with commas of dimensions and at most one period; `since` is seven days ago if
    /// empty, `until` is now if empty.
    ///
    /// # Errors
    /// A field that cannot be read.
    pub fn read(
        by: &str,
        since: &str,
        until: &str,
        now: Timestamp,
    ) -> Result<UsageQuery, UsageQueryError> {
        let mut query = UsageQuery {
            since: at("since", if since.is_empty() { "7d" } else { since }, now)?,
            until: at("until", if until.is_empty() { "0h" } else { until }, now)?,
            by: Vec::new(),
            period: None,
        };
        if query.until < query.since {
            return Err(UsageQueryError::Empty {
                since: query.since,
                until: query.until,
            });
        }
        for word in by.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let dimension = Dimension::ALL.into_iter().find(|one| one.name() == word);
            let periods = [Period::Hour, Period::Day, Period::Month];
            let period = periods.into_iter().find(|one| one.name() == word);
            match (dimension, period) {
                (Some(one), _) if !query.by.contains(&one) => query.by.push(one),
                (Some(_), _) => {}
                (None, Some(_)) if query.period.is_some() => {
                    return Err(UsageQueryError::TwoPeriods);
                }
                (None, Some(one)) => query.period = Some(one),
                (None, None) => {
                    let word = word.to_owned();
                    return Err(UsageQueryError::By { word });
                }
            }
        }
        Ok(query)
    }

    /// The beginning.
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// The end.
    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// The dimensions.
    pub fn by(&self) -> &[Dimension] {
        &self.by
    }

    /// The period.
    pub fn period(&self) -> Option<Period> {
        self.period
    }

    /// Whether an allocation touches the interval.
    pub fn covers(&self, started: Timestamp, ended: Option<Timestamp>) -> bool {
        started < self.until && ended.is_none_or(|end| end >= self.since)
    }

    /// The answer, from whole hours (of usage older than 35 days, whole days) that begin in the interval, for the
    /// namespaces that `sees` admits. Ordered by period, then by GPU-hours and core-hours, the largest first.
    pub fn answer(&self, book: &UsageBook, sees: impl Fn(&str) -> bool) -> Vec<UsageRow> {
        let from = milliseconds(self.since).div_euclid(HOUR) * HOUR;
        let until = milliseconds(self.until);
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut hidden: BTreeSet<&str> = BTreeSet::new();
        let mut rows: BTreeMap<RowKey, (BTreeMap<String, f64>, GpuTime)> = BTreeMap::new();
        for (span, owner, sums) in book.sums() {
            let namespace = owner.namespace.as_str();
            if span.start < span_start(from, span) || span.start >= until {
                continue;
            }
            if !seen.contains(namespace) {
                if hidden.contains(namespace) || !sees(namespace) {
                    hidden.insert(namespace);
                    continue;
                }
                seen.insert(namespace);
            }
            let key = (
                self.period.map(|period| period.label(span)),
                self.by.iter().map(|one| one.of(owner)).collect(),
            );
            let (row, gpus) = rows.entry(key).or_default();
            for (resource, hours) in sums.hours() {
                *row.entry(resource).or_default() += hours;
            }
            *gpus = gpus.plus(sums.gpu_time());
        }
        let row = |((period, values), (hours, gpus)): (RowKey, (_, GpuTime))| UsageRow {
            period,
            by: (self.by.iter().copied())
                .zip(values.into_iter().map(str::to_owned))
                .collect(),
            hours,
            gpus: Some(gpus.hours()),
        };
        let mut rows: Vec<UsageRow> = rows.into_iter().map(row).collect();
        rows.sort_by(|a, b| {
            let size = |row: &UsageRow| (row.gpu_hours(), row.of(resources::amounts::CPU));
            let ((gpus_a, cpu_a), (gpus_b, cpu_b)) = (size(a), size(b));
            (a.period.cmp(&b.period))
                .then(gpus_b.total_cmp(&gpus_a))
                .then(cpu_b.total_cmp(&cpu_a))
        });
        rows
    }
}

/// The first start that a span of this length may have to touch `from`.
fn span_start(from: i64, span: Span) -> i64 {
    if span.day {
        Span {
            start: from,
            day: false,
        }
        .day()
        .start
    } else {
        from
    }
}

impl UsageRow {
    /// Hours of a resource.
    pub fn of(&self, resource: &str) -> f64 {
        self.hours.get(resource).copied().unwrap_or(0.0)
    }

    /// Hours of whole GPUs of any vendor (`nvidia.com/gpu`, `amd.com/gpu`).
    pub fn gpu_hours(&self) -> f64 {
        let gpus = self.hours.iter().filter(|(name, _)| is_whole_gpu(name));
        gpus.map(|(_, hours)| hours).sum()
    }
}

/// A date at its beginning, a time, or a duration before now.
fn at(field: &'static str, value: &str, now: Timestamp) -> Result<Timestamp, UsageQueryError> {
    query_time::point(value, &[HOURS, DAYS], now).ok_or_else(|| UsageQueryError::Time {
        field,
        value: value.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::tests::allocation;

    fn now() -> Timestamp {
        "2026-11-26T12:30:00Z".parse().unwrap()
    }

    #[test]
    fn queries_are_read_and_wrong_ones_are_refused_with_the_field() {
        let read = |by, since, until| UsageQuery::read(by, since, until, now());
        let query = read("user, day,user", "2d", "2026-11-26").unwrap();
        assert_eq!(query.by(), [Dimension::User]);
        assert_eq!(query.period(), Some(Period::Day));
        assert_eq!(query.since().to_string(), "2026-11-24T12:30:00Z");
        assert_eq!(query.until().to_string(), "2026-11-26T00:00:00Z");
        assert_eq!(read("", "", "").unwrap().until(), now());
        let refusals = [
            (read("users", "", ""), "by: \"users\" is none of team"),
            (read("day,month", "", ""), "only one of hour, day and month"),
            (read("", "yesterday", ""), "since: \"yesterday\" is no time"),
            (read("", "é", ""), "since: \"é\" is no time"),
            (read("", "99999999999d", ""), "since: \"99999999999d\""),
            (read("", "4294967295d", ""), "since: \"4294967295d\""),
            (
                read("", "1d", "2d"),
                "until: 2026-11-24T12:30:00Z is before since",
            ),
        ];
        for (answer, words) in refusals {
            let error = answer.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn hours_are_told_apart_by_dimension_and_period_for_those_who_may_see_them() {
        let mut book = UsageBook::default();
        book.observe(allocation("a", "ann", "2026-11-25T22:00:00Z"));
        book.observe(allocation("b", "ben", "2026-11-26T11:00:00Z"));
        book.count_until("2026-11-26T12:00:00Z".parse().unwrap());
        let ask = |by: &str, since: &str| {
            let query = UsageQuery::read(by, since, "", now()).unwrap();
            query.answer(&book, |_| true)
        };
        let told = |rows: &[UsageRow]| -> Vec<(String, f64)> {
            rows.iter()
                .map(|row| {
                    let values = row.by.values().cloned();
                    let words: Vec<String> = row.period.clone().into_iter().chain(values).collect();
                    (words.join(" "), row.gpu_hours())
                })
                .collect()
        };
        assert_eq!(told(&ask("", "")), [(String::new(), 30.0)]);
        assert_eq!(
            told(&ask("user", "")),
            [("ann".to_owned(), 28.0), ("ben".to_owned(), 2.0)]
        );
        assert_eq!(
            told(&ask("day", "")),
            [
                ("2026-11-25".to_owned(), 4.0),
                ("2026-11-26".to_owned(), 26.0)
            ]
        );
        assert_eq!(told(&ask("month", "")), [("2026-11".to_owned(), 30.0)]);
        assert_eq!(told(&ask("", "2026-11-26")), [(String::new(), 26.0)]);
        let query = UsageQuery::read("user", "", "", now()).unwrap();
        assert!(
            query
                .answer(&book, |namespace| namespace != "team")
                .is_empty()
        );
    }
}
