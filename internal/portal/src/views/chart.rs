//! Charts of measurements, drawn at the server as SVG: the mean of each step as a line, and up to the largest value of the
//! step as a band. Every chart has a title, a description in words, and its figures as a table. Pure.
//!
//! The drawing is a thousand units wide and is stretched to the page; the labels beside it are text of the page, so that
//! they keep their size on a phone. A step without a value is a gap.

use std::fmt::Write;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use measurements::{Point, Sample, Unit, resample};
use serde::Deserialize;

/// The drawing's size, in its own units.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 200.0;
/// The most lines of a chart: as many as there are colours.
pub const LINES_MAX: usize = 8;
/// Charts with more lines have no bands, which would hide each other.
const BANDS_MAX: usize = 2;
/// Rows of the table of figures.
const ROWS: i64 = 24;

/// How much time a chart shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChartRange {
    /// Its name in addresses: `1h`, `24h`, `7d` or `30d`.
    pub name: &'static str,
    /// The name for people.
    pub words: &'static str,
    /// Its length in seconds.
    pub seconds: i64,
    /// The step of its lines in seconds.
    pub step: i64,
}

impl ChartRange {
    /// The ranges that there are.
    pub const ALL: [ChartRange; 4] = [
        ChartRange::new("1h", "1 hour", 3600, 15),
        ChartRange::new("24h", "24 hours", 86_400, 300),
        ChartRange::new("7d", "7 days", 7 * 86_400, 3600),
        ChartRange::new("30d", "30 days", 30 * 86_400, 14_400),
    ];

    const fn new(name: &'static str, words: &'static str, seconds: i64, step: i64) -> ChartRange {
        ChartRange {
            name,
            words,
            seconds,
            step,
        }
    }

    /// The range of this name; another word is the default's.
    pub fn named(name: &str, default: &'static str) -> ChartRange {
        let named = |name: &str| ChartRange::ALL.into_iter().find(|one| one.name == name);
        named(name)
            .or_else(|| named(default))
            .unwrap_or(ChartRange::ALL[0])
    }

    /// The shortest range that is this many seconds long, or the longest that there is.
    pub fn for_seconds(seconds: i64) -> ChartRange {
        let mut all = ChartRange::ALL.into_iter();
        all.find(|one| one.seconds >= seconds)
            .unwrap_or(ChartRange::ALL[3])
    }
}

/// The range in a page's address.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RangeQuery {
    /// The name of a range.
    pub range: String,
}

/// A named series of points.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it shows.
    pub name: String,
    /// Its points in the order of time.
    pub points: Vec<Point>,
}

/// What is to be drawn.
pub struct ChartRequest<'a> {
    /// Distinguishes the charts of a page; letters and hyphens.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The unit of the values.
    pub unit: Unit,
    /// The lines.
    pub lines: Vec<Line>,
    /// The largest value that there could be, if one is known.
    pub top: Option<f64>,
    /// From when until when.
    pub from: Timestamp,
    /// The end.
    pub to: Timestamp,
    /// Seconds of a step.
    pub step: i64,
    /// Why there is nothing to see, if no line has a point.
    pub empty: &'a str,
}

/// A line as it is drawn.
pub struct DrawnLine {
    /// What it shows.
    pub name: String,
    /// The number of its colour.
    pub colour: usize,
    /// The path of its means.
    pub path: String,
    /// The outline from the means to the largest values; empty without one.
    pub band: String,
    /// Its last value, in words.
    pub last: String,
}

/// A row of figures.
pub struct FigureRow {
    /// The beginning of the row's time.
    pub at: String,
    /// A cell for each line.
    pub cells: Vec<String>,
}

/// A chart.
pub struct Chart {
    /// Distinguishes it on the page.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// The same in a sentence with its figures, for readers that do not see it.
    pub words: String,
    /// The lines.
    pub lines: Vec<DrawnLine>,
    /// Labels of the values, from the top.
    pub values: [String; 3],
    /// Labels of the time, from the left.
    pub times: [String; 3],
    /// The figures.
    pub rows: Vec<FigureRow>,
    /// Why there is nothing to see; empty if there is.
    pub empty: String,
    /// Lines that are not drawn.
    pub more: usize,
}

