//! Reservations of quota: where a gang lacks quota under a queue's limit rather than room, the
//! first such gang in line has a claim on that limit. The claim says from when on the ends of the
//! gangs that the limit counts will have given back enough, and how much more than it needs is free
//! then. As with the head of the line, another gang may start if it ends before that time or takes
//! only the surplus.
//!
//! Example: a user may hold 4 GPUs and holds 4 with gangs of 2 GPUs that end at 10:00 and 11:00;
//! the user's gang of 4 GPUs has the claim. A gang of 2 GPUs that ends before 11:00 may start at
//! 10:00; a longer one is held back.
//!
//! Test: `tests/timeline_limits.rs`.

use jiff::Timestamp;

use super::limits::{LimitScope, first_with};
use super::shadow::Ends;
use crate::gang::GangKey;
use crate::place::{Attempt, Placement};
use crate::report::Obstacle;
use crate::resource::Ix;
use crate::state::Scheduler;

/// How many gangs of one queue's line are considered for a claim.
const LOOKED_AT_MAX: usize = 16;

/// The quota of one limit that is reserved for one gang.
#[derive(Clone, Debug)]
pub(super) struct LimitClaim {
    key: GangKey,
    /// The priority of the gang's queue, and the gang's own.
    rank: (i32, i32),
    /// When the limit leaves the gang enough, and how much more than it needs then.
    at: i64,
    spare: i64,
    /// No gang that the limit counts started or ended since the claim was computed.
    fresh: bool,
    /// A gang was held back for the claim.
    denied: bool,
}

impl Scheduler {
    /// Updates the claims, before any gang has a turn.
    pub(super) fn update_claims(&mut self, now: Timestamp) {
        let old = std::mem::take(&mut self.timeline.claims);
        for (scope, claim) in old {
            let waits = self.gangs.get(&claim.key).is_some_and(|gang| {
                // A gang that lacks something else as well keeps no other gang from the limit.
                let mut refused = gang.blocked_answer.iter();
                gang.line.is_some()
                    && !gang.whole(&claim.key)
                    && refused.all(|blocked_answer| {
                        blocked_answer.over_quota() || blocked_answer.waits_behind()
                    })
            });
            let passed = claim.at <= now.as_second();
            if waits && claim.fresh && !passed {
                self.timeline.claims.insert(scope, claim);
                continue;
            }
            // The gangs that were held back for it may be tried again.
            self.releases += u64::from(claim.denied);
            if waits {
                self.make_claim(scope, &claim.key, now);
            }
        }
        let lines = self.queues.iter().map(|(_, _, queue)| &queue.line);
        let ripe = lines.filter_map(|line| {
            let mut first = line.iter().take(LOOKED_AT_MAX).map(|place| &place.gang);
            let key = first.find(|key| self.limited(key, now))?;
            let (scope, _) = self.limit_of(key, self.gangs.get(key)?)?;
            Some((scope, key.clone()))
        });
        let ripe: Vec<(LimitScope, GangKey)> = ripe.collect();
        for (scope, key) in ripe {
            let known = self.timeline.claims.get(&scope);
            if known.is_none_or(|known| self.rank_of(&key) > Some(known.rank)) {
                self.make_claim(scope, &key, now);
            }
        }
    }

    /// Whether the gang was refused because of a limit, and has waited long enough.
    fn limited(&self, key: &GangKey, now: Timestamp) -> bool {
        self.gangs.get(key).is_some_and(|gang| {
            let blocked_answer = gang.blocked_answer.as_ref();
            blocked_answer.is_some_and(|blocked_answer| blocked_answer.over_quota())
                && !gang.whole(key)
                && self.has_waited_enough(gang, now)
        })
    }

    fn rank_of(&self, key: &GangKey) -> Option<(i32, i32)> {
        let gang = self.gangs.get(key)?;
        let priority = self.queue_priority(gang.payer?.queue);
        Some((priority, self.priority_of(gang)))
    }

    /// Reserves what the gang needs of the limit, unless no ends of other gangs ever leave it that.
    fn make_claim(&mut self, scope: LimitScope, key: &GangKey, now: Timestamp) {
        let Some((payer, rank)) = self
            .gangs
            .get(key)
            .and_then(|gang| gang.payer)
            .zip(self.rank_of(key))
        else {
            return;
        };
        let need = self.needed(key, scope.ix);
        let lacks = need.saturating_sub(self.queues.leaves(payer, scope.ix));
        let (at, spare) = if lacks <= 0 {
            (now.as_second(), -lacks)
        } else {
            let Some((at, given)) = first_with(&self.giving_back(scope, Ends::Latest), lacks)
            else {
                return;
            };
            (at, given - lacks)
        };
        let claim = LimitClaim {
            key: key.clone(),
            rank,
            at,
            spare,
            fresh: true,
            denied: false,
        };
        let old = self.timeline.claims.insert(scope, claim);
        self.releases += u64::from(old.is_some_and(|old| old.denied));
    }

