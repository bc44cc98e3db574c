//! A Job's pods within what the nodes hold and the quota leaves.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::WAITING_MAX;
use super::{World, at};
use crate::pod_room::{GANG_FLOOR, LOOK_AGAIN, PodQuota, WAITING_FLOOR};

/// A job whose pods name a gang.
fn gang_job(parallelism: u32) -> World {
    let mut world = World::new(json!({"parallelism": parallelism}));
    let notes = [(resources::names::GROUP_NAME.to_owned(), "gang".to_owned())];
    let template = &mut world.job.spec.as_mut().unwrap().template;
    let meta = template.metadata.get_or_insert_default();
    meta.annotations = Some(BTreeMap::from(notes));
    world
}

/// The condition's status, reason and message.
fn held_back(world: &World) -> Option<(String, String, String)> {
    let status = world.job.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let found = conditions
        .find(|known| known.type_ == "PodsHeldBack")?
        .clone();
    Some((
        found.status,
        found.reason.unwrap_or_default(),
        found.message.unwrap_or_default(),
    ))
}

fn steps(world: &mut World) {
    for _ in 0..100 {
        if world.step(at(0)).actions.is_empty() {
            return;
        }
    }
    panic!("pods are made without end");
}

#[test]
fn a_gang_larger_than_the_cluster_gets_no_pod_and_says_so_until_the_cluster_has_grown() {
    let mut world = gang_job(GANG_FLOOR + 1);
    world.room.nodes = Some(100);
    let outcome = world.step(at(0));
    assert_eq!(outcome.actions, []);
    assert_eq!(outcome.requeue_at, Some(at(LOOK_AGAIN)));
    steps(&mut world);
    assert_eq!(world.pods.len(), 0, "half a gang");
    let (status, reason, message) = held_back(&world).unwrap();
    assert_eq!((&*status, &*reason), ("True", "ClusterTooSmall"));
    assert!(
        message.contains("2001 pods") && message.contains("hold 100 pods"),
        "{message}"
    );
    world.room.nodes = Some(u64::from(GANG_FLOOR) + 1);
    steps(&mut world);
    assert_eq!(world.pods.len(), 2_001);
    assert_eq!(held_back(&world).unwrap().0, "False");
    // The same on a small cluster, at the floor.
    let mut world = gang_job(GANG_FLOOR);
    world.room.nodes = Some(100);
    steps(&mut world);
    assert_eq!((world.pods.len(), held_back(&world)), (2_000, None));
}

#[test]
fn a_gang_beyond_its_quota_waits_as_a_whole_and_single_pods_use_what_is_left() {
    for (used, made) in [(0, 40), (10, 40), (11, 0), (50, 0)] {
        let mut world = gang_job(40);
        world.room.quota = Some(PodQuota { hard: 50, used });
        world.step(at(0));
        assert_eq!(world.pods.len(), made, "{used} used");
        let reason = held_back(&world).map(|held| held.1);
        assert_eq!(reason.as_deref(), (made == 0).then_some("QuotaExhausted"));
    }
    let mut world = gang_job(51);
    world.room.quota = Some(PodQuota { hard: 50, used: 0 });
    world.step(at(0));
    assert_eq!(held_back(&world).unwrap().1, "QuotaTooSmall");

    for (used, made) in [(0, 40), (49, 1), (50, 0)] {
        let mut world = World::new(json!({"parallelism": 40}));
        world.room.quota = Some(PodQuota { hard: 50, used });
        world.step(at(0));
        assert_eq!(world.pods.len(), made, "{used} used");
        assert_eq!(held_back(&world).is_some(), made == 0);
    }
}

#[test]
fn a_job_of_many_pods_has_as_many_waiting_as_the_nodes_hold_and_at_least_the_floor() {
    for (nodes, made) in [(0, WAITING_FLOOR), (300, 300), (1 << 40, WAITING_MAX)] {
        let mut world = World::new(json!({"parallelism": i32::MAX}));
        world.room.nodes = Some(nodes);
        steps(&mut world);
        assert_eq!(
            world.pods.len(),
            usize::try_from(made).unwrap(),
            "{nodes} pods"
        );
    }
}
