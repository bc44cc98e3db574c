//! Which of the free devices go well together, for pods whose devices no scheduler chose. Pure.

use std::collections::BTreeSet;

use resources::devices::GpuDevice;

/// How many sets are looked at before the search settles for the best so far: 16 devices
/// choose 8 is 12,870.
const SETS_MAX: usize = 20_000;

/// The `size` of the `available` devices, with all that `must` be among them, whose links to
/// each other are best by sum; of equal ones the first in the inventory's order.
pub fn best(
    gpus: &[GpuDevice],
    available: &BTreeSet<String>,
    must: &BTreeSet<String>,
    size: usize,
) -> Vec<String> {
    let order: Vec<usize> = (0..gpus.len())
        .filter(|at| available.contains(&gpus[*at].id))
        .collect();
    let (fixed, free): (Vec<usize>, Vec<usize>) = order
        .into_iter()
        .partition(|at| must.contains(&gpus[*at].id));
    let mut search = Search {
        gpus,
        free,
        size,
        looked: 0,
        best: None,
    };
    let mut set = fixed;
    search.extend(&mut set, 0);
    let found = search.best.map(|(_, set)| set).unwrap_or_default();
    let ids = found.into_iter().map(|at| gpus[at].id.clone());
    ids.collect()
}

struct Search<'a> {
    gpus: &'a [GpuDevice],
    free: Vec<usize>,
    size: usize,
    looked: usize,
    best: Option<(u64, Vec<usize>)>,
}

impl Search<'_> {
    fn extend(&mut self, set: &mut Vec<usize>, from: usize) {
        if self.looked >= SETS_MAX {
            return;
        }
        if set.len() >= self.size {
            self.looked += 1;
            let score = self.score(set);
            if self.best.as_ref().is_none_or(|(best, _)| score > *best) {
                self.best = Some((score, set.clone()));
            }
            return;
        }
        for next in from..self.free.len() {
            set.push(self.free[next]);
            self.extend(set, next + 1);
            set.pop();
        }
    }

    fn score(&self, set: &[usize]) -> u64 {
        let pairs = |(place, one): (usize, &usize)| {
            let others = set[place + 1..].iter();
            others.map(|other| self.pair(*one, *other)).sum::<u64>()
        };
        set.iter().enumerate().map(pairs).sum()
    }

    /// A pair's worth as NVIDIA's plugin counts it (shared board aside), except that links to a
    /// switch count as NVLinks.
    fn pair(&self, one: usize, other: usize) -> u64 {
        let other = &self.gpus[other].id;
        let links = &self.gpus[one].links;
        let Some(link) = links.iter().find(|link| link.to == *other) else {
            return 0;
        };
        match link.kind.as_str() {
            "NVL" | "NVS" => 100 * u64::from(link.count.max(1)),
            "PIX" => 50,
            "PXB" => 40,
            "PHB" => 30,
            "NODE" => 20,
            _ => 10,
        }
    }
}

#[cfg(test)]
mod tests {
    use resources::devices::GpuLink;

    use super::*;

    /// Four devices, two on each socket; the pairs of a socket have NVLinks.
    fn two_pairs() -> Vec<GpuDevice> {
        let gpus = (0..4u32).map(|index| {
            let links = (0..4u32).filter(|other| *other != index).map(|other| {
                let near = other / 2 == index / 2;
                GpuLink {
                    to: format!("g{other}"),
                    kind: if near { "NVL" } else { "SYS" }.into(),
                    count: if near { 4 } else { 0 },
                }
            });
            GpuDevice {
                id: format!("g{index}"),
                index,
                links: links.collect(),
                ..GpuDevice::default()
            }
        });
        gpus.collect()
    }

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn devices_with_nvlinks_between_them_go_together() {
        let machine = two_pairs();
        let all = set(&["g0", "g1", "g2", "g3"]);
        assert_eq!(best(&machine, &all, &set(&[]), 2), ["g0", "g1"]);
        assert_eq!(best(&machine, &all, &set(&["g3"]), 2), ["g3", "g2"]);
        assert_eq!(
            best(&machine, &set(&["g1", "g2", "g3"]), &set(&[]), 2),
            ["g2", "g3"]
        );
    }

    #[test]
    fn nothing_is_preferred_where_there_are_too_few() {
        let machine = two_pairs();
        assert!(best(&machine, &set(&["g0"]), &set(&[]), 2).is_empty());
    }
}
