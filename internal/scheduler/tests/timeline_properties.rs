//! Properties of reservation and backfill on random traces with true walltimes: no backfilled gang
//! delays the head, no gang starts earlier than its estimates and the true walltimes allow, and the
//! same trace gives the same plans.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use proptest::prelude::*;
use scheduler::{Config, Event, Plan, ReservationKind, Scheduler};
use serde_json::{Value, json};
use support::*;

#[derive(Clone, Debug)]
struct Job {
    arrival: i64,
    members: usize,
    gpus: i64,
    seconds: i64,
    /// Whether it declares its walltime.
    says: bool,
    /// The declared walltime as a multiple of the true run time.
    times: i64,
    rack: bool,
}

fn job() -> impl Strategy<Value = Job> {
    (
        0..300i64,
        1..5usize,
        1..5i64,
        1..200i64,
        proptest::bool::weighted(0.9),
        proptest::bool::weighted(0.2),
    )
        .prop_map(|(arrival, members, gpus, seconds, says, rack)| Job {
            arrival,
            members,
            gpus,
            seconds,
            says,
            times: 1,
            rack,
        })
}

/// The result of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
struct Story {
    started: BTreeMap<usize, i64>,
    /// The nodes of its members.
    places: BTreeMap<usize, Vec<usize>>,
    /// When each head was first promised a time, and which.
    promised: Vec<(usize, i64, i64)>,
    plans: Vec<(i64, Plan)>,
}

const NODES: usize = 4;
const GPUS: i64 = 4;

impl Story {
    /// The gangs that run at a time: when each ends, and the nodes of its members.
    fn running<'a>(&'a self, jobs: &'a [Job], now: i64) -> impl Iterator<Item = (usize, i64)> + 'a {
        let by_now = self.started.iter().filter(move |(_, start)| **start <= now);
        let ends = by_now.map(|(at, start)| (*at, start + jobs[*at].seconds));
        ends.filter(move |(_, end)| *end > now)
    }

    /// From when on the running gangs leave room for a job, if no other gang arrives: `exactly`, on
    /// the nodes as it requests, or at least in sum.
    fn room_from(&self, jobs: &[Job], job: &Job, now: i64, exactly: bool) -> Option<i64> {
        let mut times: Vec<i64> = self.running(jobs, now).map(|(_, end)| end).collect();
        times.push(now);
        times.sort_unstable();
        times.into_iter().find(|then| {
            let mut free = [GPUS; NODES];
            for (at, _) in self.running(jobs, now).filter(|(_, end)| end > then) {
                for node in &self.places[&at] {
                    free[*node] -= jobs[at].gpus;
                }
            }
            let holds = |nodes: &[i64]| -> i64 { nodes.iter().map(|free| free / job.gpus).sum() };
            let members = job.members as i64;
            match (exactly, job.rack) {
                (false, _) => free.iter().sum::<i64>() >= job.gpus * members,
                (true, false) => holds(&free) >= members,
                (true, true) => free.chunks(2).any(|rack| holds(rack) >= members),
            }
        })
    }

    /// A job's PodGroup status at a time, as it was last written.
    fn status(&self, job: usize, until: i64) -> Value {
        let plans = self.plans.iter().take_while(|(second, _)| *second <= until);
        let updates = plans.flat_map(|(_, plan)| &plan.groups);
        let last = updates
            .filter(|update| update.group.name == name(job))
            .last();
        let Some(last) = last else { return Value::Null };
        let conditions: Vec<Value> = last
            .conditions
            .iter()
            .map(|one| json!({"type": one.kind, "status": if one.status { "True" } else { "False" }}))
            .collect();
        json!({"phase": last.phase.as_str(), "conditions": conditions})
    }
}

fn name(job: usize) -> String {
    format!("j{job:02}")
}

fn number(name: &str) -> usize {
    name[1..3].parse().unwrap()
}

fn arrive(s: &mut Scheduler, at_job: usize, job: &Job) {
    arrive_with(s, at_job, job, &Value::Null);
}

fn arrive_with(s: &mut Scheduler, at_job: usize, job: &Job, status: &Value) {
    let group = name(at_job);
    s.apply(group_with(&group, job.members as i32, |object| {
        object["status"] = status.clone();
        object["metadata"]["creationTimestamp"] = json!(at(job.arrival).to_string());
        let mut notes = json!({});
        if job.says {
            notes["muster.io/walltime"] = json!((job.seconds * job.times).to_string());
        }
        if job.rack {
            notes["muster.io/topology"] = json!("{\"required\": \"muster.io/rack\"}");
        }
        object["metadata"]["annotations"] = notes;
    }));
    for i in 0..job.members {
        s.apply(pod(&format!("{group}-{i}"), &group, job.gpus));
    }
}

fn nodes(s: &mut Scheduler) {
    for i in 0..NODES {
        s.apply(node_with(&format!("n{i}"), GPUS, |node| {
            node["metadata"]["labels"]["muster.io/rack"] = json!(format!("r{}", i / 2));
        }));
    }
}

