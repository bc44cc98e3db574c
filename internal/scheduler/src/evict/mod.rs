//! Evictions: who must go so that a gang starts, who never need go, and how room is held between
//! the two. Nothing is evicted unless the plan that says so has placed the gang that it is for;
//! nobody can be taken out of the set that goes; a gang shrinks to its minimum before it is lost,
//! and is lost whole. Where a gang is placed is `place`'s, what queues are entitled to is `queue`'s.
//!
//! # No circle of gangs evicting each other
//!
//! Within a queue, a gang evicts only gangs that come strictly after it: of lower priority, or,
//! where the queue says so, of the same and younger. Priorities and ages do not change by being
//! evicted, so along any chain "a evicts b" this order strictly falls, and a chain cannot close.
//!
//! Across queues, a gang takes only what leaves its own queue within its share, and only from
//! queues beyond theirs. Shares are worked out from what is asked for (held or waited for), which
//! an eviction does not change: it turns what was held into what is waited for. So they stand
//! still while nothing comes from outside, and a queue within its share loses nothing.
//!
//! Both rules together would still allow a long way round where gangs are of different sizes: a
//! gang is lost whole, so its queue may lose more than it held beyond its share, and is entitled to
//! take that back. That is ruled out by the last one: a gang that got in by an eviction, or was
//! moved, is not evicted again before the world has changed by itself (`age`: a gang arrives or
//! ends, a node, a queue or a priority changes). At one age every gang gets in by an eviction at
//! most once, and each eviction is for one that does: the number of gangs that have not yet
//! strictly falls with every plan that evicts. There are finitely many, so plans come to rest.
//!
//! Where the world changes all the time, that alone would let the same gangs go round with it. So
//! who got in by an eviction is not lost for what juniors of its queue hold (`across`), and who loses
//! to another queue soon what it got by an eviction loses nothing to others for a time once it is
//! back, and for twice as long the time after (`won`). While that time runs, whatever comes and
//! goes around them, plans come to rest: an endless chain would have some gang get in by an
//! eviction again and again, so lose its place in between; to another queue it can't, and within
//! its queue only to one of higher priority, which loses its own again in the same way, up to the
//! highest, which nobody takes from. As the time doubles, so many evictions in a span as its
//! logarithm are the most that a gang which is known all along can cause (a pod by itself that
//! comes back under another name is another gang).
//!
//! Moves come under the last rule: whoever is moved for another is as safe at that age as who got
//! in by it, and the other got in. Defragmentation moves for nobody; there, each move's node was
//! not whole and is, and none that was whole is not: the number of whole nodes strictly rises with
//! each, at most to that of all nodes, and in any hour there are only so many. Budgets, minimum
//! runtimes and places kept only ever leave out evictions, so they close no circle. A place that is
//! kept while nobody wants it is nobody's right: it is given back before every plan's turns.
//!
//! Checked by `tests/evictions_properties.rs`: random queues, priorities, gangs, budgets and moves,
//! planned and carried out round by round, come to rest in fewer rounds than that allows; whoever
//! was evicted comes back and waits, as a job's controller would have it.
//!
//! # What is found
//!
//! Nobody can be taken out of the set that goes, alone or with others. It need not be the smallest
//! in number: who loses first is a matter of rank. One pod gets what its queue deserves wherever
//! lawful victims make room for it. For a gang of several, nodes are cleared one after the other, and
//! another choice of nodes is not tried: where others have little to lose it may wait though a set
//! of victims would do (`tests/evictions_oracle.rs` tries every set).

mod across;
mod bound;
mod budgets;
mod bynode;
mod candidates;
mod clearing;
mod fair;
mod kept;
mod moves;
mod nominate;
mod quota;
mod search;
mod stale;
mod stranded;
mod tidy;
pub(crate) mod txn;
mod whom;
mod within;
mod won;

use std::collections::BTreeSet;

use jiff::Timestamp;

pub(crate) use budgets::Budgets;
pub(crate) use candidates::{Bite, VictimPlace, Victims};
pub(crate) use kept::Kept;
pub use tidy::{Move, Proposal, Tidying};
pub(crate) use won::Won;

use crate::class::ClassIx;
use crate::gang::GangKey;
use crate::plan::{Eviction, EvictionReason, GroupRef, Plan, PodRef, Round};
use crate::pod::{PodKey, Stage};
use crate::queue::UserIx;
use crate::state::Scheduler;
use crate::timeline::Growth;
use search::Found;

