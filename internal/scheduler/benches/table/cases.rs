//! The cases of the table.

use std::time::Duration;

use jiff::Timestamp;
use scheduler::{Config, Event, Plan, Scheduler};
use serde_json::json;

use crate::world::{
    GPUS_EACH, Pods, QUEUES, SPINE, ZONE, group, leaf, median, queue_named, resident,
    running_group, tell_cluster, tell_gangs, timed,
};
use crate::{Case, Figure};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const RUNS: usize = 5;
const SHORT_RUNS: usize = 25;
const GANG_MAX: usize = 512;

fn millis(most: u64) -> Option<Figure> {
    Some(Figure::Time(Duration::from_millis(most)))
}

pub(crate) fn all() -> Vec<Case> {
    vec![
        Case {
            word: "first",
            name: "ten pods a node in gangs of 1 to 512, 50 queues in 3 levels: placed",
            asked: Some(Figure::Rate(200_000, Duration::from_secs(1))),
            run: first_plan,
        },
        Case {
            word: "placed",
            name: "one gang of 4,096 (or 3 a node) placed in one zone",
            asked: millis(20),
            run: large_gang_placed,
        },
        Case {
            word: "refused",
            name: "the same gang told that no spine holds it",
            asked: millis(5),
            run: large_gang_refused,
        },
        Case {
            word: "unchanged",
            name: "a plan when nothing changed",
            asked: Some(Figure::Time(Duration::from_micros(100))),
            run: unchanged,
        },
        Case {
            word: "arrival",
            name: "one pod comes to the full cluster, two a node wait in gangs",
            asked: millis(1),
            run: arrival_by_gangs,
        },
        Case {
            word: "lone",
            name: "the same where two single pods a node wait",
            asked: millis(1),
            run: arrival_by_singles,
        },
        Case {
            word: "ends",
            name: "one pod of the full cluster ends, two single pods a node wait",
            asked: None,
            run: one_ends,
        },
        Case {
            word: "reclaim",
            name: "reclaim for a gang of 512 GPUs from 4,000 running pods",
            asked: millis(50),
            run: reclaim,
        },
        Case {
            word: "start",
            name: "start from nothing with 14 pods a node in 8.7 jobs, to the first decision",
            asked: millis(3_000),
            run: start,
        },
        Case {
            word: "memory",
            name: "memory for that state",
            asked: Some(Figure::Bytes(400 << 20)),
            run: memory,
        },
    ]
}

fn cluster(nodes: usize) -> Scheduler {
    let mut scheduler = Scheduler::new(Config::default());
    tell_cluster(nodes, |event| scheduler.apply(event));
    scheduler
}

fn first_plan(nodes: usize) -> Option<Figure> {
    let mut fresh = cluster(nodes);
    tell_gangs(&Pods::new(), nodes * 10, GANG_MAX, |event| {
        fresh.apply(event)
    });
    let mut placed = 0;
    let time = median(RUNS, || {
        let mut scheduler = fresh.clone();
        let (time, plan) = timed(|| scheduler.plan(NOW));
        placed = plan.binds.len();
        time
    });
    Some(Figure::Rate(placed, time))
}

fn with_large_gang(nodes: usize, level: &str) -> (Scheduler, usize) {
    let members = 4_096.min(nodes * 3);
    let mut scheduler = cluster(nodes);
    scheduler.plan(NOW);
    scheduler.apply(group("big", members, &leaf(0), Some(level)));
    let pods = Pods::new();
    for i in 0..members {
        scheduler.apply(pods.event(&format!("big-{i}"), Some("big"), None, 0));
    }
    (scheduler, members)
}

fn large_gang_placed(nodes: usize) -> Option<Figure> {
    let (fresh, members) = with_large_gang(nodes, ZONE);
    let time = median(RUNS, || {
        let mut scheduler = fresh.clone();
        let (time, plan) = timed(|| scheduler.plan(NOW));
        assert_eq!(plan.binds.len(), members);
        time
    });
    Some(Figure::Time(time))
}

fn large_gang_refused(nodes: usize) -> Option<Figure> {
    // A spine has 2,048 GPUs: smaller clusters have one, and it is filled up first.
    let (mut fresh, members) = with_large_gang(nodes, SPINE);
    if members < 4_096 {
        let pods = Pods::new();
        for i in 0..nodes * GPUS_EACH - members + 1 {
            fresh.apply(pods.event(&format!("before-{i}"), None, Some(&leaf(1)), 0));
        }
        fresh.apply(Event::PodGroupGone("ns".into(), "big".into()));
        fresh.plan(NOW);
        fresh.apply(group("big", members, &leaf(0), Some(SPINE)));
    }
    let time = median(RUNS, || {
        let mut scheduler = fresh.clone();
        let (time, plan) = timed(|| scheduler.plan(NOW));
        assert!(plan.binds.is_empty() && plan.reports.len() == 1);
        time
    });
    Some(Figure::Time(time))
}

