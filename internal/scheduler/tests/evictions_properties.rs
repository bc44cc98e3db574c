//! Properties of evictions on random clusters: every eviction places a gang, the victim set is
//! minimal, queues and gangs lose nothing that they are entitled to, and plans converge.
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

/// Rounds after which plans must have converged: every gang is placed by evictions at most once in
/// an age of the cluster, and leaving and coming back take one round each.
const ROUNDS_MAX: usize = 60;

/// Returns how many times each gang's first member was evicted.
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
            // Nothing is new, and the plan considers everything again.
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
                // A place is reserved for a moved pod that cannot come back; the reservation
                // expires.
                prop_assert!(clock == now(), "room is held although no pod leaves");
                clock = now() + jiff::SignedDuration::from_mins(6);
                rest = 0;
            }
            // The pods evicted before are gone, and their replacements wait.
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
        // After all trials and undos the state equals the state built from the objects.
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
    fn evictions_are_minimal_permitted_and_converge(case in case()) {
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
fn a_nominated_place_is_charged_to_its_queue_during_reclaim() {
    // The third queue's first gang runs two of its members and has a nomination for the third on a
    // node where its second gang has shrunk for it. Both are evicted for the first queue's gang,
    // which needs that node.
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
fn evicting_lower_ranked_gangs_gives_no_further_right_to_reclaim() {
    // Without its lower-ranked gang the third queue's other gang was within what its queue
    // deserves, and took from the first queue what that had reclaimed while the lower-ranked gang
    // borrowed; and the lower-ranked gang came back on idle resources.
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
fn no_moved_member_could_have_stayed() {
    // 1, 0 and 5 GPUs are free, and three members of 2 GPUs arrive: they fill all nodes, which
    // takes a move of both pods of 1 GPU.
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
fn a_gang_placed_by_eviction_is_not_evicted_for_what_lower_ranked_gangs_borrow() {
    // With its lower-ranked gang of 1 GPU the first queue is above its share, and the nodes of its
    // other gang are what the second queue's gang needs. Whether the lower-ranked gang could be
    // evicted as well makes no difference: in the second case it has just come back.
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
fn a_gang_reclaimed_soon_after_reclaiming_is_exempt_for_longer() {
    // The second queue's whole gang is evicted for the one GPU that the third queue deserves more,
    // and is entitled to come back from what other queues then borrow; beside it two gangs of the
    // third queue change places.
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
fn no_member_of_a_small_move_set_could_have_stayed_wherever_the_gang_went() {
    // 1, 2, 4 and 0 GPUs are free, and two members of 3 GPUs arrive: the nodes with 3 and 4 GPUs
    // are cleared by one move to the node with 2 GPUs left, or by two moves to the node with 4.
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
    // Here one gang could stay whole, but none of its members while another member moves.
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