/// Plays a trace, leaving some jobs out.
fn play(jobs: &[Job], out: &BTreeSet<usize>) -> Story {
    let mut s = Scheduler::new(Config {
        reserve_after: SignedDuration::ZERO,
        ..Config::default()
    });
    nodes(&mut s);
    let mut story = Story::default();
    let mut ends: BTreeSet<(i64, usize)> = BTreeSet::new();
    let mut arrivals: BTreeSet<(i64, usize)> = jobs
        .iter()
        .enumerate()
        .filter(|(at, _)| !out.contains(at))
        .map(|(at, job)| (job.arrival, at))
        .collect();
    let mut requeue_at: Option<i64> = None;
    let mut places: BTreeMap<usize, Vec<(String, String)>> = BTreeMap::new();
    for _ in 0..2000 {
        let next = [
            ends.first().map(|e| e.0),
            arrivals.first().map(|a| a.0),
            requeue_at,
        ];
        let Some(now_s) = next.into_iter().flatten().min() else {
            break;
        };
        while let Some((_, job)) = ends.first().copied().filter(|(end, _)| *end <= now_s) {
            ends.pop_first();
            let group = name(job);
            for (pod, node) in places.remove(&job).unwrap() {
                s.apply(pod_with(&pod, Some(&group), jobs[job].gpus, |object| {
                    object["spec"]["nodeName"] = json!(node);
                    object["status"] = json!({"phase": "Succeeded"});
                }));
                s.apply(pod_gone(&pod));
            }
            s.apply(Event::PodGroupGone("ns".into(), group));
        }
        while let Some((_, job)) = arrivals.first().copied().filter(|(time, _)| *time <= now_s) {
            arrivals.pop_first();
            arrive(&mut s, job, &jobs[job]);
        }
        let plan = s.plan(at(now_s));
        for bind in &plan.binds {
            let job = number(&bind.pod.name);
            story.started.entry(job).or_insert(now_s);
            let node: usize = bind.node[1..].parse().unwrap();
            story.places.entry(job).or_default().push(node);
            if places.entry(job).or_default().is_empty() {
                ends.insert((now_s + jobs[job].seconds, job));
            }
            places
                .get_mut(&job)
                .unwrap()
                .push((bind.pod.name.clone(), bind.node.clone()));
            s.apply(pod_with(
                &bind.pod.name,
                Some(&bind.group.name),
                jobs[job].gpus,
                |object| {
                    object["spec"]["nodeName"] = json!(bind.node);
                    object["status"] =
                        json!({"phase": "Running", "startTime": at(now_s).to_string()});
                },
            ));
        }
        for held in &plan.reservations {
            if let ReservationKind::Planned { at } = held.kind {
                let job = number(&held.group.name);
                let from = at.as_second() - now().as_second();
                if story.promised.iter().all(|(known, ..)| *known != job) {
                    story.promised.push((job, now_s, from));
                }
            }
        }
        requeue_at = plan
            .requeue_at
            .map(|requeue_at| (requeue_at.as_second() - now().as_second()).max(now_s + 1));
        story.plans.push((now_s, plan));
    }
    story
}

