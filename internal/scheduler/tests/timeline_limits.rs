//! Limits and time: a gang that waits because of its queue's limit gets an estimate, and smaller
//! gangs do not overtake it for ever.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use proptest::prelude::*;
use scheduler::{Config, Event, Scheduler};
use serde_json::json;
use support::*;

/// Queue `q` may use 8 of 16 GPUs; reservations are made at once.
fn scheduler() -> Scheduler {
    let mut s = Scheduler::new(Config {
        reserve_after: SignedDuration::ZERO,
        ..Config::default()
    });
    s.apply(node("n0", 8));
    s.apply(node("n1", 8));
    s.apply(queue_with("q", |queue| {
        queue["spec"]["capability"] = json!({"nvidia.com/gpu": "8"});
    }));
    s
}

struct Gang {
    name: &'static str,
    queue: &'static str,
    gpus: i64,
    walltime: i64,
    age: i64,
}

const GANG: Gang = Gang {
    name: "",
    queue: "q",
    gpus: 1,
    walltime: 500,
    age: 10,
};

fn arrive(s: &mut Scheduler, gang: &Gang) {
    s.apply(group_with(gang.name, 1, |group| {
        group["spec"]["queue"] = json!(gang.queue);
        group["metadata"]["creationTimestamp"] =
            json!((now() - SignedDuration::from_secs(gang.age)).to_string());
        group["metadata"]["annotations"] = json!({
            "muster.io/walltime": gang.walltime.to_string(), "muster.io/user": "ada",
        });
    }));
    s.apply(pod(&format!("{}-0", gang.name), gang.name, gang.gpus));
}

/// Of queue `q`'s 8 GPUs 6 are held for 1000 s, and `first` wants 4.
fn held_back() -> Scheduler {
    held_back_wanting(4)
}

/// The same where `first` wants so many.
fn held_back_wanting(gpus: i64) -> Scheduler {
    let mut s = scheduler();
    arrive(
        &mut s,
        &Gang {
            name: "running",
            gpus: 6,
            walltime: 1000,
            age: 300,
            ..GANG
        },
    );
    let plan = s.plan(now());
    assert_eq!(plan.binds.len(), 1);
    run(&mut s, &plan, 6, now());
    arrive(
        &mut s,
        &Gang {
            name: "first",
            gpus,
            age: 200,
            ..GANG
        },
    );
    assert!(s.plan(now()).binds.is_empty());
    s
}

#[test]
fn a_gang_blocked_by_a_limit_is_estimated_from_the_ends_in_its_queue() {
    let mut s = held_back();
    let plan = look(&mut s, 100);
    let told = report(&plan, "first");
    assert!(
        told.binding.contains("queue q holds 6 of the 8"),
        "{}",
        told.binding
    );
    let told = told.estimate.unwrap();
    assert_eq!(told.likely, at(1000));
    assert!(told.earliest <= told.likely && told.likely <= told.latest);
}

#[test]
fn the_next_in_line_is_estimated_after_the_first_has_taken_its_part() {
    let mut s = held_back();
    // 4 of the 8 are left beside the first from then on, until it ends after 500 s.
    for (name, gpus, age) in [("second", 3, 100), ("third", 3, 90)] {
        arrive(
            &mut s,
            &Gang {
                name,
                gpus,
                age,
                ..GANG
            },
        );
    }
    let plan = look(&mut s, 100);
    assert_eq!(report(&plan, "second").estimate.unwrap().likely, at(1000));
    assert_eq!(report(&plan, "third").estimate.unwrap().likely, at(1500));
}

#[test]
fn smaller_gangs_start_before_it_where_they_end_in_time_or_leave_it_enough() {
    let mut s = held_back();
    arrive(
        &mut s,
        &Gang {
            name: "short",
            walltime: 900,
            age: 100,
            ..GANG
        },
    );
    s.apply(queue_with("other", |_| {}));
    arrive(
        &mut s,
        &Gang {
            name: "elsewhere",
            queue: "other",
            walltime: 9000,
            ..GANG
        },
    );
    let plan = s.plan(at(1));
    let names: Vec<String> = bound(&plan).into_keys().collect();
    assert_eq!(names, ["elsewhere-0", "short-0"]);
    run(&mut s, &plan, 1, at(1));
    // Beside the first gang's 4 GPUs, 4 of the 8 are left from 1000 s on: one more gang may stay.
    arrive(
        &mut s,
        &Gang {
            name: "long",
            walltime: 5000,
            age: 50,
            ..GANG
        },
    );
    let plan = s.plan(at(2));
    let names: Vec<String> = bound(&plan).into_keys().collect();
    assert_eq!(names, ["long-0"]);
}

