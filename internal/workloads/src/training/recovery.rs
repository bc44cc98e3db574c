//! The response to failed ranks of a job with the annotation `muster.io/on-failure`: by the class of the first failure,
//! one rank or the whole gang starts anew, or the job fails. Owns the attempts, the budget and the excluded nodes, which
//! the job's annotation `muster.io/recovery` keeps, so that they survive a restart of the controller.
//!
//! Method: a pod's label has its attempt. A restart of the gang raises the job's attempt and hands out another
//! rendezvous port in one write; from then on every pod of an earlier attempt is deleted, and no pod is created before
//! the last of them is gone. So no rank of an old attempt can meet one of the new. What the platform did (a lost node, a
//! preemption, a drain) is answered by the same rules and charged to no budget. Cost: one look at each pod.
//!
//! Example: with `default=restart-gang` and `backoffLimit: 2`, rank 1 of 4 is killed. Attempt 1 begins once all four
//! pods are gone; a second failure waits 10 s, and a third one fails the job.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec,
};
use resources::failure::{FailureAction, FailureClass, OnFailure};
use resources::names;
use resources::node_match::NAME_FIELD;
use resources::numbers::later;
use serde::{Deserialize, Serialize};

use super::plan::ParsedTrainingJob;
use super::restart::{FailureResponse, HEALTHY_AFTER, RestartScope, backoff};
use super::roster::Roster;
use crate::failure::{self, Member};
use crate::pod_facts;

/// The restarts of a job that names no `backoffLimit`.
const RESTARTS_DEFAULT: u32 = 6;
/// The most nodes that a job keeps off; the oldest of more are allowed again.
const EXCLUDED_NODES_MAX: usize = 32;
/// Seconds to wait for the cause, if the first failure seen is a lost connection: its peer's end may be reported later.
const CAUSE_WAIT: i64 = 2;

/// The state of a job's recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Recovery {
    /// The present attempt of the gang; 0 is the first.
    pub(crate) attempt: u32,
    /// Restarts that count against the budget.
    #[serde(skip_serializing_if = "is_zero")]
    charged: u32,
    /// Restarts after what the platform did: they count against no budget.
    #[serde(skip_serializing_if = "is_zero")]
    excused: u32,
    /// The nodes that new pods of the job do not use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) excluded: Vec<String>,
    /// No pod of the present attempt is created before.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<Timestamp>,
    /// The same for single pods, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pods: BTreeMap<String, Timestamp>,
    /// The uids of existing pods whose failure was answered.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    answered: BTreeSet<String>,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Recovery {
    /// Reads the job's annotation; none for a job that has neither it nor a policy.
    pub(crate) fn read(plan: &ParsedTrainingJob<'_>) -> Option<Recovery> {
        let annotations = plan.meta.annotations.as_ref();
        let text = annotations.and_then(|all| all.get(names::RECOVERY));
        let known = text.and_then(|text| serde_json::from_str(text).ok());
        known.or_else(|| plan.on_failure.as_ref().map(|_| Recovery::default()))
    }

    /// The annotation's text.
    pub(crate) fn write(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether a pod is part of an earlier attempt.
    fn is_old(&self, pod: &Pod) -> bool {
        attempt_of(pod) < self.attempt
    }

    /// Whether pods of an earlier attempt still exist.
    pub(crate) fn is_clearing(&self, roster: &Roster<'_>) -> bool {
        roster.pods().any(|pod| self.is_old(pod))
    }

    /// When the pod of this name may be created; none if it may now.
    pub(crate) fn waits(&self, pod: &str, now: Timestamp) -> Option<Timestamp> {
        let own = self.pods.get(pod).copied();
        let until = own.max(self.not_before);
        until.filter(|until| *until > now)
    }

    /// Forgets what is over.
    fn prune(&mut self, roster: &Roster<'_>, now: Timestamp) {
        let exist: BTreeSet<&str> = roster.pods().map(pod_facts::uid).collect();
        self.answered.retain(|uid| exist.contains(uid.as_str()));
        self.pods.retain(|_, until| *until > now);
        self.not_before = self.not_before.filter(|until| *until > now);
    }

    fn exclude(&mut self, node: &str) {
        if node.is_empty() || self.excluded.iter().any(|known| known == node) {
            return;
        }
        self.excluded.push(node.to_owned());
        let surplus = self.excluded.len().saturating_sub(EXCLUDED_NODES_MAX);
        self.excluded.drain(..surplus);
    }
}

