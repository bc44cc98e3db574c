//! Changes of a cluster for what-if simulations: more nodes, fewer, other weights.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use resources::names::INVENTORY;

use crate::error::SimulatorError;
use crate::scenario::Scenario;
use crate::shape::{counted, machine_named, machine_node, unknown_machine};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScenarioChange {
    /// Adds this many nodes of a machine, or like an existing node.
    AddNodes(usize, String),
    /// Removes this many of the nodes with this name prefix, the last ones by name; or one node by
    /// its name.
    RemoveNodes(usize, String),
    /// Sets a queue's weight.
    Weight(String, i32),
}

/// Reads `add-nodes=4xhgx-h100`, `remove-nodes=2xgpu-` or `remove-nodes=gpu-7`, `weight=research:4`.
pub fn change(text: &str) -> Result<ScenarioChange, SimulatorError> {
    let refuse = |valid: &str| SimulatorError::option("--what-if", text, valid);
    let (what, value) = text.split_once('=').ok_or_else(|| {
        refuse("add-nodes=4xhgx-h100, remove-nodes=2xNAME-PREFIX or weight=QUEUE:4")
    })?;
    match what {
        "add-nodes" => counted("--what-if add-nodes", value)
            .map(|(count, name)| ScenarioChange::AddNodes(count, name.to_owned())),
        "remove-nodes" => Ok(match counted("--what-if remove-nodes", value) {
            Ok((count, prefix)) => ScenarioChange::RemoveNodes(count, prefix.to_owned()),
            Err(_) => ScenarioChange::RemoveNodes(1, value.to_owned()),
        }),
        "weight" => {
            let parsed = value
                .split_once(':')
                .and_then(|(queue, weight)| Some((queue, weight.parse::<i32>().ok()?)));
            let (queue, weight) = parsed
                .filter(|(_, weight)| *weight > 0)
                .ok_or_else(|| refuse("weight=QUEUE:4 with a weight of at least 1"))?;
            Ok(ScenarioChange::Weight(queue.to_owned(), weight))
        }
        _ => Err(refuse("a change of add-nodes, remove-nodes or weight")),
    }
}

impl ScenarioChange {
    /// Applies the change to a scenario.
    pub fn apply(&self, scenario: &mut Scenario) -> Result<(), SimulatorError> {
        match self {
            ScenarioChange::AddNodes(count, name) => add(scenario, *count, name),
            ScenarioChange::RemoveNodes(count, prefix) => remove(scenario, *count, prefix),
            ScenarioChange::Weight(name, weight) => {
                let known: Vec<String> = scenario
                    .queues
                    .iter()
                    .filter_map(|queue| queue.metadata.name.clone())
                    .collect();
                let queue = scenario
                    .queues
                    .iter_mut()
                    .find(|queue| queue.metadata.name.as_deref() == Some(name));
                let queue = queue.ok_or_else(|| {
                    let valid = format!("one of the queues {}", known.join(", "));
                    SimulatorError::option("--what-if weight", name, valid)
                })?;
                queue.spec.weight = Some(*weight);
                Ok(())
            }
        }
    }
}

fn add(scenario: &mut Scenario, count: usize, name: &str) -> Result<(), SimulatorError> {
    let names: BTreeSet<String> = scenario
        .nodes
        .iter()
        .filter_map(|node| node.metadata.name.clone())
        .collect();
    let like = scenario
        .nodes
        .iter()
        .find(|node| node.metadata.name.as_deref() == Some(name))
        .cloned();
    let machine = machine_named(name);
    let place = scenario.nodes.len();
    let fresh = (0..)
        .map(|i| format!("added-{name}-{i:05}"))
        .filter(|name| !names.contains(name))
        .take(count);
    let fresh: Vec<Node> = match (like, machine) {
        (Some(like), _) => fresh.map(|fresh| renamed(&like, name, &fresh)).collect(),
        (None, Some(machine)) => fresh
            .enumerate()
            .map(|(i, name)| machine_node(&machine, &name, place + i))
            .collect(),
        (None, None) => return Err(unknown_machine("--what-if add-nodes", name)),
    };
    scenario.nodes.extend(fresh);
    Ok(())
}

