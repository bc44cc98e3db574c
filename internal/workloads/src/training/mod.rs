//! The training kinds of `kubeflow.org`: the training operator's contract, decided from the observed
//! state. Owns the order of the decision; the sibling modules own its parts.

mod cleanup;
mod conditions;
mod environment;
mod ledger;
mod mpi;
mod phase;
mod plan;
mod podgroup;
mod pods;
mod recovery;
mod rendezvous;
mod restart;
mod roster;
mod services;
mod status;
mod success;
mod view;

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use resources::failure::{FailureAction, FailureRecord};
use resources::hang::{HangRecord, OnHang};
use resources::kinds::{PodGroup, TrainingJobStatus};
use resources::names;
use resources::numbers::later;
use resources::training::ReplicaType;

use self::cleanup::CleanupReason;
use self::ledger::{ReplicaLedger, Spent};
use self::phase::{PhaseSignals, TrainingPhase};
use self::plan::ParsedTrainingJob;
use self::recovery::Recovery;
pub use self::rendezvous::{Network, annotated_port, ports_needed};
use self::restart::{FailureResponse, RestartScope};
use self::roster::{ReplicaState, Roster};
pub use self::view::{Details, ElasticBounds, TrainingJob, TrainingJobView};
use crate::action::{Action, EventNote, ReconcileOutcome, delete_pod};
use crate::failure;
use crate::ownership::controlled_by;
use crate::pod_facts::{self, PodPhase};
use crate::pod_room::PodRoom;

/// Seconds until a job that found no free rendezvous port tries again.
const NO_PORT_RETRY: i64 = 30;

/// The observed state to decide on.
#[derive(Clone, Copy)]
pub struct ObservedTrainingJob<'a> {
    /// The job, with its status and annotations as last written.
    pub job: TrainingJobView<'a>,
    /// Pods of the job; other pods are ignored.
    pub pods: &'a [&'a Pod],
    /// The pod group with the job's name, of any owner.
    pub pod_group: Option<&'a PodGroup>,
    /// Services of the job; other Services are ignored.
    pub services: &'a [&'a Service],
    /// ConfigMaps of the job; other ConfigMaps are ignored.
    pub config_maps: &'a [&'a ConfigMap],
    /// Rendezvous ports that other jobs hold.
    pub taken_ports: &'a BTreeSet<u16>,
    /// The network of the pods.
    pub network: &'a Network,
    /// The scheduler that places pods whose template names none.
    pub scheduler_name: &'a str,
    /// What bounds the number of its pods.
    pub room: PodRoom,
}

/// Decides the next actions for a job. Once the result was carried out, another call gives the same
/// status and no actions, until something changes.
#[must_use]
pub fn reconcile(
    observed: &ObservedTrainingJob<'_>,
    now: Timestamp,
) -> ReconcileOutcome<TrainingJobStatus> {
    let job = observed.job;
    let status = job.status.cloned().unwrap_or_default();
    if job.metadata.deletion_timestamp.is_some() || plan::managed_elsewhere(&job) {
        return ReconcileOutcome::keep(status);
    }
    let phase = TrainingPhase::of(&status);
    let plan = match ParsedTrainingJob::of(job) {
        Ok(plan) => plan,
        Err(_) if phase.is_terminal() => return ReconcileOutcome::keep(status),
        Err(refusal) => {
            let name = job.metadata.name.as_deref().unwrap_or_default();
            let (status, events) = status::refused(job.kind.kind, name, status, &refusal, now);
            return ReconcileOutcome {
                events,
                ..ReconcileOutcome::keep(status)
            };
        }
    };
    let roster = Roster::of(&plan, observed.pods);
    if phase.is_terminal() {
        return finished(&plan, observed, &roster, status, now);
    }
    proceed(&plan, observed, &roster, phase, status, now)
}

/// Whether the job has succeeded or failed; none of its pods starts again.
#[must_use]
pub fn is_finished(job: &impl TrainingJob) -> bool {
    job.view()
        .status
        .is_some_and(|status| TrainingPhase::of(status).is_terminal())
}

