//! Queues' statuses: the resources that each queue holds, and how many of its gangs are in each
//! phase. A status is written when it changed, at the interval that the loop sets.

use std::collections::BTreeMap;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use resources::amounts::Amounts;
use resources::kinds::{Queue, QueueState};
use scheduler::QueueView;
use serde_json::{Map, Value, json};

/// The known statuses of the existing queues.
#[derive(Default)]
pub(super) struct QueueStatusCache(BTreeMap<String, QueueEntry>);

#[derive(Default)]
struct QueueEntry {
    state: Option<QueueState>,
    /// The status in the API, or the one last written.
    status: Status,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Status {
    allocated: Amounts,
    entitled: Amounts,
    /// The queue's dominant share of the cluster, as text.
    share: Option<String>,
    phases: [i64; 5],
    state: Option<QueueState>,
}

const PHASES: [&str; 5] = ["Unknown", "Pending", "Running", "Inqueue", "Completed"];
const FIELDS: [&str; 5] = ["unknown", "pending", "running", "inqueue", "completed"];

impl QueueStatusCache {
    /// Records the status in the API.
    pub(super) fn see(&mut self, queue: &Queue) {
        let name = queue.metadata.name.clone().unwrap_or_default();
        let entry = self.0.entry(name).or_default();
        let shown = queue.status.clone().unwrap_or_default();
        entry.state = shown.state;
        let counts = [
            shown.unknown,
            shown.pending,
            shown.running,
            shown.inqueue,
            shown.completed,
        ];
        entry.status = Status {
            allocated: shown
                .allocated
                .as_ref()
                .map(Amounts::from_k8s)
                .unwrap_or_default(),
            entitled: shown
                .entitled
                .as_ref()
                .map(Amounts::from_k8s)
                .unwrap_or_default(),
            share: shown.share,
            phases: counts.map(i64::from),
            state: shown.state,
        };
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The status last written did not arrive.
    pub(super) fn report_failed(&mut self, name: &str) {
        if let Some(entry) = self.0.get_mut(name) {
            entry.status = Status::default();
        }
    }

    /// The patches for queues whose status changed.
    pub(super) fn news(&mut self, views: &BTreeMap<String, QueueView>) -> Vec<(String, Value)> {
        let none = QueueView::default();
        let mut patches = Vec::new();
        for (name, entry) in &mut self.0 {
            let view = views.get(name).unwrap_or(&none);
            let phases = PHASES.map(|phase| view.phases.get(phase).copied().unwrap_or(0) as i64);
            let status = Status {
                allocated: view.allocated.clone(),
                entitled: view.entitled.clone(),
                share: Some(format!("{:.3}", view.share)),
                phases,
                state: Some(state(entry.state, view)),
            };
            if status != entry.status {
                patches.push((name.clone(), patch(&entry.status, &status)));
                entry.status = status;
            }
        }
        patches
    }
}

/// A queue that is closing is closed once it holds nothing; a queue without a state is open.
fn state(shown: Option<QueueState>, view: &QueueView) -> QueueState {
    match shown {
        Some(QueueState::Closing) if view.allocated.is_empty() => QueueState::Closed,
        Some(state) => state,
        None => QueueState::Open,
    }
}

fn patch(old: &Status, new: &Status) -> Value {
    let mut status = json!({
        "allocated": amounts(&old.allocated, &new.allocated),
        "entitled": amounts(&old.entitled, &new.entitled),
        "share": new.share,
        "state": new.state,
    });
    for (field, count) in FIELDS.iter().zip(new.phases) {
        status[*field] = json!(count);
    }
    json!({ "status": status })
}

fn amounts(old: &Amounts, new: &Amounts) -> Map<String, Value> {
    // A merge patch leaves keys alone that it does not name.
    let gone = old.iter().map(|(name, _)| (name.to_owned(), Value::Null));
    let mut list: Map<String, Value> = gone.collect();
    for (name, quantity) in new.to_k8s() {
        list.insert(name, Value::String(quantity.0));
    }
    list
}

/// Writes a queue's status.
pub(super) async fn write(client: Client, name: String, patch: Value) -> Result<(), kube::Error> {
    let api: Api<Queue> = Api::all(client);
    match api
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        answer => answer.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(status: Value) -> Queue {
        serde_json::from_value(json!({
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
            "metadata": {"name": "q"}, "spec": {}, "status": status,
        }))
        .unwrap()
    }

    fn view(gpus: i64, running: usize) -> BTreeMap<String, QueueView> {
        let mut view = QueueView::default();
        if gpus > 0 {
            view.allocated.set("nvidia.com/gpu", gpus);
            view.phases.insert("Running", running);
        }
        BTreeMap::from([("q".to_owned(), view)])
    }

    #[test]
    fn a_status_is_written_when_it_changed_and_only_then() {
        let mut book = QueueStatusCache::default();
        book.see(&queue(json!({})));
        let patches = book.news(&view(2, 1));
        assert_eq!(patches.len(), 1);
        let status = &patches[0].1["status"];
        assert_eq!(
            (&status["allocated"]["nvidia.com/gpu"], &status["running"]),
            (&json!("2"), &json!(1))
        );
        assert_eq!(status["state"], "Open");
        assert!(book.news(&view(2, 1)).is_empty());
        let patches = book.news(&view(0, 0));
        assert_eq!(
            patches[0].1["status"]["allocated"],
            json!({"nvidia.com/gpu": null})
        );
    }

    #[test]
    fn a_queues_share_and_entitlement_are_shown() {
        let mut book = QueueStatusCache::default();
        book.see(&queue(json!({})));
        let mut views = view(2, 1);
        let own = views.get_mut("q").unwrap();
        own.share = 1.0 / 3.0;
        own.entitled.set("nvidia.com/gpu", 4);
        let status = book.news(&views)[0].1["status"].clone();
        assert_eq!(status["share"], "0.333");
        assert_eq!(status["entitled"], json!({"nvidia.com/gpu": "4"}));
        assert!(book.news(&views).is_empty());
        // A restarted server reads the status back and has nothing to write.
        let mut again = QueueStatusCache::default();
        again.see(&queue(status));
        assert!(again.news(&views).is_empty());
    }

    #[test]
    fn a_closing_queue_is_closed_once_it_is_empty() {
        let mut book = QueueStatusCache::default();
        book.see(&queue(json!({
            "state": "Closing", "running": 1, "allocated": {"nvidia.com/gpu": "1"},
            "share": "0.000",
        })));
        assert!(book.news(&view(1, 1)).is_empty());
        assert_eq!(book.news(&view(0, 0))[0].1["status"]["state"], "Closed");
    }

    #[test]
    fn a_closed_queue_stays_closed() {
        let mut book = QueueStatusCache::default();
        book.see(&queue(json!({"state": "Closed"})));
        assert_eq!(book.news(&view(1, 1))[0].1["status"]["state"], "Closed");
    }
}
