//! Owns the handle that other crates use: reads from memory, transactions through the commit
//! thread, watches, backups. It delegates all logic.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot};

use crate::backup::{self, BackupOptions, BackupSummary};
use crate::commit::{
    self, PendingTransaction, Purpose, QUEUE_MAX, QueuedTransaction, TransactionView,
};
use crate::disk::DiskStore;
use crate::entry::{Entry, ListPage, Revision};
use crate::error::{BackupError, CommitError, FinalizeError, OpenError, StoreError, WatchError};
use crate::load::DamagedRecord;
use crate::memory::{FlushedState, SharedState};
use crate::options::Options;
use crate::quarantine::{self, Quarantined};
use crate::upgrade;
use crate::version::{self, Formats, StoreVersion};
use crate::watch::Watch;

/// The store. Clones share the same state. When the last clone is dropped, queued transactions are
/// committed and the directory is released for another process.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

/// The result of [`Store::check`].
#[derive(Debug)]
pub struct CheckReport {
    /// The number of objects that can be served.
    pub objects: u64,
    /// The last revision.
    pub revision: Revision,
    /// The first revision in the history; a watch can resume from the one before it.
    pub history_from: Revision,
    /// Damaged records and their consequences.
    pub findings: Vec<DamagedRecord>,
    /// Records that were quarantined earlier and that no object has replaced.
    pub quarantined: Vec<Quarantined>,
}

struct Inner {
    shared: Arc<SharedState>,
    queue: Option<mpsc::Sender<Box<dyn QueuedTransaction>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    dir: PathBuf,
    formats: Formats,
    version: RwLock<StoreVersion>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.lock().take() {
            // A transaction may own the last handle.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("the commit thread ended with a panic");
            }
        }
    }
}

