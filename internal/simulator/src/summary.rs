//! The figures that summarize a simulation. Each field's comment defines its figure.

use serde::Serialize;

use crate::outcome::{GangOutcome, Point, SimulationOutcome};
use crate::scenario::Seconds;

/// Shorter runs count as this long in slowdowns, so that a minute's wait of a one-second job does
/// not count as a slowdown of 60.
const SHORT: Seconds = 10;
/// Gangs of more GPUs than this are large.
const LARGE_MILLI: i64 = 64_000;
/// Size classes: the most GPUs (thousandths) and the label.
const SIZES: [(i64, &str); 8] = [
    (0, "no GPU"),
    (999, "part of a GPU"),
    (1000, "1 GPU"),
    (8000, "2-8 GPUs"),
    (64_000, "9-64 GPUs"),
    (256_000, "65-256 GPUs"),
    (1_024_000, "257-1024 GPUs"),
    (i64::MAX, "over 1024 GPUs"),
];

/// The distribution of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Distribution {
    /// How many.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// The median; a percentile is the smallest value that at least this fraction of values does
    /// not exceed.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Distribution {
    fn of(mut values: Vec<f64>) -> Distribution {
        values.sort_by(f64::total_cmp);
        let Some(max) = values.last().copied() else {
            return Distribution::default();
        };
        let count = values.len();
        let at = |percent: usize| values[(count * percent).div_ceil(100).clamp(1, count) - 1];
        Distribution {
            count,
            mean: values.iter().sum::<f64>() / count as f64,
            p50: at(50),
            p90: at(90),
            p95: at(95),
            p99: at(99),
            max,
        }
    }
}

/// Gangs of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SizeSummary {
    /// Which size.
    pub size: String,
    /// How many gangs.
    pub gangs: usize,
    /// Those that never started.
    pub never_started: usize,
    /// Seconds from arrival to the first start.
    pub wait_seconds: Distribution,
    /// Seconds from arrival to end.
    pub completion_seconds: Distribution,
    /// Bounded slowdown: completion over duration, durations below 10 s counted as 10 s.
    pub bounded_slowdown: Distribution,
}

/// Gangs of one queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueSummary {
    /// Which queue.
    pub queue: String,
    /// Its weight.
    pub weight: i64,
    /// How many gangs.
    pub gangs: usize,
    /// GPU-hours that they held.
    pub gpu_hours: f64,
    /// Seconds from arrival to the first start.
    pub wait_seconds: Distribution,
    /// Seconds from arrival to end.
    pub completion_seconds: Distribution,
    /// Bounded slowdown.
    pub bounded_slowdown: Distribution,
}

/// The whole summary.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The policy.
    pub policy: String,
    /// Nodes.
    pub nodes: usize,
    /// GPUs.
    pub gpus: f64,
    /// Gangs that arrived.
    pub gangs: usize,
    /// Gangs whose work was done.
    pub ended: usize,
    /// Gangs that ran when the simulation ended.
    pub running: usize,
    /// Gangs that waited when it ended.
    pub waiting: usize,
    /// Seconds from the first arrival to the last end.
    pub makespan_seconds: Seconds,
    /// The fraction of all GPU time that was allocated.
    pub allocation: f64,
    /// The fraction of all GPU time that did useful work: of complete gangs, and not lost.
    pub utilisation: f64,
    /// Allocation from the first arrival to the last one: without the tail in which a finite trace
    /// runs dry. None if all arrive at once.
    pub allocation_while_arriving: Option<f64>,
    /// The fraction of all GPU time that was free on partly used nodes.
    pub fragmentation: f64,
    /// Mean number of waiting gangs.
    pub mean_waiting: f64,
    /// Seconds from arrival to the first start.
    pub wait_seconds: Distribution,
    /// The same for gangs of more than 64 GPUs.
    pub large_wait_seconds: Distribution,
    /// Gangs that had an estimate of their start, and started.
    pub foretold: usize,
    /// The absolute error of those estimates, in seconds.
    pub estimate_error_seconds: Distribution,
    /// The fraction of those gangs that started within the estimated range.
    pub within_estimate: Option<f64>,
    /// Seconds from arrival to end.
    pub completion_seconds: Distribution,
    /// Bounded slowdown.
    pub bounded_slowdown: Distribution,
    /// Jain's index (1 is even) of the waiting queues' allocations per weight, while several
    /// waited.
    pub fairness_of_shares: Option<f64>,
    /// Jain's index of the queues' mean bounded slowdown.
    pub fairness_of_slowdown: Option<f64>,
    /// Pods evicted.
    pub evictions: u64,
    /// How many times gangs had to stop.
    pub preemptions: u64,
    /// GPU-hours of work that had to be repeated.
    pub gpu_hours_lost: f64,
    /// Parts of plans that would have broken an invariant.
    pub violations: u64,
    /// Plans made.
    pub plans: u64,
    /// Pods bound.
    pub binds: u64,
    /// By size.
    pub by_size: Vec<SizeSummary>,
    /// By queue; queues without gangs are left out.
    pub by_queue: Vec<QueueSummary>,
}

