//! `muster node drain`, `cordon` and `uncordon`. [`administration::drain`] plans and evicts; this module prints the preview
//! and goes on until the pods are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use administration::drain::{self, DrainRules, PlannedPod, PodFate};
use anyhow::Result;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use tokio::time::Instant;

use super::connection::ServerConnection;
use super::failure;
use super::outcome::CommandOutcome;
use super::output::{self, ProgressReporter, Table};
use crate::arguments::Drain;

/// How often the pods of the node are read again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often an eviction that a budget refused is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Sets or clears the mark by which a node takes no new pods.
pub(super) async fn mark(
    connection: &ServerConnection,
    name: &str,
    unschedulable: bool,
) -> Result<CommandOutcome> {
    let done = if unschedulable {
        "cordoned"
    } else {
        "uncordoned"
    };
    let changed = drain::set_unschedulable(&connection.client, name, unschedulable).await?;
    let already = if changed { "" } else { "already " };
    output::put_line(&format!("node {name:?} {already}{done}"))?;
    Ok(CommandOutcome::Yes)
}

/// Empties a node, or shows what that would do.
pub(super) async fn empty_node(
    connection: &ServerConnection,
    arguments: Drain,
) -> Result<CommandOutcome> {
    let name = arguments.name.as_str();
    let nodes: Api<Node> = Api::all(connection.client.clone());
    nodes.get(name).await?;
    let rules = DrainRules {
        force: arguments.force,
        grace: arguments.grace_period.map(i64::from),
    };
    let planned = read(connection, name, rules).await?;
    let unmovable: Vec<String> = planned
        .iter()
        .filter(|pod| pod.fate == PodFate::Unmovable)
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    if arguments.dry_run {
        output::put(&preview(name, &planned))?;
        return Ok(if unmovable.is_empty() {
            CommandOutcome::Yes
        } else {
            CommandOutcome::No
        });
    }
    if !unmovable.is_empty() {
        return Err(failure::usage(format!(
            "node {name:?} is not drained: no controller creates these pods again: {}\n  delete them, or name --force to lose them",
            unmovable.join(", ")
        )));
    }
    drain::set_unschedulable(&connection.client, name, true).await?;
    output::put_line(&format!("node {name:?} cordoned"))?;
    let timeout = Duration::from_secs(arguments.timeout);
    let deadline = Instant::now() + timeout;
    empty(connection, name, rules, deadline).await
}

/// Reads and plans the node's pods.
async fn read(
    connection: &ServerConnection,
    node: &str,
    rules: DrainRules,
) -> Result<Vec<PlannedPod>> {
    let planned = drain::read(&connection.client, node, rules, Timestamp::now());
    Ok(planned.await?)
}

fn preview(node: &str, planned: &[PlannedPod]) -> String {
    let mut table = Table::new(["NAMESPACE", "POD", "OWNER", "ACTION", "DETAIL"]);
    for pod in planned {
        let cells = [
            pod.namespace.clone(),
            pod.name.clone(),
            pod.owner.clone(),
            pod.action().to_owned(),
            pod.detail(),
        ];
        table.row(cells);
    }
    let count = |fate: fn(&PodFate) -> bool| planned.iter().filter(|pod| fate(&pod.fate)).count();
    let summary = format!(
        "node {node:?}: {} to evict, {} wait for a budget, {} skipped, {} cannot move; nothing was changed\n",
        count(|fate| *fate == PodFate::Evicted),
        count(|fate| matches!(fate, PodFate::Waits(_))),
        count(|fate| matches!(fate, PodFate::Skipped(_))),
        count(|fate| *fate == PodFate::Unmovable),
    );
    if table.is_empty() {
        summary
    } else {
        format!("{}{summary}", table.render())
    }
}

/// Evicts until no pod that has to go is left.
async fn empty(
    connection: &ServerConnection,
    node: &str,
    rules: DrainRules,
    deadline: Instant,
) -> Result<CommandOutcome> {
    // A budget's refusal has the status 429.
    let client = connection.without_retries().await?;
    let mut evicted: BTreeSet<String> = BTreeSet::new();
    let mut asked: BTreeMap<String, Instant> = BTreeMap::new();
    let mut progress = ProgressReporter::default();
    loop {
        let planned = read(connection, node, rules).await?;
        let leaves = |pod: &&PlannedPod| !matches!(pod.fate, PodFate::Skipped(_));
        let rest: Vec<&PlannedPod> = planned.iter().filter(leaves).collect();
        if rest.is_empty() {
            output::put_line(&format!("node {node:?} drained"))?;
            return Ok(CommandOutcome::Yes);
        }
        for pod in &rest {
            let again = asked
                .get(&pod.uid)
                .is_none_or(|at| at.elapsed() >= ASK_AGAIN);
            if evicted.contains(&pod.uid) || !again {
                continue;
            }
            asked.insert(pod.uid.clone(), Instant::now());
            if drain::evict(&client, pod, Timestamp::now()).await? {
                output::put_line(&format!("pod {}/{} evicted", pod.namespace, pod.name))?;
                evicted.insert(pod.uid.clone());
            }
        }
        let waits = rest
            .iter()
            .filter(|pod| !evicted.contains(&pod.uid))
            .count();
        progress.say(&format!(
            "{} of {} pods are ending, {waits} wait for a PodDisruptionBudget",
            rest.len() - waits,
            rest.len(),
        ));
        if Instant::now() >= deadline {
            let names: Vec<String> = rest
                .iter()
                .map(|pod| format!("{}/{}", pod.namespace, pod.name))
                .collect();
            output::tell(&format!(
                "node {node:?} stays cordoned and still has these pods: {}; the same command continues",
                names.join(", ")
            ))?;
            return Ok(CommandOutcome::TimedOut);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
