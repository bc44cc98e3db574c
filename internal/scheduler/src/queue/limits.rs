//! Bounds: how much more may be charged to a queue, and which rule allows no more, over the queue
//! itself and all queues above it.

use crate::queue::rules::amount_for;
use crate::queue::{Payer, QueueIx, Queues, ROOT, TeamIx, UserIx};
use crate::resource::{Demand, Ix};

/// The rule that stops a queue from taking more. Each names the queue that has the rule, which may
/// be an ancestor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitingRule {
    /// A capability; `kept` of it is reserved for queues inside that queue.
    Capability {
        queue: QueueIx,
        resource: Ix,
        allowed: i64,
        held: i64,
        kept: i64,
    },
    /// A borrowing limit above the deserved amount.
    Borrowing {
        queue: QueueIx,
        resource: Ix,
        allowed: i64,
        held: i64,
        kept: i64,
    },
    /// The deserved amount: non-preemptible work must stay within it.
    Deserved {
        queue: QueueIx,
        resource: Ix,
        allowed: i64,
        held: i64,
    },
    /// The limit for one user.
    User {
        queue: QueueIx,
        user: UserIx,
        resource: Ix,
        allowed: i64,
        held: i64,
    },
    /// The limit for one team.
    Team {
        queue: QueueIx,
        team: TeamIx,
        resource: Ix,
        allowed: i64,
        held: i64,
    },
    /// Reservations for other queues.
    Guarantees { resource: Ix, idle: i64, kept: i64 },
}

impl LimitingRule {
    /// The resource that the bound is about.
    pub(crate) fn resource(&self) -> Ix {
        match self {
            LimitingRule::Capability { resource, .. }
            | LimitingRule::Borrowing { resource, .. }
            | LimitingRule::Deserved { resource, .. }
            | LimitingRule::User { resource, .. }
            | LimitingRule::Team { resource, .. }
            | LimitingRule::Guarantees { resource, .. } => *resource,
        }
    }

    /// How much more the bound allows.
    pub(crate) fn leaves(&self) -> i64 {
        match self {
            LimitingRule::Capability {
                allowed,
                held,
                kept,
                ..
            }
            | LimitingRule::Borrowing {
                allowed,
                held,
                kept,
                ..
            } => allowed - held - kept,
            LimitingRule::Deserved { allowed, held, .. }
            | LimitingRule::User { allowed, held, .. }
            | LimitingRule::Team { allowed, held, .. } => allowed - held,
            LimitingRule::Guarantees { idle, kept, .. } => idle - kept,
        }
    }

    /// True if `asked` exceeds the bound itself, so that no release could be enough.
    pub(crate) fn never_allows(&self, asked: i64) -> bool {
        match self {
            LimitingRule::Capability { allowed, .. }
            | LimitingRule::Borrowing { allowed, .. }
            | LimitingRule::Deserved { allowed, .. }
            | LimitingRule::User { allowed, .. }
            | LimitingRule::Team { allowed, .. } => asked > *allowed,
            LimitingRule::Guarantees { .. } => false,
        }
    }
}

impl Queues {
    /// How many times the payer may take the demand, and the bound that allows no more. Costs the
    /// depth of the tree.
    pub(crate) fn allows(
        &self,
        payer: Payer,
        demand: &Demand,
        idle: impl Fn(Ix) -> i64,
    ) -> (u32, Option<LimitingRule>) {
        let mut least = (i64::from(u32::MAX), None);
        for (ix, asked) in &demand.0 {
            self.bounds(payer, *ix, idle(*ix), |bound| {
                let times = bound.leaves().max(0) / (*asked).max(1);
                if times < least.0 {
                    least = (times, Some(bound));
                }
            });
        }
        (least.0 as u32, least.1)
    }

    /// How much more of a resource the limits allow the payer, without regard to reservations for
    /// others.
    pub(crate) fn leaves(&self, payer: Payer, ix: Ix) -> i64 {
        let mut least = i64::MAX;
        self.bounds(payer, ix, i64::MAX, |bound| {
            least = least.min(bound.leaves())
        });
        least
    }

    /// Passes every bound on a payer's use of a resource to `on_bound`, from its queue upwards.
    fn bounds(&self, payer: Payer, ix: Ix, idle: i64, mut on_bound: impl FnMut(LimitingRule)) {
        // What is reserved for other queues up to this level; at first, for the queue's own
        // children.
        let mut kept = self.table[payer.queue].kept_below.get(ix);
        let mut at = payer.queue;
        loop {
            let queue = &self.table[at];
            if let Some(rules) = self.rules(at) {
                self.own_bounds(payer, at, ix, kept, rules, &mut on_bound);
            }
            if at == ROOT {
                break;
            }
            let parent = &self.table[queue.parent];
            let others = parent.kept_below.get(ix).saturating_sub(queue.kept.get(ix));
            kept = kept.saturating_add(others);
            at = queue.parent;
        }
        if kept > 0 {
            on_bound(LimitingRule::Guarantees {
                resource: ix,
                idle,
                kept,
            });
        }
    }

    fn own_bounds(
        &self,
        payer: Payer,
        at: QueueIx,
        ix: Ix,
        kept: i64,
        rules: &crate::queue::QueueRules,
        on_bound: &mut impl FnMut(LimitingRule),
    ) {
        let held = self.allocated(at, ix);
        if let Some(allowed) = amount_for(&rules.capability, ix) {
            on_bound(LimitingRule::Capability {
                queue: at,
                resource: ix,
                allowed,
                held,
                kept,
            });
        }
        if let Some(allowed) = rules.borrowing_ceiling(ix) {
            on_bound(LimitingRule::Borrowing {
                queue: at,
                resource: ix,
                allowed,
                held,
                kept,
            });
        }
        if payer.fixed
            && let Some(allowed) = amount_for(&rules.deserved, ix)
        {
            on_bound(LimitingRule::Deserved {
                queue: at,
                resource: ix,
                allowed,
                held: self.fixed(at, ix),
            });
        }
        if let Some(allowed) = amount_for(&rules.user_limit, ix) {
            let held = self.table[at].limited.get(&payer.user);
            on_bound(LimitingRule::User {
                queue: at,
                user: payer.user,
                resource: ix,
                allowed,
                held: held.map_or(0, |room| room.get(ix)),
            });
        }
        if let Some(team) = payer.team
            && let Some(allowed) = amount_for(&rules.team_limit, ix)
        {
            let held = self.table[at].limited_teams.get(&team);
            on_bound(LimitingRule::Team {
                queue: at,
                team,
                resource: ix,
                allowed,
                held: held.map_or(0, |room| room.get(ix)),
            });
        }
    }

    /// Whether a gang with `minResources` may be admitted in addition to what is held and what
    /// gangs admitted earlier expect; the violated bound if not. Only capabilities on the path
    /// count: a full cluster does not stop admission.
    pub(crate) fn admits(&self, payer: Payer, needs: &Demand) -> Option<LimitingRule> {
        for at in self.path(payer.queue) {
            let Some(rules) = self.rules(at) else {
                continue;
            };
            for (ix, asked) in &needs.0 {
                let Some(allowed) = amount_for(&rules.capability, *ix) else {
                    continue;
                };
                let sum = &self.table[at].sum;
                let held = sum.allocated.get(*ix) + sum.expected.get(*ix);
                if held.saturating_add(*asked) > allowed {
                    return Some(LimitingRule::Capability {
                        queue: at,
                        resource: *ix,
                        allowed,
                        held,
                        kept: 0,
                    });
                }
            }
        }
        None
    }
}