/// A job that has ended: deletes pods by its policy, and the job itself after its TTL.
fn finished(
    plan: &ParsedTrainingJob<'_>,
    observed: &ObservedTrainingJob<'_>,
    roster: &Roster<'_>,
    status: TrainingJobStatus,
    now: Timestamp,
) -> ReconcileOutcome<TrainingJobStatus> {
    let expiry = status
        .completion_time
        .as_ref()
        .and_then(|time| plan.expiry(time.0));
    let mut outcome = ReconcileOutcome::keep(status);
    outcome.actions = cleanup::actions(
        plan,
        roster,
        observed.services,
        observed.pod_group,
        CleanupReason::Ended,
    );
    match expiry {
        Some(at) if at <= now => outcome.actions.push(Action::DeleteJob {
            name: plan.name().to_owned(),
            uid: plan.meta.uid.clone().unwrap_or_default(),
        }),
        Some(at) => outcome.requeue(at),
        None => {}
    }
    outcome
}

/// A job that has not ended: judges its pods, advances its phase, and acts on the phase.
fn proceed(
    plan: &ParsedTrainingJob<'_>,
    observed: &ObservedTrainingJob<'_>,
    roster: &Roster<'_>,
    phase: TrainingPhase,
    mut status: TrainingJobStatus,
    now: Timestamp,
) -> ReconcileOutcome<TrainingJobStatus> {
    let mut ledger = ReplicaLedger::read(plan);
    let known = ledger.clone();
    ledger.observe(roster);
    let known_failure = failure_record(plan);
    let hang = answered_hang(plan);
    let seen = members(plan, roster, &ledger, hang.as_ref());
    let mut record = failure::observe(known_failure.clone(), seen);
    let policy = &plan.on_failure;
    let known_recovery = Recovery::read(plan);
    let mut recovery = known_recovery.clone();
    let mut action = None;
    let answer = match (policy, &known_recovery) {
        (Some(policy), Some(before)) => {
            let failed = members(plan, roster, &ledger, hang.as_ref());
            let answer = recovery::answer(plan, policy, before, roster, failed, now);
            recovery = Some(answer.after);
            action = answer.action;
            answer.response
        }
        _ => restart::answer(plan, roster, &ledger, record.as_ref(), now),
    };
    let started = status
        .start_time
        .as_ref()
        .map(|time| time.0)
        .filter(|_| phase != TrainingPhase::Suspended);
    // The budget of a job with a policy is that of its recovery.
    let spent = policy.is_none().then(|| ledger.spent(plan));
    let limit = limit_reached(plan, spent, record.as_ref(), started, now);
    let signals = PhaseSignals {
        suspend: plan.suspended(),
        succeeded: success::has_succeeded(plan, roster),
        failed: answer.failure.is_some() || limit.is_some(),
        restarting: answer.restarting.is_some()
            || recovery
                .as_ref()
                .is_some_and(|recovery| recovery.is_clearing(roster)),
        running: success::is_running(plan, roster),
    };
    let next = phase.next(signals);
    let why = match next {
        TrainingPhase::Failed => limit.clone().or_else(|| answer.failure.clone()),
        _ => answer.restarting.clone(),
    };

    if next == TrainingPhase::Failed && (answer.failure.is_some() || limit.is_some()) {
        action = Some(FailureAction::Fail);
    }
    if let Some(record) = &mut record {
        let new = known_failure
            .as_ref()
            .is_none_or(|known| known.uid != record.uid);
        let follows = match (action, policy.is_some()) {
            (Some(action), _) => Some(action),
            (None, false) if new && !record.class.is_retried_by_node() => {
                Some(match answer.reach {
                    RestartScope::Gang => FailureAction::RestartGang,
                    RestartScope::Replica => FailureAction::RestartRank,
                })
            }
            _ => None,
        };
        record.action = follows.or(record.action);
    }
    let mut events = status::created(plan, &mut status, now);
    events.extend(status::moved(plan, &mut status, phase, next, why, now));
    status.replica_statuses = status::count(plan, roster);
    let started = status.start_time.as_ref().map(|time| time.0);
    let mut outcome = ReconcileOutcome {
        events,
        ..ReconcileOutcome::keep(status)
    };
    if ledger != known {
        outcome
            .annotations
            .insert(names::RESTARTS.to_owned(), Some(ledger.write()));
    }
    if record != known_failure {
        let written = record.as_ref().map(FailureRecord::write);
        outcome
            .annotations
            .insert(names::FAILURE.to_owned(), written);
    }
    if recovery != known_recovery {
        let written = recovery.as_ref().map(Recovery::write);
        outcome
            .annotations
            .insert(names::RECOVERY.to_owned(), written);
    }
    let clear = |why| cleanup::actions(plan, roster, observed.services, observed.pod_group, why);
    match next {
        TrainingPhase::Suspended => {
            outcome.actions = clear(CleanupReason::Held);
            status::settle(&mut outcome.status, false);
        }
        TrainingPhase::Succeeded => {
            outcome.actions = clear(CleanupReason::Ended);
            status::settle(&mut outcome.status, true);
        }
        TrainingPhase::Failed => {
            // A policy that fails the job ends the ranks that still run: they wait for the failed one.
            outcome.actions = clear(if limit.is_some() || policy.is_some() {
                CleanupReason::LimitReached
            } else {
                CleanupReason::Ended
            });
        }
        TrainingPhase::Created | TrainingPhase::Running | TrainingPhase::Restarting => {
            let response = Response {
                answer: &answer,
                recovery: recovery.as_ref(),
                has_policy: policy.is_some(),
            };
            keep_up(
                plan,
                observed,
                roster,
                &ledger,
                &response,
                &mut outcome,
                now,
            );
            if let Some(deadline) = started.and_then(|started| plan.deadline(started)) {
                outcome.requeue(deadline);
            }
        }
    }
    if next.is_terminal() {
        let ended = outcome.status.completion_time.as_ref().map(|time| time.0);
        if let Some(at) = ended.and_then(|ended| plan.expiry(ended)) {
            outcome.requeue(at);
        }
    }
    outcome
}

