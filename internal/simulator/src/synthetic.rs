//! A synthetic workload: long large gangs among many small jobs, day and night, by a seed. The
//! shares follow published figures of large clusters: most jobs are small, most GPU time is not.

use std::sync::Arc;

use resources::splitmix::SplitMix;

use crate::error::SimulatorError;
use crate::read::{add_queues, default_start};
use crate::scenario::{Job, JobWork, PodShape, Scenario, Seconds};
use crate::shape;

/// The parameters of the workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    /// The seed: the same seed makes the same scenario.
    pub seed: u64,
    /// Jobs.
    pub jobs: usize,
    /// Days over which they arrive.
    pub days: f64,
    /// GPUs of the cluster, in nodes of 8.
    pub gpus: usize,
    /// Requested GPU time, as a fraction of the cluster's in those days.
    pub load: f64,
    /// Queues.
    pub queues: usize,
    /// Whether jobs request walltimes.
    pub walltimes: bool,
    /// Whether one job in ten has a higher priority than the others.
    pub priorities: bool,
}

impl Default for Synthetic {
    fn default() -> Synthetic {
        Synthetic {
            seed: 1,
            jobs: 10_000,
            days: 30.0,
            gpus: 1024,
            load: 0.85,
            queues: 4,
            walltimes: true,
            priorities: true,
        }
    }
}

/// The frequency of each size, and the duration of such jobs: the median in seconds and the spread
/// of its logarithm.
const SIZES: [(i64, f64, f64, f64); 11] = [
    (1, 0.46, 1500.0, 1.7),
    (2, 0.10, 2400.0, 1.6),
    (4, 0.12, 3600.0, 1.5),
    (8, 0.17, 5400.0, 1.4),
    (16, 0.06, 10_800.0, 1.3),
    (32, 0.04, 18_000.0, 1.2),
    (64, 0.025, 28_800.0, 1.1),
    (128, 0.012, 43_200.0, 1.0),
    (256, 0.008, 64_800.0, 1.0),
    (512, 0.003, 86_400.0, 0.9),
    (1024, 0.002, 129_600.0, 0.8),
];
/// The longest job, seconds.
const LONGEST: f64 = 14.0 * 86_400.0;

/// Reads `seed=1,jobs=200000,days=365,gpus=10000,load=0.85,queues=8`; omitted parameters have their
/// defaults.
pub fn parse(text: &str) -> Result<Synthetic, SimulatorError> {
    let mut made = Synthetic::default();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let refuse = || {
            let valid = "seed=1,jobs=200000,days=365,gpus=10000,load=0.85,queues=8 or a part of it, with gpus at \
                         least 8, jobs 1 to 10000000, days and load above 0, walltimes and priorities 0 or 1";
            SimulatorError::option("--synthetic", part, valid)
        };
        let (name, value) = part.split_once('=').ok_or_else(refuse)?;
        let number: f64 = value
            .parse()
            .ok()
            .filter(|n: &f64| n.is_finite() && *n >= 0.0)
            .ok_or_else(refuse)?;
        let whole = number as usize;
        match name {
            "seed" => made.seed = value.parse().map_err(|_| refuse())?,
            "jobs" if (1..=10_000_000).contains(&whole) => made.jobs = whole,
            "days" if number > 0.0 && number <= 36_500.0 => made.days = number,
            "gpus" if (8..=1_000_000).contains(&whole) => made.gpus = whole,
            "load" if number > 0.0 && number <= 10.0 => made.load = number,
            "walltimes" if whole <= 1 => made.walltimes = whole == 1,
            "priorities" if whole <= 1 => made.priorities = whole == 1,
            "queues" if (1..=1000).contains(&whole) => made.queues = whole,
            _ => return Err(refuse()),
        }
    }
    Ok(made)
}

