//! Searches a domain for each part of a gang's placement tree.
//!
//! Method: depth first over the tree. A part that requires or prefers a level tries the domains
//! that hold it, the tightest first. A part with several classes or sub-groups can fail in a domain
//! that has room for each class alone; then the next domain is tried. If a later part finds no
//! domain, an earlier part is moved to its next feasible domain.
//!
//! Cost: at most `TRIES_MAX` domains for each part and level, `TRIES_IN_ALL` domains and
//! `MOVES_MAX` moves for each attempt.
//!
//! Example: a gang of 6 in one rack, with room for 8 in rack A and 6 in rack B, goes to rack B.
//!
//! Tests: `tests/topology.rs`; `tests/topology_oracle.rs` compares with an exhaustive search;
//! Kueue's cases in `tests/conformance/tas.rs`.

use std::collections::BTreeMap;

use crate::class::ClassIx;
use crate::pod::PodKey;
use crate::report::Obstacle;
use crate::state::Scheduler;
use crate::topology::Level;

use super::branch::{Branch, PodsToPlace};
use super::run::{PlacementRun, PlacementStop};
use super::scope::PlacementScope;

/// The most domains of one level that are tried for one part. Only parts with several classes or
/// sub-groups can fail in a domain that has room for each class.
const TRIES_MAX: usize = 24;
/// The most domains that are tried in one attempt, over all parts.
const TRIES_IN_ALL: usize = 256;

/// The most times in one attempt that a placed part is moved because a later part failed.
const MOVES_MAX: usize = 32;

/// What the attempt may still try.
pub(super) struct SearchBudget {
    tries: usize,
    moves: usize,
}

impl Scheduler {
    /// Places the tree. `Err` says why the minimum cannot be placed; what was taken until then is
    /// still taken. `Ok` says why members beyond the minimum wait, if any do.
    pub(super) fn place(
        &mut self,
        root: &Branch,
        run: &mut PlacementRun,
    ) -> Result<Option<Obstacle>, Obstacle> {
        self.check_total_room(root, run)?;
        let mut budget = SearchBudget {
            tries: TRIES_IN_ALL,
            moves: MOVES_MAX,
        };
        if let Err(stop) = self.place_branch(root, PlacementScope::All, run, &mut budget) {
            return Err(self.obstacle(stop, run));
        }
        let mut stopped = None;
        self.place_rest(root, PlacementScope::All, run, &mut stopped, &mut budget);
        Ok(stopped.map(|stop| self.obstacle(stop, run)))
    }

    /// Places members beyond the minimum where the minimum is placed; returns why some still wait.
    pub(super) fn place_more(&mut self, root: &Branch, run: &mut PlacementRun) -> Option<Obstacle> {
        let mut stopped = None;
        let mut budget = SearchBudget {
            tries: TRIES_IN_ALL,
            moves: MOVES_MAX,
        };
        self.place_rest(root, PlacementScope::All, run, &mut stopped, &mut budget);
        stopped.map(|stop| self.obstacle(stop, run))
    }

    /// Places a part's whole minimum within a scope, or none of it.
    fn place_branch(
        &mut self,
        branch: &Branch,
        scope: PlacementScope,
        run: &mut PlacementRun,
        budget: &mut SearchBudget,
    ) -> Result<(), PlacementStop> {
        self.place_branch_skipping(branch, scope, run, budget, 0)
    }

    /// Like `place_branch`, but skips the first `skipped` feasible domains; the caller asks for
    /// the next one after a later part failed.
    fn place_branch_skipping(
        &mut self,
        branch: &Branch,
        scope: PlacementScope,
        run: &mut PlacementRun,
        budget: &mut SearchBudget,
        mut skipped: usize,
    ) -> Result<(), PlacementStop> {
        if branch.wish.required.is_none() && branch.wish.preferred.is_none() {
            if skipped > 0 {
                return Err(self.too_few(branch, branch.least, run));
            }
            return self.place_in(branch, scope, run, budget);
        }
        if skipped == 0 && self.place_balanced(branch, scope, run) {
            return Ok(());
        }
        let from = run.placed.len();
        let (mut needs, mut wants) = (BTreeMap::new(), BTreeMap::new());
        branch.needs(&mut needs);
        branch.wants(&mut wants);
        for class in wants.keys() {
            self.refresh(*class);
        }
        let mut worst: Option<PlacementStop> = None;
        for level in self.levels_to_try(branch) {
            for candidate in self.candidates(branch, scope, level, &needs, &wants) {
                let Some(left) = budget.tries.checked_sub(1) else {
                    break;
                };
                budget.tries = left;
                match self.place_in(branch, candidate, run, budget) {
                    Ok(()) if skipped == 0 => return Ok(()),
                    Ok(()) => {
                        skipped -= 1;
                        self.undo_placements(run, from);
                    }
                    Err(stop) => {
                        self.undo_placements(run, from);
                        if stop.is_final() {
                            return Err(stop);
                        }
                        worst = Some(stop.or(worst));
                    }
                }
                for class in wants.keys() {
                    self.refresh(*class);
                }
            }
        }
        let Some(level) = branch.wish.required else {
            // The level is only preferred: several domains are allowed.
            if skipped > 0 {
                return Err(worst.unwrap_or_else(|| self.too_few(branch, branch.least, run)));
            }
            return self.place_in(branch, scope, run, budget);
        };
        Err(self.no_domain(branch, scope, level, &needs, worst, run))
    }