impl Chart {
    /// Draws.
    pub fn of(mut request: ChartRequest<'_>) -> Chart {
        let more = request.lines.len().saturating_sub(LINES_MAX);
        request.lines.truncate(LINES_MAX);
        let highest = request.lines.iter().flat_map(|line| &line.points);
        let highest = highest.map(|point| point.max).fold(0.0, f64::max);
        let top = match request.top {
            Some(top) if top >= highest && top > 0.0 => top,
            _ => round_up(highest, request.unit),
        };
        let unit = request.unit;
        let has_points = request.lines.iter().any(|line| !line.points.is_empty());
        let bands = request.lines.len() <= BANDS_MAX;
        let frame = Frame {
            from: request.from.as_second(),
            to: request.to.as_second(),
            step: request.step,
            top,
        };
        let drawn = request
            .lines
            .iter()
            .enumerate()
            .map(|(colour, line)| DrawnLine {
                name: line.name.clone(),
                colour,
                path: frame.path(&line.points),
                band: if bands {
                    frame.band(&line.points)
                } else {
                    String::new()
                },
                last: line
                    .points
                    .last()
                    .map_or_else(|| "–".to_owned(), |point| words(point.mean, unit)),
            });
        Chart {
            id: request.id,
            title: request.title,
            words: sentence(&request),
            lines: drawn.collect(),
            values: [top, top / 2.0, 0.0].map(|value| words(value, unit)),
            times: frame.times(),
            rows: rows(&request, &frame),
            empty: if has_points {
                String::new()
            } else {
                request.empty.to_owned()
            },
            more,
        }
    }
}

/// From values and times to places in the drawing.
struct Frame {
    from: i64,
    to: i64,
    step: i64,
    top: f64,
}

impl Frame {
    fn x(&self, at: i64) -> f64 {
        let length = (self.to - self.from).max(1) as f64;
        let middle = (at - self.from) as f64 + self.step as f64 / 2.0;
        (middle / length * WIDTH).clamp(0.0, WIDTH)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - (value / self.top * HEIGHT).clamp(0.0, HEIGHT)
    }

    /// The points between gaps.
    fn runs<'a>(&self, points: &'a [Point]) -> impl Iterator<Item = &'a [Point]> {
        let step = self.step;
        points.chunk_by(move |before, after| after.at - before.at <= step)
    }

    fn path(&self, points: &[Point]) -> String {
        let mut path = String::new();
        for run in self.runs(points) {
            for (place, point) in run.iter().enumerate() {
                let letter = if place == 0 { 'M' } else { 'L' };
                let (x, y) = (self.x(point.at), self.y(point.mean));
                // Writing to a string cannot fail.
                let _ = write!(path, "{letter}{x:.1} {y:.1}");
            }
            // A point alone has no length; a round end shows it.
            path.push_str("h0");
        }
        path
    }

    fn band(&self, points: &[Point]) -> String {
        let mut path = String::new();
        for run in self.runs(points) {
            if run.iter().all(|point| point.max <= point.mean) {
                continue;
            }
            for (place, point) in run.iter().enumerate() {
                let letter = if place == 0 { 'M' } else { 'L' };
                let _ = write!(
                    path,
                    "{letter}{:.1} {:.1}",
                    self.x(point.at),
                    self.y(point.max)
                );
            }
            for point in run.iter().rev() {
                let _ = write!(path, "L{:.1} {:.1}", self.x(point.at), self.y(point.mean));
            }
            path.push('Z');
        }
        path
    }

    fn times(&self) -> [String; 3] {
        let length = self.to - self.from;
        let middle = self.from + length / 2;
        let form = match length {
            ..600 => "%H:%M:%S",
            600..7200 => "%H:%M",
            7200..=172_800 => "%d %b %H:%M",
            _ => "%d %b",
        };
        [self.from, middle, self.to].map(|at| time(at, form))
    }
}

