//! Evictions compared with brute force, on clusters so small that every set of victims can be
//! tried. One pod gets what its queue deserves exactly where some permitted set of victims makes
//! room. (For a gang of several members this holds nearly always: the search does not try every
//! choice of nodes.) The victim set is minimal, and the preemptor starts. What is permitted, and
//! what fits, is defined here independently of the scheduler.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use scheduler::{EvictionReason, Plan, Scheduler};
use serde_json::json;
use support::*;

/// A running gang, or the waiting gang that seeks room.
#[derive(Clone, Debug)]
struct Gang {
    queue: usize,
    priority: i32,
    min: usize,
    members: usize,
    gpus: i64,
    fixed: bool,
    /// The node of its first member, if there is room.
    near: usize,
}

#[derive(Clone, Debug)]
struct Case {
    nodes: Vec<i64>,
    /// What each queue deserves, as a part of the cluster.
    deserved: [i64; 2],
    /// Whether that is also guaranteed to them.
    guaranteed: bool,
    running: Vec<Gang>,
    taker: Gang,
}

const QUEUES: [&str; 2] = ["qa", "qb"];

fn gang(most: usize) -> impl Strategy<Value = Gang> {
    (
        0..2usize,
        0..3i32,
        1..=most,
        0..3usize,
        1..4i64,
        proptest::bool::weighted(0.1),
        0..3usize,
    )
        .prop_map(|(queue, priority, min, more, gpus, fixed, near)| Gang {
            queue,
            priority,
            min,
            members: min + more,
            gpus,
            fixed,
            near,
        })
}

fn case(members: usize) -> impl Strategy<Value = Case> {
    (
        proptest::collection::vec(1..6i64, 1..4),
        0..=8i64,
        any::<bool>(),
        proptest::collection::vec(gang(2), 1..6),
        gang(members),
    )
        .prop_map(|(nodes, part, guaranteed, running, taker)| {
            let all: i64 = nodes.iter().sum();
            let first = all * part / 8;
            Case {
                nodes,
                deserved: [first, all - first],
                guaranteed,
                running,
                // The preemptor needs all its members, and it is the only waiting gang.
                taker: Gang {
                    queue: 0,
                    priority: taker.priority + 1,
                    members: taker.min,
                    ..taker
                },
            }
        })
}

/// The node of each running member, by gang and rank.
#[derive(Clone, Debug, Default)]
struct World {
    places: BTreeMap<(usize, usize), usize>,
}

/// Evicted members, by gang and rank.
type Victims = BTreeSet<(usize, usize)>;

impl Case {
    fn world(&self) -> World {
        let mut world = World::default();
        for (at, gang) in self.running.iter().enumerate() {
            let mut tried = world.clone();
            let mut there = 0;
            for rank in 0..gang.members {
                let nodes = self.nodes.len();
                let all = (0..nodes).map(|i| (gang.near + rank + i) % nodes);
                let Some(node) = all
                    .into_iter()
                    .find(|node| self.free(&tried, *node) >= gang.gpus)
                else {
                    break;
                };
                tried.places.insert((at, rank), node);
                there += 1;
            }
            if there >= gang.min {
                world = tried;
            }
        }
        world
    }

    fn free(&self, world: &World, node: usize) -> i64 {
        let on = world.places.iter().filter(|(_, at)| **at == node);
        self.nodes[node]
            - on.map(|((gang, _), _)| self.running[*gang].gpus)
                .sum::<i64>()
    }

    fn gpus(&self, victims: &Victims) -> i64 {
        victims
            .iter()
            .map(|(gang, _)| self.running[*gang].gpus)
            .sum()
    }

    fn of_queue(&self, queue: usize, pods: impl Iterator<Item = (usize, usize)>) -> i64 {
        let own = pods.filter(|(gang, _)| self.running[*gang].queue == queue);
        self.gpus(&own.collect())
    }

    fn held(&self, world: &World, queue: usize) -> i64 {
        self.of_queue(queue, world.places.keys().copied())
    }

    fn need(&self) -> i64 {
        self.taker.gpus * self.taker.members as i64
    }

    /// Whether the preemptor fits without these members.
    fn fits(&self, world: &World, victims: &Victims) -> bool {
        let mut left = world.clone();
        left.places.retain(|pod, _| !victims.contains(pod));
        let holds = (0..self.nodes.len()).map(|node| self.free(&left, node) / self.taker.gpus);
        holds.sum::<i64>() >= self.taker.members as i64
    }

