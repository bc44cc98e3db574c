//! Writes the agents' pod reports to the API: statuses (only the latest of each pod), the end of
//! deletions, and events. A report about a pod that another component declared ended is dropped:
//! the status that users have seen stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use parking_lot::Mutex;
use resources::times::seconds;
use rpc::agent::v1::{EventNote, PodGone, PodStatus};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use crate::error::status_code;
use crate::pod_fields::node_of;

/// The maximum number of pods with pending writes, for one session.
const MAX_PENDING_PODS: usize = 4096;

/// The maximum number of pending events, for one session; more are dropped.
const MAX_PENDING_EVENTS: usize = 512;

/// The maximum number of concurrent writes, for one session.
const CONCURRENT_WRITES: usize = 8;

/// How often a conflicting write is retried at once.
const MAX_CONFLICTS: usize = 5;

/// The delay before a write that the API could not accept is retried.
const RETRY: Duration = Duration::from_secs(1);

/// Conditions that the agent owns; other conditions of the pod stay.
const OWN_CONDITIONS: [&str; 5] = [
    "Initialized",
    "PodReadyToStartContainers",
    "ContainersReady",
    "Ready",
    "PodScheduled",
];

/// Fields of a status that a new status without them removes.
const OPTIONAL_FIELDS: [&str; 3] = ["message", "reason", "initContainerStatuses"];

#[derive(Default)]
struct Pending {
    statuses: BTreeMap<String, PodStatus>,
    gone: BTreeMap<String, PodGone>,
    events: Vec<EventNote>,
}

/// One session's pending reports.
pub struct PendingReports {
    client: Client,
    node: String,
    pending: Mutex<Pending>,
    work: Notify,
}

/// The result of a write.
enum StatusWriteResult {
    Done,
    /// The write is to be retried.
    Later,
}

impl PendingReports {
    /// Creates the queue for the session of `node`.
    pub fn new(client: Client, node: String) -> Arc<Self> {
        Arc::new(PendingReports {
            client,
            node,
            pending: Mutex::default(),
            work: Notify::new(),
        })
    }

    /// A pod's status; replaces a pending one.
    pub fn status(&self, status: PodStatus) {
        let mut pending = self.pending.lock();
        if pending.statuses.len() < MAX_PENDING_PODS || pending.statuses.contains_key(&status.uid) {
            pending.statuses.insert(status.uid.clone(), status);
        } else {
            tracing::warn!(
                node = self.node,
                pod = status.name,
                "the agent sent too many statuses at once; the server drops one"
            );
        }
        drop(pending);
        self.work.notify_one();
    }

    /// A pod has left the node.
    pub fn gone(&self, gone: PodGone) {
        let mut pending = self.pending.lock();
        if pending.gone.len() < MAX_PENDING_PODS {
            pending.gone.insert(gone.uid.clone(), gone);
        }
        drop(pending);
        self.work.notify_one();
    }

    /// An event about a pod.
    pub fn event(&self, note: EventNote) {
        let mut pending = self.pending.lock();
        if pending.events.len() < MAX_PENDING_EVENTS {
            pending.events.push(note);
        }
        drop(pending);
        self.work.notify_one();
    }