/// Every GPU is taken, and so many more pods a node wait.
fn full(nodes: usize, waiting: usize, largest: usize) -> Scheduler {
    let mut scheduler = cluster(nodes);
    let pods = Pods::new();
    for at in 0..nodes * GPUS_EACH {
        let name = format!("old-{at:05}");
        scheduler.apply(running_group(&name, 1, &leaf(at)));
        let (node, gpu) = (at / GPUS_EACH, at % GPUS_EACH);
        scheduler.apply(pods.running(&format!("{name}-0"), &name, at, node, gpu));
    }
    settle(&mut scheduler, &pods);
    let mut made = 0;
    let mut gang = 0;
    while made < nodes * waiting {
        let members = (gang * 37 % largest + 1).min(nodes * waiting - made);
        let name = format!("late-{gang:05}");
        if largest > 1 {
            scheduler.apply(group(&name, members, &leaf(gang), None));
        }
        for i in 0..members {
            scheduler.apply(match largest {
                1 => pods.event(&name, None, Some(&leaf(gang)), gang),
                _ => pods.event(&format!("{name}-{i}"), Some(&name), None, gang),
            });
        }
        made += members;
        gang += 1;
    }
    settle(&mut scheduler, &pods);
    // Victims may have left more room than the preemptors needed, and a queue whose gangs are too
    // large for its remaining share is still entitled to it: no single pod may be placed by that.
    let mut refused = 0;
    for i in 0..nodes * GPUS_EACH {
        let name = format!("fill-{i:05}");
        scheduler.apply(pods.event(&name, None, Some(&leaf(i)), i));
        let plan = scheduler.plan(NOW);
        if plan.binds.is_empty() && plan.evictions.is_empty() {
            scheduler.apply(Event::PodGone("ns".into(), name));
            refused += 1;
            if refused == QUEUES {
                break;
            }
            continue;
        }
        refused = 0;
        carry_out(&mut scheduler, &pods, &plan);
    }
    settle(&mut scheduler, &pods);
    scheduler
}

/// Carries out plans until nothing is left to do: evicted pods disappear with their jobs, and bound
/// pods run.
fn settle(scheduler: &mut Scheduler, pods: &Pods) {
    for _ in 0..1_000 {
        let plan = scheduler.plan(NOW);
        carry_out(scheduler, pods, &plan);
        if plan.unchanged || (plan.requeue_at.is_none() && plan.binds.is_empty()) {
            return;
        }
    }
}

fn carry_out(scheduler: &mut Scheduler, pods: &Pods, plan: &Plan) {
    for eviction in &plan.evictions {
        let (pod, group) = (&eviction.pod, &eviction.group);
        scheduler.apply(Event::PodGone(pod.namespace.clone(), pod.name.clone()));
        let gone = Event::PodGroupGone(group.namespace.clone(), group.name.clone());
        scheduler.apply(gone);
    }
    for bind in &plan.binds {
        let kind = bind.pod.name.split('-').nth(1);
        let kind = kind.and_then(|kind| kind.parse().ok()).unwrap_or(0);
        scheduler.apply(pods.bound(bind, kind));
    }
}

fn unchanged(nodes: usize) -> Option<Figure> {
    let mut scheduler = full(nodes, 2, GANG_MAX);
    Some(Figure::Time(median(SHORT_RUNS, || {
        timed(|| scheduler.plan(NOW)).0
    })))
}

fn arrival(mut scheduler: Scheduler) -> Duration {
    let pods = Pods::new();
    let mut i = 0;
    median(SHORT_RUNS, || {
        i += 1;
        let event = pods.event(&format!("newcomer-{i}"), None, Some(&leaf(i)), i);
        let (time, plan) = timed(|| {
            scheduler.apply(event);
            scheduler.plan(NOW)
        });
        assert!(plan.binds.is_empty() && plan.evictions.is_empty() && !plan.unchanged);
        time
    })
}

fn arrival_by_gangs(nodes: usize) -> Option<Figure> {
    Some(Figure::Time(arrival(full(nodes, 2, GANG_MAX))))
}

fn arrival_by_singles(nodes: usize) -> Option<Figure> {
    Some(Figure::Time(arrival(full(nodes, 2, 1))))
}

fn one_ends(nodes: usize) -> Option<Figure> {
    let mut scheduler = full(nodes, 2, 1);
    let mut i = 0;
    Some(Figure::Time(median(SHORT_RUNS, || {
        i += 1;
        let name = format!("old-{i:05}-0");
        let (time, plan): (Duration, Plan) = timed(|| {
            scheduler.apply(Event::PodGone("ns".into(), name));
            scheduler.plan(NOW)
        });
        assert_eq!(plan.binds.len(), 1);
        time
    })))
}

