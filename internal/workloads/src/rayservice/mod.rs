//! RayService of `ray.io/v1`: KubeRay's contract, decided from the observed state.
//!
//! A service has a cluster that serves (active) and, until its applications run, one that will (pending). Each name is
//! written to the status before the cluster is created, so that the death of the server makes no cluster twice. The
//! Services are switched first, and the pending cluster becomes the active one when they lead to it; the other one is
//! deleted after a delay, whose end the status has. So a decision can be taken again at any point.
//!
//! What Ray answers is an input, like objects of the API: the decision says what a cluster is to be asked next
//! ([`ServeRequest`]). Submitting a configuration twice changes nothing in Ray.

mod objects;
mod plan;
mod serve;
mod status;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use resources::kinds::{RayCluster, RayService, RayServiceClusterStatus, RayServiceStatus};
use resources::numbers::later;
use resources::times::whole;

use self::plan::{ParsedRayService, SpecChange};
pub use self::serve::{ServeObservation, ServeRequest, pods_with_proxies};
use crate::action::{Action, Dependent, DependentKind, EventNote, ReconcileOutcome};
use crate::ownership::{controlled_by, controller};

/// Seconds until the clusters are asked again: while something changes, and while all is as it should be.
const ASK_AGAIN: [i64; 2] = [1, 5];

/// The observed state to decide on.
#[derive(Clone, Copy)]
pub struct ObservedRayService<'a> {
    /// The service, with its status as last written.
    pub service: &'a RayService,
    /// The clusters of the namespace; those of other owners are ignored.
    pub clusters: &'a [&'a RayCluster],
    /// Pods with the service's name in their label; others are ignored.
    pub pods: &'a [&'a Pod],
    /// Services of the service; others are ignored.
    pub services: &'a [&'a Service],
    /// What the clusters answered when they were asked last, by their names.
    pub serve: &'a BTreeMap<String, ServeObservation>,
}

/// What is to be done about a service.
#[derive(Clone, Debug, PartialEq)]
pub struct RayServiceDecision {
    /// The changes in the API.
    pub outcome: ReconcileOutcome<RayServiceStatus>,
    /// What the clusters are to be asked.
    pub requests: Vec<ServeRequest>,
}

/// The cluster that the service would create first, for a preview of its placement.
#[must_use]
pub fn preview(service: &RayService) -> Option<RayCluster> {
    let plan = ParsedRayService::of(service).ok()?;
    let name = objects::cluster_name(&plan, &[], Timestamp::UNIX_EPOCH);
    Some(objects::cluster(&plan, &name))
}

/// Decides the next actions for a service. Once the result was carried out, another call gives the same status and no
/// actions, until something changes.
#[must_use]
pub fn reconcile(observed: &ObservedRayService<'_>, now: Timestamp) -> RayServiceDecision {
    let service = observed.service;
    let known = service.status.clone().unwrap_or_default();
    let mut decision = RayServiceDecision {
        outcome: ReconcileOutcome::keep(known.clone()),
        requests: Vec::new(),
    };
    if service.metadata.deletion_timestamp.is_some() || plan::managed_elsewhere(service) {
        return decision;
    }
    decision.outcome.status.observed_generation = service.metadata.generation;
    let own = |cluster: &&RayCluster| controlled_by(&cluster.metadata, &service.metadata);
    let clusters: Vec<&RayCluster> = observed.clusters.iter().copied().filter(own).collect();
    let services = observed.services.iter().copied();
    let services = services.filter(|one| controlled_by(&one.metadata, &service.metadata));
    let services: Vec<&Service> = services.collect();
    if status::suspends(service, &known) {
        suspend(&clusters, &services, &mut decision.outcome, now);
    } else {
        match ParsedRayService::of(service) {
            Ok(plan) => {
                status::resume(&mut decision.outcome, now);
                let mut step = Step {
                    plan,
                    observed,
                    clusters,
                    services,
                    decision: &mut decision,
                    now,
                };
                step.take();
            }
            Err(refusal) => status::refused(&refusal, &mut decision.outcome, now),
        }
    }
    if decision.outcome.status != known {
        decision.outcome.status.last_update_time = Some(Time(whole(now)));
    }
    decision
}

/// Deletes all that the service has made, and says so in the status. Once begun, it is completed before the service is
/// resumed.
fn suspend(
    clusters: &[&RayCluster],
    services: &[&Service],
    outcome: &mut ReconcileOutcome<RayServiceStatus>,
    now: Timestamp,
) {
    let begun = status::is_true(&outcome.status, status::SUSPENDING);
    let left = clusters.len() + services.len();
    if begun {
        let leaving = |cluster: &&&RayCluster| cluster.metadata.deletion_timestamp.is_some();
        let stay = clusters.iter().filter(|cluster| !leaving(cluster));
        outcome
            .actions
            .extend(stay.map(|cluster| delete_cluster(cluster)));
        let stay = services
            .iter()
            .filter(|one| one.metadata.deletion_timestamp.is_none());
        outcome
            .actions
            .extend(stay.map(|one| Action::DeleteService {
                name: one.metadata.name.clone().unwrap_or_default(),
                uid: one.metadata.uid.clone().unwrap_or_default(),
            }));
    }
    status::suspend(begun, left, outcome, now);
}

