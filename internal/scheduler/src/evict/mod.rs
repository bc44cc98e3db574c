//! Evictions: the scheduler chooses victims so that a waiting gang (the preemptor) starts, protects
//! the gangs that must keep running, and holds the freed room until the victims have left. A plan
//! evicts only if the same plan has placed the gang that the evictions are for. The victim set is
//! minimal. A gang first shrinks to its minimum; if that is not enough it is evicted whole. Module
//! `place` decides where a gang is placed, module `queue` what each queue is entitled to.
//!
//! Three kinds of eviction make room: preemption takes from the preemptor's own queue, reclaim
//! takes from other queues, consolidation moves running members to other nodes. `ways` chooses
//! which kinds are tried and in which order. At most `SEARCHES_MAX` searches run in one plan; a
//! search that found nothing is not repeated until the state changes.
//!
//! Example: queue `default` has two nodes of 4 GPUs, and each node runs a one-pod gang of priority
//! 0 with 4 GPUs. A gang of priority 10 arrives with two members of 4 GPUs each. The plan evicts
//! both running gangs, nominates the new gang for both nodes, and binds it once both victims have
//! left (`tests/evictions.rs`).
//!
//! # No cycle of gangs that evict each other
//!
//! Within a queue, a gang evicts only gangs that rank strictly below it: gangs of lower priority,
//! or, where the queue's rules say so, also younger gangs of the same priority. An eviction changes
//! neither priorities nor ages, so along any chain "a evicts b" the rank strictly falls, and a
//! chain cannot close.
//!
//! Across queues, a gang takes only what leaves its own queue within its share, and only from
//! queues above their share. Shares follow from the total request (held plus waiting). An eviction
//! does not change that total: it turns held resources into waiting ones. So shares are constant
//! while nothing changes from outside, and a queue within its share loses nothing.
//!
//! Both rules together would still allow a long cycle where gangs differ in size: a gang is evicted
//! whole, so its queue may lose more than it held above its share, and is then entitled to reclaim
//! the difference. A third rule excludes that: a gang that was placed by evictions, or was moved,
//! is not evicted again until the cluster changes from outside (`age`: a gang arrives or ends, or a
//! node, a queue or a priority changes). Within one age every gang is placed by evictions at most
//! once, and every eviction serves such a gang, so the number of gangs that were not yet placed by
//! evictions strictly falls with every plan that evicts. That number is finite, so the plans
//! converge.
//!
//! If the cluster changes all the time, the third rule alone would let the same gangs repeat the
//! cycle in every age. Two more rules bound that. A gang that was placed by evictions is not
//! evicted for resources that lower-ranked gangs of its queue hold (`reclaim`). A gang that was
//! placed by evictions and is reclaimed soon afterwards is exempt from reclaim for a time after its
//! next start, and the exemption doubles each time (`eviction_grace`). While an exemption runs, plans converge
//! whatever arrives and ends: in an endless chain some gang would be placed by evictions again and
//! again, so it would have to lose its place in between. No other queue can take the place, and
//! within its queue only a gang of higher priority can. That gang loses its own place in the same
//! way, and so on up to the highest priority, from which no gang takes. Because the exemption
//! doubles, a gang that exists all the time causes at most a number of evictions that grows with
//! the logarithm of the time span. (A single pod that is created again under another name is
//! another gang.)
//!
//! Moves obey the third rule too: a moved gang is protected within that age like the gang that it
//! was moved for, which was placed. Defragmentation moves gangs for no preemptor. There every move
//! turns a node that was not whole into a whole node and breaks up no whole node, so each move
//! strictly raises the number of whole nodes, which cannot exceed the number of nodes; the number
//! of moves an hour is bounded as well. PodDisruptionBudgets, minimum runtimes and reserved places
//! only remove evictions, so they close no cycle. A place that is reserved only while no gang wants
//! it protects no gang: the scheduler releases it before every plan's turns.
//!
//! `tests/evictions_properties.rs` checks this: with random queues, priorities, gangs, budgets and
//! moves, planned and carried out round by round, the plans converge in fewer rounds than the
//! argument allows; every evicted gang comes back and waits, as a job's controller would make it.
//!
//! # What a search finds
//!
//! The victim set is minimal: if any subset of the victims were left running, the preemptor would
//! no longer fit. It need not be the smallest set in number, because the victims' rank decides
//! which gang is evicted first. A single pod gets what its queue deserves wherever any permitted
//! set of victims makes room for it. For a gang of several members the search clears nodes one
//! after the other and does not try another choice of nodes, so the gang may wait although some set
//! of victims would make room, where the victim queues have little to lose
//! (`tests/evictions_oracle.rs` tries every set).

