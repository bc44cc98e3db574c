//! Chooses which nodes' GPUs are repartitioned (MIG), and how, so that waiting gangs can start.
//! Works on amounts only.
//!
//! Method: gangs in order. A gang takes what is free first; while members have no place, the node
//! and configuration that places the most of them is cut. Capacity that an earlier gang needs is
//! not given to a later one. If a gang cannot be served at all, no node is cut for it.
//!
//! Cost: for each cut, the open nodes times their configurations; up to `LATER_GANGS_MAX` later gangs break
//! ties.
//!
//! Example: a gang of three 1g.10gb slices and one idle GPU: the configuration all-1g.10gb is
//! chosen for that GPU's node.
//!
//! Tests: `choose_tests.rs` compares with trying every set of nodes; `tests/repartition.rs`.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::resource::{Demand, GPU, Ix, ResourceSet, Room, each};

/// The number of later gangs that are considered to break ties between configurations.
const LATER_GANGS_MAX: usize = 16;

/// Identical members of a waiting gang.
#[derive(Clone, Debug)]
pub(crate) struct MemberGroup {
    /// What one member requests.
    pub(crate) each: Demand,
    /// How many must start.
    pub(crate) count: u64,
    /// The nodes that could run them, whatever is free there and however their GPUs are cut.
    pub(crate) sites: BTreeSet<usize>,
}

/// A waiting gang.
#[derive(Clone, Debug)]
pub(crate) struct WaitingSliceGang {
    /// Its waiting members.
    pub(crate) members: Vec<MemberGroup>,
    /// True if GPUs may be cut for it.
    pub(crate) cuts: bool,
}

/// A configuration of a node's GPUs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GpuConfiguration {
    /// The configuration's name.
    pub(crate) name: Arc<str>,
    /// The devices that the node would have; none of any other kind.
    pub(crate) gives: Vec<(Ix, i64)>,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub(crate) struct CandidateNode {
    /// What is free, or will be once the current change is done.
    pub(crate) room: Room,
    /// What it has when empty.
    pub(crate) empty: Room,
    /// Its other configurations, possible now or once no pod uses its GPUs.
    pub(crate) cuts: Vec<GpuConfiguration>,
    /// True if its GPUs may be cut now: no pod uses them, and the last cut is long enough ago.
    pub(crate) open: bool,
}

/// A node whose GPUs are to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// The node's index.
    pub(crate) site: usize,
    /// The index of the configuration among the node's.
    pub(crate) cut: usize,
    /// The index of the gang that it is for.
    pub(crate) want: usize,
}

/// A node's state during the search.
#[derive(Clone, Debug)]
struct SearchedNode {
    room: Room,
    open: bool,
}

/// Chooses for the gangs in order; a gang that could still not start gets no node cut. `devices`
/// are the resources that GPUs are allocated as.
pub(crate) fn choose(
    wants: &[WaitingSliceGang],
    sites: &[CandidateNode],
    devices: ResourceSet,
) -> Vec<Chosen> {
    let state = |site: &CandidateNode| SearchedNode {
        room: site.room.clone(),
        open: site.open,
    };
    let mut now: Vec<SearchedNode> = sites.iter().map(state).collect();
    let mut chosen = Vec::new();
    for (at, want) in wants.iter().enumerate() {
        let later = wants.iter().skip(at + 1).filter(|other| other.cuts);
        let later: Vec<&WaitingSliceGang> = later.take(LATER_GANGS_MAX).collect();
        let mut tried = now.clone();
        match serve(want, &later, sites, &mut tried, devices) {
            Some(cuts) => {
                now = tried;
                chosen.extend(cuts.into_iter().map(|(site, cut)| Chosen {
                    site,
                    cut,
                    want: at,
                }));
            }
            None => keep(want, sites, &mut now, devices),
        }
    }
    chosen
}

/// The places found for one gang so far.
struct GangFit<'a> {
    want: &'a WaitingSliceGang,
    sites: &'a [CandidateNode],
    now: &'a mut [SearchedNode],
    /// What was free on each node before the gang took any.
    before: Vec<Room>,
    /// For each node: how many of each kind of members are placed there.
    placed: Vec<Vec<u64>>,
    /// How many of each kind have no place yet.
    left: Vec<u64>,
}

/// A candidate: one node with one configuration.
struct ConfigurationCandidate {
    site: usize,
    cut: usize,
    /// What is free then.
    room: Room,
    /// How many more members of the kind have a place, and how many of all kinds.
    gain: u64,
    all: i64,
}

/// Places a gang's members and cuts GPUs where needed; `None` if not all of them find room.
fn serve(
    want: &WaitingSliceGang,
    later: &[&WaitingSliceGang],
    sites: &[CandidateNode],
    now: &mut [SearchedNode],
    devices: ResourceSet,
) -> Option<Vec<(usize, usize)>> {
    let mut fit = GangFit {
        want,
        sites,
        before: now.iter().map(|state| state.room.clone()).collect(),
        now,
        placed: vec![vec![0; want.members.len()]; sites.len()],
        left: want.members.iter().map(|kind| kind.count).collect(),
    };
    // Nodes that cannot be cut first, so that the others stay available.
    for open in [false, true] {
        for at in 0..sites.len() {
            if fit.now[at].open == open {
                fit.settle(at);
            }
        }
    }
    let mut cuts = Vec::new();
    while fit.left.iter().any(|left| *left > 0) {
        if !want.cuts {
            return None;
        }
        // The kind with the fewest candidates first: others have alternatives.
        let waiting = (0..want.members.len()).filter(|kind| fit.left[*kind] > 0);
        let candidates = waiting.map(|kind| (kind, fit.candidates(kind, devices)));
        let (kind, candidates) = candidates.min_by_key(|(_, candidates)| candidates.len())?;
        let best = candidates.into_iter().max_by_key(|candidate| {
            let mut rest = fit.filled(candidate);
            let others = later.iter().flat_map(|other| &other.members);
            let others = others.filter(|kind| kind.sites.contains(&candidate.site));
            let others: u64 = others.map(|kind| take(kind, kind.count, &mut rest)).sum();
            let more = fits(&want.members[kind].each, &candidate.room);
            let first = std::cmp::Reverse((candidate.site, candidate.cut));
            (
                candidate.gain,
                candidate.all,
                others,
                rest.get(GPU),
                more,
                first,
            )
        })?;
        cuts.push((best.site, best.cut));
        fit.cut(best);
    }
    let of_fit = fit.placed.into_iter().zip(fit.now);
    for (_, state) in of_fit.filter(|(placed, _)| placed.iter().any(|n| *n > 0)) {
        state.open = false;
    }
    Some(cuts)
}

