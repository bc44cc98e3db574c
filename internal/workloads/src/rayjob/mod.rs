//! RayJob of `ray.io/v1`: KubeRay's contract, decided from the observed state. A job creates a RayCluster, or selects an
//! existing one. The program is submitted and followed by a Job, by the server (HTTPMode) or by a container of the head
//! (SidecarMode). The program's name in Ray is fixed and written to the status before anything is submitted, and Ray starts
//! a program at most once under one name: so the death of the server or of the submitter starts nothing twice. What ran on
//! a head that was replaced is lost, which ends the attempt.
//!
//! What Ray answers in HTTPMode is an input, like objects of the API: the decision says what Ray is to be asked next
//! ([`ProgramRequest`]).

mod cleanup;
mod http;
mod objects;
mod phase;
mod plan;
mod sidecar;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::kinds::{RayCluster, RayJob, RayJobStatus};
use resources::names;
use resources::numbers::later;
use resources::times::whole;

pub use self::http::{
    ProgramAnswer, ProgramErrand, ProgramObservation, ProgramRequest, RayProgram,
};
use self::phase::{RayJobPhase, enter};
use self::plan::{ParsedRayJob, SubmissionMode};
use crate::action::{Action, Dependent, EventNote, ReconcileOutcome};
use crate::ownership::controlled_by;

/// Seconds between two looks at a selected cluster: its changes do not wake the job's controller.
const LOOK_AGAIN: i64 = 5;
/// The domain of services' full names.
const DOMAIN: &str = "svc.cluster.local";

/// The observed state to decide on.
#[derive(Clone, Copy)]
pub struct ObservedRayJob<'a> {
    /// The job, with its status as last written.
    pub job: &'a RayJob,
    /// The cluster with the name that [`cluster_of`] says, of any owner.
    pub cluster: Option<&'a RayCluster>,
    /// Jobs of the job; others are ignored.
    pub jobs: &'a [&'a Job],
    /// Pods with the job's name in their label; all but the head of its cluster are ignored.
    pub pods: &'a [&'a Pod],
    /// What Ray answered when it was asked last, in HTTPMode.
    pub program: Option<&'a ProgramObservation>,
}

/// What is to be done about a job.
#[derive(Clone, Debug, PartialEq)]
pub struct RayJobDecision {
    /// The changes in the API.
    pub outcome: ReconcileOutcome<RayJobStatus>,
    /// What Ray is to be asked.
    pub request: Option<ProgramRequest>,
}

impl RayJobDecision {
    fn without_request(outcome: ReconcileOutcome<RayJobStatus>) -> RayJobDecision {
        RayJobDecision {
            outcome,
            request: None,
        }
    }
}

/// The name of the cluster that the job runs on, once it is known.
#[must_use]
pub fn cluster_of(job: &RayJob) -> Option<&str> {
    let selector = job.spec.cluster_selector.as_ref();
    let selected = selector.and_then(|all| all.get(names::RAY_CLUSTER));
    let known = job.status.as_ref();
    let known = known.and_then(|status| status.ray_cluster_name.as_deref());
    selected.map(String::as_str).or(known)
}

/// The pods' cluster that the job would create first, for a preview of its placement.
#[must_use]
pub fn preview(job: &RayJob) -> Option<RayCluster> {
    let plan = ParsedRayJob::of(job).ok()?;
    let name = plan.attempt_name(0, Timestamp::UNIX_EPOCH);
    objects::cluster(&plan, &name, &name)
}

