//! What holds of evictions whatever happens: nobody goes unless somebody comes, nobody can be left
//! out of those who go, those within their rights lose nothing, and plans come to rest.
#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

#[path = "evictions_properties/judge.rs"]
mod judge;
mod support;
#[path = "evictions_properties/world.rs"]
mod world;

use judge::judge;
use proptest::prelude::*;
use scheduler::{Actions, Config, Event, Scheduler};
use support::*;
use world::{Case, Gang, World, case};

/// Rounds after which plans must have come to rest: every gang gets in by an eviction at most
/// once at an age of the world, and leaves and comes back take a round each.
const ROUNDS_MAX: usize = 60;

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