    /// The levels at which one domain is sought, the best (narrowest) first.
    fn levels_to_try(&self, branch: &Branch) -> Vec<Level> {
        let wish = &branch.wish;
        let widest = wish.required.unwrap_or(0);
        let narrowest = wish.preferred.unwrap_or(widest).max(widest);
        (widest..=narrowest).rev().collect()
    }

    /// The domains of a level with enough room for a part's minimum, by class. Order: the domain of
    /// its running members, then domains where all its pods fit, then the tightest.
    fn candidates(
        &self,
        branch: &Branch,
        scope: PlacementScope,
        level: Level,
        needs: &BTreeMap<ClassIx, usize>,
        wants: &BTreeMap<ClassIx, usize>,
    ) -> Vec<PlacementScope> {
        let main = self.main_class(needs, wants);
        let Some(view) = main.and_then(|class| self.views.get(&class)) else {
            return Vec::new();
        };
        let pinned = self.pinned(branch, level);
        let bound =
            branch.wish.required == Some(level) || branch.wish.required.is_none_or(|l| l <= level);
        let room_of = |class: &ClassIx, place: PlacementScope| {
            self.views.get(class).map_or(0, |view| match place {
                PlacementScope::All => view.room,
                PlacementScope::Domain(at) => view.sum(at),
                PlacementScope::Host(at) => u64::from(view.holds(at)),
            })
        };
        let holds = |all: &BTreeMap<ClassIx, usize>, place: PlacementScope| {
            all.iter()
                .all(|(class, n)| room_of(class, place) >= *n as u64)
        };
        let places: Vec<PlacementScope> = match (self.at_level(scope, level), pinned) {
            // Running members decide: the others must join them.
            (places, Some(pinned)) if bound && branch.wish.required.is_some() => {
                let required = branch.wish.required.unwrap_or(level);
                let pin = self.pinned(branch, required).unwrap_or(pinned);
                let inside = |place: &PlacementScope| self.lies_in(*place, pin);
                places.into_iter().filter(inside).collect()
            }
            (places, _) => places,
        };
        let mixed = view.is_mixed();
        let slices = (!branch.wish.slices.is_empty()).then_some(&branch.wish.slices);
        let least = branch.least as u64;
        // A single pod needs no neighbours: it goes where the widest domains stay free.
        let single = branch.wish.required.is_none() && wants.values().sum::<usize>() == 1;
        let mut weighed: Vec<_> = places
            .into_iter()
            .filter(|place| holds(needs, *place))
            .filter(|place| self.holds_in_all(branch, *place, wants, least, &room_of))
            .filter_map(|place| {
                let raw = main.map_or(0, |class| room_of(&class, place));
                let mut room = raw;
                if let (Some(slices), Some(class)) = (slices, main) {
                    room = self.sliced_room(class, place, slices, &branch.on);
                    let need = needs.get(&class).copied().unwrap_or(0) as u64;
                    if room < need {
                        return None;
                    }
                }
                let tier = if mixed {
                    self.best_tier(view, place)
                } else {
                    0
                };
                let away = pinned.is_some_and(|pin| pin != place);
                Some((
                    away,
                    !holds(wants, place),
                    tier,
                    if single {
                        self.rooms_around(view, place)
                    } else {
                        Vec::new()
                    },
                    (room, raw),
                    self.order_of(place),
                    place,
                ))
            })
            .collect();
        // If not all wanted pods fit, the domain with the most room comes closest.
        weighed.sort_by_cached_key(|(away, short, tier, around, room, order, _)| {
            let (room, raw) = *room;
            let tight = if *short { u64::MAX - room } else { room };
            // Of domains with equally many slices, the one with the least other room.
            (*away, *tier, *short, around.clone(), tight, raw, *order)
        });
        weighed.truncate(TRIES_MAX);
        weighed.into_iter().map(|(.., place)| place).collect()
    }

