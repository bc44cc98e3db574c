//! The node's ResourceSlices: what has to be written so that they say what the machine has. Pure.
//!
//! A node's pool is one slice as long as it has room there: then a change is one write, which
//! nobody can see half of. A pool of several slices is written under a new generation, and a
//! scheduler takes nothing from it until all of them bear that.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
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

    fn spec(&self, devices: &[Device], generation: i64, count: usize) -> ResourceSliceSpec {
        ResourceSliceSpec {
            driver: DRIVER.into(),
            node_name: Some(self.name.clone()),
            pool: ResourcePool {
                name: self.name.clone(),
                generation,
                resource_slice_count: i64::try_from(count).unwrap_or(i64::MAX),
            },
            devices: (!devices.is_empty()).then(|| devices.to_vec()),
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

    /// What is to be written where these slices are there and these devices are. A node without
    /// devices has an empty slice: its driver is there.
    pub fn writes(&self, there: &[&ResourceSlice], devices: &[Device]) -> Vec<Write> {
        let mut wanted: Vec<&[Device]> = devices.chunks(DEVICES_MAX).collect();
        if wanted.is_empty() {
            wanted.push(&[]);
        }
        let generations = there.iter().map(|slice| slice.spec.pool.generation);
        let newest = generations.max().unwrap_or(0);
        let count = wanted.len();
        let specs = |generation| {
            let one = |chunk: &&[Device]| self.spec(chunk, generation, count);
            wanted.iter().map(one).collect::<Vec<_>>()
        };
        let mut left: Vec<&ResourceSlice> = there.to_vec();
        let now = specs(newest);
        let all_there = now.iter().all(|spec| {
            let same = left.iter().position(|slice| slice.spec == *spec);
            same.map(|at| left.swap_remove(at)).is_some()
        });
        if all_there && left.is_empty() {
            return Vec::new();
        }
        let in_one_write = there.len() == 1 && now.len() == 1;
        let specs = if in_one_write { now } else { specs(newest + 1) };
        let mut writes = Vec::new();
        let mut old = there.iter();
        for spec in specs {
            writes.push(match old.next() {
                None => Write::Create(Box::new(self.slice(spec))),
                Some(slice) => Write::Replace(Box::new(ResourceSlice {
                    metadata: slice.metadata.clone(),
                    spec,
                })),
            });
        }
        let surplus = old.filter_map(|slice| slice.metadata.name.clone());
        // What is gone goes first.
        let mut all: Vec<Write> = surplus.map(Write::Delete).collect();
        all.append(&mut writes);
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn owner() -> Owner {
        let mut node = Node::default();
        node.metadata.name = Some("box".into());
        node.metadata.uid = Some("1234".into());
        Owner::of(&node)
    }

    fn devices(count: usize) -> Vec<Device> {
        let one = |at| Device {
            name: format!("gpu-{at}"),
            ..Device::default()
        };
        (0..count).map(one).collect()
    }

    /// An API that keeps slices.
    #[derive(Default)]
    struct Kept {
        slices: BTreeMap<String, ResourceSlice>,
        made: usize,
    }

    impl Kept {
        fn write(&mut self, write: Write) {
            match write {
                Write::Create(mut slice) => {
                    self.made += 1;
                    let name = format!("box-{}", self.made);
                    slice.metadata.name = Some(name.clone());
                    self.slices.insert(name, *slice);
                }
                Write::Replace(slice) => {
                    let name = slice.metadata.name.clone().expect("a name");
                    assert!(self.slices.insert(name, *slice).is_some(), "it was there");
                }
                Write::Delete(name) => {
                    assert!(self.slices.remove(&name).is_some(), "it was there");
                }
            }
        }

        fn writes(&self, devices: &[Device]) -> Vec<Write> {
            owner().writes(&self.slices.values().collect::<Vec<_>>(), devices)
        }

        /// The devices of the pool as a scheduler reads it; `None` while it is not whole.
        fn pool(&self) -> Option<Vec<String>> {
            let all = self.slices.values();
            let newest = all.clone().map(|it| it.spec.pool.generation).max()?;
            let all: Vec<_> = all.filter(|it| it.spec.pool.generation == newest).collect();
            let whole = (all.iter()).all(|it| {
                it.spec.pool.resource_slice_count == i64::try_from(all.len()).unwrap_or(0)
            });
            let mut names: Vec<String> = (all.iter())
                .flat_map(|it| it.spec.devices.iter().flatten())
                .map(|device| device.name.clone())
                .collect();
            names.sort();
            whole.then_some(names)
        }
    }

    #[test]
    fn a_change_within_one_slice_is_one_write_and_keeps_the_generation() {
        let mut kept = Kept::default();
        let first = kept.writes(&devices(8));
        assert!(matches!(&first[..], [Write::Create(_)]), "{first:?}");
        first.into_iter().for_each(|write| kept.write(write));
        assert_eq!(kept.writes(&devices(8)), []);
        let second = kept.writes(&devices(7));
        let [Write::Replace(slice)] = &second[..] else {
            panic!("{second:?}");
        };
        assert_eq!(slice.spec.pool.generation, 1);
        assert_eq!(slice.spec.devices.as_ref().map(Vec::len), Some(7));
        let owner = &slice.metadata.owner_references.as_ref().expect("an owner")[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Node", "1234"));
    }

    #[test]
    fn a_node_without_devices_has_an_empty_slice() {
        let mut kept = Kept::default();
        for write in kept.writes(&[]) {
            kept.write(write);
        }
        assert_eq!(kept.slices.len(), 1);
        assert_eq!(kept.writes(&[]), []);
    }

    proptest! {
        /// Whatever came before: between the writes a pool is what it was, what it is to be, or not
        /// whole; after them it is what it is to be, and nothing is left to write.
        #[test]
        fn a_pool_is_never_seen_half_written(counts in prop::collection::vec(0_usize..400, 1..6)) {
            let mut kept = Kept::default();
            for count in counts {
                let before = kept.pool();
                let names = |devices: Vec<Device>| {
                    let mut names: Vec<String> = devices.into_iter().map(|it| it.name).collect();
                    names.sort();
                    Some(names)
                };
                let after = names(devices(count));
                for write in kept.writes(&devices(count)) {
                    kept.write(write);
                    let seen = kept.pool();
                    prop_assert!(seen.is_none() || seen == before || seen == after);
                }
                prop_assert_eq!(kept.pool(), after);
                prop_assert_eq!(kept.writes(&devices(count)), vec![]);
                let most = kept.slices.values().filter_map(|it| it.spec.devices.as_ref());
                prop_assert!(most.map(Vec::len).max().unwrap_or(0) <= DEVICES_MAX);
            }
        }
    }
}
