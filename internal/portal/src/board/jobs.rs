//! Jobs as the pages show them: rows, and the details of one job.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::Timestamp;
use resources::span::human_duration;
use resources::training::{self, TrainingKind};
use serde::Serialize;
use serde_json::Value;

use super::Board;
use super::pods::PodRow;
use crate::job_state::{PodProgress, owner_label, settled_sentence, state_of};

/// The display category of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tone {
    /// Success.
    Good,
    /// Running.
    Busy,
    /// Pending.
    Idle,
    /// Failure.
    Bad,
}

impl Tone {
    /// The CSS class.
    pub fn class(self) -> &'static str {
        match self {
            Tone::Good => "good",
            Tone::Busy => "busy",
            Tone::Idle => "idle",
            Tone::Bad => "bad",
        }
    }
}

/// The tone of a job's or a pod's state.
pub fn tone_of(state: &str) -> Tone {
    match state {
        "Succeeded" | "Complete" | "SuccessCriteriaMet" => Tone::Good,
        "Running" | "Restarting" => Tone::Busy,
        "Failed" | "FailureTarget" | "Unknown" => Tone::Bad,
        _ => Tone::Idle,
    }
}

/// One line of the list of jobs.
#[derive(Clone, Debug, Serialize)]
pub struct JobRow {
    /// The kind's plural, as in URLs.
    pub plural: &'static str,
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The current condition.
    pub state: String,
    /// The condition's display category.
    pub tone: Tone,
    /// Its queue.
    pub queue: String,
    /// The number of desired replicas.
    pub wanted: i64,
    /// The number of running pods.
    pub running: usize,
    /// GPUs requested by all its replicas.
    pub gpus: i64,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Its age.
    pub age: String,
    /// How long it has run, or ran until it ended.
    pub duration: String,
}

impl JobRow {
    /// The URL of the job's page.
    pub fn href(&self) -> String {
        format!("/ui/jobs/{}/{}/{}", self.namespace, self.plural, self.name)
    }
}

/// One condition of a job, in chronological order.
#[derive(Clone, Debug, Serialize)]
pub struct ConditionRow {
    /// The condition.
    pub name: String,
    /// True if the condition still holds.
    pub holds: bool,
    /// The condition's display category.
    pub tone: Tone,
    /// When it last changed.
    pub at: String,
    /// The reason.
    pub message: String,
}

/// One replica of a job.
#[derive(Clone, Debug, Serialize)]
pub struct Replica {
    /// Its rank among the replicas.
    pub rank: usize,
    /// Its pod's name.
    pub pod: String,
    /// Its role in the job.
    pub role: String,
    /// Its pod's phase, or a more specific reason.
    pub state: String,
    /// The display category.
    pub tone: Tone,
    /// Its node.
    pub node: String,
    /// The devices allocated to it.
    pub devices: Vec<String>,
    /// The number of restarts of its containers.
    pub restarts: i32,
    /// Its exit code, if it ended.
    pub exit: String,
}

/// A job's page.
#[derive(Clone, Debug, Serialize)]
pub struct JobDetail {
    /// The row in lists.
    pub row: JobRow,
    /// Its state and the cause in one sentence, for a job that the scheduler does not hold back.
    pub sentence: String,
    /// The conditions so far.
    pub steps: Vec<ConditionRow>,
    /// Its replicas by rank.
    pub replicas: Vec<Replica>,
    /// True if its owner suspended it.
    pub suspended: bool,
    /// True if it has ended.
    pub over: bool,
    /// The manifest, as YAML.
    pub manifest: String,
}

/// The parts of a job that do not depend on its kind.
struct JobFacts {
    plural: &'static str,
    kind: &'static str,
    object: Value,
}

impl JobFacts {
    fn text(&self, pointer: &str) -> &str {
        self.object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or("")
    }

    fn stamp(&self, pointer: &str) -> Option<Timestamp> {
        self.text(pointer).parse().ok()
    }

