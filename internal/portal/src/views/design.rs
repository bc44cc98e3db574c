//! The parts that pages are made of, for the people that write pages.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use jiff::{SignedDuration, Timestamp};
use measurements::{Point, Unit};

use super::chart::{Chart, ChartRequest, Line};
use super::when::When;
use super::{PageCaller, PageFrame, page};
use crate::board::Tone;
use crate::log_text::{self, LogLine};
use crate::state::Portal;

/// A log with what the pages show of one.
const LOG: &str =
    "\u{1b}[32mINFO\u{1b}[0m begins\r\n10%\r100%\n\u{1b}[1;31mValueError: bad shard 17\u{1b}[0m";

#[derive(Template)]
#[template(path = "design.html")]
struct Design {
    frame: PageFrame,
    tones: [(Tone, &'static str, &'static str); 4],
    times: Vec<When>,
    lines: Vec<LogLine>,
    chart: Chart,
}

/// A chart of made-up numbers, with a gap.
fn chart(now: Timestamp) -> Chart {
    let to = now.as_second();
    let steps = (0..60).filter(|step| !(38..44).contains(step));
    let points = steps.map(|step| {
        let mean = 50.0 + 40.0 * (step as f64 / 9.0).sin();
        Point {
            at: to - 3600 + step * 60,
            mean,
            max: mean + 8.0,
        }
    });
    let name = "GPU 0".to_owned();
    Chart::of(ChartRequest {
        id: "design",
        title: "GPU utilisation",
        unit: Unit::Percent,
        lines: vec![Line {
            name,
            points: points.collect(),
        }],
        top: Some(100.0),
        from: Timestamp::from_second(to - 3600).unwrap_or(now),
        to: now,
        step: 60,
        empty: "",
    })
}

/// The page.
pub async fn design(State(_): State<Portal>, PageCaller(caller): PageCaller) -> Response {
    let now = Timestamp::now();
    let past = |seconds: i64| now.checked_sub(SignedDuration::from_secs(seconds));
    let times = [0, 13, 200, 7200, 400_000, -900];
    page(&Design {
        frame: PageFrame::still(&caller, "design"),
        tones: [
            (Tone::Good, "Succeeded", "it reached its goal"),
            (Tone::Busy, "Running", "it is at work"),
            (Tone::Idle, "Waiting", "it waits, or a user stopped it"),
            (Tone::Bad, "Failed", "a user or an administrator must act"),
        ],
        times: times
            .iter()
            .filter_map(|seconds| past(*seconds).ok())
            .map(|at| When::of(at, now))
            .collect(),
        lines: log_text::lines(LOG, false),
        chart: chart(now),
    })
}
