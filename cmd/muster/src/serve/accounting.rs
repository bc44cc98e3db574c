//! Accounts what pods hold: follows pods, gangs and nodes, and stores the book of allocations on disk. No request and
//! no pod waits for it. The changes of one write are atomic, so after a crash the book goes on from the last write;
//! what was missed in between is read from the pods.

mod pods;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use parking_lot::Mutex;
use portal::SharedUsage;
use resources::kinds::PodGroup;
use store::{Ledger, LedgerError};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use usage::{PodUid, StoredRecords, UsageBook};

use super::mirror::{is_ready, mirror};

/// Interval of counts and writes. A server that ends without its last write loses at most this much of the time of pods
/// that are deleted before the next one starts.
const EVERY: Duration = Duration::from_secs(10);

/// The background task that accounts allocations.
pub struct Accounting {
    book: SharedUsage,
    end: oneshot::Sender<()>,
    keeping: JoinHandle<()>,
}

impl Accounting {
    /// Goes on with the book in a directory. An error is only logged: no job depends on the accounts.
    pub async fn keep(directory: PathBuf, client: Client) -> Accounting {
        let (end, ended) = oneshot::channel();
        let open = move || Ledger::open(&directory, store::Options::default());
        let (ledger, book) = match tokio::task::spawn_blocking(open).await {
            Ok(Ok((ledger, read))) => {
                if let Some((aside, why)) = read.put_aside {
                    tracing::error!(put_aside = %aside.display(), why, "the stored usage cannot be read and is put aside; accounting starts anew");
                }
                let (book, unread) = UsageBook::restore(read.records);
                if unread > 0 {
                    tracing::error!(
                        unread,
                        "stored records of usage cannot be read and are dropped"
                    );
                }
                (Some(Arc::new(ledger)), book)
            }
            Ok(Err(error)) => {
                tracing::error!(%error, "usage is not stored and ends with this server");
                (None, UsageBook::default())
            }
            Err(error) => {
                tracing::error!(%error, "usage is not stored and ends with this server");
                (None, UsageBook::default())
            }
        };
        let book = Arc::new(Mutex::new(book));
        let writer = ledger.map(UsageWriter::new);
        let keeping = tokio::spawn(run(book.clone(), writer, client, ended));
        Accounting { book, end, keeping }
    }

    /// The book.
    pub fn book(&self) -> SharedUsage {
        self.book.clone()
    }

    /// Counts until now and writes what is left.
    pub async fn finish(self) {
        // The task has already ended if it failed.
        let _ = self.end.send(());
        if let Err(error) = self.keeping.await {
            tracing::error!(%error, "the last usage is not stored");
        }
    }
}

/// What the pods' owners are looked up in.
struct Lookups {
    gangs: Store<PodGroup>,
    nodes: Store<Node>,
}

async fn run(
    book: SharedUsage,
    mut writer: Option<UsageWriter>,
    client: Client,
    mut ended: oneshot::Receiver<()>,
) {
    // Of the copies only queue and labels are read; the rest is large.
    let (gangs, follow_gangs) = mirror::<PodGroup>(&client, |gang| {
        gang.metadata.annotations = None;
        gang.metadata.managed_fields = None;
        gang.status = None;
    });
    let (nodes, follow_nodes) = mirror::<Node>(&client, |node| {
        node.metadata.annotations = None;
        node.metadata.managed_fields = None;
        node.status = None;
    });
    let lookups = Lookups { gangs, nodes };
    let mut followed = futures::stream::select(follow_gangs, follow_nodes).fuse();
    let mut pods = watcher(Api::<Pod>::all(client), watcher::Config::default())
        .default_backoff()
        .boxed()
        .fuse();
    let mut listed = BTreeSet::new();
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ready = false;
    loop {
        tokio::select! {
            // Without gangs and nodes a pod has no queue and no model.
            _ = followed.next() => ready = ready || (is_ready(&lookups.gangs) && is_ready(&lookups.nodes)),
            event = pods.next(), if ready => match event {
                Some(Ok(event)) => take_in(&book, &lookups, event, &mut listed),
                Some(Err(error)) => tracing::debug!(%error, "the watch of pods begins again"),
                None => {}
            },
            _ = ticks.tick(), if ready => {
                book.lock().count_until(Timestamp::now());
                store_changes(&book, &mut writer).await;
            }
            _ = &mut ended => {
                if ready {
                    book.lock().count_until(Timestamp::now());
                    store_changes(&book, &mut writer).await;
                }
                return;
            }
        }
    }
}

