//! Queues as the pages show them.

use serde::Serialize;
use serde_json::Value;

use super::Board;

/// One queue.
#[derive(Clone, Debug, Serialize)]
pub struct QueueRow {
    /// Its name.
    pub name: String,
    /// Open, Closing or Closed.
    pub state: String,
    /// Its weight relative to its siblings.
    pub weight: i64,
    /// The number of pending gangs.
    pub pending: i64,
    /// The number of running gangs.
    pub running: i64,
    /// The resources allocated to its running pods.
    pub allocated: Vec<(String, String)>,
    /// Its dominant share of the cluster, in percent; empty until it is known.
    pub share: String,
    /// Its present entitlement, by resource.
    pub entitled: Vec<(String, String)>,
    /// Its capability, by resource.
    pub capability: Vec<(String, String)>,
}

fn amounts(value: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_string)
    };
    let fields = value.as_object();
    fields
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.clone(), text(value)))
        .collect()
}

/// A fraction such as `0.25`, in percent.
fn percent(part: &Value) -> String {
    let part: Option<f64> = part.as_str().and_then(|text| text.parse().ok());
    part.map_or_else(String::new, |part| format!("{:.1}%", part * 100.0))
}

impl Board {
    /// All queues, by name.
    pub fn queues(&self) -> Vec<QueueRow> {
        let row = |object: Value| {
            let (spec, status) = (&object["spec"], &object["status"]);
            let count = |field: &str| status[field].as_i64().unwrap_or(0);
            QueueRow {
                name: object["metadata"]["name"]
                    .as_str()
                    .unwrap_or("")
                    .to_string(),
                state: status["state"].as_str().unwrap_or("Open").to_string(),
                weight: spec["weight"].as_i64().unwrap_or(1),
                pending: count("pending") + count("inqueue"),
                running: count("running"),
                allocated: amounts(&status["allocated"]),
                share: percent(&status["share"]),
                entitled: amounts(&status["entitled"]),
                capability: amounts(&spec["capability"]),
            }
        };
        let queues = self.queues.state();
        let values = queues
            .iter()
            .map(|queue| serde_json::to_value(&**queue).unwrap_or_default());
        let mut rows: Vec<QueueRow> = values.map(row).collect();
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        rows
    }
}
