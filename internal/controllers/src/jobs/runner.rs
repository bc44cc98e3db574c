//! The loop of one job controller: watches, caches, asks the reconciler about changed jobs, has its
//! decisions applied, and requeues a job at the time it requested. After a restart it rebuilds
//! everything from the API.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use kube::{Client, ResourceExt as _};
use resources::kinds::{JobSet, PodGroup, RayCluster, VolcanoCommand};
use serde::Serialize;
use serde_json::Value;
use supervisor::{caught, panic_message};
use tokio::task::{Id, JoinError, JoinSet};
use workloads::ReconcileOutcome;
use workloads::apps::daemonset::NodeFacts;

use super::apply::{self, Applied};
use super::caches::{Caches, JobWatchEvent, JobWatchStream, SelectorOf, Watched, watches};
use super::mirror::{KindMirror, Owned};
use super::queue::WorkQueue;
use super::runtimes::RuntimeCache;
use super::{ObjectKey, RunnerObject, key_of};
use crate::context::Context;
use crate::event_recorder::{EventRecorder, EventType};
use crate::retry;

/// How many jobs have writes in flight at once.
const AT_ONCE: usize = 32;
/// The longest wait for a job that requested a later time: the wall clock may be set.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// The wait before a job is reconciled again whose writes met something unexpected.
const RECHECK: Duration = Duration::from_secs(2);
/// How long writes in flight may take when the server stops.
const STOPPING: Duration = Duration::from_secs(5);

/// The cached state of one job.
pub(crate) struct CachedJob<'a, K> {
    pub(crate) job: &'a K,
    pub(crate) pods: Vec<&'a Pod>,
    /// The pods whose label names the job, whichever object owns them.
    pub(crate) labelled_pods: Vec<&'a Pod>,
    pub(crate) services: Vec<&'a Service>,
    pub(crate) config_maps: Vec<&'a ConfigMap>,
    pub(crate) pod_group: Option<&'a PodGroup>,
    /// The PodGroups that the job owns.
    pub(crate) owned_pod_groups: Vec<&'a PodGroup>,
    pub(crate) jobs: Vec<&'a Job>,
    /// The clusters of all namespaces.
    pub(crate) ray_clusters: &'a KindMirror<RayCluster>,
    /// The JobSet with the job's name.
    pub(crate) job_set: Option<&'a JobSet>,
    pub(crate) runtimes: &'a RuntimeCache,
    pub(crate) replica_sets: Vec<&'a ReplicaSet>,
    pub(crate) revisions: Vec<&'a ControllerRevision>,
    /// The claims of all namespaces.
    pub(crate) claims: &'a KindMirror<PersistentVolumeClaim>,
    pub(crate) nodes: &'a BTreeMap<String, NodeFacts>,
    /// Volcano's Commands to the job.
    pub(crate) commands: Vec<&'a VolcanoCommand>,
}

/// One kind of job.
pub(crate) trait Workload: Send + 'static {
    type Kind: RunnerObject;
    type Status: Serialize + Send + Sync;

    /// The component that its events name.
    const COMPONENT: &'static str;
    /// What it watches besides its own kind.
    const WATCHED: &'static [Watched];
    /// How the selector is found by which the kind adopts and releases objects; absent for kinds that do neither.
    const SELECTOR: Option<SelectorOf<Self::Kind>> = None;
    /// Whether the status may be written only if all actions succeeded.
    const STATUS_NEEDS_ACTIONS: bool = false;

    /// The job was seen, or seen to be gone.
    fn noticed(&mut self, key: &ObjectKey, job: Option<&Self::Kind>);

    /// Decides about a job.
    fn decide(
        &mut self,
        key: &ObjectKey,
        cached: &CachedJob<'_, Self::Kind>,
        now: Timestamp,
    ) -> ReconcileOutcome<Self::Status>;

    /// The job's stored status.
    fn status_of(job: &Self::Kind) -> Value;

    /// The event reason for a created, or a deleted, pod.
    fn pod_event(created: bool) -> &'static str;

    /// Notes in a status that pods could not be created, if the kind's status has a place for it.
    fn note_failure(_status: &mut Self::Status, _message: &str, _now: Timestamp) {}
}

