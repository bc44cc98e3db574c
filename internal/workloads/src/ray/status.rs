//! Writes a cluster's status: counts, the head, conditions and state.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::amounts::{self, Amounts};
use resources::kinds::{RayClusterStatus, RayHeadInfo};
use resources::names as shared;
use resources::times::whole;

use super::conditions::{self, HEAD_READY, PROVISIONED, SUSPENDED, SUSPENDING};
use super::names;
use super::plan::{InvalidCluster, ParsedRayCluster, WorkerGroup};
use super::ports::{HeadPort, HeadPorts};
use super::roster::Roster;
use crate::action::EventNote;
use crate::failure;
use crate::pod_facts::{self, PodPhase};
use crate::pod_room::HeldBack;

/// `status.state` of a cluster that works.
const READY: &str = "ready";
/// The reason of a cluster whose spec is refused.
pub(crate) const INVALID_SPEC: &str = "InvalidRayClusterSpec";
/// `status.state` of a cluster without pods.
const STATE_SUSPENDED: &str = "suspended";

/// What the status says in numbers.
pub(crate) fn count(
    cluster: &ParsedRayCluster<'_>,
    roster: &Roster<'_>,
    status: &mut RayClusterStatus,
) {
    let number = |count: u32| Some(i32::try_from(count).unwrap_or(i32::MAX));
    let sum = |of: fn(&WorkerGroup<'_>) -> u32| {
        let each = cluster.workers.iter();
        each.map(|group| of(group).saturating_mul(group.hosts))
            .fold(0, u32::saturating_add)
    };
    let workers = || roster.groups.iter().flat_map(|group| group.pods());
    let now = |test: fn(&Pod) -> bool| {
        let pods = workers().filter(|pod| !pod_facts::is_leaving(pod) && test(pod));
        number(u32::try_from(pods.count()).unwrap_or(u32::MAX))
    };
    status.observed_generation = cluster.meta.generation;
    status.desired_worker_replicas = number(cluster.worker_pods());
    status.min_worker_replicas = number(sum(|group| group.min));
    status.max_worker_replicas = number(sum(|group| group.max));
    status.available_worker_replicas = now(|pod| PodPhase::of(pod) == PodPhase::Running);
    status.ready_worker_replicas = now(is_ready);
    let wanted = requests(cluster);
    let quantity = |name: &str| {
        let amount = wanted.get(name);
        Some(amounts::quantity_of(name, amount).to_k8s())
    };
    status.desired_cpu = quantity(amounts::CPU);
    status.desired_memory = quantity(amounts::MEMORY);
    status.desired_gpu = gpus(&wanted);
}

fn is_ready(pod: &Pod) -> bool {
    PodPhase::of(pod) == PodPhase::Running && pod_facts::is_ready(pod)
}

/// What the head and the desired workers request.
fn requests(cluster: &ParsedRayCluster<'_>) -> Amounts {
    let workers = cluster
        .workers
        .iter()
        .map(|group| (&group.group, group.pods()));
    let mut sum = Amounts::new();
    for (group, pods) in [(&cluster.head, 1)].into_iter().chain(workers) {
        if let Some(spec) = &group.template.spec {
            sum.add(&amounts::pod_requests(spec).times(i64::from(pods)));
        }
    }
    sum
}

fn gpus(wanted: &Amounts) -> Option<Quantity> {
    let all = wanted.iter().filter(|(name, _)| name.ends_with("gpu"));
    let sum = all.map(|(_, amount)| amount).fold(0, i64::saturating_add);
    Some(amounts::quantity_of(shared::NVIDIA_GPU, sum).to_k8s())
}

/// Where the head is and on which ports.
pub(crate) fn place(
    cluster: &ParsedRayCluster<'_>,
    roster: &Roster<'_>,
    ports: &HeadPorts,
    status: &mut RayClusterStatus,
) {
    let own = HeadPort::ALL.into_iter();
    let own = own.filter_map(|port| Some((port.name()?, ports.get(port))));
    let all = own.chain([("serve", ports.serve())]);
    let text = |(name, number): (&str, u16)| (name.to_owned(), number.to_string());
    status.endpoints = Some(all.map(text).collect::<BTreeMap<_, _>>());
    // What ran on a head that is gone stays known: no other one takes its place.
    if roster.head.is_none() && has_kept_head(cluster, status) {
        return;
    }
    let ip = roster
        .head
        .and_then(|pod| pod.status.as_ref()?.pod_ip.clone());
    status.head = Some(RayHeadInfo {
        pod_name: roster.head.map(|pod| pod_facts::name(pod).to_owned()),
        run: roster.head.map(run_of),
        pod_ip: ip.clone(),
        service_name: Some(names::head_service(cluster.name())),
        service_ip: ip,
    });
}

/// Whether a head has started whose place no other one takes.
pub(crate) fn has_kept_head(cluster: &ParsedRayCluster<'_>, status: &RayClusterStatus) -> bool {
    let head = status.head.as_ref().filter(|_| cluster.keeps_head);
    head.is_some_and(|head| head.pod_ip.is_some())
}

