//! The first in line where a queue's limit, and not room, is what is lacking: from when on the ends
//! of those whom the limit counts will have left it enough, and who of them may start meanwhile. As for the
//! head, who ends before then may, and who takes what is left beside it.

use jiff::Timestamp;

use super::limits::{Scope, first_with};
use super::shadow::Ends;
use crate::gang::GangKey;
use crate::place::{Attempt, Placement};
use crate::report::Obstacle;
use crate::resource::Ix;
use crate::state::Scheduler;

/// How many gangs of one line are looked at for one that a limit is in the way of.
const LOOKED_AT_MAX: usize = 16;

/// What is kept of a limit for one gang.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    key: GangKey,
    /// Its queue's priority, and its own.
    rank: (i32, i32),
    /// When the limit leaves it enough, and how much more than it needs then.
    at: i64,
    spare: i64,
    /// Since it was cast, nobody whom the limit counts started or ended.
    fresh: bool,
    /// Somebody was held back for it.
    denied: bool,
}

impl Scheduler {
    /// Sees who has a claim now, and from when on. Before anybody has a turn.
    pub(super) fn see_claims(&mut self, now: Timestamp) {
        let old = std::mem::take(&mut self.timeline.claims);
        for (scope, claim) in old {
            let waits = self.gangs.get(&claim.key).is_some_and(|gang| {
                // Once it lacks something else, it keeps nobody from the limit.
                let mut refused = gang.parked.iter();
                gang.line.is_some()
                    && !gang.whole(&claim.key)
                    && refused.all(|parked| parked.over_quota() || parked.waits_behind())
            });
            let passed = claim.at <= now.as_second();
            if waits && claim.fresh && !passed {
                self.timeline.claims.insert(scope, claim);
                continue;
            }
            // Whoever was held back for it may ask again.
            self.eased += u64::from(claim.denied);
            if waits {
                self.lay_claim(scope, &claim.key, now);
            }
        }
        let lines = self.queues.iter().map(|(_, _, queue)| &queue.line);
        let ripe = lines.filter_map(|line| {
            let mut first = line.iter().take(LOOKED_AT_MAX).map(|place| &place.gang);
            let key = first.find(|key| self.limited(key, now))?;
            let (scope, _) = self.limit_of(key, self.gangs.get(key)?)?;
            Some((scope, key.clone()))
        });
        let ripe: Vec<(Scope, GangKey)> = ripe.collect();
        for (scope, key) in ripe {
            let known = self.timeline.claims.get(&scope);
            if known.is_none_or(|known| self.rank_of(&key) > Some(known.rank)) {
                self.lay_claim(scope, &key, now);
            }
        }
    }

    /// Was the gang refused for a limit's sake, for long enough?
    fn limited(&self, key: &GangKey, now: Timestamp) -> bool {
        self.gangs.get(key).is_some_and(|gang| {
            let parked = gang.parked.as_ref();
            parked.is_some_and(|parked| parked.over_quota())
                && !gang.whole(key)
                && self.ripe(gang, now)
        })
    }

    fn rank_of(&self, key: &GangKey) -> Option<(i32, i32)> {
        let gang = self.gangs.get(key)?;
        let priority = self.queue_priority(gang.payer?.queue);
        Some((priority, self.priority_of(gang)))
    }

    /// Keeps for the gang what it needs of the limit, unless no end of others ever leaves it that.
    fn lay_claim(&mut self, scope: Scope, key: &GangKey, now: Timestamp) {
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
        let claim = Claim {
            key: key.clone(),
            rank,
            at,
            spare,
            fresh: true,
            denied: false,
        };
        let old = self.timeline.claims.insert(scope, claim);
        self.eased += u64::from(old.is_some_and(|old| old.denied));
    }

    fn needed(&self, key: &GangKey, ix: Ix) -> i64 {
        self.gangs.get(key).map_or(0, |gang| gang.need(key).get(ix))
    }

    /// Notes that something on this account started, ended, or is expected to end at another time.
    pub(super) fn stir_claims(&mut self, payer: Option<crate::queue::Payer>) {
        let Some(payer) = payer else { return };
        let stirred: Vec<Scope> = self
            .timeline
            .claims
            .keys()
            .filter(|scope| self.counts_in(**scope, payer))
            .copied()
            .collect();
        for scope in stirred {
            if let Some(claim) = self.timeline.claims.get_mut(&scope) {
                claim.fresh = false;
            }
        }
    }

    /// After a gang was tried: takes back what would leave somebody with a claim too little.
    pub(crate) fn beside_claims(
        &mut self,
        key: &GangKey,
        attempt: Attempt,
        now: Timestamp,
    ) -> Attempt {
        if self.timeline.claims.is_empty() {
            return attempt;
        }
        let Attempt::Placed(placed, rest) = attempt else {
            return attempt;
        };
        let Some(first) = self.in_the_way(key, &placed, now) else {
            return Attempt::Placed(placed, rest);
        };
        let have = self.gangs.get(key).map_or(0, |gang| gang.total.have());
        let obstacle = Obstacle::behind(&first, have.saturating_sub(placed.len()));
        self.withdraw(key, &placed);
        Attempt::Blocked(obstacle)
    }

    /// Who would be left too little of a limit for these placements, if somebody.
    fn in_the_way(
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
            let denies = |claim: &&mut Claim| rank <= Some(claim.rank) && taken > claim.spare;
            if let Some(claim) = claim.filter(denies) {
                claim.denied = true;
                if first.as_ref().is_none_or(|first| claim.key < *first) {
                    first = Some(claim.key.clone());
                }
            }
        }
        first
    }

    /// Takes what is placed for good out of what is left beside those who have claims.
    pub(crate) fn draw_on_claims(&mut self, key: &GangKey, attempt: &Attempt, now: Timestamp) {
        let Attempt::Placed(placed, _) = attempt else {
            return;
        };
        for scope in self.claims_on(key, now) {
            let taken = self.taken(placed, scope.ix);
            if let Some(claim) = self.timeline.claims.get_mut(&scope) {
                claim.spare -= taken;
            }
        }
    }

    /// The limits with claims that count the gang and that it will not have given back by then. Whoever
    /// has started in this plan claims nothing any more: what it took is on the limit's account.
    fn claims_on(&self, key: &GangKey, now: Timestamp) -> Vec<Scope> {
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
