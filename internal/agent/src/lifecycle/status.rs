//! A pod's status in Kubernetes' form, from the state of its life. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::machine::{Gates, PodLifecycle};
use super::plan::{ContainerPlan, PodPlan};
use super::record::{ContainerRecord, RunEnd, RunState};

/// The most that Kubernetes keeps of a container's termination message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// The addresses that a status shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The node's.
    pub host: String,
    /// The pod's; the node's too where the pod shares its network; empty while the pod has none.
    pub pod: String,
}

/// The status of a pod now.
pub fn status(
    machine: &PodLifecycle,
    plan: &PodPlan,
    gates: &Gates,
    addresses: &Addresses,
    now: Timestamp,
) -> PodStatus {
    let init: Vec<ContainerStatus> = plan
        .init
        .iter()
        .map(|c| container_status(machine, plan, gates, c, true))
        .collect();
    let main: Vec<ContainerStatus> = plan
        .main
        .iter()
        .map(|c| container_status(machine, plan, gates, c, false))
        .collect();
    let phase = phase(machine, plan);
    let (mut reason, mut message) = (None, None);
    if let Some(verdict) = &machine.verdict {
        reason = Some(verdict.reason.clone()).filter(|text| !text.is_empty());
        message = Some(verdict.message.clone()).filter(|text| !text.is_empty());
    }
    let has_address = !addresses.pod.is_empty();
    PodStatus {
        phase: Some(phase.to_owned()),
        reason,
        message,
        conditions: Some(all_conditions(machine, plan, phase, now)),
        host_ip: Some(addresses.host.clone()),
        host_ips: Some(vec![HostIP {
            ip: addresses.host.clone(),
        }]),
        pod_ip: has_address.then(|| addresses.pod.clone()),
        pod_ips: has_address.then(|| {
            vec![PodIP {
                ip: addresses.pod.clone(),
            }]
        }),
        start_time: machine.start_time.map(whole_seconds),
        init_container_statuses: (!init.is_empty()).then_some(init),
        container_statuses: Some(main),
        ..PodStatus::default()
    }
}

/// The pod's phase in one word.
pub fn phase(machine: &PodLifecycle, plan: &PodPlan) -> &'static str {
    match &machine.verdict {
        Some(verdict) if verdict.succeeded => return "Succeeded",
        Some(_) => return "Failed",
        None => {}
    }
    let begun = |c: &ContainerPlan| {
        machine.containers.get(&c.name).is_some_and(|record| {
            record.attempt > 0
                || matches!(record.run, RunState::Running { .. } | RunState::Ended(_))
        })
    };
    if plan.main.iter().all(begun) && !plan.main.is_empty() {
        "Running"
    } else {
        "Pending"
    }
}

fn init_done(machine: &PodLifecycle, container: &ContainerPlan) -> bool {
    machine
        .containers
        .get(&container.name)
        .is_some_and(|record| {
            if container.sidecar {
                record.started
            } else {
                record.end().is_some_and(|end| end.code == 0)
            }
        })
}

/// A pod's conditions, with DisruptionTarget as the kubelet sets it if the node evicted the pod to
/// protect itself.
fn all_conditions(
    machine: &PodLifecycle,
    plan: &PodPlan,
    phase: &str,
    now: Timestamp,
) -> Vec<PodCondition> {
    let mut all = conditions(machine, plan, phase, now);
    all.extend(machine.disrupted().map(|message| PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(whole_seconds(now)),
        reason: Some("TerminationByKubelet".to_owned()),
        message: Some(message.to_owned()),
        ..PodCondition::default()
    }));
    all
}

fn conditions(
    machine: &PodLifecycle,
    plan: &PodPlan,
    phase: &str,
    now: Timestamp,
) -> Vec<PodCondition> {
    let condition = |kind: &str, problem: Option<(&str, String)>| PodCondition {
        type_: kind.to_owned(),
        status: if problem.is_none() { "True" } else { "False" }.to_owned(),
        last_transition_time: Some(whole_seconds(now)),
        reason: problem.as_ref().map(|(reason, _)| (*reason).to_owned()),
        message: problem
            .map(|(_, message)| message)
            .filter(|message| !message.is_empty()),
        ..PodCondition::default()
    };
    let main_begun = plan.main.iter().any(|c| {
        machine
            .containers
            .get(&c.name)
            .is_some_and(|record| record.run != RunState::Never)
    });
    let incomplete: Vec<&str> = plan
        .init
        .iter()
        .filter(|c| !main_begun && !init_done(machine, c))
        .map(|c| c.name.as_str())
        .collect();
    let initialized = if phase == "Succeeded" || incomplete.is_empty() {
        None
    } else {
        Some((
            "ContainersNotInitialized",
            format!(
                "containers with incomplete status: [{}]",
                incomplete.join(" ")
            ),
        ))
    };
    let unready: Vec<&str> = plan
        .main
        .iter()
        .chain(plan.init.iter().filter(|c| c.sidecar))
        .filter(|c| !machine.containers.get(&c.name).is_some_and(|r| r.ready))
        .map(|c| c.name.as_str())
        .collect();
    let ready = match phase {
        "Succeeded" => Some(("PodCompleted", String::new())),
        "Failed" => Some(("PodFailed", String::new())),
        _ if unready.is_empty() => None,
        _ => Some((
            "ContainersNotReady",
            format!("containers with unready status: [{}]", unready.join(" ")),
        )),
    };
    let mut initialized = condition("Initialized", initialized);
    if phase == "Succeeded" {
        initialized.reason = Some("PodCompleted".to_owned());
    }
    vec![
        condition("PodScheduled", None),
        initialized,
        condition("ContainersReady", ready.clone()),
        condition("Ready", ready),
    ]
}