    /// Places a part's whole minimum in exactly this scope, or none of it.
    fn place_in(
        &mut self,
        branch: &Branch,
        scope: PlacementScope,
        run: &mut PlacementRun,
        budget: &mut SearchBudget,
    ) -> Result<(), PlacementStop> {
        let from = run.placed.len();
        match self.place_parts(branch, scope, run, budget) {
            Ok(()) => {
                run.scopes.insert(branch.id, scope);
                Ok(())
            }
            Err(stop) => {
                self.undo_placements(run, from);
                Err(stop)
            }
        }
    }

    fn place_parts(
        &mut self,
        branch: &Branch,
        scope: PlacementScope,
        run: &mut PlacementRun,
        budget: &mut SearchBudget,
    ) -> Result<(), PlacementStop> {
        let from = run.placed.len();
        let mut worst: Option<PlacementStop> = None;
        self.place_all(branch, scope, run, budget)?;
        // Optional parts beyond the quorum start later, when the gang has its minimum.
        let mut quorum = branch.quorum;
        for child in branch.children.iter().filter(|child| !child.must) {
            if quorum == 0 {
                break;
            }
            match self.place_branch(child, scope, run, budget) {
                Ok(()) => quorum = quorum.saturating_sub(1),
                Err(stop) => worst = Some(stop.or(worst)),
            }
        }
        if quorum > 0 {
            return Err(worst.unwrap_or_else(|| self.too_few(branch, quorum, run)));
        }
        // Then any other member that finds room, until the minimum is reached.
        let mut short = branch.least.saturating_sub(run.placed.len() - from);
        if short > 0 {
            run.scopes.insert(branch.id, scope);
            self.fill_up(branch, scope, &mut short, run, &mut worst, budget);
        }
        match short {
            0 => Ok(()),
            _ => Err(worst.unwrap_or_else(|| self.too_few(branch, short, run))),
        }
    }

    /// Places the parts that must start, then the branch's own required pods. If a part fails
    /// because an earlier part took its place, the earlier part is moved to its next feasible
    /// domain.
    fn place_all(
        &mut self,
        branch: &Branch,
        scope: PlacementScope,
        run: &mut PlacementRun,
        budget: &mut SearchBudget,
    ) -> Result<(), PlacementStop> {
        let must: Vec<&Branch> = branch.children.iter().filter(|child| child.must).collect();
        let mut worst: Option<PlacementStop> = None;
        let mut skipped = vec![0; must.len()];
        let mut marks: Vec<usize> = Vec::new();
        loop {
            let at = marks.len();
            let from = run.placed.len();
            let placed = match must.get(at) {
                Some(child) => self.place_branch_skipping(child, scope, run, budget, skipped[at]),
                None => self.place_own(branch, scope, run),
            };
            match placed {
                Ok(()) if at == must.len() => return Ok(()),
                Ok(()) => {
                    marks.push(from);
                    if let Some(next) = skipped.get_mut(at + 1) {
                        *next = 0;
                    }
                }
                Err(stop) => {
                    let is_final = stop.is_final();
                    worst = Some(stop.or(worst));
                    let before = marks.pop().filter(|_| !is_final && budget.moves > 0);
                    match (before, worst.take()) {
                        (Some(before), kept) => {
                            worst = kept;
                            budget.moves -= 1;
                            self.undo_placements(run, before);
                        }
                        (None, Some(stop)) => return Err(stop),
                        (None, None) => return Ok(()),
                    }
                    skipped[at - 1] += 1;
                }
            }
        }
    }

    /// Places pods beyond the parts' minima until `short` more are placed.
    fn fill_up(
        &mut self,
        branch: &Branch,
        outer: PlacementScope,
        short: &mut usize,
        run: &mut PlacementRun,
        worst: &mut Option<PlacementStop>,
        budget: &mut SearchBudget,
    ) {
        if let Some(scope) = run.scopes.get(&branch.id).copied() {
            let wide = self.bounds(branch, scope, outer);
            let both = [scope, wide];
            for batch in &branch.own.others {
                for place in &both[usize::from(scope == wide)..] {
                    let rest = self.unplaced(&batch.pods, run);
                    let rest = &rest[..rest.len().min(*short)];
                    if rest.is_empty() {
                        break;
                    }
                    let (placed, stop) = self.place_pods(batch.class, rest, 0, *place, branch, run);
                    *short -= placed;
                    if let Some(stop) = stop {
                        *worst = Some(stop.or(worst.take()));
                    }
                }
            }
        }
        let inner = run.scopes.get(&branch.id).copied();
        let inner = self.bounds(branch, inner.unwrap_or(outer), outer);
        for child in &branch.children {
            if *short == 0 {
                return;
            }
            if !child.must && !run.scopes.contains_key(&child.id) {
                let from = run.placed.len();
                if let Err(stop) = self.place_branch(child, inner, run, budget) {
                    *worst = Some(stop.or(worst.take()));
                    continue;
                }
                *short = short.saturating_sub(run.placed.len() - from);
            }
            self.fill_up(child, inner, short, run, worst, budget);
        }
    }