/// Decides the next actions for a job. Once the result was carried out, another call gives the same status and no
/// actions, until something changes.
#[must_use]
pub fn reconcile(observed: &ObservedRayJob<'_>, now: Timestamp) -> RayJobDecision {
    let job = observed.job;
    let status = job.status.clone().unwrap_or_default();
    let mut outcome = ReconcileOutcome::keep(status);
    if job.metadata.deletion_timestamp.is_some() || plan::managed_elsewhere(job) {
        return RayJobDecision::without_request(outcome);
    }
    let phase = RayJobPhase::of(&outcome.status);
    let plan = match ParsedRayJob::of(job) {
        Ok(plan) => plan,
        Err(refusal) => {
            if !phase.is_terminal() {
                outcome.status.reason = Some("ValidationFailed".to_owned());
                let (next, text) = (RayJobPhase::ValidationFailed, refusal.to_string());
                outcome.events = enter(&mut outcome.status, next, &text, now);
                outcome.status.observed_generation = job.metadata.generation;
            }
            return RayJobDecision::without_request(outcome);
        }
    };
    let submitter = observed
        .jobs
        .iter()
        .copied()
        .find(|known| controlled_by(&known.metadata, plan.meta));
    let mut decision = Decision {
        plan,
        cluster: observed.cluster,
        submitter,
        pods: observed.pods,
        program: observed.program,
        outcome,
        request: None,
        now,
    };
    decision.outcome.status.observed_generation = job.metadata.generation;
    match phase {
        RayJobPhase::New | RayJobPhase::ValidationFailed => decision.begin(),
        RayJobPhase::Initializing | RayJobPhase::Waiting => decision.prepare(),
        RayJobPhase::Running => decision.follow(),
        RayJobPhase::Suspending | RayJobPhase::Retrying => decision.clear(phase),
        RayJobPhase::Suspended => {
            if !decision.plan.suspended() {
                decision.begin();
            }
        }
        RayJobPhase::Complete | RayJobPhase::Failed => decision.after_the_end(),
    }
    RayJobDecision {
        outcome: decision.outcome,
        request: decision.request,
    }
}

/// One decision in the making.
struct Decision<'a> {
    plan: ParsedRayJob<'a>,
    cluster: Option<&'a RayCluster>,
    submitter: Option<&'a Job>,
    pods: &'a [&'a Pod],
    program: Option<&'a ProgramObservation>,
    outcome: ReconcileOutcome<RayJobStatus>,
    request: Option<ProgramRequest>,
    now: Timestamp,
}

impl<'a> Decision<'a> {
    fn enter(&mut self, phase: RayJobPhase, message: &str) {
        let events = enter(&mut self.outcome.status, phase, message, self.now);
        self.outcome.events.extend(events);
    }

    /// Names the attempt's cluster and program. Both are created only after these names were written.
    fn begin(&mut self) {
        if self.plan.suspended() {
            return self.enter(RayJobPhase::Suspended, "The job is suspended.");
        }
        let failed = self.outcome.status.failed.unwrap_or(0);
        let name = self.plan.attempt_name(failed, self.now);
        let own = (!self.plan.is_interactive()).then(|| name.clone());
        let status = &mut self.outcome.status;
        status.job_id = self.plan.given_id().map(str::to_owned).or(own);
        status.ray_cluster_name = Some(self.plan.selected.map_or(name, str::to_owned));
        status.start_time = Some(Time(whole(self.now)));
        (status.head_run, status.dashboard_url) = (None, None);
        (status.job_status, status.reason) = (None, None);
        status.job_status_check_failure_start_time = None;
        self.enter(RayJobPhase::Initializing, "The job's cluster is created.");
    }

