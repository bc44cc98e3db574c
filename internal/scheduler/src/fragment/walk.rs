//! One node while a sequence of pods is offered to it: what it has left, in the form that is
//! quickest to take from. Which pods are offered is `rollout`'s.

use super::node::{Demand, MAX_GPUS, Room, WHOLE};

/// A node's room: wholly free GPUs by number, started ones by what is free.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    cpu: u32,
    mem: u32,
    idle: u32,
    whole: u8,
    parts: u8,
    part: [u16; MAX_GPUS],
}

impl Walk {
    /// At the start.
    pub(super) fn of(room: &Room) -> Walk {
        let mut walk = Walk {
            cpu: room.cpu,
            mem: room.mem,
            idle: room.idle(),
            whole: 0,
            parts: 0,
            part: [0; MAX_GPUS],
        };
        for &free in room.gpu_slice() {
            if free == WHOLE {
                walk.whole += 1;
            } else if free > 0 {
                walk.part[usize::from(walk.parts)] = free;
                walk.parts += 1;
            }
        }
        walk
    }

    /// Free CPU in 1/1000 core.
    pub(super) fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Idle GPU in 1/1000, over all GPUs.
    pub(super) fn idle(&self) -> u32 {
        self.idle
    }

    /// Wholly free GPUs.
    pub(super) fn whole(&self) -> usize {
        usize::from(self.whole)
    }

    /// The largest free piece of a started GPU, in 1/1000.
    pub(super) fn largest(&self) -> u16 {
        let parts = self.part.iter().take(usize::from(self.parts));
        parts.copied().max().unwrap_or(0)
    }

    /// Takes a pod whose model is admissible, if it fits: a share on the tightest GPU.
    #[inline]
    pub(super) fn offer(&mut self, demand: &Demand) -> bool {
        if demand.cpu > self.cpu || demand.mem > self.mem {
            return false;
        }
        if demand.milli == WHOLE {
            if demand.gpus > self.whole {
                return false;
            }
            self.whole -= demand.gpus;
        } else if demand.gpus > 0 {
            let (mut at, mut best) = (MAX_GPUS, u16::MAX);
            for (i, &free) in self.part.iter().enumerate().take(usize::from(self.parts)) {
                if free >= demand.milli && free < best {
                    (at, best) = (i, free);
                }
            }
            if at < MAX_GPUS {
                self.part[at] = best - demand.milli;
            } else if self.whole > 0 {
                self.whole -= 1;
                let n = usize::from(self.parts).min(MAX_GPUS - 1);
                self.part[n] = WHOLE - demand.milli;
                self.parts += 1;
            } else {
                return false;
            }
        }
        self.cpu -= demand.cpu;
        self.mem -= demand.mem;
        self.idle -= demand.gpu_total();
        true
    }
}
