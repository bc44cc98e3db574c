//! What others may ask the scheduler: why a gang waits, and where pods would go. Holds the
//! latest reports; decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::{Mutex, RwLock};
use resources::kinds::PodGroup;
use resources::report::PlacementReport;
use scheduler::Trial;
use tokio::sync::watch;

use super::brain::Brain;
use super::tally::{Counts, Tally};

/// The latest report on each waiting gang, and a way to ask what-ifs.
pub struct ReportBoard {
    reports: RwLock<BTreeMap<(String, String), PlacementReport>>,
    brain: Arc<Mutex<Brain>>,
    tally: Tally,
    version: watch::Sender<u64>,
}

impl ReportBoard {
    pub(super) fn new(scheduler_names: &[String]) -> ReportBoard {
        ReportBoard {
            reports: RwLock::new(BTreeMap::new()),
            brain: Arc::new(Mutex::new(Brain::new(scheduler_names))),
            tally: Tally::default(),
            version: watch::Sender::new(0),
        }
    }

    /// Why a gang waits: by its PodGroup's name, or the pod's for a pod without one. None for
    /// a gang that waits for nothing, or is not known.
    #[must_use]
    pub fn get(&self, namespace: &str, group: &str) -> Option<PlacementReport> {
        let key = (namespace.to_owned(), group.to_owned());
        self.reports.read().get(&key).cloned()
    }

    /// Every waiting gang's report, by namespace and name.
    #[must_use]
    pub fn all(&self) -> Vec<PlacementReport> {
        self.reports.read().values().cloned().collect()
    }

    /// How many gangs wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.reports.read().len()
    }

    /// Does nobody wait?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reports.read().is_empty()
    }

    /// Changes whenever the reports did.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// How many violations of the invariants were found in plans, and kept from being
    /// written, since the server started. Anything but zero is a fault in the scheduler.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.counts().violations
    }

    /// What the loop did since the server started, for metrics.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.tally.counts()
    }

    /// Where pods would go if they were there now, and why not. Those that name `group` are
    /// placed as that gang, each other one by itself. Changes nothing.
    pub async fn would_place(&self, group: Option<PodGroup>, pods: Vec<Pod>) -> Trial {
        let brain = self.brain.clone();
        let ask = move || {
            brain
                .lock()
                .would_place(group.as_ref(), &pods, Timestamp::now())
        };
        // Only a panic in the scheduler ends it early: then there is nothing to say.
        tokio::task::spawn_blocking(ask).await.unwrap_or_default()
    }

    pub(super) fn brain(&self) -> Arc<Mutex<Brain>> {
        self.brain.clone()
    }

    pub(super) fn put(&self, reports: Vec<PlacementReport>) {
        let fresh: BTreeMap<_, _> = reports
            .into_iter()
            .map(|report| ((report.namespace.clone(), report.group.clone()), report))
            .collect();
        let mut reports = self.reports.write();
        if *reports != fresh {
            *reports = fresh;
            self.version.send_modify(|version| *version += 1);
        }
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }
}