    /// The cluster, if the job may use it.
    fn usable(&self) -> Option<&'a RayCluster> {
        let cluster = self.cluster?;
        let meta = &cluster.metadata;
        let ours = self.plan.selected.is_some() || controlled_by(meta, self.plan.meta);
        (ours && meta.deletion_timestamp.is_none()).then_some(cluster)
    }

    /// Brings the cluster and the submission about.
    fn prepare(&mut self) {
        if self.stopped(self.plan.spec.pre_running_deadline_seconds) {
            return;
        }
        if self.plan.mode == SubmissionMode::Sidecar && self.is_over_before_ready() {
            return;
        }
        let Some(cluster) = self.usable() else {
            return self.await_cluster();
        };
        if self.plan.selected.is_some() {
            self.outcome.requeue(later(self.now, LOOK_AGAIN));
            let (job, other) = (user(self.plan.meta), user(&cluster.metadata));
            if job != other {
                let text = format!(
                    "RayCluster {} runs for user {:?}, and the job for {:?}: select a cluster of the job's own user.",
                    name(cluster),
                    other.unwrap_or_default(),
                    job.unwrap_or_default(),
                );
                return self.fail("ClusterOfAnotherUser", &text);
            }
        }
        let Some(ready) = ReadyCluster::of(cluster) else {
            let text = why_not_ready(cluster);
            if cluster_is_refused(cluster) {
                return self.fail("ValidationFailed", &text);
            }
            return self.enter(RayJobPhase::Initializing, &text);
        };
        let id = match self.plan.given_id() {
            Some(given) => Some(given.to_owned()),
            None => self.outcome.status.job_id.clone(),
        };
        self.outcome.status.job_id.clone_from(&id);
        self.outcome.status.dashboard_url = Some(ready.dashboard.clone());
        let Some(id) = id else {
            let text = format!(
                "The cluster is ready: submit a program to {}, and write its submission id to the annotation {} of the job.",
                ready.dashboard,
                names::RAY_SUBMISSION_ID,
            );
            return self.enter(RayJobPhase::Waiting, &text);
        };
        self.submit(cluster, &ready, &id);
    }

    /// Brings the submission about. The head is written before the program is submitted to it.
    fn submit(&mut self, cluster: &RayCluster, ready: &ReadyCluster<'_>, id: &str) {
        let known = self.outcome.status.head_run.as_deref() == Some(ready.head);
        match (self.plan.mode, self.submitter) {
            (SubmissionMode::Http, _) if known => {
                self.enter(RayJobPhase::Running, "The program is being submitted.");
            }
            (SubmissionMode::Sidecar, _) if known => {
                self.outcome.status.job_status = Some("RUNNING".to_owned());
                self.enter(RayJobPhase::Running, "The program runs.");
            }
            (_, Some(_)) if known => {
                self.outcome.status.job_status = Some("PENDING".to_owned());
                self.enter(RayJobPhase::Running, "The program is submitted.");
            }
            (_, Some(_)) => self.lose_head(cluster),
            (_, None) if known => {
                let submitter = objects::submitter(&self.plan, cluster, id, &ready.dashboard);
                let create = Action::Create(Dependent::Job(Box::new(submitter)));
                self.outcome.actions.push(create);
            }
            (_, None) => self.outcome.status.head_run = Some(ready.head.to_owned()),
        }
    }

    fn await_cluster(&mut self) {
        let cluster_name = self.outcome.status.ray_cluster_name.clone();
        let cluster_name = cluster_name.unwrap_or_default();
        if self.plan.selected.is_some() {
            self.outcome.requeue(later(self.now, LOOK_AGAIN));
            let text =
                format!("There is no RayCluster {cluster_name:?} yet, which the job selects.");
            return self.enter(RayJobPhase::Initializing, &text);
        }
        // What was submitted to the cluster before is lost with it.
        let head_run = self.outcome.status.head_run.is_some();
        if self.submitter.is_some() || (self.plan.mode == SubmissionMode::Sidecar && head_run) {
            return self.lose_cluster();
        }
        let id = self.outcome.status.job_id.clone().unwrap_or_default();
        if self.cluster.is_none()
            && let Some(cluster) = objects::cluster(&self.plan, &cluster_name, &id)
        {
            let create = Action::Create(Dependent::RayCluster(Box::new(cluster)));
            self.outcome.actions.push(create);
        }
    }

    /// Watches over the submitted program.
    fn follow(&mut self) {
        if self.stopped(None) {
            return;
        }
        match self.plan.mode {
            SubmissionMode::Http => self.follow_by_http(),
            SubmissionMode::Sidecar => self.follow_by_the_head(),
            SubmissionMode::K8sJob | SubmissionMode::Interactive => self.follow_by_a_job(),
        }
    }

    fn follow_by_a_job(&mut self) {
        if let Some(end) = self.submitter.and_then(ending) {
            return self.conclude(end);
        }
        let Some(cluster) = self.kept_cluster() else {
            return;
        };
        let Some(submitter) = self.submitter else {
            // It was deleted. Another one asks Ray for the program before it submits.
            let ready = ReadyCluster::of(cluster);
            let id = self.outcome.status.job_id.clone();
            if let (Some(ready), Some(id)) = (ready, id) {
                let submitter = objects::submitter(&self.plan, cluster, &id, &ready.dashboard);
                let create = Action::Create(Dependent::Job(Box::new(submitter)));
                self.outcome.actions.push(create);
            }
            return;
        };
        let ready = submitter.status.as_ref().and_then(|status| status.ready);
        if ready.is_some_and(|pods| pods > 0) {
            self.outcome.status.job_status = Some("RUNNING".to_owned());
            self.enter(RayJobPhase::Running, "The program runs.");
        }
    }

    /// The cluster, if its head is still the one that the program was submitted to. Else the attempt has failed.
    fn kept_cluster(&mut self) -> Option<&'a RayCluster> {
        let Some(cluster) = self.usable() else {
            self.lose_cluster();
            return None;
        };
        let head = head_run(cluster);
        if head.is_some() && head != self.outcome.status.head_run.as_deref() {
            self.lose_head(cluster);
            return None;
        }
        if self.plan.selected.is_some() {
            self.outcome.requeue(later(self.now, LOOK_AGAIN));
        }
        Some(cluster)
    }

    /// The program ended, or what follows it did.
    fn conclude(&mut self, end: ProgramEnd) {
        match end {
            ProgramEnd::Succeeded => {
                let status = &mut self.outcome.status;
                status.job_status = Some("SUCCEEDED".to_owned());
                status.succeeded = Some(status.succeeded.unwrap_or(0).saturating_add(1));
                self.enter(RayJobPhase::Complete, "The program ended with exit code 0.");
            }
            ProgramEnd::Failed { reason, message } => self.fail(reason, &message),
        }
    }

    /// Handles what ends an attempt from outside: suspension and deadlines. Returns whether it ended.
    fn stopped(&mut self, pre_running: Option<i32>) -> bool {
        if self.plan.suspended() && self.plan.selected.is_none() {
            self.enter(RayJobPhase::Suspending, "The job's cluster is deleted.");
            return true;
        }
        let Some(start) = self.outcome.status.start_time.as_ref().map(|time| time.0) else {
            return false;
        };
        let active = self.plan.spec.active_deadline_seconds;
        let deadlines = [
            (
                active,
                "DeadlineExceeded",
                "activeDeadlineSeconds: the job was stopped",
            ),
            (
                pre_running,
                "PreRunningDeadlineExceeded",
                "preRunningDeadlineSeconds: the program could not be submitted in time",
            ),
        ];
        for (seconds, reason, what) in deadlines {
            let Some(seconds) = seconds else { continue };
            let at = later(start, i64::from(seconds));
            if at > self.now {
                self.outcome.requeue(at);
                continue;
            }
            let text = format!("{what} after {seconds} s.");
            self.end(reason, &text);
            return true;
        }
        false
    }

    fn lose_head(&mut self, cluster: &RayCluster) {
        let text = format!(
            "The head of RayCluster {} was replaced, and the program was lost with it.",
            name(cluster)
        );
        self.fail("HeadLost", &text);
    }

    fn lose_cluster(&mut self) {
        let cluster = self.outcome.status.ray_cluster_name.clone();
        let text = format!(
            "RayCluster {} was deleted, and the program was lost with it.",
            cluster.unwrap_or_default()
        );
        self.fail("ClusterLost", &text);
    }

    /// An attempt failed: another one follows, or the job fails.
    fn fail(&mut self, reason: &str, message: &str) {
        let failed = self.outcome.status.failed.unwrap_or(0);
        if failed >= self.plan.retries {
            return self.end(reason, message);
        }
        let status = &mut self.outcome.status;
        status.failed = Some(failed.saturating_add(1));
        status.job_status = Some("FAILED".to_owned());
        status.reason = Some(reason.to_owned());
        let attempts = self.plan.retries.saturating_add(1);
        let note = format!("{message} Attempt {} of {attempts} follows.", failed + 2);
        self.outcome
            .events
            .push(EventNote::warning("RayJobRetries", &note));
        self.enter(RayJobPhase::Retrying, &note);
    }

    /// The job fails.
    fn end(&mut self, reason: &str, message: &str) {
        let status = &mut self.outcome.status;
        status.failed = Some(status.failed.unwrap_or(0).saturating_add(1));
        status.job_status = Some("FAILED".to_owned());
        status.reason = Some(reason.to_owned());
        self.enter(RayJobPhase::Failed, message);
    }

    /// Deletes the attempt's objects, and goes on once they are gone.
    fn clear(&mut self, phase: RayJobPhase) {
        let own = self
            .cluster
            .filter(|known| controlled_by(&known.metadata, self.plan.meta));
        let actions = &mut self.outcome.actions;
        actions.extend(self.submitter.and_then(cleanup::delete_submitter));
        actions.extend(own.and_then(cleanup::delete_cluster));
        if self.submitter.is_some() || own.is_some() {
            return;
        }
        if phase == RayJobPhase::Retrying {
            return self.begin();
        }
        let status = &mut self.outcome.status;
        (status.job_id, status.ray_cluster_name) = (None, None);
        (status.head_run, status.dashboard_url) = (None, None);
        (status.job_status, status.start_time) = (None, None);
        status.job_status_check_failure_start_time = None;
        self.enter(RayJobPhase::Suspended, "The job is suspended.");
    }

    fn after_the_end(&mut self) {
        let own = self
            .cluster
            .filter(|known| controlled_by(&known.metadata, self.plan.meta));
        let status = &self.outcome.status;
        let (actions, next) = cleanup::after_the_end(&self.plan, status, own, self.now);
        let reason = status.reason.as_deref();
        // What must not run on: a program past its deadline ends with its cluster, or is stopped by its submitter.
        let unfinished = self.submitter.filter(|known| ending(known).is_none());
        let stops = unfinished.and_then(cleanup::delete_submitter);
        self.outcome.actions.extend(stops);
        if reason == Some("DeadlineExceeded") {
            let stops = own.and_then(cleanup::delete_cluster);
            self.outcome.actions.extend(stops);
            if self.plan.mode == SubmissionMode::Http && self.plan.selected.is_some() {
                self.stop_by_http();
            }
        }
        for action in actions {
            if !self.outcome.actions.contains(&action) {
                self.outcome.actions.push(action);
            }
        }
        if let Some(at) = next {
            self.outcome.requeue(at);
        }
    }
}