    /// Writes until dropped; the next session reports again anything still pending.
    pub async fn run(self: Arc<Self>) {
        loop {
            self.work.notified().await;
            while self.write_batch().await {
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Writes all pending reports; true if any has to be retried.
    async fn write_batch(&self) -> bool {
        let batch = std::mem::take(&mut *self.pending.lock());
        let mut uids: BTreeSet<String> = batch.statuses.keys().cloned().collect();
        uids.extend(batch.gone.keys().cloned());
        let statuses = Arc::new(batch.statuses);
        let gone = Arc::new(batch.gone);
        let again: Vec<String> = futures::stream::iter(uids)
            .map(|uid| {
                let status = statuses.get(&uid).cloned();
                let gone = gone.get(&uid).cloned();
                async move {
                    // Writes the last status first: it contains the exit codes that watchers need.
                    if let Some(status) = &status
                        && let StatusWriteResult::Later = self.write_status(status).await
                    {
                        return Some(uid);
                    }
                    match &gone {
                        Some(gone) => match self.finish_deletion(gone).await {
                            StatusWriteResult::Done => None,
                            StatusWriteResult::Later => Some(uid),
                        },
                        None => None,
                    }
                }
            })
            .buffer_unordered(CONCURRENT_WRITES)
            .filter_map(std::future::ready)
            .collect()
            .await;
        for note in batch.events {
            self.write_event(&note).await;
        }
        let mut pending = self.pending.lock();
        for uid in &again {
            if let Some(status) = statuses.get(uid) {
                // A newer one may have arrived meanwhile.
                pending
                    .statuses
                    .entry(uid.clone())
                    .or_insert_with(|| status.clone());
            }
            if let Some(left) = gone.get(uid) {
                pending.gone.insert(uid.clone(), left.clone());
            }
        }
        !again.is_empty()
    }

    async fn write_status(&self, report: &PodStatus) -> StatusWriteResult {
        let new: Map<String, Value> = match serde_json::from_str(&report.status_json) {
            Ok(status) => status,
            Err(error) => {
                tracing::warn!(node = self.node, pod = report.name, %error, "the server drops a pod's status that is not a JSON object");
                return StatusWriteResult::Done;
            }
        };
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &report.namespace);
        for _ in 0..MAX_CONFLICTS {
            let current = match pods.get_opt(&report.name).await {
                Ok(Some(pod)) => pod,
                Ok(None) => return StatusWriteResult::Done,
                Err(error) => return self.failed("reading", &report.name, &error),
            };
            if let Err(why) = accepts(&current, &report.uid, &self.node, &new) {
                tracing::debug!(
                    node = self.node,
                    pod = report.name,
                    why,
                    "the server does not take a pod's status"
                );
                return StatusWriteResult::Done;
            }
            let patch = status_patch(&current, &new);
            match pods
                .patch_status(&report.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
            {
                Ok(_) => return StatusWriteResult::Done,
                Err(error) if status_code(&error) == Some(409) => {}
                Err(error) if status_code(&error) == Some(404) => return StatusWriteResult::Done,
                Err(error) => return self.failed("writing the status of", &report.name, &error),
            }
        }
        StatusWriteResult::Later
    }

    async fn finish_deletion(&self, gone: &PodGone) -> StatusWriteResult {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &gone.namespace);
        let current = match pods.get_opt(&gone.name).await {
            Ok(Some(pod)) => pod,
            Ok(None) => return StatusWriteResult::Done,
            Err(error) => return self.failed("reading", &gone.name, &error),
        };
        let ours = current.metadata.uid.as_deref() == Some(&gone.uid)
            && node_of(&current) == Some(&self.node);
        if !ours || current.metadata.deletion_timestamp.is_none() {
            return StatusWriteResult::Done;
        }
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: Some(gone.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match pods.delete(&gone.name, &parameters).await {
            Ok(_) => StatusWriteResult::Done,
            Err(error) if matches!(status_code(&error), Some(404 | 409)) => StatusWriteResult::Done,
            Err(error) => self.failed("deleting", &gone.name, &error),
        }
    }

    async fn write_event(&self, note: &EventNote) {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &note.namespace);
        let event = event_of(note, &self.node, Timestamp::now());
        // A failed write loses the event, as in Kubernetes.
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            tracing::debug!(node = self.node, pod = note.name, %error, "the server could not write an event");
        }
    }

    fn failed(&self, what: &str, pod: &str, error: &kube::Error) -> StatusWriteResult {
        match status_code(error) {
            // The API rejects the write permanently.
            Some(400 | 403 | 422) => {
                tracing::warn!(node = self.node, pod, %error, "{what} a pod was refused");
                StatusWriteResult::Done
            }
            _ => {
                tracing::warn!(node = self.node, pod, %error, "{what} a pod failed; trying again");
                StatusWriteResult::Later
            }
        }
    }
}

/// Checks if a report may overwrite the API's status, and why not.
fn accepts(
    current: &Pod,
    uid: &str,
    node: &str,
    new: &Map<String, Value>,
) -> Result<(), &'static str> {
    if current.metadata.uid.as_deref() != Some(uid) {
        return Err("it is about an earlier pod of that name");
    }
    if node_of(current) != Some(node) {
        return Err("the pod is not on this node");
    }
    let phase = current
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if crate::sent_instructions::is_lost(current) {
        return Err("the pod was declared lost");
    }
    let ended = |phase: Option<&str>| matches!(phase, Some("Succeeded" | "Failed"));
    if ended(phase) && phase != new.get("phase").and_then(Value::as_str) {
        return Err("the pod has already ended");
    }
    Ok(())
}