fn time(second: i64, form: &str) -> String {
    let at = Timestamp::from_second(second).unwrap_or_default();
    at.to_zoned(TimeZone::UTC).strftime(form).to_string()
}

/// The mean and the largest value of each line in words.
fn sentence(request: &ChartRequest<'_>) -> String {
    let about = |line: &Line| {
        let count = line.points.len();
        if count == 0 {
            return format!("{}: not measured", line.name);
        }
        let mean = line.points.iter().map(|point| point.mean).sum::<f64>() / count as f64;
        let max = line
            .points
            .iter()
            .map(|point| point.max)
            .fold(0.0, f64::max);
        let (mean, max) = (words(mean, request.unit), words(max, request.unit));
        format!("{}: mean {mean}, at most {max}", line.name)
    };
    let lines: Vec<String> = request.lines.iter().map(about).collect();
    let (from, to) = (request.from.as_second(), request.to.as_second());
    let form = "%Y-%m-%d %H:%M";
    format!(
        "From {} to {} UTC. {}.",
        time(from, form),
        time(to, form),
        lines.join("; ")
    )
}

fn rows(request: &ChartRequest<'_>, frame: &Frame) -> Vec<FigureRow> {
    let length = frame.to - frame.from;
    let step = (length / ROWS / frame.step + 1) * frame.step;
    let columns = request.lines.iter().map(|line| {
        let samples = line.points.iter().map(|point| Sample {
            at: point.at,
            mean: point.mean,
            max: point.max,
            count: 1,
        });
        resample(samples, i64::MIN, i64::MAX, step)
    });
    let columns: Vec<Vec<Point>> = columns.collect();
    let mut times: Vec<i64> = columns.iter().flatten().map(|point| point.at).collect();
    times.sort_unstable();
    times.dedup();
    let cell = |points: &Vec<Point>, at: i64| {
        let point = points.iter().find(|point| point.at == at);
        point.map_or_else(String::new, |point| {
            let (mean, max) = (
                words(point.mean, request.unit),
                words(point.max, request.unit),
            );
            if mean == max {
                mean
            } else {
                format!("{mean}, at most {max}")
            }
        })
    };
    let row = |at: i64| FigureRow {
        at: time(at, "%Y-%m-%d %H:%M:%S"),
        cells: columns.iter().map(|points| cell(points, at)).collect(),
    };
    times.into_iter().rev().map(row).collect()
}

/// A round number that is not below this value: 1, 2 or 5 times a power of ten (of bytes, a power of two).
fn round_up(value: f64, unit: Unit) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return match unit {
            Unit::Bytes => f64::from(1 << 30),
            Unit::Gpus | Unit::Jobs => 2.0,
            _ => 1.0,
        };
    }
    if unit == Unit::Bytes {
        return 2f64.powi(value.log2().ceil() as i32);
    }
    // Half of a small number of things is one, too.
    if matches!(unit, Unit::Gpus | Unit::Jobs) && value <= 20.0 {
        return 2.0 * (value / 2.0).ceil();
    }
    let power = 10f64.powi(value.log10().floor() as i32);
    let mut rounded = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power);
    rounded.find(|one| *one >= value).unwrap_or(value)
}

