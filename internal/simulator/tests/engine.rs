//! The engine by property: work is conserved, devices have one holder, the same input gives the
//! same output, under every policy.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;
use simulator::{
    Job, JobWork, PodShape, Policy, Scenario, SimulationOptions, SimulationOutcome, run, shape,
};

/// Runs the scenario; returns the outcome and every decision as a value.
fn simulate(scenario: &Scenario, options: &SimulationOptions) -> (SimulationOutcome, Vec<Value>) {
    let mut lines = Vec::new();
    let outcome = run(scenario, options, &mut |decision| {
        lines.push(serde_json::to_value(decision).unwrap());
    });
    (outcome.unwrap(), lines)
}

fn job(name: String, gpus: i64, pods: u32, arrival: i64, duration: i64) -> Job {
    let shape = PodShape {
        cpu_milli: 1000 * gpus,
        memory_mib: 1024,
        gpus,
        ..PodShape::default()
    };
    Job {
        namespace: "default".into(),
        name,
        queue: "default".into(),
        arrival,
        duration: Some(duration),
        work: JobWork::Shaped(vec![(Arc::new(shape), pods)]),
        ..Job::default()
    }
}

prop_compose! {
    fn jobs()(
        list in prop::collection::vec((1_i64..=8, 1_u32..=3, 0_i64..600, 1_i64..400, -1_i32..=1, 0..3_usize, 1_i64..4), 1..40),
    ) -> Vec<Job> {
        list.into_iter().enumerate().map(|(i, (gpus, pods, arrival, duration, priority, queue, slack))| Job {
            priority: priority * 10,
            queue: ["default", "a", "b"][queue].into(),
            walltime: (slack > 1).then_some(duration * slack),
            ..job(format!("job-{i}"), gpus, pods, arrival, duration)
        }).collect()
    }
}

fn scenario(nodes: usize, jobs: Vec<Job>) -> Scenario {
    let queues = ["default", "a", "b"].map(|name| {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
            "metadata": {"name": name}, "spec": {"weight": 1},
        }))
        .unwrap()
    });
    Scenario {
        nodes: shape::cluster("--cluster", &format!("{nodes}xhgx-h100")).unwrap(),
        queues: queues.to_vec(),
        jobs,
        ..Scenario::default()
    }
}

fn options(policy: Policy) -> SimulationOptions {
    SimulationOptions {
        policy,
        grace: 5,
        ..SimulationOptions::default()
    }
}

/// Every device of every bound pod has one holder at a time, and every pod is placed where it fits.
fn one_holder(lines: &[Value], grace: i64) {
    let mut holder: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut held: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut leaving: Vec<(i64, String, String)> = Vec::new();
    for line in lines {
        let second = line["second"].as_i64().unwrap();
        let group = line["group"].as_str().unwrap().to_owned();
        let mut free =
            |group: &str, pod: Option<&str>, holder: &mut BTreeMap<String, (String, String)>| {
                let own = held.entry(group.to_owned()).or_default();
                own.retain(|(of, device)| {
                    let goes = pod.is_none_or(|pod| pod == of);
                    if goes {
                        holder.remove(device);
                    }
                    !goes
                });
            };
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut leaving)
            .into_iter()
            .partition(|(at, _, _)| *at <= second);
        leaving = stay;
        for (_, group, pod) in gone {
            free(&group, Some(&pod), &mut holder);
        }
        match line["decision"].as_str().unwrap() {
            "bound" => {
                let pod = line["pod"].as_str().unwrap().to_owned();
                let devices = line["devices"]["main"]["nvidia.com/gpu"]
                    .as_array()
                    .unwrap();
                assert!(!devices.is_empty());
                for device in devices {
                    let device = device.as_str().unwrap().to_owned();
                    assert!(
                        device.starts_with(&format!("GPU-{}-", line["node"].as_str().unwrap()))
                    );
                    let old = holder.insert(device.clone(), (group.clone(), pod.clone()));
                    assert_eq!(old, None, "{device} is given twice at {second}");
                    held.entry(group.clone())
                        .or_default()
                        .push((pod.clone(), device));
                }
            }
            "evicted" => leaving.push((
                second + grace,
                group,
                line["pod"].as_str().unwrap().to_owned(),
            )),
            "ended" => {
                free(&group, None, &mut holder);
                leaving.retain(|(_, of, _)| *of != group);
            }
            _ => {}
        }
    }
}

