//! Which cases there are, which may fail, and how they went. Two lists are kept beside this
//! file: `differences.txt` (Muster answers differently, for a reason given) and
//! `expected-failures.txt` (not there yet: a case that passes must be taken out).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::{Done, Outcome, SUITES};

/// A suite's cases by id. Titles that occur twice are numbered.
pub fn cases(suite: &str, text: &str) -> Vec<(String, Value)> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let cases = lines.map(|line| {
        let case: Value = serde_json::from_str(line).expect("a case is one JSON object a line");
        let own = case["id"].as_str().map(|id| format!("{suite}/{id}"));
        let id = own.unwrap_or_else(|| {
            let variant = case["variant"].as_str().map(|name| format!("{name}/"));
            let name = case["name"].as_str().unwrap_or_default();
            format!("{suite}/{}{name}", variant.unwrap_or_default())
        });
        let times = seen.entry(id.clone()).or_default();
        *times += 1;
        let id = if *times > 1 {
            format!("{id} (#{times})")
        } else {
            id
        };
        (id, case)
    });
    cases.collect()
}

/// The lists are the scheduler's, whoever runs the cases.
fn list(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../scheduler/tests/conformance")
        .join(name)
}

/// Ids with the reason that follows them, indented.
fn read(name: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(list(name)).unwrap_or_default();
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with(' ') {
            let reason = found.entry(last.clone()).or_default();
            if !reason.is_empty() {
                reason.push(' ');
            }
            reason.push_str(line.trim());
        } else if !line.trim().is_empty() {
            line.clone_into(&mut last);
            found.insert(last.clone(), String::new());
        }
    }
    found
}

/// Prints the table, writes what was asked for, and says what is not as the lists say.
pub fn settle(all: &[Done], whole: bool) -> Vec<String> {
    let differences = read("differences.txt");
    let expected: BTreeSet<String> = read("expected-failures.txt").into_keys().collect();
    println!("{}", table(all, &differences));
    if !whole {
        for done in all {
            println!("{}: {:?}", done.id, done.outcome);
        }
    }
    if let Ok(path) = std::env::var("MUSTER_CONFORMANCE_REPORT") {
        std::fs::write(path, report(all, &differences)).expect("the report can be written");
    }
    if whole && std::env::var("MUSTER_CONFORMANCE_UPDATE").is_ok_and(|value| value == "1") {
        let failing = all
            .iter()
            .filter(|done| failed(done) && !differences.contains_key(&done.id));
        let mut text = String::from("# Cases that do not pass yet, one a line.\n");
        for done in failing {
            text.push_str(&done.id);
            text.push('\n');
        }
        std::fs::write(list("expected-failures.txt"), text).expect("the list can be written");
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for done in all {
        let listed = expected.contains(&done.id) || differences.contains_key(&done.id);
        match &done.outcome {
            Outcome::Fail(why) if !listed => wrong.push(format!("fails: {}: {why}", done.id)),
            Outcome::Pass | Outcome::Noted(_) if listed => {
                wrong.push(format!("passes, so take it out of the list: {}", done.id));
            }
            _ => {}
        }
    }
    if whole {
        let known: BTreeSet<&String> = all.iter().map(|done| &done.id).collect();
        let listed = expected.iter().chain(differences.keys());
        wrong.extend(
            listed
                .filter(|id| !known.contains(id))
                .map(|id| format!("listed, but no such case: {id}")),
        );
        for (id, _) in differences.iter().filter(|(_, reason)| reason.is_empty()) {
            wrong.push(format!("a difference without a reason: {id}"));
        }
    }
    wrong
}

fn failed(done: &Done) -> bool {
    matches!(done.outcome, Outcome::Fail(_))
}

fn table(all: &[Done], differences: &BTreeMap<String, String>) -> String {
    let mut text = String::from(
        "| suite | cases | pass | of these noted | listed difference | fail |\n|---|---|---|---|---|---|\n",
    );
    let mut row = |name: &str, of: Vec<&Done>| {
        let noted = of
            .iter()
            .filter(|done| matches!(done.outcome, Outcome::Noted(_)))
            .count();
        let different = of
            .iter()
            .filter(|done| failed(done) && differences.contains_key(&done.id))
            .count();
        let fail = of.iter().filter(|done| failed(done)).count() - different;
        let pass = of.len() - fail - different;
        let _ = writeln!(
            text,
            "| {name} | {} | {pass} | {noted} | {different} | {fail} |",
            of.len()
        );
    };
    for (suite, _) in SUITES {
        row(
            suite,
            all.iter().filter(|done| done.suite == suite).collect(),
        );
    }
    row("**all**", all.iter().collect());
    text
}

/// Failures by group, a line each.
fn report(all: &[Done], differences: &BTreeMap<String, String>) -> String {
    let mut text = table(all, differences);
    let mut groups: BTreeMap<String, Vec<&Done>> = BTreeMap::new();
    for done in all {
        groups.entry(group(done)).or_default().push(done);
    }
    for (group, of) in groups {
        let failing: Vec<&&Done> = of.iter().filter(|done| failed(done)).collect();
        let _ = writeln!(text, "\n## {group}: {} of {} fail", failing.len(), of.len());
        for done in failing {
            if let Outcome::Fail(why) = &done.outcome {
                let mark = if differences.contains_key(&done.id) {
                    " (listed difference)"
                } else {
                    ""
                };
                let _ = writeln!(text, "- {}{mark}: {why}", done.id);
            }
        }
        for done in &of {
            if let Outcome::Noted(why) = &done.outcome {
                let _ = writeln!(text, "- (passes, noted) {}: {why}", done.id);
            }
        }
    }
    text
}

fn group(done: &Done) -> String {
    let parts: Vec<&str> = done.id.split('/').collect();
    match done.suite {
        "kai" => parts[..parts.len().min(3)].join("/"),
        "kueue-preemption" => parts[..parts.len().min(2)].join("/"),
        suite => suite.to_owned(),
    }
}
