//! Why a job has failed, in one sentence: which rank, how its program ended, after how many attempts, and the evidence.
//! Pure: the caller passes the job, the names of its pods and the end of the failed pod's log. The job's controller
//! recorded the failure in an annotation (`resources::failure`), and its sentence is in the job's condition and events;
//! the REST API (and by it the CLI) and the job's page say the same one. For a job without the record, for example of
//! an engine's own controller, the condition is read.
//!
//! Example: the controller wrote `Job j has failed because it has reached the specified backoff limit: j-worker-0 exited
//! with code 1`. The verdict is `Rank 1 (j-worker-0) exited with code 1 after 2 attempts: ValueError: bad shard 17`.

use resources::failure::{FailureRecord, of_log};
use resources::names;
use resources::numbers::GANG_MEMBERS_MAX;
use resources::training::TrainingKind;
use resources::volcano;
use serde_json::Value;

/// What the controllers write before a program's exit code.
const EXITED: &str = "exited with code ";

/// The failed pod that a job's condition names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedPod {
    /// Its name.
    pub pod: String,
    /// Its rank, if it is known.
    pub rank: Option<usize>,
    /// Its program's exit code, if the program ran.
    pub exit_code: Option<i32>,
    /// How often its program failed.
    pub attempts: u64,
    /// What the condition says of it after its name.
    story: String,
    /// The controller's record.
    pub record: Option<FailureRecord>,
}

/// The pods of a job's ranks as names, in order; none for a kind whose pods have generated names.
pub fn rank_names(kind: Option<&TrainingKind>, job: &Value) -> Vec<String> {
    let most = usize::try_from(GANG_MEMBERS_MAX).unwrap_or(usize::MAX);
    match kind {
        Some(kind) => kind.rank_names(job, most),
        // Only Volcano's Job has tasks.
        None => volcano::rank_names(job, most),
    }
}

/// The message of the condition that says that a job failed.
fn message(job: &Value) -> &str {
    if matches!(
        volcano::phase(&job["status"]),
        Some("Failed" | "Terminated")
    ) {
        return job["status"]["state"]["message"]
            .as_str()
            .unwrap_or_default();
    }
    let conditions = job["status"]["conditions"].as_array();
    let mut failed = conditions
        .into_iter()
        .flatten()
        .filter(|condition| condition["type"] == "Failed" && condition["status"] == "True");
    let found = failed.next_back();
    found
        .and_then(|condition| condition["message"].as_str())
        .unwrap_or_default()
}

impl FailedPod {
    /// The pod that the job's failure names; none if the job has not failed, or the cause is no pod. `ranks` are the
    /// names of the job's pods in the order of ranks.
    pub fn of(job: &Value, ranks: &[String]) -> Option<FailedPod> {
        let name = job["metadata"]["name"].as_str()?;
        let text = message(job);
        // The sentence about a hang names no pod.
        let is_told = |record: &FailureRecord| {
            text.contains(&record.pod) || text.contains(&record.sentence())
        };
        if let Some(record) = record_of(job).filter(is_told) {
            return Some(FailedPod {
                pod: record.pod.clone(),
                rank: record.rank.and_then(|rank| usize::try_from(rank).ok()),
                exit_code: record.exit_code,
                attempts: u64::from(record.attempts),
                story: String::new(),
                record: Some(record),
            });
        }
        let prefix = format!("{name}-");
        let is_end = |c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '.');
        let begins = |at: usize| text[..at].ends_with(' ') || at == 0;
        let (at, _) = text.match_indices(&prefix).find(|(at, _)| begins(*at))?;
        let rest = &text[at..];
        let pod = &rest[..rest.find(is_end).unwrap_or(rest.len())];
        let story = rest[pod.len()..].to_owned();
        let pod = pod.trim_end_matches('.');
        let exit_code = story.split_once(EXITED).and_then(|(_, code)| {
            let digits = code.find(|c: char| !(c.is_ascii_digit() || c == '-'));
            code[..digits.unwrap_or(code.len())].parse().ok()
        });
        Some(FailedPod {
            pod: pod.to_owned(),
            rank: ranks.iter().position(|known| known == pod),
            exit_code,
            attempts: attempts(job, name, pod),
            story,
            record: None,
        })
    }

    /// Completes the record by the end of the pod's log, if its status had nothing of it.
    pub fn complete(&mut self, log: &str) {
        let Some(record) = &mut self.record else {
            return;
        };
        if !record.evidence.is_empty() || record.exit_code.is_none() {
            return;
        }
        if let Some(evidence) = of_log(log) {
            record.evidence = evidence.text;
            record.class = evidence.class.unwrap_or(record.class);
        }
    }

    /// The verdict. `last_line` is the last line of the pod's log, if it was read.
    pub fn sentence(&self, last_line: Option<&str>) -> String {
        if let Some(record) = &self.record {
            return record.sentence();
        }
        let who = match self.rank {
            Some(rank) => format!("Rank {rank} ({})", self.pod),
            None => format!("Pod {}", self.pod),
        };
        let mut story = self.story.trim_end().trim_end_matches('.').to_owned();
        if self.attempts > 1
            && let Some(code) = self.exit_code
        {
            let ended = format!("{EXITED}{code}");
            let with = format!("{ended} after {} attempts", self.attempts);
            story = story.replacen(&ended, &with, 1);
        }
        let says_why = story
            .split_once(EXITED)
            .is_none_or(|(_, rest)| rest.contains(": "));
        match last_line {
            Some(line) if !says_why => format!("{who}{story}: {line}"),
            _ => format!("{who}{story}"),
        }
    }
}