/// One queue holds 4,000 GPUs with running single pods (or all of a smaller cluster), another is
/// entitled to them; the rest of the cluster runs what is not to be had.
fn reclaim(nodes: usize) -> Option<Figure> {
    let victims = 4_000.min(nodes * GPUS_EACH);
    let wanted = 512.min(victims / 2);
    let mut fresh = Scheduler::new(Config::default());
    (0..nodes).for_each(|i| fresh.apply(crate::world::node(i)));
    let all = nodes * GPUS_EACH;
    let deserved = |gpus: usize| json!({"deserved": {"nvidia.com/gpu": gpus.to_string(), "cpu": "10000000", "memory": "100000Ti"}});
    fresh.apply(queue_named("greedy", deserved(victims - wanted)));
    fresh.apply(queue_named("entitled", deserved(all - victims + wanted)));
    let pods = Pods::new();
    for at in 0..victims {
        let name = format!("old-{at:05}");
        fresh.apply(running_group(&name, 1, "greedy"));
        let (node, gpu) = (at / GPUS_EACH, at % GPUS_EACH);
        fresh.apply(pods.running(&format!("{name}-0"), &name, 0, node, gpu));
    }
    for node in victims / GPUS_EACH..nodes {
        let name = format!("own-{node:05}");
        fresh.apply(running_group(&name, GPUS_EACH, "entitled"));
        for gpu in 0..GPUS_EACH {
            fresh.apply(pods.running(&format!("{name}-{gpu}"), &name, 0, node, gpu));
        }
    }
    fresh.plan(NOW);
    fresh.apply(group("new", wanted, "entitled", None));
    for i in 0..wanted {
        fresh.apply(pods.event(&format!("new-{i}"), Some("new"), None, 0));
    }
    let time = median(RUNS, || {
        let mut scheduler = fresh.clone();
        let (time, plan) = timed(|| scheduler.plan(NOW));
        assert_eq!(plan.evictions.len(), wanted);
        time
    });
    Some(Figure::Time(time))
}

/// Jobs of which most have one pod: nine tenths of the cluster run, the rest of the pods wait.
fn tell_everything(nodes: usize, mut tell: impl FnMut(Event)) {
    tell_cluster(nodes, &mut tell);
    let pods = Pods::new();
    let jobs = nodes * 87 / 10;
    let large = nodes * 7 / 10;
    let total = nodes * 14;
    let running = nodes * GPUS_EACH * 9 / 10;
    // Single pods, most of which run, then gangs of eight and a few more, which wait.
    let singles = jobs - large;
    let mut made = 0;
    for job in 0..jobs {
        let members = if job < singles {
            1
        } else {
            (total - made) / (jobs - job)
        };
        let name = format!("job-{job:05}");
        tell(if made < running {
            running_group(&name, members, &leaf(job))
        } else {
            group(&name, members, &leaf(job), None)
        });
        for i in 0..members {
            let pod = format!("{name}-worker-{i}");
            tell(if made < running {
                pods.running(&pod, &name, job, made % nodes, made / nodes)
            } else {
                pods.event(&pod, Some(&name), None, job)
            });
            made += 1;
        }
    }
}

fn start(nodes: usize) -> Option<Figure> {
    let time = median(3, || {
        let mut events = Vec::new();
        tell_everything(nodes, |event| events.push(event));
        let (time, _) = timed(|| {
            let mut scheduler = Scheduler::new(Config::default());
            for event in events {
                scheduler.apply(event);
            }
            let plan = scheduler.plan(NOW);
            assert!(!plan.binds.is_empty());
            (scheduler, plan)
        });
        time
    });
    Some(Figure::Time(time))
}

/// What a process of its own holds more by that state than before.
fn memory(nodes: usize) -> Option<Figure> {
    if std::env::var("MEMORY_OF").is_err() {
        let own = std::env::current_exe().ok()?;
        let out = std::process::Command::new(own)
            .env("MEMORY_OF", "1")
            .env("CASES", "memory")
            .env("SIZES", nodes.to_string())
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&out.stdout);
        let bytes = text.lines().find_map(|line| line.strip_prefix("bytes "))?;
        return Some(Figure::Bytes(bytes.parse().ok()?));
    }
    let before = resident();
    let mut scheduler = Scheduler::new(Config::default());
    tell_everything(nodes, |event| scheduler.apply(event));
    let plan = scheduler.plan(NOW);
    let waiting = plan.reports.len();
    drop(plan);
    println!("bytes {}", resident() - before);
    eprintln!("{waiting} gangs wait");
    drop(scheduler);
    None
}
