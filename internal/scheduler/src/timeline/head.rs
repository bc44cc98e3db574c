//! The head of the line: the first gang for which the scheduler reserves room that is not free yet.
//! The head is chosen, kept until it starts, and served first.
//!
//! Method: a gang qualifies if it was refused for lack of room only, the empty cluster could hold
//! it, and it has waited for `reserve_after`. Of these the head is the first by queue priority and
//! its own priority, then by the score that `Config::lead` selects, then by its queue's share and
//! its age. Cost: the first `LOOKED_AT_MAX` gangs of each queue's line.
//!
//! Example: with `Lead::Response`, a gang of 10 minutes that has waited 20 minutes scores 2 and
//! precedes a gang of 5 hours that has waited 5 hours, which scores 1.
//!
//! Tests: `tests/timeline.rs`, `tests/timeline_properties.rs`.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::shadow::{HeadDemand, Shadow};
use crate::config::Lead;
use crate::gang::{Gang, GangKey};
use crate::place::Attempt;
use crate::plan::{GangReservation, GroupRef, Plan, PodRef, ReservationKind};
use crate::queue::{GangOrder, QueueIx, QueueShare};
use crate::queue_order::LineKey;
use crate::state::Scheduler;

/// How many gangs of one queue's line are considered.
const LOOKED_AT_MAX: usize = 16;
/// The resolution of the ratio of wait to run time.
const RUN_PARTS: i128 = 1 << 32;
/// Shorter run times count as this many seconds.
const SHORT_SECONDS: i64 = 60;
/// Where most ends are guesses, a gang waits this many times as long before room is reserved for
/// it: the reserved room could stay idle for nothing.
const GUESSED_TIMES: i32 = 6;
/// The most heads that start in one pass, one after the other.
const HEADS_MAX: usize = 8;

/// The head of the line.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) key: GangKey,
    pub(super) ask: HeadDemand,
    /// The priority of the gang's queue, and its own.
    pub(super) rank: (i32, i32),
    /// Whether its queue, with the gang, holds no more than its deserved amount.
    pub(super) by_right: bool,
}

/// What decides which of several gangs is the head. The lesser precedes.
type Precedence = (
    Reverse<(i32, i32)>,
    Reverse<i128>,
    bool,
    QueueShare,
    Timestamp,
    GangKey,
);

impl Scheduler {
    /// Starts the head if there is room for it, and chooses the next head, before any other gang
    /// has a turn. Returns whether a gang was placed.
    pub(crate) fn start_head(&mut self, now: Timestamp, plan: &mut Plan) -> bool {
        if !self.config.actions.backfill || !self.config.actions.allocate {
            return false;
        }
        self.update_claims(now);
        let mut any = false;
        let mut recalled = self.recalled_head();
        for _ in 0..HEADS_MAX {
            let head = self.timeline.head.as_ref().map(|head| head.key.clone());
            let Some(head) = head.or(recalled.take()) else {
                break;
            };
            if !self.may_lead(&head, now) {
                self.set_head(None);
                break;
            }
            // A gang that is refused here becomes the head.
            let attempt = self.attempt_turn(&head, now, 0);
            let Attempt::Placed(placed) = attempt else {
                break;
            };
            any = true;
            let (mut placed, _) = self.accept(placed);
            placed.retain(|placement| self.is_bound(&placement.pod));
            self.write_binds(&head, placed, &mut plan.binds);
            self.serve(&head);
            self.set_head(None);
            let next = self.choose_head(now);
            self.set_head(next);
        }
        let head = self.timeline.head.as_ref();
        let head = head.map(|head| (head.key.clone(), head.ask.clone()));
        match (head, self.choose_head(now)) {
            (_, Some(best)) => self.set_head(Some(best)),
            (Some((key, ask)), None) => {
                // Its request may have changed: members may have arrived or left.
                let fresh = self.head_of(&key);
                if fresh.as_ref().map(|fresh| &fresh.ask) != Some(&ask) {
                    self.set_head(fresh);
                }
            }
            (None, None) => self.set_head(None),
        }
        any
    }

