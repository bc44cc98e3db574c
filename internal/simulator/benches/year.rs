//! What simulating costs: `cargo bench -p simulator --bench year -- [POLICY] [SYNTHETIC] [GATHER]`.
//! Without arguments a year of 10,000 GPUs with 200,000 jobs under the production scheduler.

use std::time::Instant;

use simulator::{Options, Policy, Summary, report, run, synthetic};

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
    let options = Options {
        policy,
        gather,
        check: std::env::var_os("CHECK").is_some(),
        reports: false,
        ..Options::default()
    };
    let started = Instant::now();
    let outcome = run(&scenario, &options, &mut |_| {}).expect("a simulation");
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
