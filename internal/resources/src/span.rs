//! Time spans as users and clusters write them: one parser for all configuration, annotations and traces, and one
//! printer.

/// The valid forms of a span, for messages.
pub const FORMS: &str =
    "seconds (5400), a span (1h30m), or hours, minutes and seconds (1:30:00, 2-06:00:00 with days)";

/// Reads a time span in seconds, rounded up; `None` if it is unreadable or negative.
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

/// A finite number within the range of seconds.
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

/// An age or a duration in seconds as kubectl prints it: `45s`, `3m20s`, `121m`, `7d12h`, `2y10d`. The rules are those of
/// `duration.HumanDuration` in k8s.io/apimachinery, so that the CLI, the portal and `kubectl get` agree on every object.
#[must_use]
pub fn human_duration(seconds: i64) -> String {
    let with_rest = |big: i64, unit: char, rest: i64, rest_unit: char| {
        if rest == 0 {
            format!("{big}{unit}")
        } else {
            format!("{big}{unit}{rest}{rest_unit}")
        }
    };
    // Clocks differ a little: a second in the future counts as now.
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        with_rest(minutes, 'm', seconds % 60, 's')
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        with_rest(hours, 'h', minutes % 60, 'm')
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 192 {
        with_rest(days, 'd', hours % 24, 'h')
    } else if days < 730 {
        format!("{days}d")
    } else if days < 8 * 365 {
        with_rest(days / 365, 'y', days % 365, 'd')
    } else {
        format!("{}y", days / 365)
    }
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

    #[test]
    fn durations_are_printed_as_kubectl_prints_them() {
        const MINUTE: i64 = 60;
        const HOUR: i64 = 60 * MINUTE;
        const DAY: i64 = 24 * HOUR;
        const YEAR: i64 = 365 * DAY;
        // Both sides of every bound at which the form changes, with and without a remainder.
        for (seconds, wanted) in [
            (i64::MIN, "<invalid>"),
            (-5, "<invalid>"),
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (45, "45s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (10 * MINUTE - 1, "9m59s"),
            (10 * MINUTE, "10m"),
            (2 * HOUR + MINUTE, "121m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + MINUTE, "3h1m"),
            (8 * HOUR - 1, "7h59m"),
            (8 * HOUR, "8h"),
            (2 * DAY - 1, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + 2 * HOUR, "2d2h"),
            (8 * DAY - 1, "7d23h"),
            (8 * DAY, "8d"),
            (2 * YEAR - 1, "729d"),
            (2 * YEAR, "2y"),
            (2 * YEAR + DAY, "2y1d"),
            (8 * YEAR - 1, "7y364d"),
            (8 * YEAR, "8y"),
            (10 * YEAR, "10y"),
        ] {
            assert_eq!(human_duration(seconds), wanted, "{seconds}");
        }
    }
}
