//! Entitlements: how what there is is divided among those who ask, level by level and resource by
//! resource. Whole units throughout, and never more than there is:
//!
//! 1. what is reserved for a queue and asked for; what is reserved and not asked for is set aside;
//! 2. what a queue deserves and asks for;
//! 3. the rest by surplus weight among those who still ask, the higher priority first. Parts are
//!    rounded down, and the units that are left go to the largest remainders, then to the older.
//!
//! Where 1 or 2 cannot be had in full, the higher priority goes first, and equals get parts in
//! proportion to what they ask.

use std::cmp::Reverse;

use crate::queue::rules::WEIGHT_UNIT;
use crate::queue::{QueueIx, Queues, ROOT};
use crate::resource::{Ix, PODS, Room, unit};

/// What one of those who share asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claim {
    pub(super) wants: i64,
    pub(super) reserved: i64,
    pub(super) deserved: i64,
    pub(super) weight: i64,
    pub(super) priority: i32,
    /// What it used of late, where that counts.
    pub(super) usage: i64,
    /// Its place by age.
    pub(super) rank: usize,
    pub(super) got: i64,
}

/// How much more than its weight says recent usage counts, in thousandths; and what all is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    pub(super) strength: i64,
    pub(super) total: i64,
}

impl Queues {
    /// Brings the tree, and the entitlements where something moved, up to date. What there is to
    /// share is all there is but what others' pods use.
    pub(crate) fn reckon(&mut self, total: &Room, used: &Room) {
        self.relink();
        let pool = self.to_share(total, used);
        if pool == self.pool && !self.restless {
            return;
        }
        self.restless = false;
        self.pool = pool;
        for queue in &mut self.table {
            queue.entitled = Room::default();
            queue.own_entitled = Room::default();
        }
        let asked = self.table[ROOT].sum.requested.iter();
        let resources: Vec<Ix> = asked
            .filter(|(_, amount)| *amount > 0)
            .map(|(ix, _)| ix)
            .collect();
        for ix in resources {
            self.divide(ix);
        }
    }

    /// Would reckoning change nothing?
    pub(super) fn settled(&self, total: &Room, used: &Room) -> bool {
        !self.stale && !self.restless && self.pool == self.to_share(total, used)
    }

    fn to_share(&self, total: &Room, used: &Room) -> Room {
        let mut pool = Room::default();
        for (ix, all) in total.iter() {
            let foreign = used.get(ix) - self.allocated(ROOT, ix);
            pool.set(ix, (all - foreign.max(0)).max(0));
        }
        pool
    }

    fn divide(&mut self, ix: Ix) {
        let mut wants = vec![0; self.table.len()];
        let mut reserved = vec![0; self.table.len()];
        for at in self.order.iter().rev().copied() {
            let queue = &self.table[at];
            let below = |list: &[i64]| -> i64 {
                let children = queue.children.iter().map(|child| list[*child]);
                children.fold(0, i64::saturating_add)
            };
            let ceiling = self.rules(at).and_then(|rules| rules.ceiling(ix));
            let all = below(&wants).saturating_add(self.own_wants(at, ix));
            wants[at] = all.min(ceiling.unwrap_or(i64::MAX));
            let own = queue.rules.as_ref().map_or(0, |rules| rules.reserved(ix));
            reserved[at] = own.max(below(&reserved));
        }
        let memory = self.memory(ix);
        let ceiling = self.rules(ROOT).and_then(|rules| rules.ceiling(ix));
        let pool = self.pool.get(ix).min(ceiling.unwrap_or(i64::MAX));
        self.table[ROOT].entitled.set(ix, pool);
        for step in 0..self.order.len() {
            let at = self.order[step];
            let pool = self.table[at].entitled.get(ix);
            let own = self.own_claim(at, ix);
            let mut claims: Vec<Claim> = self.table[at]
                .children
                .iter()
                .map(|child| self.claim(*child, ix, wants[*child], reserved[*child]))
                .collect();
            claims.push(own);
            share_out(pool, unit(ix), &mut claims, memory);
            let own = claims.pop().map_or(0, |claim| claim.got);
            self.table[at].own_entitled.set(ix, own);
            let children = self.table[at].children.clone();
            for (child, claim) in children.into_iter().zip(claims) {
                self.table[child].entitled.set(ix, claim.got);
            }
        }
    }

