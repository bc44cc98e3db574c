//! Chooses the set of free GPUs with the best links. A set is as fast as its slowest path, so that
//! comes first; then the sum of all paths, then the number of NUMA nodes, then how little the
//! choice separates GPUs that stay free.
//!
//! Method: up to `SETS_MAX` sets are compared one by one; beyond that, one set is grown greedily
//! from each free GPU.
//!
//! Example: 2 of 4 GPUs, of which 0-1 and 2-3 share NVLinks: 0 and 1.
//!
//! Tests: the unit tests below, one of which compares with all sets.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use resources::devices::{GpuDevice, GpuLink};

/// The most sets of GPUs that are compared one by one. Beyond it, sets are grown GPU by GPU.
const SETS_MAX: usize = 2000;

/// The worth of a path of NVLinks, and of each link in it.
const NVLINK: u32 = 100;
const EACH_NVLINK: u32 = 25;
/// Between sockets, or unknown.
const SYS: u32 = 10;
/// Within a NUMA node.
const NODE: u32 = 20;

/// The worth of the path between each pair of GPUs: comparable numbers, not bandwidths.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Links {
    gpus: usize,
    /// Row by row.
    worth: Vec<u32>,
    /// True if all paths are worth the same.
    even: bool,
}

/// Greater is better.
type Merit = (u32, u64, Reverse<usize>, Reverse<u64>);

impl Links {
    /// Reads the links of GPUs, in their given order.
    pub(crate) fn read(gpus: &[&GpuDevice]) -> Links {
        let n = gpus.len();
        let mut worth = vec![0; n * n];
        for (a, from) in gpus.iter().enumerate() {
            for (b, to) in gpus.iter().enumerate().filter(|(b, _)| *b != a) {
                let best_link = |from: &GpuDevice, to: &GpuDevice| {
                    let links = from.links.iter().filter(|link| link.to == to.id);
                    links.filter_map(worth_of).max()
                };
                let near = from.numa.is_some() && from.numa == to.numa;
                let known = best_link(from, to).max(best_link(to, from));
                worth[a * n + b] = known.unwrap_or(if near { NODE } else { SYS });
            }
        }
        let silent = gpus.iter().all(|gpu| gpu.links.is_empty());
        let pairs = (0..n * n).filter(|at| at / n != at % n);
        let kinds: BTreeSet<u32> = pairs.map(|at| worth[at]).collect();
        Links {
            gpus: n,
            worth,
            even: silent || kinds.len() <= 1,
        }
    }

    pub(crate) fn are_even(&self) -> bool {
        self.even
    }

    fn between(&self, a: usize, b: usize) -> u32 {
        self.worth[a * self.gpus + b]
    }

    /// The best set of `count` free GPUs, or all free ones if there are no more.
    pub(crate) fn best(
        &self,
        free: &[usize],
        count: usize,
        numa: impl Fn(usize) -> Option<u32>,
    ) -> Vec<usize> {
        if count == 0 || free.len() <= count {
            return free.iter().copied().take(count).collect();
        }
        let mut best: Option<(Merit, Vec<usize>)> = None;
        let mut offer = |set: Vec<usize>| {
            let merit = self.merit(&set, free, &numa);
            // Sets come in index order: of equal ones the first is kept.
            if best.as_ref().is_none_or(|(most, _)| merit > *most) {
                best = Some((merit, set));
            }
        };
        if combinations(free.len(), count) <= SETS_MAX {
            each_set(free, count, &mut Vec::new(), &mut offer);
        } else {
            for seed in free {
                offer(self.grown(*seed, free, count));
            }
        }
        best.map(|(_, set)| set).unwrap_or_default()
    }

    /// A set grown from one GPU by repeatedly adding the GPU with the best paths to those in it.
    fn grown(&self, seed: usize, free: &[usize], count: usize) -> Vec<usize> {
        let mut set = vec![seed];
        while set.len() < count {
            let rest = free.iter().copied().filter(|at| !set.contains(at));
            let next = rest.max_by_key(|at| {
                let paths = set.iter().map(|other| self.between(*at, *other));
                let sum: u32 = paths.clone().sum();
                (paths.min(), sum, Reverse(*at))
            });
            let Some(next) = next else { break };
            set.push(next);
        }
        set.sort_unstable();
        set
    }

