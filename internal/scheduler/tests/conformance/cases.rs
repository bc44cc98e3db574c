//! The suites: where their cases are, what runs one, how a case went. What is right is the
//! suites' own modules'.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{book, kai, preemption, tas, volcano};

/// How a case went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As asked.
    Pass,
    /// Another answer, which the suite's notes call as good or better.
    Noted(String),
    /// Neither.
    Fail(String),
}

/// One case of a suite, and how it went.
pub struct Done {
    /// Its suite.
    pub suite: &'static str,
    /// Its name within all suites.
    pub id: String,
    /// How it went.
    pub outcome: Outcome,
}

/// Where our own cases are, whoever runs them.
const OWN: &str = "../scheduler/tests/conformance/own";

/// What runs a case.
pub type Run = fn(&Value) -> Outcome;

/// The suites: file, and what runs one of its cases.
pub const SUITES: [(&str, Run); 4] = [
    ("kai", kai::run),
    ("kueue-tas", tas::run),
    ("kueue-preemption", preemption::run),
    ("volcano-allocate", volcano::run),
];

/// The cases' directory, and whether it was given by name.
pub fn directory() -> (PathBuf, bool) {
    match std::env::var_os("MUSTER_CONFORMANCE") {
        Some(given) => (PathBuf::from(given), true),
        None => {
            let beside = "../../../shared/conformance";
            (Path::new(env!("CARGO_MANIFEST_DIR")).join(beside), false)
        }
    }
}

/// A suite's cases; none where its file is missing, which is said.
pub fn suite(directory: &Path, suite: &str) -> Vec<(String, Value)> {
    let path = directory.join(format!("{suite}.jsonl"));
    match std::fs::read_to_string(&path) {
        Ok(text) => book::cases(suite, &text),
        Err(error) => {
            println!(
                "skipped: {}: {error} (set MUSTER_CONFORMANCE)",
                path.display()
            );
            Vec::new()
        }
    }
}

pub fn outcome(run: Run, case: &Value) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| run(case)))
        .unwrap_or_else(|panic| Outcome::Fail(format!("panic: {}", words(&*panic))))
}

/// Cases of our own in the suites' form, of rules that their notes have and few of their cases.
pub fn own(name: &str) -> Vec<(String, Value)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(OWN);
    suite(&directory, name)
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "without words".to_owned())
}

/// Runs every case, or those whose id contains `MUSTER_CONFORMANCE_ONLY`, and fails with the
/// `complaint` about those that do not end as listed.
pub fn settle_all(complaint: &str) {
    let (directory, given) = directory();
    let only = std::env::var("MUSTER_CONFORMANCE_ONLY").ok();
    let quiet = only.is_none();
    if quiet {
        std::panic::set_hook(Box::new(|_| {}));
    }
    let mut all = Vec::new();
    for (name, run) in SUITES {
        for (id, case) in suite(&directory, name) {
            if only.as_ref().is_some_and(|only| !id.contains(only)) {
                continue;
            }
            let outcome = outcome(run, &case);
            all.push(Done {
                suite: name,
                id,
                outcome,
            });
        }
    }
    if all.is_empty() {
        return;
    }
    if quiet {
        let _ = std::panic::take_hook();
    }
    let wrong = book::settle(&all, quiet && !given);
    assert!(
        wrong.is_empty(),
        "{} cases {complaint}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Runs our own cases, and fails with those that do not end as they ask.
pub fn settle_own() {
    let only = std::env::var("MUSTER_CONFORMANCE_ONLY").ok();
    let mut wrong = Vec::new();
    for (name, run) in SUITES {
        let cases = own(name);
        assert!(!cases.is_empty(), "no cases of our own for {name}");
        for (id, case) in cases {
            if only.as_ref().is_some_and(|only| !id.contains(only)) {
                continue;
            }
            match outcome(run, &case) {
                Outcome::Pass => {}
                other => wrong.push(format!("{id}: {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