fn conserved(scenario: &Scenario, outcome: &SimulationOutcome, lines: &[Value]) {
    assert_eq!(outcome.gangs.len(), scenario.jobs.len());
    let fits = |job: &Job| {
        let JobWork::Shaped(shapes) = &job.work else {
            return true;
        };
        let mut left = vec![8; scenario.nodes.len()];
        let pods = shapes
            .iter()
            .flat_map(|(shape, count)| std::iter::repeat_n(shape.gpus, *count as usize));
        pods.into_iter().all(|gpus| {
            left.iter_mut().any(|free| {
                let ok = *free >= gpus;
                if ok {
                    *free -= gpus;
                }
                ok
            })
        })
    };
    let reported: BTreeSet<&str> = lines
        .iter()
        .filter(|line| line["decision"] == "pending")
        .map(|line| line["group"].as_str().unwrap())
        .collect();
    let by_name: BTreeMap<&str, &Job> = scenario
        .jobs
        .iter()
        .map(|job| (job.name.as_str(), job))
        .collect();
    for gang in &outcome.gangs {
        let job = by_name[gang.name.as_str()];
        match gang.ended {
            Some(ended) => {
                let started = gang.started.unwrap();
                assert!(started >= gang.arrived);
                assert!(
                    ended - started >= job.duration.unwrap(),
                    "{} ran too short",
                    gang.name
                );
                if gang.interruptions == 0 {
                    assert_eq!(ended - started, job.duration.unwrap());
                }
            }
            None => {
                assert!(
                    !fits(job),
                    "{} fits an empty cluster and never ran to its end: {gang:?}",
                    gang.name
                );
                assert!(
                    outcome.policy != "muster" || reported.contains(gang.name.as_str()),
                    "{} was not reported",
                    gang.name
                );
            }
        }
    }
    assert_eq!(outcome.violations, 0);
    let held: f64 = outcome.series.iter().map(|point| point.held).sum();
    assert!((held - outcome.whole.held).abs() <= outcome.whole.held * 1e-9 + 1e-6);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_job_ends_or_is_reported_and_no_device_has_two_holders(jobs in jobs(), nodes in 1_usize..4, gather in 0_i64..30) {
        let scenario = scenario(nodes, jobs);
        let (outcome, lines) = simulate(&scenario, &SimulationOptions { gather, ..options(Policy::Muster) });
        conserved(&scenario, &outcome, &lines);
        one_holder(&lines, 5);
    }

    #[test]
    fn the_same_input_gives_the_same_output(jobs in jobs(), nodes in 1_usize..4) {
        let scenario = scenario(nodes, jobs);
        for policy in Policy::ALL {
            prop_assert_eq!(simulate(&scenario, &options(policy)), simulate(&scenario, &options(policy)));
        }
    }

    #[test]
    fn reference_schedulers_conserve_work_where_all_of_it_fits(jobs in jobs()) {
        let scenario = scenario(3, jobs);
        for policy in Policy::ALL.into_iter().skip(1) {
            let (outcome, lines) = simulate(&scenario, &options(policy));
            conserved(&scenario, &outcome, &lines);
            one_holder(&lines, 5);
        }
    }

    #[test]
    fn easy_backfill_never_delays_the_first_that_waits(jobs in jobs()) {
        // With exact estimates, the head of the list starts no later than under strict order.
        let exact: Vec<Job> = jobs.into_iter().map(|job| Job { walltime: None, priority: 0, arrival: 0, ..job }).collect();
        let scenario = scenario(3, exact);
        let first = |policy| {
            let (outcome, _) = simulate(&scenario, &options(policy));
            // All arrive at once: the head is the first gang that does not start at once under
            // strict order.
            outcome.gangs.into_iter().map(|gang| (gang.name, gang.started.unwrap())).collect::<BTreeMap<_, _>>()
        };
        let (strict, easy) = (first(Policy::Priority), first(Policy::Easy));
        let head = scenario.jobs.iter().find(|job| strict[&job.name] > 0);
        if let Some(head) = head {
            prop_assert!(easy[&head.name] <= strict[&head.name], "{} waited for {:?}", head.name, easy);
        }
    }
}

