//! Every field of every kind at its limits, as its definition has them: through defaulting,
//! validation and printing; through the job controllers' decisions, as if it had been stored
//! without validation; and through the scheduler's plans, with an eviction and previews. Nothing
//! panics, and no work grows in proportion to a number.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use resources::kinds::PyTorchJob;
use resources::names;
use resources::numbers::GANG_MEMBERS_MAX;
use resources::registry::{self, Kind};
use scheduler::{Config, Event, Scheduler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use workloads::job;
use workloads::training::{self, TrainingJob as _};

#[path = "../../resources/testing/fields.rs"]
mod ends_of_fields;

use ends_of_fields::{
    Holds, Step, Way, chosen, fields, name, numbers, plain, pod_spec, texts, with,
};

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// Runs all cases and fails if any panicked.
fn run(cases: impl Iterator<Item = (String, Box<dyn FnOnce()>)>) {
    let mut failed = Vec::new();
    let mut count = 0;
    for (name, case) in cases {
        count += 1;
        if catch_unwind(AssertUnwindSafe(case)).is_err() {
            failed.push(name);
        }
    }
    assert!(count > 0);
    failed.truncate(20);
    assert!(failed.is_empty(), "these panicked: {failed:#?}");
}

/// The API's processing of an object, new and changed.
fn serve(kind: &'static Kind, before: &Value, object: Value) {
    let mut new = object.clone();
    (kind.default)(&mut new);
    (kind.prepare)(&mut new, None);
    let _ = (kind.validate)(&new, None);
    let _ = (kind.validate)(&object, Some(before));
    let _ = (kind.validate_status)(&object, before);
    for column in kind.columns {
        let _ = column.cell(&object, now());
    }
    let _ = kind.selectable(&object);
}

#[test]
fn every_number_passes_through_the_registry() {
    let cases = registry::all().iter().flat_map(|kind| {
        let before = plain(kind);
        fields(kind).into_iter().flat_map(move |(way, holds)| {
            let before = before.clone();
            numbers(holds).into_iter().map(move |end| {
                let (before, object) = (before.clone(), with(&before, &way, &end));
                let case: Box<dyn FnOnce()> = Box::new(move || serve(kind, &before, object));
                (name(kind, &way, &end), case)
            })
        })
    });
    run(cases);
}

#[test]
fn every_text_passes_through_the_registry() {
    let cases = registry::all().iter().flat_map(|kind| {
        let before = plain(kind);
        let template = Step::Member("template".to_owned());
        // One set of rules covers the pods of all jobs.
        let twice = move |way: &Way| kind.kind != "Pod" && way.contains(&template);
        let fields = fields(kind).into_iter().filter(move |(way, _)| !twice(way));
        fields.flat_map(move |(way, holds)| {
            let before = before.clone();
            texts(holds).into_iter().map(move |end| {
                let (before, object) = (before.clone(), with(&before, &way, &end));
                let case: Box<dyn FnOnce()> = Box::new(move || serve(kind, &before, object));
                (name(kind, &way, &end), case)
            })
        })
    });
    run(cases);
}

/// The controllers' decisions about a job that was stored unvalidated.
fn decide(object: Value) {
    let actions = match object["kind"].as_str().unwrap() {
        "Job" => {
            let Ok(job) = serde_json::from_value::<Job>(object) else {
                return;
            };
            let observed = job::ObservedJob {
                job: &job,
                pods: &[],
                room: workloads::PodRoom::default(),
            };
            job::reconcile(&observed, now()).actions.len()
        }
        _ => {
            let Ok(job) = serde_json::from_value::<PyTorchJob>(object) else {
                return;
            };
            let observed = training::ObservedTrainingJob {
                job: job.view(),
                pods: &[],
                pod_group: None,
                services: &[],
                config_maps: &[],
                taken_ports: &BTreeSet::new(),
                network: &training::Network::PerPod,
                scheduler_name: "muster",
                room: workloads::PodRoom::default(),
            };
            training::reconcile(&observed, now()).actions.len()
        }
    };
    // A pod and a Service for each member, and the PodGroup.
    let most = usize::try_from(GANG_MEMBERS_MAX).unwrap() * 2 + 1;
    assert!(actions <= most, "{actions}");
}

#[test]
fn every_number_of_a_stored_job_is_decided_about_with_bounded_work() {
    let kinds = registry::all().iter().filter(|kind| {
        matches!(
            (kind.group, kind.kind),
            ("batch", "Job") | ("kubeflow.org", _)
        )
    });
    let cases = kinds.flat_map(|kind| {
        let before = plain(kind);
        fields(kind).into_iter().flat_map(move |(way, holds)| {
            let before = before.clone();
            let ends = [numbers(holds), texts(holds)].concat();
            ends.into_iter().map(move |end| {
                let object = with(&before, &way, &end);
                let case: Box<dyn FnOnce()> = Box::new(move || decide(object));
                (name(kind, &way, &end), case)
            })
        })
    });
    run(cases);
}

/// A node full of a low-priority gang's pods, and a high-priority gang that waits for the whole
/// node.
fn world() -> Vec<Value> {
    let pod = |name: &str, group: &str, node: Option<&str>| {
        let mut pod = json!({
            "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "ns", "uid": format!("uid-{name}"),
                "creationTimestamp": "2025-12-31T23:00:00Z", "labels": {"app": "x"},
                "annotations": {names::GROUP_NAME: group},
            },
            "spec": pod_spec(),
        });
        if let Some(node) = node {
            pod["spec"]["nodeName"] = json!(node);
            pod["status"] = json!({"phase": "Running", "startTime": "2025-12-31T23:59:00Z"});
        }
        pod
    };
    let group = |name: &str, class: &str| {
        json!({
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
            "metadata": {
                "name": name, "namespace": "ns", "uid": format!("uid-{name}"),
                "creationTimestamp": "2025-12-31T23:00:00Z", "annotations": {},
            },
            "spec": {"minMember": 1, "queue": "default", "priorityClassName": class},
        })
    };
    let class = |name: &str, value: i32| json!({"kind": "PriorityClass", "metadata": {"name": name}, "value": value});
    vec![
        class("low", 1),
        class("high", 10),
        json!({
            "kind": "Node",
            "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1"}},
            "spec": {},
            "status": {
                "allocatable": {
                    "cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "4",
                },
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }),
        group("old", "low"),
        pod("old-0", "old", Some("n1")),
        group("new", "high"),
        pod("new-0", "new", None),
    ]
}

