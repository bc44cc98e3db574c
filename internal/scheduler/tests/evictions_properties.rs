//! What holds of evictions whatever happens: nobody goes unless somebody comes, nobody can be left
//! out of those who go, those within their rights lose nothing, and plans come to rest.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use scheduler::{Actions, Config, Event, Eviction, EvictionReason, Plan, PodRef, Scheduler};
use serde_json::json;
use support::*;

/// Rounds after which plans must have come to rest: every gang gets in by an eviction at most
/// once at an age of the world, and leaves and comes back take a round each.
const ROUNDS_MAX: usize = 60;

#[derive(Clone, Debug)]
struct Gang {
    queue: usize,
    priority: i32,
    min: usize,
    members: usize,
    gpus: i64,
    preemptible: bool,
    /// It is there from the first round on, or comes later.
    late: bool,
}

#[derive(Clone, Debug)]
struct Case {
    nodes: Vec<i64>,
    deserved: [i64; 3],
    surplus: bool,
    /// May others be moved for whoever waits?
    consolidate: bool,
    /// So many running pods of queue `qa` must stay so.
    budget: Option<usize>,
    gangs: Vec<Gang>,
}

fn case() -> impl Strategy<Value = Case> {
    let gang = (
        0..3usize,
        0..3i32,
        1..4usize,
        0..3usize,
        1..4i64,
        proptest::bool::weighted(0.85),
        any::<bool>(),
    );
    let gang = gang.prop_map(
        |(queue, priority, min, more, gpus, preemptible, late)| Gang {
            queue,
            priority,
            min,
            members: min + more,
            gpus,
            preemptible,
            late,
        },
    );
    (
        proptest::collection::vec(1..7i64, 1..5),
        [0..7i64, 0..7i64, 0..7i64],
        any::<bool>(),
        any::<bool>(),
        proptest::option::weighted(0.3, 0..6usize),
        proptest::collection::vec(gang, 2..10),
    )
        .prop_map(
            |(nodes, deserved, surplus, consolidate, budget, gangs)| Case {
                nodes,
                deserved,
                surplus,
                consolidate,
                budget,
                gangs,
            },
        )
}

#[derive(Clone, Debug)]
struct PodAt {
    gang: usize,
    node: Option<String>,
    started: usize,
    births: usize,
    leaving: bool,
}

#[derive(Clone)]
struct World {
    case: Case,
    pods: BTreeMap<String, PodAt>,
    arrived: BTreeSet<usize>,
    /// Those who waited after the last plan with a place held for them.
    promised: BTreeSet<String>,
}

const QUEUES: [&str; 3] = ["qa", "qb", "qc"];

impl World {
    fn new(case: &Case) -> World {
        World {
            case: case.clone(),
            pods: BTreeMap::new(),
            arrived: BTreeSet::new(),
            promised: BTreeSet::new(),
        }
    }

    fn basics(&self) -> Vec<Event> {
        let mut events: Vec<Event> = (0..3)
            .map(|p| priority_class(&format!("p{p}"), p))
            .collect();
        for (i, gpus) in self.case.nodes.iter().enumerate() {
            events.push(node(&format!("n{i}"), *gpus));
        }
        if let Some(least) = self.case.budget {
            let budget = json!({
                "metadata": {"name": "qa", "namespace": "ns"},
                "spec": {"minAvailable": least, "selector": {"matchLabels": {"queue": "qa"}}},
            });
            events.push(Event::BudgetChanged(
                serde_json::from_value(budget).unwrap(),
            ));
        }
        for (name, gpus) in QUEUES.iter().zip(self.case.deserved) {
            events.push(queue_with(name, |queue| {
                queue["spec"]["deserved"] = json!({
                    "nvidia.com/gpu": gpus.to_string(), "cpu": "1000", "memory": "1000Ti"});
                if !self.case.surplus {
                    queue["metadata"]["annotations"] = json!({"muster.io/surplus-weight": "0"});
                }
            }));
        }
        events
    }