proptest! {
    #![proptest_config(cases(192))]

    #[test]
    fn no_backfilled_gang_delays_the_head(jobs in proptest::collection::vec(job(), 1..14)) {
        let story = play(&jobs, &BTreeSet::new());
        for (head, since, promised) in &story.promised {
            let Some(started) = story.started.get(head) else {
                prop_assert!(false, "the head {head} never starts");
                continue;
            };
            let truthful = jobs.iter().all(|job| job.says);
            prop_assert!(
                !truthful || started <= promised,
                "head {} was promised {} at {} and started at {}", head, promised, since, started
            );
            let ahead: BTreeSet<usize> = story
                .started
                .iter()
                .filter(|(job, start)| *job != head && **start > *since && *start < started)
                .map(|(job, _)| *job)
                .collect();
            // A gang that arrives later and does not start before the head changes nothing for it.
            let without = play(&jobs, &ahead);
            let alone = without.started.get(head);
            prop_assert!(
                alone.is_none_or(|alone| !truthful || started <= alone),
                "head {} starts at {} and without {:?} at {:?}", head, started, ahead, alone
            );
        }
    }

    #[test]
    fn the_head_starts_when_promised_if_no_gang_exceeds_its_walltime(
        jobs in proptest::collection::vec((job(), 1..5i64), 16..32),
    ) {
        let says = |(job, times)| Job { says: true, times, ..job };
        let jobs: Vec<Job> = jobs.into_iter().map(says).collect();
        let story = play(&jobs, &BTreeSet::new());
        for (head, since, promised) in &story.promised {
            let started = story.started.get(head);
            prop_assert!(
                started.is_some_and(|started| started <= promised),
                "head {} was promised {} at {} and started at {:?}", head, promised, since, started
            );
        }
    }

    #[test]
    fn every_gang_starts_and_the_same_trace_gives_the_same_plans(
        jobs in proptest::collection::vec(job(), 1..14),
    ) {
        let story = play(&jobs, &BTreeSet::new());
        for (at, job) in jobs.iter().enumerate() {
            let fits = if job.rack { 2 } else { 4 } * (4 / job.gpus) >= job.members as i64;
            prop_assert_eq!(story.started.contains_key(&at), fits, "job {} {:?}", at, job);
        }
        prop_assert_eq!(play(&jobs, &BTreeSet::new()), story);
    }

    #[test]
    fn no_head_starts_before_true_walltimes_allow(
        jobs in proptest::collection::vec(job(), 1..14),
    ) {
        let jobs: Vec<Job> = jobs.into_iter().map(|job| Job { says: true, ..job }).collect();
        let story = play(&jobs, &BTreeSet::new());
        for (second, plan) in &story.plans {
            for held in &plan.reservations {
                let ReservationKind::Planned { at: from } = held.kind else { continue };
                let told = plan.reports.iter().find(|report| report.group == held.group.name);
                let Some(told) = told.and_then(|report| report.estimate) else { continue };
                let started = story.started[&number(&held.group.name)];
                prop_assert!(at(started) >= at(*second));
                prop_assert!(told.earliest <= told.likely && told.likely <= told.latest);
                prop_assert!(at(started) <= from, "promised {} started {}", from, started);
            }
        }
    }

    #[test]
    fn no_estimate_is_earlier_than_running_gangs_can_make_room(
        jobs in proptest::collection::vec(job(), 1..14),
    ) {
        let jobs: Vec<Job> = jobs.into_iter().map(|job| Job { says: true, ..job }).collect();
        let story = play(&jobs, &BTreeSet::new());
        for (second, plan) in &story.plans {
            for held in &plan.reservations {
                let ReservationKind::Planned { at: from } = held.kind else { continue };
                let job = &jobs[number(&held.group.name)];
                let room = story.room_from(&jobs, job, *second, true).map(at);
                prop_assert_eq!(Some(from), room, "{} at {}", held.group.name, second);
            }
            for report in plan.reports.iter() {
                let Some(told) = report.estimate else { continue };
                let job = &jobs[number(&report.group)];
                let likely = told.likely.as_second() - now().as_second();
                // An estimate is valid for a minute, or for a part of the wait.
                let since = second - 60 - (likely - second).max(0) / 8;
                let asked = story.plans.iter().map(|(then, _)| *then);
                let asked = asked.filter(|then| (since..=*second).contains(then));
                let room = asked.filter_map(|then| story.room_from(&jobs, job, then, false)).min();
                prop_assert!(
                    room.is_some_and(|room| room <= likely),
                    "{} is told {} at {}, and there is room from {:?}",
                    report.group, likely, second, room
                );
            }
        }
    }

    #[test]
    fn a_restarted_scheduler_keeps_the_head_and_its_promised_time(
        jobs in proptest::collection::vec(job(), 1..14),
        until in 0..300i64,
    ) {
        let jobs: Vec<Job> = jobs
            .into_iter()
            .map(|job| Job { says: true, arrival: job.arrival.min(until), ..job })
            .collect();
        let story = play(&jobs, &BTreeSet::new());
        // The running and waiting gangs right after the last arrival, given at once to another
        // scheduler.
        let Some(last) = jobs.iter().map(|job| job.arrival).max() else { return Ok(()) };
        let plan = story.plans.iter().find(|(second, _)| *second == last);
        let Some((_, plan)) = plan else { return Ok(()) };
        let promise = |plan: &Plan| plan.reservations.iter().find_map(|held| match held.kind {
            ReservationKind::Planned { at } => Some((held.group.name.clone(), at)),
            ReservationKind::Nominated => None,
        });
        let mut anew = Scheduler::new(Config { reserve_after: SignedDuration::ZERO, ..Config::default() });
        nodes(&mut anew);
        for (at_job, job) in jobs.iter().enumerate() {
            let start = story.started.get(&at_job).copied().filter(|start| *start <= last);
            if start.is_some_and(|start| start + job.seconds <= last) {
                continue;
            }
            arrive_with(&mut anew, at_job, job, &story.status(at_job, last));
            let Some(start) = start else { continue };
            for (_, plan) in &story.plans {
                for bind in plan.binds.iter().filter(|bind| number(&bind.pod.name) == at_job) {
                    anew.apply(pod_with(&bind.pod.name, Some(&bind.group.name), job.gpus, |object| {
                        object["spec"]["nodeName"] = json!(bind.node);
                        object["status"] = json!({"phase": "Running", "startTime": at(start).to_string()});
                    }));
                }
            }
        }
        let fresh = anew.plan(at(last));
        prop_assert_eq!(promise(plan), promise(&fresh));
        // A gang that was tried before another one started may find another place beside it now.
        prop_assert!(fresh.binds.is_empty() || !plan.binds.is_empty(), "{:?}", fresh.binds);
    }
}
