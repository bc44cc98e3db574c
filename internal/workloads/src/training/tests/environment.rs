//! The environment of each replica, variable by variable.

use serde_json::json;

use super::world::{World, at, master_and_workers, replica};
use crate::training::Network;

fn told(world: &World, pod: &str) -> Vec<String> {
    world
        .environment(pod)
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

#[test]
fn master_and_workers_get_the_masters_address_and_their_ranks() {
    let mut world = World::new(master_and_workers(2, "OnFailure"));
    world.step(at(0));
    let expected = |rank: u32| {
        vec![
            "PYTHONUNBUFFERED=1".to_owned(),
            "MASTER_PORT=23456".to_owned(),
            "PET_MASTER_PORT=23456".to_owned(),
            "MASTER_ADDR=demo-master-0".to_owned(),
            "PET_MASTER_ADDR=demo-master-0".to_owned(),
            "WORLD_SIZE=3".to_owned(),
            format!("RANK={rank}"),
            format!("PET_NODE_RANK={rank}"),
            "PET_NPROC_PER_NODE=auto".to_owned(),
            "PET_NNODES=3".to_owned(),
        ]
    };
    assert_eq!(told(&world, "demo-master-0"), expected(0));
    assert_eq!(told(&world, "demo-worker-0"), expected(1));
    assert_eq!(told(&world, "demo-worker-1"), expected(2));
}

#[test]
fn processes_per_node_multiply_the_world() {
    for (given, told_processes, world_size) in [
        (json!(4), "4", "12"),
        (json!("8"), "8", "24"),
        (json!("gpu"), "gpu", "3"),
        (json!("auto"), "auto", "3"),
    ] {
        let mut spec = master_and_workers(2, "OnFailure");
        spec["nprocPerNode"] = given;
        let mut world = World::new(spec);
        world.step(at(0));
        assert_eq!(
            world
                .variable("demo-worker-1", "PET_NPROC_PER_NODE")
                .as_deref(),
            Some(told_processes)
        );
        assert_eq!(
            world.variable("demo-worker-1", "WORLD_SIZE").as_deref(),
            Some(world_size)
        );
    }
}

#[test]
fn without_a_master_no_ranks_are_set() {
    let mut world = World::new(json!({"pytorchReplicaSpecs": {"Worker": replica(3, "OnFailure")}}));
    world.step(at(0));
    assert_eq!(
        told(&world, "demo-worker-2"),
        [
            "PYTHONUNBUFFERED=1",
            "PET_NPROC_PER_NODE=auto",
            "PET_NNODES=3"
        ]
    );
}

#[test]
fn an_elastic_job_gets_its_rendezvous() {
    let mut world = World::new(json!({
        "elasticPolicy": {
            "minReplicas": 1, "maxReplicas": 4, "maxRestarts": 10, "rdzvId": "run-7",
            "rdzvBackend": "c10d", "standalone": true, "nProcPerNode": 2,
            "rdzvConf": [{"key": "timeout", "value": "60"}, {"key": "is_host", "value": "1"}],
        },
        "pytorchReplicaSpecs": {"Worker": replica(2, "OnFailure")},
    }));
    world.step(at(0));
    assert_eq!(
        told(&world, "demo-worker-1"),
        [
            "PYTHONUNBUFFERED=1",
            "PET_NPROC_PER_NODE=2",
            "PET_RDZV_ENDPOINT=demo-worker-0:23456",
            "PET_RDZV_BACKEND=c10d",
            "PET_NNODES=1:4",
            "PET_MAX_RESTARTS=10",
            "PET_RDZV_ID=run-7",
            "PET_RDZV_CONF=timeout=60,is_host=1",
            "PET_STANDALONE=",
        ]
    );
}

#[test]
fn an_elastic_job_may_name_its_rendezvous_host_and_port() {
    let mut world = World::new(json!({
        "elasticPolicy": {"rdzvHost": "etcd.infra", "rdzvPort": 2379, "rdzvBackend": "etcd-v2"},
        "pytorchReplicaSpecs": {"Worker": replica(2, "OnFailure")},
    }));
    world.step(at(0));
    assert_eq!(
        world
            .variable("demo-worker-0", "PET_RDZV_ENDPOINT")
            .as_deref(),
        Some("etcd.infra:2379")
    );
    assert_eq!(
        world.variable("demo-worker-0", "PET_NNODES").as_deref(),
        Some("2")
    );
}

#[test]
fn a_value_that_the_user_set_stays_and_may_use_ours() {
    let mut spec = master_and_workers(1, "OnFailure");
    spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["env"] = json!([
        {"name": "MASTER_PORT", "value": "29500"},
        {"name": "ENDPOINT", "value": "$(MASTER_ADDR):29500"},
    ]);
    let mut world = World::new(spec);
    world.step(at(0));
    let told = told(&world, "demo-master-0");
    assert_eq!(
        told.iter()
            .filter(|line| line.starts_with("MASTER_PORT="))
            .collect::<Vec<_>>(),
        ["MASTER_PORT=29500"]
    );
    let ours = told
        .iter()
        .position(|line| line.starts_with("MASTER_ADDR="))
        .unwrap();
    let users = told
        .iter()
        .position(|line| line.starts_with("ENDPOINT="))
        .unwrap();
    assert!(ours < users, "only what comes before can be referred to");
}

#[test]
fn every_container_gets_the_environment() {
    let mut spec = master_and_workers(0, "OnFailure");
    spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"] =
        json!([{"name": "pytorch"}, {"name": "sidecar"}]);
    let mut world = World::new(spec);
    world.step(at(0));
    let containers = &world.pods["demo-master-0"]
        .spec
        .as_ref()
        .unwrap()
        .containers;
    for container in containers {
        assert!(
            container
                .env
                .iter()
                .flatten()
                .any(|variable| variable.name == "RANK"),
            "{}",
            container.name
        );
    }
}

#[test]
fn a_port_that_a_container_names_is_the_rendezvous_port() {
    for network in [
        Network::PerPod,
        Network::HostShared {
            ports: 20_000..=20_009,
        },
    ] {
        let mut spec = master_and_workers(1, "OnFailure");
        spec["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["ports"] = json!([{"name": "metrics", "containerPort": 9090}, {"name": "pytorchjob-port", "containerPort": 4567}]);
        let mut world = World::new(spec);
        world.network = network;
        world.step(at(0));
        assert_eq!(
            world.variable("demo-worker-0", "MASTER_PORT").as_deref(),
            Some("4567")
        );
        assert!(
            !world
                .job
                .metadata
                .annotations
                .iter()
                .flatten()
                .any(|(key, _)| key == "muster.io/rendezvous-port")
        );
        let ports = world.services["demo-master-0"]
            .spec
            .as_ref()
            .unwrap()
            .ports
            .clone()
            .unwrap();
        assert_eq!(
            ports.iter().map(|port| port.port).collect::<Vec<_>>(),
            [9090, 4567]
        );
    }
}

#[test]
fn on_shared_networks_each_job_has_a_port_of_its_own() {
    let mut world = World::new(master_and_workers(1, "OnFailure"));
    world.network = Network::HostShared {
        ports: 20_000..=20_009,
    };
    world.taken.extend([20_000, 20_001]);
    world.settle(at(0));
    assert_eq!(
        world.variable("demo-worker-0", "MASTER_PORT").as_deref(),
        Some("20002")
    );
    assert_eq!(
        world.job.metadata.annotations.as_ref().unwrap()["muster.io/rendezvous-port"],
        "20002"
    );
    world.pods.remove("demo-worker-0");
    world.settle(at(1));
    assert_eq!(
        world.variable("demo-worker-0", "MASTER_PORT").as_deref(),
        Some("20002"),
        "a new pod joins the others"
    );
}

#[test]
fn a_job_waits_while_every_port_is_held() {
    let mut world = World::new(master_and_workers(1, "OnFailure"));
    world.network = Network::HostShared {
        ports: 20_000..=20_001,
    };
    world.taken.extend([20_000, 20_001]);
    let outcome = world.step(at(0));
    assert!(world.pods.is_empty());
    assert_eq!(outcome.requeue_at, Some(at(30)));
    assert_eq!(outcome.events.last().unwrap().reason, "NoRendezvousPort");
    world.taken.remove(&20_001);
    world.settle(at(30));
    assert_eq!(
        world.variable("demo-master-0", "MASTER_PORT").as_deref(),
        Some("20001")
    );
}