    /// The sets of members that one gang may lose: any of its surplus members, or all members.
    fn losses(&self, world: &World, at: usize) -> Vec<Victims> {
        let gang = &self.running[at];
        let there = world.places.keys().filter(|(gang, _)| *gang == at).count();
        let mut all = vec![Victims::new()];
        if there == 0 || gang.fixed {
            return all;
        }
        for rank in gang.min..there {
            let with = all.clone().into_iter().map(|mut set| {
                set.insert((at, rank));
                set
            });
            all.extend(with.collect::<Vec<_>>());
        }
        all.push((0..there).map(|rank| (at, rank)).collect());
        all
    }

    /// Every set of victims that leaves no gang below its minimum.
    fn sets(&self, world: &World) -> Vec<Victims> {
        let mut sets = vec![Victims::new()];
        for at in 0..self.running.len() {
            let losses = self.losses(world, at);
            let each =
                |set: &Victims| -> Vec<Victims> { losses.iter().map(|more| set | more).collect() };
            sets = sets.iter().flat_map(each).collect();
        }
        sets
    }

    /// The units of eviction: each surplus member, and what is left of a gang.
    fn bites(&self, victims: &Victims) -> Vec<(usize, i64, bool)> {
        let mut bites = Vec::new();
        for (at, gang) in self.running.iter().enumerate() {
            let lost = victims.iter().filter(|(gang, _)| *gang == at).count() as i64;
            let whole = victims.contains(&(at, 0));
            let needed = if whole { gang.min as i64 } else { 0 };
            bites.extend((needed..lost).map(|_| (at, gang.gpus, !whole)));
            if whole {
                bites.push((at, needed * gang.gpus, true));
            }
        }
        bites
    }

    /// Whether the preemptor may evict these. `strictly`: for its queue's deserved amount, from the
    /// other queue.
    fn lawful(&self, world: &World, victims: &Victims, strictly: bool) -> bool {
        let held = [0, 1].map(|queue| self.held(world, queue));
        let lost = [0, 1].map(|queue| self.of_queue(queue, victims.iter().copied()));
        let own = held[0] - lost[0] + self.need();
        let other = held[1] - lost[1];
        let mut gangs = victims.iter().map(|(gang, _)| &self.running[*gang]);
        let juniors = gangs.all(|gang| gang.queue == 1 || gang.priority < self.taker.priority);
        // The preemptor's queue does not grow above its share by evictions.
        let modest = lost[0] == 0 || own <= held[0].max(self.deserved[0]);
        // The other queue was above its share until its last member was evicted.
        let bites = self.bites(victims);
        let last = bites
            .iter()
            .filter(|(gang, _, last)| *last && self.running[*gang].queue == 1);
        let last = last.map(|(_, gpus, _)| *gpus).max().unwrap_or(0);
        let rich = lost[1] == 0 || held[1] - (lost[1] - last) > self.deserved[1];
        let entitled = lost[1] == 0
            || own <= self.deserved[0]
            || !strictly && lost[0] > 0 && own * self.deserved[1] <= other * self.deserved[0];
        // What is guaranteed to the other queue is not available.
        let all: i64 = self.nodes.iter().sum();
        let kept =
            !self.guaranteed || own <= self.deserved[0] || own + other.max(self.deserved[1]) <= all;
        juniors && modest && rich && entitled && kept && (!strictly || lost[0] == 0)
    }

    fn notify(&self, world: &World) -> Scheduler {
        let mut s = scheduler();
        for priority in 0..5 {
            s.apply(priority_class(&format!("p{priority}"), priority));
        }
        for (at, gpus) in self.nodes.iter().enumerate() {
            s.apply(node(&format!("n{at}"), *gpus));
        }
        for (name, gpus) in QUEUES.iter().zip(self.deserved) {
            s.apply(queue_with(name, |queue| {
                let gpus = json!(gpus.to_string());
                queue["spec"]["deserved"] =
                    json!({"nvidia.com/gpu": gpus, "cpu": "1000", "memory": "1000Ti"});
                if self.guaranteed {
                    queue["spec"]["guarantee"] = json!({"resource": {"nvidia.com/gpu": gpus}});
                }
                queue["metadata"]["annotations"] = json!({"muster.io/surplus-weight": "0"});
            }));
        }
        let mut group = |name: &str, gang: &Gang| {
            s.apply(group_with(name, gang.min as i32, |group| {
                group["spec"]["queue"] = json!(QUEUES[gang.queue]);
                group["spec"]["priorityClassName"] = json!(format!("p{}", gang.priority));
                group["metadata"]["annotations"] =
                    json!({"muster.io/preemptible": (!gang.fixed).to_string()});
            }));
        };
        for (at, gang) in self.running.iter().enumerate() {
            group(&format!("g{at}"), gang);
        }
        group("taker", &self.taker);
        for ((at, rank), node) in &world.places {
            let (group, gpus) = (format!("g{at}"), self.running[*at].gpus);
            s.apply(pod_with(
                &format!("{group}-{rank}"),
                Some(&group),
                gpus,
                |pod| {
                    let started = now() - jiff::SignedDuration::from_mins(10 + *at as i64);
                    pod["spec"]["nodeName"] = json!(format!("n{node}"));
                    pod["status"] = json!({"phase": "Running", "startTime": started.to_string()});
                },
            ));
        }
        for rank in 0..self.taker.members {
            s.apply(pod(&format!("taker-{rank}"), "taker", self.taker.gpus));
        }
        s
    }
}