    fn too_few(&self, branch: &Branch, missing: usize, run: &PlacementRun) -> PlacementStop {
        let what = if branch.label.is_empty() {
            "members".to_owned()
        } else {
            format!("of {}", branch.label)
        };
        let possible = run.have + run.placed.len();
        PlacementStop::Domain(Box::new(Obstacle::missing_members(
            &format!("{missing} more {what} must start together, and no such"),
            possible,
        )))
    }

    /// Places the pods that the branch itself must have.
    fn place_own(
        &mut self,
        branch: &Branch,
        scope: PlacementScope,
        run: &mut PlacementRun,
    ) -> Result<(), PlacementStop> {
        let own: &PodsToPlace = &branch.own;
        if own.is_empty() {
            return Ok(());
        }
        for batch in &own.required {
            // Pods of the same class come later: room is sought for all of them together.
            let more = self.same_class(&own.others, batch.class);
            let (_, stop) = self.place_pods(batch.class, &batch.pods, more, scope, branch, run);
            if let Some(stop) = stop {
                return Err(stop);
            }
        }
        let mut needed = own.needed;
        let mut stopped: Option<PlacementStop> = None;
        for batch in &own.others {
            let now = needed.min(batch.pods.len());
            if now == 0 {
                break;
            }
            let more = batch.pods.len() - now;
            let (placed, stop) =
                self.place_pods(batch.class, &batch.pods[..now], more, scope, branch, run);
            needed -= placed;
            if let Some(stop) = stop {
                stopped = Some(stop.or(stopped));
            }
        }
        match (needed, stopped) {
            (0, _) => Ok(()),
            (_, Some(stop)) => Err(stop),
            (_, None) => Err(self.too_few(branch, needed, run)),
        }
    }

    fn same_class(&self, others: &[super::branch::MemberBatch], class: ClassIx) -> usize {
        let same = others.iter().filter(|batch| batch.class == class);
        same.map(|batch| batch.pods.len()).sum()
    }

    /// Places members beyond the minimum, in the scope where their part's minimum is.
    fn place_rest(
        &mut self,
        branch: &Branch,
        outer: PlacementScope,
        run: &mut PlacementRun,
        stopped: &mut Option<PlacementStop>,
        budget: &mut SearchBudget,
    ) {
        if let Some(scope) = run.scopes.get(&branch.id).copied() {
            for batch in &branch.own.others {
                // A preferred domain does not stop members beyond the minimum from starting
                // elsewhere.
                let wide = self.bounds(branch, scope, outer);
                let both = [scope, wide];
                for place in &both[usize::from(scope == wide)..] {
                    let all = self.unplaced(&batch.pods, run);
                    let rest = &all[..all.len().min(run.beyond)];
                    if rest.is_empty() {
                        break;
                    }
                    let (placed, stop) = self.place_pods(batch.class, rest, 0, *place, branch, run);
                    run.beyond -= placed;
                    if let (Some(stop), None) = (stop.filter(|_| *place == wide), &stopped) {
                        *stopped = Some(stop.and_missing(all.len() - rest.len()));
                    }
                }
            }
        }
        for child in &branch.children {
            if !child.must && !run.scopes.contains_key(&child.id) {
                if run.beyond == 0 {
                    continue;
                }
                let scope = run
                    .scopes
                    .get(&branch.id)
                    .copied()
                    .unwrap_or(PlacementScope::All);
                if let Err(stop) = self.place_branch(child, scope, run, budget) {
                    if stopped.is_none() {
                        *stopped = Some(stop);
                    }
                    continue;
                }
                run.beyond = run.beyond.saturating_sub(child.least);
            }
            let inner = run.scopes.get(&branch.id).copied();
            let inner = self.bounds(branch, inner.unwrap_or(outer), outer);
            self.place_rest(child, inner, run, stopped, budget);
        }
    }

