//! Every bug of the list of planted bugs can be planted. Whether a test fails for each of them is
//! checked by `make mutants`, which takes minutes.

#[path = "../mutants/list.rs"]
mod list;

use std::path::Path;

#[test]
fn every_planted_bug_still_has_its_place_and_its_test() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for mutant in list::MUTANTS {
        let text = std::fs::read_to_string(here.join(mutant.file)).unwrap();
        let times = text.matches(mutant.find).count();
        assert_eq!(
            times, 1,
            "{:?} of internal/scheduler/mutants/list.rs stands {times} times in {}: say there \
             how the same bug is planted now, and run `make mutants`",
            mutant.find, mutant.file
        );
        assert_ne!(mutant.find, mutant.replace);
        let (binary, test) = mutant.test;
        let text = std::fs::read_to_string(here.join(format!("tests/{binary}.rs"))).unwrap();
        assert!(
            text.contains(&format!("fn {test}(")),
            "{binary} has no test {test}"
        );
    }
}

#[test]
fn every_property_of_plans_has_a_planted_bug() {
    for word in [
        "all or nothing",
        "capacity",
        "by itself",
        "quota",
        "guarantees",
        "work conservation",
        "planning twice",
        "same input",
        "built from scratch",
        "victim set is minimal",
        "come to rest",
        "backfill",
        "estimates",
        "promises",
    ] {
        let found = list::MUTANTS
            .iter()
            .any(|mutant| mutant.property.contains(word));
        assert!(found, "no bug is planted against: {word}");
    }
}
