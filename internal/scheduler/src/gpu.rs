//! A node's GPU type (product, compute capability, driver), and a pod's annotations about it. A
//! node counts by its weakest GPU: if it has several products, all must match.

use std::collections::BTreeMap;
use std::fmt;

use resources::devices::GpuDevice;
use resources::names::{
    GPU_MIN_COMPUTE, GPU_MIN_DRIVER, GPU_MIN_MEMORY, GPU_MODEL, NVIDIA_COMPUTE_MAJOR,
    NVIDIA_COMPUTE_MINOR, NVIDIA_DRIVER, NVIDIA_DRIVER_PARTS, NVIDIA_GPU_PRODUCT,
};
use resources::quantity::Quantity;

use crate::filter::InfeasibleReason;

/// A product's name as upper-case words: `NVIDIA A100-SXM4-80GB` and `nvidia-a100-sxm4-80gb` are
/// equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Product(Vec<String>);

impl Product {
    pub(crate) fn read(text: &str) -> Option<Product> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let words = words.filter(|word| !word.is_empty());
        let words: Vec<String> = words.map(str::to_ascii_uppercase).collect();
        (!words.is_empty()).then_some(Product(words))
    }

    /// True if all words of `asked` occur in this name, in order: an `NVIDIA-A100-SXM4-80GB` is an
    /// `A100` and an `A100-80GB`, but not an `A10`.
    pub(crate) fn is(&self, asked: &Product) -> bool {
        let mut words = self.0.iter();
        asked.0.iter().all(|word| words.any(|own| own == word))
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("-"))
    }
}

/// A dotted version, compared number by number; trailing zeros are ignored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DottedVersion(Vec<u32>);

impl DottedVersion {
    pub(crate) fn read(text: &str) -> Option<DottedVersion> {
        let parts = text.trim().split('.').map(|part| part.parse().ok());
        let mut parts: Vec<u32> = parts.collect::<Option<_>>()?;
        while parts.len() > 1 && parts.last() == Some(&0) {
            parts.pop();
        }
        Some(DottedVersion(parts))
    }
}

impl fmt::Display for DottedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.0.iter().map(u32::to_string).collect();
        if parts.len() == 1 {
            parts.push("0".to_owned());
        }
        f.write_str(&parts.join("."))
    }
}

/// A node's GPU type, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuKind {
    /// Every product among its GPUs.
    pub(crate) products: Vec<Product>,
    /// The lowest compute capability.
    compute: Option<DottedVersion>,
    driver: Option<DottedVersion>,
}

impl GpuKind {
    /// Read from the inventory or, if absent there, from the labels of NVIDIA's GPU feature
    /// discovery.
    pub(crate) fn read(labels: &BTreeMap<String, String>, gpus: &[GpuDevice]) -> GpuKind {
        let label = |name: &str| labels.get(name).map(|value| value.trim());
        let mut products: Vec<Product> = gpus
            .iter()
            .filter_map(|gpu| Product::read(&gpu.model))
            .collect();
        if products.len() < gpus.len() || products.is_empty() {
            products = label(NVIDIA_GPU_PRODUCT)
                .and_then(Product::read)
                .into_iter()
                .collect();
        }
        products.sort_unstable();
        products.dedup();
        let least = |of: fn(&GpuDevice) -> &str| {
            let all = gpus.iter().map(|gpu| DottedVersion::read(of(gpu)));
            let all: Option<Vec<DottedVersion>> = all.collect();
            all?.into_iter().min()
        };
        let parts = |names: &[&str]| {
            let parts: Option<Vec<&str>> = names.iter().map(|name| label(name)).collect();
            DottedVersion::read(&parts?.join("."))
        };
        GpuKind {
            products,
            compute: least(|gpu| &gpu.compute_capability)
                .or_else(|| parts(&[NVIDIA_COMPUTE_MAJOR, NVIDIA_COMPUTE_MINOR])),
            driver: least(|gpu| &gpu.driver)
                .or_else(|| label(NVIDIA_DRIVER).and_then(DottedVersion::read))
                .or_else(|| NVIDIA_DRIVER_PARTS.iter().find_map(|names| parts(names))),
        }
    }

    /// True if all GPUs are of this product.
    pub(crate) fn is(&self, asked: &Product) -> bool {
        !self.products.is_empty() && self.products.iter().all(|product| product.is(asked))
    }
}

/// What a pod's annotations require of its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Needs {
    /// One of these products.
    pub(crate) models: Vec<Product>,
    /// At least this much memory on each GPU, in MiB.
    memory: Option<i64>,
    compute: Option<DottedVersion>,
    driver: Option<DottedVersion>,
}

