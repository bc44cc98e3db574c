//! The rendezvous port: the user's if a container names one, a fixed one if every pod has its own
//! network, one from the cluster's range if pods share their nodes' network.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use resources::names;

use super::plan::{ParsedPyTorchJob, ReplicaType};

/// The network that a job's pods use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// Every pod has its own address, so that equal ports do not conflict.
    PerPod,
    /// Pods share their node's address: each job needs a port that no other job uses.
    HostShared {
        /// The range of ports.
        ports: RangeInclusive<u16>,
    },
}

/// The ports that the replicas are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ports {
    /// The master's port.
    pub(crate) master: u16,
    /// The port of an elastic job's first worker.
    pub(crate) elastic: u16,
    /// The value of the job's port annotation, if the port is from the cluster's range.
    pub(crate) handed_out: Option<u16>,
}

/// No port of the range is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// Decides the ports. `renew` requests another port than the job's current one.
pub(crate) fn ports(
    plan: &ParsedPyTorchJob<'_>,
    network: &Network,
    taken: &BTreeSet<u16>,
    renew: bool,
) -> Result<Ports, Exhausted> {
    let named = |role: ReplicaType| {
        plan.replicas_of(role)
            .and_then(|replicas| replicas.named_port())
    };
    let master = named(ReplicaType::Master);
    let elastic = plan.elastic.as_ref().and_then(|elastic| {
        let given = elastic
            .policy
            .rdzv_port
            .and_then(|port| u16::try_from(port).ok());
        given.or_else(|| named(ReplicaType::Worker))
    });
    let needed =
        (plan.has_master() && master.is_none()) || (plan.elastic.is_some() && elastic.is_none());
    let handed_out = match network {
        Network::HostShared { ports } if needed => Some(hand_out(plan, ports, taken, renew)?),
        _ => None,
    };
    let fallback = handed_out.unwrap_or(names::PYTORCH_DEFAULT_PORT);
    Ok(Ports {
        master: master.unwrap_or(fallback),
        elastic: elastic.unwrap_or(fallback),
        handed_out,
    })
}

/// The port in the job's annotation, if it has one.
pub fn annotated_port(
    annotations: Option<&std::collections::BTreeMap<String, String>>,
) -> Option<u16> {
    annotations?.get(names::RENDEZVOUS_PORT)?.parse().ok()
}

/// The job's own port while it is valid, else the next free one after it.
fn hand_out(
    plan: &ParsedPyTorchJob<'_>,
    range: &RangeInclusive<u16>,
    taken: &BTreeSet<u16>,
    renew: bool,
) -> Result<u16, Exhausted> {
    let own = annotated_port(plan.meta.annotations.as_ref()).filter(|port| range.contains(port));
    let good = own.filter(|port| !taken.contains(port));
    if let Some(port) = good.filter(|_| !renew) {
        return Ok(port);
    }
    let free = |port: &u16| !taken.contains(port) && Some(*port) != own;
    let after = own
        .and_then(|port| port.checked_add(1))
        .unwrap_or(*range.start());
    let wrapped = (after..=*range.end()).chain(*range.start()..after);
    let next = wrapped
        .into_iter()
        .find(|port| range.contains(port) && free(port));
    next.or(good).ok_or(Exhausted)
}
