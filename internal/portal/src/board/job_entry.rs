//! A job, CronJob or pod without a job as the board keeps it: the parts of its row that do not change with the clock,
//! read once for each version of the object.

use std::sync::Arc;

use administration::cancellation;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::api::DynamicObject;
use resources::leader_worker_set;
use resources::names;
use resources::span::human_duration;
use resources::training::{self, TrainingKind};
use resources::volcano;
use serde_json::{Value, json};

use super::jobs::{ConditionRow, JobRow, Tone, tone_of};
use super::pods::PodRow;
use crate::job_state::{PodProgress, blocked_sentence, hang_sentence, settled_sentence, state_of};
use crate::other_kinds::{self, Group, OtherKind};

/// The plural name of pods.
pub const PODS: &str = "pods";
/// The plural name of CronJobs.
pub const CRON_JOBS: &str = "cronjobs";

/// The object that an entry shows.
#[derive(Clone)]
pub enum Source {
    /// A job of a training kind.
    Training(&'static TrainingKind, Arc<DynamicObject>),
    /// A Job.
    Plain(Arc<Job>),
    /// A RayCluster or a Volcano Job.
    Other(&'static OtherKind, Arc<DynamicObject>),
    /// A CronJob.
    Cron(Arc<CronJob>),
    /// A pod without a job.
    Pod(Arc<PodRow>),
}

impl Source {
    /// The address of the stored object, which changes with each of its versions.
    pub fn address(&self) -> usize {
        match self {
            Source::Training(_, job) => Arc::as_ptr(job).addr(),
            Source::Plain(job) => Arc::as_ptr(job).addr(),
            Source::Other(_, job) => Arc::as_ptr(job).addr(),
            Source::Cron(job) => Arc::as_ptr(job).addr(),
            Source::Pod(pod) => Arc::as_ptr(pod).addr(),
        }
    }

    /// Group, plural in the API, plural in addresses, and kind.
    fn names(&self) -> [&'static str; 4] {
        match self {
            Source::Training(kind, _) => [training::GROUP, kind.plural, kind.plural, kind.kind],
            Source::Plain(_) => ["batch", "jobs", "jobs", "Job"],
            Source::Other(kind, _) => [kind.group, kind.resource, kind.plural, kind.shown],
            Source::Cron(_) => ["batch", CRON_JOBS, CRON_JOBS, "CronJob"],
            Source::Pod(_) => ["", PODS, PODS, "Pod"],
        }
    }

    /// The object; of a pod only the fields that the board keeps.
    pub fn value(&self) -> Value {
        match self {
            Source::Training(_, job) => serde_json::to_value(&**job),
            Source::Plain(job) => serde_json::to_value(&**job),
            Source::Other(_, job) => serde_json::to_value(&**job),
            Source::Cron(job) => serde_json::to_value(&**job),
            Source::Pod(pod) => Ok(json!({"metadata": {
                "name": pod.metadata.name, "namespace": pod.metadata.namespace,
                "creationTimestamp": pod.metadata.creation_timestamp,
                "annotations": {names::USER: pod.user},
            }})),
        }
        .unwrap_or_default()
    }
}

/// A line of the list of jobs, without what changes with the clock.
pub struct JobEntry {
    /// The kind's API group.
    pub group: &'static str,
    /// The kind's plural in the API.
    pub resource: &'static str,
    /// The row; its age, runtime and running pods are empty.
    base: JobRow,
    /// When it began to run.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// The object.
    pub source: Source,
    /// Its pods, by rank.
    pub pods: Vec<Arc<PodRow>>,
}

impl JobEntry {
    /// Reads an object.
    pub fn read(source: Source, pods: Vec<Arc<PodRow>>) -> JobEntry {
        let [group, resource, plural, kind] = source.names();
        if let Source::Pod(pod) = &source {
            return JobEntry::of_pod(pod.clone(), pods);
        }
        let facts = JobFacts {
            kind,
            object: source.value(),
        };
        let (base, started, ended) = facts.base(plural);
        JobEntry {
            group,
            resource,
            base,
            started,
            ended,
            source,
            pods,
        }
    }

    /// The same object with other pods.
    pub fn with_pods(&self, pods: Vec<Arc<PodRow>>) -> JobEntry {
        JobEntry {
            group: self.group,
            resource: self.resource,
            base: self.base.clone(),
            started: self.started,
            ended: self.ended,
            source: self.source.clone(),
            pods,
        }
    }

    fn of_pod(pod: Arc<PodRow>, pods: Vec<Arc<PodRow>>) -> JobEntry {
        let state = pod.state();
        let time = |time: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
            time.map(|time| time.0)
        };
        let ended = pod.containers.iter().filter_map(|container| {
            let end = container.state.as_ref()?.terminated.as_ref()?;
            time(end.finished_at.as_ref())
        });
        let ended = matches!(pod.phase(), "Succeeded" | "Failed")
            .then(|| ended.max())
            .flatten();
        JobEntry {
            group: "",
            resource: PODS,
            base: JobRow {
                plural: PODS,
                kind: "Pod",
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                name: pod.metadata.name.clone().unwrap_or_default(),
                tone: tone_of(&state),
                state,
                queue: pod.queue(),
                user: pod.user.clone(),
                wanted: 1,
                running: 0,
                gpus: pod.gpus,
                created: time(pod.metadata.creation_timestamp.as_ref()),
                age: String::new(),
                duration: String::new(),
            },
            started: time(pod.started.as_ref()),
            ended,
            source: Source::Pod(pod),
            pods,
        }
    }

    /// True for a job; false for a CronJob and for a pod without a job.
    pub fn is_job(&self) -> bool {
        !matches!(self.source, Source::Cron(_) | Source::Pod(_))
    }

    /// The part of the row that does not change with the clock.
    pub fn base(&self) -> &JobRow {
        &self.base
    }

    /// The number of running pods.
    pub fn running(&self) -> usize {
        let running = |pod: &&Arc<PodRow>| pod.phase() == "Running";
        self.pods.iter().filter(running).count()
    }

    /// The row at a time.
    pub fn row(&self, now: Timestamp) -> JobRow {
        let lasted =
            |from: Timestamp, to: Timestamp| human_duration(to.duration_since(from).as_secs());
        let ended = self.ended.unwrap_or(now);
        JobRow {
            running: self.running(),
            age: self
                .base
                .created
                .map(|from| lasted(from, now))
                .unwrap_or_default(),
            duration: self
                .started
                .map(|from| lasted(from, ended))
                .unwrap_or_default(),
            ..self.base.clone()
        }
    }
}

/// The GPUs that a pod of a template requests.
fn gpus(template: &Value) -> i64 {
    let containers = template["spec"]["containers"].as_array();
    let of = |container: &Value| {
        let amount = &container["resources"]["limits"][names::NVIDIA_GPU];
        amount
            .as_i64()
            .or_else(|| amount.as_str()?.parse().ok())
            .unwrap_or(0)
    };
    let all = containers.into_iter().flatten().map(of);
    all.fold(0, i64::saturating_add)
}

/// A job as data, of any kind.
pub struct JobFacts {
    kind: &'static str,
    pub object: Value,
}

impl JobFacts {
    /// The facts of an entry's object.
    pub fn new(entry: &JobEntry, object: Value) -> JobFacts {
        JobFacts {
            kind: entry.base.kind,
            object,
        }
    }

