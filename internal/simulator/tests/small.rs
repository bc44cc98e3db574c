//! One small cluster from a manifest to the report: start times and messages.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use simulator::read::{InputFile, ReadOptions, read};
use simulator::{Policy, SimulationOptions, SimulationOutcome, Summary, report, run, what_if};

const TEXT: &str = include_str!("small.yaml");

fn simulate(
    options: &SimulationOptions,
    changes: &[&str],
) -> (SimulationOutcome, Vec<serde_json::Value>) {
    let source = InputFile {
        file: "small.yaml",
        text: TEXT,
    };
    let mut scenario = read(&[source], &ReadOptions::default()).unwrap();
    for text in changes {
        what_if::change(text).unwrap().apply(&mut scenario).unwrap();
    }
    let mut lines = Vec::new();
    let outcome = run(&scenario, options, &mut |decision| {
        lines.push(serde_json::to_value(decision).unwrap())
    });
    (outcome.unwrap(), lines)
}

#[test]
fn each_piece_of_work_starts_and_ends_when_it_should() {
    let (outcome, lines) = simulate(&SimulationOptions::default(), &[]);
    let facts: Vec<_> = outcome
        .gangs
        .iter()
        .map(|gang| {
            (
                gang.name
                    .split("-l")
                    .next()
                    .unwrap()
                    .chars()
                    .take(if gang.name.starts_with("sweep") { 6 } else { 7 })
                    .collect::<String>(),
                gang.arrived,
                gang.started,
                gang.ended,
            )
        })
        .collect();
    let facts: Vec<_> = facts
        .iter()
        .map(|(name, a, s, e)| (name.as_str(), *a, *s, *e))
        .collect();
    assert_eq!(
        facts,
        [
            ("runs", 0, Some(0), Some(600)),
            ("too", 10, None, None),
            ("large", 60, Some(600), Some(2400)),
            // Three pods of a sweep, two at a time.
            ("sweep-", 3000, Some(3000), Some(3100)),
            ("sweep-", 3000, Some(3000), Some(3100)),
            ("sweep-", 3100, Some(3100), Some(3200)),
            ("guest-1", 4000, Some(4000), Some(4050)),
            // The namespace's quota admits it when the other has ended.
            ("guest-2", 4010, Some(4050), Some(4100)),
        ]
    );
    let said: Vec<String> = lines
        .iter()
        .filter(|line| line["decision"] == "pending")
        .map(|line| {
            format!(
                "{} {} {}",
                line["second"],
                line["group"].as_str().unwrap(),
                line["report"]["verdict"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(
        said,
        [
            "10 too-large NoNodeFits",
            "60 large InsufficientResources",
            "4010 guest-2 QuotaExceeded"
        ]
    );
    let quota = lines
        .iter()
        .find(|line| line["group"] == "guest-2")
        .unwrap();
    assert!(
        quota["report"]["binding"]
            .as_str()
            .unwrap()
            .contains("quota small of namespace guests allows requests.nvidia.com/gpu: 2")
    );
}

#[test]
fn one_more_node_lets_the_large_one_start_at_once() {
    let (outcome, _) = simulate(&SimulationOptions::default(), &["add-nodes=1xn2"]);
    let large = outcome
        .gangs
        .iter()
        .find(|gang| gang.name == "large")
        .unwrap();
    assert_eq!(large.started, Some(60));
}

#[test]
fn the_report_holds_every_policy_and_needs_nothing_else() {
    let mut results = Vec::new();
    for policy in Policy::ALL {
        let (outcome, _) = simulate(
            &SimulationOptions {
                policy,
                ..SimulationOptions::default()
            },
            &[],
        );
        results.push((Summary::of(&outcome), outcome));
    }
    let page = report::html("a <small> one", &["a note".to_owned()], &results);
    assert!(page.contains("a &lt;small&gt; one") && !page.contains("<small>"));
    for word in ["http", "<script", "src=", "NaN", "inf"] {
        assert!(!page.contains(word), "the page has {word}");
    }
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    let summaries: Vec<Summary> = results.into_iter().map(|(summary, _)| summary).collect();
    let text = report::text("small", &[], &summaries);
    for policy in Policy::ALL {
        assert!(page.contains(policy.name()) && text.contains(policy.name()));
    }
    assert!(text.contains("frontier"));
    let json = serde_json::to_value(&summaries[0]).unwrap();
    assert_eq!(json["ended"], 7);
    assert_eq!(json["waiting"], 1);
}
