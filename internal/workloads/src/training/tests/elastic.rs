//! Elastic jobs: growing and shrinking between their bounds.

use resources::kinds::JobConditionType;
use serde_json::json;

use super::world::{World, at, replica};

fn elastic(min: u32, max: u32, workers: u32, master: bool) -> World {
    let mut spec = json!({
        "elasticPolicy": {"minReplicas": min, "maxReplicas": max},
        "pytorchReplicaSpecs": {"Worker": replica(workers, "OnFailure")},
    });
    if master {
        spec["pytorchReplicaSpecs"]["Master"] = replica(1, "OnFailure");
    }
    let mut world = World::new(spec);
    world.settle(at(0));
    world
}

fn scale(world: &mut World, workers: i32) {
    let spec = world
        .job
        .spec
        .pytorch_replica_specs
        .get_mut("Worker")
        .unwrap();
    spec.replicas = Some(workers);
}

fn workers(world: &World) -> usize {
    world
        .pods
        .keys()
        .filter(|name| name.contains("-worker-"))
        .count()
}

#[test]
fn the_gang_is_the_least_the_job_can_do_with() {
    for (min, count, master, expected) in [(2, 4, false, 2), (2, 4, true, 3), (4, 4, true, 5)] {
        let world = elastic(min, 8, count, master);
        assert_eq!(
            world.group.as_ref().unwrap().spec.min_member,
            Some(expected)
        );
    }
}

#[test]
fn growing_adds_workers_and_shrinking_takes_the_highest_first() {
    let mut world = elastic(1, 4, 2, false);
    world.run_all();
    scale(&mut world, 4);
    world.settle(at(1));
    assert_eq!(workers(&world), 4);
    scale(&mut world, 1);
    let outcome = world.step(at(2));
    let deleted: Vec<_> = outcome
        .actions
        .iter()
        .filter_map(|action| match action {
            crate::Action::DeletePod { name, .. } => Some(name.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(deleted, ["demo-worker-3", "demo-worker-2", "demo-worker-1"]);
    world.settle(at(3));
    assert_eq!(world.services.len(), 1, "their services go too");
    assert_eq!(world.pods.len(), 1);
}

#[test]
fn workers_stay_within_the_bounds() {
    let mut world = elastic(2, 4, 3, false);
    for (asked, given) in [(9, 4), (0, 2), (3, 3)] {
        scale(&mut world, asked);
        world.settle(at(1));
        assert_eq!(workers(&world), given);
    }
}

#[test]
fn shrinking_to_the_least_lets_the_gang_follow() {
    let mut world = elastic(2, 4, 4, true);
    assert_eq!(
        world
            .group
            .as_ref()
            .unwrap()
            .spec
            .min_task_member
            .as_ref()
            .unwrap()["worker"],
        2
    );
    world.job.spec.elastic_policy.as_mut().unwrap().min_replicas = Some(3);
    world.settle(at(1));
    assert_eq!(world.group.as_ref().unwrap().spec.min_member, Some(4));
}

#[test]
fn without_a_master_any_workers_success_is_the_jobs() {
    let mut world = elastic(1, 4, 3, false);
    world.run_all();
    world.exit("demo-worker-1", 0, at(5));
    world.settle(at(5));
    assert!(world.holds(JobConditionType::Succeeded));
}

#[test]
fn with_a_master_the_masters_success_is_the_jobs() {
    let mut world = elastic(1, 4, 3, true);
    world.run_all();
    world.exit("demo-worker-1", 0, at(5));
    world.settle(at(5));
    assert!(!world.holds(JobConditionType::Succeeded));
    world.exit("demo-master-0", 0, at(6));
    world.settle(at(6));
    assert!(world.holds(JobConditionType::Succeeded));
}
