//! StatefulSet, `apps/v1`: pods with numbers that last, each with the claims of its number. Owns the order of the
//! decision: missing pods first, then surplus ones, then one pod of an old template at a time. The rules are those of
//! Kubernetes 1.34's StatefulSet controller.
//!
//! Example: three pods, `OrderedReady`. `web-1` is created when `web-0` is available. A new template replaces `web-2`,
//! then `web-1`, then `web-0`, each when the one before is available again. With `partition: 2` only `web-2` is.

mod pods;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    ControllerRevision, StatefulSet, StatefulSetSpec, StatefulSetStatus,
};
use k8s_openapi::api::core::v1::Pod;

use resources::inert_kinds;

use super::revisions::Revisions;
use super::{FindClaim, PodClaims, available_from, batch, count, positive};
use crate::action::{Action, DependentKind, ReconcileOutcome};
use crate::ownership::Claimant;
use crate::pod_facts::{self, PodPhase};
use crate::pod_room::PodRoom;

/// The observed state to decide on.
#[derive(Clone, Copy)]
pub struct ObservedStatefulSet<'a> {
    /// The set, with its status as last written.
    pub set: &'a StatefulSet,
    /// Its pods, and those of its namespace without a controller; other pods are ignored.
    pub pods: &'a [&'a Pod],
    /// Its revisions, and those of its namespace without a controller; others are ignored.
    pub revisions: &'a [&'a ControllerRevision],
    /// The claims of its namespace.
    pub claim: FindClaim<'a>,
    /// How many pods can exist at all.
    pub room: PodRoom,
}

/// A set's spec and pods.
struct SetPlan<'a> {
    set: &'a StatefulSet,
    spec: &'a StatefulSetSpec,
    claim: FindClaim<'a>,
    /// The first number, and the one after the last.
    first: i64,
    end: i64,
    /// One at a time, in order.
    ordered: bool,
    /// The pods by number.
    pods: BTreeMap<i64, &'a Pod>,
    /// The revision of pods with a number below the partition.
    current: String,
    room: PodRoom,
    now: Timestamp,
}

/// Decides the next actions for a StatefulSet.
#[must_use]
pub fn reconcile(
    observed: &ObservedStatefulSet<'_>,
    now: Timestamp,
) -> ReconcileOutcome<StatefulSetStatus> {
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
    let claimant = Claimant::of("StatefulSet", &set.metadata, &spec.selector);
    let set_name = set.metadata.name.as_deref().unwrap_or_default();
    let pods = claimant.claim(DependentKind::Pod, observed.pods, |pod| {
        pods::number(set_name, pod).is_some()
    });
    let revisions = Revisions::of(
        &claimant,
        &spec.template,
        observed.revisions,
        outcome.status.collision_count,
    );
    let current = outcome.status.current_revision.take();
    let current = current.filter(|name| revisions.has(name));
    let current = current.unwrap_or_else(|| revisions.update.clone());
    let plan = SetPlan::of(observed, spec, &pods.own, current, now);
    plan.count(&revisions, &mut outcome);
    if set.metadata.deletion_timestamp.is_some() {
        return outcome;
    }
    outcome.actions.extend(pods.releases);
    let mut adoptions = pods.adoptions;
    adoptions.extend(revisions.adoptions.iter().cloned());
    if !adoptions.is_empty() {
        outcome.actions.extend(adoptions);
        return outcome;
    }
    let mut actions = Vec::new();
    for (number, pod) in &plan.pods {
        let condemned = *number < plan.first || *number >= plan.end;
        plan.claims().change_owners(pod, condemned, &mut actions);
    }
    if plan.keep_up(&revisions, &mut actions) && plan.shrink(&mut actions) {
        plan.update(&revisions, &mut actions);
    }
    let live = plan.pods.values().filter_map(|pod| pods::revision_of(pod));
    let mut live: BTreeSet<&str> = live.collect();
    live.insert(plan.current.as_str());
    let limit = spec.revision_history_limit;
    outcome.actions.extend(revisions.actions(&live, limit));
    outcome.actions.extend(actions);
    outcome
}

