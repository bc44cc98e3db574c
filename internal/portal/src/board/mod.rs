//! [`Board`]: the state that the pages show, kept current by watches and read from memory.
//!
//! It only reads. Changes increment a version at most every [`COALESCE`], and the pages receive
//! that version.

mod catching_up;
mod jobs;
mod nodes;
mod other_devices;
mod picture;
mod pods;
mod queues;

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use resources::kinds::{PodGroup, PyTorchJob, Queue};
use supervisor::{LoopEnd, keep_running};
use tokio::sync::watch;

use pods::PodRow;

pub use catching_up::caught_up;
pub use jobs::{JobDetail, JobRow, Tone};
pub use nodes::{ActiveAlert, ClusterTotals, NodeCard};
pub use picture::Picture;
pub use queues::QueueRow;

/// How long changes are collected before the pages are notified.
const COALESCE: Duration = Duration::from_millis(200);

/// The data source of all pages. Cheap to clone.
#[derive(Clone)]
pub struct Board {
    pods: Store<PodRow>,
    nodes: Store<Node>,
    pytorch_jobs: Store<PyTorchJob>,
    plain_jobs: Store<Job>,
    queues: Store<Queue>,
    version: watch::Receiver<u64>,
}

impl Board {
    /// Starts the watches; they run until the board's last clone is dropped or the runtime ends.
    pub fn start(client: &Client) -> Board {
        let (bump, version) = watch::channel(0u64);
        let bump = Arc::new(bump);
        // Pages show the scheduler's report of a gang: gangs are watched for their changes only;
        // their copies are not read.
        drop(follow::<PodGroup>(client, &bump));
        Board {
            pods: follow(client, &bump),
            nodes: follow(client, &bump),
            pytorch_jobs: follow(client, &bump),
            plain_jobs: follow(client, &bump),
            queues: follow(client, &bump),
            version,
        }
    }

    /// Increases whenever the board changes.
    pub fn version(&self) -> watch::Receiver<u64> {
        self.version.clone()
    }
}

/// Mirrors one kind with kube's reflector; a failed watch is retried with kube's own bounded backoff.
/// The pages read whole objects and need no state from before a change, which the controllers do.
fn follow<K>(client: &Client, bump: &Arc<watch::Sender<u64>>) -> Store<K>
where
    K: Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (reader, writer) = reflector::store::<K>();
    // The writer outlives a panic of the loop: the next run lists all objects anew.
    let writer = Arc::new(Mutex::new(writer));
    let api: Api<K> = Api::all(client.clone());
    let bump = bump.clone();
    let start = move || {
        let (writer, bump, api) = (writer.clone(), bump.clone(), api.clone());
        async move {
            let changes = watcher(api, watcher::Config::default())
                .default_backoff()
                .inspect_ok(move |event| writer.lock().apply_watcher_event(event));
            mirror(std::pin::pin!(changes), &bump).await
        }
    };
    tokio::spawn(keep_running("the web UI's watch", start));
    reader
}

/// Notifies the pages of changes until their stream ends.
async fn mirror<K>(
    mut changes: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Unpin,
    bump: &watch::Sender<u64>,
) -> LoopEnd
where
    K: Resource<DynamicType = ()>,
{
    while let Some(first) = changes.next().await {
        if bump.is_closed() {
            return LoopEnd::Finished;
        }
        if let Err(error) = first {
            tracing::warn!(kind = %K::kind(&()), %error, "the web form's watch failed; the server opens it again");
            continue;
        }
        // Collects changes that follow closely, then notifies the pages once.
        let gather = async { while let Ok(Some(_)) = changes.try_next().await {} };
        let _ = tokio::time::timeout(COALESCE, gather).await;
        bump.send_modify(|version| *version += 1);
    }
    LoopEnd::Unexpected
}
