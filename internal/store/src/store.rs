//! Owns the handle that everybody else holds: reads from memory, transactions to the
//! commit thread, watches, backups. It has no logic of its own.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot};

use crate::backup::{self, BackupOptions, BackupSummary};
use crate::commit::{self, Job, Purpose, QUEUE_MAX, Transaction, View};
use crate::disk::Disk;
use crate::entry::{Entry, Page, Revision};
use crate::error::{BackupError, CommitError, OpenError, StoreError, WatchError};
use crate::load::Finding;
use crate::memory::{Memory, Shared};
use crate::options::Options;
use crate::quarantine::{self, Quarantined};
use crate::watch::Watch;

/// The store. Clones are handles of the same one; when the last is dropped, what waits
/// is committed and the directory is free for another process.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

/// What [`Store::check`] found.
#[derive(Debug)]
pub struct CheckReport {
    /// How many objects can be served.
    pub objects: u64,
    /// The last revision.
    pub revision: Revision,
    /// The first revision that a watch can resume from is the one before this.
    pub history_from: Revision,
    /// Damaged records, and what they cost.
    pub findings: Vec<Finding>,
    /// Records that went to the quarantine earlier and that no object has replaced.
    pub quarantined: Vec<Quarantined>,
}

struct Inner {
    shared: Arc<Shared>,
    queue: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.lock().take() {
            // A transaction may hold the last handle.
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
    /// When another process has it, when a newer binary wrote it, when it is damaged, or
    /// when the directory cannot be used.
    pub fn open(dir: &Path, options: Options) -> Result<Store, OpenError> {
        let limits = (options.history, options.history_bytes);
        let (disk, loaded) = Disk::open(dir, options, true)?;
        let memory = Memory::new(loaded, limits.0, limits.1);
        let shared = Arc::new(Shared {
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
        })))
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

    /// The objects under a prefix whose keys come after `after`, at most `limit` of them.
    #[must_use]
    pub fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Page {
        self.read().list(prefix, after, limit)
    }

    /// The same list as it was at an earlier revision, to go on with a list that was
    /// begun then.
    ///
    /// # Errors
    /// When the history does not reach back that far: list from the start.
    pub fn list_at(
        &self,
        revision: Revision,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, WatchError> {
        self.read().list_at(revision, prefix, after, limit)
    }

    /// Why nothing can be said about a key: the record of its object is damaged and in quarantine,
    /// and no object has been created in its place. [`Store::get`] finds nothing there, and that
    /// does not mean that the object is gone.
    #[must_use]
    pub fn damaged(&self, key: &str) -> Option<Quarantined> {
        self.read().held(key).cloned()
    }

    /// Reads a store that no server uses and says what is damaged. It changes no record: the next
    /// start of the server does what is said.
    ///
    /// # Errors
    /// When there is none, when a process has it, or when it cannot be served at all.
    pub fn check(dir: &Path, options: Options) -> Result<CheckReport, OpenError> {
        let outcome = Disk::check(dir, options)?;
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

    /// Runs a transaction and returns once what it did is on disk. Transactions run one
    /// after another; a refused or panicking one leaves nothing behind. It runs on the
    /// commit thread, which all writers share: what is slow belongs outside. It runs
    /// even when the returned future is dropped once it was queued.
    ///
    /// # Errors
    /// [`CommitError::Refused`] with the transaction's own error, or
    /// [`CommitError::Unavailable`] when the store cannot take writes.
    pub async fn commit<T, E>(
        &self,
        transaction: impl FnOnce(&mut View<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, CommitError<E>>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        self.commit_for(Purpose::Ordinary, transaction).await
    }

    /// Like [`Store::commit`], saying what the transaction is for: one that makes room is taken also
    /// where the disk is too full for others, down to a second floor.
    ///
    /// # Errors
    /// As of [`Store::commit`].
    pub async fn commit_for<T, E>(
        &self,
        purpose: Purpose,
        transaction: impl FnOnce(&mut View<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, CommitError<E>>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let closed = || CommitError::Unavailable(StoreError::Closed);
        let queue = self.0.queue.as_ref().ok_or_else(closed)?;
        let (reply, answer) = oneshot::channel();
        let job: Box<dyn Job> = Box::new(Transaction::new(transaction, purpose, reply));
        queue.send(job).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Watches the changes under a prefix after a revision; after now where none is
    /// given.
    ///
    /// # Errors
    /// When the history does not reach back that far, or has not come that far.
    pub fn watch(&self, prefix: &str, from: Option<Revision>) -> Result<Watch, WatchError> {
        let mut memory = self.0.shared.memory.write();
        let from = from.unwrap_or(memory.revision);
        memory.check_reach(from)?;
        let topic = memory.topic(prefix);
        Ok(Watch::new(Arc::clone(&self.0.shared), topic, from))
    }

    /// Writes everything as it is at one revision to a file, while the store is in use.
    /// It blocks for as long as that takes.
    ///
    /// # Errors
    /// When the file cannot be written; nothing is left under its name then.
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
        backup::write(file, &objects, revision, options)
    }

    // Recursive: a transaction that asks the store itself must not wait for a writer that
    // waits for it.
    fn read(&self) -> parking_lot::RwLockReadGuard<'_, Memory> {
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