fn container_status(
    machine: &PodLifecycle,
    plan: &PodPlan,
    gates: &Gates,
    container: &ContainerPlan,
    init: bool,
) -> ContainerStatus {
    let empty = ContainerRecord::default();
    let record = machine.containers.get(&container.name).unwrap_or(&empty);
    let id = container_id(&plan.uid, &container.name, record.attempt);
    let last_id = record
        .attempt
        .checked_sub(1)
        .map(|attempt| container_id(&plan.uid, &container.name, attempt));
    let mut last_state = match (&record.last, last_id) {
        (Some(end), Some(last_id)) => Some(terminated(end, &last_id)),
        _ => None,
    };
    let state = match &record.run {
        RunState::Running { since } => ContainerState {
            running: Some(ContainerStateRunning {
                started_at: Some(whole_seconds(*since)),
            }),
            ..ContainerState::default()
        },
        RunState::Ended(end) if machine.verdict.is_none() && machine.stopping.is_none() => {
            match waiting_again(record, plan, gates, container) {
                Some(waiting) => {
                    last_state = Some(terminated(end, &id));
                    waiting
                }
                None => terminated(end, &id),
            }
        }
        RunState::Ended(end) => terminated(end, &id),
        RunState::Never if machine.verdict.is_some() => {
            // The pod ended before this container started: its end is as unknown as its start.
            waiting("ContainerCreating", "")
        }
        RunState::Never | RunState::Starting if record.unmade.is_some() => {
            let hold = gates.hold(&container.name);
            let hold = hold.or(record.unmade.as_ref().map(|unmade| &unmade.why));
            hold.map_or_else(
                || waiting(creating(plan), ""),
                |hold| waiting(&hold.reason, &hold.message),
            )
        }
        RunState::Never => match gates.hold(&container.name) {
            Some(hold) => waiting(&hold.reason, &hold.message),
            None if !init && !plan.init.is_empty() => waiting("PodInitializing", ""),
            None => waiting(creating(plan), ""),
        },
        RunState::Starting => waiting(
            if init || plan.init.is_empty() {
                "ContainerCreating"
            } else {
                "PodInitializing"
            },
            "",
        ),
    };
    let done = record.end().is_some_and(|end| end.code == 0);
    let ran = record.run != RunState::Never;
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone(),
        image_id: String::new(),
        container_id: ran.then_some(id),
        ready: if init && !container.sidecar {
            done
        } else {
            record.ready
        },
        started: Some(record.started),
        restart_count: i32::try_from(record.attempt).unwrap_or(i32::MAX),
        state: Some(state),
        last_state,
        ..ContainerStatus::default()
    }
}

fn creating(plan: &PodPlan) -> &'static str {
    if plan.init.is_empty() {
        "ContainerCreating"
    } else {
        "PodInitializing"
    }
}

/// The waiting state of a container between two runs, if it waits.
fn waiting_again(
    record: &ContainerRecord,
    plan: &PodPlan,
    gates: &Gates,
    container: &ContainerPlan,
) -> Option<ContainerState> {
    if record.wait_until.is_some() {
        let seconds = record.backoff.map_or(0, |backoff| backoff.seconds);
        return Some(waiting(
            "CrashLoopBackOff",
            &format!(
                "back-off {} restarting failed container={} pod={}_{}({})",
                duration(seconds),
                container.name,
                plan.name,
                plan.namespace,
                plan.uid
            ),
        ));
    }
    let end = record.end()?;
    let again = container.sidecar || plan.restart.restarts(end.code);
    let hold = gates.hold(&container.name).filter(|_| again)?;
    Some(waiting(&hold.reason, &hold.message))
}

/// Seconds as Go prints a duration: 10s, 1m20s, 5m0s.
fn duration(seconds: i64) -> String {
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()).filter(|text| !text.is_empty()),
        }),
        ..ContainerState::default()
    }
}

fn terminated(end: &RunEnd, id: &str) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: end.code,
            signal: end.signal,
            reason: Some(end.reason.clone()),
            message: Some(shortened(&end.message)).filter(|text| !text.is_empty()),
            started_at: end.started_at.map(whole_seconds),
            finished_at: Some(whole_seconds(end.finished_at)),
            container_id: Some(id.to_owned()),
        }),
        ..ContainerState::default()
    }
}

/// The id of a run as a status shows it.
pub fn container_id(uid: &str, container: &str, attempt: u32) -> String {
    format!("muster://{uid}_{container}_{attempt}")
}

fn shortened(text: &str) -> String {
    let mut end = text.len().min(MAX_MESSAGE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Kubernetes' times have whole seconds; anything finer would make equal statuses differ.
fn whole_seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}
