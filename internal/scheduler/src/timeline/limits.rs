//! Queue limits over time: which limit blocks a gang, and when the ends of the gangs that the limit
//! counts give back what the gang lacks (`tests/timeline_limits.rs`).

use super::shadow::Ends;
use crate::gang::{Gang, GangKey};
use crate::queue::{LimitingRule, Payer, QueueIx, TeamIx, UserIx};
use crate::resource::{Demand, Ix};
use crate::state::Scheduler;

/// What a limit counts: the use of one resource by a queue, a user or a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LimitScope {
    queue: QueueIx,
    user: Option<UserIx>,
    team: Option<TeamIx>,
    /// Only non-preemptible work.
    fixed: bool,
    pub(super) ix: Ix,
}

impl Scheduler {
    /// The tightest limit that blocks the gang, and how much of the resource it lacks there.
    pub(super) fn limit_of(&self, key: &GangKey, gang: &Gang) -> Option<(LimitScope, i64)> {
        let need = gang.need(key);
        let asked = need.iter().filter(|(_, amount)| *amount > 0);
        let demand = Demand(asked.collect());
        let (times, bound) = self.queues.allows(gang.payer?, &demand, |_| i64::MAX);
        let bound = bound.filter(|_| times == 0)?;
        let (queue, user, team, fixed) = match bound {
            LimitingRule::Capability { queue, .. } | LimitingRule::Borrowing { queue, .. } => {
                (queue, None, None, false)
            }
            LimitingRule::Deserved { queue, .. } => (queue, None, None, true),
            LimitingRule::User { queue, user, .. } => (queue, Some(user), None, false),
            LimitingRule::Team { queue, team, .. } => (queue, None, Some(team), false),
            LimitingRule::Guarantees { .. } => return None,
        };
        let scope = LimitScope {
            queue,
            user,
            team,
            fixed,
            ix: bound.resource(),
        };
        Some((scope, need.get(scope.ix) - bound.leaves()))
    }

    /// Whether the limit counts what is charged to this account.
    pub(super) fn counts_in(&self, scope: LimitScope, payer: Payer) -> bool {
        scope.user.is_none_or(|user| user == payer.user)
            && scope.team.is_none_or(|team| Some(team) == payer.team)
            && (payer.fixed || !scope.fixed)
            && self.queues.holds(scope.queue, payer.queue)
    }

    /// What the gangs that a limit counts give back, in the order of their ends.
    pub(super) fn giving_back(&self, scope: LimitScope, ends: Ends) -> Vec<(i64, i64)> {
        let ends = self.timeline.in_order(ends).filter_map(|(end, run)| {
            let counted = run.payer.is_some_and(|payer| self.counts_in(scope, payer));
            let amount = run.holds.get(scope.ix);
            (counted && amount > 0).then_some((end, amount))
        });
        ends.collect()
    }
}

/// From when on `amount` has been given back, and how much in all at that time; none if it never
/// is.
pub(super) fn first_with(giving_back: &[(i64, i64)], amount: i64) -> Option<(i64, i64)> {
    let mut first: Option<i64> = None;
    let mut sum = 0_i64;
    for (end, given) in giving_back {
        if first.is_some_and(|first| *end > first) {
            break;
        }
        sum = sum.saturating_add(*given);
        if sum >= amount && first.is_none() {
            first = Some(*end);
        }
    }
    first.map(|first| (first, sum))
}