    fn text(&self, pointer: &str) -> &str {
        self.object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or("")
    }

    fn stamp(&self, pointer: &str) -> Option<Timestamp> {
        self.text(pointer).parse().ok()
    }

    /// The description of its kind, if it is a training kind.
    pub fn training(&self) -> Option<&'static TrainingKind> {
        training::find(training::GROUP, self.kind)
    }

    fn annotation(&self, name: &str) -> &str {
        self.object["metadata"]["annotations"][name]
            .as_str()
            .unwrap_or("")
    }

    /// The user that cancelled it; empty if none did.
    pub fn cancelled_by(&self) -> &str {
        self.annotation(names::CANCELLED_BY)
    }

    /// Who or what cancelled it, in one sentence. It may run again since.
    fn cancellation(&self) -> Option<String> {
        let annotations = &self.object["metadata"]["annotations"];
        let of = |name: &str| Some((name.to_owned(), annotations[name].as_str()?.to_owned()));
        let all = [names::CANCELLED_BY, names::CANCELLED_BECAUSE];
        cancellation::sentence(Some(&all.into_iter().filter_map(of).collect()))
    }

    /// True if a user or a policy cancelled it. It may run again since.
    pub fn is_cancelled(&self) -> bool {
        self.cancellation().is_some()
    }