    /// What the gangs that name the queue ask for; a queue that takes no work asks for no more
    /// than it holds, and one that nobody wrote down for nothing.
    fn own_wants(&self, at: QueueIx, ix: Ix) -> i64 {
        let own = &self.table[at].own;
        match self.rules(at) {
            Some(rules) if rules.door == super::Door::Open => own.requested.get(ix),
            Some(_) => own.allocated.get(ix),
            None if at == ROOT => own.allocated.get(ix),
            None => 0,
        }
    }

    fn own_claim(&self, at: QueueIx, ix: Ix) -> Claim {
        Claim {
            wants: self.own_wants(at, ix),
            weight: WEIGHT_UNIT,
            rank: usize::MAX,
            ..Claim::default()
        }
    }

    fn claim(&self, at: QueueIx, ix: Ix, wants: i64, reserved: i64) -> Claim {
        let queue = &self.table[at];
        let Some(rules) = self.rules(at) else {
            return Claim::default();
        };
        Claim {
            wants,
            reserved,
            deserved: rules.entitled_first(ix).max(reserved),
            weight: rules.surplus_weight(ix),
            priority: rules.priority,
            usage: queue.usage.get(ix),
            rank: queue.rank,
            got: 0,
        }
    }

    /// What a queue is entitled to: never more, over all queues of a level, than there is.
    pub(crate) fn entitled(&self, at: QueueIx, ix: Ix) -> i64 {
        self.table[at].entitled.get(ix)
    }

    /// What a queue may hold without being above its share: its entitlement, or what it deserves
    /// where that is more (quotas that add up to more than there is), within its ceiling.
    pub(crate) fn allocatable(&self, at: QueueIx, ix: Ix) -> i64 {
        let Some(rules) = self.rules(at) else {
            return 0;
        };
        let share = self.entitled(at, ix).max(rules.entitled_first(ix));
        share.min(rules.ceiling(ix).unwrap_or(i64::MAX))
    }

    /// Does the resource count in shares? How many pods there are does not.
    pub(super) fn counts(&self, ix: Ix) -> bool {
        ix != PODS && self.pool.get(ix) > 0
    }
}

/// Divides a pool among claims: see the module's head.
pub(super) fn share_out(pool: i64, unit: i64, claims: &mut [Claim], memory: Memory) {
    let aside = |claim: &Claim| (claim.reserved - claim.wants).max(0);
    let aside = claims.iter().map(aside).fold(0, i64::saturating_add);
    let mut left = pool.saturating_sub(aside).max(0);
    grant(&mut left, unit, claims, |claim| {
        claim.reserved.min(claim.wants)
    });
    grant(&mut left, unit, claims, |claim| {
        claim.deserved.min(claim.wants)
    });
    let mut tiers: Vec<i32> = claims.iter().map(|claim| claim.priority).collect();
    tiers.sort_unstable_by_key(|priority| Reverse(*priority));
    tiers.dedup();
    for priority in tiers {
        surplus(&mut left, unit, claims, priority, memory);
    }
}

