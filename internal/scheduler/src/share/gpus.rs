//! What pods hold of a node's GPUs, and what is free: the few numbers that determine how many more
//! pods with a part of a GPU, or with whole GPUs, fit. Chooses no devices (`pick` does).

use std::sync::Arc;

use super::Take;
use crate::class::Class;
use crate::devices::Devices;
use crate::node::NodeAttributes;
use crate::resource::{GPU, GPU_UNIT};

/// The most GPUs of a node that may be shared if the node reports only their number. Further ones
/// are given whole.
pub(super) const COUNTED_MAX: i64 = 64;

/// What pods hold of GPUs, in thousandths by device id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuLedger {
    /// Sorted by id.
    held: Vec<(Arc<str>, i64)>,
    /// Whole GPUs of pods that name no devices.
    unnamed: i64,
}

impl GpuLedger {
    /// Adds what a pod takes. A pod that names no devices counts with whole GPUs.
    pub(crate) fn hold(&mut self, take: &Take, ids: &[Arc<str>]) {
        for id in ids {
            self.change(id, take.each);
        }
        self.unnamed += unnamed(take, ids);
    }

    pub(crate) fn release(&mut self, take: &Take, ids: &[Arc<str>]) {
        for id in ids {
            if self.find(id).is_ok() {
                self.change(id, -take.each);
            }
        }
        self.unnamed -= unnamed(take, ids);
    }

    /// The sum of both accounts, the other one `times` over.
    pub(crate) fn with(mut self, other: &GpuLedger, times: i64) -> GpuLedger {
        for (id, held) in &other.held {
            self.change(id, held * times);
        }
        self.unnamed += other.unnamed * times;
        self
    }

    /// Adds `more` to a GPU's account; an entry that becomes zero is removed.
    fn change(&mut self, id: &Arc<str>, more: i64) {
        match self.find(id) {
            Ok(at) => {
                self.held[at].1 += more;
                if self.held[at].1 <= 0 {
                    self.held.remove(at);
                }
            }
            Err(at) if more > 0 => self.held.insert(at, (id.clone(), more)),
            Err(_) => {}
        }
    }

    /// The index of an id, or where it would be inserted.
    fn find(&self, id: &str) -> Result<usize, usize> {
        // Usually it is the same allocation: pods hold their device ids from the node.
        let mut own = self.held.iter();
        match own.position(|(own, _)| std::ptr::eq(&**own, id)) {
            Some(at) => Ok(at),
            None => self.held.binary_search_by(|(own, _)| (**own).cmp(id)),
        }
    }

    pub(crate) fn of(&self, id: &str) -> i64 {
        self.find(id).map_or(0, |at| self.held[at].1)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = (&Arc<str>, i64)> {
        self.held.iter().map(|(id, held)| (id, *held))
    }

    /// True if some GPU is allocated more than once over.
    pub(crate) fn overcommitted(&self) -> bool {
        self.held.iter().any(|(_, held)| *held > GPU_UNIT)
    }
}

fn unnamed(take: &Take, ids: &[Arc<str>]) -> i64 {
    (take.gpus - ids.len() as i64).max(0)
}

/// True if the id is the index of a GPU that the node only counts and that may be shared.
pub(super) fn is_counted(offer: &NodeAttributes, id: &str) -> bool {
    let counted = (offer.allocatable.get(GPU) / GPU_UNIT).min(COUNTED_MAX);
    id.parse().is_ok_and(|at: i64| (0..counted).contains(&at))
}

/// What is free of a node's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeGpus {
    /// GPUs that no pod has a part of; negative if more are allocated than exist.
    pub(crate) whole: i64,
    /// What is free of each GPU that pods have parts of, in thousandths.
    pub(crate) begun: Vec<i64>,
}

impl FreeGpus {
    /// What is free of an offer's GPUs under this ledger.
    pub(crate) fn of(offer: &NodeAttributes, ledger: &GpuLedger) -> FreeGpus {
        FreeGpus::among(offer, ledger, |_| true)
    }

    /// What is free of the GPUs that a container may have together with others; `None` if all are
    /// such. GPUs of pods that name none may be any of them.
    pub(crate) fn together(offer: &NodeAttributes, ledger: &GpuLedger) -> Option<FreeGpus> {
        let devices = (offer.devices.as_ref()).filter(|devices| devices.some_alone())?;
        let several = |id: &str| !devices.is_alone(id);
        Some(FreeGpus::among(offer, ledger, several))
    }

