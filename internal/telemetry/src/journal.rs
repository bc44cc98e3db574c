//! Events in journald's native protocol (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>): a datagram with a field for the
//! message, one for its priority, and one for each value of the event and of the spans around it.
//!
//! The crate `tracing-journald` 0.3.1 (MIT) was examined first. Its `MESSAGE` lacks the event's values, so that plain
//! `journalctl` would print "the pod is not bound" without the pod; and it drops an event that cannot be sent.
//!
//! A service's standard error would carry the same lines, but all of them with the priority of a notice.

use std::fmt::{Debug, Write as _};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// journald's socket.
const SOCKET: &str = "/run/systemd/journal/socket";

/// The variable by which systemd says which device and inode a service's output has, as `DEVICE:INODE`.
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// The most bytes of a value; the rest is cut off. A datagram must fit into a socket's buffer of about 200 KiB.
const VALUE_MAX: usize = 16 * 1024;

/// The most values of an event and its spans.
const VALUES_MAX: usize = 64;

/// The longest name of a field, as journald has it.
const NAME_MAX: usize = 64;

/// How long an event waits for room in journald's queue.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// The text of the values of a span or event, by their names.
#[derive(Default)]
struct Values(Vec<(&'static str, String)>);

impl Visit for Values {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.set(field.name(), format!("{value:?}"));
    }
}

impl Values {
    fn set(&mut self, name: &'static str, mut value: String) {
        value.truncate(value.floor_char_boundary(VALUE_MAX));
        if let Some((_, old)) = self.0.iter_mut().find(|(known, _)| *known == name) {
            *old = value;
        } else if self.0.len() < VALUES_MAX {
            self.0.push((name, value));
        }
    }
}

/// A span's name and values.
struct Span {
    name: &'static str,
    values: Values,
}

/// Whether standard error is the stream to journald that systemd opened for this service.
pub fn stderr_is_journald() -> bool {
    let Ok(owned) = std::io::stderr().as_fd().try_clone_to_owned() else {
        return false;
    };
    let Ok(metadata) = std::fs::File::from(owned).metadata() else {
        return false;
    };
    let stream = std::env::var(JOURNAL_STREAM).unwrap_or_default();
    names(&stream, metadata.dev(), metadata.ino())
}

/// Whether a value of `JOURNAL_STREAM` names this device and inode.
fn names(stream: &str, device: u64, inode: u64) -> bool {
    stream == format!("{device}:{inode}")
}

/// Sends events to journald.
pub struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// Sends to this machine's journald.
    ///
    /// # Errors
    /// No socket can be made.
    pub fn open() -> std::io::Result<Journal> {
        Journal::at(Path::new(SOCKET))
    }

    fn at(path: &Path) -> std::io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_TIMEOUT))?;
        let path = path.to_owned();
        Ok(Journal { socket, path })
    }

    /// Sends an entry; if that fails, its message goes to standard error, which journald reads as well.
    fn send(&self, entry: &Entry) {
        // By path, and not connected: the socket is another one after journald was replaced.
        let sent = loop {
            match self.socket.send_to(&entry.datagram, &self.path) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        if sent.is_err() {
            eprintln!("{}", entry.message);
        }
    }
}

/// An entry of the journal.
struct Entry {
    message: String,
    datagram: Vec<u8>,
}

/// Makes the entry of an event with its values, and the spans around it from the outermost.
fn entry(metadata: &tracing::Metadata<'_>, values: &Values, spans: &[&Span]) -> Entry {
    let mut message = String::new();
    for span in spans {
        let _ = write!(message, "{}{{", span.name);
        for (index, (name, value)) in span.values.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            let _ = write!(message, "{space}{name}={value}");
        }
        message.push_str("}: ");
    }
    let of_message = values.0.iter().find(|(name, _)| *name == "message");
    message.push_str(of_message.map_or("", |(_, text)| text));
    for (name, value) in &values.0 {
        if *name != "message" {
            let _ = write!(message, " {name}={value}");
        }
    }
    message.truncate(message.floor_char_boundary(VALUE_MAX));

    let mut datagram = Vec::new();
    put(&mut datagram, "PRIORITY", priority(*metadata.level()));
    put(&mut datagram, "SYSLOG_IDENTIFIER", "muster");
    put(&mut datagram, "TARGET", metadata.target());
    if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
        put(&mut datagram, "CODE_FILE", file);
        put(&mut datagram, "CODE_LINE", &line.to_string());
    }
    put(&mut datagram, "MESSAGE", &message);
    let all = spans.iter().map(|span| &span.values).chain([values]);
    for (name, value) in all.flat_map(|values| &values.0).take(VALUES_MAX) {
        if *name != "message" {
            put(&mut datagram, &field_name(name), value);
        }
    }
    for span in spans {
        put(&mut datagram, "SPAN", span.name);
    }
    Entry { message, datagram }
}

/// The priority of syslog(3).
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

/// The journal's name of a value: with the prefix `MUSTER_`, so that it is none of journald's own, in capitals.
fn field_name(name: &str) -> String {
    let mut field = "MUSTER_".to_owned();
    for character in name.chars() {
        field.push(match character.to_ascii_uppercase() {
            plain @ ('A'..='Z' | '0'..='9') => plain,
            _ => '_',
        });
    }
    field.truncate(NAME_MAX);
    field
}

