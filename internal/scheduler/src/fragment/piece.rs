//! The worth of a free piece of one GPU: the dual of the cutting-stock problem over the share sizes
//! in a mix.
//!
//! Method: the linear programme packs all shares of the mix on the fewest GPUs; the dual price of a
//! size says how much of a GPU one more pod of that size costs. A free piece is worth the highest
//! total price of sizes that fit into it. Solved by column generation (Gilmore and Gomory, "A
//! linear programming approach to the cutting-stock problem", 1961) with a knapsack over steps of
//! 10/1000 GPU. Computed once for each mix.
//!
//! Example: two shares of 600 for each share of 400. A share of 600 needs a GPU, and one of 400
//! fits beside it at no further cost. So a free piece of 600 is worth a whole GPU, and one of 590
//! nothing (`a_piece_is_worth_what_packs_into_it`).

use std::collections::BTreeMap;

use super::mix::Mix;
use super::node::WHOLE;

/// Length of one knapsack step in 1/1000 GPU.
const STEP: u16 = 10;
/// Knapsack steps in a whole GPU.
const STEPS: usize = (WHOLE / STEP) as usize;

/// The worth of every free piece, in 1/1000 GPU.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PieceWorth {
    /// By the free part of the GPU, 0..=1000.
    worth: Vec<f64>,
}

impl PieceWorth {
    /// Every piece is worth its size.
    pub(super) fn plain() -> PieceWorth {
        PieceWorth {
            worth: (0..=WHOLE).map(f64::from).collect(),
        }
    }

    /// From the share sizes of a mix. Sizes are rounded up to steps.
    pub(super) fn of(mix: &Mix) -> PieceWorth {
        let mut need: BTreeMap<usize, f64> = BTreeMap::new();
        for (d, w) in mix.classes() {
            if d.is_share() && d.milli > 0 {
                *need
                    .entry(usize::from(d.milli.div_ceil(STEP)))
                    .or_insert(0.0) += w;
            }
        }
        if need.is_empty() {
            return PieceWorth::plain();
        }
        let sizes: Vec<usize> = need.keys().copied().collect();
        let demand: Vec<f64> = need.values().copied().collect();
        let price = prices(&sizes, &demand);
        let best = knapsack(&sizes, &price);
        let mut worth = vec![0.0; usize::from(WHOLE) + 1];
        for (g, w) in worth.iter_mut().enumerate() {
            *w = best
                .get(g / usize::from(STEP))
                .map_or(0.0, |b| b * f64::from(WHOLE))
                .min(f64::from(WHOLE));
        }
        if let Some(last) = worth.last_mut() {
            *last = f64::from(WHOLE);
        }
        PieceWorth { worth }
    }

    /// The part of a free piece that the mix is not expected to use, in 1/1000 GPU. Negative where
    /// the piece is worth more than its size: it holds a pod that would otherwise cost a larger
    /// part.
    pub(super) fn waste(&self, free: u16) -> f64 {
        f64::from(free) - self.worth.get(usize::from(free)).copied().unwrap_or(0.0)
    }
}

/// The best total price for each capacity 0..=STEPS, items without limit.
fn knapsack(sizes: &[usize], price: &[f64]) -> Vec<f64> {
    let mut best = vec![0.0f64; STEPS + 1];
    for cap in 1..=STEPS {
        best[cap] = best[cap - 1];
        for (s, p) in sizes.iter().zip(price) {
            if *s <= cap && best[cap - s] + p > best[cap] {
                best[cap] = best[cap - s] + p;
            }
        }
    }
    best
}

/// The best pattern for one GPU: copies of each size.
fn pattern(sizes: &[usize], price: &[f64]) -> Vec<f64> {
    let best = knapsack(sizes, price);
    let mut out = vec![0.0; sizes.len()];
    let mut cap = STEPS;
    while cap > 0 {
        if best[cap] <= best[cap - 1] {
            cap -= 1;
            continue;
        }
        let hit = sizes
            .iter()
            .zip(price)
            .position(|(s, p)| *s <= cap && best[cap - s] + p >= best[cap]);
        let Some(i) = hit else { break };
        out[i] += 1.0;
        cap -= sizes[i];
    }
    out
}

/// Dual prices (in GPUs) of the covering LP: revised simplex on the dense inverse of the basis.
fn prices(sizes: &[usize], demand: &[f64]) -> Vec<f64> {
    /// Smaller differences are noise.
    const TINY: f64 = 1e-9;
    /// The most steps of the simplex method. If they do not suffice, the prices of the last one are
    /// used.
    const ROUNDS: usize = 2000;
    let m = sizes.len();
    let mut inv = vec![vec![0.0f64; m]; m];
    let mut x = vec![0.0f64; m];
    let mut cost = vec![1.0f64; m];
    for i in 0..m {
        let copies = (STEPS / sizes[i].max(1)) as f64;
        inv[i][i] = 1.0 / copies.max(1.0);
        x[i] = demand[i] * inv[i][i];
    }
    let dual = |inv: &[Vec<f64>], cost: &[f64]| -> Vec<f64> {
        (0..m)
            .map(|j| (0..m).map(|i| cost[i] * inv[i][j]).sum())
            .collect()
    };
    for _ in 0..ROUNDS {
        let u = dual(&inv, &cost);
        let negative = (0..m).find(|&j| u[j] < -TINY);
        let (column, c) = match negative {
            Some(j) => (
                (0..m).map(|k| if k == j { -1.0 } else { 0.0 }).collect(),
                0.0,
            ),
            None => {
                let p = pattern(sizes, &u);
                let gain: f64 = p.iter().zip(&u).map(|(a, b)| a * b).sum();
                if gain <= 1.0 + TINY {
                    return u;
                }
                (p, 1.0)
            }
        };
        let dir: Vec<f64> = inv
            .iter()
            .map(|row| {
                row.iter()
                    .zip(&column)
                    .map(|(a, b): (&f64, &f64)| a * b)
                    .sum()
            })
            .collect();
        let mut out: Option<(f64, usize)> = None;
        for i in 0..m {
            if dir[i] > TINY {
                let r = x[i] / dir[i];
                if out.is_none_or(|(b, _)| r < b - 1e-15) {
                    out = Some((r, i));
                }
            }
        }
        let Some((step, leave)) = out else { return u };
        for i in 0..m {
            if i != leave {
                x[i] = (x[i] - step * dir[i]).max(0.0);
            }
        }
        x[leave] = step;
        cost[leave] = c;
        let pivot = dir[leave];
        for v in inv[leave].iter_mut() {
            *v /= pivot;
        }
        let row = inv[leave].clone();
        for i in 0..m {
            if i != leave && dir[i] != 0.0 {
                for (v, r) in inv[i].iter_mut().zip(&row) {
                    *v -= dir[i] * r;
                }
            }
        }
    }
    dual(&inv, &cost).into_iter().map(|u| u.max(0.0)).collect()
}
