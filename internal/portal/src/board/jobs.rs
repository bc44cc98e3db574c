//! Jobs as the pages show them: rows, and the details of one job.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use resources::names;
use serde::Serialize;
use serde_json::Value;

use super::Board;
use super::job_entry::{JobFacts, PODS};
use super::pods::PodRow;
use super::web_ports::{DASHBOARD, WebPort};
use crate::other_kinds::{Group, SETS};

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
        "Succeeded" | "Complete" | "SuccessCriteriaMet" | "Completed" => Tone::Good,
        "Running" | "Restarting" | "Completing" | "Terminating" | "Aborting" => Tone::Busy,
        "Failed"
        | "Terminated"
        | "FailureTarget"
        | "Unknown"
        | "CrashLoopBackOff"
        | "ImagePullBackOff"
        | "ErrImagePull"
        | "CreateContainerConfigError"
        | "StartError"
        | "Evicted"
        | "Error"
        | "NodeLost"
        | "NodeUnfit"
        | "OOMKilled" => Tone::Bad,
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
    /// Its queue; empty for a kind that does not queue itself.
    pub queue: String,
    /// The user that created it; empty if it is not recorded.
    pub user: String,
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

    /// The state in the pages' words: a job that is accepted and has no room yet waits.
    pub fn label(&self) -> &str {
        state_label(&self.state)
    }

    /// True if it can be suspended and resumed. A LeaderWorkerSet is scaled instead.
    pub fn suspends(&self) -> bool {
        self.plural != PODS && self.plural != SETS
    }

    /// True if it can be cancelled so that its record stays.
    pub fn cancels(&self) -> bool {
        self.plural != PODS
    }

    /// True if it has ended.
    pub fn over(&self) -> bool {
        matches!(self.tone, Tone::Good | Tone::Bad) && !self.goes_on()
    }

    /// True for the state of a pod that its node tries again.
    fn goes_on(&self) -> bool {
        self.kind == "Pod" && !matches!(self.state.as_str(), "Succeeded" | "Failed" | "Completed")
    }
}

