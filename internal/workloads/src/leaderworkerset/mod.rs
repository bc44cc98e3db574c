//! LeaderWorkerSet, `leaderworkerset.x-k8s.io/v1`: groups of a leader and its workers. Owns the order of the decision; the
//! sibling modules own its parts. Behaviour: `pkg/controllers` of LeaderWorkerSet, with these differences: the set owns
//! its pods itself, without StatefulSets between; each group is a gang of its own; a group that breaks right after its
//! start waits before it is created again; and it does so too if the platform ended a pod of it.

mod gang;
mod groups;
mod plan;
mod pods;
mod revisions;
mod rollout;
mod status;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{Pod, Service};
use resources::kinds::{LeaderWorkerSet, LeaderWorkerSetStatus, PodGroup};
use resources::numbers::later;

use self::groups::{Group, Groups};
use self::plan::{GroupPlan, ParsedSet};
use self::revisions::Revisions;
use crate::action::{Action, EventNote, ReconcileOutcome, delete_pod};
use crate::apps::FindClaim;
use crate::failure;
use crate::ownership::controlled_by;
use crate::pod_facts;
use crate::pod_room::PodRoom;

const API_VERSION: &str = "leaderworkerset.x-k8s.io/v1";
/// The most pods that one reconciliation creates, unless one group has more.
const CREATED_AT_ONCE: u32 = 500;
/// How long a group is there at least before it is created again, in seconds.
const LIFE_MIN: i64 = 10;

/// The observed state to decide on.
pub struct ObservedLeaderWorkerSet<'a> {
    /// The set, with its status as last written.
    pub set: &'a LeaderWorkerSet,
    /// Pods of the set; others are ignored.
    pub pods: &'a [&'a Pod],
    /// Revisions of the set; others are ignored.
    pub revisions: &'a [&'a ControllerRevision],
    /// Services of the set.
    pub services: &'a [&'a Service],
    /// PodGroups of the set; others are ignored.
    pub pod_groups: &'a [&'a PodGroup],
    /// The claims of its namespace.
    pub claim: FindClaim<'a>,
    /// What bounds the number of its pods.
    pub room: PodRoom,
}

/// Decides the next actions for a set. Once the result was carried out, another call gives the same status and no
/// actions, until something changes.
#[must_use]
pub fn reconcile(
    observed: &ObservedLeaderWorkerSet<'_>,
    now: Timestamp,
) -> ReconcileOutcome<LeaderWorkerSetStatus> {
    let set = observed.set;
    let mut outcome = ReconcileOutcome::keep(set.status.clone().unwrap_or_default());
    if set.metadata.deletion_timestamp.is_some() {
        return outcome;
    }
    outcome.status.message = None;
    let plan = ParsedSet::of(set);
    let revisions = Revisions::of(&plan, observed.revisions);
    let groups = Groups::of(&plan, observed.pods, &revisions);
    let wanted = rollout::wanted(&plan, &groups, revisions.current());
    let mut decision = Decision {
        plan: &plan,
        observed,
        groups: &groups,
        revisions: &revisions,
        wanted,
        outcome,
        pod_groups: observed
            .pod_groups
            .iter()
            .filter_map(|group| Some((group.metadata.name.as_deref()?, *group)))
            .collect(),
        gangs: BTreeSet::new(),
        ended: BTreeSet::new(),
        now,
    };
    decision.serve();
    decision.own_claims();
    decision.end_groups();
    decision.keep_up();
    decision.remove_gangs();
    let mut outcome = decision.outcome;
    outcome
        .actions
        .extend(revisions.actions(&plan, &groups, wanted));
    status::write(&plan, &groups, revisions.current(), &mut outcome, now);
    outcome
}

/// One decision in the making.
struct Decision<'a, 'o> {
    plan: &'a ParsedSet<'a>,
    observed: &'a ObservedLeaderWorkerSet<'o>,
    groups: &'a Groups<'a>,
    revisions: &'a Revisions<'a>,
    /// The groups that should be there, with those of a rollout.
    wanted: u32,
    outcome: ReconcileOutcome<LeaderWorkerSetStatus>,
    /// The PodGroups that exist, by name.
    pod_groups: BTreeMap<&'a str, &'a PodGroup>,
    /// The names of the PodGroups that are needed.
    gangs: BTreeSet<String>,
    /// The groups that this decision ends: none of their pods is created with it.
    ended: BTreeSet<u32>,
    now: Timestamp,
}