/// For how many gangs in a plan evictions are sought. Those for whom there is nobody to evict, or
/// whose like was refused a moment ago, do not count.
const SEARCHES_MAX: usize = 64;

/// What makes two gangs the same to a search for evictions.
pub(crate) type Likeness = (
    String,
    i32,
    Account,
    Vec<(ClassIx, usize, bool)>,
    Option<GangKey>,
);

/// Of whoever is like another: does it wait politely, must it not be evicted, whose is it?
pub(crate) type Account = (bool, bool, UserIx);

/// How many answers to searches are kept, about.
const REFUSED_MAX: usize = 4_096;

/// What came of a search.
#[derive(Clone, Debug)]
pub(crate) enum Sought {
    /// Room was made.
    Made,
    /// Nobody may be evicted, or it would not help; why.
    Nobody(String),
    /// The same, until time has passed.
    NotYet(String),
}

impl Scheduler {
    /// Seeks evictions for the gangs that wait, in the order of their turns. True if somebody was
    /// placed. Nobody is `served` twice in one plan.
    pub(crate) fn evict_for(&mut self, round: &mut Round, now: Timestamp, plan: &mut Plan) -> bool {
        let Round {
            waiting,
            obstacles,
            served,
            ..
        } = round;
        let mut made = false;
        let mut searches = 0;
        let mut growth = Growth::default();
        if self.refused.len() > REFUSED_MAX {
            let now = self.version;
            self.refused.retain(|_, (version, _)| *version == now);
        }
        for key in &*waiting {
            let Some(obstacle) = obstacles.get(key) else {
                continue;
            };
            if !obstacle.is_of_room() {
                continue;
            }
            if served.contains(key) {
                // Two sets may be more than one needs for both: its next member waits its turn.
                self.wake = Some(self.wake.map_or(now, |wake| wake.min(now)));
                continue;
            }
            let ask = self.ask(key);
            let likeness = self.likeness(key, &ask);
            let refused = self.refused.get(&likeness);
            if let Some((_, why)) = refused.filter(|(version, _)| *version == self.version) {
                let why = why.clone();
                if let Some(obstacle) = obstacles.get_mut(key) {
                    obstacle.no_evictions(&why);
                }
                continue;
            }
            if searches >= SEARCHES_MAX {
                // The others' turn comes with the next plan.
                self.wake = Some(self.wake.map_or(now, |wake| wake.min(now)));
                break;
            }
            let (sought, cost) = self.seek(key, ask, now, plan, &mut growth);
            searches += usize::from(cost);
            match sought {
                Sought::Made => {
                    made = true;
                    growth = Growth::default();
                    served.insert(key.clone());
                    if self.gangs.get(key).is_none_or(|gang| gang.line.is_none()) {
                        obstacles.remove(key);
                    }
                }
                Sought::NotYet(why) => {
                    if let Some(obstacle) = obstacles.get_mut(key) {
                        obstacle.no_evictions(&why);
                    }
                }
                Sought::Nobody(why) => {
                    if let Some(obstacle) = obstacles.get_mut(key) {
                        obstacle.no_evictions(&why);
                    }
                    self.refused.insert(likeness, (self.version, why));
                }
            }
        }
        made
    }

