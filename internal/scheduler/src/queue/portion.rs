//! Divides an amount among claims, in whole units and never more than the amount:
//!
//! 1. what is reserved and requested; what is reserved and not requested is set aside;
//! 2. what is deserved and requested;
//! 3. the rest by surplus weight among claims that still request, higher priority first. Parts are
//!    rounded down; left-over units go to the largest remainders, then to the older queue.
//!
//! If step 1 or 2 cannot be satisfied in full, higher priority goes first, and claims of equal
//! priority get parts in proportion to their requests.
//!
//! Cost: claims squared at worst (each round of step 3 satisfies at least one claim).
//!
//! Example: 10 units, claims of weight 1 and 2 that want 10 each: 10/3 and 20/3, rounded down 3 and
//! 6; the last unit goes to the larger remainder: 3 and 7.
//!
//! Tests: `queue/tests.rs` and `tests/queues_properties.rs`.

use std::cmp::Reverse;

use crate::queue::rules::WEIGHT_UNIT;

/// What one claimant requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShareClaim {
    pub(super) wants: i64,
    pub(super) reserved: i64,
    pub(super) deserved: i64,
    pub(super) weight: i64,
    pub(super) priority: i32,
    /// Its past use, if that counts.
    pub(super) usage: i64,
    /// Its position by age.
    pub(super) rank: usize,
    pub(super) got: i64,
}

/// How strongly past use counts, in thousandths, and the total that use is measured against.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsageWeight {
    pub(super) strength: i64,
    pub(super) total: i64,
}

/// Divides a pool among claims: see the module's documentation.
pub(super) fn share_out(pool: i64, unit: i64, claims: &mut [ShareClaim], memory: UsageWeight) {
    let aside = |claim: &ShareClaim| (claim.reserved - claim.wants).max(0);
    let aside = claims.iter().map(aside).fold(0, i64::saturating_add);
    let left = pool.saturating_sub(aside).max(0);
    let remembers = memory.strength != 0 && memory.total > 0;
    if remembers || !give_all(left, claims) {
        divide(left, unit, claims, memory);
    }
}

/// Like `share_out`, step by step, on what is left after the reserved part was set aside.
pub(super) fn divide(mut left: i64, unit: i64, claims: &mut [ShareClaim], memory: UsageWeight) {
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

/// Gives every claim its full request, if there is enough and every claim that needs surplus has a
/// weight. Dividing step by step would give the same.
fn give_all(left: i64, claims: &mut [ShareClaim]) -> bool {
    let all = claims.iter().map(|claim| claim.wants.max(0));
    let enough = all.fold(0, i64::saturating_add) <= left;
    let parts =
        |claim: &ShareClaim| claim.weight > 0 || claim.wants <= claim.reserved.max(claim.deserved);
    let given = enough && claims.iter().all(|claim| claim.got == 0 && parts(claim));
    if given {
        claims
            .iter_mut()
            .for_each(|claim| claim.got = claim.wants.max(0));
    }
    given
}

/// Raises every claim to its goal, or as near to it as the rest allows.
fn grant(left: &mut i64, unit: i64, claims: &mut [ShareClaim], goal: impl Fn(&ShareClaim) -> i64) {
    let short = |claim: &ShareClaim| (goal(claim) - claim.got).max(0);
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

/// Divides the rest by weight among claims of one priority that still request.
fn surplus(
    left: &mut i64,
    unit: i64,
    claims: &mut [ShareClaim],
    priority: i32,
    memory: UsageWeight,
) {
    // Every round but the last satisfies at least one claim.
    for _ in 0..=claims.len() {
        let asks = |claim: &ShareClaim| {
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

/// Effective weights: lower for a claim that used more than its part in the past.
fn weigh(
    claims: &[ShareClaim],
    asks: impl Fn(&ShareClaim) -> bool,
    memory: UsageWeight,
) -> Vec<(usize, i128)> {
    let asking: Vec<usize> = (0..claims.len()).filter(|at| asks(&claims[*at])).collect();
    if memory.strength == 0 || memory.total <= 0 {
        let weights = asking
            .iter()
            .map(|at| (*at, i128::from(claims[*at].weight)));
        return weights.collect();
    }
    let all: i128 = asking.iter().map(|at| i128::from(claims[*at].weight)).sum();
    let weights = asking.into_iter().map(|at| {
        // w + k (w - u), all in parts per million.
        let weight = i128::from(claims[at].weight) * 1_000_000 / all;
        let usage = i128::from(claims[at].usage) * 1_000_000 / i128::from(memory.total);
        let strength = i128::from(memory.strength);
        let counted = weight + strength * (weight - usage) / i128::from(WEIGHT_UNIT);
        (at, counted.max(0))
    });
    weights.collect()
}

/// Hands out single units, the largest remainder first.
fn hand_out(
    left: &mut i64,
    unit: i64,
    claims: &mut [ShareClaim],
    mut remainders: Vec<(Reverse<i128>, usize, usize)>,
    goal: impl Fn(&ShareClaim) -> i64,
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