    /// The head that a previous scheduler reported last; used once, where there is no head.
    fn recalled_head(&mut self) -> Option<GangKey> {
        let recalled = std::mem::take(&mut self.timeline.recalled);
        let first = recalled.into_iter().min_by_key(|key| self.precedence(key));
        first.filter(|_| self.timeline.head.is_none())
    }

    /// Makes a gang that was just refused the head, if there is none.
    pub(crate) fn make_head(&mut self, key: &GangKey, now: Timestamp) {
        let actions = self.config.actions;
        let looks = actions.backfill && actions.allocate && self.timeline.head.is_none();
        if looks && self.may_lead(key, now) {
            let head = self.head_of(key);
            if head.is_some() {
                self.set_head(head);
            }
        }
    }

    /// The head's gang.
    pub(crate) fn head(&self) -> Option<&GangKey> {
        self.timeline.head.as_ref().map(|head| &head.key)
    }

    /// When the next waiting gang will have waited long enough to become the head; none where there
    /// is a head, or no gang will qualify.
    pub(crate) fn next_head_candidate_at(&self, now: Timestamp) -> Option<Timestamp> {
        if self.timeline.head.is_some() {
            return None;
        }
        // All gangs of a queue's line have to wait equally long: the next one is the oldest that
        // does not qualify yet.
        let lines = self.queues.iter().filter_map(|(_, at, queue)| {
            let after = self.reserve_after(Some(at));
            let old = now.checked_sub(after).ok();
            let since = queue.line.iter().map(|place| place.created);
            let young = since.filter(|since| old.is_none_or(|old| *since > old));
            young.min()?.checked_add(after).ok()
        });
        lines.min()
    }

    fn set_head(&mut self, head: Option<Head>) {
        self.timeline.head = head;
        self.outdate_shadow();
    }

    /// Whether the gang may become the head: it was refused for lack of room only, and has waited
    /// long enough.
    fn may_lead(&self, key: &GangKey, now: Timestamp) -> bool {
        let Some(gang) = self.gangs.get(key) else {
            return false;
        };
        let refused = gang.blocked_answer.as_ref();
        gang.line.is_some()
            && !gang.whole(key)
            && gang.held_until.is_none()
            && refused.is_none_or(|blocked_answer| blocked_answer.lacks_room())
            && self.has_waited_enough(gang, now)
    }

    /// Whether the gang has waited as long as a gang must before anything is reserved for it.
    pub(super) fn has_waited_enough(&self, gang: &Gang, now: Timestamp) -> bool {
        let after = self.reserve_after(gang.payer.map(|payer| payer.queue));
        self.since(gang)
            .is_some_and(|since| since.checked_add(after).is_ok_and(|ripe| ripe <= now))
    }

    fn reserve_after(&self, queue: Option<QueueIx>) -> SignedDuration {
        let rules = queue.and_then(|queue| self.queues.rules(queue));
        let of_queue = rules.and_then(|rules| rules.reserve_after);
        let after = self.config.reserve_after;
        of_queue.unwrap_or(if self.timeline.most_ends_known() {
            after
        } else {
            after.saturating_mul(GUESSED_TIMES)
        })
    }

    /// The gang as a head, if it lacks room and the empty cluster could hold it.
    fn head_of(&self, key: &GangKey) -> Option<Head> {
        let gang = self.gangs.get(key)?;
        let payer = gang.payer?;
        gang.blocked_answer
            .as_ref()
            .filter(|blocked_answer| blocked_answer.lacks_room())?;
        let ask = self.ask_of(key, gang)?;
        if !self.could_ever_hold(&ask) || self.limit_of(key, gang).is_some() {
            return None;
        }
        let demand = self.classes.get(ask.class).demand();
        let by_right = self
            .queues
            .within_deserved(payer.queue, demand, ask.need as i64);
        Some(Head {
            key: key.clone(),
            rank: (self.queue_priority(payer.queue), self.priority_of(gang)),
            by_right,
            ask,
        })
    }

    pub(super) fn queue_priority(&self, at: QueueIx) -> i32 {
        self.queues.rules(at).map_or(0, |rules| rules.priority)
    }

