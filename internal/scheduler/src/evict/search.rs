//! The smallest set of evictions after which a gang starts. Candidates are taken in their order
//! until the gang fits; then whoever is not needed is given back, the last taken first, until
//! nobody can be. All of it happens on the state itself, and is undone if it comes to nothing.
//!
//! It is cheap because most questions are answered by numbers: how many members of a class all
//! nodes together hold is kept up to date as nodes change, so that a gang is only tried in
//! earnest where it may fit; tries that fail grow apart by doubling.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::bound::Reach;
use super::bynode::ByNode;
use super::candidates::Bite;
use super::kept::Kept;
use super::txn::{Standing, Txn};
use crate::class::ClassIx;
use crate::gang::GangKey;
use crate::place::Placement;
use crate::queue::Payer;
use crate::resource::{Demand, GPU_UNIT, Room};
use crate::state::Scheduler;

/// What a gang needs at least, by class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ask {
    pub(crate) payer: Option<Payer>,
    /// May evictions for it break a PodDisruptionBudget?
    pub(crate) breaks_budgets: bool,
    /// How long it waits for room if nobody is evicted, in seconds, where what others lose is
    /// weighed against that.
    pub(crate) wait: Option<i64>,
    /// Members that its tasks require.
    required: BTreeMap<ClassIx, usize>,
    /// Other members, and how many of them are needed.
    others: BTreeMap<ClassIx, usize>,
    needed: usize,
    /// What they ask for together; of classes that may be chosen among, the first.
    pub(crate) demand: Demand,
}

impl Ask {
    /// Classes and numbers that are certain to be part of what is placed.
    pub(crate) fn certain(&self) -> BTreeMap<ClassIx, usize> {
        let mut all = self.required.clone();
        if let [(class, _)] = self.others.iter().collect::<Vec<_>>()[..] {
            *all.entry(*class).or_default() += self.needed;
        }
        all.retain(|_, members| *members > 0);
        all
    }

    /// All classes, for telling one ask from another.
    pub(crate) fn classes(&self) -> Vec<(ClassIx, usize, bool)> {
        let required = self.required.iter().map(|(class, n)| (*class, *n, true));
        let others = self
            .others
            .keys()
            .map(|class| (*class, self.needed, false))
            .filter(|_| self.needed > 0);
        required.chain(others).collect()
    }
}

/// A set of evictions, and what they make room for.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) bites: Vec<Bite>,
    pub(crate) placed: Vec<Placement>,
    /// Places to be kept for those who are moved.
    pub(crate) places: Vec<(GangKey, Kept)>,
    /// They are of the first candidates, and those after them would make no difference.
    pub(crate) first: bool,
    pub(crate) txn: Txn,
}

/// Why a search came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vain {
    /// The gang does not fit, whoever goes.
    NoRoom,
    /// Whoever goes loses more than the gang saves.
    NotWorth,
}

/// Who may be taken next, given what was taken so far.
pub(crate) trait Candidates {
    fn next(&mut self, state: &mut Scheduler) -> Option<Bite>;

    /// Whose gangs may ever be taken, all of them and maybe others; none if nobody says.
    fn reach(&self, _: &Scheduler) -> Option<Reach> {
        None
    }

    /// With those gone who are, and the gang not counted: may it come in, as far as the grounds
    /// go on which others are evicted for it?
    fn admits(&self, state: &Scheduler) -> bool;

    /// Everybody who could ever be taken, where that is more than go in one order: how many may be
    /// taken is bounded then, and others could go instead.
    fn everybody(&mut self, _: &mut Scheduler) -> Vec<Bite> {
        Vec::new()
    }

    /// May one of them be taken, with those gone who are?
    fn may_take(&self, _: &Scheduler, _: &Bite) -> bool {
        true
    }
}

