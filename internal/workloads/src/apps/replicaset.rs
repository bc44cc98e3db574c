//! ReplicaSet, `apps/v1`: as many pods of a template as its spec says.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};

use super::{available_from, batch, count, is_active, is_terminating, pod_of, positive};
use crate::action::{Action, DependentKind, ReconcileOutcome};
use crate::ownership::{Claimant, controller_reference};
use crate::pod_facts::{self, PodPhase};
use crate::pod_names;
use crate::pod_room::PodRoom;

/// The condition that says why pods could not be created.
pub const REPLICA_FAILURE: &str = "ReplicaFailure";
/// The annotation on a pod that holds its number in the set, which its name follows from.
pub const NUMBER: &str = "muster.io/attempt";
/// The annotation on a pod by which its author orders deletions: a lower one goes first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// The observed state to decide on.
#[derive(Clone, Copy)]
pub struct ObservedReplicaSet<'a> {
    /// The set, with its status as last written.
    pub set: &'a ReplicaSet,
    /// Its pods, and those of its namespace without a controller; other pods are ignored.
    pub pods: &'a [&'a Pod],
    /// How many pods can exist at all.
    pub room: PodRoom,
}

/// Decides the next actions for a ReplicaSet.
#[must_use]
pub fn reconcile(
    observed: &ObservedReplicaSet<'_>,
    now: Timestamp,
) -> ReconcileOutcome<ReplicaSetStatus> {
    let set = observed.set;
    let known = set.status.clone().unwrap_or_default();
    let Some(spec) = set.spec.as_ref() else {
        return ReconcileOutcome::keep(known);
    };
    let claimant = Claimant::of("ReplicaSet", &set.metadata, &spec.selector);
    let claimed = claimant.claim(DependentKind::Pod, observed.pods, is_active);
    let pods = claimed.own;
    let active: Vec<&Pod> = pods.iter().copied().filter(|pod| is_active(pod)).collect();
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
    let mut outcome = ReconcileOutcome::keep(known);
    write_status(set, &pods, &active, wanted, &mut outcome, now);
    if set.metadata.deletion_timestamp.is_some() {
        return outcome;
    }
    outcome.actions.extend(claimed.releases);
    if !claimed.adoptions.is_empty() {
        outcome.actions.extend(claimed.adoptions);
        return outcome;
    }
    if active.len() > wanted {
        let surplus = active.len() - wanted;
        let mut active = active;
        active.sort_by_key(|pod| expendable_first(pod));
        let deletions = active
            .into_iter()
            .take(surplus)
            .map(|pod| Action::DeletePod {
                name: pod_facts::name(pod).to_owned(),
                uid: pod_facts::uid(pod).to_owned(),
                grace: None,
            });
        outcome.actions.extend(deletions);
        return outcome;
    }
    let waiting = active
        .iter()
        .filter(|pod| !pod_facts::is_bound(pod))
        .count();
    let missing = batch(wanted - active.len(), active.len(), waiting, &observed.room);
    let used: BTreeSet<u32> = pods.iter().filter_map(|pod| number_of(pod)).collect();
    // A released pod keeps its name.
    let taken: BTreeSet<&str> = observed
        .pods
        .iter()
        .map(|pod| pod_facts::name(pod))
        .collect();
    let free = (0_u32..).filter(|number| !used.contains(number));
    let free = free.filter(|number| !taken.contains(pod_name(set, *number).as_str()));
    let template = spec.template.clone().unwrap_or_default();
    for number in free.take(missing) {
        let pod = pod(set, &template, number);
        outcome.actions.push(Action::CreatePod(Box::new(pod)));
    }
    outcome
}

fn number_of(pod: &Pod) -> Option<u32> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(NUMBER)?.parse().ok()
}

fn pod_name(set: &ReplicaSet, number: u32) -> String {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let uid = set.metadata.uid.as_deref().unwrap_or_default();
    pod_names::numbered(name, "", uid, number)
}

fn pod(set: &ReplicaSet, template: &PodTemplateSpec, number: u32) -> Pod {
    let meta = &set.metadata;
    let reference = controller_reference("apps/v1", "ReplicaSet", meta);
    let mut pod = pod_of(template, meta, reference);
    pod.metadata.name = Some(pod_name(set, number));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(NUMBER.to_owned(), number.to_string());
    pod
}

/// The order in which surplus pods are deleted, as Kubernetes': pods without a node first, then those that wait, that
/// are not ready, of a lower deletion cost, with more restarts, and the younger ones.
fn expendable_first(pod: &Pod) -> impl Ord + use<> {
    let annotations = pod.metadata.annotations.as_ref();
    let cost = annotations
        .and_then(|map| map.get(DELETION_COST))
        .and_then(|cost| cost.parse::<i32>().ok())
        .unwrap_or_default();
    let created = pod.metadata.creation_timestamp.as_ref();
    (
        pod_facts::is_bound(pod),
        PodPhase::of(pod) == PodPhase::Running,
        pod_facts::is_ready(pod),
        cost,
        Reverse(pod_facts::ready_since(pod)),
        Reverse(pod_facts::restart_count(pod)),
        Reverse(created.map(|time| time.0)),
        number_of(pod),
    )
}

fn write_status(
    set: &ReplicaSet,
    pods: &[&Pod],
    active: &[&Pod],
    wanted: usize,
    outcome: &mut ReconcileOutcome<ReplicaSetStatus>,
    now: Timestamp,
) {
    let Some(spec) = set.spec.as_ref() else {
        return;
    };
    let template = spec.template.as_ref().and_then(|all| all.metadata.as_ref());
    let labels = template
        .and_then(|meta| meta.labels.clone())
        .unwrap_or_default();
    let labelled = active.iter().filter(|pod| {
        let own = pod.metadata.labels.as_ref();
        labels
            .iter()
            .all(|(key, value)| own.is_some_and(|own| own.get(key) == Some(value)))
    });
    let labelled = labelled.count();
    let (mut ready, mut available) = (0, 0);
    for pod in active {
        let Some(from) = available_from(pod, i64::from(spec.min_ready_seconds.unwrap_or_default()))
        else {
            continue;
        };
        ready += 1;
        if from <= now {
            available += 1;
        } else {
            outcome.requeue(from);
        }
    }
    let status = &mut outcome.status;
    status.replicas = count(active.len());
    status.fully_labeled_replicas = positive(i64::try_from(labelled).unwrap_or(i64::MAX));
    status.ready_replicas = positive(ready);
    status.available_replicas = positive(available);
    let terminating = pods.iter().filter(|pod| is_terminating(pod)).count();
    status.terminating_replicas = Some(count(terminating));
    status.observed_generation = set.metadata.generation;
    if active.len() >= wanted
        && let Some(conditions) = &mut status.conditions
    {
        conditions.retain(|condition| condition.type_ != REPLICA_FAILURE);
        if conditions.is_empty() {
            status.conditions = None;
        }
    }
}

#[cfg(test)]
#[path = "replicaset_tests.rs"]
mod tests;