/// The merge patch that sets the pod's status to the agent's report. It fails if the pod was
/// changed since it was read.
fn status_patch(current: &Pod, new: &Map<String, Value>) -> Value {
    let mut status = new.clone();
    for field in OPTIONAL_FIELDS {
        status.entry(field).or_insert(Value::Null);
    }
    let existing: Vec<Value> = current
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
        .filter_map(|condition| serde_json::to_value(condition).ok())
        .collect();
    let reported = new.get("conditions").and_then(Value::as_array);
    let reported: Vec<Value> = (reported.into_iter().flatten())
        .filter(|condition| condition.is_object())
        .cloned()
        .collect();
    let conditions = merge_conditions(&existing, reported);
    status.insert("conditions".to_owned(), Value::Array(conditions));
    json!({
        "metadata": {
            "uid": current.metadata.uid,
            "resourceVersion": current.metadata.resource_version,
        },
        "status": status,
    })
}

/// The conditions of a pod after a report of these ones, which are objects.
fn merge_conditions(existing: &[Value], reported: Vec<Value>) -> Vec<Value> {
    let mut all: Vec<Value> = existing
        .iter()
        .filter(|old| {
            let own = OWN_CONDITIONS.iter().any(|name| old["type"] == *name);
            let again = reported.iter().any(|new| new["type"] == old["type"]);
            // If the binder wrote PodScheduled, it stays; the agent only adds a missing one.
            old["type"] == "PodScheduled" && old["status"] == "True" || !own && !again
        })
        .cloned()
        .collect();
    for mut new in reported {
        if all.iter().any(|kept| kept["type"] == new["type"]) {
            continue;
        }
        // The API's copy has the time of the last change, because the API sees all changes.
        let same = existing
            .iter()
            .find(|old| old["type"] == new["type"] && old["status"] == new["status"]);
        if let Some(time) = same.and_then(|old| old.get("lastTransitionTime")) {
            new["lastTransitionTime"] = time.clone();
        }
        all.push(new);
    }
    all
}

