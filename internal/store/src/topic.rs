//! Owns the recent events under a prefix, which all watches of the prefix share.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;

use parking_lot::Mutex;

use crate::entry::{Event, Revision};

/// The recent events under one prefix.
pub(crate) struct Topic {
    prefix: Box<str>,
    pub(crate) state: Mutex<TopicState>,
}

pub(crate) struct TopicState {
    pub(crate) events: VecDeque<Event>,
    /// The newest event under the prefix that the history has dropped.
    pub(crate) trimmed: Revision,
    pub(crate) waiting: HashMap<u64, Waker>,
    pub(crate) closed: bool,
}

impl Topic {
    pub(crate) fn new(
        prefix: &str,
        events: VecDeque<Event>,
        trimmed: Revision,
        closed: bool,
    ) -> Topic {
        Topic {
            prefix: prefix.into(),
            state: Mutex::new(TopicState {
                events,
                trimmed,
                waiting: HashMap::new(),
                closed,
            }),
        }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn publish(&self, events: &[Event]) {
        let mut matching = events
            .iter()
            .filter(|event| event.entry.key.starts_with(&*self.prefix))
            .peekable();
        if matching.peek().is_none() {
            return;
        }
        let waiting = {
            let mut state = self.state.lock();
            state.events.extend(matching.cloned());
            std::mem::take(&mut state.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }

    pub(crate) fn trim(&self, compacted: Revision) {
        let mut state = self.state.lock();
        while let Some(oldest) = state.events.front().map(Event::revision)
            && oldest <= compacted
        {
            state.events.pop_front();
            state.trimmed = oldest;
        }
    }

    pub(crate) fn close(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.closed = true;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }
}
