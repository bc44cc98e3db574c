//! The production scheduler as a planner. It receives objects as the API would show them, and the
//! invariants check its plans before they count, as in the server.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::devices::ChosenDevices;
use resources::names::DEVICES;
use resources::report::PlacementReport;
use scheduler::{
    Bind, Config, Event, GangReservation, GroupRef, Plan, PodRef, ReservationKind, Scheduler,
};

use crate::engine::eviction;
use crate::gang::{GangIx, GangPod, Host, MemberStage, NodeIndex, SimulatedGang};
use crate::planner::{Gangs, MemberHold, PlanDecisions, PlannedStart, Planner};
use crate::scenario::{Scenario, Seconds};

/// How long a gang waits after its binds would have broken an invariant.
const VIOLATOR_REST: SignedDuration = SignedDuration::from_secs(30);
/// How many rounds of dropping binds and checking the rest there are before all are dropped.
const ROUNDS_MAX: usize = 8;

/// The production scheduler.
pub(crate) struct Muster {
    start: Timestamp,
    scheduler: Scheduler,
    /// The invariant check of its plans, unless checking is off.
    cluster: Option<invariants::ClusterAccount>,
    nodes: BTreeMap<String, NodeIndex>,
    names: Vec<std::sync::Arc<str>>,
    /// Gangs by namespace, name and whether they are a pod without a PodGroup.
    gangs: BTreeMap<(String, String, bool), GangIx>,
    /// The pods of present gangs' members, as the API shows them.
    pods: HashMap<GangIx, Vec<Pod>>,
    reports: bool,
}

impl Muster {
    pub(crate) fn new(
        scenario: &Scenario,
        hosts: &[Host],
        config: Config,
        check: bool,
        reports: bool,
    ) -> Muster {
        let cluster =
            check.then(|| invariants::ClusterAccount::new(config.scheduler_names.clone()));
        let mut muster = Muster {
            start: scenario.start,
            scheduler: Scheduler::new(config),
            cluster,
            nodes: hosts
                .iter()
                .enumerate()
                .map(|(at, host)| (host.name.to_string(), at))
                .collect(),
            names: hosts.iter().map(|host| host.name.clone()).collect(),
            gangs: BTreeMap::new(),
            pods: HashMap::new(),
            reports,
        };
        muster.notify_all(&scenario.priority_classes, Event::PriorityClassChanged);
        muster.notify_all(&scenario.budgets, Event::BudgetChanged);
        muster.notify_all(&scenario.storage_classes, Event::StorageClassChanged);
        let storage = &scenario.storage;
        muster.notify_all(&storage.nodes, Event::CsiNodeChanged);
        muster.notify_all(&storage.drivers, Event::CsiDriverChanged);
        muster.notify_all(&storage.capacities, Event::StorageCapacityChanged);
        muster.notify_all(&storage.attachments, Event::AttachmentChanged);
        muster.notify_all(&scenario.volumes, Event::VolumeChanged);
        muster.notify_all(&scenario.claims, Event::ClaimChanged);
        muster.notify_all(&scenario.nodes, Event::NodeChanged);
        muster.notify_all(&scenario.queues, Event::QueueChanged);
        muster
    }

    fn notify(&mut self, event: Event) {
        if let Some(cluster) = &mut self.cluster {
            match &event {
                Event::NodeChanged(node) => cluster.put_node(node),
                Event::PodGone(namespace, name) => cluster.drop_pod(&pod_id(namespace, name)),
                Event::PodGroupChanged(group) => cluster.put_group(group),
                Event::PodGroupGone(namespace, name) => cluster.drop_group(namespace, name),
                Event::QueueChanged(queue) => cluster.put_queue(queue),
                _ => {}
            }
        }
        self.scheduler.apply(event);
    }

    fn time(&self, second: Seconds) -> Timestamp {
        self.start
            .checked_add(SignedDuration::from_secs(second))
            .unwrap_or(Timestamp::MAX)
    }

    fn notify_all<T: Clone>(&mut self, all: &[T], event: fn(Box<T>) -> Event) {
        for one in all {
            self.notify(event(Box::new(one.clone())));
        }
    }

    /// Reports a member's current pod to the scheduler.
    fn show(&mut self, at: GangIx, place: usize, member: &GangPod, now: Seconds) {
        let now = self.time(now);
        let pods = self.pods.get_mut(&at);
        let Some(pod) = pods.and_then(|pods| pods.get_mut(place)) else {
            return;
        };
        let node = match member.stage {
            MemberStage::Waiting => None,
            MemberStage::Placed { node } | MemberStage::Leaving { node } => Some(node),
        };
        stand(pod, member, node.map(|node| &*self.names[node]), now);
        self.notify_pod(at, place);
    }