    fn group(&self, at: usize) -> Event {
        let gang = &self.case.gangs[at];
        group_with(&format!("g{at}"), gang.min as i32, |group| {
            group["spec"]["queue"] = json!(QUEUES[gang.queue]);
            group["spec"]["priorityClassName"] = json!(format!("p{}", gang.priority));
            group["metadata"]["annotations"] =
                json!({"muster.io/preemptible": gang.preemptible.to_string()});
        })
    }

    fn pod(&self, name: &str) -> Event {
        let pod = &self.pods[name];
        let gang = &self.case.gangs[pod.gang];
        pod_with(name, Some(&format!("g{}", pod.gang)), gang.gpus, |object| {
            object["metadata"]["uid"] = json!(format!("{name}-{}", pod.births));
            object["metadata"]["labels"] = json!({"queue": QUEUES[gang.queue]});
            if let Some(node) = &pod.node {
                object["spec"]["nodeName"] = json!(node);
                let at = now() + jiff::SignedDuration::from_secs(pod.started as i64);
                object["status"] = json!({"phase": "Running", "startTime": at.to_string()});
            }
            if pod.leaving {
                object["metadata"]["deletionTimestamp"] = json!(now().to_string());
            }
        })
    }

    fn arrive(&mut self, at: usize) -> Vec<Event> {
        self.arrived.insert(at);
        let mut events = vec![self.group(at)];
        for i in 0..self.case.gangs[at].members {
            let name = format!("g{at}-{i}");
            let pod = PodAt {
                gang: at,
                node: None,
                started: 0,
                births: 0,
                leaving: false,
            };
            self.pods.insert(name.clone(), pod);
            events.push(self.pod(&name));
        }
        events
    }

    fn gang_of(&self, pod: &str) -> &Gang {
        &self.case.gangs[self.pods[pod].gang]
    }

    /// GPUs that a queue's pods hold that stay.
    fn held(&self, queue: usize) -> i64 {
        let pods = self
            .pods
            .values()
            .filter(|pod| pod.node.is_some() && !pod.leaving);
        let gangs = pods.map(|pod| &self.case.gangs[pod.gang]);
        gangs
            .filter(|gang| gang.queue == queue)
            .map(|gang| gang.gpus)
            .sum()
    }

    fn placed(&self, gang: usize) -> usize {
        let pods = self.pods.values().filter(|pod| pod.gang == gang);
        pods.filter(|pod| pod.node.is_some() && !pod.leaving)
            .count()
    }
}

/// What leaves as one: a member beyond the minimum, or what is left of a gang.
fn units<'a>(world: &World, evictions: &[&'a Eviction]) -> Vec<Vec<&'a Eviction>> {
    let mut by_gang: BTreeMap<usize, Vec<&Eviction>> = BTreeMap::new();
    for eviction in evictions {
        by_gang
            .entry(world.pods[&eviction.pod.name].gang)
            .or_default()
            .push(eviction);
    }
    let mut units = Vec::new();
    for (gang, evictions) in by_gang {
        if world.placed(gang) - evictions.len() >= world.case.gangs[gang].min {
            units.extend(evictions.into_iter().map(|one| vec![one]));
        } else {
            units.push(evictions);
        }
    }
    units
}

