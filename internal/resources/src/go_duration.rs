//! Durations as Go writes them: decimal numbers with units, one after another, such as `1h30m`, `90s` and `1.5s`. The
//! only parser of this form; `@every` of schedules and the timeouts of Volcano's policies use it.
//! Source: the documentation of Go's `time.ParseDuration`. Signs are not accepted: no field that Muster reads has a
//! use for a negative duration.

use jiff::SignedDuration;

/// The units, in nanoseconds. `µs` is accepted with either of its two letters.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// The valid form, for the errors of fields that hold a duration.
pub const FORM: &str =
    "must be a duration of numbers with the units h, m, s and ms, such as \"90s\" or \"1h30m\"";

/// Reads a duration; none if the text is not one, or longer than Go's 64-bit number of nanoseconds holds (292 years).
#[must_use]
pub fn parse(text: &str) -> Option<SignedDuration> {
    if text == "0" {
        return Some(SignedDuration::ZERO);
    }
    let mut nanoseconds: i128 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let number = rest.strip_suffix(digits)?;
        let (after, unit) = UNITS
            .iter()
            .find_map(|(unit, size)| Some((digits.strip_prefix(unit)?, *size)))?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let read = |digits: &str| match digits {
            "" => Some(0),
            digits => digits.parse::<i128>().ok(),
        };
        nanoseconds = nanoseconds.checked_add(read(whole)?.checked_mul(unit)?)?;
        // Digits below a nanosecond do not count.
        let fraction = &fraction[..fraction.len().min(15)];
        let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        nanoseconds = nanoseconds.checked_add(read(fraction)?.checked_mul(unit)? / scale)?;
        rest = after;
    }
    let nanoseconds = i64::try_from(nanoseconds).ok();
    nanoseconds
        .filter(|_| !text.is_empty())
        .map(SignedDuration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        let table = [
            ("90s", Some(90_000_000_000)),
            ("1h30m", Some(5_400_000_000_000)),
            ("1.5s", Some(1_500_000_000)),
            (".5s", Some(500_000_000)),
            ("500ms", Some(500_000_000)),
            ("3us", Some(3_000)),
            ("3\u{b5}s", Some(3_000)),
            ("7ns", Some(7)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("", None),
            ("10", None),
            ("m", None),
            (".s", None),
            ("1.2.3s", None),
            ("-5s", None),
            ("5d", None),
            ("5 s", None),
            ("99999999999999999999h", None),
        ];
        for (text, expected) in table {
            assert_eq!(parse(text).map(|read| read.as_nanos()), expected, "{text}");
        }
    }
}
