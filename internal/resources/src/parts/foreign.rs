//! Requests for parts of GPUs in the resources of other device plugins (Aliyun's, Volcano's,
//! HAMi's, Koordinator's), converted to the form of Muster's annotations.

use k8s_openapi::api::core::v1 as k8s;

use super::{GpuPart, SharedPart, WHOLE};
use crate::amounts::Amounts;
use crate::names::{ALIYUN_GPU_CORE, ALIYUN_GPU_CORE_PERCENTAGE, ALIYUN_GPU_MEMORY, NVIDIA_GPU};

/// A whole GPU, in percent.
const PERCENT: i64 = 100;
/// Node resource of Aliyun's device plugin: the number of shared GPUs.
const ALIYUN_COUNT: &str = "aliyun.com/gpu-count";

/// The resource names of one device plugin.
struct Dialect {
    /// The resource for the number of GPUs; one GPU if the plugin has no such resource.
    number: Option<&'static str>,
    memory: &'static str,
    /// The bytes in one unit of `memory`.
    unit: i64,
    /// Resources in percent of a GPU: the largest value counts.
    percents: &'static [&'static str],
}

const DIALECTS: [Dialect; 4] = [
    Dialect {
        number: None,
        memory: ALIYUN_GPU_MEMORY,
        unit: 1 << 30,
        percents: &[ALIYUN_GPU_CORE_PERCENTAGE, ALIYUN_GPU_CORE],
    },
    Dialect {
        number: Some("volcano.sh/vgpu-number"),
        memory: "volcano.sh/vgpu-memory",
        unit: 1 << 20,
        percents: &["volcano.sh/vgpu-cores", "volcano.sh/vgpu-memory-percentage"],
    },
    Dialect {
        number: Some(NVIDIA_GPU),
        memory: "nvidia.com/gpumem",
        unit: 1 << 20,
        percents: &["nvidia.com/gpucores", "nvidia.com/gpumem-percentage"],
    },
    Dialect {
        number: None,
        memory: "koordinator.sh/gpu-memory",
        unit: 1,
        percents: &[
            "koordinator.sh/gpu-core",
            "koordinator.sh/gpu-memory-ratio",
            "koordinator.sh/gpu",
        ],
    },
];

impl Dialect {
    /// The plugin's own resources: several plugins use `nvidia.com/gpu`.
    fn resource_names(&self) -> impl Iterator<Item = &'static str> {
        let number = self.number.filter(|name| *name != NVIDIA_GPU);
        let percents = self.percents.iter().copied();
        number.into_iter().chain([self.memory]).chain(percents)
    }

    /// `None` for an impossible request.
    fn read(&self, requests: &Amounts) -> Option<SharedPart> {
        let memory = requests.get(self.memory).checked_mul(self.unit)?;
        let mib = memory.checked_add((1 << 20) - 1)? >> 20;
        let percents = self.percents.iter().map(|name| requests.get(name));
        let percent = percents.max().unwrap_or(0).max(0);
        let number = self.number.map_or(0, |name| requests.get(name));
        let others = requests.get(NVIDIA_GPU);
        if others > 0 && self.number != Some(NVIDIA_GPU) {
            return None;
        }
        let whole = |gpus| SharedPart {
            part: GpuPart::Milli(WHOLE),
            gpus,
        };
        if percent > PERCENT {
            // Several whole GPUs.
            let several = self.number.is_none() && percent % PERCENT == 0;
            return several.then(|| whole(percent / PERCENT));
        }
        let gpus = number.max(1);
        let milli = percent * WHOLE / PERCENT;
        let part = match (milli, mib) {
            (0, 0) => return Some(whole(gpus)),
            (WHOLE, _) => return Some(whole(gpus)),
            (0, mib) => GpuPart::Memory(mib),
            (milli, 0) => GpuPart::Milli(milli),
            (milli, mib) => GpuPart::Both(milli, mib),
        };
        Some(SharedPart { part, gpus })
    }
}

/// A pod's request in these resources, with the container that makes it. `None` if the pod uses
/// none of them, `Some(None)` if it mixes device plugins or the request is impossible.
pub(super) fn request_of(
    spec: &k8s::PodSpec,
    requests: &Amounts,
) -> Option<Option<(SharedPart, String)>> {
    let uses = |dialect: &&Dialect| dialect.resource_names().any(|name| requests.get(name) > 0);
    let mut used = DIALECTS.iter().filter(uses);
    let dialect = used.next()?;
    if used.next().is_some() {
        return Some(None);
    }
    let names = |container: &&k8s::Container| {
        let resources = container.resources.as_ref();
        let lists = resources.map(|r| [r.requests.as_ref(), r.limits.as_ref()]);
        let mut keys = lists
            .into_iter()
            .flatten()
            .flatten()
            .flat_map(|list| list.keys());
        keys.any(|key| dialect.resource_names().any(|word| word == key))
    };
    let container = spec.containers.iter().find(names);
    let container = container.or(spec.containers.first());
    let name = container.map(|container| container.name.clone());
    Some(dialect.read(requests).zip(name))
}