/// A copy of a node with its own name and devices.
fn renamed(like: &Node, old: &str, new: &str) -> Node {
    let mut node = like.clone();
    node.metadata.name = Some(new.to_owned());
    node.metadata.uid = None;
    if let Some(host) = node
        .metadata
        .labels
        .as_mut()
        .and_then(|map| map.get_mut("kubernetes.io/hostname"))
    {
        new.clone_into(host);
    }
    if let Some(text) = node
        .metadata
        .annotations
        .as_mut()
        .and_then(|map| map.get_mut(INVENTORY))
        && let Ok(mut inventory) = serde_json::from_str::<resources::devices::NodeInventory>(text)
    {
        for gpu in &mut inventory.gpus {
            gpu.id = if gpu.id.contains(old) {
                gpu.id.replace(old, new)
            } else {
                format!("{}-{new}", gpu.id)
            };
        }
        *text = serde_json::to_string(&inventory).unwrap_or_default();
    }
    node
}

fn remove(scenario: &mut Scenario, count: usize, prefix: &str) -> Result<(), SimulatorError> {
    let names = scenario
        .nodes
        .iter()
        .filter_map(|node| node.metadata.name.clone());
    let mut fitting: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    if fitting.iter().any(|name| name == prefix) {
        fitting = vec![prefix.to_owned()];
    }
    fitting.sort();
    if fitting.len() < count {
        let value = format!("{count}x{prefix}");
        let valid = format!(
            "a number up to {}, the nodes whose names begin so",
            fitting.len()
        );
        return Err(SimulatorError::option(
            "--what-if remove-nodes",
            value,
            valid,
        ));
    }
    let gone: BTreeSet<String> = fitting
        .split_off(fitting.len() - count)
        .into_iter()
        .collect();
    scenario.nodes.retain(|node| {
        node.metadata
            .name
            .as_ref()
            .is_none_or(|name| !gone.contains(name))
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::cluster;

    fn names(scenario: &Scenario) -> Vec<&str> {
        scenario
            .nodes
            .iter()
            .filter_map(|node| node.metadata.name.as_deref())
            .collect()
    }

    #[test]
    fn nodes_are_added_by_machine_or_by_example_and_removed_by_name() {
        let mut scenario = Scenario {
            nodes: cluster("--cluster", "3xhgx-h100").unwrap(),
            ..Scenario::default()
        };
        for text in [
            "add-nodes=1xcpu-96",
            "add-nodes=1xhgx-h100-00001",
            "remove-nodes=2xhgx-h100",
            "remove-nodes=added-cpu-96-00000",
        ] {
            change(text).unwrap().apply(&mut scenario).unwrap();
        }
        assert_eq!(
            names(&scenario),
            ["hgx-h100-00000", "added-hgx-h100-00001-00000"]
        );
        let inventory = &scenario.nodes[1].metadata.annotations.as_ref().unwrap()[INVENTORY];
        assert!(
            inventory.contains("GPU-added-hgx-h100-00001-00000-7"),
            "{inventory}"
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_can() {
        let mut scenario = Scenario {
            nodes: cluster("--cluster", "1xhgx-h100").unwrap(),
            ..Scenario::default()
        };
        for (text, word) in [
            ("nodes", "add-nodes=4x"),
            ("colour=red", "weight"),
            ("weight=a:0", "at least 1"),
        ] {
            let error = change(text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        for (text, word) in [
            ("remove-nodes=2xhgx", "a number up to 1"),
            ("weight=a:2", "one of the queues"),
            ("add-nodes=2xabacus", "hgx-b200"),
        ] {
            let error = change(text)
                .unwrap()
                .apply(&mut scenario)
                .unwrap_err()
                .to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