impl Store {
    /// Opens the store in a directory, or creates it there.
    ///
    /// # Errors
    /// If another process has the store open, if only newer binaries may read it, if it is damaged,
    /// if it needs an upgrade that fails, or if the directory cannot be used.
    pub fn open(dir: &Path, options: Options) -> Result<Store, OpenError> {
        let limits = (options.history, options.history_bytes);
        let formats = options.formats;
        let (mut disk, mut loaded) = DiskStore::open(dir, options.clone(), true)?;
        let version = upgrade::bring_up_to_date(dir, &mut disk, &mut loaded, &options)?;
        let memory = FlushedState::new(loaded, limits.0, limits.1);
        let shared = Arc::new(SharedState {
            memory: RwLock::new(memory),
        });
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let thread = std::thread::Builder::new()
            .name("store-commit".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || commit::run(&shared, disk, waiting)
            })
            .map_err(|source| OpenError::Io {
                path: dir.to_owned(),
                source,
            })?;
        Ok(Store(Arc::new(Inner {
            shared,
            queue: Some(queue),
            thread: Mutex::new(Some(thread)),
            dir: dir.to_owned(),
            formats,
            version: RwLock::new(version),
        })))
    }

    /// The version of the store in a directory, without opening it; none if there is no store.
    ///
    /// # Errors
    /// If the directory cannot be read, or if its version cannot be understood.
    pub fn version_in(dir: &Path) -> Result<Option<StoreVersion>, OpenError> {
        version::read(dir)
    }

    /// The store's format, and which binaries may read it.
    #[must_use]
    pub fn version(&self) -> StoreVersion {
        self.0.version.read().clone()
    }

    /// True if no older binary has to be able to read what is written: records that only binaries of
    /// this format read may be written. A feature that changes what is written asks this first.
    #[must_use]
    pub fn writes_format(&self, format: u32) -> bool {
        self.0.version.read().readable_from >= format
    }

    /// True if [`Store::finalize`] has nothing to do.
    #[must_use]
    pub fn is_finalized(&self) -> bool {
        self.writes_format(self.0.formats.newest)
    }

    /// Gives up that older binaries may read the store, so that everything of the newest format may
    /// be written. When this returns, that is on the disk.
    ///
    /// # Errors
    /// If the version cannot be written.
    pub fn finalize(&self) -> Result<StoreVersion, FinalizeError> {
        let mut version = self.0.version.write();
        let finalized = self.0.formats.of_new_store();
        version::finalize(&self.0.dir, &finalized).map_err(|error| FinalizeError {
            path: self.0.dir.clone(),
            reason: error.to_string(),
        })?;
        *version = finalized.clone();
        Ok(finalized)
    }

    /// The revision of the last change that is on disk.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.read().revision
    }

    /// The object under a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<Arc<Entry>> {
        self.read().objects.get(key).cloned()
    }

    /// The bytes of the objects of a namespace, with their keys: of `/GROUP/PLURAL/NAMESPACE/NAME`.
    #[must_use]
    pub fn namespace_bytes(&self, namespace: &str) -> u64 {
        self.read().sizes.in_namespace(namespace)
    }

    /// The objects under a prefix whose keys come after `after`, at most `limit` of them.
    #[must_use]
    pub fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> ListPage {
        self.read().list(prefix, after, limit)
    }

    /// The same list at an earlier revision, for the next page of a list that began then.
    ///
    /// # Errors
    /// If the history no longer contains the revision: list from the start.
    pub fn list_at(
        &self,
        revision: Revision,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ListPage, WatchError> {
        self.read().list_at(revision, prefix, after, limit)
    }

    /// Why the state of a key is unknown: the record of its object is damaged and in quarantine,
    /// and no object has replaced it. [`Store::get`] returns nothing for such a key, which does not
    /// mean that the object was deleted.
    #[must_use]
    pub fn damaged(&self, key: &str) -> Option<Quarantined> {
        self.read().held(key).cloned()
    }

    /// Reads a store that no server uses and reports its damage. Changes no record: the next start
    /// of the server makes the reported repairs.
    ///
    /// # Errors
    /// If the directory has no store, if a process has it open, or if it cannot be served at all.
    pub fn check(dir: &Path, options: Options) -> Result<CheckReport, OpenError> {
        let outcome = DiskStore::check(dir, options)?;
        let quarantined = quarantine::held(dir).map_err(|source| OpenError::Io {
            path: dir.to_owned(),
            source,
        })?;
        Ok(CheckReport {
            objects: outcome.state.objects,
            revision: outcome.state.revision,
            history_from: outcome.state.history_from,
            findings: outcome.repair.findings,
            quarantined: quarantined
                .into_iter()
                .filter(|record| !outcome.objects.contains_key(record.key.as_str()))
                .collect(),
        })
    }

    /// Runs a transaction and returns once its changes are on disk. Transactions run one after
    /// another; a refused or panicking one changes nothing. It runs on the commit thread, which all
    /// writers share: do slow work before. Once it is queued, it runs even if the returned future
    /// is dropped.
    ///
    /// # Errors
    /// [`CommitError::Refused`] with the transaction's own error, or [`CommitError::Unavailable`]
    /// if the store cannot accept writes.
    pub async fn commit<T, E>(
        &self,
        transaction: impl FnOnce(&mut TransactionView<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, CommitError<E>>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        self.commit_for(Purpose::Ordinary, transaction).await
    }

    /// Like [`Store::commit`], with the purpose of the transaction: one that makes room is also
    /// accepted on a disk that is too full for others, down to a second floor.
    ///
    /// # Errors
    /// As for [`Store::commit`].
    pub async fn commit_for<T, E>(
        &self,
        purpose: Purpose,
        transaction: impl FnOnce(&mut TransactionView<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, CommitError<E>>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let closed = || CommitError::Unavailable(StoreError::Closed);
        let queue = self.0.queue.as_ref().ok_or_else(closed)?;
        let (reply, answer) = oneshot::channel();
        let job: Box<dyn QueuedTransaction> =
            Box::new(PendingTransaction::new(transaction, purpose, reply));
        queue.send(job).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Watches the changes under a prefix after a revision, or after the current one if none is
    /// given.
    ///
    /// # Errors
    /// If the history no longer contains the revision, or if the revision lies in the future.
    pub fn watch(&self, prefix: &str, from: Option<Revision>) -> Result<Watch, WatchError> {
        let mut memory = self.0.shared.memory.write();
        let from = from.unwrap_or(memory.revision);
        memory.check_reach(from)?;
        let topic = memory.topic(prefix);
        Ok(Watch::new(Arc::clone(&self.0.shared), topic, from))
    }

    /// Writes a consistent copy of one revision to a file, while the store is in use. Blocks until
    /// the file is written.
    ///
    /// # Errors
    /// If the file cannot be written; no file remains under its name.
    pub fn backup(
        &self,
        file: &Path,
        options: &BackupOptions,
    ) -> Result<BackupSummary, BackupError> {
        let (objects, revision) = {
            let memory = self.read();
            (
                memory.objects.values().cloned().collect::<Vec<_>>(),
                memory.revision,
            )
        };
        backup::write(file, &objects, revision, &self.version(), options)
    }

    // Recursive: a transaction that reads the store itself must not wait for a writer that waits
    // for the transaction.
    fn read(&self) -> parking_lot::RwLockReadGuard<'_, FlushedState> {
        self.0.shared.memory.read_recursive()
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}
