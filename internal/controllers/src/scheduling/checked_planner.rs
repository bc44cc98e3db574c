//! The scheduler and the invariant check, side by side. Both receive the same events, and the check
//! must accept each of the scheduler's plans before the plan leaves this module.

use std::collections::BTreeSet;

use invariants::{Invariant, Violation};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use scheduler::{Bind, Event, Eviction, GroupRef, Plan, PodRef, QueueView, Scheduler, WhatIf};
use tracing::field;

/// How long a gang waits after its binds would have broken an invariant.
const VIOLATOR_REST: jiff::SignedDuration = jiff::SignedDuration::from_secs(30);
/// How many rounds of dropping binds and checking the rest there are before all are dropped.
const ROUNDS_MAX: usize = 8;

/// The scheduler and the check.
pub(super) struct CheckedPlanner {
    scheduler: Scheduler,
    cluster: invariants::ClusterAccount,
}

impl CheckedPlanner {
    pub(super) fn new(config: &scheduler::Config) -> CheckedPlanner {
        CheckedPlanner {
            scheduler: Scheduler::new(config.clone()),
            cluster: invariants::ClusterAccount::new(config.scheduler_names.clone()),
        }
    }

    pub(super) fn apply(&mut self, event: Event) {
        let cluster = &mut self.cluster;
        match &event {
            Event::NodeChanged(node) => cluster.put_node(node),
            Event::NodeGone(name) => cluster.drop_node(name),
            Event::PodChanged(pod) => cluster.put_pod(pod),
            Event::PodGone(namespace, name) => cluster.drop_pod(&pod_id(namespace, name)),
            Event::PodGroupChanged(group) => cluster.put_group(group),
            Event::PodGroupGone(namespace, name) => cluster.drop_group(namespace, name),
            Event::QueueChanged(queue) => cluster.put_queue(queue),
            Event::QueueGone(name) => cluster.drop_queue(name),
            Event::NamespaceChanged(_)
            | Event::NamespaceGone(_)
            | Event::PriorityClassChanged(_)
            | Event::PriorityClassGone(_)
            | Event::BudgetChanged(_)
            | Event::BudgetGone(..)
            | Event::ClaimChanged(_)
            | Event::ClaimGone(..)
            | Event::VolumeChanged(_)
            | Event::VolumeGone(_)
            | Event::StorageClassChanged(_)
            | Event::StorageClassGone(_)
            | Event::CsiNodeChanged(_)
            | Event::CsiNodeGone(_)
            | Event::CsiDriverChanged(_)
            | Event::CsiDriverGone(_)
            | Event::StorageCapacityChanged(_)
            | Event::StorageCapacityGone(..)
            | Event::AttachmentChanged(_)
            | Event::AttachmentGone(_) => {}
        }
        self.scheduler.apply(event);
    }

    /// Makes a plan and drops from it all binds that would break an invariant. Returns the number
    /// of violations too.
    pub(super) fn plan(&mut self, now: Timestamp) -> (Plan, usize) {
        let span = tracing::info_span!(
            "plan",
            unchanged = field::Empty,
            binds = field::Empty,
            evictions = field::Empty,
            reservations = field::Empty,
            violations = field::Empty,
        );
        let _entered = span.enter();
        let mut plan = self.scheduler.plan(now);
        let violations = self.gate(&mut plan, now);
        span.record("unchanged", plan.unchanged)
            .record("binds", plan.binds.len())
            .record("evictions", plan.evictions.len())
            .record("reservations", plan.reservations.len())
            .record("violations", violations);
        tracing::debug!("the scheduler made a plan");
        for bind in &plan.binds {
            self.cluster.assume(&placement(bind));
        }
        for Eviction { pod, .. } in &plan.evictions {
            self.cluster
                .see_leave(&pod_id(&pod.namespace, &pod.name), &pod.uid, true);
        }
        (plan, violations)
    }