impl Scheduler {
    /// What a gang needs so that it starts; one member where it is whole.
    pub(crate) fn ask(&self, key: &GangKey) -> Ask {
        let Some(gang) = self.gangs.get(key) else {
            return Ask::default();
        };
        let mut ask = Ask {
            payer: gang.payer,
            ..Ask::default()
        };
        let tasks = gang.spec.iter().flat_map(|spec| &spec.min_task_member);
        let mut short: BTreeMap<&str, usize> = tasks
            .map(|(task, min)| (&**task, min.saturating_sub(gang.task(task).have())))
            .collect();
        ask.needed = gang.minimum(key).saturating_sub(gang.total.have());
        let alike = short.is_empty();
        if alike {
            ask.others = gang.kinds.iter().map(|(kind, n)| (*kind, *n)).collect();
        }
        for (_, name) in gang.pending.iter().filter(|_| !alike) {
            let Some(pod) = self.pods.get(name) else {
                continue;
            };
            match short.get_mut(&*pod.task) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    ask.needed = ask.needed.saturating_sub(1);
                    *ask.required.entry(pod.class).or_default() += 1;
                }
                _ => *ask.others.entry(pod.class).or_default() += 1,
            }
        }
        if ask.required.is_empty() && ask.needed == 0 {
            ask.needed = 1;
        }
        ask.demand = self.sum(&ask);
        ask
    }

    fn sum(&self, ask: &Ask) -> Demand {
        let mut sum = Room::default();
        for (class, members) in &ask.required {
            sum.add(self.classes.get(*class).demand(), *members as i64);
        }
        let mut needed = ask.needed;
        for (class, members) in &ask.others {
            let some = needed.min(*members);
            sum.add(self.classes.get(*class).demand(), some as i64);
            needed -= some;
        }
        Demand(sum.iter().filter(|(_, amount)| *amount > 0).collect())
    }

    /// Could the gang fit, by what all nodes hold together, and within its queue's bounds? No
    /// means no.
    pub(super) fn might_fit(&mut self, ask: &Ask) -> bool {
        self.counts_suffice(ask, |view| view.room) && self.within_quota(ask)
    }

    /// Could it fit if the nodes were empty? No means that no eviction helps.
    pub(crate) fn fits_when_empty(&mut self, ask: &Ask) -> bool {
        self.counts_suffice(ask, |view| view.empty)
    }

    fn counts_suffice(&mut self, ask: &Ask, room: fn(&crate::fit::View) -> u64) -> bool {
        let mut of = |class: ClassIx| {
            self.refresh(class);
            let room = self.views.get(&class).map_or(0, room);
            usize::try_from(room).unwrap_or(usize::MAX)
        };
        for (class, members) in &ask.required {
            if of(*class) < *members {
                return false;
            }
        }
        let mut rest = 0usize;
        for (class, members) in &ask.others {
            rest = rest.saturating_add(of(*class).min(*members));
        }
        rest >= ask.needed
    }

    /// May the queue take what is certain to be placed?
    pub(crate) fn within_quota(&mut self, ask: &Ask) -> bool {
        let Some(payer) = ask.payer else {
            return false;
        };
        let mut charged = Vec::new();
        let mut within = true;
        for (class, members) in ask.certain() {
            let demand = self.classes.get(class).demand().clone();
            let (allowed, _) = self.queues.allows(payer, &demand, |ix| self.idle(ix));
            if (allowed as usize) < members {
                within = false;
                break;
            }
            let times = members as i64;
            self.queues.charge(payer, &demand, times);
            self.used.add(&demand, times);
            charged.push((demand, times));
        }
        for (demand, times) in charged {
            self.queues.charge(payer, &demand, -times);
            self.used.add(&demand, -times);
        }
        within
    }

    /// Takes candidates until the gang fits, and no more than it needs: in their order, and where
    /// that does not do, node by node, and where that takes too much from others, as little as will
    /// do. Where numbers show that it would be in vain, nobody is taken. An error leaves everything
    /// as it was.
    pub(crate) fn search(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        candidates: &mut dyn Candidates,
        now: Timestamp,
    ) -> Result<Found, Vain> {
        if let Some(vain) = self.in_vain(key, ask, candidates, now) {
            return Err(vain);
        }
        self.search_in_earnest(key, ask, candidates, now)
    }

    /// The same without a look at what numbers show.
    pub(super) fn search_in_earnest(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        candidates: &mut dyn Candidates,
        now: Timestamp,
    ) -> Result<Found, Vain> {
        if let Some(found) = self.search_in_order(key, ask, candidates, now) {
            return Ok(found);
        }
        let everybody = candidates.everybody(self);
        if everybody.is_empty() {
            return Err(Vain::NoRoom);
        }
        for excess in [false, true] {
            let bites = if excess {
                self.by_excess(ask, &everybody)
            } else {
                self.by_node(ask, everybody.clone())
            };
            let grounds = &*candidates;
            let mut by_node = ByNode { bites, grounds };
            if let Some(mut found) = self.search_in_order(key, ask, &mut by_node, now) {
                found.first = false;
                return Ok(found);
            }
        }
        Err(Vain::NoRoom)
    }

    fn search_in_order(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        candidates: &mut dyn Candidates,
        now: Timestamp,
    ) -> Option<Found> {
        let mut txn = self.begin();
        let mut bites: Vec<Bite> = Vec::new();
        let mut marks = Vec::new();
        // The gang does not fit with so many gone.
        let mut failed = 0;
        let (mut next_try, mut step) = (0, 1);
        let mut placed = None;
        // It would have been tried with these, whoever came after them.
        let mut due = true;
        loop {
            let next = candidates.next(self);
            let done = next.is_none();
            if let Some(mut bite) = next {
                if !ask.breaks_budgets
                    && let Some(budget) = self.broken_budget(&bite)
                {
                    self.note_budget(budget);
                    continue;
                }
                marks.push(txn.len());
                self.take(&mut txn, &mut bite);
                bites.push(bite);
            }
            if bites.len() == failed || !candidates.admits(self) || !self.might_fit(ask) {
                failed = bites.len();
            } else if bites.len() >= next_try || done {
                let mark = txn.len();
                due = bites.len() >= next_try;
                placed = txn.attempt(self, key, now);
                if placed.is_some() {
                    break;
                }
                self.undo_to(&mut txn, mark);
                failed = bites.len();
                next_try = bites.len() + step;
                step *= 2;
            }
            if done {
                break;
            }
        }
        let Some(mut placed) = placed else {
            self.undo(txn);
            return None;
        };
        let mut enough = bites.len();
        while enough > failed + 1 {
            let middle = failed + (enough - failed) / 2;
            self.undo_to(&mut txn, marks[middle]);
            let mark = txn.len();
            let found = if candidates.admits(self) {
                txn.attempt(self, key, now)
            } else {
                None
            };
            match found {
                Some(found) => {
                    enough = middle;
                    placed = found;
                }
                None => {
                    self.undo_to(&mut txn, mark);
                    failed = middle;
                    for at in middle..enough {
                        let mut bite = bites[at].clone();
                        marks[at] = txn.len();
                        self.take(&mut txn, &mut bite);
                        bites[at] = bite;
                    }
                    // With as many gone as sufficed before.
                    match txn.attempt(self, key, now) {
                        Some(found) => placed = found,
                        None => {
                            self.undo(txn);
                            return None;
                        }
                    }
                }
            }
        }
        bites.truncate(enough);
        let found = self.give_back_unneeded(key, ask, candidates, bites, placed, txn, now);
        found.map(|found| Found {
            first: due,
            ..found
        })
    }

    pub(super) fn take(&mut self, txn: &mut Txn, bite: &mut Bite) {
        bite.before.clear();
        for pod in &bite.pods {
            if let Some(known) = self.pods.get(pod) {
                bite.before.push(Standing::of(known));
            }
            txn.evict(self, pod);
        }
    }

    pub(super) fn put_back(&mut self, txn: &mut Txn, bite: &Bite) {
        for (pod, standing) in bite.pods.iter().zip(&bite.before) {
            txn.restand(self, pod, standing.clone());
        }
    }

    /// Gives back, the last taken first, whoever need not go. First those who fit beside the gang
    /// as it was placed, then those without whom it can be placed in another way.
    #[allow(
        clippy::too_many_arguments,
        reason = "the state of a search, handed on once"
    )]
    fn give_back_unneeded(
        &mut self,
        key: &GangKey,
        ask: &Ask,
        candidates: &dyn Candidates,
        bites: Vec<Bite>,
        mut placed: Vec<Placement>,
        mut txn: Txn,
        now: Timestamp,
    ) -> Option<Found> {
        let mut kept = vec![true; bites.len()];
        for at in (0..bites.len()).rev() {
            if self.is_bound_up(&bites, &kept, at) || self.lost_its_gpus(&bites[at]) {
                continue;
            }
            self.put_back(&mut txn, &bites[at]);
            let fits = self.all_fit_beside(&bites[at])
                && ask.payer.is_some_and(|payer| {
                    self.stays_within_quota(payer, &placed, |state| candidates.admits(state))
                });
            if fits {
                kept[at] = false;
            } else {
                let mut bite = bites[at].clone();
                self.take(&mut txn, &mut bite);
            }
        }
        self.unplace(&mut txn, key, &placed);
        for at in (0..bites.len()).rev() {
            if !kept[at] || self.is_bound_up(&bites, &kept, at) {
                continue;
            }
            self.put_back(&mut txn, &bites[at]);
            if candidates.admits(self) && self.might_fit(ask) {
                let mark = txn.len();
                if let Some(found) = txn.attempt(self, key, now) {
                    self.unplace(&mut txn, key, &found);
                    kept[at] = false;
                    continue;
                }
                self.undo_to(&mut txn, mark);
            }
            let mut bite = bites[at].clone();
            self.take(&mut txn, &mut bite);
        }
        match txn.attempt(self, key, now) {
            Some(found) => placed = found,
            None => {
                self.undo(txn);
                return None;
            }
        }
        let bites = bites.into_iter().zip(kept);
        Some(Found {
            bites: bites.filter(|(_, kept)| *kept).map(|(b, _)| b).collect(),
            placed,
            places: Vec::new(),
            first: true,
            txn,
        })
    }

    /// Is it part of a gang that is lost as a whole?
    fn is_bound_up(&self, bites: &[Bite], kept: &[bool], at: usize) -> bool {
        bites[at].shrinks
            && bites
                .iter()
                .zip(kept)
                .any(|(bite, kept)| *kept && !bite.shrinks && bite.gang == bites[at].gang)
    }

    /// Does somebody else hold of its GPUs now what it held? Then it does not fit beside him.
    fn lost_its_gpus(&self, bite: &Bite) -> bool {
        bite.pods.iter().zip(&bite.before).any(|(pod, before)| {
            let class = self.pods.get(pod).map(|pod| pod.class);
            let Some((at, class)) = before.node.zip(class) else {
                return false;
            };
            let each = self.take_on(class, at).each;
            let held = &self.nodes[at].held;
            let mut ids = before.devices.iter();
            ids.any(|id| held.of(id) + each > GPU_UNIT)
        })
    }

    pub(super) fn all_fit_beside(&self, bite: &Bite) -> bool {
        let nodes: BTreeSet<usize> = bite.before.iter().filter_map(|at| at.node).collect();
        nodes.into_iter().all(|at| !self.nodes[at].overdrawn())
    }

    /// Would the queue take these if they came now? They are counted as there.
    pub(super) fn stays_within_quota(
        &mut self,
        payer: Payer,
        placed: &[Placement],
        admits: impl Fn(&Scheduler) -> bool,
    ) -> bool {
        let mut by_class: BTreeMap<ClassIx, i64> = BTreeMap::new();
        for placement in placed {
            *by_class.entry(placement.class).or_default() += 1;
        }
        for (class, members) in &by_class {
            self.charge_class(payer, *class, -members);
        }
        let mut within = admits(self);
        for (class, members) in &by_class {
            let demand = self.classes.get(*class).demand();
            let (allowed, _) = self.queues.allows(payer, demand, |ix| self.idle(ix));
            within &= i64::from(allowed) >= *members;
            self.charge_class(payer, *class, *members);
        }
        within
    }

    fn charge_class(&mut self, payer: Payer, class: ClassIx, times: i64) {
        let demand = self.classes.get(class).demand();
        self.queues.charge(payer, demand, times);
        self.used.add(demand, times);
    }

    fn unplace(&mut self, txn: &mut Txn, key: &GangKey, placed: &[Placement]) {
        for placement in placed {
            txn.restand(self, &placement.pod, Standing::pending());
        }
        self.settle(key);
    }
}
