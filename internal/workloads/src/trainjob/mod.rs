//! TrainJob of Kubeflow Trainer, `trainer.kubeflow.org/v1alpha1`: a training program in a runtime. A TrainJob runs as a
//! JobSet of its own name, built from its runtime as it was at the first look: a ControllerRevision keeps that. Owns
//! the life cycle; the sibling modules own the JobSet. Behaviour: Trainer's `pkg/controller` and its plugins, with these
//! differences: the variables are set for a TrainJob without `spec.trainer`, too; where pods share their node's address,
//! each TrainJob has a port of its own; and a TrainJob without a runtime waits for one.

mod build;
mod merge;
mod policy;
mod progress;

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use resources::kinds::{JobSet, TrainJob, TrainJobJobStatus, TrainJobStatus, TrainingRuntimeSpec};
use resources::names;
use resources::numbers::later;
use resources::trainer::{CLUSTER_RUNTIME, KIND, MANAGER};
use serde_json::json;

use self::build::Builder;
use crate::action::{Action, Dependent, DependentKind, EventNote, ReconcileOutcome};
use crate::ownership::{controlled_by, controller_reference};
use crate::ray::set_condition;
use crate::training::{Network, annotated_port};

const API_VERSION: &str = "trainer.kubeflow.org/v1alpha1";
/// The port at which the processes of a training meet if every pod has its own address. Trainer's.
const PORT: u16 = 29_500;
/// Seconds until a job looks for a free port, or at a JobSet in its way, again.
const LOOK_AGAIN: i64 = 5;

const SUSPENDED: &str = "Suspended";
const COMPLETE: &str = "Complete";
const FAILED: &str = "Failed";

/// Where the processes of a training meet.
pub(crate) struct Rendezvous {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The observed state to decide on.
pub struct ObservedTrainJob<'a> {
    /// The job, with its status and annotations as last written.
    pub job: &'a TrainJob,
    /// The runtime that it names, if it exists.
    pub runtime: Option<&'a TrainingRuntimeSpec>,
    /// Revisions of the job: the runtime as the job first saw it.
    pub revisions: &'a [&'a ControllerRevision],
    /// The JobSet with the job's name, of any owner.
    pub job_set: Option<&'a JobSet>,
    /// The network that its pods use.
    pub network: &'a Network,
    /// The ports that other jobs hold.
    pub taken_ports: &'a BTreeSet<u16>,
}

/// Whether the job has come to its end, so that it holds no port.
#[must_use]
pub fn is_finished(job: &TrainJob) -> bool {
    let status = job.status.as_ref();
    status.is_some_and(|status| [COMPLETE, FAILED].iter().any(|type_| holds(status, type_)))
}

fn holds(status: &TrainJobStatus, type_: &str) -> bool {
    let mut all = status.conditions.iter();
    all.any(|known| known.type_ == type_ && known.status == "True")
}

/// Decides the next actions for a job. Once the result was carried out, another call gives the same status and no
/// actions, until something changes.
#[must_use]
pub fn reconcile(
    observed: &ObservedTrainJob<'_>,
    now: Timestamp,
) -> ReconcileOutcome<TrainJobStatus> {
    let job = observed.job;
    let mut outcome = ReconcileOutcome::keep(job.status.clone().unwrap_or_default());
    let manager = job.spec.managed_by.as_deref().unwrap_or(MANAGER);
    if job.metadata.deletion_timestamp.is_some() || manager != MANAGER {
        return outcome;
    }
    let ours = observed
        .job_set
        .filter(|found| controlled_by(&found.metadata, &job.metadata));
    if is_finished(job) {
        finished(ours, &mut outcome);
        return outcome;
    }
    outcome.status.message = None;
    let mut decision = Decision {
        job,
        ours,
        observed,
        outcome,
        now,
    };
    decision.suspend();
    decision.bring_about();
    if let Some(job_set) = ours {
        decision.read(job_set);
    }
    decision.watch_deadline();
    decision.outcome
}

/// A JobSet that the deadline ended is deleted; one that ended by itself stays with its job.
fn finished(ours: Option<&JobSet>, outcome: &mut ReconcileOutcome<TrainJobStatus>) {
    let runs = ours.filter(|found| {
        let status = found.status.as_ref();
        status.is_none_or(|status| status.terminal_state.is_none())
    });
    outcome.actions.extend(runs.and_then(delete));
}

