//! The cost of a simulation: `cargo bench -p simulator --bench year -- [POLICY] [SYNTHETIC]
//! [GATHER]`. Without arguments a year of 10,000 GPUs with 200,000 jobs under the production
//! scheduler. `CHECK=1` checks every plan against the invariants; `DECISIONS=FILE` writes the same
//! as `muster simulate --decisions`, to verify that a change alters no decision.

use std::io::{BufWriter, Write};
use std::time::Instant;

use simulator::{Decision, Policy, SimulationOptions, Summary, report, run, synthetic};

/// The allocator of `muster simulate`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"));
    let policy: Policy = arguments
        .next()
        .map_or(Policy::Muster, |word| word.parse().expect("a policy"));
    let what = arguments
        .next()
        .unwrap_or_else(|| "jobs=200000,days=365,gpus=10000,load=0.85,queues=8".to_owned());
    let gather = arguments
        .next()
        .map_or(60, |word| word.parse().expect("seconds"));
    let started = Instant::now();
    let made = synthetic::parse(&what).expect("a synthetic scenario");
    let scenario = synthetic::generate(&made).expect("a scenario");
    let generated = started.elapsed();
    let mut decisions = std::env::var_os("DECISIONS")
        .map(|path| BufWriter::new(std::fs::File::create(path).expect("a file to write to")));
    let options = SimulationOptions {
        policy,
        gather,
        check: std::env::var_os("CHECK").is_some(),
        reports: decisions.is_some(),
        ..SimulationOptions::default()
    };
    let started = Instant::now();
    let mut record = |decision: &Decision<'_>| {
        if let Some(file) = &mut decisions {
            serde_json::to_writer(&mut *file, decision).expect("a line");
            file.write_all(b"\n").expect("a line");
        }
    };
    let outcome = run(&scenario, &options, &mut record).expect("a simulation");
    let took = started.elapsed();
    let summary = Summary::of(&outcome);
    println!(
        "{}",
        report::text(
            &scenario.name,
            &scenario.notes,
            std::slice::from_ref(&summary)
        )
    );
    println!(
        "made in {generated:.2?}, simulated in {took:.2?}: {} plans ({:.1} us each), {} pods bound",
        summary.plans,
        took.as_secs_f64() * 1e6 / summary.plans.max(1) as f64,
        summary.binds
    );
}
