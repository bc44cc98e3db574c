//! The syntax of a CronJob's schedule, with Kubernetes' error messages (robfig/cron 3).

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const DESCRIPTORS: [&str; 7] = [
    "@yearly",
    "@annually",
    "@monthly",
    "@weekly",
    "@daily",
    "@midnight",
    "@hourly",
];
const EVERY: &str = "@every ";

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
pub(super) enum ScheduleError {
    #[error("cannot use TZ or CRON_TZ in schedule, use timeZone field instead")]
    TimeZone,
    #[error(
        "failed to parse duration {schedule}: time: invalid duration {duration:?}: write 90m or 1h30m"
    )]
    Duration { schedule: String, duration: String },
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    #[error("expected exactly {} fields, found {}: [{}]", FIELDS.len(), .0.len(), .0.join(" "))]
    FieldCount(Vec<String>),
    #[error("too many hyphens: {0}")]
    Hyphens(String),
    #[error("too many slashes: {0}")]
    Slashes(String),
    #[error("beginning of range ({start}) below minimum ({min}): {range}")]
    BelowMinimum { start: u32, min: u32, range: String },
    #[error("end of range ({end}) above maximum ({max}): {range}")]
    AboveMaximum { end: u32, max: u32, range: String },
    #[error("beginning of range ({start}) beyond end of range ({end}): {range}")]
    Reversed { start: u32, end: u32, range: String },
    #[error("step of range should be a positive number: {0}")]
    NoStep(String),
    #[error("negative number ({0}) not allowed: {0}")]
    Negative(String),
    #[error("failed to parse int from {0}: strconv.Atoi: parsing {0:?}: invalid syntax")]
    NotANumber(String),
}

/// Checks a schedule.
///
/// # Errors
///
/// Why the schedule is invalid.
pub(super) fn check(schedule: &str) -> Result<(), ScheduleError> {
    if schedule.contains("TZ") {
        return Err(ScheduleError::TimeZone);
    }
    if let Some(duration) = schedule.strip_prefix(EVERY) {
        let fine = is_duration(duration);
        return fine.then_some(()).ok_or_else(|| ScheduleError::Duration {
            schedule: schedule.to_owned(),
            duration: duration.to_owned(),
        });
    }
    if schedule.starts_with('@') {
        let known = DESCRIPTORS.contains(&schedule);
        return known
            .then_some(())
            .ok_or_else(|| ScheduleError::Descriptor(schedule.to_owned()));
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        let fields = fields.into_iter().map(str::to_owned).collect();
        return Err(ScheduleError::FieldCount(fields));
    }
    for (field, bounds) in fields.iter().zip(&FIELDS) {
        for range in field.split(',').filter(|range| !range.is_empty()) {
            bounds.check(range)?;
        }
    }
    Ok(())
}

/// Go's durations: numbers with units, one after another.
fn is_duration(text: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let units = ["ns", "us", "ms", "s", "m", "h"];
        let Some(after) = units.iter().find_map(|unit| digits.strip_prefix(unit)) else {
            return false;
        };
        if digits.len() == rest.len() {
            return false;
        }
        rest = after;
    }
    !text.is_empty()
}

impl FieldRange {
    /// Checks `*`, `n`, `n-m`, each with or without a step.
    fn check(&self, text: &str) -> Result<(), ScheduleError> {
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
        if step_by == Some(0) {
            return Err(ScheduleError::NoStep(text.to_owned()));
        }
        Ok(())
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
            assert_eq!(check(schedule), Ok(()), "{schedule}");
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
            let wrong = check(schedule).map_err(|wrong| wrong.to_string());
            assert_eq!(wrong, Err(words.to_owned()), "{schedule}");
        }
        let wrong = check("@every soon").unwrap_err().to_string();
        assert!(wrong.contains("\"soon\""));
    }
}
