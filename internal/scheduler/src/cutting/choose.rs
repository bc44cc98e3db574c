//! Which nodes' GPUs are cut how, so that waiting gangs can start. Knows gangs and nodes as amounts
//! alone. One gang after the other, and what those before it need is not taken from them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::resource::{Demand, GPU, Ix, Room, Set, each};

/// How many gangs behind one are looked at for which of several configurations serves them, too.
const BEHIND: usize = 16;

/// Members of a waiting gang that are alike.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    /// What one asks for.
    pub(crate) each: Demand,
    /// How many must start.
    pub(crate) count: u64,
    /// The nodes that would have them, whatever is free there and however their GPUs are cut.
    pub(crate) sites: BTreeSet<usize>,
}

/// A waiting gang.
#[derive(Clone, Debug)]
pub(crate) struct Want {
    /// Its waiting members.
    pub(crate) members: Vec<Members>,
    /// May GPUs be cut for it?
    pub(crate) cuts: bool,
}

/// How a node's GPUs could be cut.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cut {
    /// The configuration's name.
    pub(crate) name: Arc<str>,
    /// The devices that there would be; of others none.
    pub(crate) gives: Vec<(Ix, i64)>,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Site {
    /// What is free, or will be where a change is under way.
    pub(crate) room: Room,
    /// What it has when empty.
    pub(crate) empty: Room,
    /// How its GPUs could be cut otherwise, now or once nobody has any.
    pub(crate) cuts: Vec<Cut>,
    /// May they be cut now: nobody has one, and they are cut as they are for long enough?
    pub(crate) open: bool,
}

/// A node whose GPUs are to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// Its place among the nodes.
    pub(crate) site: usize,
    /// Which of its configurations.
    pub(crate) cut: usize,
    /// The place of the gang that it is for.
    pub(crate) want: usize,
}

/// One node while it is tried.
#[derive(Clone, Debug)]
struct State {
    room: Room,
    open: bool,
}

