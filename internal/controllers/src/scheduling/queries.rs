//! Questions to the scheduler: why a gang waits and which gangs it could evict, earlier decisions
//! on it, where pods would be placed, the queues' status, and the plan of defragmentation. Holds
//! the latest reports and the history; decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::{Mutex, RwLock};
use resources::defragmentation::{DefragmentationMove, DefragmentationReport};
use resources::kinds::PodGroup;
use resources::queue_status::QueueUsageStatus;
use resources::record::DecisionRecord;
use resources::report::{PlacementReport, Preemptable};
use scheduler::{GroupRef, PlacementStrategy, Plan, QueueOrderReports, Trial, WhatIf};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::checked_planner::CheckedPlanner;
use super::counters::{CounterSnapshot, SchedulingCounters};
use super::history::{self, DecisionHistory};
use super::queue_status;

/// How long an answer about possible victims stays valid, and how many answers are cached.
const ASKED_GOOD: Duration = Duration::from_secs(5);
const ASKED_MAX: usize = 1024;
/// How many copies of the scheduler's state may exist at a time for what-if questions. A copy takes
/// as much memory as the state, about 390 MiB for 10,000 nodes.
const WHAT_IFS_MAX: usize = 2;

/// A cached answer about the gangs that a gang could evict.
struct CachedVictims {
    at: Instant,
    /// The gang's report at the time: if the report changes, the answer is stale.
    report: Option<PlacementReport>,
    victims: Vec<Preemptable>,
}

/// The latest report on each waiting gang, and an interface for what-if questions.
pub struct ReportBoard {
    reports: RwLock<QueueOrderReports>,
    history: Mutex<DecisionHistory>,
    /// Recent answers about possible victims, by gang.
    asked: Mutex<BTreeMap<(String, String), CachedVictims>>,
    config: scheduler::Config,
    planner: Arc<Mutex<CheckedPlanner>>,
    what_ifs: Arc<Semaphore>,
    tally: SchedulingCounters,
    version: watch::Sender<u64>,
}

impl ReportBoard {
    pub(crate) fn new(config: &scheduler::Config) -> ReportBoard {
        ReportBoard {
            reports: RwLock::new(QueueOrderReports::default()),
            history: Mutex::default(),
            asked: Mutex::default(),
            config: config.clone(),
            planner: Arc::new(Mutex::new(CheckedPlanner::new(config))),
            what_ifs: Arc::new(Semaphore::new(WHAT_IFS_MAX)),
            tally: SchedulingCounters::default(),
            version: watch::Sender::new(0),
        }
    }

    /// Why a gang waits: by its PodGroup's name, or the pod's for a pod without one. None for a
    /// gang that does not wait or is unknown.
    #[must_use]
    pub fn get(&self, namespace: &str, group: &str) -> Option<PlacementReport> {
        let reports = self.reports.read();
        let mut all = reports.iter();
        let found = all.find(|report| report.group == group && report.namespace == namespace);
        found.cloned()
    }

    /// Every waiting gang's report, by namespace and name.
    #[must_use]
    pub fn all(&self) -> Vec<PlacementReport> {
        let mut all: Vec<PlacementReport> = self.reports.read().iter().cloned().collect();
        all.sort_by(|a, b| (&a.namespace, &a.group).cmp(&(&b.namespace, &b.group)));
        all
    }

