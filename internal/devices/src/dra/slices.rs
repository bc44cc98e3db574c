//! Computes the writes that bring the node's ResourceSlices to the machine's devices. Pure.
//!
//! A node's pool is one slice as long as it has room there, and one more for each GPU that is
//! offered in partitions, which share its counters. A change of one slice is one atomic write.
//! Changes of several are written under a new generation, and a scheduler takes nothing from the
//! pool until all slices have that generation.
//!
//! An API server without DRAPartitionableDevices drops counters, but not from a slice that already
//! has some. So counters are written first, without devices, and partitions only to slices with
//! counters: of several servers some may drop them, and overlapping partitions are never visible
//! without counters.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{
    CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;

use super::DRIVER;

/// The maximum number of devices in one slice.
const DEVICES_MAX: usize = 128;

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum SliceWrite {
    /// Creates a missing slice.
    Create(Box<ResourceSlice>),
    /// Replaces a slice with other content.
    Replace(Box<ResourceSlice>),
    /// Deletes a surplus slice, by name.
    Delete(String),
}

/// The node that owns the slices.
pub struct SliceOwner {
    name: String,
    reference: OwnerReference,
}

impl SliceOwner {
    /// The owner reference to a node: its slices are deleted with it.
    pub fn of(node: &Node) -> SliceOwner {
        let name = node.metadata.name.clone().unwrap_or_default();
        SliceOwner {
            reference: OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: name.clone(),
                uid: node.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: None,
            },
            name,
        }
    }

    fn spec(&self, content: &SliceContent, generation: i64, count: usize) -> ResourceSliceSpec {
        let devices = &content.devices;
        ResourceSliceSpec {
            driver: DRIVER.into(),
            node_name: Some(self.name.clone()),
            pool: ResourcePool {
                name: self.name.clone(),
                generation,
                resource_slice_count: i64::try_from(count).unwrap_or(i64::MAX),
            },
            devices: (!devices.is_empty()).then(|| devices.clone()),
            shared_counters: content.shared.clone().map(|set| vec![set]),
            ..ResourceSliceSpec::default()
        }
    }

    fn slice(&self, spec: ResourceSliceSpec) -> ResourceSlice {
        ResourceSlice {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-{DRIVER}-", self.name)),
                owner_references: Some(vec![self.reference.clone()]),
                ..ObjectMeta::default()
            },
            spec,
        }
    }

    /// A slice for a dry-run creation, which shows whether the API keeps counters.
    pub fn question(&self, set: &CounterSet) -> ResourceSlice {
        let content = SliceContent {
            devices: Vec::new(),
            shared: Some(set.clone()),
        };
        self.slice(self.spec(&content, 1, 1))
    }

    /// The writes from these present slices to these devices. A node without devices has an empty
    /// slice, because its driver exists. Devices that share counters are written only after their
    /// slice has the counters, which the API then keeps: after these writes there may be more.
    pub fn writes(
        &self,
        there: &[&ResourceSlice],
        devices: &[Device],
        shared: &[CounterSet],
    ) -> Vec<SliceWrite> {
        let mut wanted = contents(devices, shared);
        for content in &mut wanted {
            if content.shared.is_some() && !there.iter().any(|slice| content.is_of(slice)) {
                content.devices.clear();
            }
        }
        let generations = there.iter().map(|slice| slice.spec.pool.generation);
        let newest = generations.max().unwrap_or(0);
        let count = wanted.len();
        let mut left: Vec<&ResourceSlice> = there.to_vec();
        let mut others = wanted.clone();
        others.retain(|content| {
            let spec = self.spec(content, newest, count);
            let same = left.iter().position(|slice| slice.spec == spec);
            same.map(|at| left.swap_remove(at)).is_none()
        });
        match (&left[..], &others[..]) {
            ([], []) => return Vec::new(),
            // One atomic write.
            ([slice], [content]) => {
                let spec = self.spec(content, newest, count);
                return vec![replace(slice, spec)];
            }
            _ => {}
        }
        let mut old: Vec<&ResourceSlice> = there.to_vec();
        let own: Vec<Option<&ResourceSlice>> = (wanted.iter())
            .map(|content| {
                let at = old.iter().position(|slice| content.is_of(slice));
                at.map(|at| old.remove(at))
            })
            .collect();
        let mut old = old.into_iter();
        let mut writes = Vec::new();
        for (content, own) in wanted.iter().zip(own) {
            let spec = self.spec(content, newest + 1, count);
            writes.push(match own.or_else(|| old.next()) {
                None => SliceWrite::Create(Box::new(self.slice(spec))),
                Some(slice) => replace(slice, spec),
            });
        }
        let surplus = old.filter_map(|slice| slice.metadata.name.clone());
        // Deletions come first.
        let mut all: Vec<SliceWrite> = surplus.map(SliceWrite::Delete).collect();
        all.append(&mut writes);
        all
    }
}

fn replace(slice: &ResourceSlice, spec: ResourceSliceSpec) -> SliceWrite {
    SliceWrite::Replace(Box::new(ResourceSlice {
        metadata: slice.metadata.clone(),
        spec,
    }))
}

/// The wanted content of one slice.
#[derive(Clone, Debug)]
struct SliceContent {
    devices: Vec<Device>,
    shared: Option<CounterSet>,
}

impl SliceContent {
    /// Whether a slice has the same counters; false for content without counters.
    fn is_of(&self, slice: &ResourceSlice) -> bool {
        let sets = slice.spec.shared_counters.as_deref();
        self.shared.is_some() && sets == self.shared.as_ref().map(std::slice::from_ref)
    }
}

/// The devices without counters, as many as fit into each slice, and those of each set: counters
/// belong to one slice.
fn contents(devices: &[Device], shared: &[CounterSet]) -> Vec<SliceContent> {
    let set_of = |device: &Device| {
        let consumed = device.consumes_counters.iter().flatten().next();
        consumed.map(|it| it.counter_set.clone())
    };
    let plain = devices.iter().filter(|device| set_of(device).is_none());
    let plain: Vec<Device> = plain.cloned().collect();
    let plain = plain.chunks(DEVICES_MAX).map(|chunk| SliceContent {
        devices: chunk.to_vec(),
        shared: None,
    });
    let mut all: Vec<SliceContent> = plain.collect();
    for set in shared {
        let of = |device: &&Device| set_of(device).as_ref() == Some(&set.name);
        let devices: Vec<Device> = devices.iter().filter(of).cloned().collect();
        if !devices.is_empty() {
            all.push(SliceContent {
                devices,
                shared: Some(set.clone()),
            });
        }
    }
    if all.is_empty() {
        all.push(SliceContent {
            devices: Vec::new(),
            shared: None,
        });
    }
    all
}

#[cfg(test)]
#[path = "slices_tests.rs"]
mod tests;
