//! Roll-outs: what a node would leave idle after a stream of pods of the mix. The sequences are
//! random but fixed, and the same for every node.
//!
//! Method: at each position the sequences together hold the mix in its proportions (Latin hypercube
//! sampling), which removes most of the noise of independent draws. A sequence is offered pod by
//! pod, and the node takes each pod that fits; the result is the mean of what stays idle. Bit sets
//! skip the pods that cannot fit, and equal rooms are computed once (`memo`).
//!
//! Example: an empty node of 2 GPUs. With a mix of half GPUs a sequence of 16 pods fills it, and 0
//! stays idle; with a mix of pods of 4 GPUs none fits, and 2000 stay idle
//! (`a_roll_out_of_pods_that_fit_leaves_nothing_and_of_others_everything`).
//!
//! Test: `a_roll_out_that_skips_pods_gives_the_same_result` compares it with a roll-out that skips
//! nothing.

use std::collections::BTreeSet;

use resources::splitmix::SplitMix;

use super::memo::Memo;
use super::mix::Mix;
use super::node::{MAX_GPUS, NodeRoom, PodDemand, WHOLE};
use super::walk::{CompactDemand, NodeGpuRoom};

/// The one seed of this module. Any constant does; it is fixed so that equal input gives equal output.
const SEED: u64 = 0x6d75_7374_6572_0001;

/// Longest sequence: positions are bits of a word.
const LONGEST: usize = 32;

/// CPU is filtered by whole cores up to this many.
const CORES: usize = 33;

/// GPU models with filters of their own; further models share the last filter.
const MODELS: usize = 64;

/// Fixed sequences of demands drawn from a mix.
///
/// For each sequence, bit sets of its positions say which pods pass a filter: the GPU level (a
/// cumulative order of the GPUs that a pod takes), the CPU in whole cores, the model. A walk visits
/// only positions that pass all filters. The data of one sequence is contiguous.
#[derive(Clone, Debug, Default)]
pub(super) struct Rollout {
    classes: Vec<PodDemand>,
    /// Class numbers, `length` for each sequence.
    draws: Vec<u16>,
    length: usize,
    /// Length of the first sequence; the others grow evenly to `length`.
    shortest: usize,
    /// How many sequences there are.
    count: usize,
    /// The request of each draw, as it is offered to a walk.
    asks: Vec<CompactDemand>,
    /// Bit sets, `filters` for each sequence: levels, then cores, then GPU pods, then models.
    sets: Vec<u32>,
    filters: usize,
    levels: usize,
    /// Level by the largest free piece 0..=999, index is its milli.
    by_piece: Vec<u8>,
    /// Level by the number of wholly free GPUs.
    by_whole: [u8; MAX_GPUS + 1],
    /// By the free part of a GPU, 0..=999: the most of it that shares can fill.
    filled: Vec<u16>,
    /// By model, the number of its filter: models that no pod distinguishes have the same.
    models: Vec<u8>,
    /// By level, the most CPU and memory that its pods request in any sequence.
    most: Vec<(u32, u32)>,
}

/// The filter that a demand or a room of so much CPU belongs to.
fn cores(cpu: u32) -> usize {
    ((cpu / 1000) as usize).min(CORES - 1)
}

impl Rollout {
    /// `count` sequences of `shortest` to `length` pods.
    pub(super) fn new(mix: &Mix, count: usize, shortest: usize, length: usize) -> Rollout {
        let length = length.clamp(1, LONGEST);
        let shortest = shortest.clamp(1, length);
        if mix.is_empty() || count == 0 {
            return Rollout::default();
        }
        let mut order: Vec<(PodDemand, f64)> = mix.classes().to_vec();
        order.sort_by_key(|(d, _)| (d.gpus, d.milli, d.models, d.cpu, d.mem));
        order.truncate(usize::from(u16::MAX));
        let mut stream = SplitMix::new(SEED);
        let mut draws = vec![0u16; count * length];
        for t in 0..length {
            let mut column: Vec<u16> = Vec::with_capacity(count);
            let (mut class, mut acc) = (0usize, order.first().map_or(1.0, |c| c.1));
            for i in 0..count {
                let u = (i as f64 + stream.unit()) / count as f64;
                while u >= acc && class + 1 < order.len() {
                    class += 1;
                    acc += order[class].1;
                }
                column.push(class as u16);
            }
            for i in (1..count).rev() {
                let j = (stream.unit() * (i + 1) as f64) as usize;
                column.swap(i, j.min(i));
            }
            for (s, c) in column.into_iter().enumerate() {
                draws[s * length + t] = c;
            }
        }
        let classes: Vec<PodDemand> = order.into_iter().map(|(d, _)| d).collect();
        let mut out = Rollout {
            classes,
            draws,
            count,
            length,
            shortest,
            ..Rollout::default()
        };
        out.index();
        out
    }