fn is_running_and_ready(pod: &Pod) -> bool {
    PodPhase::of(pod) == PodPhase::Running && pod_facts::is_ready(pod)
}

fn delete(pod: &Pod) -> Action {
    Action::DeletePod {
        name: pod_facts::name(pod).to_owned(),
        uid: pod_facts::uid(pod).to_owned(),
        grace: None,
    }
}

impl<'a> SetPlan<'a> {
    fn of(
        observed: &ObservedStatefulSet<'a>,
        spec: &'a StatefulSetSpec,
        own: &[&'a Pod],
        current: String,
        now: Timestamp,
    ) -> SetPlan<'a> {
        let set = observed.set;
        let name = set.metadata.name.as_deref().unwrap_or_default();
        let pods = own.iter().copied();
        let pods = pods.filter_map(|pod| Some((pods::number(name, pod)?, pod)));
        let ordinals = spec.ordinals.as_ref();
        let first = i64::from(ordinals.and_then(|all| all.start).unwrap_or(0)).max(0);
        SetPlan {
            set,
            spec,
            claim: observed.claim,
            first,
            end: first + i64::from(spec.replicas.unwrap_or(1)).max(0),
            ordered: spec.pod_management_policy.as_deref() != Some("Parallel"),
            pods: pods.collect(),
            current,
            room: observed.room,
            now,
        }
    }

    fn claims(&self) -> PodClaims<'a, 'a> {
        let templates = self.spec.volume_claim_templates.as_deref();
        PodClaims {
            owner: &self.set.metadata,
            api_version: "apps/v1",
            kind: "StatefulSet",
            templates: templates.unwrap_or_default(),
            policy: self.spec.persistent_volume_claim_retention_policy.as_ref(),
            find: self.claim,
        }
    }

    /// Creates the claims of a number that are missing.
    fn claims_of(&self, number: i64, actions: &mut Vec<Action>) {
        let labels = self.spec.selector.match_labels.clone();
        let pod = pods::name(self.set, number);
        let labels = labels.unwrap_or_default();
        self.claims().create(&pod, &labels, actions);
    }

    fn is_available(&self, pod: &Pod) -> bool {
        let seconds = i64::from(self.spec.min_ready_seconds.unwrap_or(0));
        is_running_and_ready(pod)
            && available_from(pod, seconds).is_some_and(|from| from <= self.now)
    }

    fn on_delete(&self) -> bool {
        let strategy = self.spec.update_strategy.as_ref();
        strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete")
    }

    /// The first number whose pod gets a new template.
    fn partition(&self) -> i64 {
        let strategy = self.spec.update_strategy.as_ref();
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let partition = rolling.and_then(|rolling| rolling.partition).unwrap_or(0);
        self.first + i64::from(partition).max(0)
    }