mod budgets;
mod candidates;
mod consolidation;
mod defragmentation;
mod eviction_grace;
mod failed_devices;
mod fair_sharing;
mod incomplete_gangs;
mod loss_bound;
mod move_sets;
mod nominations;
mod preempt;
mod quota;
mod reclaim;
mod reserved_places;
mod search;
pub(crate) mod transaction;
mod victims;
mod victims_by_node;

use std::collections::BTreeSet;

use jiff::Timestamp;

pub(crate) use budgets::Budgets;
pub(crate) use candidates::{EvictionUnit, QueueVictims, VictimPlace};
pub use defragmentation::{DefragmentationBudget, DefragmentationProposal, Move};
pub(crate) use eviction_grace::EvictionGrace;
pub(crate) use reserved_places::ReservedPlace;

use crate::class::ClassIx;
use crate::gang::GangKey;
use crate::plan::{Eviction, EvictionReason, GroupRef, Plan, PlanRound, PodRef};
use crate::pod::{PodKey, PodStage};
use crate::queue::UserIx;
use crate::state::Scheduler;
use crate::timeline::RoomGrowth;
use search::VictimSet;

/// The most gangs that one plan searches victims for. Gangs without any candidate victim, and gangs
/// whose equal was refused since the last change, do not count.
const SEARCHES_MAX: usize = 64;

/// The properties that decide a victim search: two gangs with equal values get the same answer.
pub(crate) type VictimSearchKey = (
    String,
    i32,
    PreemptionTraits,
    Vec<(ClassIx, usize, bool)>,
    Option<GangKey>,
);

/// Whether the gang's preemption policy is Never, whether the gang is non-preemptible, and its
/// user.
pub(crate) type PreemptionTraits = (bool, bool, UserIx);

/// About how many refused searches are remembered.
const REFUSED_MAX: usize = 4_096;

/// The outcome of a search for victims.
#[derive(Clone, Debug)]
pub(crate) enum SearchOutcome {
    /// The scheduler evicted victims and placed the gang.
    Placed,
    /// No gang may be evicted, or evictions would not help; the reason.
    Refused(String),
    /// As `Refused`, but the answer may change as time passes.
    NotYet(String),
}

