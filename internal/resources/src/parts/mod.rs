//! Requests of pods for parts of GPUs: by annotation (`muster.io/gpu-fraction`, or `muster.io/gpu-memory` in MiB; KAI's
//! annotations are read too), or in the resources of other device plugins ([`foreign`]). The scheduler reads them to
//! place the pods, the agent to enforce them.

pub mod foreign;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as k8s;

use crate::amounts::Amounts;
use crate::names::{
    GPU_COUNT, GPU_FRACTION, GPU_MEMORY, KAI_GPU_CONTAINER, KAI_GPU_COUNT, KAI_GPU_FRACTION,
    KAI_GPU_MEMORY, NVIDIA_GPU,
};
use crate::quantity::Quantity;

/// A whole GPU, in thousandths.
pub const WHOLE: i64 = 1000;

/// Parts of a GPU's memory are rounded up to a multiple of this many thousandths.
const MEMORY_STEP: i64 = 10;

/// A part of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuPart {
    /// Thousandths; at most a whole GPU.
    Milli(i64),
    /// MiB of its memory.
    Memory(i64),
    /// At least these thousandths and these MiB.
    Both(i64, i64),
}

impl GpuPart {
    /// The part in thousandths on GPUs with this memory in MiB. More than a whole GPU if it exceeds that memory; a
    /// whole GPU if the memory is unknown.
    pub fn of(self, memory: Option<i64>) -> i64 {
        let of_memory = |mib: i64, memory: i64| {
            let steps = i128::from(WHOLE / MEMORY_STEP);
            let memory = i128::from(memory.max(1));
            let part = (i128::from(mib) * steps + memory - 1) / memory;
            i64::try_from(part)
                .unwrap_or(i64::MAX)
                .saturating_mul(MEMORY_STEP)
        };
        match (self, memory) {
            (GpuPart::Milli(milli), _) => milli,
            (GpuPart::Memory(_) | GpuPart::Both(..), None) => WHOLE,
            (GpuPart::Memory(mib), Some(memory)) => of_memory(mib, memory),
            (GpuPart::Both(milli, mib), Some(memory)) => milli.max(of_memory(mib, memory)),
        }
    }

    /// True if the thousandths depend on a GPU's memory.
    pub fn depends_on_memory(self) -> bool {
        matches!(self, GpuPart::Memory(_) | GpuPart::Both(..))
    }
}

/// The same part of one or several GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedPart {
    /// The part of each GPU.
    pub part: GpuPart,
    /// The number of GPUs.
    pub gpus: i64,
}

impl SharedPart {
    /// The number of whole GPUs, if the share consists of whole GPUs.
    pub fn whole(share: Option<SharedPart>) -> Option<i64> {
        share
            .filter(|share| share.part == GpuPart::Milli(WHOLE))
            .map(|share| share.gpus)
    }

    /// The part of each GPU in thousandths, on GPUs with this memory in MiB; `None` if the memory is too small or
    /// unknown.
    pub fn of(&self, memory: Option<i64>) -> Option<i64> {
        match self.part {
            part if part.depends_on_memory() && memory.is_none() => None,
            part => Some(part.of(memory)).filter(|each| *each <= WHOLE),
        }
    }

    /// True if the thousandths depend on the memory of a node's GPUs.
    pub fn depends_on_memory(&self) -> bool {
        self.part.depends_on_memory()
    }

    /// The shortage of a node that cannot take it, as text.
    pub fn shortage(&self) -> String {
        let what = match self.part {
            GpuPart::Milli(milli) => format!("{milli} of {WHOLE} free"),
            GpuPart::Memory(mib) => format!("{mib} MiB free"),
            GpuPart::Both(milli, mib) => format!("{milli} of {WHOLE} and {mib} MiB free"),
        };
        match self.gpus {
            1 => format!("no GPU has {what}"),
            gpus => format!("fewer than {gpus} GPUs have {what}"),
        }
    }

    /// The request as text.
    pub fn message(&self) -> String {
        let of = match self.gpus {
            1 => "a GPU".to_owned(),
            gpus => format!("each of {gpus} GPUs"),
        };
        match self.part {
            GpuPart::Milli(milli) => format!("{} of {of}", Quantity::from_milli(milli)),
            GpuPart::Memory(mib) => format!("{mib} MiB of {of}"),
            GpuPart::Both(milli, mib) => {
                format!("{} and {mib} MiB of {of}", Quantity::from_milli(milli))
            }
        }
    }
}