    /// Seeks evictions for one gang. Says too whether it was any work.
    fn seek(
        &mut self,
        key: &GangKey,
        mut ask: search::Ask,
        now: Timestamp,
        plan: &mut Plan,
        growth: &mut Growth,
    ) -> (Sought, bool) {
        let nobody = |why: &str| (Sought::Nobody(why.to_owned()), false);
        let Some(gang) = self.gangs.get(key) else {
            return nobody("it is gone");
        };
        if self.waits_politely(gang) {
            return nobody("its preemption policy is Never");
        }
        if self.keeping.contains(key) {
            return nobody("places are kept for it");
        }
        if !self.fits_when_empty(&ask) {
            return nobody("it would not fit even if every node were empty");
        }
        let mut reasons: Vec<String> = Vec::new();
        let (mut cost, mut again) = (false, None);
        self.budgets_in_the_way.clear();
        if self.config.actions.consolidate {
            match self.consolidate(key, &ask, now) {
                Ok(found) => {
                    self.decide(key, found, now, plan);
                    return (Sought::Made, true);
                }
                Err(refusal) => {
                    cost |= refusal.searched;
                    reasons.push(refusal.why);
                }
            }
        }
        let wait = match self.known_wait(key, self.deserves(&ask), now, growth) {
            Ok(wait) => wait,
            Err((why, then)) => {
                self.wake = Some(self.wake.map_or(then, |wake| wake.min(then)));
                return (Sought::NotYet(why), cost);
            }
        };
        ask.wait = wait;
        let weight = self.weight(key);
        for breaks in [false, true] {
            if breaks && (!self.config.break_budgets || self.budgets_in_the_way.is_empty()) {
                break;
            }
            ask.breaks_budgets = breaks;
            // Why what reclaim found is not worth it, where seeking further begins with the same.
            let mut reclaimed: Option<String> = None;
            for way in self.ways(&ask) {
                if way == Way::Both
                    && let Some(why) = reclaimed.take()
                    && self.begins_as_reclaim(key, &ask, now)
                {
                    reasons.extend((!breaks).then_some(why));
                    continue;
                }
                let refusal = match self.go(way, key, &ask, now) {
                    Ok(found) => match weight
                        .and_then(|weight| self.loses_more(key, weight, &found.bites, wait, now))
                    {
                        None => {
                            self.decide(key, found, now, plan);
                            return (Sought::Made, true);
                        }
                        Some((why, then)) => {
                            if way == Way::Reclaim && found.first {
                                reclaimed = Some(why.clone());
                            }
                            self.undo(found.txn);
                            Refusal {
                                why,
                                searched: true,
                                again: Some(then),
                                not_worth: true,
                            }
                        }
                    },
                    Err(refusal) if refusal.not_worth => {
                        let (why, then) = self.put_off(key, wait, now);
                        Refusal {
                            why,
                            again: Some(then),
                            ..refusal
                        }
                    }
                    Err(refusal) => refusal,
                };
                cost |= refusal.searched;
                again = [again, refusal.again].into_iter().flatten().min();
                if !refusal.why.is_empty() && !breaks {
                    reasons.push(refusal.why);
                }
            }
        }
        reasons.extend(self.words_of_budgets());
        if let Some(then) = again {
            self.wake = Some(self.wake.map_or(then, |wake| wake.min(then)));
        }
        if reasons.is_empty() {
            reasons.push("evictions are switched off".into());
        }
        let why = reasons.join("; ");
        if again.is_some() {
            return (Sought::NotYet(why), cost);
        }
        (Sought::Nobody(why), cost)
    }

    /// The ways in which a gang may come to room, in order: by the rules of its queue.
    fn ways(&self, ask: &search::Ask) -> Vec<Way> {
        let actions = self.config.actions;
        let rules = ask.payer.and_then(|payer| self.queues.rules(payer.queue));
        let fair = rules.is_some_and(|rules| rules.preemption.fair.is_some());
        let quota = rules.is_some_and(|rules| rules.preemption.borrow.is_some());
        if actions.reclaim && fair {
            return vec![Way::Fairness];
        }
        if actions.reclaim && quota {
            return vec![Way::Quota];
        }
        let mut ways = Vec::new();
        if actions.reclaim {
            ways.push(Way::Reclaim);
        }
        if actions.preempt {
            ways.push(Way::Preempt);
        }
        if actions.reclaim && actions.preempt {
            ways.push(Way::Both);
        }
        if actions.reclaim && !actions.consolidate && self.deserves(ask) {
            ways.push(Way::Moves);
        }
        ways
    }

    /// Would its queue, with the gang, hold no more than it was said to deserve? Then others may be
    /// moved for it, though they are within their rights too: they lose no room.
    fn deserves(&self, ask: &search::Ask) -> bool {
        ask.payer.is_some_and(|payer| {
            let rules = self.queues.rules(payer.queue);
            rules.is_some_and(|rules| !rules.deserved.is_empty())
                && self.queues.within_deserved(payer.queue, &ask.demand, 1)
        })
    }

    fn go(
        &mut self,
        way: Way,
        key: &GangKey,
        ask: &search::Ask,
        now: Timestamp,
    ) -> Result<Found, Refusal> {
        match way {
            Way::Fairness => self.take_by_fairness(key, ask, now),
            Way::Quota => self.take_by_quota(key, ask, now),
            Way::Reclaim => self.reclaim(key, ask, now),
            Way::Preempt => self.preempt(key, ask, now),
            Way::Moves => self.consolidate(key, ask, now),
            Way::Both => self.reclaim_and_preempt(key, ask, now),
        }
    }