    fn gate(&mut self, plan: &mut Plan, now: Timestamp) -> usize {
        let mut count = 0;
        for round in 0.. {
            let placements: Vec<invariants::ProposedBind> =
                plan.binds.iter().map(placement).collect();
            let violations = invariants::check(&self.cluster, &placements);
            if violations.is_empty() {
                return count;
            }
            count += violations.len();
            let mut guilty = BTreeSet::new();
            for violation in violations {
                tracing::error!(%violation, "a plan violates an invariant; the scheduler does not carry out that part");
                guilty.extend(violation.pods);
            }
            // A gang is dropped whole: half of it would be the next violation.
            let groups: BTreeSet<GroupRef> = plan
                .binds
                .iter()
                .filter(|bind| guilty.contains(&pod_id(&bind.pod.namespace, &bind.pod.name)))
                .map(|bind| bind.group.clone())
                .collect();
            let all = groups.is_empty() || round >= ROUNDS_MAX;
            let (out, rest): (Vec<Bind>, Vec<Bind>) = std::mem::take(&mut plan.binds)
                .into_iter()
                .partition(|bind| all || groups.contains(&bind.group));
            plan.binds = rest;
            plan.groups.retain(|update| !groups.contains(&update.group));
            for bind in out {
                self.scheduler.forget(&bind.pod);
                self.scheduler.hold(&bind.group, now + VIOLATOR_REST);
                self.scheduler.forget_status(&bind.group);
            }
        }
        count
    }