#[test]
fn strict_order_waits_and_backfill_goes_round() {
    // One node: 6 GPUs for 100 s, then a gang that needs 8, then a short and a long one of 2.
    let jobs = vec![
        job("first".into(), 6, 1, 0, 100),
        job("head".into(), 8, 1, 1, 50),
        job("short".into(), 2, 1, 2, 60),
        job("long".into(), 2, 1, 3, 500),
    ];
    let scenario = scenario(1, jobs);
    let started = |policy| {
        let (outcome, _) = simulate(&scenario, &options(policy));
        outcome
            .gangs
            .iter()
            .map(|gang| gang.started.unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(started(Policy::Fifo), [0, 100, 150, 150]);
    assert_eq!(started(Policy::Easy), [0, 100, 2, 150]);
    assert_eq!(started(Policy::Conservative), [0, 100, 2, 150]);
    assert_eq!(started(Policy::Sjf), [0, 562, 2, 62]);
}

#[test]
fn backfill_that_honours_shares_orders_by_allocation_before_age() {
    // One node, full for 100 s with work of one queue, which also has more waiting work than the
    // other queue.
    let of = |queue: &str, job: Job| Job {
        queue: queue.to_owned(),
        ..job
    };
    let scenario = scenario(
        1,
        vec![
            of("a", job("first".into(), 4, 1, 0, 100)),
            of("a", job("beside".into(), 4, 1, 0, 200)),
            of("a", job("older".into(), 4, 1, 1, 50)),
            of("b", job("younger".into(), 4, 1, 2, 50)),
        ],
    );
    let started = |policy| {
        let (outcome, _) = simulate(&scenario, &options(policy));
        let gangs = outcome.gangs.iter();
        gangs.map(|gang| gang.started.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(started(Policy::Easy), [0, 0, 100, 150]);
    assert_eq!(started(Policy::EasyShares), [0, 0, 150, 100]);
}

#[test]
fn a_cluster_without_nodes_and_a_file_without_work_are_refused_with_a_remedy() {
    let none = Scenario {
        nodes: Vec::new(),
        ..scenario(1, vec![job("a".into(), 1, 1, 0, 1)])
    };
    let said = run(&none, &SimulationOptions::default(), &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(said.contains("--cluster"), "{said}");
    let said = run(
        &scenario(1, Vec::new()),
        &SimulationOptions::default(),
        &mut |_| {},
    )
    .unwrap_err()
    .to_string();
    assert!(said.contains("no work"), "{said}");
}

#[test]
fn a_simulation_stops_at_its_limit_and_reports_waiting_gangs() {
    let jobs = vec![job("a".into(), 8, 1, 0, 100), job("b".into(), 8, 1, 0, 100)];
    let scenario = scenario(1, jobs);
    let (outcome, lines) = simulate(
        &scenario,
        &SimulationOptions {
            until: Some(60),
            ..options(Policy::Muster)
        },
    );
    assert_eq!(outcome.whole.seconds, 60.0);
    assert_eq!(
        outcome
            .gangs
            .iter()
            .filter(|gang| gang.started.is_some())
            .count(),
        1
    );
    let pending = lines
        .iter()
        .find(|line| line["decision"] == "pending")
        .unwrap();
    assert_eq!(pending["report"]["verdict"], "InsufficientResources");
}
