//! Sharing GPUs: how much of a node's GPUs a pod takes that asks for a part of one, and what of each
//! GPU is held (`gpus`). How a pod says so is `resources::parts`'; which GPU it gets is `pick`'s, how
//! many such pods a node holds `gpus`', what changes when a node's memory does `memory`'s.
//!
//! A pod asks by annotation: `muster.io/gpu-fraction`, or `muster.io/gpu-memory` in MiB, which is a
//! part that depends on the node: rounded up to hundredths of what its GPUs have. Parts are counted
//! in thousandths. A GPU is shared up to 1000 of them; who asks for whole GPUs gets such as nobody
//! has a part of. What containers ask for in other device plugins' resources is the same. Queues are
//! charged the part. Slices of a GPU that the driver cuts (MIG) are resources by name of their own
//! (`slices`).

mod gpus;
mod memory;
mod pick;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::amounts::Amounts;
use resources::parts::Asked;

use crate::gpu::Needs;
use crate::node::Node;
use crate::resource::{AMOUNT_MAX, Demand, GPU, GPU_UNIT, each};

pub(crate) use gpus::{FreeGpus, Ledger};
pub use pick::GpuOrder;
pub(crate) use pick::fits_at_once;
pub(crate) use resources::parts::{Share, foreign};

/// What a pod takes on its node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Take {
    /// What goes on the node's and the queue's account.
    pub(crate) demand: Demand,
    /// How much of each GPU.
    pub(crate) each: i64,
    /// Of how many GPUs.
    pub(crate) gpus: i64,
}

impl Take {
    /// Of what a class asks for: what it takes on a node, or counts as while it has none.
    pub(crate) fn of(mut demand: Demand, share: Option<Share>, node: Option<&Node>) -> Take {
        let asked = demand.get(GPU);
        let Some(share) = share else {
            return Take {
                gpus: asked / GPU_UNIT,
                demand,
                each: GPU_UNIT,
            };
        };
        let gpus = share.gpus;
        let part = match (share.part, node) {
            (part, Some(node)) if part.depends_on_memory() => {
                part.of(node.gpu_memory()).min(GPU_UNIT)
            }
            _ => asked / gpus.max(1),
        };
        demand.set(GPU, part * gpus);
        let models = node.map_or(0, Node::models);
        each(models).for_each(|ix| demand.set(ix, part * gpus));
        Take {
            demand,
            each: part,
            gpus,
        }
    }
}

/// What a pod says of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wish {
    /// What they must be.
    pub(crate) needs: Needs,
    /// None: whole ones, as many as its containers say.
    pub(crate) share: Option<Share>,
    /// Something is said that cannot be read.
    pub(crate) unreadable: bool,
    /// The container that gets them, where one is named.
    pub(crate) container: Option<String>,
}

impl Wish {
    /// Reads what a pod says: its annotations, and what its containers ask for.
    pub(crate) fn read(meta: &ObjectMeta, spec: &k8s::PodSpec, requests: &Amounts) -> Wish {
        let none = BTreeMap::new();
        let notes = meta.annotations.as_ref().unwrap_or(&none);
        let asked = Asked::read(Some(notes), spec, requests);
        let needs = Needs::read(notes);
        Wish {
            unreadable: asked.unreadable || needs.is_err(),
            needs: needs.unwrap_or_default(),
            share: asked.share.map(|share| Share {
                gpus: share.gpus.clamp(0, AMOUNT_MAX / GPU_UNIT),
                ..share
            }),
            container: asked.container,
        }
    }
}