/// Members of the preemptor that have a place.
fn placed(plan: &Plan) -> usize {
    let held = plan
        .reservations
        .iter()
        .filter(|held| held.group.name == "taker");
    let bound = plan.binds.iter().filter(|bind| bind.group.name == "taker");
    held.map(|held| held.pods.len()).sum::<usize>() + bound.count()
}

fn victims(plan: &Plan) -> Victims {
    let of = |name: &str| -> (usize, usize) {
        let (gang, rank) = name[1..].split_once('-').unwrap();
        (gang.parse().unwrap(), rank.parse().unwrap())
    };
    plan.evictions.iter().map(|one| of(&one.pod.name)).collect()
}

fn check(case: &Case, exact: bool) -> Result<(), TestCaseError> {
    let world = case.world();
    let mut s = case.notify(&world);
    let plan = s.plan(now());
    let gone = victims(&plan);
    let got = placed(&plan);
    prop_assert!(got == 0 || got == case.taker.members, "{got} are placed");
    prop_assert!(
        gone.is_empty() || got > 0,
        "{gone:?} are evicted and no gang is placed"
    );
    let moved = plan
        .evictions
        .iter()
        .any(|one| one.why == EvictionReason::Consolidated);
    let sets = case.sets(&world);
    if !gone.is_empty() && !moved {
        prop_assert!(
            sets.contains(&gone),
            "{gone:?} leave a gang below its minimum"
        );
        prop_assert!(
            case.lawful(&world, &gone, false),
            "{gone:?} may not all be evicted"
        );
        prop_assert!(
            case.fits(&world, &gone),
            "it does not fit with {gone:?} gone"
        );
        for fewer in sets
            .iter()
            .filter(|set| set.is_subset(&gone) && **set != gone)
        {
            let enough = case.fits(&world, fewer) && case.lawful(&world, fewer, false);
            prop_assert!(!enough, "{fewer:?} of {gone:?} would suffice");
        }
    }
    let deserves = case.held(&world, 0) + case.need() <= case.deserved[0];
    if got == 0 && deserves && exact {
        for set in &sets {
            let enough = case.fits(&world, set) && case.lawful(&world, set, true);
            prop_assert!(
                !enough,
                "it waits, and {set:?} could be evicted: {:?}",
                plan.reports
            );
        }
    }
    // The preemptor starts.
    for (gang, rank) in &gone {
        s.apply(pod_gone(&format!("g{gang}-{rank}")));
    }
    let then = s.plan(now());
    let bound = [&plan, &then].map(|plan| {
        bound(plan)
            .keys()
            .filter(|pod| pod.starts_with('t'))
            .count()
    });
    if got > 0 {
        prop_assert_eq!(bound[0] + bound[1], case.taker.members);
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn one_pod_gets_its_deserved_amount_if_any_victims_make_room_and_none_is_evicted_in_vain(
        case in case(1),
    ) {
        check(&case, true)?;
    }

    #[test]
    fn a_gang_evicts_no_more_than_it_needs(case in case(3)) {
        check(&case, false)?;
    }
}

#[test]
fn the_one_victim_that_makes_room_is_evicted_before_its_turn() {
    // Of the queue that holds one GPU too many, the surplus member would be evicted first, and no
    // gang after it; only the gang of two GPUs makes room for three on one node.
    let gang = |queue, priority, min, members, gpus, fixed, near| Gang {
        queue,
        priority,
        min,
        members,
        gpus,
        fixed,
        near,
    };
    let case = Case {
        nodes: vec![5, 3, 4],
        deserved: [7, 5],
        guaranteed: false,
        running: vec![
            gang(1, 0, 2, 4, 1, false, 1),
            gang(0, 0, 2, 4, 1, true, 1),
            gang(1, 0, 1, 1, 2, false, 0),
        ],
        taker: gang(0, 1, 1, 1, 3, false, 0),
    };
    check(&case, true).unwrap();
    let mut s = case.notify(&case.world());
    assert_eq!(victims(&s.plan(now())), Victims::from([(2, 0)]));
}
