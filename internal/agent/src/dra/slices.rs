//! The node's ResourceSlices: what has to be written so that they say what the machine has. Pure.
//!
//! A node's pool is one slice as long as it has room there, and one more for each GPU that is offered
//! in partitions, which share its counters. A change in one of them is one write, which nobody can
//! see half of. Where several change they are written under a new generation, and a scheduler takes
//! nothing from the pool until all of them bear that.
//!
//! An API server without DRAPartitionableDevices drops counters, but not from a slice that has some.
//! So counters are written first, without devices, and partitions only where they are: of several
//! servers some may drop them, and partitions that overlap are never seen without.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{
    CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;

use super::DRIVER;

/// The most devices that one slice takes.
const DEVICES_MAX: usize = 128;

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A slice that isn't there.
    Create(Box<ResourceSlice>),
    /// A slice that says something else.
    Replace(Box<ResourceSlice>),
    /// A slice, by name, that there is one too many of.
    Delete(String),
}

/// The node that the slices are of.
pub struct Owner {
    name: String,
    reference: OwnerReference,
}

impl Owner {
    /// Of a node as the API has it: its slices go when it does.
    pub fn of(node: &Node) -> Owner {
        let name = node.metadata.name.clone().unwrap_or_default();
        Owner {
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

    fn spec(&self, content: &Content, generation: i64, count: usize) -> ResourceSliceSpec {
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

    /// A slice by which an API shows whether it keeps counters, if it is asked to make it in a dry run.
    pub fn question(&self, set: &CounterSet) -> ResourceSlice {
        let content = Content {
            devices: Vec::new(),
            shared: Some(set.clone()),
        };
        self.slice(self.spec(&content, 1, 1))
    }

    /// What is to be written where these slices are there and these devices are. A node without
    /// devices has an empty slice: its driver is there. What shares counters is written when its slice
    /// is there with them, which an API then keeps: after these writes there may be more.
    pub fn writes(
        &self,
        there: &[&ResourceSlice],
        devices: &[Device],
        shared: &[CounterSet],
    ) -> Vec<Write> {
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
            // One write, which nobody can see half of.
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
                None => Write::Create(Box::new(self.slice(spec))),
                Some(slice) => replace(slice, spec),
            });
        }
        let surplus = old.filter_map(|slice| slice.metadata.name.clone());
        // What is gone goes first.
        let mut all: Vec<Write> = surplus.map(Write::Delete).collect();
        all.append(&mut writes);
        all
    }
}

fn replace(slice: &ResourceSlice, spec: ResourceSliceSpec) -> Write {
    Write::Replace(Box::new(ResourceSlice {
        metadata: slice.metadata.clone(),
        spec,
    }))
}

/// What one slice is to have.
#[derive(Clone, Debug)]
struct Content {
    devices: Vec<Device>,
    shared: Option<CounterSet>,
}

impl Content {
    /// Whether a slice has the same counters; never of one without.
    fn is_of(&self, slice: &ResourceSlice) -> bool {
        let sets = slice.spec.shared_counters.as_deref();
        self.shared.is_some() && sets == self.shared.as_ref().map(std::slice::from_ref)
    }
}

/// The devices that share nothing, as many in a slice as it takes, and those of each set: counters
/// are their slice's own.
fn contents(devices: &[Device], shared: &[CounterSet]) -> Vec<Content> {
    let set_of = |device: &Device| {
        let consumed = device.consumes_counters.iter().flatten().next();
        consumed.map(|it| it.counter_set.clone())
    };
    let plain = devices.iter().filter(|device| set_of(device).is_none());
    let plain: Vec<Device> = plain.cloned().collect();
    let plain = plain.chunks(DEVICES_MAX).map(|chunk| Content {
        devices: chunk.to_vec(),
        shared: None,
    });
    let mut all: Vec<Content> = plain.collect();
    for set in shared {
        let of = |device: &&Device| set_of(device).as_ref() == Some(&set.name);
        let devices: Vec<Device> = devices.iter().filter(of).cloned().collect();
        if !devices.is_empty() {
            all.push(Content {
                devices,
                shared: Some(set.clone()),
            });
        }
    }
    if all.is_empty() {
        all.push(Content {
            devices: Vec::new(),
            shared: None,
        });
    }
    all
}

#[cfg(test)]
#[path = "slices_tests.rs"]
mod tests;
