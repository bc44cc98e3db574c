//! The watches of one job controller and the copies of the objects that they show: the jobs themselves and what the
//! controller's kind watches besides them. Finds the jobs that an event concerns.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use futures::stream::{Stream, StreamExt as _, select_all};
use k8s_openapi::api::apps::v1::{ControllerRevision, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::DeserializeGuard;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use resources::kinds::{
    ClusterTrainingRuntime, JobSet, PodGroup, RayCluster, TrainingRuntime, VolcanoCommand,
};
use resources::selector;
use serde::de::DeserializeOwned;

use super::mirror::{Concerned, KindMirror, Labelled, ObjectEvent, Owned};
use super::nodes::NodeCache;
use super::runtimes::RuntimeCache;
use super::{ObjectKey, RunnerObject};

/// Finds the selector of a kind whose objects adopt others.
pub(crate) type SelectorOf<K> = fn(&K) -> Option<&LabelSelector>;

/// What a controller watches besides its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// The pods with this label, or all pods if it is empty. Pods without it are not decoded.
    Pods(&'static str),
    /// The pods with this label, whose value is the name of the job that they are for, whichever object owns them.
    PodsFor(&'static str),
    /// The ConfigMaps with this label.
    ConfigMaps(&'static str),
    /// Services and PodGroups.
    Gang,
    /// Services, and the PodGroups that the job owns, whatever their names. Of the embedded engine only, whose API stores no
    /// unreadable PodGroup.
    OwnedGangs,
    /// Jobs.
    Jobs,
    /// RayClusters.
    RayClusters,
    /// JobSets.
    JobSets,
    /// TrainingRuntimes and ClusterTrainingRuntimes.
    Runtimes,
    /// ReplicaSets.
    ReplicaSets,
    /// ControllerRevisions.
    Revisions,
    /// PersistentVolumeClaims.
    Claims,
    /// Nodes' labels and taints.
    Nodes,
    /// Volcano's Commands.
    Commands,
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
    /// A pod of [`Watched::PodsFor`], with the label.
    PodFor(&'static str, Box<watcher::Event<Pod>>),
    Service(Box<watcher::Event<Service>>),
    ConfigMap(Box<watcher::Event<ConfigMap>>),
    Group(Box<watcher::Event<DeserializeGuard<PodGroup>>>),
    OwnedGroup(Box<watcher::Event<PodGroup>>),
    Job(Box<watcher::Event<Job>>),
    RayCluster(Box<watcher::Event<DeserializeGuard<RayCluster>>>),
    JobSet(Box<watcher::Event<DeserializeGuard<JobSet>>>),
    Runtime(Box<watcher::Event<DeserializeGuard<TrainingRuntime>>>),
    ClusterRuntime(Box<watcher::Event<DeserializeGuard<ClusterTrainingRuntime>>>),
    ReplicaSet(Box<watcher::Event<ReplicaSet>>),
    Revision(Box<watcher::Event<ControllerRevision>>),
    Claim(Box<watcher::Event<PersistentVolumeClaim>>),
    Node(Box<watcher::Event<Node>>),
    Command(Box<watcher::Event<DeserializeGuard<VolcanoCommand>>>),
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
            Watched::PodsFor(label) => {
                let label: &'static str = label;
                let chosen = everything().labels(label);
                streams.push(listen(client, chosen, move |event| {
                    JobWatchEvent::Dependent(DependentEvent::PodFor(label, Box::new(event)))
                }));
            }
            Watched::ConfigMaps(label) => {
                let chosen = everything().labels(label);
                streams.push(dependents(client, chosen, DependentEvent::ConfigMap));
            }
            Watched::Gang => {
                streams.push(dependents(client, everything(), DependentEvent::Service));
                streams.push(dependents(client, everything(), DependentEvent::Group));
            }
            Watched::OwnedGangs => {
                streams.push(dependents(client, everything(), DependentEvent::Service));
                streams.push(dependents(client, everything(), DependentEvent::OwnedGroup));
            }
            Watched::Jobs => {
                streams.push(dependents(client, everything(), DependentEvent::Job));
            }
            Watched::RayClusters => {
                streams.push(dependents(client, everything(), DependentEvent::RayCluster));
            }
            Watched::JobSets => {
                streams.push(dependents(client, everything(), DependentEvent::JobSet));
            }
            Watched::Runtimes => {
                streams.push(dependents(client, everything(), DependentEvent::Runtime));
                streams.push(dependents(
                    client,
                    everything(),
                    DependentEvent::ClusterRuntime,
                ));
            }
            Watched::ReplicaSets => {
                streams.push(dependents(client, everything(), DependentEvent::ReplicaSet));
            }
            Watched::Revisions => {
                streams.push(dependents(client, everything(), DependentEvent::Revision));
            }
            Watched::Claims => {
                streams.push(dependents(client, everything(), DependentEvent::Claim));
            }
            Watched::Nodes => {
                streams.push(dependents(client, everything(), DependentEvent::Node));
            }
            Watched::Commands => {
                streams.push(dependents(client, everything(), DependentEvent::Command));
            }
        }
    }
    Box::pin(select_all(streams))
}

fn dependents<O, K: RunnerObject>(
    client: &Client,
    chosen: watcher::Config,
    wrap: fn(Box<watcher::Event<O>>) -> DependentEvent,
) -> JobWatchStream<K>
where
    O: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    listen(client, chosen, move |event| {
        JobWatchEvent::Dependent(wrap(Box::new(event)))
    })
}

fn listen<O, K: RunnerObject>(
    client: &Client,
    chosen: watcher::Config,
    wrap: impl Fn(watcher::Event<O>) -> JobWatchEvent<K> + Send + 'static,
) -> JobWatchStream<K>
where
    O: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let events = watcher(Api::<O>::all(client.clone()), chosen);
    Box::pin(
        events
            .backoff(crate::retry::Waits::default())
            .map(move |event| match event {
                Ok(event) => wrap(event),
                Err(error) => JobWatchEvent::Trouble(error),
            }),
    )
}

