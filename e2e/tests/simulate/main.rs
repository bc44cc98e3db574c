//! `muster simulate`, the program itself: its input, its output, its errors. Some cases of other
//! schedulers' suites go through its files and lines too.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../internal/scheduler/tests/conformance/asked.rs"]
mod asked;
#[path = "../../../internal/scheduler/tests/conformance/cluster.rs"]
mod cluster;
#[path = "../../../internal/simulator/tests/conformance/engine.rs"]
mod engine;
mod flows;
#[path = "../../../internal/scheduler/tests/conformance/kai/mod.rs"]
mod kai;
#[path = "../../../internal/scheduler/tests/conformance/objects.rs"]
mod objects;
#[path = "../../../internal/scheduler/tests/conformance/preemption.rs"]
mod preemption;
#[path = "../../../internal/scheduler/tests/conformance/tas.rs"]
mod tas;
#[path = "../../../internal/scheduler/tests/conformance/volcano.rs"]
mod volcano;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

use e2e::{muster, repository};
use serde_json::Value;

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As expected.
    Pass,
    /// Another answer, which the suite's notes accept as equal or better.
    Noted(String),
    /// Neither.
    Fail(String),
}

/// Of each suite, one case in this many.
const EVERY: usize = 17;

/// Runs the program on a text from standard input: standard output, standard error, status.
fn piped(text: &str, arguments: &[&str]) -> (String, String, Option<i32>) {
    let mut child = Command::new(muster())
        .arg("simulate")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut input = child.stdin.take().expect("it has an input");
    input
        .write_all(text.as_bytes())
        .expect("it reads its input");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        words(&output.stdout),
        words(&output.stderr),
        output.status.code(),
    )
}

/// The lines of decisions that a file leads to.
fn simulate(text: &str, until: i64) -> Vec<Value> {
    let start = cluster::start().to_string();
    let (grace, until) = (format!("{}s", engine::ROUND), format!("{until}s"));
    let arguments = [
        "-",
        "--format",
        "objects",
        "--start",
        &start,
        "--grace",
        &grace,
        "--until",
        &until,
        "--decisions",
        "-",
        "--output",
        "none",
    ];
    let (out, err, code) = piped(text, &arguments);
    assert_eq!(code, Some(0), "{err}");
    let lines = out
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"));
    lines.collect()
}

/// A suite's name, and the function that runs one of its cases.
type Suite = (&'static str, fn(&Value) -> Outcome);

#[test]
fn a_handful_of_every_suites_cases_ends_as_listed() {
    let directory = std::env::var_os("MUSTER_CONFORMANCE").map_or_else(
        || repository().join("../shared/conformance"),
        std::path::PathBuf::from,
    );
    let lists = repository().join("internal/scheduler/tests/conformance");
    let listed: BTreeSet<String> = ["differences.txt", "expected-failures.txt"]
        .iter()
        .flat_map(|name| {
            let text = std::fs::read_to_string(lists.join(name)).unwrap();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let suites: [Suite; 4] = [
        ("kai", kai::run),
        ("kueue-tas", tas::run),
        ("kueue-preemption", preemption::run),
        ("volcano-allocate", volcano::run),
    ];
    let mut wrong = Vec::new();
    for (suite, run) in suites {
        let Ok(text) = std::fs::read_to_string(directory.join(format!("{suite}.jsonl"))) else {
            println!("skipped: {suite} is not in {}", directory.display());
            continue;
        };
        for line in text.lines().step_by(EVERY) {
            let case: Value = serde_json::from_str(line).unwrap();
            let name = case["id"].as_str().or(case["name"].as_str()).unwrap();
            let failed = match run(&case) {
                Outcome::Fail(why) => Some(why),
                _ => None,
            };
            // Suites with variants have these in the lists too.
            let known = listed
                .iter()
                .any(|id| id.starts_with(suite) && id.ends_with(name));
            if failed.is_some() != known {
                wrong.push(format!("{suite}/{name}: {failed:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
