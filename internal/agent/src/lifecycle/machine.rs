//! The transitions: from a pod's spec and the observed state of its containers to the next actions.
//! Idempotent: a step without new observations does not repeat an action.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use jiff::{SignedDuration, Timestamp};
use resources::names::{EVICTED, NODE_UNFIT};
use serde::{Deserialize, Serialize};

use super::plan::{ContainerPlan, PodPlan};
use super::record::{ContainerRecord, RunEnd, RunObservation, RunState};

/// Grace period of an evicted pod in seconds, as the kubelet gives it: the pod takes resources from
/// the others meanwhile.
const EVICTION_GRACE_SECONDS: u32 = 1;

/// A container that ends after the others gets at least this grace period, in seconds.
const LEAST_GRACE_SECONDS: u32 = 2;

/// Why a pod is terminated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StopCause {
    /// The server requested it.
    Asked {
        /// The server's reason.
        reason: String,
    },
    /// The pod's activeDeadlineSeconds have passed.
    Deadline,
    /// The node could not start one of its containers because of a fault of the node.
    #[serde(rename = "unfit")]
    NodeFault {
        /// The fault, in a sentence.
        message: String,
    },
    /// The node evicts the pod.
    Evicted {
        /// The reason, in a sentence.
        message: String,
        /// Whether the node evicts it to protect itself, and not for a limit of the pod's own.
        by_node: bool,
    },
}

/// The termination of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// The cause.
    pub cause: StopCause,
    /// The grace period in seconds.
    pub grace: u32,
    /// When it started.
    pub since: Timestamp,
}

/// How a pod ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodVerdict {
    /// Whether all its containers completed successfully.
    pub succeeded: bool,
    /// The reason in one word; empty when the containers' states suffice.
    pub reason: String,
    /// The reason in a sentence.
    pub message: String,
}

/// Why a container that could start doesn't.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartBlock {
    /// The reason in one word, for the waiting state.
    pub reason: String,
    /// The reason in a sentence.
    pub message: String,
}

/// What prevents containers from starting, apart from the pod's own lifecycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    /// The reason for which the whole pod waits.
    pub pod: Option<StartBlock>,
    /// The reasons for which single containers wait.
    pub containers: BTreeMap<String, StartBlock>,
}

impl Gates {
    /// The reason for which a container waits.
    pub fn hold(&self, container: &str) -> Option<&StartBlock> {
        self.pod.as_ref().or_else(|| self.containers.get(container))
    }
}

/// The result of a probe or hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeVerdict {
    /// The startup probe has succeeded.
    Started,
    /// The readiness probe succeeds or fails.
    Ready(bool),
    /// The container must end because of a liveness or startup probe or a postStart hook; with the
    /// reason.
    Condemned(String),
}

/// An action of the worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerAction {
    /// Start a container's run.
    Start {
        /// The container's name.
        container: String,
        /// The run's number.
        attempt: u32,
    },
    /// Ends a container's run.
    Kill {
        /// The container's name.
        container: String,
        /// The run's number.
        attempt: u32,
        /// Seconds between SIGTERM and SIGKILL.
        grace: u32,
        /// The reason, as a message.
        why: String,
    },
    /// Reports that a container waits to be restarted.
    BackOff {
        /// The container's name.
        container: String,
    },
}

/// The result of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LifecycleStep {
    /// Actions to do now, in order.
    pub actions: Vec<WorkerAction>,
    /// When to step again without a new observation.
    pub wake: Option<Timestamp>,
}

impl LifecycleStep {
    fn wake_at(&mut self, time: Timestamp) {
        self.wake = Some(self.wake.map_or(time, |wake| wake.min(time)));
    }
}

/// The state of a pod's lifecycle; saved to disk as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodLifecycle {
    /// When this node accepted the pod.
    pub start_time: Option<Timestamp>,
    /// Its containers.
    pub containers: BTreeMap<String, ContainerRecord>,
    /// Its termination, once started.
    pub stopping: Option<Stopping>,
    /// Its result, once it has ended.
    pub verdict: Option<PodVerdict>,
    /// Its own address; none of a pod in the node's network, and of one that has not got its address yet.
    #[serde(default)]
    pub address: Option<Ipv4Addr>,
}

enum Init {
    Done,
    Waiting,
}

impl PodLifecycle {
    /// The server requests its end. A second request can only shorten the grace period.
    pub fn stop(&mut self, grace: u32, reason: &str, now: Timestamp) {
        match &mut self.stopping {
            Some(stopping) => stopping.grace = stopping.grace.min(grace),
            None => {
                self.stopping = Some(Stopping {
                    cause: StopCause::Asked {
                        reason: reason.to_owned(),
                    },
                    grace,
                    since: now,
                });
            }
        }
    }

