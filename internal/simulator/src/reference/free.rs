//! The nodes' free resources, indexed by the number of free GPUs. Best fit: the node with the
//! fewest free GPUs that suffice.

use std::rc::Rc;

use crate::gang::{Host, NodeIndex, PodRequests};

/// The requests of one pod: cores (thousandths), MiB, GPUs, and the GPU models it accepts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodNeed {
    amounts: [i64; 3],
    /// Accepted models, by index among all models; none if any is accepted.
    models: Option<Rc<[u16]>>,
}

impl PodNeed {
    pub(crate) fn gpus(&self) -> i64 {
        self.amounts[2]
    }
}

/// The free resources of all nodes. Cheap to copy, for trial placements.
#[derive(Clone, Debug)]
pub(crate) struct Free {
    rooms: Vec<[i64; 3]>,
    models: Rc<[u16]>,
    names: Rc<[String]>,
    /// For each number of free GPUs, the nodes with exactly that many, as bits.
    buckets: Vec<Vec<u64>>,
    gpus: i64,
}

impl Free {
    pub(crate) fn new(hosts: &[Host]) -> Free {
        let mut names: Vec<String> = hosts.iter().map(|host| host.model.clone()).collect();
        names.sort();
        names.dedup();
        let model = |host: &Host| names.binary_search(&host.model).unwrap_or(0) as u16;
        let most = hosts.iter().map(|host| host.gpus).max().unwrap_or(0).max(0);
        let words = hosts.len().div_ceil(64);
        let mut free = Free {
            rooms: Vec::with_capacity(hosts.len()),
            models: hosts.iter().map(model).collect(),
            names: names.clone().into(),
            buckets: vec![vec![0; words]; most as usize + 1],
            gpus: 0,
        };
        for (at, host) in hosts.iter().enumerate() {
            let room = if host.open {
                [host.cpu_milli, host.memory_mib, host.gpus]
            } else {
                [0, 0, 0]
            };
            free.rooms.push(room);
            free.gpus += room[2];
            free.file(at, room[2], true);
        }
        free
    }

    pub(crate) fn need(&self, ask: &PodRequests) -> PodNeed {
        let wanted = || {
            let known = ask
                .models
                .iter()
                .filter_map(|name| self.names.binary_search(name).ok());
            known.map(|at| at as u16).collect()
        };
        PodNeed {
            amounts: [ask.cpu_milli, ask.memory_mib, ask.gpus],
            models: (!ask.models.is_empty()).then(wanted),
        }
    }

    fn file(&mut self, at: NodeIndex, gpus: i64, there: bool) {
        // A node that existing pods overcommit has negative free GPUs and is indexed under zero.
        let bucket = gpus.clamp(0, self.buckets.len() as i64 - 1) as usize;
        let bit = 1_u64 << (at % 64);
        let word = &mut self.buckets[bucket][at / 64];
        if there {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }

    fn change(&mut self, at: NodeIndex, need: &PodNeed, sign: i64) {
        let old = self.rooms[at][2];
        for (room, amount) in self.rooms[at].iter_mut().zip(need.amounts) {
            *room += sign * amount;
        }
        let new = self.rooms[at][2];
        self.gpus += new - old;
        if new != old {
            self.file(at, old, false);
            self.file(at, new, true);
        }
    }

    pub(crate) fn take(&mut self, at: NodeIndex, need: &PodNeed) {
        self.change(at, need, -1);
    }

    pub(crate) fn give_back(&mut self, at: NodeIndex, need: &PodNeed) {
        self.change(at, need, 1);
    }

    fn holds(&self, at: NodeIndex, need: &PodNeed) -> bool {
        let fits = self.rooms[at]
            .iter()
            .zip(need.amounts)
            .all(|(room, amount)| amount <= 0 || amount <= *room);
        fits && need
            .models
            .as_ref()
            .is_none_or(|models| models.contains(&self.models[at]))
    }

    fn choose(&self, need: &PodNeed) -> Option<NodeIndex> {
        let from = usize::try_from(need.gpus()).unwrap_or(0);
        for bucket in self.buckets.get(from..)? {
            for (word_at, word) in bucket.iter().enumerate() {
                let mut rest = *word;
                while rest != 0 {
                    let at = word_at * 64 + rest.trailing_zeros() as usize;
                    if self.holds(at, need) {
                        return Some(at);
                    }
                    rest &= rest - 1;
                }
            }
        }
        None
    }

    /// Places all pods, or none of them. Returns their nodes, in the same order.
    pub(crate) fn place(&mut self, needs: &[PodNeed]) -> Option<Vec<NodeIndex>> {
        let asked: i64 = needs.iter().map(PodNeed::gpus).sum();
        if asked > self.gpus {
            return None;
        }
        let mut nodes = Vec::with_capacity(needs.len());
        for need in needs {
            match self.choose(need) {
                Some(at) => {
                    self.take(at, need);
                    nodes.push(at);
                }
                None => {
                    for (at, need) in nodes.iter().zip(needs) {
                        self.give_back(*at, need);
                    }
                    return None;
                }
            }
        }
        Some(nodes)
    }

    /// The minimum of the two, node by node.
    pub(crate) fn lesser(&self, other: &Free) -> Free {
        let mut least = self.clone();
        for at in 0..least.rooms.len() {
            least.lower(at, &other.rooms[at]);
        }
        least
    }

    /// Whether any node has less free than in `other`.
    pub(crate) fn below(&self, other: &Free) -> bool {
        self.rooms
            .iter()
            .zip(&other.rooms)
            .any(|(own, other)| own.iter().zip(other).any(|(a, b)| a < b))
    }

    /// Limits one node's free resources to at most this.
    pub(crate) fn lower(&mut self, at: NodeIndex, most: &[i64; 3]) {
        let old = self.rooms[at][2];
        for (own, other) in self.rooms[at].iter_mut().zip(most) {
            *own = (*own).min(*other);
        }
        let new = self.rooms[at][2];
        self.gpus += new - old;
        if new != old {
            self.file(at, old, false);
            self.file(at, new, true);
        }
    }

    pub(crate) fn room(&self, at: NodeIndex) -> [i64; 3] {
        self.rooms[at]
    }
}
