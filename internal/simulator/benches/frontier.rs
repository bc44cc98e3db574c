//! Utilisation against the wait of large gangs, under every policy, on several traces:
//! `cargo bench -p simulator --bench frontier -- [SYNTHETIC...]` (`make bench-frontier`). The same
//! every time. `openb=DIR` adds the trace of that directory (see `read::openb`).

use simulator::read::{ReadOptions, Source, read};
use simulator::{Options, Policy, Scenario, Summary, report, run, synthetic};

/// Each a synthetic scenario: a month of a cluster that keeps up, one that hardly does, and the first
/// without anybody saying how long work takes (the others then know it exactly).
const SCENARIOS: [&str; 3] = [
    "seed=1,jobs=10000,days=30,gpus=1024,load=0.85",
    "seed=2,jobs=10000,days=30,gpus=1024,load=0.95",
    "seed=1,jobs=10000,days=30,gpus=1024,load=0.85,walltimes=0",
];
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
        let sources: Vec<Source<'_>> = names
            .iter()
            .zip(&texts)
            .map(|(file, text)| Source { file, text })
            .collect();
        return read(&sources, &ReadOptions::default()).expect("the trace");
    }
    let made = synthetic::parse(text).expect("a synthetic scenario");
    synthetic::generate(&made).expect("a scenario")
}

fn main() {
    let given: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let texts: Vec<&str> = if given.is_empty() {
        SCENARIOS.to_vec()
    } else {
        given.iter().map(String::as_str).collect()
    };
    let only: Option<Policy> = std::env::var("POLICY")
        .ok()
        .map(|word| word.parse().expect("a policy"));
    for text in texts {
        let scenario = scenario(text);
        let policies = Policy::ALL
            .into_iter()
            .filter(|policy| only.is_none_or(|only| only == *policy));
        let summaries: Vec<Summary> = policies
            .map(|policy| {
                let options = Options {
                    policy,
                    gather: GATHER,
                    check: false,
                    reports: false,
                    ..Options::default()
                };
                let outcome = run(&scenario, &options, &mut |_| {}).expect("a simulation");
                Summary::of(&outcome)
            })
            .collect();
        println!("{}", scenario.name);
        println!("{}", report::frontier(&summaries));
        for summary in &summaries {
            if let Some(within) = summary.within_estimate {
                println!(
                    "{}: {:.1}% of {} that were told a range started within it\n",
                    summary.policy,
                    100.0 * within,
                    summary.foretold
                );
            }
        }
    }
}