/// The copies. Those of kinds that the controller does not watch stay empty.
pub(crate) struct Caches<K> {
    watched: &'static [Watched],
    selector: Option<SelectorOf<K>>,
    pub(crate) jobs: KindMirror<K>,
    pub(crate) pods: Owned<Pod>,
    pub(crate) labelled_pods: Labelled<Pod>,
    pub(crate) services: Owned<Service>,
    pub(crate) config_maps: Owned<ConfigMap>,
    pub(crate) groups: KindMirror<PodGroup>,
    pub(crate) owned_groups: Owned<PodGroup>,
    pub(crate) owned_jobs: Owned<Job>,
    pub(crate) ray_clusters: KindMirror<RayCluster>,
    pub(crate) job_sets: KindMirror<JobSet>,
    pub(crate) runtimes: RuntimeCache,
    pub(crate) replica_sets: Owned<ReplicaSet>,
    pub(crate) revisions: Owned<ControllerRevision>,
    pub(crate) claims: KindMirror<PersistentVolumeClaim>,
    pub(crate) nodes: NodeCache,
    pub(crate) commands: KindMirror<VolcanoCommand>,
}

/// Whether a pod without a controller is kept: an ended pod serves no workload, but one that a workload created and
/// released still has a name that the workload would use.
fn is_kept(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    if annotations.is_some_and(|map| map.contains_key(workloads::apps::replicaset::NUMBER)) {
        return true;
    }
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

/// The job that a Command is for.
fn job_of(command: &VolcanoCommand) -> Option<ObjectKey> {
    let namespace = command.metadata.namespace.clone()?;
    Some((namespace, command.target.as_ref()?.name.clone()))
}

impl<K: RunnerObject> Caches<K> {
    pub(crate) fn new(watched: &'static [Watched], selector: Option<SelectorOf<K>>) -> Caches<K> {
        let adopts = selector.is_some();
        Caches {
            watched,
            selector,
            jobs: KindMirror::new(),
            pods: Owned::new(adopts.then_some(is_kept)),
            labelled_pods: Labelled::new(),
            services: Owned::new(None),
            config_maps: Owned::new(None),
            groups: KindMirror::new(),
            owned_groups: Owned::new(None),
            owned_jobs: Owned::new(None),
            ray_clusters: KindMirror::new(),
            job_sets: KindMirror::new(),
            runtimes: RuntimeCache::default(),
            replica_sets: Owned::new(adopts.then_some(|_| true)),
            revisions: Owned::new(adopts.then_some(|_| true)),
            claims: KindMirror::new(),
            nodes: NodeCache::new(),
            commands: KindMirror::new(),
        }
    }

    /// Whether everything that is watched was listed once. Before that, the state of a job cannot be judged.
    pub(crate) fn is_complete(&self) -> bool {
        let complete = |watched: &Watched| match watched {
            Watched::Pods(_) => self.pods.is_complete(),
            Watched::PodsFor(_) => self.labelled_pods.is_complete(),
            Watched::ConfigMaps(_) => self.config_maps.is_complete(),
            Watched::Gang => self.services.is_complete() && self.groups.is_complete(),
            Watched::OwnedGangs => self.services.is_complete() && self.owned_groups.is_complete(),
            Watched::Jobs => self.owned_jobs.is_complete(),
            Watched::RayClusters => self.ray_clusters.is_complete(),
            Watched::JobSets => self.job_sets.is_complete(),
            Watched::Runtimes => self.runtimes.is_complete(),
            Watched::ReplicaSets => self.replica_sets.is_complete(),
            Watched::Revisions => self.revisions.is_complete(),
            Watched::Claims => self.claims.is_complete(),
            Watched::Nodes => self.nodes.is_complete(),
            Watched::Commands => self.commands.is_complete(),
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
        let concerned = match event {
            DependentEvent::Pod(event) => self.pods.take(*event, &kind),
            DependentEvent::Service(event) => self.services.take(*event, &kind),
            DependentEvent::OwnedGroup(event) => self.owned_groups.take(*event, &kind),
            DependentEvent::ConfigMap(event) => self.config_maps.take(*event, &kind),
            DependentEvent::Job(event) => self.owned_jobs.take(*event, &kind),
            DependentEvent::ReplicaSet(event) => self.replica_sets.take(*event, &kind),
            DependentEvent::Revision(event) => self.revisions.take(*event, &kind),
            DependentEvent::PodFor(label, event) => return self.labelled_pods.take(*event, label),
            // A JobSet has its TrainJob's name.
            DependentEvent::JobSet(event) => {
                let changes = self.job_sets.take_readable(*event);
                return changes.into_iter().map(|change| change.key).collect();
            }
            DependentEvent::Runtime(event) => {
                let changed = self.runtimes.take(*event);
                return self.jobs.keys().filter(|_| changed).cloned().collect();
            }
            DependentEvent::ClusterRuntime(event) => {
                let changed = self.runtimes.take_of_cluster(*event);
                return self.jobs.keys().filter(|_| changed).cloned().collect();
            }
            DependentEvent::RayCluster(event) => {
                let changes = self.ray_clusters.take_readable(*event);
                return changes
                    .iter()
                    .filter_map(|change| owner_of(change, &kind))
                    .collect();
            }
            // A set that lacks a claim finds it at its pod's next change.
            DependentEvent::Claim(event) => {
                self.claims.take(*event, |_| true);
                return Vec::new();
            }
            DependentEvent::Node(event) => {
                let changed = self.nodes.take(*event);
                let all = self.jobs.keys().filter(|_| changed);
                return all.cloned().collect();
            }
            // A Command names its job.
            DependentEvent::Command(event) => {
                let changes = self.commands.take_readable(*event).into_iter();
                let commands = changes.filter_map(|change| change.after.or(change.before));
                return commands.filter_map(|command| job_of(&command)).collect();
            }
            // A PodGroup has its job's name.
            DependentEvent::Group(event) => {
                let changes = self.groups.take_readable(*event);
                return changes.into_iter().map(|change| change.key).collect();
            }
        };
        self.with_adopters(concerned)
    }

    /// The owners of changed objects, and the jobs that select a changed object without a controller.
    fn with_adopters(&self, concerned: Concerned) -> Vec<ObjectKey> {
        let Concerned { mut jobs, orphans } = concerned;
        let Some(selector_of) = self.selector else {
            return jobs;
        };
        for (namespace, labels) in orphans {
            for (key, job) in self.jobs.in_namespace(&namespace) {
                let selector = selector_of(job)
                    .and_then(|selector| selector::LabelSelector::from_k8s(selector).ok());
                if selector.is_some_and(|selector| selector.matches(&labels)) {
                    jobs.push(key.clone());
                }
            }
        }
        jobs
    }

    /// The Commands for a job. One that names another uid is for an earlier job of the name.
    pub(crate) fn commands_for<'c>(
        &'c self,
        key: &'c ObjectKey,
        uid: &'c str,
    ) -> Vec<&'c VolcanoCommand> {
        let all = self
            .commands
            .in_namespace(&key.0)
            .map(|(_, command)| command.as_ref());
        all.filter(|command| {
            let target = command.target.as_ref();
            let uids = ["", uid];
            job_of(command).as_ref() == Some(key)
                && target.is_some_and(|target| uids.contains(&target.uid.as_str()))
        })
        .collect()
    }

    /// A job as last seen.
    pub(crate) fn job(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        self.jobs.get(key)
    }
}

/// The controller of this kind that a changed cluster has or had.
fn owner_of(change: &ObjectEvent<RayCluster>, kind: &str) -> Option<ObjectKey> {
    let cluster = change.after.as_ref().or(change.before.as_ref())?;
    let owners = cluster.metadata.owner_references.as_deref()?;
    let owner = owners
        .iter()
        .find(|owner| owner.controller == Some(true) && owner.kind == kind)?;
    Some((change.key.0.clone(), owner.name.clone()))
}
