//! All jobs with their pods, put together once for each version of the board. With 10,000 jobs a page then costs what it
//! shows. Entries of objects that did not change are kept from one version to the next.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use resources::jobset;
use resources::names;
use resources::training;
use resources::volcano;

use super::Board;
use super::job_entry::{JobEntry, Source};
use super::pods::PodRow;
use crate::other_kinds;

/// Namespace, the label by which pods name jobs of the kind, and the job's name.
type JobKey = (String, &'static str, String);

/// Namespace, plural and name.
type EntryKey = (String, &'static str, String);

/// The jobs at one version of the board.
#[derive(Default)]
pub struct Snapshot {
    version: u64,
    /// Newest first.
    entries: Vec<Arc<JobEntry>>,
    by_name: HashMap<EntryKey, Arc<JobEntry>>,
}

/// The job that a pod is part of, by its labels.
fn job_of(pod: &PodRow) -> Option<JobKey> {
    let namespace = pod.metadata.namespace.clone()?;
    let others = other_kinds::ALL.into_iter().map(|kind| kind.label);
    // The pods of a JobSet's Jobs are shown with the JobSet.
    let mut labels = [names::JOB_NAME, jobset::NAME, names::BATCH_JOB_NAME]
        .into_iter()
        .chain(others);
    let label = labels.find(|label| !pod.label(label).is_empty())?;
    Some((namespace, label, pod.label(label).to_owned()))
}

/// A pod's place: its role's place in the order of ranks or its group, its index, its name.
type Place = (Option<training::ReplicaType>, String, u64, Option<String>);

/// The place of a pod among its job's pods: its role's place in the order of ranks, then its index.
fn place(pod: &PodRow) -> Place {
    if let Some((job, index)) = jobset::place(pod.metadata.labels.as_ref()) {
        let number = (u64::from(job) << 32) | u64::from(index);
        return (None, String::new(), number, pod.metadata.name.clone());
    }
    if let Some((group, index)) = pod.place_in_set() {
        let number = (u64::from(group) << 32) | u64::from(index);
        return (None, String::new(), number, pod.metadata.name.clone());
    }
    let role = pod.label(names::REPLICA_TYPE);
    let mut roles = training::ALL.iter().flat_map(|kind| kind.roles);
    let role = roles.find(|known| known.lower() == role).copied();
    let indices = [
        names::REPLICA_INDEX,
        names::COMPLETION_INDEX,
        names::RAY_REPLICA_INDEX,
        volcano::TASK_INDEX,
    ];
    let mut indices = indices.iter().map(|label| pod.label(label).parse());
    let index = indices.find_map(Result::ok).unwrap_or(u64::MAX);
    // A RayCluster's head comes before its groups.
    let group = match pod.label(names::RAY_NODE_TYPE) {
        "head" => String::new(),
        "" => pod.label(names::TASK_SPEC).to_owned(),
        _ => pod.label(names::RAY_GROUP).to_owned(),
    };
    (role, group, index, pod.metadata.name.clone())
}

/// Of the pods that a JobSet had in one place, one after the other, keeps the newest.
fn keep_newest(pods: &mut Vec<Arc<PodRow>>) {
    let place = |pod: &PodRow| jobset::place(pod.metadata.labels.as_ref());
    let created = |pod: &PodRow| pod.metadata.creation_timestamp.clone();
    pods.dedup_by(|later, kept| {
        let same = place(kept).is_some() && place(kept) == place(later);
        if same && created(later) > created(kept) {
            std::mem::swap(later, kept);
        }
        same
    });
}

impl Snapshot {
    fn of(board: &Board, version: u64, before: &Snapshot) -> Snapshot {
        let mut pods: HashMap<JobKey, Vec<Arc<PodRow>>> = HashMap::new();
        let mut alone = Vec::new();
        for pod in board.pods.state() {
            match job_of(&pod) {
                Some(job) => pods.entry(job).or_default().push(pod),
                None => alone.push(pod),
            }
        }
        for pods in pods.values_mut() {
            pods.sort_by_cached_key(|pod| place(pod));
            keep_newest(pods);
        }
        let trained = board.training_jobs.iter().flat_map(|(kind, jobs)| {
            let jobs = jobs.state().into_iter();
            jobs.map(|job| {
                let key = (job.metadata.namespace.clone(), job.metadata.name.clone());
                (key, names::JOB_NAME, Source::Training(kind, job))
            })
        });
        let other = board.other_jobs.iter().flat_map(|(kind, jobs)| {
            let jobs = jobs.state().into_iter();
            let jobs = jobs.filter(|job| !other_kinds::is_part(&job.metadata));
            jobs.map(|job| {
                let key = (job.metadata.namespace.clone(), job.metadata.name.clone());
                (key, kind.label, Source::Other(kind, job))
            })
        });
        let plain = board.plain_jobs.state().into_iter();
        let plain = plain.filter(|job| !other_kinds::is_part(&job.metadata));
        let plain = plain.map(|job| {
            let key = (job.metadata.namespace.clone(), job.metadata.name.clone());
            (key, names::BATCH_JOB_NAME, Source::Plain(job))
        });
        let mut entries = Vec::new();
        let mut kept = |source: Source, key: EntryKey, pods: Vec<Arc<PodRow>>| {
            let known = before.by_name.get(&key);
            let known = known.filter(|known| known.source.address() == source.address());
            let same = |known: &&Arc<JobEntry>| {
                known.pods.len() == pods.len()
                    && known.pods.iter().zip(&pods).all(|(a, b)| Arc::ptr_eq(a, b))
            };
            let entry = match known {
                Some(known) if same(&known) => known.clone(),
                Some(known) => Arc::new(known.with_pods(pods)),
                None => Arc::new(JobEntry::read(source, pods)),
            };
            entries.push((key, entry));
        };
        for ((namespace, name), label, source) in trained.chain(plain).chain(other) {
            let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
            let plural = match &source {
                Source::Training(kind, _) => kind.plural,
                Source::Other(kind, _) => kind.plural,
                _ => "jobs",
            };
            let own = pods.remove(&(namespace.clone(), label, name.clone()));
            kept(source, (namespace, plural, name), own.unwrap_or_default());
        }
        for cron in board.cron_jobs.state() {
            let meta = &cron.metadata;
            let (namespace, name) = (meta.namespace.clone(), meta.name.clone());
            let key = (
                namespace.unwrap_or_default(),
                super::job_entry::CRON_JOBS,
                name.unwrap_or_default(),
            );
            kept(Source::Cron(cron), key, Vec::new());
        }
        // A pod whose job is gone is shown by itself.
        for pod in alone.into_iter().chain(pods.into_values().flatten()) {
            let (namespace, name) = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
            let key = (
                namespace.unwrap_or_default(),
                super::job_entry::PODS,
                name.unwrap_or_default(),
            );
            kept(Source::Pod(pod.clone()), key, vec![pod]);
        }
        let by_name = entries.iter().cloned().collect();
        let mut entries: Vec<Arc<JobEntry>> = entries.into_iter().map(|(_, entry)| entry).collect();
        entries.sort_by(|a, b| {
            let key = |entry: &JobEntry| Reverse(entry.base().created);
            let name = |entry: &JobEntry| entry.base().name.clone();
            key(a).cmp(&key(b)).then_with(|| name(a).cmp(&name(b)))
        });
        Snapshot {
            version,
            entries,
            by_name,
        }
    }
}

impl Board {
    fn snapshot(&self) -> Arc<Snapshot> {
        let version = *self.version.borrow();
        let mut held = self.snapshot.lock();
        if held.version != version || held.entries.is_empty() {
            *held = Arc::new(Snapshot::of(self, version, &held));
        }
        held.clone()
    }

    /// The jobs, CronJobs and pods without a job that `sees` (API group, plural, namespace) permits the reader to see,
    /// newest first. `sees` is called once for each kind and namespace.
    pub fn entries(&self, sees: impl Fn(&str, &str, &str) -> bool) -> Vec<Arc<JobEntry>> {
        let snapshot = self.snapshot();
        let mut seen: BTreeMap<(&str, &str), bool> = BTreeMap::new();
        let mut shown = Vec::new();
        for entry in &snapshot.entries {
            let row = entry.base();
            let key = (row.plural, row.namespace.as_str());
            let sees = || sees(entry.group, entry.resource, &row.namespace);
            if *seen.entry(key).or_insert_with(sees) {
                shown.push(entry.clone());
            }
        }
        shown
    }

    /// One of them. The caller checks that the reader may see it.
    pub(super) fn entry(&self, namespace: &str, plural: &str, name: &str) -> Option<Arc<JobEntry>> {
        let snapshot = self.snapshot();
        let mut all = snapshot.entries.iter();
        let found = all.find(|entry| {
            let row = entry.base();
            row.plural == plural && row.name == name && row.namespace == namespace
        });
        found.cloned()
    }
}
