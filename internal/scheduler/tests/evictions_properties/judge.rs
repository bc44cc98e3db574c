//! What must hold of one plan's evictions in any cluster.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use scheduler::{Actions, Config, Eviction, EvictionReason, Plan, PodRef, Scheduler};

use super::support::*;
use super::world::{QUEUES, World};

/// A unit of eviction: a surplus member, or what is left of a gang.
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

pub fn judge(world: &World, plan: &Plan) -> Result<(), TestCaseError> {
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
            "no pod is evicted twice"
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
                // What was placed earlier in the plan counts, and so do nominations, also those
                // from before the plan: a place is charged to its queue until it is given up.
                let going = |pod: &PodRef| plan.evictions.iter().any(|e| e.pod.name == pod.name);
                let held = plan.reservations.iter().flat_map(|held| &held.pods);
                // Places that are reserved for victims while no gang wants them are not charged
                // against any gang.
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
                // For a gang within its queue's deserved amount, and only with a place of its own.
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

/// With any one unit left running, the preemptor would not fit.
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
        // Lower-ranked gangs of the preemptor's queue were evicted so that the queue stays within
        // its share: room alone does not decide.
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
            // A queue above its share must not grow by evictions: room alone does not decide.
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
            // Existing nominations belong to other gangs; places for victims are sought last.
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
        // A moved pod must have another place.
        let housed = binds.iter().filter(|b| moved.contains(&b.pod.name)).count();
        prop_assert!(
            placed < coming || housed < moved.len(),
            "{taker} would fit although {stays:?} stayed, of {:?}",
            evictions.iter().map(|e| &e.pod.name).collect::<Vec<_>>()
        );
    }
    Ok(())
}
