//! Scheduling cases taken from other schedulers' own suites, run against this one: each case
//! becomes ordinary objects, a mock cluster carries the plans out, and the outcome is compared
//! as the suites' notes say. The cases themselves are not part of this repository.
//!
//! `MUSTER_CONFORMANCE` names their directory (else `../shared/conformance` beside the
//! workspace). `MUSTER_CONFORMANCE_ONLY` runs the cases whose id contains it, and says more.
//! `MUSTER_CONFORMANCE_REPORT` names a file for the list of failures. With
//! `MUSTER_CONFORMANCE_UPDATE=1` the list of expected failures is written anew.
#![allow(clippy::unwrap_used)]

mod asked;
mod book;
mod cases;
mod cluster;
mod engine;
mod falsify;
mod kai;
mod objects;
mod preemption;
mod tas;
mod volcano;

use cases::{Done, Outcome, SUITES, directory, outcome, suite};

/// The runner bites: what passes no longer does once one of its assertions is turned round.
#[test]
fn a_case_whose_expectation_is_turned_round_fails() {
    let (directory, _) = directory();
    let mut blunt = Vec::new();
    for (name, run) in SUITES {
        for (id, case) in suite(&directory, name) {
            if matches!(outcome(run, &case), Outcome::Fail(_)) {
                continue;
            }
            for (what, turned) in falsify::all(name, &case) {
                if !matches!(outcome(run, &turned), Outcome::Fail(_)) {
                    blunt.push(format!("{id}: {what}"));
                }
            }
        }
    }
    assert!(blunt.is_empty(), "still pass:\n{}", blunt.join("\n"));
}

#[test]
fn every_case_ends_as_its_suite_asks_or_is_listed_with_a_reason() {
    cases::settle_all("are not as listed");
}
