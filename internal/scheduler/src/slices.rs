//! Slices of GPUs that the driver cut (MIG): which of them a pod gets that is bound, and who holds
//! which, where a node's inventory names them. How many there are is a resource as any other
//! (`nvidia.com/mig-1g.10gb`). Under the single strategy a slice is a GPU, and not seen here.

use std::collections::BTreeMap;
use std::sync::Arc;

use resources::devices::{ChosenDevices, Offered};
use resources::names::NVIDIA_MIG;

use crate::devices::{Ask, deal_as};
use crate::node::NodeIx;
use crate::pod::PodKey;
use crate::state::Scheduler;

/// One slice of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    id: Arc<str>,
    /// Its GPU.
    gpu: u32,
}

/// A node's healthy slices by resource, in the order of their GPUs.
pub(crate) type Cut = BTreeMap<String, Vec<Slice>>;

/// What an inventory says of slices that may be given out.
pub(crate) fn cut(offered: &Offered) -> Cut {
    let of = |(gpu, slice): &(u32, resources::devices::MigSlice)| {
        slice.healthy.then(|| Slice {
            id: Arc::from(slice.id.as_str()),
            gpu: *gpu,
        })
    };
    let slices = offered.slices.iter();
    slices
        .map(|(resource, list)| (resource.clone(), list.iter().filter_map(of).collect()))
        .collect()
}

/// Who holds which slices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    pods: BTreeMap<PodKey, (NodeIx, Vec<Arc<str>>)>,
    nodes: BTreeMap<NodeIx, BTreeMap<Arc<str>, usize>>,
}

impl Held {
    /// A pod on a node holds these, and no others.
    pub(crate) fn hold(&mut self, key: &PodKey, at: NodeIx, ids: Vec<Arc<str>>) {
        self.release(key);
        if ids.is_empty() {
            return;
        }
        let node = self.nodes.entry(at).or_default();
        for id in &ids {
            *node.entry(id.clone()).or_default() += 1;
        }
        self.pods.insert(key.clone(), (at, ids));
    }

    /// A pod holds none any more.
    pub(crate) fn release(&mut self, key: &PodKey) {
        let Some((at, ids)) = self.pods.remove(key) else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&at) else {
            return;
        };
        for id in ids {
            if let Some(times) = node.get_mut(&id) {
                *times -= 1;
                if *times == 0 {
                    node.remove(&id);
                }
            }
        }
        if node.is_empty() {
            self.nodes.remove(&at);
        }
    }

    fn is_held(&self, at: NodeIx, id: &Arc<str>) -> bool {
        self.nodes
            .get(&at)
            .is_some_and(|node| node.contains_key(id))
    }
}

/// The slices that a pod says it holds.
pub(crate) fn said(annotation: Option<&String>) -> Vec<Arc<str>> {
    let Some(text) = annotation.filter(|text| text.contains(NVIDIA_MIG)) else {
        return Vec::new();
    };
    let chosen: ChosenDevices = serde_json::from_str(text).unwrap_or_default();
    let mut ids: Vec<Arc<str>> = chosen
        .values()
        .flatten()
        .filter(|(resource, _)| resource.starts_with(NVIDIA_MIG))
        .flat_map(|(_, ids)| ids.iter().map(|id| Arc::from(id.as_str())))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

impl Scheduler {
    /// Adds the slices that a pod gets on the node that it is bound to: of GPUs of which others hold
    /// some before those that are idle, so that these can be cut anew.
    pub(crate) fn add_slices(
        &mut self,
        key: &PodKey,
        at: NodeIx,
        asks: &[Ask],
        devices: &mut ChosenDevices,
    ) {
        let Some(offer) = &self.nodes[at].offer else {
            return;
        };
        let mut taken = Vec::new();
        for (resource, slices) in &offer.cut {
            let mine: Vec<&Ask> = asks.iter().filter(|ask| ask.is_for(resource)).collect();
            let count = Ask::total(&mine);
            if count == 0 {
                continue;
            }
            let held = |slice: &&Slice| self.slices.is_held(at, &slice.id);
            let begun: Vec<u32> = slices.iter().filter(held).map(|slice| slice.gpu).collect();
            let mut free: Vec<&Slice> = slices.iter().filter(|slice| !held(slice)).collect();
            free.sort_by_key(|slice| !begun.contains(&slice.gpu));
            let ids: Vec<Arc<str>> = free
                .iter()
                .take(count)
                .map(|slice| slice.id.clone())
                .collect();
            deal_as(mine.into_iter(), &ids, resource, devices);
            taken.extend(ids);
        }
        self.slices.hold(key, at, taken);
    }
}
