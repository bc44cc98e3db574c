//! Collects the log of a test: each event, and each span at its end.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing::Subscriber;
use tracing_subscriber::fmt::format::FmtSpan;

/// The collected lines.
#[derive(Clone, Default)]
pub(crate) struct TestLog(Arc<Mutex<Vec<u8>>>);

impl TestLog {
    /// The lines so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for TestLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A subscriber that writes to a log.
pub(crate) fn subscriber() -> (TestLog, impl Subscriber + Send + Sync) {
    let log = TestLog::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    (log, subscriber)
}

/// The log of a function.
pub(crate) fn lines(of: impl FnOnce()) -> String {
    let (log, subscriber) = subscriber();
    tracing::subscriber::with_default(subscriber, of);
    log.text()
}