fn judge(world: &World, plan: &Plan) -> Result<(), TestCaseError> {
    let mut coming: BTreeMap<String, usize> = BTreeMap::new();
    for bind in &plan.binds {
        *coming.entry(bind.group.name.clone()).or_default() += 1;
    }
    for held in &plan.reservations {
        *coming.entry(held.group.name.clone()).or_default() += held.pods.len();
    }
    let mut lost: BTreeMap<usize, usize> = BTreeMap::new();
    for eviction in &plan.evictions {
        let victim = world.gang_of(&eviction.pod.name);
        prop_assert!(
            victim.preemptible || eviction.why == EvictionReason::StaleGang,
            "{eviction:?}"
        );
        prop_assert!(
            !world.pods[&eviction.pod.name].leaving,
            "nobody is evicted twice"
        );
        if eviction.why != EvictionReason::Consolidated {
            *lost.entry(world.pods[&eviction.pod.name].gang).or_default() += 1;
        }
        let Some(by) = &eviction.by else { continue };
        let taker_at: usize = by.name[1..].parse().unwrap();
        let taker = &world.case.gangs[taker_at];
        let there = world.placed(taker_at) + coming.get(&by.name).copied().unwrap_or(0);
        prop_assert!(
            there >= taker.min,
            "{} is not placed: {eviction:?}",
            by.name
        );
        prop_assert!(coming.contains_key(&by.name), "{} gets nothing", by.name);
        match eviction.why {
            EvictionReason::Preempted => {
                prop_assert_eq!(victim.queue, taker.queue);
                prop_assert!(victim.priority < taker.priority, "{:?}", eviction);
            }
            EvictionReason::Reclaimed => {
                prop_assert_ne!(victim.queue, taker.queue);
                // What was placed earlier in the plan counts, and what is held for somebody or was as the
                // plan began: a place is on its queue's account until it is given up.
                let going = |pod: &PodRef| plan.evictions.iter().any(|e| e.pod.name == pod.name);
                let held = plan.reservations.iter().flat_map(|held| &held.pods);
                // Where those who lose might go is nothing that their queue holds against anybody.
                let held = held.filter(|(pod, _)| !going(pod));
                let new = plan
                    .binds
                    .iter()
                    .map(|bind| &bind.pod)
                    .chain(held.map(|(pod, _)| pod));
                let mut new: BTreeSet<&String> = new.map(|pod| &pod.name).collect();
                new.extend(&world.promised);
                let new = new.into_iter().map(|pod| world.gang_of(pod));
                let new = new
                    .filter(|gang| gang.queue == victim.queue)
                    .map(|gang| gang.gpus);
                let held = world.held(victim.queue) + new.sum::<i64>();
                prop_assert!(
                    held > world.case.deserved[victim.queue],
                    "queue {} holds {held}, no more than it deserves, and loses",
                    QUEUES[victim.queue]
                );
            }
            EvictionReason::Consolidated => {
                // For a gang that its queue deserves, and only with a place of its own.
                let place = plan.reservations.iter().flat_map(|held| &held.pods);
                let mut place = place.filter(|(pod, _)| pod.name == eviction.pod.name);
                prop_assert!(place.next().is_some(), "{:?} has no other place", eviction);
            }
            other => prop_assert!(other == EvictionReason::StaleGang, "{other:?}"),
        }
    }
    if let Some(least) = world.case.budget {
        let all = world
            .pods
            .values()
            .filter(|pod| world.case.gangs[pod.gang].queue == 0);
        let healthy = all.filter(|pod| pod.node.is_some() && !pod.leaving).count();
        let gone = plan.evictions.iter().map(|e| world.gang_of(&e.pod.name));
        let gone = gone.filter(|gang| gang.queue == 0).count();
        prop_assert!(
            gone == 0 || healthy - gone >= least,
            "{gone} of {healthy} go, {least} must stay"
        );
    }
    for (gang, lost) in lost {
        let left = world.placed(gang) - lost;
        prop_assert!(
            left == 0 || left >= world.case.gangs[gang].min,
            "g{gang} is left half"
        );
    }
    minimal(world, plan)
}

