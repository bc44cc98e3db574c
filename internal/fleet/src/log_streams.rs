//! The logs that are being read from one node: routes what the node's agent sends to each log's reader.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;
use rpc::LOG_WINDOW_CHUNKS;
use rpc::agent::v1::LogEnd;
use tokio::sync::mpsc;

/// The maximum number of logs read from one node at a time.
pub const MAX_STREAMS: usize = 256;

/// What an agent sends of a log.
pub enum LogPiece {
    /// The agent has opened the log.
    Opened,
    /// Bytes of the log.
    Data(Bytes),
    /// The log's end.
    End(LogEnd),
}

/// The logs being read from one node.
#[derive(Default)]
pub struct LogSinks {
    sinks: Mutex<BTreeMap<u64, mpsc::Sender<LogPiece>>>,
}

impl LogSinks {
    /// Adds a reader for the log with an id; none if [`MAX_STREAMS`] logs are being read.
    pub fn add(&self, id: u64) -> Option<mpsc::Receiver<LogPiece>> {
        let mut sinks = self.sinks.lock();
        if sinks.len() >= MAX_STREAMS {
            return None;
        }
        // Room for the whole window, Opened and End: a correct agent never fills it.
        let (sender, receiver) = mpsc::channel(LOG_WINDOW_CHUNKS as usize + 2);
        sinks.insert(id, sender);
        Some(receiver)
    }

    /// The reader of a log has left.
    pub fn remove(&self, id: u64) {
        self.sinks.lock().remove(&id);
    }

    fn give(&self, id: u64, piece: LogPiece) {
        let mut sinks = self.sinks.lock();
        let over = matches!(piece, LogPiece::End(_));
        let given = sinks.get(&id).map(|sink| sink.try_send(piece).is_ok());
        if over || given == Some(false) {
            sinks.remove(&id);
        }
    }

    /// The agent has opened the log.
    pub fn opened(&self, id: u64) {
        self.give(id, LogPiece::Opened);
    }

    /// A piece of a log.
    pub fn chunk(&self, id: u64, data: Bytes) {
        self.give(id, LogPiece::Data(data));
    }

    /// A log's end.
    pub fn ended(&self, end: LogEnd) {
        self.give(end.stream_id, LogPiece::End(end));
    }

    /// The session has ended; all readers get an error.
    pub fn clear(&self) {
        self.sinks.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_goes_to_its_reader_and_only_while_there_is_one() {
        let sinks = LogSinks::default();
        let mut pieces = sinks.add(1).unwrap();
        sinks.opened(1);
        sinks.chunk(1, Bytes::from_static(b"a"));
        sinks.chunk(2, Bytes::from_static(b"without a reader"));
        assert!(matches!(pieces.try_recv(), Ok(LogPiece::Opened)));
        assert!(matches!(pieces.try_recv(), Ok(LogPiece::Data(data)) if data == "a"));
        sinks.ended(LogEnd {
            stream_id: 1,
            ..LogEnd::default()
        });
        assert!(matches!(pieces.try_recv(), Ok(LogPiece::End(_))));
        assert!(sinks.sinks.lock().is_empty());
    }

    #[test]
    fn an_agent_that_sends_more_than_it_may_loses_the_stream() {
        let sinks = LogSinks::default();
        let _pieces = sinks.add(1).unwrap();
        for _ in 0..LOG_WINDOW_CHUNKS + 3 {
            sinks.chunk(1, Bytes::from_static(b"a"));
        }
        assert!(sinks.sinks.lock().is_empty());
    }
}
