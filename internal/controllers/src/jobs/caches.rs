//! The watches of one job controller and the copies of the objects that they show: the jobs themselves and what the
//! controller's kind watches besides them. Finds the jobs that an event concerns.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{Stream, StreamExt as _, select_all};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::core::DeserializeGuard;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use resources::kinds::PodGroup;
use serde::de::DeserializeOwned;

use super::mirror::{KindMirror, ObjectEvent, Owned};
use super::{ObjectKey, RunnerObject};

/// What a controller watches besides its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// The pods with this label, or all pods if it is empty. Pods without it are not decoded.
    Pods(&'static str),
    /// Services and PodGroups.
    Gang,
    /// Jobs.
    Jobs,
    /// ReplicaSets.
    ReplicaSets,
}

/// One event of one of the watches.
pub(crate) enum JobWatchEvent<K> {
    Job(Box<watcher::Event<DeserializeGuard<K>>>),
    Dependent(DependentEvent),
    /// A watch failed; it retries on its own.
    Trouble(watcher::Error),
}

/// An event of a watch of other objects than the jobs.
pub(crate) enum DependentEvent {
    Pod(Box<watcher::Event<Pod>>),
    Service(Box<watcher::Event<Service>>),
    Group(Box<watcher::Event<DeserializeGuard<PodGroup>>>),
    Job(Box<watcher::Event<Job>>),
    ReplicaSet(Box<watcher::Event<ReplicaSet>>),
}

pub(crate) type JobWatchStream<K> = Pin<Box<dyn Stream<Item = JobWatchEvent<K>> + Send>>;

/// All watches of a controller.
pub(crate) fn watches<K: RunnerObject>(client: &Client, watched: &[Watched]) -> JobWatchStream<K> {
    let everything = watcher::Config::default;
    let mut streams = vec![listen::<DeserializeGuard<K>, K>(
        client,
        everything(),
        |event| JobWatchEvent::Job(Box::new(event)),
    )];
    for one in watched {
        match one {
            Watched::Pods(label) => {
                let chosen = if label.is_empty() {
                    everything()
                } else {
                    everything().labels(label)
                };
                streams.push(dependents(client, chosen, DependentEvent::Pod));
            }
            Watched::Gang => {
                streams.push(dependents(client, everything(), DependentEvent::Service));
                streams.push(dependents(client, everything(), DependentEvent::Group));
            }
            Watched::Jobs => {
                streams.push(dependents(client, everything(), DependentEvent::Job));
            }
            Watched::ReplicaSets => {
                streams.push(dependents(client, everything(), DependentEvent::ReplicaSet));
            }
        }
    }
    Box::pin(select_all(streams))
}

fn dependents<O, K: RunnerObject>(
    client: &Client,
    chosen: watcher::Config,
    tell: fn(Box<watcher::Event<O>>) -> DependentEvent,
) -> JobWatchStream<K>
where
    O: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    listen(client, chosen, move |event| {
        JobWatchEvent::Dependent(tell(Box::new(event)))
    })
}

fn listen<O, K: RunnerObject>(
    client: &Client,
    chosen: watcher::Config,
    tell: impl Fn(watcher::Event<O>) -> JobWatchEvent<K> + Send + 'static,
) -> JobWatchStream<K>
where
    O: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let events = watcher(Api::<O>::all(client.clone()), chosen);
    Box::pin(
        events
            .backoff(crate::retry::Waits::default())
            .map(move |event| match event {
                Ok(event) => tell(event),
                Err(error) => JobWatchEvent::Trouble(error),
            }),
    )
}

/// The copies. Those of kinds that the controller does not watch stay empty.
pub(crate) struct Caches<K> {
    watched: &'static [Watched],
    pub(crate) jobs: KindMirror<K>,
    pub(crate) pods: Owned<Pod>,
    pub(crate) services: Owned<Service>,
    pub(crate) groups: KindMirror<PodGroup>,
    pub(crate) owned_jobs: Owned<Job>,
    pub(crate) replica_sets: Owned<ReplicaSet>,
}

impl<K: RunnerObject> Caches<K> {
    pub(crate) fn new(watched: &'static [Watched]) -> Caches<K> {
        Caches {
            watched,
            jobs: KindMirror::new(),
            pods: Owned::new(),
            services: Owned::new(),
            groups: KindMirror::new(),
            owned_jobs: Owned::new(),
            replica_sets: Owned::new(),
        }
    }

    /// Whether everything that is watched was listed once. Before that, the state of a job cannot be judged.
    pub(crate) fn is_complete(&self) -> bool {
        let complete = |watched: &Watched| match watched {
            Watched::Pods(_) => self.pods.is_complete(),
            Watched::Gang => self.services.is_complete() && self.groups.is_complete(),
            Watched::Jobs => self.owned_jobs.is_complete(),
            Watched::ReplicaSets => self.replica_sets.is_complete(),
        };
        self.jobs.is_complete() && self.watched.iter().all(complete)
    }

    /// Applies an event of the jobs' watch.
    pub(crate) fn take_job(
        &mut self,
        event: watcher::Event<DeserializeGuard<K>>,
    ) -> Vec<ObjectEvent<K>> {
        self.jobs.take_readable(event)
    }

    /// Applies an event of another watch and returns the jobs that it concerns.
    pub(crate) fn take(&mut self, event: DependentEvent) -> Vec<ObjectKey> {
        let kind = K::kind(&());
        match event {
            DependentEvent::Pod(event) => self.pods.take(*event, &kind),
            DependentEvent::Service(event) => self.services.take(*event, &kind),
            DependentEvent::Job(event) => self.owned_jobs.take(*event, &kind),
            DependentEvent::ReplicaSet(event) => self.replica_sets.take(*event, &kind),
            // A PodGroup has its job's name.
            DependentEvent::Group(event) => {
                let changes = self.groups.take_readable(*event);
                changes.into_iter().map(|change| change.key).collect()
            }
        }
    }

    /// A job as last seen.
    pub(crate) fn job(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        self.jobs.get(key)
    }
}
