//! Utilisation against the wait of large gangs, under every policy, on several kinds of load:
//! `cargo bench -p simulator --bench frontier -- [SYNTHETIC...]` (`make bench-frontier`). The
//! results are deterministic. A load without a seed is run with each of `SEEDS`, and the means are
//! shown: one month has too few large gangs to be significant. `openb=DIR` is the trace of that
//! directory (see `read::openb`). `POLICY=` selects one policy.

use simulator::read::{InputFile, ReadOptions, read};
use simulator::report::{PolicyFigures, frontier};
use simulator::{Policy, Scenario, SimulationOptions, Summary, run, synthetic};

/// The loads, a month each. First a cluster with spare capacity, then a nearly saturated one. Then
/// a nearly saturated one with a single queue and priority, where the production scheduler has no
/// queues or priorities to honour that the reference schedulers ignore. Last the first load without
/// walltimes (the reference schedulers then know the durations exactly).
const LOADS: [&str; 4] = [
    "jobs=10000,days=30,gpus=1024,load=0.85",
    "jobs=10000,days=30,gpus=1024,load=0.95",
    "jobs=10000,days=30,gpus=1024,load=0.95,queues=1,priorities=0",
    "jobs=10000,days=30,gpus=1024,load=0.85,walltimes=0",
];
/// The seeds of each load.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=8;
/// Plans are made at most this often, seconds.
const GATHER: i64 = 30;

fn scenario(text: &str) -> Scenario {
    if let Some(directory) = text.strip_prefix("openb=") {
        let file = |name: &str| {
            let path = format!("{directory}/{name}");
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        let names = [
            "nodes/openb_node_list_gpu_node.csv",
            "pods/openb_pod_list_default.csv",
        ];
        let texts = names.map(file);
        let sources: Vec<InputFile<'_>> = names
            .iter()
            .zip(&texts)
            .map(|(file, text)| InputFile { file, text })
            .collect();
        return read(&sources, &ReadOptions::default()).expect("the trace");
    }
    let made = synthetic::parse(text).expect("a synthetic scenario");
    synthetic::generate(&made).expect("a scenario")
}

/// The scenarios of a load: a single one, or one per seed.
fn scenarios(text: &str) -> Vec<Scenario> {
    if text.contains("seed=") || text.starts_with("openb=") {
        return vec![scenario(text)];
    }
    let seeded = SEEDS.map(|seed| scenario(&format!("seed={seed},{text}")));
    seeded.collect()
}

fn summary(scenario: &Scenario, policy: Policy) -> Summary {
    let options = SimulationOptions {
        policy,
        gather: GATHER,
        check: false,
        reports: false,
        ..SimulationOptions::default()
    };
    Summary::of(&run(scenario, &options, &mut |_| {}).expect("a simulation"))
}

fn main() {
    let given: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let texts: Vec<&str> = if given.is_empty() {
        LOADS.to_vec()
    } else {
        given.iter().map(String::as_str).collect()
    };
    let only: Option<Policy> = std::env::var("POLICY")
        .ok()
        .map(|word| word.parse().expect("a policy"));
    for text in texts {
        let scenarios = scenarios(text);
        let mut standings = Vec::new();
        let mut notes = Vec::new();
        for policy in Policy::ALL {
            if only.is_some_and(|only| only != policy) {
                continue;
            }
            let runs: Vec<Summary> = scenarios.iter().map(|one| summary(one, policy)).collect();
            let stands: Vec<PolicyFigures> = runs.iter().map(PolicyFigures::from).collect();
            standings.extend(PolicyFigures::mean(&stands));
            let waits: Vec<String> = stands
                .iter()
                .map(|run| format!("{:.0}", run.large_wait_p95 / 3600.0))
                .collect();
            notes.push(format!(
                "{policy}: p95 wait above 64 GPUs by run, hours: {}",
                waits.join(" ")
            ));
            let foretold: usize = runs.iter().map(|run| run.foretold).sum();
            let within = runs.iter().map(|run| {
                let part = run.within_estimate.unwrap_or_default();
                part * run.foretold as f64
            });
            if foretold > 0 {
                let part = 100.0 * within.sum::<f64>() / foretold as f64;
                notes.push(format!(
                    "{policy}: {part:.1}% of {foretold} that were told a range started within it"
                ));
            }
        }
        let runs = scenarios.len();
        println!(
            "{text}: the mean of {runs} run(s)\n{}",
            frontier(&standings)
        );
        println!("{}\n", notes.join("\n"));
    }
}