    /// Does the gang wait rather than evict others?
    fn waits_politely(&self, gang: &crate::gang::Gang) -> bool {
        let class = gang
            .spec
            .as_ref()
            .and_then(|spec| spec.priority_class.as_ref())
            .and_then(|name| self.priorities.get(name));
        let first = gang.pending.first().and_then(|(_, pod)| self.pods.get(pod));
        class.is_some_and(|class| class.waits) || first.is_some_and(|pod| pod.polite)
    }

    fn likeness(&self, key: &GangKey, ask: &search::Ask) -> Likeness {
        let Some(gang) = self.gangs.get(key) else {
            return Likeness::default();
        };
        let payer = gang.payer.map(|payer| (payer.fixed, payer.user));
        let (fixed, user) = payer.unwrap_or_default();
        let shape = gang.spec.as_ref().map(|spec| &spec.shape);
        let plain = shape.is_none_or(|shape| shape.is_plain() && shape.request.is_free());
        (
            gang.queue.clone(),
            self.priority_of(gang),
            (self.waits_politely(gang), fixed, user),
            ask.classes(),
            // Nobody else asks just that of the network.
            (!plain || gang.hinted > 0).then(|| key.clone()),
        )
    }

    /// Makes a set of evictions and what they make room for part of the plan.
    fn decide(&mut self, key: &GangKey, found: Found, now: Timestamp, plan: &mut Plan) {
        let Found {
            bites,
            placed,
            places,
            txn,
            ..
        } = found;
        self.keep(txn);
        let by = GroupRef::of(key);
        let mut losers: BTreeSet<GangKey> = BTreeSet::new();
        for bite in &bites {
            let why = bite.why;
            for pod in &bite.pods {
                plan.evictions.extend(self.eviction(pod, why, Some(&by)));
            }
            losers.insert(bite.gang.clone());
            if let Some(gang) = self.gangs.get_mut(&bite.gang) {
                gang.loses(why, now);
            }
        }
        for loser in losers {
            self.settle(&loser);
        }
        let leavers: BTreeSet<PodKey> = bites
            .iter()
            .flat_map(|bite| &bite.pods)
            .filter(|pod| self.is_leaving(pod))
            .cloned()
            .collect();
        if !leavers.is_empty() {
            self.hold_back(key, &placed);
        }
        let age = self.age;
        if let Some(gang) = self.gangs.get_mut(key) {
            gang.wins(age, now);
            gang.awaits.extend(leavers);
        }
        let bound = placed
            .into_iter()
            .filter(|placement| self.is_bound(&placement.pod))
            .collect();
        self.write_binds(key, bound, &mut plan.binds);
        self.keep_places(places, now);
        self.version += 1;
    }

    /// A pod's eviction in words; none for a pod that was only meant for its node.
    fn eviction(
        &self,
        key: &PodKey,
        why: EvictionReason,
        by: Option<&GroupRef>,
    ) -> Option<Eviction> {
        let pod = self.pods.get(key)?;
        if pod.stage != Stage::Leaving {
            return None;
        }
        let gang = self.gangs.get(&pod.gang);
        let queue = gang.map(|gang| gang.queue.clone());
        let grace = pod.terms.checkpoint_grace;
        Some(Eviction {
            grace: grace.or_else(|| self.terms_of(gang?).checkpoint_grace),
            pod: PodRef {
                namespace: String::from(&*key.namespace),
                name: String::from(&*key.name),
                uid: pod.uid.clone(),
            },
            group: GroupRef::of(&pod.gang),
            node: String::from(&*self.nodes[pod.node?].name),
            why,
            by: by.cloned(),
            message: why.sentence(by, queue.as_deref().unwrap_or_default()),
        })
    }
}

/// A way in which a gang may come to room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By fair sharing of what is borrowed.
    Fairness,
    /// By quota.
    Quota,
    /// From other queues, by shares.
    Reclaim,
    /// From its own queue.
    Preempt,
    /// From other queues by shares, and from its own.
    Both,
    /// From nobody: others move.
    Moves,
}

/// Why no evictions were found.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    /// Candidates were tried.
    pub(crate) searched: bool,
    /// When the answer may be another.
    pub(crate) again: Option<Timestamp>,
    /// Whoever could be taken would lose more than is saved.
    pub(crate) not_worth: bool,
}

impl Refusal {
    fn at_once(why: impl Into<String>) -> Refusal {
        Refusal {
            why: why.into(),
            searched: false,
            again: None,
            not_worth: false,
        }
    }

    fn not_worth() -> Refusal {
        Refusal {
            searched: true,
            not_worth: true,
            ..Refusal::at_once("")
        }
    }
}
