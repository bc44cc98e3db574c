//! DaemonSet, `apps/v1`: one pod on each node that its template fits. The scheduler places the pods; each requires its
//! node by name. The rules are those of Kubernetes 1.34's DaemonSet controller.

mod fit;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::revisions::{POD_REVISION, Revisions};
use super::{amount, available_from, count, pod_of, positive};
use crate::action::{Action, DependentKind, EventNote, ReconcileOutcome};
use crate::ownership::{Claimant, controller_reference};
use crate::pod_facts::{self, PodPhase};
use crate::pod_names;
use resources::inert_kinds;
use resources::numbers::later;

pub use self::fit::NodeFacts;

/// The most pods that one pass creates or deletes.
const AT_ONCE: usize = 250;
/// How long an ended pod stays before another one is tried on its node, in seconds. Without it, a node that refuses the
/// pod would get one after another.
const RETRY_SECONDS: i64 = 5;

/// The observed state to decide on.
#[derive(Clone, Copy)]
pub struct ObservedDaemonSet<'a> {
    /// The set, with its status as last written.
    pub set: &'a DaemonSet,
    /// Its pods, and those of its namespace without a controller; other pods are ignored.
    pub pods: &'a [&'a Pod],
    /// Its revisions, and those of its namespace without a controller; others are ignored.
    pub revisions: &'a [&'a ControllerRevision],
    /// All nodes by name.
    pub nodes: &'a BTreeMap<String, NodeFacts>,
}

/// A set's spec, and its pods by node.
struct SetPlan<'a> {
    set: &'a DaemonSet,
    spec: &'a DaemonSetSpec,
    nodes: &'a BTreeMap<String, NodeFacts>,
    pods: BTreeMap<&'a str, Vec<&'a Pod>>,
    /// The names of all observed pods; a released one keeps its name.
    taken: BTreeSet<&'a str>,
    /// The template's pod spec with its tolerations.
    pod: PodSpec,
    hash: String,
    now: Timestamp,
}

/// Decides the next actions for a DaemonSet.
#[must_use]
pub fn reconcile(
    observed: &ObservedDaemonSet<'_>,
    now: Timestamp,
) -> ReconcileOutcome<DaemonSetStatus> {
    let set = observed.set;
    let mut known = set.status.clone().unwrap_or_default();
    if let Some(conditions) = &mut known.conditions {
        // An earlier version of Muster wrote this one.
        conditions.retain(|one| one.reason.as_deref() != Some(inert_kinds::REASON));
    }
    let mut outcome = ReconcileOutcome::keep(known);
    let Some(spec) = set.spec.as_ref() else {
        return outcome;
    };
    let claimant = Claimant::of("DaemonSet", &set.metadata, &spec.selector);
    let claimed = claimant.claim(DependentKind::Pod, observed.pods, |_| true);
    let revisions = Revisions::of(
        &claimant,
        &spec.template,
        observed.revisions,
        outcome.status.collision_count,
    );
    let mut pods: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in claimed.own {
        pods.entry(node_of(pod)).or_default().push(pod);
    }
    for of_node in pods.values_mut() {
        of_node.sort_by_key(|pod| {
            let created = pod.metadata.creation_timestamp.as_ref();
            (
                !pod_facts::is_bound(pod),
                created.map(|time| time.0),
                pod_facts::name(pod),
            )
        });
    }
    let mut pod = spec.template.spec.clone().unwrap_or_default();
    fit::tolerate(&mut pod);
    let plan = SetPlan {
        set,
        spec,
        nodes: observed.nodes,
        pods,
        taken: observed
            .pods
            .iter()
            .map(|pod| pod_facts::name(pod))
            .collect(),
        pod,
        hash: revisions.hash.clone(),
        now,
    };
    outcome.status.collision_count = revisions.collisions;
    plan.count(&mut outcome);
    if set.metadata.deletion_timestamp.is_some() {
        return outcome;
    }
    outcome.actions.extend(claimed.releases);
    let mut adoptions = claimed.adoptions;
    adoptions.extend(revisions.adoptions.iter().cloned());
    if !adoptions.is_empty() {
        outcome.actions.extend(adoptions);
        return outcome;
    }
    let mut actions = Vec::new();
    plan.keep_up(&mut actions, &mut outcome);
    if actions.is_empty() {
        plan.update(&mut actions);
    }
    actions.truncate(AT_ONCE);
    let hashes = plan.pods.values().flatten().filter_map(|pod| hash_of(pod));
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let live: BTreeSet<String> = hashes.map(|hash| format!("{name}-{hash}")).collect();
    let live: BTreeSet<&str> = live.iter().map(String::as_str).collect();
    let limit = spec.revision_history_limit;
    outcome.actions.extend(revisions.actions(&live, limit));
    outcome.actions.extend(actions);
    outcome
}