/// With any one unit left where it is, the gang that it goes for would not fit.
fn minimal(world: &World, plan: &Plan) -> Result<(), TestCaseError> {
    let takers: BTreeSet<&String> = plan
        .evictions
        .iter()
        .filter_map(|e| Some(&e.by.as_ref()?.name))
        .collect();
    let [taker] = takers.iter().collect::<Vec<_>>()[..] else {
        return Ok(());
    };
    if plan.binds.iter().any(|bind| bind.group.name != **taker) {
        return Ok(());
    }
    let evictions: Vec<&Eviction> = plan.evictions.iter().filter(|e| e.by.is_some()).collect();
    let reasons: BTreeSet<EvictionReason> = evictions.iter().map(|e| e.why).collect();
    if reasons.len() > 1 {
        // Its own queue's juniors went so that the queue stays within its share: room alone
        // does not tell.
        return Ok(());
    }
    let at: usize = taker[1..].parse().unwrap();
    let bound = plan
        .binds
        .iter()
        .filter(|b| b.group.name == **taker)
        .count();
    let held = plan
        .reservations
        .iter()
        .filter(|held| held.group.name == **taker);
    let coming = bound + held.map(|held| held.pods.len()).sum::<usize>();
    for unit in units(world, &evictions) {
        let taker_gang = &world.case.gangs[at];
        if reasons.contains(&EvictionReason::Preempted) {
            // A queue beyond its share must not grow by evictions: room alone does not tell.
            let gpus = |e: &&Eviction| world.gang_of(&e.pod.name).gpus;
            let gone: i64 = evictions.iter().map(gpus).sum();
            let back: i64 = unit.iter().map(gpus).sum();
            let before = world.held(taker_gang.queue);
            let after = before - gone + back + coming as i64 * taker_gang.gpus;
            if after > before.max(world.case.deserved[taker_gang.queue]) {
                continue;
            }
        }
        let stays: BTreeSet<&String> = unit.iter().map(|e| &e.pod.name).collect();
        let off = Actions {
            preempt: false,
            reclaim: false,
            ..Actions::default()
        };
        let mut plain = Scheduler::new(Config {
            actions: off,
            ..Config::default()
        });
        for event in world.basics() {
            plain.apply(event);
        }
        for gang in &world.arrived {
            plain.apply(world.group(*gang));
        }
        let mut moved = BTreeSet::new();
        for (name, pod) in &world.pods {
            let goes = evictions.iter().any(|e| e.pod.name == *name) && !stays.contains(name);
            let waits = pod.node.is_none() && pod.gang != at;
            // Places that are held already are others' business; where those who lose might go is
            // looked for last.
            let held = plan.reservations.iter().any(|held| {
                held.group.name != **taker && held.pods.iter().any(|(pod, _)| pod.name == *name)
            });
            if held && !evictions.iter().any(|e| e.pod.name == *name) {
                return Ok(());
            }
            if !goes && !waits && !pod.leaving {
                plain.apply(world.pod(name));
            }
            if goes && reasons.contains(&EvictionReason::Consolidated) {
                moved.insert(name);
                let mut without = world.clone();
                without.pods.get_mut(name).unwrap().node = None;
                plain.apply(without.pod(name));
            }
        }
        let binds = plain.plan(now()).binds;
        let placed = binds.iter().filter(|b| b.group.name == **taker).count();
        // Who is moved must have another place.
        let housed = binds.iter().filter(|b| moved.contains(&b.pod.name)).count();
        prop_assert!(
            placed < coming || housed < moved.len(),
            "{taker} would fit although {stays:?} stayed, of {:?}",
            evictions.iter().map(|e| &e.pod.name).collect::<Vec<_>>()
        );
    }
    Ok(())
}