/// Chooses for these gangs, in their order; a gang that could not start then gets nothing cut.
/// `devices` are the resources that GPUs are given out as.
pub(crate) fn choose(wants: &[Want], sites: &[Site], devices: Set) -> Vec<Chosen> {
    let state = |site: &Site| State {
        room: site.room.clone(),
        open: site.open,
    };
    let mut now: Vec<State> = sites.iter().map(state).collect();
    let mut chosen = Vec::new();
    for (at, want) in wants.iter().enumerate() {
        let behind = wants.iter().skip(at + 1).filter(|other| other.cuts);
        let behind: Vec<&Want> = behind.take(BEHIND).collect();
        let mut tried = now.clone();
        match serve(want, &behind, sites, &mut tried, devices) {
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

/// What one gang has found of room so far.
struct Trial<'a> {
    want: &'a Want,
    sites: &'a [Site],
    now: &'a mut [State],
    /// What is free of nodes before the gang has any of it.
    before: Vec<Room>,
    /// By node: how many of each kind of members are placed there.
    placed: Vec<Vec<u64>>,
    /// How many of each kind have no place.
    left: Vec<u64>,
}

/// A way to cut one node.
struct Way {
    site: usize,
    cut: usize,
    /// What is free then.
    room: Room,
    /// How many more members of the kind have a place, and of all kinds.
    gain: u64,
    all: i64,
}

/// Places a gang's members, cutting GPUs where it must; none where they don't all find room.
fn serve(
    want: &Want,
    behind: &[&Want],
    sites: &[Site],
    now: &mut [State],
    devices: Set,
) -> Option<Vec<(usize, usize)>> {
    let mut trial = Trial {
        want,
        sites,
        before: now.iter().map(|state| state.room.clone()).collect(),
        now,
        placed: vec![vec![0; want.members.len()]; sites.len()],
        left: want.members.iter().map(|kind| kind.count).collect(),
    };
    // Where nothing can be cut first, so that what can stays so.
    for open in [false, true] {
        for at in 0..sites.len() {
            if trial.now[at].open == open {
                trial.settle(at);
            }
        }
    }
    let mut cuts = Vec::new();
    while trial.left.iter().any(|left| *left > 0) {
        if !want.cuts {
            return None;
        }
        // Who could go to the fewest first: others can go elsewhere.
        let waiting = (0..want.members.len()).filter(|kind| trial.left[*kind] > 0);
        let ways = waiting.map(|kind| (kind, trial.ways(kind, devices)));
        let (kind, ways) = ways.min_by_key(|(_, ways)| ways.len())?;
        let best = ways.into_iter().max_by_key(|way| {
            let mut rest = trial.filled(way);
            let others = behind.iter().flat_map(|other| &other.members);
            let others = others.filter(|kind| kind.sites.contains(&way.site));
            let others: u64 = others.map(|kind| take(kind, kind.count, &mut rest)).sum();
            let more = fits(&want.members[kind].each, &way.room);
            let first = std::cmp::Reverse((way.site, way.cut));
            (way.gain, way.all, others, rest.get(GPU), more, first)
        })?;
        cuts.push((best.site, best.cut));
        trial.cut(best);
    }
    let of_trial = trial.placed.into_iter().zip(trial.now);
    for (_, state) in of_trial.filter(|(placed, _)| placed.iter().any(|n| *n > 0)) {
        state.open = false;
    }
    Some(cuts)
}

impl Trial<'_> {
    /// Places as many as fit on a node.
    fn settle(&mut self, at: usize) {
        for (kind, members) in self.want.members.iter().enumerate() {
            if members.sites.contains(&at) {
                let count = take(members, self.left[kind], &mut self.now[at].room);
                self.placed[at][kind] += count;
                self.left[kind] -= count;
            }
        }
    }

    /// How nodes could be cut so that more of one kind find a place.
    fn ways(&self, kind: usize, devices: Set) -> Vec<Way> {
        let members = &self.want.members[kind];
        let mut ways = Vec::new();
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
                let mut way = Way {
                    site: at,
                    cut,
                    room,
                    gain: most.saturating_sub(here),
                    all: 0,
                };
                if way.gain > 0 {
                    way.all = self.gained(&way);
                    ways.push(way);
                }
            }
        }
        ways
    }

    /// How many more of all kinds would find a place.
    fn gained(&self, way: &Way) -> i64 {
        let mut room = way.room.clone();
        let kinds = self.want.members.iter().zip(&self.left);
        let kinds = kinds.zip(&self.placed[way.site]);
        let kinds = kinds.filter(|((members, _), _)| members.sites.contains(&way.site));
        let gains = kinds.map(|((members, left), here)| {
            take(members, left + here, &mut room).cast_signed() - here.cast_signed()
        });
        gains.sum()
    }

    /// What is left of a node that is cut so once the gang has its part.
    fn filled(&self, way: &Way) -> Room {
        let mut room = way.room.clone();
        for (kind, members) in self.want.members.iter().enumerate() {
            if members.sites.contains(&way.site) {
                let count = self.left[kind] + self.placed[way.site][kind];
                take(members, count, &mut room);
            }
        }
        room
    }

    /// Cuts a node, and places anew who had a place there.
    fn cut(&mut self, way: Way) {
        let at = way.site;
        for (left, placed) in self.left.iter_mut().zip(&mut self.placed[at]) {
            *left += std::mem::take(placed);
        }
        self.now[at] = State {
            room: way.room,
            open: false,
        };
        self.settle(at);
    }
}

/// What a node nobody has a GPU of has free once it is cut so.
fn cut_as(room: &Room, cut: &Cut, devices: Set) -> Room {
    let mut room = room.clone();
    each(devices).for_each(|ix| room.set(ix, 0));
    for (ix, amount) in &cut.gives {
        room.set(*ix, *amount);
    }
    room
}

/// How many of it fit.
fn fits(demand: &Demand, room: &Room) -> u64 {
    let times = |(ix, amount): &(Ix, i64)| room.get(*ix).max(0) / amount;
    let least = demand.0.iter().map(times).min();
    u64::try_from(least.unwrap_or(0)).unwrap_or(0)
}

/// Places as many of so many as fit; says how many.
fn take(kind: &Members, count: u64, room: &mut Room) -> u64 {
    let count = fits(&kind.each, room).min(count);
    if count > 0 {
        room.add(&kind.each, -i64::try_from(count).unwrap_or(i64::MAX));
    }
    count
}

/// A gang waits that nothing can be cut for now. Where it will start once others have ended, nodes
/// that it could use part of as they are stay so: who comes after it doesn't take them away.
fn keep(want: &Want, sites: &[Site], now: &mut [State], devices: Set) {
    let empty = |site: &Site| State {
        room: site.empty.clone(),
        open: !site.cuts.is_empty(),
    };
    let mut then: Vec<State> = sites.iter().map(empty).collect();
    let ever = Want {
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