impl Scheduler {
    /// Searches victims for the waiting gangs, in the order of their turns. Returns whether any
    /// gang was placed. A gang in `served` is not served again in the same plan.
    pub(crate) fn find_victims(
        &mut self,
        round: &mut PlanRound,
        now: Timestamp,
        plan: &mut Plan,
    ) -> bool {
        let PlanRound {
            waiting,
            obstacles,
            served,
            ..
        } = round;
        let mut made = false;
        let mut searches = 0;
        let mut growth = RoomGrowth::default();
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
                // Two victim sets, one for each member, may be larger than one set for both
                // members: the gang's next member waits for the next plan.
                self.requeue_by(now);
                continue;
            }
            let ask = self.ask(key);
            let search_key = self.search_key(key, &ask);
            let refused = self.refused.get(&search_key);
            if let Some((_, why)) = refused.filter(|(version, _)| *version == self.version) {
                let why = why.clone();
                if let Some(obstacle) = obstacles.get_mut(key) {
                    obstacle.set_eviction_reason(&why);
                }
                continue;
            }
            if searches >= SEARCHES_MAX {
                // The remaining gangs are searched for in the next plan.
                self.requeue_by(now);
                break;
            }
            let (sought, cost) = self.seek(key, ask, now, plan, &mut growth);
            searches += usize::from(cost);
            match sought {
                SearchOutcome::Placed => {
                    made = true;
                    growth = RoomGrowth::default();
                    served.insert(key.clone());
                    if self.gangs.get(key).is_none_or(|gang| gang.line.is_none()) {
                        obstacles.remove(key);
                    }
                }
                SearchOutcome::NotYet(why) => {
                    if let Some(obstacle) = obstacles.get_mut(key) {
                        obstacle.set_eviction_reason(&why);
                    }
                }
                SearchOutcome::Refused(why) => {
                    if let Some(obstacle) = obstacles.get_mut(key) {
                        obstacle.set_eviction_reason(&why);
                    }
                    self.refused.insert(search_key, (self.version, why));
                }
            }
        }
        made
    }

    /// Searches victims for one gang. The flag says whether the search did any work.
    fn seek(
        &mut self,
        key: &GangKey,
        mut ask: search::MinimumDemand,
        now: Timestamp,
        plan: &mut Plan,
        growth: &mut RoomGrowth,
    ) -> (SearchOutcome, bool) {
        let refuse = |why: &str| (SearchOutcome::Refused(why.to_owned()), false);
        let Some(gang) = self.gangs.get(key) else {
            return refuse("the gang no longer exists");
        };
        if self.never_preempts(gang) {
            return refuse("its preemption policy is Never");
        }
        if self.gangs_with_reserved_places.contains(key) {
            return refuse("places are reserved for its evicted members");
        }
        if !self.fits_when_empty(&ask) {
            return refuse("the gang would not fit even if every node were empty");
        }
        let mut reasons: Vec<String> = Vec::new();
        let (mut cost, mut again) = (false, None);
        self.budgets_in_the_way.clear();
        if self.config.actions.consolidate {
            match self.consolidate(key, &ask, now) {
                Ok(found) => {
                    self.decide(key, found, now, plan);
                    return (SearchOutcome::Placed, true);
                }
                Err(refusal) => {
                    cost |= refusal.searched;
                    reasons.push(refusal.why);
                }
            }
        }
        let wait = match self.wait_for_room(key, self.deserves(&ask), now, growth) {
            Ok(wait) => wait,
            Err((why, then)) => {
                self.requeue_by(then);
                return (SearchOutcome::NotYet(why), cost);
            }
        };
        ask.wait = wait;
        let weight = self.weight(key);
        for breaks in [false, true] {
            if breaks && (!self.config.break_budgets || self.budgets_in_the_way.is_empty()) {
                break;
            }
            ask.breaks_budgets = breaks;
            // Why the victims that reclaim found cost more than they save; the search for both
            // methods would begin with the same victims.
            let mut reclaimed: Option<String> = None;
            for way in self.ways(&ask) {
                if way == EvictionMethod::Both
                    && let Some(why) = reclaimed.take()
                    && self.begins_as_reclaim(key, &ask, now)
                {
                    reasons.extend((!breaks).then_some(why));
                    continue;
                }
                let refusal = match self.go(way, key, &ask, now) {
                    Ok(found) => match weight.and_then(|weight| {
                        self.evictions_cost_more(key, weight, &found.units, wait, now)
                    }) {
                        None => {
                            self.decide(key, found, now, plan);
                            return (SearchOutcome::Placed, true);
                        }
                        Some((why, then)) => {
                            if way == EvictionMethod::Reclaim && found.first {
                                reclaimed = Some(why.clone());
                            }
                            self.undo(found.transaction);
                            NoEvictions {
                                why,
                                searched: true,
                                again: Some(then),
                                not_worth: true,
                            }
                        }
                    },
                    Err(refusal) if refusal.not_worth => {
                        let (why, then) = self.postpone_evictions(key, wait, now);
                        NoEvictions {
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
        reasons.extend(self.budget_reason());
        if let Some(then) = again {
            self.requeue_by(then);
        }
        if reasons.is_empty() {
            reasons.push("evictions are switched off".into());
        }
        let why = reasons.join("; ");
        if again.is_some() {
            return (SearchOutcome::NotYet(why), cost);
        }
        (SearchOutcome::Refused(why), cost)
    }

    /// The methods by which the gang's queue lets it get room, in the order in which they are
    /// tried.
    fn ways(&self, ask: &search::MinimumDemand) -> Vec<EvictionMethod> {
        let actions = self.config.actions;
        let rules = ask.payer.and_then(|payer| self.queues.rules(payer.queue));
        let fair = rules.is_some_and(|rules| rules.preemption.fair.is_some());
        let quota = rules.is_some_and(|rules| rules.preemption.borrow.is_some());
        if actions.reclaim && fair {
            return vec![EvictionMethod::Fairness];
        }
        if actions.reclaim && quota {
            return vec![EvictionMethod::Quota];
        }
        let mut ways = Vec::new();
        if actions.reclaim {
            ways.push(EvictionMethod::Reclaim);
        }
        if actions.preempt {
            ways.push(EvictionMethod::Preempt);
        }
        if actions.reclaim && actions.preempt {
            ways.push(EvictionMethod::Both);
        }
        if actions.reclaim && !actions.consolidate && self.deserves(ask) {
            ways.push(EvictionMethod::Moves);
        }
        ways
    }

    /// Whether the queue, with the gang, holds no more than its deserved amount. If so, the
    /// scheduler may move gangs of other queues for it although those queues are within their
    /// shares: a moved gang loses no room.
    fn deserves(&self, ask: &search::MinimumDemand) -> bool {
        ask.payer.is_some_and(|payer| {
            let rules = self.queues.rules(payer.queue);
            rules.is_some_and(|rules| !rules.deserved.is_empty())
                && self.queues.within_deserved(payer.queue, &ask.demand, 1)
        })
    }

    fn go(
        &mut self,
        way: EvictionMethod,
        key: &GangKey,
        ask: &search::MinimumDemand,
        now: Timestamp,
    ) -> Result<VictimSet, NoEvictions> {
        match way {
            EvictionMethod::Fairness => self.evict_by_fairness(key, ask, now),
            EvictionMethod::Quota => self.evict_by_quota(key, ask, now),
            EvictionMethod::Reclaim => self.reclaim(key, ask, now),
            EvictionMethod::Preempt => self.preempt(key, ask, now),
            EvictionMethod::Moves => self.consolidate(key, ask, now),
            EvictionMethod::Both => self.reclaim_and_preempt(key, ask, now),
        }
    }

    /// Whether the gang's preemption policy is Never.
    fn never_preempts(&self, gang: &crate::gang::Gang) -> bool {
        let class = gang
            .spec
            .as_ref()
            .and_then(|spec| spec.priority_class.as_ref())
            .and_then(|name| self.priorities.get(name));
        let first = gang.pending.first().and_then(|(_, pod)| self.pods.get(pod));
        class.is_some_and(|class| class.waits) || first.is_some_and(|pod| pod.never_preempts)
    }

    fn search_key(&self, key: &GangKey, ask: &search::MinimumDemand) -> VictimSearchKey {
        let Some(gang) = self.gangs.get(key) else {
            return VictimSearchKey::default();
        };
        let payer = gang.payer.map(|payer| (payer.fixed, payer.user));
        let (fixed, user) = payer.unwrap_or_default();
        let shape = gang.spec.as_ref().map(|spec| &spec.shape);
        let plain = shape.is_none_or(|shape| shape.is_plain() && shape.request.is_free());
        (
            gang.queue.clone(),
            self.priority_of(gang),
            (self.never_preempts(gang), fixed, user),
            ask.classes(),
            // No other gang has the same network request.
            (!plain || gang.hinted > 0).then(|| key.clone()),
        )
    }

    /// Adds the evictions and the placements that they make room for to the plan.
    fn decide(&mut self, key: &GangKey, found: VictimSet, now: Timestamp, plan: &mut Plan) {
        let VictimSet {
            units,
            placed,
            places,
            transaction,
            ..
        } = found;
        self.keep(transaction);
        let by = GroupRef::of(key);
        let mut losers: BTreeSet<GangKey> = BTreeSet::new();
        for unit in &units {
            let why = unit.why;
            for pod in &unit.pods {
                plan.evictions.extend(self.eviction(pod, why, Some(&by)));
            }
            losers.insert(unit.gang.clone());
            if let Some(gang) = self.gangs.get_mut(&unit.gang) {
                gang.note_evicted(why, now);
            }
        }
        for loser in losers {
            self.settle(&loser);
        }
        let terminating_pods: BTreeSet<PodKey> = units
            .iter()
            .flat_map(|unit| &unit.pods)
            .filter(|pod| self.is_leaving(pod))
            .cloned()
            .collect();
        if !terminating_pods.is_empty() {
            self.hold_back(key, &placed);
        }
        let age = self.age;
        if let Some(gang) = self.gangs.get_mut(key) {
            gang.note_placed_by_eviction(age, now);
            gang.awaits.extend(terminating_pods);
        }
        let bound = placed
            .into_iter()
            .filter(|placement| self.is_bound(&placement.pod))
            .collect();
        self.write_binds(key, bound, &mut plan.binds);
        self.keep_places(places, now);
        self.version += 1;
    }

    /// The plan's record of a pod's eviction; none for a pod that was only nominated for its node.
    fn eviction(
        &self,
        key: &PodKey,
        why: EvictionReason,
        by: Option<&GroupRef>,
    ) -> Option<Eviction> {
        let pod = self.pods.get(key)?;
        if pod.stage != PodStage::Leaving {
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

/// A method by which a gang may get room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvictionMethod {
    /// Fair sharing of what queues borrow.
    Fairness,
    /// Reclaim and preemption by quota.
    Quota,
    /// Reclaim from other queues that hold more than their share.
    Reclaim,
    /// Preemption within the gang's own queue.
    Preempt,
    /// Reclaim from other queues, then preemption within the own queue.
    Both,
    /// Consolidation: members of other gangs move, and none loses its place.
    Moves,
}

/// Why no evictions were found.
#[derive(Clone, Debug)]
pub(crate) struct NoEvictions {
    pub(crate) why: String,
    /// Whether candidates were tried.
    pub(crate) searched: bool,
    /// When the answer may change.
    pub(crate) again: Option<Timestamp>,
    /// Evicting the candidates would cost more than it saves.
    pub(crate) not_worth: bool,
}

impl NoEvictions {
    fn at_once(why: impl Into<String>) -> NoEvictions {
        NoEvictions {
            why: why.into(),
            searched: false,
            again: None,
            not_worth: false,
        }
    }

    fn not_worth() -> NoEvictions {
        NoEvictions {
            searched: true,
            not_worth: true,
            ..NoEvictions::at_once("")
        }
    }
}