/// What changes when the head starts anew: its pod, or Ray's container in the pod.
fn run_of(pod: &Pod) -> String {
    let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let statuses = pod.status.as_ref();
    let statuses = statuses.and_then(|status| status.container_statuses.as_deref());
    let mut statuses = statuses.unwrap_or_default().iter();
    let of_ray = statuses.find(|status| first.is_some_and(|first| first.name == status.name));
    let restarts = of_ray.map_or(0, |status| status.restart_count);
    format!("{}/{restarts}", pod_facts::uid(pod))
}

/// Conditions and state of a cluster that should run.
pub(crate) fn judge(
    roster: &Roster<'_>,
    status: &mut RayClusterStatus,
    now: Timestamp,
) -> Vec<EventNote> {
    let mut events = Vec::new();
    conditions::remove(status, SUSPENDING);
    if conditions::is_true(status, SUSPENDED) {
        conditions::set(
            status,
            SUSPENDED,
            false,
            SUSPENDED,
            "The cluster is not suspended.",
            now,
        );
        events.push(EventNote::normal(
            "Resumed",
            "The cluster is resumed: its pods are created again.",
        ));
    }
    let head = roster.head.filter(|pod| !pod_facts::is_leaving(pod));
    let (ready, reason, message) = match head {
        Some(pod) if is_ready(pod) => (
            true,
            "HeadPodRunningAndReady",
            "The head runs and is ready.".to_owned(),
        ),
        Some(pod) if PodPhase::of(pod).is_finished() => {
            (false, "HeadPodEnded", failure::failure_story(pod, ""))
        }
        Some(_) => (
            false,
            "ContainersNotReady",
            "The head is not ready.".to_owned(),
        ),
        None => (false, "HeadPodNotFound", "The head has no pod.".to_owned()),
    };
    conditions::set(status, HEAD_READY, ready, reason, &message, now);
    let desired = status.desired_worker_replicas;
    if ready && status.ready_worker_replicas >= desired && !conditions::is_true(status, PROVISIONED)
    {
        let message = "The head and all workers have been ready.";
        conditions::set(
            status,
            PROVISIONED,
            true,
            "AllPodRunningAndReadyFirstTime",
            message,
            now,
        );
        let workers = desired.unwrap_or_default();
        events.push(EventNote::normal(
            "Ready",
            format!("The head and {workers} workers are ready."),
        ));
    } else if !conditions::is_true(status, PROVISIONED) {
        let message = format!(
            "{} of {} workers are ready, and the head is{} ready.",
            status.ready_worker_replicas.unwrap_or_default(),
            desired.unwrap_or_default(),
            if ready { "" } else { " not" },
        );
        conditions::set(
            status,
            PROVISIONED,
            false,
            "RayClusterPodsProvisioning",
            &message,
            now,
        );
    }
    let provisioned = conditions::is_true(status, PROVISIONED);
    status.state = (ready && provisioned).then(|| READY.to_owned());
    events
}

/// Conditions and state of a cluster that is to have no pods.
pub(crate) fn suspend(
    roster: &Roster<'_>,
    status: &mut RayClusterStatus,
    now: Timestamp,
) -> Vec<EventNote> {
    let left = roster.pods().count();
    conditions::remove(status, PROVISIONED);
    status.state = None;
    conditions::set(
        status,
        HEAD_READY,
        false,
        "HeadPodNotFound",
        "The cluster is suspended.",
        now,
    );
    if left > 0 {
        let message = format!("{left} pods are being deleted.");
        conditions::set(status, SUSPENDING, true, SUSPENDING, &message, now);
        return Vec::new();
    }
    conditions::remove(status, SUSPENDING);
    status.state = Some(STATE_SUSPENDED.to_owned());
    let changed = conditions::set(
        status,
        SUSPENDED,
        true,
        SUSPENDED,
        "The cluster has no pods.",
        now,
    );
    let note = || {
        EventNote::normal(
            "Suspended",
            "The cluster is suspended: all its pods are deleted.",
        )
    };
    changed.then(note).into_iter().collect()
}

/// Says why no pod is created.
pub(crate) fn hold_back(
    held: &HeldBack,
    known: &RayClusterStatus,
    status: &mut RayClusterStatus,
    now: Timestamp,
) -> Vec<EventNote> {
    conditions::set(status, PROVISIONED, false, held.reason, &held.message, now);
    let changed = known.conditions.iter().all(|one| one.reason != held.reason);
    let note = || EventNote::warning(held.reason, held.message.clone());
    changed.then(note).into_iter().collect()
}

/// The status of a cluster whose spec is refused.
pub(crate) fn refused(
    refusal: &InvalidCluster,
    status: &mut RayClusterStatus,
    now: Timestamp,
) -> Vec<EventNote> {
    let message = refusal.to_string();
    status.state = None;
    let changed = conditions::set(status, PROVISIONED, false, INVALID_SPEC, &message, now);
    let note = || EventNote::warning(INVALID_SPEC, message.clone());
    changed.then(note).into_iter().collect()
}

/// Sets the time of the last change, if there was one.
pub(crate) fn stamp(known: &RayClusterStatus, status: &mut RayClusterStatus, now: Timestamp) {
    if known != status {
        status.last_update_time = Some(Time(whole(now)));
    }
}