/// The attempt that a pod is part of; 0 for a pod from before the job had a policy.
pub(crate) fn attempt_of(pod: &Pod) -> u32 {
    let labels = pod.metadata.labels.as_ref();
    let attempt = labels.and_then(|labels| labels.get(names::ATTEMPT));
    attempt.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The decision about one failure.
struct Decision<'a> {
    member: Member<'a>,
    class: FailureClass,
    action: FailureAction,
    exclude_node: bool,
    excused: bool,
}

/// The response and the state after it.
pub(crate) struct RecoveryResponse<'a> {
    pub(crate) response: FailureResponse<'a>,
    pub(crate) after: Recovery,
    /// What follows the first failure, if it is answered now.
    pub(crate) action: Option<FailureAction>,
}

/// Decides the response to the failed ranks among `members`.
pub(crate) fn answer<'a>(
    plan: &ParsedTrainingJob<'_>,
    policy: &OnFailure,
    before: &Recovery,
    roster: &Roster<'a>,
    members: impl Iterator<Item = Member<'a>>,
    now: Timestamp,
) -> RecoveryResponse<'a> {
    let mut answer = RecoveryResponse {
        response: FailureResponse::nothing(),
        after: before.clone(),
        action: None,
    };
    answer.after.prune(roster, now);
    let decisions = decisions(policy, before, members);
    if let Some(first) = decisions.first() {
        let at = first.member.failed_at().unwrap_or(now);
        let cause_by = later(at, CAUSE_WAIT);
        if first.class == FailureClass::NetworkError
            && cause_by > now
            && decisions.len() < roster.slots.len()
        {
            answer.response.next_at = Some(cause_by);
        } else {
            decide(plan, &decisions, &mut answer, now);
        }
    }
    let after = &answer.after;
    // Surplus pods are deleted anyway.
    let pods = roster.slots.iter().filter_map(|slot| slot.pod);
    let over = pods.filter(|pod| after.is_old(pod) || after.answered.contains(pod_facts::uid(pod)));
    let mut deleted: Vec<&'a Pod> = over.collect();
    deleted.retain(|pod| !pod_facts::is_leaving(pod));
    if answer.response.failure.is_none() {
        answer.response.replace.extend(deleted);
        let waits = after
            .not_before
            .into_iter()
            .chain(after.pods.values().copied());
        answer.response.next_at = answer.response.next_at.into_iter().chain(waits).min();
    }
    answer
}

/// The failures that were not answered yet, the first one first. The first of them that does not only restart its rank
/// decides for all.
fn decisions<'a>(
    policy: &OnFailure,
    before: &Recovery,
    members: impl Iterator<Item = Member<'a>>,
) -> Vec<Decision<'a>> {
    let open = |member: &Member<'a>| {
        member.shows_failure()
            && !before.answered.contains(pod_facts::uid(member.pod))
            && !before.is_old(member.pod)
    };
    let mut open: Vec<Member<'a>> = members.filter(open).collect();
    open.sort_by_key(failure::order);
    let decision = |member: Member<'a>| {
        let story = member.story();
        let rule = policy.of(story.class, story.unloadable)?;
        Some(Decision {
            member,
            class: story.class,
            action: rule.action,
            exclude_node: rule.exclude_node,
            excused: failure::is_of_platform(member.pod),
        })
    };
    open.into_iter().filter_map(decision).collect()
}

