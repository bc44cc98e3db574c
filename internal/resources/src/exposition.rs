//! Prometheus' text exposition format, version 0.0.4: a page of metric families. The only writer of this format; the
//! agent's and the server's metrics use it. It writes names as given: dcgm-exporter's counters have no `_total` at
//! their end, and dashboards search for them under those names. Pure.

use std::fmt::Write as _;

/// The content type of a page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A count that only grows, except for restarts.
    Counter,
    /// Counts of values by size.
    Histogram,
}

impl Kind {
    /// The word in a TYPE line.
    fn word(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        }
    }
}

/// Labels of one value, already formatted: `a="1",b="2"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricLabels(String);

impl MetricLabels {
    /// Adds a label; one with an empty value is left out, because absent and empty are the same.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> MetricLabels {
        if value.is_empty() {
            return self;
        }
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(name);
        self.0.push_str("=\"");
        escape(&mut self.0, value, true);
        self.0.push('"');
        self
    }
}

/// Counts of observed values by size, with upper bounds that its maker chose.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// How many values are at most each bound, and above the bound before; the last are those above all bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// An empty histogram. The bounds grow.
    pub fn new(bounds: &'static [f64]) -> Histogram {
        Histogram {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    /// Counts a value.
    pub fn observe(&mut self, value: f64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
            self.sum += value;
        }
    }
}

/// A page being written.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// Writes a family and its values; writes nothing without values.
    pub fn family(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        values: impl IntoIterator<Item = (MetricLabels, f64)>,
    ) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return;
        }
        self.head(name, kind, help);
        for (labels, value) in values {
            self.value(name, &labels, value);
        }
    }

    /// Writes a family of histograms; writes nothing without any.
    pub fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        histograms: impl IntoIterator<Item = (MetricLabels, &'a Histogram)>,
    ) {
        let mut histograms = histograms.into_iter().peekable();
        if histograms.peek().is_none() {
            return;
        }
        self.head(name, Kind::Histogram, help);
        let (bucket, sum, count) = (
            format!("{name}_bucket"),
            format!("{name}_sum"),
            format!("{name}_count"),
        );
        for (labels, histogram) in histograms {
            let mut at_most = 0;
            let bounds = histogram.bounds.iter().chain([&f64::INFINITY]);
            for (bound, counted) in bounds.zip(&histogram.counts) {
                at_most += counted;
                let mut text = String::new();
                number(&mut text, *bound);
                self.value(&bucket, &labels.clone().with("le", &text), at_most as f64);
            }
            self.value(&sum, &labels, histogram.sum);
            self.value(&count, &labels, at_most as f64);
        }
    }

    fn head(&mut self, name: &str, kind: Kind, help: &str) {
        let text = &mut self.0;
        // Writing to a string can't fail.
        let _ = write!(text, "# HELP {name} ");
        escape(text, help, false);
        let _ = writeln!(text, "\n# TYPE {name} {}", kind.word());
    }

    fn value(&mut self, name: &str, MetricLabels(labels): &MetricLabels, value: f64) {
        let text = &mut self.0;
        text.push_str(name);
        if !labels.is_empty() {
            let _ = write!(text, "{{{labels}}}");
        }
        text.push(' ');
        number(text, value);
        text.push('\n');
    }

    /// Writes a family that has one value, without labels.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.family(name, kind, help, [(MetricLabels::default(), value)]);
    }

    /// The text.
    pub fn text(self) -> String {
        self.0
    }
}

/// Appends a text with escaped backslashes and line ends, and, in a label's value, escaped quotes.
fn escape(to: &mut String, text: &str, quotes: bool) {
    for c in text.chars() {
        match c {
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            '"' if quotes => to.push_str("\\\""),
            other => to.push(other),
        }
    }
}

/// Appends a number: Rust writes infinity as `inf`, the format as `+Inf`.
fn number(to: &mut String, value: f64) {
    if value.is_infinite() {
        to.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else {
        // Writing to a string can't fail.
        let _ = write!(to, "{value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_written_as_prometheus_reads_it() {
        let mut page = Page::default();
        let odd = MetricLabels::default()
            .with("model", "an \"odd\" one\\two\nthree")
            .with("pod", "");
        page.family("a", Kind::Gauge, "An \"a\"\\\nor two.", [(odd, 0.5)]);
        page.single("b_total", Kind::Counter, "B's.", 12_345_678_901.0);
        page.family("none", Kind::Gauge, "Nothing.", []);
        let expected = "# HELP a An \"a\"\\\\\\nor two.\n# TYPE a gauge\n\
            a{model=\"an \\\"odd\\\" one\\\\two\\nthree\"} 0.5\n\
            # HELP b_total B's.\n# TYPE b_total counter\nb_total 12345678901\n";
        assert_eq!(page.text(), expected);
    }

    #[test]
    fn a_histogram_has_growing_counts_a_sum_and_a_count() {
        let mut waits = Histogram::new(&[0.5, 10.0]);
        for value in [0.25, 0.5, 3.0, 100.0] {
            waits.observe(value);
        }
        let mut page = Page::default();
        page.histograms("none", "Nothing.", []);
        let labels = MetricLabels::default().with("queue", "q");
        page.histograms("w", "Waits.", [(labels, &waits)]);
        let expected = "# HELP w Waits.\n# TYPE w histogram\n\
            w_bucket{queue=\"q\",le=\"0.5\"} 2\nw_bucket{queue=\"q\",le=\"10\"} 3\n\
            w_bucket{queue=\"q\",le=\"+Inf\"} 4\nw_sum{queue=\"q\"} 103.75\nw_count{queue=\"q\"} 4\n";
        assert_eq!(page.text(), expected);
    }

    #[test]
    fn numbers_without_a_value_have_the_formats_own_words() {
        for (value, expected) in [
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (-0.25, "-0.25"),
        ] {
            let mut page = Page::default();
            page.single("a", Kind::Gauge, "A.", value);
            assert!(page.text().ends_with(&format!("\na {expected}\n")));
        }
    }

    #[test]
    fn a_counter_keeps_its_name() {
        let mut page = Page::default();
        let name = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER";
        page.single(name, Kind::Counter, "Total number of PCIe retries.", 3.0);
        let text = page.text();
        assert!(text.ends_with(&format!("# TYPE {name} counter\n{name} 3\n")));
    }
}