fn event(object: &Value) -> Option<Event> {
    fn read<T: DeserializeOwned>(object: &Value) -> Option<Box<T>> {
        serde_json::from_value(object.clone()).ok().map(Box::new)
    }
    match object["kind"].as_str().unwrap() {
        "Node" => read(object).map(Event::NodeChanged),
        "Pod" => read(object).map(Event::PodChanged),
        "PodGroup" => read(object).map(Event::PodGroupChanged),
        "Queue" => read(object).map(Event::QueueChanged),
        "PriorityClass" => read(object).map(Event::PriorityClassChanged),
        "PodDisruptionBudget" => read(object).map(Event::BudgetChanged),
        other => panic!("the scheduler is told of no {other}"),
    }
}

/// Plans, asks what-if questions, previews, and plans again; returns the number of evictions.
fn schedule(objects: &[Value]) -> usize {
    let mut scheduler = Scheduler::new(Config::default());
    for event in objects.iter().filter_map(event) {
        scheduler.apply(event);
    }
    let waiting: Vec<Pod> = objects
        .iter()
        .filter(|object| object["kind"] == "Pod")
        .filter_map(|object| serde_json::from_value(object.clone()).ok())
        .collect();
    let mut evictions = 0;
    for minutes in [0, 1, 600] {
        let now = now() + SignedDuration::from_mins(minutes);
        evictions += scheduler.plan(now).evictions.len();
        let _ = scheduler.what_if().would_place(None, &waiting, now);
        let _ = scheduler.what_if().could_evict("ns", "new", now);
        let _ = scheduler.what_if().defragmentation(now);
        let _ = scheduler.queue_views();
    }
    evictions
}

#[test]
fn the_world_that_is_changed_plans_an_eviction() {
    assert!(schedule(&world()) > 0);
}

#[test]
fn every_number_in_the_schedulers_input_leaves_it_working() {
    try_in_the_schedulers_input(|_, holds| numbers(holds));
}

#[test]
fn every_text_in_the_schedulers_input_leaves_it_working() {
    try_in_the_schedulers_input(|field, holds| chosen(texts(holds), field));
}

/// Schedules with each field of the scheduler's input at the limits that `ends` has for its number and type.
fn try_in_the_schedulers_input(ends: fn(usize, Holds) -> Vec<Value>) {
    let mut objects: Vec<Value> = world();
    objects.push(json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
        "metadata": {"name": "default"}, "spec": {"weight": 1},
    }));
    objects.push(json!({
        "kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "ns"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}},
    }));
    let kinds: Vec<&'static Kind> = registry::all().iter().collect();
    let told = [
        ("", "Node"),
        ("", "Pod"),
        ("scheduling.volcano.sh", "PodGroup"),
        ("scheduling.volcano.sh", "Queue"),
        ("scheduling.k8s.io", "PriorityClass"),
        ("policy", "PodDisruptionBudget"),
    ];
    let cases = told.into_iter().flat_map(|(group, plain)| {
        let same = |kind: &&&Kind| (kind.group, kind.kind) == (group, plain);
        let kind = *kinds.iter().find(same).unwrap();
        let objects = objects.clone();
        let numbered = fields(kind).into_iter().enumerate();
        numbered.flat_map(move |(field, (way, holds))| {
            let objects = objects.clone();
            ends(field, holds).into_iter().flat_map(move |end| {
                let (objects, way) = (objects.clone(), way.clone());
                let at = (0..objects.len()).filter(|at| objects[*at]["kind"] == kind.kind);
                let at: Vec<usize> = at.collect();
                at.into_iter().map(move |at| {
                    let mut objects = objects.clone();
                    objects[at] = with(&objects[at], &way, &end);
                    let case: Box<dyn FnOnce()> = Box::new(move || {
                        schedule(&objects);
                    });
                    (name(kind, &way, &end), case)
                })
            })
        })
    });
    run(cases);
}
