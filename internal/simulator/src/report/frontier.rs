//! Utilisation against its cost for waiting gangs: the figures of each policy, over one run or the
//! mean of several, and which policies dominate it.

use crate::report::text::table;
use crate::report::{percent, span};
use crate::summary::Summary;

/// The figures of a policy in one run, or the mean of several.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyFigures {
    /// The policy.
    pub policy: String,
    /// The fraction of all GPU time that did useful work.
    pub utilisation: f64,
    /// Allocation while work arrives; none if all arrives at once.
    pub while_arriving: Option<f64>,
    /// Mean time from arrival to end, seconds.
    pub completion_mean: f64,
    /// Its 95th percentile.
    pub completion_p95: f64,
    /// The median wait of gangs above 64 GPUs, seconds.
    pub large_wait_p50: f64,
    /// Its 95th percentile.
    pub large_wait_p95: f64,
    /// Jain's index of the waiting queues' allocations per weight; none with a single queue.
    pub fairness: Option<f64>,
    /// GPU-hours of work that had to be repeated.
    pub lost: f64,
}

impl From<&Summary> for PolicyFigures {
    fn from(summary: &Summary) -> PolicyFigures {
        PolicyFigures {
            policy: summary.policy.clone(),
            utilisation: summary.utilisation,
            while_arriving: summary.allocation_while_arriving,
            completion_mean: summary.completion_seconds.mean,
            completion_p95: summary.completion_seconds.p95,
            large_wait_p50: summary.large_wait_seconds.p50,
            large_wait_p95: summary.large_wait_seconds.p95,
            fairness: summary.fairness_of_shares,
            lost: summary.gpu_hours_lost,
        }
    }
}

impl PolicyFigures {
    /// The mean of each figure over runs of one policy that differ only in their seed: a month's
    /// run has so few large gangs that its percentile is not significant. None without runs.
    #[must_use]
    pub fn mean(runs: &[PolicyFigures]) -> Option<PolicyFigures> {
        let first = runs.first()?;
        let of = |figure: &dyn Fn(&PolicyFigures) -> f64| {
            runs.iter().map(figure).sum::<f64>() / runs.len() as f64
        };
        let of_known = |figure: &dyn Fn(&PolicyFigures) -> Option<f64>| {
            let known: Option<Vec<f64>> = runs.iter().map(figure).collect();
            known.map(|known| known.iter().sum::<f64>() / known.len() as f64)
        };
        Some(PolicyFigures {
            policy: first.policy.clone(),
            utilisation: of(&|run| run.utilisation),
            while_arriving: of_known(&|run| run.while_arriving),
            completion_mean: of(&|run| run.completion_mean),
            completion_p95: of(&|run| run.completion_p95),
            large_wait_p50: of(&|run| run.large_wait_p50),
            large_wait_p95: of(&|run| run.large_wait_p95),
            fairness: of_known(&|run| run.fairness),
            lost: of(&|run| run.lost),
        })
    }

    /// Whether it dominates the other: no less utilisation, no longer a wait of large gangs, and at
    /// least one of both strictly better.
    #[must_use]
    pub fn beats(&self, other: &PolicyFigures) -> bool {
        let used = self.utilisation - other.utilisation;
        let waited = other.large_wait_p95 - self.large_wait_p95;
        used >= 0.0 && waited >= 0.0 && used + waited > 0.0
    }
}

/// One line a policy.
#[must_use]
pub fn frontier(standings: &[PolicyFigures]) -> String {
    let header = [
        "policy",
        "utilisation",
        "while arriving",
        "JCT mean",
        "JCT p95",
        "wait above 64 GPUs: median",
        "p95",
        "fairness",
        "GPU-hours lost",
        "beaten by",
    ]
    .map(str::to_owned);
    let beaten = |one: &PolicyFigures| {
        let by = standings.iter().filter(|other| other.beats(one));
        let by: Vec<&str> = by.map(|other| other.policy.as_str()).collect();
        if by.is_empty() {
            "no policy".to_owned()
        } else {
            by.join(", ")
        }
    };
    let known = |figure: Option<String>| figure.unwrap_or("-".to_owned());
    let rows: Vec<Vec<String>> = standings
        .iter()
        .map(|one| {
            vec![
                one.policy.clone(),
                percent(one.utilisation),
                known(one.while_arriving.map(percent)),
                span(one.completion_mean),
                span(one.completion_p95),
                span(one.large_wait_p50),
                span(one.large_wait_p95),
                known(one.fairness.map(|value| format!("{value:.3}"))),
                format!("{:.0}", one.lost),
                beaten(one),
            ]
        })
        .collect();
    table(&header, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(policy: &str, utilisation: f64, waits: f64) -> PolicyFigures {
        PolicyFigures {
            policy: policy.to_owned(),
            utilisation,
            while_arriving: Some(utilisation),
            completion_mean: 60.0,
            completion_p95: 120.0,
            large_wait_p50: waits / 2.0,
            large_wait_p95: waits,
            fairness: None,
            lost: 0.0,
        }
    }

    #[test]
    fn a_policy_is_dominated_only_if_it_is_worse_in_both_figures() {
        let all = [
            standing("busy", 0.9, 7200.0),
            standing("quick", 0.8, 3600.0),
            standing("neither", 0.8, 7200.0),
        ];
        let text = frontier(&all);
        let last = |policy: &str| {
            let line = text.lines().find(|line| line.starts_with(policy));
            let words = line.unwrap_or_default().split("  ").last();
            words.unwrap_or_default().trim().to_owned()
        };
        assert_eq!(last("busy"), "no policy");
        assert_eq!(last("quick"), "no policy");
        assert_eq!(last("neither"), "busy, quick");
        assert!(!all[0].beats(&all[0]));
    }

    #[test]
    fn a_mean_covers_all_runs_and_is_absent_if_one_run_lacks_the_figure() {
        let mut runs = [standing("one", 0.8, 3600.0), standing("one", 0.9, 7200.0)];
        let mean = PolicyFigures::mean(&runs).unwrap();
        assert!((mean.utilisation - 0.85).abs() < 1e-9);
        assert!((mean.large_wait_p95 - 5400.0).abs() < 1e-9);
        assert!(mean.while_arriving.is_some());
        runs[1].while_arriving = None;
        assert!(PolicyFigures::mean(&runs).unwrap().while_arriving.is_none());
        assert!(PolicyFigures::mean(&[]).is_none());
    }
}