/// Says how many times each gang's first member went.
fn run(case: &Case) -> Result<Vec<usize>, TestCaseError> {
    let mut lost = vec![0; case.gangs.len()];
    let mut world = World::new(case);
    let mut s = Scheduler::new(Config {
        actions: Actions {
            consolidate: case.consolidate,
            ..Actions::default()
        },
        ..Config::default()
    });
    for event in world.basics() {
        s.apply(event);
    }
    for phase in [false, true] {
        for at in 0..case.gangs.len() {
            if case.gangs[at].late == phase {
                for event in world.arrive(at) {
                    s.apply(event);
                }
            }
        }
        let (mut rest, mut clock) = (0, now());
        for round in 0.. {
            prop_assert!(round < ROUNDS_MAX, "plans do not come to rest");
            // Nothing is new, and everything is looked at again.
            s.apply(queue_with("nudge", |_| {}));
            s.apply(Event::QueueGone("nudge".into()));
            let plan = s.plan(clock);
            judge(&world, &plan)?;
            let moved = !plan.evictions.is_empty() || !plan.binds.is_empty();
            let leaving = world.pods.values().any(|pod| pod.leaving);
            rest = if moved || leaving { 0 } else { rest + 1 };
            if rest == 3 && plan.reservations.is_empty() {
                break;
            }
            if rest == 3 {
                // A place is kept for somebody who was moved and cannot come back; not for ever.
                prop_assert!(clock == now(), "room is held for nobody's leaving");
                clock = now() + jiff::SignedDuration::from_mins(6);
                rest = 0;
            }
            // Those told to go before are gone, and come back to wait.
            let back: Vec<String> = world
                .pods
                .iter()
                .filter(|(_, pod)| pod.leaving)
                .map(|(name, _)| name.clone())
                .collect();
            for name in back {
                s.apply(pod_gone(&name));
                let pod = world.pods.get_mut(&name).unwrap();
                pod.node = None;
                pod.leaving = false;
                pod.births += 1;
                s.apply(world.pod(&name));
            }
            for bind in &plan.binds {
                let pod = world.pods.get_mut(&bind.pod.name).unwrap();
                prop_assert!(pod.node.is_none());
                pod.node = Some(bind.node.clone());
                pod.started = round;
                s.apply(world.pod(&bind.pod.name));
            }
            for eviction in &plan.evictions {
                lost[world.pods[&eviction.pod.name].gang] +=
                    usize::from(eviction.pod.name.ends_with("-0"));
                world.pods.get_mut(&eviction.pod.name).unwrap().leaving = true;
                s.apply(world.pod(&eviction.pod.name));
            }
            let held = plan.reservations.iter().flat_map(|held| &held.pods);
            let held = held.map(|(pod, _)| pod.name.clone());
            let waits = |name: &String| world.pods[name].node.is_none();
            world.promised = held.filter(waits).collect();
            for (i, gpus) in case.nodes.iter().enumerate() {
                let name = format!("n{i}");
                let on = world
                    .pods
                    .values()
                    .filter(|pod| pod.node.as_ref() == Some(&name));
                let used: i64 = on.map(|pod| case.gangs[pod.gang].gpus).sum();
                prop_assert!(used <= *gpus, "{name} holds {used} of {gpus}");
            }
        }
        // What is left of all the trying and undoing is what the objects say.
        let mut fresh = Scheduler::new(Config::default());
        for event in world.basics() {
            fresh.apply(event);
        }
        for gang in &world.arrived {
            fresh.apply(world.group(*gang));
        }
        for name in world.pods.keys() {
            fresh.apply(world.pod(name));
        }
        prop_assert_eq!(fresh.view().nodes, s.view().nodes);
        prop_assert_eq!(fresh.view().pods, s.view().pods);
    }
    Ok(lost)
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn evictions_are_few_lawful_and_come_to_rest(case in case()) {
        run(&case)?;
    }
}

fn gang(
    (queue, priority): (usize, i32),
    (min, members): (usize, usize),
    gpus: i64,
    late: bool,
) -> Gang {
    Gang {
        queue,
        priority,
        min,
        members,
        gpus,
        preemptible: true,
        late,
    }
}

#[test]
fn a_place_that_is_held_is_on_its_queues_account_when_others_take_back_what_they_deserve() {
    // The third queue's first gang has two of its members, and the place of the third on a node
    // where its second gang has shrunk for it; both go for the first queue's, which needs that node.
    let case = Case {
        nodes: vec![3, 2, 2],
        deserved: [3, 0, 5],
        surplus: false,
        consolidate: false,
        budget: None,
        gangs: vec![
            Gang {
                preemptible: false,
                ..gang((0, 0), (1, 1), 3, true)
            },
            gang((2, 1), (2, 3), 2, true),
            gang((2, 0), (1, 3), 1, false),
        ],
    };
    run(&case).unwrap();
}

#[test]
fn who_goes_with_juniors_has_no_more_against_other_queues_than_with_them_still_there() {
    // Without its junior the third queue's senior was within what its queue deserves, and took from
    // the first queue what that had taken back from it as the junior borrowed; and the junior came
    // back to what was idle.
    let case = Case {
        nodes: vec![4, 2, 2],
        deserved: [2, 0, 3],
        surplus: true,
        consolidate: false,
        budget: None,
        gangs: vec![
            gang((2, 0), (1, 2), 2, false),
            gang((2, 1), (1, 1), 3, false),
            gang((0, 0), (1, 1), 3, false),
        ],
    };
    run(&case).unwrap();
}