    fn notify_pod(&mut self, at: GangIx, place: usize) {
        let pods = self.pods.get(&at);
        if let Some(pod) = pods.and_then(|pods| pods.get(place)) {
            if let Some(cluster) = &mut self.cluster {
                cluster.put_pod(pod);
            }
            self.scheduler.pod_changed(pod);
        }
    }

    fn gate(&mut self, binds: &mut Vec<Bind>, now: Timestamp) -> Vec<String> {
        let mut found = Vec::new();
        for round in 0.. {
            let Some(cluster) = &self.cluster else {
                return found;
            };
            let placements: Vec<invariants::ProposedBind> = binds.iter().map(placement).collect();
            let violations = invariants::check(cluster, &placements);
            if violations.is_empty() {
                break;
            }
            let mut guilty = BTreeSet::new();
            for violation in violations {
                found.push(violation.to_string());
                guilty.extend(violation.pods);
            }
            // A gang is dropped whole: half of it would be the next violation.
            let groups: BTreeSet<GroupRef> = binds
                .iter()
                .filter(|bind| guilty.contains(&pod_id(&bind.pod.namespace, &bind.pod.name)))
                .map(|bind| bind.group.clone())
                .collect();
            let all = groups.is_empty() || round >= ROUNDS_MAX;
            let (out, rest): (Vec<Bind>, Vec<Bind>) = std::mem::take(binds)
                .into_iter()
                .partition(|bind| all || groups.contains(&bind.group));
            *binds = rest;
            for bind in out {
                self.scheduler.forget(&bind.pod);
                self.scheduler.hold(&bind.group, now + VIOLATOR_REST);
            }
        }
        if let Some(cluster) = &mut self.cluster {
            for bind in binds.iter() {
                cluster.assume(&placement(bind));
            }
        }
        found
    }

    /// Collects the changed reports of waiting gangs.
    fn read_reports(&self, plan: &Plan, decided: &mut PlanDecisions) {
        if plan.unscheduled.is_empty() {
            return;
        }
        let news: BTreeSet<(&str, &str)> = plan
            .unscheduled
            .iter()
            .map(|waiting| {
                (
                    waiting.group.namespace.as_str(),
                    waiting.group.name.as_str(),
                )
            })
            .collect();
        let new = |report: &&PlacementReport| {
            news.contains(&(report.namespace.as_str(), report.group.as_str()))
        };
        for report in plan.reports.iter().filter(new) {
            let gang = self
                .gang_of(&report.namespace, &report.group, false)
                .or_else(|| self.gang_of(&report.namespace, &report.group, true));
            let Some(gang) = gang else { continue };
            if let Some(estimate) = report.estimate {
                let second = |time: Timestamp| time.as_second() - self.start.as_second();
                let estimate = [estimate.earliest, estimate.likely, estimate.latest].map(second);
                decided.estimates.push((gang, estimate));
            }
            if self.reports {
                decided.reports.push((gang, report.clone()));
            }
        }
    }

    fn holds(&self, reservations: &[GangReservation]) -> Vec<MemberHold> {
        let mut holds = Vec::new();
        for reservation in reservations {
            let from = match reservation.kind {
                ReservationKind::Nominated => None,
                ReservationKind::Planned { at } => Some(at),
            };
            let none = ChosenDevices::new();
            for (at, (pod, node)) in reservation.pods.iter().enumerate() {
                let (Some((gang, member)), Some(node)) = (place_of(pod), self.nodes.get(node))
                else {
                    continue;
                };
                holds.push(MemberHold {
                    gang,
                    member,
                    node: *node,
                    devices: reservation.devices.get(at).unwrap_or(&none).clone(),
                    from,
                });
            }
        }
        holds
    }

    /// The gang that a report is about.
    fn gang_of(&self, namespace: &str, name: &str, lone: bool) -> Option<GangIx> {
        let key = (namespace.to_owned(), name.to_owned(), lone);
        self.gangs.get(&key).copied()
    }
}

impl Planner for Muster {
    fn arrived(&mut self, at: GangIx, gang: &SimulatedGang, now: Seconds) {
        self.gangs
            .insert((gang.namespace.clone(), gang.name.clone(), gang.lone), at);
        if let Some(group) = &gang.group {
            self.notify(Event::PodGroupChanged(group.clone()));
        }
        let members = gang.members.iter().enumerate();
        let pods = members.clone().map(|(place, of)| made(at, place, of));
        self.pods.insert(at, pods.collect());
        for (place, member) in members {
            self.show(at, place, member, now);
        }
    }

    fn running(&mut self, at: GangIx, gang: &SimulatedGang, members: &[usize], now: Seconds) {
        for place in members {
            self.show(at, *place, &gang.members[*place], now);
        }
    }