    fn training(&self) -> Option<&'static TrainingKind> {
        training::find(training::GROUP, self.kind)
    }

    fn owner_label(&self) -> &'static str {
        owner_label(self.kind)
    }

    fn queue(&self) -> String {
        let named = [
            "/spec/runPolicy/schedulingPolicy/queue",
            "/metadata/labels/scheduling.volcano.sh~1queue-name",
            "/metadata/annotations/scheduling.volcano.sh~1queue-name",
        ];
        let found = named
            .iter()
            .map(|pointer| self.text(pointer))
            .find(|name| !name.is_empty());
        found.unwrap_or("default").to_string()
    }

    /// The desired replicas and the GPUs that each requests.
    fn parts(&self) -> Vec<(i64, i64)> {
        let gpus = |template: &Value| -> i64 {
            let containers = template["spec"]["containers"].as_array();
            let of = |container: &Value| {
                let amount = &container["resources"]["limits"]["nvidia.com/gpu"];
                amount
                    .as_i64()
                    .or_else(|| amount.as_str()?.parse().ok())
                    .unwrap_or(0)
            };
            containers.into_iter().flatten().map(of).sum()
        };
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
        let wanted = spec["parallelism"].as_i64().unwrap_or(1);
        vec![(wanted, gpus(&spec["template"]))]
    }

    fn row(&self, pods: &[Arc<PodRow>], now: Timestamp) -> JobRow {
        let state = state_of(&self.object["status"]);
        let suspended = self.suspended() && !matches!(tone_of(&state), Tone::Good | Tone::Bad);
        let state = if suspended {
            "Suspended".to_string()
        } else {
            state
        };
        let parts = self.parts();
        let created = self.stamp("/metadata/creationTimestamp");
        let tone = tone_of(&state);
        // The controllers set the start time when they accept a job, before its pods run.
        let started = self
            .stamp("/status/startTime")
            .filter(|_| tone != Tone::Idle);
        let ended = self.ended(&state).unwrap_or(now);
        let lasted =
            |from: Timestamp, to: Timestamp| human_duration(to.duration_since(from).as_secs());
        let running = pods.iter().filter(|pod| pod.phase() == "Running").count();
        JobRow {
            plural: self.plural,
            kind: self.kind,
            namespace: self.text("/metadata/namespace").to_string(),
            name: self.text("/metadata/name").to_string(),
            tone,
            state,
            queue: self.queue(),
            wanted: parts.iter().map(|(count, _)| count).sum(),
            running,
            gpus: parts.iter().map(|(count, gpus)| count * gpus).sum(),
            created,
            age: created.map(|from| lasted(from, now)).unwrap_or_default(),
            duration: started.map(|from| lasted(from, ended)).unwrap_or_default(),
        }
    }

    fn sentence(&self, pods: &[Arc<PodRow>]) -> String {
        let status = &self.object["status"];
        let pods: Vec<PodProgress<'_>> = pods
            .iter()
            .map(|pod| PodProgress {
                name: pod.metadata.name.as_deref().unwrap_or_default(),
                bound: pod.node.as_deref().is_some_and(|node| !node.is_empty()),
                containers: &pod.containers,
            })
            .collect();
        settled_sentence(&state_of(status), status, &pods)
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
    }

    fn suspended(&self) -> bool {
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

    fn steps(&self) -> Vec<ConditionRow> {
        let conditions = self.object["status"]["conditions"].as_array();
        let step = |condition: &Value| {
            let text = |field: &str| condition[field].as_str().unwrap_or("").to_string();
            let name = text("type");
            ConditionRow {
                holds: condition["status"] == "True",
                tone: tone_of(&name),
                at: text("lastTransitionTime"),
                message: text("message"),
                name,
            }
        };
        conditions.into_iter().flatten().map(step).collect()
    }
}

fn replica(rank: usize, pod: &PodRow) -> Replica {
    let containers = &pod.containers;
    let waiting = containers
        .iter()
        .find_map(|c| c.state.as_ref()?.waiting.as_ref()?.reason.clone());
    let ended = containers
        .iter()
        .find_map(|c| c.state.as_ref()?.terminated.clone());
    let state = if pod.metadata.deletion_timestamp.is_some() {
        "Terminating".to_string()
    } else {
        let phase = pod.phase();
        waiting
            .or_else(|| pod.reason.clone())
            .filter(|_| phase != "Running")
            .unwrap_or_else(|| phase.to_string())
    };
    let exit = ended.map(|end| {
        let reason = end
            .reason
            .filter(|reason| reason != "Completed")
            .unwrap_or_default();
        format!("{} {reason}", end.exit_code).trim().to_string()
    });
    Replica {
        rank,
        pod: pod.metadata.name.clone().unwrap_or_default(),
        role: pod.label("training.kubeflow.org/replica-type").to_string(),
        tone: tone_of(&state),
        state,
        node: pod.node.clone().unwrap_or_default(),
        devices: pod.devices(),
        restarts: containers.iter().map(|c| c.restart_count).sum(),
        exit: exit.unwrap_or_default(),
    }
}

