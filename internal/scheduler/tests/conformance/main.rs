//! Scheduling cases taken from other schedulers' own suites, run against this one: each case
//! becomes ordinary objects, a mock cluster carries the plans out, and the outcome is compared
//! as the suites' notes say. The cases themselves are not part of this repository.
//!
//! `MUSTER_CONFORMANCE` names their directory (else `../shared/conformance` beside the
//! workspace). `MUSTER_CONFORMANCE_ONLY` runs the cases whose id contains it, and says more.
//! `MUSTER_CONFORMANCE_EVERY` runs every case in all its variants (minutes).
//! `MUSTER_CONFORMANCE_REPORT` names a file for the list of failures. With
//! `MUSTER_CONFORMANCE_UPDATE=1` the list of expected failures is written again.

mod asked;
mod book;
mod cases;
mod cluster;
mod engine;
mod falsify;
mod kai;
mod mutate;
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

#[test]
fn our_own_cases_of_the_same_rules_end_as_they_ask() {
    cases::settle_own();
}

/// Of the ways to tell cases differently, one in so many, unless every one is asked for.
const SOME: usize = 16;

/// Cases whose answer goes by names: of two nodes alike the first is taken, and the case's own
/// comparison knows them apart.
const BY_NAME: [(&str, &str); 1] = [(
    "kai/cycle/consolidation/consolidation/TestConsolidateIntegrationTest#3",
    "other names",
)];

/// What no answer may depend on: names, the order of lists, units, who takes no part.
#[test]
fn a_case_told_differently_ends_the_same() {
    let (directory, _) = directory();
    let only = std::env::var("MUSTER_CONFORMANCE_ONLY").ok();
    let mut wrong = Vec::new();
    let every = only.is_some() || std::env::var_os("MUSTER_CONFORMANCE_EVERY").is_some();
    let (mut turn, mut told) = (0, 0);
    for (name, run) in SUITES {
        for (id, case) in suite(&directory, name) {
            if only.as_ref().is_some_and(|only| !id.contains(only))
                || matches!(outcome(run, &case), Outcome::Fail(_))
            {
                continue;
            }
            for (what, other) in mutate::all(name, &case) {
                if BY_NAME.contains(&(&*id, what)) {
                    continue;
                }
                turn += 1;
                if !every && turn % SOME != 0 {
                    continue;
                }
                told += 1;
                if let Outcome::Fail(why) = outcome(run, &other) {
                    wrong.push(format!("{id}: {what}: {why}"));
                }
            }
        }
    }
    println!("{told} cases told differently");
    assert!(
        wrong.is_empty(),
        "{} end otherwise:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
