//! The verdict on a failed job, completed with the log of the pod that failed.

use kube::ResourceExt;
use kube::api::DynamicObject;
use resources::access::Caller;
use resources::training::TrainingKind;
use serde_json::Value;

use crate::log_tail;
use crate::log_text::{self, LogLine};
use crate::state::{LogQuery, Portal};
use crate::verdict::{FailedPod, rank_names};

/// The last lines of the failed pod's log that are read.
const LINES: u64 = 20;
/// The most characters of the last line in the verdict.
const LAST_LINE_MAX: usize = 300;

/// Why a job has failed.
#[derive(Debug, Default)]
pub struct Failure {
    /// The verdict.
    pub sentence: String,
    /// The pod that failed.
    pub pod: FailedPod,
    /// The last lines of its log; empty if the caller may not read them, or no node has them.
    pub lines: Vec<LogLine>,
}

/// Why a job has failed, for a caller that may read the job; none if no pod is the cause.
pub async fn of(
    portal: &Portal,
    caller: &Caller,
    kind: Option<&TrainingKind>,
    job: &Value,
) -> Option<Failure> {
    let namespace = job["metadata"]["namespace"].as_str()?;
    let mut pod = FailedPod::of(job, &rank_names(kind, job))?;
    let query = LogQuery {
        namespace: namespace.to_owned(),
        pod: pod.pod.clone(),
        tail_lines: Some(LINES),
        ..LogQuery::default()
    };
    let text = log_tail::read_last_run(portal, caller, query).await;
    let lines = log_text::lines(&text.unwrap_or_default(), false);
    let plain: Vec<String> = lines.iter().map(LogLine::plain).collect();
    pod.complete(&plain.join("\n"));
    let last = log_text::last_words(&lines, LAST_LINE_MAX);
    Some(Failure {
        sentence: pod.sentence(last.as_deref()),
        pod,
        lines,
    })
}

/// The same for an object of the API.
pub async fn of_object(
    portal: &Portal,
    caller: &Caller,
    kind: Option<&TrainingKind>,
    job: &DynamicObject,
) -> Option<Failure> {
    let object = serde_json::json!({
        "metadata": {"name": job.name_any(), "namespace": job.namespace(), "annotations": job.annotations()},
        "spec": job.data["spec"], "status": job.data["status"],
    });
    of(portal, caller, kind, &object).await
}
