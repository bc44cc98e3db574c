//! Pods' GPU requests, read here anew from their annotations. Fractions are counted in thousandths of a GPU.

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::amounts::Amounts;
use resources::names;
use resources::quantity::Quantity;

use crate::node_facts::NodeFacts;

/// A whole GPU.
pub(crate) const WHOLE: i64 = 1000;

/// A pod's GPU request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuRequest {
    /// This many whole GPUs.
    Whole(i64),
    /// Thousandths of each GPU, and the number of GPUs.
    Part(i64, i64),
    /// MiB of each GPU's memory, and the number of GPUs.
    Memory(i64, i64),
    /// At least these thousandths and MiB of each GPU, and the number of GPUs.
    Both(i64, i64, i64),
}

/// Fractions of GPUs in the resource names of other device plugins: the count, the memory, the
/// bytes in one unit of memory, the percentages.
type FractionNames = (&'static str, &'static str, i64, &'static [&'static str]);

const OTHERS: [FractionNames; 4] = [
    (
        "",
        ALIYUN_MEMORY,
        1 << 30,
        &["aliyun.com/gpu-core", "aliyun.com/gpu-core.percentage"],
    ),
    (
        "volcano.sh/vgpu-number",
        "volcano.sh/vgpu-memory",
        1 << 20,
        &["volcano.sh/vgpu-cores", "volcano.sh/vgpu-memory-percentage"],
    ),
    (
        names::NVIDIA_GPU,
        "nvidia.com/gpumem",
        1 << 20,
        &["nvidia.com/gpucores", "nvidia.com/gpumem-percentage"],
    ),
    (
        "",
        "koordinator.sh/gpu-memory",
        1,
        &[
            "koordinator.sh/gpu",
            "koordinator.sh/gpu-core",
            "koordinator.sh/gpu-memory-ratio",
        ],
    ),
];
const ALIYUN_COUNT: &str = "aliyun.com/gpu-count";
const ALIYUN_MEMORY: &str = "aliyun.com/gpu-mem";

/// The GPU request under such names, which are removed from the requests.
fn others(requests: &mut Amounts) -> Option<GpuRequest> {
    let mut ask = None;
    for (number, memory, unit, percents) in OTHERS {
        let percent = percents.iter().map(|name| requests.get(name)).max();
        let milli = percent.unwrap_or(0).saturating_mul(10);
        let mib = (requests.get(memory).saturating_mul(unit) + (1 << 20) - 1) >> 20;
        let count = requests.get(number);
        let plain = number == names::NVIDIA_GPU;
        if (milli, mib) == (0, 0) && (plain || count == 0) {
            continue;
        }
        ask = Some(match (milli, mib, count.max(1)) {
            (milli, _, _) if milli >= WHOLE => GpuRequest::Whole(count.max(milli / WHOLE)),
            (0, 0, count) => GpuRequest::Whole(count),
            (0, mib, count) => GpuRequest::Memory(mib, count),
            (milli, 0, count) => GpuRequest::Part(milli, count),
            (milli, mib, count) => GpuRequest::Both(milli, mib, count),
        });
        for name in [number, memory].into_iter().chain(percents.iter().copied()) {
            if requests.get(name) != 0 {
                requests.set(name, 0);
            }
        }
    }
    ask
}

/// A node's allocatable, with the GPUs that it offers only in fractions.
pub(crate) fn with_shared(mut allocatable: Amounts) -> Amounts {
    let count = allocatable.get(ALIYUN_COUNT);
    if allocatable.get(names::NVIDIA_GPU) == 0 && count > 0 {
        allocatable.set(names::NVIDIA_GPU, count);
    }
    allocatable
}

impl GpuRequest {
    /// Reads a pod's GPU request. Fractions are removed from its other requests.
    pub(crate) fn read(meta: &ObjectMeta, requests: &mut Amounts) -> GpuRequest {
        if let Some(ask) = others(requests) {
            if let GpuRequest::Whole(count) = ask {
                requests.set(names::NVIDIA_GPU, count);
            }
            return ask;
        }
        let asked = requests.get(names::NVIDIA_GPU);
        let note = |ours: &str, theirs: &str| {
            let notes = meta.annotations.as_ref()?;
            let value = notes.get(ours).or_else(|| notes.get(theirs))?;
            Some(value.trim().to_owned()).filter(|value| !value.is_empty())
        };
        let count = note(names::GPU_COUNT, names::KAI_GPU_COUNT).and_then(|n| n.parse().ok());
        let count: i64 = count.unwrap_or(asked.max(1));
        let fraction = note(names::GPU_FRACTION, names::KAI_GPU_FRACTION);
        let memory = note(names::GPU_MEMORY, names::KAI_GPU_MEMORY);
        let part = fraction.and_then(|text| text.parse::<Quantity>().ok());
        let ask = match (part, memory.and_then(|text| text.parse().ok())) {
            (Some(part), _) if part.milli() == WHOLE => GpuRequest::Whole(count),
            (Some(part), _) if (1..WHOLE).contains(&part.milli()) => {
                GpuRequest::Part(part.milli(), count)
            }
            (None, Some(mib)) => GpuRequest::Memory(mib, count),
            _ => GpuRequest::Whole(asked),
        };
        match ask {
            GpuRequest::Whole(count) if count > 0 => requests.set(names::NVIDIA_GPU, count),
            GpuRequest::Whole(_) => {}
            GpuRequest::Part(..) | GpuRequest::Memory(..) | GpuRequest::Both(..) => {
                requests.set(names::NVIDIA_GPU, 0)
            }
        }
        ask
    }