/// Runs the controller of one kind until the server stops.
pub(crate) async fn run<W: Workload>(ctx: Context, workload: W) {
    let notes = EventRecorder::new(ctx.client.clone(), W::COMPONENT);
    let mut hearing: JobWatchStream<W::Kind> = watches(&ctx.client, W::WATCHED);
    let mut stop = ctx.stop.clone();
    let mut runner = Runner::new(ctx.client, notes, workload);
    let mut writes = JoinSet::new();
    while !*stop.borrow() {
        runner.start_due(&mut writes);
        // When the limit of writes in flight is reached, the next one to end wakes the loop.
        let due = runner
            .queue
            .next()
            .filter(|_| runner.caches.is_complete() && writes.len() < AT_ONCE);
        let timer =
            tokio::time::sleep_until(due.unwrap_or_else(|| Instant::now() + LONGEST_WAIT).into());
        tokio::select! {
            event = hearing.next() => match event {
                Some(event) => runner.receive(event),
                None => break,
            },
            Some(done) = writes.join_next_with_id() => runner.finish(done),
            () = timer => {}
            changed = stop.changed() => if changed.is_err() { break },
        }
    }
    let rest = async { while writes.join_next().await.is_some() {} };
    if tokio::time::timeout(STOPPING, rest).await.is_err() {
        tracing::warn!(
            controller = W::COMPONENT,
            "the job controller stopped before all its writes were complete"
        );
    }
}

struct Runner<W: Workload> {
    client: Client,
    notes: EventRecorder,
    workload: W,
    caches: Caches<W::Kind>,
    /// Jobs as last written, until the watch shows them.
    written: BTreeMap<ObjectKey, Arc<W::Kind>>,
    queue: WorkQueue,
    /// The job that each write in flight belongs to.
    writing: HashMap<Id, ObjectKey>,
}

impl<W: Workload> Runner<W> {
    fn new(client: Client, notes: EventRecorder, workload: W) -> Runner<W> {
        Runner {
            client,
            notes,
            workload,
            caches: Caches::new(W::WATCHED, W::SELECTOR),
            written: BTreeMap::new(),
            queue: WorkQueue::default(),
            writing: HashMap::new(),
        }
    }

    fn receive(&mut self, event: JobWatchEvent<W::Kind>) {
        let now = Instant::now();
        let concerned = match event {
            JobWatchEvent::Job(event) => {
                let changes = self.caches.take_job(*event);
                for change in &changes {
                    self.workload.noticed(&change.key, change.after.as_deref());
                }
                changes.into_iter().map(|change| change.key).collect()
            }
            JobWatchEvent::Dependent(event) => self.caches.take(event),
            JobWatchEvent::Trouble(error) => {
                tracing::warn!(controller = W::COMPONENT, %error, "a watch ended; the job controller opens it again");
                Vec::new()
            }
        };
        for key in concerned {
            self.queue.changed(&key, now);
        }
    }

    fn start_due(&mut self, writes: &mut JoinSet<Applied<W::Kind>>) {
        while self.caches.is_complete() && writes.len() < AT_ONCE {
            let Some(key) = self.queue.take(Instant::now()) else {
                return;
            };
            self.inspect(key, writes);
        }
    }

