//! GPUs cut for gangs that wait for slices, and made whole again: which nodes, when, and what the reports say.

mod support;

use jiff::{SignedDuration, Timestamp};
use scheduler::{Config, Event, Plan, RepartitionBudget, Scheduler};
use serde_json::{Value, json};
use support::*;

const SMALL: &str = "nvidia.com/mig-1g.10gb";

/// What a node says of its GPUs: the label, its state, what was chosen, and what it has to give.
#[derive(Clone, Default)]
struct Says {
    asked: Option<&'static str>,
    state: Option<&'static str>,
    choice: Option<String>,
    small: i64,
    gpus: i64,
}

fn says(name: &str, of: &Says) -> Event {
    node_with(name, of.gpus, |node| {
        let meta = &mut node["metadata"];
        meta["annotations"]["muster.io/mig-configurations"] = json!(
            json!({"all-1g.10gb": {SMALL: 14}, "all-disabled": {"nvidia.com/gpu": 2}}).to_string()
        );
        if let Some(choice) = &of.choice {
            meta["annotations"]["muster.io/mig-choice"] = json!(choice);
        }
        for (label, value) in [
            ("nvidia.com/mig.config", of.asked),
            ("nvidia.com/mig.config.state", of.state),
        ] {
            if let Some(value) = value {
                meta["labels"][label] = json!(value);
            }
        }
        node["status"]["allocatable"][SMALL] = json!(of.small.to_string());
    })
}

fn whole() -> Says {
    Says {
        gpus: 2,
        ..Says::default()
    }
}

/// A pod that came at the beginning and asks for so much.
fn asks(name: &str, resource: &'static str, count: &'static str) -> Event {
    pod_with(name, None, 0, move |pod: &mut Value| {
        pod["metadata"]["creationTimestamp"] = json!(now().to_string());
        let list = &mut pod["spec"]["containers"][0]["resources"];
        list["requests"][resource] = json!(count);
        list["limits"][resource] = json!(count);
    })
}

fn repartition(queues: &[&str]) -> Scheduler {
    Scheduler::new(Config {
        repartition: Some(RepartitionBudget {
            queues: queues.iter().map(|queue| (*queue).to_owned()).collect(),
            ..RepartitionBudget::default()
        }),
        ..Config::default()
    })
}