impl Board {
    /// The jobs that `sees` (API group, plural, namespace) permits the reader to see.
    fn facts(&self, sees: impl Fn(&str, &str, &str) -> bool) -> Vec<JobFacts> {
        let seen = |group: &str, plural: &str, namespace: &Option<String>| {
            namespace
                .as_deref()
                .is_some_and(|namespace| sees(group, plural, namespace))
        };
        let training = self.training_jobs.iter().flat_map(|(kind, jobs)| {
            let jobs = jobs.state().into_iter();
            jobs.filter(|job| seen(training::GROUP, kind.plural, &job.metadata.namespace))
                .map(|job| JobFacts {
                    plural: kind.plural,
                    kind: kind.kind,
                    object: serde_json::to_value(&*job).unwrap_or_default(),
                })
        });
        let plain = self.plain_jobs.state().into_iter();
        let plain = plain
            .filter(|job| seen("batch", "jobs", &job.metadata.namespace))
            .map(|job| JobFacts {
                plural: "jobs",
                kind: "Job",
                object: serde_json::to_value(&*job).unwrap_or_default(),
            });
        training.chain(plain).collect()
    }

    fn pods_of(&self, facts: &JobFacts) -> Vec<Arc<PodRow>> {
        let name = facts.text("/metadata/name");
        let namespace = facts.text("/metadata/namespace");
        let mut pods: Vec<_> = self
            .pods
            .state()
            .into_iter()
            .filter(|pod| {
                pod.metadata.namespace.as_deref() == Some(namespace)
                    && pod.label(facts.owner_label()) == name
            })
            .collect();
        let key = |pod: &PodRow| {
            let index = pod
                .label("training.kubeflow.org/replica-index")
                .parse::<u64>();
            let index = index.or_else(|_| {
                pod.label("batch.kubernetes.io/job-completion-index")
                    .parse()
            });
            let role = pod.label("training.kubeflow.org/replica-type").to_string();
            (role, index.unwrap_or(u64::MAX), pod.metadata.name.clone())
        };
        pods.sort_by_key(|pod| key(pod));
        pods
    }

    /// All jobs that `sees` (API group, plural, namespace) permits the reader to see, newest first.
    pub fn jobs(&self, sees: impl Fn(&str, &str, &str) -> bool, now: Timestamp) -> Vec<JobRow> {
        let facts = self.facts(sees);
        let mut rows: Vec<JobRow> = facts
            .iter()
            .map(|facts| facts.row(&self.pods_of(facts), now))
            .collect();
        rows.sort_by_key(|row| (Reverse(row.created), row.name.clone()));
        rows
    }

    /// The details of one job.
    pub fn job(
        &self,
        sees: impl Fn(&str, &str, &str) -> bool,
        namespace: &str,
        plural: &str,
        name: &str,
        now: Timestamp,
    ) -> Option<JobDetail> {
        let facts = self.facts(sees).into_iter().find(|facts| {
            facts.plural == plural
                && facts.text("/metadata/name") == name
                && facts.text("/metadata/namespace") == namespace
        })?;
        let pods = self.pods_of(&facts);
        let row = facts.row(&pods, now);
        let mut shown = facts.object.clone();
        if let Some(metadata) = shown["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        Some(JobDetail {
            sentence: facts.sentence(&pods),
            steps: facts.steps(),
            replicas: pods
                .iter()
                .enumerate()
                .map(|(rank, pod)| replica(rank, pod))
                .collect(),
            suspended: facts.suspended(),
            over: matches!(row.tone, Tone::Good | Tone::Bad),
            manifest: serde_norway::to_string(&shown).unwrap_or_default(),
            row,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
            let facts = JobFacts {
                plural: "jobs",
                kind: "Job",
                object: json!({"metadata": {"name": "j"}, "spec": {}, "status": status}),
            };
            assert_eq!(facts.row(&[], now).duration, duration, "{status}");
        }
    }
}