/// The record of the job's last failure, as last written.
fn failure_record(plan: &ParsedTrainingJob<'_>) -> Option<FailureRecord> {
    let annotations = plan.meta.annotations.as_ref();
    FailureRecord::read(|name| annotations?.get(name).map(String::as_str))
}

/// The job's hang, if its policy answers it: the server records the hang of any job, and that of one that only reports it
/// changes nothing here.
fn answered_hang(plan: &ParsedTrainingJob<'_>) -> Option<HangRecord> {
    let annotations = plan.meta.annotations.as_ref()?;
    let record = HangRecord::read(|name| annotations.get(name).map(String::as_str));
    record.filter(|record| plan.on_failure.is_some() && record.action == OnHang::Restart)
}

/// The replicas' pods whose failures matter to the job, each with its rank.
fn members<'a>(
    plan: &'a ParsedTrainingJob<'_>,
    roster: &'a Roster<'a>,
    ledger: &'a ReplicaLedger,
    hang: Option<&'a HangRecord>,
) -> impl Iterator<Item = failure::Member<'a>> {
    let matters = |role: ReplicaType| role != ReplicaType::Worker || !plan.workers_may_fail();
    roster.slots.iter().filter_map(move |slot| {
        let (pod, replicas) = (slot.pod?, plan.replicas_of(slot.role)?);
        let runs = PodPhase::of(pod) == PodPhase::Running && !pod_facts::is_leaving(pod);
        let hang = hang.filter(|hang| runs && hang.uid == pod_facts::uid(pod));
        if hang.is_none() && !matters(slot.role) {
            return None;
        }
        Some(failure::Member {
            pod,
            rank: Some(plan.rank(slot.role, slot.index)),
            main: replicas.main_container_name(),
            attempts: ledger.attempts_of(slot.role, slot.index).max(1),
            attempt: recovery::attempt_of(pod),
            hang,
        })
    })
}

/// What is done about failures.
struct Response<'a> {
    answer: &'a FailureResponse<'a>,
    /// The state of the job's recovery after it.
    recovery: Option<&'a Recovery>,
    has_policy: bool,
}