    pub(crate) fn count(self) -> i64 {
        match self {
            GpuRequest::Whole(count)
            | GpuRequest::Part(_, count)
            | GpuRequest::Memory(_, count)
            | GpuRequest::Both(_, _, count) => count,
        }
    }

    pub(crate) fn shares(self) -> bool {
        !matches!(self, GpuRequest::Whole(_))
    }

    /// Thousandths of each GPU on a node; a whole GPU if the memory of the node's GPUs is unknown.
    pub(crate) fn each(self, node: Option<&NodeFacts>) -> i64 {
        let of = |mib: i64, memory: i64| {
            let hundredths = (i128::from(mib) * 100).div_euclid(i128::from(memory));
            let rest = (i128::from(mib) * 100).rem_euclid(i128::from(memory));
            i64::try_from((hundredths + i128::from(rest > 0)) * 10).unwrap_or(i64::MAX)
        };
        match (self, node.and_then(|node| node.gpu_memory)) {
            (GpuRequest::Whole(_), _) | (GpuRequest::Memory(..) | GpuRequest::Both(..), None) => {
                WHOLE
            }
            (GpuRequest::Part(milli, _), _) => milli,
            (GpuRequest::Memory(mib, _), Some(memory)) => of(mib, memory),
            (GpuRequest::Both(milli, mib, _), Some(memory)) => milli.max(of(mib, memory)),
        }
    }

    /// Thousandths in total, to charge to the queue.
    pub(crate) fn charge(self, node: Option<&NodeFacts>) -> i64 {
        self.each(node).saturating_mul(self.count())
    }
}

/// The memory of each of a node's GPUs, in MiB: that of the smallest known one, or as labelled.
pub(crate) fn memory(node: &k8s::Node, known: &[resources::devices::GpuDevice]) -> Option<i64> {
    let smallest = known.iter().map(|gpu| gpu.memory_mib).min();
    let smallest = smallest.and_then(|mib| i64::try_from(mib).ok());
    let labels = node.metadata.labels.as_ref();
    let label = labels.and_then(|all| all.get(names::NVIDIA_GPU_MEMORY));
    let label = label.and_then(|text| text.trim().parse::<i64>().ok());
    let status = node.status.as_ref();
    let list = status.and_then(|s| s.allocatable.as_ref().or(s.capacity.as_ref()));
    let list = list.map(Amounts::from_k8s).unwrap_or_default();
    let shared = (list.get(ALIYUN_MEMORY).saturating_mul(1024)).checked_div(list.get(ALIYUN_COUNT));
    smallest
        .filter(|mib| *mib > 0)
        .or(label)
        .or(shared)
        .filter(|mib| *mib > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_names_of_other_plugins_request_fractions() {
        type Case<'a> = (&'a [(&'a str, i64)], Option<GpuRequest>);
        let table: [Case; 6] = [
            (&[("nvidia.com/gpu", 2)], None),
            (
                &[("aliyun.com/gpu-mem", 4)],
                Some(GpuRequest::Memory(4096, 1)),
            ),
            (&[("aliyun.com/gpu-core", 200)], Some(GpuRequest::Whole(2))),
            (&[("volcano.sh/vgpu-number", 2)], Some(GpuRequest::Whole(2))),
            (
                &[
                    ("nvidia.com/gpu", 1),
                    ("nvidia.com/gpumem", 3000),
                    ("nvidia.com/gpucores", 50),
                ],
                Some(GpuRequest::Both(500, 3000, 1)),
            ),
            (
                &[("koordinator.sh/gpu", 50)],
                Some(GpuRequest::Part(500, 1)),
            ),
        ];
        for (list, want) in table {
            let list = list.iter();
            let mut requests: Amounts = list.map(|(name, n)| ((*name).to_owned(), *n)).collect();
            assert_eq!(others(&mut requests), want);
            assert_eq!(requests.is_empty(), want.is_some());
        }
    }

    fn read(notes: &[(&str, &str)], asked: i64) -> (GpuRequest, i64) {
        let notes = notes
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let meta = ObjectMeta {
            annotations: Some(notes.collect()),
            ..ObjectMeta::default()
        };
        let mut requests = Amounts::new();
        requests.set("nvidia.com/gpu", asked);
        let ask = GpuRequest::read(&meta, &mut requests);
        (ask, requests.get("nvidia.com/gpu"))
    }

    #[test]
    fn a_pod_asks_for_whole_gpus_or_parts_of_some() {
        let half = ("muster.io/gpu-fraction", "0.5");
        type Case<'a> = (&'a [(&'a str, &'a str)], i64, (GpuRequest, i64));
        let table: [Case; 6] = [
            (&[], 2, (GpuRequest::Whole(2), 2)),
            (&[half], 0, (GpuRequest::Part(500, 1), 0)),
            (&[half], 1, (GpuRequest::Part(500, 1), 0)),
            (
                &[half, ("muster.io/gpu-count", "3")],
                0,
                (GpuRequest::Part(500, 3), 0),
            ),
            (
                &[("gpu-memory", "2000")],
                1,
                (GpuRequest::Memory(2000, 1), 0),
            ),
            (&[("gpu-fraction", "1")], 0, (GpuRequest::Whole(1), 1)),
        ];
        for (notes, asked, want) in table {
            assert_eq!(read(notes, asked), want, "{notes:?}");
        }
    }
}
