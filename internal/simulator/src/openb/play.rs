//! One run of the protocol: offers the arrivals to a policy one after another, enforces the rules,
//! and measures.

use scheduler::fragment::{Mix, NodeRoom, PodDemand, fragmentation};

use super::data::{Arrivals, OpenbCluster, OpenbPod};
use super::metrics::{ArrivalBins, bin_of};
use super::policy::{OpenbPlacement, PlacementPolicy};
use crate::error::SimulatorError;

/// The most pods per node: the artefact's nodes have this many pod slots.
const PODS_MAX: u32 = 1001;

/// The index of failed shares, after 0 to 8 whole GPUs.
const SHARES: usize = 9;

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Played {
    /// The metrics.
    pub bins: ArrivalBins,
    /// Failed pods until 100 % had arrived by number of GPUs 0..=8, shares separately.
    failed: [u32; SHARES + 1],
    /// Failed pods over the whole run.
    pub failed_in_all: u32,
    /// Each placement, none for a failed pod.
    pub placements: Vec<Option<OpenbPlacement>>,
    /// GPUs in use after each arrival, in 1/1000.
    pub used: Vec<u64>,
}

impl Played {
    /// Failed pods with this many whole GPUs until 100 % had arrived.
    #[must_use]
    pub fn failed(&self, gpus: usize) -> u32 {
        self.failed.get(gpus.min(SHARES - 1)).copied().unwrap_or(0)
    }

    /// Failed pods with a part of a GPU until 100 % had arrived.
    #[must_use]
    pub fn failed_shares(&self) -> u32 {
        self.failed[SHARES]
    }

    /// All pods that failed until 100 % had arrived.
    #[must_use]
    pub fn failed_until_100(&self) -> u32 {
        self.failed.iter().sum()
    }
}

/// Runs one list of arrivals. Fragmentation is measured against `typical`.
///
/// # Errors
/// The policy broke the rules (its choice does not fit, or it refused a pod that fits), or the list
/// names an unknown pod.
pub fn play(
    cluster: &OpenbCluster,
    pods: &[OpenbPod],
    arrivals: &Arrivals,
    typical: &Mix,
    policy: &mut dyn PlacementPolicy,
) -> Result<Played, SimulatorError> {
    let mut nodes: Vec<NodeRoom> = cluster.shapes.iter().map(NodeRoom::empty).collect();
    if arrivals.rank.len() != nodes.len() {
        return Err(SimulatorError::Nothing(format!(
            "{} nodes have ranks and there are {}: give the ranks of this variant",
            arrivals.rank.len(),
            nodes.len()
        )));
    }
    let mut count = vec![0u32; nodes.len()];
    let capacity = cluster.capacity() as f64;
    let (mut arrived, mut used) = (0u64, 0u64);
    let mut values: Vec<f64> = nodes.iter().map(|r| fragmentation(typical, r)).collect();
    let mut fragmented: f64 = values.iter().sum();
    let mut out = Played {
        bins: ArrivalBins::default(),
        failed: [0; SHARES + 1],
        failed_in_all: 0,
        placements: Vec::with_capacity(arrivals.rows.len()),
        used: Vec::with_capacity(arrivals.rows.len()),
    };
    for &row in &arrivals.rows {
        let demand = pods
            .get(row)
            .ok_or_else(|| broken(format!("row {row} has no pod")))?
            .demand;
        let choice = policy.choose(&nodes, &arrivals.rank, &demand);
        arrived += u64::from(demand.gpu_total());
        let percent = 100.0 * arrived as f64 / capacity;
        if let Some(OpenbPlacement { node, mask }) = choice {
            let room = allowed(&nodes, &count, &demand, node, mask)?;
            nodes[node] = room;
            count[node] += 1;
            used += u64::from(demand.gpu_total());
            policy.placed(node, &room);
            let value = fragmentation(typical, &room);
            fragmented += value - values[node];
            values[node] = value;
        } else {
            if let Some(at) = nodes.iter().position(|room| room.fits(&demand)) {
                let what = format!("{demand:?} was refused but fits node {at}");
                return Err(broken(what));
            }
            out.failed_in_all += 1;
            if bin_of(percent) <= 100 {
                let whole = usize::from(demand.gpus).min(SHARES - 1);
                out.failed[if demand.is_share() { SHARES } else { whole }] += 1;
            }
        }
        out.bins.add(
            percent,
            100.0 * used as f64 / capacity,
            100.0 * fragmented / capacity,
            100.0 * fragmented / (capacity - used as f64),
        );
        out.placements.push(choice);
        out.used.push(used);
    }
    Ok(out)
}

/// The node's free resources after the placement, if the pod may be placed there.
fn allowed(
    nodes: &[NodeRoom],
    count: &[u32],
    demand: &PodDemand,
    node: usize,
    mask: u16,
) -> Result<NodeRoom, SimulatorError> {
    let room = nodes.get(node).filter(|room| {
        let taken = |gpu: usize| mask >> gpu & 1 == 1;
        let mut gpus = room.gpu_slice().iter().enumerate();
        room.fits(demand)
            && mask.count_ones() == u32::from(demand.gpus)
            && gpus.all(|(gpu, free)| !taken(gpu) || *free >= demand.milli)
            && count.get(node).is_some_and(|n| *n < PODS_MAX)
    });
    room.map(|room| room.after(demand, mask)).ok_or_else(|| {
        broken(format!(
            "{demand:?} does not fit node {node}, GPUs {mask:b}"
        ))
    })
}

fn broken(what: String) -> SimulatorError {
    SimulatorError::Nothing(format!("the run breaks the rules: {what}"))
}