/// Keeps a live job's PodGroup, Services and pods in the desired state.
fn keep_up(
    plan: &ParsedTrainingJob<'_>,
    observed: &ObservedTrainingJob<'_>,
    roster: &Roster<'_>,
    ledger: &ReplicaLedger,
    response: &Response<'_>,
    outcome: &mut ReconcileOutcome<TrainingJobStatus>,
    now: Timestamp,
) {
    let answer = response.answer;
    if let Some(group) = podgroup::change(plan, observed.pod_group) {
        outcome.actions.push(Action::ApplyPodGroup(Box::new(group)));
    }
    outcome.actions.extend(surplus(plan, observed, roster));
    outcome
        .actions
        .extend(answer.replace.iter().map(|pod| delete_pod(pod)));
    if let Some(at) = answer.next_at {
        outcome.requeue(at);
    }

    // Pods that exist stay: only a gang without any is held back.
    let exist = roster
        .slots
        .iter()
        .filter(|slot| slot.pod.is_some())
        .count();
    let held_back = match exist {
        0 => observed
            .room
            .holds_back(podgroup::least_members(plan).min(plan.total())),
        _ => None,
    };
    let events = status::hold_back(plan, &mut outcome.status, held_back.as_ref(), now);
    outcome.events.extend(events);
    if let Some(held) = held_back {
        outcome.requeue(later(now, held.again));
        return;
    }
    let most = usize::try_from(observed.room.members_max()).unwrap_or(usize::MAX);
    let mut left = most.saturating_sub(exist);

    let begins_anew = response.has_policy || !answer.replace.is_empty();
    let renew = answer.reach == RestartScope::Gang && begins_anew;
    let Ok(ports) = rendezvous::ports(plan, observed.network, observed.taken_ports, renew) else {
        outcome.requeue(later(now, NO_PORT_RETRY));
        outcome.events.push(EventNote::warning(
            "NoRendezvousPort",
            "Other jobs hold every rendezvous port; the job waits for one. End or suspend a job, or give the server a \
             wider range.",
        ));
        return;
    };
    if let Some(port) = ports.handed_out
        && rendezvous::annotated_port(plan.meta.annotations.as_ref()) != Some(port)
    {
        let port = Some(port.to_string());
        outcome
            .annotations
            .insert(names::RENDEZVOUS_PORT.to_owned(), port);
    }
    // No rank of the new attempt starts before the last one of the old has ended.
    let recovery = response.recovery;
    if recovery.is_some_and(|recovery| recovery.is_clearing(roster)) {
        return;
    }
    outcome.actions.extend(mpi::objects(plan, observed, roster));
    let mut present: BTreeSet<String> = observed
        .services
        .iter()
        .filter(|service| controlled_by(&service.metadata, plan.meta))
        .filter_map(|service| service.metadata.name.clone())
        .collect();
    for replicas in &plan.replicas {
        for slot in roster.of_role(replicas.role) {
            let vacant = slot.state(replicas) == ReplicaState::Vacant;
            let name = plan.pod_name(slot.role, slot.index);
            let waits = recovery.is_some_and(|recovery| recovery.waits(&name, now).is_some());
            if vacant && (left == 0 || waits || mpi::holds_back(plan, roster, slot.role)) {
                continue;
            }
            left = left.saturating_sub(usize::from(vacant));
            if present.insert(services::name(plan, slot.role, slot.index)) {
                let service = services::service(plan, replicas, slot.index, &ports);
                outcome
                    .actions
                    .push(Action::CreateService(Box::new(service)));
            }
            if vacant {
                let lost = ledger.lost(slot.role, slot.index);
                let surroundings = pods::Surroundings {
                    ports: &ports,
                    network: observed.network,
                    scheduler_name: observed.scheduler_name,
                    recovery,
                    has_policy: response.has_policy,
                };
                let pod = pods::pod(plan, replicas, slot.index, lost, &surroundings);
                outcome.actions.push(Action::CreatePod(Box::new(pod)));
            }
        }
    }
}

/// Deletes pods and Services beyond the desired replicas, the highest index first.
fn surplus(
    plan: &ParsedTrainingJob<'_>,
    observed: &ObservedTrainingJob<'_>,
    roster: &Roster<'_>,
) -> Vec<Action> {
    let wanted: BTreeSet<String> = roster
        .slots
        .iter()
        .map(|slot| services::name(plan, slot.role, slot.index))
        .collect();
    let pods = roster
        .surplus
        .iter()
        .filter(|pod| !pod_facts::is_leaving(pod));
    let services = observed.services.iter().copied().filter(|service| {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        controlled_by(&service.metadata, plan.meta)
            && service.metadata.deletion_timestamp.is_none()
            && !wanted.contains(name)
    });
    pods.map(|pod| delete_pod(pod))
        .chain(services.map(cleanup::delete_service))
        .collect()
}

/// The limit that the job exceeded, if any, although its pods could go on.
fn limit_reached(
    plan: &ParsedTrainingJob<'_>,
    spent: Option<Spent>,
    record: Option<&FailureRecord>,
    started: Option<Timestamp>,
    now: Timestamp,
) -> Option<String> {
    let name = plan.name();
    let limit = plan.backoff_limit();
    if limit
        .zip(spent)
        .is_some_and(|(limit, spent)| spent.exceeds(limit))
    {
        let limit =
            format!("Job {name} has failed because it has reached the specified backoff limit");
        return Some(match record {
            Some(record) => format!("{limit}: {}", record.sentence()),
            None => limit,
        });
    }
    let deadline = started.and_then(|started| plan.deadline(started))?;
    (deadline <= now).then(|| {
        format!("Job {name} has failed because it was active longer than specified deadline")
    })
}

#[cfg(test)]
mod tests;