    /// The node evicts it; true unless it is already terminating, which leaves it less time.
    pub fn evict(&mut self, message: &str, by_node: bool, now: Timestamp) -> bool {
        if self.verdict.is_some() {
            return false;
        }
        if let Some(stopping) = &mut self.stopping {
            stopping.grace = stopping.grace.min(EVICTION_GRACE_SECONDS);
            return false;
        }
        self.stopping = Some(Stopping {
            cause: StopCause::Evicted {
                message: message.to_owned(),
                by_node,
            },
            grace: EVICTION_GRACE_SECONDS,
            since: now,
        });
        true
    }

    /// Why the node evicted it to protect itself, if it did.
    pub fn disrupted(&self) -> Option<&str> {
        match &self.stopping.as_ref()?.cause {
            StopCause::Evicted {
                message,
                by_node: true,
            } => Some(message),
            _ => None,
        }
    }

    /// Records an observation of a container's run; true if it is new.
    pub fn observe(
        &mut self,
        plan: &PodPlan,
        container: &str,
        attempt: u32,
        observation: RunObservation,
    ) -> bool {
        let Some(described) = plan.container(container) else {
            return false;
        };
        self.containers
            .entry(container.to_owned())
            .or_default()
            .observe(
                attempt,
                observation,
                described.startup_probe,
                described.readiness_probe,
            )
    }

    /// Records, after the agent's restart, that the runtime has no such run. A run that was only
    /// requested never started; a run that was running has ended unobserved.
    pub fn mark_unobserved(&mut self, container: &str, now: Timestamp) {
        let Some(record) = self.containers.get_mut(container) else {
            return;
        };
        match record.run {
            RunState::Starting => record.run = RunState::Never,
            RunState::Running { since } => {
                record.run = RunState::Ended(RunEnd::unknown(
                    "the container's end was not seen; the node's runtime knows nothing of it",
                    Some(since),
                    now,
                ));
                record.started = false;
                record.ready = false;
            }
            RunState::Never | RunState::Ended(_) => {}
        }
    }

    /// Records that a requested run could not be created because something is missing that may
    /// appear later (an image): it is retried under any restart policy. True if this is new.
    pub fn not_made(
        &mut self,
        container: &str,
        attempt: u32,
        why: StartBlock,
        now: Timestamp,
    ) -> bool {
        self.containers
            .get_mut(container)
            .is_some_and(|record| record.not_made(attempt, why, now))
    }

    /// Records the result of a probe or hook of a run; true if it is new.
    pub fn probed(&mut self, container: &str, attempt: u32, verdict: ProbeVerdict) -> bool {
        let Some(record) = self.containers.get_mut(container) else {
            return false;
        };
        if record.attempt != attempt || !record.is_running() {
            return false;
        }
        let before = record.clone();
        match verdict {
            ProbeVerdict::Started => record.started = true,
            ProbeVerdict::Ready(ready) => record.ready = ready && record.started,
            ProbeVerdict::Condemned(why) => {
                record.condemned.get_or_insert(why);
            }
        }
        *record != before
    }

    /// Sets readiness after the startup probe of a container without readiness probe.
    fn settle_readiness(&mut self, plan: &PodPlan) {
        for container in plan.all().filter(|c| !c.readiness_probe) {
            if let Some(record) = self.containers.get_mut(&container.name) {
                record.ready = record.started && record.is_running();
            }
        }
    }

    /// Whether nothing of it runs or will run.
    pub fn is_over(&self) -> bool {
        self.verdict.is_some() && !self.is_alive()
    }

    /// Whether a container of it may run.
    pub fn is_alive(&self) -> bool {
        self.containers.values().any(ContainerRecord::is_alive)
    }

    /// Whether a container of it was requested, by this or an earlier agent.
    pub fn has_begun(&self) -> bool {
        let mut records = self.containers.values();
        records.any(|record| record.attempt > 0 || record.run != RunState::Never)
    }

