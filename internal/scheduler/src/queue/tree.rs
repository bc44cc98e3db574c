//! Rebuilds the tree after queues or their rules changed: parents, order, and all sums from what
//! the queues' own gangs hold. The result depends on the objects, not on event order. Costs queues
//! times depth.

use std::collections::BTreeSet;

use crate::queue::{GangSums, QueueIx, Queues, ROOT, ROOT_NAME};
use crate::resource::{Ix, Room};

/// The state of a queue in the search for cycles.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VisitState {
    New,
    Open,
    Done,
}

impl Queues {
    /// Rebuilds the tree if something about it changed.
    pub(super) fn relink(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        self.requests_changed = true;
        self.set_parents();
        self.rank_by_age();
        self.order_queues();
        self.sum_up();
    }

    /// Sets every queue's parent; queues of a cycle all become children of the root.
    fn set_parents(&mut self) {
        let wanted: Vec<QueueIx> = (0..self.table.len()).map(|at| self.wanted(at)).collect();
        let mut parents = wanted.clone();
        let mut marks = vec![VisitState::New; wanted.len()];
        marks[ROOT] = VisitState::Done;
        for start in 0..wanted.len() {
            let mut trail = Vec::new();
            let mut at = start;
            while marks[at] == VisitState::New {
                marks[at] = VisitState::Open;
                trail.push(at);
                at = wanted[at];
            }
            if marks[at] == VisitState::Open {
                let circle = trail.iter().skip_while(|step| **step != at);
                circle.for_each(|step| parents[*step] = ROOT);
            }
            trail
                .into_iter()
                .for_each(|step| marks[step] = VisitState::Done);
        }
        for (queue, parent) in self.table.iter_mut().zip(parents) {
            queue.parent = parent;
            queue.children.clear();
        }
    }

    fn wanted(&self, at: QueueIx) -> QueueIx {
        let rules = self.table[at].rules.as_ref();
        let named = rules.and_then(|rules| rules.parent.as_deref());
        let named = named.filter(|name| *name != ROOT_NAME);
        let parent = named.and_then(|name| self.index.get(name)).copied();
        // A parent without a Queue object counts as missing.
        parent
            .filter(|parent| at != ROOT && self.table[*parent].rules.is_some())
            .unwrap_or(ROOT)
    }

    /// Ranks the queues by age, then name.
    fn rank_by_age(&mut self) {
        let mut all: Vec<QueueIx> = self.index.values().copied().collect();
        all.sort_by_cached_key(|at| {
            let created = self.rules(*at).map(|rules| rules.created);
            (created, self.table[*at].name.clone())
        });
        for (rank, at) in all.into_iter().enumerate() {
            self.table[at].rank = rank;
            let parent = self.table[at].parent;
            if at != ROOT {
                self.table[parent].children.push(at);
            }
        }
    }

    fn order_queues(&mut self) {
        self.order.clear();
        self.order.push(ROOT);
        let mut next = 0;
        while let Some(at) = self.order.get(next).copied() {
            self.order.extend_from_slice(&self.table[at].children);
            next += 1;
        }
    }

    fn sum_up(&mut self) {
        for queue in &mut self.table {
            queue.sum = queue.own.clone();
            queue.limited.clear();
            queue.limited_teams.clear();
            queue.kept = Room::default();
            queue.kept_below = Room::default();
        }
        for step in (0..self.order.len()).rev() {
            let at = self.order[step];
            self.keep_all(at);
            let queue = &self.table[at];
            let (sum, kept, parent) = (queue.sum.clone(), queue.kept.clone(), queue.parent);
            self.limit_holders(at);
            if at != ROOT {
                self.table[parent].sum.add(&sum);
                self.table[parent].kept_below.add_room(&kept, 1);
            }
        }
    }

    fn keep_all(&mut self, at: QueueIx) {
        let queue = &self.table[at];
        let own = queue.rules.iter().flat_map(|rules| rules.reserving());
        let below = queue.kept_below.iter().map(|(ix, _)| ix);
        let resources: BTreeSet<Ix> = own.chain(below).collect();
        for ix in resources {
            let queue = &mut self.table[at];
            let reserved = queue.rules.as_ref().map_or(0, |rules| rules.reserved(ix));
            let unmet = reserved - queue.sum.allocated.get(ix);
            let kept = unmet.max(queue.kept_below.get(ix)).max(0);
            queue.kept.set(ix, kept);
        }
    }

    /// Adds what a queue's users and teams hold to every queue on the path that limits them.
    fn limit_holders(&mut self, from: QueueIx) {
        if self.table[from].users.is_empty() {
            return;
        }
        let path: Vec<QueueIx> = self.path(from).collect();
        for at in path {
            let Some(rules) = self.table[at].rules.as_ref() else {
                continue;
            };
            let (users, teams) = (!rules.user_limit.is_empty(), !rules.team_limit.is_empty());
            if users {
                for (user, room) in self.table[from].users.clone() {
                    let limited = self.table[at].limited.entry(user).or_default();
                    limited.add_room(&room, 1);
                }
            }
            if teams {
                for (team, room) in self.table[from].teams.clone() {
                    let limited = self.table[at].limited_teams.entry(team).or_default();
                    limited.add_room(&room, 1);
                }
            }
        }
    }
}

impl GangSums {
    fn add(&mut self, other: &GangSums) {
        self.allocated.add_room(&other.allocated, 1);
        self.fixed.add_room(&other.fixed, 1);
        self.requested.add_room(&other.requested, 1);
        self.expected.add_room(&other.expected, 1);
    }
}