/// A value with its unit.
fn words(value: f64, unit: Unit) -> String {
    let short = |value: f64| match value {
        _ if value >= 10.0 || value.fract() == 0.0 => format!("{value:.0}"),
        _ if value >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    };
    match unit {
        _ if value == 0.0 => "0".to_owned(),
        Unit::Gpus | Unit::Jobs => short(value),
        Unit::Cores => format!("{} cores", short(value)),
        Unit::Percent => format!("{} %", short(value)),
        Unit::Watts => format!("{} W", short(value)),
        Unit::Celsius => format!("{} °C", short(value)),
        Unit::Bytes => {
            let (size, name) = match value {
                _ if value >= f64::from(1 << 30) => (f64::from(1 << 30), "GiB"),
                _ if value >= f64::from(1 << 20) => (f64::from(1 << 20), "MiB"),
                _ => (1024.0, "KiB"),
            };
            format!("{} {name}", short(value / size))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at: i64, mean: f64, max: f64) -> Point {
        Point { at, mean, max }
    }

    fn drawn(lines: Vec<Line>, unit: Unit, top: Option<f64>) -> Chart {
        Chart::of(ChartRequest {
            id: "c",
            title: "A chart",
            unit,
            lines,
            top,
            from: Timestamp::from_second(0).unwrap(),
            to: Timestamp::from_second(100).unwrap(),
            step: 10,
            empty: "nothing yet",
        })
    }

    fn line(points: Vec<Point>) -> Line {
        let name = "one".to_owned();
        Line { name, points }
    }

    #[test]
    fn values_are_drawn_at_their_time_and_a_gap_breaks_the_line() {
        let points = vec![
            point(0, 50.0, 50.0),
            point(10, 100.0, 100.0),
            point(40, 0.0, 0.0),
        ];
        let chart = drawn(vec![line(points)], Unit::Percent, Some(100.0));
        assert_eq!(chart.lines[0].path, "M50.0 100.0L150.0 0.0h0M450.0 200.0h0");
        assert_eq!(chart.lines[0].band, "");
        assert_eq!(chart.values, ["100 %", "50 %", "0"]);
        assert_eq!(chart.times, ["00:00:00", "00:00:50", "00:01:40"]);
        assert_eq!(chart.empty, "");
        assert!(
            chart.words.contains("one: mean 50 %, at most 100 %"),
            "{}",
            chart.words
        );
        assert_eq!(chart.rows.len(), 3);
        assert_eq!(chart.rows[0].cells, ["0"]);
        let points = vec![point(0, 1.0, 3.0), point(10, 2.0, 2.0)];
        let chart = drawn(vec![line(points)], Unit::Cores, None);
        assert_eq!(chart.values[0], "5 cores");
        assert!(chart.lines[0].band.ends_with('Z'));
        assert_eq!(chart.rows[1].cells, ["1 cores, at most 3 cores"]);
    }

    #[test]
    fn a_chart_without_points_says_why_and_one_of_many_lines_says_how_many_are_left_out() {
        let chart = drawn(vec![line(Vec::new())], Unit::Bytes, None);
        assert_eq!(chart.empty, "nothing yet");
        assert!(chart.words.contains("one: not measured"));
        let chart = drawn(
            vec![line(vec![point(0, 1.0, 1.0)]); 11],
            Unit::Gpus,
            Some(4.0),
        );
        assert_eq!((chart.lines.len(), chart.more), (LINES_MAX, 3));
    }

    #[test]
    fn axes_end_at_round_numbers_and_values_have_units() {
        for (value, unit, top) in [
            (0.0, Unit::Percent, 1.0),
            (1.5, Unit::Gpus, 2.0),
            (1.0, Unit::Gpus, 2.0),
            (5.0, Unit::Gpus, 6.0),
            (30.0, Unit::Gpus, 50.0),
            (37.0, Unit::Watts, 50.0),
            (50.0, Unit::Watts, 50.0),
            (700.0, Unit::Watts, 1000.0),
            (3e9, Unit::Bytes, 4_294_967_296.0),
        ] {
            assert_eq!(round_up(value, unit), top, "{value}");
        }
        assert_eq!(words(80.0 * f64::from(1 << 30), Unit::Bytes), "80 GiB");
        assert_eq!(words(1.5 * f64::from(1 << 20), Unit::Bytes), "1.5 MiB");
        assert_eq!(words(0.25, Unit::Cores), "0.250 cores");
    }

    #[test]
    fn ranges_have_names_and_a_job_gets_the_shortest_that_covers_it() {
        assert_eq!(ChartRange::named("7d", "1h").step, 3600);
        assert_eq!(ChartRange::named("x", "24h").name, "24h");
        assert_eq!(ChartRange::for_seconds(3601).name, "24h");
        assert_eq!(ChartRange::for_seconds(i64::MAX).name, "30d");
    }
}
