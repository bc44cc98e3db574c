//! Plans the next steps to the MIG layout that the node's label requests: which holders must end
//! first, which GPUs are withheld meanwhile, and which can be partitioned now. Pure. The plan
//! depends only on the GPUs' present state, so a restarted agent continues where the last one
//! stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use hardware::mig_partitioner::Card;
use hardware::partition::{LayoutError, PartitionStep, WantedLayout, steps};

use crate::dra;

/// A holder that must be gone before a GPU can be partitioned.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockingHolder {
    /// A pod that holds the GPU or a slice of it.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A claim that holds it, of an unknown pod.
    Claim {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A process of no known pod.
    Process {
        /// Its process id.
        pid: u32,
        /// The GPU's index.
        gpu: u32,
    },
}

impl fmt::Display for BlockingHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockingHolder::Pod { namespace, name } => write!(f, "pod {namespace}/{name}"),
            BlockingHolder::Claim { namespace, name } => write!(f, "claim {namespace}/{name}"),
            BlockingHolder::Process { pid, gpu } => write!(f, "process {pid} on GPU {gpu}"),
        }
    }
}

/// The holders of each GPU or slice, by its UUID or by its name as a claim's device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuHolders(BTreeMap<String, BTreeSet<BlockingHolder>>);

impl GpuHolders {
    /// Records a holder of a device. Units of a shared device have a number behind its UUID.
    pub fn note(&mut self, device: &str, held: BlockingHolder) {
        let id = device.split_once("::").map_or(device, |(id, _)| id);
        self.0.entry(id.to_owned()).or_default().insert(held);
    }

    /// Whether the device of this name has a holder.
    pub fn has(&self, device: &str) -> bool {
        self.0.contains_key(device)
    }

    /// Records the holders of a device by one name under another name as well.
    pub fn has_too(&mut self, device: &str, other: &str) {
        let held: Vec<BlockingHolder> = self.0.get(device).into_iter().flatten().cloned().collect();
        held.into_iter().for_each(|held| self.note(other, held));
    }

    /// The holders of a device, by either name.
    pub fn of(&self, device: &str) -> impl Iterator<Item = &BlockingHolder> {
        let by_name = self.0.get(&dra::name_of(device));
        self.0.get(device).into_iter().chain(by_name).flatten()
    }
}

/// Steps that a GPU is ready for, because the devices that they remove have no holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadySteps {
    /// The GPU's UUID.
    pub gpu: String,
    /// Its index.
    pub index: u32,
    /// The steps.
    pub steps: Vec<PartitionStep>,
}

/// The plan. An empty plan: the GPUs have the wanted layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepartitionPlan {
    /// The GPUs to withhold meanwhile, by UUID, each with its index.
    pub withheld: BTreeMap<String, u32>,
    /// The holders that must end.
    pub held: BTreeSet<BlockingHolder>,
    /// The GPUs that must be reset first, by index.
    pub resets: BTreeSet<u32>,
    /// The GPUs that can be partitioned now.
    pub ready: Vec<ReadySteps>,
}

/// A GPU that can't be partitioned as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("GPU {index} ({model}): {source}")]
pub struct NextError {
    /// The GPU's index.
    pub index: u32,
    /// Its product.
    pub model: String,
    /// The reason, and what would fit.
    pub source: LayoutError,
}

/// Plans the next steps.
///
/// # Errors
///
/// The GPU that can't be partitioned so, and what would fit.
pub fn next(
    cards: &[Card],
    wanted: &BTreeMap<String, WantedLayout>,
    holders: &GpuHolders,
) -> Result<RepartitionPlan, NextError> {
    let mut next = RepartitionPlan::default();
    for card in cards {
        if let Some(wanted) = wanted.get(&card.id) {
            let one = one(card, wanted, holders);
            let need = one.map_err(|source| NextError {
                index: card.index,
                model: card.model.clone(),
                source,
            });
            add(&mut next, card, need?);
        }
    }
    Ok(next)
}

/// The needs of one GPU.
enum GpuNeed {
    Nothing,
    Reset,
    Steps(Vec<PartitionStep>, BTreeSet<BlockingHolder>),
}

fn add(next: &mut RepartitionPlan, card: &Card, need: GpuNeed) {
    let mut withhold = || next.withheld.insert(card.id.clone(), card.index);
    match need {
        GpuNeed::Nothing => {}
        GpuNeed::Reset => {
            withhold();
            next.resets.insert(card.index);
        }
        GpuNeed::Steps(steps, held) => {
            if steps.iter().any(ends) {
                withhold();
            }
            if held.is_empty() {
                next.ready.push(ReadySteps {
                    gpu: card.id.clone(),
                    index: card.index,
                    steps,
                });
            }
            next.held.extend(held);
        }
    }
}

/// Whether a step removes a device that may have a holder.
fn ends(step: &PartitionStep) -> bool {
    step.ends().is_some() || matches!(step, PartitionStep::Switch { .. })
}

fn one(card: &Card, wanted: &WantedLayout, holders: &GpuHolders) -> Result<GpuNeed, LayoutError> {
    let used = card
        .slices
        .iter()
        .filter(|(id, _)| holders.of(id).next().is_some());
    let by_process = card.processes.iter().filter_map(|(_, instance)| *instance);
    let used: BTreeSet<u32> = used
        .map(|(_, instance)| *instance)
        .chain(by_process)
        .collect();
    let off = !card.layout.enabled;
    let steps = match off && wanted.enabled && !card.is_known() {
        // A GPU reports the possible places of its profiles only in MIG mode.
        true => vec![PartitionStep::Switch { on: true }],
        false => steps(&card.profiles, &card.layout, wanted, &used)?,
    };
    // A GPU that waits for a reset can't be partitioned before.
    if card.waits {
        return Ok(GpuNeed::Reset);
    }
    if steps.is_empty() {
        return Ok(GpuNeed::Nothing);
    }
    let switched = steps
        .iter()
        .any(|step| matches!(step, PartitionStep::Switch { .. }));
    let ended: BTreeSet<u32> = steps.iter().filter_map(PartitionStep::ends).collect();
    let goes = |instance: u32| switched || ended.contains(&instance);
    let slices = card.slices.iter().filter(|(_, instance)| goes(**instance));
    let ids = slices.map(|(id, _)| id).chain(switched.then_some(&card.id));
    let mut held: BTreeSet<BlockingHolder> = ids.flat_map(|id| holders.of(id)).cloned().collect();
    // For pods' processes the pods are listed instead.
    if held.is_empty() && (switched || !ended.is_empty()) {
        let processes = card.processes.iter();
        let here = processes.filter(|(_, instance)| instance.is_none_or(goes));
        held.extend(here.map(|(pid, _)| BlockingHolder::Process {
            pid: *pid,
            gpu: card.index,
        }));
    }
    Ok(GpuNeed::Steps(steps, held))
}

#[cfg(test)]
#[path = "next_tests.rs"]
mod tests;