#[test]
fn gangs_that_would_leave_it_too_little_wait_although_the_limit_has_room() {
    let mut s = held_back_wanting(8);
    arrive(
        &mut s,
        &Gang {
            name: "long",
            walltime: 5000,
            age: 100,
            ..GANG
        },
    );
    arrive(
        &mut s,
        &Gang {
            name: "short",
            walltime: 900,
            age: 50,
            ..GANG
        },
    );
    let plan = s.plan(at(1));
    let names: Vec<String> = bound(&plan).into_keys().collect();
    assert_eq!(names, ["short-0"]);
    run(&mut s, &plan, 1, at(1));
    let why = &report(&plan, "long").binding;
    assert!(why.contains("ns/first"), "{why}");
    // Once the first gang starts, it is the other one's turn.
    for (group, gpus) in [("running", 6), ("short", 1)] {
        let name = format!("{group}-0");
        s.apply(pod_with(&name, Some(group), gpus, |pod| {
            pod["spec"]["nodeName"] = json!("n0");
            pod["status"] = json!({"phase": "Succeeded"});
        }));
        s.apply(pod_gone(&name));
        s.apply(Event::PodGroupGone("ns".into(), group.into()));
    }
    let plan = s.plan(at(901));
    let names: Vec<String> = bound(&plan).into_keys().collect();
    assert_eq!(names, ["first-0"]);
    run(&mut s, &plan, 8, at(901));
    let plan = s.plan(at(902));
    assert!(
        report(&plan, "long")
            .binding
            .contains("queue q holds 8 of the 8")
    );
}

#[test]
fn a_users_own_limit_counts_only_what_that_user_holds() {
    let mut s = Scheduler::new(Config {
        reserve_after: SignedDuration::ZERO,
        ..Config::default()
    });
    s.apply(node("n0", 8));
    s.apply(queue_with("q", |queue| {
        queue["metadata"]["annotations"] =
            json!({"muster.io/user-limit": "{\"nvidia.com/gpu\": \"4\"}"});
    }));
    arrive(
        &mut s,
        &Gang {
            name: "running",
            gpus: 3,
            walltime: 1000,
            age: 300,
            ..GANG
        },
    );
    let plan = s.plan(now());
    run(&mut s, &plan, 3, now());
    arrive(
        &mut s,
        &Gang {
            name: "first",
            gpus: 4,
            age: 200,
            ..GANG
        },
    );
    s.plan(now());
    let plan = look(&mut s, 100);
    assert_eq!(report(&plan, "first").estimate.unwrap().likely, at(1000));
}

/// Members of one GPU each, and their declared run time.
#[derive(Clone, Copy, Debug)]
struct Job {
    arrival: i64,
    members: usize,
    seconds: i64,
}

/// The running and the waiting gangs.
struct World {
    s: Scheduler,
    jobs: Vec<Job>,
    /// Start and nodes of the running gangs.
    running: BTreeMap<usize, (i64, Vec<(String, String)>)>,
    waiting: BTreeSet<usize>,
    started: BTreeMap<usize, i64>,
}

/// What a limit of 8 GPUs leaves.
const LIMIT: usize = 8;

fn name(job: usize) -> String {
    format!("j{job:02}")
}

impl World {
    fn new(jobs: Vec<Job>) -> World {
        let mut s = scheduler();
        s.apply(node("n2", 8));
        World {
            s,
            jobs,
            running: BTreeMap::new(),
            waiting: BTreeSet::new(),
            started: BTreeMap::new(),
        }
    }

    fn arrive(&mut self, job: usize) {
        let (group, what) = (name(job), self.jobs[job]);
        self.s
            .apply(group_with(&group, what.members as i32, |object| {
                object["spec"]["queue"] = json!("q");
                object["metadata"]["creationTimestamp"] = json!(at(what.arrival).to_string());
                object["metadata"]["annotations"] =
                    json!({"muster.io/walltime": what.seconds.to_string()});
            }));
        for i in 0..what.members {
            self.s.apply(pod(&format!("{group}-{i}"), &group, 1));
        }
        self.waiting.insert(job);
    }