    fn inspect(&mut self, key: ObjectKey, writes: &mut JoinSet<Applied<W::Kind>>) {
        let begun = Instant::now();
        let Some(job) = self.newest(&key) else {
            self.queue.cost(&key, Duration::ZERO);
            self.queue.done(&key, None);
            return;
        };
        let uid = job.uid().unwrap_or_default();
        let cached = CachedJob {
            job: job.as_ref(),
            pods: with_orphans(&self.caches.pods, &uid, &key),
            labelled_pods: self.caches.labelled_pods.of(&key),
            services: self.caches.services.of(&uid),
            config_maps: self.caches.config_maps.of(&uid),
            pod_group: self.caches.groups.get(&key).map(Arc::as_ref),
            owned_pod_groups: self.caches.owned_groups.of(&uid),
            jobs: self.caches.owned_jobs.of(&uid),
            ray_clusters: &self.caches.ray_clusters,
            job_set: self.caches.job_sets.get(&key).map(Arc::as_ref),
            runtimes: &self.caches.runtimes,
            replica_sets: with_orphans(&self.caches.replica_sets, &uid, &key),
            revisions: with_orphans(&self.caches.revisions, &uid, &key),
            claims: &self.caches.claims,
            nodes: self.caches.nodes.all(),
            commands: self.caches.commands_for(&key, &uid),
        };
        let now = Timestamp::now();
        let outcome = match caught(|| self.workload.decide(&key, &cached, now)) {
            Ok(outcome) => outcome,
            Err(panic) => {
                self.set_aside(&key, job.as_ref(), panic.message());
                self.queue.failed(&key, Instant::now());
                return;
            }
        };
        let again = outcome
            .requeue_at
            .map(|at| Instant::now() + wait_until(at, now));
        let work = apply::JobWrites::new::<W>(&job, outcome);
        self.queue.cost(&key, begun.elapsed());
        if work.is_nothing() {
            self.queue.done(&key, again);
            return;
        }
        // The requested time stands, whatever the result of the writes.
        if let Some(again) = again {
            self.queue.wake(&key, again);
        }
        let (client, notes) = (self.client.clone(), self.notes.clone());
        let write =
            writes.spawn(async move { apply::apply::<W>(&client, &notes, job, work).await });
        self.writing.insert(write.id(), key);
    }

    /// A job whose decision panicked backs off; the others go on.
    fn set_aside(&self, key: &ObjectKey, job: &W::Kind, panic: &str) {
        tracing::error!(
            controller = W::COMPONENT,
            namespace = key.0,
            job = key.1,
            panic,
            "the controller panicked on a job; it leaves the job as it is and tries again later"
        );
        let (about, words) = (apply::reference(job), retry::panicked_note(panic));
        self.notes
            .note(&about, EventType::Warning, retry::PANICKED, &words);
    }

    /// The job as last seen or last written, whichever is newer.
    fn newest(&mut self, key: &ObjectKey) -> Option<Arc<W::Kind>> {
        let Some(cached) = self.caches.job(key) else {
            self.written.remove(key);
            return None;
        };
        if let Some(written) = self.written.get(key) {
            if written.uid() == cached.uid() && version(written.as_ref()) > version(cached.as_ref())
            {
                return Some(written.clone());
            }
            self.written.remove(key);
        }
        Some(cached.clone())
    }

    fn finish(&mut self, done: Result<(Id, Applied<W::Kind>), JoinError>) {
        let id = done.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let Some(key) = self.writing.remove(&id) else {
            return;
        };
        let applied = match done {
            Ok((_, applied)) => applied,
            Err(error) => {
                let panic = error.try_into_panic();
                let words =
                    panic.map_or_else(|error| error.to_string(), |panic| panic_message(&*panic));
                if let Some(job) = self.newest(&key) {
                    self.set_aside(&key, job.as_ref(), &words);
                }
                self.queue.failed(&key, Instant::now());
                return;
            }
        };
        if let Some(written) = applied.written {
            self.written.insert(key_of(&written), Arc::new(written));
        }
        match applied.trouble {
            None => {
                let again = applied.recheck.then(|| Instant::now() + RECHECK);
                self.queue.done(&key, again);
            }
            Some(error) => {
                tracing::warn!(
                    controller = W::COMPONENT,
                    namespace = key.0,
                    job = key.1,
                    error,
                    "the controller could not make all changes of a job; it tries again"
                );
                self.queue.failed(&key, Instant::now());
            }
        }
    }
}

/// A job's objects, and those that it may adopt.
fn with_orphans<'a, O: RunnerObject>(
    objects: &'a Owned<O>,
    uid: &str,
    key: &'a ObjectKey,
) -> Vec<&'a O> {
    let mut all = objects.of(uid);
    all.extend(objects.orphans(&key.0));
    all
}

