//! GPU sharing: how much of a node's GPUs a pod takes that requests a part of one, and what is held
//! of each GPU (`gpus`). The annotations are read by `resources::parts`; `pick` chooses the GPU;
//! `gpus` counts how many such pods fit on a node; `memory` recounts when a node's memory changes.
//!
//! A pod requests a part by annotation: `muster.io/gpu-fraction`, or `muster.io/gpu-memory` in MiB,
//! which is a part that depends on the node, rounded up to hundredths of a GPU's memory. Parts are
//! counted in thousandths. A GPU is shared up to 1000 of them; a pod that requests whole GPUs gets
//! only GPUs that no pod has a part of. Requests in other device plugins' resources count the same.
//! Queues are charged the part. MIG slices are resources by name (`slices`).
//!
//! Example: `gpu-fraction: 0.25` takes 250 thousandths: four such pods fit on one GPU.
//!
//! Tests: `tests/sharing.rs`, `tests/sharing_properties.rs`.

mod gpus;
mod memory;
mod pick;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use resources::amounts::Amounts;
use resources::parts::PartRequest;

use crate::gpu::Needs;
use crate::node::Node;
use crate::resource::{AMOUNT_MAX, Demand, GPU, GPU_UNIT, each};

pub(crate) use gpus::{FreeGpus, GpuLedger};
pub use pick::GpuOrder;
pub(crate) use pick::fits_at_once;
pub(crate) use resources::parts::{SharedPart, foreign};

/// What a pod takes on its node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Take {
    /// What is charged to the node and the queue.
    pub(crate) demand: Demand,
    /// The part of each GPU, in thousandths.
    pub(crate) each: i64,
    /// The number of GPUs.
    pub(crate) gpus: i64,
}

impl Take {
    /// What a class takes on a node, or counts as without one.
    pub(crate) fn of(mut demand: Demand, share: Option<SharedPart>, node: Option<&Node>) -> Take {
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

/// What a pod's annotations request of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuAnnotations {
    /// What the GPUs must be.
    pub(crate) needs: Needs,
    /// `None`: whole GPUs, as many as its containers request.
    pub(crate) share: Option<SharedPart>,
    /// True if an annotation cannot be read.
    pub(crate) unreadable: bool,
    /// The container that gets them, if one is named.
    pub(crate) container: Option<String>,
}

impl GpuAnnotations {
    /// Reads a pod's annotations and its containers' requests.
    pub(crate) fn read(
        meta: &ObjectMeta,
        spec: &k8s::PodSpec,
        requests: &Amounts,
    ) -> GpuAnnotations {
        let none = BTreeMap::new();
        let notes = meta.annotations.as_ref().unwrap_or(&none);
        let asked = PartRequest::read(Some(notes), spec, requests);
        let needs = Needs::read(notes);
        GpuAnnotations {
            unreadable: asked.unreadable || needs.is_err(),
            needs: needs.unwrap_or_default(),
            share: asked.share.map(|share| SharedPart {
                gpus: share.gpus.clamp(0, AMOUNT_MAX / GPU_UNIT),
                ..share
            }),
            container: asked.container,
        }
    }
}