impl GangFit<'_> {
    /// Places as many members as fit on a node.
    fn settle(&mut self, at: usize) {
        for (kind, members) in self.want.members.iter().enumerate() {
            if members.sites.contains(&at) {
                let count = take(members, self.left[kind], &mut self.now[at].room);
                self.placed[at][kind] += count;
                self.left[kind] -= count;
            }
        }
    }

    /// The candidates that give more members of one kind a place.
    fn candidates(&self, kind: usize, devices: ResourceSet) -> Vec<ConfigurationCandidate> {
        let members = &self.want.members[kind];
        let mut candidates = Vec::new();
        for at in members
            .sites
            .iter()
            .copied()
            .filter(|at| self.now[*at].open)
        {
            for (cut, how) in self.sites[at].cuts.iter().enumerate() {
                let room = cut_as(&self.before[at], how, devices);
                let here = self.placed[at][kind];
                let most = fits(&members.each, &room).min(self.left[kind] + here);
                let mut candidate = ConfigurationCandidate {
                    site: at,
                    cut,
                    room,
                    gain: most.saturating_sub(here),
                    all: 0,
                };
                if candidate.gain > 0 {
                    candidate.all = self.gained(&candidate);
                    candidates.push(candidate);
                }
            }
        }
        candidates
    }

    /// How many more members of all kinds would find a place.
    fn gained(&self, candidate: &ConfigurationCandidate) -> i64 {
        let mut room = candidate.room.clone();
        let kinds = self.want.members.iter().zip(&self.left);
        let kinds = kinds.zip(&self.placed[candidate.site]);
        let kinds = kinds.filter(|((members, _), _)| members.sites.contains(&candidate.site));
        let gains = kinds.map(|((members, left), here)| {
            take(members, left + here, &mut room).cast_signed() - here.cast_signed()
        });
        gains.sum()
    }

    /// What is left of a candidate once the gang has its part.
    fn filled(&self, candidate: &ConfigurationCandidate) -> Room {
        let mut room = candidate.room.clone();
        for (kind, members) in self.want.members.iter().enumerate() {
            if members.sites.contains(&candidate.site) {
                let count = self.left[kind] + self.placed[candidate.site][kind];
                take(members, count, &mut room);
            }
        }
        room
    }

    /// Cuts a node, and places again the members that had a place there.
    fn cut(&mut self, candidate: ConfigurationCandidate) {
        let at = candidate.site;
        for (left, placed) in self.left.iter_mut().zip(&mut self.placed[at]) {
            *left += std::mem::take(placed);
        }
        self.now[at] = SearchedNode {
            room: candidate.room,
            open: false,
        };
        self.settle(at);
    }
}

/// What is free on a node without GPU users once it is cut so.
fn cut_as(room: &Room, cut: &GpuConfiguration, devices: ResourceSet) -> Room {
    let mut room = room.clone();
    each(devices).for_each(|ix| room.set(ix, 0));
    for (ix, amount) in &cut.gives {
        room.set(*ix, *amount);
    }
    room
}

/// How many times the demand fits.
fn fits(demand: &Demand, room: &Room) -> u64 {
    let times = |(ix, amount): &(Ix, i64)| room.get(*ix).max(0) / amount;
    let least = demand.0.iter().map(times).min();
    u64::try_from(least.unwrap_or(0)).unwrap_or(0)
}

/// Takes room for as many of `count` as fit; returns that number.
fn take(kind: &MemberGroup, count: u64, room: &mut Room) -> u64 {
    let count = fits(&kind.each, room).min(count);
    if count > 0 {
        room.add(&kind.each, -i64::try_from(count).unwrap_or(i64::MAX));
    }
    count
}

/// Called for a gang that no cut can serve now. If the gang could start once other pods end, nodes
/// that it could use as they are stay uncut, so that later gangs do not take them.
fn keep(
    want: &WaitingSliceGang,
    sites: &[CandidateNode],
    now: &mut [SearchedNode],
    devices: ResourceSet,
) {
    let empty = |site: &CandidateNode| SearchedNode {
        room: site.empty.clone(),
        open: !site.cuts.is_empty(),
    };
    let mut then: Vec<SearchedNode> = sites.iter().map(empty).collect();
    let ever = WaitingSliceGang {
        members: want.members.clone(),
        cuts: true,
    };
    if serve(&ever, &[], sites, &mut then, devices).is_none() {
        return;
    }
    for kind in &want.members {
        let mut left = kind.count;
        for at in &kind.sites {
            let count = take(kind, left, &mut now[*at].room);
            now[*at].open &= count == 0;
            left -= count;
        }
    }
}

#[cfg(test)]
#[path = "choose_tests.rs"]
mod tests;