/// The node that a pod is on, or that it is for.
fn node_of(pod: &Pod) -> &str {
    let Some(spec) = pod.spec.as_ref() else {
        return "";
    };
    let bound = spec.node_name.as_deref().filter(|node| !node.is_empty());
    bound
        .or_else(|| fit::required_node(spec))
        .unwrap_or_default()
}

fn hash_of(pod: &Pod) -> Option<&str> {
    let labels = pod.metadata.labels.as_ref()?;
    labels.get(POD_REVISION).map(String::as_str)
}

fn delete(pod: &Pod) -> Action {
    Action::DeletePod {
        name: pod_facts::name(pod).to_owned(),
        uid: pod_facts::uid(pod).to_owned(),
        grace: None,
    }
}

impl SetPlan<'_> {
    fn least_ready(&self) -> i64 {
        i64::from(self.spec.min_ready_seconds.unwrap_or(0))
    }

    fn is_available(&self, pod: &Pod) -> bool {
        available_from(pod, self.least_ready()).is_some_and(|from| from <= self.now)
    }

    fn on_node(&self, node: &str) -> &[&Pod] {
        self.pods.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// The pods of a node that run and stay.
    fn running(&self, node: &str) -> Vec<&Pod> {
        let pods = self.on_node(node).iter().copied();
        let running =
            pods.filter(|pod| !pod_facts::is_leaving(pod) && !PodPhase::of(pod).is_finished());
        running.collect()
    }

    /// How many pods may be unavailable, and how many may be on nodes besides an old one, during a rollout.
    fn bounds(&self) -> (i64, i64) {
        let nodes = self.nodes.iter();
        let desired = nodes.filter(|(name, node)| fit::fit(&self.pod, name, node).starts);
        let desired = i64::try_from(desired.count()).unwrap_or(i64::MAX);
        let strategy = self.spec.update_strategy.as_ref();
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = amount(
            rolling.and_then(|all| all.max_surge.as_ref()),
            desired,
            true,
        );
        let down = rolling.and_then(|all| all.max_unavailable.as_ref());
        let down = amount(down, desired, true);
        // Percentages of few nodes may round to nothing.
        (if surge == 0 { down.max(1) } else { down }, surge)
    }

    /// Writes the counts.
    fn count(&self, outcome: &mut ReconcileOutcome<DaemonSetStatus>) {
        let (mut desired, mut current, mut misplaced) = (0, 0, 0);
        let (mut ready, mut available, mut updated) = (0, 0, 0);
        for (name, node) in self.nodes {
            let pods = self.running(name);
            let fit = fit::fit(&self.pod, name, node);
            if !fit.starts {
                misplaced += usize::from(!pods.is_empty() && !fit.stays);
                continue;
            }
            desired += 1;
            let Some(pod) = pods.first() else { continue };
            current += 1;
            if let Some(from) = available_from(pod, self.least_ready()) {
                ready += 1;
                if from <= self.now {
                    available += 1;
                } else {
                    outcome.requeue(from);
                }
            }
            updated += i64::from(pods.iter().any(|pod| hash_of(pod) == Some(&self.hash)));
        }
        let status = &mut outcome.status;
        status.observed_generation = self.set.metadata.generation;
        status.desired_number_scheduled = count(desired);
        status.current_number_scheduled = count(current);
        status.number_misscheduled = count(misplaced);
        status.number_ready = count(ready);
        status.updated_number_scheduled = positive(updated);
        status.number_available = positive(available);
        let missing = i64::try_from(desired).unwrap_or(i64::MAX) - available;
        status.number_unavailable = positive(missing);
    }

    /// Creates missing pods; deletes ended ones, those on other nodes, and all but one on a node.
    fn keep_up(&self, actions: &mut Vec<Action>, outcome: &mut ReconcileOutcome<DaemonSetStatus>) {
        let surge = self.bounds().1 > 0;
        for (name, node) in self.nodes {
            let pods = self.on_node(name);
            let fit = fit::fit(&self.pod, name, node);
            if !fit.stays {
                let stays = |pod: &&&Pod| !pod_facts::is_leaving(pod);
                actions.extend(pods.iter().filter(stays).map(|pod| delete(pod)));
                continue;
            }
            if pods.is_empty() {
                if fit.starts {
                    actions.push(self.create(name));
                }
                continue;
            }
            self.clear_ended(name, actions, outcome);
            let running = self.running(name);
            if surge {
                self.keep_two(&running, actions);
                if running.is_empty()
                    && fit.starts
                    && pods.iter().all(|pod| pod_facts::is_leaving(pod))
                {
                    actions.push(self.create(name));
                }
            } else {
                actions.extend(running.iter().skip(1).map(|pod| delete(pod)));
            }
        }
        for (name, pods) in &self.pods {
            // Garbage collection ends the pods of a node that is gone. A pod that names no node is deleted by no other
            // controller.
            if !self.nodes.contains_key(*name) {
                let waits = pods.iter();
                let waits =
                    waits.filter(|pod| !pod_facts::is_bound(pod) && !pod_facts::is_leaving(pod));
                actions.extend(waits.map(|pod| delete(pod)));
            }
        }
    }

    fn clear_ended(
        &self,
        node: &str,
        actions: &mut Vec<Action>,
        outcome: &mut ReconcileOutcome<DaemonSetStatus>,
    ) {
        let pods = self.on_node(node).iter();
        let ended =
            pods.filter(|pod| PodPhase::of(pod).is_finished() && !pod_facts::is_leaving(pod));
        for pod in ended {
            let name = pod_facts::name(pod);
            let failed = PodPhase::of(pod) == PodPhase::Failed;
            let finished = pod_facts::finished_at(pod).unwrap_or(Timestamp::MIN);
            let retry = later(finished, RETRY_SECONDS);
            if failed && retry > self.now {
                outcome.requeue(retry);
                continue;
            }
            let event = if failed {
                let message =
                    format!("Found failed daemon pod {name} on node {node}, will try to kill it");
                EventNote::warning("FailedDaemonPod", message)
            } else {
                let message = format!(
                    "Found succeeded daemon pod {name} on node {node}, will try to delete it"
                );
                EventNote::normal("SucceededDaemonPod", message)
            };
            outcome.events.push(event);
            actions.push(delete(pod));
        }
    }

    /// With a surge, a node may have an old pod and a new one until the new one is available.
    fn keep_two(&self, running: &[&Pod], actions: &mut Vec<Action>) {
        let is_new = |pod: &&&Pod| hash_of(pod) == Some(&self.hash);
        let new: Vec<&&Pod> = running.iter().filter(is_new).collect();
        let old: Vec<&&Pod> = running.iter().filter(|pod| !is_new(pod)).collect();
        actions.extend(
            new.iter()
                .skip(1)
                .chain(old.iter().skip(1))
                .map(|pod| delete(pod)),
        );
        if let (Some(new), Some(old)) = (new.first(), old.first())
            && (!pod_facts::is_ready(old) || self.is_available(new))
        {
            actions.push(delete(old));
        }
    }

    /// Replaces pods of an old template, within the bounds of the rollout.
    fn update(&self, actions: &mut Vec<Action>) {
        let strategy = self.spec.update_strategy.as_ref();
        if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
            return;
        }
        let (unavailable, surge) = self.bounds();
        let (mut broken, mut surging) = (0, 0);
        let (mut needed, mut candidates) = (Vec::new(), Vec::new());
        for (name, node) in self.nodes {
            if !fit::fit(&self.pod, name, node).starts {
                continue;
            }
            let running = self.running(name);
            let is_new = |pod: &&&Pod| hash_of(pod) == Some(&self.hash);
            let new = running.iter().find(is_new).copied();
            let old = running.iter().find(|pod| !is_new(pod)).copied();
            match (old, new) {
                (None, None) => broken += 1,
                (None, Some(new)) => broken += i64::from(!self.is_available(new)),
                (Some(_), Some(_)) => surging += 1,
                (Some(old), None) if self.is_available(old) => candidates.push((name, old)),
                (Some(old), None) => {
                    broken += 1;
                    needed.push((name, old));
                }
            }
        }
        let left = if surge > 0 {
            surge - surging
        } else {
            unavailable - broken
        };
        let left = usize::try_from(left).unwrap_or_default();
        for (name, old) in needed.into_iter().chain(candidates.into_iter().take(left)) {
            actions.push(if surge > 0 {
                self.create(name)
            } else {
                delete(old)
            });
        }
    }

    /// The pod of a node, under the first of its names that no pod of the set has.
    fn create(&self, node: &str) -> Action {
        let meta = &self.set.metadata;
        let reference = controller_reference("apps/v1", "DaemonSet", meta);
        let mut pod = pod_of(&self.spec.template, meta, reference);
        let mut spec = self.pod.clone();
        fit::require_node(&mut spec, node);
        pod.spec = Some(spec);
        let name = meta.name.as_deref().unwrap_or_default();
        let uid = meta.uid.as_deref().unwrap_or_default();
        // The node is a part of what the suffix is made from: each node has pods of its own.
        let seed = format!("{uid}/{node}/{}", self.hash);
        let mut free = (0_u32..).map(|number| pod_names::numbered(name, "", &seed, number));
        pod.metadata.name = free.find(|name| !self.taken.contains(name.as_str()));
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(POD_REVISION.to_owned(), self.hash.clone());
        Action::CreatePod(Box::new(pod))
    }
}

#[cfg(test)]
mod tests;