fn decide(
    plan: &ParsedTrainingJob<'_>,
    decisions: &[Decision<'_>],
    answer: &mut RecoveryResponse<'_>,
    now: Timestamp,
) {
    let (kind, name) = (plan.kind.kind, plan.name());
    let Some(leading) = decisions
        .iter()
        .find(|decision| decision.action != FailureAction::RestartRank)
        .or(decisions.first())
    else {
        return;
    };
    let sentence = |decision: &Decision<'_>| failure::record(&decision.member).sentence();
    answer.action = Some(leading.action);
    if leading.action == FailureAction::Fail {
        let class = leading.class.as_str();
        answer.response.failure = Some(format!(
            "{kind} {name} has failed because {} says {class}=fail: {}.",
            names::ON_FAILURE,
            sentence(leading)
        ));
        return;
    }
    let limit = plan.backoff_limit().unwrap_or(RESTARTS_DEFAULT);
    let after = &mut answer.after;
    let gang = leading.action == FailureAction::RestartGang;
    // A restart of the gang answers all failures at once, and costs one restart; the cause is the leading one.
    let answered: Vec<&Decision<'_>> = match gang {
        true => vec![leading],
        false => decisions.iter().collect(),
    };
    for decision in answered {
        if !decision.excused && after.charged >= limit {
            answer.action = Some(FailureAction::Fail);
            answer.response.failure = Some(format!(
                "Job {name} has failed because it has reached the specified backoff limit: {}.",
                sentence(decision)
            ));
            return;
        }
        let due = due_at(decision, after, now);
        after.charged = after.charged.saturating_add(u32::from(!decision.excused));
        after.excused = after.excused.saturating_add(u32::from(decision.excused));
        if decision.exclude_node {
            after.exclude(pod_facts::node(decision.member.pod));
        }
        let count = match decision.excused {
            true => "not counted".to_owned(),
            false => format!("{} of {limit}", after.charged),
        };
        let scope = match (gang, decision.member.rank) {
            (true, _) => "all ranks".to_owned(),
            (false, Some(rank)) => format!("rank {rank}"),
            (false, None) => "a rank".to_owned(),
        };
        let message = format!(
            "{kind} {name} is restarting {scope} (restart {count}): {}.",
            sentence(decision)
        );
        if gang {
            after.attempt = after.attempt.saturating_add(1);
            after.not_before = Some(due).filter(|due| *due > now);
            answer.response.reach = RestartScope::Gang;
        } else {
            after
                .answered
                .insert(pod_facts::uid(decision.member.pod).to_owned());
            if due > now {
                after
                    .pods
                    .insert(pod_facts::name(decision.member.pod).to_owned(), due);
            }
        }
        answer.response.restarting.get_or_insert(message);
    }
}

/// When the pods that replace this one are created: at once after what the platform did, after a pod that ran for long,
/// and the first time; later ones wait longer each time.
fn due_at(decision: &Decision<'_>, before: &Recovery, now: Timestamp) -> Timestamp {
    let failed = decision.member.failed_at().unwrap_or(now);
    let healthy = pod_facts::started_at(decision.member.pod)
        .is_some_and(|started| failed.duration_since(started) >= HEALTHY_AFTER);
    // A node that cannot start the pod could be asked again at once; for the rest, the scheduler waits for room.
    let earlier = match (decision.excused, decision.class) {
        (false, _) => before.charged,
        (true, FailureClass::NodeUnfit) => before.excused,
        (true, _) => 0,
    };
    if healthy || earlier == 0 {
        return now;
    }
    later(failed, backoff(earlier.saturating_add(1)))
}

/// Keeps a new pod off the nodes that the job excludes.
pub(crate) fn keep_off(spec: &mut PodSpec, nodes: &[String]) {
    if nodes.is_empty() {
        return;
    }
    // Kubernetes admits one value for a requirement on a field.
    let others = nodes.iter().map(|node| NodeSelectorRequirement {
        key: NAME_FIELD.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec![node.clone()]),
    });
    let others: Vec<NodeSelectorRequirement> = others.collect();
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    let required: &mut NodeSelector = affinity
        .required_during_scheduling_ignored_during_execution
        .get_or_insert_default();
    if required.node_selector_terms.is_empty() {
        required
            .node_selector_terms
            .push(NodeSelectorTerm::default());
    }
    // One of the terms has to hold.
    for term in &mut required.node_selector_terms {
        term.match_fields
            .get_or_insert_default()
            .extend(others.clone());
    }
}
