//! Spans of time as people and clusters write them: one way of reading them for everything that is
//! configured, annotated or traced.

/// What a span may look like, for messages.
pub const FORMS: &str = "write seconds (5400), a span (1h30m), or hours, minutes and seconds (1:30:00, 2-06:00:00 with days)";

/// Reads a span of time in seconds, rounded up; none where it can't be read or is negative.
#[must_use]
pub fn seconds(text: &str) -> Option<i64> {
    let text = text.trim();
    if let Some(number) = number(text) {
        return (number >= 0.0).then(|| number.ceil() as i64);
    }
    if text.contains(':') {
        return clock(text);
    }
    let mut total = 0_i64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let value: i64 = rest[..digits].parse().ok()?;
        let unit = match rest.as_bytes().get(digits) {
            Some(b'd') => 86_400,
            Some(b'h') => 3600,
            Some(b'm') => 60,
            Some(b's') => 1,
            _ => return None,
        };
        total = total.checked_add(value.checked_mul(unit)?)?;
        rest = &rest[digits + 1..];
    }
    (!text.is_empty()).then_some(total)
}

/// A finite number of a size that seconds can have.
#[must_use]
pub fn number(text: &str) -> Option<f64> {
    let number: f64 = text.parse().ok()?;
    (number.is_finite() && number.abs() < 1e15).then_some(number)
}

/// `[days-]hours:minutes:seconds[.parts]`, or `minutes:seconds`, as Slurm writes it.
fn clock(text: &str) -> Option<i64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (days.parse::<i64>().ok()?, rest),
        None => (0, text),
    };
    let rest = rest.split('.').next().unwrap_or(rest);
    let parts: Vec<i64> = rest
        .split(':')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    let (hours, minutes, seconds) = match parts[..] {
        [hours, minutes, seconds] => (hours, minutes, seconds),
        [minutes, seconds] => (0, minutes, seconds),
        _ => return None,
    };
    let bound = |n: i64| (0..1_000_000_000).contains(&n);
    if !(bound(days) && bound(hours) && bound(minutes) && bound(seconds)) {
        return None;
    }
    Some(days * 86_400 + hours * 3600 + minutes * 60 + seconds)
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
            assert_eq!(seconds(text), Some(wanted), "{text}");
        }
        for text in [
            "",
            "h",
            "1x",
            "1w",
            "-5",
            "nan",
            "1e99",
            "1:2:3:4",
            "UNLIMITED",
            "1h30",
            "é",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
