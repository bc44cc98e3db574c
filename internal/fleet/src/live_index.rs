//! The index that the watches keep current, and the sessions that its changes wake.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::index::{Index, Touched};
use crate::open_sessions::OpenSessions;

/// The index of a running fleet.
pub struct LiveIndex {
    index: Mutex<Index>,
    synced: watch::Sender<bool>,
    sessions: Arc<OpenSessions>,
}

impl LiveIndex {
    /// An empty index, whose changes wake these sessions.
    pub fn new(sessions: Arc<OpenSessions>) -> LiveIndex {
        LiveIndex {
            index: Mutex::default(),
            synced: watch::Sender::new(false),
            sessions,
        }
    }

    /// The index, for reading. [`LiveIndex::change`] changes it.
    pub fn lock(&self) -> MutexGuard<'_, Index> {
        self.index.lock()
    }

    /// True after every list has been read once.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    /// Changes the index and wakes the affected sessions.
    pub fn change(&self, change: impl FnOnce(&mut Index) -> Touched) {
        let (touched, synced) = {
            let mut index = self.index.lock();
            (change(&mut index), index.is_synced())
        };
        if synced {
            self.synced
                .send_if_modified(|was| !std::mem::replace(was, true));
        }
        self.sessions.wake(&touched.nodes);
    }
}