    fn merit(&self, set: &[usize], free: &[usize], numa: &impl Fn(usize) -> Option<u32>) -> Merit {
        let (mut least, mut sum, mut torn) = (u32::MAX, 0, 0);
        for (i, a) in set.iter().enumerate() {
            for b in &set[i + 1..] {
                least = least.min(self.between(*a, *b));
                sum += u64::from(self.between(*a, *b));
            }
            let stay = free.iter().filter(|b| !set.contains(b));
            torn += stay.map(|b| u64::from(self.between(*a, *b))).sum::<u64>();
        }
        let nodes: BTreeSet<Option<u32>> = set.iter().map(|at| numa(*at)).collect();
        (least, sum, Reverse(nodes.len()), Reverse(torn))
    }
}

/// The worth of a path; `None` for an unknown kind.
fn worth_of(link: &GpuLink) -> Option<u32> {
    Some(match link.kind.as_str() {
        "NVL" | "NVS" => NVLINK + EACH_NVLINK * link.count.min(1000),
        "PIX" => 50,
        "PXB" => 40,
        "PHB" => 30,
        "NODE" => NODE,
        "SYS" => SYS,
        _ => return None,
    })
}

/// The number of sets of that size; exact only up to `SETS_MAX`.
fn combinations(of: usize, count: usize) -> usize {
    let mut sets: usize = 1;
    for i in 0..count.min(of - count) {
        sets = sets.saturating_mul(of - i) / (i + 1);
        if sets > SETS_MAX {
            return usize::MAX;
        }
    }
    sets
}

