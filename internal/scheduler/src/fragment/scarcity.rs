//! The price of the shapes of nodes that only some pods can use, but those can't do without.

use std::collections::BTreeMap;

use super::mix::Mix;
use super::node::{Room, Shape};

/// Part of all GPUs below which the shapes open to a class count as scarce for it.
const FEW: f64 = 0.5;

/// For each shape the demand of the classes bound to it, per 1 of its GPUs, when the mix asks as
/// many GPUs as the cluster has.
pub(super) fn scarcity(mix: &Mix, shapes: &BTreeMap<Shape, u32>) -> BTreeMap<Shape, f64> {
    let gpus = |shape: &Shape, nodes: u32| f64::from(shape.gpus) * f64::from(nodes);
    let all: f64 = shapes.iter().map(|(s, n)| gpus(s, *n)).sum();
    let mean = mix.mean_gpu();
    let mut out: BTreeMap<Shape, f64> = shapes.keys().map(|s| (*s, 0.0)).collect();
    if mean <= 0.0 || all <= 0.0 {
        return out;
    }
    for (demand, weight) in mix.classes().iter().filter(|(d, _)| d.gpus > 0) {
        let open: Vec<(&Shape, &u32)> = shapes
            .iter()
            .filter(|(shape, _)| Room::empty(shape).fits(demand))
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
