//! A pod's requirements for its GPUs and the properties of a node's: product, memory, compute
//! capability, driver. Read here anew from annotations, labels and inventory.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::devices::GpuDevice;
use resources::names;
use resources::quantity::Quantity;

use crate::node_facts::NodeFacts;

/// The words of a name, in capitals.
pub(crate) fn words(name: &str) -> Vec<String> {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.filter(|word| !word.is_empty());
    words.map(str::to_uppercase).collect()
}

/// Whether a product's words contain those of a shorter name, in the same order.
pub(crate) fn contains_name(product: &[String], name: &[String]) -> bool {
    let mut left = name.iter().peekable();
    for word in product {
        left.next_if(|next| *next == word);
    }
    left.peek().is_none()
}

/// The words of the product names of a node's GPUs.
pub(crate) fn products(
    labels: Option<&BTreeMap<String, String>>,
    known: &[GpuDevice],
) -> BTreeSet<Vec<String>> {
    let all: BTreeSet<Vec<String>> = known.iter().map(|gpu| words(&gpu.model)).collect();
    if !all.is_empty() && all.iter().all(|words| !words.is_empty()) {
        return all;
    }
    let label = labels.and_then(|all| all.get(names::NVIDIA_GPU_PRODUCT));
    let words = label.map(|label| words(label));
    words
        .into_iter()
        .filter(|words| !words.is_empty())
        .collect()
}

/// A version's numbers without trailing zeros; none for other text.
fn version(text: &str) -> Option<Vec<u64>> {
    let mut parts = Vec::new();
    for part in text.trim().split('.') {
        parts.push(part.parse().ok()?);
    }
    while parts.len() > 1 && parts.ends_with(&[0]) {
        parts.pop();
    }
    Some(parts)
}

/// The least compute capability and the oldest driver of a node's GPUs.
pub(crate) fn versions(
    labels: Option<&BTreeMap<String, String>>,
    known: &[GpuDevice],
) -> (Option<Vec<u64>>, Option<Vec<u64>>) {
    let least = |of: fn(&GpuDevice) -> &String| {
        let all: Option<Vec<_>> = known.iter().map(|gpu| version(of(gpu))).collect();
        all.and_then(|all| all.into_iter().min())
    };
    let label = |name: &str| labels.and_then(|all| all.get(name)).map(|text| text.trim());
    let joined = |list: &[&str]| {
        let all: Option<Vec<&str>> = list.iter().map(|name| label(name)).collect();
        all.and_then(|all| version(&all.join(".")))
    };
    let compute = least(|gpu| &gpu.compute_capability)
        .or_else(|| joined(&[names::NVIDIA_COMPUTE_MAJOR, names::NVIDIA_COMPUTE_MINOR]));
    let driver = least(|gpu| &gpu.driver)
        .or_else(|| label(names::NVIDIA_DRIVER).and_then(version))
        .or_else(|| {
            names::NVIDIA_DRIVER_PARTS
                .iter()
                .find_map(|list| joined(list))
        });
    (compute, driver)
}

/// A pod's requirements for its GPUs, as written.
#[derive(Default)]
pub(crate) struct GpuNeeds(Vec<(&'static str, String)>);

impl GpuNeeds {
    pub(crate) fn read(meta: &ObjectMeta) -> GpuNeeds {
        let all = [
            names::GPU_MODEL,
            names::GPU_MIN_MEMORY,
            names::GPU_MIN_COMPUTE,
            names::GPU_MIN_DRIVER,
        ];
        let notes = meta.annotations.as_ref();
        let needs = all.into_iter().filter_map(|name| {
            let text = notes?.get(name)?.trim();
            (!text.is_empty()).then(|| (name, text.to_owned()))
        });
        GpuNeeds(needs.collect())
    }

    /// The first requirement that a node does not meet; an unreadable one is never met.
    pub(crate) fn unmet(&self, node: &NodeFacts) -> Option<String> {
        let meets = |name: &str, text: &str| match name {
            names::GPU_MODEL => {
                let models: Vec<Vec<String>> = text.split([',', '|']).map(words).collect();
                let one = |product: &Vec<String>| {
                    let mut named = models.iter().filter(|model| !model.is_empty());
                    named.any(|model| contains_name(product, model))
                };
                !node.products.is_empty() && node.products.iter().all(one)
            }
            names::GPU_MIN_MEMORY => {
                let bytes = match text.parse::<i64>() {
                    Ok(mib) => mib.checked_mul(1 << 20),
                    Err(_) => text.parse::<Quantity>().ok().map(|size| size.value()),
                };
                let has = node.gpu_memory.and_then(|mib| mib.checked_mul(1 << 20));
                has.zip(bytes).is_some_and(|(has, asked)| has >= asked)
            }
            names::GPU_MIN_COMPUTE => version(text).is_some_and(|v| node.compute >= Some(v)),
            _ => version(text).is_some_and(|v| node.driver >= Some(v)),
        };
        let unmet = self.0.iter().find(|(name, text)| !meets(name, text));
        unmet.map(|(name, text)| format!("asks for {name} {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_matches_some_of_its_words() {
        let is = |product: &str, name: &str| contains_name(&words(product), &words(name));
        assert!(is("NVIDIA A100-SXM4-80GB", "a100"));
        assert!(is("NVIDIA-A100-SXM4-80GB", "A100-80GB"));
        assert!(!is("NVIDIA-A100-SXM4-80GB", "A10"));
        assert!(!is("NVIDIA-A100-SXM4-80GB", "80GB-A100"));
    }

    #[test]
    fn versions_go_by_their_numbers() {
        assert!(version("9.0") > version("8.9"));
        assert!(version("535.104.05") > version("535.54"));
        assert_eq!(version("535.0"), version("535"));
        assert_eq!(version("sm_90"), None);
    }
}