fn after(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

/// Which nodes are to be cut how.
fn repartitions(plan: &Plan) -> Vec<(&str, &str)> {
    let all = plan.repartitions.iter();
    all.map(|it| (it.node.as_str(), it.choice.configuration.as_str()))
        .collect()
}

#[test]
fn an_idle_node_is_cut_once_for_who_waited_long_enough_and_given_out_when_it_is_done() {
    let mut s = repartition(&[]);
    s.apply(says("n", &whole()));
    s.apply(asks("p", SMALL, "1"));
    let early = s.plan(after(1));
    assert_eq!(repartitions(&early), []);
    assert_eq!(
        early.requeue_at,
        Some(after(30)),
        "it is looked at when it has waited long enough"
    );
    let plan = s.plan(after(30));
    assert_eq!(repartitions(&plan), [("n", "all-1g.10gb")]);
    let repartition = &plan.repartitions[0];
    assert!(
        repartition.group.lone && repartition.group.name == "p" && repartition.before.is_none()
    );
    let why = "ns/p waits for 1 of nvidia.com/mig-1g.10gb; no pod uses the GPUs of n, and configuration \
               all-1g.10gb makes them 14 of nvidia.com/mig-1g.10gb";
    assert_eq!(repartition.choice.why, why);

    // Until the node says that it has heard, and while it is cut, nobody is given its GPUs.
    s.apply(asks("q", "nvidia.com/gpu", "1"));
    s.apply(says("n", &whole()));
    let plan = s.plan(after(32));
    assert!(repartitions(&plan).is_empty() && bound(&plan).is_empty());
    let told = plan
        .reports
        .iter()
        .find(|it| it.group == "q")
        .unwrap_or_else(|| panic!("q waits"));
    assert!(
        told.per_reason
            .iter()
            .any(|it| it.reason.contains("repartitioning their GPUs")),
        "{told:?}"
    );
    let mut of = Says {
        asked: Some("all-1g.10gb"),
        state: Some("pending"),
        choice: serde_json::to_string(&repartition.choice).ok(),
        ..whole()
    };
    s.apply(says("n", &of));
    let plan = s.plan(after(34));
    assert!(repartitions(&plan).is_empty() && bound(&plan).is_empty());
    of = Says {
        state: Some("success"),
        small: 14,
        gpus: 0,
        ..of
    };
    s.apply(says("n", &of));
    let plan = s.plan(after(40));
    assert_eq!(bound(&plan)["p"], "n");
    assert!(repartitions(&plan).is_empty(), "q must wait: p uses it");
    s.apply(pod_gone("p"));
    let plan = s.plan(after(60));
    assert!(repartitions(&plan).is_empty(), "it was changed lately");
    assert_eq!(plan.requeue_at, Some(after(630)));
    let plan = s.plan(after(630));
    assert_eq!(repartitions(&plan), [("n", "all-disabled")], "whole for q");
}

#[test]
fn a_node_is_left_alone_that_others_have_or_asked_for_or_that_failed_or_is_not_able() {
    let chosen = r#"{"configuration": "all-1g.10gb", "at": "2020-01-01T00:00:00Z", "why": ""}"#;
    let with = |asked, state, choice: Option<&str>| Says {
        asked,
        state,
        choice: choice.map(str::to_owned),
        ..whole()
    };
    let table = [
        ("no label", with(None, None, None), true),
        (
            "a person's label",
            with(Some("all-disabled"), Some("success"), None),
            false,
        ),
        (
            "a person's since",
            with(Some("all-disabled"), Some("success"), Some(chosen)),
            false,
        ),
        ("under change", with(None, Some("pending"), None), false),
        ("failed", with(None, Some("failed"), None), false),
    ];
    for (what, of, expected) in table {
        let mut s = repartition(&[]);
        s.apply(says("n", &of));
        s.apply(asks("p", SMALL, "1"));
        s.plan(after(0));
        assert_eq!(
            !s.plan(after(60)).repartitions.is_empty(),
            expected,
            "{what}"
        );
    }
    // Somebody's GPU, whoever placed it.
    let mut s = repartition(&[]);
    s.apply(says("n", &whole()));
    s.apply(pod_with("other", None, 1, |pod| {
        pod["spec"]["schedulerName"] = json!("other");
        pod["spec"]["nodeName"] = json!("n");
    }));
    s.apply(asks("p", SMALL, "1"));
    s.plan(after(0));
    assert_eq!(repartitions(&s.plan(after(60))), []);
    // A node whose agent cuts nothing.
    let mut s = repartition(&[]);
    s.apply(node_with("n", 2, |_| {}));
    s.apply(asks("p", SMALL, "1"));
    s.plan(after(0));
    assert_eq!(repartitions(&s.plan(after(60))), []);
}

#[test]
fn it_is_done_for_the_queues_that_are_named_and_not_unless_it_is_asked_for() {
    for (mut s, expected) in [
        (repartition(&["default"]), 1),
        (repartition(&["research"]), 0),
        (Scheduler::new(Config::default()), 0),
    ] {
        s.apply(says("n", &whole()));
        s.apply(asks("p", SMALL, "1"));
        s.plan(after(0));
        assert_eq!(s.plan(after(60)).repartitions.len(), expected);
    }
}

#[test]
fn a_node_that_could_not_be_told_is_as_it_was_and_tried_again_later() {
    let mut s = repartition(&[]);
    s.apply(says("n", &whole()));
    s.apply(asks("p", SMALL, "1"));
    s.plan(after(0));
    assert_eq!(s.plan(after(60)).repartitions.len(), 1);
    s.forget_repartition("n", after(120));
    s.apply(asks("q", "nvidia.com/gpu", "2"));
    let plan = s.plan(after(61));
    assert_eq!(bound(&plan)["q"], "n", "its GPUs are given out again");
    s.apply(pod_gone("q"));
    assert_eq!(repartitions(&s.plan(after(100))), []);
    assert_eq!(repartitions(&s.plan(after(120))), [("n", "all-1g.10gb")]);
}