/// Raises every claim to its goal, or as near to it as what is left allows.
fn grant(left: &mut i64, unit: i64, claims: &mut [Claim], goal: impl Fn(&Claim) -> i64) {
    let short = |claim: &Claim| (goal(claim) - claim.got).max(0);
    let mut by_priority: Vec<usize> = (0..claims.len()).collect();
    by_priority.sort_unstable_by_key(|at| (Reverse(claims[*at].priority), claims[*at].rank));
    let priorities: Vec<i32> = claims.iter().map(|claim| claim.priority).collect();
    for tier in by_priority.chunk_by(|a, b| priorities[*a] == priorities[*b]) {
        let asked: i128 = tier.iter().map(|at| i128::from(short(&claims[*at]))).sum();
        let pool = i128::from(*left);
        let mut remainders = Vec::new();
        for at in tier {
            let part = i128::from(short(&claims[*at]));
            if asked <= pool {
                claims[*at].got += part as i64;
                *left -= part as i64;
            } else if part > 0 {
                let given = (part * pool / asked) as i64 / unit * unit;
                claims[*at].got += given;
                *left -= given;
                let short = part * pool - i128::from(given) * asked;
                remainders.push((Reverse(short), claims[*at].rank, *at));
            }
        }
        hand_out(left, unit, claims, remainders, &goal);
    }
}

/// Divides what is left by weight among those of a priority who still ask.
fn surplus(left: &mut i64, unit: i64, claims: &mut [Claim], priority: i32, memory: Memory) {
    // Every round but the last satisfies somebody.
    for _ in 0..=claims.len() {
        let asks = |claim: &Claim| {
            claim.priority == priority && claim.wants > claim.got && claim.weight > 0
        };
        let weights = weigh(claims, asks, memory);
        let all: i128 = weights.iter().map(|(_, weight)| *weight).sum();
        if all == 0 || *left == 0 {
            return;
        }
        let pool = i128::from(*left);
        let mut again = false;
        let mut remainders = Vec::new();
        for (at, weight) in weights {
            let claim = &mut claims[at];
            let short = claim.wants - claim.got;
            let part = pool * weight;
            let given = if i128::from(short) * all <= part {
                again |= i128::from(short) * all < part;
                short
            } else {
                let given = (part / all) as i64 / unit * unit;
                let rest = part - i128::from(given) * all;
                remainders.push((Reverse(rest), claim.rank, at));
                given
            };
            claim.got += given;
            *left -= given;
        }
        if !again {
            hand_out(left, unit, claims, remainders, |claim| claim.wants);
            return;
        }
    }
}

/// Weights as they count: less for who used more than its part of late.
fn weigh(claims: &[Claim], asks: impl Fn(&Claim) -> bool, memory: Memory) -> Vec<(usize, i128)> {
    let asking: Vec<usize> = (0..claims.len()).filter(|at| asks(&claims[*at])).collect();
    if memory.strength == 0 || memory.total <= 0 {
        let weights = asking
            .iter()
            .map(|at| (*at, i128::from(claims[*at].weight)));
        return weights.collect();
    }
    let all: i128 = asking.iter().map(|at| i128::from(claims[*at].weight)).sum();
    let weights = asking.into_iter().map(|at| {
        // w + k (w - u), all as parts of a million.
        let weight = i128::from(claims[at].weight) * 1_000_000 / all;
        let usage = i128::from(claims[at].usage) * 1_000_000 / i128::from(memory.total);
        let strength = i128::from(memory.strength);
        let counted = weight + strength * (weight - usage) / i128::from(WEIGHT_UNIT);
        (at, counted.max(0))
    });
    weights.collect()
}

/// Hands out single units, to the largest remainders first.
fn hand_out(
    left: &mut i64,
    unit: i64,
    claims: &mut [Claim],
    mut remainders: Vec<(Reverse<i128>, usize, usize)>,
    goal: impl Fn(&Claim) -> i64,
) {
    remainders.sort_unstable();
    for (Reverse(remainder), _, at) in remainders {
        if *left == 0 {
            return;
        }
        if remainder > 0 {
            let short = (goal(&claims[at]) - claims[at].got).max(0);
            let given = unit.min(*left).min(short);
            claims[at].got += given;
            *left -= given;
        }
    }
}