    /// The actions to do now.
    pub fn step(&mut self, plan: &PodPlan, gates: &Gates, now: Timestamp) -> LifecycleStep {
        let mut step = LifecycleStep::default();
        let start_time = *self.start_time.get_or_insert(now);
        for container in plan.all() {
            self.containers.entry(container.name.clone()).or_default();
        }
        self.settle_readiness(plan);
        if self.verdict.is_some() {
            return step;
        }
        self.check_deadline(plan, start_time, now, &mut step);
        self.check_node(plan, now);
        if self.stopping.is_some() {
            self.bring_down(plan, now, &mut step);
            return step;
        }
        // Checked before anything starts: a sidecar that the agent ended must not restart.
        if self.course_is_run(plan) {
            self.wind_up(plan, &mut step);
            return step;
        }
        match self.step_init(plan, gates, now, &mut step) {
            Init::Waiting => {}
            Init::Done => self.step_main(plan, gates, now, &mut step),
        }
        self.execute_condemned(plan, &mut step);
        step
    }

    /// Whether the containers have all ended for good, or an init container has failed for good.
    fn course_is_run(&self, plan: &PodPlan) -> bool {
        let ended = |c: &ContainerPlan, failed_only: bool| {
            self.containers[&c.name].end().is_some_and(|end| {
                !(plan.restart.restarts(end.code) || failed_only && end.code == 0)
            })
        };
        let init_failed = plan.init.iter().any(|c| !c.sidecar && ended(c, true));
        let all_over = !plan.main.is_empty() && plan.main.iter().all(|c| ended(c, false));
        init_failed || all_over
    }

    fn check_deadline(
        &mut self,
        plan: &PodPlan,
        start_time: Timestamp,
        now: Timestamp,
        step: &mut LifecycleStep,
    ) {
        let Some(limit) = plan.active_deadline else {
            return;
        };
        if self.stopping.is_some() {
            return;
        }
        let end = start_time
            .checked_add(SignedDuration::from_secs(limit))
            .unwrap_or(Timestamp::MAX);
        if now >= end {
            self.stopping = Some(Stopping {
                cause: StopCause::Deadline,
                grace: plan.grace,
                since: now,
            });
        } else {
            step.wake_at(end);
        }
    }

    /// A container that this node can't start is not retried here under any restart policy.
    fn check_node(&mut self, plan: &PodPlan, now: Timestamp) {
        if self.stopping.is_some() {
            return;
        }
        let mut ends = self.containers.values().filter_map(ContainerRecord::end);
        let unfit = ends.find(|end| end.reason == NODE_UNFIT);
        let Some(message) = unfit.map(|end| end.message.clone()) else {
            return;
        };
        self.stopping = Some(Stopping {
            cause: StopCause::NodeFault { message },
            grace: plan.grace,
            since: now,
        });
    }

    fn record(&mut self, container: &ContainerPlan) -> &mut ContainerRecord {
        self.containers.entry(container.name.clone()).or_default()
    }

    fn step_init(
        &mut self,
        plan: &PodPlan,
        gates: &Gates,
        now: Timestamp,
        step: &mut LifecycleStep,
    ) -> Init {
        let main_begun = plan
            .main
            .iter()
            .any(|c| self.containers[&c.name].run != RunState::Never);
        for container in &plan.init {
            let record = self.record(container);
            if container.sidecar {
                if !record.is_alive() {
                    self.run(container, gates, now, step);
                }
                // Once the main containers run, a restarting sidecar delays no other container.
                if !main_begun && !self.containers[&container.name].started {
                    return Init::Waiting;
                }
                continue;
            }
            // Init containers that completed aren't run again.
            match &record.run {
                RunState::Ended(end) if end.code == 0 => {}
                RunState::Never | RunState::Ended(_) => {
                    self.run(container, gates, now, step);
                    return Init::Waiting;
                }
                RunState::Starting | RunState::Running { .. } => return Init::Waiting,
            }
        }
        Init::Done
    }

    fn step_main(
        &mut self,
        plan: &PodPlan,
        gates: &Gates,
        now: Timestamp,
        step: &mut LifecycleStep,
    ) {
        for container in &plan.main {
            match &self.containers[&container.name].run {
                RunState::Ended(end) if !plan.restart.restarts(end.code) => {}
                RunState::Never | RunState::Ended(_) => self.run(container, gates, now, step),
                RunState::Starting | RunState::Running { .. } => {}
            }
        }
    }

