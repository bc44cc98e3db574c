//! The conformance cases of other schedulers' suites again, through the files that `muster
//! simulate` reads and the lines that it writes. Every statement of a case must be expressible
//! there, and the expected verdict is the one in the scheduler's own runner.
//!
//! That runner defines the cases, their conversion to objects and the comparison of outcomes; only
//! the engine differs. `MUSTER_CONFORMANCE_ONLY` runs the cases whose id contains it.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

#[path = "../../../scheduler/tests/conformance/asked.rs"]
mod asked;
#[path = "../../../scheduler/tests/conformance/book.rs"]
mod book;
#[path = "../../../scheduler/tests/conformance/cases.rs"]
mod cases;
#[path = "../../../scheduler/tests/conformance/cluster.rs"]
mod cluster;
mod engine;
#[path = "../../../scheduler/tests/conformance/kai/mod.rs"]
mod kai;
#[path = "../../../scheduler/tests/conformance/objects.rs"]
mod objects;
#[path = "../../../scheduler/tests/conformance/preemption.rs"]
mod preemption;
#[path = "../../../scheduler/tests/conformance/tas.rs"]
mod tas;
#[path = "../../../scheduler/tests/conformance/volcano.rs"]
mod volcano;

use cases::{Done, Outcome, SUITES};
use serde_json::Value;
use simulator::read::{InputFile, ReadOptions, read};
use simulator::{SimulationOptions, run};

/// The decision lines that a file leads to.
fn simulate(text: &str, until: i64) -> Vec<Value> {
    let options = ReadOptions {
        start: Some(cluster::start()),
        ..ReadOptions::default()
    };
    let file = "case.yaml";
    let scenario = read(&[InputFile { file, text }], &options).unwrap_or_else(|e| panic!("{e}"));
    let options = SimulationOptions {
        grace: engine::ROUND,
        until: Some(until),
        ..SimulationOptions::default()
    };
    let mut lines = Vec::new();
    let mut record = |decision: &simulator::Decision<'_>| {
        lines.push(serde_json::to_value(decision).unwrap());
    };
    run(&scenario, &options, &mut record).unwrap_or_else(|e| panic!("{e}"));
    lines
}

#[test]
fn every_case_written_as_a_file_ends_as_it_does_without_one() {
    cases::settle_all("do not end as listed");
}

#[test]
fn our_own_cases_written_as_files_end_as_expected() {
    cases::settle_own();
}
