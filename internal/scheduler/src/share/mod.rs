//! Sharing GPUs: what a pod asks for that takes a part of a GPU, how much that is on a node, and
//! what of each GPU is held (`gpus`). Which GPU it gets is `pick`'s, how many such pods a node
//! holds `gpus`', what changes when a node's memory does `memory`'s.
//!
//! A pod asks by annotation: `muster.io/gpu-fraction`, or `muster.io/gpu-memory` in MiB, which is a
//! part that depends on the node: rounded up to hundredths of what its GPUs have. Parts are counted
//! in thousandths. A GPU is shared up to 1000 of them; who asks for whole GPUs gets such as nobody
//! has a part of. What containers ask for in other device plugins' resources is the same (`foreign`). Queues are charged the part. Slices of a GPU that the driver cuts (MIG) are
//! resources by name of their own (`slices`).

pub(crate) mod foreign;
mod gpus;
mod memory;
mod pick;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::amounts::Amounts;
use resources::names::{
    GPU_COUNT, GPU_FRACTION, GPU_MEMORY, KAI_GPU_CONTAINER, KAI_GPU_COUNT, KAI_GPU_FRACTION,
    KAI_GPU_MEMORY, NVIDIA_GPU,
};
use resources::quantity::Quantity;

use crate::gpu::Needs;
use crate::node::Node;
use crate::resource::{Demand, GPU, GPU_UNIT, each};

pub(crate) use gpus::{FreeGpus, Ledger};
pub use pick::GpuOrder;
pub(crate) use pick::fits_at_once;

/// Parts of a GPU's memory are rounded up to so many thousandths of it.
const MEMORY_STEP: i64 = 10;

/// How much of one GPU is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    /// So many thousandths; less than a whole one.
    Milli(i64),
    /// So many MiB of its memory.
    Memory(i64),
    /// At least so many thousandths and so many MiB.
    Both(i64, i64),
}

impl Part {
    /// How many thousandths that is where each GPU has so many MiB. More than there are where it
    /// asks for more than one has; a whole GPU where nobody knows what it has.
    pub(crate) fn of(self, memory: Option<i64>) -> i64 {
        let of_memory = |mib: i64, memory: i64| {
            let steps = i128::from(GPU_UNIT / MEMORY_STEP);
            let memory = i128::from(memory.max(1));
            let part = (i128::from(mib) * steps + memory - 1) / memory;
            i64::try_from(part)
                .unwrap_or(i64::MAX)
                .saturating_mul(MEMORY_STEP)
        };
        match (self, memory) {
            (Part::Milli(milli), _) => milli,
            (Part::Memory(_) | Part::Both(..), None) => GPU_UNIT,
            (Part::Memory(mib), Some(memory)) => of_memory(mib, memory),
            (Part::Both(milli, mib), Some(memory)) => milli.max(of_memory(mib, memory)),
        }
    }

    fn depends_on_memory(self) -> bool {
        matches!(self, Part::Memory(_) | Part::Both(..))
    }
}

/// A part of one GPU, or of each of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share {
    pub(crate) part: Part,
    pub(crate) gpus: i64,
}

impl Share {
    /// How many whole GPUs it comes to, if it does.
    pub(crate) fn whole(share: Option<Share>) -> Option<i64> {
        share
            .filter(|share| share.part == Part::Milli(GPU_UNIT))
            .map(|share| share.gpus)
    }

    /// Its part of each GPU of a node; none where a GPU of the node has too little for it, or
    /// nobody knows how much it has.
    pub(crate) fn on(&self, node: &Node) -> Option<i64> {
        let memory = node.gpu_memory();
        match self.part {
            part if part.depends_on_memory() && memory.is_none() => None,
            part => Some(part.of(memory)).filter(|each| *each <= GPU_UNIT),
        }
    }

    pub(crate) fn depends_on_memory(&self) -> bool {
        self.part.depends_on_memory()
    }

    /// What a node lacks that has no room for it, in words.
    pub(crate) fn shortage(&self) -> String {
        let what = match self.part {
            Part::Milli(milli) => format!("{milli} of {GPU_UNIT} free"),
            Part::Memory(mib) => format!("{mib} MiB free"),
            Part::Both(milli, mib) => format!("{milli} of {GPU_UNIT} and {mib} MiB free"),
        };
        match self.gpus {
            1 => format!("no GPU has {what}"),
            gpus => format!("fewer than {gpus} GPUs have {what}"),
        }
    }

    /// What it asks for, in words.
    pub(crate) fn words(&self) -> String {
        let of = match self.gpus {
            1 => "a GPU".to_owned(),
            gpus => format!("each of {gpus} GPUs"),
        };
        match self.part {
            Part::Milli(milli) => format!("{} of {of}", Quantity::from_milli(milli)),
            Part::Memory(mib) => format!("{mib} MiB of {of}"),
            Part::Both(milli, mib) => {
                format!("{} and {mib} MiB of {of}", Quantity::from_milli(milli))
            }
        }
    }
}

/// What a pod takes on its node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Take {
    /// What goes on the node's and the queue's account.
    pub(crate) demand: Demand,
    /// How much of each GPU.
    pub(crate) each: i64,
    /// Of how many GPUs.
    pub(crate) gpus: i64,
}

impl Take {
    /// Of what a class asks for: what it takes on a node, or counts as while it has none.
    pub(crate) fn of(mut demand: Demand, share: Option<Share>, node: Option<&Node>) -> Take {
        let asked = demand.get(GPU);
        let Some(share) = share else {
            return Take {
                gpus: asked / GPU_UNIT,
                demand,
                each: GPU_UNIT,
            };
        };
        let gpus = share.gpus;
        let part = match (share.part, node) {
            (part, Some(node)) if part.depends_on_memory() => {
                part.of(node.gpu_memory()).min(GPU_UNIT)
            }
            _ => asked / gpus.max(1),
        };
        demand.set(GPU, part * gpus);
        let models = node.map_or(0, Node::models);
        each(models).for_each(|ix| demand.set(ix, part * gpus));
        Take {
            demand,
            each: part,
            gpus,
        }
    }
}

