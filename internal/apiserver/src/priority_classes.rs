//! Owns the cache of priority classes: they rarely change, and every pod's admission reads them.

use std::sync::Arc;

use k8s_openapi::api::scheduling::v1::PriorityClass;
use parking_lot::Mutex;
use store::{Revision, Store};

use crate::core_kinds::kind_of;
use crate::object;
use crate::status::Failure;

/// The priority classes as last read.
#[derive(Default)]
pub(crate) struct PriorityClassCache(Mutex<PriorityClasses>);

#[derive(Default)]
struct PriorityClasses {
    revisions: Vec<Revision>,
    classes: Arc<Vec<PriorityClass>>,
}

impl PriorityClassCache {
    /// The stored priority classes.
    pub(crate) fn current(&self, store: &Store) -> Result<Arc<Vec<PriorityClass>>, Failure> {
        let prefix = kind_of("scheduling.k8s.io", "PriorityClass").prefix(None);
        let page = store.list(&prefix, None, usize::MAX);
        let revisions = || page.entries.iter().map(|entry| entry.revision);
        let mut kept = self.0.lock();
        if !revisions().eq(kept.revisions.iter().copied()) {
            kept.classes = Arc::new(object::read_all(store, &prefix)?);
            kept.revisions = revisions().collect();
        }
        Ok(kept.classes.clone())
    }
}