    /// Builds the levels and the bit sets.
    fn index(&mut self) {
        let mut kinds: Vec<(u8, u16)> = self.classes.iter().map(|d| (d.gpus, d.milli)).collect();
        kinds.push((0, 0));
        kinds.sort_unstable();
        kinds.dedup();
        kinds.truncate(usize::from(u8::MAX));
        self.levels = kinds.len();
        let last =
            |pass: &dyn Fn(&(u8, u16)) -> bool| kinds.iter().rposition(pass).unwrap_or(0) as u8;
        self.by_piece = (0..=WHOLE)
            .map(|p| last(&|k| k.0 == 0 || (k.0 == 1 && k.1 <= p && k.1 < WHOLE)))
            .collect();
        for n in 1..=MAX_GPUS {
            self.by_whole[n] = last(&|k| usize::from(k.0) <= n);
        }
        let distinct = self.list_models();
        let (levels, count) = (self.levels, self.count);
        self.filters = levels + CORES + 1 + distinct.len();
        self.sets = vec![0; self.filters * count];
        for (number, seq) in self.draws.chunks_exact(self.length).enumerate() {
            let own = self.shortest + (self.length - self.shortest) * number / (count - 1).max(1);
            for (t, &c) in seq.iter().enumerate().take(own) {
                let demand = &self.classes[usize::from(c)];
                let kind = (demand.gpus, demand.milli);
                let level = kinds.iter().position(|k| *k == kind).unwrap_or(levels - 1);
                let passes = (level..levels)
                    .chain(levels + cores(demand.cpu)..levels + CORES)
                    .chain((demand.gpus > 0).then_some(levels + CORES));
                let admits = |model: &u64| demand.gpus == 0 || demand.models >> model & 1 == 1;
                let open = distinct
                    .iter()
                    .enumerate()
                    .filter(|(_, model)| admits(model));
                let models = open.map(|(filter, _)| levels + CORES + 1 + filter);
                for filter in passes.chain(models) {
                    self.sets[number * self.filters + filter] |= 1 << t;
                }
            }
        }
        let asks = self.draws.iter();
        let asks = asks.map(|class| CompactDemand::of(&self.classes[usize::from(*class)]));
        self.asks = asks.collect();
        self.sum_up();
    }

    /// Numbers the models' filters. Returns one model of each.
    fn list_models(&mut self) -> Vec<u64> {
        let mut distinct: Vec<u64> = Vec::new();
        let asked: BTreeSet<u64> = self.classes.iter().map(|demand| demand.models).collect();
        for model in 0..MODELS as u64 {
            let alike = |a: u64, b: u64| asked.iter().all(|set| set >> a & 1 == set >> b & 1);
            let known = distinct.iter().position(|other| alike(model, *other));
            let filter = known.unwrap_or_else(|| {
                distinct.push(model);
                distinct.len() - 1
            });
            self.models.push(filter as u8);
        }
        distinct
    }