/// A pod's request for parts of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartRequest {
    /// `None` if it requests whole GPUs, as many as its containers state.
    pub share: Option<SharedPart>,
    /// True if the request cannot be read.
    pub unreadable: bool,
    /// The container that gets the GPUs, if the pod names one.
    pub container: Option<String>,
}

impl PartRequest {
    /// Reads a pod's annotations and the total requests of its containers.
    pub fn read(
        notes: Option<&BTreeMap<String, String>>,
        spec: &k8s::PodSpec,
        requests: &Amounts,
    ) -> PartRequest {
        let annotated = PartRequest::from_annotations(notes, requests.get(NVIDIA_GPU));
        match foreign::request_of(spec, requests) {
            None => annotated,
            Some(Some((share, container))) if annotated.share.is_none() => PartRequest {
                share: Some(share),
                container: annotated.container.or(Some(container)),
                ..annotated
            },
            Some(_) => PartRequest {
                unreadable: true,
                ..annotated
            },
        }
    }

    /// Reads the annotations of a pod whose containers request `asked` GPUs.
    fn from_annotations(notes: Option<&BTreeMap<String, String>>, asked: i64) -> PartRequest {
        let none = BTreeMap::new();
        let notes = notes.unwrap_or(&none);
        let fraction = annotation(notes, GPU_FRACTION, KAI_GPU_FRACTION);
        let memory = annotation(notes, GPU_MEMORY, KAI_GPU_MEMORY);
        if fraction.is_none() && memory.is_none() {
            return PartRequest::default();
        }
        let count = match annotation(notes, GPU_COUNT, KAI_GPU_COUNT).map(str::parse::<i64>) {
            None => Some(asked.max(1)),
            Some(Ok(count)) if count >= 1 && (asked == 0 || asked == count) => Some(count),
            Some(_) => None,
        };
        let part = match (fraction, memory) {
            (Some(fraction), None) => fraction
                .parse::<Quantity>()
                .ok()
                .map(|part| part.milli())
                .filter(|milli| (1..=WHOLE).contains(milli))
                .map(GpuPart::Milli),
            (None, Some(memory)) => memory
                .parse::<i64>()
                .ok()
                .filter(|mib| *mib > 0)
                .map(GpuPart::Memory),
            _ => None,
        };
        let (Some(part), Some(gpus)) = (part, count) else {
            return PartRequest {
                unreadable: true,
                ..PartRequest::default()
            };
        };
        PartRequest {
            share: Some(SharedPart { part, gpus }),
            unreadable: false,
            container: notes.get(KAI_GPU_CONTAINER).cloned(),
        }
    }
}

fn annotation<'a>(
    notes: &'a BTreeMap<String, String>,
    name: &str,
    customary: &str,
) -> Option<&'a str> {
    let words = [name, customary].into_iter().filter_map(|n| notes.get(n));
    words.map(|word| word.trim()).find(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(notes: &[(&str, &str)], asked: i64) -> PartRequest {
        let notes = notes
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        PartRequest::from_annotations(Some(&notes.collect()), asked)
    }

    fn share(part: GpuPart, gpus: i64) -> Option<SharedPart> {
        Some(SharedPart { part, gpus })
    }

    #[test]
    fn a_share_is_read_from_either_spelling() {
        let table = [
            (
                vec![("muster.io/gpu-fraction", "0.5")],
                0,
                share(GpuPart::Milli(500), 1),
            ),
            (
                vec![("gpu-fraction", "0.25")],
                1,
                share(GpuPart::Milli(250), 1),
            ),
            (
                vec![("muster.io/gpu-memory", "2000")],
                0,
                share(GpuPart::Memory(2000), 1),
            ),
            (
                vec![("gpu-memory", "1"), ("gpu-fraction-num-devices", "3")],
                0,
                share(GpuPart::Memory(1), 3),
            ),
            (
                vec![("muster.io/gpu-fraction", "0.5")],
                2,
                share(GpuPart::Milli(500), 2),
            ),
            (vec![], 2, None),
        ];
        for (notes, asked, want) in table {
            let asked = read(&notes, asked);
            assert_eq!((asked.share, asked.unreadable), (want, false), "{notes:?}");
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
            let asked = read(notes, 0);
            assert!(asked.unreadable && asked.share.is_none(), "{notes:?}");
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
            assert_eq!(GpuPart::Memory(mib).of(memory), want, "{mib} of {memory:?}");
        }
    }
}