fn event_of(note: &EventNote, node: &str, now: Timestamp) -> Event {
    // Unique without randomness: no two events of a pod are recorded in the same nanosecond.
    let suffix = format!("{:x}", now.as_nanosecond());
    let mut involved = json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "namespace": note.namespace,
        "name": note.name,
        "uid": note.uid,
    });
    if !note.field_path.is_empty() {
        involved["fieldPath"] = json!(note.field_path);
    }
    serde_json::from_value(json!({
        "metadata": {
            "namespace": note.namespace,
            "name": format!("{}.{suffix}", note.name),
        },
        "involvedObject": involved,
        "type": if note.warning { "Warning" } else { "Normal" },
        "reason": note.reason,
        "message": note.message,
        "firstTimestamp": seconds(now),
        "lastTimestamp": seconds(now),
        "count": 1,
        "source": {"component": "muster-agent", "host": node},
        "reportingComponent": "muster-agent",
        "reportingInstance": node,
    }))
    .expect("an event made of strings has an event's shape")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "p", "uid": "u", "resourceVersion": "5"},
            "spec": {"nodeName": "n", "containers": []},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_report_is_taken_only_for_the_same_pod_on_this_node_that_has_not_ended() {
        let running = json!({"phase": "Running"});
        let failed = json!({"phase": "Failed"});
        let lost = json!({"phase": "Failed", "reason": "NodeLost"});
        let cases = [
            (running.clone(), "u", "n", &running, true),
            (running.clone(), "old", "n", &running, false),
            (running.clone(), "u", "other", &running, false),
            (failed.clone(), "u", "n", &running, false),
            (failed.clone(), "u", "n", &failed, true),
            (lost, "u", "n", &failed, false),
            (json!({}), "u", "n", &running, true),
        ];
        for (current, uid, node, new, taken) in cases {
            let new = new.as_object().unwrap();
            let verdict = accepts(&pod(current.clone()), uid, node, new);
            assert_eq!(verdict.is_ok(), taken, "{current} {uid} {node} {new:?}");
        }
    }

    #[test]
    fn a_status_without_a_reason_removes_the_old_one_and_guards_against_changes() {
        let current = pod(json!({"phase": "Pending", "reason": "Old", "message": "old"}));
        let running = json!({"phase": "Running"});
        let patch = status_patch(&current, running.as_object().unwrap());
        assert_eq!(patch["status"]["reason"], Value::Null);
        assert_eq!(patch["status"]["message"], Value::Null);
        assert_eq!(patch["metadata"]["uid"], "u");
        assert_eq!(patch["metadata"]["resourceVersion"], "5");
    }

    #[test]
    fn conditions_of_others_stay_and_unchanged_ones_keep_their_time() {
        let existing = [
            json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": "t0"}),
            json!({"type": "DisruptionTarget", "status": "True"}),
            json!({"type": "Ready", "status": "False", "lastTransitionTime": "t1"}),
            json!({"type": "Initialized", "status": "False", "lastTransitionTime": "t1"}),
        ];
        let reported = json!([
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "t9"},
            {"type": "Ready", "status": "False", "lastTransitionTime": "t9"},
            {"type": "Initialized", "status": "True", "lastTransitionTime": "t9"},
        ]);
        let all = merge_conditions(&existing, reported.as_array().unwrap().clone());
        let time = |name: &str| {
            all.iter()
                .find(|c| c["type"] == name)
                .map(|c| c["lastTransitionTime"].clone())
        };
        assert_eq!(all.len(), 4);
        assert_eq!(time("PodScheduled").unwrap(), "t0");
        assert_eq!(time("Ready").unwrap(), "t1");
        assert_eq!(time("Initialized").unwrap(), "t9");
    }

    #[test]
    fn a_note_becomes_an_event_of_the_pod() {
        let note = EventNote {
            namespace: "ns".to_owned(),
            name: "p".to_owned(),
            uid: "u".to_owned(),
            warning: true,
            reason: "BackOff".to_owned(),
            message: "m".to_owned(),
            field_path: "spec.containers{main}".to_owned(),
        };
        let event = event_of(&note, "n", Timestamp::from_second(1).unwrap());
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.involved_object.uid.as_deref(), Some("u"));
        assert_eq!(
            event.involved_object.field_path.as_deref(),
            Some("spec.containers{main}")
        );
    }

    fn reports() -> Vec<Value> {
        vec![
            json!({
                "phase": "Running", "hostIP": "10.0.0.1", "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "containerStatuses": [{"name": "c", "ready": true, "restartCount": 1, "image": "i", "imageID": "",
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
            }),
            json!({"phase": "Failed", "reason": "Evicted", "message": "m", "conditions": []}),
        ]
    }

    proptest::proptest! {
        #[test]
        fn no_report_of_a_pod_panics(
            report in crate::documents::changed(reports()),
            stored in crate::documents::changed(reports()),
            text in crate::documents::damage(),
            words in "\\PC{0,40}",
        ) {
            // What the API holds was a pod's status before.
            let mut current = json!({"metadata": {"uid": "u"}, "spec": {"nodeName": "n", "containers": []}});
            current["status"] = stored;
            let json = crate::documents::damaged(report.to_string().into_bytes(), &text);
            let report = serde_json::from_slice::<Map<String, Value>>(&json);
            if let (Ok(new), Ok(current)) = (report, serde_json::from_value::<Pod>(current))
                && accepts(&current, "u", "n", &new).is_ok()
            {
                let patch = status_patch(&current, &new);
                let conditions = patch["status"]["conditions"].as_array().unwrap();
                proptest::prop_assert!(conditions.iter().all(Value::is_object));
                for field in OPTIONAL_FIELDS {
                    proptest::prop_assert!(patch["status"].get(field).is_some());
                }
            }
            let note = EventNote {
                namespace: words.clone(), name: words.clone(), uid: words.clone(), warning: true,
                reason: words.clone(), message: words.clone(), field_path: words,
            };
            let event = event_of(&note, "n", Timestamp::UNIX_EPOCH);
            proptest::prop_assert_eq!(event.message.as_deref(), Some(note.message.as_str()));
        }
    }

    #[test]
    fn a_status_that_is_no_object_is_not_one_to_write() {
        for text in ["[]", "1", "\"x\"", "null", "true"] {
            assert!(
                serde_json::from_str::<Map<String, Value>>(text).is_err(),
                "{text}"
            );
        }
    }
}