    fn needed(&self, key: &GangKey, ix: Ix) -> i64 {
        self.gangs.get(key).map_or(0, |gang| gang.need(key).get(ix))
    }

    /// Records that a gang charged to this account started, ended, or has a new expected end.
    pub(super) fn outdate_claims(&mut self, payer: Option<crate::queue::Payer>) {
        let Some(payer) = payer else { return };
        let changed_gangs: Vec<LimitScope> = self
            .timeline
            .claims
            .keys()
            .filter(|scope| self.counts_in(**scope, payer))
            .copied()
            .collect();
        for scope in changed_gangs {
            if let Some(claim) = self.timeline.claims.get_mut(&scope) {
                claim.fresh = false;
            }
        }
    }

    /// After a gang was tried: takes back placements that would leave a claim too little.
    pub(crate) fn admit_behind_claims(
        &mut self,
        key: &GangKey,
        attempt: Attempt,
        now: Timestamp,
    ) -> Attempt {
        if self.timeline.claims.is_empty() {
            return attempt;
        }
        let Attempt::Placed(placed) = attempt else {
            return attempt;
        };
        let Some(first) = self.blocked_claim(key, &placed.members, now) else {
            return Attempt::Placed(placed);
        };
        let have = self.gangs.get(key).map_or(0, |gang| gang.total.have());
        let obstacle = Obstacle::behind(&first, have.saturating_sub(placed.members.len()));
        self.withdraw(key, placed);
        Attempt::Blocked(obstacle)
    }

    /// The gang whose claim these placements would leave too little, if any.
    fn blocked_claim(
        &mut self,
        key: &GangKey,
        placed: &[Placement],
        now: Timestamp,
    ) -> Option<GangKey> {
        let rank = self.rank_of(key);
        let scopes = self.claims_on(key, now);
        let taken: Vec<i64> = scopes
            .iter()
            .map(|scope| self.taken(placed, scope.ix))
            .collect();
        let mut first: Option<GangKey> = None;
        for (scope, taken) in scopes.iter().zip(taken) {
            let claim = self.timeline.claims.get_mut(scope);
            let denies = |claim: &&mut LimitClaim| rank <= Some(claim.rank) && taken > claim.spare;
            if let Some(claim) = claim.filter(denies) {
                claim.denied = true;
                if first.as_ref().is_none_or(|first| claim.key < *first) {
                    first = Some(claim.key.clone());
                }
            }
        }
        first
    }

    /// Subtracts kept placements from the surplus of the claims.
    pub(crate) fn charge_claims(&mut self, key: &GangKey, attempt: &Attempt, now: Timestamp) {
        let Attempt::Placed(placed) = attempt else {
            return;
        };
        for scope in self.claims_on(key, now) {
            let taken = self.taken(&placed.members, scope.ix);
            if let Some(claim) = self.timeline.claims.get_mut(&scope) {
                claim.spare -= taken;
            }
        }
    }

    /// The limits with claims that count the gang and that will not have its quota back in time. A
    /// gang that started in this plan has no claim any more: the limit counts what it took.
    fn claims_on(&self, key: &GangKey, now: Timestamp) -> Vec<LimitScope> {
        let Some(gang) = self.gangs.get(key) else {
            return Vec::new();
        };
        let runs = self.timeline.at_most(&self.facts_of(gang));
        let ends = runs.map(|runs| now.as_second().saturating_add(runs));
        let claims = self.timeline.claims.iter().filter(|(scope, claim)| {
            let whole = |holder: &crate::gang::Gang| holder.whole(&claim.key);
            claim.key != *key
                && !self.gangs.get(&claim.key).is_some_and(whole)
                && ends.is_none_or(|ends| ends > claim.at)
                && gang
                    .payer
                    .is_some_and(|payer| self.counts_in(**scope, payer))
        });
        claims.map(|(scope, _)| *scope).collect()
    }

    fn taken(&self, placed: &[Placement], ix: Ix) -> i64 {
        let demands = placed
            .iter()
            .map(|placement| self.classes.get(placement.class).demand().get(ix));
        demands.sum()
    }
}
