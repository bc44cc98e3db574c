//! Summaries for people: as text, and as one HTML page that needs nothing else.

mod chart;
mod frontier;
mod html;
mod text;

pub use frontier::{PolicyFigures, frontier};
pub use html::html;
pub use text::text;

use resources::span::human_duration;

use crate::scenario::Seconds;

/// A span in seconds, printed like every age and duration of Muster.
fn span(seconds: f64) -> String {
    human_duration(seconds.round().max(0.0) as Seconds)
}

fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}