/// The error for an annotation that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnreadableAnnotation;

impl Needs {
    /// Reads a pod's annotations.
    pub(crate) fn read(notes: &BTreeMap<String, String>) -> Result<Needs, UnreadableAnnotation> {
        let annotation = |name: &str| {
            let word = notes.get(name).map(|word| word.trim());
            word.filter(|word| !word.is_empty())
        };
        let models = annotation(GPU_MODEL).map(|list| {
            let all = list.split([',', '|']).map(Product::read);
            all.collect::<Option<Vec<Product>>>()
                .ok_or(UnreadableAnnotation)
        });
        let mut models = models.transpose()?.unwrap_or_default();
        models.sort_unstable();
        models.dedup();
        let version = |name: &str| {
            let read =
                annotation(name).map(|text| DottedVersion::read(text).ok_or(UnreadableAnnotation));
            read.transpose()
        };
        Ok(Needs {
            models,
            memory: annotation(GPU_MIN_MEMORY).map(mebibytes).transpose()?,
            compute: version(GPU_MIN_COMPUTE)?,
            driver: version(GPU_MIN_DRIVER)?,
        })
    }

    /// Why a node's GPUs, with `memory` MiB each, do not satisfy the requirements.
    pub(crate) fn refusal(&self, kind: &GpuKind, memory: Option<i64>) -> Option<InfeasibleReason> {
        let wanted = self.models.is_empty()
            || !kind.products.is_empty()
                && kind
                    .products
                    .iter()
                    .all(|product| self.models.iter().any(|model| product.is(model)));
        if !wanted {
            return Some(InfeasibleReason::GpuModel);
        }
        let has = |has: &Option<DottedVersion>, asked: &Option<DottedVersion>| {
            asked.is_none() || has.is_some() && has >= asked
        };
        if self.memory.is_some() && memory < self.memory {
            return Some(InfeasibleReason::GpuMemory);
        }
        if !has(&kind.compute, &self.compute) {
            return Some(InfeasibleReason::GpuCompute);
        }
        (!has(&kind.driver, &self.driver)).then_some(InfeasibleReason::GpuDriver)
    }

    /// What a node refused for this reason would need, as a message.
    pub(crate) fn remedy(&self, refusal: InfeasibleReason) -> Option<String> {
        let version =
            |version: &Option<DottedVersion>| version.as_ref().map(DottedVersion::to_string);
        match refusal {
            InfeasibleReason::GpuModel if !self.models.is_empty() => {
                let names: Vec<String> = self.models.iter().map(Product::to_string).collect();
                Some(format!("a node with GPUs of model {}", names.join(" or ")))
            }
            InfeasibleReason::GpuMemory => {
                let mib = self.memory?;
                Some(format!("a node whose GPUs have {mib} MiB of memory each"))
            }
            InfeasibleReason::GpuCompute => version(&self.compute)
                .map(|least| format!("a node with GPUs of compute capability {least} or higher")),
            InfeasibleReason::GpuDriver => version(&self.driver)
                .map(|least| format!("a node with a GPU driver of version {least} or newer")),
            _ => None,
        }
    }
}