/// One decision in the making.
struct Decision<'a> {
    job: &'a TrainJob,
    ours: Option<&'a JobSet>,
    observed: &'a ObservedTrainJob<'a>,
    outcome: ReconcileOutcome<TrainJobStatus>,
    now: Timestamp,
}

impl<'a> Decision<'a> {
    fn suspended(&self) -> bool {
        self.job.spec.suspend == Some(true)
    }

    fn set(&mut self, type_: &str, holds: bool, reason: &str, message: &str) {
        let list: &mut Vec<Condition> = &mut self.outcome.status.conditions;
        if !set_condition(list, type_, holds, reason, message, self.now) {
            return;
        }
        let note = match type_ {
            FAILED => EventNote::warning(reason, message),
            _ => EventNote::normal(reason, message),
        };
        self.outcome.events.push(note);
    }

    fn suspend(&mut self) {
        if self.suspended() {
            self.set(SUSPENDED, true, "Suspended", "TrainJob is suspended");
        } else if holds(&self.outcome.status, SUSPENDED) {
            self.set(SUSPENDED, false, "Resumed", "TrainJob is resumed");
        }
    }

    /// Says what the job waits for.
    fn wait(&mut self, reason: &str, message: String) {
        let known = self
            .job
            .status
            .as_ref()
            .and_then(|status| status.message.as_ref());
        if known != Some(&message) {
            self.outcome
                .events
                .push(EventNote::warning(reason, &message));
        }
        self.outcome.status.message = Some(message);
    }