    /// The first of the gangs that lack room, of all queues; where there is a head, of the gangs
    /// that rank above it.
    fn choose_head(&self, now: Timestamp) -> Option<Head> {
        let mut first: Option<(Precedence, Head)> = None;
        for (_, at, queue) in self.queues.iter() {
            for head in self.heads_in(at, &queue.line, now) {
                let since = self.gangs.get(&head.key).and_then(|gang| self.since(gang));
                let score = self.score(&head.key, now);
                let precedence = (
                    Reverse(head.rank),
                    Reverse(score),
                    self.queues.above_share(at).is_some(),
                    self.queues.dominant_share(at),
                    since.unwrap_or(Timestamp::UNIX_EPOCH),
                    head.key.clone(),
                );
                if first.as_ref().is_none_or(|(best, _)| precedence < *best) {
                    first = Some((precedence, head));
                }
            }
        }
        first.map(|(_, head)| head)
    }

    /// The first gang of a queue's line that lacks room; where the queue orders by age, also the
    /// gangs of the same rank after it.
    fn heads_in(&self, at: QueueIx, line: &BTreeSet<LineKey>, now: Timestamp) -> Vec<Head> {
        let policy = self.queues.rules(at).map(|rules| rules.policy);
        let by_age = policy.is_none_or(|policy| policy == GangOrder::Priority);
        let above = self.timeline.head.as_ref().map(|head| head.rank);
        let mut heads: Vec<Head> = Vec::new();
        for place in line.iter().take(LOOKED_AT_MAX) {
            let key = &place.gang;
            let gang = self.gangs.get(key);
            let refused = gang.is_some_and(|gang| gang.blocked_answer.is_some());
            if !refused || !self.may_lead(key, now) {
                continue;
            }
            let Some(head) = self.head_of(key) else {
                continue;
            };
            let lower = heads.first().is_some_and(|first| first.rank != head.rank);
            if lower || above.is_some_and(|above| head.rank <= above) {
                break;
            }
            heads.push(head);
            if !by_age {
                break;
            }
        }
        heads
    }

    /// The gang's score by the configured rule, apart from shares.
    fn score(&self, key: &GangKey, now: Timestamp) -> i128 {
        let Some(gang) = self.gangs.get(key) else {
            return 0;
        };
        let since = self.since(gang).unwrap_or(now);
        let waited = i128::from((now.as_second() - since.as_second()).max(1));
        let size = self.main_need(key, gang).map_or(1, |(_, need)| need);
        match self.config.lead {
            Lead::Share => 0,
            Lead::Age => waited,
            Lead::Size => waited * i128::from(size),
            Lead::Response => {
                let seconds = self.timeline.likely(&self.facts_of(gang));
                let runs = i128::from(seconds.max(SHORT_SECONDS));
                waited * RUN_PARTS / runs
            }
        }
    }

    /// The room reserved for the head, and when it will be free.
    pub(crate) fn head_reservation(&mut self, now: Timestamp) -> Option<GangReservation> {
        self.update_shadow(now);
        let head = self.timeline.head.as_ref()?;
        let shadow: &Shadow = self.timeline.shadow.as_ref()?;
        let at = Timestamp::from_second(shadow.at).ok()?;
        let gang = self.gangs.get(&head.key)?;
        let mut pods = gang.pending.iter().map(|(_, name)| name);
        let mut places = Vec::new();
        for (node, held) in self.nodes_then(shadow) {
            for name in pods.by_ref().take(held as usize) {
                let uid = self.pods.get(name).map(|pod| pod.uid.clone());
                let pod = PodRef {
                    namespace: String::from(&*name.namespace),
                    name: String::from(&*name.name),
                    uid: uid.unwrap_or_default(),
                };
                places.push((pod, String::from(&*self.nodes[node].name)));
            }
        }
        Some(GangReservation {
            group: GroupRef::of(&head.key),
            pods: places,
            devices: Vec::new(),
            kind: ReservationKind::Planned { at },
        })
    }
}