/// A cluster that takes programs.
struct ReadyCluster<'a> {
    /// The head's pod.
    head: &'a str,
    /// Host and port of its dashboard.
    dashboard: String,
}

impl<'a> ReadyCluster<'a> {
    fn of(cluster: &'a RayCluster) -> Option<ReadyCluster<'a>> {
        let status = cluster.status.as_ref()?;
        if status.state.as_deref() != Some("ready") {
            return None;
        }
        let head = status.head.as_ref()?;
        let port = status.endpoints.as_ref()?.get("dashboard")?;
        let namespace = cluster.metadata.namespace.as_deref().unwrap_or_default();
        let service = head.service_name.as_deref()?;
        Some(ReadyCluster {
            head: head.run.as_deref()?,
            dashboard: format!("{service}.{namespace}.{DOMAIN}:{port}"),
        })
    }
}

fn provisioned(
    cluster: &RayCluster,
) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
    let mut all = cluster.status.as_ref()?.conditions.iter();
    all.find(|known| known.type_ == "RayClusterProvisioned")
}

fn cluster_is_refused(cluster: &RayCluster) -> bool {
    provisioned(cluster).is_some_and(|known| known.reason == crate::ray::INVALID_SPEC)
}

fn why_not_ready(cluster: &RayCluster) -> String {
    let why = provisioned(cluster).map_or("", |known| known.message.as_str());
    format!("RayCluster {} is not ready. {why}", name(cluster))
        .trim_end()
        .to_owned()
}