/// The requests without these resources.
pub fn without(mut requests: Amounts) -> Amounts {
    for name in DIALECTS.iter().flat_map(Dialect::resource_names) {
        if requests.get(name) != 0 {
            requests.set(name, 0);
        }
    }
    requests
}

/// A node's allocatable amounts, in which GPUs that the node offers only for sharing count as GPUs;
/// and the memory of each of those, in MiB.
pub fn offered(mut allocatable: Amounts) -> (Amounts, Option<i64>) {
    let count = allocatable.get(ALIYUN_COUNT);
    if count <= 0 {
        return (allocatable, None);
    }
    if allocatable.get(NVIDIA_GPU) == 0 {
        allocatable.set(NVIDIA_GPU, count);
    }
    let mib = allocatable.get(ALIYUN_GPU_MEMORY).saturating_mul(1024) / count;
    (allocatable, Some(mib).filter(|mib| *mib > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(list: &[(&str, i64)]) -> Amounts {
        list.iter()
            .map(|(name, n)| ((*name).to_owned(), *n))
            .collect()
    }

    fn share(list: &[(&str, i64)]) -> Option<Option<(GpuPart, i64)>> {
        let spec = k8s::PodSpec {
            containers: vec![k8s::Container {
                name: "main".into(),
                ..k8s::Container::default()
            }],
            ..k8s::PodSpec::default()
        };
        let asked = request_of(&spec, &amounts(list))?;
        Some(asked.map(|(share, _)| (share.part, share.gpus)))
    }

    #[test]
    fn every_dialect_says_parts_of_gpus() {
        type Case<'a> = (&'a [(&'a str, i64)], Option<Option<(GpuPart, i64)>>);
        let table: [Case; 14] = [
            (&[("nvidia.com/gpu", 2)], None),
            (
                &[("aliyun.com/gpu-mem", 4)],
                Some(Some((GpuPart::Memory(4096), 1))),
            ),
            (
                &[("aliyun.com/gpu-core.percentage", 30)],
                Some(Some((GpuPart::Milli(300), 1))),
            ),
            (
                &[("aliyun.com/gpu-mem", 4), ("aliyun.com/gpu-core", 30)],
                Some(Some((GpuPart::Both(300, 4096), 1))),
            ),
            (
                &[("aliyun.com/gpu-core", 200)],
                Some(Some((GpuPart::Milli(1000), 2))),
            ),
            (&[("aliyun.com/gpu-core", 150)], Some(None)),
            (
                &[("aliyun.com/gpu-mem", 4), ("nvidia.com/gpu", 1)],
                Some(None),
            ),
            (
                &[
                    ("volcano.sh/vgpu-number", 2),
                    ("volcano.sh/vgpu-memory", 3000),
                ],
                Some(Some((GpuPart::Memory(3000), 2))),
            ),
            (
                &[("volcano.sh/vgpu-number", 2)],
                Some(Some((GpuPart::Milli(1000), 2))),
            ),
            (
                &[
                    ("nvidia.com/gpu", 1),
                    ("nvidia.com/gpumem", 3000),
                    ("nvidia.com/gpucores", 50),
                ],
                Some(Some((GpuPart::Both(500, 3000), 1))),
            ),
            (
                &[
                    ("koordinator.sh/gpu-core", 50),
                    ("koordinator.sh/gpu-memory-ratio", 60),
                ],
                Some(Some((GpuPart::Milli(600), 1))),
            ),
            (
                &[("koordinator.sh/gpu-memory", 8 << 30)],
                Some(Some((GpuPart::Memory(8192), 1))),
            ),
            (
                &[("koordinator.sh/gpu", 100)],
                Some(Some((GpuPart::Milli(1000), 1))),
            ),
            (
                &[("koordinator.sh/gpu", 50), ("aliyun.com/gpu-mem", 1)],
                Some(None),
            ),
        ];
        for (list, want) in table {
            assert_eq!(share(list), want, "{list:?}");
        }
    }

    #[test]
    fn gpus_that_are_offered_for_sharing_only_are_gpus() {
        let (offer, memory) = offered(amounts(&[(ALIYUN_COUNT, 4), (ALIYUN_GPU_MEMORY, 60)]));
        assert_eq!((offer.get(NVIDIA_GPU), memory), (4, Some(15360)));
        let (offer, memory) = offered(amounts(&[(NVIDIA_GPU, 2)]));
        assert_eq!((offer.get(NVIDIA_GPU), memory), (2, None));
    }
}