    fn leaving(&mut self, at: GangIx, gang: &SimulatedGang, member: usize, now: Seconds) {
        self.show(at, member, &gang.members[member], now);
    }

    fn returned(&mut self, at: GangIx, gang: &SimulatedGang, member: usize, now: Seconds) {
        let of = &gang.members[member];
        self.notify(Event::PodGone(gang.namespace.clone(), of.name().to_owned()));
        let pods = self.pods.get_mut(&at);
        if let Some(pod) = pods.and_then(|pods| pods.get_mut(member)) {
            *pod = made(at, member, of);
        }
        self.show(at, member, of, now);
    }

    fn ended(&mut self, at: GangIx, gang: &SimulatedGang, _: Seconds) {
        // The pods first show as succeeded, because the scheduler learns durations from that.
        let pods = self.pods.get_mut(&at).into_iter().flatten();
        for status in pods.filter_map(|pod| pod.status.as_mut()) {
            status.phase = Some("Succeeded".to_owned());
        }
        for place in 0..gang.members.len() {
            self.notify_pod(at, place);
        }
        self.pods.remove(&at);
        for member in &gang.members {
            self.notify(Event::PodGone(
                gang.namespace.clone(),
                member.name().to_owned(),
            ));
        }
        if gang.group.is_some() {
            self.notify(Event::PodGroupGone(
                gang.namespace.clone(),
                gang.name.clone(),
            ));
        }
        self.gangs
            .remove(&(gang.namespace.clone(), gang.name.clone(), gang.lone));
    }

    fn plan(&mut self, _: &Gangs, now: Seconds) -> PlanDecisions {
        let time = self.time(now);
        let mut plan = self.scheduler.plan(time);
        let violations = self.gate(&mut plan.binds, time);
        let mut decided = PlanDecisions {
            violations,
            requeue_at: plan
                .requeue_at
                .map(|requeue_at| (requeue_at.as_second() - self.start.as_second()).max(now + 1)),
            ..PlanDecisions::default()
        };
        if !decided.violations.is_empty() {
            let rest = now + VIOLATOR_REST.as_secs();
            decided.requeue_at = Some(
                decided
                    .requeue_at
                    .map_or(rest, |requeue_at| requeue_at.min(rest)),
            );
        }
        for bind in std::mem::take(&mut plan.binds) {
            let Some((gang, member)) = place_of(&bind.pod) else {
                continue;
            };
            let Some(node) = self.nodes.get(&bind.node) else {
                continue;
            };
            decided.starts.push(PlannedStart {
                gang,
                member,
                node: *node,
                devices: bind.devices,
            });
        }
        if !plan.unchanged && self.reports {
            decided.holds = Some(self.holds(&plan.reservations));
        }
        decided.evictions = plan.evictions.iter().filter_map(eviction::read).collect();
        self.read_reports(&plan, &mut decided);
        decided
    }
}

/// A member's pod as it is created: it waits.
fn made(at: GangIx, place: usize, of: &GangPod) -> Pod {
    let mut pod = of.pod.clone();
    pod.metadata.uid = Some(format!("{at}-{place}-{}", of.generation));
    pod
}

/// Sets a pod's state to its member's: on this node, or waiting. A terminating pod keeps its node
/// until it is gone.
fn stand(pod: &mut Pod, of: &GangPod, node: Option<&str>, now: Timestamp) {
    let phase = if node.is_some() { "Running" } else { "Pending" };
    pod.status = Some(PodStatus {
        phase: Some(phase.to_owned()),
        start_time: node.map(|_| Time(of.since.unwrap_or(now))),
        ..PodStatus::default()
    });
    if let Some(node) = node {
        if let Some(spec) = &mut pod.spec {
            spec.node_name = Some(node.to_owned());
        }
        if !of.devices.is_empty()
            && let Ok(text) = serde_json::to_string(&of.devices)
        {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            annotations.insert(DEVICES.to_owned(), text);
        }
    }
    if matches!(of.stage, MemberStage::Leaving { .. }) {
        pod.metadata.deletion_timestamp = Some(Time(now));
    }
}

/// Gang and member, from the pod's uid.
pub(crate) fn place_of(pod: &PodRef) -> Option<(GangIx, usize)> {
    let mut parts = pod.uid.split('-');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn pod_id(namespace: &str, name: &str) -> invariants::PodId {
    invariants::PodId {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn placement(bind: &Bind) -> invariants::ProposedBind {
    invariants::ProposedBind {
        pod: pod_id(&bind.pod.namespace, &bind.pod.name),
        uid: bind.pod.uid.clone(),
        node: bind.node.clone(),
        devices: bind.devices.clone(),
    }
}