fn waits<'a>(gangs: impl Iterator<Item = &'a GangOutcome>) -> Distribution {
    let new = gangs.filter(|gang| !gang.ran_before);
    Distribution::of(
        new.filter_map(|gang| Some((gang.started? - gang.arrived) as f64))
            .collect(),
    )
}

fn completions<'a>(gangs: impl Iterator<Item = &'a GangOutcome>) -> Distribution {
    let new = gangs.filter(|gang| !gang.ran_before);
    Distribution::of(
        new.filter_map(|gang| Some((gang.ended? - gang.arrived) as f64))
            .collect(),
    )
}

fn slowdown(gang: &GangOutcome) -> Option<f64> {
    let completion = gang.ended.filter(|_| !gang.ran_before)? - gang.arrived;
    let run = gang.duration?.max(SHORT);
    Some((completion as f64 / run as f64).max(1.0))
}

fn slowdowns<'a>(gangs: impl Iterator<Item = &'a GangOutcome>) -> Distribution {
    Distribution::of(gangs.filter_map(slowdown).collect())
}

/// Jain's index: 1 when all are equal, 1/n when one has all.
fn jain(values: &[f64]) -> Option<f64> {
    let squares: f64 = values.iter().map(|value| value * value).sum();
    let sum: f64 = values.iter().sum();
    (values.len() > 1 && squares > 0.0).then(|| sum * sum / (values.len() as f64 * squares))
}