    /// The scheduler alone, for questions that change nothing.
    pub(super) fn scheduler(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// Checks the bind of another scheduler's pod against the invariants; returns the violation.
    pub(super) fn check_foreign_bind(&mut self, pod: &Pod, bind: &Bind) -> Result<(), Violation> {
        let mut alone = pod.clone();
        if let Some(notes) = &mut alone.metadata.annotations {
            notes.remove(resources::names::GROUP_NAME);
        }
        self.cluster.put_pod(&alone);
        let violations = invariants::check(&self.cluster, &[placement(bind)]);
        self.cluster
            .drop_pod(&pod_id(&bind.pod.namespace, &bind.pod.name));
        let Some(violation) = violations.into_iter().next() else {
            return Ok(());
        };
        tracing::error!(%violation, "a binding for another scheduler violates an invariant; the server does not write it");
        Err(violation)
    }

    /// Gives the check a node that the scheduler does not get.
    #[cfg(test)]
    pub(super) fn update_check_only(&mut self, node: &k8s_openapi::api::core::v1::Node) {
        self.cluster.put_node(node);
    }

    /// A bind could not be written. The pod waits again, and its gang not before `until`. If
    /// `found` is given and the watch has shown nothing newer, that becomes the pod's state.
    pub(super) fn bind_failed(
        &mut self,
        pod: &PodRef,
        group: &GroupRef,
        until: Timestamp,
        found: Option<Pod>,
    ) {
        self.scheduler.forget(pod);
        self.scheduler.hold(group, until);
        let open = (self.cluster).retract(&pod_id(&pod.namespace, &pod.name), &pod.uid);
        let same = |found: &Pod| found.metadata.uid.as_deref() == Some(&*pod.uid);
        if let Some(found) = found.filter(|found| open && same(found)) {
            self.apply(Event::PodChanged(Box::new(found)));
        }
    }

    /// The node whose free resources an event may change: the node changed, or another client bound
    /// a pod there.
    pub(super) fn news_of<'a>(&self, event: &'a Event) -> Option<&'a str> {
        match event {
            Event::NodeChanged(node) => node.metadata.name.as_deref(),
            Event::NodeGone(name) => Some(name),
            Event::PodChanged(pod) => {
                let node = pod.spec.as_ref()?.node_name.as_deref()?;
                let or_empty = |field: &'a Option<String>| field.as_deref().unwrap_or_default();
                let meta = &pod.metadata;
                let id = pod_id(or_empty(&meta.namespace), or_empty(&meta.name));
                (self.cluster.node_of(&id, or_empty(&meta.uid)) != Some(node)).then_some(node)
            }
            _ => None,
        }
    }

    /// The reason why a planned, unwritten bind is no longer valid after later events: its node is
    /// gone, cordoned or full, or the pod has changed.
    pub(super) fn objection(&mut self, bind: &Bind) -> Option<String> {
        let placement = placement(bind);
        if !self.cluster.retract(&placement.pod, &placement.uid) {
            return Some("the pod is already bound or deleted".to_owned());
        }
        let violations = invariants::check(&self.cluster, std::slice::from_ref(&placement));
        self.cluster.assume(&placement);
        // The plan already ensured that the gang is complete and its queue within limits.
        let heeded = [
            Invariant::NodeCapacity,
            Invariant::Devices,
            Invariant::Constraints,
        ];
        let mut violations = violations.into_iter();
        let found = violations.find(|violation| heeded.contains(&violation.invariant));
        found.map(|violation| violation.what)
    }

    /// A gang's volumes could not be bound, for this reason. The gang reports the reason until its
    /// next attempt, and its PodGroup's status is written again.
    pub(super) fn volumes_failed(&mut self, group: &GroupRef, until: Timestamp, why: &str) {
        self.scheduler.hold_because(group, until, Some(why));
        self.scheduler.forget_status(group);
    }

    /// An eviction could not be written: the pod stays, and its preemptor is not tried before
    /// `until`.
    pub(super) fn eviction_failed(&mut self, eviction: &Eviction, until: Timestamp) {
        let pod = &eviction.pod;
        self.scheduler.forget_eviction(pod);
        if let Some(by) = &eviction.by {
            self.scheduler.hold(by, until);
        }
        self.cluster
            .see_leave(&pod_id(&pod.namespace, &pod.name), &pod.uid, false);
    }

    /// A status could not be written and must be reported again.
    pub(super) fn status_failed(&mut self, group: &GroupRef) {
        self.scheduler.forget_status(group);
    }

    pub(super) fn queues(&self) -> std::collections::BTreeMap<String, QueueView> {
        self.scheduler.queue_views()
    }

    /// A copy of the state for one question: see `scheduler::WhatIf`.
    pub(super) fn what_if(&self) -> WhatIf {
        self.scheduler.what_if()
    }
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> Box<T> {
        Box::new(serde_json::from_value(value).unwrap())
    }

    fn node(gpus: &str) -> Box<Node> {
        named("n1", gpus)
    }

    fn named(name: &str, gpus: &str) -> Box<Node> {
        read(json!({
            "metadata": {"name": name},
            "status": {"allocatable": {"cpu": "8", "pods": "110", "nvidia.com/gpu": gpus}},
        }))
    }

    /// A pod with one GPU in gang `group`; the pod `alone` requests no GPU.
    fn gpu_pod(name: &str, group: &str) -> Pod {
        *read(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name,
                "annotations": {"scheduling.k8s.io/group-name": group}},
            "spec": {"schedulerName": "muster", "containers": [{"name": "main", "resources":
                {"limits": {"nvidia.com/gpu": if name == "alone" { "0" } else { "1" }}}}]},
        }))
    }

    fn planner() -> CheckedPlanner {
        let mut planner = CheckedPlanner::new(&scheduler::Config::default());
        planner.apply(Event::NodeChanged(node("2")));
        for (name, group) in [("g-0", "g"), ("g-1", "g"), ("alone", "")] {
            planner.apply(Event::PodChanged(Box::new(gpu_pod(name, group))));
        }
        planner.apply(Event::PodGroupChanged(read(json!({
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
            "metadata": {"name": "g", "namespace": "ns", "uid": "g"}, "spec": {"minMember": 2},
        }))));
        planner
    }

    #[test]
    fn a_gang_that_would_break_an_invariant_is_dropped_whole_and_the_rest_is_kept() {
        let mut planner = planner();
        // Only the check sees a smaller node, so it finds the scheduler's plan in violation.
        planner.cluster.put_node(&node("1"));
        let now = Timestamp::UNIX_EPOCH;
        let (plan, violations) = planner.plan(now);
        let names: Vec<&str> = plan
            .binds
            .iter()
            .map(|bind| bind.pod.name.as_str())
            .collect();
        assert_eq!(names, ["alone"]);
        assert_eq!(violations, 1);
        assert!(
            plan.groups.is_empty(),
            "nothing is said of a gang that was left out"
        );
        // The gang is retried, but not in a tight loop.
        let (rest, violations) = planner.plan(now);
        assert!(rest.binds.is_empty() && violations == 0);
        assert_eq!(rest.requeue_at, Some(now + VIOLATOR_REST));
        planner.cluster.put_node(&node("2"));
        let (again, violations) = planner.plan(now + VIOLATOR_REST);
        assert_eq!((again.binds.len(), violations), (2, 0));
    }

    #[test]
    fn a_plan_is_a_span_with_its_counts() {
        let mut planner = planner();
        let lines = crate::test_log::lines(|| {
            planner.plan(Timestamp::UNIX_EPOCH);
        });
        let plan = "plan{unchanged=false binds=3 evictions=0 reservations=0 violations=0}";
        assert!(lines.contains(plan), "{lines}");
    }

    #[test]
    fn a_pod_that_another_client_bound_stays_on_its_node() {
        let mut planner = planner();
        planner.apply(Event::NodeChanged(named("n2", "1")));
        let now = Timestamp::UNIX_EPOCH;
        let meant = |plan: Plan| {
            let mut binds = plan.binds.into_iter();
            binds.find(|bind| bind.pod.name == "g-0").unwrap()
        };
        let bind = meant(planner.plan(now).0);
        let mut found = gpu_pod(&bind.pod.name, "g");
        found.metadata.uid = Some("another".to_owned());
        found.spec.as_mut().unwrap().node_name = Some("n2".to_owned());
        let held =
            |planner: &CheckedPlanner| planner.queues()["default"].allocated.get("nvidia.com/gpu");
        // Another pod of the same name says nothing about the planned one.
        planner.bind_failed(&bind.pod, &bind.group, now, Some(found.clone()));
        assert_eq!(held(&planner), 1);
        let bind = meant(planner.plan(now).0);
        found.metadata.uid = Some(bind.pod.uid.clone());
        planner.bind_failed(&bind.pod, &bind.group, now, Some(found.clone()));
        assert_eq!(held(&planner), 2);
        let (plan, violations) = planner.plan(now);
        assert!(plan.binds.is_empty() && violations == 0, "{:?}", plan.binds);
        // Once the watch has shown a pod, an older state found by a read does not replace it.
        found.status.get_or_insert_default().phase = Some("Succeeded".to_owned());
        planner.apply(Event::PodChanged(Box::new(found.clone())));
        found.status = None;
        planner.bind_failed(&bind.pod, &bind.group, now, Some(found));
        assert_eq!(held(&planner), 1);
    }

    #[test]
    fn a_waiting_bind_is_invalid_once_its_node_is_gone_cordoned_or_full() {
        let now = Timestamp::UNIX_EPOCH;
        let planned = || {
            let mut planner = planner();
            let (plan, _) = planner.plan(now);
            let mut binds = plan.binds.into_iter();
            let bind = binds.find(|bind| bind.pod.name == "g-0").unwrap();
            (planner, bind)
        };
        let (mut fine, bind) = planned();
        assert_eq!(fine.objection(&bind), None);
        let mut shut = node("2");
        shut.spec.get_or_insert_default().unschedulable = Some(true);
        let mut others = gpu_pod("others", "");
        others.spec.as_mut().unwrap().node_name = Some("n1".to_owned());
        others.spec.as_mut().unwrap().scheduler_name = Some("other".to_owned());
        for (event, why) in [
            (Event::NodeGone("n1".to_owned()), "the node does not exist"),
            (Event::NodeChanged(shut), "cordoned"),
            (Event::NodeChanged(node("1")), "nvidia.com/gpu"),
            (Event::PodChanged(Box::new(others)), "nvidia.com/gpu"),
            (Event::PodGone("ns".to_owned(), "g-0".to_owned()), "deleted"),
        ] {
            let (mut planner, bind) = planned();
            assert!(
                planner.news_of(&event).is_some() || why == "deleted",
                "{event:?}"
            );
            planner.apply(event);
            let objection = planner.objection(&bind).unwrap_or_default();
            assert!(objection.contains(why), "{objection} for {why}");
        }
        // The loop's own binding is not an outside change.
        let (planner, bind) = planned();
        let mut own = gpu_pod("g-0", "g");
        own.spec.as_mut().unwrap().node_name = Some(bind.node.clone());
        assert_eq!(planner.news_of(&Event::PodChanged(Box::new(own))), None);
    }

    #[test]
    fn a_failed_binding_frees_its_room_in_both_accounts() {
        let mut planner = planner();
        let now = Timestamp::UNIX_EPOCH;
        let (plan, _) = planner.plan(now);
        assert_eq!(plan.binds.len(), 3);
        for bind in &plan.binds {
            planner.bind_failed(&bind.pod, &bind.group, now, None);
        }
        let (again, violations) = planner.plan(now);
        assert_eq!((again.binds.len(), violations), (3, 0));
    }
}
