//! What a pod requests, what one node has left, and whether the pod fits there. Nothing is chosen
//! here.

/// The most GPUs of a node in this model.
pub const MAX_GPUS: usize = 16;

/// Thousandths of one GPU: the whole of it.
pub const WHOLE: u16 = 1000;

/// What a pod requests. CPU in milli-cores, memory in MiB, `milli` per GPU in 1/1000 of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodDemand {
    /// CPU in 1/1000 core.
    pub cpu: u32,
    /// Memory in MiB.
    pub mem: u32,
    /// Number of GPUs, 0 for a pod without.
    pub gpus: u8,
    /// Share of each GPU in 1/1000; `WHOLE` whenever `gpus >= 2`, 0 for a pod without GPU.
    pub milli: u16,
    /// Bit i set: GPU model i is admissible. Ignored for a pod without GPU.
    pub models: u64,
}

/// A demand that admits every model.
pub const ANY_MODEL: u64 = u64::MAX;

impl PodDemand {
    /// GPU demand in 1/1000 GPU, over all its GPUs.
    #[must_use]
    pub fn gpu_total(&self) -> u32 {
        u32::from(self.gpus) * u32::from(self.milli)
    }

    /// Whether the pod takes a part of one GPU.
    #[must_use]
    pub fn is_share(&self) -> bool {
        self.gpus == 1 && self.milli < WHOLE
    }
}

/// The total resources of a node; nodes of one shape are alike until a pod is placed on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeShape {
    /// CPU in 1/1000 core.
    pub cpu: u32,
    /// Memory in MiB.
    pub mem: u32,
    /// Number of GPUs.
    pub gpus: u8,
    /// GPU model as a bit number for `PodDemand::models`.
    pub model: u8,
}

/// The free resources of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeRoom {
    /// Free CPU in 1/1000 core.
    pub cpu: u32,
    /// Free memory in MiB.
    pub mem: u32,
    /// Number of GPUs the node has.
    pub gpus: u8,
    /// GPU model as a bit number.
    pub model: u8,
    /// Free 1/1000 of each GPU; entries from `gpus` on are 0.
    pub free: [u16; MAX_GPUS],
}

impl NodeRoom {
    /// An empty node of that shape.
    #[must_use]
    pub fn empty(shape: &NodeShape) -> NodeRoom {
        let mut free = [0; MAX_GPUS];
        for f in free.iter_mut().take(usize::from(shape.gpus)) {
            *f = WHOLE;
        }
        NodeRoom {
            cpu: shape.cpu,
            mem: shape.mem,
            gpus: shape.gpus,
            model: shape.model,
            free,
        }
    }

    /// The GPUs the node has.
    #[must_use]
    pub fn gpu_slice(&self) -> &[u16] {
        &self.free[..usize::from(self.gpus).min(MAX_GPUS)]
    }

    /// Idle GPU in 1/1000, over all GPUs.
    #[must_use]
    pub fn idle(&self) -> u32 {
        self.gpu_slice().iter().map(|&g| u32::from(g)).sum()
    }

    /// Number of wholly free GPUs.
    #[must_use]
    pub fn whole(&self) -> u8 {
        self.gpu_slice().iter().filter(|&&g| g == WHOLE).count() as u8
    }

    /// Whether the model is one the pod admits.
    #[must_use]
    pub fn admits(&self, d: &PodDemand) -> bool {
        d.gpus == 0 || (d.models >> (self.model & 63)) & 1 == 1
    }

    /// Whether the pod can be placed here now.
    #[must_use]
    pub fn fits(&self, d: &PodDemand) -> bool {
        if d.cpu > self.cpu || d.mem > self.mem || !self.admits(d) {
            return false;
        }
        if d.gpus == 0 {
            return true;
        }
        let need = usize::from(d.gpus);
        self.gpu_slice().iter().filter(|&&g| g >= d.milli).count() >= need
    }

    /// The tightest GPU that can hold a share of `milli`, lowest index on ties.
    #[must_use]
    pub fn tightest(&self, milli: u16) -> Option<u8> {
        let mut best: Option<(u16, u8)> = None;
        for (i, &g) in self.gpu_slice().iter().enumerate() {
            if g >= milli && best.is_none_or(|(b, _)| g < b) {
                best = Some((g, i as u8));
            }
        }
        best.map(|(_, i)| i)
    }

    /// Bit mask of the GPUs the pod takes: `gpu` for a share, the lowest wholly free ones
    /// otherwise.
    #[must_use]
    pub fn mask(&self, d: &PodDemand, gpu: u8) -> u16 {
        if d.gpus == 0 {
            return 0;
        }
        if d.is_share() {
            return 1 << gpu;
        }
        let mut mask = 0u16;
        let mut left = d.gpus;
        for (i, &g) in self.gpu_slice().iter().enumerate() {
            if left > 0 && g >= d.milli {
                mask |= 1 << i;
                left -= 1;
            }
        }
        mask
    }

    /// The room that is left once the pod runs on the GPUs of `mask`. The caller has checked that
    /// it fits.
    #[must_use]
    pub fn after(&self, d: &PodDemand, mask: u16) -> NodeRoom {
        let mut r = *self;
        r.cpu = r.cpu.saturating_sub(d.cpu);
        r.mem = r.mem.saturating_sub(d.mem);
        let mut m = mask;
        while m != 0 {
            let i = m.trailing_zeros() as usize;
            m &= m - 1;
            if let Some(f) = r.free.get_mut(i) {
                *f = f.saturating_sub(d.milli);
            }
        }
        r
    }

    /// The same room with GPUs in falling order of what is free: equal for nodes that differ only
    /// in numbering.
    #[must_use]
    pub fn canonical(&self) -> NodeRoom {
        let mut r = *self;
        let n = usize::from(self.gpus).min(MAX_GPUS);
        r.free[..n].sort_unstable_by(|a, b| b.cmp(a));
        r
    }
}