impl Summary {
    /// Summarizes an outcome.
    #[must_use]
    pub fn of(outcome: &SimulationOutcome) -> Summary {
        let gangs = &outcome.gangs;
        let part = |point: &Point, value: f64| {
            let all = outcome.gpu_milli as f64 * point.seconds;
            if all > 0.0 { value / all } else { 0.0 }
        };
        let whole = &outcome.whole;
        let lost: i64 = gangs.iter().map(|gang| gang.lost_gpu_seconds).sum();
        let by_size = SIZES.iter().enumerate().filter_map(|(i, (most, name))| {
            let least = if i == 0 { -1 } else { SIZES[i - 1].0 };
            let own = || {
                gangs
                    .iter()
                    .filter(move |gang| gang.gpu_milli > least && gang.gpu_milli <= *most)
            };
            (own().next().is_some()).then(|| SizeSummary {
                size: (*name).to_owned(),
                gangs: own().count(),
                never_started: own().filter(|gang| gang.started.is_none()).count(),
                wait_seconds: waits(own()),
                completion_seconds: completions(own()),
                bounded_slowdown: slowdowns(own()),
            })
        });
        let mut of_queue: Vec<Vec<&GangOutcome>> = vec![Vec::new(); outcome.queues.len()];
        for gang in gangs {
            of_queue[gang.queue].push(gang);
        }
        let by_queue: Vec<QueueSummary> = of_queue
            .into_iter()
            .enumerate()
            .filter(|(_, own)| !own.is_empty())
            .map(|(at, own)| QueueSummary {
                queue: outcome.queues[at].clone(),
                weight: outcome.weights[at],
                gangs: own.len(),
                gpu_hours: whole.queues.get(at).copied().unwrap_or(0.0) / 3.6e6,
                wait_seconds: waits(own.iter().copied()),
                completion_seconds: completions(own.iter().copied()),
                bounded_slowdown: slowdowns(own.iter().copied()),
            })
            .collect();
        let means: Vec<f64> = by_queue
            .iter()
            .filter(|q| q.bounded_slowdown.count > 0)
            .map(|q| q.bounded_slowdown.mean)
            .collect();
        let ended = gangs.iter().filter(|gang| gang.ended.is_some());
        let running = gangs.iter().filter(|gang| {
            gang.ended.is_none() && gang.started.is_some() && gang.verdict.is_none()
        });
        let foretold: Vec<([Seconds; 3], Seconds)> = gangs
            .iter()
            .filter_map(|gang| Some((gang.foretold?, gang.started?)))
            .collect();
        let within = foretold
            .iter()
            .filter(|(estimate, started)| (estimate[0]..=estimate[2]).contains(started))
            .count();
        let (ended_count, running_count) = (ended.clone().count(), running.count());
        Summary {
            policy: outcome.policy.clone(),
            nodes: outcome.nodes,
            gpus: outcome.gpu_milli as f64 / 1000.0,
            gangs: gangs.len(),
            ended: ended_count,
            running: running_count,
            waiting: gangs.len() - ended_count - running_count,
            makespan_seconds: ended
                .filter_map(|gang| gang.ended)
                .max()
                .map_or(0, |last| last - outcome.first),
            allocation: part(whole, whole.held),
            utilisation: part(whole, whole.working - lost as f64 * 1000.0),
            allocation_while_arriving: outcome
                .arriving
                .as_ref()
                .filter(|point| point.seconds > 0.0)
                .map(|point| part(point, point.held)),
            fragmentation: part(whole, whole.stranded),
            mean_waiting: if whole.seconds > 0.0 {
                whole.waiting / whole.seconds
            } else {
                0.0
            },
            wait_seconds: waits(gangs.iter()),
            large_wait_seconds: waits(gangs.iter().filter(|gang| gang.gpu_milli > LARGE_MILLI)),
            foretold: foretold.len(),
            within_estimate: (!foretold.is_empty()).then(|| within as f64 / foretold.len() as f64),
            estimate_error_seconds: Distribution::of(
                foretold
                    .iter()
                    .map(|(estimate, started)| (started - estimate[1]).abs() as f64)
                    .collect(),
            ),
            completion_seconds: completions(gangs.iter()),
            bounded_slowdown: slowdowns(gangs.iter()),
            fairness_of_shares: outcome.fairness,
            fairness_of_slowdown: jain(&means),
            evictions: gangs.iter().map(|gang| u64::from(gang.evictions)).sum(),
            preemptions: gangs.iter().map(|gang| u64::from(gang.interruptions)).sum(),
            gpu_hours_lost: lost as f64 / 3600.0,
            violations: outcome.violations,
            plans: outcome.plans,
            binds: outcome.binds,
            by_size: by_size.collect(),
            by_queue,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let spread = Distribution::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(
            [spread.p50, spread.p95, spread.p99, spread.max],
            [50.0, 95.0, 99.0, 100.0]
        );
        assert_eq!(Distribution::of(vec![3.0]).p50, 3.0);
        assert_eq!(Distribution::of(Vec::new()).count, 0);
    }

    #[test]
    fn jains_index_is_one_when_even_and_one_of_n_when_one_has_all() {
        assert_eq!(jain(&[2.0, 2.0]), Some(1.0));
        assert_eq!(jain(&[4.0, 0.0]), Some(0.5));
        assert_eq!(jain(&[4.0]), None);
    }
}
