//! Charts as inline SVG, coloured by classes so that the page's light or dark colours hold.

use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;
/// Colours that the page defines.
pub(super) const COLOURS: usize = 8;

/// Text that is safe inside markup.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// One line or one set of bars.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// How the axes are read.
pub(super) struct Axes<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    pub(super) x_max: f64,
    pub(super) y_max: f64,
    pub(super) x_text: &'a dyn Fn(f64) -> String,
    pub(super) y_text: &'a dyn Fn(f64) -> String,
}

/// A line through points, as the data of an SVG path.
fn path(axes: &Axes<'_>, points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut data = String::new();
    for (i, (x, y)) in points.enumerate() {
        let letter = if i == 0 { 'M' } else { 'L' };
        let _ = write!(data, "{letter}{:.1} {:.1}", across(axes, x), down(axes, y));
    }
    data
}

fn across(axes: &Axes<'_>, x: f64) -> f64 {
    LEFT + (x / axes.x_max.max(1e-9)).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
}

fn down(axes: &Axes<'_>, y: f64) -> f64 {
    HEIGHT - BOTTOM - (y / axes.y_max.max(1e-9)).clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
}

/// The figure around a chart: title, axes, legend.
fn frame(axes: &Axes<'_>, names: &[&str], ticks: bool, inner: &str) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<figure><figcaption>{}</figcaption>",
        escape(axes.title)
    );
    if names.len() > 1 {
        out.push_str("<p class=\"legend\">");
        for (at, name) in names.iter().enumerate() {
            let _ = write!(
                out,
                "<span><i class=\"b{}\"></i>{}</span>",
                at % COLOURS,
                escape(name)
            );
        }
        out.push_str("</p>");
    }
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\"><g class=\"axis\">",
        escape(axes.title)
    );
    for step in 0..=4 {
        let part = f64::from(step) / 4.0;
        let y = down(axes, axes.y_max * part);
        let _ = write!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            escape(&(axes.y_text)(axes.y_max * part))
        );
        if ticks {
            let anchor = if step == 4 { "end" } else { "middle" };
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                across(axes, axes.x_max * part),
                HEIGHT - BOTTOM + 15.0,
                escape(&(axes.x_text)(axes.x_max * part))
            );
        }
    }
    let _ = write!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text x=\"{LEFT}\" y=\"{:.1}\">{}</text></g>{inner}</svg></figure>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 4.0,
        escape(axes.x),
        TOP - 2.0,
        escape(axes.y)
    );
    out
}

/// Lines over one axis.
pub(super) fn lines(axes: &Axes<'_>, series: &[Series]) -> String {
    let mut inner = String::new();
    for (at, one) in series.iter().enumerate() {
        let path = path(axes, one.points.iter().copied());
        let _ = write!(
            inner,
            "<path class=\"s{}\" d=\"{path}\"><title>{}</title></path>",
            at % COLOURS,
            escape(&one.name)
        );
    }
    let names: Vec<&str> = series.iter().map(|one| one.name.as_str()).collect();
    frame(axes, &names, true, &inner)
}

/// Areas on top of each other; all series have the same x.
pub(super) fn stack(axes: &Axes<'_>, series: &[Series]) -> String {
    let mut inner = String::new();
    let mut base: Vec<f64> = vec![0.0; series.first().map_or(0, |one| one.points.len())];
    for (at, one) in series.iter().enumerate() {
        let upper = one.points.iter().zip(&base);
        let mut path = path(axes, upper.map(|((x, y), below)| (*x, below + y)));
        for (i, (x, y)) in one.points.iter().enumerate().rev() {
            let _ = write!(path, "L{:.1} {:.1}", across(axes, *x), down(axes, base[i]));
            base[i] += y;
        }
        let _ = write!(
            inner,
            "<path class=\"f{}\" d=\"{path}Z\"><title>{}</title></path>",
            at % COLOURS,
            escape(&one.name)
        );
    }
    let names: Vec<&str> = series.iter().map(|one| one.name.as_str()).collect();
    frame(axes, &names, true, &inner)
}

/// Bars in groups: for each label one bar a series.
pub(super) fn bars(axes: &Axes<'_>, labels: &[String], series: &[Series]) -> String {
    let mut inner = String::new();
    let room = (WIDTH - LEFT - RIGHT) / labels.len().max(1) as f64;
    let wide = (room * 0.8 / series.len().max(1) as f64).min(40.0);
    for (group, label) in labels.iter().enumerate() {
        let middle = LEFT + room * (group as f64 + 0.5);
        let from = middle - wide * series.len() as f64 / 2.0;
        for (at, one) in series.iter().enumerate() {
            let value = one.points.get(group).map_or(0.0, |point| point.1);
            let y = down(axes, value);
            let _ = write!(
                inner,
                "<rect class=\"f{}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}, {}: {}</title></rect>",
                at % COLOURS,
                from + wide * at as f64,
                (wide - 1.0).max(1.0),
                (HEIGHT - BOTTOM - y).max(0.0),
                escape(&one.name),
                escape(label),
                escape(&(axes.y_text)(value))
            );
        }
        let _ = write!(
            inner,
            "<text class=\"label\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM + 15.0,
            escape(label)
        );
    }
    let names: Vec<&str> = series.iter().map(|one| one.name.as_str()).collect();
    frame(axes, &names, false, &inner)
}

/// One named dot a series.
pub(super) fn dots(axes: &Axes<'_>, series: &[Series]) -> String {
    let mut inner = String::new();
    for (at, one) in series.iter().enumerate() {
        for (x, y) in &one.points {
            let (x, y) = (across(axes, *x), down(axes, *y));
            let (anchor, beside) = if x > WIDTH - 130.0 {
                ("end", -9.0)
            } else {
                ("start", 9.0)
            };
            let _ = write!(
                inner,
                "<circle class=\"f{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/><text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                at % COLOURS,
                x + beside,
                y + 4.0,
                escape(&one.name)
            );
        }
    }
    frame(axes, &[], true, &inner)
}

/// The next round number at or above: 1, 2, 2.5 or 5 times a power of ten.
pub(super) fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    steps
        .into_iter()
        .find(|step| *step >= value * 0.999_999)
        .unwrap_or(10.0 * power)
}
