//! StatefulSet and DaemonSet of `apps/v1` for the runner.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus, StatefulSet, StatefulSetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;
use workloads::ReconcileOutcome;
use workloads::apps::{daemonset, statefulset};

use super::ObjectKey;
use super::batch::pod_event;
use super::caches::{SelectorOf, Watched};
use super::rooms::PodRooms;
use super::runner::{CachedJob, Workload};

/// The label of all pods that these controllers create; a pod without it is not adopted.
const POD_REVISION: &str = "controller-revision-hash";

/// The StatefulSet controller.
pub(crate) struct StatefulSetController {
    pub(crate) rooms: PodRooms,
}

impl Workload for StatefulSetController {
    type Kind = StatefulSet;
    type Status = StatefulSetStatus;

    const COMPONENT: &'static str = "statefulset-controller";
    const WATCHED: &'static [Watched] = &[
        Watched::Pods(POD_REVISION),
        Watched::Revisions,
        Watched::Claims,
    ];
    const SELECTOR: Option<SelectorOf<StatefulSet>> = Some(of_stateful_set);

    fn noticed(&mut self, _: &ObjectKey, _: Option<&StatefulSet>) {}

    fn decide(
        &mut self,
        key: &ObjectKey,
        cached: &CachedJob<'_, StatefulSet>,
        now: Timestamp,
    ) -> ReconcileOutcome<StatefulSetStatus> {
        let claim = |name: &str| {
            let key = (key.0.clone(), name.to_owned());
            cached.claims.get(&key).map(Arc::as_ref)
        };
        let observed = statefulset::ObservedStatefulSet {
            set: cached.job,
            pods: &cached.pods,
            revisions: &cached.revisions,
            claim: &claim,
            room: self.rooms.of(&key.0),
        };
        statefulset::reconcile(&observed, now)
    }

    fn status_of(set: &StatefulSet) -> Value {
        serde_json::to_value(&set.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        pod_event(created)
    }
}

fn of_stateful_set(set: &StatefulSet) -> Option<&LabelSelector> {
    set.spec.as_ref().map(|spec| &spec.selector)
}

/// The DaemonSet controller.
pub(crate) struct DaemonSetController;

impl Workload for DaemonSetController {
    type Kind = DaemonSet;
    type Status = DaemonSetStatus;

    const COMPONENT: &'static str = "daemonset-controller";
    const WATCHED: &'static [Watched] = &[
        Watched::Pods(POD_REVISION),
        Watched::Revisions,
        Watched::Nodes,
    ];
    const SELECTOR: Option<SelectorOf<DaemonSet>> = Some(of_daemon_set);

    fn noticed(&mut self, _: &ObjectKey, _: Option<&DaemonSet>) {}

    fn decide(
        &mut self,
        _: &ObjectKey,
        cached: &CachedJob<'_, DaemonSet>,
        now: Timestamp,
    ) -> ReconcileOutcome<DaemonSetStatus> {
        let observed = daemonset::ObservedDaemonSet {
            set: cached.job,
            pods: &cached.pods,
            revisions: &cached.revisions,
            nodes: cached.nodes,
        };
        daemonset::reconcile(&observed, now)
    }

    fn status_of(set: &DaemonSet) -> Value {
        serde_json::to_value(&set.status).unwrap_or_default()
    }

    fn pod_event(created: bool) -> &'static str {
        pod_event(created)
    }
}

fn of_daemon_set(set: &DaemonSet) -> Option<&LabelSelector> {
    set.spec.as_ref().map(|spec| &spec.selector)
}
