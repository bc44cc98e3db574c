//! The jobs, and pods without a job, that hold GPUs, for the policy about idle GPUs.

use resources::names::IDLE_GPU_LIMIT;
use resources::registry::{self, Kind};

use super::job_entry::Source;
use super::{Board, JobEntry};

/// A job, or a pod without one, with running pods that hold GPUs.
pub struct GpuHolder {
    /// Its kind in the API.
    pub kind: &'static Kind,
    /// Its kind as lists show it.
    pub shown: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The user that it runs for.
    pub user: String,
    /// Its queue.
    pub queue: String,
    /// The uids of its pods with GPUs, and how many GPUs each holds.
    pub pods: Vec<(String, usize)>,
    /// The GPUs that these hold.
    pub gpus: usize,
    /// The limit that it sets for itself, as it is written.
    pub own_limit: Option<String>,
    /// The kind of the controller that would replace it; none for jobs.
    pub replaced_by: Option<String>,
}

impl GpuHolder {
    fn of(entry: &JobEntry) -> Option<GpuHolder> {
        let held = entry.pods.iter().filter_map(|pod| {
            let gpus = pod.accelerators();
            let runs = pod.phase() == "Running" && pod.metadata.deletion_timestamp.is_none();
            (runs && gpus > 0).then(|| Some((pod.metadata.uid.clone()?, gpus)))?
        });
        let held: Vec<(String, usize)> = held.collect();
        if held.is_empty() {
            return None;
        }
        let row = entry.base();
        let (metadata, replaced_by) = match &entry.source {
            Source::Training(_, job) | Source::Other(_, job) => (&job.metadata, None),
            Source::Plain(job) => (&job.metadata, None),
            Source::Cron(_) => return None,
            Source::Pod(pod) => (&pod.metadata, pod.controller.clone()),
        };
        let own_limit = match &entry.source {
            Source::Pod(pod) => pod.idle_limit.clone(),
            _ => {
                let annotations = metadata.annotations.as_ref();
                annotations.and_then(|all| all.get(IDLE_GPU_LIMIT).cloned())
            }
        };
        let mut kinds = registry::all().iter();
        Some(GpuHolder {
            kind: kinds.find(|kind| kind.group == entry.group && kind.plural == entry.resource)?,
            shown: row.kind,
            namespace: row.namespace.clone(),
            name: row.name.clone(),
            uid: metadata.uid.clone()?,
            user: row.user.clone(),
            queue: row.queue.clone(),
            gpus: held.iter().map(|(_, gpus)| gpus).sum(),
            pods: held,
            own_limit,
            replaced_by,
        })
    }
}

impl Board {
    /// All that hold GPUs.
    pub fn gpu_holders(&self) -> Vec<GpuHolder> {
        let entries = self.entries(|_, _, _| true);
        entries
            .iter()
            .filter_map(|entry| GpuHolder::of(entry))
            .collect()
    }
}
