//! What holds of gangs on the network, judged by counting: a gang that must be in one domain is
//! placed exactly if some domain holds it, slices are whole, no gang waits that would fit, and a
//! scheduler that learns of things in another order decides the same.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use scheduler::{Config, Event, Scheduler};
use serde_json::json;
use support::*;

const LEVELS: [&str; 3] = ["zone", "rack", "kubernetes.io/hostname"];

#[derive(Clone, Debug)]
struct Host {
    zone: u8,
    rack: u8,
    gpus: i64,
}

#[derive(Clone, Debug)]
struct Job {
    members: usize,
    gpus: i64,
    required: Option<usize>,
    preferred: Option<usize>,
    slice: Option<(usize, usize)>,
    /// This gang ends before the next one comes.
    ends: bool,
}

fn host() -> impl Strategy<Value = Host> {
    (0..3u8, 0..3u8, 0..7i64).prop_map(|(zone, rack, gpus)| Host { zone, rack, gpus })
}

fn job() -> impl Strategy<Value = Job> {
    (
        1..12usize,
        1..4i64,
        proptest::option::of(0..3usize),
        proptest::option::of(0..3usize),
        proptest::option::weighted(0.3, (0..2usize, 2..4usize)),
        any::<bool>(),
    )
        .prop_map(|(members, gpus, required, preferred, slice, ends)| Job {
            // Slices divide the gang.
            members: slice.map_or(members, |(_, size)| members.div_ceil(size) * size),
            gpus,
            required,
            preferred,
            // Never wider than the level asked for: that would be refused.
            slice: slice.map(|(level, size)| {
                let asked = required.or(preferred).unwrap_or(0);
                (level.max(asked), size)
            }),
            ends,
        })
}

fn path(name: &str, host: &Host, level: usize) -> String {
    match level {
        0 => format!("{}", host.zone),
        1 => format!("{}/{}", host.zone, host.rack),
        _ => name.to_owned(),
    }
}

/// How many pods each domain of a level holds.
fn room(
    hosts: &BTreeMap<String, Host>,
    free: &BTreeMap<String, i64>,
    level: usize,
    gpus: i64,
) -> BTreeMap<String, usize> {
    let mut rooms = BTreeMap::new();
    for (name, host) in hosts {
        *rooms.entry(path(name, host, level)).or_default() += (free[name] / gpus) as usize;
    }
    rooms
}

/// Can the job be placed at all?
fn fits(hosts: &BTreeMap<String, Host>, free: &BTreeMap<String, i64>, job: &Job) -> bool {
    let within = |inside: &BTreeMap<String, Host>| match job.slice {
        None => room(inside, free, 2, job.gpus).values().sum::<usize>() >= job.members,
        Some((level, size)) => {
            let whole = room(inside, free, level, job.gpus);
            whole.values().map(|n| n - n % size).sum::<usize>() >= job.members
        }
    };
    let Some(level) = job.required else {
        return within(hosts);
    };
    let mut domains: BTreeMap<String, BTreeMap<String, Host>> = BTreeMap::new();
    for (name, host) in hosts {
        domains
            .entry(path(name, host, level))
            .or_default()
            .insert(name.clone(), host.clone());
    }
    domains.values().any(within)
}

fn events(name: &str, job: &Job) -> Vec<Event> {
    let level = |at: usize| LEVELS[at];
    let slices: Vec<_> = job
        .slice
        .iter()
        .map(|(at, size)| json!({"level": level(*at), "size": size}))
        .collect();
    let request = json!({
        "required": job.required.map(level), "preferred": job.preferred.map(level), "slices": slices,
    });
    let mut events = vec![group_with(name, job.members as i32, |group| {
        group["metadata"]["annotations"] = json!({"muster.io/topology": request.to_string()});
    })];
    events.extend((0..job.members).map(|i| pod(&format!("{name}-{i}"), name, job.gpus)));
    events
}

fn host_event(name: &str, host: &Host) -> Event {
    node_with(name, host.gpus, |node| {
        node["metadata"]["labels"]["zone"] = json!(host.zone.to_string());
        node["metadata"]["labels"]["rack"] = json!(host.rack.to_string());
    })
}

fn fresh() -> Scheduler {
    Scheduler::new(Config {
        topology: LEVELS.map(str::to_owned).to_vec(),
        ..Config::default()
    })
}

