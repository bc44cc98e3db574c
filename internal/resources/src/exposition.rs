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
}

impl Kind {
    /// The word in a TYPE line.
    fn word(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
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
        let text = &mut self.0;
        // Writing to a string can't fail.
        let _ = write!(text, "# HELP {name} ");
        escape(text, help, false);
        let _ = writeln!(text, "\n# TYPE {name} {}", kind.word());
        for (MetricLabels(labels), value) in values {
            text.push_str(name);
            if !labels.is_empty() {
                let _ = write!(text, "{{{labels}}}");
            }
            text.push(' ');
            number(text, value);
            text.push('\n');
        }
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
