//! `muster queue`: queues with their shares.

use std::collections::BTreeMap;

use anyhow::Result;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::ListParams;
use resources::amounts::Amounts;
use resources::kinds::{Queue, QueueState};
use resources::names::NVIDIA_GPU;

use super::connection::ServerConnection;
use super::nodes::{cores, gib};
use super::outcome::CommandOutcome;
use super::output::{self, Table};
use super::show;
use crate::arguments::Output;

/// Lists queues: weight and share among siblings, state, and allocated resources against the
/// limits.
pub async fn queues(connection: &ServerConnection, form: Option<Output>) -> Result<CommandOutcome> {
    let wide = match form {
        None => false,
        Some(Output::Wide) => true,
        Some(form) => return show::list_of(connection, "queues", form).await,
    };
    let api: Api<Queue> = Api::all(connection.client.clone());
    let queues = api.list(&ListParams::default()).await?.items;
    output::put(&table(&queues, wide).render())?;
    Ok(CommandOutcome::Yes)
}

fn table(queues: &[Queue], wide: bool) -> Table {
    let mut headings = vec![
        "NAME", "STATE", "WEIGHT", "SHARE", "GPU", "CPU", "MEMORY", "PENDING", "INQUEUE", "RUNNING",
    ];
    if wide {
        headings.extend([
            "PARENT",
            "PRIORITY",
            "RECLAIMABLE",
            "GUARANTEED",
            "DESERVED",
            "ENTITLED",
            "HOLDS",
        ]);
    }
    let mut table = Table::new(headings);
    for queue in queues {
        let spec = &queue.spec;
        let status = queue.status.clone().unwrap_or_default();
        let allocated = amounts(status.allocated.as_ref());
        let capability = spec.capability.as_ref();
        let used = |name: &str, show: &dyn Fn(i64) -> String| {
            let used = show(allocated.get(name));
            match capability.filter(|limits| limits.contains_key(name)) {
                Some(limits) => format!("{used} of {}", show(amounts(Some(limits)).get(name))),
                None => used,
            }
        };
        let mut cells = vec![
            queue.metadata.name.clone().unwrap_or_default(),
            status.state.map_or("Unknown".to_string(), state),
            weight(queue).to_string(),
            format!("{}%", share(queue, queues)),
            used(NVIDIA_GPU, &|count| count.to_string()),
            used("cpu", &cores),
            format!("{} GiB", used("memory", &gib)),
            status.pending.to_string(),
            status.inqueue.to_string(),
            status.running.to_string(),
        ];
        if wide {
            cells.push(spec.parent.clone().unwrap_or_else(|| "-".to_string()));
            cells.push(spec.priority.unwrap_or(0).to_string());
            cells.push(spec.reclaimable.unwrap_or(true).to_string());
            cells.push(list(spec.guaranteed_resources()));
            cells.push(list(spec.deserved.as_ref()));
            cells.push(list(status.entitled.as_ref()));
            cells.push(holds(status.share.as_deref()));
        }
        table.row(cells);
    }
    table
}

fn state(state: QueueState) -> String {
    format!("{state:?}")
}

fn amounts(list: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    list.map(Amounts::from_k8s).unwrap_or_default()
}

fn list(resources: Option<&BTreeMap<String, Quantity>>) -> String {
    let words: Vec<String> = resources
        .into_iter()
        .flatten()
        .map(|(name, quantity)| format!("{name}={}", quantity.0))
        .collect();
    if words.is_empty() {
        "-".to_string()
    } else {
        words.join(",")
    }
}

/// The largest fraction of a cluster resource that a queue holds, in percent.
fn holds(share: Option<&str>) -> String {
    let share: Option<f64> = share.and_then(|share| share.parse().ok());
    share.map_or_else(|| "-".to_string(), |share| format!("{:.1}%", share * 100.0))
}

fn weight(queue: &Queue) -> i64 {
    i64::from(queue.spec.weight.unwrap_or(1))
}

/// A queue's share, in percent, of the resources that it and its siblings divide by weight if all
/// of them have work.
fn share(queue: &Queue, all: &[Queue]) -> i64 {
    let parent = |queue: &Queue| queue.spec.parent.clone().filter(|parent| parent != "root");
    let siblings = all.iter().filter(|other| parent(other) == parent(queue));
    let sum: i64 = siblings.map(weight).sum();
    (100 * weight(queue)).checked_div(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shares_are_by_weight_among_siblings_and_use_stands_beside_capability() {
        let queue = |name: &str, spec: serde_json::Value, allocated: serde_json::Value| -> Queue {
            serde_json::from_value(json!({
                "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
                "metadata": {"name": name}, "spec": spec,
                "status": {"state": "Open", "allocated": allocated},
            }))
            .unwrap()
        };
        let queues = [
            queue(
                "a",
                json!({"weight": 3, "capability": {"nvidia.com/gpu": "8"}}),
                json!({"nvidia.com/gpu": "2"}),
            ),
            queue("b", json!({"weight": 1}), json!({"cpu": "1500m"})),
            queue("b1", json!({"weight": 1, "parent": "b"}), json!({})),
        ];
        let text = table(&queues, false).render();
        let words = |i: usize| -> Vec<String> {
            text.lines()
                .nth(i)
                .unwrap()
                .split("  ")
                .map(|w| w.trim().to_string())
                .filter(|w| !w.is_empty())
                .collect()
        };
        assert_eq!(words(1)[..6], ["a", "Open", "3", "75%", "2 of 8", "0.0"]);
        assert_eq!(words(2)[3..6], ["25%", "0", "1.5"]);
        assert_eq!(words(3)[3], "100%");
        assert_eq!(holds(Some("0.125")), "12.5%");
        assert_eq!(holds(None), "-");
    }
}
