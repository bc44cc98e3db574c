//! Removes the files of an ended pod, and tries again after a failure, for instance a volume that is
//! still mounted somewhere or a disk that reports an error. The pauses between tries are 5 s, 10 s,
//! 20 s, up to 300 s. Changes no other state of the pod.

use std::time::Duration;

use resources::names::EVICTED;
use tokio::time::Instant;

use super::Worker;
use crate::disk::PodDir;
use crate::error::AgentError;

/// The pause after the first failure; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause.
const LAST_PAUSE: Duration = Duration::from_secs(300);
/// Tries for a pod that has left the node, about a day; the next start of the agent tries again.
const TRIES: u32 = 300;
/// The reason of the event about a failed removal.
const NOT_REMOVED: &str = "FailedCleanup";

/// The pause after so many failures in a row, of which there is at least one.
fn pause(failures: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
    FIRST_PAUSE.saturating_mul(doubled).min(LAST_PAUSE)
}

/// How far the removal of an ended pod's files has come.
#[derive(Debug, Default)]
pub(super) enum Cleanup {
    /// Nothing was tried.
    #[default]
    Due,
    /// So many tries failed; the next one is at this time.
    Failed(u32, Instant),
    /// The files are gone.
    Done,
}

impl Cleanup {
    /// Whether to try now.
    fn is_due(&self, now: Instant) -> bool {
        match self {
            Cleanup::Due => true,
            Cleanup::Failed(_, next) => *next <= now,
            Cleanup::Done => false,
        }
    }

    /// When to try again, if a try failed.
    pub(super) fn next(&self) -> Option<Instant> {
        match self {
            Cleanup::Failed(_, next) => Some(*next),
            Cleanup::Due | Cleanup::Done => None,
        }
    }

    /// Records a try; true if it is the first that failed.
    fn tried(&mut self, removed: bool, now: Instant) -> bool {
        let failures = match self {
            Cleanup::Failed(failures, _) => failures.saturating_add(1),
            Cleanup::Due | Cleanup::Done => 1,
        };
        *self = match removed {
            true => Cleanup::Done,
            false => Cleanup::Failed(failures, now + pause(failures)),
        };
        !removed && failures == 1
    }
}

impl Worker {
    /// Removes the files that an ended pod wrote to the disk, as the kubelet does: the pod's object
    /// may exist for long. Its status has the content of its termination logs. The containers of an
    /// evicted pod go, too: their writable layers are part of the space that the eviction is to free.
    pub(super) async fn clear(&mut self) {
        if !self.cleanup.is_due(Instant::now()) {
            return;
        }
        let verdict = self.machine.verdict.as_ref();
        if verdict.is_some_and(|verdict| verdict.reason == EVICTED) {
            self.remove_containers().await;
        }
        // The pod's status keeps the address, which another pod may get from now on.
        self.node.networks.detach(&self.plan.uid).await;
        self.node.policies.changed();
        self.network = None;
        let failed = in_background(self.dir.clone(), PodDir::clear).await;
        let first = self.cleanup.tried(failed.is_none(), Instant::now());
        let Some(why) = failed else { return };
        tracing::warn!(
            namespace = self.plan.namespace,
            pod = self.plan.name,
            why,
            "the files of an ended pod were not removed; trying again"
        );
        if first {
            let message =
                format!("The files of the ended pod were not removed: {why}; trying again");
            self.note(true, NOT_REMOVED, message, None);
        }
    }

    /// Removes all of a pod that leaves the node but its logs. After a failure it tries again in the
    /// background: the server need not wait for this node's disk.
    pub(super) async fn remove_directory(&mut self) {
        let Some(why) = in_background(self.dir.clone(), PodDir::remove).await else {
            return;
        };
        let message = format!("The directory of the pod was not removed: {why}; trying again");
        self.note(true, NOT_REMOVED, message, None);
        let (namespace, pod) = (self.plan.namespace.clone(), self.plan.name.clone());
        tracing::warn!(
            namespace,
            pod,
            why,
            "the directory of a pod was not removed; trying again"
        );
        let dir = self.dir.clone();
        tokio::spawn(async move {
            for failures in 1..TRIES {
                tokio::time::sleep(pause(failures)).await;
                let Some(why) = in_background(dir.clone(), PodDir::remove).await else {
                    tracing::info!(
                        namespace,
                        pod,
                        "the directory of a pod was removed after all"
                    );
                    return;
                };
                tracing::warn!(
                    namespace,
                    pod,
                    why,
                    failures,
                    "the directory of a pod was not removed"
                );
            }
            tracing::error!(
                namespace,
                pod,
                "the directory of a pod stays until the agent's next start"
            );
        });
    }
}

/// Why a removal failed, with the path; none if it succeeded. On a thread that may block.
async fn in_background(
    dir: PodDir,
    remove: fn(&PodDir) -> Result<(), AgentError>,
) -> Option<String> {
    match tokio::task::spawn_blocking(move || remove(&dir)).await {
        Ok(removed) => removed.err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        let pauses: Vec<u64> = (1..10).map(|failures| pause(failures).as_secs()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(pause(u32::MAX), LAST_PAUSE);
    }

    #[test]
    fn a_failed_removal_is_tried_again_after_its_pause_and_reported_once() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut cleanup = Cleanup::default();
        assert!(cleanup.is_due(start));
        assert!(cleanup.tried(false, start));
        assert_eq!(cleanup.next(), Some(after(5)));
        assert!(!cleanup.is_due(after(4)) && cleanup.is_due(after(5)));
        assert!(!cleanup.tried(false, after(5)));
        assert_eq!(cleanup.next(), Some(after(15)));
        assert!(!cleanup.tried(true, after(15)));
        assert_eq!(cleanup.next(), None);
        assert!(!cleanup.is_due(after(1000)));
    }

    #[tokio::test]
    async fn a_removal_that_fails_names_the_path() {
        let data = tempfile::tempdir().unwrap();
        let layout = crate::disk::DataLayout::open(data.path()).unwrap();
        let dir = layout.pod("u");
        std::fs::create_dir_all(dir.volumes()).unwrap();
        // A file in the place of a directory.
        std::fs::write(dir.messages(), "").unwrap();
        let why = in_background(dir.clone(), PodDir::clear).await.unwrap();
        assert!(why.contains("pods/u/messages"), "{why}");
        std::fs::remove_file(dir.messages()).unwrap();
        assert_eq!(in_background(dir, PodDir::clear).await, None);
    }
}
