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
use supervisor::{StatefulLoop, caught};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use usage::{PodUid, StoredRecords, UsageBook};

use super::mirror::{is_ready, mirror};
use super::signals;

/// Interval of counts and writes. A server that ends without its last write loses at most this much of the time of pods
/// that are deleted before the next one starts.
const EVERY: Duration = Duration::from_secs(10);

/// The background task that accounts allocations.
pub struct Accounting {
    book: SharedUsage,
    keeping: StatefulLoop<UsageKeeper>,
}

/// What the task keeps when it panics and starts again.
struct UsageKeeper {
    book: SharedUsage,
    writer: Option<UsageWriter>,
    client: Client,
    /// Whether the present run has seen all gangs and nodes.
    ready: bool,
}

impl Accounting {
    /// Goes on with the book in a directory. An error is only logged: no job depends on the accounts.
    pub async fn keep(directory: PathBuf, client: Client) -> Accounting {
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
        let keeper = UsageKeeper {
            book: book.clone(),
            writer: ledger.map(UsageWriter::new),
            client,
            ready: false,
        };
        let keeping = StatefulLoop::start("the accounting of usage", keeper, |keeper, ended| {
            Box::pin(keeper.run(ended))
        });
        Accounting { book, keeping }
    }

    /// The book.
    pub fn book(&self) -> SharedUsage {
        self.book.clone()
    }

    /// Counts until now and writes what is left.
    pub async fn finish(self) {
        let mut keeper = self.keeping.finish().await;
        if keeper.ready {
            keeper.count_and_store().await;
        }
    }
}

/// What the pods' owners are looked up in.
struct Lookups {
    gangs: Store<PodGroup>,
    nodes: Store<Node>,
}

impl UsageKeeper {
    async fn run(&mut self, ended: watch::Receiver<bool>) {
        self.ready = false;
        // Of the copies only queue and labels are read; the rest is large.
        let (gangs, follow_gangs) = mirror::<PodGroup>(&self.client, |gang| {
            gang.metadata.annotations = None;
            gang.metadata.managed_fields = None;
            gang.status = None;
        });
        let (nodes, follow_nodes) = mirror::<Node>(&self.client, |node| {
            node.metadata.annotations = None;
            node.metadata.managed_fields = None;
            node.status = None;
        });
        let lookups = Lookups { gangs, nodes };
        let mut followed = futures::stream::select(follow_gangs, follow_nodes).fuse();
        let pods = Api::<Pod>::all(self.client.clone());
        let mut pods = watcher(pods, watcher::Config::default())
            .default_backoff()
            .boxed()
            .fuse();
        let mut listed = BTreeSet::new();
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ended = std::pin::pin!(signals::requested(ended));
        loop {
            tokio::select! {
                // Without gangs and nodes a pod has no queue and no model.
                _ = followed.next() => {
                    self.ready = self.ready || (is_ready(&lookups.gangs) && is_ready(&lookups.nodes));
                }
                event = pods.next(), if self.ready => match event {
                    Some(Ok(event)) => take_in(&self.book, &lookups, event, &mut listed),
                    Some(Err(error)) => tracing::debug!(%error, "the watch of pods begins again"),
                    None => {}
                },
                _ = ticks.tick(), if self.ready => self.count_and_store().await,
                () = &mut ended => return,
            }
        }
    }

    /// Counts until now and writes what changed.
    async fn count_and_store(&mut self) {
        self.book.lock().count_until(Timestamp::now());
        if let Some(writer) = &mut self.writer
            && !writer.write(&self.book).await
        {
            self.writer = None;
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

/// Observes a pod. A panic over one pod loses that pod's usage until the pod changes, and is in the log.
fn observe(book: &SharedUsage, lookups: &Lookups, pod: &Pod, now: Timestamp) {
    if let Err(panic) = caught(|| observe_one(book, lookups, pod, now)) {
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        tracing::error!(
            namespace,
            name,
            %panic,
            "the server panicked while it accounted a pod; it goes on with the others"
        );
    }
}

fn observe_one(book: &SharedUsage, lookups: &Lookups, pod: &Pod, now: Timestamp) {
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

struct UsageWriter {
    ledger: Arc<Ledger>,
    /// Changes that could not be written yet. Later ones of the same records replace them.
    left: StoredRecords,
    /// Whether the full disk has been logged.
    logged: bool,
}

impl UsageWriter {
    fn new(ledger: Arc<Ledger>) -> UsageWriter {
        UsageWriter {
            ledger,
            left: Vec::new(),
            logged: false,
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
                self.logged = false;
                true
            }
            Ok((Err(error @ LedgerError::NoSpace { .. }), changes)) => {
                self.left = changes;
                if !self.logged {
                    tracing::warn!(%error, "the disk is full: usage stays in memory until there is room");
                    self.logged = true;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::{Request, Response};
    use kube::client::Body;

    use super::*;

    /// An API with a pod that has a GPU; the first list of pods panics.
    fn client_that_panics_once(lists: Arc<AtomicUsize>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let lists = lists.clone();
            async move {
                if request.uri().query().unwrap_or_default().contains("watch=") {
                    std::future::pending::<()>().await;
                }
                let mut items = Vec::new();
                if request.uri().path().ends_with("/pods") {
                    assert!(lists.fetch_add(1, Ordering::SeqCst) > 0, "over the pods");
                    items.push(serde_json::json!({
                        "metadata": {"name": "p", "namespace": "team", "uid": "u1"},
                        "spec": {"nodeName": "n1", "containers": [
                            {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
                        ]},
                        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"},
                    }));
                }
                let list =
                    serde_json::json!({"metadata": {"resourceVersion": "1"}, "items": items});
                Ok::<_, std::io::Error>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn accounting_goes_on_after_a_panic_and_stores_its_last_usage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("usage");
        let lists = Arc::new(AtomicUsize::new(0));
        let client = client_that_panics_once(lists.clone());
        let accounting = Accounting::keep(path.clone(), client).await;
        while lists.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        tokio::time::sleep(EVERY).await;
        accounting.finish().await;
        let (_ledger, read) = Ledger::open(&path, store::Options::default()).unwrap();
        assert!(!read.records.is_empty(), "the pod's usage is not stored");
    }
}
