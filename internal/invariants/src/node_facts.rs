//! What the account keeps of a node.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1 as k8s;
use resources::amounts::Amounts;

/// A node, as the predicates read it.
pub(crate) struct NodeFacts {
    pub(crate) allocatable: Amounts,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<k8s::Taint>,
    pub(crate) cordoned: bool,
    pub(crate) not_ready: bool,
    /// Device id to health; none if devices are only counted.
    pub(crate) devices: Option<BTreeMap<String, bool>>,
    /// Exclusive GPUs: a container can use no other device beside one of these.
    pub(crate) alone: BTreeSet<String>,
    /// Resources of which a container gets at most one.
    pub(crate) one_at_most: BTreeSet<String>,
    /// The memory of each GPU in MiB, if known.
    pub(crate) gpu_memory: Option<i64>,
    /// Slices of its GPUs and other vendors' devices by id: their resource, and whether they may be
    /// allocated.
    pub(crate) listed: BTreeMap<String, (String, bool)>,
    /// The words of each product name among its GPUs.
    pub(crate) products: BTreeSet<Vec<String>>,
    /// The least compute capability and the oldest driver among them.
    pub(crate) compute: Option<Vec<u64>>,
    pub(crate) driver: Option<Vec<u64>>,
}
