//! Prometheus' text format, version 0.0.4: one page of families. Pure.

use std::fmt::Write as _;

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A count that only grows, except for restarts.
    Counter,
}

/// Labels of one value, already formatted: `a="1",b="2"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(String);

impl Labels {
    /// Adds a label; one with an empty value is left out, because absent and empty are the same.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Labels {
        if value.is_empty() {
            return self;
        }
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(name);
        self.0.push_str("=\"");
        for c in value.chars() {
            match c {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                other => self.0.push(other),
            }
        }
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
        values: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return;
        }
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        // Writing to a string can't fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (Labels(labels), value) in values {
            let _ = if labels.is_empty() {
                writeln!(self.0, "{name} {value}")
            } else {
                writeln!(self.0, "{name}{{{labels}}} {value}")
            };
        }
    }

    /// The text.
    pub fn text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_written_as_prometheus_reads_it() {
        let mut page = Page::default();
        let odd = Labels::default()
            .with("model", "an \"odd\" one\\two\nthree")
            .with("pod", "");
        page.family("a", Kind::Gauge, "An a.", [(odd, 0.5)]);
        page.family(
            "b_total",
            Kind::Counter,
            "B's.",
            [(Labels::default(), 12_345_678_901.0)],
        );
        page.family("none", Kind::Gauge, "Nothing.", []);
        let expected = "# HELP a An a.\n# TYPE a gauge\n\
            a{model=\"an \\\"odd\\\" one\\\\two\\nthree\"} 0.5\n\
            # HELP b_total B's.\n# TYPE b_total counter\nb_total 12345678901\n";
        assert_eq!(page.text(), expected);
    }
}