fn name(cluster: &RayCluster) -> &str {
    cluster.metadata.name.as_deref().unwrap_or_default()
}

/// The user that an object runs for.
fn user(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Option<&str> {
    let maps = [&meta.annotations, &meta.labels];
    let mut found = maps
        .into_iter()
        .flatten()
        .filter_map(|map| map.get(names::USER));
    found.next().map(String::as_str)
}

/// The run of a cluster's head.
fn head_run(cluster: &RayCluster) -> Option<&str> {
    cluster.status.as_ref()?.head.as_ref()?.run.as_deref()
}

/// How a program ended, or what submits and follows it.
enum ProgramEnd {
    Succeeded,
    Failed {
        reason: &'static str,
        message: String,
    },
}

fn failed_with(code: impl std::fmt::Display) -> ProgramEnd {
    ProgramEnd::Failed {
        reason: "AppFailed",
        message: format!("The program failed with exit code {code}."),
    }
}

fn ending(submitter: &Job) -> Option<ProgramEnd> {
    let conditions = submitter.status.as_ref()?.conditions.as_deref()?;
    let end = conditions.iter().find(|known| {
        known.status == "True" && ["Complete", "Failed"].contains(&known.type_.as_str())
    })?;
    if end.type_ == "Complete" {
        return Some(ProgramEnd::Succeeded);
    }
    let text = end.message.as_deref().unwrap_or_default();
    if end.reason.as_deref() == Some("PodFailurePolicy") {
        let code = text.split("exit code ").nth(1);
        let code = code.and_then(|rest| rest.split(' ').next()).unwrap_or("1");
        return Some(failed_with(code));
    }
    Some(ProgramEnd::Failed {
        reason: "SubmissionFailed",
        message: format!("The pods that submit and follow the program failed: {text}."),
    })
}

#[cfg(test)]
mod tests;
