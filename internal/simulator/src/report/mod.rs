//! Summaries for people: as text, and as one HTML page that needs nothing else.

mod chart;
mod frontier;
mod html;
mod text;

pub use frontier::{Standing, frontier};
pub use html::html;
pub use text::text;

use crate::scenario::Seconds;

/// A span as people say it: two units at the most.
#[must_use]
pub fn span(seconds: f64) -> String {
    let whole = seconds.round().max(0.0) as Seconds;
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", whole % 60),
        (0, _, _) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::span;

    #[test]
    fn spans_are_said_in_two_units() {
        let said = [5.0, 65.0, 3700.0, 90_000.0].map(span);
        assert_eq!(said, ["5s", "1m05s", "1h01m", "1d01h"]);
    }
}