    /// How many gangs wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.reports.read().len()
    }

    /// Whether no gang waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reports.read().is_empty()
    }

    /// Changes whenever the reports did.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// How many invariant violations were found in plans, and removed before writing, since the
    /// server started. A value above zero means a fault in the scheduler.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.counts().violations
    }

    /// The loop's counters since the server started, for metrics.
    #[must_use]
    pub fn counts(&self) -> CounterSnapshot {
        self.tally.counts()
    }

    /// Where pods would be placed now, or why not. Pods that name `group` are placed as that gang,
    /// each other pod alone. Changes nothing.
    pub async fn would_place(&self, group: Option<PodGroup>, pods: Vec<Pod>) -> Trial {
        self.ask_copy(move |copy| copy.would_place(group.as_ref(), &pods, Timestamp::now()))
            .await
    }

    /// The retained decisions on a gang, the oldest first; by its PodGroup's name, or the pod's for
    /// a pod without one. The history's own limits bound them.
    #[must_use]
    pub fn history(&self, namespace: &str, group: &str) -> Vec<DecisionRecord> {
        self.history.lock().of(namespace, group)
    }

    /// Loads the decisions stored by earlier servers, each under its number, and makes
    /// [`ReportBoard::unwritten`] return new ones from then on. Returns how many could not be read.
    pub fn recall(&self, records: Vec<(u64, Vec<u8>)>) -> usize {
        let lines = history::lines(records);
        let unread = lines.iter().filter(|(_, line)| line.is_none()).count();
        self.history.lock().recall(lines);
        unread
    }

    /// Decisions to store, at most `most`, each under its number; none means that the record is
    /// deleted. Each is returned once. Stored decisions that were merely repeated since are
    /// included if `went_on` says so. Returns nothing before [`ReportBoard::recall`].
    #[must_use]
    pub fn unwritten(&self, went_on: bool, most: usize) -> Vec<(u64, Option<Vec<u8>>)> {
        let changes = self.history.lock().unwritten(went_on, most);
        history::bytes(changes)
    }

    /// Stops collecting decisions for storage.
    pub fn keep_no_more(&self) {
        self.history.lock().keep_no_more();
    }

    /// Deletes the decisions on gangs that are gone and had no decision since `then`. Returns the
    /// number of those gangs; none before everything was listed.
    pub async fn forget_gone(&self, then: Timestamp) -> usize {
        let silent = self.history.lock().silent_since(then);
        if silent.is_empty() || !self.counts().listed {
            return 0;
        }
        let gone = self.ask(move |planner| {
            let scheduler = planner.scheduler();
            let gone = silent
                .into_iter()
                .filter(|(namespace, group)| !scheduler.knows(namespace, group));
            gone.collect::<Vec<_>>()
        });
        let gone = gone.await;
        let mut history = self.history.lock();
        gone.iter().for_each(|key| history.drop_silent(key, then));
        gone.len()
    }

    /// Which gangs a waiting gang could evict to start now. Changes nothing. An answer stays valid
    /// for [`ASKED_GOOD`] unless the gang's report changes: pages ask again after every change.
    pub async fn could_evict(&self, namespace: &str, group: &str) -> Vec<Preemptable> {
        let key = (namespace.to_owned(), group.to_owned());
        let at = Instant::now();
        let report = self.get(namespace, group);
        let good = |asked: &CachedVictims| at.duration_since(asked.at) < ASKED_GOOD;
        if let Some(asked) = self.asked.lock().get(&key)
            && good(asked)
            && asked.report == report
        {
            return asked.victims.clone();
        }
        let (namespace, group) = key.clone();
        let ask = self.ask_copy(move |copy| copy.could_evict(&namespace, &group, Timestamp::now()));
        let victims = ask.await;
        let mut kept = self.asked.lock();
        kept.retain(|_, asked| good(asked));
        if kept.len() < ASKED_MAX {
            let victims = victims.clone();
            kept.insert(
                key,
                CachedVictims {
                    at,
                    report,
                    victims,
                },
            );
        }
        victims
    }

    /// The status of every queue.
    pub async fn standings(&self) -> BTreeMap<String, QueueUsageStatus> {
        let views = self.ask(|planner| planner.queues()).await;
        queue_status::standings(&views)
    }

    /// The moves that defragmentation would make now. Changes nothing.
    pub async fn defragmentation(&self) -> DefragmentationReport {
        let proposal = self
            .ask_copy(|copy| copy.defragmentation(Timestamp::now()))
            .await;
        let config = &self.config;
        let moves = proposal.moves.into_iter().map(|step| DefragmentationMove {
            namespace: step.pod.namespace,
            pod: step.pod.name,
            group: step.group.name,
            from: step.from,
            to: step.to,
        });
        DefragmentationReport {
            enabled: config.actions.defragment && config.placement != PlacementStrategy::Spread,
            moves_an_hour: config.defragmentation.moves_an_hour,
            moves: moves.collect(),
            nodes: proposal.nodes,
            whole_before: proposal.whole_before,
            whole_after: proposal.whole_after,
            gpus_gained: proposal.gpus_gained,
            gpu_hours_lost: proposal.gpu_hours_lost,
        }
    }

    /// Asks outside the runtime's threads: an answer may take a while.
    pub(super) async fn ask<T: Default + Send + 'static>(
        &self,
        question: impl FnOnce(&mut CheckedPlanner) -> T + Send + 'static,
    ) -> T {
        let planner = self.planner.clone();
        let answer = tokio::task::spawn_blocking(move || question(&mut planner.lock()));
        // Only a panic in the scheduler ends the task early: then the answer is empty.
        answer.await.unwrap_or_default()
    }

    /// Asks a copy of the scheduler's state, outside the runtime's threads. The scheduler's loop
    /// waits while the copy is made, and goes on while the answer is computed. At most
    /// [`WHAT_IFS_MAX`] copies exist at a time; further questions wait.
    async fn ask_copy<T: Default + Send + 'static>(
        &self,
        question: impl FnOnce(WhatIf) -> T + Send + 'static,
    ) -> T {
        let Ok(permit) = self.what_ifs.clone().acquire_owned().await else {
            return T::default();
        };
        let planner = self.planner.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let _one_of_few = permit;
            let copy = planner.lock().what_if();
            question(copy)
        });
        // A panic in the search ends it without an answer, and does not touch the scheduler's own
        // state.
        answer.await.unwrap_or_default()
    }

    /// Records a plan's decisions.
    pub(super) fn decided(&self, plan: &Plan, now: Timestamp) {
        self.history.lock().decide(plan, now);
    }

    /// Records that the API refused a decision.
    pub(super) fn refused(&self, group: &GroupRef, pod: &str, node: &str, what: &str) {
        let mut history = self.history.lock();
        history.refuse(group, pod, node, what, Timestamp::now());
    }

    pub(super) fn config(&self) -> &scheduler::Config {
        &self.config
    }

    pub(super) fn planner(&self) -> Arc<Mutex<CheckedPlanner>> {
        self.planner.clone()
    }

    pub(super) fn put(&self, fresh: QueueOrderReports, now: Timestamp) {
        let mut reports = self.reports.write();
        (self.history.lock()).wait(fresh.news(&reports).into_iter(), now);
        if *reports != fresh {
            *reports = fresh;
            self.version.send_modify(|version| *version += 1);
        }
    }

    pub(super) fn tally(&self) -> &SchedulingCounters {
        &self.tally
    }
}