impl<'a> Decision<'a, '_> {
    /// Creates the Services by which pods find each other.
    fn serve(&mut self) {
        let services = self.observed.services.iter();
        let there: BTreeSet<&str> = services
            .filter_map(|service| service.metadata.name.as_deref())
            .collect();
        let known = |name: &str| there.contains(name);
        let mut missing = Vec::new();
        if self.plan.shared {
            if !known(self.plan.name) {
                missing.push(pods::service(self.plan, None));
            }
        } else {
            let present = self.groups.all().map(|group| group.index);
            for index in present.filter(|index| *index < self.wanted) {
                if !known(&self.plan.leader_name(index)) {
                    missing.push(pods::service(self.plan, Some(index)));
                }
            }
        }
        let create = |service| Action::CreateService(Box::new(service));
        self.outcome.actions.extend(missing.into_iter().map(create));
        let surplus = self.observed.services.iter().filter(|service| {
            let name = service.metadata.name.as_deref().unwrap_or_default();
            let of_group = self.plan.group_of_service(name);
            let ours = controlled_by(&service.metadata, self.plan.meta);
            ours && of_group.is_some_and(|index| self.plan.shared || index >= self.wanted)
        });
        let delete = |service: &&Service| Action::DeleteService {
            name: service.metadata.name.clone().unwrap_or_default(),
            uid: service.metadata.uid.clone().unwrap_or_default(),
        };
        self.outcome.actions.extend(surplus.map(delete));
    }

    /// Writes the owners that the retention policy asks for to the claims of existing pods.
    fn own_claims(&mut self) {
        let claims = self.plan.claims(self.observed.claim);
        if claims.templates.is_empty() {
            return;
        }
        let actions = &mut self.outcome.actions;
        for group in self.groups.all() {
            let condemned = group.index >= self.wanted;
            for pod in group.pods() {
                claims.change_owners(pod, condemned, actions);
            }
        }
        for pod in self.groups.strays() {
            claims.change_owners(pod, true, actions);
        }
    }

    /// Creates the claims that pods of a group lack: those that are about to be created, and those that wait, because
    /// their claims may have been refused before.
    fn create_claims(&mut self, index: u32, missing: &[u32]) {
        let claims = self.plan.claims(self.observed.claim);
        if claims.templates.is_empty() {
            return;
        }
        let group = self.groups.get(index);
        let pods = group.into_iter().flat_map(Group::pods);
        let waiting = pods.filter(|pod| !pod_facts::is_bound(pod));
        let waiting = waiting.filter_map(|pod| self.plan.numbers(pod_facts::name(pod)));
        let waiting = waiting.map(|(_, worker)| worker);
        for worker in waiting.chain(missing.iter().copied()) {
            let name = self.plan.pod_name(index, worker);
            let labels = pods::claim_labels(self.plan, index, worker);
            claims.create(&name, &labels, &mut self.outcome.actions);
        }
    }

    /// Deletes groups that are not wanted, that broke, and that get another template.
    fn end_groups(&mut self) {
        let outdated = rollout::to_replace(
            self.plan,
            self.groups,
            self.revisions.current(),
            self.wanted,
        );
        for group in self.groups.all() {
            if group.index >= self.wanted || outdated.contains(&group.index) {
                self.delete_all(group);
            } else if let Some(broken) = group.broken(self.plan) {
                self.ended.insert(group.index);
                self.recreate(group, broken);
            } else {
                let ended = group.pods().filter(|pod| pod_facts::is_over(pod));
                let ended = ended.filter(|pod| !pod_facts::is_leaving(pod));
                self.outcome.actions.extend(ended.map(delete_pod));
            }
        }
        let strays = self.groups.strays().iter();
        let strays = strays.filter(|pod| !pod_facts::is_leaving(pod));
        self.outcome
            .actions
            .extend(strays.map(|pod| delete_pod(pod)));
    }

    fn delete_all(&mut self, group: &Group<'a>) {
        self.ended.insert(group.index);
        let there = group.pods().filter(|pod| !pod_facts::is_leaving(pod));
        self.outcome.actions.extend(there.map(delete_pod));
    }

    /// Deletes the rest of a group of which a pod ended, but not right after its start.
    fn recreate(&mut self, group: &Group<'a>, broken: &Pod) {
        let youngest = group.created().unwrap_or(Timestamp::MIN);
        let from = later(youngest, LIFE_MIN);
        if from > self.now {
            return self.outcome.requeue(from);
        }
        if group.pods().all(pod_facts::is_leaving) {
            return;
        }
        let rank = group.rank_of(broken);
        let cause = if failure::shows_failure(broken, "") {
            let member = failure::Member {
                pod: broken,
                rank,
                main: "",
                attempts: 1,
                attempt: 0,
                hang: None,
            };
            failure::record(&member).sentence()
        } else {
            format!("Pod {} has ended", pod_facts::name(broken))
        };
        let cause = cause.trim_end_matches('.');
        let message = format!("{cause}; group {} is created again.", group.index);
        let note = EventNote::warning("RecreateGroup", message);
        self.outcome.events.push(note);
        self.delete_all(group);
    }

    /// Creates the pods that are missing, a group at a time, each with its gang.
    fn keep_up(&mut self) {
        let mut waiting = self.groups.waiting();
        let waiting_max = self.observed.room.waiting_max(crate::job::WAITING_MAX);
        let mut created = 0_u32;
        for index in 0..self.wanted {
            let group = self.groups.get(index);
            if self.ended.contains(&index) || group.is_some_and(Group::is_ending) {
                continue;
            }
            let template = rollout::template(self.plan, self.groups, self.revisions, index);
            let missing = pods::missing(&template, group);
            let count = u32::try_from(missing.len()).unwrap_or(u32::MAX);
            if count == 0 {
                self.create_claims(index, &missing);
                self.keep_gang(index, &template);
                continue;
            }
            let fits = waiting.saturating_add(count) <= waiting_max
                && created.saturating_add(count) <= CREATED_AT_ONCE;
            if !fits && (waiting > 0 || created > 0) {
                return;
            }
            if group.is_none()
                && let Some(held) = self.observed.room.holds_back(template.size)
            {
                self.outcome.requeue(later(self.now, held.again));
                let note = EventNote::warning(held.reason, &held.message);
                self.outcome.events.push(note);
                self.outcome.status.message = Some(held.message);
                return;
            }
            self.keep_gang(index, &template);
            waiting = waiting.saturating_add(count);
            created = created.saturating_add(count);
            self.create_claims(index, &missing);
            for worker in missing {
                let pod = pods::pod(self.plan, &template, index, worker);
                self.outcome.actions.push(Action::CreatePod(Box::new(pod)));
            }
        }
    }

    fn keep_gang(&mut self, index: u32, template: &GroupPlan<'_>) {
        let name = gang::name(self.plan, index, &template.revision);
        let known = self.pod_groups.get(name.as_str()).copied();
        let change = gang::change(self.plan, &name, template, known);
        let change = change.map(|group| Action::ApplyPodGroup(Box::new(group)));
        self.outcome.actions.extend(change);
        self.gangs.insert(name);
    }

    /// Deletes the PodGroups that no pod needs any more.
    fn remove_gangs(&mut self) {
        let present: BTreeSet<String> = self
            .groups
            .all()
            .filter_map(|group| {
                let revision = group.revision.as_deref()?;
                Some(gang::name(self.plan, group.index, revision))
            })
            .collect();
        for group in self.observed.pod_groups {
            let name = group.metadata.name.clone().unwrap_or_default();
            let ours = controlled_by(&group.metadata, self.plan.meta);
            let leaving = group.metadata.deletion_timestamp.is_some();
            if ours && !leaving && !self.gangs.contains(&name) && !present.contains(&name) {
                self.outcome.actions.push(Action::DeletePodGroup {
                    uid: group.metadata.uid.clone().unwrap_or_default(),
                    name,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
