//! What is held of a node's GPUs, and what is free of them: the few numbers from which follows how
//! many pods with a part, or with whole GPUs, still fit. Chooses nothing.

use std::sync::Arc;

use super::Take;
use crate::class::Class;
use crate::devices::Devices;
use crate::node::Offer;
use crate::resource::{GPU, GPU_UNIT};

/// How many GPUs of a node are shared that are only counted. Those beyond are given whole.
pub(super) const COUNTED_MAX: i64 = 64;

/// What is held of GPUs, in thousandths by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// In the order of ids.
    held: Vec<(Arc<str>, i64)>,
    /// Whole GPUs of pods that do not say which ones they have.
    unnamed: i64,
}

impl Ledger {
    /// Puts what a pod takes on the account. One that does not say which GPUs it has a part of
    /// counts with whole ones.
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

    /// Both accounts together; the other one `times` over.
    pub(crate) fn with(mut self, other: &Ledger, times: i64) -> Ledger {
        for (id, held) in &other.held {
            self.change(id, held * times);
        }
        self.unnamed += other.unnamed * times;
        self
    }

    /// Holds so much more of a GPU; one of which nothing is held then is not kept.
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

    /// Where an id is, or would be.
    fn find(&self, id: &str) -> Result<usize, usize> {
        // Mostly it is the very same text: who holds a GPU has its name from the node.
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

    /// Is some GPU given out more than once over?
    pub(crate) fn overdrawn(&self) -> bool {
        self.held.iter().any(|(_, held)| *held > GPU_UNIT)
    }
}

fn unnamed(take: &Take, ids: &[Arc<str>]) -> i64 {
    (take.gpus - ids.len() as i64).max(0)
}

/// Is it the index of a GPU that is only counted, and may be shared?
pub(super) fn is_counted(offer: &Offer, id: &str) -> bool {
    let counted = (offer.allocatable.get(GPU) / GPU_UNIT).min(COUNTED_MAX);
    id.parse().is_ok_and(|at: i64| (0..counted).contains(&at))
}

/// What is free of a node's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeGpus {
    /// GPUs that nobody has a part of; negative where more are spoken for than there are.
    pub(crate) whole: i64,
    /// What is free of those that somebody has a part of, in thousandths.
    pub(crate) begun: Vec<i64>,
}

impl FreeGpus {
    /// Of a node where so much is held.
    pub(crate) fn of(offer: &Offer, ledger: &Ledger) -> FreeGpus {
        FreeGpus::among(offer, ledger, |_| true)
    }

    /// Of those that a container may have several of; none where those are all. What nobody names may be
    /// any of them.
    pub(crate) fn together(offer: &Offer, ledger: &Ledger) -> Option<FreeGpus> {
        let devices = (offer.devices.as_ref()).filter(|devices| devices.some_alone())?;
        let several = |id: &str| !devices.is_alone(id);
        Some(FreeGpus::among(offer, ledger, several))
    }

    /// Of such as a class may have.
    pub(crate) fn for_class(class: &Class, offer: &Offer, ledger: &Ledger) -> FreeGpus {
        let several = class.has_several_gpus();
        let together = several.then(|| FreeGpus::together(offer, ledger));
        together
            .flatten()
            .unwrap_or_else(|| FreeGpus::of(offer, ledger))
    }

    /// Of these of its devices.
    fn among(offer: &Offer, ledger: &Ledger, is: impl Fn(&str) -> bool) -> FreeGpus {
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
        // Where more are spoken for than there are, those that nobody names are on any of them.
        begun.retain(|free| *free > 0 && whole >= 0);
        FreeGpus { whole, begun }
    }

    /// Thousandths free in all.
    pub(crate) fn sum(&self) -> i64 {
        self.whole.max(0) * GPU_UNIT + self.begun.iter().sum::<i64>()
    }

    /// How many pods fit that each take a part of so many GPUs, each on GPUs of its own.
    pub(crate) fn slots(&self, each: i64, gpus: i64) -> i64 {
        if each <= 0 || each > GPU_UNIT {
            return 0;
        }
        let (whole, parts) = (self.whole.max(0), GPU_UNIT / each);
        let begun = self.begun.iter().map(|free| free / each);
        if gpus <= 1 {
            return whole * parts + begun.sum::<i64>();
        }
        // So many fit if every GPU gives each of them a part once at most, and that is enough.
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

    /// Does a pod with a part of one GPU fit beside others, without beginning another GPU?
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