    /// Computes what follows from the classes and the bit sets and saves work in each roll-out.
    fn sum_up(&mut self) {
        let shares = self.classes.iter().filter(|demand| demand.is_share());
        let sizes: BTreeSet<usize> = shares.map(|demand| usize::from(demand.milli)).collect();
        let mut sums = [false; WHOLE as usize];
        sums[0] = true;
        for sum in 1..sums.len() {
            let mut sizes = sizes.iter().filter(|size| **size > 0 && **size <= sum);
            sums[sum] = sizes.any(|size| sums[sum - size]);
        }
        let mut last = 0;
        let filled = sums.iter().enumerate().map(|(sum, can)| {
            last = if *can { sum as u16 } else { last };
            last
        });
        self.filled = filled.collect();
        for level in 0..self.levels {
            let (mut cpu_most, mut mem_most) = (0, 0);
            for (number, seq) in self.draws.chunks_exact(self.length).enumerate() {
                let (mut cpu, mut mem) = (0u32, 0u32);
                for (t, class) in seq.iter().enumerate() {
                    if self.sets[number * self.filters + level] >> t & 1 == 1 {
                        let demand = &self.classes[usize::from(*class)];
                        cpu = cpu.saturating_add(demand.cpu);
                        mem = mem.saturating_add(demand.mem);
                    }
                }
                (cpu_most, mem_most) = (cpu.max(cpu_most), mem.max(mem_most));
            }
            self.most.push((cpu_most, mem_most));
        }
    }

    /// The highest GPU level that may still fit into the room.
    fn level(&self, walk: &NodeGpuRoom) -> usize {
        let level = match walk.whole() {
            0 => self.by_piece.get(usize::from(walk.largest())),
            whole => self.by_whole.get(whole),
        };
        level.map_or(0, |l| usize::from(*l))
    }

    /// The start of a room's roll-out without what cannot change its result, and the GPU (1/1000)
    /// that stays idle in any case.
    fn start(&self, room: &NodeRoom) -> (NodeGpuRoom, u32) {
        let model = self.models.get(usize::from(room.model).min(MODELS - 1));
        let mut walk = NodeGpuRoom::new(room.cpu, room.mem, model.copied().unwrap_or_default());
        let mut lost = 0;
        for &free in room.gpu_slice() {
            let used = self.filled.get(usize::from(free)).copied().unwrap_or(free);
            lost += u32::from(free - used);
            walk.add(used);
        }
        if let Some((cpu, mem)) = self.most.get(self.level(&walk)) {
            walk.cpu = walk.cpu.min(*cpu);
            walk.mem = walk.mem.min(*mem);
        }
        (walk, lost)
    }

    /// Mean idle GPU (1/1000) once each sequence has been offered to the node, taking what fits.
    pub(super) fn idle(&self, room: &NodeRoom, memo: &mut Memo) -> f64 {
        let (start, lost) = self.start(room);
        if start.idle == 0 || self.count == 0 {
            return f64::from(start.idle + lost);
        }
        let sum = memo.get(&start, |start| self.walk(start));
        f64::from(sum) / self.count as f64 + f64::from(lost)
    }

    /// The sum of what the sequences leave idle.
    fn walk(&self, start: &NodeGpuRoom) -> u32 {
        let (level, cpu) = (self.level(start), self.levels + cores(start.cpu));
        let gpus = self.levels + CORES;
        let model = gpus + 1 + usize::from(start.model);
        let mut sum = 0;
        let sequences = self.sets.chunks_exact(self.filters);
        for (sets, asks) in sequences.zip(self.asks.chunks_exact(self.length)) {
            let gpu = sets[gpus];
            let mut open = sets[level] & sets[cpu] & sets[model];
            if open & gpu == 0 {
                sum += start.idle;
                continue;
            }
            let mut walk = *start;
            while open & gpu != 0 {
                let t = open.trailing_zeros() as usize;
                open &= open - 1;
                if walk.offer(&asks[t]) {
                    open &= sets[self.level(&walk)] & sets[self.levels + cores(walk.cpu)];
                }
            }
            sum += walk.idle;
        }
        sum
    }

    /// As [`Rollout::idle`], without skipping anything.
    #[cfg(test)]
    pub(super) fn idle_by_hand(&self, room: &NodeRoom) -> f64 {
        let count = self.count;
        let mut sum = 0.0;
        for (number, seq) in self.draws.chunks_exact(self.length).enumerate() {
            let own = self.shortest + (self.length - self.shortest) * number / (count - 1).max(1);
            let mut left = *room;
            for class in &seq[..own] {
                let demand = &self.classes[usize::from(*class)];
                if left.fits(demand) {
                    let gpu = left.tightest(demand.milli).unwrap_or(0);
                    left = left.after(demand, left.mask(demand, gpu));
                }
            }
            sum += f64::from(left.idle());
        }
        sum / count.max(1) as f64
    }
}
