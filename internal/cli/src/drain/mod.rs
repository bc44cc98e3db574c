//! `muster node drain`, `cordon` and `uncordon`. [`plan`] decides about the pods; this module reads, prints the preview,
//! evicts through the API, which enforces budgets, and waits until the pods are gone.

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use resources::names::CHECKPOINT_BY;
use resources::registry;
use resources::times;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::plan::{DrainRules, PlannedPod, PodFate};
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
    let changed = set_unschedulable(connection, name, unschedulable).await?;
    let already = if changed { "" } else { "already " };
    output::put_line(&format!("node {name:?} {already}{done}"))?;
    Ok(CommandOutcome::Yes)
}

/// Returns whether that changed the node.
async fn set_unschedulable(
    connection: &ServerConnection,
    name: &str,
    unschedulable: bool,
) -> Result<bool> {
    let nodes: Api<Node> = Api::all(connection.client.clone());
    let node = nodes.get(name).await?;
    let spec = node.spec.unwrap_or_default();
    if spec.unschedulable.unwrap_or(false) == unschedulable {
        return Ok(false);
    }
    let value = if unschedulable {
        Value::Bool(true)
    } else {
        Value::Null
    };
    let patch = Patch::Merge(json!({"spec": {"unschedulable": value}}));
    nodes.patch(name, &PatchParams::default(), &patch).await?;
    Ok(true)
}

/// Empties a node, or shows what that would do.
pub(super) async fn drain(
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
    set_unschedulable(connection, name, true).await?;
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
    let client = &connection.client;
    let bound = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = Api::<Pod>::all(client.clone()).list(&bound).await?.items;
    let budgets = Api::<PodDisruptionBudget>::all(client.clone());
    let budgets = budgets.list(&ListParams::default()).await?.items;
    let mut owners = BTreeMap::new();
    for pod in &pods {
        let (Some(key), Some(owner)) = (plan::owner_key(pod), plan::controller(pod)) else {
            continue;
        };
        if owners.contains_key(&key) {
            continue;
        }
        let version = owner.api_version.as_str();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let Some(kind) = registry::by_kind(group, version, &owner.kind) else {
            continue;
        };
        let api = connection.api_in(kind, &key.0);
        if let Some(found) = api.get_opt(&owner.name).await? {
            owners.insert(key, found.metadata);
        }
    }
    Ok(plan::plan(
        &pods,
        &budgets,
        &owners,
        rules,
        Timestamp::now(),
    ))
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
            if evict(&client, pod).await? {
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
                "node {node:?} stays cordoned and still has these pods: {}; the same command goes on",
                names.join(", ")
            ))?;
            return Ok(CommandOutcome::TimedOut);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Asks for an eviction; false if a budget does not allow it now.
async fn evict(client: &Client, pod: &PlannedPod) -> Result<bool> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    if pod.checkpoints {
        let by = Timestamp::now().checked_add(SignedDuration::from_secs(pod.grace));
        let by = times::seconds(by.unwrap_or(Timestamp::MAX));
        let patch = json!({"metadata": {"uid": pod.uid, "annotations": {CHECKPOINT_BY: by}}});
        let patched = pods
            .patch(&pod.name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        if let Err(kube::Error::Api(status)) = &patched
            && matches!(status.code, 404 | 409)
        {
            return Ok(true);
        }
        patched.with_context(|| format!("pod {} was not asked for a checkpoint", pod.name))?;
    }
    let request = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"namespace": pod.namespace, "name": pod.name},
        "deleteOptions": {
            "apiVersion": "v1", "kind": "DeleteOptions",
            "gracePeriodSeconds": pod.grace,
            "preconditions": {"uid": pod.uid},
        },
    });
    let asked: kube::Result<Value> = pods
        .create_subresource("eviction", &pod.name, &PostParams::default(), &request)
        .await;
    match asked {
        Ok(_) => Ok(true),
        // The pod is gone, or another one has its name.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 429 => Ok(false),
        Err(error) => Err(error)
            .with_context(|| format!("pod {}/{} was not evicted", pod.namespace, pod.name)),
    }
}
