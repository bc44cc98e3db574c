//! The price of scarce node shapes: shapes that only some classes of pods can use, where these
//! classes have few other nodes (`only_the_shapes_that_a_class_is_bound_to_are_scarce`).

use std::collections::BTreeMap;

use super::mix::Mix;
use super::node::{NodeRoom, NodeShape};

/// A class's shapes are scarce if they have less than this part of all GPUs.
const FEW: f64 = 0.5;

/// For each shape the demand of the classes that need it, per 1 of its GPUs, if the mix requested
/// as many GPUs as the cluster has.
pub(super) fn scarcity(mix: &Mix, shapes: &BTreeMap<NodeShape, u32>) -> BTreeMap<NodeShape, f64> {
    let gpus = |shape: &NodeShape, nodes: u32| f64::from(shape.gpus) * f64::from(nodes);
    let all: f64 = shapes.iter().map(|(s, n)| gpus(s, *n)).sum();
    let mean = mix.mean_gpu();
    let mut out: BTreeMap<NodeShape, f64> = shapes.keys().map(|s| (*s, 0.0)).collect();
    if mean <= 0.0 || all <= 0.0 {
        return out;
    }
    for (demand, weight) in mix.classes().iter().filter(|(d, _)| d.gpus > 0) {
        let open: Vec<(&NodeShape, &u32)> = shapes
            .iter()
            .filter(|(shape, _)| NodeRoom::empty(shape).fits(demand))
            .collect();
        let room: f64 = open.iter().map(|(s, n)| gpus(s, **n)).sum();
        if room > 0.0 && room < FEW * all {
            let asked = weight * f64::from(demand.gpu_total()) / mean * all;
            for (shape, _) in open {
                if let Some(price) = out.get_mut(shape) {
                    *price += asked / room;
                }
            }
        }
    }
    out
}
