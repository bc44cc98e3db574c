//! Notices, silences, repetitions and restarts.

use serde_json::json;

use super::*;
use crate::conditions::{Subject, SubjectKind};
use crate::receivers;
use crate::rule::Rule;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn lost(name: &str) -> Condition {
    Condition {
        rule: Rule::NodeLost,
        subject: Subject {
            kind: SubjectKind::Node,
            name: name.to_owned(),
        },
        since: Some(at(0)),
        message: format!("the agent of node {name} does not answer"),
    }
}

fn receivers(kinds: &[&str]) -> Vec<Receiver> {
    let one = |kind: &&str| {
        format!(
            "[[receiver]]\nname = \"{kind}\"\nkind = \"{kind}\"\nurl = \"https://host.example/{kind}\"\n"
        )
    };
    receivers::read(&kinds.iter().map(one).collect::<String>()).unwrap()
}

fn alerts(kinds: &[&str]) -> Alerts {
    let url = "https://muster.example".to_owned();
    Alerts::restore(AlertsState::default(), receivers(kinds), url)
}

/// The documents that are due, all delivered.
fn delivered(alerts: &mut Alerts, now: i64) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    loop {
        let due = alerts.take_due(at(now));
        if due.is_empty() {
            return all;
        }
        for one in due {
            alerts.settle(&one.receiver.name, Ok(()), at(now));
            all.push((one.receiver.name, one.body));
        }
    }
}

#[test]
fn each_kind_of_receiver_gets_its_own_document_of_beginning_and_end() {
    let mut alerts = alerts(&["webhook", "slack", "alertmanager"]);
    alerts.observe(vec![lost("gpu7")], at(10));
    let begun = delivered(&mut alerts, 10);
    let names: Vec<&str> = begun.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["webhook", "slack", "alertmanager"]);
    let (hook, chat, manager) = (&begun[0].1, &begun[1].1, &begun[2].1);
    assert_eq!(hook["version"], "4");
    assert_eq!(hook["status"], "firing");
    assert_eq!(
        hook["alerts"][0]["labels"],
        json!({"alertname": "NodeLost", "severity": "critical", "job": "muster", "node": "gpu7"})
    );
    assert_eq!(hook["alerts"][0]["startsAt"], "1970-01-01T00:00:00Z");
    assert_eq!(hook["alerts"][0]["endsAt"], "0001-01-01T00:00:00Z");
    let text = chat["text"].as_str().unwrap();
    assert!(
        text.starts_with("[CRITICAL] NodeLost: the agent of node gpu7 does not answer. Look at"),
        "{text}"
    );
    assert!(text.ends_with("https://muster.example/ui/"), "{text}");
    assert_eq!(manager[0]["labels"]["alertname"], "NodeLost");
    assert_eq!(manager[0].get("endsAt"), None);

    alerts.observe(vec![], at(11));
    alerts.observe(vec![], at(71));
    let ended = delivered(&mut alerts, 71);
    assert_eq!(ended[0].1["status"], "resolved");
    assert_eq!(ended[0].1["alerts"][0]["endsAt"], "1970-01-01T00:01:11Z");
    // The same alert has the same fingerprint at its end.
    assert_eq!(
        ended[0].1["alerts"][0]["fingerprint"],
        hook["alerts"][0]["fingerprint"]
    );
    assert!(
        ended[1].1["text"]
            .as_str()
            .unwrap()
            .starts_with("[RESOLVED] NodeLost")
    );
    // The repetition for Alertmanager came before the end was known.
    let last = ended
        .iter()
        .rev()
        .find(|(name, _)| name == "alertmanager")
        .unwrap();
    assert_eq!(last.1[0]["endsAt"], "1970-01-01T00:01:11Z");
}

#[test]
fn alertmanager_is_told_again_each_minute_and_others_once() {
    let mut alerts = alerts(&["webhook", "alertmanager"]);
    let mut told = Vec::new();
    for second in (0..200).step_by(10) {
        alerts.observe(vec![lost("gpu7")], at(second));
        told.extend(
            delivered(&mut alerts, second)
                .into_iter()
                .map(|(name, _)| (second, name)),
        );
    }
    let of = |name: &str| -> Vec<i64> {
        let own = told.iter().filter(|(_, one)| one == name);
        own.map(|(second, _)| *second).collect()
    };
    assert_eq!(of("webhook"), [0]);
    assert_eq!(of("alertmanager"), [0, 60, 120, 180]);
}