#[test]
fn nobody_who_is_moved_for_another_could_stay_if_all_moved_are_to_have_a_place() {
    // Free are 1, 0 and 5 GPUs, and three members of 2 come: all nodes are full then, which takes a
    // move of both pods of 1.
    let case = Case {
        nodes: vec![5, 4, 5],
        deserved: [0, 0, 2],
        surplus: false,
        consolidate: true,
        budget: None,
        gangs: vec![
            gang((0, 0), (2, 2), 1, false),
            gang((0, 0), (1, 3), 2, false),
            gang((0, 0), (3, 5), 2, true),
        ],
    };
    run(&case).unwrap();
}

#[test]
fn a_senior_who_took_his_place_is_not_lost_for_what_his_queues_juniors_borrow() {
    // With its junior of 1 GPU the first queue is beyond its share, and its senior's nodes are what the second
    // queue's gang needs. Whether the junior could go as well makes no difference: in the second case it has come
    // back a moment ago.
    let elsewhere = Case {
        nodes: vec![2, 5, 3, 2],
        deserved: [5, 0, 0],
        surplus: true,
        consolidate: false,
        budget: None,
        gangs: vec![
            gang((2, 0), (2, 2), 1, false),
            gang((0, 2), (3, 3), 2, true),
            gang((1, 0), (2, 2), 2, false),
            gang((1, 0), (1, 1), 2, false),
            gang((0, 0), (1, 3), 1, false),
        ],
    };
    let lost = run(&elsewhere).unwrap();
    assert!(lost[1] <= 1, "{lost:?}");
    let spared = Case {
        nodes: vec![4, 5, 1, 3],
        deserved: [4, 0, 3],
        surplus: true,
        consolidate: false,
        budget: None,
        gangs: vec![
            gang((2, 1), (2, 3), 3, false),
            gang((2, 0), (1, 1), 1, false),
            gang((0, 0), (1, 3), 3, false),
            gang((0, 1), (3, 3), 3, false),
        ],
    };
    let lost = run(&spared).unwrap();
    assert!(lost[0] <= 1, "{lost:?}");
}

#[test]
fn who_loses_soon_what_it_took_back_holds_it_for_longer_the_next_time() {
    // All of the second queue's gang goes for the one GPU that the third deserves more, and is entitled to come back
    // from what others borrow then; and the third queue's senior and junior change places beside it.
    let case = Case {
        nodes: vec![6, 4],
        deserved: [2, 3, 3],
        surplus: true,
        consolidate: false,
        budget: Some(2),
        gangs: vec![
            gang((2, 1), (2, 2), 2, true),
            Gang {
                preemptible: false,
                ..gang((0, 0), (1, 1), 1, false)
            },
            gang((1, 0), (2, 2), 2, true),
            gang((0, 0), (1, 1), 3, false),
            gang((2, 0), (2, 4), 1, false),
        ],
    };
    run(&case).unwrap();
}

#[test]
fn of_few_who_are_moved_for_another_none_could_stay_wherever_that_one_went() {
    // Free are 1, 2, 4 and 0 GPUs, and two members of 3 come: the nodes of 3 and of 4 are cleared by
    // one move to the node that has 2 left, or by two to that which has 4.
    let case = Case {
        nodes: vec![3, 4, 4, 6],
        deserved: [6, 4, 0],
        surplus: false,
        consolidate: true,
        budget: None,
        gangs: vec![
            gang((1, 0), (1, 3), 2, false),
            gang((0, 1), (2, 2), 2, false),
            Gang {
                preemptible: false,
                ..gang((0, 0), (2, 3), 3, false)
            },
        ],
    };
    run(&case).unwrap();
    // Here one gang could stay whole, and none of it while another of it goes.
    let case = Case {
        nodes: vec![2, 6, 4, 6],
        deserved: [0, 0, 0],
        surplus: false,
        consolidate: true,
        budget: None,
        gangs: vec![
            gang((0, 0), (3, 5), 3, false),
            gang((1, 0), (2, 2), 3, false),
            gang((2, 0), (3, 3), 1, false),
        ],
    };
    run(&case).unwrap();
}