/// Passes every set of that size to `give`, in index order.
fn each_set(
    free: &[usize],
    count: usize,
    begun: &mut Vec<usize>,
    give: &mut impl FnMut(Vec<usize>),
) {
    if count == 0 {
        give(begun.clone());
        return;
    }
    for (at, gpu) in free.iter().enumerate() {
        if free.len() - at < count {
            return;
        }
        begun.push(*gpu);
        each_set(&free[at + 1..], count - 1, begun, give);
        begun.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// GPUs with paths between pairs: index, index, kind, NVLinks.
    fn machine(gpus: usize, paths: &[(usize, usize, &str, u32)]) -> Vec<GpuDevice> {
        let id = |at: usize| format!("GPU-{at}");
        let mut list: Vec<GpuDevice> = (0..gpus)
            .map(|at| GpuDevice {
                id: id(at),
                index: at as u32,
                numa: Some(u32::from(at * 2 >= gpus)),
                healthy: true,
                ..GpuDevice::default()
            })
            .collect();
        for (a, b, kind, count) in paths {
            list[*a].links.push(GpuLink {
                to: id(*b),
                kind: (*kind).to_owned(),
                count: *count,
            });
        }
        list
    }

    fn links(machine: &[GpuDevice]) -> Links {
        Links::read(&machine.iter().collect::<Vec<_>>())
    }

    fn best(machine: &[GpuDevice], free: &[usize], count: usize) -> Vec<usize> {
        links(machine).best(free, count, |at| machine[at].numa)
    }

    /// The mesh of eight GPUs: each has one or two NVLinks to four others, and PCIe to the rest.
    fn cube_mesh() -> Vec<GpuDevice> {
        let paths = [
            (0, 1, 1),
            (0, 2, 1),
            (0, 3, 2),
            (0, 4, 2),
            (1, 2, 2),
            (1, 3, 1),
            (1, 5, 2),
            (2, 3, 2),
            (2, 6, 1),
            (3, 7, 1),
            (4, 5, 1),
            (4, 6, 1),
            (4, 7, 2),
            (5, 6, 2),
            (5, 7, 1),
            (6, 7, 2),
        ];
        let paths: Vec<(usize, usize, &str, u32)> =
            paths.iter().map(|(a, b, n)| (*a, *b, "NVL", *n)).collect();
        machine(8, &paths)
    }

    #[test]
    fn the_set_with_the_fastest_slowest_path_is_taken() {
        let mesh = cube_mesh();
        let all: Vec<usize> = (0..8).collect();
        type Case<'a> = (&'a [usize], usize, &'a [usize]);
        let table: [Case; 7] = [
            (&all, 2, &[0, 3]),
            (&all, 4, &[0, 1, 2, 3]),
            (&[1, 4, 5, 6, 7], 4, &[4, 5, 6, 7]),
            (&[0, 1, 5, 6], 2, &[5, 6]),
            (&[0, 1, 5], 2, &[1, 5]),
            (&[2, 5, 7], 2, &[5, 7]),
            (&[1, 2], 4, &[1, 2]),
        ];
        for (free, count, want) in table {
            assert_eq!(best(&mesh, free, count), want, "{count} of {free:?}");
        }
    }

    #[test]
    fn one_gpu_is_taken_where_it_tears_no_pair_apart() {
        let pairs = machine(4, &[(0, 1, "NVL", 4), (2, 3, "NVL", 4)]);
        assert_eq!(best(&pairs, &[0, 1, 3], 1), [3]);
        assert_eq!(best(&pairs, &[0, 1, 2, 3], 2), [0, 1]);
        assert_eq!(best(&pairs, &[1, 2, 3], 2), [2, 3]);
    }

    #[test]
    fn a_path_that_one_end_tells_of_is_the_other_ends_too() {
        let links_of_one_end = links(&machine(2, &[(0, 1, "PIX", 0)]));
        assert_eq!(
            links_of_one_end.between(0, 1),
            links_of_one_end.between(1, 0)
        );
    }

    #[test]
    fn machines_whose_gpus_are_joined_alike_have_nothing_to_choose() {
        let mut switch = Vec::new();
        for a in 0..4 {
            for b in (0..4).filter(|b| *b != a) {
                switch.push((a, b, "NVS", 18));
            }
        }
        assert!(links(&machine(4, &switch)).are_even());
        assert!(links(&machine(8, &[])).are_even());
        assert!(!links(&machine(4, &[(0, 1, "NVL", 4)])).are_even());
        assert!(links(&machine(1, &[])).are_even());
    }

    #[test]
    fn where_sets_are_too_many_they_are_grown() {
        let islands: Vec<(usize, usize, &str, u32)> = (0..32)
            .flat_map(|a| (0..32).map(move |b| (a, b)))
            .filter(|(a, b)| a != b && a % 4 == b % 4)
            .map(|(a, b)| (a, b, "NVL", 6))
            .collect();
        let free: Vec<usize> = (1..32).collect();
        assert_eq!(
            best(&machine(32, &islands), &free, 8),
            [1, 5, 9, 13, 17, 21, 25, 29]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        /// Compared with every set: none has a better slowest path, or an equal one and a larger
        /// sum.
        #[test]
        fn no_other_set_is_better(
            paths in prop::collection::vec((0..8_usize, 0..8_usize, 0..7_usize, 0..4_u32), 0..20),
            free in prop::collection::btree_set(0..8_usize, 1..=8),
            count in 1..=8_usize,
        ) {
            let kinds = ["NVL", "NVS", "PIX", "PXB", "PHB", "NODE", "SYS"];
            let paths: Vec<(usize, usize, &str, u32)> = paths
                .into_iter()
                .filter(|(a, b, ..)| a != b)
                .map(|(a, b, kind, n)| (a, b, kinds[kind], n))
                .collect();
            let machine = machine(8, &paths);
            let links = links(&machine);
            let free: Vec<usize> = free.into_iter().collect();
            let chosen = links.best(&free, count, |at| machine[at].numa);
            prop_assert_eq!(chosen.len(), count.min(free.len()));
            prop_assert!(chosen.windows(2).all(|two| two[0] < two[1]));
            prop_assert!(chosen.iter().all(|at| free.contains(at)));
            let worth = |set: &[usize]| {
                let pairs = set.iter().flat_map(|a| set.iter().map(move |b| (*a, *b)));
                let paths: Vec<u32> = pairs
                    .filter(|(a, b)| a < b)
                    .map(|(a, b)| links.between(a, b))
                    .collect();
                (paths.iter().min().copied(), paths.iter().sum::<u32>())
            };
            for mask in 0_u32..256 {
                let set: Vec<usize> = (0..8).filter(|at| mask >> at & 1 == 1).collect();
                if set.len() == chosen.len() && set.iter().all(|at| free.contains(at)) {
                    prop_assert!(worth(&set) <= worth(&chosen), "{:?} beats {:?}", set, chosen);
                }
            }
        }
    }
}