    fn queue(&self) -> String {
        let own = match self.kind == other_kinds::VOLCANO_JOB.shown {
            true => "/spec/queue",
            false => "/spec/runPolicy/schedulingPolicy/queue",
        };
        let named = [
            own,
            "/metadata/labels/scheduling.volcano.sh~1queue-name",
            "/metadata/annotations/scheduling.volcano.sh~1queue-name",
        ];
        let found = named
            .iter()
            .map(|pointer| self.text(pointer))
            .find(|name| !name.is_empty());
        found.unwrap_or(names::DEFAULT_QUEUE).to_string()
    }

    /// The desired replicas and the GPUs that each requests.
    fn parts(&self) -> Vec<(i64, i64)> {
        if OtherKind::by_shown(self.kind).is_some() {
            return other_kinds::parts(self.kind, &self.object, gpus);
        }
        let spec = &self.object["spec"];
        if let Some(kind) = self.training() {
            let part = |replica: &Value| {
                (
                    replica["replicas"].as_i64().unwrap_or(1),
                    gpus(&replica["template"]),
                )
            };
            let specs = kind.replica_specs(&self.object);
            return specs.map(|(_, replica)| part(replica)).collect();
        }
        if let Some(tasks) = spec["tasks"].as_array() {
            let replicas = |task: &Value| task["replicas"].as_i64().unwrap_or(1);
            let part = |task: &Value| (replicas(task), gpus(&task["template"]));
            return tasks.iter().map(part).collect();
        }
        let spec = match self.kind {
            "CronJob" => &spec["jobTemplate"]["spec"],
            _ => spec,
        };
        let wanted = spec["parallelism"].as_i64().unwrap_or(1);
        vec![(wanted, gpus(&spec["template"]))]
    }

    /// The state in one word.
    fn state(&self) -> String {
        if self.kind == "CronJob" {
            let word = match self.suspended() {
                true => "Suspended",
                false => "Scheduled",
            };
            return word.to_owned();
        }
        let state = state_of(&self.object["status"]);
        match tone_of(&state) {
            Tone::Good | Tone::Bad => state,
            _ if self.suspended() && self.is_cancelled() => "Cancelled".to_owned(),
            _ if self.suspended() => "Suspended".to_owned(),
            _ => state,
        }
    }

    fn base(&self, plural: &'static str) -> (JobRow, Option<Timestamp>, Option<Timestamp>) {
        let state = self.state();
        let tone = tone_of(&state);
        let parts = self.parts();
        // The controllers set the start time when they accept a job, before its pods run.
        let started = self
            .stamp("/status/startTime")
            .or_else(|| other_kinds::started(self.kind, &self.object))
            .filter(|_| tone != Tone::Idle);
        let ended = self.ended(&state);
        let row = JobRow {
            plural,
            kind: self.kind,
            namespace: self.text("/metadata/namespace").to_string(),
            name: self.text("/metadata/name").to_string(),
            tone,
            state,
            queue: self.queue(),
            user: self.annotation(names::USER).to_owned(),
            wanted: parts
                .iter()
                .fold(0, |sum: i64, (count, _)| sum.saturating_add(*count)),
            running: 0,
            gpus: parts.iter().fold(0, |sum: i64, (count, gpus)| {
                sum.saturating_add(count.saturating_mul(*gpus))
            }),
            created: self.stamp("/metadata/creationTimestamp"),
            age: String::new(),
            duration: String::new(),
        };
        (row, started, ended)
    }