/// The record of a job's last failure.
pub fn record_of(job: &Value) -> Option<FailureRecord> {
    let annotations = &job["metadata"]["annotations"];
    FailureRecord::read(|name| annotations[name].as_str())
}

/// How often a pod's program failed: in-place restarts and failed pods of its replica, as the controller counted them in
/// the job's annotation; for a Job, the number of its failed pods.
fn attempts(job: &Value, name: &str, pod: &str) -> u64 {
    let failed = job["status"]["failed"].as_u64().unwrap_or(0);
    let text = job["metadata"]["annotations"][names::RESTARTS].as_str();
    let counts: Value = text
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let place = pod
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|rest| rest.rsplit_once('-'));
    let own = place.map_or(&Value::Null, |(role, index)| &counts[role][index]);
    let count = |field: &str| own[field].as_u64().unwrap_or(0);
    let last = u64::from(own["podFailed"].as_bool().unwrap_or(false));
    let restarts = count("restarts").saturating_add(count("podRestarts"));
    let failures = count("failures").saturating_add(last);
    restarts.saturating_add(failures.max(failed)).max(1)
}

#[cfg(test)]
mod tests {
    use resources::training::PYTORCH_JOB;
    use serde_json::json;

    use super::*;

    fn job(message: &str, annotations: Value) -> Value {
        json!({"metadata": {"name": "j", "annotations": annotations},
            "spec": {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 2}}},
            "status": {"conditions": [
                {"type": "Running", "status": "False", "message": "j-master-0 runs"},
                {"type": "Failed", "status": "True", "message": message}]}})
    }

    #[test]
    fn a_verdict_names_rank_exit_code_attempts_and_the_last_line() {
        let limit = "Job j has failed because it has reached the specified backoff limit: ";
        let counted = json!({names::RESTARTS: r#"{"worker":{"0":{"pod":"u","podRestarts":2}}}"#});
        let none = json!({});
        let replaced =
            json!({names::RESTARTS: r#"{"worker":{"1":{"failures":2,"podFailed":true}}}"#});
        let line = Some("ValueError: bad shard 17");
        let table = [
            (
                format!("{limit}j-worker-0 exited with code 1"),
                &counted,
                line,
                "Rank 1 (j-worker-0) exited with code 1 after 2 attempts: ValueError: bad shard 17",
            ),
            (
                format!("{limit}j-worker-1 exited with code 1: from the condition"),
                &replaced,
                line,
                "Rank 2 (j-worker-1) exited with code 1 after 3 attempts: from the condition",
            ),
            (
                "j-master-0 exited with code 137 (OOMKilled)".to_owned(),
                &none,
                None,
                "Rank 0 (j-master-0) exited with code 137 (OOMKilled)",
            ),
            (
                "j-master-0 did not start: exec: \"pyhton3\": not found on this node".to_owned(),
                &none,
                line,
                "Rank 0 (j-master-0) did not start: exec: \"pyhton3\": not found on this node",
            ),
            (
                "j-abcde exited with code 2.".to_owned(),
                &none,
                line,
                "Pod j-abcde exited with code 2: ValueError: bad shard 17",
            ),
        ];
        for (message, annotations, line, sentence) in table {
            let job = job(&message, annotations.clone());
            let ranks = rank_names(Some(&PYTORCH_JOB), &job);
            let failed = FailedPod::of(&job, &ranks).unwrap();
            assert_eq!(failed.sentence(line), sentence);
        }
    }

    #[test]
    fn a_recorded_failure_is_the_verdict_and_the_log_completes_it() {
        let record = |evidence: &str| {
            let record = FailureRecord {
                pod: "j-worker-0".to_owned(),
                rank: Some(1),
                exit_code: Some(1),
                what: "exited with code 1".to_owned(),
                evidence: evidence.to_owned(),
                attempts: 2,
                ..FailureRecord::default()
            };
            let message = "PyTorchJob j is failed because Rank 1 (j-worker-0) exited with code 1";
            FailedPod::of(&job(message, json!({names::FAILURE: record.write()})), &[]).unwrap()
        };
        let log = "  File \"t.py\", line 3, in f\nValueError: bad\n";
        let mut failed = record("");
        failed.complete(log);
        assert_eq!(
            failed.sentence(None),
            "Rank 1 (j-worker-0) exited with code 1 after 2 attempts: ValueError: bad (t.py line 3, in f)"
        );
        assert_eq!(failed.record.unwrap().class.as_str(), "python-error");
        let mut failed = record("no shard");
        failed.complete(log);
        let words = "Rank 1 (j-worker-0) exited with code 1 after 2 attempts: no shard";
        assert_eq!(failed.sentence(Some("ignored")), words);
    }

    #[test]
    fn a_failure_without_a_pod_or_a_job_that_runs_has_no_failed_pod() {
        let ranks = ["j-master-0".to_owned()];
        for message in [
            "",
            "Job j has failed because it was active longer than specified deadline",
            "Job x-j-master-0 has failed",
        ] {
            let job = job(message, json!({}));
            assert_eq!(FailedPod::of(&job, &ranks), None, "{message}");
        }
        let runs = json!({"metadata": {"name": "j"}, "status": {"conditions": [
            {"type": "Failed", "status": "False", "message": "j-master-0 exited with code 1"}]}});
        assert_eq!(FailedPod::of(&runs, &ranks), None);
    }

    #[test]
    fn a_job_counts_its_failed_pods() {
        let mut failed = job("j-abcde exited with code 2", json!({}));
        failed["status"]["failed"] = json!(4);
        let pod = FailedPod::of(&failed, &[]).unwrap();
        assert_eq!((pod.attempts, pod.exit_code, pod.rank), (4, Some(2), None));
    }
}
