//! PodDisruptionBudgets, by table: what they count, which pods they protect, and what the report
//! says.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use scheduler::{Actions, Config, Event};
use serde_json::{Value, json};
use support::cluster::*;
use support::*;

fn budget(name: &str, spec: &Value) -> Event {
    let mut object = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec});
    object["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
    Event::BudgetChanged(Box::new(serde_json::from_value(object).unwrap()))
}

/// Four running pods of one GPU in gangs of one, labelled, on two nodes of two GPUs.
fn web(c: &mut Cluster) {
    c.nodes(&[("n1", 2), ("n2", 2)]);
    for i in 0..4 {
        let name = format!("web{i}");
        c.gang(&name, "default", "low", 1, 1, 1);
        c.change(&format!("{name}-0"), |pod| {
            pod["metadata"]["labels"] = json!({"app": "web"});
            pod["spec"]["nodeName"] = json!(format!("n{}", i / 2 + 1));
            pod["status"] = json!({"phase": "Running"});
        });
    }
}

#[test]
fn evictions_stop_at_the_budget_and_the_report_names_it() {
    let table = [
        (json!({"minAvailable": 4}), 0),
        (json!({"minAvailable": 3}), 1),
        (json!({"minAvailable": "50%"}), 2),
        (json!({"maxUnavailable": 1}), 1),
        (json!({"maxUnavailable": "26%"}), 2),
        (json!({}), 4),
    ];
    for (spec, want) in table {
        let mut c = Cluster::new();
        web(&mut c);
        c.notify(budget("b", &spec));
        for i in 0..4 {
            c.gang(&format!("new{i}"), "default", "high", 1, 1, 1);
        }
        let plan = c.plan();
        assert_eq!(plan.evictions.len(), want, "{spec}");
        if want < 4 {
            let report = report(&plan, "new3");
            let said = serde_json::to_string(report).unwrap();
            assert!(said.contains("PodDisruptionBudget ns/b"), "{said}");
        }
    }
}

#[test]
fn the_next_candidate_is_evicted_where_a_budget_protects_the_first() {
    let mut c = Cluster::new();
    c.nodes(&[("n1", 2)]);
    for (name, app) in [("older", "db"), ("younger", "web")] {
        c.gang(name, "default", "low", 1, 1, 1);
        c.change(&format!("{name}-0"), |pod| {
            pod["metadata"]["labels"] = json!({"app": app});
            pod["spec"]["nodeName"] = json!("n1");
            let at = now() + jiff::SignedDuration::from_secs(if app == "web" { 60 } else { 0 });
            pod["status"] = json!({"phase": "Running", "startTime": at.to_string()});
        });
    }
    let mut free = c.scheduler.clone();
    c.notify(budget("b", &json!({"minAvailable": 1})));
    c.gang("new", "default", "high", 1, 1, 1);
    assert_eq!(evicted(&c.plan()), ["older-0"]);
    free.apply(group_with("new", 1, |group| {
        group["spec"]["priorityClassName"] = json!("high");
    }));
    free.apply(pod("new-0", "new", 1));
    assert_eq!(evicted(&free.plan(now())), ["younger-0"]);
}

#[test]
fn a_budget_is_broken_only_if_configured_and_as_a_last_resort() {
    for breaks in [false, true] {
        let mut c = Cluster::with(Config {
            break_budgets: breaks,
            ..Config::default()
        });
        web(&mut c);
        c.notify(budget("b", &json!({"maxUnavailable": 0})));
        c.gang("new", "default", "high", 1, 1, 2);
        assert_eq!(c.plan().evictions.len(), if breaks { 2 } else { 0 });
    }
}

#[test]
fn moves_never_break_a_budget() {
    for breaks in [false, true] {
        for protects in [false, true] {
            let mut c = Cluster::with(Config {
                break_budgets: breaks,
                actions: Actions {
                    consolidate: true,
                    ..Actions::default()
                },
                ..Config::default()
            });
            c.nodes(&[("n1", 2), ("n2", 2)]);
            for (name, at) in [("a", "n1"), ("b", "n2")] {
                c.gang(name, "default", "mid", 1, 1, 1);
                c.change(&format!("{name}-0"), |pod| {
                    pod["metadata"]["labels"] = json!({"app": "web"});
                    pod["spec"]["nodeName"] = json!(at);
                    pod["status"] = json!({"phase": "Running"});
                });
            }
            if protects {
                c.notify(budget("b", &json!({"maxUnavailable": 0})));
            }
            c.gang("new", "default", "mid", 1, 1, 2);
            assert_eq!(c.plan().evictions.len(), usize::from(!protects));
        }
    }
}

#[test]
fn an_evicted_pod_counts_until_it_is_back_and_a_deleted_budget_protects_no_pod() {
    let mut c = Cluster::new();
    web(&mut c);
    let with_status = |budget: Event| match budget {
        Event::BudgetChanged(mut budget) => {
            budget.status = Some(serde_json::from_value(json!({
                "currentHealthy": 4, "desiredHealthy": 3, "disruptionsAllowed": 1, "expectedPods": 4,
            })).unwrap());
            Event::BudgetChanged(budget)
        }
        other => other,
    };
    c.notify(with_status(budget("b", &json!({"maxUnavailable": 1}))));
    for i in 0..2 {
        c.gang(&format!("new{i}"), "default", "high", 1, 1, 1);
    }
    let plan = c.run();
    assert_eq!(plan.evictions.len(), 1);
    c.leave(&plan);
    // Three of four expected pods are left: no other pod may be evicted.
    c.queue("nudge", 0);
    assert!(c.run().evictions.is_empty());
    c.notify(Event::BudgetGone("ns".into(), "b".into()));
    assert_eq!(c.run().evictions.len(), 1);
}