/// Resource versions of one store grow. One that is not a number counts as the oldest, so that the
/// watch's object wins.
fn version<K: RunnerObject>(object: &K) -> u64 {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

fn wait_until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now))
        .unwrap_or_default()
        .min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Method, Request, Response};
    use k8s_openapi::api::batch::v1::{Job, JobStatus};
    use kube::client::Body;
    use kube::core::DeserializeGuard;
    use kube::runtime::watcher;
    use serde_json::json;

    use super::*;
    use crate::jobs::caches::DependentEvent;

    /// Panics over one job, and counts the calls for the others.
    struct Frail(Arc<AtomicUsize>);

    impl Workload for Frail {
        type Kind = Job;
        type Status = JobStatus;

        const COMPONENT: &'static str = "frail";
        const WATCHED: &'static [Watched] = &[Watched::Pods("job")];

        fn noticed(&mut self, _: &ObjectKey, _: Option<&Job>) {}

        fn decide(
            &mut self,
            key: &ObjectKey,
            cached: &CachedJob<'_, Job>,
            _: Timestamp,
        ) -> ReconcileOutcome<JobStatus> {
            assert_ne!(key.1, "bad", "over it");
            self.0.fetch_add(1, Ordering::SeqCst);
            let nothing = workloads::job::ObservedJob {
                job: cached.job,
                pods: &[],
                room: workloads::PodRoom::default(),
            };
            workloads::job::reconcile(&nothing, Timestamp::UNIX_EPOCH)
        }

        fn status_of(_: &Job) -> Value {
            Value::Null
        }

        fn pod_event(_: bool) -> &'static str {
            "Pod"
        }
    }

    fn listed_job(name: &str) -> JobWatchEvent<Job> {
        let job = json!({"metadata": {"namespace": "ns", "name": name, "uid": name}});
        let job = DeserializeGuard(Ok(serde_json::from_value(job).unwrap()));
        JobWatchEvent::Job(Box::new(watcher::Event::InitApply(job)))
    }

    #[tokio::test]
    async fn a_panic_over_one_job_leaves_the_others_at_work() {
        let (posted, mut events) = tokio::sync::mpsc::unbounded_channel();
        let answer = move |request: Request<Body>| {
            let posted = posted.clone();
            async move {
                let (parts, body) = request.into_parts();
                if parts.method == Method::POST && parts.uri.path().ends_with("/events") {
                    let body = body.collect_bytes().await?;
                    let event: Value = serde_json::from_slice(&body).unwrap_or_default();
                    let _ = posted.send(event);
                }
                Ok::<_, kube::Error>(Response::new(Body::from(b"{}".to_vec())))
            }
        };
        let client = Client::new(tower::service_fn(answer), "default");
        let notes = EventRecorder::new(client.clone(), "frail");
        let asked = Arc::new(AtomicUsize::new(0));
        let mut runner = Runner::new(client, notes, Frail(asked.clone()));
        for event in [
            JobWatchEvent::Dependent(DependentEvent::Pod(Box::new(watcher::Event::Init))),
            JobWatchEvent::Dependent(DependentEvent::Pod(Box::new(watcher::Event::InitDone))),
            JobWatchEvent::Job(Box::new(watcher::Event::Init)),
            listed_job("bad"),
            listed_job("good"),
            listed_job("other"),
            JobWatchEvent::Job(Box::new(watcher::Event::InitDone)),
        ] {
            runner.receive(event);
        }
        let mut writes = JoinSet::new();
        while asked.load(Ordering::SeqCst) < 2 {
            runner.start_due(&mut writes);
            tokio::task::yield_now().await;
        }
        // The failing job waits for its retry; it is not forgotten.
        let next = runner.queue.next().unwrap();
        assert_eq!(runner.queue.take(next).unwrap().1, "bad");
        // An event on the job names the panic.
        let event = tokio::time::timeout(Duration::from_secs(60), events.recv());
        let event = event.await.unwrap().unwrap();
        assert_eq!(event["reason"], retry::PANICKED);
        assert_eq!(event["type"], "Warning");
        let about = event.get("regarding").or(event.get("involvedObject"));
        assert_eq!(about.unwrap()["name"], "bad");
        let words = event.get("note").or(event.get("message")).unwrap();
        assert!(words.as_str().unwrap().contains("over it"), "{words}");
    }
}
