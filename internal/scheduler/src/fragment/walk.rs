//! One node's room while a sequence of pods is offered to it, in the form that is fastest to
//! update. Module `rollout` chooses the pods.

use super::node::{MAX_GPUS, PodDemand, WHOLE};

/// A pod's request without the models that it admits: as little data as possible.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompactDemand {
    cpu: u32,
    mem: u32,
    milli: u16,
    gpus: u8,
}

impl CompactDemand {
    pub(super) fn of(demand: &PodDemand) -> CompactDemand {
        CompactDemand {
            cpu: demand.cpu,
            mem: demand.mem,
            milli: demand.milli,
            gpus: demand.gpus,
        }
    }
}

/// A node's room: the number of wholly free GPUs, and the free parts of the started ones, the
/// largest first. Equal rooms are equal values, whatever the numbering of the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeGpuRoom {
    /// Free CPU in 1/1000 core.
    pub(super) cpu: u32,
    /// Free memory in MiB.
    pub(super) mem: u32,
    /// Idle GPU in 1/1000, over all GPUs.
    pub(super) idle: u32,
    /// The number of its model's filter.
    pub(super) model: u8,
    whole: u8,
    parts: u8,
    /// Zero from `parts` on at the start, and never before it.
    part: [u16; MAX_GPUS],
}

impl NodeGpuRoom {
    /// A node with so much CPU, memory and no GPU.
    pub(super) fn new(cpu: u32, mem: u32, model: u8) -> NodeGpuRoom {
        NodeGpuRoom {
            cpu,
            mem,
            idle: 0,
            model,
            whole: 0,
            parts: 0,
            part: [0; MAX_GPUS],
        }
    }

    /// Adds a GPU of which so much is free.
    pub(super) fn add(&mut self, free: u16) {
        self.idle += u32::from(free);
        if free == WHOLE {
            self.whole += 1;
        } else if free > 0 {
            self.insert(free);
        }
    }

    /// Wholly free GPUs.
    pub(super) fn whole(&self) -> usize {
        usize::from(self.whole)
    }

    /// The largest free piece of a started GPU, in 1/1000.
    pub(super) fn largest(&self) -> u16 {
        if self.parts == 0 { 0 } else { self.part[0] }
    }

    /// A hash of the room.
    pub(super) fn mixed(&self) -> usize {
        let mut hash = u64::from(self.cpu) ^ (u64::from(self.mem) << 32);
        hash ^= u64::from(self.model) << 20 ^ u64::from(self.whole) << 28;
        for four in self.part.chunks(4) {
            let word = four.iter().fold(0u64, |a, &g| a << 16 | u64::from(g));
            hash = (hash ^ word)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29);
            if word == 0 {
                break;
            }
        }
        (hash >> 17) as usize
    }

    /// Inserts a piece in order.
    fn insert(&mut self, free: u16) {
        let mut at = usize::from(self.parts).min(MAX_GPUS - 1);
        while at > 0 && self.part[at - 1] < free {
            self.part[at] = self.part[at - 1];
            at -= 1;
        }
        self.part[at] = free;
        self.parts += 1;
    }

    /// Takes from the piece at `at`.
    fn shrink(&mut self, mut at: usize, by: u16) {
        let free = self.part[at] - by;
        let last = usize::from(self.parts) - 1;
        while at < last && self.part[at + 1] > free {
            self.part[at] = self.part[at + 1];
            at += 1;
        }
        self.part[at] = free;
        // A piece that is used up is the last in order.
        self.parts -= u8::from(free == 0);
    }

    /// Takes a pod whose model is admissible, if it fits: a share on the tightest GPU.
    #[inline]
    pub(super) fn offer(&mut self, ask: &CompactDemand) -> bool {
        if ask.cpu > self.cpu || ask.mem > self.mem {
            return false;
        }
        if ask.milli == WHOLE {
            if ask.gpus > self.whole {
                return false;
            }
            self.whole -= ask.gpus;
        } else if ask.gpus > 0 {
            let parts = &self.part[..usize::from(self.parts).min(MAX_GPUS)];
            if let Some(at) = parts.iter().rposition(|free| *free >= ask.milli) {
                self.shrink(at, ask.milli);
            } else if self.whole > 0 {
                self.whole -= 1;
                self.insert(WHOLE - ask.milli);
            } else {
                return false;
            }
        }
        self.cpu -= ask.cpu;
        self.mem -= ask.mem;
        self.idle -= u32::from(ask.gpus) * u32::from(ask.milli);
        true
    }
}