    fn end(&mut self, job: usize) {
        let Some((_, places)) = self.running.remove(&job) else {
            return;
        };
        for (pod, node) in places {
            self.s.apply(pod_with(&pod, Some(&name(job)), 1, |object| {
                object["spec"]["nodeName"] = json!(node);
                object["status"] = json!({"phase": "Succeeded"});
            }));
            self.s.apply(pod_gone(&pod));
        }
        self.s.apply(Event::PodGroupGone("ns".into(), name(job)));
    }

    fn plan(&mut self, second: i64) {
        let plan = self.s.plan(at(second));
        for bind in &plan.binds {
            let job: usize = bind.group.name[1..].parse().unwrap();
            self.waiting.remove(&job);
            self.started.entry(job).or_insert(second);
            let run = self.running.entry(job).or_insert((second, Vec::new()));
            run.1.push((bind.pod.name.clone(), bind.node.clone()));
            self.s.apply(pod_with(
                &bind.pod.name,
                Some(&bind.group.name),
                1,
                |object| {
                    object["spec"]["nodeName"] = json!(bind.node);
                    object["status"] =
                        json!({"phase": "Running", "startTime": at(second).to_string()});
                },
            ));
        }
    }

    /// When the gangs that run now will have left the job enough, if no other gang starts.
    fn due(&self, job: usize, now: i64) -> i64 {
        let mut ends: Vec<(i64, usize)> = self
            .running
            .iter()
            .map(|(other, (start, _))| {
                (start + self.jobs[*other].seconds, self.jobs[*other].members)
            })
            .collect();
        ends.sort_unstable();
        let mut left = LIMIT - ends.iter().map(|(_, members)| members).sum::<usize>();
        let mut ends = ends.into_iter();
        let mut due = now;
        while left < self.jobs[job].members {
            let (end, members) = ends.next().unwrap();
            left += members;
            due = end;
        }
        due
    }
}

/// Plays a trace, in which no gang may start after the time that was due when it was first in line.
fn keeps_its_dues(jobs: Vec<Job>) -> Result<(), TestCaseError> {
    let mut world = World::new(jobs);
    let all = world.jobs.iter().enumerate();
    let mut arrivals: BTreeSet<(i64, usize)> = all.map(|(job, what)| (what.arrival, job)).collect();
    // The gangs that were first in line, and when each could start at that time.
    let mut dues: BTreeMap<usize, i64> = BTreeMap::new();
    for _ in 0..100 {
        let running = world.running.iter();
        let ends = running.map(|(job, (start, _))| start + world.jobs[*job].seconds);
        let Some(now) = ends.chain(arrivals.first().map(|first| first.0)).min() else {
            break;
        };
        let over: Vec<usize> = world
            .running
            .iter()
            .filter(|(job, (start, _))| start + world.jobs[**job].seconds <= now)
            .map(|(job, _)| *job)
            .collect();
        for job in over {
            world.end(job);
        }
        while let Some((_, job)) = arrivals.first().copied().filter(|first| first.0 <= now) {
            arrivals.pop_first();
            world.arrive(job);
        }
        world.plan(now);
        let waiting = world.waiting.iter();
        let first = waiting.min_by_key(|job| (world.jobs[**job].arrival, **job));
        if let Some(first) = first.copied() {
            let due = world.due(first, now);
            dues.entry(first).or_insert(due);
        }
    }
    for (job, due) in dues {
        let started = world.started[&job];
        prop_assert!(started <= due, "{job} by {due}, at {started}");
    }
    prop_assert_eq!(world.started.len(), world.jobs.len());
    Ok(())
}

/// Of gangs that arrived together one starts, and another was held back for it until then: no gang
/// behind both may start first. Found by the property below.
#[test]
fn a_gang_held_back_for_one_that_starts_is_not_overtaken_by_a_later_one() {
    let all = [
        (21, 6, 1),
        (10, 1, 61),
        (10, 6, 1),
        (71, 6, 1),
        (0, 8, 71),
        (21, 2, 1),
        (21, 2, 60),
    ];
    let job = |(arrival, members, seconds)| Job {
        arrival,
        members,
        seconds,
    };
    keeps_its_dues(all.map(job).to_vec()).unwrap();
}

proptest! {
    #![proptest_config(cases(192))]

    #[test]
    fn no_gang_that_overtakes_the_first_one_blocked_by_a_limit_delays_it(
        jobs in proptest::collection::vec(
            (0..200i64, 1..=LIMIT, 1..200i64)
                .prop_map(|(arrival, members, seconds)| Job { arrival, members, seconds }),
            1..16,
        ),
    ) {
        keeps_its_dues(jobs)?;
    }
}
