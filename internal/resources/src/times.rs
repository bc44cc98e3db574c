//! Times in Kubernetes' form. Pure.

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};

/// A time in the precision of most fields: whole seconds, rounded down.
#[must_use]
pub fn whole(time: Timestamp) -> Timestamp {
    let whole = TimestampRound::new()
        .smallest(Unit::Second)
        .mode(RoundMode::Floor);
    time.round(whole).unwrap_or(time)
}

/// The time as text: `2025-03-04T05:06:07Z`.
#[must_use]
pub fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_in_whole_seconds() {
        let time: Timestamp = "2025-03-04T05:06:07.89Z".parse().unwrap();
        assert_eq!(seconds(time), "2025-03-04T05:06:07Z");
        assert_eq!(whole(time).to_string(), "2025-03-04T05:06:07Z");
    }
}
