//! Fragmentation of a node against a mix of pods, as "Beware of Fragmentation" (Weng et al.,
//! USENIX ATC 2023) defines it. A measure: the policy of this module does not descend it.

use super::mix::Mix;
use super::node::NodeRoom;

/// Expected idle GPU (1/1000 GPU) of the node that a pod of the mix could not use.
///
/// Sums per reason (lacks both, lacks GPU, lacks CPU, needs no GPU with and without CPU left,
/// wrong model), each in the order of the mix, and then over the reasons: the paper's own program
/// does so, and its policy, which cuts scores to integers, shows the last bit.
#[must_use]
pub fn fragmentation(mix: &Mix, room: &NodeRoom) -> f64 {
    let idle = f64::from(room.idle());
    let mut by = [0.0f64; 6];
    for (demand, weight) in mix.classes() {
        let enough = demand.cpu <= room.cpu && demand.mem <= room.mem;
        let (reason, lost) = if demand.gpus == 0 {
            (if enough { 3 } else { 4 }, idle)
        } else if !room.admits(demand) {
            (5, idle)
        } else {
            let (mut fitting, mut small) = (0u8, 0u32);
            for &free in room.gpu_slice() {
                if free >= demand.milli {
                    fitting += 1;
                } else {
                    small += u32::from(free);
                }
            }
            match (fitting >= demand.gpus, enough) {
                (true, true) => (1, f64::from(small)),
                (true, false) => (2, idle),
                (false, true) => (1, idle),
                (false, false) => (0, idle),
            }
        };
        by[reason] += weight * lost;
    }
    by.iter().sum()
}
