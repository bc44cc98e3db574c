//! RayCluster of `ray.io/v1`: KubeRay's contract, decided from the observed state. Owns the order of the decision; the
//! sibling modules own its parts.
//!
//! Where Ray's autoscaler runs, it alone decides which workers go: it writes `replicas` and names the workers in
//! `workersToDelete`. It knows workers by their pods' names, so that no name is used twice.

mod autoscaler;
mod command;
mod conditions;
mod names;
mod plan;
mod podgroup;
mod pods;
mod ports;
mod roster;
mod services;
mod status;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use resources::kinds::{PodGroup, RayCluster, RayClusterStatus};
use resources::numbers::later;

pub(crate) use self::conditions::{HEAD_READY as HEAD_POD_READY, set_in as set_condition};
pub(crate) use self::names::API_VERSION;
pub(crate) use self::plan::MANAGED_BY;
use self::plan::ParsedRayCluster;
use self::pods::PodMaker;
use self::ports::HeadPorts;
pub(crate) use self::ports::SERVE;
pub use self::ports::ports_of;
use self::roster::{Fate, Roster, fate};
pub(crate) use self::status::INVALID_SPEC;
use crate::action::{Action, EventNote, ReconcileOutcome, delete_pod};
use crate::failure;
use crate::ownership::controlled_by;
use crate::pod_facts;
use crate::pod_room::PodRoom;
use crate::training::Network;

/// Seconds until a cluster that found no free ports tries again.
const NO_PORT_RETRY: i64 = 30;

/// The observed state to decide on.
#[derive(Clone, Copy)]
pub struct ObservedRayCluster<'a> {
    /// The cluster, with its status and annotations as last written.
    pub cluster: &'a RayCluster,
    /// Pods of the cluster; other pods are ignored.
    pub pods: &'a [&'a Pod],
    /// The pod group with the cluster's name, of any owner.
    pub pod_group: Option<&'a PodGroup>,
    /// Services of the cluster; other Services are ignored.
    pub services: &'a [&'a Service],
    /// Ports that other clusters hold.
    pub taken_ports: &'a BTreeSet<u16>,
    /// The network of the pods.
    pub network: &'a Network,
    /// The scheduler that places pods whose template names none.
    pub scheduler_name: &'a str,
    /// What bounds the number of its pods.
    pub room: PodRoom,
}

/// Decides the next actions for a cluster. Once the result was carried out, another call gives the same status and no
/// actions, until something changes.
#[must_use]
pub fn reconcile(
    observed: &ObservedRayCluster<'_>,
    now: Timestamp,
) -> ReconcileOutcome<RayClusterStatus> {
    let cluster = observed.cluster;
    let known = cluster.status.clone().unwrap_or_default();
    let mut outcome = ReconcileOutcome::keep(known.clone());
    if cluster.metadata.deletion_timestamp.is_some() || plan::managed_elsewhere(cluster) {
        return outcome;
    }
    match ParsedRayCluster::of(cluster) {
        Ok(plan) => proceed(&plan, observed, &mut outcome, now),
        Err(refusal) => {
            outcome.events = status::refused(&refusal, &mut outcome.status, now);
        }
    }
    status::stamp(&known, &mut outcome.status, now);
    outcome
}

fn proceed(
    plan: &ParsedRayCluster<'_>,
    observed: &ObservedRayCluster<'_>,
    outcome: &mut ReconcileOutcome<RayClusterStatus>,
    now: Timestamp,
) {
    let roster = Roster::of(plan, observed.pods);
    status::count(plan, &roster, &mut outcome.status);
    // A suspension that has begun is completed before the cluster is resumed.
    let begun = conditions::is_true(&outcome.status, conditions::SUSPENDING);
    if plan.suspend || (begun && roster.pods().next().is_some()) {
        outcome.actions = clear(plan, &roster, observed.pod_group);
        outcome.events = status::suspend(&roster, &mut outcome.status, now);
        if plan.keeps_head && roster.pods().next().is_none() {
            outcome.status.head = None;
        }
        return;
    }
    outcome.events = status::judge(&roster, &mut outcome.status, now);
    keep_up(plan, observed, &roster, outcome, now);
}

/// Deletes all pods and the PodGroup.
fn clear(
    plan: &ParsedRayCluster<'_>,
    roster: &Roster<'_>,
    pod_group: Option<&PodGroup>,
) -> Vec<Action> {
    let pods = roster.pods().filter(|pod| !pod_facts::is_leaving(pod));
    let mut actions: Vec<Action> = pods.map(delete_pod).collect();
    let ours = pod_group
        .map(|group| &group.metadata)
        .filter(|group| controlled_by(group, plan.meta) && group.deletion_timestamp.is_none());
    actions.extend(ours.map(|group| Action::DeletePodGroup {
        name: group.name.clone().unwrap_or_default(),
        uid: group.uid.clone().unwrap_or_default(),
    }));
    actions
}