/// Appends a field; its value may have several lines.
fn put(datagram: &mut Vec<u8>, name: &str, value: &str) {
    datagram.extend(name.as_bytes());
    datagram.push(b'\n');
    datagram.extend((value.len() as u64).to_le_bytes());
    datagram.extend(value.as_bytes());
    datagram.push(b'\n');
}

impl<S> Layer<S> for Journal
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut values = Values::default();
        attributes.record(&mut values);
        if let Some(span) = context.span(id) {
            let name = span.name();
            span.extensions_mut().insert(Span { name, values });
        }
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(span) = span.extensions_mut().get_mut::<Span>()
        {
            record.record(&mut span.values);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut values = Values::default();
        event.record(&mut values);
        let scope = context.event_scope(event);
        let around: Vec<_> = scope.map_or_else(Vec::new, |scope| scope.from_root().collect());
        let extensions: Vec<_> = around.iter().map(|span| span.extensions()).collect();
        let spans: Vec<&Span> = extensions.iter().filter_map(|e| e.get()).collect();
        self.send(&entry(event.metadata(), &values, &spans));
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// The fields of a datagram, in the order of their arrival.
    fn fields(mut datagram: &[u8]) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        while !datagram.is_empty() {
            let end = datagram.iter().position(|byte| *byte == b'\n').unwrap();
            let name = String::from_utf8(datagram[..end].to_vec()).unwrap();
            let (length, rest) = datagram[end + 1..].split_at(8);
            let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
            fields.push((name, String::from_utf8(rest[..length].to_vec()).unwrap()));
            assert_eq!(rest[length], b'\n');
            datagram = &rest[length + 1..];
        }
        fields
    }

    /// What journald gets of the events of a function.
    fn received(log: impl FnOnce()) -> Vec<Vec<(String, String)>> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let journald = UnixDatagram::bind(&path).unwrap();
        let subscriber = tracing_subscriber::registry().with(Journal::at(&path).unwrap());
        tracing::subscriber::with_default(subscriber, log);
        journald.set_nonblocking(true).unwrap();
        let mut buffer = vec![0; 1 << 20];
        let mut entries = Vec::new();
        while let Ok(length) = journald.recv(&mut buffer) {
            entries.push(fields(&buffer[..length]));
        }
        entries
    }

    fn value<'a>(entry: &'a [(String, String)], name: &str) -> Option<&'a str> {
        let found = entry.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    #[test]
    fn an_entry_has_the_priority_the_values_and_the_spans() {
        let entries = received(|| {
            let session = tracing::info_span!("session", node = "n1", pods = tracing::field::Empty);
            session.record("pods", 3);
            let _session = session.entered();
            tracing::warn!(attempts = 3, "the.key" = "a\nb", "the pod is\nnot bound");
            tracing::info!(target: "fleet", "connected");
        });
        let [first, second] = &entries[..] else {
            panic!("{entries:?}")
        };
        for (name, expected) in [
            ("PRIORITY", "4"),
            ("SYSLOG_IDENTIFIER", "muster"),
            ("TARGET", module_path!()),
            ("CODE_FILE", file!()),
            (
                "MESSAGE",
                "session{node=n1 pods=3}: the pod is\nnot bound attempts=3 the.key=a\nb",
            ),
            ("MUSTER_NODE", "n1"),
            ("MUSTER_PODS", "3"),
            ("MUSTER_ATTEMPTS", "3"),
            ("MUSTER_THE_KEY", "a\nb"),
            ("SPAN", "session"),
        ] {
            assert_eq!(value(first, name), Some(expected), "{name}: {first:?}");
        }
        assert_eq!(value(second, "PRIORITY"), Some("6"));
        assert_eq!(value(second, "TARGET"), Some("fleet"));
    }

    #[test]
    fn long_values_are_cut_so_that_an_entry_can_be_sent() {
        let long = "ü".repeat(1 << 20);
        let entries = received(|| {
            tracing::error!(a = long, b = long, c = long, d = long, "{long}");
        });
        let [entry] = &entries[..] else {
            panic!("{} entries", entries.len())
        };
        assert_eq!(value(entry, "PRIORITY"), Some("3"));
        assert_eq!(value(entry, "MUSTER_D").map(str::len), Some(VALUE_MAX));
    }

    #[test]
    fn names_of_values_suit_journald() {
        for (name, field) in [
            ("pod", "MUSTER_POD"),
            ("http.status-code", "MUSTER_HTTP_STATUS_CODE"),
            ("größe", "MUSTER_GR__E"),
        ] {
            assert_eq!(field_name(name), field);
        }
        assert_eq!(field_name(&"x".repeat(100)).len(), NAME_MAX);
    }

    #[test]
    fn only_the_stream_that_systemd_names_is_journalds() {
        assert!(names("8:23", 8, 23));
        for other in ["", "8:2", "8:234", "23:8", "8"] {
            assert!(!names(other, 8, 23), "{other:?}");
        }
    }
}