/// A number of MiB, or a quantity with a suffix.
fn mebibytes(text: &str) -> Result<i64, UnreadableAnnotation> {
    let mib = match text.parse::<i64>() {
        Ok(mib) => mib,
        Err(_) => {
            let bytes = text
                .parse::<Quantity>()
                .map_err(|_| UnreadableAnnotation)?
                .value();
            bytes.saturating_add((1 << 20) - 1) >> 20
        }
    };
    Some(mib).filter(|mib| *mib > 0).ok_or(UnreadableAnnotation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        let list = list.iter();
        list.map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn a_product_matches_by_its_words() {
        let table = [
            ("NVIDIA A100-SXM4-80GB", "A100", true),
            ("NVIDIA-A100-SXM4-80GB", "a100-80gb", true),
            ("NVIDIA-A100-SXM4-80GB", "NVIDIA A100 SXM4 80GB", true),
            ("NVIDIA-A100-SXM4-80GB", "A10", false),
            ("NVIDIA-A100-SXM4-40GB", "A100-80GB", false),
            ("NVIDIA GeForce RTX 4090", "rtx-4090", true),
            ("NVIDIA GeForce RTX 4090", "4090-rtx", false),
            ("V100M16", "V100M32", false),
        ];
        for (product, asked, want) in table {
            let [product, asked] = [product, asked].map(|text| Product::read(text).unwrap());
            assert_eq!(product.is(&asked), want, "{product} as {asked}");
        }
        assert_eq!(Product::read(" - "), None);
    }

    #[test]
    fn versions_are_compared_number_by_number() {
        let table = [("9.0", "8.9"), ("535.104.05", "535.54.3"), ("10", "9.9")];
        for (newer, older) in table {
            assert!(
                DottedVersion::read(newer) > DottedVersion::read(older),
                "{newer}"
            );
        }
        assert_eq!(DottedVersion::read("535.0"), DottedVersion::read("535"));
        assert_eq!(DottedVersion::read("8.x"), None);
        assert_eq!(DottedVersion::read(""), None);
        assert_eq!(DottedVersion::read("9.0").unwrap().to_string(), "9.0");
    }

    #[test]
    fn the_gpu_type_is_read_from_the_inventory_or_from_labels() {
        let labels = map(&[
            ("nvidia.com/gpu.product", "NVIDIA-L40S"),
            ("nvidia.com/gpu.compute.major", "8"),
            ("nvidia.com/gpu.compute.minor", "9"),
            ("nvidia.com/cuda.driver.major", "535"),
            ("nvidia.com/cuda.driver.minor", "104"),
            ("nvidia.com/cuda.driver.rev", "05"),
        ]);
        let kind = GpuKind::read(&labels, &[]);
        assert_eq!(kind.products, [Product::read("NVIDIA-L40S").unwrap()]);
        assert_eq!(kind.compute, DottedVersion::read("8.9"));
        assert_eq!(kind.driver, DottedVersion::read("535.104.5"));
        let gpu = |model: &str, compute: &str| GpuDevice {
            model: model.into(),
            compute_capability: compute.into(),
            ..GpuDevice::default()
        };
        let kind = GpuKind::read(&labels, &[gpu("H100", "9.0"), gpu("A100", "8.0")]);
        assert_eq!(kind.products.len(), 2);
        assert_eq!(kind.compute, DottedVersion::read("8.0"));
        let kind = GpuKind::read(&labels, &[gpu("", "")]);
        assert_eq!(kind.products, [Product::read("NVIDIA-L40S").unwrap()]);
        assert_eq!(kind.compute, DottedVersion::read("8.9"));
        assert_eq!(GpuKind::read(&map(&[]), &[]), GpuKind::default());
    }

    #[test]
    fn the_first_need_that_is_not_met_is_named() {
        let labels = map(&[
            ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
            ("nvidia.com/gpu.compute.major", "9"),
            ("nvidia.com/gpu.compute.minor", "0"),
            ("nvidia.com/cuda.driver-version.full", "550.54.15"),
        ]);
        let kind = GpuKind::read(&labels, &[]);
        let table = [
            (vec![("muster.io/gpu-model", "A100,H100")], None),
            (
                vec![("muster.io/gpu-model", "A100")],
                Some(InfeasibleReason::GpuModel),
            ),
            (vec![("muster.io/gpu-min-memory", "80000")], None),
            (
                vec![("muster.io/gpu-min-memory", "80Gi")],
                Some(InfeasibleReason::GpuMemory),
            ),
            (vec![("muster.io/gpu-min-memory", "80G")], None),
            (vec![("muster.io/gpu-min-compute", "9.0")], None),
            (
                vec![("muster.io/gpu-min-compute", "10.0")],
                Some(InfeasibleReason::GpuCompute),
            ),
            (vec![("muster.io/gpu-min-driver", "550")], None),
            (
                vec![("muster.io/gpu-min-driver", "560.28")],
                Some(InfeasibleReason::GpuDriver),
            ),
        ];
        for (notes, want) in table {
            let needs = Needs::read(&map(&notes)).unwrap();
            assert_eq!(needs.refusal(&kind, Some(81559)), want, "{notes:?}");
            if let Some(refusal) = want {
                assert!(needs.remedy(refusal).is_some(), "{notes:?}");
            }
            let unknown = needs.refusal(&GpuKind::default(), None);
            assert!(unknown.is_some(), "{notes:?} of GPUs of unknown type");
        }
        assert_eq!(Needs::default().refusal(&GpuKind::default(), None), None);
    }

    #[test]
    fn nonsense_is_not_passed_over() {
        let table = [
            ("muster.io/gpu-model", "A100,"),
            ("muster.io/gpu-min-memory", "much"),
            ("muster.io/gpu-min-memory", "-5"),
            ("muster.io/gpu-min-compute", "sm_90"),
            ("muster.io/gpu-min-driver", "new"),
        ];
        for note in table {
            assert_eq!(
                Needs::read(&map(&[note])),
                Err(UnreadableAnnotation),
                "{note:?}"
            );
        }
    }
}