    fn unplaced(&self, pods: &[PodKey], run: &PlacementRun) -> Vec<PodKey> {
        let placed: std::collections::BTreeSet<&PodKey> =
            run.placed.iter().map(|placement| &placement.pod).collect();
        let rest = pods.iter().filter(|pod| !placed.contains(pod));
        rest.cloned().collect()
    }

    /// Places pods of one class within a scope, as many as fit. Room is sought for `more` besides,
    /// which are placed later. Returns how many were placed and why it stopped.
    pub(super) fn place_pods(
        &mut self,
        class: ClassIx,
        pods: &[PodKey],
        more: usize,
        scope: PlacementScope,
        branch: &Branch,
        run: &mut PlacementRun,
    ) -> (usize, Option<PlacementStop>) {
        if pods.is_empty() {
            return (0, None);
        }
        let demand = self.classes.get(class).demand().clone();
        let (allowed, bound) = self.allowance(run, &demand);
        let count = if self.has_inter_pod_rules(class, &pods[0]) {
            let allowed = &pods[..pods.len().min(allowed)];
            let (placed, stop) = self.place_one_by_one(class, allowed, scope, run);
            if stop.is_some() {
                return (placed, stop);
            }
            placed
        } else {
            let room = usize::try_from(self.room(class, scope)).unwrap_or(usize::MAX);
            let mut count = pods.len().min(allowed).min(room);
            let picks = match self.one_node(class, count, more, scope, branch, run) {
                Some(at) => vec![(at, count as u64)],
                None => self.picks(class, &mut count, more, scope, branch, run),
            };
            self.take_room(class, &pods[..count], &picks, run);
            count
        };
        if count == pods.len() {
            return (count, None);
        }
        let missing = pods.len() - count;
        let possible = run.have + run.placed.len();
        // The bound, after the pods just placed.
        let bound = bound
            .filter(|_| allowed <= count)
            .map(|bound| self.allowance(run, &demand).1.unwrap_or(bound));
        let stop = match bound {
            Some(bound) => PlacementStop::Queue {
                class,
                bound,
                missing,
                possible,
            },
            None => PlacementStop::Room {
                class,
                missing,
                possible,
            },
        };
        (count, Some(stop))
    }

    /// Why no domain of the level that a part requires holds it.
    fn no_domain(
        &mut self,
        branch: &Branch,
        scope: PlacementScope,
        level: Level,
        needs: &BTreeMap<ClassIx, usize>,
        worst: Option<PlacementStop>,
        run: &PlacementRun,
    ) -> PlacementStop {
        let Some(class) = self.main_class(needs, needs) else {
            return worst.unwrap_or_else(|| self.too_few(branch, branch.least, run));
        };
        let need = needs.get(&class).copied().unwrap_or(0);
        let pinned = self.pinned(branch, level);
        let Some(view) = self.views.get(&class) else {
            return self.too_few(branch, need, run);
        };
        let places = match pinned {
            Some(pin) => vec![pin],
            None => self.at_level(scope, level),
        };
        let slices = &branch.wish.slices;
        let (mut best, mut most_empty): (Option<(u64, PlacementScope)>, u64) = (None, 0);
        for place in &places {
            let (room, empty) = match place {
                PlacementScope::All => (view.room, view.empty),
                PlacementScope::Domain(at) => (view.sum(*at), view.sum_empty(*at)),
                PlacementScope::Host(at) => (u64::from(view.holds(*at)), view.empty_at(*at)),
            };
            let room = if slices.is_empty() {
                room
            } else {
                self.sliced_room(class, *place, slices, &branch.on)
            };
            most_empty = most_empty.max(empty);
            if best.is_none_or(|(most, _)| room > most) {
                best = Some((room, *place));
            }
        }
        let name = |place: PlacementScope| match place {
            PlacementScope::All => "the cluster".to_owned(),
            PlacementScope::Domain(at) => self.topology.name(at),
            PlacementScope::Host(at) => self.nodes[at].name.to_string(),
        };
        let bound = crate::report::TopologyBound {
            key: self.topology.key(level).to_owned(),
            part: branch.label.clone(),
            need,
            domains: places.len(),
            best: best.map(|(room, place)| (name(place), room)),
            empty: most_empty,
            pinned: pinned.is_some(),
            slice: slices
                .first()
                .map(|(level, size)| (self.topology.key(*level).to_owned(), *size)),
        };
        let possible = run.have + best.map_or(0, |(room, _)| room as usize).min(need);
        let possible = possible.max(run.have + run.placed.len());
        PlacementStop::Domain(Box::new(self.no_domain_holds(class, &bound, possible)))
    }
}