/// Deletes a cluster with its pods.
fn delete_cluster(cluster: &RayCluster) -> Action {
    Action::Delete {
        kind: DependentKind::RayCluster,
        name: cluster.metadata.name.clone().unwrap_or_default(),
        uid: cluster.metadata.uid.clone().unwrap_or_default(),
    }
}

fn name_of(cluster: &RayCluster) -> &str {
    cluster.metadata.name.as_deref().unwrap_or_default()
}

/// One decision about a service that should run, in the making.
struct Step<'a, 'd> {
    plan: ParsedRayService<'a>,
    observed: &'d ObservedRayService<'a>,
    /// The service's own clusters.
    clusters: Vec<&'a RayCluster>,
    /// The service's own Services.
    services: Vec<&'a Service>,
    decision: &'d mut RayServiceDecision,
    now: Timestamp,
}

impl<'a> Step<'a, '_> {
    fn take(&mut self) {
        self.forget_lost();
        self.choose_pending();
        let active = self.named(self.active_name());
        let pending = self.named(self.pending_name());
        self.create_pending(pending);
        let (mut ready, mut cause) = (false, String::new());
        for (cluster, is_pending) in [(active, false), (pending, true)] {
            let Some(cluster) = cluster else { continue };
            // A cluster that is about to be replaced keeps its configuration.
            let submits = is_pending || self.pending_name().is_none();
            if submits && let Some(action) = objects::follow(&self.plan, cluster) {
                self.decision.outcome.actions.push(action);
            }
            let (is_ready, why) = self.ask(cluster, is_pending, submits);
            if submits {
                (ready, cause) = (is_ready, why);
            }
        }
        if pending.is_none()
            && let Some(name) = self.pending_name()
        {
            cause = format!("RayCluster {name} is created.");
        }
        self.lead(active, pending, ready);
        self.retire();
        let serving = self.named(self.active_name());
        let count = serving.map_or(0, |cluster| serve::endpoints(&self.pods_of(cluster)));
        let steady = ready && self.pending_name().is_none() && count > 0;
        if cause.is_empty() && count == 0 {
            "No pod of the cluster has a healthy proxy of Ray Serve yet.".clone_into(&mut cause);
        }
        let outcome = &mut self.decision.outcome;
        status::judge(count, &cause, outcome, self.now);
        let wait = if steady { ASK_AGAIN[1] } else { ASK_AGAIN[0] };
        outcome.requeue(later(self.now, wait));
    }

    fn active_name(&self) -> Option<String> {
        let status = &self.decision.outcome.status;
        let active = status.active_service_status.as_ref()?;
        active.ray_cluster_name.clone()
    }

    fn pending_name(&self) -> Option<String> {
        let status = &self.decision.outcome.status;
        let pending = status.pending_service_status.as_ref()?;
        pending.ray_cluster_name.clone()
    }

    /// The service's cluster of this name, unless it is being deleted.
    fn named(&self, name: Option<String>) -> Option<&'a RayCluster> {
        let name = name?;
        let mut clusters = self.clusters.iter().copied();
        clusters.find(|cluster| {
            name_of(cluster) == name && cluster.metadata.deletion_timestamp.is_none()
        })
    }

    /// The pods that a cluster controls.
    fn pods_of(&self, cluster: &RayCluster) -> Vec<&'a Pod> {
        let uid = cluster.metadata.uid.as_deref().unwrap_or_default();
        let own = |pod: &&Pod| controller(&pod.metadata).is_some_and(|owner| owner.uid == uid);
        self.observed.pods.iter().copied().filter(own).collect()
    }

    /// A serving cluster that a user deleted no longer serves.
    fn forget_lost(&mut self) {
        if let Some(name) = self.active_name()
            && self.named(Some(name.clone())).is_none()
        {
            let text =
                format!("RayCluster {name}, which served, is gone: another one takes its place.");
            let outcome = &mut self.decision.outcome;
            outcome.status.active_service_status = None;
            outcome
                .events
                .push(EventNote::warning("RayClusterLost", text));
        }
    }

    /// Names the cluster that is to take over, if the spec needs another one than there is.
    fn choose_pending(&mut self) {
        let active = self.named(self.active_name());
        let pending_name = self.pending_name();
        let pending = self.named(pending_name.clone());
        let fits = |cluster: &RayCluster| self.plan.compare(cluster) != SpecChange::Another;
        let served = pending_name.is_some() && self.lead_to() == pending_name;
        match (active, pending) {
            // The cluster is to be created, or already gets the requests.
            _ if pending_name.is_some() && (pending.is_none() || served) => {}
            (_, Some(pending)) if fits(pending) || !self.plan.upgrades => {}
            (active, Some(pending)) => {
                let name = name_of(pending).to_owned();
                let status = &mut self.decision.outcome.status;
                let record = status.pending_service_status.as_ref();
                // A cluster that cannot have served is deleted at once: the next one may need its GPUs.
                if !record.is_some_and(serve::may_serve) {
                    status.retired_clusters.insert(name, Time(whole(self.now)));
                }
                status.pending_service_status = None;
                if !active.is_some_and(fits) {
                    self.prepare();
                }
            }
            (Some(active), None) if fits(active) || !self.plan.upgrades => {}
            (_, None) => self.prepare(),
        }
    }

    fn prepare(&mut self) {
        let taken: Vec<&str> = self
            .observed
            .clusters
            .iter()
            .map(|one| name_of(one))
            .collect();
        let name = objects::cluster_name(&self.plan, &taken, self.now);
        self.decision.outcome.status.pending_service_status = Some(RayServiceClusterStatus {
            ray_cluster_name: Some(name),
            ..RayServiceClusterStatus::default()
        });
    }

    /// Creates the pending cluster if its name was written before.
    fn create_pending(&mut self, pending: Option<&RayCluster>) {
        let Some(name) = self.pending_name().filter(|_| pending.is_none()) else {
            return;
        };
        let known = self.observed.service.status.as_ref();
        let written = known.and_then(|status| status.pending_service_status.as_ref());
        let written = written.and_then(|written| written.ray_cluster_name.as_ref());
        let mut others = self.observed.clusters.iter();
        if written == Some(&name) && !others.any(|other| name_of(other) == name) {
            let cluster = objects::cluster(&self.plan, &name);
            let create = Action::Create(Dependent::RayCluster(Box::new(cluster)));
            self.decision.outcome.actions.push(create);
        }
    }

    /// Judges a cluster by its last answer, and says what it is to be asked next. Returns whether its applications run,
    /// or why not.
    fn ask(&mut self, cluster: &RayCluster, is_pending: bool, submits: bool) -> (bool, String) {
        let pods = self.pods_of(cluster);
        let observation = self.observed.serve.get(name_of(cluster));
        let status = &mut self.decision.outcome.status;
        let record = match is_pending {
            true => status.pending_service_status.get_or_insert_default(),
            false => status.active_service_status.get_or_insert_default(),
        };
        let state = serve::judge(&self.plan, cluster, &pods, observation, submits, record);
        self.decision.requests.extend(state.request);
        self.decision.outcome.events.extend(state.events);
        let labels = serve::label(&self.plan, &pods, observation);
        self.decision.outcome.actions.extend(labels);
        (state.ready, state.cause)
    }

    /// The cluster that the serve Service leads to.
    fn lead_to(&self) -> Option<String> {
        let name = objects::serve_service_name(&self.plan);
        let mut services = self.services.iter();
        let serve = services.find(|one| one.metadata.name.as_ref() == Some(&name))?;
        objects::leads_to(serve).map(str::to_owned)
    }

    /// Makes the Services lead to the cluster that should serve, and makes the pending cluster the active one once they
    /// lead to it.
    fn lead(
        &mut self,
        active: Option<&'a RayCluster>,
        pending: Option<&'a RayCluster>,
        ready: bool,
    ) {
        let takes_over = pending.filter(|pending| {
            let leads = self.lead_to().as_deref() == Some(name_of(pending));
            leads || (ready && serve::endpoints(&self.pods_of(pending)) > 0)
        });
        let Some(serving) = takes_over.or(active) else {
            return;
        };
        let wanted = [
            objects::serve_service(&self.plan, serving),
            objects::head_service(&self.plan, serving),
        ];
        let mut led = true;
        for wanted in wanted {
            let mut services = self.services.iter();
            let known = services.find(|one| one.metadata.name == wanted.metadata.name);
            let action = match known {
                None => Some(Action::CreateService(Box::new(wanted))),
                Some(known) => objects::redirect(known, &wanted),
            };
            led &= action.is_none();
            self.decision.outcome.actions.extend(action);
        }
        if takes_over.is_some() && led {
            let outcome = &mut self.decision.outcome;
            let status = &mut outcome.status;
            status.active_service_status = status.pending_service_status.take();
            let text = format!("RayCluster {} serves now.", name_of(serving));
            outcome
                .events
                .push(EventNote::normal("ServesRequests", text));
        }
    }

    /// Deletes the clusters that no longer serve when their time has come.
    fn retire(&mut self) {
        let kept = [self.active_name(), self.pending_name()];
        let outcome = &mut self.decision.outcome;
        let mut retired = BTreeMap::new();
        for cluster in &self.clusters {
            let name = name_of(cluster).to_owned();
            if kept.contains(&Some(name.clone())) {
                continue;
            }
            let known = outcome.status.retired_clusters.get(&name).map(|at| at.0);
            let at = known.unwrap_or_else(|| whole(later(self.now, self.plan.deletion_delay())));
            if at > self.now {
                outcome.requeue(at);
            } else if cluster.metadata.deletion_timestamp.is_none() {
                outcome.actions.push(delete_cluster(cluster));
            }
            retired.insert(name, Time(at));
        }
        outcome.status.retired_clusters = retired;
    }
}

#[cfg(test)]
mod tests;