/// Generates the workload.
pub fn generate(what: &Synthetic) -> Result<Scenario, SimulatorError> {
    let nodes = shape::cluster(
        "--synthetic",
        &format!("{}xhgx-h100", what.gpus.div_ceil(8)),
    )?;
    let mut dice = SplitMix::new(what.seed ^ 0x9e37_79b9_7f4a_7c15);
    let span = what.days * 86_400.0;
    let mut drafts: Vec<(f64, i64, f64)> = Vec::with_capacity(what.jobs);
    let mut asked = 0.0;
    for _ in 0..what.jobs {
        let (gpus, median, spread) = size(&mut dice, what.gpus as i64 / 4);
        let duration = (median * (spread * normal(&mut dice)).exp()).clamp(30.0, LONGEST.min(span));
        asked += gpus as f64 * duration;
        drafts.push((arrival(&mut dice, span), gpus, duration));
    }
    // Durations are scaled so that their total matches the load.
    let stretch = what.load * what.gpus as f64 * span / asked.max(1.0);
    let shapes: Vec<Arc<PodShape>> = [1, 2, 4, 8].map(|gpus| Arc::new(of(gpus))).to_vec();
    drafts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let jobs = drafts
        .into_iter()
        .enumerate()
        .map(|(i, (arrival, gpus, duration))| {
            let duration = (duration * stretch).clamp(10.0, 2.0 * LONGEST).round() as Seconds;
            let queue = (dice.unit() * dice.unit() * what.queues as f64) as usize;
            let shape = match gpus {
                1 => 0,
                2 => 1,
                4 => 2,
                _ => 3,
            };
            // Users request more time than they need, rounded up to hours.
            let walltime = ((duration as f64 * (1.1 + 2.0 * dice.unit() * dice.unit())) / 3600.0)
                .ceil() as Seconds
                * 3600;
            Job {
                namespace: "default".to_owned(),
                name: format!("job-{i:06}"),
                queue: format!("team-{queue}"),
                user: Some(format!("user-{}", (dice.unit() * 200.0) as usize)),
                priority: if dice.unit() < 0.1 && what.priorities {
                    10
                } else {
                    0
                },
                arrival: arrival as Seconds,
                duration: Some(duration),
                walltime: what.walltimes.then_some(walltime),
                elapsed: 0,
                work: JobWork::Shaped(vec![(
                    shapes[shape].clone(),
                    u32::try_from((gpus / 8).max(1)).unwrap_or(1),
                )]),
            }
        });
    let mut scenario = Scenario {
        name: format!(
            "synthetic: seed {}, {} jobs in {} days on {} GPUs, load {}, {} queues{}{}",
            what.seed,
            what.jobs,
            what.days,
            what.gpus,
            what.load,
            what.queues,
            if what.priorities {
                ""
            } else {
                ", all of one priority"
            },
            if what.walltimes { "" } else { ", no walltimes" }
        ),
        start: default_start(),
        nodes,
        jobs: jobs.collect(),
        ..Scenario::default()
    };
    add_queues(&mut scenario);
    Ok(scenario)
}

fn of(gpus: i64) -> PodShape {
    PodShape {
        cpu_milli: gpus * 20_000,
        memory_mib: gpus * 200_000,
        gpus,
        ..PodShape::default()
    }
}

fn size(dice: &mut SplitMix, most: i64) -> (i64, f64, f64) {
    let all: f64 = SIZES.iter().map(|size| size.1).sum();
    let mut left = dice.unit() * all;
    for (gpus, share, median, spread) in SIZES {
        left -= share;
        if left <= 0.0 && gpus <= most.max(1) {
            return (gpus, median, spread);
        }
    }
    (SIZES[0].0, SIZES[0].2, SIZES[0].3)
}

/// Twice as many jobs arrive by day as by night.
fn arrival(dice: &mut SplitMix, span: f64) -> f64 {
    loop {
        let at = dice.unit() * span;
        let day = (at / 86_400.0).fract();
        let wave = 0.75 - 0.25 * (day * std::f64::consts::TAU).cos();
        if dice.unit() < wave {
            return at;
        }
    }
}

/// Normal, by the sum of twelve.
fn normal(dice: &mut SplitMix) -> f64 {
    (0..12).map(|_| dice.unit()).sum::<f64>() - 6.0
}
