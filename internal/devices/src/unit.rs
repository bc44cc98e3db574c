//! The devices of each resource, as the kubelet counts them. Pure.

use std::collections::BTreeMap;

/// One device of a resource, as the kubelet counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// The kubelet's id for it: the UUID of a GPU or slice; `UUID::N` if that is shared.
    pub id: String,
    /// The UUID of the GPU or slice.
    pub device: String,
    /// Whether other containers may use the same device.
    pub shared: bool,
    /// Whether the device may be allocated.
    pub healthy: bool,
    /// The NUMA node to which it is attached, if known.
    pub numa: Option<u32>,
}

/// The devices of each resource, in the machine's order.
pub type Offers = BTreeMap<String, Vec<Unit>>;