/// A state in the pages' words.
pub fn state_label(state: &str) -> &str {
    match state {
        "Created" | "Pending" => "Waiting",
        "Complete" | "SuccessCriteriaMet" | "Completed" => "Succeeded",
        "FailureTarget" => "Failed",
        other => other,
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
    /// Changes with each start of its containers.
    #[serde(skip)]
    pub run: String,
    /// Its ports with web pages.
    #[serde(skip)]
    pub web: Vec<WebPort>,
    /// The gang of its group in a LeaderWorkerSet; empty for a replica of another kind.
    #[serde(skip)]
    pub gang: String,
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
    /// The groups of a RayCluster or LeaderWorkerSet or the tasks of a Volcano Job.
    pub groups: Vec<Group>,
    /// The groups that the list leaves out.
    pub more_groups: i64,
    /// Where a RayCluster's head is: terms with their values.
    #[serde(skip)]
    pub head: Vec<(&'static str, String)>,
    /// What a TrainJob's program last reported of its progress, or how many groups of a LeaderWorkerSet are ready, in one
    /// sentence.
    pub progress: Option<String>,
    /// The percentage in it.
    pub progress_percentage: Option<u8>,
    /// True if its owner suspended it, or scaled a LeaderWorkerSet to no groups.
    pub suspended: bool,
    /// The user that cancelled it; empty for a job that no user cancelled.
    pub cancelled_by: String,
    /// True if a user or a policy cancelled it.
    pub cancelled: bool,
    /// True if it has ended.
    pub over: bool,
    /// The object without the fields that the API keeps for itself.
    #[serde(skip)]
    pub object: Value,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// When it began to run.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
}

impl Board {
    /// All jobs that `sees` (API group, plural, namespace) permits the reader to see, newest first.
    pub fn jobs(&self, sees: impl Fn(&str, &str, &str) -> bool, now: Timestamp) -> Vec<JobRow> {
        let entries = self.entries(sees).into_iter();
        entries
            .filter(|entry| entry.is_job())
            .map(|entry| entry.row(now))
            .collect()
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
        let entry = self.entry(namespace, plural, name)?;
        if !sees(entry.group, entry.resource, namespace) {
            return None;
        }
        let object = entry.source.value();
        let facts = JobFacts::new(&entry, object);
        let row = entry.row(now);
        let steps = facts.steps();
        let ranks = facts.rank_names(&entry.pods);
        let groups = facts.groups(&entry.pods);
        let (progress, progress_percentage) = facts.progress();
        Some(JobDetail {
            sentence: facts.sentence(&entry.pods),
            more_groups: facts.more_groups(groups.len()),
            groups,
            head: facts.head(),
            progress,
            progress_percentage,
            replicas: replicas(&entry.pods, &ranks),
            suspended: facts.suspended(),
            cancelled_by: facts.cancelled_by().to_owned(),
            cancelled: facts.is_cancelled(),
            over: row.over(),
            created: row.created,
            started: entry.started,
            ended: entry.ended,
            steps,
            object: facts.object,
            row,
        })
    }
}

/// A job's replicas by rank: its pods, and the pods that ranks had.
fn replicas(pods: &[Arc<PodRow>], ranks: &[String]) -> Vec<Replica> {
    let name = |pod: &PodRow| pod.metadata.name.clone().unwrap_or_default();
    if ranks.is_empty() {
        let pods = pods.iter().enumerate();
        return pods.map(|(rank, pod)| replica(rank, pod)).collect();
    }
    let by_name: BTreeMap<String, &Arc<PodRow>> = pods.iter().map(|pod| (name(pod), pod)).collect();
    let of = |(rank, pod): (usize, &String)| match by_name.get(pod) {
        Some(found) => replica(rank, found),
        None => Replica::gone(rank, pod.clone()),
    };
    ranks.iter().enumerate().map(of).collect()
}

/// The state of a rank whose pod does not exist.
pub const GONE: &str = "no pod";

impl Replica {
    /// A rank whose pod does not exist now.
    pub fn gone(rank: usize, pod: String) -> Replica {
        Replica {
            rank,
            pod,
            role: String::new(),
            state: GONE.to_owned(),
            tone: Tone::Idle,
            node: String::new(),
            devices: Vec::new(),
            restarts: 0,
            exit: String::new(),
            run: String::new(),
            web: Vec::new(),
            gang: String::new(),
        }
    }
}

fn replica(rank: usize, pod: &PodRow) -> Replica {
    let containers = &pod.containers;
    let ended = containers
        .iter()
        .find_map(|c| c.state.as_ref()?.terminated.clone())
        .or_else(|| {
            let last = |c: &k8s_openapi::api::core::v1::ContainerStatus| {
                c.last_state.as_ref()?.terminated.clone()
            };
            containers.iter().find_map(last)
        });
    let state = pod.state();
    let exit = ended.map(|end| {
        let reason = end
            .reason
            .filter(|reason| !["Completed", "Error"].contains(&reason.as_str()))
            .unwrap_or_default();
        format!("{} {reason}", end.exit_code).trim().to_string()
    });
    let restarts = containers.iter().map(|c| c.restart_count).sum();
    let mut web = pod.web.clone();
    if pod.label(names::RAY_NODE_TYPE) == "head" {
        for port in web.iter_mut().filter(|port| port.title == DASHBOARD) {
            port.title = "Ray dashboard".to_owned();
        }
    }
    Replica {
        web,
        gang: pod.gang(),
        rank,
        pod: pod.metadata.name.clone().unwrap_or_default(),
        role: pod.role().to_owned(),
        tone: tone_of(&state),
        state,
        node: pod.node.clone().unwrap_or_default(),
        devices: pod.devices(),
        restarts,
        exit: exit.unwrap_or_default(),
        run: format!("{}-{restarts}", pod.metadata.uid.as_deref().unwrap_or("")),
    }
}