/// Keeps a cluster's PodGroup, Service and pods in the desired state.
fn keep_up(
    plan: &ParsedRayCluster<'_>,
    observed: &ObservedRayCluster<'_>,
    roster: &Roster<'_>,
    outcome: &mut ReconcileOutcome<RayClusterStatus>,
    now: Timestamp,
) {
    if let Some(group) = podgroup::change(plan, observed.pod_group) {
        outcome.actions.push(Action::ApplyPodGroup(Box::new(group)));
    }
    let exist = roster.pods().count();
    if exist == 0
        && let Some(held) = observed.room.holds_back(plan.least_members())
    {
        let known = observed.cluster.status.clone().unwrap_or_default();
        let events = status::hold_back(&held, &known, &mut outcome.status, now);
        outcome.events.extend(events);
        outcome.requeue(later(now, held.again));
        return;
    }
    let annotations = plan.meta.annotations.as_ref();
    let found = HeadPorts::of(
        &plan.head.params,
        plan.meta,
        observed.network,
        observed.taken_ports,
    );
    let Ok(ports) = found else {
        outcome.requeue(later(now, NO_PORT_RETRY));
        outcome.events.push(EventNote::warning(
            "NoRendezvousPort",
            "Other RayClusters hold all ports for heads; the cluster waits for some. Delete a RayCluster.",
        ));
        return;
    };
    outcome.annotations.extend(ports.annotation(annotations));
    status::place(plan, roster, &ports, &mut outcome.status);
    let service = services::head(plan, &ports);
    let mut services = observed.services.iter();
    if !services.any(|known| known.metadata.name == service.metadata.name) {
        outcome
            .actions
            .push(Action::CreateService(Box::new(service)));
    }
    let surplus = roster
        .surplus
        .iter()
        .filter(|pod| !pod_facts::is_leaving(pod));
    outcome.actions.extend(surplus.map(|pod| delete_pod(pod)));
    let make = PodMaker {
        cluster: plan,
        ports: &ports,
        scheduler_name: observed.scheduler_name,
    };
    let most = usize::try_from(observed.room.members_max()).unwrap_or(usize::MAX);
    let mut left = most.saturating_sub(exist);
    let keeps = status::has_kept_head(plan, &outcome.status);
    match roster.head.map(|pod| (pod, fate(&[pod], now))) {
        None | Some((_, Fate::Goes | Fate::GoesAt(_))) if keeps => {}
        None => {
            if plan.autoscaling {
                outcome.actions.extend(autoscaler::rights(plan));
            }
            outcome
                .actions
                .push(Action::CreatePod(Box::new(make.head())));
            left = left.saturating_sub(1);
        }
        Some((pod, Fate::Goes)) => {
            outcome.actions.push(delete_pod(pod));
            let story = failure::failure_story(pod, "");
            let message = format!("{story}; another head takes its place.");
            outcome
                .events
                .push(EventNote::warning("HeadPodReplaced", message));
        }
        Some((_, Fate::GoesAt(at))) => outcome.requeue(at),
        Some((_, Fate::Stays | Fate::Leaves)) => {}
    }
    let known = annotations.and_then(|all| all.get(resources::names::RAY_REPLICAS));
    let known: BTreeMap<String, u32> = known
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    // A group that comes back under its name goes on with its numbers.
    let mut unused = known.clone();
    for (group, members) in plan.workers.iter().zip(&roster.groups) {
        let from = known.get(&group.group.name).copied().unwrap_or_default();
        let change = members.change(plan, group, from, now);
        unused.insert(group.group.name.clone(), change.unused);
        outcome
            .actions
            .extend(change.delete.into_iter().map(delete_pod));
        if let Some(at) = change.again {
            outcome.requeue(at);
        }
        for (replica, host) in change.create.into_iter().take(left) {
            let pod = make.worker(group, replica, host);
            outcome.actions.push(Action::CreatePod(Box::new(pod)));
            left -= 1;
        }
    }
    if plan.autoscaling && unused != known {
        let text = serde_json::to_string(&unused).unwrap_or_default();
        let name = resources::names::RAY_REPLICAS.to_owned();
        outcome.annotations.insert(name, Some(text));
    }
    let creates = |action: &Action| matches!(action, Action::CreatePod(_));
    if !outcome.actions.iter().any(creates) {
        conditions::remove(&mut outcome.status, conditions::REPLICA_FAILURE);
    }
}

/// Notes in the status that pods could not be created.
pub fn note_failure(status: &mut RayClusterStatus, message: &str, now: Timestamp) {
    conditions::set(
        status,
        conditions::REPLICA_FAILURE,
        true,
        "FailedCreatePod",
        message,
        now,
    );
}

#[cfg(test)]
mod tests;