    /// The revision that a new pod of this number gets.
    fn revision_for<'r>(&'r self, number: i64, revisions: &'r Revisions<'_>) -> &'r str {
        // A pod that its owner deletes under `OnDelete` comes back with the current template.
        let before = if self.on_delete() {
            self.first
        } else {
            self.partition()
        };
        if number < before {
            &self.current
        } else {
            &revisions.update
        }
    }

    /// Writes the counts and revisions.
    fn count(&self, revisions: &Revisions<'_>, outcome: &mut ReconcileOutcome<StatefulSetStatus>) {
        let seconds = i64::from(self.spec.min_ready_seconds.unwrap_or(0));
        let (mut ready, mut available, mut old, mut new) = (0, 0, 0, 0);
        for pod in self.pods.values() {
            if is_running_and_ready(pod) {
                ready += 1;
                match available_from(pod, seconds) {
                    Some(from) if from > self.now => outcome.requeue(from),
                    Some(_) => available += 1,
                    None => {}
                }
            }
            if !pod_facts::is_leaving(pod) {
                let revision = pods::revision_of(pod);
                old += i64::from(revision == Some(self.current.as_str()));
                new += i64::from(revision == Some(revisions.update.as_str()));
            }
        }
        let status = &mut outcome.status;
        status.observed_generation = self.set.metadata.generation;
        status.replicas = count(self.pods.len());
        status.ready_replicas = positive(ready);
        status.available_replicas = Some(available);
        status.updated_replicas = positive(new);
        status.current_replicas = positive(old);
        status.collision_count = revisions.collisions;
        status.update_revision = Some(revisions.update.clone());
        status.current_revision = Some(self.current.clone());
        let all = i64::try_from(self.pods.len()).unwrap_or(i64::MAX);
        if !self.on_delete() && new == all && ready == all && all == self.end - self.first {
            status.current_revision = Some(revisions.update.clone());
            status.current_replicas = status.updated_replicas;
        }
    }

    /// Creates missing pods. Returns true if what follows may be decided: all earlier pods are there, and available if
    /// the order counts.
    fn keep_up(&self, revisions: &Revisions<'_>, actions: &mut Vec<Action>) -> bool {
        let waiting = self.pods.values().filter(|pod| !pod_facts::is_bound(pod));
        let room = batch(usize::MAX, self.pods.len(), waiting.count(), &self.room);
        let mut created = 0;
        let mut complete = true;
        let mut number = self.first;
        // The numbers without a pod are passed over for at most as many as may be created.
        while number < self.end {
            let pod = self.pods.get(&number).copied();
            match pod {
                None if created < room => {
                    let revision = self.revision_for(number, revisions);
                    let old = revisions.template(revision);
                    let template = old.as_ref().filter(|_| revision != revisions.update);
                    let template = template.unwrap_or(&self.spec.template);
                    self.claims_of(number, actions);
                    let pod = pods::pod(self.set, template, number, revision);
                    actions.push(Action::CreatePod(Box::new(pod)));
                    created += 1;
                    complete = false;
                }
                None => return false,
                Some(pod) if PodPhase::of(pod).is_finished() => {
                    if !pod_facts::is_leaving(pod) {
                        actions.push(delete(pod));
                    }
                    complete = false;
                }
                Some(pod) if pod_facts::is_leaving(pod) => complete = false,
                Some(pod) => {
                    if !pod_facts::is_bound(pod) {
                        // Its claims may have been refused when it was created.
                        self.claims_of(number, actions);
                    }
                    if !self.ordered || self.is_available(pod) {
                        number += 1;
                        continue;
                    }
                    complete = false;
                }
            }
            if self.ordered {
                return false;
            }
            number += 1;
        }
        complete || !self.ordered
    }

    /// Deletes pods beyond the number of replicas, the last one first. Returns true if none is left.
    fn shrink(&self, actions: &mut Vec<Action>) -> bool {
        let condemned = self.pods.iter().rev();
        let condemned: Vec<(&i64, &&Pod)> = condemned
            .filter(|(number, _)| **number >= self.end || **number < self.first)
            .collect();
        let unhealthy = condemned.iter().rev();
        let unhealthy = unhealthy
            .filter(|(_, pod)| !is_running_and_ready(pod) || pod_facts::is_leaving(pod))
            .map(|(number, _)| **number)
            .next();
        for (number, pod) in &condemned {
            if pod_facts::is_leaving(pod) {
                if self.ordered {
                    return false;
                }
                continue;
            }
            // An unhealthy pod of a lower number goes before a healthy one would be the last to serve.
            let waits = !self.is_available(pod) && unhealthy != Some(**number);
            if self.ordered && waits {
                return false;
            }
            actions.push(delete(pod));
            if self.ordered {
                return false;
            }
        }
        condemned.is_empty()
    }

    /// Deletes the last pod of an old template, unless a later one is not available yet.
    fn update(&self, revisions: &Revisions<'_>, actions: &mut Vec<Action>) {
        if self.on_delete() {
            return;
        }
        for (number, pod) in self.pods.iter().rev() {
            if *number < self.partition() || *number >= self.end {
                continue;
            }
            let outdated = pods::revision_of(pod) != Some(revisions.update.as_str());
            if outdated && !pod_facts::is_leaving(pod) {
                actions.push(delete(pod));
                return;
            }
            if pod_facts::is_leaving(pod) || !self.is_available(pod) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
