//! The jobs that say how long they may be quiet, for the detection of hangs. The kinds of Ray are none of them: the pods
//! of a RayJob or RayService are shown with its cluster.

use std::collections::BTreeMap;

use futures::FutureExt;
use resources::hang::{HangPolicy, HangRecord, RunningPod};
use resources::names::{HANG_AFTER, HUNG};
use resources::registry::{self, Kind};

use super::job_entry::Source;
use super::{Board, JobEntry, Tone};
use crate::other_kinds::RAY_CLUSTER;

/// A job with `muster.io/hang-after`, or with a record of a hang.
pub struct WatchedJob {
    /// Its kind in the API.
    pub kind: &'static Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// What it says about hangs; none if it says nothing that can be read, which admission refuses.
    pub policy: Option<HangPolicy>,
    /// Its hang, as last recorded.
    pub record: Option<HangRecord>,
    /// Its running pods, by rank; none of a job that has ended.
    pub pods: Vec<RunningPod>,
    /// Whether its pods are ranks.
    pub ranks: bool,
}

impl WatchedJob {
    fn of(entry: &JobEntry) -> Option<WatchedJob> {
        let metadata = match &entry.source {
            Source::Training(_, job) | Source::Other(_, job) => &job.metadata,
            Source::Plain(job) => &job.metadata,
            Source::Cron(_) | Source::Pod(_) => return None,
        };
        let annotations: &BTreeMap<String, String> = metadata.annotations.as_ref()?;
        if entry.group == RAY_CLUSTER.group {
            return None;
        }
        if !annotations.contains_key(HANG_AFTER) && !annotations.contains_key(HUNG) {
            return None;
        }
        let annotation = |name: &str| annotations.get(name).map(String::as_str);
        let row = entry.base();
        let goes_on = !matches!(row.tone, Tone::Good | Tone::Bad);
        let running = entry.pods.iter().filter(|pod| {
            goes_on && pod.phase() == "Running" && pod.metadata.deletion_timestamp.is_none()
        });
        let pods = running.filter_map(|pod| {
            Some(RunningPod {
                name: pod.metadata.name.clone()?,
                uid: pod.metadata.uid.clone()?,
                gpus: pod.accelerators(),
            })
        });
        let mut kinds = registry::all().iter();
        let kind = kinds.find(|kind| kind.group == entry.group && kind.plural == entry.resource)?;
        Some(WatchedJob {
            kind,
            namespace: row.namespace.clone(),
            name: row.name.clone(),
            uid: metadata.uid.clone()?,
            policy: HangPolicy::read(annotation).unwrap_or_default(),
            record: HangRecord::read(annotation),
            pods: pods.collect(),
            ranks: kind.training().is_some() || kind.is_volcano_job(),
        })
    }
}

impl Board {
    /// All jobs whose hangs are watched; none before the board has read the pods once.
    pub fn watched_jobs(&self) -> Option<Vec<WatchedJob>> {
        self.pods.wait_until_ready().now_or_never()?.ok()?;
        let entries = self.entries(|_, _, _| true);
        let watched = entries.iter().filter_map(|entry| WatchedJob::of(entry));
        Some(watched.collect())
    }
}