    /// What is free of the GPUs that a class may have.
    pub(crate) fn for_class(class: &Class, offer: &NodeAttributes, ledger: &GpuLedger) -> FreeGpus {
        let several = class.has_several_gpus();
        let together = several.then(|| FreeGpus::together(offer, ledger));
        together
            .flatten()
            .unwrap_or_else(|| FreeGpus::of(offer, ledger))
    }

    /// What is free of the devices that `is` selects.
    fn among(offer: &NodeAttributes, ledger: &GpuLedger, is: impl Fn(&str) -> bool) -> FreeGpus {
        let all = offer.allocatable.get(GPU) / GPU_UNIT;
        if ledger.held.is_empty() {
            let these =
                |devices: &Devices| devices.healthy_ids().filter(|id| is(id)).count() as i64;
            let healthy = offer.devices.as_ref().map_or(all, these);
            return FreeGpus {
                whole: all.min(healthy) - ledger.unnamed,
                begun: Vec::new(),
            };
        }
        let busy = ledger.held.len() as i64;
        let mut whole = all - busy;
        let mut begun = Vec::new();
        match &offer.devices {
            Some(devices) => {
                let mut idle = 0;
                for id in devices.healthy_ids().filter(|id| is(id)) {
                    match ledger.of(id) {
                        0 => idle += 1,
                        GPU_UNIT => {}
                        held => begun.push(GPU_UNIT - held),
                    }
                }
                whole = whole.min(idle);
            }
            None => {
                let ours = ledger.ids().filter(|(id, _)| is_counted(offer, id));
                begun.extend(
                    ours.filter(|(_, held)| *held != GPU_UNIT)
                        .map(|(_, held)| GPU_UNIT - held),
                );
            }
        }
        whole -= ledger.unnamed;
        // If more are allocated than exist, pods that name no devices may be on any of them.
        begun.retain(|free| *free > 0 && whole >= 0);
        FreeGpus { whole, begun }
    }

    /// The free thousandths in total.
    pub(crate) fn sum(&self) -> i64 {
        self.whole.max(0) * GPU_UNIT + self.begun.iter().sum::<i64>()
    }

    /// How many pods fit that each take a part `each` of `gpus` different GPUs.
    pub(crate) fn slots(&self, each: i64, gpus: i64) -> i64 {
        if each <= 0 || each > GPU_UNIT {
            return 0;
        }
        let (whole, parts) = (self.whole.max(0), GPU_UNIT / each);
        let begun = self.begun.iter().map(|free| free / each);
        if gpus <= 1 {
            return whole * parts + begun.sum::<i64>();
        }
        // `pods` pods fit if each GPU can give a part to each pod at most once, and the parts
        // suffice.
        let enough = |pods: i64| {
            let begun = self.begun.iter().map(|free| (free / each).min(pods));
            whole * parts.min(pods) + begun.sum::<i64>() >= pods * gpus
        };
        let (mut fits, mut beyond) = (0, self.slots(each, 1) / gpus + 1);
        while beyond - fits > 1 {
            let middle = fits + (beyond - fits) / 2;
            if enough(middle) {
                fits = middle;
            } else {
                beyond = middle;
            }
        }
        fits
    }

    /// True if a pod with a part of one GPU fits on a GPU that is shared already.
    pub(crate) fn fits_begun(&self, each: i64) -> bool {
        self.begun.iter().any(|free| *free >= each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_counted_gpu_by_gpu() {
        let free = |whole, begun: &[i64]| FreeGpus {
            whole,
            begun: begun.to_vec(),
        };
        let table = [
            (free(0, &[400, 400]), 500, 1, 0),
            (free(1, &[400, 500]), 500, 1, 3),
            (free(2, &[300]), 300, 1, 7),
            (free(-1, &[600]), 300, 1, 2),
            (free(2, &[]), 500, 2, 2),
            (free(1, &[500]), 500, 2, 1),
            (free(1, &[400]), 500, 2, 0),
            (free(1, &[500, 500]), 250, 3, 2),
            (free(3, &[]), 1000, 1, 3),
            (free(3, &[]), 1500, 1, 0),
        ];
        for (free, each, gpus, want) in table {
            assert_eq!(free.slots(each, gpus), want, "{free:?} {each} x {gpus}");
        }
    }
}
