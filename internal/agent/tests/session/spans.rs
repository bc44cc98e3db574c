//! The spans of a session in the logs of its two ends.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt::format::FmtSpan;

use crate::server::{Server, until};
use crate::stand_in::StandIn;

/// The log of this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_a_span_with_the_nodes_name_on_the_agent_and_on_the_server() {
    let log = Log::default();
    let writer = log.clone();
    // For the whole process: both ends run on several threads.
    tracing_subscriber::fmt()
        .with_span_events(FmtSpan::NEW)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let server = Server::start().await;
    let agent = server.agent("spans", &StandIn::new()).await;
    until("both spans", async || {
        let text = log.text();
        let begun = |end: &str| {
            let mut lines = text.lines();
            lines.any(|line| line.contains("session{node=\"spans\"") && line.contains(end))
        };
        (begun(" agent::session: new") && begun(" fleet::session: new")).then_some(())
    })
    .await;
    agent.end().await.unwrap();
}