/// What a pod's annotations say of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// What they must be.
    pub(crate) needs: Needs,
    /// None: whole ones, as many as its containers say.
    pub(crate) share: Option<Share>,
    /// Something is said that cannot be read.
    pub(crate) unreadable: bool,
    /// The container that gets them, where one is named.
    pub(crate) container: Option<String>,
}

impl Wish {
    /// Reads what a pod says: its annotations, and what its containers ask for.
    pub(crate) fn read(meta: &ObjectMeta, spec: &k8s::PodSpec, requests: &Amounts) -> Wish {
        let said = Wish::said(meta, requests.get(NVIDIA_GPU));
        match foreign::asked(spec, requests) {
            None => said,
            Some(Some((share, container))) if said.share.is_none() => Wish {
                share: Some(share),
                container: said.container.or(Some(container)),
                ..said
            },
            Some(_) => Wish {
                unreadable: true,
                ..said
            },
        }
    }

    /// Reads the annotations of a pod whose containers ask for so many GPUs.
    fn said(meta: &ObjectMeta, asked: i64) -> Wish {
        let none = BTreeMap::new();
        let notes = meta.annotations.as_ref().unwrap_or(&none);
        let unreadable = Wish {
            unreadable: true,
            ..Wish::default()
        };
        let Ok(needs) = Needs::read(notes) else {
            return unreadable;
        };
        let fraction = said(notes, GPU_FRACTION, KAI_GPU_FRACTION);
        let memory = said(notes, GPU_MEMORY, KAI_GPU_MEMORY);
        if fraction.is_none() && memory.is_none() {
            return Wish {
                needs,
                ..Wish::default()
            };
        }
        let count = match said(notes, GPU_COUNT, KAI_GPU_COUNT).map(str::parse::<i64>) {
            None => Some(asked.max(1)),
            Some(Ok(count)) if count >= 1 && (asked == 0 || asked == count) => Some(count),
            Some(_) => None,
        };
        let part = match (fraction, memory) {
            (Some(fraction), None) => fraction
                .parse::<Quantity>()
                .ok()
                .map(|part| part.milli())
                .filter(|milli| (1..=GPU_UNIT).contains(milli))
                .map(Part::Milli),
            (None, Some(memory)) => memory
                .parse::<i64>()
                .ok()
                .filter(|mib| *mib > 0)
                .map(Part::Memory),
            _ => None,
        };
        let (Some(part), Some(gpus)) = (part, count) else {
            return unreadable;
        };
        Wish {
            needs,
            share: Some(Share { part, gpus }),
            unreadable: false,
            container: notes.get(KAI_GPU_CONTAINER).cloned(),
        }
    }
}

fn said<'a>(notes: &'a BTreeMap<String, String>, name: &str, customary: &str) -> Option<&'a str> {
    let words = [name, customary].into_iter().filter_map(|n| notes.get(n));
    words.map(|word| word.trim()).find(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(notes: &[(&str, &str)], asked: i64) -> Wish {
        let notes = notes
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let meta = ObjectMeta {
            annotations: Some(notes.collect()),
            ..ObjectMeta::default()
        };
        Wish::said(&meta, asked)
    }

    fn share(part: Part, gpus: i64) -> Option<Share> {
        Some(Share { part, gpus })
    }

    #[test]
    fn a_share_is_read_from_either_spelling() {
        let table = [
            (
                vec![("muster.io/gpu-fraction", "0.5")],
                0,
                share(Part::Milli(500), 1),
            ),
            (
                vec![("gpu-fraction", "0.25")],
                1,
                share(Part::Milli(250), 1),
            ),
            (
                vec![("muster.io/gpu-memory", "2000")],
                0,
                share(Part::Memory(2000), 1),
            ),
            (
                vec![("gpu-memory", "1"), ("gpu-fraction-num-devices", "3")],
                0,
                share(Part::Memory(1), 3),
            ),
            (
                vec![("muster.io/gpu-fraction", "0.5")],
                2,
                share(Part::Milli(500), 2),
            ),
            (vec![], 2, None),
        ];
        for (notes, asked, want) in table {
            let wish = read(&notes, asked);
            assert_eq!((wish.share, wish.unreadable), (want, false), "{notes:?}");
        }
    }

    #[test]
    fn nonsense_is_no_share_and_is_not_passed_over() {
        let table: [&[(&str, &str)]; 7] = [
            &[("gpu-fraction", "1.5")],
            &[("gpu-fraction", "0")],
            &[("gpu-fraction", "half")],
            &[("gpu-memory", "-1")],
            &[("gpu-memory", "2Gi")],
            &[("gpu-fraction", "0.5"), ("gpu-memory", "100")],
            &[("gpu-fraction", "0.5"), ("gpu-fraction-num-devices", "0")],
        ];
        for notes in table {
            let wish = read(notes, 0);
            assert!(wish.unreadable && wish.share.is_none(), "{notes:?}");
        }
    }

    #[test]
    fn memory_is_rounded_up_to_hundredths_of_what_a_gpu_has() {
        let table = [
            (40, Some(100), 400),
            (1, Some(1000), 10),
            (1001, Some(100_000), 20),
            (200, Some(100), 2000),
            (5, None, 1000),
        ];
        for (mib, memory, want) in table {
            assert_eq!(Part::Memory(mib).of(memory), want, "{mib} of {memory:?}");
        }
    }
}