    /// The state and its cause in one sentence, for a job that the scheduler does not hold back.
    pub fn sentence(&self, pods: &[Arc<PodRow>]) -> String {
        let status = &self.object["status"];
        match (self.kind, self.state().as_str()) {
            ("CronJob", "Suspended") => {
                return "The CronJob is suspended and starts no Job.".to_owned();
            }
            ("CronJob", _) => {
                let schedule = self.text("/spec/schedule");
                return format!("The CronJob starts a Job by the schedule {schedule}.");
            }
            (_, "Cancelled") => return self.cancellation().unwrap_or_default(),
            (_, "Suspended") if leader_worker_set::is_scaled_to_zero(&self.object) => {
                return leader_worker_set::sentence(&self.object).unwrap_or_default();
            }
            (_, "Suspended") => {
                let it = match self.kind == other_kinds::RAY_CLUSTER.shown {
                    true => "cluster",
                    false => "job",
                };
                return format!(
                    "The {it} is suspended: it has no pods and does not wait in its queue."
                );
            }
            _ => {}
        }
        let pods: Vec<PodProgress<'_>> = pods
            .iter()
            .map(|pod| PodProgress {
                name: pod.metadata.name.as_deref().unwrap_or_default(),
                bound: pod.node.as_deref().is_some_and(|node| !node.is_empty()),
                containers: &pod.containers,
            })
            .collect();
        if self.kind == "Pod" {
            let pod = pods.first();
            return pod.map(pod_sentence).unwrap_or_default();
        }
        let state = state_of(status);
        let message = match blocked_sentence(&state, &pods) {
            Some(blocked) => return blocked,
            None => other_kinds::message(self.kind, &self.object),
        };
        let annotations = &self.object["metadata"]["annotations"];
        if let Some(hangs) = hang_sentence(&state, |name| annotations[name].as_str()) {
            return hangs;
        }
        match message.is_empty() {
            true => settled_sentence(&state, status, &pods),
            false => message,
        }
    }

    /// The groups of a RayCluster or LeaderWorkerSet or the tasks of a Volcano Job, with their running pods.
    pub fn groups(&self, pods: &[Arc<PodRow>]) -> Vec<Group> {
        let mut groups = other_kinds::groups(self.kind, &self.object, gpus);
        for group in &mut groups {
            let own = pods.iter().filter(|pod| pod.group() == group.label);
            group.running = own.filter(|pod| pod.phase() == "Running").count();
        }
        groups
    }

    /// Where a RayCluster's head is.
    pub fn head(&self) -> Vec<(&'static str, String)> {
        other_kinds::head(self.kind, &self.object)
    }

    /// When the job ended. A failed Job has no completion time; its condition has the time.
    fn ended(&self, state: &str) -> Option<Timestamp> {
        let conditions = self.object["status"]["conditions"].as_array();
        let failed = conditions
            .into_iter()
            .flatten()
            .rfind(|condition| condition["type"] == "Failed")
            .filter(|_| state == "Failed")
            .and_then(|condition| condition["lastTransitionTime"].as_str());
        self.stamp("/status/completionTime")
            .or_else(|| failed?.parse().ok())
            .or_else(|| {
                let over = matches!(tone_of(state), Tone::Good | Tone::Bad);
                other_kinds::ended(self.kind, &self.object).filter(|_| over)
            })
    }

    /// True if it is suspended.
    pub fn suspended(&self) -> bool {
        if leader_worker_set::is_scaled_to_zero(&self.object) {
            return true;
        }
        if let Some(phase) = volcano::phase(&self.object["status"]) {
            return ["Aborting", volcano::ABORTED].contains(&phase);
        }
        let pointer = if self.training().is_some() {
            "/spec/runPolicy/suspend"
        } else {
            "/spec/suspend"
        };
        self.object
            .pointer(pointer)
            .and_then(Value::as_bool)
            .unwrap_or(false)
    }