fn run(hosts: &[Host], jobs: &[Job]) -> Result<(), TestCaseError> {
    let hosts: BTreeMap<String, Host> = hosts
        .iter()
        .enumerate()
        .map(|(i, host)| (format!("n{i}"), host.clone()))
        .collect();
    let mut s = fresh();
    let mut free: BTreeMap<String, i64> = BTreeMap::new();
    for (name, host) in &hosts {
        s.apply(host_event(name, host));
        free.insert(name.clone(), host.gpus);
    }
    let mut waiting: Vec<(String, Job)> = Vec::new();
    for (i, job) in jobs.iter().enumerate() {
        let name = format!("j{i}");
        events(&name, job)
            .into_iter()
            .for_each(|event| s.apply(event));
        waiting.push((name, job.clone()));
        let plan = s.plan(now());
        let mut where_to: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
        for bind in &plan.binds {
            let spots = where_to.entry(bind.group.name.clone()).or_default();
            *spots.entry(bind.node.clone()).or_default() += 1;
        }
        let mut still = Vec::new();
        for (name, job) in waiting {
            let Some(spots) = where_to.get(&name) else {
                prop_assert!(
                    !fits(&hosts, &free, &job),
                    "{name} {job:?} waits although it fits in {free:?}"
                );
                prop_assert!(plan.reports.iter().any(|report| report.group == name));
                still.push((name, job));
                continue;
            };
            prop_assert_eq!(spots.values().sum::<usize>(), job.members, "whole");
            if let Some(level) = job.required {
                let mut domains: Vec<String> =
                    spots.keys().map(|at| path(at, &hosts[at], level)).collect();
                domains.dedup();
                prop_assert_eq!(domains.len(), 1, "one domain: {:?}", spots);
            }
            if let Some((level, size)) = job.slice {
                let mut domains: BTreeMap<String, usize> = BTreeMap::new();
                for (at, n) in spots {
                    *domains.entry(path(at, &hosts[at], level)).or_default() += n;
                }
                prop_assert!(
                    domains.values().all(|n| n % size == 0),
                    "whole slices: {domains:?}"
                );
            }
            for (at, n) in spots {
                let left = free.get_mut(at).unwrap();
                *left -= *n as i64 * job.gpus;
                prop_assert!(*left >= 0, "no node holds more than it has");
            }
            if job.ends {
                for (at, n) in spots {
                    *free.get_mut(at).unwrap() += *n as i64 * job.gpus;
                }
                for i in 0..job.members {
                    s.apply(pod_gone(&format!("{name}-{i}")));
                }
                s.apply(Event::PodGroupGone("ns".into(), name));
            }
        }
        // Room that came back is for the next plan.
        let plan = s.plan(now());
        for bind in &plan.binds {
            let job = &jobs[bind.group.name[1..].parse::<usize>().unwrap()];
            *free.get_mut(&bind.node).unwrap() -= job.gpus;
        }
        still.retain(|(name, _)| plan.binds.iter().all(|bind| bind.group.name != *name));
        waiting = still;
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn a_gang_is_placed_exactly_if_the_network_holds_it_as_it_asks(
        hosts in proptest::collection::vec(host(), 1..8),
        jobs in proptest::collection::vec(job(), 1..8),
    ) {
        run(&hosts, &jobs)?;
    }

    #[test]
    fn the_order_in_which_nodes_are_told_of_decides_nothing(
        hosts in proptest::collection::vec(host(), 1..8),
        job in job(),
        turn in 0..8usize,
    ) {
        let named: Vec<(String, Host)> =
            hosts.iter().enumerate().map(|(i, host)| (format!("n{i}"), host.clone())).collect();
        let (mut a, mut b) = (fresh(), fresh());
        for (name, host) in &named {
            a.apply(host_event(name, host));
        }
        // The other first knew them elsewhere, in another order.
        let mut turned = named.clone();
        let turns = turn % turned.len();
        turned.rotate_left(turns);
        for (i, (name, host)) in turned.iter().enumerate() {
            let elsewhere = Host { zone: (i % 3) as u8, rack: host.zone, gpus: host.gpus };
            b.apply(host_event(name, &elsewhere));
        }
        b.plan(now());
        for (name, host) in turned.iter().rev() {
            b.apply(host_event(name, host));
        }
        for event in events("j0", &job) {
            a.apply(event.clone());
            b.apply(event);
        }
        prop_assert_eq!(a.plan(now()).binds, b.plan(now()).binds);
    }
}
