//! Owns the existing objects that a watch sends before its changes. It reads them a page at a time,
//! all as they were at one revision, so that a client that reads slowly holds at most one page of
//! them in memory, and not every object of the kind in a state that is long out of date.
//!
//! Cost: a page reads the store's index from the page's first key on, and the changes since the
//! revision. A client that is slower than the history gets the same error as for a change that the
//! history no longer has, and lists again.

use std::sync::Arc;
use std::vec::IntoIter;

use store::{Entry, ListPage, Revision, Store, WatchError};

use crate::limits::INITIAL_PAGE;

/// The objects that are not sent yet.
pub(crate) struct InitialList {
    store: Store,
    prefix: String,
    revision: Revision,
    page: IntoIter<Arc<Entry>>,
    /// The key of the last object of the page, if further objects follow it.
    after: Option<Arc<str>>,
}

impl InitialList {
    /// The objects under a prefix, as they are now.
    pub(crate) fn new(store: &Store, prefix: &str) -> InitialList {
        let mut list = InitialList {
            store: store.clone(),
            prefix: prefix.to_owned(),
            revision: store.revision(),
            page: Vec::new().into_iter(),
            after: None,
        };
        list.turn(store.list(prefix, None, INITIAL_PAGE));
        list
    }

    /// The revision that the list shows.
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// The next object.
    ///
    /// # Errors
    ///
    /// If the history no longer contains the list's revision.
    pub(crate) fn next(&mut self) -> Result<Option<Arc<Entry>>, WatchError> {
        if let Some(entry) = self.page.next() {
            return Ok(Some(entry));
        }
        let Some(after) = self.after.take() else {
            return Ok(None);
        };
        let page = self
            .store
            .list_at(self.revision, &self.prefix, Some(&after), INITIAL_PAGE)?;
        self.turn(page);
        Ok(self.page.next())
    }

    fn turn(&mut self, page: ListPage) {
        self.revision = page.revision;
        let last = page.entries.last().filter(|_| page.remaining > 0);
        self.after = last.map(|entry| entry.key.clone());
        self.page = page.entries.into_iter();
    }
}