    /// Starts a container that isn't running, now or at the end of its back-off.
    fn run(
        &mut self,
        container: &ContainerPlan,
        gates: &Gates,
        now: Timestamp,
        step: &mut LifecycleStep,
    ) {
        if gates.hold(&container.name).is_some() {
            return;
        }
        let record = self.record(container);
        if let Some(unmade) = record.unmade.as_ref().filter(|unmade| now < unmade.until) {
            step.wake_at(unmade.until);
            return;
        }
        let waited_before = record.wait_until;
        if let Some(until) = record.may_restart(now) {
            step.wake_at(until);
            if waited_before != Some(until) {
                step.actions.push(WorkerAction::BackOff {
                    container: container.name.clone(),
                });
            }
            return;
        }
        record.begin();
        step.actions.push(WorkerAction::Start {
            container: container.name.clone(),
            attempt: record.attempt,
        });
    }

    /// Only sidecars are left: ends them, and sets the result when they have ended.
    fn wind_up(&mut self, plan: &PodPlan, step: &mut LifecycleStep) {
        for container in plan.all().rev() {
            self.kill(
                container,
                plan.grace,
                "the pod's containers have completed",
                step,
            );
        }
        if !self.is_alive() {
            self.verdict = Some(self.natural_verdict(plan));
        }
    }

    /// Ends everything: the main containers first, then the sidecars in reverse order of their
    /// start.
    fn bring_down(&mut self, plan: &PodPlan, now: Timestamp, step: &mut LifecycleStep) {
        let Some(stopping) = self.stopping.clone() else {
            return;
        };
        let why = match &stopping.cause {
            StopCause::Asked { reason } => reason.clone(),
            StopCause::Deadline => "the pod's activeDeadlineSeconds are over".to_owned(),
            StopCause::NodeFault { message } => format!("this node cannot run the pod: {message}"),
            StopCause::Evicted { message, .. } => message.trim().to_owned(),
        };
        let sidecar = |c: &&ContainerPlan| c.sidecar;
        let first_alive = plan
            .all()
            .filter(|c| !sidecar(c))
            .any(|c| self.containers[&c.name].is_alive());
        if first_alive {
            for container in plan.all().filter(|c| !sidecar(c)) {
                self.kill(container, stopping.grace, &why, step);
            }
            if stopping.grace > LEAST_GRACE_SECONDS {
                return;
            }
        }
        let passed = now.duration_since(stopping.since).as_secs().max(0);
        let left = i64::from(stopping.grace).saturating_sub(passed);
        let left = u32::try_from(left.max(0)).unwrap_or(0);
        let left = left.max(LEAST_GRACE_SECONDS).min(stopping.grace.max(1));
        for container in plan.init.iter().rev().filter(sidecar) {
            // One at a time and in order, as long as the grace period lasts.
            let record = &self.containers[&container.name];
            let alive = record.is_alive();
            if record.killed.is_none_or(|sent| sent > stopping.grace) {
                self.kill(container, left, &why, step);
            }
            if alive && stopping.grace > LEAST_GRACE_SECONDS {
                return;
            }
        }
        if self.is_alive() {
            return;
        }
        self.verdict = Some(match stopping.cause {
            StopCause::Deadline => PodVerdict {
                succeeded: false,
                reason: "DeadlineExceeded".to_owned(),
                message: "Pod was active on the node longer than the specified deadline".to_owned(),
            },
            StopCause::NodeFault { message } => PodVerdict {
                succeeded: false,
                reason: NODE_UNFIT.to_owned(),
                message: format!("the node could not start a container: {message}"),
            },
            StopCause::Evicted { message, .. } => PodVerdict {
                succeeded: false,
                reason: EVICTED.to_owned(),
                message,
            },
            StopCause::Asked { .. } => self.natural_verdict(plan),
        });
    }

    fn natural_verdict(&self, plan: &PodPlan) -> PodVerdict {
        let succeeded = plan.main.iter().all(|c| {
            self.containers[&c.name]
                .end()
                .is_some_and(|end| end.code == 0)
        });
        PodVerdict {
            succeeded,
            reason: String::new(),
            message: String::new(),
        }
    }

    fn execute_condemned(&mut self, plan: &PodPlan, step: &mut LifecycleStep) {
        for container in plan.all() {
            let Some(why) = self.containers[&container.name].condemned.clone() else {
                continue;
            };
            let grace = container.probe_grace.unwrap_or(plan.grace);
            self.kill(container, grace, &why, step);
        }
    }

    fn kill(&mut self, container: &ContainerPlan, grace: u32, why: &str, step: &mut LifecycleStep) {
        let record = self.record(container);
        if !record.is_alive() || record.killed.is_some_and(|sent| sent <= grace) {
            return;
        }
        record.killed = Some(grace);
        step.actions.push(WorkerAction::Kill {
            container: container.name.clone(),
            attempt: record.attempt,
            grace,
            why: why.to_owned(),
        });
    }
}