    /// The runtime as the job first saw it.
    fn runtime(&mut self) -> Option<TrainingRuntimeSpec> {
        let mut revisions = self.observed.revisions.iter();
        let kept = revisions.find(|revision| controlled_by(&revision.metadata, &self.job.metadata));
        let kept = kept.and_then(|revision| revision.data.as_ref());
        if let Some(kept) = kept.and_then(|data| serde_json::from_value(data.0.clone()).ok()) {
            return Some(kept);
        }
        let reference = &self.job.spec.runtime_ref;
        let Some(found) = self.observed.runtime else {
            let kind = reference.kind.as_deref().unwrap_or(CLUSTER_RUNTIME);
            let message = format!(
                "There is no {kind} {:?}: create it, or name another one in a new TrainJob. `muster get {}s` lists those there are.",
                reference.name,
                kind.to_ascii_lowercase()
            );
            self.wait("TrainingRuntimeNotFound", message);
            return None;
        };
        let meta = &self.job.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let revision = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(format!("{name}-runtime")),
                namespace: meta.namespace.clone(),
                owner_references: Some(vec![controller_reference(API_VERSION, KIND, meta)]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(json!(found))),
            revision: 1,
        };
        let create = Action::Create(Dependent::Revision(Box::new(revision)));
        self.outcome.actions.push(create);
        Some(found.clone())
    }

    /// Creates the JobSet, and suspends and resumes it. One that is suspended and was made from another template is
    /// deleted, and made anew.
    fn bring_about(&mut self) {
        if self.ours.is_none()
            && let Some(other) = self.observed.job_set
        {
            let name = other.metadata.name.clone().unwrap_or_default();
            let message = format!(
                "JobSet {name:?} is not this TrainJob's: delete it, or create the TrainJob under another name."
            );
            self.outcome.requeue(later(self.now, LOOK_AGAIN));
            return self.wait("JobSetInTheWay", message);
        }
        let held = self
            .ours
            .is_some_and(|found| found.spec.suspend == Some(true));
        if self.ours.is_some() && !held {
            if self.suspended() {
                self.patch_suspension();
            }
            return;
        }
        let Some(runtime) = self.runtime() else {
            return;
        };
        let builder = match Builder::new(self.job, &runtime) {
            Ok(builder) => builder,
            Err(misfit) => {
                let message = format!("The TrainJob does not fit its runtime: {misfit}.");
                return self.set(FAILED, true, "TrainingRuntimeNotSupported", &message);
            }
        };
        let Some(port) = self.port(builder.listens()) else {
            return;
        };
        let wanted = builder.build(port);
        let Some(found) = self.ours else {
            let create = Action::Create(Dependent::JobSet(Box::new(wanted)));
            return self.outcome.actions.push(create);
        };
        let hash = |set: &JobSet| {
            let annotations = set.metadata.annotations.as_ref();
            annotations
                .and_then(|all| all.get(names::TEMPLATE_HASH))
                .cloned()
        };
        if hash(found) != hash(&wanted) {
            self.outcome.actions.extend(delete(found));
        } else if !self.suspended() {
            self.patch_suspension();
        }
    }

    fn patch_suspension(&mut self) {
        let Some(found) = self
            .ours
            .filter(|found| found.metadata.deletion_timestamp.is_none())
        else {
            return;
        };
        self.outcome.actions.push(Action::Change {
            kind: DependentKind::JobSet,
            name: found.metadata.name.clone().unwrap_or_default(),
            uid: found.metadata.uid.clone().unwrap_or_default(),
            patch: json!({"metadata": {}, "spec": {"suspend": self.suspended()}}),
        });
    }

    /// The port at which the training's processes meet; none if the job must wait for one.
    fn port(&mut self, listens: bool) -> Option<u16> {
        let Network::HostShared { ports } = self.observed.network else {
            return Some(PORT);
        };
        if !listens {
            return Some(PORT);
        }
        let taken = self.observed.taken_ports;
        let own = annotated_port(self.job.metadata.annotations.as_ref());
        if let Some(port) = own.filter(|port| ports.contains(port) && !taken.contains(port)) {
            return Some(port);
        }
        let Some(port) = ports.clone().find(|port| !taken.contains(port)) else {
            self.outcome.requeue(later(self.now, LOOK_AGAIN));
            let message = "Other TrainJobs hold all ports of TrainJobs: the job waits until one of them has ended.";
            self.wait("NoRendezvousPort", message.to_owned());
            return None;
        };
        let annotations = &mut self.outcome.annotations;
        annotations.insert(names::RENDEZVOUS_PORT.to_owned(), Some(port.to_string()));
        Some(port)
    }

    /// Reads the JobSet's status into the job's.
    fn read(&mut self, job_set: &JobSet) {
        let status = job_set.status.clone().unwrap_or_default();
        let counts = status.replicated_jobs_status.into_iter();
        self.outcome.status.jobs_status = counts
            .map(|counts| TrainJobJobStatus {
                name: counts.name,
                ready: counts.ready,
                succeeded: counts.succeeded,
                failed: counts.failed,
                active: counts.active,
                suspended: counts.suspended,
            })
            .collect();
        self.outcome.status.start_time = status.start_time;
        if self.outcome.status.message.is_none() {
            self.outcome.status.message = status.message;
        }
        for (of_set, type_) in [("Completed", COMPLETE), ("Failed", FAILED)] {
            let mut all = status.conditions.iter();
            let found = all.find(|known| known.type_ == of_set && known.status == "True");
            if let Some(found) = found {
                self.set(type_, true, &found.reason, &found.message);
            }
        }
        let record = |annotations: &Option<std::collections::BTreeMap<String, String>>| {
            annotations
                .as_ref()
                .and_then(|all| all.get(names::FAILURE))
                .cloned()
        };
        let found = record(&job_set.metadata.annotations);
        if found.is_some() && found != record(&self.job.metadata.annotations) {
            self.outcome
                .annotations
                .insert(names::FAILURE.to_owned(), found);
        }
    }

    fn watch_deadline(&mut self) {
        let Some(seconds) = self
            .job
            .spec
            .active_deadline_seconds
            .filter(|_| !self.suspended())
        else {
            return;
        };
        let status = &self.outcome.status;
        if [COMPLETE, FAILED].iter().any(|type_| holds(status, type_)) {
            return;
        }
        let mut conditions = status.conditions.iter();
        let resumed = conditions.find(|known| known.type_ == SUSPENDED && known.status == "False");
        let resumed = resumed.map(|known| known.last_transition_time.0);
        let created = self
            .job
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0);
        let Some(start) = resumed.or(created) else {
            return;
        };
        let deadline = later(start, seconds);
        if deadline > self.now {
            return self.outcome.requeue(deadline);
        }
        self.set(
            FAILED,
            true,
            "DeadlineExceeded",
            "TrainJob exceeded its active deadline",
        );
        // What would be created or changed now is not needed any more.
        self.outcome.actions.clear();
        self.outcome.actions.extend(self.ours.and_then(delete));
    }
}

/// Deletes a JobSet with its Jobs and pods, unless that is under way.
fn delete(job_set: &JobSet) -> Option<Action> {
    let meta = &job_set.metadata;
    meta.deletion_timestamp.is_none().then(|| Action::Delete {
        kind: DependentKind::JobSet,
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
