//! The ports on which replicas meet: the user's if a container names one, the kind's if every pod has its own network,
//! one from the cluster's range if pods share their nodes' network. Of a kind whose replicas all listen, every replica
//! has its own: the job's ports follow one another, in the order of ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use resources::names;
use resources::training::ReplicaType;

use super::plan::ParsedTrainingJob;
use super::view::{Details, TrainingJob};

/// The network that a job's pods use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// Every pod has its own address, so that equal ports do not conflict.
    PerPod,
    /// Pods share their node's address: each job needs ports that no other job uses.
    HostShared {
        /// The range of ports.
        ports: RangeInclusive<u16>,
    },
}

/// The ports that the replicas are given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    /// The ports that the user chose, by replica type.
    chosen: BTreeMap<ReplicaType, u16>,
    /// The port of the other replicas; of a kind whose replicas all listen, the first of them.
    fallback: u16,
    /// The value of the job's port annotation, if the port is from the cluster's range.
    pub(crate) handed_out: Option<u16>,
}

impl Ports {
    /// The port of a replica.
    pub(crate) fn of(&self, plan: &ParsedTrainingJob<'_>, role: ReplicaType, index: u32) -> u16 {
        if let Some(port) = self.chosen.get(&role) {
            return *port;
        }
        if plan.kind.port_for_each_replica && self.handed_out.is_some() {
            let rank = u16::try_from(plan.rank(role, index)).unwrap_or(u16::MAX);
            return self.fallback.saturating_add(rank);
        }
        self.fallback
    }
}

/// Too few ports of the range are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// Decides the ports. `renew` requests other ports than the job's current ones.
pub(crate) fn ports(
    plan: &ParsedTrainingJob<'_>,
    network: &Network,
    taken: &BTreeSet<u16>,
    renew: bool,
) -> Result<Ports, Exhausted> {
    let mut chosen = BTreeMap::new();
    for replicas in &plan.replicas {
        if let Some(port) = replicas.named_port() {
            chosen.insert(replicas.role, port);
        }
    }
    // torchrun's policy names the port of the workers' rendezvous.
    if let Details::Torch {
        elastic: Some(policy),
        ..
    } = plan.job.details
        && let Some(port) = policy.rdzv_port.and_then(|port| u16::try_from(port).ok())
    {
        chosen.insert(ReplicaType::Worker, port);
    }
    let handed_out = match network {
        Network::HostShared { ports } if needs_port(plan, &chosen) => {
            Some(hand_out(plan, ports, taken, renew)?)
        }
        _ => None,
    };
    Ok(Ports {
        fallback: handed_out.unwrap_or(plan.kind.port),
        chosen,
        handed_out,
    })
}

/// Whether a replica listens on a port that the user did not choose. A PyTorchJob without master listens only if it is
/// elastic: its workers find each other as the user arranges.
fn needs_port(plan: &ParsedTrainingJob<'_>, chosen: &BTreeMap<ReplicaType, u16>) -> bool {
    let missing = |role: ReplicaType| !chosen.contains_key(&role);
    // MPI's processes choose their ports themselves.
    if matches!(plan.job.details, Details::Mpi(_)) {
        return false;
    }
    if plan.kind.port_for_each_replica {
        return plan.replicas.iter().any(|replicas| missing(replicas.role));
    }
    if matches!(plan.job.details, Details::Torch { .. }) {
        return (plan.has_master() && missing(ReplicaType::Master))
            || (plan.elastic.is_some() && missing(ReplicaType::Worker));
    }
    plan.first().is_some_and(missing)
}

/// The number of ports that a job holds where pods share their node's address, from the port in its annotation on.
#[must_use]
pub fn ports_needed(job: &impl TrainingJob) -> u16 {
    let plan = ParsedTrainingJob::of(job.view()).ok();
    plan.map_or(1, |plan| count(&plan))
}

fn count(plan: &ParsedTrainingJob<'_>) -> u16 {
    if plan.kind.port_for_each_replica {
        u16::try_from(plan.total()).unwrap_or(u16::MAX).max(1)
    } else {
        1
    }
}

/// The port in the job's annotation, if it has one.
pub fn annotated_port(annotations: Option<&BTreeMap<String, String>>) -> Option<u16> {
    annotations?.get(names::RENDEZVOUS_PORT)?.parse().ok()
}

/// The job's own ports while they are valid, else the next free ones after them. Returns the first.
fn hand_out(
    plan: &ParsedTrainingJob<'_>,
    range: &RangeInclusive<u16>,
    taken: &BTreeSet<u16>,
    renew: bool,
) -> Result<u16, Exhausted> {
    let more = count(plan) - 1;
    let free = |first: &u16| {
        let last = first.checked_add(more).filter(|last| range.contains(last));
        range.contains(first)
            && last.is_some_and(|last| taken.range(*first..=last).next().is_none())
    };
    let own = annotated_port(plan.meta.annotations.as_ref());
    let good = own.filter(free);
    if let Some(port) = good.filter(|_| !renew) {
        return Ok(port);
    }
    let after = own
        .filter(|port| range.contains(port))
        .and_then(|port| port.checked_add(1))
        .unwrap_or(*range.start());
    let wrapped = (after..=*range.end()).chain(*range.start()..after);
    let next = wrapped
        .into_iter()
        .find(|port| free(port) && Some(*port) != own);
    next.or(good).ok_or(Exhausted)
}
