//! What a node would keep idle after a stream of pods like the mix: fixed random sequences, the
//! same for every node.
//!
//! At each position the sequences together hold the mix in its proportions (Latin hypercube
//! sampling), which takes most of the noise of independent draws away.

use super::mix::Mix;
use super::node::{Demand, MAX_GPUS, Room, WHOLE};
use super::walk::Walk;

/// The one seed of this module. Any constant does; it is fixed so that equal input gives equal output.
const SEED: u64 = 0x6d75_7374_6572_0001;

/// Longest sequence: positions are bits of a word.
const LONGEST: usize = 64;

/// CPU is filtered by whole cores up to this many.
const CORES: usize = 33;

/// GPU models that are filtered apart; more share the last filter.
const MODELS: usize = 64;

/// Fixed sequences of demands drawn from a mix.
///
/// For each sequence, bit sets of its positions say which pods pass a filter: the GPU level (a
/// cumulative order of what a pod takes of GPUs), the CPU in whole cores, the model. A walk only
/// visits positions that pass all.
#[derive(Clone, Debug, Default)]
pub(super) struct Rollout {
    classes: Vec<Demand>,
    /// Class numbers, `length` for each sequence.
    draws: Vec<u16>,
    length: usize,
    /// Length of the first sequence; the others grow evenly to `length`.
    shortest: usize,
    /// Bit sets, `stride` for each sequence: levels, then cores, then models, then GPU pods.
    sets: Vec<u64>,
    stride: usize,
    levels: usize,
    models: usize,
    /// Level by the largest free piece 0..=999, index is its milli.
    by_piece: Vec<u8>,
    /// Level by the number of wholly free GPUs.
    by_whole: [u8; MAX_GPUS + 1],
}

/// The next 64 bits of a SplitMix64 stream (Steele et al., OOPSLA 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The next number from 0 to below 1.
fn unit(state: &mut u64) -> f64 {
    (next(state) >> 11) as f64 / (1u64 << 53) as f64
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
        let mut order: Vec<(Demand, f64)> = mix.classes().to_vec();
        order.sort_by_key(|(d, _)| (d.gpus, d.milli, d.models, d.cpu, d.mem));
        order.truncate(usize::from(u16::MAX));
        let mut state = SEED;
        let mut draws = vec![0u16; count * length];
        for t in 0..length {
            let mut column: Vec<u16> = Vec::with_capacity(count);
            let (mut class, mut acc) = (0usize, order.first().map_or(1.0, |c| c.1));
            for i in 0..count {
                let u = (i as f64 + unit(&mut state)) / count as f64;
                while u >= acc && class + 1 < order.len() {
                    class += 1;
                    acc += order[class].1;
                }
                column.push(class as u16);
            }
            for i in (1..count).rev() {
                let j = (unit(&mut state) * (i + 1) as f64) as usize;
                column.swap(i, j.min(i));
            }
            for (s, c) in column.into_iter().enumerate() {
                draws[s * length + t] = c;
            }
        }
        let classes: Vec<Demand> = order.into_iter().map(|(d, _)| d).collect();
        let mut out = Rollout {
            classes,
            draws,
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
        self.models = MODELS;
        self.stride = self.levels + CORES + self.models + 1;
        self.sets = vec![0; self.stride * (self.draws.len() / self.length.max(1))];
        let count = self.draws.len() / self.length.max(1);
        let pairs = self
            .draws
            .chunks_exact(self.length)
            .zip(self.sets.chunks_exact_mut(self.stride));
        for (number, (seq, set)) in pairs.enumerate() {
            let own = self.shortest + (self.length - self.shortest) * number / (count - 1).max(1);
            for (t, &c) in seq.iter().enumerate().take(own) {
                let Some(d) = self.classes.get(usize::from(c)) else {
                    continue;
                };
                let bit = 1u64 << t;
                let level = kinds
                    .iter()
                    .position(|k| *k == (d.gpus, d.milli))
                    .unwrap_or(self.levels - 1);
                set[level..self.levels].iter_mut().for_each(|s| *s |= bit);
                set[self.levels + cores(d.cpu)..self.levels + CORES]
                    .iter_mut()
                    .for_each(|s| *s |= bit);
                for m in 0..self.models {
                    if d.gpus == 0 || d.models >> m & 1 == 1 {
                        set[self.levels + CORES + m] |= bit;
                    }
                }
                if d.gpus > 0 {
                    set[self.stride - 1] |= bit;
                }
            }
        }
    }

    /// The highest GPU level that what is left may still take.
    fn level(&self, walk: &Walk) -> usize {
        let level = match walk.whole() {
            0 => self.by_piece.get(usize::from(walk.largest())),
            whole => self.by_whole.get(whole),
        };
        level.map_or(0, |l| usize::from(*l))
    }

    /// Mean idle GPU (1/1000) once each sequence has been offered to the node, taking what fits.
    pub(super) fn idle(&self, room: &Room) -> f64 {
        let start = Walk::of(room);
        if self.draws.is_empty() || start.idle() == 0 {
            return f64::from(start.idle());
        }
        let (level, core) = (self.level(&start), cores(start.cpu()));
        let model = self.levels + CORES + usize::from(room.model).min(MODELS - 1);
        let mut sum = 0u64;
        for (seq, set) in self
            .draws
            .chunks_exact(self.length)
            .zip(self.sets.chunks_exact(self.stride))
        {
            let gpu = set[self.stride - 1];
            let mut open = set[level] & set[self.levels + core] & set[model];
            if open & gpu == 0 {
                sum += u64::from(start.idle());
                continue;
            }
            let mut w = start;
            while open & gpu != 0 {
                let t = open.trailing_zeros() as usize;
                open &= open - 1;
                if w.offer(&self.classes[usize::from(seq[t])]) {
                    open &= set[self.level(&w)] & set[self.levels + cores(w.cpu())];
                }
            }
            sum += u64::from(w.idle());
        }
        sum as f64 * self.length as f64 / self.draws.len() as f64
    }
}
