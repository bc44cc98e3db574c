//! The process's log: events and spans of `tracing` on standard error, as text for people or as one JSON object per
//! line for programs that collect logs. If standard error is journald's, the text becomes entries with fields
//! ([`journal`]).
//!
//! Events inside a span carry the span's name and fields. Muster's spans are `plan` (one plan of the scheduler), `bind`
//! (one pod's binding) and `session` (a node's session, on the server and on the agent).

mod journal;

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;

/// The log's levels unless others are given, in the syntax of [`EnvFilter`].
pub const USUAL_LEVELS: &str = "info,kube_client=warn";

/// The form of the log's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people, coloured on a terminal; entries with fields if standard error is journald's.
    #[default]
    Text,
    /// One JSON object per line: `timestamp`, `level`, `target`, `fields` (with `message`) and, inside of spans,
    /// `spans` (from the outermost, each with `name` and its fields).
    Json,
}

/// Why the log was not set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The levels cannot be read.
    #[error("{value:?} does not list log levels; use a form like info or info,controllers=debug")]
    Levels {
        /// The text that was given as levels.
        value: String,
        /// Why it cannot be read.
        source: ParseError,
    },
    /// The process has a subscriber already.
    #[error("the process's log is set up already")]
    SetUp,
}

/// Reads the value of an option for the log's levels; an empty text stands for [`USUAL_LEVELS`].
///
/// # Errors
/// The text does not list levels.
pub fn levels(text: &str) -> Result<String, TelemetryError> {
    filter(text).map(|_| text.to_owned())
}

/// Sets up the process's log on standard error, with these levels. A text log of a service goes to journald with its
/// fields, if systemd has connected standard error to journald.
///
/// # Errors
/// The text does not list levels, or the process's log is set up already.
pub fn log_to_stderr(format: LogFormat, levels: &str) -> Result<(), TelemetryError> {
    let filter = filter(levels)?;
    if format == LogFormat::Text
        && journal::stderr_is_journald()
        && let Ok(journal) = journal::Journal::open()
    {
        let subscriber = tracing_subscriber::registry().with(filter).with(journal);
        return tracing::subscriber::set_global_default(subscriber)
            .map_err(|_| TelemetryError::SetUp);
    }
    let colours = std::io::stderr().is_terminal();
    let subscriber = subscriber(format, filter, std::io::stderr, colours);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| TelemetryError::SetUp)
}

fn filter(levels: &str) -> Result<EnvFilter, TelemetryError> {
    let levels = match levels.trim() {
        "" => USUAL_LEVELS,
        levels => levels,
    };
    EnvFilter::try_new(levels).map_err(|source| TelemetryError::Levels {
        value: levels.to_owned(),
        source,
    })
}

fn subscriber<W>(
    format: LogFormat,
    filter: EnvFilter,
    writer: W,
    colours: bool,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer);
    match format {
        LogFormat::Text => Box::new(lines.with_ansi(colours).finish()),
        LogFormat::Json => Box::new(
            lines
                .json()
                .with_current_span(false)
                .with_span_list(true)
                .finish(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The lines of two events, one of them in two spans; a third is below the level.
    fn logged(format: LogFormat) -> Vec<String> {
        let lines = Lines::default();
        let writer = {
            let lines = lines.clone();
            move || lines.clone()
        };
        let subscriber = subscriber(format, filter("info").unwrap(), writer, false);
        tracing::subscriber::with_default(subscriber, || {
            let _session = tracing::info_span!("session", node = "n1").entered();
            tracing::info_span!("bind", pod = "ns/a", node = "n1").in_scope(|| {
                tracing::warn!(attempts = 3, "the pod is\nnot bound");
            });
            tracing::info!(target: "fleet", "connected");
            tracing::debug!("below the level");
        });
        let bytes = lines.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_line_is_a_json_object_with_the_spans_around_the_event() {
        let lines: Vec<Value> = logged(LogFormat::Json)
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let [first, second] = &lines[..] else {
            panic!("{lines:?}")
        };
        assert_eq!(first["level"], "WARN");
        assert_eq!(first["target"], module_path!());
        assert!(first["timestamp"].is_string());
        assert_eq!(
            first["fields"],
            json!({"message": "the pod is\nnot bound", "attempts": 3})
        );
        assert_eq!(
            first["spans"],
            json!([
                {"name": "session", "node": "n1"},
                {"name": "bind", "pod": "ns/a", "node": "n1"},
            ])
        );
        assert_eq!(
            (&second["target"], &second["fields"]["message"]),
            (&json!("fleet"), &json!("connected"))
        );
    }

    #[test]
    fn text_has_the_message_and_the_spans() {
        let lines = logged(LogFormat::Text).join("\n");
        assert!(lines.contains("session{node=\"n1\"}"), "{lines}");
        assert!(lines.contains("connected"), "{lines}");
        assert!(!lines.contains("below the level"), "{lines}");
    }

    #[test]
    fn levels_are_usual_without_any_and_wrong_ones_are_named() {
        for fine in ["", " ", "debug", "info,controllers=debug", "off"] {
            assert!(filter(fine).is_ok(), "{fine:?}");
        }
        assert_eq!(
            filter("").unwrap().to_string(),
            filter(USUAL_LEVELS).unwrap().to_string()
        );
        for bad in ["info,controllers=loud", "=,="] {
            let error = filter(bad).unwrap_err().to_string();
            assert!(
                error.contains("info,controllers=debug") && error.contains(bad),
                "{error}"
            );
        }
    }
}