#[test]
fn a_silenced_alert_is_told_when_its_silence_ends_before_it() {
    let mut alerts = alerts(&["slack"]);
    let request = SilenceRequest {
        on: Some("gpu7".to_owned()),
        seconds: 100,
        comment: "a new fan".to_owned(),
        ..SilenceRequest::default()
    };
    let silence = alerts.silence(&request, "admin", at(0)).unwrap();
    alerts.observe(vec![lost("gpu7"), lost("gpu8")], at(10));
    let told = delivered(&mut alerts, 10);
    assert_eq!(told.len(), 1);
    let text = told[0].1["text"].as_str().unwrap();
    assert!(text.contains("gpu8") && !text.contains("gpu7"), "{text}");
    let shown: Vec<(String, bool)> = alerts
        .firing(at(10))
        .map(|(one, silenced)| (one.subject.name.clone(), silenced))
        .collect();
    assert_eq!(
        shown,
        [("gpu7".to_owned(), true), ("gpu8".to_owned(), false)]
    );
    assert!(delivered(&mut alerts, 99).is_empty());
    alerts.observe(vec![lost("gpu7"), lost("gpu8")], at(100));
    let told = delivered(&mut alerts, 100);
    assert!(told[0].1["text"].as_str().unwrap().contains("gpu7"));
    assert!(!alerts.end_silence(silence.id), "it has ended by itself");

    // Both end.
    alerts.observe(vec![], at(110));
    alerts.observe(vec![], at(170));
    assert_eq!(delivered(&mut alerts, 170).len(), 1);

    // An alert that begins and ends within its silence is told at no time.
    alerts.silence(&request, "admin", at(200)).unwrap();
    alerts.observe(vec![lost("gpu7")], at(210));
    alerts.observe(vec![], at(220));
    alerts.observe(vec![], at(280));
    assert_eq!(delivered(&mut alerts, 280), []);
}

#[test]
fn a_restart_neither_repeats_nor_forgets() {
    let mut alerts = alerts(&["slack", "webhook"]);
    alerts.observe(vec![lost("gpu7")], at(0));
    // The webhook has it, the chat does not.
    for one in alerts.take_due(at(0)) {
        let taken = match one.receiver.name.as_str() {
            "slack" => Err("503".to_owned()),
            _ => Ok(()),
        };
        alerts.settle(&one.receiver.name, taken, at(0));
    }
    let state = alerts.take_changes().unwrap();
    assert!(alerts.take_changes().is_none());
    let stored = serde_json::to_string(&state).unwrap();
    let state: AlertsState = serde_json::from_str(&stored).unwrap();
    let mut alerts = Alerts::restore(state, receivers(&["slack", "webhook"]), String::new());
    alerts.observe(vec![lost("gpu7")], at(20));
    let told = delivered(&mut alerts, 20);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].0, "slack");
    let report = alerts.receivers(at(20));
    assert_eq!(report[1].deliveries[0].alerts, ["NodeLost gpu7 firing"]);
    assert!(!report[1].deliveries[0].waits);
}

#[test]
fn a_test_goes_to_one_receiver_and_an_unknown_one_is_refused_with_the_known_names() {
    let mut alerts = alerts(&["slack", "webhook"]);
    let id = alerts.test("slack", at(0)).unwrap();
    let told = delivered(&mut alerts, 0);
    assert_eq!(told.len(), 1);
    assert!(
        told[0].1["text"]
            .as_str()
            .unwrap()
            .contains("this is a test of the receiver")
    );
    assert_eq!(alerts.receivers(at(0))[0].deliveries[0].id, id);
    assert_eq!(alerts.receivers(at(0))[0].deliveries[0].alerts, ["test"]);
    let error = alerts.test("mail", at(0)).unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no receiver \"mail\"; the receivers are slack, webhook"
    );
    let error = Alerts::default()
        .test("mail", at(0))
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("none; name them in the file of --alert-receivers"),
        "{error}"
    );
}

#[test]
fn a_silence_is_refused_with_the_field_and_the_valid_form() {
    let mut alerts = Alerts::default();
    let request = |rule: Option<&str>, on: Option<&str>, seconds: i64| SilenceRequest {
        rule: rule.map(str::to_owned),
        on: on.map(str::to_owned),
        seconds,
        comment: String::new(),
    };
    for (asked, words) in [
        (request(None, None, 60), "a silence needs rule, on, or both"),
        (
            request(Some("Node"), None, 60),
            "rule: there is no rule \"Node\"",
        ),
        (
            request(Some("NodeLost"), None, 0),
            "seconds: 0 is not between 1 and 2592000 (30 days)",
        ),
        (
            request(Some("NodeLost"), None, i64::MAX),
            "is not between 1 and 2592000",
        ),
        (
            request(None, Some(&"x".repeat(257)), 60),
            "on: at most 256 bytes",
        ),
    ] {
        let error = alerts
            .silence(&asked, "admin", at(0))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{error} does not contain {words}");
    }
    for _ in 0..SILENCES_MAX {
        alerts
            .silence(&request(Some("GpuHot"), None, 60), "admin", at(0))
            .unwrap();
    }
    let error = alerts
        .silence(&request(Some("GpuHot"), None, 60), "admin", at(0))
        .unwrap_err();
    assert_eq!(error, SilenceError::TooMany);
    // Silences that have ended make room.
    assert!(
        alerts
            .silence(&request(Some("GpuHot"), None, 60), "admin", at(60))
            .is_ok()
    );
}