fn take_in(
    book: &SharedUsage,
    lookups: &Lookups,
    event: watcher::Event<Pod>,
    listed: &mut BTreeSet<PodUid>,
) {
    let now = Timestamp::now();
    match event {
        watcher::Event::Init => listed.clear(),
        watcher::Event::InitApply(pod) => {
            listed.extend(pods::uid(&pod));
            observe(book, lookups, &pod, now);
        }
        watcher::Event::InitDone => {
            let all = std::mem::take(listed);
            book.lock().keep_only(&all);
        }
        watcher::Event::Apply(pod) => observe(book, lookups, &pod, now),
        watcher::Event::Delete(pod) => {
            observe(book, lookups, &pod, now);
            if let Some(uid) = pods::uid(&pod) {
                book.lock().observe_deletion(&uid, now);
            }
        }
    }
}

fn observe(book: &SharedUsage, lookups: &Lookups, pod: &Pod, now: Timestamp) {
    let gang = |namespace: &str, name: &str| {
        let reference = reflector::ObjectRef::new(name).within(namespace);
        lookups.gangs.get(&reference)?.spec.queue.clone()
    };
    let model = |name: &str| {
        let node = lookups.nodes.get(&reflector::ObjectRef::new(name))?;
        let labels = node.metadata.labels.as_ref()?;
        labels.get(resources::names::NVIDIA_GPU_PRODUCT).cloned()
    };
    if let Some(allocation) = pods::allocation(pod, gang, model, now) {
        book.lock().observe(allocation);
    }
}

async fn store_changes(book: &SharedUsage, writer: &mut Option<UsageWriter>) {
    let Some(open) = writer else { return };
    if !open.write(book).await {
        *writer = None;
    }
}

struct UsageWriter {
    ledger: Arc<Ledger>,
    /// Changes that could not be written yet. Later ones of the same records replace them.
    left: StoredRecords,
    /// Whether the full disk has been logged.
    said: bool,
}

impl UsageWriter {
    fn new(ledger: Arc<Ledger>) -> UsageWriter {
        UsageWriter {
            ledger,
            left: Vec::new(),
            said: false,
        }
    }

    /// Writes all changes at once. Returns false if no write can succeed any more.
    async fn write(&mut self, book: &SharedUsage) -> bool {
        let fresh = book.lock().changes();
        if !fresh.is_empty() {
            let renewed: BTreeSet<u64> = fresh.iter().map(|(number, _)| *number).collect();
            self.left.retain(|(number, _)| !renewed.contains(number));
            self.left.extend(fresh);
        }
        if self.left.is_empty() {
            return true;
        }
        let (ledger, changes) = (self.ledger.clone(), std::mem::take(&mut self.left));
        let write = move || {
            let written = ledger.write(&changes);
            (written, changes)
        };
        match tokio::task::spawn_blocking(write).await {
            Ok((Ok(()), _)) => {
                self.said = false;
                true
            }
            Ok((Err(error @ LedgerError::NoSpace { .. }), changes)) => {
                self.left = changes;
                if !self.said {
                    tracing::warn!(%error, "the disk is full: usage stays in memory until there is room");
                    self.said = true;
                }
                true
            }
            Ok((Err(error), _)) => {
                tracing::error!(%error, "usage is not stored any more and ends with this server");
                false
            }
            Err(error) => {
                tracing::error!(%error, "usage is not stored any more and ends with this server");
                false
            }
        }
    }
}
