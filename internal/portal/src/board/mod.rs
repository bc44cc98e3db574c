//! [`Board`]: the state that the pages show, kept current by watches and read from memory.
//!
//! It only reads. Changes increment a version at most every [`COALESCE`], and the pages receive
//! that version.

mod catching_up;
mod counts;
mod hangs;
mod holders;
mod job_entry;
mod jobs;
mod nodes;
mod other_devices;
mod picture;
mod pods;
mod queues;
mod set_facts;
mod snapshot;
mod teams;
mod web_ports;

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use parking_lot::Mutex;
use resources::kinds::{PodGroup, Queue};
use resources::names;
use resources::training::{self, TrainingKind};
use supervisor::{LoopEnd, keep_running};
use tokio::sync::watch;

use pods::PodRow;

use crate::other_kinds::{self, OtherKind};

pub use catching_up::caught_up;
pub use counts::{ClusterCounts, NodeGpus, runs, waits};
pub use hangs::WatchedJob;
pub use holders::GpuHolder;
pub use job_entry::{CRON_JOBS, JobEntry, PODS};
pub use jobs::{GONE, JobDetail, JobRow, Replica, Tone, tone_of};
pub use nodes::{ActiveAlert, CORDON_REASON, ClusterTotals, GpuSquare, NodeCard};
pub use picture::Picture;
pub use queues::QueueRow;
pub use teams::TeamRow;

/// How long changes are collected before the pages are notified.
const COALESCE: Duration = Duration::from_millis(200);

/// The data source of all pages. Cheap to clone.
#[derive(Clone)]
pub struct Board {
    pods: Store<PodRow>,
    nodes: Store<Node>,
    training_jobs: Arc<Vec<(&'static TrainingKind, Store<DynamicObject>)>>,
    plain_jobs: Store<Job>,
    cron_jobs: Store<CronJob>,
    other_jobs: Arc<Vec<(&'static OtherKind, Store<DynamicObject>)>>,
    queues: Store<Queue>,
    /// Namespaces and role bindings of teams only.
    team_namespaces: Store<Namespace>,
    team_bindings: Store<RoleBinding>,
    snapshot: Arc<Mutex<Arc<snapshot::Snapshot>>>,
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
        let training_jobs = training::ALL.iter().map(|kind| {
            let gvk = GroupVersionKind::gvk(training::GROUP, kind.version, kind.kind);
            (*kind, follow_untyped(client, &gvk, kind.plural, &bump))
        });
        let other_jobs = other_kinds::ALL.into_iter().map(|kind| {
            let gvk = GroupVersionKind::gvk(kind.group, kind.version, kind.kind);
            (kind, follow_untyped(client, &gvk, kind.resource, &bump))
        });
        Board {
            pods: follow(client, &bump),
            nodes: follow(client, &bump),
            training_jobs: Arc::new(training_jobs.collect()),
            other_jobs: Arc::new(other_jobs.collect()),
            plain_jobs: follow(client, &bump),
            cron_jobs: follow(client, &bump),
            snapshot: Arc::default(),
            queues: follow(client, &bump),
            team_namespaces: follow_in(Api::all(client.clone()), (), of_teams(), &bump),
            team_bindings: follow_in(Api::all(client.clone()), (), of_teams(), &bump),
            version,
        }
    }

    /// Increases whenever the board changes.
    pub fn version(&self) -> watch::Receiver<u64> {
        self.version.clone()
    }
}

/// Mirrors one typed kind.
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
    follow_in(
        Api::all(client.clone()),
        (),
        watcher::Config::default(),
        bump,
    )
}

/// The objects of teams.
fn of_teams() -> watcher::Config {
    watcher::Config::default().labels(names::TEAM)
}

/// Mirrors one kind of jobs without a type of its own here.
fn follow_untyped(
    client: &Client,
    gvk: &GroupVersionKind,
    plural: &str,
    bump: &Arc<watch::Sender<u64>>,
) -> Store<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(gvk, plural);
    let api = Api::all_with(client.clone(), &resource);
    follow_in(api, resource, watcher::Config::default(), bump)
}

fn follow_in<K>(
    api: Api<K>,
    kind: K::DynamicType,
    selected: watcher::Config,
    bump: &Arc<watch::Sender<u64>>,
) -> Store<K>
where
    K: Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Clone + Eq + Hash + Send + Sync,
{
    let name = K::kind(&kind).into_owned();
    let writer = reflector::store::Writer::<K>::new(kind);
    let reader = writer.as_reader();
    // The writer outlives a panic of the loop: the next run lists all objects anew.
    let writer = Arc::new(Mutex::new(writer));
    let bump = bump.clone();
    let start = move || {
        let (writer, bump, api) = (writer.clone(), bump.clone(), api.clone());
        let selected = selected.clone();
        let name = name.clone();
        async move {
            let changes = watcher(api, selected)
                .default_backoff()
                .inspect_ok(move |event| writer.lock().apply_watcher_event(event));
            mirror(&name, std::pin::pin!(changes), &bump).await
        }
    };
    tokio::spawn(keep_running("the web UI's watch", start));
    reader
}

/// Notifies the pages of changes until their stream ends.
async fn mirror<K>(
    kind: &str,
    mut changes: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Unpin,
    bump: &watch::Sender<u64>,
) -> LoopEnd {
    while let Some(first) = changes.next().await {
        if bump.is_closed() {
            return LoopEnd::Finished;
        }
        if let Err(error) = first {
            tracing::warn!(kind, %error, "the web form's watch failed; the server opens it again");
            continue;
        }
        // Collects changes that follow closely, then notifies the pages once.
        let gather = async { while let Ok(Some(_)) = changes.try_next().await {} };
        let _ = tokio::time::timeout(COALESCE, gather).await;
        bump.send_modify(|version| *version += 1);
    }
    LoopEnd::Unexpected
}