    /// Its conditions in the order in which they came.
    pub fn steps(&self) -> Vec<ConditionRow> {
        let conditions = self.object["status"]["conditions"].as_array();
        let step = |condition: &Value| {
            let text = |field: &str| condition[field].as_str().unwrap_or("").to_string();
            // Volcano's Job lists the phases that it was in, and has the reason of the last one beside them.
            let of_volcano = condition["type"].is_null();
            let name = text(if of_volcano { "status" } else { "type" });
            let phase = volcano::phase(&self.object["status"]);
            ConditionRow {
                holds: condition["status"] == "True" || of_volcano && phase == Some(name.as_str()),
                tone: tone_of(&name),
                at: text("lastTransitionTime"),
                message: text("message"),
                name,
            }
        };
        conditions.into_iter().flatten().map(step).collect()
    }
}

/// The state of a pod without a job, in a sentence.
fn pod_sentence(pod: &PodProgress<'_>) -> String {
    let ended = pod.containers.iter().find_map(|container| {
        let state = container.state.as_ref()?;
        let end = state.terminated.as_ref();
        let last = container.last_state.as_ref();
        let end = end.or_else(|| last?.terminated.as_ref())?;
        Some((end.exit_code, container.restart_count))
    });
    match (pod.bound, ended) {
        (_, Some((code, restarts))) if restarts > 0 => {
            format!("The pod's program exited with code {code} and was restarted {restarts} times.")
        }
        (_, Some((code, _))) => format!("The pod's program exited with code {code}."),
        (true, None) => format!("Pod {} has a node.", pod.name),
        (false, None) => format!("Pod {} has no node yet.", pod.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_ends_with_the_job_and_begins_with_its_pods() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let start = "2026-01-01T00:00:00Z";
        let condition = |name: &str, at: &str| json!([{"type": name, "status": "True", "lastTransitionTime": at}]);
        let table = [
            (json!({"startTime": start, "active": 1, "ready": 0}), ""),
            (json!({"startTime": start, "active": 1, "ready": 1}), "60m"),
            (
                json!({"startTime": start, "conditions": condition("Failed", "2026-01-01T00:00:09Z")}),
                "9s",
            ),
            (
                json!({"startTime": start, "completionTime": "2026-01-01T00:00:07Z",
                    "conditions": condition("Complete", "2026-01-01T00:00:09Z")}),
                "7s",
            ),
        ];
        for (status, duration) in table {
            let job: Job = serde_json::from_value(
                json!({"metadata": {"name": "j"}, "spec": {"template": {}}, "status": status}),
            )
            .unwrap();
            let entry = JobEntry::read(Source::Plain(Arc::new(job)), Vec::new());
            assert_eq!(entry.row(now).duration, duration, "{status}");
        }
    }

    #[test]
    fn a_cancelled_job_is_suspended_for_good_and_says_who_cancelled_it() {
        let facts = |annotations: Value, status: Value| JobFacts {
            kind: "PyTorchJob",
            object: json!({"metadata": {"annotations": annotations},
                "spec": {"runPolicy": {"suspend": true}}, "status": status}),
        };
        let by = json!({names::CANCELLED_BY: "ann"});
        let failed = json!({"conditions": [{"type": "Failed", "status": "True"}]});
        assert_eq!(facts(json!({}), json!({})).state(), "Suspended");
        assert_eq!(facts(by.clone(), json!({})).state(), "Cancelled");
        assert_eq!(facts(by.clone(), failed).state(), "Failed");
        assert!(facts(by, json!({})).sentence(&[]).contains("ann"));
        let because = json!({names::CANCELLED_BECAUSE: "its GPU did nothing for 2h"});
        let idle = facts(because, json!({}));
        assert_eq!(idle.state(), "Cancelled");
        assert_eq!(
            idle.sentence(&[]),
            "The job was cancelled because its GPU did nothing for 2h: its pods are gone, and its record stays."
        );
    }
}
