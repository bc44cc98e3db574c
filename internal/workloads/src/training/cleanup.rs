//! Deletions when a job ends or is suspended: pods by policy, Services whose pods are gone, the
//! PodGroup, and eventually the job itself.

use k8s_openapi::api::core::v1::{Pod, Service};
use resources::kinds::{CleanPodPolicy, PodGroup};

use super::plan::ParsedTrainingJob;
use super::roster::Roster;
use crate::action::{Action, delete_pod};
use crate::gang;
use crate::ownership::controlled_by;
use crate::pod_facts::{self, PodPhase};

/// Why pods are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CleanupReason {
    /// The job is suspended: all pods are deleted.
    Held,
    /// The job ended by its pods: the policy decides.
    Ended,
    /// The job exceeded its deadline or backoff limit: running pods must stop, whatever the policy.
    LimitReached,
}

/// The due deletions for this cause.
pub(crate) fn actions(
    plan: &ParsedTrainingJob<'_>,
    roster: &Roster<'_>,
    services: &[&Service],
    pod_group: Option<&PodGroup>,
    why: CleanupReason,
) -> Vec<Action> {
    let mut actions = Vec::new();
    let mut staying: Vec<&str> = Vec::new();
    for pod in roster.pods() {
        if !is_cleaned_up(plan, pod, why) {
            staying.push(pod_facts::name(pod));
        } else if !pod_facts::is_leaving(pod) {
            actions.push(delete_pod(pod));
        }
    }
    for service in services
        .iter()
        .copied()
        .filter(|service| controlled_by(&service.metadata, plan.meta))
    {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        if !staying.contains(&name) && service.metadata.deletion_timestamp.is_none() {
            actions.push(delete_service(service));
        }
    }
    actions.extend(gang::deletion(plan.meta, pod_group));
    actions
}

fn is_cleaned_up(plan: &ParsedTrainingJob<'_>, pod: &Pod, why: CleanupReason) -> bool {
    let phase = PodPhase::of(pod);
    if why == CleanupReason::Held {
        return true;
    }
    // An unbound pod would start after the end, and it has no logs to keep.
    if phase == PodPhase::Pending && !pod_facts::is_bound(pod) {
        return true;
    }
    match plan.clean_pods() {
        CleanPodPolicy::All => true,
        CleanPodPolicy::Running => !phase.is_finished(),
        CleanPodPolicy::None => why == CleanupReason::LimitReached && !phase.is_finished(),
    }
}

pub(crate) fn delete_service(service: &Service) -> Action {
    Action::DeleteService {
        name: service.metadata.name.clone().unwrap_or_default(),
        uid: service.metadata.uid.clone().unwrap_or_default(),
    }
}
